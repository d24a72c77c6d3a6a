"""Reads covered ranges of journals as their query did: the plan, and Spark's data source for it.

It differs from the source ``gazette`` in two ways: :func:`plan_reads` has planned its pieces from the
ledger's ranges, and it skips the bytes that the ledger names as missing, even if they have been restored.
Other missing bytes are an error, so every planned record is read.

In a range of committed messages, the records are the messages that were committed in it. They depend on all
of its bytes, so one task reads the whole range. After missing bytes, the read begins without the producers'
states. Then messages that repeat lost ones look new, and transactions of which the query lost bytes look
complete. All other messages are judged as by the query.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark._delta.session import register_sources
from gazette_spark._formats.framing import Block, RecordFraming, bounded
from gazette_spark._formats.metadata import ACK_OFFSET
from gazette_spark._formats.raw import ChunkFraming
from gazette_spark._formats.registry import framing_named
from gazette_spark._options.security import Security
from gazette_spark._options.source import SourceOptions, parse_options
from gazette_spark._planning.access import open_client, security_for_tasks
from gazette_spark._planning.boundary import record_end, window_reader
from gazette_spark._planning.committed import CommittedScan, committed_scan, uuid_place
from gazette_spark._planning.cutter import PieceScan
from gazette_spark._planning.pieces import OffsetRange, Piece, split
from gazette_spark._planning.reads import JournalSource, skipped_spans
from gazette_spark._planning.view import JournalView
from gazette_spark._verify.gap_reads import gone_of, skipping_scan
from gazette_spark._verify.tiling import CoveredRange
from gazette_spark.errors import DataLossError, JournalNotFoundError
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.spans import joined, outside
from gazette_spark.source import GazetteDataSource

Gaps = tuple[tuple[int, int], ...]

TASKS = 64
"""Number of tasks that keep an ordinary cluster busy. Each reads at most ``maxBytesPerPartition``."""

LEAST_TASK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The plan for reading one covered range."""

    gaps: Gaps
    """Skipped bytes: those that the ledger names, and other missing ones."""
    gone: Gaps
    """Missing bytes that the ledger does not name, with the records that they cut."""
    pieces: tuple[Piece, ...]
    committed: bool = False
    """Whether the records are committed messages."""

    def near(self, begin: int, end: int) -> PlannedRange:
        """Return the plan for all records that begin in a range, with few others if possible."""
        if self.committed:
            return self  # A message's acknowledgement may be anywhere after it.
        near = tuple(piece for piece in self.pieces if piece.begin < end and begin < piece.end)
        return replace(self, pieces=near)


