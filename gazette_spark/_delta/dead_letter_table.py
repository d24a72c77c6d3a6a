"""The table of dead letters: commits the rows of a batch that do not fit its main table.

What is decided, and why it holds, is in :mod:`gazette_spark._ledger.dead_letters`; which rows are dead, in
:mod:`gazette_spark._delta.violations`. Here tables are read and written.

Letters that are there already are left out by an anti-join before an append. A ``MERGE`` statement would read
the whole table, so each commit of another stream that shares it would be a conflict.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import StructType

from gazette_spark._delta.delta_table import DeltaTable, TableSnapshot
from gazette_spark._delta.new_table import NewTable
from gazette_spark._delta.trim import (
    missing_columns,
    origin_columns,
    range_columns,
    range_origin,
    rows_in_ranges,
)
from gazette_spark._delta.upsert import Upsert
from gazette_spark._delta.violations import PLACE, RowSplit, TableRules, origin_place
from gazette_spark._delta.writers import CONFLICTS
from gazette_spark._ledger.dead_letters import (
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
from gazette_spark._ledger.decision import Committed, NewRange, Refusal, Write
from gazette_spark._ledger.entry import Batch, LedgerEntry, LedgerState
from gazette_spark.errors import DeadLetterError, OptionError
from gazette_spark.failpoints import failpoint
from gazette_spark.locations import is_inside
from gazette_spark.offsets import JournalOffsets

log = logging.getLogger(__name__)

HELD = (
    "the query keeps state, and {table} may have records that this table has not passed. The "
    "query could emit them in a later batch, so that they are in both tables. Restore {table}, too, to where "
    "this table was restored; or have a query without state pass these bytes, with the same dead_letters"
)
"""Error text where the state of a query may come to hold dead letters."""

LETTERS = "app_id STRING, journal STRING, offset BIGINT, end_offset BIGINT, raw BINARY, reason STRING"
"""Columns of a table of dead letters that is made without any; see :meth:`RowSplit.misfits`."""


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """The part of a batch that goes to the main table."""

    rows: DataFrame
    entry: LedgerEntry
    completes_batch: bool = True
    """If not, the entry is a fence, and the batch has to be decided again."""


class DeadLetterTable:
    """Table of the rows that do not fit a sink's main table. Holds no state, so it can be pickled."""

    def __init__(
        self,
        app_id: str,
        main: DeltaTable,
        letters: DeadLetters,
        new_table: NewTable | None,
        upsert: Upsert | None,
    ) -> None:
        """Name the table; nothing is read or made yet.

        Args:
            app_id: The main table's.
            main: The table whose rows are split.
            letters: Where dead letters go.
            new_table: Definition of the main table if it does not exist.
            upsert: How rows are merged into the main table, if they are.
        """
        self._app_id = app_id
        self._main = main
        self._target = DeltaTable(
            path=letters.path, table=letters.table, allow_single_driver=main.allow_single_driver
        )
        self._corrupt_column = letters.corrupt_column
        self._new_table = new_table or NewTable()
        self._upsert = upsert

    def __repr__(self) -> str:
        return f"DeadLetterTable({self._app_id!r}, {self.name})"

    @property
    def name(self) -> str:
        """The table as SQL and errors name it."""
        return self._target.name

    def check(self, spark: SparkSession, checkpoint: str | None, schema: StructType) -> None:
        """Refuse rows that cannot be split, before there is a batch.

        Raises:
            DeadLetterError: the rows have no origin columns.
            TableRefusedError: exactly-once cannot be kept on the table of dead letters.
            OptionError: the table of dead letters is the main table, or one is inside the other.
        """
        if origin_columns(schema) is None:
            raise self._error(missing_columns(schema))
        # The files of a table inside another one's directory are files that no version of that one refers to:
        # its VACUUM deletes them.
        mine, other = self._target, self._main
        nested = (
            mine.path
            and other.path
            and (is_inside(mine.path, other.path) or is_inside(other.path, mine.path))
        )
        if mine.name == other.name or nested:
            raise OptionError("dead_letters", mine.name, f"a place apart from the table {other.name}")
        mine.check(spark, checkpoint)

    def ledger(self, spark: SparkSession, since: LedgerState) -> LedgerState:
        """Read the dead letters' ledger, from an earlier state on. Call this before the main one is read."""
        return self._target.ledger(spark, self._app_id + APP_ID_SUFFIX, since)

    def split(self, rows: DataFrame, batch: Batch, table: TableSnapshot, write: Write) -> SplitBatch | None:
        """Commit the dead letters of a batch, and return what is left for the main table.

        Args:
            rows: Rows of the batch that the main table lacks.
            batch: The batch.
            table: The snapshot on which it was decided.
            write: The decision.

        Returns:
            None if another writer has changed the dead letters: read and decide again.

        Raises:
            SinkError: the batch cannot be split.
        """
        spark, dead = rows.sparkSession, table.letters
        split = self._row_split(rows, batch, table)
        # The two ledgers alone say what to do: commit a fence first, commit letters first, or divert nothing.
        step = plan(dead, table.ledger, write, table=self.name, attempt=uuid.uuid4().hex)

        # Another writer may be between the two commits of a batch. The fence makes its second one conflict;
        # after it, the ledgers are in step, and the batch is decided again.
        if isinstance(step, Fence):
            log.info("dead letters are not in step app_id=%s table=%s", self._app_id, self.name)
            return SplitBatch(split.fitting(rows.limit(0), None), step.entry, completes_batch=False)

        letters = None
        if isinstance(step, Divert):
            if state_may_hold_letters(step, dead, write):
                raise self._error(HELD.format(table=self.name))
            # Letters are found again by the bytes that they belong to. So a row from other bytes, which no
            # later look would find, ends the query.
            ranges = write.new_ranges or tuple(_all_ranges(step.batch))
            # A message belongs to the bytes that committed it.
            position = "ack_offset" if split.is_committed else "offset"
            misfits = rows_in_ranges(
                split.misfits(rows, self._app_id), ranges, ("journal", position), doing="divert"
            )
            # An earlier try of the batch may have committed letters, before a crash or for another writer.
            if step.may_have_some:
                present = self._places(spark, dead.table_version, ranges, position)
                place = origin_place(misfits, ("journal", "offset"))
                misfits = misfits.join(present, place == present[PLACE], "left_anti")
            # From here on the two tables are out of step until the main table's commit. A crash in between is
            # seen by the next run as letters ahead of the main table: it fences, finds them by journal and
            # offset, and goes on.
            after = commit_letters(
                self._target, misfits, dead, step.entry, step.batch, add_columns=split.is_committed
            )
            # Another writer's letters came first, so the decision was made on a ledger that is not the newest
            # any more.
            if after is None:
                return None
            failpoint("sink.dead_letters_written")
            # From here on, what was committed decides about a row, and not a second evaluation of it.
            dead, letters = after, self._places(spark, after.entry_version, ranges, position)
        return SplitBatch(split.fitting(rows, letters), with_letters(write.entry, self.name, dead))

    def _row_split(self, rows: DataFrame, batch: Batch, table: TableSnapshot) -> RowSplit:
        """Return the split of the rows. It follows from each row and the table's rules alone."""
        # A record is recognized by journal and offset, in the letters and in the rows. Rows of several
        # sources, or made of several records, have no such place.
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
        # Without a table there are only the columns that it is to have. Constraints can be added later, and
        # judge later batches.
        rules = TableRules(self._new_table.parsed(rows.sparkSession))
        if table.exists:
            rules = TableRules.of(table.schema, table.detail.properties if table.detail else {})
        is_committed = batch.isolation == "read_committed"
        return RowSplit(rules, self._corrupt_column, origin, is_committed, self._upsert)

    def _places(
        self, spark: SparkSession, version: int, ranges: Sequence[NewRange], position: str
    ) -> DataFrame:
        """Return where this stream's letters are within the ranges, at a version of their table."""
        # The letters are read at a version, and not at the newest: what another writer commits now belongs to
        # its own batch.
        begin, _, end = range_columns(ranges, F.col("journal"))
        rows = self._target.rows(spark, version)
        # Letters of other streams make no column for acknowledgements.
        at = F.col(position) if position in rows.columns else F.lit(None).cast("bigint")
        own = rows.where(
            (F.col("app_id") == self._app_id)
            & (at >= min(span.begin for span in ranges))  # These two prune files.
            & (at < max(span.end for span in ranges))
            & (at >= begin)
            & (at < end)
        )
        return own.select(F.struct("journal", "offset").alias(PLACE))

    def _error(self, problem: str) -> DeadLetterError:
        return DeadLetterError(self._main.name, self._app_id, problem)


