"""Every option of the format ``gazette_delta``, declared once.

The rules are those of :mod:`gazette_spark._options.source`. What the format does not do is refused by name,
with the way to have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gazette_spark._options.query_range import parse_resume_offsets
from gazette_spark._options.table import (
    Option,
    Use,
    of_options,
    option,
    option_texts,
    options_of,
    parse_values,
)
from gazette_spark._options.values import parse_column, shown, size, word
from gazette_spark.errors import OptionError
from gazette_spark.offsets import JournalOffsets, parse_json_object
from gazette_spark.strict_json import parse_json

STORAGE_PREFIX = "storage."
"""Prefix of the options of ``deltalake`` by which tasks and driver access an object store."""

_BY_SPARK = "left out; DeltaSink does it, with rows that Spark writes"

_BY_STATEMENT = (
    "left out; ALTER TABLE before the query starts, or DeltaSink(schema_evolution='addNewColumns')"
)

REFUSED: Mapping[str, str] = {
    "audit": _BY_SPARK,
    "compactEvery": "left out; run OPTIMIZE from a job",
    "deadLetters": _BY_SPARK,
    "mergeSchema": _BY_STATEMENT,
    "newTable": "left out; CREATE TABLE before the query starts, or 'partitionBy'",
    "onOverlap": _BY_SPARK,
    "overwriteSchema": _BY_STATEMENT,
    "replaceWhere": "left out: rows are appended",
    "schemaEvolution": _BY_STATEMENT,
    "table": "'path', the table's location: DESCRIBE DETAIL shows it. No session is there to ask its catalog",
    "txnAppId": "'appId'",
    "txnVersion": "left out: the ledger numbers transactions",
    "upsert": _BY_SPARK,
    "userMetadata": "left out: the ledger's entry is there",
}
"""Options of the sink and of Delta's format that this one does not have, and what to do instead."""


def _parse_path(name: str, text: str) -> str:
    if not text.strip() or "\0" in text:
        raise OptionError(name, shown(text), "the table's directory or URL")
    return text


def _parse_position(name: str, text: str) -> JournalOffsets:
    """Parse one end of the range whose rows a batch has."""
    choice = parse_resume_offsets(name, text)
    value = parse_json_object(text)
    # The long form has more than offsets: fingerprints, and where a query of committed messages began.
    return JournalOffsets.from_dict(value) if "format_version" in value else JournalOffsets(choice.named)


def _parse_columns(name: str, text: str) -> tuple[str, ...]:
    return tuple(parse_column(name, column.strip()) for column in text.split(","))


def _parse_gaps(name: str, text: str) -> Mapping[str, object]:
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise OptionError(name, shown(text), 'JSON such as {"a/journal":[[1024,4096]]}')
    return value


@dataclass(frozen=True, slots=True)
class DeltaFormatOptions:
    """The parsed options."""

    path: str = option(
        _parse_path,
        "Argument of start() or save(): the table's directory or URL, as Spark writes it. Required. A table "
        "of a catalog has one, which DESCRIBE DETAIL shows. A missing table is made from the rows' columns.",
        section="Table",
    )
    app_id: str = option(
        parse_column,
        "Name of this stream in the table. Required. Keep it for the table's life; two streams in one table "
        "need two.",
        form="1 to 512 printable characters",
    )
    partition_by: tuple[str, ...] | None = option(
        _parse_columns,
        "Partition columns of a new table, separated by commas. A table with other partitions is refused. "
        "Spark ignores `partitionBy()` of a stream's writer.",
        form="names of columns",
    )
    target_file_bytes: int | None = option(
        size(),
        "Size of Parquet at which a task begins another file.",
        shown_default="`256m`",
    )
    starting_offsets: JournalOffsets | None = option(
        _parse_position,
        "First byte of each journal of which `df.write` has rows. Required there: the rows of "
        "[`startingOffsets`, `endingOffsets`), and no others, each time the write runs.",
        use="batch",
        section="Offsets",
    )
    ending_offsets: JournalOffsets | None = option(
        _parse_position,
        "The byte behind the last one, of the same journals.",
        use="batch",
    )
    accept_gaps: Mapping[str, object] | None = option(
        _parse_gaps,
        "Bytes that may be missing from the table permanently, by journal: from the end of the table to the "
        "start of the query, to the byte. The ledger records these gaps.",
    )
    restart: bool = of_options(
        Option(
            "onNewCheckpoint",
            word("fail", "restart"),
            "Policy for a new checkpoint of a query that keeps state or reads other sources. `restart` "
            "accepts that the state begins empty, and that rows of other sources may come again.",
            default="fail",
            use="stream",
        )
    )
    storage_options: Mapping[str, str] = of_options(
        Option(
            "storage.*",
            lambda _, text: text,
            "Options of deltalake by which tasks and driver access the table and the checkpoint in an object "
            "store, such as `storage.AWS_REGION`. Without them, each process looks into its environment.",
            form="a text",
            section="Object store",
        )
    )


DELTA_FORMAT_OPTIONS = options_of(DeltaFormatOptions)
"""All options, in the order in which they are checked and shown."""


def parse_delta_format_options(options: Mapping[str, str], use: Use | None = None) -> DeltaFormatOptions:
    """Parse what Spark hands over.

    Args:
        options: Option names, in any case, and their texts.
        use: What is written; None while that is unknown.

    Raises:
        OptionError: naming the first option that is wrong, and what to do.
    """
    by_lower_name = {name.lower(): text for name, text in options.items()}
    for name, way_out in REFUSED.items():
        if name.lower() in by_lower_name:
            raise OptionError(name, shown(by_lower_name[name.lower()]), way_out)
    # Spark passes names in lower case, and deltalake's are in upper case.
    storage = {
        name.removeprefix(STORAGE_PREFIX).upper(): text
        for name, text in by_lower_name.items()
        if name.startswith(STORAGE_PREFIX)
    }
    named = {name: text for name, text in by_lower_name.items() if not name.startswith(STORAGE_PREFIX)}
    texts = option_texts(named, DELTA_FORMAT_OPTIONS)
    values = parse_values(texts, DELTA_FORMAT_OPTIONS, use)
    required: Collection[str] = ("path", "app_id")
    if use == "batch":
        required = (*required, "starting_offsets", "ending_offsets")
    by_key = {declared.key: declared.name for declared in DELTA_FORMAT_OPTIONS}
    for key in required:
        if values[key] is None:
            raise OptionError(by_key[key], "nothing", _EXPECTED[key])
    values["restart"] = values.pop("on_new_checkpoint") == "restart"
    del values["storage_*"]
    return DeltaFormatOptions(**values, storage_options=storage)


_RANGE = (
    'the offsets whose rows the batch has, such as {"a/journal":1024}, as the reader had them. Rows without '
    "offsets cannot be written exactly once"
)

_EXPECTED = {
    "path": "the table's directory or URL, as argument of start() or save()",
    "app_id": "a name of this stream in the table, which it keeps; to read a table, use the format 'delta'",
    "starting_offsets": _RANGE,
    "ending_offsets": _RANGE,
}
