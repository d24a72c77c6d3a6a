"""Describes fragments: spans of a journal's bytes, their names in stores, and the set that covers a journal.

A fragment's name includes its span, SHA-1 and codec, so listing a store is enough to know its fragments::

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
"""Minimum and maximum length of a path postfix."""

NO_SUM = bytes(20)
"""Sum of an empty fragment, which is not the SHA-1 of empty content."""

EXTENSIONS: dict[int, str] = {
    pb.NONE: ".raw",
    pb.GZIP: ".gz",
    pb.ZSTANDARD: ".zst",
    pb.SNAPPY: ".sz",
    pb.GZIP_OFFLOAD_DECOMPRESSION: "",
}
"""Extension that brokers write for each codec."""

_CODECS = {extension: codec for codec, extension in EXTENSIONS.items()} | {
    ".gzip": pb.GZIP,
    ".zstandard": pb.ZSTANDARD,
    ".snappy": pb.SNAPPY,
    ".gzod": pb.GZIP_OFFLOAD_DECOMPRESSION,
}
"""Codec of each extension that readers accept, in lower case."""

_NAME = re.compile(r"([0-9a-fA-F]+)-([0-9a-fA-F]+)-([0-9a-fA-F]{40})((?:\.[^.]*)?)")


@dataclass(frozen=True, slots=True)
class Fragment:
    """The bytes ``[begin, end)`` of a journal."""

    journal: str
    """Journal name, with the ``;meta`` suffix of the request if it had one."""
    begin: int
    end: int
    sum: bytes
    """SHA-1 of the uncompressed bytes; zeros for an empty fragment."""
    codec: int
    """Number of a ``CompressionCodec``."""
    backing_store: str = ""
    """URL of the store; empty while only brokers have the fragment."""
    mod_time: int = 0
    """Modification time in the store, in Unix seconds; 0 if the fragment is not known to be stored."""
    path_postfix: str = ""

    def __post_init__(self) -> None:
        # Brokers and file names in stores are untrusted input, so each fragment is checked before its span is
        # used.
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
        """Whether it is stored compressed, so that a read from its middle decompresses all bytes before."""
        return self.mod_time != 0 and self.codec != pb.NONE

    @property
    def content_name(self) -> str:
        """Name of the fragment's object."""
        # Sixteen digits, so that names sort in the order of offsets.
        return f"{self.begin:016x}-{self.end:016x}-{self.sum.hex()}{EXTENSIONS[self.codec]}"

    @property
    def content_path(self) -> str:
        """Path of the fragment's object under its store."""
        return "/".join(part for part in (self.journal, self.path_postfix, self.content_name) if part)

    def to_pb(self) -> pb.Fragment:
        """Return the fragment as a protocol message."""
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
    # Older brokers wrote names with upper-case digits and other extensions. Listings skip names that do not
    # parse, so a rule that is too strict would lose data.
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
    """Fragments of one journal, none of which lies within another.

    Both their begins and their ends ascend. Neighbours may overlap, and there may be gaps. Do not change the
    set while another thread reads it.
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
        Adding at the end takes logarithmic time, elsewhere linear time.
        """
        # An empty fragment has no bytes, and would break the order of ends.
        if fragment.begin == fragment.end:
            return False
        # The members within it, which begin at or after it and end at or before it, form a run.
        first, last = bisect_left(self._begins, fragment.begin), bisect_right(self._ends, fragment.end)
        if first >= last:
            # It replaces no member. Either it lies within one member, or it goes between two neighbours.
            first = last = bisect_right(self._begins, fragment.begin)
            # Of the members that begin at or before it, the last reaches furthest.
            if first and self._ends[first - 1] >= fragment.end:
                return False
        self._members[first:last] = [fragment]
        self._begins[first:last] = [fragment.begin]
        self._ends[first:last] = [fragment.end]
        return True

    def covering(self, offset: int) -> Fragment | None:
        """Return the member that contains the byte at ``offset`` and reaches furthest, or None."""
        # Begins and ends ascend together, so of all members that begin at or before the offset, the last one
        # reaches furthest.
        at = bisect_right(self._begins, offset) - 1
        return self._members[at] if at >= 0 and self._ends[at] > offset else None

    def following(self, offset: int) -> Fragment | None:
        """Return the first member that begins after ``offset``, or None."""
        at = bisect_right(self._begins, offset)
        return self._members[at] if at < len(self._members) else None

    def is_covered(self, begin: int, end: int) -> bool:
        """Return whether the members together contain every byte of ``[begin, end)``."""
        while begin < end:
            member = self.covering(begin)
            if member is None:
                return False
            # Each step takes the member that reaches furthest, so no other choice covers more.
            begin = member.end
        return True

    def summary(self) -> tuple[int, int, int]:
        """Return the first member's begin, and the last one's end and mod time; zeros if the set is empty."""
        if not self._members:
            return 0, 0, 0
        return self._begins[0], self._ends[-1], self._members[-1].mod_time
