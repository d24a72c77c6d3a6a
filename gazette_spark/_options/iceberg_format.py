"""Every option of the format ``gazette_iceberg``, declared once.

What it shares with ``gazette_delta`` is in :mod:`gazette_spark._options.file_format`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gazette_spark._options.file_format import (
    accept_gaps_option,
    app_id_option,
    ending_offsets_option,
    parse_file_format,
    restart_option,
    starting_offsets_option,
    target_file_bytes_option,
)
from gazette_spark._options.table import Option, Use, of_options, option, options_of
from gazette_spark._options.values import parse_column, word
from gazette_spark.offsets import JournalOffsets

CATALOG_PREFIX = "catalog."
"""Prefix of the properties of the catalog."""

_APPENDED = "left out: rows are appended"

REFUSED: Mapping[str, str] = {
    "audit": "left out",
    "branch": "left out: commits go to the branch main",
    "compactEvery": "left out; run rewrite_data_files from a job",
    "deadLetters": "left out: drop such rows in the query",
    "distribution-mode": "left out: tasks write the rows that they have",
    "fanout-enabled": "left out: tasks keep a file open for each partition",
    "mergeSchema": "'schemaEvolution', which may be addNewColumns",
    "newTable": "'partitionBy', or make the table before the query starts",
    "onOverlap": _APPENDED,
    "path": "'table', its namespace and name, and 'catalog'",
    "snapshot-property": "left out: the ledger's entry is there",
    "upsert": _APPENDED,
}
"""Options of the sinks and of Iceberg's format that this one does not have, and what to do instead."""


def _parse_partitions(name: str, text: str) -> tuple[str, ...]:
    """Split partitions at the commas that are not within parentheses."""
    parts: list[str] = []
    for piece in text.split(","):
        if parts and parts[-1].count("(") > parts[-1].count(")"):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return tuple(parse_column(name, part.strip()) for part in parts)


@dataclass(frozen=True, slots=True)
class IcebergFormatOptions:
    """The parsed options."""

    table: str = option(
        parse_column,
        "Namespace and name of the table, such as `shop.orders`. Required. A missing table is made from the "
        "rows' columns; its namespace has to exist.",
        section="Table",
        form="a text such as `shop.orders`",
    )
    catalog: str = option(
        parse_column,
        "Name of the catalog in pyiceberg's configuration: in `.pyiceberg.yaml`, in variables such as "
        "`PYICEBERG_CATALOG__PROD__URI`, and in the options `catalog.*`. Required.",
        form="a text such as `prod`",
    )
    app_id: str = app_id_option()
    partition_by: tuple[str, ...] | None = option(
        _parse_partitions,
        "Partitions of a new table, separated by commas: columns, `day(at)`, `hour(at)`, `month(at)`, "
        "`year(at)`, `bucket(16, id)`, `truncate(4, name)`. A table with others is refused. Spark ignores "
        "`partitionBy()` of a stream's writer.",
        form="a text such as `day(at), bucket(16, id)`",
    )
    schema_evolution: str = option(
        word("fail", "addNewColumns"),
        "Policy for columns that the table does not have. `addNewColumns` adds them in the commit of the "
        "first rows.",
        default="fail",
    )
    target_file_bytes: int | None = target_file_bytes_option()
    starting_offsets: JournalOffsets | None = starting_offsets_option()
    ending_offsets: JournalOffsets | None = ending_offsets_option()
    accept_gaps: Mapping[str, object] | None = accept_gaps_option()
    restart: bool = restart_option()
    properties: Mapping[str, str] = of_options(
        Option(
            "catalog.*",
            lambda _, text: text,
            "Properties of the catalog in place of configured ones, such as `catalog.uri` and "
            "`catalog.s3.endpoint`. Spark masks those whose names contain `secret`, `password` or `token`.",
            form="a text",
            section="Catalog",
        )
    )


ICEBERG_FORMAT_OPTIONS = options_of(IcebergFormatOptions)
"""All options, in the order in which they are checked and shown."""


def parse_iceberg_format_options(options: Mapping[str, str], use: Use | None = None) -> IcebergFormatOptions:
    """Parse what Spark hands over.

    Args:
        options: Option names, in any case, and their texts.
        use: What is written; None while that is unknown.

    Raises:
        OptionError: naming the first option that is wrong, and what to do.
    """
    values, properties = parse_file_format(
        options,
        ICEBERG_FORMAT_OPTIONS,
        use,
        refused=REFUSED,
        prefix=CATALOG_PREFIX,
        required=_REQUIRED,
    )
    return IcebergFormatOptions(**values, properties=properties)


_REQUIRED = {
    "table": "namespace and name of the table, such as shop.orders",
    "catalog": "the name of a catalog in pyiceberg's configuration, or with properties in options catalog.*",
    "app_id": "a name of this stream in the table, which it keeps; to read a table, use the format 'iceberg'",
}
