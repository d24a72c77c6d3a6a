"""What a batch may read, given where it starts, the write heads, and a read limit.

Without a limit a batch may read up to every write head. Under ``maxBytesPerTrigger`` the limit is
shared among the journals that have something to read, each in proportion to its backlog, so that all
of them are caught up at about the same time and none waits for another.

The limit is soft, and a query under any limit makes progress: every journal with a backlog is given
at least one byte, and a journal is always read up to the end of the record its last admitted byte
lies in, if nothing ends before that. So a batch exceeds the limit by at most one record per journal,
and a limit smaller than a record, or than the number of journals, reads one record of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backlog:
    """The bytes ``[begin, head)`` of a journal that a query has not read yet."""

    begin: int
    head: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.head:
            raise ValueError(f"a backlog is 0 <= begin <= head, got begin {self.begin}, head {self.head}")

    @property
    def size_bytes(self) -> int:
        """Number of bytes left to read."""
        return self.head - self.begin


def admit(backlogs: Mapping[str, Backlog], max_bytes: int | None) -> dict[str, int]:
    """Return the offset up to which each journal may be read.

    Args:
        backlogs: what is left to read, by journal.
        max_bytes: read limit over all journals; None for all that is there.

    Returns:
        For every journal an offset between its begin and its head, and past its begin if anything is
        left. It need not lie on a record's edge. The result depends on the arguments only, not on
        their order.
    """
    total = sum(backlog.size_bytes for backlog in backlogs.values())
    if max_bytes is None or total <= max_bytes:
        return {journal: backlog.head for journal, backlog in backlogs.items()}
    return {
        journal: backlog.begin + _share(backlog.size_bytes, total, max_bytes)
        for journal, backlog in backlogs.items()
    }


def _share(size_bytes: int, total: int, max_bytes: int) -> int:
    # At least one byte: rounding down to nothing would starve a small journal beside large ones.
    return max(1, max_bytes * size_bytes // total) if size_bytes else 0
