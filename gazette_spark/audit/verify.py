"""Proves that a table's entries cover its journals without a seam, and that its rows are their records.

The ledger is followed by plain functions (``tiling``). Then Spark reads each journal and the table once, adds
both up by bins, and only the bins whose sums differ are looked at again (``parts``, ``spark_totals``). A
result is one of three: the table differs; all of it was compared and is as it should be; or it was not
compared as a whole, and the report says which offsets were not, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark._formats.arrays import Positions
from gazette_spark._planning.reads import JournalSource
from gazette_spark.audit.differences import Difference, OtherCommit, changed_rows, commits_of_others
from gazette_spark.audit.journal_source import PlannedRange, plan_reads, read_records
from gazette_spark.audit.parts import Bins, Part, first_difference, parts_of, unequal
from gazette_spark.audit.spark_totals import FOREIGN, SIDES, STRAY, Adder, TableRows, dead_letters
from gazette_spark.audit.tiling import CoveredRange, Stored, Tiling, check_contiguous, shared_journals
from gazette_spark.errors import GazetteError, InputError
from gazette_spark.ledger.history import HistoryRow, app_ids, visible_entries
from gazette_spark.options.source import READ_COMMITTED, parse_options
from gazette_spark.table.delta_table import DeltaTable

Depth = Literal["entries", "counts", "offsets", "bytes", "entry", "nothing"]
"""Depth of a comparison: the ledger alone, the number of records, their offsets, their bytes; or of rows with
the number and digest in their entry."""

PROOFS = frozenset({"offsets", "bytes", "entry"})

NO_COLUMNS = (
    "the table's columns do not say where its rows come from; that takes _journal and _offset, or journal, "
    "offset and value of the format raw"
)
UPSERT = "the writer keeps one row of each key by upsert, so its rows are not the journal's records"
SHARED = "several app ids or sources bring this journal's records, and rows do not tell them apart"
RECREATED = "the journal was made again, and rows do not tell its records from those of the old one"
GONE = "the journal no longer has these bytes"
BEHIND_GONE = (
    "; bytes before offset {} are gone: a message that was repeated from them, or a transaction that began "
    "there, looks the same"
)
"""Comes after a difference in committed messages, whose fate may hang on bytes that are gone."""
ADOPTED = "rows from before the ledger was adopted"


@dataclass(frozen=True, slots=True)
class Accepted:
    """Rows that may stay without a comparison."""

    gone: bool = False
    """Those whose bytes the journals no longer have."""
    unclaimed: bool = False
    """Those that no entry speaks of: of other sources of a query, or from before an adopted ledger."""


@dataclass(frozen=True, slots=True)
class ComparedRange:
    """How the rows of some offsets were compared."""

    app_id: str
    journal: str
    begin: int
    end: int
    depth: Depth
    reason: str | None = None
    """Reason why they were not compared, or by their number only."""
    accepted: bool = False


@dataclass(slots=True)
class Report:
    """Result of an audit."""

    table: str
    table_version: int
    depth: Depth = "entries"
    """Depth to which this table can be compared."""
    tilings: list[Tiling] = field(default_factory=list)
    ranges: list[ComparedRange] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    """By journal, the number of records read."""
    appended: dict[int, int] = field(default_factory=dict)
    """By version, the number of rows that its commit says it appended."""
    dead: dict[str, int] = field(default_factory=dict)
    """By journal, the number of records that are dead letters; only for writers with dead letters."""
    gone: list[tuple[str, int, int]] = field(default_factory=list)
    """Bytes that no entry names and the journals no longer have."""
    audited: int = 0
    """Ranges of a journal and a commit that have the rows, and the digest if any, that the entry says."""
    unproven: list[str] = field(default_factory=list)
    """Reasons why the table is not verified although nothing differs."""
    others: tuple[OtherCommit, ...] = ()
    """Commits without an entry of these writers that added, changed or removed rows, or may have."""
    difference: Difference | None = None

    @property
    def claims(self) -> list[CoveredRange]:
        """Ranges that the entries say are in the table."""
        return [claim for tiling in self.tilings for claim in tiling.claims]

    @property
    def result(self) -> Literal["verified", "different", "not verified"]:
        """The answer."""
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
    """Audit the newest version of a table.

    Args:
        spark: The session, classic or Connect; its workers need this package.
        table: The table.
        client: Asks about the journals from here; None: look at the entries alone.
        options: The source's options for the same journals: ``brokerAddress``, and how the query read them.
        app_id: Only this writer's entries; else those of all. Rows of other writers are then rows too many.
        accepted: Rows that may stay without a comparison.
        locations: Locations of tables of dead letters, by their names in a catalog.

    Raises:
        InputError: there is no entry, or the table cannot be read.
        GazetteError: a journal cannot be read.
    """
    with _named_errors(table.name):
        history, metrics = read_history(spark, table)
    report = Report(table.name, history[0].version if history else -1)
    report.appended = {
        row.version: rows
        for row in history
        if row.operation == "WRITE" and (rows := changed_rows(row, metrics).get("added")) is not None
    }
    report.difference = _follow_ledger(report, history, app_id)
    writers = {app_id} if app_id else set(app_ids(history))
    report.others = tuple(commits_of_others(history, metrics, writers))
    if client is None or report.difference:
        return report
    if not report.claims:
        report.unproven.append("its entries name no journal")
        return report
    selected = {**options, "journals": report.claims[0].journal}  # An option says which; the plan decides.
    if any(claim.committed for claim in report.claims):
        selected["isolationLevel"] = READ_COMMITTED
    with _named_errors(table.name):
        _Audit(report, spark, client, selected, accepted, app_id).run(table, locations or {})
    return report


def read_history(
    spark: SparkSession, table: DeltaTable
) -> tuple[list[HistoryRow], dict[int, Mapping[str, str]]]:
    """Return a table's commits, newest first, and their ``operationMetrics`` by version."""
    columns = ("version", "operation", "operationParameters", "userMetadata", "operationMetrics")
    found = spark.sql(f"DESCRIBE HISTORY {table.name}").select(*columns).collect()
    rows = [HistoryRow(each[0], each[1] or "", each[2] or {}, each[3]) for each in found]
    return rows, {each[0]: each[4] or {} for each in found}


