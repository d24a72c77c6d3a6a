"""Runs shards on Spark: a streaming query whose micro-batches are the transactions of all shards.

::

    query = start(WordCount(), spark, shards, broker={"brokerAddress": "http://localhost:8080"},
                  checkpoint="/data/checkpoints/words", state="/data/tables/words")

Everything that counts is in the state table; ``batch_driver`` explains why each message counts once. This
module is the part that needs Spark. The query's source only ticks: each tick is a transaction, planned from
the shards' checkpoints. So Spark's query checkpoint contains nothing important, and may be lost.

A micro-batch consists of two steps of tasks with a shuffle in between (``batch_tasks``). If the application
declares keys, only the state of keys with messages is read (decision 0046). The results of one attempt of
each task are written to files before anything is decided: a commit reads them several times, and a task
publishes different messages each time it runs.

The state table is a Delta table with the state, the checkpoints and the acknowledgements of all shards:

=============  ==================================================================================
column         content
=============  ==================================================================================
``shard``      the shard's id
``kind``       ``state`` or ``document``, see ``stores.delta``; ``checkpoint``: Gazette's checkpoint;
               ``sorted``: one row of the table itself, with the newest transaction that is sorted
``key``        key of a row of state; empty for other kinds
``value``      JSON of a row of state; number of the newest sorted transaction in the row ``sorted``
``checkpoint`` serialized ``consumer.Checkpoint``, with the intents of the shard's newest transaction
``txn``        number of the transaction that wrote the row
=============  ==================================================================================

A transaction is a commit of a :class:`~gazette_spark.sink.DeltaSink`, whose ledger counts transactions
instead of a journal's bytes. So if two hosts of one table read the same number, only one of them commits, and
a commit that Delta silently skips is noticed. Opening the table is a transaction without rows, which fences
off every host that opened it earlier.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.pandas.utils import require_minimum_pandas_version
from pyspark.sql.streaming.query import StreamingQuery

from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.files import clear_unfinished, delete_directory, names_in
from gazette_spark._delta.new_table import NewTable
from gazette_spark._delta.session import current_catalog, session_settings, use_catalog
from gazette_spark._delta.small_files import compact
from gazette_spark._delta.upsert import LISTED_KEYS, PRECISE, RepeatableUpsert, keys_condition
from gazette_spark._options.write import WriteOptions, parse_write_options
from gazette_spark._planning.access import security_for_tasks
from gazette_spark._write.spark_writer import open_client
from gazette_spark.consumer.application import Application
from gazette_spark.consumer.batch_driver import BatchDriver, Opened
from gazette_spark.consumer.batch_tasks import (
    INPUT_SCHEMA,
    ORDER,
    RESULT_SCHEMA,
    STEP_MESSAGE,
    STEP_STATE,
    Job,
)
from gazette_spark.consumer.local import NAME_ROOT
from gazette_spark.consumer.micro_batch import CHECKPOINT, DOCUMENT, STATE, JournalSpecs, Plan, Result
from gazette_spark.consumer.resolver import ShardTable
from gazette_spark.consumer.spark_shards import SparkShards
from gazette_spark.errors import ClosedError, FencedError, MissingPackageError, OptionError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.sink import DeltaSink

COUNTED = "consumer/transactions"
"""Name under which the ledger counts transactions. It is not the name of a journal that is read."""

COLUMNS = "shard STRING, kind STRING, `key` STRING, value STRING, checkpoint BINARY, txn BIGINT"

MARKS = pa.schema(
    {
        "shard": pa.string(),
        "kind": pa.string(),
        "key": pa.string(),
        "value": pa.string(),
        "checkpoint": pa.binary(),
        "deleted": pa.bool_(),
    }
)
"""Columns of the rows that a commit writes in addition to those of state."""

SORTED = "sorted"
"""Kind of the row with the newest transaction whose state is sorted."""

COMPACT_EVERY = 100
"""Number of transactions after which their small files are compacted."""

# A sort rewrites the whole state. So it rewrites about twenty rows for each changed one, and a transaction
# reads an unsorted part of at most a twentieth of the state.
SORT_ROWS = 100_000
SORT_SHARE = 20
"""Thresholds for sorting the state again: number of rows written since the last sort, and divisor of all
rows."""

LAYOUT = {
    # Use files of the size that one task reads at once. By default, OPTIMIZE would make them 1 GB, and
    # rewrite all smaller ones.
    "spark.databricks.delta.optimize.minFileSize": str(8 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(32 << 20),
    # Rows that were replaced stay in their file until the next sort, unless they are half of it.
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": "0.5",
    # Sort within files, in 10,000 steps, and with small pages, so that a key is in few pages of a file.
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    "spark.databricks.io.skipping.mdc.rangeId.max": "10000",
    "parquet.page.row.count.limit": "2000",
    "spark.sql.parquet.compression.codec": "zstd",
}
"""Settings under which the host compacts and sorts the table's files."""

