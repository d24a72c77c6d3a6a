"""The Spark data source ``gazette_iceberg``, which writes any DataFrame to an Iceberg table exactly once.

:mod:`gazette_spark._file_format` translates Spark's calls; this module has the part for Iceberg tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gazette_spark._file_format import FileFormat, TableKind
from gazette_spark._frames import hide_internal_frames

if TYPE_CHECKING:
    from gazette_spark._iceberg.iceberg_table import IcebergTable
    from gazette_spark._options.iceberg_format import IcebergFormatOptions
    from gazette_spark._options.table import Use


class IcebergKind(TableKind):
    """Iceberg tables, by their names in a catalog."""

    name = "gazette_iceberg"
    reads = "'iceberg': the table is an Iceberg table like any other"
    complete = "append: no sink for Iceberg tables supports batches that repeat the row of a group"
    without_arrow = ", or ingest(reader, IcebergSink(…))"

    @staticmethod
    def parse(options: Mapping[str, str], use: Use | None) -> IcebergFormatOptions:
        """Parse the options that Spark passes."""
        # Import it only when it is used, because PySpark imports this module in any session that uses a
        # Python data source.
        from gazette_spark._options.iceberg_format import parse_iceberg_format_options

        return parse_iceberg_format_options(options, use)

    @staticmethod
    def open(options: IcebergFormatOptions, checkpoint: str | None) -> IcebergTable:
        """Return the table. Nothing is read yet."""
        from gazette_spark._iceberg.iceberg_table import IcebergTable
        from gazette_spark._ledger.iceberg_reader import TableName

        table = IcebergTable(
            TableName.of("table", options.catalog, options.table),
            options.properties,
            options.app_id,
            partition_by=options.partition_by,
            partition_option="partitionBy",
            adds_columns=options.schema_evolution == "addNewColumns",
            file_bytes=options.target_file_bytes,
        )
        # The table's clean-up deletes files to which no snapshot refers, and the files of a query checkpoint
        # would be such files.
        if checkpoint is not None:
            table.check_checkpoint(checkpoint)
        return table


@hide_internal_frames
class IcebergFormat(FileFormat):
    """Writes Iceberg tables; the options are in :mod:`gazette_spark._options.iceberg_format`."""

    kind = IcebergKind
