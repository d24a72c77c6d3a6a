"""The exactly-once Delta writer.

Why a row is neither lost nor written twice:

- **One Delta commit contains the rows of a batch and a ledger entry**, which records the offsets of the batch
  and the offsets up to which the table is filled. Either both are visible or neither is.
- **The table decides, not a batch id.** Before it writes, the sink reads the newest entry and compares it
  with the offsets that Spark wrote into the query checkpoint for this batch. It writes only rows that
  continue the table to the byte, skips a batch that the table already has, and refuses anything else
  (:mod:`gazette_spark._ledger.decision`). The source always returns the same rows for the same offsets.
- **The write is a compare-and-set.** Its Delta transaction number is one more than the highest of all
  entries, undone ones included. If two writers decided on the same entry, Delta accepts only one of them.
- **A commit that raises no error may still have been skipped.** Delta silently skips a transaction number
  that it has seen, and may raise a conflict for a write that was committed. Therefore the sink reads the
  history again after each write: the newest entry must be its own, and the entry before it the one on which
  it decided.

What the next run finds after a crash:

========================================  ==========================================================
before the Delta commit                   files without a commit; the batch runs again
after it, before Spark's ``commits/<n>``  the entry; the batch runs again and is skipped
query checkpoint deleted                  the entry; see :meth:`DeltaSink.resume`
query checkpoint copied, second writer    an entry of the other writer; one of the two is refused
========================================  ==========================================================

:meth:`DeltaSink._commit` shows from top to bottom how one batch gets into the table. Rows that do not fit can
go to a second table (:mod:`gazette_spark._ledger.dead_letters`). The commit to that table comes first, but
the main table remains the authority.

The source's first batch is empty and pins the start of the query. It creates the table and the first entry.
If the table exists and the query does not continue it, this batch is refused.

Everything here works on Spark Connect, except for finding a query checkpoint whose path was not passed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from tempfile import gettempdir
from typing import Any, Literal

# This import comes first, because it reports which package is missing.
from gazette_spark._delta.writers import AppendWriter, FileWriter, MergeWriter, ReplaceWriter  # isort: skip

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from gazette_spark._data_files.target import FileTarget
from gazette_spark._delta.adopt import adopt, adopt_recreated, reader_options
from gazette_spark._delta.batch_digest import audit_rows
from gazette_spark._delta.dead_letter_table import DeadLetterTable, SplitBatch, close_letters
from gazette_spark._delta.delta_table import DeltaTable, TableDetail, TableSnapshot
from gazette_spark._delta.file_commits import FileCommits
from gazette_spark._delta.file_lane import file_stream, prepare_files
from gazette_spark._delta.files import (
    SparkFiles,
    is_classic,
    is_running,
    java_class,
    running_query_id,
    without_space,
)
from gazette_spark._delta.heartbeat import Heartbeat
from gazette_spark._delta.java_errors import short_batch_errors
from gazette_spark._delta.new_table import NewTable
from gazette_spark._delta.preflight import check_delta, check_workers, gazette_options
from gazette_spark._delta.row_steps import TableLayout, fit_columns
from gazette_spark._delta.schema_fit import Unfit
from gazette_spark._delta.session import current_catalog, session_or_active, use_catalog_in_batch
from gazette_spark._delta.small_files import compact, compaction_due
from gazette_spark._delta.start_checks import (
    check_alone,
    check_key_types,
    check_places,
    warn_of_other_writers,
)
from gazette_spark._delta.start_query import start_query
from gazette_spark._delta.trim import trim
from gazette_spark._delta.upsert import RepeatableUpsert, Upsert
from gazette_spark._delta.violations import named_rows
from gazette_spark._ledger.dead_letters import DeadLetters
from gazette_spark._ledger.decision import Allowed, Committed, Refusal, Skip, decide, verify
from gazette_spark._ledger.entry import (
    Batch,
    LedgerEntry,
    Mode,
    check_app_id,
    entry_without_rows,
    least_offsets,
    parse_gaps,
    pinned_journals,
    ranges_text,
)
from gazette_spark._ledger.positions import GroupCommit, table_commits
from gazette_spark._ledger.query_batches import QueryBatches
from gazette_spark.errors import (
    GazetteError,
    NoSpaceError,
    OffsetError,
    OptionError,
    QueryCheckpointError,
    SchemaMismatchError,
    TableRefusedError,
)
from gazette_spark.failpoints import failpoint
from gazette_spark.offsets import JournalOffsets, check_forward

log = logging.getLogger(__name__)

VISIBLE = (
    "a query started with DeltaSink.start(df, output_mode=…) instead of foreachBatch(sink), or on classic "
    "Spark a sink that is called in the thread of its batch: batches of the modes update and complete "
    "repeat rows"
)
"""Advice about how to make a query's output mode visible to the sink."""

