"""The exactly-once Delta writer.

Why a row cannot be lost or doubled:

- **One Delta commit has the rows of a batch and a ledger entry**: the offsets of the batch, and the offsets
  up to which the table is filled. Either both are visible or neither is.
- **The table decides, not a batch id.** Before it writes, the sink reads the newest entry and compares
  it with the offsets Spark wrote into the query checkpoint for this batch. It writes only rows that continue
  the table, byte by byte; a batch that is in the table is skipped, anything else is refused
  (:mod:`gazette_spark.ledger.decision`). The source gives the same rows for the same offsets, always.
- **The write is a compare-and-set.** It carries a Delta transaction id numbered one past the newest
  entry's, undone ones included. Of two writers that decided on the same entry Delta lets one through.
- **Silence is not success.** Delta silently skips a transaction number it knows, and may raise a conflict for
  a write that was committed. So after each write the sink reads the history again: the newest entry must be
  its own, and the one before it the one it decided on.

The state after a crash, as the next run finds it:

========================================  ================================================
before the Delta commit                   files nobody refers to; the batch is run again
after it, before Spark's ``commits/<n>``  the entry; the batch is run again, and skipped
query checkpoint deleted                  the entry; see :meth:`DeltaSink.resume`
query checkpoint copied, second writer    an entry of another: one of the two is fenced
========================================  ================================================

Rows that do not fit can go to a second table (:mod:`gazette_spark.ledger.dead_letters`): its commit comes
first, and the table stays the authority.

The source's first batch is empty and pins the start of the query. It makes the table and its first entry. On
an existing table, a query that does not continue the table is refused at this batch.

Nothing here needs more than Spark Connect offers, but for finding the query checkpoint when its path
is not given.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from tempfile import gettempdir
from typing import Any

from gazette_spark.errors import MissingPackageError

try:
    from delta.exceptions import (
        ConcurrentAppendException,
        ConcurrentDeleteDeleteException,
        ConcurrentDeleteReadException,
        ConcurrentTransactionException,
        ConcurrentWriteException,
        DeltaConcurrentModificationException,
        MetadataChangedException,
        ProtocolChangedException,
    )
except ModuleNotFoundError as missing:
    problems = {
        "delta": "the sink needs the package delta-spark; the package named delta is another one",
        "pyspark": "Spark is not installed",
    }
    if (name := (missing.name or "").partition(".")[0]) not in problems:
        raise
    raise MissingPackageError(problems[name]) from None
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from gazette_spark._frames import short
from gazette_spark.errors import (
    GazetteError,
    NoSpaceError,
    OffsetError,
    OptionError,
    QueryCheckpointError,
    TableRefusedError,
    TrimError,
)
from gazette_spark.failpoints import failpoint
from gazette_spark.ledger.dead_letters import DeadLetters
from gazette_spark.ledger.decision import Allowed, Committed, Refusal, Skip, Write, decide, verify
from gazette_spark.ledger.entry import (
    Batch,
    LedgerEntry,
    LedgerState,
    Mode,
    SkippedGap,
    entry_without_rows,
    least_offsets,
    unknown_journals,
)
from gazette_spark.ledger.positions import GroupCommit, table_commits
from gazette_spark.ledger.query_checkpoint import offsets_directory
from gazette_spark.offsets import MAX_OFFSET, JournalOffsets, check_forward
from gazette_spark.spark_versions import ADMISSION_CONTROL
from gazette_spark.table.adopt import adopt, adopt_recreated
from gazette_spark.table.batch_digest import audit_rows
from gazette_spark.table.dead_letter_router import DeadLetterRouter, SplitBatch
from gazette_spark.table.delta_table import DeltaTable, TableDetail
from gazette_spark.table.file_commits import FileCommits
from gazette_spark.table.files import clear_unfinished, has_files, is_classic, without_space
from gazette_spark.table.heartbeat import Heartbeat
from gazette_spark.table.java_errors import short_java_error
from gazette_spark.table.maintenance import TableMaintenance
from gazette_spark.table.merge import check_keys_once, last_rows, upsert_rows
from gazette_spark.table.new_table import NewTable
from gazette_spark.table.preflight import check_delta, check_workers, gazette_options
from gazette_spark.table.query_batches import QueryBatches, keep_state
from gazette_spark.table.session import session_or_active
from gazette_spark.table.start_checks import check_alone, check_places, warn_of_other_writers
from gazette_spark.table.trim import missing_columns, range_origin, rows_in_ranges
from gazette_spark.table.upsert import Upsert
from gazette_spark.table.violations import named_rows

log = logging.getLogger(__name__)

MAX_APP_ID_LENGTH = 512

VISIBLE = (
    "a query started with DeltaSink.start(df, output_mode=…) in place of foreachBatch(sink), or on classic "
    "Spark a sink that is called in the thread of its batch: a batch of the modes update and complete gives "
    "rows again"
)
"""How the sink learns a query's output mode."""

