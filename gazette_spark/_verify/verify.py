"""Proves that a table's entries cover its journals without a gap, and that its rows are their records.

Two sides are compared: the *expected* rows, which are the ledger's ranges read again from the journals, and
the *actual* rows of the table. Both are summed by ranges of offsets, and only a range whose sums differ is
compared row by row. A range whose rows cannot be compared has a reason (``parts``). Before that, pure
functions check the ledger (``tiling``).

An engine reads and sums (``engine``): Spark, or for a small table this process, which needs no JVM.

There are three results: the table differs; all of it was compared and is correct; or parts of it were not
compared, and the report gives the offsets and the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from gazette_spark._formats.arrays import Positions
from gazette_spark._ledger.history import app_ids, visible_entries
from gazette_spark._options.source import READ_COMMITTED, parse_options
from gazette_spark._planning.reads import JournalSource
from gazette_spark._verify.data_ends import OriginColumns, origin_columns
from gazette_spark._verify.engine import NO_TABLE, Comparison, Engine, Sides
from gazette_spark._verify.journal_source import PlannedRange, plan_reads
from gazette_spark._verify.parts import (
    ADOPTED,
    FOREIGN,
    GONE,
    RECORDS,
    RECREATED,
    ROWS,
    SHARED,
    STRAY,
    UPSERT,
    Bins,
    Part,
    parts_of,
    unequal,
)
from gazette_spark._verify.tiling import (
    CoveredRange,
    Difference,
    OtherCommit,
    Tiling,
    changed_rows,
    check_contiguous,
    commits_of_others,
    shared_journals,
)
from gazette_spark.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gazette_spark._delta.delta_table import DeltaTable

Depth = Literal["entries", "counts", "offsets", "bytes", "entry", "nothing"]
"""Depth of a comparison: only the ledger; the number of records, their offsets or their bytes; or the rows
with the number and digest in their entry.
"""

PROOFS = frozenset({"offsets", "bytes", "entry"})

NO_COLUMNS = (
    "the table's columns do not show the origin of its rows; that requires _journal and _offset, or journal, "
    "offset and value of the format raw"
)
NO_ENTRY = "the table has a row here that no visible entry accounts for"
BEHIND_GONE = (
    "; bytes before offset {} are gone: a message repeated from these bytes, or a transaction that began "
    "there, would look the same"
)
"""Added to a difference in committed messages that may depend on missing bytes."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Rows that are accepted without a comparison."""

    gone: bool = False
    """Rows whose bytes the journals no longer have."""
    unclaimed: bool = False
    """Rows that no entry describes: those of a query's other sources, and those before an adopted ledger."""


@dataclass(frozen=True, slots=True)
class ComparedRange:
    """The comparison of the rows in a range."""

    app_id: str
    journal: str
    begin: int
    end: int
    depth: Depth
    reason: str | None = None
    """Reason why the rows were not compared, or only counted."""
    accepted: bool = False


@dataclass(slots=True)
class Report:
    """The result of an audit."""

    table: str
    table_version: int
    depth: Depth = "entries"
    """Depth to which this table can be compared."""
    tilings: list[Tiling] = field(default_factory=list)
    ranges: list[ComparedRange] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    """Number of records read, by journal."""
    appended: dict[int, int] = field(default_factory=dict)
    """Number of rows that a commit appended according to Delta's log, by version."""
    dead: dict[str, int] = field(default_factory=dict)
    """Number of records that are dead letters, by journal; only for writers with dead letters."""
    gone: list[tuple[str, int, int]] = field(default_factory=list)
    """Bytes that the journals no longer have, and that no entry names."""
    audited: int = 0
    """Number of ranges whose rows, and digest if any, match the entry of their commit."""
    unproven: list[str] = field(default_factory=list)
    """Reasons why the table is not verified although nothing differs."""
    others: tuple[OtherCommit, ...] = ()
    """Commits without an entry of these writers that may have added, changed or removed rows."""
    difference: Difference | None = None

    @property
    def claims(self) -> list[CoveredRange]:
        """Ranges that are in the table according to the entries."""
        return [claim for tiling in self.tilings for claim in tiling.claims]

    @property
    def result(self) -> Literal["verified", "different", "not verified"]:
        """The verdict."""
        if self.difference:
            return "different"
        return "not verified" if self.unproven else "verified"


