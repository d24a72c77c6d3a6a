"""Defines the interface through which the planner and tasks read journals. A ``Client`` provides it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from gazette_spark.errors import SuspendedError
from gazette_spark.protocol.spans import Spans, joined, outside

if TYPE_CHECKING:
    from gazette_spark.client import Listing
    from gazette_spark.client._list.listing import ListedFragment
    from gazette_spark.client._read.heads import SettledHead, Tail
    from gazette_spark.protocol import protocol_pb2 as pb
    from gazette_spark.protocol.fragments import Fragment


class ChunkLike(Protocol):
    """Consecutive bytes of a journal."""

    @property
    def offset(self) -> int:
        """Offset of the first byte."""

    @property
    def content(self) -> bytes:
        """The bytes; never empty."""

    @property
    def mod_time(self) -> int:
        """Time at which their fragment was stored, in Unix seconds; 0 if it is not stored yet."""


class JournalReader(Protocol):
    """A read of ``[offset, end_offset)``.

    Iterating yields chunks in order, exactly up to ``end_offset``. If the journal no longer has some bytes,
    the next chunk begins past the end of the previous one, and ``jumps`` has an entry. If the next available
    byte is at or past ``end_offset``, there is only the entry and no chunk. All other failures are raised.
    """

    @property
    def offset(self) -> int:
        """Offset of the next byte, at most ``end_offset``."""

    @property
    def jumps(self) -> list[tuple[int, int]]:
        """Jumps so far, each as the requested offset and the one at which the read continued."""

    def __iter__(self) -> Iterator[ChunkLike]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


def resume_offset(reader: JournalReader) -> int:
    """Return the offset that a read has reached, which is past its end if it jumped over that."""
    return max([reader.offset, *(target for _, target in reader.jumps)])


class JournalOpener(Protocol):
    """Opens reads."""

    def read(self, journal: str, *, offset: int = 0, end_offset: int = 0) -> JournalReader:
        """Open a read of ``[offset, end_offset)``; ``end_offset`` is never 0 here."""

    def get_journal(self, name: str) -> pb.ListResponse.Journal:
        """Return one journal, or raise JournalNotFoundError."""


def chunks_of(client: JournalOpener, journal: str, reader: JournalReader, end: int) -> Iterator[ChunkLike]:
    """Yield the chunks of a read up to ``end``. A journal without any bytes before ``end`` jumps there."""
    try:
        yield from reader
    except SuspendedError:
        # Brokers suspend a journal completely only when it has no fragments left, so all bytes before the
        # next append are gone. Later ones are not: a broker that is behind Etcd has missed the resumption.
        if client.get_journal(journal).spec.suspend.offset < end:
            raise
        reader.jumps.append((reader.offset, end))


class JournalSource(JournalOpener, Protocol):
    """The journals that a planner reads: a ``Client`` has those of brokers, ``StoreJournals`` of a store."""

    @property
    def endpoint(self) -> str:
        """Address of the brokers, or URL of the store."""

    @property
    def timeout_s(self) -> float:
        """Seconds that a request may take."""

    def list_journals(
        self, selector: str | pb.LabelSelector = "", *, limit: int = 0
    ) -> list[pb.ListResponse.Journal]:
        """Return the journals that match a selector, ascending by name; about ``limit`` are enough."""

    def list_all_journals(self, selector: str | pb.LabelSelector = "") -> Listing:
        """Return the journals that match a selector, with the revision of the listing."""

    def first_offset(self, journal: str) -> int:
        """Return the smallest offset that can be read; the write head of an empty journal."""

    def offset_since(self, journal: str, mod_time: int) -> int | None:
        """Return the begin of the first fragment that was stored at a time or later, or is not stored yet."""

    def write_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the write head of each journal."""

    def highest_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the highest write head that any member of each journal reports."""

    def settled_heads(self, reached: Mapping[str, int]) -> dict[str, SettledHead]:
        """Return the write head of each journal, confirmed if it is below an offset that was already read."""

    def tails(self, offsets: Mapping[str, int], max_bytes: int) -> dict[str, Tail]:
        """Return each journal's write head, and the bytes from an offset up to it if they are few."""

    def list_fragments(self, journal: str, *, page_token: int = 0) -> list[ListedFragment]:
        """Return fragments, ascending by begin, from an offset on."""


def offset_since(fragments: Iterable[Fragment], mod_time: int) -> int | None:
    """Return the first offset stored at a time or later; None if everything was stored earlier.

    Args:
        fragments: Fragments of one journal, in any order.
        mod_time: Unix seconds. Bytes that are not stored yet count as later.
    """
    return min(
        (fragment.begin for fragment in fragments if fragment.mod_time == 0 or fragment.mod_time >= mod_time),
        default=None,
    )


def skipped_spans(
    client: JournalOpener, journal: str, fragments: Iterable[tuple[int, int]], begin: int, end: int
) -> Spans:
    """Return the bytes of ``[begin, end)`` that can no longer be read.

    Args:
        client: Reads the bytes outside fragments.
        journal: The journal's name.
        fragments: Spans of the journal's fragments, in any order; they may overlap.
        begin: Begin of the range.
        end: End of the range.

    Raises:
        OffsetNotYetAvailableError: a broker waits longer for bytes of a hole than a read may take.
    """
    missing: list[tuple[int, int]] = []
    # A list of fragments may be older than the end of the range, so a span that no fragment has need not be
    # missing. Reading it shows that: if bytes are there, they arrive, and a jump proves that they are gone.
    for low, high in outside(joined(fragments), begin, end):
        at = low
        with client.read(journal, offset=low, end_offset=high) as reader:
            for chunk in chunks_of(client, journal, reader, high):
                if chunk.offset > at:
                    missing.append((at, chunk.offset))
                at = chunk.offset + len(chunk.content)
            # No chunk follows a jump past the end of the read.
            if (resumed := resume_offset(reader)) > at:
                missing.append((at, min(resumed, high)))
    return joined(missing)