OPEN_TRIES = 5
"""Maximum number of attempts to open the table while a previous host still commits."""


class StateTable:
    """The state table of one host, for one thread at a time."""

    def __init__(self, name: str, *, path: str | None, table: str | None) -> None:
        """Name the table. Nothing is read or created yet.

        Args:
            name: Name of the host in the table's ledger.
            path: Directory of the table.
            table: Name of the table in the catalog, instead of a directory.
        """
        self._sink = DeltaSink(
            name,
            path=path,
            table=table,
            # With deletion vectors, a transaction marks the rows that it replaces, and leaves their files.
            new_table=NewTable(
                schema=COLUMNS,
                partition_by=("kind",),
                properties={"delta.enableDeletionVectors": "true"},
            ),
            upsert=RepeatableUpsert(("shard", "kind", "key"), delete_when="deleted", order_by="txn"),
        )
        self._table = DeltaTable(path=path, table=table)
        self._txn = 0
        """Number of the newest transaction that this host has seen."""
        self._sorted_txn = 0
        """Number of the newest transaction when the state was last sorted."""
        self._sorted_now = False
        """Whether the state was sorted after the last commit, which has not recorded the sort."""

    def __repr__(self) -> str:
        return f"StateTable({self._table.name}, txn={self._txn})"

    def open(self, spark: SparkSession) -> Opened:
        """Fence off other hosts of the table, create the table if it is missing, and return the checkpoints.

        Raises:
            FencedError: another host was faster each time.
            SinkError: the table cannot be continued.
        """
        for attempt in range(OPEN_TRIES):
            entry = self._sink.ledger(spark)
            self._txn = 0 if entry is None else entry.read_through.get(COUNTED, 0)
            try:
                self._write(spark.createDataFrame([], f"{COLUMNS}, deleted BOOLEAN"))
                break
            except FencedError:
                # A previous host has committed in between, so the number is taken.
                if attempt + 1 == OPEN_TRIES:
                    raise
        rows = self._table.rows(spark).where(F.col("kind").isin(CHECKPOINT, SORTED)).collect()
        checkpoints = [row for row in rows if row.kind == CHECKPOINT]
        # A table of a host that did not sort has no such row: it is sorted at the next compaction.
        self._sorted_txn = max((int(row.value) for row in rows if row.kind == SORTED), default=0)
        last = max((row.txn for row in checkpoints), default=0)
        return Opened(
            {row.shard: pc.Checkpoint.FromString(bytes(row.checkpoint)) for row in checkpoints},
            frozenset(row.shard for row in checkpoints if row.txn == last),
        )

    def state(self, spark: SparkSession, shards: Collection[str], keys: DataFrame | None = None) -> DataFrame:
        """Return the rows of state of some shards: ``shard``, ``kind``, ``key``, ``value``.

        Args:
            spark: The session.
            shards: Ids of the shards.
            keys: Rows of ``shard`` and ``key`` whose state is returned, read immediately; None for all.
        """
        rows = self._table.rows(spark).where(F.col("kind").isin(STATE, DOCUMENT))
        rows = rows.where(F.col("shard").isin(*shards)).select("shard", "kind", "key", "value")
        if keys is None:
            return rows
        # Only a condition that names the keys skips files and pages of files. A join reads all of them.
        listed = [tuple(key) for key in keys.distinct().limit(LISTED_KEYS + 1).collect()]
        if len(listed) > LISTED_KEYS:
            return rows.join(keys, ["shard", "key"], "left_semi")
        with session_settings(spark, PRECISE):
            return rows.where(keys_condition(("shard", "key"), listed) if listed else "false")

    def commit(self, changed: DataFrame, checkpoints: Mapping[str, pc.Checkpoint]) -> None:
        """Commit a transaction.

        Args:
            changed: Rows of state: ``shard``, ``kind``, ``key``, ``value``, ``deleted``, one for each key. It
                runs several times and must return the same rows each time.
            checkpoints: New checkpoints, by shard.

        Raises:
            FencedError: another host has opened the table.
            SinkError: the transaction is not committed, or that is unknown. The table has to be opened again.
        """
        marks = [
            {
                "shard": shard,
                "kind": CHECKPOINT,
                "checkpoint": checkpoint.SerializeToString(deterministic=True),
            }
            for shard, checkpoint in checkpoints.items()
        ]
        if self._sorted_now:
            # The next transaction records the sort, which saves a separate commit. After a crash before that,
            # the state is sorted again.
            marks.append({"shard": "", "kind": SORTED, "value": str(self._sorted_txn)})
        table = pa.Table.from_pylist([{**mark, "key": "", "deleted": False} for mark in marks], MARKS)
        rows = changed.unionByName(changed.sparkSession.createDataFrame(table), allowMissingColumns=True)
        self._write(rows.withColumn("txn", F.lit(self._txn + 1).cast("bigint")))
        self._sorted_now = False
        if self._txn % COMPACT_EVERY:
            return
        # Compact small files, and sort the state if much of it has changed since the last sort. OPTIMIZE
        # changes no row. Run it between two transactions of the host, because one in progress would fail:
        # both change the same files.
        spark = changed.sparkSession
        with session_settings(spark, LAYOUT):
            compact(spark, self._table.name)
            state = self._table.rows(spark).where(F.col("kind") == STATE)
            # Delta has statistics of `txn` for each file, so this reads only newer files.
            unsorted_rows = state.where(F.col("txn") > self._sorted_txn).count()
            if unsorted_rows < SORT_ROWS or unsorted_rows * SORT_SHARE < state.count():
                return
            # ZORDER by one column is a sort, and concurrent writers cannot damage it: Delta replaces files
            # with files of the same rows, or fails.
            if compact(spark, self._table.name, f"WHERE kind = '{STATE}' ZORDER BY (`key`)"):
                self._sorted_txn, self._sorted_now = self._txn, True

    def _write(self, rows: DataFrame) -> None:
        begin, end = (JournalOffsets({COUNTED: number}) for number in (self._txn, self._txn + 1))
        if not self._sink.write_batch(rows, begin, end):
            # The sink skips a batch that the ledger already has, as a repetition. But this host never repeats
            # a transaction number, so another host has used this one.
            state = self._table.ledger(rows.sparkSession, self._sink.app_id)
            assert state.entry is not None
            raise FencedError(
                self._table.name,
                self._sink.app_id,
                self._txn + 1,
                state.entry.query_id,
                state.entry.read_through.get(COUNTED, 0),
                state.entry_time,
                state.entry_version,
            )
        self._txn += 1


