"""Checks that a ledger's entries cover each journal without gap or overlap, and lists other commits.

The functions here are pure. Each of an app id's visible entries, oldest first, must

- follow the previous one, by ``parent``, with a higher transaction number;
- begin, in every journal, where the previous one ended, and end there or later;
- begin a journal that is new to the table at its recorded ``start``, and keep the starts of the others,
  except for a recreated journal;
- name gaps that are within its bytes and do not overlap.

Delta cleans up old log entries. Then the parent of the oldest available entry is gone, and the commits of
earlier bytes are unknown: the cover is proven from that entry's ``begin`` on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from gazette_spark._ledger.entry import LedgerEntry, Positions
from gazette_spark._ledger.history import HistoryRow, app_ids, number_in
from gazette_spark.offsets import JournalOffsets

Stored = tuple[int, LedgerEntry]
"""A version of the table, and the entry of its commit."""

Key = tuple[int, str]
"""Number of a source in its query, and one of its journals."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where table, ledger and journals disagree."""

    problem: str
    table_version: int
    """Version of the entry or the rows that differ."""
    journal: str | None = None
    offset: int | None = None
    end_offset: int | None = None
    """If set, the difference is somewhere in ``[offset, end_offset)``."""

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
    """Bytes ``[begin, end)`` of a journal that one commit added, at least one."""

    begin: int
    end: int
    table_version: int
    rows: int | None = None
    """Number of the journal's rows in the commit, if its entry has it."""
    digest: str | None = None
    """Digest of the rows, if the batch had the records' bytes."""


@dataclass(frozen=True, slots=True)
class CoveredRange:
    """The range of one journal that the table has according to the entries, from one source of a query."""

    app_id: str
    source: int
    journal: str
    start: int
    """Start of the table's rows, as recorded in the entries."""
    end: int
    table_version: int
    """Version of the newest entry."""
    spans: tuple[CommittedSpan, ...]
    """Spans, ascending and contiguous; the first begins after ``start`` if Delta has cleaned up entries."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Bytes that are not in the table because they were missing, ascending."""
    adopted: bool = False
    """Whether the table had rows before its ledger began at ``start``, which no entry describes."""
    recreated: bool = False
    """Whether the journal was deleted and created again, so that the table has rows of the old one too."""
    committed: bool = False
    """Whether the rows are the messages that were committed in the range, wherever they begin."""

    @property
    def first(self) -> int:
        """Smallest offset of which the table may have a row."""
        return 0 if self.adopted else self.start

    def version_at(self, offset: int) -> int:
        """Return the version that added an offset, or the nearest version."""
        at = bisect_right(self.spans, offset, key=lambda span: span.begin) - 1
        return self.spans[max(at, 0)].table_version if self.spans else self.table_version


@dataclass(frozen=True, slots=True)
class Tiling:
    """The entries of one app id, which cover each of its journals without gap or overlap."""

    app_id: str
    entries: int
    claims: tuple[CoveredRange, ...]
    cleaned_up: bool
    """Whether Delta's log lacks the entries before the oldest one."""
    foreign: bool
    """Whether the query also reads other sources."""
    upsert: bool = False
    """Whether rows were ever merged by key."""
    dead_letters: tuple[str, ...] = ()
    """Names of the dead-letter tables, sorted."""


