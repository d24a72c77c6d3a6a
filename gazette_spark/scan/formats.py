"""The parser of each format, as a query's options want it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gazette_spark.framing.json import JsonFormat, JsonParser
from gazette_spark.framing.json_values import JsonDialect
from gazette_spark.framing.metadata import Labels
from gazette_spark.framing.rows import RowParser
from gazette_spark.options.source import SourceOptions


def row_parser(
    form: str, options: SourceOptions, schema: pa.Schema, *, labels: Labels = (), descriptors: bytes = b""
) -> RowParser:
    """Return the parser of a format other than raw.

    Args:
        form: The format's name.
        options: Options of the query.
        schema: Columns of the rows.
        labels: Labels of the journal.
        descriptors: Content of the file ``descriptorFile``.

    Raises:
        OptionError: the format cannot give a column.
    """
    wanted: dict[str, Any] = {
        "mode": options.mode,
        "corrupt_column": options.column_name_of_corrupt_record,
        "rescued_column": options.rescued_data_column,
        "labels": labels,
        "messages": options.reads_committed,
    }
    if form == "json":
        return JsonParser(JsonFormat(schema, **wanted, dialect=json_dialect(options)))
    # The other formats load much that JSON does without, and Spark starts many processes.
    if form == "csv":
        from gazette_spark.framing.csv_rows import CsvFormat, CsvParser
        from gazette_spark.framing.csv_style import CsvStyle

        times = json_dialect(options)
        style = CsvStyle(options.sep, options.quote, options.null_value, options.empty_value, times)
        return CsvParser(CsvFormat(schema, **wanted, style=style), header=options.header)
    from gazette_spark.framing.protobuf_rows import ProtobufFormat, ProtobufParser

    message = options.message_name or ""
    return ProtobufParser(ProtobufFormat(schema, **wanted, descriptor_set=descriptors, message=message))


def json_dialect(options: SourceOptions) -> JsonDialect:
    """Return the allowed forms of JSON values."""
    return JsonDialect(
        time_zone=options.time_zone,
        allow_single_quotes=options.allow_single_quotes,
        allow_non_numeric_numbers=options.allow_non_numeric_numbers,
        date_format=options.date_format,
        timestamp_format=options.timestamp_format,
        timestamp_ntz_format=options.timestamp_ntz_format,
    )
