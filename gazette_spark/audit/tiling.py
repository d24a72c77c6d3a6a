"""Check that the entries of a ledger check_contiguous each journal: no byte is left out or covered twice.

Everything here is a function of values. Of an app id's visible entries, oldest first, each must

- follow the one before it, by ``parent``, with a higher transaction number;
- begin in every journal where the one before it ended, and end there or later;
- begin a journal that is new to the table at the ``start`` it records, and keep the others' starts, but of a
  journal that was made again;
- name gaps that are within its bytes, apart from each other.

Delta cleans up old log entries. Then the parent of the oldest available entry is gone, and the writes of
earlier bytes are unknown: the tiling is proven from that entry's ``begin`` on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from gazette_spark.audit.differences import Difference
from gazette_spark.ledger.entry import LedgerEntry, Positions, SkippedGap
from gazette_spark.offsets import JournalOffsets

Stored = tuple[int, LedgerEntry]
"""A version of the table and the entry its commit carries."""

Key = tuple[int, str]
"""Number of a source in its query, and a journal it reads."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes ``[begin, end)`` of a journal that one commit added; at least one."""

    begin: int
    end: int
    table_version: int
    rows: int | None = None
    """Rows of the journal that the commit brought, if its entry counted them."""
    digest: str | None = None
    """Digest of the rows, if the batch had the bytes of their records."""


@dataclass(frozen=True, slots=True)
class CoveredRange:
    """The range of one journal that the entries say is in the table, through one source of a query."""

    app_id: str
    source: int
    journal: str
    start: int
    """Start of the table's rows, as recorded in the entries."""
    end: int
    table_version: int
    """Version of the newest entry."""
    spans: tuple[Span, ...]
    """Ascending, without a hole; the first begins after ``start`` if Delta cleaned up entries before it."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Bytes that are not in the table because they were gone, ascending."""
    adopted: bool = False
    """The table had rows before its ledger began at ``start``; of those no entry says anything."""
    recreated: bool = False
    """The journal was deleted and made again: the table has rows of another one, too."""
    committed: bool = False
    """The rows are the messages that were committed there, wherever these begin."""

    @property
    def first(self) -> int:
        """Least offset the table may have a row of."""
        return 0 if self.adopted else self.start

    def version_at(self, offset: int) -> int:
        """Return the version that added an offset, else the nearest version."""
        at = bisect_right(self.spans, offset, key=lambda span: span.begin) - 1
        return self.spans[max(at, 0)].table_version if self.spans else self.table_version


@dataclass(frozen=True, slots=True)
class Tiling:
    """The entries of one app id, which check_contiguous all journals."""

    app_id: str
    entries: int
    claims: tuple[CoveredRange, ...]
    cleaned_up: bool
    """Delta's log no longer has the entries before the oldest of these."""
    foreign: bool
    """The query reads other sources, too."""
    upsert: bool = False
    """Rows of the range were merged by key, at least once."""
    dead_letters: tuple[str, ...] = ()
    """Names of the tables, by name, that have records which did not fit."""


@dataclass(slots=True)
class _Course:
    """A claim while it is followed through the entries."""

    start: int
    end: int
    adopted: bool = False
    recreated: bool = False
    spans: list[Span] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)