def _follow_ledger(report: Report, history: Sequence[HistoryRow], app_id: str | None) -> Difference | None:
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
        problem = f"table {report.table} has no visible ledger entry {whose} in its {len(history)} commits"
        raise InputError(problem)
    return None


def _miscounted(report: Report, entries: Sequence[Stored]) -> Difference | None:
    """Return the oldest entry that counted other rows than its commit appended, as Delta's log says."""
    for version, entry in reversed(entries):
        counted, wrote = sum(each.rows for each in entry.audit or ()), report.appended.get(version)
        if entry.audit is not None and wrote not in (None, counted):
            return Difference(
                f"its entry says that it brings {counted} rows, the commit wrote {wrote}", version
            )
    return None


@dataclass(slots=True)
class _Audit:
    report: Report
    spark: SparkSession
    client: JournalSource
    options: Mapping[str, str]
    accepted: Accepted
    app_id: str | None
    ranges: dict[int, PlannedRange] = field(default_factory=dict)
    """Planned reads, by the index of their claim."""

    def run(self, table: DeltaTable, locations: Mapping[str, str]) -> None:
        """Compare the rows; the report has the result."""
        report = self.report
        rows = TableRows.of(self.spark, table, report.table_version)
        names = rows.columns
        report.depth = "counts" if names is None else "bytes" if names.value else "offsets"
        parts, numbers = self._plan(by_commit=names is None)
        values = report.depth == "bytes"
        # Digests are compared with rows where these have the bytes, else with records.
        values_too = values or any(part.span and part.span.digest for part in parts)
        places = names is None
        journals = read_records(self.spark, self.options, self.ranges, values=values_too, places=places)
        sides = {"records": journals}
        if names:
            again = [claim.journal for claim in report.claims if claim.recreated]
            # Rows of the journal that was deleted lie past the end of the new one, too.
            other = ~F.coalesce(F.col("journal").isin(again), F.lit(False))  # noqa: FBT003 - Spark's
            sides["rows"] = rows.origins(values=values).where(other)
        buried = {
            each.app_id: self._dead_tables(each.dead_letters, locations)
            for each in report.tilings
            if each.dead_letters
        }
        if buried:
            sides["dead"] = dead_letters(self.spark, buried, values=values)
        adder, bins = Adder(self.spark, sides, values), Bins.of(parts)
        totals = adder.totals(bins, numbers)
        records, there, dead = (totals[side].by_part(bins) for side in SIDES)
        sums = _Sums(report, parts, numbers, records, there, dead, frozenset(buried))
        sums.describe()
        vouched: Mapping[int, Depth] = {}
        if names is None:
            report.difference = sums.miscounted() or self._other_count(rows.rows, sums)
        elif different := unequal(bins, *totals.values()):
            number = numbers[int(bins.part[different[0]])]
            report.difference = self._locate(adder, bins.one(different[0]), number)
        else:
            report.difference = self._stray(adder, bins, numbers, totals["rows"].outside)
        if not report.difference:
            vouched, report.difference = sums.audit(adder, has_columns=names is not None)
        if not report.difference and names and names.place:
            more, report.difference = self._audit_committed(rows.origins(values=values, places=True), sums)
            vouched = {**vouched, **more}
        self._describe(sums, vouched)

    def _dead_tables(self, names: Sequence[str], given: Mapping[str, str]) -> list[DeltaTable]:
        """Return the tables of dead letters that entries call so, each once."""
        found = {}
        for name in names:
            table = DeltaTable(path=given[name], table=None) if name in given else DeltaTable.named(name)
            if table.path is None and not self.spark.catalog.tableExists(name):
                problem = (
                    f"its dead letters are in table {name} of a catalog, which this session does not have: "
                    f"say where that is, --dead-letters {name}=URL"
                )
                raise InputError(problem)
            found[table.name] = table
        return list(found.values())

    def _plan(self, *, by_commit: bool) -> tuple[list[Part], list[int | None]]:
        """Plan the reads; return all parts, each with the number of its read if its range is read."""
        report = self.report
        shared = shared_journals(report.tilings)
        unlike = {each.app_id for each in report.tilings if each.upsert}
        claims = report.claims
        read = {
            index: claim
            for index, claim in enumerate(claims)
            if claim.journal not in shared and claim.app_id not in unlike
        }
        options = parse_options(self.options, "batch")
        self.ranges = dict(zip(read, plan_reads(self.client, options, list(read.values())), strict=True))
        parts: list[Part] = []
        numbers: list[int | None] = []
        for index, claim in enumerate(claims):
            gone = self.ranges[index].gone if index in read else ()
            report.gone += [(claim.journal, *each) for each in gone]
            apart = by_commit
            if claim.committed:
                # By commit they lie where they were committed, and any may be of the bytes that are gone.
                gone = ((claim.start, claim.end),) if gone and by_commit else gone
            else:
                apart |= any(span.rows is not None for span in claim.spans)
            made = list(parts_of(claim, gone, refused=index not in read, by_commit=apart))
            parts += made
            numbers += [index if index in read else None] * len(made)
            if index in read:
                report.records[claim.journal] = 0
        return parts, numbers

    def _locate(self, adder: Adder, part: Part, number: int | None) -> Difference:
        """Find the first difference in a bin that has one, in ever smaller bins."""
        assert number is not None
        while True:
            bins = Bins.of([part])
            near = {number: self.ranges[number].near(part.begin, part.end)}
            records = read_records(self.spark, self.options, near, values=adder.values)
            adder = replace(adder, sides={**adder.sides, "records": records})
            different = unequal(bins, *adder.totals(bins, [number]).values()) if len(bins) > 1 else []
            if not different:
                break
            part = bins.one(different[0])
        sides = adder.counted(bins, [number])
        present = Counter(sides["rows"]) + Counter(sides["dead"])
        what = "committed message" if part.claim.committed else "record"
        found = first_difference(sides["records"], present, what)
        offset, problem = found or (part.begin, f"the rows of these offsets are not the {what}s")
        end = None if found else part.end
        if part.claim.committed:
            problem += "".join(BEHIND_GONE.format(end) for _, end in self.ranges[number].gone)
        return Difference(problem, self._version(part.claim, number, offset), part.claim.journal, offset, end)

    def _version(self, claim: CoveredRange, number: int, offset: int) -> int:
        """Return the version whose commit added a record, or would have."""
        if not claim.committed:
            return claim.version_at(offset)
        records = read_records(
            self.spark, self.options, {number: self.ranges[number]}, values=False, places=True
        )
        found = records.where(F.col("offset") == offset).first()
        return claim.version_at(found["place"]) if found else claim.table_version

    def _stray(
        self, adder: Adder, bins: Bins, numbers: Sequence[int | None], outside: Mapping[int, int]
    ) -> Difference | None:
        foreign = any(tiling.foreign for tiling in self.report.tilings)
        others = outside.get(FOREIGN, 0)
        if outside.get(STRAY, 0):
            where = adder.stray(bins, numbers)
        elif others and not foreign:
            where = None, None
        else:
            if others and not self.accepted.unclaimed:
                self.report.unproven.append(f"{others} rows are of the query's other sources")
            return None
        problem = "the table has a row here, which no visible entry accounts for"
        return Difference(problem, self.report.table_version, *where)

    def _other_count(self, rows: DataFrame, sums: _Sums) -> Difference | None:
        """Compare the number of all rows with that of all records, where all are known."""
        report = self.report
        whole = not report.gone and not any(each.upsert or each.foreign for each in report.tilings)
        if not whole or self.app_id or any(part.state != "compared" for part in sums.parts):
            return None
        expected = int(sums.records.sum() - sums.dead.sum())
        if (found := rows.count()) == expected:
            return None
        problem = f"the table has {found} rows, its bytes hold {expected} records"
        return Difference(problem, report.table_version)

    def _audit_committed(self, rows: DataFrame, sums: _Sums) -> tuple[Mapping[int, Depth], Difference | None]:
        """Compare what entries counted with the rows that were committed in their bytes.

        Returns:
            The parts whose messages are gone and whose rows are those of entries; the first difference.
        """
        claims = {id(part.claim): part.claim for part in sums.parts if part.state != "refused"}
        counted = {
            id(claim): [
                Part(claim, each.begin, each.end, span=each) for each in claim.spans if each.rows is not None
            ]
            for claim in claims.values()
            if claim.committed
        }
        parts = list(chain.from_iterable(counted.values()))
        if not parts:
            return {}, None
        digested = self.report.depth == "bytes"
        bins, nowhere = Bins.of(parts), [None] * len(parts)
        adder = Adder(self.spark, {"rows": rows}, values=digested)
        counts = adder.totals(bins, nowhere)["rows"].by_part(bins)
        found = [_Counted(part, int(count), "rows") for part, count in zip(parts, counts, strict=True)]
        if difference := _unlike(self.report, adder, found, "rows" if digested else "records"):
            return {}, difference
        vouched: dict[int, Depth] = {}
        for index, part in enumerate(sums.parts):
            some = counted.get(id(part.claim), [])
            # A message of the bytes that are gone may have been committed in any commit.
            every = sum(each.end - each.begin for each in some) == part.claim.end - part.claim.start
            if part.state == "gone" and every:
                spans = [each.span for each in some if each.span and each.span.rows]
                proven = digested and all(span.digest for span in spans)
                vouched[index] = "entry" if proven else "counts"
        return vouched, None

    def _describe(self, sums: _Sums, vouched: Mapping[int, Depth]) -> None:
        """Say of all offsets how they were compared, and why not where they were not."""
        report = self.report
        described = [self._described(part, index, sums, vouched) for index, part in enumerate(sums.parts)]
        for (app_id, journal, depth, reason, accepted), group in groupby(
            (each for each in described if each),
            lambda each: (each.app_id, each.journal, each.depth, each.reason, each.accepted),
        ):
            some = list(group)
            begin, end = some[0].begin, some[-1].end
            report.ranges.append(ComparedRange(app_id, journal, begin, end, depth, reason, accepted))
        compared = [each for each in report.ranges if each.depth in PROOFS]
        missing = [each for each in report.ranges if each.depth not in PROOFS and not each.accepted]
        report.unproven += sorted({each.reason for each in missing if each.reason})
        if report.ranges and not compared and not report.unproven:
            report.unproven.append("nothing was compared")

    def _described(
        self, part: Part, index: int, sums: _Sums, vouched: Mapping[int, Depth]
    ) -> ComparedRange | None:
        claim, depth, reason, accepted = part.claim, self.report.depth, None, False
        if part.state == "gone":
            depth, reason, accepted = "nothing", GONE, self.accepted.gone
            if index in vouched:
                depth = vouched[index]
                reason = None if depth == "entry" else GONE
        elif part.state == "refused":
            mine = [each for each in self.report.tilings if each.app_id == claim.app_id]
            depth, reason = "nothing", RECREATED if claim.recreated else SHARED
            if any(each.upsert for each in mine):
                reason = UPSERT
        elif part.state == "adopted":
            if not sums.rows[index] and depth != "counts":
                return None
            depth, reason, accepted = "nothing", ADOPTED, self.accepted.unclaimed
        elif depth == "counts":
            reason = NO_COLUMNS
            if part.span is None or part.span.table_version not in self.report.appended:
                depth = "nothing"
                reason += ", and the commit does not say how many rows it wrote"
        return ComparedRange(claim.app_id, claim.journal, part.begin, part.end, depth, reason, accepted)


