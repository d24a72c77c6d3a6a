"""What differs among the releases of Spark that are supported, 4.0 to 4.3: the names a release lacks.

=========================  ===  ===  =========================================================================
                           4.0  4.1  consequence
=========================  ===  ===  =========================================================================
admission control          no   no   :class:`~gazette_spark.source.TrackingStreamReader` follows the query; a
                                     run under Trigger.AvailableNow is one batch
a source's write heads     no   no   progress has those of the journals that a position is behind in
Arrow writers of streams   no   yes  :class:`~gazette_spark._write.spark_writer.RowStreamWriter` takes rows
=========================  ===  ===  =========================================================================

Later ones have all of it. Code asks for a capability here, never for a version.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
"""Local property of a stream's jobs, under all releases: the id of the query."""

if TYPE_CHECKING:  # The types are those of a release that has them all.
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as ArrowStreamWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )

    ADMISSION_CONTROL = True
else:
    ArrowStreamWriter = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            SupportsTriggerAvailableNow,
        )

        ADMISSION_CONTROL = True
    except ModuleNotFoundError:
        ADMISSION_CONTROL = False

        class SupportsTriggerAvailableNow:
            """Spark asks for nothing of it."""

        class ReadLimit:
            """Spark passes none."""

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        @dataclass(frozen=True)
        class ReadMaxBytes(ReadLimit):
            """A limit of bytes."""

            max_bytes: int


ARROW_STREAM_WRITES = hasattr(datasource, "DataSourceStreamArrowWriter")
"""Spark gives a stream's writer Arrow record batches, not rows."""

_IN_UTC = "timezone" if "timezone" in signature(to_arrow_schema).parameters else "timestamp_utc"


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Spark's columns as Arrow has them, times in UTC."""
    zone: Any = "UTC" if _IN_UTC == "timezone" else True
    return to_arrow_schema(schema, **{_IN_UTC: zone})


__all__ = [
    "ADMISSION_CONTROL",
    "ARROW_STREAM_WRITES",
    "ArrowStreamWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]
