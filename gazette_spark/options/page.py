"""The tables of options in ``docs/reference``, made from the code's own.

In a clone of the repository ``python -m gazette_spark.options.page`` writes the tables into the pages; a test
fails while they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gazette_spark.errors import OptionError
from gazette_spark.errors.page import between_marks
from gazette_spark.options.source import OPTIONS
from gazette_spark.options.table import Option
from gazette_spark.options.write import WRITE_OPTIONS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[Path, Sequence[Option]] = {
    REFERENCE / "options.md": OPTIONS,
    REFERENCE / "write-options.md": WRITE_OPTIONS,
}
"""Each page and the options of its tables."""

BEGIN = "<!-- The tables are made from the code: python -m gazette_spark.options.page -->"

DEFAULTS = {"startingOffsets": "`latest` (stream), `earliest` (batch)"}
"""Defaults that depend on more than the option."""

GROUPS: Mapping[str, Sequence[str]] = {
    "Broker or store": ("brokerAddress", "fragmentStore", "fragmentPostfixLevels", "fragmentRoot"),
    "Journals": ("path", "journal", "journals", "journalsPattern", "selector", "mapping"),
    "Start and end": (
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "resumeOffsets",
    ),
    "Size of a batch": (
        "maxBytesPerTrigger",
        "maxRecordsPerTrigger",
        "maxFragmentsPerTrigger",
        "minBytesPerTrigger",
        "maxTriggerDelay",
    ),
    "Tasks": ("minPartitions", "maxBytesPerPartition"),
    "Records": ("format", "framing", "maxRecordBytes"),
    "Records that do not fit": ("mode", "columnNameOfCorruptRecord", "rescuedDataColumn"),
    "Schema from a sample": ("inferSchema", "samplingBytes", "schemaHints", "inferredSchemaLocation"),
    "Dates and times": ("timeZone", "dateFormat", "timestampFormat", "timestampNTZFormat"),
    "JSON": ("allowSingleQuotes", "allowNonNumericNumbers"),
    "CSV": ("header", "sep", "quote", "nullValue", "emptyValue"),
    "Protobuf": ("descriptorFile", "messageName"),
    "Lost data": ("failOnDataLoss", "readGaps"),
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
    "Timeouts and log": ("requestTimeoutMs", "idleTimeoutMs", "connectTimeoutMs", "logLevel"),
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
                "| option | default | for | form | meaning |",
                "|---|---|---|---|---|",
            ]
            lines += [*rows, ""]
    return "\n".join(lines).rstrip()


def row(option: Option) -> str:
    """Return an option's line of its table."""
    default = DEFAULTS.get(option.name) or {None: "none", "": "empty"}.get(
        option.default, f"`{option.default}`"
    )
    cells = (f"`{option.name}`", default, option.use or "both", form(option), option.description)
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def form(option: Option) -> str:
    """Return the form an option's text must have, in the words it is refused with."""
    if option.form is not None:
        return option.form
    try:
        option.parse(option.name, "")
    except OptionError as error:
        return error.expected
    raise AssertionError(f"option {option.name} takes an empty text")


def with_tables(page: str, options: Sequence[Option]) -> str:
    """Return a page with its tables brought up to date between its two marks."""
    return between_marks(page, BEGIN, tables(options))


if __name__ == "__main__":
    for path, options in PAGES.items():
        path.write_text(with_tables(path.read_text(encoding="utf-8"), options), encoding="utf-8")
