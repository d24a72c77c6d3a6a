"""Runs the jobs of the end-to-end benchmark, by reader, format and target, and checks each answer."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from bench_data import DataSet
from bench_kafka import Kafka
from bench_processes import measured
from harness import MEGABYTE
from pyiceberg.catalog import load_catalog
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from gazette_spark import DeltaSink, IcebergSink, ingest, ingest_batch

TABLE = "benchmark.table"
"""Name of the Iceberg table in its catalog."""

QUERY_TIMEOUT_S = 400.0


@dataclass(frozen=True, slots=True)
class Work:
    """A job with a data set."""

    typed: bool
    """Whether to read JSON columns instead of the records' bytes."""
    sink: str
    """``noop``, ``Delta`` or ``Iceberg``."""
    backfill: bool = False
    """Whether to use a batch query instead of a stream that ends at the journal's end."""

    @property
    def name(self) -> str:
        """Name for people and for the command line."""
        return f"{'backfill ' if self.backfill else ''}{'JSON' if self.typed else 'raw'} → {self.sink}"


WORKS = {
    "raw-noop": Work(typed=False, sink="noop"),
    "json-noop": Work(typed=True, sink="noop"),
    "raw-delta": Work(typed=False, sink="Delta"),
    "json-delta": Work(typed=True, sink="Delta"),
}

TABLE_FORMATS = {
    "raw-delta": WORKS["raw-delta"],
    "raw-iceberg": Work(typed=False, sink="Iceberg"),
    "json-delta": WORKS["json-delta"],
    "json-iceberg": Work(typed=True, sink="Iceberg"),
}
"""Jobs of the direct lane into a table of each format, in the same session."""

BACKFILLS = {
    "raw-noop": Work(typed=False, sink="noop", backfill=True),
    "json-noop": Work(typed=True, sink="noop", backfill=True),
    "json-delta": Work(typed=True, sink="Delta", backfill=True),
}


class Peer(Protocol):
    """One way to read a data set."""

    name: str

    def frame(self, data: DataSet, *, typed: bool, stream: bool) -> DataFrame:
        """Return the records, as bytes in ``value`` or in columns."""

    def write_stream(self, frame: DataFrame, folder: Path) -> None:
        """Stream all records into the Delta table ``folder/table``."""


def _await(query: Any) -> None:  # noqa: ANN401 - StreamingQuery
    if not query.awaitTermination(QUERY_TIMEOUT_S):
        query.stop()
        raise SystemExit("the query did not end in time")


class Gazette:
    """This project's source with one broker. Tasks may read fragments themselves."""

    def __init__(self, spark: SparkSession, name: str, endpoint: str, root: Path | None) -> None:
        self._spark = spark
        self.name = name
        self._options = {"brokerAddress": endpoint, "startingOffsets": "earliest"}
        if root is not None:
            self._options["fragmentRoot"] = str(root)

    def frame(self, data: DataSet, *, typed: bool, stream: bool) -> DataFrame:
        """Return the records."""
        reader: Any = self._spark.readStream if stream else self._spark.read
        reader = reader.format("gazette").options(**self._options)
        if typed:
            reader = reader.option("format", "json").schema(data.schema)
        frame: DataFrame = reader.load(data.prefix)
        return frame

    def write_stream(self, frame: DataFrame, folder: Path) -> None:
        """Stream into a table with :class:`DeltaSink`."""
        checkpoint = str(folder / "checkpoint")
        sink = DeltaSink("benchmark", path=str(folder / "table"), checkpoint=checkpoint)
        _await(sink.start(frame, lane="spark", availableNow=True))


class DirectLane(Gazette):
    """The same source with tasks that write the table's files; see :func:`gazette_spark.ingest`."""

    def load(self, data: DataSet, folder: Path, work: Work) -> None:
        """Write a data set to a table."""
        sink: DeltaSink | IcebergSink = DeltaSink("benchmark", path=str(folder / "table"))
        if work.sink == "Iceberg":
            properties = catalog_of(folder)
            load_catalog("benchmark", **properties).create_namespace_if_not_exists("benchmark")
            sink = IcebergSink("benchmark", table=TABLE, catalog="benchmark", properties=properties)
        options = self._options | {"path": data.prefix} | ({"format": "json"} if work.typed else {})
        if work.backfill:
            ingest_batch(sink, options, schema=data.schema if work.typed else None, spark=self._spark)
            return
        reader = self._spark.readStream.format("gazette").options(**options)
        reader = reader.schema(data.schema) if work.typed else reader
        checkpoint = str(folder / "checkpoint")
        _await(ingest(reader, sink, checkpoint=checkpoint, spark=self._spark, availableNow=True))


