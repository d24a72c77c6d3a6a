"""Which journals a listing of a fragment store holds, and which fragment serves which byte. Pure.

A fragment's path below the store is ``{journal}/{path postfix}/{name}``, and nothing in it tells where the
journal ends and the postfix begins. So:

====================  ==========================================================================
journals are          a file's journal is
====================  ==========================================================================
named                 the longest name it lies under, at most ``levels`` directories deep
selected by a prefix  its directory, less ``levels`` directories
====================  ==========================================================================

``levels`` defaults to 0, unless the listing contradicts that: a directory of the form ``name=value``, one
within another, or one that begins just where its neighbour ends. Then ``levels`` is required, because rows of
a journal that does not exist would be worse than an error.

Files whose name begins with a dot are not looked at: brokers write them, and rename them when they are whole.
Other files that are no fragments are left out and counted.

Stored fragments may overlap: replicas store the same bytes in different spans. A byte is read from the
fragment that holds it and reaches furthest, as brokers do, so it is read once. That is right as long as
fragments agree where they overlap. They do not if a journal lost bytes and used their offsets again. Then the
journal's true bytes are unknown, and reading ends with an error that names both files:

- in the listing (:func:`check_fragments`): two fragments of the same span have different SHA-1 sums, or two
  that begin together have the same sum and different lengths;
- while reading (:class:`Overlaps`): a fragment that is not read by itself, because others serve its bytes,
  is compared by its sum with their bytes. That costs a SHA-1, and only where there is an overlap.

Uncompressed files are held to their length in the listing, too.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from gazette_spark.errors import (
    FragmentConflictError,
    FragmentTooLongError,
    FragmentTooShortError,
    OptionError,
    ProtocolError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import CoverSet, Fragment, parse_content_path

LEVELS = "fragmentPostfixLevels"
"""The option that says ``levels``."""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One file of a listing."""

    path: str
    """Below the store, separated by slashes."""
    size: int
    mod_time: int
    """Unix seconds; 0 if the store does not say."""


@dataclass(frozen=True, slots=True)
class StoredFragment:
    """A fragment and the file that should hold it."""

    fragment: Fragment
    path: str
    size: int

    @property
    def begin(self) -> int:
        """Offset of the first byte."""
        return self.fragment.begin

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.fragment.end


@dataclass(frozen=True, slots=True)
class StoreSelection:
    """The wanted journals of a store: those named, or else those under a prefix."""

    names: tuple[str, ...] = ()
    prefix: str = ""
    """Ends in a slash."""
    levels: int | None = None
    """Directories between a journal and its fragments; None: not said."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Content of a listing: journals and their fragments."""

    journals: Mapping[str, tuple[StoredFragment, ...]] = field(default_factory=dict)
    """Fragments by journal, ascending by begin, then by end; all of them, overlapping or not."""
    skipped: tuple[str, ...] = ()
    """Paths of files below the journals that are no fragments."""


def layout_of(files: Iterable[StoreFile], wanted: StoreSelection) -> Layout:
    """Find the journals wanted, and their fragments, in a listing.

    Raises:
        OptionError: ``levels`` is missing, and the listing is ambiguous.
    """
    by_directory: dict[str, list[StoreFile]] = defaultdict(list)
    for each in files:
        directory, _, name = each.path.rpartition("/")
        if not name.startswith("."):
            by_directory[directory].append(each)
    found: dict[str, list[StoredFragment]] = defaultdict(list)
    skipped: list[str] = []
    for directory in sorted(by_directory):
        journal = _journal_of(directory, wanted)
        if journal is None:
            continue
        if not journal.startswith(wanted.prefix):
            if wanted.levels:
                _check_shallow(by_directory[directory], wanted)
            continue
        fragments = list(_fragments(journal, by_directory[directory], skipped))
        if wanted.names and wanted.levels is None and fragments and directory != journal:
            raise _undecided(fragments[0].path, f"below the journal {journal!r}", "another journal")
        found[journal] += fragments
    journals = {name: tuple(sorted(found[name], key=_order)) for name in found if found[name]}
    if not wanted.names and wanted.levels is None:
        _check_decided(journals)
    return Layout(journals, tuple(skipped))


def _order(each: StoredFragment) -> tuple[int, int, str]:
    return each.begin, each.end, each.path


