"""Finds the bytes that a journal no longer has: the gaps between its fragments.

Offsets are never used twice, so every byte before a journal's write head was appended once, or skipped by an
operator who reset the head. Bytes that are in no fragment, neither in a store nor in a broker, cannot be
read. Brokers notice that files are gone when they list their stores again (``refresh_interval``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gazette_spark.client._list.listing import ListedFragment
from gazette_spark.errors import OffsetError, SuspendedError
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.spans import joined, outside


class FragmentLister(Protocol):
    """The methods of a client that list a journal's fragments."""

    def first_offset(self, journal: str) -> int:
        """Return the smallest offset that can be read."""

    def write_head(self, journal: str) -> int:
        """Return the offset the journal's next append will have."""

    def list_fragments(self, journal: str) -> Sequence[ListedFragment]:
        """Return the journal's fragments, ascending by begin."""


@dataclass(frozen=True, slots=True)
class FragmentGap:
    """Bytes ``[begin, end)`` of a journal that no fragment contains."""

    journal: str
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        """Number of missing bytes."""
        return self.end - self.begin


def gaps_between(journal: str, fragments: Sequence[Fragment], begin: int, end: int) -> list[FragmentGap]:
    """Return the parts of ``[begin, end)`` that no fragment of a journal contains, ascending."""
    # Neighbouring fragments may overlap, so their union counts.
    held = joined((fragment.begin, fragment.end) for fragment in fragments)
    return [FragmentGap(journal, low, high) for low, high in outside(held, begin, end)]


def find_gaps(client: FragmentLister, journal: str, begin: int | None, end: int | None) -> list[FragmentGap]:
    """Return the gaps of a journal; see :meth:`gazette_spark.client.Client.gaps`."""
    # A broker that has just started knows the head only after it has listed its stores. The first request
    # waits for that. If no fragments are left, the head is 0, and only the first offset shows the end.
    # Both come before the list: bytes that are appended meanwhile are listed, but are past the checked range.
    head = max(client.first_offset(journal), client.write_head(journal))
    try:
        fragments = [listed.fragment for listed in client.list_fragments(journal)]
    # A fully suspended journal has no fragments, and therefore no gaps.
    except SuspendedError:
        fragments = []
    if end is not None and end > head:
        raise OffsetError(f"the end is past the write head {head}", journal, end)
    first = min((fragment.begin for fragment in fragments), default=head)
    low, high = first if begin is None else begin, head if end is None else end
    if begin is not None and not 0 <= begin <= high:
        raise OffsetError(f"the begin is before 0, or past the end {high}", journal, begin)
    return gaps_between(journal, fragments, low, high)
