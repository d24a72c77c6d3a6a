"""Fragments: spans of a journal's bytes, their names in stores, and the set that covers a journal.

A fragment's name has its span, SHA-1 and codec, so a listing of a store is enough::

    {store}{journal}/{path postfix}/{begin:016x}-{end:016x}-{sha1}{extension}
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import validate_codec, validate_journal_name
from gazette_spark.protocol.names import validate_path

POSTFIX_BYTES = (0, 512)
"""Least and greatest length of a path postfix."""

NO_SUM = bytes(20)
"""Sum of a fragment without content; not the SHA-1 of nothing."""

EXTENSIONS: dict[int, str] = {
    pb.NONE: ".raw",
    pb.GZIP: ".gz",
    pb.ZSTANDARD: ".zst",
    pb.SNAPPY: ".sz",
    pb.GZIP_OFFLOAD_DECOMPRESSION: "",
}
"""Extension that is written for each codec."""

_CODECS = {extension: codec for codec, extension in EXTENSIONS.items()} | {
    ".gzip": pb.GZIP,
    ".zstandard": pb.ZSTANDARD,
    ".snappy": pb.SNAPPY,
    ".gzod": pb.GZIP_OFFLOAD_DECOMPRESSION,
}
"""Codec of each extension that is read, in lower case."""

_NAME = re.compile(r"([0-9a-fA-F]+)-([0-9a-fA-F]+)-([0-9a-fA-F]{40})((?:\.[^.]*)?)")


@dataclass(frozen=True, slots=True)
class Fragment:
    """The bytes ``[begin, end)`` of a journal."""

    journal: str
    """May have a ``;meta`` suffix, as the request that it answers."""
    begin: int
    end: int
    sum: bytes
    """SHA-1 of the uncompressed bytes; zeros for an empty fragment."""
    codec: int
    """Number of a ``CompressionCodec``."""
    backing_store: str = ""
    """URL of the store; empty while only a broker has the fragment."""
    mod_time: int = 0
    """Unix seconds in the store; 0 while not known to be there."""
    path_postfix: str = ""

    def __post_init__(self) -> None:
        # Fragments come from brokers and from names of files in stores, so each one is checked before its
        # span is used.
        validate_journal_name(self.journal, allow_meta=True, where="Fragment.Journal")
        if not 0 <= self.begin <= self.end < 1 << 63:
            raise ProtocolError("Fragment", f"[{self.begin}, {self.end}) is not a span of a journal")
        if len(self.sum) != 20:
            raise ProtocolError("Fragment.Sum", f"must have 20 bytes, got {len(self.sum)}")
        validate_codec(self.codec, "Fragment.CompressionCodec")
        validate_path("Fragment.PathPostfix", self.path_postfix, *POSTFIX_BYTES)

    @property
    def length(self) -> int:
        """Number of bytes, uncompressed."""
        return self.end - self.begin

    @property
    def is_compressed(self) -> bool:
        """Whether a store has it compressed: a read from its middle decompresses the bytes before."""
        return self.mod_time != 0 and self.codec != pb.NONE

    @property
    def content_name(self) -> str:
        """Name of the fragment's object."""
        # Sixteen digits, so that names sort as offsets do.
        return f"{self.begin:016x}-{self.end:016x}-{self.sum.hex()}{EXTENSIONS[self.codec]}"

    @property
    def content_path(self) -> str:
        """Path of the fragment's object under its store."""
        return "/".join(part for part in (self.journal, self.path_postfix, self.content_name) if part)

    def to_pb(self) -> pb.Fragment:
        """Return the fragment's message."""
        message = pb.Fragment(
            journal=self.journal,
            begin=self.begin,
            end=self.end,
            sum=sum_to_pb(self.sum),
            backing_store=self.backing_store,
            mod_time=self.mod_time,
            path_postfix=self.path_postfix,
        )
        message.compression_codec = self.codec  # type: ignore[assignment]  # numbers are what enums hold
        return message

    @classmethod
    def from_pb(cls, message: pb.Fragment) -> Fragment:
        """Return the fragment of a message.

        Raises:
            ProtocolError: a field breaks a rule of fragments.
        """
        return cls(
            journal=message.journal,
            begin=message.begin,
            end=message.end,
            sum=sum_from_pb(message.sum),
            codec=message.compression_codec,
            backing_store=message.backing_store,
            mod_time=message.mod_time,
            path_postfix=message.path_postfix,
        )


