"""Determines the journals in a listing of a fragment store, and the fragment that serves each byte. Pure.

A fragment's path below the store is ``{journal}/{path postfix}/{name}``, and does not show where the journal
ends and the postfix begins. So:

====================  ==========================================================================
journals are          a file's journal is
====================  ==========================================================================
named                 the longest name that is a parent, at most ``levels`` directories above
selected by a prefix  its directory without the last ``levels`` directories
====================  ==========================================================================

``levels`` defaults to 0, unless the listing contradicts that: by a directory of the form ``name=value``, by
one within another, or by one that begins exactly where its neighbour ends. Then ``levels`` is required,
because rows of a journal that does not exist would be worse than an error.

Files whose name begins with a dot are ignored: brokers write them, and rename them when they are complete.
Other files that are not fragments are skipped and counted.

Stored fragments may overlap, because replicas store the same bytes in different spans. Each byte is read
once, from the fragment that contains it and reaches furthest, as in brokers. That is correct if fragments
agree where they overlap. They disagree if a journal lost bytes and reused their offsets. Then the journal's
true bytes are unknown, and reading ends with an error that names both files:

- in the listing (:func:`check_fragments`), if two fragments of the same span have different SHA-1 sums, or if
  two with the same begin have the same sum and different lengths;
- while reading (:class:`Overlaps`), if the sum of a fragment that is not read itself differs from the sum of
  the bytes that others served for it. That costs a SHA-1, but only for overlapping fragments.

The length of an uncompressed file is also checked in the listing.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
"""The option that sets ``levels``."""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One file of a listing."""

    path: str
    """Path below the store, separated by slashes."""
    size: int
    mod_time: int
    """Modification time in Unix seconds; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class StoredFragment:
    """A fragment, and the file that should contain it."""

    fragment: Fragment
    path: str
    size: int

    @property
    def begin(self) -> int:
        """Offset of the first byte."""
        return self.fragment.begin

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.fragment.end


@dataclass(frozen=True, slots=True)
class StoreSelection:
    """The selected journals of a store: named journals, or those with a prefix."""

    names: tuple[str, ...] = ()
    prefix: str = ""
    """Prefix of journal names. It ends in a slash."""
    levels: int | None = None
    """Number of directories between a journal and its fragments; None if not set."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The journals of a listing and their fragments."""

    journals: Mapping[str, tuple[StoredFragment, ...]] = field(default_factory=dict)
    """All fragments by journal, including overlapping ones, ascending by begin, then by end."""
    skipped: tuple[str, ...] = ()
    """Paths of files below the journals that are not fragments."""


def layout_of(files: Iterable[StoreFile], selection: StoreSelection) -> Layout:  # noqa: C901, PLR0912 - the rules, in order
    """Find the selected journals and their fragments in a listing.

    Raises:
        OptionError: ``levels`` is missing, and the listing is ambiguous.
    """
    by_directory: dict[str, list[StoreFile]] = defaultdict(list)
    for file in files:
        directory, _, name = file.path.rpartition("/")
        # Brokers write a fragment as `.partial-…` and rename it when it is complete.
        if not name.startswith("."):
            by_directory[directory].append(file)
    by_journal: dict[str, list[StoredFragment]] = defaultdict(list)
    skipped: list[str] = []
    for directory in sorted(by_directory):
        journal = _journal_of(directory, selection)
        if journal is None:
            continue
        # Without the directories of the postfix, this name no longer has the prefix: the files belong to a
        # journal that is not selected, or the number of levels is wrong.
        if not journal.startswith(selection.prefix):
            for file in by_directory[directory] if selection.levels else ():
                with suppress(ProtocolError):  # It is not a fragment.
                    parse_content_path("any-journal", file.path.rpartition("/")[2])
                    problem = f"but the fragment {file.path!r} is not so deep under {selection.prefix!r}"
                    expected = "the number that all journals of a prefix have; or name the journals"
                    raise OptionError(LEVELS, f"{selection.levels}, {problem}", expected)
            continue
        fragments: list[StoredFragment] = []
        for file in by_directory[directory]:
            try:
                relpath = file.path.removeprefix(journal + "/")
                fragment = parse_content_path(journal, relpath, mod_time=file.mod_time)
            except ProtocolError:
                skipped.append(file.path)
                continue
            # An empty fragment serves no byte.
            if fragment.length:
                fragments.append(StoredFragment(fragment, file.path, file.size))
        # Without `levels`, a fragment below a named journal may belong to a journal that is not named.
        if selection.names and selection.levels is None and fragments and directory != journal:
            raise _undecided(fragments[0].path, f"below the journal {journal!r}", "another journal")
        by_journal[journal] += fragments
    journals = {
        name: tuple(sorted(fragments, key=lambda stored: (stored.begin, stored.end, stored.path)))
        for name, fragments in by_journal.items()
        if fragments
    }
    if selection.names or selection.levels is not None:
        return Layout(journals, tuple(skipped))
    # Nothing says how deep the journals are, so each directory with fragments counts as one. None of them may
    # look like a part of another.
    ends: dict[str, dict[int, str]] = defaultdict(dict)
    for journal, stored in journals.items():
        parent, _, last = journal.rpartition("/")
        # Templates of Gazette give directories such as `date=2026-11-21`.
        if "=" in last:
            raise _undecided(stored[0].path, f"in a directory {last!r}", "a journal")
        ends[parent][max(fragment.end for fragment in stored)] = journal
        above = parent
        while above:
            if above in journals:
                raise _undecided(stored[0].path, f"below the journal {above!r}", "another journal")
            above = above.rpartition("/")[0]
    for journal, stored in journals.items():
        # Two neighbours of which one continues exactly where the other ends are parts of one journal:
        # separate journals begin at offset 0, or where retention happened to stop.
        before = ends[journal.rpartition("/")[0]].get(stored[0].begin)
        if before is not None:
            raise _undecided(stored[0].path, f"just after the last one in {before!r}", "a journal")
    return Layout(journals, tuple(skipped))


