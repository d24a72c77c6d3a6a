"""Splits the rows of a batch between the main table and its dead letters, and commits the latter.

What is decided, and why it holds, is in :mod:`gazette_spark.ledger.dead_letters`; which rows are dead, in
:mod:`gazette_spark.table.violations`. Here tables are read and written.

The merge into the dead letters is an append of the rows that an anti-join leaves. A ``MERGE`` statement reads
the whole table, so each commit of another stream that shares the table would conflict with it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import StructType

from gazette_spark.errors import DeadLetterError, OptionError
from gazette_spark.failpoints import failpoint
from gazette_spark.ledger.dead_letters import (
    APP_ID_SUFFIX,
    DeadLetters,
    Divert,
    Fence,
    check_ledger,
    closing_entry,
    dead_batch,
    is_ahead,
    plan,
    reconcile,
    state_may_hold_letters,
    with_letters,
)
from gazette_spark.ledger.decision import Committed, NewRange, Refusal, Write
from gazette_spark.ledger.entry import Batch, LedgerEntry, LedgerState
from gazette_spark.locations import is_inside
from gazette_spark.offsets import JournalOffsets
from gazette_spark.table.delta_table import DeltaTable
from gazette_spark.table.new_table import NewTable
from gazette_spark.table.trim import (
    missing_columns,
    origin_columns,
    range_columns,
    range_origin,
    rows_in_ranges,
)
from gazette_spark.table.upsert import Upsert
from gazette_spark.table.violations import (
    ALWAYS_UNWANTED,
    NOT_FOR_THE_TABLE,
    REASON,
    TableRules,
    dead_rows,
    failing,
    with_reasons,
    without_helpers,
)

log = logging.getLogger(__name__)

CHANGED = (
    "a row that was none of the dead letters does not fit the table: the batch was evaluated twice, with two "
    "results. Make the query's expressions deterministic, or persist the batch:"
)
"""Begin of the error text at a row that fits in the first pass over a batch and not in the second."""

HELD = (
    "the query keeps state, and {table} may have records that this table has not passed. The "
    "query could emit them in a later batch, so that they are in both tables. Restore {table}, too, to where "
    "this table was restored; or have a query without state pass these bytes, with the same dead_letters"
)
"""Error text where the state of a query may come to hold dead letters."""

PLACE = "__gazette_letter"
"""Helper column of letters, in no table: journal and offset."""

LETTERS = "app_id STRING, journal STRING, offset BIGINT, end_offset BIGINT, raw BINARY, reason STRING"
"""Columns of a table of dead letters that is made without any; see :func:`dead_rows`."""

RULE_PREFIX = "delta.constraints."
"""Table properties with this prefix hold the expressions of CHECK constraints."""


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """The main table's rows and write."""

    rows: DataFrame
    write: Write
    whole: bool = True
    """The write completes the batch. If not, it is a fence, and the batch has to be decided again."""