def close_letters(
    spark: SparkSession, main: DeltaTable, table: TableSnapshot, write: Write, letters: DeadLetterTable | None
) -> bool:
    """Close the dead letters that a main table was written with last, unless it is written with them again.

    Args:
        spark: The session.
        main: The main table.
        table: Its snapshot, whose newest entry names the dead letters.
        write: The write that was decided on it.
        letters: The dead letters of this write.

    Returns:
        Whether no others are open; if not, another writer was faster: read and decide again.

    Raises:
        DeadLetterError: they have records that the main table has not passed.
        LedgerLostError: their history does not say which they have.
    """
    # Only the main table's newest entry says which dead letters are in use. A sink that has other ones, or
    # none, must make sure that no writer can still commit to those.
    newest = table.ledger.entry
    name = newest.dead_letters if newest else None
    if newest is None or name is None or (letters is not None and name == letters.name):
        return True
    target = DeltaTable.named(name)
    dead = target.ledger(spark, newest.app_id + APP_ID_SUFFIX)
    about = dead_batch(write.entry, name)
    entry = closing_entry(dead, newest, write.entry, uuid.uuid4().hex)
    if entry is None:
        return True  # The table is gone: nobody can be ahead in it.
    check_ledger(dead, about)
    # There may be letters of bytes that the main table has not passed. This sink does not look into that
    # table, so it would write the same records as rows.
    if is_ahead(dead, newest):
        problem = (
            f"{name}, to which they went until now, may have records that this table has not passed yet: "
            "the query was stopped between its two commits, or this table was restored. Start it as it "
            f"was, with dead_letters for {name}, until it has passed them, then change it"
        )
        raise DeadLetterError(main.name, newest.app_id, problem)
    log.info("dead letters are closed app_id=%s table=%s", newest.app_id, name)
    none = target.rows(spark).limit(0) if dead.table_version >= 0 else spark.createDataFrame([], LETTERS)
    return commit_letters(target, none, dead, entry, about) is not None


