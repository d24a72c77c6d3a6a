"""The offset of a time in a journal: the meaning of ``startingTimestamp`` and ``endingTimestamp``.

Gazette does not say when a byte was appended, only when the fragment that holds it was stored, in whole
seconds (``mod_time``). That is the time of the append or later. So the place of a time is the smallest offset
whose fragment was stored in that second or later, and

- every byte that was appended at that time or later is at this offset or after it, and some older ones are,
  too: up to a fragment's worth. To have newer records only, filter by a time in the records;
- a range that ends at a time and one that starts at it meet: they share no byte and leave none out;
- a byte that is not stored yet is later than any time that an option can name.

A store's clock that is behind the writers' breaks the first rule: start earlier by as much. A fragment counts
as not stored until brokers have listed their store again. So the offset of a time less than the journal's
``refresh_interval`` ago may still increase.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class HasModTime(Protocol):
    """A fragment, as far as its time is concerned."""

    @property
    def begin(self) -> int:
        """Offset of the fragment's first byte."""

    @property
    def mod_time(self) -> int:
        """When it was stored, in Unix seconds; 0 if it is not stored yet."""


def offset_at(fragments: Iterable[HasModTime], timestamp_ms: int) -> int | None:
    """Return the first offset stored at a time or later, None if all that there is was stored before.

    Args:
        fragments: of one journal, in any order.
        timestamp_ms: milliseconds since 1970; the second they lie in counts as a whole.
    """
    second = timestamp_ms // 1000
    return min(
        (each.begin for each in fragments if each.mod_time == 0 or each.mod_time >= second), default=None
    )
