"""Keeps the last commits or write heads of a partition in rings with a fixed number of slots.

They are arrays of 64-bit integers, with 40 bytes per commit, because a monitor has many of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from enum import StrEnum

from gazette_spark.lag.rules import OffsetCommit

NO_LAG = -1
"""Placeholder for an unknown lag."""

FIELDS = 5
"""Number of integers per commit: order, offset, timestamp, time of observation, lag."""


class RingOutcome(StrEnum):
    """The outcome of storing a value."""

    STORED = "stored"
    """A write head, an owner or a deletion was stored."""
    APPENDED = "appended"
    """A commit was stored as the newest."""
    INSERTED = "inserted"
    """A late commit was stored among or before older ones."""
    MERGED = "merged"
    """A commit replaced the previous one, which was too close."""
    TOO_OLD = "older than all commits in a full ring"
    KNOWN = "there is a commit with that order"
    EXPIRED = "older than expire-group"
    GROUP_REFUSED = "the group is not on the allow list, or is on the deny list"
    NO_BROKER_OFFSET = "no write head is known of that partition"
    UNKNOWN_CLUSTER = "unknown cluster"


class BrokerRing:
    """The last write heads of a partition, with the time of each."""

    __slots__ = ("_cells", "_slots")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._cells = array("q")

    def add(self, offset: int, timestamp_ms: int) -> None:
        """Add the newest write head. It may be below the previous one."""
        self._cells.extend((offset, timestamp_ms))
        # The oldest one is dropped. As in Burrow, the order is not checked, because a head goes back when a
        # journal is created again.
        del self._cells[: -2 * self._slots]

    def add_past(self, offset: int, timestamp_ms: int) -> None:
        """Add a write head from another observer by its time, unless it is older than a full ring."""
        # By time, because the head was read before those in the ring. If the ring is full of later ones, it
        # is dropped again below.
        at = bisect_right(self._cells[1::2], timestamp_ms)
        self._cells[2 * at : 2 * at] = array("q", (offset, timestamp_ms))
        del self._cells[: -2 * self._slots]

    @property
    def offsets(self) -> list[int]:
        """The write heads, oldest first."""
        return self._cells[::2].tolist()

    @property
    def least(self) -> int | None:
        """The smallest write head, or None."""
        return min(self._cells[::2], default=None)

    @property
    def newest(self) -> int | None:
        """The newest write head, or None."""
        return self._cells[-2] if self._cells else None


class CommitRing:
    """The last commits of a partition by ``order``, a number that increases from commit to commit."""

    __slots__ = ("_cells", "_slots")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._cells = array("q")

    def __len__(self) -> int:
        return len(self._cells) // FIELDS

    def cells(self) -> bytes:
        """Return the commits, oldest first, as native 64-bit integers, ``FIELDS`` per commit."""
        return self._cells.tobytes()

    def slots(self) -> tuple[OffsetCommit | None, ...]:
        """Return all slots: first the unused ones, then the commits, oldest first."""
        # As in Burrow, unused slots come first; "complete" is the share of used slots.
        unused = (None,) * (self._slots - len(self))
        return unused + tuple(self._commit(at) for at in range(len(self)))

    @property
    def newest(self) -> OffsetCommit | None:
        """The newest commit, or None."""
        return self._commit(len(self) - 1) if self._cells else None

    @property
    def newest_offset(self) -> int | None:
        """The offset of the newest commit, or None."""
        return self._cells[1 - FIELDS] if self._cells else None

    def is_newest(self, order: int) -> bool:
        """Return whether a commit with that order would be the newest."""
        return not self._cells or self._cells[-FIELDS] < order

    def add(self, commit: OffsetCommit, order: int, min_distance_ms: int) -> RingOutcome:
        """Store a commit in the position of its order.

        Args:
            commit: The commit. Its lag counts only if it is the newest, because the write head at an older
                commit is unknown.
            order: Number of the commit, a 64-bit integer.
            min_distance_ms: A commit that is less than this after the previous one replaces it, but keeps its
                time; otherwise commits in quick succession would replace each other forever.
        """
        orders = self._cells[::FIELDS]
        at = bisect_left(orders, order)
        full = len(orders) == self._slots
        # As in Burrow, a full ring accepts nothing older than all its commits.
        if full and at == 0:
            return RingOutcome.TOO_OLD
        # The same commit again, because feeds read some versions twice.
        if at < len(orders) and orders[at] == order:
            return RingOutcome.KNOWN
        # A late commit gets no lag, because the head at its time is unknown.
        late = not self.is_newest(order)
        lag = NO_LAG if late or commit.lag is None else commit.lag
        cells = array("q", (order, commit.offset, commit.timestamp_ms, commit.observed_ms, lag))
        # In a full ring, a late commit that directly follows the oldest one takes its slot. The slot before
        # it in Burrow's ring has the newest commit, which is not its predecessor. So no commits are merged.
        replaces_oldest = late and full and at == 1
        if at > 0 and not replaces_oldest:
            before_ms = self._cells[(at - 1) * FIELDS + 2]
            if commit.timestamp_ms - before_ms < min_distance_ms:
                cells[2] = before_ms
                self._cells[(at - 1) * FIELDS : at * FIELDS] = cells
                return RingOutcome.MERGED
        self._cells[at * FIELDS : at * FIELDS] = cells
        if full:
            del self._cells[:FIELDS]
        return RingOutcome.INSERTED if late else RingOutcome.APPENDED

    def _commit(self, at: int) -> OffsetCommit:
        _, offset, timestamp_ms, observed_ms, lag = self._cells[at * FIELDS : (at + 1) * FIELDS]
        return OffsetCommit(offset, timestamp_ms, observed_ms, None if lag == NO_LAG else lag)
