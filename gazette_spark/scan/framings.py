"""The framing of a journal: from the query's options, else from the journal's label.

The label ``content-type`` is an agreement of a journal's writers and readers, so an option that contradicts
it is refused. Journals without the label, or labelled ``text/plain``, have lines by default. For another
label without a framing in Gazette an option is required.
"""

from __future__ import annotations

from gazette_spark.errors import OptionError
from gazette_spark.framing.base import Framing
from gazette_spark.framing.csv import CsvFraming
from gazette_spark.framing.fixed import FIXED
from gazette_spark.framing.lines import LINES
from gazette_spark.framing.whole import CHUNK_BYTES, ChunkFraming
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
