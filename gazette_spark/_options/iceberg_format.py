"""Every option of the format ``gazette_iceberg``, declared once.

The options that it shares with ``gazette_delta`` are in :mod:`gazette_spark._options.file_format`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gazette_spark._options.file_format import FileFormatOptions, parse_file_format
from gazette_spark._options.table import Option, Use, of_options, option, options_of
from gazette_spark._options.values import parse_column, word

CATALOG_PREFIX = "catalog."
"""Prefix of the properties of the catalog."""

_APPENDED = "to be unset: rows are appended"

REFUSED: Mapping[str, str] = {
    "audit": "to be unset",
    "branch": "to be unset: commits go to the branch main",
    "compactEvery": "to be unset; run rewrite_data_files from a job",
    "deadLetters": "to be unset: drop such rows in the query",
    "distribution-mode": "to be unset: tasks write the rows that they have",
    "fanout-enabled": "to be unset: tasks keep a file open for each partition",
    "mergeSchema": "'schemaEvolution', which may be addNewColumns",
    "newTable": "'partitionBy', or create the table before the query starts",
    "onOverlap": _APPENDED,
    "path": "'table', its namespace and name, and 'catalog'",
    "snapshot-property": "to be unset: the summary contains the ledger's entry",
    "upsert": _APPENDED,
}
"""Options of the sinks and of Iceberg's format that this format does not support, and what to do instead."""


def _parse_partitions(name: str, text: str) -> tuple[str, ...]:
    """Split partitions at the commas that are not within parentheses."""
    parts: list[str] = []
    for piece in text.split(","):
        if parts and parts[-1].count("(") > parts[-1].count(")"):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return tuple(parse_column(name, part.strip()) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergFormatOptions(FileFormatOptions):
    """The parsed options."""

    table: str = option(
        parse_column,
        "Namespace and name of the table, such as `shop.orders`. Required. A missing table is created from "
        "the rows' columns, in an existing namespace.",
        section="Table",
        form="a name such as `shop.orders`",
    )
    catalog: str = option(
        parse_column,
        "Name of the catalog in pyiceberg's configuration: in `.pyiceberg.yaml`, in variables such as "
        "`PYICEBERG_CATALOG__PROD__URI`, and in the options `catalog.*`. Required.",
        form="a name such as `prod`",
    )
    partition_by: tuple[str, ...] | None = option(
        _parse_partitions,
        "Partitions of a new table, separated by commas: columns, `day(at)`, `hour(at)`, `month(at)`, "
        "`year(at)`, `bucket(16, id)`, `truncate(4, name)`. A table with other partitions is refused. "
        "Spark ignores `partitionBy()` of a stream's writer.",
        form="columns and transforms such as `day(at), bucket(16, id)`",
    )
    schema_evolution: str = option(
        word("fail", "addNewColumns"),
        "Policy for columns that the table does not have. `addNewColumns` adds them in the commit of the "
        "first rows.",
        default="fail",
    )
    properties: Mapping[str, str] = of_options(
        Option(
            "catalog.*",
            lambda _, text: text,
            "Properties of the catalog that replace configured ones, such as `catalog.uri` and "
            "`catalog.s3.endpoint`. Spark masks those whose names contain `secret`, `password` or `token`.",
            form="a string",
            section="Catalog",
        )
    )


ICEBERG_FORMAT_OPTIONS = options_of(IcebergFormatOptions)
"""All options, in the order in which they are checked and shown."""


def parse_iceberg_format_options(options: Mapping[str, str], use: Use | None = None) -> IcebergFormatOptions:
    """Parse the options that Spark passes.

    Args:
        options: Option names, in any case, and their texts.
        use: What is written; None if that is unknown.

    Raises:
        OptionError: an option is invalid. The error names the first one, and says what to do.
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
    "app_id": "a name of this stream in the table, which never changes; to read it, use the format 'iceberg'",
}