def verify_table(
    spark: SparkSession,
    table: DeltaTable,
    client: JournalSource | None,
    options: Mapping[str, str],
    *,
    app_id: str | None = None,
    accepted: Accepted = Accepted(),
    locations: Mapping[str, str] | None = None,
) -> Report:
    """Audit the newest version of a table with a Spark job.

    Args:
        spark: The session, classic or Connect. Its workers need this package.
        table: The table.
        client: Client of the journals; None to check only the entries.
        options: The source's options for the same journals: ``brokerAddress``, and how the query read them.
        app_id: Check only this writer's entries, so that rows of other writers count as surplus. By default
            the entries of all writers are checked.
        accepted: Rows that are accepted without a comparison.
        locations: Locations of dead-letter tables by their names in a catalog.

    Raises:
        InputError: there is no entry, or the table cannot be read.
        GazetteError: a journal cannot be read.
    """
    from pyspark.errors import PySparkException

    from gazette_spark._verify.spark_engine import SparkEngine

    try:
        engine = SparkEngine(spark, table, options, locations or {})
        return audit(engine, client, options, app_id=app_id, accepted=accepted)
    except PySparkException as error:
        # Show one line: the error of this package if the text contains one.
        lines = str(error).splitlines()
        ours = [line for line in lines if line.startswith("gazette_spark.errors.")]
        text = ours[-1].partition(": ")[2] if ours else lines[0] if lines else type(error).__name__
        raise InputError(f"table {table.name} cannot be compared: {text}") from error


def audit(
    engine: Engine,
    client: JournalSource | None,
    options: Mapping[str, str],
    *,
    app_id: str | None = None,
    accepted: Accepted = Accepted(),
) -> Report:
    """Audit the newest version of a table with an engine; see :func:`verify_table`."""
    history = engine.history()
    if not history:
        raise InputError(NO_TABLE.format(engine.table))
    report = Report(engine.table, history[0].version)
    # Only these numbers do not depend on the entries: Delta counts rows while it writes them.
    report.appended = {
        row.version: rows
        for row in history
        if row.operation == "WRITE" and (rows := changed_rows(row).get("added")) is not None
    }
    writers = [app_id] if app_id else app_ids(history)
    report.others = tuple(commits_of_others(history, set(writers)))
    # A ledger that contradicts itself does not say which rows to expect, so the audit ends there. Delta
    # deletes old log files by age: if version 0 is gone, so may be entries.
    cleaned_up = history[-1].version > 0
    for writer in writers:
        entries = [
            (row.version, entry) for row, entry in visible_entries(history, writer, table=report.table)
        ]
        if not entries:
            continue
        tiling = check_contiguous(writer, entries[::-1], cleaned_up=cleaned_up)
        if isinstance(tiling, Difference):
            report.difference = tiling
            return report
        report.tilings.append(tiling)
        # Delta's log has the number of rows that a commit wrote. An entry with a different number is wrong.
        for version, entry in reversed(entries):
            counted, wrote = sum(rows.rows for rows in entry.audit or ()), report.appended.get(version)
            if entry.audit is not None and wrote not in (None, counted):
                problem = f"its entry has {counted} rows, but the commit wrote {wrote}"
                report.difference = Difference(problem, version)
                return report
    if not report.tilings:
        whose = f"of app id {app_id!r}" if app_id else "of any writer"
        problem = f"table {report.table} has no visible ledger entry {whose} in its {len(history)} commits"
        raise InputError(problem)
    if client is None:
        return report
    if report.claims:
        _compare_rows(report, engine, client, options, app_id=app_id, accepted=accepted)
    else:
        report.unproven.append("its entries name no journal")
    return report


