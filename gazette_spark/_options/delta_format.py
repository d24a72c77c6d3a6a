"""Every option of the format ``gazette_delta``, declared once.

The rules are those of :mod:`gazette_spark._options.source`. An option that the format does not support is
refused by name, and the error says what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gazette_spark._options.file_format import FileFormatOptions, parse_columns, parse_file_format
from gazette_spark._options.table import Option, Use, of_options, option, options_of
from gazette_spark._options.values import shown
from gazette_spark.errors import OptionError

STORAGE_PREFIX = "storage."
"""Prefix of the options of ``deltalake`` with which tasks and driver access an object store."""

_BY_SPARK = "to be unset; DeltaSink supports it, for rows that Spark writes"

_BY_STATEMENT = (
    "to be unset; run ALTER TABLE before the query starts, or use DeltaSink(schema_evolution='addNewColumns')"
)

REFUSED: Mapping[str, str] = {
    "audit": _BY_SPARK,
    "compactEvery": "to be unset; run OPTIMIZE from a job",
    "deadLetters": _BY_SPARK,
    "mergeSchema": _BY_STATEMENT,
    "newTable": "to be unset; run CREATE TABLE before the query starts, or set 'partitionBy'",
    "onOverlap": _BY_SPARK,
    "overwriteSchema": _BY_STATEMENT,
    "replaceWhere": "to be unset: rows are appended",
    "schemaEvolution": _BY_STATEMENT,
    "table": "'path', the table's location, which DESCRIBE DETAIL shows: no session can ask the catalog",
    "txnAppId": "'appId'",
    "txnVersion": "to be unset: the ledger numbers transactions",
    "upsert": _BY_SPARK,
    "userMetadata": "to be unset: it contains the ledger's entry",
}
"""Options of the sink and of Delta's format that this format does not support, and what to do instead."""


def _parse_path(name: str, text: str) -> str:
    if not text.strip() or "\0" in text:
        raise OptionError(name, shown(text), "the table's directory or URL")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFormatOptions(FileFormatOptions):
    """The parsed options."""

    path: str = option(
        _parse_path,
        "Argument of start() or save(): the table's directory or URL, in Spark's spelling. Required. For a "
        "table in a catalog, DESCRIBE DETAIL shows it. A missing table is created from the rows' columns.",
        section="Table",
    )
    partition_by: tuple[str, ...] | None = option(
        parse_columns,
        "Partition columns of a new table, separated by commas. A table with other partitions is refused. "
        "Spark ignores `partitionBy()` of a stream's writer.",
        form="names of columns",
    )
    storage_options: Mapping[str, str] = of_options(
        Option(
            "storage.*",
            lambda _, text: text,
            "Options of deltalake with which tasks and driver access the table and the checkpoint in an "
            "object store, such as `storage.AWS_REGION`. Without them, each process uses its environment.",
            form="a string",
            section="Object store",
        )
    )


DELTA_FORMAT_OPTIONS = options_of(DeltaFormatOptions)
"""All options, in the order in which they are checked and shown."""


def parse_delta_format_options(options: Mapping[str, str], use: Use | None = None) -> DeltaFormatOptions:
    """Parse the options that Spark passes.

    Args:
        options: Option names, in any case, and their texts.
        use: What is written; None if that is unknown.

    Raises:
        OptionError: an option is invalid. The error names the first one, and says what to do.
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
    "path": "the table's directory or URL, as the argument of start() or save()",
    "app_id": "a name of this stream in the table, which never changes; to read it, use the format 'delta'",
}
