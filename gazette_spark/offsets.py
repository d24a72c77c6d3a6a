"""Defines a query's position, which is one byte offset per journal, and its JSON.

An offset is a byte position in a journal: the next byte to read. All bytes before it are done. A
query's position is a :class:`JournalOffsets`, one offset for each journal it reads.

Spark stores positions as JSON in the query checkpoint and compares them as text. Therefore the JSON is
canonical: the same position always has the same text, with sorted journals and without spaces. It has a
version (``format_version``), because checkpoints outlive the release that wrote them. Spark silently accepts
a null, a string or a position that goes back from a Python source. Therefore every position is checked here,
and an invalid one raises an :class:`~gazette_spark.errors.OffsetError`.

``position`` marks the two ends of batch 0, which only records the start of a new query:

=========== ==========================================================================
``initial`` the query's starting offsets; not in the query checkpoint yet
``pinned``  the same offsets, as the end of the empty batch 0 that writes them down
(none)      every later position
=========== ==========================================================================

A position also records the state of the journals at that time, so that a restarted query can explain why a
journal is missing. ``revision`` is the Etcd revision of the listing: it reveals journals that have been
deleted and created again since. ``heads`` reveals journals that had more to read. ``gone`` names deleted
journals that need no further attention. ``gaps`` names the bytes that the batch skips, for the ledger.
``starts`` contains the offsets at which a query of committed messages began, because the states of producers
at an offset depend on the bytes since then. ``fingerprints`` identifies the journals that the last batch
read, by their creation and their bytes; see :class:`Fingerprint`. A table's ledger keeps only the offsets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, cast

from gazette_spark.errors import JsonError, OffsetError
from gazette_spark.strict_json import parse_json

FORMAT_VERSION = 1
"""Version of the JSON form. A larger one was written by a later release."""

MAX_OFFSET = 2**63 - 1
"""Largest offset: Gazette's offsets are signed 64-bit integers."""

EXAMPLE = '{"format_version":1,"journals":{"a/journal":1024}}'
"""Example that errors show if text could not be read as a position."""

_FIELDS = {
    *("format_version", "journals", "position", "revision"),
    *("heads", "gone", "gaps", "starts", "fingerprints"),
}

Position = Literal["", "initial", "pinned"]

FINGERPRINT_BYTES = 512
"""Number of bytes before an offset that identify its journal. Reading them costs no more than reading one."""

DIGEST_LETTERS = 16
"""Number of stored hexadecimal digits of a fingerprint's SHA-256. It is small because a position may have
10,000 journals."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies the journal of an offset by the journal's creation and by the bytes before the offset.

    A journal that is deleted and created again keeps its name, but its offsets may refer to other bytes. The
    Etcd revision of its creation distinguishes the two, except in stores without brokers, where it is
    unknown. The bytes show whether it matters: a journal created again over its stored fragments has the
    same bytes.
    """

    begin: int
    end: int
    digest: str = ""
    """First digits of the SHA-256 of the bytes ``[begin, end)``; empty if the range is empty."""
    create_revision: int = 0
    """Etcd's revision at which the journal was created; 0 if unknown."""

    def __post_init__(self) -> None:
        # With a damaged fingerprint, another journal would be mistaken for the table's, or the right one
        # refused.
        numbers = (self.begin, self.end, self.create_revision)
        digits = DIGEST_LETTERS if self.begin < self.end else 0
        if (
            not all(type(number) is int and 0 <= number <= MAX_OFFSET for number in numbers)
            or self.begin > self.end
            or len(self.digest) != digits
            or not set(self.digest) <= set("0123456789abcdef")
        ):
            raise OffsetError(f"{self.to_text()!r} is not a fingerprint (begin:end:digest:revision)")

    @classmethod
    def of(cls, content: bytes, end: int, create_revision: int = 0) -> Fingerprint:
        """Return the fingerprint of an offset from the bytes before it."""
        content = content[-FINGERPRINT_BYTES:]
        return cls(end - len(content), end, _digest(content), create_revision)

    @classmethod
    def from_text(cls, text: object) -> Fingerprint:
        """Read the stored form.

        Raises:
            OffsetError: the text is not a fingerprint.
        """
        match = re.fullmatch(r"([0-9]{1,19}):([0-9]{1,19}):([0-9a-f]*):([0-9]{1,19})", str(text))
        if match is None:
            raise OffsetError(f"{_shown(text)} is not a fingerprint (begin:end:digest:revision)")
        begin, end, digest, revision = match.groups()
        return cls(int(begin), int(end), digest, int(revision))

    def to_text(self) -> str:
        """Return the stored form."""
        return f"{self.begin}:{self.end}:{self.digest}:{self.create_revision}"

    def has_range_of(self, other: Fingerprint) -> bool:
        """Return whether both have the same range, which is not empty, so that digests can be compared."""
        return (self.begin, self.end) == (other.begin, other.end) and self.begin < self.end

    def is_of(self, content: bytes) -> bool:
        """Return whether bytes that were read from ``[begin, end)`` match this fingerprint."""
        return self.digest == _digest(content)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_LETTERS] if content else ""