def _compare_rows(  # noqa: C901, PLR0912, PLR0915 - the whole comparison, in order
    report: Report,
    engine: Engine,
    client: JournalSource,
    options: Mapping[str, str],
    *,
    app_id: str | None,
    accepted: Accepted,
) -> None:
    """Compare the journals' records in the ledger's ranges with the table's rows."""
    claims, tilings = report.claims, {tiling.app_id: tiling for tiling in report.tilings}
    names = origin_columns(engine.types(report.table_version))
    report.depth = "counts" if names is None else "bytes" if names.value else "offsets"

    # The table does not show which rows belong to some of the ranges. Such a range gets a reason here, and
    # the steps below need not distinguish the reasons.
    shared = shared_journals(report.tilings)
    refused: dict[int, str] = {}
    for index, claim in enumerate(claims):
        if tilings[claim.app_id].upsert:
            refused[index] = UPSERT
        elif claim.journal in shared:
            refused[index] = RECREATED if claim.recreated else SHARED
    compared = [claim for index, claim in enumerate(claims) if index not in refused]

    # The expected side. Its plan has the bytes that the journals have lost, whose rows cannot be compared
    # with records. If entries counted their rows, or rows have no origin, parts end with the commits.
    committed = any(claim.committed for claim in claims)
    source_options = {"journals": claims[0].journal}  # The option is required, but the plan decides.
    source_options |= {"isolationLevel": READ_COMMITTED} if committed else {}
    plan = plan_reads(client, parse_options({**options, **source_options}, "batch"), compared)
    parts: list[Part] = []
    for index, claim in enumerate(claims):
        reason = refused.get(index)
        gone = () if reason else plan[claim.journal].gone
        report.gone += [(claim.journal, *span) for span in gone]
        if gone and claim.committed and names is None:
            # Messages count where they were committed, and any commit may have had messages in the lost
            # bytes.
            gone = ((claim.start, claim.end),)
        by_commit = names is None or any(span.rows is not None for span in claim.spans)
        parts += parts_of(claim, gone, refused=reason, by_commit=by_commit)
    # An entry's digest is compared with the rows if they have the bytes, otherwise with the records.
    values = report.depth == "bytes"
    read_values = values or any(part.span and part.span.digest for part in parts)

    # The actual side: the table's rows, and dead letters instead of rows.
    sides = Sides(
        report.table_version,
        names,
        letters={tiling.app_id: tiling.dead_letters for tiling in report.tilings if tiling.dead_letters},
        recreated=frozenset(claim.journal for claim in claims if claim.recreated),
        values=values,
        reads_values=read_values,
        has_messages=committed,
        source_options=source_options,
    )

    # Both sides are summed together. All decisions are based on this small result.
    everything, bins = engine.comparison(plan, sides), Bins.of(parts)
    records, actual, dead = everything.totals(bins)
    report.records = dict.fromkeys((claim.journal for claim in compared), 0)
    records_of, rows_in, dead_of = (bins.by_part(total.counts) for total in (records, actual, dead))
    for part, count, letters in zip(parts, records_of, dead_of, strict=True):
        if part.claim.journal in report.records:
            report.records[part.claim.journal] += int(count)
        if part.claim.app_id in sides.letters:
            report.dead[part.claim.journal] = report.dead.get(part.claim.journal, 0) + int(letters)

    if names is None:
        # Without columns of origin, rows can only be counted, for each commit and for the table.
        expected_rows = bins.by_part(records.committed - dead.committed)
        report.difference = _wrong_count(report, parts, expected_rows)
        # All rows of the table can be counted only if the records of all of them are known.
        has_others = any(tiling.upsert or tiling.foreign for tiling in report.tilings)
        is_known = not report.gone and not has_others and all(part.reason is None for part in parts)
        if report.difference is None and app_id is None and is_known:
            expected, count = int(expected_rows.sum()), engine.count(report.table_version)
            if count != expected:
                problem = f"the table has {count} rows, but its bytes contain {expected} records"
                report.difference = Difference(problem, report.table_version)
    elif different := unequal(bins, records, actual, dead):
        # Only the first different bin is read again, row by row.
        part = bins.one(different[0])
        read = plan[part.claim.journal]
        near = engine.comparison({part.claim.journal: read.near(part.begin, part.end)}, sides)
        report.difference = _first_difference(part, near, read)
    # A row outside all ranges is as wrong as a missing one: something else wrote it, or an entry was lost.
    elif actual.outside.get(STRAY):
        report.difference = Difference(NO_ENTRY, report.table_version, *everything.first_stray(bins))
    # Rows without a journal cannot be Gazette's. They are expected if an entry has a foreign source.
    elif count := actual.outside.get(FOREIGN):
        if not any(tiling.foreign for tiling in report.tilings):
            report.difference = Difference(NO_ENTRY, report.table_version)
        elif not accepted.unclaimed:
            report.unproven.append(f"{count} rows are from the query's other sources")

    # Entries that counted and digested their rows prove rows whose records are gone.
    vouched: dict[int, Depth] = {}
    if report.difference is None:
        counts = [bins.by_part(total.committed).tolist() for total in (records, actual)]
        vouched, report.difference = _compare_entries(
            report, parts, counts, everything, names=names, parted=set(sides.letters)
        )

    described = [
        _describe(report, part, has_rows=bool(count), vouched=vouched.get(index), accepted=accepted)
        for index, (part, count) in enumerate(zip(parts, rows_in, strict=True))
    ]
    # Neighbouring parts with the same result are one line of the report.
    for same, group in groupby(filter(None, described), lambda part: replace(part, begin=0, end=0)):
        ranges = list(group)
        report.ranges.append(replace(same, begin=ranges[0].begin, end=ranges[-1].end))
    missing = [part for part in report.ranges if part.depth not in PROOFS]
    report.unproven += sorted({part.reason for part in missing if part.reason and not part.accepted})
    # Without this, a table whose ranges were all accepted without a comparison would count as verified.
    if missing == report.ranges and report.ranges and not report.unproven:
        report.unproven.append("nothing was compared")


