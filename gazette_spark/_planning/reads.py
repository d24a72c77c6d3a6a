"""The interface by which planner and tasks read journals: tests pass plain fakes, programs a ``Client``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from gazette_spark.protocol.spans import Spans, joined, outside

if TYPE_CHECKING:
    from gazette_spark.client import Listing
    from gazette_spark.client._list.listing import ListedFragment
    from gazette_spark.client._read.heads import SettledHead, Tail
    from gazette_spark.protocol import protocol_pb2 as pb


class ChunkLike(Protocol):
    """Some bytes of a journal."""

    @property
    def offset(self) -> int:
        """Offset of the first byte."""

    @property
    def content(self) -> bytes:
        """The bytes; never empty."""

    @property
    def mod_time(self) -> int:
        """When their fragment was stored, in Unix seconds; 0 if it is not stored yet."""


class JournalReader(Protocol):
    """A read of ``[offset, end_offset)``.

    Iterating yields chunks in order until ``end_offset`` exactly. Bytes the journal no longer has show as a
    chunk that begins past the end of the one before, and in ``jumps``; only in ``jumps`` if the next
    available byte is at or past ``end_offset``. All other failures are raised.
    """

    @property
    def offset(self) -> int:
        """Next byte the reader would deliver; ``end_offset`` at most."""

    @property
    def jumps(self) -> Sequence[tuple[int, int]]:
        """Each jump so far: the offset wanted, and the one landed on, wherever that is."""

    def __iter__(self) -> Iterator[ChunkLike]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


def resume_offset(reader: JournalReader) -> int:
    """Return the offset a read has come to, which is past its end if it jumped over that."""
    return max([reader.offset, *(target for _, target in reader.jumps)])


class JournalOpener(Protocol):
    """Opens reads."""

    def read(self, journal: str, *, offset: int = 0, end_offset: int = 0) -> JournalReader:
        """Open a read of ``[offset, end_offset)``; ``end_offset`` is never 0 here."""


class JournalSource(JournalOpener, Protocol):
    """The interface a planner reads journals by: brokers by a ``Client``, or a store by ``StoreJournals``."""

    @property
    def endpoint(self) -> str:
        """Where that is."""

    @property
    def timeout_s(self) -> float:
        """Seconds a question may take."""

    def list_journals(
        self, selector: str | pb.LabelSelector = "", *, limit: int = 0
    ) -> list[pb.ListResponse.Journal]:
        """Return the journals a selector matches, ascending by name; about ``limit`` of them are enough."""

    def list_all_journals(self, selector: str | pb.LabelSelector = "") -> Listing:
        """Return them with the revision at which it did."""

    def get_journal(self, name: str) -> pb.ListResponse.Journal:
        """Return one journal, or raise JournalNotFoundError."""

    def first_offset(self, journal: str) -> int:
        """Return the smallest offset that can be read; the write head of an empty journal."""

    def write_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the write head of each journal."""

    def highest_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the highest write head that a member of each journal knows of."""

    def settled_heads(self, reached: Mapping[str, int]) -> dict[str, SettledHead]:
        """Return the write head of each journal, confirmed where it is below an offset already read."""

    def tails(self, offsets: Mapping[str, int], max_bytes: int) -> dict[str, Tail]:
        """Return each journal's end, and maybe the bytes between an offset and that end, if they are few."""

    def list_fragments(
        self, journal: str, *, begin_mod_time: int = 0, page_token: int = 0
    ) -> list[ListedFragment]:
        """Return fragments, ascending by begin: those that begin, and were stored, there or later."""


def skipped_spans(
    client: JournalOpener, journal: str, fragments: Iterable[tuple[int, int]], begin: int, end: int
) -> Spans:
    """Return the bytes of ``[begin, end)`` that cannot be read any more.

    Args:
        client: What reads them.
        journal: Its name.
        fragments: Spans of the journal's fragments, in any order; they may overlap.
        begin: First byte of the range.
        end: Byte after its last.

    Raises:
        OffsetNotYetAvailableError: a broker waits for bytes of a hole for longer than a read may take.
    """
    missing: list[tuple[int, int]] = []
    for low, high in outside(joined(fragments), begin, end):
        at = low
        with client.read(journal, offset=low, end_offset=high) as reader:
            for chunk in reader:
                if chunk.offset > at:
                    missing.append((at, chunk.offset))
                at = chunk.offset + len(chunk.content)
            if (resumed := resume_offset(reader)) > at:
                missing.append((at, min(resumed, high)))
    return joined(missing)
