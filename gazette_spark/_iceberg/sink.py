"""The exactly-once Iceberg writer: tasks write data files, and the driver commits them with a ledger entry.

This is the direct lane of :mod:`gazette_spark._ingest` for Iceberg tables. The steps of a batch are those of
:class:`~gazette_spark._ledger.file_batches.FileBatches`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from gazette_spark._data_files.target import FileTarget
from gazette_spark._delta.adopt import (
    check_begins,
    check_ends,
    continued_entry,
    first_entry,
    isolation_of,
    reader_options,
    same_beginning,
)
from gazette_spark._delta.files import SparkFiles, running_query_id
from gazette_spark._delta.java_errors import short_batch_errors
from gazette_spark._delta.preflight import check_workers, gazette_options
from gazette_spark._delta.start_query import start_query
from gazette_spark._delta.trim import range_origin
from gazette_spark._iceberg.columns import spark_schema
from gazette_spark._iceberg.iceberg_table import IcebergTable
from gazette_spark._ledger.decision import Allowed
from gazette_spark._ledger.entry import LedgerEntry, check_app_id, least_offsets, parse_gaps
from gazette_spark._ledger.file_batches import BatchFiles, FileBatches
from gazette_spark._ledger.iceberg_reader import TableName
from gazette_spark._ledger.positions import GroupCommit, table_commits
from gazette_spark._ledger.query_batches import QueryBatches
from gazette_spark.errors import OptionError, TableRefusedError
from gazette_spark.failpoints import failpoint
from gazette_spark.offsets import JournalOffsets

log = logging.getLogger(__name__)


class IcebergSink:
    """Writes journals to an Iceberg table exactly once, with :func:`gazette_spark.ingest`.

    ``ingest_batch`` fills a table in one batch. The format ``gazette_iceberg`` writes transformed rows, with
    the same ledger.
    """

    def __init__(
        self,
        app_id: str,
        *,
        table: str,
        catalog: str,
        properties: Mapping[str, str] | None = None,
        checkpoint: str | None = None,
        accept_gaps: Mapping[str, Sequence[tuple[int, int]]] | None = None,
        on_new_checkpoint: str = "fail",
        partition_by: Sequence[str] | None = None,
        schema_evolution: str = "fail",
        target_file_bytes: int | None = None,
    ) -> None:
        """Configure the writer. Nothing is read or created yet.

        Args:
            app_id: Name of this stream in the table. Keep it for the life of the table. Two streams in one
                table need two names.
            table: Namespace and name, such as "shop.orders". A missing table is created from the rows'
                columns, in an existing namespace.
            catalog: Name of the catalog in the configuration of ``pyiceberg``.
            properties: Properties of the catalog that replace configured ones, such as "uri" and "warehouse".
            checkpoint: The query's checkpoint directory.
            accept_gaps: Ranges ``(begin, end)`` of bytes, by journal, that may be missing from the table
                permanently. Each must reach exactly from the end of the table to the start of the query, as
                ``GapError`` prints it. The ledger records these gaps.
            on_new_checkpoint: As for :class:`gazette_spark.DeltaSink`.
            partition_by: Partitions of a new table: columns, ``day(at)``, ``hour(at)``, ``month(at)``,
                ``year(at)``, ``bucket(16, id)``, ``truncate(4, name)``. An existing table with other
                partitions is refused.
            schema_evolution: Policy for columns that the table does not have: ``fail``, or
                ``addNewColumns`` to add them in the commit of the first rows.
            target_file_bytes: Size of a Parquet file at which a task starts another one.

        Raises:
            OptionError: an option is invalid.
            InputError: the name of the table has an invalid form.
        """
        check_app_id("app_id", app_id)
        if on_new_checkpoint not in ("fail", "restart"):
            raise OptionError("on_new_checkpoint", repr(on_new_checkpoint), "'fail' or 'restart'")
        if schema_evolution not in ("fail", "addNewColumns"):
            raise OptionError("schema_evolution", repr(schema_evolution), "'fail' or 'addNewColumns'")
        self.app_id = app_id
        self._allowed = Allowed(
            gaps=parse_gaps("accept_gaps", accept_gaps or {}), restart=on_new_checkpoint == "restart"
        )
        self._table = IcebergTable(
            TableName.of("table", catalog, table),
            properties or {},
            app_id,
            partition_by=partition_by,
            adds_columns=schema_evolution == "addNewColumns",
            file_bytes=target_file_bytes,
        )
        self._checkpoint = checkpoint
        self._shape: str | None = None
        """Shape of the table for which the query's tasks write files; None if no tasks write files for this
        sink."""
        self._seen: str | None = None
        """Attempt of the newest entry after this run's last batch. If another entry is the newest, there is
        another writer."""
        self._batches = QueryBatches(self._table.name, app_id)

    def __repr__(self) -> str:
        return f"IcebergSink({self.app_id!r}, {self._table.name}, seen={self._seen})"

    def for_files(
        self,
        spark: SparkSession,  # noqa: ARG002 - as DeltaSink's.
        rows: StructType,
        storage_options: Mapping[str, str] | None,
        checkpoint: str | None = None,
    ) -> tuple[IcebergSink, FileTarget]:
        """Create a missing table; return the sink of a run whose tasks write files, and their target.

        Raises:
            OptionError: ``storage_options`` are set, or the table has other partitions.
            SchemaMismatchError: the columns do not fit the table's.
            TableRefusedError: the table needs more from its writers than files of plain rows, or is missing
                although the query of this checkpoint has written to it.
        """
        if storage_options is not None:
            expected = "to be unset: pyiceberg uses the properties of the catalog to access the store"
            raise OptionError("storage_options", f"some, for {self._table.name}", expected)
        if checkpoint is not None and (root := checkpoint or self._checkpoint):
            self._table.check_checkpoint(root)
        # Each run has a separate table object with the columns that its tasks write, and keeps nothing of
        # another run.
        sink = copy(self)
        sink._table, sink._seen = copy(self._table), None
        target, sink._shape = sink._table.prepare(rows)
        sink._batches = QueryBatches(self._table.name, self.app_id)
        return sink, target

    def start(
        self,
        df: DataFrame,
        *,
        checkpoint: str | None = None,
        query_name: str | None = None,
        **trigger: Any,  # noqa: ANN401 - the types are Spark's
    ) -> StreamingQuery:
        """Start the query whose rows name data files. :func:`gazette_spark.ingest` calls this."""
        root = checkpoint or self._checkpoint
        if not root:
            raise OptionError("checkpoint", "none", "the query's checkpoint directory")
        self._check_names_files()
        for options in gazette_options(df):
            check_workers(df.sparkSession, options)
        self._table.check_checkpoint(root)
        sink = copy(self)
        sink._checkpoint = root
        return start_query(df, sink, root, query_name=query_name, output_mode="append", trigger=trigger)

    @short_batch_errors
    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Commit one batch to the table, unless the table already has it.

        Raises:
            SinkError: the batch does not continue the table. Nothing was written.
        """
        failpoint("sink.entry")
        self._check_names_files()
        # Forget this state until the batch is done, because any run after a failure is a new writer.
        seen, self._seen = self._seen, None
        assert self._checkpoint is not None
        # The offsets come from the query checkpoint, where Spark wrote them before the batch. The tasks run
        # only if the ledger lacks the batch.
        spark = df.sparkSession
        batch = self._batches.read(SparkFiles(spark), self._checkpoint, batch_id, running_query_id(spark))
        batches = FileBatches(self._table, self.app_id, self._allowed)
        self._seen = batches.commit(batch, lambda: self._files(df), seen=seen)
        failpoint("sink.return")

    def write_batch(self, df: DataFrame, begin: JournalOffsets, end: JournalOffsets) -> bool:
        """Commit the files of an offset range to the table. :func:`gazette_spark.ingest_batch` calls this.

        Args:
            df: The rows that name the files of ``[begin, end)``.
            begin: First byte of each journal.
            end: Byte after the last one, for the same journals.

        Returns:
            Whether files were committed. If not, the table already had the whole range.

        Raises:
            OptionError: ``df`` has rows of Spark, not files.
            SinkError: the range does not continue the table. Nothing was written.
        """
        self._check_names_files("ingest_batch(sink, options), or df.write.format('gazette_iceberg')")
        failpoint("sink.entry")
        batches = FileBatches(self._table, self.app_id, self._allowed)
        written = batches.commit_range(begin, end, lambda: self._files(df))
        failpoint("sink.return")
        return written

    def _check_names_files(
        self, ways: str = "ingest(reader, sink), or df.writeStream.format('gazette_iceberg')"
    ) -> None:
        # This sink would have to collect Spark's rows on the driver. The format's tasks write such rows to
        # files.
        if self._shape is None:
            raise OptionError("df", "rows that Spark has", ways)

    def _files(self, df: DataFrame) -> BatchFiles:
        """Run the tasks of a batch, and return their files."""
        assert self._shape is not None
        return BatchFiles(df.collect(), self._shape)

    def ledger(self, spark: SparkSession | None = None) -> LedgerEntry | None:  # noqa: ARG002 - as DeltaSink's.
        """Return the table's newest entry of this app id, or None if there is none."""
        return self._table.read_ledger(self.app_id).entry

    def commits(self) -> list[GroupCommit]:
        """Return the table's position after each commit, oldest first, as far as the history goes back.

        Snapshots without a position of this app id, and those that were rolled back, are left out.
        """
        return table_commits(self._table.history(), self.app_id)

    def resume_offsets(self) -> str | None:
        """Return the ``startingOffsets`` with which a query without a checkpoint continues the table.

        Returns:
            JSON, or None if the table has no entry yet, so that you can start anywhere. If all entries were
            rolled back, the offsets at which the table's rows began.
        """
        state = self._table.read_ledger(self.app_id)
        offsets = state.entry.read_through if state.entry else least_offsets(state.undone)
        prints = state.entry.fingerprints if state.entry else {}
        return JournalOffsets(offsets, fingerprints=prints).to_json() if offsets else None

    def resume(self, reader: DataStreamReader) -> DataStreamReader:
        """Start a query that has lost its checkpoint at the table's current position.

        ``ingest(sink.resume(reader), sink, checkpoint=…)`` is right for every start of a query, as with
        :meth:`gazette_spark.DeltaSink.resume`.

        Args:
            reader: ``spark.readStream.format("gazette")`` with its options.

        Returns:
            The reader, with the option ``resumeOffsets`` set to the offsets of the table's ledger, if any.
        """
        offsets = self.resume_offsets()
        return reader if offsets is None else reader.option("resumeOffsets", offsets)

    def adopt(
        self,
        offsets: JournalOffsets,
        *,
        recreated: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> LedgerEntry:
        """Begin the ledger of a table at ``offsets``, because it was lost or never existed.

        The ledger begins with a commit without rows. If the table has the columns of the rows' origin, rows
        past the offsets are an error; otherwise the offsets cannot be checked.

        Args:
            offsets: By journal, the next byte after the table's rows, as ``gazette-spark offsets show TABLE
                --from-data`` prints it. For a table of committed messages they need ``starts``, that is,
                where its query began.
            recreated: As for :meth:`gazette_spark.DeltaSink.adopt`: the table has a ledger, and the journals
                in ``offsets`` were deleted and created again with different bytes.
            options: With ``recreated``, the options of the query's reader that are needed to read the
                journals and compare them with the ledger.

        Returns:
            The entry. Another call with the same offsets changes nothing.

        Raises:
            OptionError: ``recreated`` is set without ``options``.
            TableRefusedError: there is no table, or it has a ledger or rows past the offsets; or, with
                ``recreated``, a journal is not in the ledger or still has the bytes of the table's rows.
            OffsetBeyondHeadError: with ``recreated``, a journal ends before its offset.
        """
        table, name = self._table, self._table.name
        options = reader_options(options) if recreated else {}
        for _ in range(table.max_attempts):
            # This opens the version on which to commit. If rows are appended after it, the commit below
            # conflicts.
            state = table.read_ledger(self.app_id)
            if recreated:
                made = continued_entry(state, table.history, self.app_id, offsets, options, table=name)
                # After a conflict, the commit may have succeeded, or the running query may have committed:
                # read and decide again.
                if made is state.entry:
                    return made
                if table.commit_files((), made) is None:
                    log.warning(
                        "journals_recreated table=%s app_id=%s offsets=%s",
                        name,
                        self.app_id,
                        offsets.to_json(),
                    )
                continue
            if state.entry is not None:
                return same_beginning(state.entry, state, offsets, name)
            snapshot = table.load()
            if snapshot is None:
                problem = "there is no such table; a query creates a new one with a ledger"
                raise TableRefusedError(name, problem)
            isolation = isolation_of(offsets)
            columns = spark_schema(name, snapshot.schema(), StructType())
            check_begins(columns, isolation, name)
            if (origin := range_origin(columns, isolation)) is not None:
                check_ends(table.last_offsets(*origin), offsets, name)
            entry = first_entry(self.app_id, offsets, state.txn_version + 1, "append")
            # Another commit since the ledger was read is a conflict. Then the rows are checked again. If
            # there is an entry in the meantime, the next iteration returns it, regardless of who committed
            # it.
            if table.commit_files((), entry) is None:
                log.warning(
                    "ledger_adopted table=%s app_id=%s offsets=%s", name, self.app_id, offsets.to_json()
                )
        raise TableRefusedError(name, f"commits of others were faster {table.max_attempts} times; try again")
