"""The journals in a listing of a fragment store, and the files that are their fragments. Pure.

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
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.protocol.fragments import Fragment, parse_content_path

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
class Wanted:
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


def layout_of(files: Iterable[StoreFile], wanted: Wanted) -> Layout:
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


def _journal_of(directory: str, wanted: Wanted) -> str | None:
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


def _check_shallow(files: Iterable[StoreFile], wanted: Wanted) -> None:
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
