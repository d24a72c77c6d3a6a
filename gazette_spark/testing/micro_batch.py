"""Runs Spark's micro-batch loop in plain Python, to test streaming sources without a JVM.

A :class:`MicroBatches` is one query, with its durable state in memory. It runs batches as Spark does, and can
crash at each point between two steps::

    query = MicroBatches()
    run = query.start(lambda: source.streamReader(schema))
    run.batch(crash="offset_log")   # raises Crash; offsets/N is written, nothing was read
    run = query.start(...)          # batch N is run again, over the same range
    while run.batch():
        pass
    query.rows()

===================  ======================================================================
crash at             state at that point
===================  ======================================================================
``latest_offset``    only the reader knows the end of the batch
``offset_log``       ``offsets/N`` is written
``partitions``       the batch is cut into tasks
``read``             half of the tasks have read their part
``tasks``            all tasks have read everything; nothing is written
``sink``             the sink has the rows, but Spark has not recorded that
``commit_log``       ``commits/N`` is written
===================  ======================================================================

A query with ``admission_control=False`` behaves like one of Spark 4.0 and 4.1: ``latestOffset()`` is called
before the reader is asked for a start, a run that continues a query begins with an empty batch at the last
position, and a run with Trigger.AvailableNow ends after one batch.

As in Spark, positions are converted to JSON text, the reader is pickled before it is used, partitions are
pickled when they are planned, and each task reads with a separate copy of both. The sink identifies batches
by number and stores each one once. If a batch is repeated, its rows must equal the stored ones.
"""

from __future__ import annotations

import json
import math
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gazette_spark.errors import GazetteError

CrashPoint = Literal["latest_offset", "offset_log", "partitions", "read", "tasks", "sink", "commit_log"]
CRASH_POINTS: tuple[CrashPoint, ...] = get_args(CrashPoint)
"""In the order of a batch's steps."""

Row = tuple[Any, ...]
"""Values of one row, in the order of the columns."""


class Crash(Exception):  # noqa: N818 - it is requested, and is not an error.
    """The driver died at the requested point."""


class BatchDiffersError(GazetteError):
    """A batch that ran again returned other rows, which tests of sources look for."""

    problem: str


@dataclass(frozen=True, slots=True)
class TaskFaults:
    """Faults of a batch's tasks; by default each task runs once, to its end."""

    killed_after: Sequence[int] = ()
    """One entry for each killed attempt, in the order of the tasks: the number of record batches that it
    returns before the kill."""
    attempts_per_task: int = 2
    """Maximum number of entries of ``killed_after`` for one task."""
    speculative: bool = False
    """Whether a copy of each task also runs, which must return the same rows."""


NO_FAULTS = TaskFaults()


@dataclass
class MicroBatches:
    """A query's files on disk, and the table of its sink."""

    offset_log: dict[int, str] = field(default_factory=dict)
    """JSON of each batch's end, by number of the batch."""
    commit_log: set[int] = field(default_factory=set)
    table: dict[int, list[Row]] = field(default_factory=dict)
    """Rows of each batch in order, by number of the batch."""
    admission_control: bool = True
    """Whether Spark passes start and limit of each batch to the source, as it does since 4.2."""

    def start(self, make_reader: Callable[[], DataSourceStreamReader], *, available_now: bool = False) -> Run:
        """Begin a run, as a driver process does. The previous run must have ended."""
        return Run(self, make_reader(), available_now=available_now)

    def rows(self) -> list[Row]:
        """Return the rows of all batches, in order of the batches."""
        return [row for batch_id in sorted(self.table) for row in self.table[batch_id]]

    def write(self, batch_id: int, rows: list[Row]) -> None:
        """Store a batch.

        Raises:
            BatchDiffersError: the batch was stored before with other rows.
        """
        # The central promise of a source is that a batch that runs again returns the same rows. A sink that
        # only skipped such a batch would hide a violation.
        if self.table.setdefault(batch_id, rows) != rows:
            raise BatchDiffersError(
                f"batch {batch_id}: {len(self.table[batch_id])} rows at first, then {len(rows)} others"
            )


