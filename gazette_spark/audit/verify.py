"""Proves that a table's entries check_contiguous its journals, and that its rows are the journals' records.

Reads the ledger, then each journal once, a window at a time, and the table's rows of that window. ``tiling``
and ``rows`` compare; here the data is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from gazette_spark.audit.compare_rows import (
    WINDOW_BYTES,
    Rows,
    Window,
    first_difference,
    joined_rows,
    windows,
)
from gazette_spark.audit.dead_letter_records import DeadLetterRows, location_of
from gazette_spark.audit.differences import Difference
from gazette_spark.audit.journal_records import JournalRecords, without
from gazette_spark.audit.table import PlaceColumns, TableSnapshot
from gazette_spark.audit.tiling import CoveredRange, Stored, Tiling, check_contiguous, shared_journals
from gazette_spark.audit.totals import SpanTotals
from gazette_spark.errors import InputError, JournalNotFoundError
from gazette_spark.framing.base import Framing
from gazette_spark.ledger.history import app_ids, visible_entries
from gazette_spark.scan.blocks import MAX_RECORD_BYTES
from gazette_spark.scan.framings import framing_name, framing_named
from gazette_spark.scan.reads import JournalSource


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The query's options for reading records, where they are not the default."""

    framing: str | None = None
    """None: the one the journal's label says."""
    separator: str = ","
    quote: str = '"'
    max_record_bytes: int = MAX_RECORD_BYTES
    allow_gone: bool = False
    """Bytes that journals no longer have are named and no difference."""
    dead_letters: Mapping[str, str] = field(default_factory=dict)
    """Locations of tables of dead letters, by their names in a catalog."""

    def framing_of(self, client: JournalSource, journal: str) -> Framing:
        """Return the framing a journal is read in."""
        name = framing_name(client.get_journal(journal).spec, self.framing, None)
        return framing_named(name, self.max_record_bytes, self.separator, self.quote)


@dataclass(slots=True)
class Report:
    """Result of an audit: the checked ranges, and the first difference."""

    table: str
    table_version: int
    compared: str = "entries"
    """Depth of the comparison: ``entries``, ``counts`` of records, their ``offsets``, or their ``bytes``."""
    tilings: list[Tiling] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    """By journal, the number of records found and compared."""
    rows: dict[int, int] = field(default_factory=dict)
    """By version, the number of rows that its commit says it appended."""
    dead: dict[str, int] = field(default_factory=dict)
    """By journal, the number of records that are dead letters; only for writers with dead letters."""
    gone: list[tuple[str, int, int]] = field(default_factory=list)
    """Bytes that no entry names and the journals no longer have; their rows are not compared."""
    audited: int = 0
    """Ranges of a journal and a commit that have the rows, and the digest if any, that the entry says."""
    vouched: list[tuple[str, int, int]] = field(default_factory=list)
    """Of these, ranges whose records the journals no longer have whole: the table's rows still match the
    entry."""
    difference: Difference | None = None

    @property
    def claims(self) -> list[CoveredRange]:
        """Ranges that the entries say are in the table."""
        return [claim for tiling in self.tilings for claim in tiling.claims]


def verify_table(
    table: TableSnapshot,
    client: JournalSource | None,
    options: RecordOptions | None = None,
    *,
    name: str,
    app_id: str | None = None,
) -> Report:
    """Audit a version of a table.

    Args:
        table: The version.
        client: Where the journals are; None: look at the entries alone.
        options: How the query read the journals.
        name: Of the table, for the report and errors.
        app_id: Only this writer's entries; else those of all. Rows of other writers are then rows too many.

    Raises:
        InputError: there is no entry, or the table cannot be read.
        GazetteError: a journal cannot be read.
    """
    report = Report(name, table.version, rows=table.appended)
    report.difference = _tile(report, table, app_id)
    if client is None or report.difference:
        return report
    if upserting := [each.app_id for each in report.tilings if each.upsert]:
        problem = (
            f"table {name}: app id {upserting[0]!r} keeps one row of each key by upsert, so its rows are not "
            "the journals' records; audit the entries alone (--entries-only)"
        )
        raise InputError(problem)
    if shared := sorted(shared_journals(report.tilings)):
        problem = (
            f"table {name}: the records of journal {shared[0]!r} are in it through several app ids or "
            "sources, which its rows do not tell apart; audit the entries alone (--entries-only)"
        )
        raise InputError(problem)
    options = options or RecordOptions()
    columns = table.columns()
    values = columns is not None and columns.value is not None
    dead = {
        each.app_id: DeadLetterRows(_open(each.dead_letters, options), each.app_id, values=values)
        for each in report.tilings
        if each.dead_letters
    }
    reading = _Reading(report, table, client, options, dead)
    report.difference = reading.compare_rows(columns) if columns else reading.compare_counts()
    return report


