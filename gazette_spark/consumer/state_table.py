"""The Delta table of the host on Spark: state, checkpoints and acknowledgements of all shards.

=============  ==================================================================================
column         holds
=============  ==================================================================================
``shard``      the shard's id
``kind``       ``state`` or ``document``, see ``stores.delta``; ``checkpoint``: Gazette's checkpoint
``key``        of a row of state its key, else empty
``value``      JSON of a row of state
``checkpoint`` serialized ``consumer.Checkpoint``, with the intents of the shard's newest transaction
``txn``        number of the transaction that wrote the row
=============  ==================================================================================

A transaction is a commit of a :class:`DeltaSink`, whose ledger counts transactions in place of a journal's
bytes. So of two hosts of one table that read the same number only one commits, and Delta's silence is no
success. To open the table is a transaction without rows: it fences off every host that opened it before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark.consumer.batch_driver import Opened
from gazette_spark.consumer.micro_batch import CHECKPOINT, DOCUMENT, STATE
from gazette_spark.errors import FencedError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.sink import DeltaSink
from gazette_spark.table.delta_table import DeltaTable
from gazette_spark.table.new_table import NewTable
from gazette_spark.table.upsert import Upsert

COUNTED = "consumer/transactions"
"""Name under which the ledger counts transactions: no journal is read by it."""

COLUMNS = "shard STRING, kind STRING, `key` STRING, value STRING, checkpoint BINARY, txn BIGINT"

COMPACT_EVERY = 100
"""Transactions after which the small files that they left are made few."""

OPEN_TRIES = 5
"""Times that opening looks again after the host that ran before has committed meanwhile."""


class StateTable:
    """The table of one host. To be used by one thread at a time."""

    def __init__(self, name: str, *, path: str | None, table: str | None) -> None:
        """Name the table; nothing is read or made yet.

        Args:
            name: Name of the host in the table's ledger.
            path: Directory of the table.
            table: Or its name in the catalog.
        """
        self._sink = DeltaSink(
            name,
            path=path,
            table=table,
            new_table=NewTable(schema=COLUMNS, partition_by=("kind",)),
            compact_every=COMPACT_EVERY,
            upsert=Upsert(("shard", "kind", "key"), delete_when="deleted", order_by="txn"),
        )
        self._table = DeltaTable(path=path, table=table)
        self._txn = 0
        """Number of the newest transaction that this host knows."""

    def __repr__(self) -> str:
        return f"StateTable({self._table.name}, txn={self._txn})"

    def open(self, spark: SparkSession) -> Opened:
        """Fence off other hosts of the table, and return the checkpoints; a missing table is made.

        Raises:
            FencedError: another host was faster each time.
            SinkError: the table cannot be continued.
        """
        for left in reversed(range(OPEN_TRIES)):
            self._txn = self._newest(spark)
            try:
                self._write(spark.createDataFrame([], f"{COLUMNS}, deleted BOOLEAN"))
                break
            except FencedError:
                if not left:
                    raise
        rows = self._table.rows(spark).where(F.col("kind") == CHECKPOINT).collect()
        last = max((row.txn for row in rows), default=0)
        return Opened(
            {row.shard: pc.Checkpoint.FromString(bytes(row.checkpoint)) for row in rows},
            frozenset(row.shard for row in rows if row.txn == last),
        )

    def state(self, spark: SparkSession, shards: Collection[str]) -> DataFrame:
        """Return the rows of state of some shards: ``shard``, ``kind``, ``key``, ``value``."""
        rows = self._table.rows(spark).where(F.col("kind").isin(STATE, DOCUMENT))
        return rows.where(F.col("shard").isin(*shards)).select("shard", "kind", "key", "value")

    def commit(self, changed: DataFrame, checkpoints: Mapping[str, pc.Checkpoint]) -> None:
        """Commit a transaction.

        Args:
            changed: Rows of state: ``shard``, ``kind``, ``key``, ``value``, ``deleted``. It is run several
                times, and has to give the same rows.
            checkpoints: New checkpoints, by shard.

        Raises:
            FencedError: another host has opened the table.
            SinkError: it is unknown whether the transaction is committed, or it is not. The table has to be
                opened again.
        """
        count = len(checkpoints)
        contents = [each.SerializeToString(deterministic=True) for each in checkpoints.values()]
        columns = {
            "shard": pa.array(list(checkpoints), pa.string()),
            "kind": pa.array([CHECKPOINT] * count, pa.string()),
            "key": pa.array([""] * count, pa.string()),
            "checkpoint": pa.array(contents, pa.binary()),
        }
        marks = changed.sparkSession.createDataFrame(pa.table(columns))
        marks = marks.withColumn("deleted", F.lit(False))  # noqa: FBT003 - a value
        rows = changed.unionByName(marks, allowMissingColumns=True)
        self._write(rows.withColumn("txn", F.lit(self._txn + 1).cast("bigint")))

    def _newest(self, spark: SparkSession) -> int:
        entry = self._sink.ledger(spark)
        return 0 if entry is None else entry.read_through.get(COUNTED, 0)

    def _write(self, rows: DataFrame) -> None:
        begin, end = (JournalOffsets({COUNTED: number}) for number in (self._txn, self._txn + 1))
        if not self._sink.write_batch(rows, begin, end):
            raise self._fenced(rows.sparkSession)
        self._txn += 1

    def _fenced(self, spark: SparkSession) -> FencedError:
        """Return the error of a transaction whose number another host has used."""
        state = self._table.ledger(spark, self._sink.app_id)
        assert state.entry is not None
        return FencedError(
            self._table.name,
            self._sink.app_id,
            self._txn + 1,
            state.entry.query_id,
            state.entry.read_through.get(COUNTED, 0),
            state.entry_time,
            state.entry_version,
        )