MAX_ATTEMPTS = 5
"""Maximum number of attempts to write one batch. Delta may reject one for a temporary reason, such as a
changed schema."""


class DeltaSink:
    """Writes a stream into a Delta table exactly once.

    Pass it to ``foreachBatch``, or start the query with :meth:`start`. One sink serves one query at a
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
        allow_single_driver: bool = False,
    ) -> None:
        """Configure the writer. Nothing is read or created yet.

        Args:
            app_id: Name of this stream in the table. Keep it for the life of the table. Two streams in one
                table need two names.
            path: Directory of the table.
            table: Name of the table in the catalog, instead of ``path``.
            checkpoint: The query's checkpoint directory. Required for ``foreachBatch`` on Spark Connect.
            on_overlap: Policy for a batch that is partly in the table: ``fail``, or ``trim`` to drop the rows
                that the table already has. Trimming needs the columns ``_journal`` and ``_offset``, or
                ``journal, offset, value`` of the format ``raw``, and each row has to come from one record.
                With ``trim``, a query may also start before the table's end, unless it keeps state.
            accept_gaps: Ranges ``(begin, end)`` of bytes, by journal, that may be missing from the table
                permanently. Each must reach exactly from the end of the table to the start of the query, as
                ``GapError`` prints it. The ledger records these gaps.
            on_new_checkpoint: Policy for a new checkpoint of a query whose rows do not depend on journal
                offsets alone, because it keeps state or reads other sources: ``fail``, or ``restart``. With
                ``restart``, the state begins empty, so what the old state contained is lost, and other
                sources start where the query says, so their rows may be written again.
            new_table: Definition of the table if it does not exist: columns, partitions or clusters,
                properties. By default, the table gets the columns of the first batch.
            schema_evolution: Policy for columns and fields that the table does not have: ``fail``, or
                ``addNewColumns`` to add them in the batch's commit. Any other column that does not fit is an
                error.
            target_file_bytes: Number of journal bytes for which to write about one file. Fewer tasks then
                read a small batch.
            compact_every: Compact the table's small files (OPTIMIZE) each time this number of ledger entries
                has been written.
            upsert: Keep only the last row of each key. From then on, the table accepts only batches with
                ``upsert`` under this app id.
            audit: Whether to count each batch's rows by journal for its ledger entry, and digest their bytes
                if the batch has them (columns ``journal, offset, value`` of the format ``raw``). This reads
                each batch twice.
            dead_letters: A second table for the rows that do not fit this one. The query must have one
                source, must keep its columns ``_journal`` and ``_offset`` (or ``journal, offset, value`` of
                the format ``raw``), and must make at most one row of each record.
            allow_single_driver: Accept a table on S3 in a session whose log store lets two drivers commit the
                same version. Then no other program may ever write to the table: neither a second query nor an
                OPTIMIZE. :func:`~gazette_spark.s3_log_store` makes this unnecessary.
        """
        check_app_id("app_id", app_id)
        if (path is None) == (table is None):
            raise OptionError("path and table", f"path={path!r}, table={table!r}", "exactly one of them")
        if on_overlap not in ("fail", "trim"):
            raise OptionError("on_overlap", repr(on_overlap), "'fail' or 'trim'")
        if on_new_checkpoint not in ("fail", "restart"):
            raise OptionError("on_new_checkpoint", repr(on_new_checkpoint), "'fail' or 'restart'")
        # A MERGE takes transaction id and entry from the session's settings, where Spark replaces ${…}. The
        # entry's JSON can escape the dollar sign, but an app id cannot.
        if upsert is not None and "${" in app_id:  # Spark would replace it in the settings of a MERGE.
            raise OptionError("app_id", repr(app_id[:80]), "a name without ${, if rows are merged by key")
        self.app_id = app_id
        self._target = DeltaTable(path=path, table=table, allow_single_driver=allow_single_driver)
        self._layout = TableLayout(new_table, schema_evolution, target_file_bytes, compact_every)
        self._allowed = Allowed(
            on_overlap == "trim",
            parse_gaps("accept_gaps", accept_gaps or {}),
            restart=on_new_checkpoint == "restart",
        )
        self._upsert = upsert
        self._audit = audit
        self._letters = (
            None
            if dead_letters is None
            else DeadLetterTable(app_id, self._target, dead_letters, new_table, upsert)
        )
        self._checkpoint = checkpoint
        self._output_mode: str | None = None
        """Output mode of the query; None if :meth:`start` did not set it."""
        self._catalog: tuple[str, str] | None = None
        """Catalog and schema of the session that :meth:`start` was called in."""

        # A run keeps the following state; _begin_run resets it. It saves reads of the table, or proves that
        # no other writer has written. It never decides what is in the table, so a sink that has lost it is
        # only slower.
        if upsert is None:
            self._writer = AppendWriter(self._target, self._layout)
        else:
            merging = ReplaceWriter if isinstance(upsert, RepeatableUpsert) else MergeWriter
            self._writer = merging(self._target, self._layout, upsert)
        self._checked = False
        """Whether the table exists and was checked for this sink."""
        self._seen: str | None = None
        """Attempt of the newest entry after this run's last batch. If another entry is the newest, there is
        another writer."""
        self._starting = False
        """Whether :meth:`start` has begun a run that has had no batch yet."""
        self._run_id: str | None = None
        """Spark's id of the run that the last batch belonged to; None if there was no query here."""
        self._last_table: TableSnapshot | None = None
        """The table as it was read last. This is only a cache: the next read starts from it."""
        self._batches = QueryBatches(self._target.name, app_id)
        self._last_rows: tuple[int, DataFrame] | None = None
        """Number and rows of this run's last batch."""
        self._heartbeat = Heartbeat()
        self._beaten: str | None = None
        """Attempt of the last heartbeat's entry, which may be in the table."""
        # A batch and a heartbeat both replace the newest entry. A heartbeat between a batch's decision and
        # its check would look like another writer, and the batch would be refused.
        self._turn = threading.Lock()
        """Held by a batch and by a heartbeat."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without rows and the lock, because Spark Connect pickles the sink."""
        return vars(self) | {"_last_rows": None, "_turn": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, with a new lock."""
        vars(self).update(state)
        self._turn = threading.Lock()

    def __repr__(self) -> str:
        return f"DeltaSink({self.app_id!r}, {self._target.name}, seen={self._seen})"

    def start(  # noqa: C901, PLR0912 - the start of a query, in order
        self,
        df: DataFrame,
        *,
        checkpoint: str | None = None,
        query_name: str | None = None,
        output_mode: str = "append",
        lane: Literal["auto", "spark", "direct"] = "auto",
        **trigger: Any,  # noqa: ANN401 - the types are Spark's
    ) -> StreamingQuery:
        """Start the query that writes ``df``.

        Args:
            df: The stream.
            checkpoint: The query's checkpoint directory, unless the sink already has it.
            query_name: Name of the query in Spark's listings.
            output_mode: Spark's output mode. ``update`` and ``complete`` return rows of the same group
                repeatedly, so the sink needs ``upsert`` with the grouping keys as keys. With ``complete``,
                each batch is the whole table, so no other stream may share it.
            lane: How rows are written. With ``spark``, Spark's writer writes the rows of the stream. With
                ``direct``, the tasks that read the journals also write the table's files; no row goes through
                the JVM, so this takes about a third of the time. It needs a stream as ``load()`` returns it
                and a table in a directory; :func:`~gazette_spark.ingest` names the other conditions. ``auto``
                takes the direct lane if possible, and otherwise Spark's; the log says which, and why. Rows
                and ledger are the same.
            trigger: As for ``DataStreamWriter.trigger``, such as ``availableNow=True``. On Spark 4.0 and 4.1,
                that is one batch, which is as large as the source's limits allow.
        """
        root = checkpoint or self._checkpoint
        if not root:
            raise OptionError("checkpoint", "none", "the query's checkpoint directory")
        # Refuse here what can be refused already, with an error of one line. The first batch would raise the
        # same error with a hundred lines of Java.
        for kind in trigger.keys() & {"realTime", "continuous"}:
            raise OptionError("trigger", kind, "processingTime or availableNow: a batch is one commit")
        if lane not in ("auto", "spark", "direct"):
            raise OptionError("lane", repr(lane), "'auto', 'spark' or 'direct'")
        check_output_mode(output_mode, self._upsert)
        # Each run gets a copy of the sink. Otherwise a sink that has served one query would keep that query's
        # output mode and position in the checkpoint for the next one.
        sink = copy(self)
        sink._checkpoint, sink._output_mode = root, output_mode
        sink._begin_run()
        sink._starting = True
        sink._writer, sink._heartbeat = copy(self._writer), copy(self._heartbeat)
        spark = df.sparkSession
        sink._catalog = current_catalog(spark)
        check_delta(spark)
        for options in gazette_options(df):
            check_workers(spark, options)
        # If the table is missing, the first batch checks it after creating it.
        sink._checked = exists = sink._check_table(df, root) is not None
        check_places(self._target, spark, root, exists=exists)
        if exists:
            # Only rows that are appended unchanged can be compared before there is a batch: splitting off
            # dead letters drops columns, a merge may drop columns, and rows of the direct lane name files.
            compares = self._upsert is None and self._letters is None and self._writer.reads_columns
            try:
                table = self._target.snapshot(spark, self.app_id, columns=compares)
            except GazetteError as error:
                # The first batch reports the same, unless the table changes before that.
                log.info("ledger not read at start app_id=%s problem=%s", self.app_id, error)
            else:
                if output_mode.lower() == "complete":
                    check_alone(self._target, spark, self.app_id, table.ledger)
                warn_of_other_writers(self._target, spark, self.app_id, table.ledger)
                if compares:
                    fitted, table = fit_columns(spark, df.schema, table, self._target, self._layout)
                    if isinstance(fitted, Unfit):
                        raise SchemaMismatchError(self._target.name, self.app_id, None, fitted.problems)
                # The ledger that was read here is a cache for the first batch, which reads only what has been
                # committed since.
                sink._last_table = table
        # Choose the lane last, because the direct lane creates a missing table to learn its id and columns. A
        # query that is refused above must not leave an empty table behind. With a FileWriter, ingest has
        # already chosen the lane, and these rows name files.
        if lane != "spark" and not isinstance(sink._writer, FileWriter):
            about = f"app_id={self.app_id} table={self._target.name}"
            try:
                sink._check_files_only()
                df, files = file_stream(df, self._target, self._layout, self.app_id, root)
            except GazetteError as reason:
                # With auto, it is not an error if this lane does not support something: Spark's writer writes
                # the same rows and the same ledger, only more slowly (decision 0032).
                if lane == "direct":
                    raise
                log.info("lane=spark %s reason: %s", about, reason)
            else:
                log.info("lane=direct %s", about)
                sink = sink.with_files(files)
        return start_query(df, sink, root, query_name=query_name, output_mode=output_mode, trigger=trigger)

    @property
    def table(self) -> DeltaTable:
        """The table."""
        return self._target

    def for_files(
        self,
        spark: SparkSession,
        rows: StructType,
        storage_options: Mapping[str, str] | None,
        checkpoint: str | None = None,
    ) -> tuple[DeltaSink, FileTarget]:
        """Create a missing table; return the sink of a run whose tasks write files, and their target.

        Raises:
            OptionError: an option of the sink needs rows that Spark writes.
            SchemaMismatchError: the columns are not the table's.
            TableRefusedError: the table needs more from its writers than files of plain rows, or is missing
                although the query of this checkpoint has written to it.
        """
        check_delta(spark)
        self._check_files_only()
        files, target = prepare_files(
            spark,
            self._target,
            self._layout,
            rows,
            storage_options or {},
            app_id=self.app_id,
            checkpoint=None if checkpoint is None else checkpoint or self._checkpoint,
        )
        return self.with_files(files), target

    def _check_files_only(self) -> None:
        """Refuse options that require Spark to write the rows.

        Raises:
            OptionError: such an option is set; the error names the first one.
        """
        options = {
            "upsert": self._upsert is not None,
            "dead_letters": self._letters is not None,
            "audit": self._audit,
            "on_overlap": self._allowed.trim,
            "schema_evolution": self._layout.adds_columns,
        }
        if name := next((name for name, is_set in options.items() if is_set), None):
            raise OptionError(
                name, "on the direct lane", "to be unset, or lane='spark': Spark writes such rows"
            )

    def with_files(self, files: FileCommits) -> DeltaSink:
        """Return a copy of this sink for batches whose rows name files; see :mod:`gazette_spark._ingest`."""
        sink = copy(self)
        sink._writer = FileWriter(self._target, self._layout, files)
        return sink

    def _begin_run(self) -> None:
        """Forget what another run has read: other programs may have changed or written the table since."""
        self._checked, self._seen, self._last_table = False, None, None
        self._batches, self._last_rows = QueryBatches(self._target.name, self.app_id), None

    def ledger(self, spark: SparkSession | None = None) -> LedgerEntry | None:
        """Return the table's newest entry of this app id, or None if there is none."""
        session = session_or_active(spark)
        check_delta(session)
        return self._target.ledger(session, self.app_id).entry

    def commits(self, spark: SparkSession | None = None) -> list[GroupCommit]:
        """Return the table's position after each commit, oldest first, as far as the history goes back.

        Commits without a position of this app id are left out. A RESTORE to a version is included, because it
        moves the position back.
        """
        return table_commits(self._target.history(session_or_active(spark), None), self.app_id)

    def resume_offsets(self, spark: SparkSession | None = None) -> str | None:
        """Return the ``startingOffsets`` with which a query without a checkpoint continues the table.

        It contains all journals of the ledger, with the fingerprints by which the query recognizes them. If
        some of them were deleted or are no longer read, or if the query has several sources, use
        :meth:`resume`.

        Returns:
            JSON, or None if the table has no entry yet, so that you can start anywhere. If all entries were
            undone, for example by a RESTORE to a version before the first one, the offsets at which the
            table's rows began.
        """
        state = self._target.ledger(session_or_active(spark), self.app_id)
        # After a RESTORE to a version before the first entry there are no rows, so a query fills the table
        # again from where its rows began. The default start, latest, would leave out all of them.
        offsets = state.entry.read_through if state.entry else least_offsets(state.undone)
        prints = state.entry.fingerprints if state.entry else {}
        return JournalOffsets(offsets, fingerprints=prints).to_json() if offsets else None

    def resume(self, reader: DataStreamReader, spark: SparkSession | None = None) -> DataStreamReader:
        """Start a query that has lost its checkpoint at the table's current position.

        ``sink.start(sink.resume(reader).load(), checkpoint=…)`` is right for every start of a query: it
        changes nothing for a new table, or if Spark finds the checkpoint. In a query with several sources,
        resume each reader. Journals of the ledger that were deleted, or that the reader does not select, are
        ignored. Selected journals that are not in the ledger start at their first byte.

        Args:
            reader: ``spark.readStream.format("gazette")`` with its options. If the table has a ledger,
                ``startingOffsets`` and the starting times have no effect.
            spark: The session, if not the active one.

        Returns:
            The reader, with the option ``resumeOffsets`` set to the offsets of the table's ledger, if any.

        Raises:
            TypeError: ``reader`` is not a reader, but, for example, the DataFrame that its ``load`` returned.
        """
        # Spark Connect has a different class of readers, which may not be importable here.
        if type(reader).__name__ != "DataStreamReader":
            given = (
                f"resume expects spark.readStream.format('gazette') with options, not {type(reader).__name__}"
            )
            raise TypeError(f"{given}: call load after it, as in sink.resume(reader).load('shop/orders')")
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
        """Begin the ledger of a table at ``offsets``, because it was cleaned up or never existed.

        The ledger begins with a commit without rows. After that, continue the table like any other, with a
        new checkpoint: ``sink.start(sink.resume(reader).load(), checkpoint=…)``.

        Args:
            offsets: By journal, the next byte after the table's rows, as ``gazette-spark offsets show TABLE
                --from-data`` prints it. If the table has the columns of the rows' origin, rows past these
                offsets are an error; otherwise the offsets cannot be checked. For a table of committed
                messages they need ``starts``, that is, where its query began.
            spark: The session, if not the active one.
            recreated: Set this if the table has a ledger, but the journals in ``offsets`` were deleted and
                created again with different bytes. Their rows continue at these offsets, and rows of the old
                journals stay. All other journals continue unchanged.
            options: With ``recreated``, the options of the query's reader that are needed to read the
                journals. Their bytes are compared with the ledger, so that no bytes are written twice.

        Returns:
            The entry. Another call with the same offsets changes nothing.

        Raises:
            OptionError: ``recreated`` is set without ``options``.
            TableRefusedError: the table has a ledger, or rows past the offsets; or, with ``recreated``, a
                journal is not in the ledger or still has the bytes of the table's rows.
        """
        session = session_or_active(spark)
        self._target.check(session, None)
        if recreated:
            return adopt_recreated(self._target, session, self.app_id, offsets, reader_options(options))
        mode: Mode = "upsert" if self._upsert else "append"
        return adopt(self._target, session, self.app_id, offsets, mode=mode)

    @short_batch_errors
    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch to the table, unless the table already has it.

        Raises:
            OptionError: in this run, the sink was called with other rows of the batch before.
            SinkError: the batch does not continue the table. Nothing was written.
        """
        failpoint("sink.entry")
        # The query is not idle. A heartbeat that has begun holds the lock, so this batch waits for its commit
        # and then decides on its entry.
        self._heartbeat.disarm()
        spark = df.sparkSession
        # Find Spark's query that runs this thread's batch. There is none on Spark Connect, or in threads that
        # a function for foreachBatch starts. ``spark.streams`` lists only the queries of one session, which
        # need not be the program's first session, and the session of a batch has no queries. But all sessions
        # of a JVM share the map of queries by id.
        query: Any = None
        if query_id := running_query_id(spark):
            queries = spark._jsparkSession.sharedState().activeStreamingQueries()
            query = queries.get(java_class(spark, "java.util.UUID").fromString(query_id))
        # The table must be the one that start() has checked, wherever Spark runs the batch.
        if self._catalog is not None:
            has_paths = self._target.path is not None and (self._letters is None or self._letters.has_path)
            use_catalog_in_batch(spark, *self._catalog, has_names=not has_paths)
        with self._turn:
            run_id = query and str(query.runId())
            # A program may pass one sink to foreachBatch in several runs. A run of start() has its own copy,
            # and what start() has read there saves work in the first batch.
            if run_id != self._run_id and not self._starting:
                self._begin_run()
            self._starting, self._run_id = False, run_id
            # Forget this state until the batch is done, because any run after a failure is a new writer.
            seen, self._seen = self._seen, None
            last_table, self._last_table = self._last_table, None
            # The offsets of the batch come from the query checkpoint: Spark writes offsets/<n> before it runs
            # batch n. The rows do not show them, because a batch may move offsets without a row, and a query
            # may drop the columns of a row's origin.
            root = self._checkpoint or (query and str(query.resolvedCheckpointRoot()))
            if not root:
                problem = "not given and cannot be found here: pass checkpoint= to DeltaSink"
                raise QueryCheckpointError("?", f"{problem}, or use DeltaSink.start")
            mode = (self._output_mode or (query and str(query.outputMode())) or "").lower()  # Java: "Update".
            if mode:
                check_output_mode(mode, self._upsert)
            # The table is checked once for each run: on Spark Connect, its detail takes a job for a large
            # table, and a batch may have few rows.
            exists = self._checked or self._check_table(df, root) is not None
            batch = self._batches.read(SparkFiles(spark), root, batch_id, query_id)
            # A function may call the sink for each half of a batch. The table would have the batch after the
            # first call, and the second one would be skipped like a batch that runs again. Only the same rows
            # may come again within a run.
            has_run = query is not None or not is_classic(spark)
            last_rows, self._last_rows = self._last_rows, None
            if has_run and last_rows and last_rows[0] == batch_id and not df.sameSemantics(last_rows[1]):
                got = f"other rows of batch {batch_id}, which this sink has written already"
                raise OptionError("df", got, "all rows of a batch in one call of the sink")
            if not mode and batch.stateful:
                # Without state, update returns the same rows as append, and Spark refuses complete.
                raise OptionError("outputMode", "an unknown mode for a query with state", VISIBLE)
            batch = replace(batch, output_mode=mode or "append")
            self._last_table = table = self._commit(df, batch, seen=seen, last_table=last_table)
            # Remember the entry only now. From here on, another newest entry means another writer.
            self._seen, self._last_rows = table.attempt, (batch_id, df)
            if not exists:
                self._check_table(df, root)  # Check again, now that the first batch has created the table.
            self._checked = True
        # A heartbeat has to end with its query. On classic Spark, the heartbeat asks the query whether it is
        # active; on Spark Connect, the process ends with the query. A caller without a query could end
        # unnoticed, so it gets no heartbeat.
        if has_run:
            is_active = partial(is_running, query)
            self._heartbeat.arm(partial(self._beat, spark, is_active), is_active)
        failpoint("sink.return")

    def _commit(  # noqa: C901, PLR0912, PLR0915 - the story of a batch, to be checked by reading it once.
        self, df: DataFrame, batch: Batch, *, seen: str | None, last_table: TableSnapshot | None
    ) -> TableSnapshot:
        """Bring a batch into the table, or find it there.

        Args:
            df: The rows of the batch.
            batch: The range of the batch, and where it comes from.
            seen: Attempt of the entry that was the newest after this writer's last batch; None for its first.
            last_table: The table as it was read last, as a cache.

        Returns:
            The table after the batch. Its newest entry covers the batch.

        Raises:
            SinkError: the batch is not in the table.
        """
        spark, name = df.sparkSession, self._target.name
        if self._upsert is not None:
            # The entry records the mode, because a single later batch that is appended instead of merged
            # would permanently create a second row for keys (decision 0014).
            batch = replace(batch, mode="upsert")
        about = f"app_id={self.app_id} batch_id={batch.batch_id}"
        conflict: Exception | None = None
        read = partial(self._target.snapshot, spark, self.app_id)
        # Each iteration is a complete attempt: read, decide, write, check. A decision is valid only for the
        # entry on which it is based, so the next iteration makes a new one.
        table = last_table or TableSnapshot()
        for _ in range(MAX_ATTEMPTS):
            # Read everything on which the decision depends, once. The order matters. If the dead letters were
            # read last, a RESTORE of their table could make them appear to be in step with an entry that is
            # no longer the newest. And the direct lane commits on the snapshot that it opens here: if it were
            # opened after the ledger was read, it would hide a commit in between, and deltalake would accept
            # one transaction number twice.
            letters = table.letters
            if self._letters is not None:
                letters = self._letters.ledger(spark, letters)
            self._writer.open(spark)
            table = read(table, columns=self._writer.reads_columns, detail=self._letters is not None)
            before = table = replace(table, letters=letters)

            # Decide. Another commit after this read makes ours fail, or is seen when the table is read again.
            # It never makes the decision wrong, because the commit is a compare-and-set on this entry.
            decision = decide(
                before.ledger, batch, attempt=uuid.uuid4().hex, seen=seen, allowed=self._allowed
            )
            if isinstance(decision, Refusal):
                # If the previous iteration had a conflict, it is the error's cause.
                raise decision.error from conflict
            if isinstance(decision, Skip):
                log.info("batch_skipped %s", about)
                if batch.stateful:
                    # The next batch begins with the state that this one leaves, so this batch has to run
                    # although its rows are not needed. Otherwise Spark ends the query
                    # (STATE_STORE_COMMIT_VALIDATION_FAILED). A batch whose state already exists may run
                    # again, with the same result.
                    df.write.format("noop").mode("overwrite").save()
                return before

            # If the batch is partly in the table, write the rest. The filter is part of the plan of the rows.
            # It fails at a row that does not come from the batch's bytes, because then the columns do not
            # have the meaning that the sink assumes (decision 0012).
            rows = trim(df, decision.new_ranges, batch) if decision.new_ranges else df

            # Commit dead letters first. A crash between the two commits then leaves dead letters whose batch
            # is not in the table, and the next run finds them by journal and offset. In the other order, it
            # would leave a batch in the table whose dead letters would never be written. If the table was
            # written with other dead letters until now, close these first, so that no writer that still uses
            # them can commit.
            split: SplitBatch | None = SplitBatch(rows, decision.entry)
            if not close_letters(spark, self._target, before, decision, self._letters):
                split = None
            elif self._letters is not None:
                split = self._letters.split(rows, batch, before, decision)
            if split is None:
                continue  # In the meantime, another writer has committed dead letters.

            # Write the rest together with its entry in one commit. Spark runs the rows here, so an invalid
            # row raises its error here.
            entry = split.entry
            with (
                named_rows(name, self.app_id, batch.batch_id),
                self._named_full_disk(spark, batch.batch_id),
            ):
                # Count the rows in a separate pass, because the metadata of a commit is fixed before its rows
                # run, and a second commit with the counts could be lost in a crash (decision 0018). A fence
                # contains none of the batch's rows.
                if self._audit and split.completes_batch:
                    entry = replace(entry, audit=audit_rows(split.rows, entry.read_through))
                # A crash from here on leaves files without a commit, or a commit that Spark has not recorded.
                # In both cases Spark runs the batch again, and the table decides.
                failpoint("sink.before_write")
                result = self._writer.commit(split.rows, entry, before, batch)
                failpoint("sink.after_write")

            # Only the table shows the outcome of the write: Delta may have skipped it without an error, and a
            # conflict does not reveal whether the commit succeeded.
            conflict = result.conflict
            table = read(before)
            outcome = verify(before.ledger, table.ledger, entry, batch, conflict=conflict is not None)
            if isinstance(outcome, Refusal):
                raise outcome.error from conflict
            if not isinstance(outcome, Committed):
                # The conflict had another reason, such as changed columns or a table that another process
                # created first. The next iteration reads the current state.
                continue  # Neither this batch nor another writer's is in the table. Read and decide again.
            # The entry is this writer's. If the next iteration finds another one, another writer has written.
            seen = entry.attempt
            # If the version is the next one, no other writer has committed in between, so columns and detail
            # need not be read again. For a large table, that saves a job for each batch.
            if not result.adds_columns:
                table = table.with_columns_of(result.table)
            if not split.completes_batch:
                continue  # The entry was a fence. Now no other writer is between the two commits of a batch.
            written = f"{about} table_version={table.ledger.entry_version}"
            log.info("batch_written %s", written)
            if entry.gaps:
                log.warning("bytes are left out and recorded %s %s", written, ranges_text(entry.gaps))
            # Compaction comes after the batch and is never a part of it. A failure is only logged, because a
            # query must not stop only because its table has become slow to read.
            if compaction_due(entry, self._layout.compact_every):
                compact(spark, name)
            return table
        problem = f"batch {batch.batch_id} was rejected {MAX_ATTEMPTS} times due to commits of others"
        raise TableRefusedError(name, problem) from conflict

    def _beat(self, spark: SparkSession, is_active: Callable[[], bool]) -> bool:
        """Write the newest entry again if it is still this run's, and return whether to do so again later."""
        with self._turn:
            # Read these under the lock, because a batch clears both while it runs.
            last_table = self._last_table
            if last_table is None or not is_active():
                return False
            # The order is the same as for a batch: open what the commit is based on, then read the ledger.
            self._writer.open(spark)
            before = self._target.snapshot(spark, self.app_id, last_table)
            if before.attempt not in (last_table.attempt, self._beaten):
                self._seen = last_table.attempt
                return False  # Another writer has committed. The next batch reports that.
            # The entry keeps query, batch and time, so the same batch is its replay.
            entry = entry_without_rows(before.ledger, uuid.uuid4().hex)
            # If the commit or the next read raises an error, the thread tries again after the next interval.
            # The entry may be in the table then, and must not look like another writer's. So a batch that
            # comes before that is decided by its offsets alone.
            self._seen, self._beaten = None, entry.attempt
            self._writer.commit_entry(spark, entry)
            after = self._target.snapshot(spark, self.app_id, before)
            # Another commit was faster. If it was that of another writer, the next batch reports it, and a
            # second heartbeat would hide it. After a commit of another kind, such as an ALTER, try again.
            if after.attempt != entry.attempt:
                self._seen = before.attempt
                return after.attempt == before.attempt
            self._last_table, self._seen = after.with_columns_of(before), entry.attempt
            log.info("heartbeat_written app_id=%s table_version=%d", self.app_id, after.ledger.entry_version)
            return True

    def write_batch(self, df: DataFrame, begin: JournalOffsets, end: JournalOffsets) -> bool:
        """Write the rows of an offset range to the table, unless it already has them.

        As for a batch of a stream, rows and ledger entry are one Delta commit, and only rows that continue
        the table are written. Journals that are new to the table are pinned first by a separate commit
        without rows, like a stream's first batch. A failed call may be repeated with the same arguments.

        Args:
            df: A DataFrame that returns exactly the rows of ``[begin, end)`` each time it runs.
                :mod:`gazette_spark._backfill` makes such a DataFrame.
            begin: First byte of each journal.
            end: Byte after the last one, for the same journals. For committed messages it also needs
                ``starts``; a row then belongs to the range that contains its acknowledgement.

        Returns:
            Whether rows were written. If not, the table already had the whole range.

        Raises:
            OffsetError: ``begin`` and ``end`` name different journals, an end is before its start, or there
                are rows but no bytes between the two. Nothing was written.
            SinkError: the range does not continue the table. Nothing was written.
        """
        # The ledger could not record an end for a journal that is only in begin. For a journal that is only
        # in end, it could not distinguish the first byte from a gap.
        if begin.read_through.keys() != end.read_through.keys():
            raise OffsetError("the start and the end of the batch name different journals")
        check_forward(begin, end)
        # The ledger would find nothing to write in such a range, and the rows would be lost.
        if begin.read_through == end.read_through and not df.isEmpty():
            raise OffsetError("the batch has rows, but its start and its end are the same offsets")
        failpoint("sink.entry")
        # Each call is a separate query with a unique id. So a repeated call is never mistaken for a replay
        # because of its id: only the offsets show whether the table has its bytes.
        spark, name = df.sparkSession, f"batch-{uuid.uuid4().hex}"
        seen, self._seen = None, None
        last_table, self._last_table = self._last_table, None
        # With dead letters, check the columns at each call, because the splitting of rows depends on them.
        if last_table is None or self._letters is not None:
            self._check_table(df, None)
        table = self._target.snapshot(spark, self.app_id, last_table)
        # Bytes of a journal that is not in the ledger would look like bytes after a gap. Therefore an entry
        # without rows first records the first byte of each new journal, like the empty batch 0 of a stream. A
        # crash after it leaves pinned journals, which the next call continues (decision 0007).
        if first := pinned_journals(table.ledger.entry, begin, end, self._target.name):
            pinned = Batch(self._target.name, self.app_id, name, 0, (), (first,))
            table = self._commit(df.limit(0), pinned, seen=None, last_table=table)
            seen = table.attempt
            self._check_table(df, None)
        # seen is the entry of the pin. If another writer commits between the two commits, this call ends with
        # FencedError.
        batch = Batch(self._target.name, self.app_id, name, 1, (begin,), (end,))
        self._last_table = after = self._commit(df, batch, seen=seen, last_table=table)
        self._seen = after.attempt
        failpoint("sink.return")
        return after.attempt != table.attempt

    @contextmanager
    def _named_full_disk(self, spark: SparkSession, batch_id: int) -> Iterator[None]:
        """Raise an error that names the directory if a batch finds no space."""
        try:
            yield
        except Exception as error:
            places = {
                "the table": self._target.path or self._target.location,
                "the query checkpoint": self._checkpoint,  # A task writes the query's state there.
            }
            # To find its temporary directory, Python writes a file. If all disks are full, that fails, and
            # its error would replace the batch's.
            with suppress(OSError):
                places["Spark's scratch files"] = spark.conf.get("spark.local.dir", None) or gettempdir()
            if problem := without_space(spark, str(error), places):
                raise NoSpaceError(self._target.name, self.app_id, batch_id, problem) from error
            raise

    def _check_table(self, df: DataFrame, checkpoint: str | None) -> TableDetail | None:
        """Refuse a table without support for exactly-once writes; return its detail if it exists."""
        spark, new_table = df.sparkSession, self._layout.new_table
        detail = self._target.check(spark, checkpoint)
        if detail is not None and new_table is not None:
            new_table.check_partitions(self._target.name, detail.partition_by)
        if self._upsert is not None:
            check_key_types(self._target, spark, self._upsert.keys, new_table, exists=detail is not None)
        if self._letters is not None:
            self._letters.check(spark, checkpoint, df.schema)
        return detail


def check_output_mode(mode: str, upsert: Upsert | None) -> None:
    """Refuse an output mode whose batches repeat rows, unless rows are merged by key.

    Raises:
        OptionError: the mode is refused; the error says what to do.
    """
    if mode.lower() not in ("append", "update", "complete"):
        raise OptionError("outputMode", repr(mode), "append, or update or complete with upsert")
    if mode.lower() != "append" and upsert is None:
        ways = (
            "append, or DeltaSink(upsert=Upsert(keys)) with the grouping keys: batches repeat rows of a group"
        )
        raise OptionError("outputMode", mode, ways)
