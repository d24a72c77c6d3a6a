"""Provides names that some of the supported releases of Spark, 4.0 to 4.3, lack.

=========================  ===  ===  =========================================================================
                           4.0  4.1  consequence
=========================  ===  ===  =========================================================================
admission control          no   no   :class:`~gazette_spark.source.TrackingStreamReader` follows the query; a
                                     run under Trigger.AvailableNow is one batch
a source's write heads     no   no   progress only has write heads of journals in which a position is behind
Arrow writers of streams   no   yes  :class:`~gazette_spark._write.spark_writer.RowStreamWriter` writes rows
=========================  ===  ===  =========================================================================

Later releases have all of these. Other code checks for a capability here, never for a version.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
"""Local property of a stream's jobs with the id of the query, in all releases."""

if TYPE_CHECKING:  # The types of a release that has all names.
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
            """Base class without methods, because Spark calls none."""

        class ReadLimit:
            """Never passed by Spark."""

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        @dataclass(frozen=True)
        class ReadMaxBytes(ReadLimit):
            """A limit of bytes."""

            max_bytes: int


ARROW_STREAM_WRITES = hasattr(datasource, "DataSourceStreamArrowWriter")
"""Whether Spark passes Arrow record batches, instead of rows, to a stream's writer."""

_IN_UTC = "timezone" if "timezone" in signature(to_arrow_schema).parameters else "timestamp_utc"


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's columns, with times in UTC."""
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