MAX_TRIES = 5
"""Writes of one batch that Delta may turn down for reasons that pass, such as a changed schema."""

SHOWN_RANGES = 5
"""Ranges of bytes that a log line lists."""

CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""Delta's conflict errors; they do not share a base."""


class DeltaSink:
    """Writes a stream into a Delta table exactly once.

    To be given to ``foreachBatch``, or started with :meth:`start`. One sink serves one query at a
    time and is called by one thread.
    """

    def __init__(
        self,
        app_id: str,
        *,
        path: str | None = None,
        table: str | None = None,
        checkpoint: str | None = None,
        on_overlap: str = "fail",
        accept_gaps: Mapping[str, Sequence[tuple[int, int]]] | None = None,
        on_new_checkpoint: str = "fail",
        new_table: NewTable | None = None,
        schema_evolution: str = "fail",
        target_file_bytes: int | None = None,
        compact_every: int | None = None,
        upsert: Upsert | None = None,
        audit: bool = False,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        """Configure the writer; nothing is read or made yet.

        Args:
            app_id: Name of this stream in the table. Keep it for the table's life; two streams in one
                table need two.
            path: Directory of the table.
            table: Or its name in the catalog.
            checkpoint: The query's checkpoint directory. Needed for ``foreachBatch`` on Spark Connect.
            on_overlap: Policy for a batch that is partly in the table: ``fail``, or ``trim`` to drop the rows
                that the table has. For that the batch needs the columns ``_journal`` and ``_offset``, or
                ``journal, offset, value`` of the format ``raw``, and each row has to follow from one record.
                A query that starts behind the table's end is accepted then.
            accept_gaps: Bytes that may be missing from the table permanently, by journal: each ``(begin,
                end)`` from the end of the table to the start of the query, to the byte, as ``GapError``
                names them. The ledger records these gaps.
            on_new_checkpoint: Policy for a new checkpoint of a query whose rows do not follow from journal
                offsets alone, because it keeps state or reads other sources: ``fail``, or ``restart`` to
                accept that its state begins empty, and its other sources where the query says: what the old
                state held is lost, and their rows may come again.
            new_table: Definition of a missing table: columns, partitions or clusters, properties. By default,
                the table gets the columns of the first batch.
            schema_evolution: Policy for columns and fields that the table does not have: ``fail``, or
                ``addNewColumns`` to add them in the batch's commit. Any other misfit is an error.
            target_file_bytes: Write one file for about this number of journal bytes. A small batch is then
                read by fewer tasks, too.
            compact_every: Compact the table's small files (OPTIMIZE) each time after this number of ledger
                entries.
            upsert: Keep one row of each key, the last, in place of all of them. Then the table accepts no
                batches without it under this app id.
            audit: Count each batch's rows by journal, and digest their bytes where the batch has them
                (columns ``journal, offset, value`` of the format ``raw``), for its ledger entry. Each batch
                is read twice for that.
            dead_letters: A second table for the rows that do not fit this one. The query has one source,
                whose columns ``_journal`` and ``_offset`` it keeps, or ``journal, offset, value`` of the
                format ``raw``, and makes at most one row of a record.
        """
        _check_app_id(app_id)
        if (path is None) == (table is None):
            raise OptionError("path and table", f"path={path!r}, table={table!r}", "exactly one of them")
        if on_overlap not in ("fail", "trim"):
            raise OptionError("on_overlap", repr(on_overlap), "'fail' or 'trim'")
        if on_new_checkpoint not in ("fail", "restart"):
            raise OptionError("on_new_checkpoint", repr(on_new_checkpoint), "'fail' or 'restart'")
        if upsert is not None and "${" in app_id:  # Spark would replace it in the settings of a MERGE.
            raise OptionError("app_id", repr(app_id[:80]), "a name without ${, where rows are merged by key")
        self.app_id = app_id
        self._upsert = upsert
        self._target = DeltaTable(path=path, table=table)
        self._maintenance = TableMaintenance(
            self._target,
            new_table=new_table,
            schema_evolution=schema_evolution,
            target_file_bytes=target_file_bytes,
            compact_every=compact_every,
        )
        self._checkpoint = checkpoint
        self._output_mode: str | None = None
        """Output mode of the query, None where :meth:`start` did not set it."""
        self._allowed = Allowed(
            on_overlap == "trim",
            _accepted_gaps(accept_gaps or {}),
            restart=on_new_checkpoint == "restart",
        )
        self._audit = audit
        self._router = DeadLetterRouter(
            app_id, self._target, dead_letters, CONFLICTS, new_table, upsert=upsert
        )
        self._checked = False
        self._seen: str | None = None
        """Attempt of the newest entry after this run's last batch. Another there means another writer."""
        self._known: LedgerState | None = None
        """Last known state of the table's history; the next read starts from there."""
        self._alone_at: int | None = None
        """Table version up to which no other app id is known to have written; None if that was not asked."""
        self._batches = QueryBatches(self._target.name, app_id)
        self._heartbeat = Heartbeat()
        self._files: FileCommits | None = None
        """Where tasks write the data files; see :mod:`gazette_spark._ingest`."""
        self._turn = threading.Lock()
        """Held by a batch, and by a heartbeat."""

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the lock: Spark Connect pickles the sink."""
        return {name: value for name, value in vars(self).items() if name != "_turn"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take all, with a lock of this process."""
        vars(self).update(state)
        self._turn = threading.Lock()

    def __repr__(self) -> str:
        return f"DeltaSink({self.app_id!r}, {self._target.name}, seen={self._seen})"

    def start(
        self,
        df: DataFrame,
        *,
        checkpoint: str | None = None,
        query_name: str | None = None,
        output_mode: str = "append",
        **trigger: Any,  # noqa: ANN401 - the types are Spark's
    ) -> StreamingQuery:
        """Start the query that writes ``df``.

        Args:
            df: The stream.
            checkpoint: Its checkpoint directory, unless the sink has it already.
            query_name: Name of the query in Spark's listings.
            output_mode: Spark's output mode. ``update`` and ``complete`` give a row of each group again and
                again, so the sink needs ``upsert``, whose keys are the grouping keys. A batch under
                ``complete`` is the whole table, which no other stream may share.
            trigger: As for ``DataStreamWriter.trigger``, e.g. ``availableNow=True``. On Spark 4.0 and 4.1
                that is one batch, as large as the source's limits allow.
        """
        root = checkpoint or self._checkpoint
        if not root:
            raise OptionError("checkpoint", "none", "the query's checkpoint directory")
        if "realTime" in trigger:
            raise OptionError("trigger", "realTime", "processingTime or availableNow: a batch is one commit")
        check_output_mode(output_mode, self._upsert)
        sink = copy(self)
        sink._output_mode = output_mode
        sink._checkpoint, sink._checked, sink._seen, sink._known = root, False, None, None
        sink._alone_at = None
        sink._batches = QueryBatches(self._target.name, self.app_id)
        sink._maintenance, sink._router = copy(self._maintenance), copy(self._router)
        sink._heartbeat = copy(self._heartbeat)
        check_delta(df.sparkSession)
        for options in gazette_options(df):
            check_workers(df.sparkSession, options)
        sink._check_start(df, root)
        clear_unfinished(df.sparkSession, root)
        writer = df.writeStream.foreachBatch(sink).outputMode(output_mode)
        writer = writer.option("checkpointLocation", root)
        if query_name:
            writer = writer.queryName(query_name)
        if trigger:
            writer = writer.trigger(**trigger)
        once = bool(trigger.keys() & {"availableNow", "once"}) and not ADMISSION_CONTROL
        if once and not has_files(df.sparkSession, offsets_directory(root)):
            writer.start().awaitTermination()  # It is one batch, which records the start and reads nothing.
        return writer.start()

    @property
    def table(self) -> DeltaTable:
        """The table."""
        return self._target

    @property
    def target_file_bytes(self) -> int | None:
        """Size of a file that was asked for."""
        return self._maintenance.target_file_bytes

    def make_table(self, spark: SparkSession, rows: StructType) -> TableDetail:
        """Make the table for rows of a schema, if there is none; return its detail."""
        if (detail := self._target.check(spark, None)) is None:
            self._maintenance.make(spark, rows)
            detail = self._target.detail(spark)
            assert detail is not None
        return detail

    def check_files_only(self) -> None:
        """Refuse the options whose rows Spark has to write.

        Raises:
            OptionError: naming the first one.
        """
        given = {
            "upsert": self._upsert is not None,
            "dead_letters": self._router.diverts,
            "audit": self._audit,
            "on_overlap": self._allowed.trim,
            "schema_evolution": self._maintenance.adds_columns,
        }
        if found := next((name for name, asked in given.items() if asked), None):
            raise OptionError(found, "with ingest()", "left out, or DeltaSink.start: Spark writes such rows")

    def with_files(self, files: FileCommits) -> DeltaSink:
        """Return this sink for batches whose rows tell of data files; see :mod:`gazette_spark._ingest`."""
        sink = copy(self)
        sink._files = files
        return sink

    def ledger(self, spark: SparkSession | None = None) -> LedgerEntry | None:
        """Return the table's newest entry of this app id, None without an entry."""
        session = session_or_active(spark)
        check_delta(session)
        return self._target.ledger(session, self.app_id).entry

    def commits(self, spark: SparkSession | None = None) -> list[GroupCommit]:
        """Return the table's position after each of its commits, oldest first, as far as its history goes.

        Commits without a position of this app id are left out. A RESTORE to a version is there: it takes the
        position back.
        """
        return table_commits(self._target.history(session_or_active(spark), None), self.app_id)

    def resume_offsets(self, spark: SparkSession | None = None) -> str | None:
        """Return the ``startingOffsets`` with which a query without a checkpoint continues the table.

        All journals of the ledger are in it, with the fingerprints by which the query recognizes them. Where
        some were deleted or are not read any more, or the query has several sources, use :meth:`resume`.

        Returns:
            JSON, or None if the table has no entry yet: start then where you like. If all entries were
            undone, as by a RESTORE to before the first one, the offsets at which the table's rows began.
        """
        state = self._target.ledger(session_or_active(spark), self.app_id)
        offsets = state.entry.read_through if state.entry else least_offsets(state.undone)
        prints = state.entry.fingerprints if state.entry else {}
        return JournalOffsets(offsets, fingerprints=prints).to_json() if offsets else None

    def resume(self, reader: DataStreamReader, spark: SparkSession | None = None) -> DataStreamReader:
        """Have a query that has lost its checkpoint go on where the table ends.

        ``sink.start(sink.resume(reader).load(), checkpoint=…)`` is right for every start of a query: on a
        new table, and where Spark finds the checkpoint, it changes nothing. A query of several sources
        resumes each reader. Journals of the ledger that were deleted, or that the reader does not select, do
        not count. Selected journals that the ledger does not know start at their first byte.

        Args:
            reader: ``spark.readStream.format("gazette")`` with its options. Where the table has a ledger,
                ``startingOffsets`` and the starting times are of no effect.
            spark: The session, if not the active one.

        Returns:
            The reader, its ``resumeOffsets`` those of the table's ledger if that has any.
        """
        check_delta(session_or_active(spark))
        offsets = self.resume_offsets(spark)
        return reader if offsets is None else reader.option("resumeOffsets", offsets)

    def adopt(
        self,
        offsets: JournalOffsets,
        spark: SparkSession | None = None,
        *,
        recreated: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> LedgerEntry:
        """Have the ledger of a table begin at ``offsets``, because it was cleaned up or there never was one.

        A commit without rows records it. Afterwards the table is continued like any other:
        ``sink.start(sink.resume(reader).load(), checkpoint=…)``, with a new checkpoint.

        Args:
            offsets: By journal, the next byte after the table's rows, as ``gazette-spark offsets show TABLE
                --from-data`` prints it. Rows that contradict it are found where the table says where rows
                come from; else it is taken on trust. Of a table of committed messages they have ``starts``,
                too: where its query began.
            spark: The session, if not the active one.
            recreated: Or the table has a ledger, and the journals in ``offsets`` were deleted and created
                again with other bytes. Their rows go on there; rows of the old ones stay. All other journals
                go on as they are.
            options: With ``recreated``, the options of the query's reader that say where the journals are and
                how to enter. The journals' bytes are compared with the ledger: no bytes are written twice.

        Returns:
            The entry. Calling again with the same offsets changes nothing.

        Raises:
            OptionError: ``recreated`` comes without ``options``.
            TableRefusedError: the table has a ledger, or rows past the offsets; or ``recreated`` names a
                journal that the ledger does not know, or that has the bytes of the table's rows still.
        """
        session = session_or_active(spark)
        self._target.check(session, None)
        if recreated:
            if options is None:
                expected = "the options of the query's reader: the journals are compared with the ledger"
                raise OptionError("options", "none with recreated=True", expected)
            return adopt_recreated(self._target, session, self.app_id, offsets, options)
        mode: Mode = "upsert" if self._upsert else "append"
        return adopt(self._target, session, self.app_id, offsets, mode=mode)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Bring one batch into the table, or find it there.

        Raises:
            SinkError: the batch does not continue the table; nothing was written.
        """
        failpoint("sink.entry")
        self._heartbeat.disarm()
        with self._turn:
            try:
                self._write_one(df, batch_id)
            except GazetteError as error:
                raise short(error) from None
            except Exception as error:
                log.info("batch failed app_id=%s batch_id=%d", self.app_id, batch_id, exc_info=True)
                if (shorter := short_java_error(error)) is None:
                    raise
                raise shorter from None
        run = _running_query(df.sparkSession)
        if run is not None or not is_classic(df.sparkSession):
            self._heartbeat.arm(partial(self._beat, df.sparkSession, run))
        failpoint("sink.return")

    def _write_one(self, df: DataFrame, batch_id: int) -> None:
        # Forgotten until this batch is done: whoever runs after a failure is a new writer.
        seen, self._seen = self._seen, None
        known, self._known = self._known, None
        spark = df.sparkSession
        root = self._checkpoint or _running_query_checkpoint(spark)
        _know_conflicts(spark)
        mode = self._output_mode or _running_query_mode(spark)
        if mode is not None:
            check_output_mode(mode, self._upsert)
        known_table = self._checked or self._check_table(df, root) is not None
        batch = self._batches.read(spark, root, batch_id)
        if mode is None and batch.stateful:
            # Without state, update gives the rows of append, and Spark refuses complete.
            raise OptionError("outputMode", "a mode that cannot be seen here, of a query with state", VISIBLE)
        self._seen = self._commit_batch(df, batch, seen, known, mode or "append")
        if not known_table:
            self._check_table(df, root)  # Retry, now that the first batch has made the table.
        self._checked = True

    def _beat(self, spark: SparkSession, query: Any) -> bool:  # noqa: ANN401 - Java's
        """Write the newest entry again if it is still this run's; return whether to do so again later."""
        with self._turn:
            known, seen = self._known, self._seen
            if known is None or seen is None or not _is_running(query):
                return False
            if self._files is not None:
                self._files.open(self._target.current_location(spark))
            before = self._target.ledger(spark, self.app_id, known)
            if before.entry is None or before.entry.attempt != seen:
                return False  # Another writer has moved on; the next batch hears of it.
            # It keeps query, batch and time: the same batch is its replay.
            entry = entry_without_rows(before, uuid.uuid4().hex)
            if self._files is not None:
                self._files.commit(None, entry)
            else:
                self._target.append(self._target.rows(spark).limit(0), entry, exists=True)
            after = self._target.ledger(spark, self.app_id, before)
            if after.entry is None or after.entry.attempt != entry.attempt:
                return False
            self._known, self._seen = after, entry.attempt
            log.info("heartbeat_written app_id=%s table_version=%d", self.app_id, after.entry_version)
            return True

    def write_batch(self, df: DataFrame, begin: JournalOffsets, end: JournalOffsets) -> bool:
        """Write the rows of an offset range to the table, unless they are there.

        As with a batch of a stream, rows and ledger entry are one Delta commit, and only what continues the
        table is written. Journals that are new to the table are pinned by a separate commit before it,
        without rows, as a stream's first batch does. A failed call may be repeated with the same arguments.

        Args:
            df: The rows of ``[begin, end)``, and no others, each time it is run.
                :mod:`gazette_spark._backfill` makes one.
            begin: First byte of each journal.
            end: Byte behind the last one, of the same journals. Of committed messages it names ``starts``,
                too: a row is then of the range that has its acknowledgement.

        Returns:
            Whether rows were written; if not, the table had all of the range.

        Raises:
            OffsetError: the two are not of the same journals, or one goes back.
            SinkError: the range does not continue the table; nothing was written.
        """
        if begin.read_through.keys() != end.read_through.keys():
            raise OffsetError("begin and end of a batch are not of the same journals")
        check_forward(begin, end)
        failpoint("sink.entry")
        seen, self._seen = None, None
        known, self._known = self._known, None
        if known is None or self._router.diverts:
            self._check_table(df, None)
        state = self._target.ledger(df.sparkSession, self.app_id, known)
        name = f"batch-{uuid.uuid4().hex}"
        if new := unknown_journals(state.entry, begin, self._target.name):
            starts = {journal: at for journal, at in end.starts.items() if journal in new.read_through}
            first = replace(new, position="pinned", starts=starts)
            pinned = Batch(self._target.name, self.app_id, name, 0, (), (first,))
            seen = self._commit_batch(df.limit(0), pinned, None, state)
            self._check_table(df, None)
        before = seen or (state.entry.attempt if state.entry else None)
        batch = Batch(self._target.name, self.app_id, name, 1, (begin,), (end,))
        self._seen = self._commit_batch(df, batch, seen, self._known or state)
        failpoint("sink.return")
        return self._seen != before

    def _commit_batch(
        self,
        df: DataFrame,
        batch: Batch,
        seen: str | None,
        known: LedgerState | None = None,
        output_mode: str = "append",
    ) -> str | None:
        """Return the attempt of the newest entry, which holds the batch."""
        spark = df.sparkSession
        if self._upsert:
            batch = replace(batch, mode="upsert")
        conflict: Exception | None = None
        for _ in range(MAX_TRIES):
            self._router.look(spark)
            if self._files is not None:
                self._files.open(self._target.current_location(spark))
            before = self._known = self._target.ledger(spark, self.app_id, known)
            decision = decide(before, batch, attempt=uuid.uuid4().hex, seen=seen, allowed=self._allowed)
            if isinstance(decision, Refusal):
                raise decision.error from conflict
            if isinstance(decision, Skip):
                return self._skipped(df, batch, before)
            split = self._router.split(self._new_rows(df, batch, decision), batch, before, decision)
            if split is None:
                continue
            with (
                named_rows(spark, self._target.name, self.app_id, batch.batch_id),
                self._named_full_disk(spark, batch.batch_id),
            ):
                write = self._audited(split)
                conflict = self._write(split.rows, batch, before, write, output_mode.lower())
            after = known = self._known = self._target.ledger(spark, self.app_id, before)
            outcome = verify(before, after, write.entry, batch, conflict=conflict is not None)
            if isinstance(outcome, Refusal):
                raise outcome.error from conflict
            if isinstance(outcome, Committed):
                if split.whole:
                    self._landed(spark, batch, before, after)
                    return write.entry.attempt
                seen = write.entry.attempt
        problem = f"batch {batch.batch_id} was turned down {MAX_TRIES} times by commits of others"
        raise TableRefusedError(self._target.name, problem) from conflict

    def _skipped(self, df: DataFrame, batch: Batch, state: LedgerState) -> str | None:
        """Leave out a batch that the table has; return the attempt of the newest entry."""
        log.info("batch_skipped app_id=%s batch_id=%d", self.app_id, batch.batch_id)
        if batch.stateful:
            keep_state(df)
        return state.entry.attempt if state.entry else None

    def _audited(self, split: SplitBatch) -> Write:
        """Count and digest what completes a batch, if that was asked for."""
        write = split.write
        if not self._audit or not split.whole:
            return write
        counted = audit_rows(split.rows, write.entry.read_through)
        return replace(write, entry=replace(write.entry, audit=counted))

    def _landed(self, spark: SparkSession, batch: Batch, before: LedgerState, after: LedgerState) -> None:
        """Log the committed batch and its gaps, and maintain the table's files."""
        assert after.entry is not None
        line = f"app_id={self.app_id} batch_id={batch.batch_id} table_version={after.entry_version}"
        log.info("batch_written %s", line)
        if gaps := after.entry.gaps:
            log.warning("bytes are left out, recorded %s %s", line, ranges_text(gaps))
        self._maintenance.after_commit(spark, before, after)

    def _new_rows(self, df: DataFrame, batch: Batch, decision: Write) -> DataFrame:
        """Return the rows of the batch to write."""
        if not decision.new_ranges:
            return df
        columns = range_origin(df.schema, batch.isolation)
        if columns is None:
            problem = missing_columns(df.schema, batch.isolation)
            raise TrimError(self._target.name, batch.app_id, batch.batch_id, problem)
        trimmed = [SkippedGap(each.journal, each.begin, each.since) for each in decision.new_ranges]
        if trimmed := [each for each in trimmed if each.begin < each.end]:
            line = f"app_id={batch.app_id} batch_id={batch.batch_id} {ranges_text(trimmed)}"
            log.warning("rows are in the table, trimmed %s", line)
        return rows_in_ranges(df, decision.new_ranges, columns)

    def _write(
        self, df: DataFrame, batch: Batch, before: LedgerState, decision: Write, mode: str
    ) -> Exception | None:
        """Write once; return the conflict, if Delta raises one, for it does not tell the outcome."""
        failpoint("sink.before_write")
        conflict: Exception | None = None
        entry = decision.entry
        try:
            if self._files is not None:
                pins_only = all(each is None for each in batch.begin)
                conflict = self._files.commit(None if pins_only else df, entry)
            elif self._upsert:
                if before.table_version >= 0 and (before.entry is None or before.entry.mode != "upsert"):
                    check_keys_once(self._target, df.sparkSession, entry, self._upsert)
                if mode == "complete":
                    self._check_alone(df.sparkSession, before)
                rows = last_rows(self._target, df, entry, self._upsert, mode)
                ready = self._maintenance.prepare(rows, batch, before, beside=self._upsert.beside)
                upsert_rows(self._target, ready, entry, self._upsert, complete=mode == "complete")
            else:
                ready = self._maintenance.prepare(df, batch, before)
                self._target.append(ready.df, entry, exists=ready.exists, add_columns=ready.add_columns)
        except CONFLICTS as error:
            conflict = error
        except AnalysisException as error:
            if not self._maintenance.changed(df.sparkSession):
                raise
            conflict = error
        failpoint("sink.after_write")
        return conflict

    @contextmanager
    def _named_full_disk(self, spark: SparkSession, batch_id: int) -> Iterator[None]:
        """Raise the package's error where a batch finds no space, with the directory."""
        try:
            yield
        except Exception as error:
            places = {
                "the table": self._target.path or self._target.location,
                "the query checkpoint": self._checkpoint,  # A task writes a query's state there.
                "Spark's scratch files": spark.conf.get("spark.local.dir", None) or gettempdir(),
            }
            if problem := without_space(spark, str(error), places):
                raise NoSpaceError(self._target.name, self.app_id, batch_id, problem) from error
            raise

    def _check_alone(self, spark: SparkSession, state: LedgerState) -> None:
        """Refuse a complete result for a table with rows of others: each of its batches deletes them.

        The history is searched for others at first, and again when somebody else has committed.
        """
        known, self._alone_at = self._alone_at, None
        if state.table_version >= 0 and state.table_version != known:
            check_alone(self._target, spark, self.app_id, state)
        self._alone_at = state.table_version + 1  # This write makes that version.

    def _check_start(self, df: DataFrame, root: str) -> None:
        """Refuse what the first batch would refuse, as far as it is known; the batch uses what is read."""
        spark = df.sparkSession
        self._checked = exists = self._check_table(df, root) is not None
        check_places(self._target, spark, root, exists=exists)
        if not exists:
            return
        try:
            state = self._known = self._target.ledger(spark, self.app_id)
        except GazetteError as error:
            log.info("ledger not read at start app_id=%s problem=%s", self.app_id, error)
            return  # The first batch says the same, unless the table has changed until then.
        if (self._output_mode or "").lower() == "complete":
            check_alone(self._target, spark, self.app_id, state)
        warn_of_other_writers(self._target, spark, self.app_id, state)
        # Rows of the direct lane tell of files, whose columns it checks itself.
        if self._upsert is None and not self._router.diverts and self._files is None:
            self._maintenance.check_columns(df, self.app_id, state)

    def _check_table(self, df: DataFrame, checkpoint: str | None) -> TableDetail | None:
        detail = self._target.check(df.sparkSession, checkpoint)
        self._maintenance.checked(detail)
        if self._upsert is not None:
            self._maintenance.check_keys(df.sparkSession, self._upsert.keys, exists=detail is not None)
        self._router.check(df.sparkSession, checkpoint, df.schema)
        return detail


def _check_app_id(app_id: object) -> None:
    expected = f"a name of 1 to {MAX_APP_ID_LENGTH} printable characters"
    if not isinstance(app_id, str):
        raise OptionError("app_id", type(app_id).__name__, expected)
    if not app_id or app_id != app_id.strip() or not app_id.isprintable() or len(app_id) > MAX_APP_ID_LENGTH:
        raise OptionError("app_id", repr(app_id[:80]), expected)


def _accepted_gaps(gaps: Mapping[str, Sequence[tuple[int, int]]]) -> frozenset[SkippedGap]:
    expected = "byte ranges by journal, from where the table ends: {'a/journal': [(1024, 4096)]}"
    if not isinstance(gaps, Mapping):
        raise OptionError("accept_gaps", repr(gaps)[:80], expected)
    found = set()
    for journal, ranges in gaps.items():
        for each in ranges if isinstance(ranges, list | tuple) else [ranges]:
            match journal, each:
                case str(), [int(begin), int(end)] if 0 <= begin < end <= MAX_OFFSET:
                    found.add(SkippedGap(journal, begin, end))
                case _:
                    raise OptionError("accept_gaps", f"{journal!r}: {repr(each)[:80]}", expected)
    return frozenset(found)


def _know_conflicts(spark: SparkSession) -> None:
    """Have Spark Connect raise Delta's conflicts by their classes, as classic PySpark does by itself.

    Where Delta's package for Connect is missing they end the query, which loses nothing but the query.
    """
    if not is_classic(spark):
        with suppress(ImportError):
            import delta.connect.exceptions  # noqa: F401 - to load it is all it takes.


def ranges_text(ranges: Sequence[SkippedGap]) -> str:
    """Return ranges of bytes as part of a log line: how many bytes, and where the first ones are."""
    shown = " ".join(f"{each.journal}[{each.begin},{each.end})" for each in ranges[:SHOWN_RANGES])
    more = f" and {len(ranges) - SHOWN_RANGES} more" if len(ranges) > SHOWN_RANGES else ""
    total = sum(each.end - each.begin for each in ranges)
    return f"bytes={total} journals={len({each.journal for each in ranges})} ranges={shown}{more}"


def check_output_mode(mode: str, upsert: Upsert | None) -> None:
    """Refuse an output mode whose batches repeat rows, unless rows are merged by key.

    Raises:
        OptionError: naming the mode and the ways out.
    """
    if mode.lower() not in ("append", "update", "complete"):
        raise OptionError("outputMode", repr(mode), "append, or update or complete with upsert")
    if mode.lower() != "append" and upsert is None:
        ways = "append, or DeltaSink(upsert=Upsert(keys)) with the grouping keys: each batch gives rows again"
        raise OptionError("outputMode", mode, ways)


def _running_query_mode(spark: SparkSession) -> str | None:
    """Return the output mode of the query that runs this thread's batch; None where that cannot be seen."""
    query = _running_query(spark)
    return None if query is None else str(query.outputMode()).lower()


def _running_query(spark: SparkSession) -> Any:  # noqa: ANN401 - Java's
    """Return Spark's query that runs this thread's batch, None where it cannot be found.

    It cannot on Spark Connect, and in threads that a function for ``foreachBatch`` starts.

    ``spark.streams`` lists the queries of one session, which need not be the first one of the program, and a
    batch has a separate session without any. All sessions of a JVM share the map of queries by id.
    """
    if not is_classic(spark):
        return None
    query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query_id:
        return None
    assert spark._jvm is not None
    queries = spark._jsparkSession.sharedState().activeStreamingQueries()
    return queries.get(spark._jvm.java.util.UUID.fromString(query_id))


def _is_running(query: Any) -> bool:  # noqa: ANN401 - Java's
    """Say whether a query's run goes on. On Spark Connect the process that runs batches ends with it."""
    return query is None or bool(query.isActive())


def _running_query_checkpoint(spark: SparkSession) -> str:
    """Ask classic PySpark where the query that runs this thread's batch has its checkpoint."""
    query = _running_query(spark)
    if query is None:
        problem = "not given and cannot be found here: pass checkpoint= to DeltaSink, or use DeltaSink.start"
        raise QueryCheckpointError("?", problem)
    return str(query.resolvedCheckpointRoot())
