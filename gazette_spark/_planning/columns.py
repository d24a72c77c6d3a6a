"""Checks the columns of a query against its options, and finds the format that columns imply."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from difflib import get_close_matches

from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from gazette_spark._formats import metadata
from gazette_spark._formats.metadata import is_labels_type
from gazette_spark._formats.registry import FORMAT_FRAMINGS
from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.pieces import Piece
from gazette_spark.errors import OptionError

log = logging.getLogger(__name__)

SIMILARITY = 0.8
"""Minimum similarity at which a column's name counts as a misspelt metadata column: ``_offsets`` has 0.93."""

RAW_DDL = "journal STRING, offset BIGINT, value BINARY"
"""Columns of ``format=raw`` for a query without a schema, as errors show them."""

RAW_TYPES: dict[str, DataType] = {"journal": StringType(), "offset": LongType(), "value": BinaryType()}
RAW_SCHEMA = StructType([StructField(name, kind) for name, kind in RAW_TYPES.items()])
"""The same columns. Spark cannot parse their DDL if spark.sql.ansi.enforceReservedKeywords is set."""
METADATA_TYPES: dict[str, DataType] = {
    name: MapType(StringType(), ArrayType(StringType()))
    if column.type is None
    else from_arrow_type(column.type)
    for name, column in metadata.ORIGIN_COLUMNS.items()
}
"""Columns of a record's origin. A query has them only if its schema names them."""
MESSAGE_TYPES: dict[str, DataType] = {
    name: from_arrow_type(column.type) for name, column in metadata.MESSAGE_COLUMNS.items()
}
"""Columns of a message's UUID, under isolationLevel=read_committed."""


def metadata_types(options: SourceOptions) -> dict[str, DataType]:
    """Return the metadata columns that a query may name."""
    return METADATA_TYPES | (MESSAGE_TYPES if options.reads_committed else {})


def format_of(options: SourceOptions, schema: StructType, piece: Piece) -> str:
    """Return the format in which a piece is read.

    Raises:
        OptionError: no format is set, and the journal's framing does not imply one for these columns.
    """
    if options.format or is_raw(options, schema):
        return options.format or "raw"
    for form, framing in FORMAT_FRAMINGS.items():
        if framing == piece.framing:
            return form
    got = f"nothing, for columns {', '.join(schema.fieldNames())} of journal {piece.journal!r}"
    expected = f"raw: framing {piece.framing} implies no format, and raw has the columns {RAW_DDL}"
    raise OptionError("format", got, expected)


def is_raw(options: SourceOptions, schema: StructType) -> bool:
    """Return whether a query reads ``format=raw``; without a format, because a column has a raw name.

    So a column ``value string`` is refused: it is a mistake far more often than a field of the records.
    """
    if options.format is not None:
        return options.format == "raw"
    if options.infer_schema:
        # Inferred columns are fields of the records, regardless of their names. None of them has the type
        # BINARY, so raw's column of that type comes from the user.
        return any(
            column.name.lower() == "value" and column.dataType == BinaryType() for column in schema.fields
        )
    return any(name.lower() in RAW_TYPES for name in schema.fieldNames())