class KafkaPeer:
    """Spark's Kafka source with Delta's streaming sink."""

    name = "Kafka"

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def frame(self, data: DataSet, *, typed: bool, stream: bool) -> DataFrame:
        """Return the records."""
        if typed:
            return self._kafka.typed(data, data.schema, stream=stream)
        return self._kafka.raw(data, stream=stream)

    def write_stream(self, frame: DataFrame, folder: Path) -> None:
        """Stream into a table."""
        writer = frame.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
        _await(writer.trigger(availableNow=True).start(str(folder / "table")))


class Files:
    """Spark's file readers, which are not used for streams here."""

    name = "spark.read"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def frame(self, data: DataSet, *, typed: bool, stream: bool) -> DataFrame:
        """Return the records from ``spark.read.json`` or ``spark.read.text``."""
        assert not stream
        reader = self._spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", "*-*")
        path = str(data.path)
        return reader.schema(data.schema).json(path) if typed else reader.text(path)

    def write_stream(self, frame: DataFrame, folder: Path) -> None:
        """Not measured."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Result:
    """One run of a job."""

    peer: str
    work: str
    journals: int
    size_bytes: int
    seconds: float
    cpu_s: Mapping[str, float]
    worker_bytes: int

    @property
    def mb_s(self) -> float:
        """Speed in MB/s."""
        return self.size_bytes / MEGABYTE / self.seconds

    @property
    def cpu_s_per_gb(self) -> dict[str, float]:
        """CPU seconds per GB by role."""
        return {role: cpu_s / (self.size_bytes / 1e9) for role, cpu_s in self.cpu_s.items()}


def run(spark: SparkSession, peer: Peer, work: Work, data: DataSet, folder: Path) -> Result:
    """Run a job once, check its rows, and remove its files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with measured() as usage:
            began = monotonic()
            seen = _run(peer, work, data, folder)
            seconds = monotonic() - began
        if seen is None:
            if work.sink == "Iceberg":
                table = _iceberg_rows(spark, work, folder)
            else:
                table = spark.read.format("delta").load(str(folder / "table"))
            totals = table.agg(*_totals(work)).first()
            assert totals is not None
            seen = tuple(totals)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if seen != (expected := _expected(work, data)):
        raise SystemExit(f"{peer.name}, {work.name}: rows and sum are {seen}, not {expected}")
    return Result(
        peer.name, work.name, data.journals, data.size_bytes, seconds, usage.cpu_s, usage.worker_bytes
    )


def _run(peer: Peer, work: Work, data: DataSet, folder: Path) -> tuple[int, ...] | None:
    """Do the work; return rows and sum if they are known without reading the table."""
    stream = work.sink == "Delta" and not work.backfill
    if isinstance(peer, DirectLane):
        peer.load(data, folder, work)
        return None
    frame = peer.frame(data, typed=work.typed, stream=stream)
    if stream:
        peer.write_stream(frame, folder)
        return None
    if work.sink == "Delta":
        frame.write.format("delta").save(str(folder / "table"))
        return None
    # Observes the values, because a column that was not parsed would be null.
    totals = Observation()
    frame.observe(totals, *_totals(work)).write.format("noop").mode("overwrite").save()
    return totals.get["rows"], totals.get["sum"]


def catalog_of(folder: Path) -> dict[str, str]:
    """Return the properties of a SQLite catalog whose tables are in a folder."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/table"}


def _iceberg_rows(spark: SparkSession, work: Work, folder: Path) -> DataFrame:
    """Return the column of an Iceberg table to sum, from its files: the session cannot read such tables."""
    table = load_catalog("benchmark", **catalog_of(folder)).load_table(TABLE)
    files = [task.file.file_path for task in table.scan().plan_files()]
    return spark.read.parquet(*files).select("id" if work.typed else "value")


def _totals(work: Work) -> list[Column]:
    column = F.col("id") if work.typed else F.col("value")
    # The length in bytes, because Spark reads text files as strings.
    what = column if work.typed else F.octet_length(column)
    return [F.count(column).alias("rows"), F.sum(what).alias("sum")]


def _expected(work: Work, data: DataSet) -> tuple[int, int]:
    return data.rows, data.id_sum if work.typed else data.size_bytes - data.rows
