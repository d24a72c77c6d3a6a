"""The framing of a journal: from the query's options, else from the journal's label.

The label ``content-type`` is an agreement of a journal's writers and readers, so an option that contradicts
it is refused. Journals without the label, or labelled ``text/plain``, have lines by default. For another
label without a framing in Gazette an option is required.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gazette_spark._formats.csv import CsvFraming
from gazette_spark._formats.fixed import FIXED
from gazette_spark._formats.framing import Framing
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._formats.lines import LINES
from gazette_spark._formats.metadata import Labels
from gazette_spark._formats.raw import CHUNK_BYTES, ChunkFraming
from gazette_spark._formats.rows import RowParser
from gazette_spark._formats.values import JsonDialect
from gazette_spark.errors import OptionError
from gazette_spark.options.source import FORMAT_FRAMINGS, SourceOptions
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import (
    CONTENT_TYPE,
    CONTENT_TYPE_CSV,
    CONTENT_TYPE_NDJSON,
    CONTENT_TYPE_PROTO_FIXED,
    CONTENT_TYPE_RECOVERY_LOG,
    values_of,
)

LABELLED = {
    CONTENT_TYPE_NDJSON: "lines",
    "application/json": "lines",
    CONTENT_TYPE_CSV: "csv",
    CONTENT_TYPE_PROTO_FIXED: "fixed",
    CONTENT_TYPE_RECOVERY_LOG: "none",
}
"""Framing of each content type."""

UNFRAMED = frozenset({"", "text/plain"})
"""Content types whose records are lines by default; no label is one of them."""


def framing_named(name: str, max_record_bytes: int, separator: str = ",", quote: str = '"') -> Framing:
    """Return the framing that an option or a piece names; the last two are CSV's."""
    if name == "none":
        return ChunkFraming(min(CHUNK_BYTES, max_record_bytes))
    if name == "csv":
        return CsvFraming(separator, quote)
    return _FRAMINGS[name]


def framing_of(spec: pb.JournalSpec, options: SourceOptions) -> Framing:
    """Return the framing that a query reads a journal in.

    Raises:
        OptionError: options and label contradict each other, or neither says it.
    """
    name = framing_name(spec, options.framing, options.format)
    return framing_named(name, options.max_record_bytes, options.sep, options.quote)


def framing_name(spec: pb.JournalSpec, framing: str | None, form: str | None) -> str:
    """Return the name of a journal's framing.

    Args:
        spec: The journal.
        framing: The option ``framing``, if given.
        form: The option ``format``, if given.

    Raises:
        OptionError: options and label contradict each other, or neither says it.
    """
    option = "framing" if framing else "format"
    wanted = framing or FORMAT_FRAMINGS.get(form or "")
    label = next(iter(values_of(spec.labels, CONTENT_TYPE)), "")
    labelled = "lines" if label in UNFRAMED else LABELLED.get(label)
    where = f"journal {spec.name!r} has the label content-type={label}"
    if wanted is None and labelled in (None, "none"):
        expected = "the framing its records have: lines, fixed or csv, or none for whole bytes"
        raise OptionError("framing", f"nothing, and {where}", expected)
    if wanted and label in LABELLED and wanted not in (labelled, "none"):
        got = f"{framing or form}, and {where}"
        raise OptionError(option, got, f"framing {labelled} or none, or another label")
    return wanted or labelled or "lines"


_FRAMINGS: dict[str, Framing] = {"lines": LINES, "fixed": FIXED}


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
        from gazette_spark._formats.csv_parser import CsvFormat, CsvParser, CsvStyle

        times = json_dialect(options)
        style = CsvStyle(options.sep, options.quote, options.null_value, options.empty_value, times)
        return CsvParser(CsvFormat(schema, **wanted, style=style), header=options.header)
    from gazette_spark._formats.protobuf import ProtobufFormat, ProtobufParser

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
