"""Compare a batch's columns with a table's, before anything is written.

:func:`fit` compares two schemas by names, as Delta does: without regard to case or to the order of columns.
It returns the schema in which the rows are written, or the problem of each column:

=============================================  ====================================================
same type                                      written
type that fits into the table's, any value     cast: INT to BIGINT, FLOAT to DOUBLE, DATE to TIMESTAMP_NTZ
other type                                     refused: a cast could change or lose values
column or field that the table does not have   refused, or added to the table on request
column or field that the batch does not have   null; refused if the table says NOT NULL
name that differs in case                      the table's
=============================================  ====================================================

Fields are those of structs, also of structs in arrays and maps, at any depth. :func:`conform` converts rows
to that schema. Delta's own rules depend on how a table is named: by path, it refuses an INT for a BIGINT; by
name, it accepts any text for a number and fails on invalid ones. Therefore only rules that Delta alone can
check are left to it: NOT NULL, CHECK, and generated columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    VarcharType,
)

from gazette_spark._delta.sql_names import quoted
from gazette_spark.errors import ColumnProblem

FORBIDDEN = " ,;{}()\n\t="
"""Characters that Delta accepts in a column's name only with column mapping."""

CHANGE_COLUMNS = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
"""Names of columns that Delta reserves in a table with a change data feed."""

INTEGERS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
"""Integer types, narrow to wide, with the decimal digits of their largest value."""

EXACT: dict[type[DataType], tuple[type[DataType], ...]] = {
    FloatType: (ByteType, ShortType),
    DoubleType: (FloatType, ByteType, ShortType, IntegerType),
    TimestampNTZType: (DateType,),
}
"""Floating-point and timestamp types, each with the types whose values it represents exactly."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Properties that determine which columns a table accepts; by default, the strictest."""

    any_name: bool = False
    """Whether the table maps columns, so that their names may have any character."""
    change_feed: bool = True
    """Whether the table has a change data feed, whose column names are reserved."""
    fills: bool = False
    """Whether the table may compute columns that a batch lacks: generated columns, identities, defaults."""
    type_change: str = "ALTER COLUMN … TYPE, with the table property delta.enableTypeWidening"
    """The ALTER TABLE clause that gives a column a wider type."""


@dataclass(frozen=True, slots=True)
class SchemaFit:
    """The schema in which a batch can be written."""

    schema: StructType
    """The batch's columns in their order, with the names and types that they get."""
    added: tuple[str, ...] = ()
    """Columns and fields that the write adds to the table."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Reasons why a batch cannot be written."""

    problems: tuple[ColumnProblem, ...]


@dataclass
class _SchemaComparison:
    """The settings of a comparison, and its results so far."""

    table: str
    rules: Rules
    add: bool
    added: list[str] = field(default_factory=list)
    problems: list[ColumnProblem] = field(default_factory=list)


def fit(
    table: str, batch: StructType, existing: StructType | None, *, add: bool, rules: Rules = Rules()
) -> SchemaFit | Unfit:
    """Determine how to write rows to a table.

    Args:
        table: Name of the table, for statements in advice.
        batch: The rows' schema.
        existing: The table's schema; None if the table is created from the rows.
        add: Whether columns may be added to the table.
        rules: Properties of the table.
    """
    comparison = _SchemaComparison(table, rules, add=add or existing is None)
    # All columns are compared before anything is refused, because Delta would name only one problem at a
    # time.
    written = _fields(comparison, "", batch, StructType() if existing is None else existing)
    if comparison.problems:
        return Unfit(tuple(comparison.problems))
    # The columns keep the order of the batch, because Delta writes by name.
    columns = [written[column.name.lower()] for column in batch.fields]
    return SchemaFit(StructType(columns), () if existing is None else tuple(comparison.added))