class Run:
    """One run of a query, from a driver's start to its end or crash."""

    def __init__(self, query: MicroBatches, reader: DataSourceStreamReader, *, available_now: bool) -> None:
        self._query = query
        self._reader = reader
        # Pickle the reader before the first call, as Spark does: changes that a call makes in the driver's
        # reader must not reach the tasks by accident.
        self._pickled_reader = pickle.dumps(reader)
        self._batch_id = max(query.offset_log, default=-1)
        # A batch that is planned but not committed runs again. Only after a committed batch does the next one
        # follow.
        if self._batch_id in query.commit_log or self._batch_id < 0:
            self._batch_id += 1
        self._batches_left = math.inf
        if query.admission_control and available_now:
            reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
        if not query.admission_control:
            # Without admission control, Spark gives AvailableNow a single batch.
            self._batches_left = 1 if available_now else math.inf
            if query.offset_log:
                last = query.offset_log[max(query.offset_log)]
                # Such a run begins with an empty batch at the last position.
                reader.partitions(json.loads(last), json.loads(last))

    def __repr__(self) -> str:
        return f"Run(batch {self._batch_id})"

    def batch(
        self,
        *,
        crash: CrashPoint | None = None,
        faults: TaskFaults = NO_FAULTS,
        meanwhile: Callable[[CrashPoint], None] = lambda _step: None,
    ) -> bool:
        """Run one batch; return False if there is nothing new.

        Args:
            crash: point at which the driver dies.
            faults: faults of the tasks.
            meanwhile: called at each point that is reached, to let others act at that moment.

        Raises:
            Crash: as requested. The run is over, as after any other error.
        """
        query, batch_id = self._query, self._batch_id

        def at(point: CrashPoint) -> None:
            meanwhile(point)
            if point == crash:
                raise Crash(point)

        if not self._batches_left:
            return False
        self._batches_left -= 1
        before = query.offset_log.get(batch_id - 1)
        # If there is no previous batch, Spark requests a start and does not record it.
        start = json.loads(before) if before else None
        if start is None and query.admission_control:
            start = self._reader.initialOffset()
        if batch_id not in query.offset_log:
            # Converted to text, as in Spark, so that positions that JSON cannot represent fail tests.
            if query.admission_control:
                assert start is not None
                end = json.dumps(self._reader.latestOffset(start, self._reader.getDefaultReadLimit()))
            else:
                end = json.dumps(self._reader.latestOffset())  # type: ignore[call-arg]
            at("latest_offset")
            if end == json.dumps(start):
                return False
            # The end is durable before anything is read. From now on, no crash changes the range of this
            # batch.
            query.offset_log[batch_id] = end
            at("offset_log")
            if before is not None:
                # Spark reports a commit to the source only when it plans the next batch, so the last commit
                # of a run is never reported.
                self._reader.commit(json.loads(before))
        end_json = json.loads(query.offset_log[batch_id])
        start = self._reader.initialOffset() if start is None else start
        # Pickle partitions immediately, because a task may run long after the driver has planned other
        # batches.
        partitions = [pickle.dumps(partition) for partition in self._reader.partitions(start, end_json)]
        at("partitions")
        rows = self._read(partitions, faults, lambda: at("read"))
        at("tasks")
        query.write(batch_id, rows)
        at("sink")
        # After the sink: if there is a crash in between, the batch is repeated, and the sink must recognize
        # it.
        query.commit_log.add(batch_id)
        self._batch_id += 1
        at("commit_log")
        return True

    def stop(self) -> None:
        """End the run, even a crashed one: the end of a process also closes its resources."""
        self._reader.stop()

    def _read(
        self, partitions: Sequence[bytes], faults: TaskFaults, halfway: Callable[[], None]
    ) -> list[Row]:
        rows: list[Row] = []
        kills = list(faults.killed_after)
        for number, partition in enumerate(partitions):
            for _ in range(min(faults.attempts_per_task, len(kills))):
                # A killed attempt has read a part, which is discarded: Spark uses only the rows of complete
                # attempts.
                deque(islice(self._record_batches(partition), kills.pop(0)), maxlen=0)
            if number == len(partitions) // 2:
                halfway()
            attempt_rows = list(self._attempt(partition))
            if faults.speculative and list(self._attempt(partition)) != attempt_rows:
                raise BatchDiffersError("a speculative copy of a task gave other rows")
            rows += attempt_rows
        # Spark guarantees no order among tasks.
        return sorted(rows)

    def _attempt(self, partition: bytes) -> Iterator[Row]:
        for record_batch in self._record_batches(partition):
            yield from zip(*(column.to_pylist() for column in record_batch.columns), strict=True)

    def _record_batches(self, partition: bytes) -> Iterator[pa.RecordBatch]:
        # Each attempt gets a new copy, because each may run in another process.
        reader: DataSourceStreamReader = pickle.loads(self._pickled_reader)  # noqa: S301 - our own
        part: InputPartition = pickle.loads(partition)  # noqa: S301
        yield from reader.read(part)
