"""All framings and all formats, in two tables.

A *framing* defines where records begin and end in a journal. A *format* defines the content of a record, and
reads the records of one framing; ``raw`` reads those of any. Everything that depends on them is derived from
these tables: the values of the options ``framing`` and ``format``, their valid combinations, the framing of a
journal's label ``content-type``, the content type under which messages are published, and the parsers.

To add one, write its file, which is loaded when it is first used, and add its row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gazette_spark.errors import OptionError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import (
    CONTENT_TYPE,
    CONTENT_TYPE_CSV,
    CONTENT_TYPE_NDJSON,
    CONTENT_TYPE_PROTO_FIXED,
    CONTENT_TYPE_RECOVERY_LOG,
    values_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from gazette_spark._formats.framing import RecordFraming
    from gazette_spark._formats.metadata import Labels
    from gazette_spark._formats.rows import RowParser
    from gazette_spark._formats.values import JsonDialect


@dataclass(frozen=True, slots=True)
class FramingSpec:
    """A row of the table of framings."""

    content_types: tuple[str, ...]
    """Labels of journals in this framing."""
    make: Callable[[int, str, str], RecordFraming]
    """Makes the framing from ``maxRecordBytes``, and ``sep`` and ``quote`` of CSV."""
    message_type: str | None = None
    """The content type of messages in this framing; None if it has no messages."""


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """A row of the table of formats."""

    framing: str | None
    """The framing whose records the format reads; None for any."""
    parser: Callable[..., RowParser] | None
    """Makes the parser from the fields of a :class:`~gazette_spark._formats.rows.RowFormat`, the query's
    options, and the content of ``descriptorFile``; None if rows need no parser."""


def _lines(_max_record_bytes: int, _separator: str, _quote: str) -> RecordFraming:
    # Each maker imports its own file: a Spark worker pays for the format of its query only.
    from gazette_spark._formats.lines import LINES

    return LINES


def _fixed(_max_record_bytes: int, _separator: str, _quote: str) -> RecordFraming:
    from gazette_spark._formats.fixed import FIXED

    return FIXED


def _csv(_max_record_bytes: int, separator: str, quote: str) -> RecordFraming:
    from gazette_spark._formats.csv import CsvFraming

    return CsvFraming(separator, quote)


def _chunks(max_record_bytes: int, _separator: str, _quote: str) -> RecordFraming:
    from gazette_spark._formats.raw import CHUNK_BYTES, ChunkFraming

    return ChunkFraming(min(CHUNK_BYTES, max_record_bytes))


def _json_parser(columns: Mapping[str, Any], options: Any, _descriptors: bytes) -> RowParser:  # noqa: ANN401
    from gazette_spark._formats.json import JsonFormat, JsonParser

    return JsonParser(JsonFormat(**columns, dialect=json_dialect(options)))


def _csv_parser(columns: Mapping[str, Any], options: Any, _descriptors: bytes) -> RowParser:  # noqa: ANN401
    from gazette_spark._formats.csv_parser import CsvFormat, CsvParser, CsvStyle

    texts = (options.sep, options.quote, options.null_value, options.empty_value)
    style = CsvStyle(*texts, times=json_dialect(options))
    return CsvParser(CsvFormat(**columns, style=style), header=options.header)


def _protobuf_parser(columns: Mapping[str, Any], options: Any, descriptors: bytes) -> RowParser:  # noqa: ANN401
    from gazette_spark._formats.protobuf import ProtobufFormat, ProtobufParser

    message = options.message_name or ""
    return ProtobufParser(ProtobufFormat(**columns, descriptor_set=descriptors, message=message))


FRAMINGS: Mapping[str, FramingSpec] = {
    "lines": FramingSpec((CONTENT_TYPE_NDJSON, "application/json"), _lines, CONTENT_TYPE_NDJSON),
    "fixed": FramingSpec((CONTENT_TYPE_PROTO_FIXED,), _fixed, CONTENT_TYPE_PROTO_FIXED),
    "csv": FramingSpec((CONTENT_TYPE_CSV,), _csv, CONTENT_TYPE_CSV),
    "none": FramingSpec((CONTENT_TYPE_RECOVERY_LOG,), _chunks),
}
"""All framings, as the option ``framing`` spells them."""

FORMATS: Mapping[str, FormatSpec] = {
    "raw": FormatSpec(None, None),
    "json": FormatSpec("lines", _json_parser),
    "csv": FormatSpec("csv", _csv_parser),
    "protobuf": FormatSpec("fixed", _protobuf_parser),
}
"""All formats, as the option ``format`` spells them."""

FORMAT_FRAMINGS = {name: spec.framing for name, spec in FORMATS.items() if spec.framing}
"""The framing of each format that reads one only."""

LABELLED = {label: name for name, spec in FRAMINGS.items() for label in spec.content_types}
"""The framing of each content type."""

UNFRAMED = frozenset({"", "text/plain"})
"""Content types whose records are lines unless an option says otherwise; "" is a missing label."""


def framing_named(name: str, max_record_bytes: int, separator: str = ",", quote: str = '"') -> RecordFraming:
    """Return the framing with a name. The last two arguments are for CSV."""
    return FRAMINGS[name].make(max_record_bytes, separator, quote)


def framing_name(spec: pb.JournalSpec, framing: str | None, form: str | None) -> str:
    """Return the name of a journal's framing, from the query's options or else from the journal's label.

    The label ``content-type`` is an agreement between a journal's writers and readers, so an option that
    contradicts it is refused. Any journal can be read as bytes without records, with ``none``.

    Raises:
        OptionError: options and label contradict each other, or neither names the framing.
    """
    requested = framing or FORMAT_FRAMINGS.get(form or "")
    label = next(iter(values_of(spec.labels, CONTENT_TYPE)), "")
    # Gazette compares the label literally, without parameters. An unknown label is not an error if an option
    # names the framing, because other programs may have agreed on it.
    labelled = "lines" if label in UNFRAMED else LABELLED.get(label)
    where = f"journal {spec.name!r} has the label content-type={label}"
    if requested is None and labelled in (None, "none"):
        expected = "the framing of its records: lines, fixed or csv, or none for bytes without records"
        raise OptionError("framing", f"nothing, but {where}", expected)
    # If frames are read as lines, the rows are wrong. Only a known label can contradict an option.
    if requested and label in LABELLED and requested not in (labelled, "none"):
        got = f"{framing or form}, but {where}"
        expected = f"framing {labelled} or none, or another label"
        raise OptionError("framing" if framing else "format", got, expected)
    return requested or labelled or "lines"


def row_parser(
    form: str,
    options: Any,  # noqa: ANN401
    schema: pa.Schema,
    *,
    labels: Labels = (),
    descriptors: bytes = b"",
) -> RowParser:
    """Return the parser of a format other than raw.

    Args:
        form: The format's name.
        options: The query's ``SourceOptions``. Their module imports this one, so the type is not named here.
        schema: Columns of the rows.
        labels: Labels of the journal.
        descriptors: Content of the file ``descriptorFile``.

    Raises:
        OptionError: the format does not support a column.
    """
    columns = {
        "schema": schema,
        "mode": options.mode,
        "corrupt_column": options.column_name_of_corrupt_record,
        "rescued_column": options.rescued_data_column,
        "labels": labels,
        "messages": options.reads_committed,
    }
    parser = FORMATS[form].parser
    assert parser is not None, "rows of raw need no parser"
    return parser(columns, options, descriptors)


def json_dialect(options: Any) -> JsonDialect:  # noqa: ANN401
    """Return the dialect of JSON values, and of dates in CSV, that a query's ``SourceOptions`` set."""
    from gazette_spark._formats.values import JsonDialect

    return JsonDialect(
        time_zone=options.time_zone,
        allow_single_quotes=options.allow_single_quotes,
        allow_non_numeric_numbers=options.allow_non_numeric_numbers,
        date_format=options.date_format,
        timestamp_format=options.timestamp_format,
        timestamp_ntz_format=options.timestamp_ntz_format,
    )