def check_contiguous(app_id: str, entries: Sequence[Stored], *, cleaned_up: bool) -> Tiling | Difference:
    """Follow an app id's visible entries.

    Args:
        app_id: Whose they are.
        entries: Oldest first, at least one.
        cleaned_up: The table's log does not reach back to its first version.
    """
    version, first = entries[0]
    lost = first.parent is not None
    if lost and not cleaned_up:
        problem = f"its entry was decided on attempt {first.parent}, which is not in the history before it"
        return Difference(problem, version)
    for before, after in pairwise(entries):
        if misplaced := _misplaced(before, after[1]):
            return Difference(misplaced, after[0])
    courses: dict[Key, _Course] = {}
    for stored in entries:
        if difference := _follow(courses, stored, lost=lost and stored is entries[0]):
            return difference
    newest = entries[-1][0]
    committed = any(entry.isolation == "read_committed" for _, entry in entries)
    claims = [
        CoveredRange(
            app_id,
            source,
            journal,
            each.start,
            each.end,
            newest,
            tuple(each.spans),
            tuple(each.gaps),
            adopted=each.adopted,
            recreated=each.recreated,
            committed=committed,
        )
        for (source, journal), each in sorted(courses.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    foreign = any(isinstance(each, str) for _, entry in entries for each in entry.end)
    upsert = any(entry.mode == "upsert" for _, entry in entries)
    dead = tuple(sorted({entry.dead_letters for _, entry in entries if entry.dead_letters}))
    return Tiling(app_id, len(entries), tuple(claims), lost, foreign, upsert, dead)


def shared_journals(tilings: Iterable[Tiling]) -> frozenset[str]:
    """Return the journals whose rows in a table cannot be told apart.

    Several writers, or several sources of one, have them; or a journal was made again.
    """
    claims = [claim for tiling in tilings for claim in tiling.claims]
    names = Counter(claim.journal for claim in claims)
    return frozenset(claim.journal for claim in claims if names[claim.journal] > 1 or claim.recreated)


def _misplaced(before: Stored, entry: LedgerEntry) -> str | None:
    version, previous = before
    if entry.parent != previous.attempt:
        return (
            f"its entry was decided on attempt {entry.parent}, and the visible entry before it, of version "
            f"{version}, is attempt {previous.attempt}: one is missing in between, or was undone"
        )
    if entry.txn_version <= previous.txn_version:
        older = f"{previous.txn_version}, that of version {version}"
        return f"its transaction number {entry.txn_version} is not above {older}"
    return None


def _follow(courses: dict[Key, _Course], stored: Stored, *, lost: bool) -> Difference | None:
    """Add an entry to the courses of its journals."""
    version, entry = stored
    begins, ends, starts = _flat(entry.begin), _flat(entry.end), _flat(entry.start)
    for key in [key for key in courses if key[1] in entry.recreated]:
        until = entry.recreated[key[1]]
        if until != courses[key].end or key not in ends:
            wrong = f"its entry says that the old journal's rows end at {until}"
            return Difference(wrong, version, key[1], courses[key].end)
        courses[key] = _Course(starts.get(key, -1), ends[key], recreated=True)
    _follow_sources(courses, begins, starts)
    for key in sorted(courses.keys() | begins.keys() | ends.keys()):
        begin, end, start = begins.get(key), ends.get(key), starts.get(key)
        if begin is None or end is None or start is None:
            absent = "begin" if begin is None else "end" if end is None else "start"
            return Difference(f"its entry has no {absent} of this journal", version, key[1])
        course = courses.get(key)
        if problem := _torn(course, begin, end, start, lost=lost or entry.adopted):
            return Difference(problem, version, key[1], min(begin, course.end if course else begin))
        if course is None:
            course = courses.setdefault(key, _Course(start, end, entry.adopted))
        course.end = end
        if end > begin:
            course.spans.append(Span(begin, end, version, *_audited(entry, key[1])))
    return _add_gaps(courses, entry.gaps, version)


def _follow_sources(
    courses: dict[Key, _Course], begins: Mapping[Key, int], starts: Mapping[Key, int]
) -> None:
    """Have journals go over to the number that their source has in an entry: sources are swapped, or added.

    A journal that its old source still reads is followed under both numbers from there on.
    """
    for key in sorted(begins.keys() - courses.keys()):
        same = [
            each
            for each, course in courses.items()
            if each[1] == key[1] and (course.end, course.start) == (begins[key], starts.get(key))
        ]
        left = [each for each in same if each not in begins]
        if left:
            courses[key] = courses.pop(left[0])
        elif same:
            courses[key] = replace(courses[same[0]], spans=[], gaps=[])


def _audited(entry: LedgerEntry, journal: str) -> tuple[int | None, str | None]:
    """Return the number of a journal's rows in a batch and their digest, as far as its entry says."""
    by_journal = {each.journal: each for each in entry.audit or ()}
    if entry.audit is None or by_journal.keys() == {None}:
        return None, None
    found = by_journal.get(journal)
    return (found.rows, found.digest) if found else (0, None)


def _torn(course: _Course | None, begin: int, end: int, start: int, *, lost: bool) -> str | None:
    """Return the reason why ``[begin, end)`` of an entry contradicts earlier entries of the journal."""
    if end < begin:
        return f"its entry ends at {end}, before its begin {begin}"
    if course is None:
        fits = start <= begin if lost else start == begin
        return None if fits else f"its entry begins this journal at {begin} and records the start {start}"
    if begin != course.end:
        wrong = (
            f"{begin - course.end} bytes left out"
            if begin > course.end
            else f"{course.end - begin} bytes twice"
        )
        return f"its entry begins at {begin} and the one before ends at {course.end}: {wrong}"
    if start != course.start:
        return f"its entry records the start {start}, the entries before {course.start}"
    return None


def _add_gaps(courses: Mapping[Key, _Course], gaps: Iterable[SkippedGap], version: int) -> Difference | None:
    for gap in gaps:
        around = [
            course
            for (_, journal), course in courses.items()
            if journal == gap.journal and _holds(course, gap, version)
        ]
        if not around:
            problem = (
                f"its entry names the gap [{gap.begin}, {gap.end}), not in its bytes or not past another"
            )
            return Difference(problem, version, gap.journal, gap.begin)
        for course in around:
            course.gaps.append((gap.begin, gap.end))
    return None


def _holds(course: _Course, gap: SkippedGap, version: int) -> bool:
    if not course.spans or course.spans[-1].table_version != version:
        return False
    low = max([course.spans[-1].begin, *(end for _, end in course.gaps[-1:])])
    return low <= gap.begin and gap.end <= course.end


def _flat(positions: Positions) -> dict[Key, int]:
    return {
        (number, journal): offset
        for number, position in enumerate(positions)
        if isinstance(position, JournalOffsets)
        for journal, offset in position.read_through.items()
    }