def _journal_of(directory: str, wanted: StoreSelection) -> str | None:
    """Return the journal that files in a directory are of, None if it is not wanted.

    Under a prefix that may be a name which does not have the prefix any more.
    """
    parts = directory.split("/")
    if not wanted.names:
        selected = f"{directory}/".startswith(wanted.prefix) and directory
        return "/".join(parts[: len(parts) - (wanted.levels or 0)]) if selected else None
    deepest = len(parts) if wanted.levels is None else wanted.levels
    names = ("/".join(parts[: len(parts) - depth]) for depth in range(len(parts)))
    for depth, name in enumerate(names):
        if name in wanted.names:
            return name if depth <= deepest else None
    return None


def _fragments(journal: str, files: Iterable[StoreFile], skipped: list[str]) -> Iterable[StoredFragment]:
    for each in files:
        try:
            relpath = each.path.removeprefix(journal + "/")
            fragment = parse_content_path(journal, relpath, mod_time=each.mod_time)
        except ProtocolError:
            skipped.append(each.path)
            continue
        if fragment.length:
            yield StoredFragment(fragment, each.path, each.size)


def _check_shallow(files: Iterable[StoreFile], wanted: StoreSelection) -> None:
    """Raise if there are fragments less deep under the prefix than journals with a postfix have them."""
    for each in files:
        name = each.path.rpartition("/")[2]
        try:
            parse_content_path("any-journal", name)
        except ProtocolError:
            continue
        got = f"{wanted.levels}, and the fragment {each.path!r} is not so deep under {wanted.prefix!r}"
        raise OptionError(LEVELS, got, "what holds for all journals of a prefix; or name the journals")


def _check_decided(journals: Mapping[str, tuple[StoredFragment, ...]]) -> None:
    """Raise if directories that count as journals look like parts of one."""
    ends: dict[str, dict[int, str]] = defaultdict(dict)
    for journal, fragments in journals.items():
        parent, _, last = journal.rpartition("/")
        if "=" in last:
            raise _undecided(fragments[0].path, f"in a directory {last!r}", "a journal")
        ends[parent][max(each.end for each in fragments)] = journal
        above = parent
        while above:
            if above in journals:
                raise _undecided(fragments[0].path, f"below the journal {above!r}", "another journal")
            above = above.rpartition("/")[0]
    for journal, fragments in journals.items():
        before = ends[journal.rpartition("/")[0]].get(fragments[0].begin)
        if before is not None:
            where = f"just after the last one in {before!r}"
            raise _undecided(fragments[0].path, where, "a journal")


def _undecided(path: str, where: str, what: str) -> OptionError:
    got = f"nothing, and the fragment {path!r} lies {where}"
    expected = (
        f"0 if its directory is {what}, else the number of directories that the journals' "
        "path_postfix_template adds below each journal"
    )
    return OptionError(LEVELS, got, expected)


class FragmentCoverage:
    """Fragments of one journal, and which of them serves which byte."""

    def __init__(self, fragments: Iterable[StoredFragment]) -> None:
        self.fragments = tuple(fragments)
        """Ascending by begin, then by end."""
        # Of equal spans the first path wins, wherever the listing began.
        self._by_span = {(each.begin, each.end): each for each in reversed(self.fragments)}
        self._cover = CoverSet.of(each.fragment for each in self._by_span.values())
        self._begins = [each.begin for each in self.fragments]
        self._reach = list(accumulate((each.end for each in self.fragments), max))
        """Largest end up to each fragment."""

    def __repr__(self) -> str:
        return f"FragmentCoverage({len(self.fragments)} fragments, {len(self._cover)} of them serve)"

    @property
    def serving(self) -> list[StoredFragment]:
        """The fragments that no other one covers, ascending by begin and by end."""
        return [self._by_span[each.begin, each.end] for each in self._cover]

    @property
    def begin(self) -> int:
        """Smallest offset of all; 0 without one."""
        return self._cover.summary()[0]

    @property
    def end(self) -> int:
        """Largest offset of all; 0 without one."""
        return self._cover.summary()[1]

    def covering(self, offset: int) -> StoredFragment | None:
        """Return the fragment that serves the byte at an offset."""
        found = self._cover.covering(offset)
        return self._by_span[found.begin, found.end] if found is not None else None

    def following(self, offset: int) -> StoredFragment | None:
        """Return the first one behind an offset that no fragment holds."""
        found = self._cover.following(offset)
        return self._by_span[found.begin, found.end] if found is not None else None

    def without(self, lost: StoredFragment) -> FragmentCoverage:
        """Return the coverage that remains without a fragment."""
        return FragmentCoverage(each for each in self.fragments if each != lost)

    def of_range(self, begin: int, end: int) -> tuple[StoredFragment, ...]:
        """Return the fragments with bytes in a range and, if its end is in no fragment, the next one."""
        first, last = bisect_right(self._reach, begin), bisect_left(self._begins, end)
        found = tuple(each for each in self.fragments[first:last] if each.end > begin)
        after = self.following(end - 1) if self.covering(end - 1) is None else None
        return found if after is None else (*found, after)