@dataclass(frozen=True, slots=True)
class JournalOffsets:
    """A query's position in each journal it reads.

    ``read_through[journal]`` is the next byte to read: all bytes before it are done. Mappings are
    copied and sorted; treat them as immutable. Equality compares only the offsets and the mark, not
    ``revision``, ``heads``, ``gone``, ``gaps``, ``starts`` or ``fingerprints``.
    """

    read_through: Mapping[str, int] = field(default_factory=dict)
    position: Position = ""
    revision: int = field(default=0, compare=False)
    """Etcd revision at which every journal of the position was listed or looked up; 0 if unknown."""
    heads: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Write heads of only those journals that had more to read at the time of the position."""
    gaps: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict, compare=False)
    """Bytes ``[begin, end)`` by journal that the batch up to this position skips. They were missing when the
    batch was planned, which ``failOnDataLoss=false`` allows."""
    gone: tuple[str, ...] = field(default=(), compare=False)
    """Deleted journals of the position: the query had read them, or its options allow the loss."""
    starts: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Offset by journal at which a query of committed messages began; empty for other queries."""
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict, compare=False)
    """Fingerprints of the journals that the batch up to this position read, pinned, or found recreated."""

    def __post_init__(self) -> None:  # noqa: C901, PLR0912 - field by field
        # Spark accepts any value from a Python source, even null or text. This is the first place where an
        # invalid one can be detected.
        for journal, offset in self.read_through.items():
            _check_entry(journal, offset)
        if self.position not in ("", "initial", "pinned"):
            raise OffsetError(f"position is {self.position!r}; expected 'initial', 'pinned' or none")
        revision: object = self.revision
        if type(revision) is not int or not 0 <= revision <= MAX_OFFSET:
            _refuse(f"revision is {_shown(revision)}")
        # Without a revision, nothing shows when the heads were current.
        if self.heads and not revision:
            _refuse("heads are invalid without a revision")
        for journal, head in self.heads.items():
            _check_entry(journal, head)
            if journal not in self.read_through or head <= self.read_through[journal]:
                problem = "a head must belong to a journal of the position and be past its offset"
                raise OffsetError(problem, journal, head)
        object.__setattr__(self, "read_through", dict(sorted(self.read_through.items())))
        object.__setattr__(self, "heads", dict(sorted(self.heads.items())))
        for journal in self.gone:
            if journal not in self.read_through:
                raise OffsetError("a journal in 'gone' must belong to the position", str(journal))
        object.__setattr__(self, "gone", tuple(sorted(set(self.gone))))
        for journal, gaps in self.gaps.items():
            before, reached = 0, self.read_through.get(journal, -1)
            # Gaps must be in order, must not overlap and must end before the offset, because the ledger
            # counts their lengths as lost bytes.
            for begin, end in gaps:
                if not before <= begin < end <= reached:
                    raise OffsetError(f"[{begin}, {end}) is not a gap before {reached}", journal)
                before = end
        object.__setattr__(self, "gaps", dict(sorted(self.gaps.items())))
        for journal, offset in self.starts.items():
            _check_entry(journal, offset)
            if offset > self.read_through.get(journal, -1):
                problem = "a start must belong to a journal of the position and not be past its offset"
                raise OffsetError(problem, journal, offset)
        object.__setattr__(self, "starts", dict(sorted(self.starts.items())))
        if unknown := sorted(self.fingerprints.keys() - self.read_through.keys()):
            raise OffsetError("a fingerprint must belong to a journal of the position", unknown[0])
        object.__setattr__(self, "fingerprints", dict(sorted(self.fingerprints.items())))

    def __hash__(self) -> int:
        return hash((tuple(self.read_through.items()), self.position))

    def at(self, position: Position) -> JournalOffsets:
        """Return the same offsets marked ``position``."""
        return replace(self, position=position)

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form: nested dicts of strings and integers, as Spark requires."""
        # Fields without a value are left out. Spark compares positions as text, so equal positions must have
        # the same text, and the text of a query that has caught up should be short.
        value: dict[str, Any] = {"format_version": FORMAT_VERSION, "journals": dict(self.read_through)}
        if self.position:
            value["position"] = self.position
        if self.revision:
            value["revision"] = self.revision
        if self.heads:
            value["heads"] = dict(self.heads)
        if self.gone:
            # Spark requires nested dicts, so this cannot be a list.
            value["gone"] = dict.fromkeys(self.gone, True)
        if self.gaps:
            value["gaps"] = {
                journal: {str(low): high for low, high in gaps} for journal, gaps in self.gaps.items()
            }
        if self.starts:
            value["starts"] = dict(self.starts)
        if self.fingerprints:
            value["fingerprints"] = {
                journal: fingerprint.to_text() for journal, fingerprint in self.fingerprints.items()
            }
        return value

    def plain(self) -> JournalOffsets:
        """Return a position with only the offsets, as tables record it."""
        return JournalOffsets(self.read_through)

    def head_seen(self, journal: str) -> int | None:
        """Return a journal's write head at the time of the position; None if unknown."""
        if not self.revision or journal not in self.read_through:
            return None
        # A journal without a head was read to its end, so its head equals its offset (decision 0009).
        return self.heads.get(journal, self.read_through[journal])

    def to_json(self) -> str:
        """Return the canonical JSON text."""
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_dict(cls, value: object) -> JournalOffsets:
        """Read the stored form.

        Raises:
            OffsetError: the value has a different shape or version, or an invalid offset.
        """
        if not isinstance(value, Mapping):
            _refuse(f"a position must be a JSON object, got {_shown(value)}")
        version = value.get("format_version")
        if type(version) is not int or version < 1:
            _refuse(f"format_version is {_shown(version)}")
        # In a later release, an offset may have a different meaning. Reading it anyway could leave out bytes.
        if version > FORMAT_VERSION:
            raise OffsetError(
                f"the position has format_version {version}, but this release reads {FORMAT_VERSION}: "
                "a later release of gazette_spark wrote it; use that release"
            )
        # Otherwise a misspelt field in offsets that were written by hand would be ignored.
        unknown = sorted(str(key) for key in value.keys() - _FIELDS)
        if unknown:
            _refuse(f"unknown field {unknown[0]!r}")
        journals = value.get("journals")
        if not isinstance(journals, Mapping):
            _refuse(f"journals is {_shown(journals)}")
        position = value.get("position", "")
        if position not in ("initial", "pinned") and "position" in value:
            _refuse(f"position is {_shown(position)}")
        revision, heads = value.get("revision", 0), value.get("heads", {})
        gaps, gone = _parse_gaps(value.get("gaps", {})), value.get("gone", {})
        if not isinstance(gone, Mapping) or not all(flag is True for flag in gone.values()):
            _refuse(f"gone is {_shown(gone)}")
        starts = value.get("starts", {})
        if not isinstance(starts, Mapping):
            _refuse(f"starts is {_shown(starts)}")
        if not isinstance(heads, Mapping):
            _refuse(f"heads is {_shown(heads)}")
        prints = value.get("fingerprints", {})
        if not isinstance(prints, Mapping):
            _refuse(f"fingerprints is {_shown(prints)}")
        fingerprints = {journal: Fingerprint.from_text(text) for journal, text in prints.items()}
        return cls(
            journals, cast(Position, position), revision, heads, gaps, tuple(gone), starts, fingerprints
        )

    @classmethod
    def from_json(cls, text: str) -> JournalOffsets:
        """Read the JSON text of a position; see :meth:`from_dict`."""
        return cls.from_dict(parse_json_object(text))


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object of offsets.

    Raises:
        OffsetError: the text is not a JSON object.
    """
    try:
        value = parse_json(text)
    except JsonError as error:
        _refuse(f"{error}: {_shown(text)}")
    if not isinstance(value, dict):
        _refuse(f"a position must be a JSON object, got {_shown(value)}")
    return value


def check_forward(start: JournalOffsets, end: JournalOffsets) -> None:
    """Check that ``end`` can follow ``start``: no journal is dropped or goes back.

    Journals that only ``end`` has are new, and their first offset is being recorded. An ``end`` marked
    ``pinned`` is valid for every start: if batch 0 is repeated after a crash, Spark has lost its start and
    requests a new one, which may be at any offset.

    Raises:
        OffsetError: a journal is dropped or goes back; the error names the first one.
    """
    if end.position == "pinned":
        return
    # The mark is for offsets that are not recorded yet, but the end of a batch is always recorded.
    if end.position == "initial":
        raise OffsetError("a batch cannot end at a position marked 'initial'")
    for journal, begin in start.read_through.items():
        reached = end.read_through.get(journal)
        if reached is None:
            raise OffsetError("the batch's end lacks a journal that its start has", journal, begin)
        if reached < begin:
            problem = f"the batch goes back: it begins at {begin} and ends before that"
            raise OffsetError(problem, journal, reached)


def changed(start: JournalOffsets, end: JournalOffsets) -> Iterable[tuple[str, int, int]]:
    """Yield ``(journal, begin, end)`` of each byte range that a batch reads, in order of journal names.

    A batch whose end is ``pinned`` reads nothing, and nothing is read from a journal that only the end has.
    """
    if end.position == "pinned":
        return
    for journal, begin in start.read_through.items():
        if (reached := end.read_through[journal]) > begin:
            yield journal, begin, reached


def _check_entry(journal: object, offset: object) -> None:
    if not isinstance(journal, str) or not journal:
        _refuse(f"{_shown(journal)} is not a journal name")
    # In Python, a bool is an int and 1.0 equals 1, so compare the type.
    if type(offset) is not int:
        raise OffsetError(
            f"an offset must be an integer, got {_shown(offset)}; expected the form {EXAMPLE}", journal
        )
    if not 0 <= offset <= MAX_OFFSET:
        raise OffsetError("an offset must be from 0 to 2^63-1", journal, offset)


def _parse_gaps(value: object) -> dict[str, tuple[tuple[int, int], ...]]:
    gaps_by_journal: dict[str, tuple[tuple[int, int], ...]] = {}
    if not isinstance(value, Mapping):
        _refuse(f"gaps is {_shown(value)}")
    for journal, ends_by_begin in value.items():
        spans = ends_by_begin if isinstance(ends_by_begin, Mapping) and ends_by_begin else {"": 0}
        if not all(re.fullmatch("0|[1-9][0-9]{0,18}", str(low)) for low in spans) or not all(
            type(high) is int for high in spans.values()
        ):
            _refuse(f"gaps of journal {_shown(journal)} are {_shown(ends_by_begin)}")
        gaps_by_journal[str(journal)] = tuple((int(low), high) for low, high in spans.items())
    return gaps_by_journal


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse(problem: str) -> NoReturn:
    raise OffsetError(f"{problem}; expected the form {EXAMPLE}")