def _open(names: Iterable[str], options: RecordOptions) -> list[TableSnapshot]:
    locations = {location_of(name, options.dead_letters) for name in names}
    return [TableSnapshot(location) for location in sorted(locations)]


def _tile(report: Report, table: TableSnapshot, app_id: str | None) -> Difference | None:
    history = table.history
    cleaned_up = bool(history) and history[-1].version > 0
    for each in [app_id] if app_id else app_ids(history):
        entries = [(row.version, entry) for row, entry in visible_entries(history, each, table=report.table)]
        if not entries:
            continue
        tiling = check_contiguous(each, entries[::-1], cleaned_up=cleaned_up)
        if isinstance(tiling, Difference):
            return tiling
        report.tilings.append(tiling)
        if miscounted := _miscounted(report, entries):
            return miscounted
    if not report.tilings:
        whose = f"of app id {app_id!r}" if app_id else "of any writer"
        raise InputError(
            f"table {report.table} has no visible ledger entry {whose} in its {len(history)} commits"
        )
    return None


def _miscounted(report: Report, entries: list[Stored]) -> Difference | None:
    """Return the oldest entry that counted other rows than its commit appended, as Delta's log says."""
    for version, entry in reversed(entries):
        counted = sum(each.rows for each in entry.audit or ())
        if entry.audit is not None and report.rows.get(version) not in (None, counted):
            problem = f"its entry says that it brings {counted} rows, the commit wrote {report.rows[version]}"
            return Difference(problem, version)
    return None


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads journals and table side by side."""

    report: Report
    table: TableSnapshot
    client: JournalSource
    options: RecordOptions
    dead: Mapping[str, DeadLetterRows]
    """Dead letters of each writer that has some."""

    def compare_rows(self, columns: PlaceColumns) -> Difference | None:
        """Compare the table's rows with the records, journal by journal; then look for rows of neither."""
        self.report.compared = "bytes" if columns.value else "offsets"
        for claim in self.report.claims:
            totals = SpanTotals(claim)
            if different := self._compare_journal(claim, totals) or self._compare_totals(
                claim, totals, columns
            ):
                return different
        expected = sum(self.report.records.values()) - sum(self.report.dead.values())
        if not self.report.gone and self.table.count() == expected:
            return None
        foreign = any(tiling.foreign for tiling in self.report.tilings)
        if stray := self.table.stray_row(self.report.claims, foreign=foreign):
            problem = "the table has a row here, which no visible entry accounts for"
            return Difference(problem, self.table.version, *stray)
        return None

    def compare_counts(self) -> Difference | None:
        """Count the records of each entry, where its commit says how many rows it appended."""
        self.report.compared = "counts"
        counted: dict[int, int] = {}
        for claim in self.report.claims:
            totals = SpanTotals(claim)
            for window in self._windows(claim, values=totals.digested):
                totals.add(window.records)
            for span, count in zip(claim.spans, totals.counts.tolist(), strict=True):
                fit = count - len(self._dead_rows(claim, span.begin, span.end))
                counted[span.table_version] = counted.get(span.table_version, 0) + fit
            if different := self._unallowed(claim) or self._compare_totals(claim, totals, columns=None):
                return different
        return self._unlike(counted)

    def _unlike(self, counted: Mapping[int, int]) -> Difference | None:
        lossy = {
            span.table_version
            for claim in self.report.claims
            for begin, end in self._gone_of(claim)
            for span in claim.spans
            if span.begin < end and begin < span.end
        }
        foreign = any(tiling.foreign for tiling in self.report.tilings)
        for version, records in sorted(counted.items()):
            rows = self.report.rows.get(version)
            if rows not in (None, records) and version not in lossy and not foreign:
                return Difference(f"the commit wrote {rows} rows, its bytes hold {records} records", version)
        return None

    def _compare_journal(self, claim: CoveredRange, totals: SpanTotals) -> Difference | None:
        values = self.report.compared == "bytes"
        for window in self._windows(claim, values=values or totals.digested):
            if gone := self._unallowed(claim):
                return gone
            totals.add(window.records)
            for begin, end in without((window.begin, window.end), self._gone_of(claim)):
                found = self.table.rows(claim.journal, begin, end)
                if len(dead := self._dead_rows(claim, begin, end)):
                    found = joined_rows([found, dead], values=values)
                if different := first_difference(window.records_of(begin, end), found):
                    offset, problem = different
                    return Difference(problem, claim.version_at(offset), claim.journal, offset)
        return self._unallowed(claim)

    def _compare_totals(
        self, claim: CoveredRange, totals: SpanTotals, columns: PlaceColumns | None
    ) -> Difference | None:
        """Compare the entries' counts with the records; with the table's rows where records are missing.

        The entry vouches for rows of missing records; rows of dead letters are in another table.
        """
        gone, parted = self._gone_of(claim), claim.app_id in self.dead
        for at, span in enumerate(claim.spans):
            lossy = any(begin < span.end and span.begin < end for begin, end in gone)
            if span.rows is None or ((lossy or parted) and columns is None):
                continue
            if (lossy or parted) and columns is not None:
                held = self._totals_of_rows(claim, at)
                different = held.difference(at, "rows in the table", digested=columns.value is not None)
            else:
                different = totals.difference(at, "records in the journal", digested=True)
            if different:
                return different
            self.report.audited += 1
            if lossy:
                self.report.vouched.append((claim.journal, span.begin, span.end))
        return None

    def _totals_of_rows(self, claim: CoveredRange, at: int) -> SpanTotals:
        """Add up the table's rows of a span."""
        totals, span = SpanTotals(claim), claim.spans[at]
        for begin in range(span.begin, span.end, WINDOW_BYTES):
            totals.add(self.table.rows(claim.journal, begin, min(begin + WINDOW_BYTES, span.end)))
        return totals

    def _dead_rows(self, claim: CoveredRange, begin: int, end: int) -> Rows:
        """Return the dead letters of a range of a claim, and count them in the report."""
        if claim.app_id not in self.dead:
            return Rows(np.empty(0, np.int64))
        found = self.dead[claim.app_id].rows(claim.journal, begin, end)
        self.report.dead[claim.journal] = self.report.dead.get(claim.journal, 0) + len(found)
        return found

    def _windows(self, claim: CoveredRange, *, values: bool) -> Iterator[Window]:
        """Yield the windows of a journal, and add missing bytes to the report."""
        report, options = self.report, self.options
        report.records.setdefault(claim.journal, 0)
        if claim.start == claim.end:
            return
        try:
            framing = options.framing_of(self.client, claim.journal)
        except JournalNotFoundError:
            if not options.allow_gone:
                raise
            report.gone.append((claim.journal, claim.start, claim.end))
            return
        for begin, end in _ranges(claim, framing):
            blocks = JournalRecords(
                self.client,
                claim.journal,
                begin,
                end,
                framing,
                gaps=claim.gaps,
                max_record_bytes=options.max_record_bytes,
            )
            known = 0
            for window in windows(blocks, begin, end, framing, values=values):
                gone = blocks.gone
                report.gone += [(claim.journal, *each) for each in gone[known:]]
                known = len(gone)
                report.records[claim.journal] += len(window.records)
                yield window

    def _gone_of(self, claim: CoveredRange) -> list[tuple[int, int]]:
        return [(begin, end) for journal, begin, end in self.report.gone if journal == claim.journal]

    def _unallowed(self, claim: CoveredRange) -> Difference | None:
        gone = self._gone_of(claim)
        if not gone or self.options.allow_gone:
            return None
        begin, end = gone[0]
        problem = f"the journal no longer has the bytes [{begin}, {end}): their rows cannot be compared"
        return Difference(problem, claim.version_at(begin), claim.journal, begin)


def _ranges(claim: CoveredRange, framing: Framing) -> list[tuple[int, int]]:
    """Return the ranges of a journal in which it is scanned."""
    if framing.name == "none":  # The end of a batch is the end of a chunk.
        return [(span.begin, span.end) for span in claim.spans]
    return [(claim.start, claim.end)]