def _fields(
    comparison: _SchemaComparison, path: str, batch: StructType, existing: StructType
) -> dict[str, StructField]:
    """Return the written types of a struct's fields by lower-case name: first the table's, then new ones."""
    sources = _by_lower_name(comparison, path, batch)
    targets = {column.name.lower(): column for column in existing.fields}
    fields = {}
    for name, column in targets.items():
        if name in sources:
            kind = _type(comparison, path + column.name, sources[name].dataType, column.dataType)
            fields[name] = StructField(column.name, kind)
        else:
            fields[name] = StructField(column.name, bare(column.dataType))
            _check_missing(comparison, path, column)
    for name, column in sources.items():
        if name not in targets:
            _check_new(comparison, path, column, is_outermost=True)
            comparison.added.append(path + column.name)
            fields[name] = column
    return fields


def _by_lower_name(comparison: _SchemaComparison, path: str, batch: StructType) -> dict[str, StructField]:
    fields: dict[str, StructField] = {}
    for column in batch.fields:
        # Spark can have both names if it distinguishes upper and lower case, but Delta cannot store them.
        other = fields.setdefault(column.name.lower(), column)
        if other is not column:
            problem = f"occurs twice, as {other.name!r} and {column.name!r}, which are the same name to Delta"
            advice = "rename one of them, or drop it"
            comparison.problems.append(ColumnProblem(path + column.name, problem, advice))
    return fields


def _type(comparison: _SchemaComparison, path: str, source: DataType, target: DataType) -> DataType:
    """Return the type in which values of ``source`` are written to a column of ``target``."""
    match source, target:
        case StructType(), StructType():
            return StructType(list(_fields(comparison, path + ".", source, target).values()))
        case ArrayType(), ArrayType():
            return ArrayType(_type(comparison, path + ".element", source.elementType, target.elementType))
        case MapType(), MapType():
            return MapType(
                _type(comparison, path + ".key", source.keyType, target.keyType),
                _type(comparison, path + ".value", source.valueType, target.valueType),
            )
    # Delta would cast some of these, depending on whether the table is named by path or by name, and would
    # then fail at the first value that does not fit (decision 0015).
    if not holds(target, source):
        old, new = target.simpleString(), source.simpleString()
        problem = f"is {old} in the table but {new} in the batch, and not all such values fit"
        change = comparison.rules.type_change
        advice = f"cast it in the query, or change the table's type (ALTER TABLE … {change})"
        comparison.problems.append(ColumnProblem(path, problem, advice, old, new))
    return bare(target)


def _check_missing(comparison: _SchemaComparison, path: str, column: StructField) -> None:
    """Refuse rows that lack a NOT NULL column. Delta may compute columns, but not fields.

    A nullable struct does not excuse its fields: to Delta, the fields of a null struct are null.
    """
    # Delta decides which columns it can compute, and refuses a batch that lacks any other.
    if comparison.rules.fills and not path:
        return
    name = path + column.name
    if column.nullable:
        for field in column.dataType.fields if isinstance(column.dataType, StructType) else ():
            _check_missing(comparison, name + ".", field)
        return
    advice = f"give it in the query, or ALTER TABLE {comparison.table} ALTER COLUMN {name} DROP NOT NULL"
    problem = "is NOT NULL in the table, but the batch does not have it"
    comparison.problems.append(ColumnProblem(name, problem, advice, column.dataType.simpleString()))


def _check_new(comparison: _SchemaComparison, path: str, new: StructField, *, is_outermost: bool) -> None:
    """Report problems with adding a column or field, including its nested fields, to the table."""
    name, kind = path + new.name, new.dataType.simpleString()
    rules = comparison.rules
    forbidden = "".join(sorted(set(new.name) & set(FORBIDDEN)))
    problem = None
    if not new.name:
        problem = "has an empty name", "rename it in the query"
    elif forbidden and not rules.any_name:
        advice = "rename it, or set the table property delta.columnMapping.mode to 'name'"
        problem = f"has {forbidden!r} in its name, which Delta accepts only with column mapping", advice
    elif not path and new.name.lower() in CHANGE_COLUMNS and rules.change_feed:
        problem = "has a name that is reserved for the table's change data feed", "rename it in the query"
    if problem is not None:
        comparison.problems.append(ColumnProblem(name, *problem, None, kind))
    if isinstance(new.dataType, NullType):
        problem = "has no type in the batch, only nulls", "cast it to a type in the query, or drop it"
        comparison.problems.append(ColumnProblem(name, *problem, None, kind))
    elif is_outermost and not comparison.add:
        advice = "schema_evolution='addNewColumns' adds it to the table; or leave it out of the query"
        problem = f"is not in the table, but is {kind} in the batch", advice
        comparison.problems.append(ColumnProblem(name, *problem, None, kind))
    for inner_path, inner in _inner_structs(name, new.dataType):
        for column in _by_lower_name(comparison, inner_path, inner).values():
            _check_new(comparison, inner_path, column, is_outermost=False)


