"""The queries of drivers: both lanes, the formats, and the sink's other features.

Records begin with a number and a space, except messages: see :mod:`tests.rig.crashes.journals`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable as Snapshot
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from gazette_spark import DeadLetters, DeltaSink, IcebergSink, Upsert
from gazette_spark._delta.file_commits import FileCommits
from gazette_spark._delta.sql_names import table_at
from gazette_spark._delta.upsert import RepeatableUpsert
from gazette_spark._ingest import load_files
from gazette_spark.testing.oracle import split_records
from tests.rig.iceberg import NAME, catalog_properties

KEYS = 40
"""Number of keys per journal, for sinks that keep one row per key."""

UNFIT = 7
"""Interval of the records that do not fit, for sinks that write those to a separate table."""

ALIKE = 10
"""Number of successive record numbers in one group of a stateful query, per journal."""

BUCKETS_VARIABLE = "GAZETTE_SPARK_CRASH_BUCKETS"
"""Environment variable with the directory of an S3 server's buckets, if tables are written through one."""

LEAVES_AT = 4
"""Number of records at which a group disappears from a complete result, as in ``HAVING count < 4``."""

COLUMNS = ("journal", "offset", "key", "value")
"""Columns of a table with one row per key."""

NUMBER = "CAST(substring_index(CAST(value AS STRING), ' ', 1) AS BIGINT)"


@dataclass(frozen=True, slots=True)
class SinkKind:
    shape: Callable[[DataFrame], DataFrame]
    """Function that creates the sink's rows from raw rows."""
    options: Callable[[str], dict[str, Any]]
    """Function from the table's directory to the additional arguments of the sink."""
    bound: bool = False
    """Whether the query is bound to its checkpoint, so that a new one or a copy is refused."""
    committed: bool = False
    """Whether the query reads the committed messages of a broker's journals."""
    direct: bool = False
    """Whether tasks write the data files."""
    is_format: bool = False
    """Whether the sink is a format of the package, whose commits run in separate processes; with ``direct``,
    every other run uses the direct lane."""
    iceberg: bool = False
    """Whether the table is an Iceberg table, in a catalog in the table's directory."""
    output_mode: str = "append"
    """Spark output mode of the query."""

    def sink(self, app_id: str, table: str, checkpoint: str | None = None, **more: Any) -> DeltaSink:
        return DeltaSink(app_id, path=location(table), checkpoint=checkpoint, **self.options(table), **more)

    def load(self, reader: DataStreamReader, sink: DeltaSink, *, direct: bool) -> DataFrame:
        """Return the stream that the sink writes.

        Args:
            reader: Reader of the journals.
            sink: The sink, whose table may not exist yet.
            direct: Whether tasks write the data files, if this kind of query supports that.
        """
        if direct and self.direct:
            return load_files(reader, sink)[0]
        return self.shape(reader.load())

    def start_format(
        self, rows: DataFrame, app_id: str, table: str, checkpoint: str, crash_file: str, **trigger: Any
    ) -> StreamingQuery:
        writer = rows.writeStream.trigger(**trigger)
        writer = writer.options(appId=app_id, checkpointLocation=checkpoint, crashFile=crash_file)
        if not self.iceberg:
            return writer.format("crashing_delta").start(location(table))
        properties = {f"catalog.{key}": text for key, text in catalog_properties(Path(table)).items()}
        writer = writer.options(catalog=NAME.catalog, table=NAME.identifier, **properties)
        return writer.format("crashing_iceberg").start()

    def with_lane(self, sink: DeltaSink, table: str, *, direct: bool) -> DeltaSink:
        if not (direct and self.direct):
            return sink
        table_id, where = Snapshot(table).metadata().id, location(table)  # load() has created the table.
        return sink.with_files(FileCommits(table_at(where), where, str(table_id), {}))


def iceberg_sink(app_id: str, table: str | Path) -> IcebergSink:
    properties = catalog_properties(Path(table))
    return IcebergSink(app_id, table=NAME.identifier, catalog=NAME.catalog, properties=properties)


