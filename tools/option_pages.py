"""The tables of options in ``docs/reference``, made from the code's own.

``make generated`` writes the tables into the pages; a test fails while they differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gazette_spark.errors import OptionError
from gazette_spark.options.source import OPTIONS
from gazette_spark.options.table import Option
from gazette_spark.options.write import WRITE_OPTIONS
from tools.error_page import between_marks

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGES: dict[Path, Sequence[Option]] = {
    REFERENCE / "options.md": OPTIONS,
    REFERENCE / "write-options.md": WRITE_OPTIONS,
}
"""Each page and the options of its tables."""

BEGIN = "<!-- The tables are made from the code: make generated -->"

DEFAULTS = {
    "brokerAddress": "`BROKER_ADDRESS`",
    "dateFormat": "ISO 8601",
    "format": "see meaning",
    "fragmentPostfixLevels": "`0`",
    "framing": "see meaning",
    "logLevel": "that of Python, `warning`",
    "mapping": "`modulo`",
    "maxBytesPerTrigger": "no limit",
    "maxFragmentsPerTrigger": "no limit",
    "maxRecordsPerTrigger": "no limit",
    "minBytesPerTrigger": "no minimum",
    "minPartitions": "no minimum",
    "startingOffsets": "`latest` (stream), `earliest` (batch)",
    "timestampFormat": "ISO 8601",
    "timestampNTZFormat": "ISO 8601",
    "tls.caFile": "public authorities",
    "transactionId": "a new id",
    "uuidPath": "`/_meta/uuid` (JSON), `0` (CSV), `1` (protobuf)",
}
"""Defaults that depend on more than the option, or that a reader would not know as "none"."""

GROUPS: Mapping[str, Sequence[str]] = {
    "Connection": ("brokerAddress", "fragmentStore", "fragmentPostfixLevels", "fragmentRoot"),
    "Journals": ("path", "journal", "journals", "journalsPattern", "selector", "mapping"),
    "Start and end of a query": (
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "resumeOffsets",
    ),
    "Size of a micro-batch": (
        "maxBytesPerTrigger",
        "maxRecordsPerTrigger",
        "maxFragmentsPerTrigger",
        "minBytesPerTrigger",
        "maxTriggerDelay",
    ),
    "Tasks of a batch": ("minPartitions", "maxBytesPerPartition"),
    "Records": ("format", "framing", "maxRecordBytes"),
    "Malformed records": ("mode", "columnNameOfCorruptRecord", "rescuedDataColumn"),
    "Schema inference": ("inferSchema", "samplingBytes", "schemaHints", "inferredSchemaLocation"),
    "Dates and times": ("timeZone", "dateFormat", "timestampFormat", "timestampNTZFormat"),
    "JSON": ("allowSingleQuotes", "allowNonNumericNumbers"),
    "CSV": ("header", "sep", "quote", "nullValue", "emptyValue"),
    "Protobuf": ("descriptorFile", "messageName"),
    "Data loss": ("failOnDataLoss", "readGaps"),
    "Transactions": (
        "isolationLevel",
        "stateLocation",
        "includeAcks",
        "messagesSince",
        "deliveryGuarantee",
        "transactionJournal",
        "transactionId",
        "transactionFirstBatch",
        "uuidPath",
    ),
    "Security": (
        "auth.token",
        "auth.tokenFile",
        "auth.keysSecret",
        "tls.caFile",
        "tls.certFile",
        "tls.keyFile",
        "tls.ca",
        "tls.cert",
        "tls.keySecret",
    ),
    "Timeouts and logging": ("requestTimeoutMs", "idleTimeoutMs", "connectTimeoutMs", "logLevel"),
}
"""The options by what they are for, in the order of the pages."""


def tables(options: Sequence[Option]) -> str:
    """Return options as Markdown tables, one for each group that has any."""
    named = {option.name: option for option in options}
    lines = []
    for group, names in GROUPS.items():
        if rows := [row(named[name]) for name in names if name in named]:
            lines += [
                f"## {group}",
                "",
                "| option | value | default | query type | meaning |",
                "|---|---|---|---|---|",
            ]
            lines += [*rows, ""]
    return "\n".join(lines).rstrip()


def row(option: Option) -> str:
    """Return an option's line of its table."""
    default = DEFAULTS.get(option.name) or {None: "none", "": "empty text"}.get(
        option.default, f"`{option.default}`"
    )
    use = {"stream": "streaming", "batch": "batch", None: "streaming and batch"}[option.use]
    cells = (f"`{option.name}`", form(option), default, use, option.description)
    escaped = (cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def form(option: Option) -> str:
    """Return the form an option's text must have, with words and JSON as code."""
    if option.form is not None:
        return as_code(option.form)
    try:
        option.parse(option.name, "")
    except OptionError as error:
        words = error.expected.split(" or ")
        if all(map(str.isidentifier, words)):
            return ", ".join(map("`{}`".format, words))
        return as_code(error.expected)
    raise AssertionError(f"option {option.name} takes an empty text")


def as_code(text: str) -> str:
    """Return a text with its JSON as code; at the end of a cell, the site takes braces for attributes."""
    return re.sub(r"\{.*\}", r"`\g<0>`", text)


def with_tables(page: str, options: Sequence[Option]) -> str:
    """Return a page with its tables brought up to date between its two marks."""
    return between_marks(page, BEGIN, tables(options))


if __name__ == "__main__":
    for path, options in PAGES.items():
        path.write_text(with_tables(path.read_text(encoding="utf-8"), options), encoding="utf-8")
