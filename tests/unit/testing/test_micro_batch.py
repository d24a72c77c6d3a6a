"""The copy of Spark's micro-batch loop calls a source as Spark does, and detects a broken contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from gazette_spark.testing.micro_batch import CRASH_POINTS, BatchDiffersError, Crash, MicroBatches, TaskFaults

HEAD = [0]
"""End of the numbers to read, exclusive. It is in a list because pickled readers share it."""


class Span(InputPartition):
    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end


class Numbers(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A source that counts, at most three numbers at a time, in two tasks."""

    def __init__(self, *, honest: bool = True) -> None:
        self.honest = honest
        self.calls: list[Any] = []
        self.frozen: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name, as are those below.
        self.calls.append("initial")
        return {"at": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.frozen = HEAD[0]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        head = HEAD[0] if self.frozen is None else self.frozen
        return {"at": min(start["at"] + 3, head)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self.calls.append((start["at"], end["at"]))
        middle = (start["at"] + end["at"]) // 2
        return [Span(start["at"], middle), Span(middle, end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        assert self.calls == [], "a task has the reader as it was before anything was asked of it"
        end = partition.end if self.honest else HEAD[0]
        for number in range(partition.begin, end):
            yield pa.RecordBatch.from_pydict({"number": [number]})

    def commit(self, end: dict[str, int]) -> None:
        self.calls.append(("commit", end["at"]))

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture(autouse=True)
def _head() -> None:
    HEAD[0] = 7


def numbers(query: MicroBatches) -> list[int]:
    return [row[0] for row in query.rows()]


def test_a_query_reads_everything_in_its_steps() -> None:
    """A start is requested only for the first batch. The source sees a commit at the next planning."""
    query, reader = MicroBatches(), Numbers()
    run = query.start(lambda: reader)
    while run.batch():
        pass
    run.stop()
    assert numbers(query) == list(range(7))
    assert reader.calls == [
        "initial",
        (0, 3),
        ("commit", 3),
        (3, 6),
        ("commit", 6),
        (6, 7),
        "stop",
    ]


@pytest.mark.parametrize("crash", CRASH_POINTS)
def test_a_crash_anywhere_keeps_what_was_decided(crash: Any) -> None:
    query = MicroBatches()
    HEAD[0] = 2
    with pytest.raises(Crash):
        query.start(Numbers).batch(crash=crash)
    HEAD[0] = 7
    run = query.start(Numbers)
    while run.batch():
        pass
    assert numbers(query) == list(range(7))
    assert query.offset_log[0] == ('{"at": 3}' if crash == "latest_offset" else '{"at": 2}')


def test_an_available_now_run_has_an_end() -> None:
    query = MicroBatches()
    run = query.start(Numbers, available_now=True)
    HEAD[0] = 100
    while run.batch():
        pass
    assert numbers(query) == list(range(7))


def test_killed_and_repeated_tasks_count_once() -> None:
    query = MicroBatches()
    faults = TaskFaults(killed_after=(0, 1, 2), attempts_per_task=2, speculative=True)
    query.start(Numbers).batch(faults=faults)
    assert numbers(query) == [0, 1, 2]


def test_a_source_that_reads_on_is_found() -> None:
    """If executors decide an end, a repeated batch has other rows."""
    query = MicroBatches()
    with pytest.raises(Crash):
        query.start(lambda: Numbers(honest=False)).batch(crash="sink")
    HEAD[0] += 1
    with pytest.raises(BatchDiffersError):
        query.start(lambda: Numbers(honest=False)).batch()


class Counting(DataSourceStreamReader):
    """A counting source for a Spark without admission control; records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name, as are those below.
        self.calls.append("initial")
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802 - Spark 4.0's form.
        self.calls.append("latest")
        return {"at": HEAD[0]}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self.calls.append((start["at"], end["at"]))
        return [Span(start["at"], end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        yield pa.RecordBatch.from_pydict({"number": list(range(partition.begin, partition.end))})


def test_without_admission_control_calls_come_as_in_spark_4_0() -> None:
    """The end comes first for a new query. A continued one gets its last end before anything else."""
    query, reader = MicroBatches(admission_control=False), Counting()
    run = query.start(lambda: reader, available_now=True)
    assert run.batch()
    assert not run.batch(), "a run is one batch"
    assert reader.calls == ["latest", "initial", (0, 7)]
    HEAD[0] = 9
    with pytest.raises(Crash):
        query.start(Counting).batch(crash="offset_log")
    reader = Counting()
    run = query.start(lambda: reader)
    assert [run.batch() for _ in range(2)] == [True, False]
    assert reader.calls == [(9, 9), (7, 9), "latest"]
    assert numbers(query) == list(range(9))