def location(table: str | Path) -> str:
    """Return a table's location in Spark: its directory, or an ``s3a://`` URL if that is in a bucket."""
    buckets = os.environ.get(BUCKETS_VARIABLE)
    if buckets and Path(table).is_relative_to(buckets):
        return f"s3a://{Path(table).relative_to(buckets).as_posix()}"
    return str(table)


def dead_table(table: str | Path) -> Path:
    return Path(f"{table}-dead")


def keyed(rows: DataFrame) -> DataFrame:
    """Return rows of which an upsert keeps the last one of each key."""
    return rows.selectExpr(
        "journal",
        "offset",
        f"concat(journal, ' ', {NUMBER} % {KEYS}) AS key",
        "value",
    )


def read_keyed(journal: str, offset: int, value: bytes) -> tuple[str, tuple[str, int, str, bytes]]:
    """Return key and row of a record, in the form that :func:`keyed` produces."""
    key = f"{journal} {_number(value) % KEYS}"
    return key, (journal, offset, key, value)


def parsed(rows: DataFrame) -> DataFrame:
    """Return rows of which some do not parse."""
    return rows.selectExpr("*", f"IF({NUMBER} % {UNFIT} = 0, 'unfit', NULL) AS _corrupt_record")


def fits(value: bytes) -> bool:
    return _number(value) % UNFIT != 0


def distinct(rows: DataFrame) -> DataFrame:
    """Return one row of all equal records of a journal, from state that is never dropped.

    The watermark is a day behind records that are a second apart. Each batch with rows moves it, so that
    Spark runs batches in which no source has moved.
    """
    timed = rows.selectExpr(
        "journal", f"{NUMBER} AS number", f"timestamp_seconds(1000000 + {NUMBER}) AS time"
    )
    alike = timed.selectExpr("journal", f"number DIV {ALIKE} AS key", "time").withWatermark("time", "1 day")
    return alike.dropDuplicatesWithinWatermark(["journal", "key"]).select("journal", "key")


def read_distinct(journal: str, offset: int, value: bytes) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return key and row of a record, in the form that :func:`distinct` produces."""
    row = journal, _number(value) // ALIKE
    return row, row


def counted(rows: DataFrame) -> DataFrame:
    """Return the number of records of each small group: rows enter this result, change, and leave it."""
    alike = rows.selectExpr("journal", f"{NUMBER} DIV {ALIKE} AS key")
    return alike.groupBy("journal", "key").count().where(f"count < {LEAVES_AT}")


def count_records(contents: Mapping[str, bytes]) -> Counter[tuple[str, int, int]]:
    """Return the rows that :func:`counted` produces from the journals' first bytes."""
    groups = Counter(
        (journal, _number(value) // ALIKE)
        for journal, content in contents.items()
        for _, value in split_records(content)
    )
    return Counter((*group, count) for group, count in groups.items() if count < LEAVES_AT)


def _number(value: bytes) -> int:
    return int(value.split(b" ")[0])


SINKS: Mapping[str, SinkKind] = {
    "raw": SinkKind(lambda rows: rows, lambda _: {}),
    "upsert": SinkKind(keyed, lambda _: {"upsert": Upsert(("key",))}),
    "dead letters": SinkKind(
        parsed, lambda table: {"dead_letters": DeadLetters(path=location(dead_table(table)))}
    ),
    "stateful": SinkKind(distinct, lambda _: {}, bound=True),
    "complete": SinkKind(
        counted, lambda _: {"upsert": Upsert(("journal", "key"))}, bound=True, output_mode="complete"
    ),
    "direct": SinkKind(lambda rows: rows, lambda _: {}, direct=True),
    "format": SinkKind(lambda rows: rows, lambda _: {}, is_format=True),
    "iceberg": SinkKind(lambda rows: rows, lambda _: {}, direct=True, is_format=True, iceberg=True),
    "committed": SinkKind(lambda rows: rows, lambda _: {}, committed=True, direct=True),
    # The host of applications writes its state this way: it names the keys of a small batch and merges
    # others.
    "replace": SinkKind(keyed, lambda _: {"upsert": RepeatableUpsert(("key",))}),
}
"""Kinds of sink, by the feature that a point needs; see :attr:`tests.rig.crashes.points.Point.feature`."""
