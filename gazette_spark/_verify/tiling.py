"""Check that a ledger's entries cover each journal without gap or overlap; list the commits of others.

Everything here is a function of values. Of an app id's visible entries, oldest first, each must

- follow the one before it, by ``parent``, with a higher transaction number;
- begin in every journal where the one before it ended, and end there or later;
- begin a journal that is new to the table at the ``start`` it records, and keep the others' starts, but of a
  journal that was made again;
- name gaps that are within its bytes, apart from each other.

Delta cleans up old log entries. Then the parent of the oldest available entry is gone, and the writes of
earlier bytes are unknown: the cover is proven from that entry's ``begin`` on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from gazette_spark._ledger.entry import LedgerEntry, Positions
from gazette_spark._ledger.history import HistoryRow, app_ids
from gazette_spark.offsets import JournalOffsets

Stored = tuple[int, LedgerEntry]
"""A version of the table and the entry its commit carries."""

Key = tuple[int, str]
"""Number of a source in its query, and a journal it reads."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where table, ledger and journals disagree."""

    problem: str
    table_version: int
    """Version of the entry that differs, or of the rows that differ."""
    journal: str | None = None
    offset: int | None = None
    end_offset: int | None = None
    """If given, the difference is somewhere in ``[offset, end_offset)``."""

    def __str__(self) -> str:
        place = [f"table version {self.table_version}"]
        if self.journal is not None:
            place.append(f"journal {self.journal!r}")
        if self.end_offset is not None:
            place.append(f"offsets [{self.offset}, {self.end_offset})")
        elif self.offset is not None:
            place.append(f"offset {self.offset}")
        return f"{', '.join(place)}: {self.problem}"


@dataclass(frozen=True, slots=True)
class CommittedSpan:
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
    spans: tuple[CommittedSpan, ...]
    """Ascending, without a hole; the first begins after ``start`` if Delta cleaned up entries before it."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Bytes that are not in the table because they were gone, ascending."""
    adopted: bool = False
    """The table had rows before its ledger began at ``start``, and no entry describes them."""
    recreated: bool = False
    """The journal was deleted and created again: the table also has rows of its predecessor."""
    committed: bool = False
    """The rows are the messages that were committed in the range, wherever they begin."""

    @property
    def first(self) -> int:
        """Least offset of which the table may have a row."""
        return 0 if self.adopted else self.start

    def version_at(self, offset: int) -> int:
        """Return the version that added an offset, else the nearest version."""
        at = bisect_right(self.spans, offset, key=lambda span: span.begin) - 1
        return self.spans[max(at, 0)].table_version if self.spans else self.table_version


@dataclass(frozen=True, slots=True)
class Tiling:
    """The entries of one app id, which cover each of its journals without a gap or an overlap."""

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
    """Names of the tables for dead letters, sorted."""


@dataclass(slots=True)
class _Growing:
    """A covered range while its entries are being checked."""

    start: int
    end: int
    adopted: bool = False
    recreated: bool = False
    spans: list[CommittedSpan] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)


def check_contiguous(app_id: str, entries: Sequence[Stored], *, cleaned_up: bool) -> Tiling | Difference:
    """Check the visible entries of an app id, one after the other.

    Args:
        app_id: The writer.
        entries: Oldest first, at least one.
        cleaned_up: The table's log does not reach back to its first version.
    """
    # The entries have to be a chain. The first one may lack its parent only if Delta has cleaned up its log.
    version, first = entries[0]
    lost = first.parent is not None
    if lost and not cleaned_up:
        problem = f"its entry was decided on attempt {first.parent}, which is not in the history before it"
        return Difference(problem, version)
    for (before, previous), (version, entry) in pairwise(entries):
        if entry.parent != previous.attempt:
            problem = (
                f"its entry was decided on attempt {entry.parent}, and the visible entry before it, of "
                f"version {before}, is attempt {previous.attempt}: one is missing in between, or was undone"
            )
            return Difference(problem, version)
        # A writer that does not raise its transaction number is not fenced.
        if entry.txn_version <= previous.txn_version:
            older = f"{previous.txn_version}, that of version {before}"
            return Difference(f"its transaction number {entry.txn_version} is not above {older}", version)
    # Each entry has to begin where the one before it ended, in every journal.
    ranges: dict[Key, _Growing] = {}
    for index, stored in enumerate(entries):
        if difference := _follow(ranges, stored, lost=lost and index == 0):
            return difference
    committed = any(entry.isolation == "read_committed" for _, entry in entries)
    claims = tuple(
        CoveredRange(
            app_id,
            source,
            journal,
            covered.start,
            covered.end,
            entries[-1][0],
            tuple(covered.spans),
            tuple(covered.gaps),
            adopted=covered.adopted,
            recreated=covered.recreated,
            committed=committed,
        )
        for (source, journal), covered in sorted(ranges.items(), key=lambda item: (item[0][1], item[0][0]))
    )
    return Tiling(
        app_id,
        len(entries),
        claims,
        cleaned_up=lost,
        foreign=any(isinstance(position, str) for _, entry in entries for position in entry.end),
        upsert=any(entry.mode == "upsert" for _, entry in entries),
        dead_letters=tuple(sorted({entry.dead_letters for _, entry in entries if entry.dead_letters})),
    )