def _journal_of(directory: str, selection: StoreSelection) -> str | None:
    """Return the journal of the files in a directory; None if it is not selected.

    With a prefix, the name that remains without ``levels`` directories may no longer have the prefix.
    """
    parts = directory.split("/")
    if not selection.names:
        is_below = f"{directory}/".startswith(selection.prefix) and directory
        return "/".join(parts[: len(parts) - (selection.levels or 0)]) if is_below else None
    deepest = len(parts) if selection.levels is None else selection.levels
    # Try the longest parent first, because one named journal may be below another.
    names = ("/".join(parts[: len(parts) - depth]) for depth in range(len(parts)))
    for depth, name in enumerate(names):
        if name in selection.names:
            return name if depth <= deepest else None
    return None


def _undecided(path: str, where: str, what: str) -> OptionError:
    got = f"nothing, but the fragment {path!r} is {where}"
    expected = (
        f"0 if its directory is {what}, otherwise the number of directories that the journals' "
        "path_postfix_template adds below each journal"
    )
    return OptionError(LEVELS, got, expected)


class FragmentCoverage:
    """The fragments of one journal, and which of them serves which byte."""

    def __init__(self, fragments: Iterable[StoredFragment]) -> None:
        self.fragments = tuple(fragments)
        """Ascending by begin, then by end."""
        # Of fragments with equal spans the first one serves, regardless of the directory that was listed.
        self._by_span = {(stored.begin, stored.end): stored for stored in reversed(self.fragments)}
        self._cover = CoverSet.of(stored.fragment for stored in self._by_span.values())
        self._begins = [stored.begin for stored in self.fragments]
        self._reach = list(accumulate((stored.end for stored in self.fragments), max))
        """Largest end of the fragments up to each one."""

    def __repr__(self) -> str:
        return f"FragmentCoverage({len(self.fragments)} fragments, {len(self._cover)} of them serve)"

    @property
    def serving(self) -> list[StoredFragment]:
        """The fragments that no other one covers, ascending by begin and by end."""
        return [self._by_span[fragment.begin, fragment.end] for fragment in self._cover]

    @property
    def begin(self) -> int:
        """Smallest offset; 0 without fragments."""
        return self._cover.summary()[0]

    @property
    def end(self) -> int:
        """Largest offset; 0 without fragments."""
        return self._cover.summary()[1]

    def covering(self, offset: int) -> StoredFragment | None:
        """Return the fragment that serves the byte at an offset."""
        fragment = self._cover.covering(offset)
        return self._by_span[fragment.begin, fragment.end] if fragment is not None else None

    def following(self, offset: int) -> StoredFragment | None:
        """Return the first fragment after an offset that no fragment contains."""
        fragment = self._cover.following(offset)
        return self._by_span[fragment.begin, fragment.end] if fragment is not None else None

    def without(self, lost: StoredFragment) -> FragmentCoverage:
        """Return the coverage without a fragment."""
        return FragmentCoverage(stored for stored in self.fragments if stored != lost)

    def of_range(self, begin: int, end: int) -> tuple[StoredFragment, ...]:
        """Return the fragments with bytes in a range and, if no fragment contains its end, the next one."""
        # Fragments ascend by begin, but not by end, because they may overlap. The largest end so far does
        # ascend, so it can be searched.
        first, last = bisect_right(self._reach, begin), bisect_left(self._begins, end)
        inside = tuple(stored for stored in self.fragments[first:last] if stored.end > begin)
        # The next fragment shows a reader that the bytes before it are missing and not merely unlisted.
        after = self.following(end - 1) if self.covering(end - 1) is None else None
        return inside if after is None else (*inside, after)