def plan_reads(
    client: JournalSource, options: SourceOptions, claims: Sequence[CoveredRange]
) -> dict[str, PlannedRange]:
    """Plan the reads of covered ranges, each of another journal, and return them by journal.

    Raises:
        GazetteError: no broker answers for a journal, or the journal ends before its range.
    """
    view = JournalView(client, options)
    by_name = {claim.journal: claim for claim in claims if claim.start < claim.end}
    view.refresh_specs(by_name)
    # All bytes of a journal that no longer exists are gone.
    gone = view.map_journals(lambda name: _is_gone(view, name), by_name)
    present = {name: claim for name, claim in by_name.items() if not gone[name]}
    planned = {claim.journal: PlannedRange((), (), ()) for claim in claims}
    for name in by_name.keys() - present.keys():
        planned[name] = PlannedRange((), ((by_name[name].start, by_name[name].end),), ())
    # A journal that ends before the table's rows has lost its tail. Rows that cannot be read again must not
    # look like surplus.
    view.check_heads({name: claim.end for name, claim in present.items()})
    fragments = view.map_journals(view.fragments, present)
    framings = {name: view.framing(name) for name in present}
    skipped = view.map_journals(
        lambda name: _skipped(view, present[name], framings[name], fragments[name]), present
    )
    ranges: list[OffsetRange] = []
    for name, claim in present.items():
        gaps, lost = skipped[name]
        if claim.committed:
            # Whether a message is committed depends on all earlier bytes, so one task reads the whole range,
            # from the end of the last missing bytes.
            uuid_place(options, framings[name].name)  # So that it raises here, not in a task.
            begin = max([claim.start, *(end for _, end in lost)])
            piece = Piece(
                name, begin, claim.end, claim.end, starts_on_record=True, framing=framings[name].name
            )
            unread = ((claim.start, begin),) if claim.start < begin else ()
            planned[name] = PlannedRange(gaps, unread, (piece,) if begin < claim.end else (), committed=True)
            continue
        planned[name] = PlannedRange(gaps, lost, ())
        if framings[name].name == "none":  # A batch ends with a chunk.
            ranges += [OffsetRange(name, span.begin, span.end) for span in claim.spans]
        else:
            ranges.append(OffsetRange(name, claim.start, claim.end))
    total = sum(read.size_bytes for read in ranges)
    for piece in split(
        ranges,
        fragments,
        solid={name: [read for read in stored if read.is_compressed] for name, stored in fragments.items()},
        framings=framings,
        max_bytes=min(max(total // TASKS, LEAST_TASK_BYTES), options.max_bytes_per_partition),
    ):
        read = planned[piece.journal]
        planned[piece.journal] = replace(read, pieces=(*read.pieces, piece))
    return planned


def _is_gone(view: JournalView, journal: str) -> bool:
    try:
        view.spec(journal)
    except JournalNotFoundError:
        return True
    return False


def _skipped(
    view: JournalView, claim: CoveredRange, framing: RecordFraming, fragments: Sequence[Fragment]
) -> tuple[Gaps, Gaps]:
    """Return the bytes that a read skips, and those that the ledger does not name."""
    stored = [(fragment.begin, fragment.end) for fragment in fragments]
    missing = skipped_spans(view.client, claim.journal, stored, claim.start, claim.end)
    # The query skipped the bytes that an entry names, so the table has not lost them.
    lost = [part for gap in missing for part in outside(claim.gaps, *gap)]
    # Missing bytes may cut a record. It has a row but cannot be read, so the rest of it counts as gone.
    window = window_reader(view.client, claim.journal, fail_on_data_loss=False)
    gone: list[tuple[int, int]] = []
    for begin, end in lost:
        if isinstance(framing, ChunkFraming):
            # A chunk that lacks one byte cannot be compared, so all of it counts as gone.
            size = framing.chunk_bytes
            gone.append((max(begin // size * size, claim.start), min(-(-end // size) * size, claim.end)))
            continue
        # A record never spans a gap that the query skipped, so the search need not go back beyond it.
        low = max([claim.start, *(gap_end for _, gap_end in claim.gaps if gap_end <= begin)])
        longest = view.options.max_record_bytes
        gone.append((record_end(window, low, begin, longest, journal=claim.journal, framing=framing), end))
    # Two of them may cut the same record, whose rows must not be counted twice.
    return tuple(sorted([*claim.gaps, *lost])), tuple(joined(gone))


def read_records(
    spark: SparkSession,
    options: Mapping[str, str],
    plan: Mapping[str, PlannedRange],
    *,
    values: bool,
    places: bool = False,
) -> DataFrame:
    """Return the records of planned ranges: ``journal``, ``offset`` and optionally ``place`` and ``value``.

    Args:
        spark: The session.
        options: Options of the source.
        plan: The ranges by journal.
        values: Whether to read the records' bytes.
        places: Whether to add ``place``, the offset that decides to which range a record belongs. For a
            committed message it is the offset of its acknowledgement.
    """
    register_sources(spark, AuditSource)
    reader = spark.read.format(AuditSource.name()).schema(record_schema(values=values, places=places))
    return reader.options(**options, plan=plan_text(plan)).load()


def record_schema(*, values: bool, places: bool) -> StructType:
    """Return the columns of records that an audit reads."""
    schema = StructType().add("journal", StringType()).add("offset", LongType())
    schema = schema.add("place", LongType()) if places else schema
    return schema.add("value", BinaryType()) if values else schema


def plan_text(plan: Mapping[str, PlannedRange]) -> str:
    """Return planned ranges as the option ``plan``."""
    return json.dumps(
        [
            {
                "gaps": read.gaps,
                "pieces": [
                    [p.journal, p.begin, p.end, p.limit, p.starts_on_record, p.framing] for p in read.pieces
                ],
                "committed": read.committed,
            }
            for read in plan.values()
        ]
    )


class PlannedPartition(InputPartition):
    """One task's work: a piece of a range, and the bytes to skip."""

    def __init__(self, piece: Piece, security: Security, gaps: Gaps, *, committed: bool) -> None:
        # An audit begins without states of producers: see the module's docstring.
        self.piece = replace(piece, start=piece.begin)
        self.security = security
        self.gaps = gaps
        self.committed = committed


class AuditSource(GazetteDataSource):
    """The source ``gazette`` with the option ``plan``, from :func:`read_records`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # The source's own parser would refuse an option that no user may set.
        self._plan = options.pop("plan")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "gazette_audit"

    def reader(self, schema: StructType) -> AuditReader:  # type: ignore[override]
        """Return the reader of ``spark.read``."""
        return AuditReader(parse_options(self.options, "batch"), schema, self._plan)


class AuditReader(DataSourceReader):
    """Reads planned pieces."""

    def __init__(self, options: SourceOptions, schema: StructType, plan: str) -> None:
        self._options = options
        self._schema = schema
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the plan."""
        plan, self._plan = json.loads(self._plan), ""  # The reader itself goes to each task.
        security = security_for_tasks(self._options.security)
        return [
            PlannedPartition(
                Piece(*piece), security, tuple(map(tuple, read["gaps"])), committed=read["committed"]
            )
            for read in plan
            for piece in read["pieces"]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a piece. Runs on executors."""
        # Spark reads one empty partition if a batch query has no partitions.
        if not isinstance(partition, PlannedPartition):
            return
        options = replace(self._options, security=partition.security)
        piece, schema = partition.piece, to_arrow_schema(self._schema)
        framing = framing_named(piece.framing, options.max_record_bytes, options.sep, options.quote)
        build: dict[str, Callable[[Block], pa.Array]] = {
            "journal": lambda block: pa.repeat(piece.journal, len(block)),
            "offset": Block.offset_array,
            "place": lambda block: block.columns.get(ACK_OFFSET, block.offset_array()),
            "value": framing.values,
        }

        def scan_of(part: Piece) -> PieceScan:
            return skipping_scan(client, part, framing, partition.gaps, options.max_record_bytes)

        with open_client(options) as client:
            scan: PieceScan | CommittedScan = (
                committed_scan(client, piece, options, scan_of, (ACK_OFFSET,))
                if partition.committed
                else scan_of(piece)
            )
            for block in bounded(scan):
                arrays = [build[column.name](block) for column in schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            # Bytes that went missing after the plan would make rows look like surplus, so the audit ends
            # instead.
            for begin, end in gone_of(scan.gaps, partition.gaps):
                raise DataLossError(piece.journal, begin, end)
