"""Every option of the format ``gazette_delta``, declared once.

The rules are those of :mod:`gazette_spark._options.source`. What the format does not do is refused by name,
with the way to have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gazette_spark._options.file_format import (
    accept_gaps_option,
    app_id_option,
    ending_offsets_option,
    parse_columns,
    parse_file_format,
    restart_option,
    starting_offsets_option,
    target_file_bytes_option,
)
from gazette_spark._options.table import Option, Use, of_options, option, options_of
from gazette_spark._options.values import shown
from gazette_spark.errors import OptionError
from gazette_spark.offsets import JournalOffsets

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


@dataclass(frozen=True, slots=True)
class DeltaFormatOptions:
    """The parsed options."""

    path: str = option(
        _parse_path,
        "Argument of start() or save(): the table's directory or URL, as Spark writes it. Required. A table "
        "of a catalog has one, which DESCRIBE DETAIL shows. A missing table is made from the rows' columns.",
        section="Table",
    )
    app_id: str = app_id_option()
    partition_by: tuple[str, ...] | None = option(
        parse_columns,
        "Partition columns of a new table, separated by commas. A table with other partitions is refused. "
        "Spark ignores `partitionBy()` of a stream's writer.",
        form="names of columns",
    )
    target_file_bytes: int | None = target_file_bytes_option()
    starting_offsets: JournalOffsets | None = starting_offsets_option()
    ending_offsets: JournalOffsets | None = ending_offsets_option()
    accept_gaps: Mapping[str, object] | None = accept_gaps_option()
    restart: bool = restart_option()
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
    values, storage = parse_file_format(
        options,
        DELTA_FORMAT_OPTIONS,
        use,
        refused=REFUSED,
        prefix=STORAGE_PREFIX,
        required=_REQUIRED,
    )
    # Spark passes names in lower case, and deltalake's are in upper case.
    return DeltaFormatOptions(
        **values, storage_options={name.upper(): text for name, text in storage.items()}
    )


_REQUIRED = {
    "path": "the table's directory or URL, as argument of start() or save()",
    "app_id": "a name of this stream in the table, which it keeps; to read a table, use the format 'delta'",
}