def check_fragments(fragments: Sequence[StoredFragment], store: str) -> None:
    """Check fragments of one journal by their names and sizes.

    Args:
        fragments: ascending by begin.
        store: how errors name the store.

    Raises:
        FragmentConflictError: two of them cannot both be right.
        CorruptFragmentError: an uncompressed file has not the length that its name says.
    """
    by_span: dict[tuple[int, int], StoredFragment] = {}
    by_sum: dict[tuple[int, bytes], StoredFragment] = {}
    for each in fragments:
        fragment = each.fragment
        same = by_span.setdefault((each.begin, each.end), each)
        if same.fragment.sum != fragment.sum:
            raise _conflict(same, each, store, "their SHA-1 sums differ")
        same = by_sum.setdefault((each.begin, fragment.sum), each)
        if same.end != each.end:
            raise _conflict(same, each, store, "their SHA-1 sums are equal and their lengths differ")
        if fragment.codec == pb.NONE and each.size != fragment.length:
            problem = f"it holds {each.size} bytes, not {fragment.length}"
            kind = FragmentTooLongError if each.size > fragment.length else FragmentTooShortError
            raise kind(fragment.journal, each.begin, each.end, problem, f"{store}{each.path}")


def _conflict(one: StoredFragment, other: StoredFragment, store: str, why: str) -> FragmentConflictError:
    begin, end = max(one.begin, other.begin), min(one.end, other.end)
    sources = (f"{store}{one.path}", f"{store}{other.path}")
    return FragmentConflictError(one.fragment.journal, begin, end, sources, why)


@dataclass(slots=True)
class _Watched:
    """A fragment whose bytes come from others."""

    stored: StoredFragment
    position: int
    digest: hashlib._Hash = field(default_factory=lambda: hashlib.sha1(usedforsecurity=False))
    served_by: list[str] = field(default_factory=list)


class Overlaps:
    """Compares the sums of fragments that are not read with the bytes that are. For one thread."""

    def __init__(self, coverage: FragmentCoverage, offset: int, end_offset: int, store: str) -> None:
        """Choose the fragments that a read of ``[offset, end_offset)`` can compare."""
        self._store = store
        by_themselves, at = set(), offset
        for each in coverage.serving:
            if each.end > at:
                # It is read whole, and held to its own sum, if nothing before reaches into it.
                if each.begin >= at and each.end <= end_offset:
                    by_themselves.add(each)
                at = each.end
        self._watched = [
            _Watched(each, each.begin)
            for each in coverage.fragments
            if each not in by_themselves and each.begin >= offset and each.end <= end_offset
        ]

    def feed(self, offset: int, content: bytes, source: str) -> None:
        """Take the next bytes of the journal, which came from a file.

        Raises:
            FragmentConflictError: a fragment is complete, and its sum is another.
        """
        if not self._watched:
            return
        end, left = offset + len(content), []
        for each in self._watched:
            if each.position >= end:
                left.append(each)
                continue
            if each.position < offset:
                continue  # Some of its bytes are gone.
            stop = min(each.stored.end, end)
            each.digest.update(memoryview(content)[each.position - offset : stop - offset])
            each.position = stop
            if source not in each.served_by:
                each.served_by.append(source)
            if stop < each.stored.end:
                left.append(each)
            elif each.digest.digest() != each.stored.fragment.sum:
                raise self._conflict(each)
        self._watched = left

    def _conflict(self, found: _Watched) -> FragmentConflictError:
        stored = found.stored
        sources = tuple(self._store + path for path in (*found.served_by, stored.path))
        return FragmentConflictError(
            stored.fragment.journal, stored.begin, stored.end, sources, "the bytes they hold differ"
        )
