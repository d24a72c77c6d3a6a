"""The Spark data source ``gazette_delta``, which writes any DataFrame to a Delta table exactly once.

:mod:`gazette_spark._file_format` translates Spark's calls; this module has the part for Delta tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gazette_spark._file_format import FileFormat, TableKind
from gazette_spark._frames import hide_internal_frames

if TYPE_CHECKING:
    from gazette_spark._delta.format_table import DeltaFormatTable
    from gazette_spark._options.delta_format import DeltaFormatOptions
    from gazette_spark._options.table import Use


class DeltaKind(TableKind):
    """Delta tables, by their location."""

    name = "gazette_delta"
    reads = "'delta': the table is a Delta table like any other"
    complete = (
        "append. DeltaSink(upsert=Upsert(keys)) supports update and complete, whose batches repeat the row "
        "of a group"
    )
    without_arrow = ", or DeltaSink.start"

    @staticmethod
    def parse(options: Mapping[str, str], use: Use | None) -> DeltaFormatOptions:
        """Parse the options that Spark passes."""
        # Import it only when it is used, because PySpark imports this module in any session that uses a
        # Python data source.
        from gazette_spark._options.delta_format import parse_delta_format_options

        return parse_delta_format_options(options, use)

    @staticmethod
    def open(options: DeltaFormatOptions, checkpoint: str | None) -> DeltaFormatTable:
        """Return the table. Nothing is read yet."""
        from gazette_spark._delta.format_table import DeltaFormatTable

        return DeltaFormatTable(options, checkpoint)


@hide_internal_frames
class DeltaFormat(FileFormat):
    """Writes Delta tables; the options are in :mod:`gazette_spark._options.delta_format`."""

    kind = DeltaKind