class DeadLetterRouter:
    """The dead letters of one sink. Without a table for them, batches pass unchanged. Used by one thread."""

    def __init__(
        self,
        app_id: str,
        main: DeltaTable,
        wanted: DeadLetters | None,
        conflicts: tuple[type[PySparkException], ...],
        new_table: NewTable | None = None,
        *,
        upsert: Upsert | None = None,
    ) -> None:
        """Describe the diversion; nothing is read or made yet.

        Args:
            app_id: The main table's.
            main: The table whose rows are split.
            wanted: Where dead letters go.
            conflicts: Delta's conflict errors.
            new_table: What the main table is to be if there is none.
            upsert: How rows are merged, if they are: then where one comes from matters on its way to the
                main table, too, and one that takes another away need not fit.
        """
        self._app_id = app_id
        self._main = main
        self._wanted = wanted
        self._conflicts = conflicts
        self._new_table = new_table or NewTable()
        self._upsert = upsert
        self._unwanted = ALWAYS_UNWANTED if upsert else NOT_FOR_THE_TABLE
        self._table = DeltaTable(path=wanted.path, table=wanted.table) if wanted else None
        self._dead = LedgerState()
        """Last known state of the dead letters' history; the next read starts from there."""
        self._rules = TableRules()
        self._ruled: tuple[int, str] | None = None
        """Version and newest attempt of the main table for which the rules are known to hold."""

    def __repr__(self) -> str:
        return f"DeadLetterRouter({self._app_id!r}, {self._table.name if self._table else None})"

    @property
    def diverts(self) -> bool:
        """Whether there is a table for dead letters."""
        return self._wanted is not None

    def check(self, spark: SparkSession, checkpoint: str | None, schema: StructType) -> None:
        """Refuse rows that cannot be split, before there is a batch.

        Raises:
            DeadLetterError: the rows have no origin columns.
            TableRefusedError: exactly-once cannot be kept on the table of dead letters.
            OptionError: the table of dead letters is the main table, or one is inside the other.
        """
        if self._table is None:
            return
        if origin_columns(schema) is None:
            raise self._error(missing_columns(schema))
        mine, other = self._table, self._main
        nested = (
            mine.path
            and other.path
            and (is_inside(mine.path, other.path) or is_inside(other.path, mine.path))
        )
        if mine.name == other.name or nested:
            raise OptionError("dead_letters", mine.name, f"a place apart from the table {other.name}")
        mine.check(spark, checkpoint)

    def look(self, spark: SparkSession) -> None:
        """Read the dead letters' ledger. To be called before the main table's is read."""
        if self._table is not None:
            self._dead = self._state(spark, self._table, self._dead)

    def split(self, rows: DataFrame, batch: Batch, main: LedgerState, decided: Write) -> SplitBatch | None:
        """Commit the dead letters of a batch and return the rest for the main table.

        Args:
            rows: Rows of the batch that the main table lacks.
            batch: The batch.
            main: The main table's state, read after :meth:`look`.
            decided: The write that was decided on it.

        Returns:
            None if another writer changed the dead letters: look and decide again.

        Raises:
            SinkError: the batch cannot be split.
        """
        spark = rows.sparkSession
        before = main.entry.dead_letters if main.entry else None
        mine = self._table.name if self._table else None
        if (
            main.entry
            and before not in (None, mine)
            and not self._leave(spark, before or "", main.entry, decided)
        ):
            return None
        if self._table is None or self._wanted is None:
            return SplitBatch(rows, decided)
        origin = self._origin(rows, batch)
        committed = batch.isolation == "read_committed"
        step = plan(self._dead, main, decided, table=self._table.name, attempt=uuid.uuid4().hex)
        rules = self._rules_now(spark, main, decided)
        delete_when = self._upsert.delete_when if self._upsert else None
        reasoned = with_reasons(rows, rules, self._wanted.corrupt_column, delete_when)
        if isinstance(step, Fence):
            log.info("dead letters are not in step app_id=%s table=%s", self._app_id, mine)
            return SplitBatch(self._stored(reasoned).limit(0), Write(step.entry), whole=False)
        dead, letters = self._dead, None
        if step is not None:
            if state_may_hold_letters(step, dead, decided):
                raise self._error(HELD.format(table=self._table.name))
            ranges = decided.new_ranges or tuple(_whole_ranges(step.batch))
            landed = self._merge(reasoned, step, ranges, origin, committed=committed)
            if landed is None:
                return None
            dead, letters = landed, self._letters(spark, landed.entry_version, ranges, committed=committed)
        entry = with_letters(decided.entry, self._table.name, dead)
        return SplitBatch(self._stored(_others(reasoned, letters, origin)), replace(decided, entry=entry))

    def _merge(
        self,
        reasoned: DataFrame,
        step: Divert,
        ranges: Sequence[NewRange],
        origin: tuple[str, str],
        *,
        committed: bool,
    ) -> LedgerState | None:
        """Commit the batch's dead letters that are not there; return the state with them if that landed."""
        assert self._table is not None
        assert self._wanted is not None
        spark = reasoned.sparkSession
        dead = dead_rows(reasoned, self._app_id, self._wanted.corrupt_column, origin, committed=committed)
        dead = rows_in_ranges(dead, ranges, ("journal", _position(committed=committed)), doing="divert")
        if step.may_have_some:
            known = self._letters(spark, self._dead.table_version, ranges, committed=committed)
            dead = dead.join(known, _place(dead, ("journal", "offset")) == known[PLACE], "left_anti")
        landed = self._commit(dead, self._table, self._dead, step.entry, step.batch, add_columns=committed)
        if landed is not None:
            failpoint("sink.dead_letters_written")
        return landed

    def _letters(
        self, spark: SparkSession, version: int, ranges: Sequence[NewRange], *, committed: bool
    ) -> DataFrame:
        """Return the places of this stream's letters in some ranges, at a version of their table."""
        assert self._table is not None
        begin, _, end = range_columns(ranges, F.col("journal"))
        rows, name = self._table.rows(spark, version), _position(committed=committed)
        # Letters of other streams make no such column.
        at = F.col(name) if name in rows.columns else F.lit(None).cast("bigint")
        mine = rows.where(
            (F.col("app_id") == self._app_id)
            & (at >= min(each.begin for each in ranges))  # These two prune files.
            & (at < max(each.end for each in ranges))
            & (at >= begin)
            & (at < end)
        )
        return mine.select(F.struct("journal", "offset").alias(PLACE))

    def _stored(self, reasoned: DataFrame) -> DataFrame:
        assert self._wanted is not None
        return without_helpers(reasoned, self._rules, self._wanted.corrupt_column, self._unwanted)

    def _leave(self, spark: SparkSession, name: str, main: LedgerEntry, decided: Write) -> bool:
        """Close the dead letters that the main table was written with last; return whether that landed.

        Raises:
            DeadLetterError: it has records that the main table has not passed.
            LedgerLostError: its history does not say which it has.
        """
        table = DeltaTable.named(name)
        dead = self._state(spark, table)
        about = dead_batch(decided.entry, name)
        entry = closing_entry(dead, main, decided.entry, uuid.uuid4().hex)
        if entry is None:
            return True  # It is gone: nobody can be ahead in it.
        check_ledger(dead, about)
        if is_ahead(dead, main):
            problem = (
                f"{name}, to which they went until now, may have records that this table has not passed yet: "
                "the query was stopped between its two commits, or this table was restored. Start it as it "
                f"was, with dead_letters for {name}, until it has passed them, then change it"
            )
            raise self._error(problem)
        log.info("dead letters are closed app_id=%s table=%s", self._app_id, name)
        exists = dead.table_version >= 0
        none = table.rows(spark).limit(0) if exists else spark.createDataFrame([], LETTERS)
        return self._commit(none, table, dead, entry, about) is not None

    def _commit(
        self,
        rows: DataFrame,
        table: DeltaTable,
        before: LedgerState,
        entry: LedgerEntry,
        batch: Batch,
        *,
        add_columns: bool = False,
    ) -> LedgerState | None:
        """Append to a table of dead letters once; return its state if that landed.

        Raises:
            SinkError: it did not, and never will.
        """
        conflict: PySparkException | None = None
        try:
            table.append(rows, entry, exists=before.table_version >= 0, add_columns=add_columns)
        except self._conflicts as error:
            conflict = error
        if before.table_version < 0:
            table.check(rows.sparkSession, None)  # Where its log lies is known only now that there is one.
        after = self._state(rows.sparkSession, table, before)
        outcome = reconcile(before, after, entry, batch, conflict=conflict is not None)
        if isinstance(outcome, Refusal):
            raise outcome.error from conflict
        return after if isinstance(outcome, Committed) else None

    def _state(self, spark: SparkSession, table: DeltaTable, known: LedgerState | None = None) -> LedgerState:
        return table.ledger(spark, self._app_id + APP_ID_SUFFIX, known)

    def _origin(self, rows: DataFrame, batch: Batch) -> tuple[str, str]:
        """Return the names of the columns that hold a row's journal and offset."""
        origin = origin_columns(rows.schema)
        if len(batch.end) != 1 or not isinstance(batch.end[0], JournalOffsets):
            problem = (
                "the query reads other sources than one of Gazette journals, so its rows are of no one record"
            )
            raise self._error(problem)
        if origin is None:
            raise self._error(missing_columns(rows.schema))
        if range_origin(rows.schema, batch.isolation) is None:
            raise self._error(missing_columns(rows.schema, batch.isolation))
        return origin

    def _rules_now(self, spark: SparkSession, main: LedgerState, write: Write) -> TableRules:
        """Return the main table's rules; they are read again if another writer has committed to it."""
        newest = (main.table_version, main.entry.attempt if main.entry else "")
        if newest != self._ruled:
            exists = main.table_version >= 0
            self._rules = (
                read_rules(spark, self._main) if exists else TableRules(self._new_table.parsed(spark))
            )
            # What this writer commits next changes no rule of a table that exists.
        self._ruled = (main.table_version + 1, write.entry.attempt) if main.table_version >= 0 else None
        return self._rules

    def _error(self, problem: str) -> DeadLetterError:
        return DeadLetterError(self._main.name, self._app_id, problem)


