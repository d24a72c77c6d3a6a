"""Tracks the position of a query under Spark 4.0 and 4.1, which do not pass it to their source.

They call ``latestOffset()`` without a start or a limit, and request a new query's start only after that. But
a run makes only these calls, in this order, under every trigger:

=========================  ===========================================================================
new query                  ``latestOffset()``, ``initialOffset()``, ``partitions(initial, end)``
restart                    ``partitions(last, last)``, then ``latestOffset()``
restart, batch unfinished  ``partitions(last, last)``, ``partitions(start, last)``, ``latestOffset()``
=========================  ===========================================================================

``last`` is the newest end in the query checkpoint's ``offsets``. Spark announces it to sources that support
``AcceptsLatestSeenOffset``, and to a Python source as a batch from it to itself. So a first call with an
empty batch gives the position of a restarted query; without it the query is new.

These assumptions are checked. A batch that Spark plans must begin and end where this class expects it, or it
is refused before any row is read. So a runtime that behaves differently causes an error.
"""

from __future__ import annotations

from collections.abc import Callable

from gazette_spark.errors import OffsetError
from gazette_spark.offsets import JournalOffsets

ADVICE = (
    "Set spark.sql.streaming.triggerAvailableNowWrapper.enabled=false if it is on. Otherwise this runtime "
    "restarts queries differently from Apache Spark 4.0 and 4.1: use one with Spark 4.2 or later"
)


class TrackedPosition:
    """The newest batch of a query, tracked through the calls of one run."""

    def __init__(self) -> None:
        self._first: JournalOffsets | None = None
        """Start of a new query."""
        self._begin: JournalOffsets | None = None
        """Start of the newest batch; None if a former run planned it and Spark has not repeated it."""
        self._end: JournalOffsets | None = None
        """End of the newest batch; None before the first batch of a new query."""

    def __repr__(self) -> str:
        return f"TrackedPosition({self._begin} to {self._end})"

    @property
    def is_known(self) -> bool:
        """Whether this run or a former one has planned a batch."""
        return self._end is not None

    def first(self, make: Callable[[], JournalOffsets]) -> JournalOffsets:
        """Return the start of the query's first batch.

        It is computed once. If batch 0 is repeated, it is that batch's end, because the batch reads nothing.
        """
        if self._first is None:
            # Spark did not record the start of a query that died in batch 0, only the batch's end, which is
            # the same position. Resolving the options again could give a different start, such as a later
            # write head, and bytes between the two would be lost.
            pinned = self._end is not None and self._end.position == "pinned"
            self._first = self._end.at("initial") if self._end is not None and pinned else make()
        return self._first

    def next_begin(self, make_first: Callable[[], JournalOffsets]) -> JournalOffsets:
        """Return the start of the next batch."""
        return self.first(make_first) if self._end is None else self._end

    def plan(self, begin: JournalOffsets, end: JournalOffsets) -> None:
        """Record the batch that the source returns; ``end`` is ``begin`` if there is none."""
        # Spark asks again if nothing is new, and plans no batch for it. The batch before stays the newest.
        if end is not begin:
            self._begin, self._end = begin, end

    def check(self, begin: JournalOffsets, end: JournalOffsets) -> bool:
        """Check a batch that Spark plans, and return whether it has anything to read.

        Raises:
            OffsetError: Spark plans a different batch from the one that the source returned.
        """
        # An empty batch is how Spark announces a restarted query's position. Before the first one is known it
        # can be any position; later, Spark repeats the newest end at most.
        if begin == end and self._end in (None, end):
            self._end = end
            return False
        # The run repeats a batch that a former run had planned. Spark's record of it is the only one.
        if self._end is None:
            self._end = end
        if end != self._end:
            raise _mismatch("ends at", end, self._end)
        # Spark announced only the end of a former run's batch.
        if self._begin is None:
            self._begin = begin
        if begin != self._begin:
            raise _mismatch("begins at", begin, self._begin)
        # The query was mistaken for a new one although it had read something: a runtime that restarts
        # differently has recorded a start as an end. See decision 33.
        if end.position == "pinned" and begin.position != "initial":
            raise OffsetError(
                f"the batch begins at {begin.to_json()} and ends where a new query starts: rows in between "
                "would be lost. Delete the newest file in the query checkpoint's directory offsets, and use "
                f"a Spark that distinguishes a restart from a new query. {ADVICE}"
            )
        return True


def _mismatch(what: str, got: JournalOffsets, expected: JournalOffsets) -> OffsetError:
    return OffsetError(
        f"Spark plans a batch that {what} {got.to_json()}, but the source expects {expected.to_json()}: it "
        f"mistook a restarted query for a new one, or the reverse. Nothing was read. {ADVICE}"
    )