def _follow(ranges: dict[Key, _Growing], stored: Stored, *, lost: bool) -> Difference | None:  # noqa: C901, PLR0912 - the rules, in order
    """Add an entry to the ranges of its journals, or return the first rule that it breaks.

    ``lost``: entries before this one were cleaned up.
    """
    version, entry = stored
    begins, ends, starts = _flat(entry.begin), _flat(entry.end), _flat(entry.start)
    # A journal that was created again starts over, and its entry says where the old journal's rows end.
    for key in [key for key in ranges if key[1] in entry.recreated]:
        until = entry.recreated[key[1]]
        if until != ranges[key].end or key not in ends:
            problem = f"its entry says that the old journal's rows end at {until}"
            return Difference(problem, version, key[1], ranges[key].end)
        ranges[key] = _Growing(starts.get(key, -1), ends[key], recreated=True)
    # Sources may have been swapped, or added in front: a journal goes over to the number that its source has
    # in this entry. One that its old source still reads is followed under both numbers from here on.
    for key in sorted(begins.keys() - ranges.keys()):
        same = [
            other
            for other, covered in ranges.items()
            if other[1] == key[1] and (covered.end, covered.start) == (begins[key], starts.get(key))
        ]
        if former := next((other for other in same if other not in begins), None):
            ranges[key] = ranges.pop(former)
        elif same:
            ranges[key] = replace(ranges[same[0]], spans=[], gaps=[])
    for key in sorted(ranges.keys() | begins.keys() | ends.keys()):
        journal = key[1]
        begin, end, start = begins.get(key), ends.get(key), starts.get(key)
        if begin is None or end is None or start is None:
            absent = "begin" if begin is None else "end" if end is None else "start"
            return Difference(f"its entry has no {absent} of this journal", version, journal)
        covered = ranges.get(key)
        problem = ""
        if end < begin:
            problem = f"its entry ends at {end}, before its begin {begin}"
        elif covered is None:
            # After lost entries, or rows from before the ledger, a journal may begin past its start.
            if not (start <= begin if lost or entry.adopted else start == begin):
                problem = f"its entry begins this journal at {begin} and records the start {start}"
        elif begin != covered.end:
            distance = begin - covered.end
            wrong = f"{distance} bytes left out" if distance > 0 else f"{-distance} bytes twice"
            problem = f"its entry begins at {begin} and the one before ends at {covered.end}: {wrong}"
        elif start != covered.start:
            problem = f"its entry records the start {start}, the entries before {covered.start}"
        if problem:
            return Difference(problem, version, journal, min(begin, covered.end if covered else begin))
        if covered is None:
            covered = ranges[key] = _Growing(start, end, entry.adopted)
        covered.end = end
        if end > begin:
            covered.spans.append(CommittedSpan(begin, end, version, *_audited(entry, journal)))
    # Gaps ascend, within the bytes of this entry. A gap of a journal that two sources read belongs to both.
    for gap in entry.gaps:
        around = []
        for (_, journal), covered in ranges.items():
            if journal == gap.journal and covered.spans and covered.spans[-1].table_version == version:
                low = max([covered.spans[-1].begin, *(end for _, end in covered.gaps[-1:])])
                around += [covered] if low <= gap.begin and gap.end <= covered.end else []
        if not around:
            named = f"its entry names the gap [{gap.begin}, {gap.end})"
            problem = f"{named}, which is outside its bytes or overlaps another gap"
            return Difference(problem, version, gap.journal, gap.begin)
        for covered in around:
            covered.gaps.append((gap.begin, gap.end))
    return None