@dataclass(frozen=True, slots=True)
class _Sums:
    """The numbers of rows of all sides, by part."""

    report: Report
    parts: Sequence[Part]
    numbers: Sequence[int | None]
    """Number of each part's read, if its range is read."""
    records: Positions
    rows: Positions
    dead: Positions
    parted: frozenset[str]
    """Writers with dead letters."""

    def describe(self) -> None:
        """Put the numbers of records and dead letters into the report."""
        report = self.report
        for index, part in enumerate(self.parts):
            journal = part.claim.journal
            if journal in report.records:
                report.records[journal] += int(self.records[index])
            if part.claim.app_id in self.parted:
                report.dead[journal] = report.dead.get(journal, 0) + int(self.dead[index])

    def miscounted(self) -> Difference | None:
        """Return the first commit that says it wrote another number of rows than its bytes hold records."""
        if any(tiling.foreign for tiling in self.report.tilings):
            return None
        counted: dict[int, int] = {}
        lossy = {part.span.table_version for part in self.parts if part.span and part.state == "gone"}
        for index, part in enumerate(self.parts):
            if part.span and part.state == "compared":
                version = part.span.table_version
                here = int(self.records[index] - self.dead[index])
                counted[version] = counted.get(version, 0) + here
        for version, records in sorted(counted.items()):
            wrote = self.report.appended.get(version)
            if wrote not in (None, records) and version not in lossy:
                return Difference(f"the commit wrote {wrote} rows, its bytes hold {records} records", version)
        return None

    def audit(self, adder: Adder, *, has_columns: bool) -> tuple[Mapping[int, Depth], Difference | None]:
        """Compare what entries counted with the records; with the rows where the records cannot say it.

        Returns:
            The parts whose records are missing and whose rows are those of their entry; the first difference.
        """
        in_bytes = self.report.depth == "bytes"
        vouched: dict[int, Depth] = {}
        counted: list[_Counted] = []
        for (_, span), group in groupby(
            enumerate(self.parts), lambda each: (id(each[1].claim), each[1].span)
        ):
            some = dict(group)
            indexes = list(some)
            claim = some[indexes[0]].claim
            lost = [index for index, part in some.items() if part.state == "gone"]
            by_rows = bool(lost) or claim.app_id in self.parted
            if span is None or span.rows is None or (by_rows and not has_columns):
                continue
            side: Side = "rows" if by_rows else "records"
            count = int((self.rows if by_rows else self.records)[indexes].sum())
            part = Part(claim, span.begin, span.end, span=span)
            counted.append(_Counted(part, count, side, self.numbers[indexes[0]]))
            proven = not span.rows or (in_bytes and span.digest)
            vouched.update(dict.fromkeys(lost, "entry" if proven else "counts"))
        return vouched, _unlike(self.report, adder, counted, "rows" if in_bytes else "records")