def _wrong_count(report: Report, parts: Sequence[Part], records: Positions) -> Difference | None:
    """Return the first commit that wrote more or fewer rows than its bytes have records."""
    if any(tiling.foreign for tiling in report.tilings):
        return None
    expected: dict[int, int] = {}
    # A commit that also has rows of lost bytes wrote more rows than its other bytes have records.
    lossy = {part.span.table_version for part in parts if part.span and part.reason == GONE}
    for part, count in zip(parts, records, strict=True):
        if part.span and part.reason is None:
            version = part.span.table_version
            expected[version] = expected.get(version, 0) + int(count)
    for version, count in sorted(expected.items()):
        wrote = report.appended.get(version)
        if wrote not in (None, count) and version not in lossy:
            problem = f"the commit wrote {wrote} rows, but its bytes contain {count} records"
            return Difference(problem, version)
    return None


def _first_difference(part: Part, near: Comparison, read: PlannedRange) -> Difference:
    """Return the first difference in a part whose sums differ."""
    claim, what = part.claim, "committed message" if part.claim.committed else "record"
    offset, problem, place = near.first_in(part, what) or (
        None,
        f"the rows of these offsets differ from the {what}s",
        None,
    )
    # A message belongs to the commit of its acknowledgement. A row that is not a message has no such commit.
    at = place if claim.committed else part.begin if offset is None else offset
    version = claim.table_version if at is None else claim.version_at(at)
    if claim.committed:
        # Which messages are committed depends on the bytes before them. After a hole, the audit itself may
        # cause a difference, and the report says so.
        problem += "".join(BEHIND_GONE.format(end) for _, end in read.gone)
    if offset is None:
        return Difference(problem, version, claim.journal, part.begin, part.end)
    return Difference(problem, version, claim.journal, offset)