def shared_journals(tilings: Iterable[Tiling]) -> frozenset[str]:
    """Return the journals whose rows in a table cannot be told apart.

    Several writers, or several sources of one writer, read them, or a journal was created again.
    """
    claims = [claim for tiling in tilings for claim in tiling.claims]
    names = Counter(claim.journal for claim in claims)
    return frozenset(claim.journal for claim in claims if names[claim.journal] > 1 or claim.recreated)


def _audited(entry: LedgerEntry, journal: str) -> tuple[int | None, str | None]:
    """Return the number of a journal's rows in a batch and their digest, if the entry has them."""
    by_journal = {counted.journal: counted for counted in entry.audit or ()}
    if entry.audit is None or by_journal.keys() == {None}:
        return None, None
    counted = by_journal.get(journal)
    return (counted.rows, counted.digest) if counted else (0, None)


def _flat(positions: Positions) -> dict[Key, int]:
    return {
        (number, journal): offset
        for number, position in enumerate(positions)
        if isinstance(position, JournalOffsets)
        for journal, offset in position.read_through.items()
    }


KEEP_ROWS = frozenset(
    {
        *("ADD COLUMNS", "ADD CONSTRAINT", "ADD FEATURE", "CHANGE COLUMN", "CHANGE COLUMNS", "CLUSTER BY"),
        *("COMPUTE STATS", "CREATE TABLE", "DROP CONSTRAINT", "OPTIMIZE", "RENAME COLUMN", "REORG"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE SCHEMA", "UPGRADE PROTOCOL"),
        *("VACUUM END", "VACUUM START"),
    }
)
"""Operations that add and remove no row."""

ROW_METRICS = {
    "numDeletedRows": "deleted",
    "num_deleted_rows": "deleted",
    "numUpdatedRows": "updated",
    "num_updated_rows": "updated",
    "numTargetRowsInserted": "added",
    "num_target_rows_inserted": "added",
    "numTargetRowsUpdated": "updated",
    "num_target_rows_updated": "updated",
    "numTargetRowsDeleted": "deleted",
    "num_target_rows_deleted": "deleted",
}
"""Metrics of commits by Spark and ``deltalake``, each with what happened to the counted rows."""

WRITE_METRICS = {"numOutputRows": "added", "num_added_rows": "added"}
"""The same for writes; the metrics of a merge also count copied rows."""


@dataclass(frozen=True, slots=True)
class OtherCommit:
    """A commit without an entry of the writers that are verified, which may have changed rows."""

    table_version: int
    operation: str
    """Its operation in Delta's log; empty if the log names none."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows that were ``added``, ``updated`` or ``deleted``, as far as the commit says."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} rows {what}" for what, count in self.rows.items() if count)
        name = self.operation or "a commit that does not name its operation"
        return f"table version {self.table_version}: {name}, {counts or 'number of rows unknown'}"


def changed_rows(row: HistoryRow) -> dict[str, int]:
    """Return the numbers of rows that a commit says it added, updated and deleted."""
    names = WRITE_METRICS if row.operation == "WRITE" else ROW_METRICS
    counts = {what: str(row.metrics[name]) for name, what in names.items() if name in row.metrics}
    return {what: int(count) for what, count in counts.items() if count.isdecimal()}


def commits_of_others(history: Sequence[HistoryRow], writers: Collection[str]) -> Iterator[OtherCommit]:
    """Yield the commits, oldest first, that have no entry of some writers and may have changed rows.

    Args:
        history: Newest first.
        writers: App ids.
    """
    for row in reversed(history):
        if row.operation in KEEP_ROWS or not set(app_ids([row])).isdisjoint(writers):
            continue
        rows = changed_rows(row)
        if any(rows.values()) or not rows:
            yield OtherCommit(row.version, row.operation, rows)
