"""The position of a query under Spark 4.0 and 4.1, which do not pass it to their source.

They ask ``latestOffset()`` with neither a start nor a limit, and a new query's start only after that. But
these are all calls of a run, in this order, under every trigger:

=========================  ===========================================================================
new query                  ``latestOffset()``, ``initialOffset()``, ``partitions(initial, end)``
restart                    ``partitions(last, last)``, then ``latestOffset()``
restart, batch unfinished  ``partitions(last, last)``, ``partitions(start, last)``, ``latestOffset()``
=========================  ===========================================================================

``last`` is the newest end in the query checkpoint's ``offsets``. Spark repeats it to sources that keep what
they read (``AcceptsLatestSeenOffset``), and to a Python source as a batch from it to itself. So an empty
batch before anything else is the position of a query that restarts; without one the query is new.

Nothing is taken on trust. A batch that Spark plans has to begin where this class says it does and end
where the source said, or it is refused before a row of it is read: whatever a runtime does differently
ends in an error.
"""

from __future__ import annotations

from collections.abc import Callable

from gazette_spark.errors import OffsetError
from gazette_spark.offsets import JournalOffsets

ADVICE = (
    "Set spark.sql.streaming.triggerAvailableNowWrapper.enabled=false if it is on; otherwise this runtime "
    "restarts queries in another way than Apache Spark 4.0 and 4.1: use one with Spark 4.2 or later"
)


class TrackedPosition:
    """The newest batch of a query, from the calls of one run."""

    def __init__(self) -> None:
        self._first: JournalOffsets | None = None
        """Start of a query that is new."""
        self._begin: JournalOffsets | None = None
        """Start of the newest batch; None if a former run planned it and Spark has not run it again."""
        self._end: JournalOffsets | None = None
        """Its end; None before the first batch of a new query."""

    def __repr__(self) -> str:
        return f"TrackedPosition({self._begin} to {self._end})"

    @property
    def is_known(self) -> bool:
        """Whether there is a batch, of this run or a former one."""
        return self._end is not None

    def first(self, make: Callable[[], JournalOffsets]) -> JournalOffsets:
        """Return the start of the query's first batch.

        It is made once. Where batch 0 runs again, it is the end of that, which reads nothing.
        """
        if self._first is None:
            pinned = self._end is not None and self._end.position == "pinned"
            self._first = self._end.at("initial") if self._end is not None and pinned else make()
        return self._first

    def next_begin(self, make_first: Callable[[], JournalOffsets]) -> JournalOffsets:
        """Return the start of the next batch."""
        return self.first(make_first) if self._end is None else self._end

    def plan(self, begin: JournalOffsets, end: JournalOffsets) -> None:
        """Note the batch that the source gives; ``end`` is ``begin`` if there is none."""
        if end is not begin:
            self._begin, self._end = begin, end

    def check(self, begin: JournalOffsets, end: JournalOffsets) -> bool:
        """Check a batch that Spark plans; tell whether there is anything to plan.

        Raises:
            OffsetError: Spark plans another batch than the source gave it.
        """
        if begin == end and self._end in (None, end):
            self._end = end
            return False
        if self._end is None:
            self._end = end
        if end != self._end:
            raise _mismatch("ends at", end, self._end)
        if self._begin is None:
            self._begin = begin
        if begin != self._begin:
            raise _mismatch("begins at", begin, self._begin)
        if end.position == "pinned" and begin.position != "initial":
            raise OffsetError(
                f"the batch begins at {begin.to_json()} and ends where a new query starts: rows in between "
                "would be lost. Delete the newest file in the query checkpoint's directory offsets, and read "
                f"with a Spark that tells a restart from a new query. {ADVICE}"
            )
        return True


def _mismatch(what: str, got: JournalOffsets, expected: JournalOffsets) -> OffsetError:
    return OffsetError(
        f"Spark plans a batch that {what} {got.to_json()}, and the source expects {expected.to_json()}: it "
        f"took a restarted query for a new one, or the other way round. Nothing was read. {ADVICE}"
    )