def _compare_entries(
    report: Report,
    parts: Sequence[Part],
    counts: Sequence[Sequence[int]],
    everything: Comparison,
    *,
    names: OriginColumns | None,
    parted: set[str],
) -> tuple[dict[int, Depth], Difference | None]:
    """Compare the numbers and digests in entries with the records, or with rows if records are missing.

    Args:
        report: The report, whose ``audited`` becomes the number of ranges that match their entries.
        parts: All parts.
        counts: Numbers of records and of rows that were committed in a part's bytes.
        everything: Both sides.
        names: The table's columns of origin.
        parted: Writers with dead letters.

    Returns:
        The depth of parts whose records are gone but whose rows match their entries, and the first
        difference.
    """
    in_bytes = report.depth == "bytes"
    gone = {id(part.claim) for part in parts if part.reason == GONE}
    spans: list[tuple[Part, int, int]] = []
    vouched: dict[int, Depth] = {}
    for (_, span), group in groupby(enumerate(parts), lambda item: (id(item[1].claim), item[1].span)):
        indexes = [index for index, _ in group]
        claim = parts[indexes[0]].claim
        if span is None or span.rows is None:
            continue
        lost = [index for index in indexes if parts[index].reason == GONE]
        # Any commit of the journal may have committed a message in the lost bytes.
        is_lossy = id(claim) in gone if claim.committed else bool(lost)
        has_rows = names is not None and (not claim.committed or names.place is not None)
        # The entry counted what it wrote to the table. The records are the same number unless some are lost
        # or became dead letters; then only the rows can be counted.
        by_rows = is_lossy or claim.app_id in parted or (claim.committed and has_rows)
        if by_rows and not has_rows:
            continue
        number = ROWS if by_rows else RECORDS
        count = sum(counts[number][index] for index in indexes)
        spans.append((Part(claim, span.begin, span.end, span), number, count))
        # The entry of a commit proves the rows of its lost bytes. Any commit of the journal may have had
        # messages there, so for messages all of them must match, without a gap between their bytes.
        witnesses = claim.spans if claim.committed else (span,)
        if all(witness.rows is not None for witness in witnesses) and (
            not claim.committed
            or sum(witness.end - witness.begin for witness in witnesses) == claim.end - claim.start
        ):
            proven = all(not witness.rows or (in_bytes and witness.digest) for witness in witnesses)
            # An entry counts no dead letters, so nothing shows whether those of lost bytes are all there.
            proven = proven and claim.app_id not in parted
            vouched.update(dict.fromkeys(lost, "entry" if proven else "counts"))
    problems: dict[int, str] = {}
    for index, (part, number, count) in enumerate(spans):
        assert part.span is not None
        if part.span.rows != count:
            where = "rows in the table" if number == ROWS else "records in the journal"
            problems[index] = f"its entry has {part.span.rows} rows, but there are {count} {where}"
    # Rows with the bytes equal the records, or a difference was found before. So they represent both.
    digested = [
        index
        for index, (part, number, _) in enumerate(spans)
        if part.span and part.span.digest and (in_bytes or number == RECORDS)
    ]
    if digested and not problems:
        digests = everything.digests(ROWS if in_bytes else RECORDS, [spans[index][0] for index in digested])
        whose = "rows" if in_bytes else "records"
        for at, index in enumerate(digested):
            part = spans[index][0]
            assert part.span is not None
            if part.span.digest != digests.get(at):
                problems[index] = (
                    f"its entry has the digest {part.span.digest}, but its {whose} have {digests.get(at)}"
                )
    if not problems:
        report.audited += len(spans)
        return vouched, None
    part = spans[min(problems)][0]
    assert part.span is not None
    version = part.span.table_version
    return {}, Difference(problems[min(problems)], version, part.claim.journal, part.begin, part.end)


def _describe(
    report: Report, part: Part, *, has_rows: bool, vouched: Depth | None, accepted: Accepted
) -> ComparedRange | None:
    """Return how the rows of a part were compared; None if there are none to compare."""
    claim, depth, reason, is_accepted = part.claim, report.depth, part.reason, False
    # The range before an adopted ledger exists in every such table, and need not have a row.
    if reason == ADOPTED and not has_rows and depth != "counts":
        return None
    if reason == GONE and vouched:
        depth, reason, is_accepted = vouched, None if vouched == "entry" else GONE, accepted.gone
    elif reason:
        depth = "nothing"
        is_accepted = {GONE: accepted.gone, ADOPTED: accepted.unclaimed}.get(reason, False)
    elif depth == "counts":
        reason = NO_COLUMNS
        if part.span is None or part.span.table_version not in report.appended:
            depth = "nothing"
            reason += ", and the commit does not have the number of its rows"
    return ComparedRange(claim.app_id, claim.journal, part.begin, part.end, depth, reason, is_accepted)
