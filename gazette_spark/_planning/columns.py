"""The columns of a query: which ones its options allow, and the format that they imply."""

from __future__ import annotations

from collections.abc import Mapping

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

RAW_DDL = "journal STRING, offset BIGINT, value BINARY"
"""Columns of ``format=raw`` when the query gives no schema."""

RAW_TYPES: dict[str, DataType] = {"journal": StringType(), "offset": LongType(), "value": BinaryType()}
METADATA_TYPES: dict[str, DataType] = {
    name: MapType(StringType(), ArrayType(StringType()))
    if column.type is None
    else from_arrow_type(column.type)
    for name, column in metadata.ORIGIN_COLUMNS.items()
}
"""Columns of a record's origin; in no query's schema unless it names them."""
MESSAGE_TYPES: dict[str, DataType] = {
    name: from_arrow_type(column.type) for name, column in metadata.MESSAGE_COLUMNS.items()
}
"""Columns of a message's UUID, under isolationLevel=read_committed."""


def metadata_types(options: SourceOptions) -> dict[str, DataType]:
    """Return the columns of a record's origin that a query may name."""
    return METADATA_TYPES | (MESSAGE_TYPES if options.reads_committed else {})


def format_of(options: SourceOptions, schema: StructType, piece: Piece) -> str:
    """Return the format a piece is read in.

    Raises:
        OptionError: it is not given, and the journal's framing does not imply one for these columns.
    """
    if options.format or is_raw(schema):
        return options.format or "raw"
    for form, framing in FORMAT_FRAMINGS.items():
        if framing == piece.framing:
            return form
    got = f"nothing, for columns {', '.join(schema.fieldNames())} of journal {piece.journal!r}"
    expected = f"raw: framing {piece.framing} implies no format, and raw has the columns {RAW_DDL}"
    raise OptionError("format", got, expected)


def is_raw(schema: StructType) -> bool:
    """Say whether columns, without a format, are those of ``format=raw``: one of its names will do.

    A column ``value string`` is a slip far more often than a field of the records, so it is refused.
    """
    return any(name.lower() in RAW_TYPES for name in schema.fieldNames())


def check_schema(options: SourceOptions, schema: StructType) -> None:
    """Check the columns a query asks for.

    Raises:
        OptionError: naming the first column that cannot be read.
    """
    if not schema.fields:
        raise OptionError("schema", "no columns", RAW_DDL)
    seen: set[str] = set()
    for column in schema.fields:
        if column.name.lower() in seen:
            raise OptionError("schema", f"column {column.name!r} twice", "each column once, in any case")
        seen.add(column.name.lower())
        of_uuid = options.reads_committed and column.name in MESSAGE_TYPES.keys() - {metadata.ACK_OFFSET}
        if of_uuid and not column.nullable:
            raise OptionError("schema", f"{column.name} NOT NULL", "nullable: a message may have none")
        if column.name == metadata.MOD_TIME and not column.nullable:
            raise OptionError("schema", f"{column.name} NOT NULL", "nullable: not all bytes are stored yet")
        if column.name == metadata.LABELS and options.fragment_store is not None:
            raise OptionError("schema", "_labels with fragmentStore", "no labels: only brokers know them")
    raw = options.format == "raw" or (options.format is None and is_raw(schema))
    for column in schema.fields:
        check = _check_raw_column if raw else _check_field_column
        check(options, column)
    rescued = options.rescued_data_column
    if rescued and (raw or rescued not in schema.fieldNames()):
        got = f"{rescued!r}, which is no column of format={'raw' if raw else 'json, as the schema says'}"
        raise OptionError(
            "rescuedDataColumn", got, f"format=json and a column {rescued} string in the schema"
        )


def _check_raw_column(options: SourceOptions, column: StructField) -> None:
    if not _has_type(column, RAW_TYPES | metadata_types(options)):
        got = f"column {column.name} {column.dataType.simpleString()} under format=raw"
        raise OptionError("schema", got, f"columns out of {RAW_DDL}, or another format: json, csv, protobuf")


def _check_field_column(options: SourceOptions, column: StructField) -> None:
    origin = metadata_types(options)
    fixed = origin | {options.column_name_of_corrupt_record: StringType()}
    if options.rescued_data_column:
        fixed[options.rescued_data_column] = StringType()
    if column.name in fixed and not _has_type(column, fixed):
        got = f"column {column.name} {column.dataType.simpleString()}"
        form = (metadata.DDL | metadata.MESSAGE_DDL).get(column.name) or fixed[column.name].simpleString()
        raise OptionError("schema", got, f"{column.name} {form}")
    if not column.nullable and column.name not in origin:
        got = f"column {column.name} NOT NULL"
        raise OptionError("schema", got, "nullable columns: a record may lack any field")


def _has_type(column: StructField, types: Mapping[str, DataType]) -> bool:
    if column.name == metadata.LABELS and isinstance(column.dataType, StructType):
        return is_labels_type(to_arrow_type(column.dataType))
    return types.get(column.name) == column.dataType
