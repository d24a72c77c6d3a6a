"""Spark's reader of ``readGaps``: the gaps of a range as rows. ``gaps`` finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from gazette_spark._planning.gaps import gaps_of_query
from gazette_spark._planning.reads import JournalSource
from gazette_spark.client import FragmentGap
from gazette_spark.errors import OptionError
from gazette_spark.errors.arrival import short_errors
from gazette_spark.options.source import SourceOptions

GAPS_DDL = "journal STRING, begin BIGINT, end BIGINT, bytes BIGINT"
"""Columns of ``readGaps``."""

GAPS_TYPES = {"journal": StringType(), "begin": LongType(), "end": LongType(), "bytes": LongType()}


class GapsPartition(InputPartition):
    """All rows there are: the driver found them."""

    def __init__(self, gaps: Sequence[FragmentGap]) -> None:
        self.gaps = gaps


@short_errors
class GapsReader(DataSourceReader):
    """Lists on the driver what journals lack; executors hand on the rows and ask no broker."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        connect: Callable[[SourceOptions], AbstractContextManager[JournalSource]],
    ) -> None:
        for column in schema.fields:
            if GAPS_TYPES.get(column.name) != column.dataType:
                got = f"column {column.name} {column.dataType.simpleString()} with readGaps"
                raise OptionError("schema", got, f"columns out of {GAPS_DDL}")
        self._options = options
        self._schema = schema
        self._connect = connect

    def __repr__(self) -> str:
        return f"GapsReader({self._options.selection}, {self._options.broker_address})"

    def partitions(self) -> list[InputPartition]:
        """Find the gaps."""
        with self._connect(self._options) as client:
            return [GapsPartition(gaps_of_query(client, self._options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        assert isinstance(partition, GapsPartition)
        rows = [{name: getattr(gap, name) for name in GAPS_TYPES} for gap in partition.gaps]
        yield pa.RecordBatch.from_pylist(rows, to_arrow_schema(self._schema))