@dataclass(slots=True)
class _Growing:
    """A covered range while its entries are checked."""

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
        entries: Entries, oldest first, at least one.
        cleaned_up: Whether the table's log lacks its first versions.
    """
    # The entries must form a chain. The first one may lack its parent only if Delta has cleaned up its log.
    version, first = entries[0]
    lost = first.parent is not None
    if lost and not cleaned_up:
        problem = f"its entry was decided on attempt {first.parent}, which is not in the history before it"
        return Difference(problem, version)
    for (before, previous), (version, entry) in pairwise(entries):
        if entry.parent != previous.attempt:
            problem = (
                f"its entry was decided on attempt {entry.parent}, but the previous visible entry, version "
                f"{before}, is attempt {previous.attempt}: an entry in between is missing or was undone"
            )
            return Difference(problem, version)
        # A writer that does not increase its transaction number is not fenced.
        if entry.txn_version <= previous.txn_version:
            older = f"{previous.txn_version}, that of version {before}"
            return Difference(f"its transaction number {entry.txn_version} is not above {older}", version)
    # Each entry must begin, in every journal, where the previous one ended.
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

    ``lost``: whether entries before this one were cleaned up.
    """
    version, entry = stored
    begins, ends, starts = _flat(entry.begin), _flat(entry.end), _flat(entry.start)
    # A recreated journal starts over, and its entry has the end of the old journal's rows.
    for key in [key for key in ranges if key[1] in entry.recreated]:
        until = entry.recreated[key[1]]
        # The entry repeats where the old journal's rows end. If that disagrees, rows of one of the two are
        # missing or wrong, and nothing later would show it.
        if until != ranges[key].end or key not in ends:
            problem = f"its entry has {until} as the end of the old journal's rows"
            return Difference(problem, version, key[1], ranges[key].end)
        ranges[key] = _Growing(starts.get(key, -1), ends[key], recreated=True)
    # Sources may have been swapped, or added in front: a journal moves to the number of its source in this
    # entry. If its old source still reads it, it is followed under both numbers from here on.
    for key in sorted(begins.keys() - ranges.keys()):
        same = [
            other
            for other, covered in ranges.items()
            if other[1] == key[1] and (covered.end, covered.start) == (begins[key], starts.get(key))
        ]
        # The order of a query's sources is not guaranteed: see decision 25.
        if former := next((other for other in same if other not in begins), None):
            ranges[key] = ranges.pop(former)
        elif same:
            ranges[key] = replace(ranges[same[0]], spans=[], gaps=[])
    # Rows without columns of origin are counted together, for all journals of the batch.
    by_journal = {counted.journal: counted for counted in entry.audit or ()}
    is_counted = entry.audit is not None and by_journal.keys() != {None}
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
            # After cleaned-up entries, or rows from before the ledger, a journal may begin past its start.
            if not (start <= begin if lost or entry.adopted else start == begin):
                problem = f"its entry begins this journal at {begin} and records the start {start}"
        # This rule makes the ledger a proof: each byte is in exactly one commit.
        elif begin != covered.end:
            distance = begin - covered.end
            wrong = f"{distance} bytes are missing" if distance > 0 else f"{-distance} bytes occur twice"
            problem = f"its entry begins at {begin}, but the previous one ends at {covered.end}: {wrong}"
        elif start != covered.start:
            problem = f"its entry records the start {start}, but earlier entries {covered.start}"
        if problem:
            return Difference(problem, version, journal, min(begin, covered.end if covered else begin))
        if covered is None:
            covered = ranges[key] = _Growing(start, end, entry.adopted)
        covered.end = end
        if end > begin:
            counted = by_journal.get(journal)
            rows = (counted.rows if counted else 0) if is_counted else None
            digest = counted.digest if is_counted and counted else None
            covered.spans.append(CommittedSpan(begin, end, version, rows, digest))
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
    """Return the journals whose rows in a table cannot be distinguished.

    They are read by several writers or by several sources of one writer, or were created again.
    """
    claims = [claim for tiling in tilings for claim in tiling.claims]
    names = Counter(claim.journal for claim in claims)
    return frozenset(claim.journal for claim in claims if names[claim.journal] > 1 or claim.recreated)


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
        *("COMPUTE STATS", "CREATE TABLE", "DOMAIN METADATA CLEANUP", "DROP COLUMNS", "DROP CONSTRAINT"),
        *("DROP FEATURE", "OPTIMIZE", "REMOVE COLUMN MAPPING", "RENAME COLUMN", "REORG"),
        *("REORG TABLE UPGRADE UNIFORM", "REPLACE COLUMNS", "ROW TRACKING BACKFILL"),
        *("ROW TRACKING UNBACKFILL", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE FIELD METADATA"),
        *("UPDATE SCHEMA", "UPDATE TABLE METADATA", "UPGRADE PROTOCOL", "VACUUM END", "VACUUM START"),
    }
)
"""Operations that neither add nor remove rows."""

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
"""Metrics of commits by Spark and ``deltalake``, each with the fate of the counted rows."""

WRITES = frozenset({"CREATE TABLE AS SELECT", "STREAMING UPDATE", "WRITE"})
"""Operations of batches and of Delta's own streams."""

WRITE_METRICS = {**ROW_METRICS, "numOutputRows": "added", "num_added_rows": "added"}
"""The same for writes; the metrics of a merge also count copied rows."""

REMOVED_FILES = ("numRemovedFiles", "num_removed_files")


@dataclass(frozen=True, slots=True)
class OtherCommit:
    """A commit without an entry of the verified writers that may have changed rows."""

    table_version: int
    operation: str
    """Operation in Delta's log; empty if the log has none."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Numbers of rows that were ``added``, ``updated`` or ``deleted``, if the commit has them."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} rows {what}" for what, count in self.rows.items() if count)
        name = self.operation or "a commit without the name of its operation"
        return f"table version {self.table_version}: {name}, {counts or 'number of rows unknown'}"


def changed_rows(row: HistoryRow) -> dict[str, int]:
    """Return the numbers of rows that a commit added, updated and deleted; empty if its metrics lack them."""
    names = WRITE_METRICS if row.operation in WRITES else ROW_METRICS
    counts = {what: str(row.metrics[name]) for name, what in names.items() if name in row.metrics}
    # Most overwrites do not count the rows that they remove.
    removed = [number_in(str(row.metrics.get(name))) for name in REMOVED_FILES]
    if row.operation in WRITES and any(removed) and "deleted" not in counts:
        return {}
    numbers = {what: number_in(count) for what, count in counts.items()}
    return {what: number for what, number in numbers.items() if number is not None}


def commits_of_others(history: Sequence[HistoryRow], writers: Collection[str]) -> Iterator[OtherCommit]:
    """Yield the commits without an entry of the writers that may have changed rows, oldest first.

    Args:
        history: Commits, newest first.
        writers: App ids of the verified writers.
    """
    for row in reversed(history):
        # Without a metric, an unknown operation may have done anything, so it is listed.
        if row.operation in KEEP_ROWS or not set(app_ids([row])).isdisjoint(writers):
            continue
        rows = changed_rows(row)
        if any(rows.values()) or not rows:
            yield OtherCommit(row.version, row.operation, rows)