def sum_to_pb(digest: bytes) -> pb.SHA1Sum:
    """Return the message of a SHA-1 digest."""
    # The numbers are big-endian, although protobuf sends its fixed fields little-endian.
    parts = (int.from_bytes(part, "big") for part in (digest[:8], digest[8:16], digest[16:]))
    return pb.SHA1Sum(part1=next(parts), part2=next(parts), part3=next(parts))


def sum_from_pb(message: pb.SHA1Sum) -> bytes:
    """Return the 20 bytes of a SHA-1 digest."""
    parts = ((message.part1, 8), (message.part2, 8), (message.part3, 4))
    return b"".join(part.to_bytes(size, "big") for part, size in parts)


def parse_content_path(journal: str, relpath: str, *, mod_time: int = 0) -> Fragment:
    """Return the fragment of an object whose path under ``{store}{journal}/`` is ``relpath``.

    Its directory counts as the path postfix, even if it belongs to another journal whose name extends this
    one.

    Raises:
        ProtocolError: the path is not that of a fragment. Brokers skip such objects.
    """
    # Brokers of all releases wrote these names, some with upper-case digits and older extensions. Whoever
    # lists a store skips a name that does not parse, so a rule that is too strict would lose data.
    postfix, _, name = relpath.rpartition("/")
    match = _NAME.fullmatch(name)
    if not match or match[4].lower() not in _CODECS:
        raise ProtocolError("Fragment", f"{relpath!r} is not the path of a fragment")
    if relpath.startswith("/"):
        raise ProtocolError("Fragment", f"{relpath!r} is not relative to its journal")
    begin, end = int(match[1], 16), int(match[2], 16)
    # A name may have any number of digits; offsets are signed 64-bit integers.
    if max(begin, end) >= 1 << 63:
        raise ProtocolError("Fragment", f"{relpath[:100]!r} has an offset of more than 63 bits")
    return Fragment(
        journal=journal,
        begin=begin,
        end=end,
        sum=bytes.fromhex(match[3]),
        codec=_CODECS[match[4].lower()],
        mod_time=mod_time,
        path_postfix=postfix,
    )


@dataclass(slots=True)
class CoverSet:
    """Fragments of one journal, of which no one is within another.

    They ascend by begin and by end at once; neighbours may overlap, and there may be gaps. Not safe to
    change while another thread reads it.
    """

    _members: list[Fragment] = field(default_factory=list)
    _begins: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, fragments: Iterable[Fragment]) -> CoverSet:
        """Return the set with each of the fragments added, in their order."""
        covers = cls()
        for fragment in fragments:
            covers.add(fragment)
        return covers

    def __iter__(self) -> Iterator[Fragment]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, fragment: Fragment) -> bool:
        """Add a fragment in place of those within it; return whether it is in the set now.

        An empty fragment, or one within a member, is not added; one with the span of a member replaces it.
        Time is logarithmic to find its place, and linear to insert it before the end.
        """
        # An empty fragment holds no byte, and would break the order of ends.
        if fragment.begin == fragment.end:
            return False
        # The members that begin at or after it, and end at or before it: a run, perhaps an empty one.
        first, last = bisect_left(self._begins, fragment.begin), bisect_right(self._ends, fragment.end)
        if first >= last:
            # It replaces no member. Either one member holds it whole, or it goes between two neighbours.
            first = last = bisect_right(self._begins, fragment.begin)
            # Of the members that begin at or before it, the last reaches furthest.
            if first and self._ends[first - 1] >= fragment.end:
                return False
        self._members[first:last] = [fragment]
        self._begins[first:last] = [fragment.begin]
        self._ends[first:last] = [fragment.end]
        return True

    def covering(self, offset: int) -> Fragment | None:
        """Return the member that holds the byte at ``offset`` and reaches furthest, if any does."""
        # Begins and ends ascend together, so of all members that begin at or before the offset, the last one
        # reaches furthest.
        at = bisect_right(self._begins, offset) - 1
        return self._members[at] if at >= 0 and self._ends[at] > offset else None

    def following(self, offset: int) -> Fragment | None:
        """Return the first member that begins after ``offset``, if any does."""
        at = bisect_right(self._begins, offset)
        return self._members[at] if at < len(self._members) else None

    def is_covered(self, begin: int, end: int) -> bool:
        """Return whether members together hold every byte of ``[begin, end)``."""
        while begin < end:
            member = self.covering(begin)
            if member is None:
                return False
            # Each step takes the member that reaches furthest, so no other choice covers more.
            begin = member.end
        return True

    def summary(self) -> tuple[int, int, int]:
        """Return the first member's begin, the last one's end and mod time; zeros of an empty set."""
        if not self._members:
            return 0, 0, 0
        return self._begins[0], self._ends[-1], self._members[-1].mod_time