MAX_BATCH_BYTES = 64 << 20
"""Default maximum number of bytes of a journal that a micro-batch reads."""

READS_PER_CORE = 4
"""Maximum number of tasks for each core that read journals in a micro-batch."""

HOST_DIRECTORY = "host-"
"""Beginning of the names of the directories in which hosts keep their results."""

LEAST_INTERVAL_MS = 1000
"""Default minimum milliseconds between two ticks. An idle tick costs two small files."""


def start(
    app: Application[Any],
    spark: SparkSession,
    shards: Iterable[pc.ShardSpec],
    *,
    checkpoint: str,
    state: str,
    broker: Mapping[str, str],
    name: str = "",
    **trigger: Any,  # noqa: ANN401 - the types are Spark's
) -> StreamingQuery:
    """Run an application's shards as a streaming query.

    The arguments are those of :class:`SparkHost` and, as ``trigger``, of :meth:`SparkHost.start`. To set the
    other arguments, or to serve the shards, use these two instead.
    """
    host = SparkHost(app, spark, shards, checkpoint=checkpoint, state=state, broker=broker, name=name)
    return host.start(**trigger)


class SparkHost:
    """Runs the shards of an application. One thread starts it; any thread may use :attr:`shards`."""

    def __init__(
        self,
        app: Application[Any],
        spark: SparkSession,
        shards: Iterable[pc.ShardSpec],
        *,
        checkpoint: str,
        state: str | None = None,
        table: str | None = None,
        broker: Mapping[str, str],
        name: str = "",
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """Configure the host. Nothing runs yet.

        Args:
            app: The application, which is pickled for tasks.
            spark: A classic session. Spark Connect is not supported, because it runs batches in a process
                that cannot serve shards.
            shards: Specs of the first shards.
            checkpoint: A directory for Spark's query checkpoint, and for a batch's results until they are
                committed.
            state: Directory of the state table, which is created if it is missing.
            table: Name of the table in the catalog, instead of a directory.
            broker: Options for accessing the brokers: ``brokerAddress``, ``auth.…``, ``tls.…``,
                ``requestTimeoutMs``, as for a query that writes.
            name: Name of the application in the table, so it must not change. By default, the name of the
                application's class.
            max_batch_bytes: Maximum number of bytes of a journal that a micro-batch reads, however long
                ``max_txn_duration`` is.

        Raises:
            OptionError: an argument is invalid.
            ProtocolError: a spec breaks a rule.
            MissingPackageError: pandas is not installed.
        """
        try:
            # DataFrame.mapInArrow requires pandas, but checks that only in the first batch.
            require_minimum_pandas_version()
        except ImportError as error:
            said = str(error).partition("] ")[2].strip()
            raise MissingPackageError(f"Spark's mapInArrow: {said}", "gazette-spark[applications]") from None
        if getattr(spark, "_jsparkSession", None) is None:
            raise OptionError("spark", "a session of Spark Connect", "a classic one")
        if not isinstance(max_batch_bytes, int) or max_batch_bytes < 1:
            raise OptionError("max_batch_bytes", repr(max_batch_bytes), "a whole number from 1 on")
        self._app = app
        self._spark = spark
        name = name or type(app).__name__
        self._options = parse_write_options(dict(broker))
        self._checkpoint = checkpoint.rstrip("/")
        self._table = StateTable(name, path=state, table=table)
        self._client = open_client(self._options)
        self._shards = SparkShards(f"{NAME_ROOT}/{name}/items", shards, self._client)
        self._driver = BatchDriver(self._shards, self._client, max_batch_bytes)
        self._files = f"{self._checkpoint}/consumer"
        """Where each host of this checkpoint has a directory for its results."""
        self._directory = f"{self._files}/{HOST_DIRECTORY}{uuid.uuid4().hex}"
        self._catalog: tuple[str, str] | None = None
        """Catalog and schema in which :meth:`start` has opened the table."""
        self._drains = False
        self._started = False

    def __repr__(self) -> str:
        return f"SparkHost({self._shards!r}, {self._table!r})"

    @property
    def shards(self) -> ShardTable:
        """Table that lists, applies, resolves and unassigns the shards. It is a service's ``ShardHost``."""
        return self._shards.table

    def start(self, **trigger: Any) -> StreamingQuery:  # noqa: ANN401 - the types are Spark's
        """Open the state table, append missing acknowledgements, and start the query. Call this once.

        Args:
            trigger: As for ``DataStreamWriter.trigger``; by default ``processingTime`` with the smallest
                ``min_txn_duration`` of the shards, at least a second. With ``availableNow=True``, the query
                ends when all existing messages have been read.

        Raises:
            FencedError: another host of the table is starting.
            GazetteError: an acknowledgement could not be appended.
            ClosedError: the host has already been started.
        """
        if self._started:
            raise ClosedError("the host", "it has already been started: make another one")
        self._started = True
        try:
            # Another host of this checkpoint may still run. It does not notice that files of its results are
            # missing, and would commit the rest of them. Therefore delete what exists now, but only after the
            # table was opened, which fences those hosts off. A host that starts later fences this one off
            # before it makes a directory.
            left = [name for name in names_in(self._spark, self._files) if name.startswith(HOST_DIRECTORY)]
            self._catalog = current_catalog(self._spark)
            self._driver.open(self._engine(self._spark))
            for name in left:
                delete_directory(self._spark, f"{self._files}/{name}")
            self._drains = bool(trigger.get("availableNow"))
            root = f"{self._checkpoint}/query"
            clear_unfinished(self._spark, root)
            if not trigger:
                specs = [shard.spec for shard in self._shards.running()]
                least_ms = min((spec.min_txn_duration.ToMilliseconds() for spec in specs), default=0)
                trigger = {"processingTime": f"{max(least_ms, LEAST_INTERVAL_MS)} milliseconds"}
            ticks = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
            writer = ticks.writeStream.foreachBatch(self._batch).option("checkpointLocation", root)
            query = writer.trigger(**trigger).start()
        except BaseException:
            self._end()
            raise
        threading.Thread(target=self._end_with, args=[query], name="consumer-end", daemon=True).start()
        return query

    def _end_with(self, query: StreamingQuery) -> None:
        """End the shards, and all waits for them, when the query has ended."""
        with suppress(Exception):  # The owner of the query gets the query's error.
            query.awaitTermination()
        self._end()

    def _end(self) -> None:
        self._shards.table.close()
        self._client.close()

    def _batch(self, ticks: DataFrame, _batch_id: int) -> None:
        """Run one transaction, or with ``availableNow`` all of them."""
        # Spark runs batches in a copy of the session, which begins in the default catalog.
        if self._catalog is not None:
            use_catalog(ticks.sparkSession, *self._catalog)
        engine = self._engine(ticks.sparkSession)
        if self._drains:
            self._driver.drain(engine)
        else:
            self._driver.transaction(engine)

    def _engine(self, spark: SparkSession) -> SparkBatchEngine:
        return SparkBatchEngine(
            spark, self._shards.name, self._app, self._options, self._table, self._directory
        )


@dataclass(frozen=True, slots=True)
class FileResults:
    """The results of a micro-batch, in files."""

    rows: DataFrame

    def summary(self) -> Iterator[Result]:
        """Return all rows except those of state."""
        rows = self.rows.where(~F.col("kind").isin(STATE, DOCUMENT)).collect()
        return (Result(*row) for row in rows)


@dataclass(frozen=True, slots=True)
class SparkBatchEngine:
    """Runs the tasks of one micro-batch in its session, and commits to the table."""

    spark: SparkSession
    name: str
    app: Application[Any]
    options: WriteOptions
    table: StateTable
    directory: str
    """Directory for messages and results. No other host uses it."""

    def open(self) -> Opened:
        """Open the state table."""
        return self.table.open(self.spark)

    def run(self, planned: Plan, specs: Mapping[str, pc.ShardSpec], sources: JournalSpecs) -> FileResults:
        """Run the tasks of a micro-batch."""
        options = replace(self.options, security=security_for_tasks(self.options.security))
        job = Job(self.name, self.app, options, planned.reads, specs, sources)
        # More tasks than cores would only cost their start.
        readers = min(len(planned.reads), READS_PER_CORE * self.spark.sparkContext.defaultParallelism)
        numbers = self.spark.range(0, len(planned.reads), 1, readers)
        messages = numbers.mapInArrow(job.read, INPUT_SCHEMA)
        group, keys = F.lit(""), None
        if job.has_keys:
            # The state of keys without messages need not be sorted and passed to tasks. Write the messages to
            # files first: if Spark read a journal again and got further, the state of some keys would be
            # missing.
            messages.write.mode("overwrite").parquet(f"{self.directory}/messages")
            messages = self.spark.read.schema(INPUT_SCHEMA).parquet(f"{self.directory}/messages")
            touched = messages.where(F.col("step") == STEP_MESSAGE)
            group, keys = F.col("key"), touched.select("shard", F.col("group").alias("key"))
        state = self.table.state(self.spark, list(specs), keys)
        state = state.withColumns({"step": F.lit(STEP_STATE), "group": group})
        rows = messages.unionByName(state, allowMissingColumns=True)
        tasks = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        if job.has_keys:
            rows = rows.repartition(tasks, "shard", "group")
        else:
            rows = rows.repartition(min(tasks, len(specs)), "shard")
        results = rows.sortWithinPartitions(*ORDER).mapInArrow(job.run, RESULT_SCHEMA)
        with session_settings(self.spark, PRECISE):
            results.write.mode("overwrite").parquet(f"{self.directory}/results")
        return FileResults(self.spark.read.schema(RESULT_SCHEMA).parquet(f"{self.directory}/results"))

    def commit(self, results: FileResults, checkpoints: Mapping[str, pc.Checkpoint]) -> None:
        """Commit the transaction."""
        changed = results.rows.where(F.col("kind").isin(STATE, DOCUMENT))
        changed = changed.where(F.col("shard").isin(*checkpoints))
        self.table.commit(changed.select("shard", "kind", "key", "value", "deleted"), checkpoints)
