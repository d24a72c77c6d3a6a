"""Repeats of a log's records are dropped, wherever in the log a receiver starts.

The model is a writer as AppendService makes it: it appends a batch of records until an answer comes, then
the next one. An append without an answer may take effect late: after later batches, until another writer
takes over.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.message.uuids import OUTSIDE_TXN, Clock, ProducerId, build_uuid
from gazette_spark.replicated_log._entries import Record
from gazette_spark.replicated_log._receiver import RepeatFilter
from tests.rig.examples import examples


@dataclass(frozen=True)
class Batch:
    sizes: tuple[int, ...]
    """Length of each record."""
    behind: int
    """Number of the writer's records without a received response when it stamped this batch."""
    copies: int
    """Number of tries in the batch's turn; the last one was answered."""
    late: tuple[int, ...]
    """Number of batches by which each late try is delayed."""
    takes_over: bool
    """Whether another writer takes over with this batch."""


batches = st.builds(
    Batch,
    sizes=st.lists(st.integers(10, 30), min_size=1, max_size=4).map(tuple),
    behind=st.integers(0, 3),
    copies=st.integers(1, 3),
    late=st.lists(st.integers(1, 4), max_size=2).map(tuple),
    takes_over=st.integers(0, 5).map(lambda drawn: drawn == 0),
)


class History:
    def __init__(self, plan: list[Batch]) -> None:
        self.records: list[Record] = []
        self._head = 0
        self._late: list[tuple[int, list[tuple[int, int, int]], int]] = []
        producer, clock = 0, 0
        ends = [0]
        for number, batch in enumerate(plan):
            if batch.takes_over:
                # From now on the broker refuses late tries of the previous writer.
                self._late.clear()
                producer, clock, ends = producer + 1, 0, [self._head]
            earliest = ends[max(0, len(ends) - 1 - batch.behind)]
            stamped = []
            for size in batch.sizes:
                clock += 160
                stamped.append((producer, clock, size))
            for _ in range(batch.copies):
                self._append(stamped, earliest)
            ends.append(self._head)
            self._late += [(number + after, stamped, earliest) for after in batch.late]
            for due in [each for each in self._late if each[0] == number]:
                self._append(due[1], due[2])
        for _, stamped, earliest in self._late:
            self._append(stamped, earliest)

    def _append(self, stamped: list[tuple[int, int, int]], earliest: int) -> None:
        for producer, clock, size in stamped:
            stamp = build_uuid(ProducerId(producer.to_bytes(6, "big")), Clock(clock), OUTSIDE_TXN)
            self.records.append(Record(self._head, self._head + size, stamp, earliest, b"", 0))
            self._head += size

    def first_copies(self) -> list[Record]:
        """Return each record once, at its first position."""
        found: dict[object, Record] = {}
        for record in self.records:
            found.setdefault(record.stamp, record)
        return list(found.values())


def delivered(history: History, start: int) -> tuple[list[Record], int]:
    """Return the records that a receiver from an offset delivers, and how many bytes it looked back."""
    repeats, kept, looked_at = RepeatFilter(start), [], 0
    for record in history.records:
        if record.begin < start:
            continue
        if (missing := repeats.missing(record)) is not None:
            begin, end = missing
            assert begin < end <= start
            looked_at += end - begin
            for earlier in history.records:
                if begin <= earlier.begin < end:
                    repeats.learn(earlier)
            repeats.learned_from(begin)
        if repeats.is_new(record):
            kept.append(record)
    return kept, looked_at


@settings(max_examples=examples(300))
@given(st.lists(batches, min_size=1, max_size=12), st.data())
def test_each_record_comes_once_from_any_start(plan: list[Batch], data: st.DataObject) -> None:
    """A receiver delivers, in order, each record whose first copy is at or after its start."""
    history = History(plan)
    start = data.draw(st.sampled_from([record.begin for record in history.records]))
    kept, looked_at = delivered(history, start)
    assert kept == [record for record in history.first_copies() if record.begin >= start]
    assert looked_at <= start


@settings(max_examples=examples(100))
@given(st.lists(batches, min_size=1, max_size=12), st.data())
def test_two_receivers_one_after_the_other_are_as_one(plan: list[Batch], data: st.DataObject) -> None:
    history = History(plan)
    (whole, _) = delivered(history, 0)
    at = data.draw(st.sampled_from([record.end for record in history.records]))
    (rest, _) = delivered(history, at)
    assert [record for record in whole if record.begin < at] + rest == whole


def test_without_a_look_back_a_repeat_passes() -> None:
    history = History([Batch((10, 20), behind=0, copies=2, late=(), takes_over=False)])
    assert delivered(history, 30) == ([], 30)
    blind = RepeatFilter(30)
    assert [blind.is_new(record) for record in history.records if record.begin >= 30] == [True, True]


def test_records_without_a_clock_are_never_repeats() -> None:
    """A writer may opt out by a zero producer and clock, as Gazette's readers allow."""
    nil = build_uuid(ProducerId(bytes(6)), Clock(0), OUTSIDE_TXN)
    repeats = RepeatFilter(50)
    for begin in (50, 60):
        record = Record(begin, begin + 10, nil, 0, b"", 0)
        assert repeats.missing(record) is None
        assert repeats.is_new(record)