def commit_letters(
    target: DeltaTable,
    rows: DataFrame,
    before: LedgerState,
    entry: LedgerEntry,
    batch: Batch,
    *,
    add_columns: bool = False,
) -> LedgerState | None:
    """Append to a table of dead letters once.

    Args:
        target: The table.
        rows: The letters.
        before: The state on which the entry was made.
        entry: Their entry.
        batch: The dead letters' batch, for errors.
        add_columns: Add columns that the table does not have.

    Returns:
        The state after the commit, None if another writer was faster.

    Raises:
        SinkError: it was not committed, and never will be.
    """
    spark = rows.sparkSession
    conflict: PySparkException | None = None
    try:
        target.append(rows, entry, exists=before.table_version >= 0, add_columns=add_columns)
    # The outcome is unknown, as after any conflict. The ledger that is read next shows it.
    except CONFLICTS as error:
        conflict = error
    if before.table_version < 0:
        target.check(spark, None)  # The location of its log is known only now that there is one.
    after = target.ledger(spark, entry.app_id, before)
    outcome = reconcile(before, after, entry, batch, conflict=conflict is not None)
    if isinstance(outcome, Refusal):
        raise outcome.error from conflict
    return after if isinstance(outcome, Committed) else None


def _all_ranges(batch: Batch) -> list[NewRange]:
    """Return the bytes of a batch of one source."""
    (begin,), (end,) = batch.begin, batch.end
    assert isinstance(begin, JournalOffsets)
    assert isinstance(end, JournalOffsets)
    begins = begin.read_through
    return [
        NewRange(journal, begins[journal], begins[journal], until)
        for journal, until in end.read_through.items()
        if begins[journal] < until
    ]