def check_schema(options: SourceOptions, schema: StructType) -> None:  # noqa: C901, PLR0912 - checks in order
    """Check the columns of a query's schema.

    Raises:
        OptionError: a column cannot be read. The error names the first such column.
    """
    if not schema.fields:
        raise OptionError("schema", "no columns", RAW_DDL)
    seen: set[str] = set()
    for column in schema.fields:
        if column.name.lower() in seen:
            raise OptionError("schema", f"column {column.name!r} twice", "each column once, in any case")
        seen.add(column.name.lower())
        # A record without a readable UUID is a committed message with null in these columns.
        of_uuid = options.reads_committed and column.name in MESSAGE_TYPES.keys() - {metadata.ACK_OFFSET}
        if of_uuid and not column.nullable:
            raise OptionError("schema", f"{column.name} NOT NULL", "nullable: a message may have none")
        if column.name == metadata.MOD_TIME and not column.nullable:
            raise OptionError("schema", f"{column.name} NOT NULL", "nullable: not all bytes are stored yet")
        if column.name == metadata.LABELS and options.fragment_store is not None:
            raise OptionError("schema", "_labels with fragmentStore", "no labels: only brokers have them")
    raw = is_raw(options, schema)
    if raw:
        # Raw rows have no fields. `sep` and `quote` still matter: they split a CSV journal into records.
        names = {"header": options.header, "nullValue": options.null_value, "emptyValue": options.empty_value}
        for option in filter(names.get, names):
            raise OptionError(option, "format=raw, as the columns say", "to be used with format=csv only")
    rescued = options.rescued_data_column
    origin = metadata_types(options)
    for option, special in (
        ("columnNameOfCorruptRecord", options.column_name_of_corrupt_record),
        ("rescuedDataColumn", rescued),
    ):
        if special in origin:
            raise OptionError(option, f"{special!r}, which is a metadata column", "another name")
    # Columns whose type does not depend on the records.
    fixed = origin | RAW_TYPES if raw else origin | {options.column_name_of_corrupt_record: StringType()}
    if rescued and not raw:
        fixed[rescued] = StringType()
    for column in schema.fields:
        got = f"column {column.name} {column.dataType.simpleString()}"
        if raw:
            if not _has_type(column, fixed):
                expected = f"columns of {RAW_DDL}, or another format: json, csv, protobuf"
                raise OptionError("schema", f"{got} under format=raw", expected)
            continue
        if column.name in fixed and not _has_type(column, fixed):
            form = (metadata.DDL | metadata.MESSAGE_DDL).get(column.name) or fixed[column.name].simpleString()
            raise OptionError("schema", got, f"{column.name} {form}")
        # Spark compares the first record batch's schema with its own, including nullability, and plans with
        # it: a null in a field that may have none ends the query in Java, or is taken for a value.
        if column.name not in origin and (required := _not_null(column)):
            expected = "nullable columns and fields: a record may lack any field"
            raise OptionError("schema", f"column {required} NOT NULL", expected)
    if rescued and (raw or rescued not in schema.fieldNames()):
        got = f"{rescued!r}, which is not a column of format={'raw' if raw else 'json, as the schema says'}"
        raise OptionError(
            "rescuedDataColumn", got, f"format=json and a column {rescued} string in the schema"
        )


def warn_of_similar_names(options: SourceOptions, schema: StructType) -> None:
    """Log a warning for each column whose name is almost that of a metadata column, once in a process.

    Such a column is not refused, because records may have a field of that name. If they have none, the column
    is null in each row, and only this warning says so. Only the process that plans a query calls this.
    """
    origin = metadata_types(options)
    meant = {name.lower(): name for name in (*origin, options.column_name_of_corrupt_record)}
    for column in schema.fieldNames():
        if not column.startswith("_") or column in (*meant.values(), options.rescued_data_column):
            continue
        if column in MESSAGE_TYPES:
            _warn_of_field(column, f"{column} is a metadata column under isolationLevel=read_committed only")
        elif close := get_close_matches(column.lower(), meant, n=1, cutoff=SIMILARITY):
            _warn_of_field(column, f"the metadata column is called {meant[close[0]]}")


@functools.cache
def _warn_of_field(column: str, advice: str) -> None:
    log.warning(
        "column %s is read from the records, and is null if they have no such field: %s", column, advice
    )


def _not_null(column: StructField) -> str | None:
    """Return the path of the first part of a column that is NOT NULL; None if all parts may be null."""
    if not column.nullable:
        return column.name
    parts: list[StructField] = []
    match column.dataType:
        case StructType(fields=fields):
            parts = fields
        case ArrayType(elementType=kind, containsNull=nullable):
            parts = [StructField("element", kind, nullable)]
        case MapType(valueType=kind, valueContainsNull=nullable):
            parts = [StructField("value", kind, nullable)]
    inner = next(filter(None, map(_not_null, parts)), None)
    return inner and f"{column.name}.{inner}"


def _has_type(column: StructField, types: Mapping[str, DataType]) -> bool:
    if column.name == metadata.LABELS and isinstance(column.dataType, StructType):
        return is_labels_type(to_arrow_type(column.dataType))
    return types.get(column.name) == column.dataType