def _inner_structs(path: str, kind: DataType) -> Iterator[tuple[str, StructType]]:
    """Yield the structs directly below a type, with the prefix of their fields' names."""
    match kind:
        case StructType():
            yield path + ".", kind
        case ArrayType():
            yield from _inner_structs(path + ".element", kind.elementType)
        case MapType():
            yield from _inner_structs(path + ".key", kind.keyType)
            yield from _inner_structs(path + ".value", kind.valueType)


def holds(wide: DataType, narrow: DataType) -> bool:
    """Return whether a type has all values of another one, so that no cast can fail or change a value."""
    wide, narrow = bare(wide), bare(narrow)
    # A text is never stored as a number, and only texts are stored as text: that a value can be printed is
    # not a reason to store its printed form.
    if wide == narrow or isinstance(narrow, NullType):
        return True
    if isinstance(wide, DecimalType):
        if isinstance(narrow, DecimalType):
            whole, scale = narrow.precision - narrow.scale, narrow.scale
        elif type(narrow) in INTEGERS:
            whole, scale = INTEGERS[type(narrow)], 0
        else:
            return False
        return 0 <= scale <= wide.scale and whole <= wide.precision - wide.scale
    if type(wide) in INTEGERS:
        return INTEGERS.get(type(narrow), 99) < INTEGERS[type(wide)]
    return isinstance(narrow, EXACT.get(type(wide), ()))


def bare(kind: DataType) -> DataType:
    """Return a type without nullability, comments and lengths of texts, which do not change its values."""
    match kind:
        case StructType():
            return StructType([StructField(field.name, bare(field.dataType)) for field in kind.fields])
        case ArrayType():
            return ArrayType(bare(kind.elementType))
        case MapType():
            return MapType(bare(kind.keyType), bare(kind.valueType))
        case CharType() | VarcharType():
            return StringType()
    return kind


def conform(df: DataFrame, schema: StructType, beside: Sequence[str] = ()) -> DataFrame:
    """Convert rows to the schema of :attr:`SchemaFit.schema`, which has their columns in the same order.

    Columns in ``beside`` are not in the schema and remain unchanged.
    """
    columns = [column for column in df.schema.fields if column.name not in beside]
    pairs = list(zip(columns, schema.fields, strict=True))
    if all((old.name, bare(old.dataType)) == (new.name, bare(new.dataType)) for old, new in pairs):
        return df
    converted = [
        shaped(F.col(quoted(old.name)), old.dataType, new.dataType).alias(new.name) for old, new in pairs
    ]
    return df.select(*converted, *(F.col(quoted(name)) for name in beside))


def shaped(column: Column, source: DataType, target: DataType) -> Column:
    """Return an expression that converts a column to another type of the same shape."""
    if bare(source) == bare(target):
        return column
    match source, target:
        case StructType(), StructType():
            by_name = {field.name.lower(): field for field in source.fields}
            fields = []
            for field in target.fields:
                old = by_name.get(field.name.lower())
                value = (
                    F.lit(None).cast(field.dataType)
                    if old is None
                    else shaped(column.getField(old.name), old.dataType, field.dataType)
                )
                fields.append(value.alias(field.name))
            # Without the condition, a null struct would become a struct of nulls.
            return F.when(column.isNotNull(), F.struct(*fields))
        case ArrayType(), ArrayType():
            return F.transform(column, lambda value: shaped(value, source.elementType, target.elementType))
        case MapType(), MapType():
            # A cast that changes no value cannot make two keys equal.
            keyed = F.transform_keys(column, lambda key, _: shaped(key, source.keyType, target.keyType))
            return F.transform_values(
                keyed, lambda _, value: shaped(value, source.valueType, target.valueType)
            )
    return column.cast(target)
