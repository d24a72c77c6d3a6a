"""Commits the rows of a batch that do not fit the main table to the table of dead letters.

:mod:`gazette_spark._ledger.dead_letters` decides what to commit and explains why that is correct, and
:mod:`gazette_spark._delta.violations` finds the rows that do not fit. This module reads and writes tables.

Dead letters that are already in the table are left out by an anti-join before an append. A ``MERGE``
statement would read the whole table, so each commit of another stream that shares the table would be a
conflict.
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
    "the query keeps state, and {table} may have records from beyond the end of this table. The query could "
    "emit them in a later batch, and then they would be in both tables. Restore {table} to the same time as "
    "this table; or let a query without state, with the same dead_letters, read past these bytes"
)
"""Error text for a query that could take dead letters into its state."""

LETTERS = "app_id STRING, journal STRING, `offset` BIGINT, end_offset BIGINT, raw BINARY, reason STRING"
"""Columns of an entry without dead letters, which may create the table; see :meth:`RowSplit.misfits`."""


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """The part of a batch that goes to the main table."""

    rows: DataFrame
    entry: LedgerEntry
    completes_batch: bool = True
    """False if the entry is a fence, after which the batch has to be decided again."""


class DeadLetterTable:
    """The table for rows that do not fit a sink's main table. It has no state, so it can be pickled."""

    def __init__(
        self,
        app_id: str,
        main: DeltaTable,
        letters: DeadLetters,
        new_table: NewTable | None,
        upsert: Upsert | None,
    ) -> None:
        """Name the table. Nothing is read or created yet.

        Args:
            app_id: App id of the main table.
            main: The table whose rows are split.
            letters: The table for dead letters.
            new_table: Definition of the main table if it does not exist.
            upsert: How rows are merged into the main table; None if they are appended.
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
        """Name of the table in SQL and in errors."""
        return self._target.name

    @property
    def has_path(self) -> bool:
        """Whether the table is named by its directory, and not by a name in a catalog."""
        return self._target.path is not None

    def check(self, spark: SparkSession, checkpoint: str | None, schema: StructType) -> None:
        """Refuse rows that cannot be split, before the first batch.

        Raises:
            DeadLetterError: the rows have no origin columns.
            TableRefusedError: the table of dead letters does not support exactly-once writes.
            OptionError: the table of dead letters is the main table, or one is inside the other.
        """
        if origin_columns(schema) is None:
            raise self._error(missing_columns(schema))
        # If a table is inside another one's directory, no version of the outer table refers to the files of
        # the inner one, so VACUUM of the outer table deletes them.
        mine, other = self._target, self._main
        nested = (
            mine.path
            and other.path
            and (is_inside(mine.path, other.path) or is_inside(other.path, mine.path))
        )
        if mine.name == other.name or nested:
            raise OptionError("dead_letters", mine.name, f"a place outside of the table {other.name}")
        mine.check(spark, checkpoint)

    def ledger(self, spark: SparkSession, since: LedgerState) -> LedgerState:
        """Read the dead letters' ledger from an earlier state on, before the main table's ledger."""
        return self._target.ledger(spark, self._app_id + APP_ID_SUFFIX, since)

    def split(self, rows: DataFrame, batch: Batch, table: TableSnapshot, write: Write) -> SplitBatch | None:
        """Commit the dead letters of a batch, and return the part for the main table.

        Args:
            rows: Rows of the batch that the main table lacks.
            batch: The batch.
            table: The snapshot on which the batch was decided.
            write: The decision.

        Returns:
            The part, or None if another writer has changed the dead letters: then read and decide again.

        Raises:
            SinkError: the batch cannot be split.
        """
        spark, dead = rows.sparkSession, table.letters
        # A record is recognized by journal and offset, in the dead letters and in the rows. Rows of several
        # sources, or rows made of several records, have no such position.
        origin = origin_columns(rows.schema)
        if len(batch.end) != 1 or not isinstance(batch.end[0], JournalOffsets):
            problem = (
                "the query has several sources or other sources, so its rows do not come from single records"
            )
            raise self._error(problem)
        if origin is None:
            raise self._error(missing_columns(rows.schema))
        if range_origin(rows.schema, batch.isolation) is None:
            raise self._error(missing_columns(rows.schema, batch.isolation))
        # How to split the rows depends only on each row and on the table's rules. If there is no table yet,
        # these are only the columns that it will have. Constraints can be added later and apply to later
        # batches.
        rules = TableRules(self._new_table.parsed(spark))
        if table.exists and table.detail is not None:
            rules = TableRules.of(table.schema, table.detail)
        is_committed = batch.isolation == "read_committed"
        split = RowSplit(rules, self._corrupt_column, origin, is_committed, self._upsert)
        # The two ledgers alone determine what to do: commit a fence first, commit dead letters first, or
        # split nothing.
        step = plan(dead, table.ledger, write, table=self.name, attempt=uuid.uuid4().hex)

        # Another writer may be between the two commits of a batch. The fence makes its second commit
        # conflict. After the fence, the ledgers are in step, and the batch is decided again.
        if isinstance(step, Fence):
            log.info("dead letters are not in step app_id=%s table=%s", self._app_id, self.name)
            return SplitBatch(split.fitting(rows.limit(0), None), step.entry, completes_batch=False)

        letters = None
        if isinstance(step, Divert):
            if state_may_hold_letters(step, dead, write):
                raise self._error(HELD.format(table=self.name))
            # Dead letters are found again by the bytes that they belong to. A row from other bytes would
            # never be found again, so it ends the query.
            ranges = write.new_ranges
            if not ranges:
                (begin,), (end,) = step.batch.begin, step.batch.end
                assert isinstance(begin, JournalOffsets)
                assert isinstance(end, JournalOffsets)
                ranges = tuple(
                    NewRange(journal, since, since, until)
                    for journal, until in end.read_through.items()
                    if (since := begin.read_through[journal]) < until
                )
            # A message belongs to the bytes that committed it.
            position = "ack_offset" if split.is_committed else "offset"
            misfits = rows_in_ranges(
                split.misfits(rows, self._app_id), ranges, ("journal", position), doing="divert"
            )
            # An earlier attempt at the batch may have committed dead letters, before a crash or in another
            # writer.
            if step.may_have_some:
                present = self._places(spark, dead.table_version, ranges, position)
                place = origin_place(misfits, ("journal", "offset"))
                misfits = misfits.join(present, place == present[PLACE], "left_anti")
            # From here on, the two tables are out of step until the main table's commit. After a crash in
            # between, the next run sees that the dead letters are ahead of the main table. It commits a
            # fence, finds the dead letters by journal and offset, and continues.
            after = commit_letters(
                self._target, misfits, dead, step.entry, step.batch, add_columns=split.is_committed
            )
            # Another writer's dead letters came first, so the decision was based on a ledger that is no
            # longer the newest.
            if after is None:
                return None
            failpoint("sink.dead_letters_written")
            # From here on, what was committed decides about a row, not a second evaluation of the row.
            dead, letters = after, self._places(spark, after.entry_version, ranges, position)
        return SplitBatch(split.fitting(rows, letters), with_letters(write.entry, self.name, dead))

    def _places(
        self, spark: SparkSession, version: int, ranges: Sequence[NewRange], position: str
    ) -> DataFrame:
        """Return where this stream has dead letters within the ranges, at a version of their table."""
        # The dead letters are read at a given version, not at the newest one: what another writer commits now
        # belongs to the other writer's batch.
        begin, _, end = range_columns(ranges, F.col("journal"))
        rows = self._target.rows(spark, version)
        # If only other streams have dead letters, the table may lack the column for acknowledgements.
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
    """Close the dead letters with which a main table was last written, unless this write uses them as well.

    Args:
        spark: The session.
        main: The main table.
        table: Its snapshot, whose newest entry names the dead letters.
        write: The write that was decided on that snapshot.
        letters: The dead letters of this write, if any.

    Returns:
        Whether no other dead letters of this table are open. If False, another writer was faster: read and
        decide again.

    Raises:
        DeadLetterError: they may have records from beyond the main table's end.
        LedgerLostError: their history does not show which records they have.
    """
    # Only the main table's newest entry shows which dead letters are in use. A sink with other dead letters,
    # or without any, must make sure that no writer can still commit to those.
    newest = table.ledger.entry
    name = newest.dead_letters if newest else None
    if newest is None or name is None or (letters is not None and name == letters.name):
        return True
    # If both tables were copied or moved together, the main table still names the dead letters of the
    # original, which another query may write. Attempts are unique, so a table with the named entry is a copy
    # of those. Its new name causes a fence of the main table, after which no other writer of it can commit.
    own = table.letters
    if (
        letters is not None
        and own.entry is not None
        and newest.dead_attempt is not None
        and newest.dead_attempt in (own.entry.attempt, own.previous)
    ):
        return True
    target = DeltaTable.named(name)
    dead = target.ledger(spark, newest.app_id + APP_ID_SUFFIX)
    about = dead_batch(write.entry, name)
    entry = closing_entry(dead, newest, write.entry, uuid.uuid4().hex)
    if entry is None:
        return True  # The table no longer exists, so no writer can be ahead in it.
    check_ledger(dead, about)
    # There may be dead letters of bytes beyond the main table's end. This sink does not read that table, so
    # it would write the same records as rows.
    if is_ahead(dead, newest):
        problem = (
            f"{name}, the previous table of dead letters, may have records from beyond the end of this "
            "table, because the query was stopped between its two commits or this table was restored. Start "
            f"the query with dead_letters for {name} as before, let it read past these records, and then "
            "change it"
        )
        raise DeadLetterError(main.name, newest.app_id, problem)
    log.info("dead letters are closed app_id=%s table=%s", newest.app_id, name)
    # The table's own columns may include one for which Delta accepts no values, not even none.
    none = spark.createDataFrame([], LETTERS)
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
    """Try once to append to a table of dead letters.

    Args:
        target: The table.
        rows: The dead letters.
        before: The state on which the decision was based.
        entry: The ledger entry of the dead letters.
        batch: The dead letters' batch, for errors.
        add_columns: Whether to add columns that the table does not have.

    Returns:
        The state after the commit, or None if another writer was faster.

    Raises:
        SinkError: the commit failed, and trying again would not help.
    """
    spark = rows.sparkSession
    conflict: PySparkException | None = None
    try:
        target.append(rows, entry, exists=before.table_version >= 0, add_columns=add_columns)
    # The outcome is unknown, as after any conflict. The ledger that is read next shows it.
    except CONFLICTS as error:
        conflict = error
    if before.table_version < 0:
        target.check(spark, None)  # Only now that the table exists is the location of its log known.
    after = target.ledger(spark, entry.app_id, before)
    outcome = reconcile(before, after, entry, batch, conflict=conflict is not None)
    if isinstance(outcome, Refusal):
        raise outcome.error from conflict
    return after if isinstance(outcome, Committed) else None