def read_rules(spark: SparkSession, table: DeltaTable) -> TableRules:
    """Return the rules that an existing table has for its rows."""
    detail = table.detail(spark)
    checks = {
        name.removeprefix(RULE_PREFIX): text
        for name, text in (detail.properties if detail else {}).items()
        if name.startswith(RULE_PREFIX)
    }
    return TableRules(table.schema(spark), tuple(sorted(checks.items())))


def _others(reasoned: DataFrame, letters: DataFrame | None, origin: tuple[str, str]) -> DataFrame:
    """Return the rows that are no letters; running it fails at one that does not fit."""
    if letters is not None:
        reasoned = reasoned.join(letters, _place(reasoned, origin) == letters[PLACE], "left_anti")
    return failing(reasoned, F.col(REASON), CHANGED)


def _place(rows: DataFrame, origin: tuple[str, str]) -> Column:
    """Return journal and offset as one value.

    Spark carries conditions over from one of equal columns to the other, and :func:`rows_in_ranges` fails at
    rows that are not the batch's.
    """
    journal, offset = origin
    return F.struct(rows[journal].alias("journal"), rows[offset].alias("offset"))


def _position(*, committed: bool) -> str:
    """Return the column that says in which bytes of a batch a letter is."""
    return "ack_offset" if committed else "offset"


def _whole_ranges(batch: Batch) -> Iterator[NewRange]:
    """Yield the bytes of a batch of one source."""
    for begin, end in zip(batch.begin, batch.end, strict=True):
        assert isinstance(begin, JournalOffsets)
        assert isinstance(end, JournalOffsets)
        for journal, until in end.read_through.items():
            if (since := begin.read_through[journal]) < until:
                yield NewRange(journal, since, since, until)