Side = Literal["records", "rows"]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A commit's bytes of a journal whose rows its entry counted, and the rows that are there."""

    part: Part
    count: int
    side: Side
    """Side that was counted."""
    number: int | None = None
    """Number of the read of its records."""


def _unlike(report: Report, adder: Adder, counted: Sequence[_Counted], digested: Side) -> Difference | None:
    """Return the first commit whose entry has another number of rows than there are, or another digest.

    Args:
        report: Gets the number of those that have what their entry says.
        adder: Adds up the sides.
        counted: What is compared.
        digested: Side that has the bytes. Where rows have them, they are the records, or the comparison
            before this one found a difference; so they stand for records, too.
    """
    problems: dict[int, str] = {}
    some: list[int] = []
    for index, each in enumerate(counted):
        span = each.part.span
        assert span is not None
        what = "rows in the table" if each.side == "rows" else "records in the journal"
        if span.rows != each.count:
            problems[index] = f"its entry says {span.rows} rows, there are {each.count} {what}"
        elif span.digest and digested in ("rows", each.side):
            some.append(index)
    if some and not problems:
        found = adder.digests(
            digested, [counted[index].part for index in some], [counted[index].number for index in some]
        )
        for at, index in enumerate(some):
            span = counted[index].part.span
            assert span is not None
            if span.digest != found.get(at):
                problems[index] = (
                    f"its entry has the digest {span.digest}, its {digested} have {found.get(at)}"
                )
    if not problems:
        report.audited += len(counted)
        return None
    first = min(problems)
    part = counted[first].part
    assert part.span is not None
    version = part.span.table_version
    return Difference(problems[first], version, part.claim.journal, part.begin, part.end)


@contextmanager
def _named_errors(table: str) -> Iterator[None]:
    """Raise what Spark raises as one line: the error of this package in it, if there is one.

    Raises:
        InputError: in place of any error of Spark.
    """
    try:
        yield
    except GazetteError:
        raise
    except PySparkException as error:
        lines = str(error).splitlines()
        ours = [line for line in lines if line.startswith("gazette_spark.errors.")]
        text = ours[-1].partition(": ")[2] if ours else lines[0] if lines else type(error).__name__
        raise InputError(f"table {table} cannot be compared: {text}") from error
