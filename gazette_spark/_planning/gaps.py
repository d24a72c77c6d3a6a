"""Finds the gaps in the range of a batch query, which ``readGaps`` returns as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from gazette_spark._frames import hide_internal_frames
from gazette_spark._options.query_range import EARLIEST, LATEST
from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.identities import JournalIdentities
from gazette_spark._planning.listing import RequestedJournals, selector_of
from gazette_spark._planning.reads import JournalSource, offset_since
from gazette_spark._planning.selection import QueryJournals
from gazette_spark._planning.view import JournalView
from gazette_spark.client._read.gaps import FragmentGap, gaps_between
from gazette_spark.errors import OffsetError, OptionError
from gazette_spark.protocol.fragments import Fragment


def gaps_of_query(client: JournalSource, options: SourceOptions) -> list[FragmentGap]:
    """Return the gaps in a batch query's range, by journal and offset.

    The range is exactly that of the options. It may begin before the first available byte, or in a gap, and
    need not begin or end at a record boundary.

    Raises:
        OffsetError: a journal's range is past its write head, or ends before it begins.
    """
    view = JournalView(client, options)
    journals = QueryJournals(
        view, RequestedJournals(client, selector_of(options)), JournalIdentities(view)
    ).chosen()
    # The heads come first: bytes that are appended meanwhile are listed, but are past the checked range.
    option_offsets = {
        journal: max(options.starting_offsets.of(journal), options.ending_offsets.of(journal))
        for journal in journals
    }
    heads = view.final_heads(journals, option_offsets)
    listed = view.map_journals(view.fragments, journals)
    gaps: list[FragmentGap] = []
    for journal in journals:
        begin, end = byte_range(journal, listed[journal], heads[journal], options)
        # Brokers' lists also have bytes that are not stored yet, so bytes that no fragment has are missing.
        gaps += gaps_between(journal, listed[journal], begin, end)
    return gaps


def byte_range(journal: str, fragments: list[Fragment], head: int, options: SourceOptions) -> tuple[int, int]:
    """Return the start and the end of a batch query in a journal, regardless of record boundaries."""
    begin, end = options.starting_offsets.of(journal), options.ending_offsets.of(journal)
    if (timestamp_ms := options.timestamp_of(journal)) is not None:
        stored = offset_since(fragments, timestamp_ms // 1000)
        begin = head if stored is None else stored
    elif begin == EARLIEST:
        begin = min((fragment.begin for fragment in fragments), default=head)
    if options.ending_timestamp is not None:
        stored = offset_since(fragments, options.ending_timestamp // 1000)
        end = head if stored is None else min(stored, head)
    elif end == LATEST:
        end = head
    for option, offset in (("startingOffsets", begin), ("endingOffsets", end)):
        if offset > head:
            raise OffsetError(f"{option} is past the write head {head}", journal, offset)
    if end < begin:
        raise OffsetError(f"endingOffsets is before the start at {begin}", journal, end)
    return begin, end


GAPS_DDL = "journal STRING, begin BIGINT, end BIGINT, bytes BIGINT"
"""Columns of ``readGaps``, as errors show them."""

GAPS_TYPES = {"journal": StringType(), "begin": LongType(), "end": LongType(), "bytes": LongType()}
GAPS_SCHEMA = StructType([StructField(name, kind) for name, kind in GAPS_TYPES.items()])


class GapsPartition(InputPartition):
    """The only partition. It has the gaps that the driver has found."""

    def __init__(self, gaps: Sequence[FragmentGap]) -> None:
        self.gaps = gaps


@hide_internal_frames
class GapsReader(DataSourceReader):
    """Finds missing bytes of journals on the driver. Executors only return the rows."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        connect: Callable[[SourceOptions], AbstractContextManager[JournalSource]],
    ) -> None:
        for column in schema.fields:
            if GAPS_TYPES.get(column.name) != column.dataType:
                got = f"column {column.name} {column.dataType.simpleString()} with readGaps"
                raise OptionError("schema", got, f"columns of {GAPS_DDL}")
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