def check_fragments(fragments: Sequence[StoredFragment], store: str) -> None:
    """Check fragments of one journal by their names and sizes.

    Args:
        fragments: Fragments ascending by begin.
        store: Name of the store for errors.

    Raises:
        FragmentConflictError: two fragments contradict each other.
        CorruptFragmentError: the length of an uncompressed file is not the one in its name.
    """
    by_span: dict[tuple[int, int], StoredFragment] = {}
    by_sum: dict[tuple[int, bytes], StoredFragment] = {}
    for stored in fragments:
        fragment = stored.fragment
        # Names have the span and the sum, so these checks read no file.
        same_span = by_span.setdefault((stored.begin, stored.end), stored)
        if same_span.fragment.sum != fragment.sum:
            raise _conflict(same_span, stored, store, "their SHA-1 sums differ")
        same_sum = by_sum.setdefault((stored.begin, fragment.sum), stored)
        if same_sum.end != stored.end:
            raise _conflict(same_sum, stored, store, "their SHA-1 sums are equal and their lengths differ")
        if fragment.codec == pb.NONE:
            check_size(stored, stored.size, f"{store}{stored.path}")


def check_size(stored: StoredFragment, size: int, source: str) -> None:
    """Check the size of an uncompressed fragment's file.

    Raises:
        CorruptFragmentError: the size is not the length in the file's name.
    """
    fragment = stored.fragment
    if size != fragment.length:
        problem = f"it has {size} bytes, not {fragment.length}"
        kind = FragmentTooLongError if size > fragment.length else FragmentTooShortError
        raise kind(fragment.journal, fragment.begin, fragment.end, problem, source)


def _conflict(one: StoredFragment, other: StoredFragment, store: str, why: str) -> FragmentConflictError:
    begin, end = max(one.begin, other.begin), min(one.end, other.end)
    sources = (f"{store}{one.path}", f"{store}{other.path}")
    return FragmentConflictError(one.fragment.journal, begin, end, sources, why)


@dataclass(slots=True)
class _UnreadFragment:
    """A fragment whose bytes are served by others."""

    stored: StoredFragment
    position: int
    digest: hashlib._Hash = field(default_factory=lambda: hashlib.sha1(usedforsecurity=False))
    served_by: list[str] = field(default_factory=list)


class Overlaps:
    """Compares the sums of fragments that are not read with the bytes served for them. For one thread."""

    def __init__(self, coverage: FragmentCoverage, offset: int, end_offset: int, store: str) -> None:
        """Choose the fragments that a read of ``[offset, end_offset)`` can compare."""
        self._store = store
        # This repeats the order in which `StoreReader` reads: from each fragment, the bytes that no earlier
        # one has.
        read_whole, at = set(), offset
        for stored in coverage.serving:
            if stored.end > at:
                # If no earlier fragment reaches into it, it is read as a whole, which checks its sum.
                if stored.begin >= at and stored.end <= end_offset:
                    read_whole.add(stored)
                at = stored.end
        self._unread = [
            _UnreadFragment(stored, stored.begin)
            for stored in coverage.fragments
            if stored not in read_whole and stored.begin >= offset and stored.end <= end_offset
        ]

    def feed(self, offset: int, content: bytes, source: str) -> None:
        """Take the next bytes of the journal, which come from the file ``source``.

        Raises:
            FragmentConflictError: the sum of a complete fragment differs from that of these bytes.
        """
        if not self._unread:
            return
        end, unfinished = offset + len(content), []
        for unread in self._unread:
            stored = unread.stored
            if unread.position >= end:
                unfinished.append(unread)
                continue
            if unread.position < offset:
                continue  # Some of its bytes are missing.
            stop = min(stored.end, end)
            unread.digest.update(memoryview(content)[unread.position - offset : stop - offset])
            unread.position = stop
            if source not in unread.served_by:
                unread.served_by.append(source)
            if stop < stored.end:
                unfinished.append(unread)
            elif unread.digest.digest() != stored.fragment.sum:
                sources = tuple(self._store + path for path in (*unread.served_by, stored.path))
                problem = "their bytes differ"
                raise FragmentConflictError(
                    stored.fragment.journal, stored.begin, stored.end, sources, problem
                )
        self._unread = unfinished
