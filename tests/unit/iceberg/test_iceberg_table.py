"""An Iceberg table filled with data files: each row is written exactly once.

The catalog is in SQLite; there is no Spark. :class:`IcebergStream` makes the batches of a query.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from pyiceberg import types as ice
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    ServerError,
)
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyspark.sql import types as sql

from gazette_spark import IcebergSink
from gazette_spark._data_files import writer
from gazette_spark._iceberg.columns import partition_spec, partition_texts
from gazette_spark._ledger.decision import Allowed
from gazette_spark._ledger.entry import SkippedGap, entry_without_rows
from gazette_spark._ledger.file_batches import BatchFiles
from gazette_spark._ledger.history import app_ids, visible_entries
from gazette_spark._ledger.iceberg_reader import PROPERTY_PREFIX, TableName, open_catalog, table_history
from gazette_spark._ledger.positions import table_commits
from gazette_spark._options.iceberg_format import parse_iceberg_format_options
from gazette_spark.errors import (
    FencedError,
    GapError,
    InputError,
    LedgerFormatError,
    OptionError,
    OverlapError,
    SchemaMismatchError,
    SinkError,
    TableRefusedError,
)
from gazette_spark.failpoints import FAILPOINT_VARIABLE, calling
from gazette_spark.spark_versions import arrow_schema
from tests.rig.iceberg import NAME, ROWS, IcebergStream, catalog_properties, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def stream(tmp_path: Path) -> IcebergStream:
    """A query that has written a batch: the table has ``[5, 10)`` of a journal."""
    made = IcebergStream(catalog_properties(tmp_path))
    made.run(0, 0, 5)
    made.run(1, 5, 10)
    return made


# Each row is written once


def test_rows_and_entry_are_one_commit(stream: IcebergStream) -> None:
    before = len(stream.load().snapshots())
    stream.run(2, 10, 20)
    table = stream.load()
    assert len(table.snapshots()) == before + 1
    assert stream.contents() == {"a": [*range(5, 20)]}
    entry = stream.entry()
    assert entry is not None
    assert (entry.starts, entry.read_through, entry.batch_id) == ({"a": 5}, {"a": 20}, 2)
    assert [row.version for row in table_history(table)] == [3, 2, 1, 0]


def test_a_batch_that_runs_again_writes_nothing(stream: IcebergStream) -> None:
    def unexpected() -> BatchFiles:
        raise AssertionError("the batch ran")

    stream.run(1, 5, 10, write=unexpected)
    stream.other(seen=None).run(1, 5, 10, write=unexpected)
    assert len(stream.load().snapshots()) == 2


@pytest.mark.parametrize(
    ("begin", "error"), [(7, OverlapError), (12, GapError)], ids=["behind the end", "ahead of it"]
)
def test_what_does_not_continue_the_table_is_refused(
    stream: IcebergStream, begin: int, error: type[SinkError]
) -> None:
    """This happens with a copied or an outdated checkpoint. A gap that the operator accepts is recorded."""
    with pytest.raises(error):
        stream.run(2, begin, 20)
    assert stream.contents() == {"a": [*range(5, 10)]}
    stream.allowed = Allowed(gaps=frozenset({SkippedGap("a", 10, 12)}))
    stream.run(2, 12, 13)
    entry = stream.entry()
    assert entry is not None
    assert entry.accepted_gaps == (SkippedGap("a", 10, 12),)


def test_advice_names_the_sink_and_the_settings_of_iceberg(stream: IcebergStream) -> None:
    def refused(write: Callable[[], object]) -> str:
        with pytest.raises(SinkError) as error:
            write()
        assert "DeltaSink" not in str(error.value)
        assert "delta." not in str(error.value)
        return str(error.value)

    assert "checkpoint directory and IcebergSink.resume(reader)" in refused(lambda: stream.run(2, 12, 20))
    new = stream.other(query="new", seen=None)
    assert "ingest(sink.resume(reader), sink, checkpoint=…)" in refused(lambda: new.run(0, 12, 12))
    stream.append_foreign(1)
    stream.run(2, 10, 20)
    stream.roll_back(1)
    stream.expire()
    late = stream.other(query="late", seen=None)
    assert "keep history.expire.max-snapshot-age-ms longer" in refused(lambda: late.run(3, 20, 30))


@pytest.mark.parametrize("shared", [False, True], ids=["two processes", "one sink in two threads"])
def test_of_two_writers_that_decided_on_one_entry_one_commits(stream: IcebergStream, shared: bool) -> None:
    """Another query writes the batch between decision and commit."""
    other = stream.other(query="other", seen=None)
    if shared:
        other.table = stream.table

    def overtake() -> None:
        other.run(2, 10, 15)

    with (
        calling("sink.before_write", overtake),
        pytest.raises(FencedError, match="query other"),
    ):
        stream.run(2, 10, 20)
    assert stream.contents() == {"a": [*range(5, 15)]}


def test_a_zombie_that_kept_still_is_fenced(stream: IcebergStream) -> None:
    """The idle writer's next batch would continue the table, but another writer has committed since."""
    stream.other(query="other", seen=None).run(2, 10, 15)
    with pytest.raises(FencedError, match="query other"):
        stream.run(2, 15, 20)


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.soak)])
def test_two_threads_race_for_each_batch(stream: IcebergStream, rounds: int) -> None:
    writers = [stream.other(seen=None), stream.other(seen=None)]
    shape = writers[0].table.prepare(ROWS)[1]
    writers[1].table.prepare(ROWS)
    outcomes: list[list[str]] = []
    for batch_id in range(2, 2 + rounds):
        at = threading.Barrier(2)
        outcomes.append([])

        threads = [
            threading.Thread(target=race, args=(writer, batch_id, partial(met, at, shape), outcomes[-1]))
            for writer in writers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table = stream.load()
    assert len(table.snapshots()) == 2 + rounds
    assert all("fenced" in outcome or len({*outcome}) == 1 for outcome in outcomes)
    entry = stream.entry()
    assert entry is not None
    assert entry.read_through == {"a": 10 + rounds}
    entries = [entry for _, entry in visible_entries(table_history(table), "orders", table="t")]
    parents = [(entry.attempt, entry.parent) for entry in entries]
    assert [parent for _, parent in parents[:-1]] == [attempt for attempt, _ in parents[1:]]


def race(writer: IcebergStream, batch_id: int, write: Callable[[], BatchFiles], outcomes: list[str]) -> None:
    try:
        newest = writer.run(batch_id, 8 + batch_id, 9 + batch_id, write=write)
    except FencedError:
        outcomes.append("fenced")
        writer.seen = None
    else:
        outcomes.append(str(newest))


def met(at: threading.Barrier, shape: str) -> BatchFiles:
    """Let both writers decide before either commits. Batches have no rows, to keep the test fast."""
    at.wait(30)
    return BatchFiles((), shape)


def test_commits_of_others_are_tried_again(stream: IcebergStream) -> None:
    other = stream.other(app_id="other", query="q2", seen=None)

    def interfere() -> None:
        stream.append_foreign(0, 1)
        other.run(0, 0, 0, journal="b")
        other.run(1, 0, 2, journal="b")

    with calling("sink.before_write", interfere):
        stream.run(2, 10, 12)
    assert stream.contents() == {"a": [*range(5, 12)], "b": [0, 1], "other": [0, 1]}
    assert app_ids(table_history(stream.load())) == ["orders", "other"]
    other.run(2, 2, 3, journal="b")
    stream.run(3, 12, 13)
    assert stream.contents()["b"] == [0, 1, 2]


def die_in_second_batch(stream: IcebergStream, point: str) -> None:
    script = "import pickle, sys; pickle.load(sys.stdin.buffer).run(2, 10, 20)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(stream),
        env={**os.environ, FAILPOINT_VARIABLE: f"{point}:1:kill"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def test_a_process_that_dies_in_the_commit_loses_and_doubles_nothing(stream: IcebergStream) -> None:
    """SIGKILL hits after the commit and before the answer. The batch runs again and must not repeat."""
    die_in_second_batch(stream, "sink.after_write")
    assert len(stream.load().snapshots()) == 3
    successor = stream.other(seen=None)
    successor.run(2, 10, 20)
    successor.run(3, 20, 21)
    assert stream.contents() == {"a": [*range(5, 21)]}


@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after it"])
@pytest.mark.parametrize(
    "error",
    [
        CommitStateUnknownException("lost"),
        ConnectionError("lost"),
        pytest.param(ServerError("520"), id="a status of a proxy"),
        pytest.param(ValidationError.from_exception_data("CommitTableResponse", []), id="half an answer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_answer_that_is_lost_decides_nothing(
    stream: IcebergStream, monkeypatch: pytest.MonkeyPatch, error: Exception, committed: bool
) -> None:
    """The table shows whether the commit succeeded."""
    commit, failures = SqlCatalog.commit_table, [error]

    def lose(catalog: SqlCatalog, *arguments: Any) -> Any:
        answer = commit(catalog, *arguments) if committed or not failures else None
        if failures:
            raise failures.pop()
        return answer

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    stream.run(2, 10, 12)
    assert not failures
    assert stream.contents() == {"a": [*range(5, 12)]}
    assert len(stream.load().snapshots()) == 3


@pytest.mark.parametrize("at", ["load_table", "commit_table"])
def test_a_commit_that_is_made_late_is_not_another_writers(
    stream: IcebergStream, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A proxy gives up first. The batch is decided again after the commit, or before it."""
    commit, method = SqlCatalog.commit_table, getattr(SqlCatalog, at)
    late: list[tuple[Any, ...]] = []
    # The first load is the one that looks for the commit.
    waits = iter([True, False] if at == "load_table" else [False])

    def delay(*arguments: Any) -> Any:
        if len(arguments) > 2 and not late:
            late.append(arguments)
            raise CommitStateUnknownException("504")
        if late and not next(waits, True):
            commit(*late[0])
        return commit(*arguments) if len(arguments) > 2 else method(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", delay)
    monkeypatch.setattr(SqlCatalog, at, delay)
    stream.run(2, 10, 12)
    assert stream.contents() == {"a": [*range(5, 12)]}
    assert len(stream.load().snapshots()) == 3


def test_a_catalog_that_forbids_the_commit_is_asked_once(
    stream: IcebergStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt would fail the same way."""
    asked: list[object] = []

    def refuse(error: Exception, *arguments: Any) -> None:
        asked.append(arguments)
        raise error

    monkeypatch.setattr(SqlCatalog, "commit_table", staticmethod(partial(refuse, ForbiddenError("no"))))
    with pytest.raises(TableRefusedError, match="ForbiddenError: no"):
        stream.run(2, 10, 12)
    assert len(asked) == 1
    moved = CommitFailedException("moved")
    monkeypatch.setattr(SqlCatalog, "commit_table", staticmethod(partial(refuse, moved)))
    with pytest.raises(TableRefusedError, match=r"in 20 attempts, .* CommitFailedException: moved"):
        stream.run(2, 10, 12)
    assert len(asked) == 21


# Changes by other writers


def test_a_clock_that_goes_back_leaves_a_table_that_others_can_read(
    stream: IcebergStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg for Java refuses a table whose snapshots go back in time by more than a minute."""
    behind = SimpleNamespace(time=lambda: time.time() - 3600)
    monkeypatch.setattr("pyiceberg.table.snapshots.time", behind)
    stream.run(2, 10, 20)
    stream.run(3, 20, 21)
    metadata = stream.load().metadata
    snapshots = [logged.timestamp_ms for logged in metadata.snapshot_log]
    assert snapshots == sorted(snapshots)
    versions = [*(logged.timestamp_ms for logged in metadata.metadata_log), metadata.last_updated_ms]
    assert versions == sorted(versions)
    assert metadata.last_updated_ms == snapshots[-1]
    assert stream.contents() == {"a": [*range(5, 21)]}


def test_a_rollback_takes_the_position_back(stream: IcebergStream) -> None:
    """The property keeps the undone entry, so a query that continues from it is refused."""
    stream.run(2, 10, 20)
    stream.roll_back(1)
    entry = stream.entry()
    assert entry is not None
    assert entry.read_through == {"a": 10}
    with pytest.raises(GapError):
        stream.other(seen=None).run(3, 20, 30)
    successor = stream.other(query="next", seen=None)
    successor.run(0, 10, 10)
    successor.run(1, 10, 15)
    assert stream.contents() == {"a": [*range(5, 15)]}
    steps = table_commits(table_history(stream.load()), "orders")
    assert [step.read_through["a"] for step in steps][-2:] == [10, 15]


def test_a_rollback_between_decision_and_commit_is_a_conflict(stream: IcebergStream) -> None:
    """The batch was decided on rows that are gone, so it is not committed on top of the rest."""
    stream.run(2, 10, 20)
    with calling("sink.before_write", lambda: stream.roll_back(1)), pytest.raises(FencedError):
        stream.run(3, 20, 30)
    assert stream.contents() == {"a": [*range(5, 10)]}


def test_a_rollback_to_before_the_first_entry_says_where_rows_began(stream: IcebergStream) -> None:
    fresh = stream.other(app_id="late", query="late", seen=None)
    fresh.run(0, 3, 3, journal="b")
    fresh.run(1, 3, 4, journal="b")
    stream.roll_back(2)
    with pytest.raises(GapError, match=r'where the rows began: .*"b":3'):
        fresh.other(seen=None).run(2, 4, 5, journal="b")


def test_a_rollback_that_is_taken_back_changes_nothing(stream: IcebergStream) -> None:
    newest = stream.load().current_snapshot()
    assert newest is not None
    stream.roll_back(1)
    stream.load().manage_snapshots().set_current_snapshot(snapshot_id=newest.snapshot_id).commit()
    stream.run(2, 10, 12)
    assert stream.contents() == {"a": [*range(5, 12)]}


def test_the_entry_outlives_its_snapshot(stream: IcebergStream) -> None:
    """Only other writers' snapshots are left and their parents are gone, but earlier metadata has them."""
    for number in range(3):
        stream.append_foreign(number)
    stream.expire()
    table = stream.load()
    assert len(table.snapshots()) == 1
    (foreign, jump, entry) = table_history(table)
    assert [row.version for row in (foreign, jump, entry)] == [5, 4, 2]
    stream.run(2, 10, 12)
    assert stream.contents()["a"] == [*range(5, 12)]


def test_an_undone_entry_does_not_come_back_by_an_expiry(stream: IcebergStream) -> None:
    """After a rollback and a commit of another writer, no remaining snapshot shows either event."""
    stream.run(2, 10, 20)
    stream.roll_back(1)
    stream.append_foreign(0)
    stream.append_foreign(1)
    stream.expire()
    assert stream.entry() is None
    with pytest.raises(SinkError, match="ledger"):
        stream.other(seen=None).run(3, 20, 30)


def test_an_entry_that_nothing_contradicts_is_trusted(stream: IcebergStream) -> None:
    """The snapshot has expired, and so have the metadata files that could show later events."""
    for number in range(2):
        stream.append_foreign(number)
    stream.expire()
    for log_entry in stream.load().metadata.metadata_log:
        Path(log_entry.metadata_file.removeprefix("file://")).unlink()
    stream.run(2, 10, 12)
    assert stream.contents()["a"] == [*range(5, 12)]


def test_rewritten_files_keep_the_ledger(stream: IcebergStream) -> None:
    table = stream.load()
    table.overwrite(table.scan().to_arrow())
    stream.run(2, 10, 12)
    assert stream.contents() == {"a": [*range(5, 12)]}


def test_a_table_that_is_made_again_takes_no_files_of_the_old_one(stream: IcebergStream) -> None:
    """The files were written for columns with other ids."""
    written = stream.files(rows("a", 10, 12))
    stream.catalog().drop_table(NAME.identifier)
    fresh = stream.other(seen=None)
    fresh.run(0, 10, 10)
    with pytest.raises(TableRefusedError, match="created again, its columns changed"):
        fresh.run(1, 10, 12, write=lambda: written)
    stream.catalog().drop_table(NAME.identifier)
    with pytest.raises(GapError, match="there is no such table"):
        stream.run(2, 10, 12)


def test_a_dropped_table_is_not_made_again(stream: IcebergStream, tmp_path: Path) -> None:
    """An empty table would be in the way of the old one."""
    commits = tmp_path / "checkpoint/commits"
    commits.mkdir(parents=True)
    stream.catalog().drop_table(NAME.identifier)
    stream.table.check_checkpoint(str(commits.parent))
    (commits / "1").touch()
    sink = IcebergSink("orders", table=NAME.identifier, catalog=NAME.catalog, properties=stream.properties)
    with pytest.raises(TableRefusedError, match=r"no such table, but the query .* has written batches"):
        sink.for_files(cast("SparkSession", None), ROWS, None, str(commits.parent))
    assert stream.table.load() is None


def test_a_damaged_property_is_not_taken_for_no_ledger(stream: IcebergStream) -> None:
    """Otherwise an older entry would be taken for the newest."""
    with stream.load().transaction() as transaction:
        transaction.set_properties({PROPERTY_PREFIX + "orders": '{"app_id":"orders"}'})
    with pytest.raises(TableRefusedError, match="not a ledger entry"):
        stream.run(2, 10, 12)
    with stream.load().transaction() as transaction:
        text = '{"app_id":"orders","format_version":9,"snapshot_id":1,"sequence_number":1}'
        transaction.set_properties({PROPERTY_PREFIX + "orders": text})
    snapshot = stream.load().current_snapshot()
    assert snapshot is not None
    with stream.load().transaction() as transaction:
        named = text.replace('"snapshot_id":1', f'"snapshot_id":{snapshot.snapshot_id}')
        transaction.set_properties({PROPERTY_PREFIX + "orders": named})
    with pytest.raises(LedgerFormatError, match="format_version 9"):
        stream.run(2, 10, 12)


def test_a_property_that_was_copied_under_another_app_id_is_refused(stream: IcebergStream) -> None:
    """It would hide the entry of its snapshot, and another app id would begin a second ledger."""
    table = stream.load()
    name, text = PROPERTY_PREFIX + "orders", table.properties[PROPERTY_PREFIX + "orders"]
    for properties in (
        {name: text.replace('"app_id":"orders"', '"app_id":"returns"')},
        {name: text, PROPERTY_PREFIX + "returns": text},
    ):
        with table.transaction() as transaction:
            transaction.set_properties(properties)
        with pytest.raises(TableRefusedError, match=r"has the entry of app id '(orders|returns)'; remove it"):
            stream.run(2, 10, 12)


# Columns, types and partitions

EVERYTHING = (
    sql.StructType()
    .add("ok", sql.BooleanType())
    .add("tiny", sql.ByteType())
    .add("small", sql.ShortType())
    .add("n", sql.IntegerType())
    .add("big", sql.LongType())
    .add("f", sql.FloatType())
    .add("x", sql.DoubleType())
    .add("cents", sql.DecimalType(9, 2))
    .add("wide", sql.DecimalType(38, 10))
    .add("day", sql.DateType())
    .add("at", sql.TimestampType())
    .add("local", sql.TimestampNTZType())
    .add("text", sql.StringType())
    .add("raw", sql.BinaryType())
    .add("tags", sql.MapType(sql.StringType(), sql.ArrayType(sql.LongType())))
    .add("item", sql.StructType().add("a b", sql.StringType()).add("at", sql.TimestampType()))
    .add("odd.name-", sql.StringType())
)

FULL: dict[str, Any] = {
    "ok": True,
    "tiny": -128,
    "small": 32767,
    "n": -(1 << 31),
    "big": (1 << 63) - 1,
    "f": 1.5,
    "x": float("inf"),
    "cents": Decimal("-1234567.89"),
    "wide": Decimal("1234567890123456789012345678.0123456789"),
    "day": dt.date(1582, 10, 4),
    "at": dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC),
    "local": dt.datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - it has no zone.
    "text": "é" * 40,
    "raw": b"\x00\xff",
    "tags": [("a", [1, None])],
    "item": {"a b": "x", "at": dt.datetime(2026, 3, 1, tzinfo=dt.UTC)},
    "odd.name-": "odd",
}


def write_rows(stream: IcebergStream, *values: dict[str, Any]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist([*values], schema=arrow_schema(stream.schema))
    stream.run(0, 0, 0)
    stream.run(1, 0, 1, write=lambda: stream.files(batch))
    return list(stream.load().scan().to_arrow().to_pylist())


def test_every_type_comes_back(tmp_path: Path) -> None:
    stream = IcebergStream(catalog_properties(tmp_path), schema=EVERYTHING)
    nulls = dict.fromkeys(FULL)
    read = write_rows(stream, FULL, nulls)
    assert read == [FULL, nulls]
    kinds = {field.name: str(field.field_type) for field in stream.load().schema().fields}
    assert (kinds["tiny"], kinds["at"], kinds["local"]) == ("int", "timestamptz", "timestamp")
    assert kinds["cents"] == "decimal(9, 2)"


@pytest.mark.parametrize(
    "kind",
    [sql.VariantType(), sql.DayTimeIntervalType(), sql.ArrayType(sql.VariantType()), sql.StructType()],
    ids=str,
)
def test_types_that_iceberg_lacks_are_refused(tmp_path: Path, kind: sql.DataType) -> None:
    stream = IcebergStream(catalog_properties(tmp_path), schema=sql.StructType().add("v", kind))
    with pytest.raises(TableRefusedError, match=r"column v.* a type that Iceberg lacks"):
        stream.run(0, 0, 0)
    assert not stream.catalog().table_exists(NAME.identifier)


@pytest.mark.parametrize("adds", [False, True], ids=["new table", "new columns"])
def test_nested_types_that_iceberg_widens_are_refused_at_once(tmp_path: Path, adds: bool) -> None:
    """Tasks do not convert nested columns, so no batch could write to such a column once it is made."""
    tiny = sql.StructType([*ROWS.fields, sql.StructField("v", sql.ArrayType(sql.ByteType()))])
    stream = IcebergStream(catalog_properties(tmp_path), schema=tiny, options={"adds_columns": adds})
    if adds:
        stream.other(schema=ROWS).run(0, 0, 0)
    with pytest.raises(TableRefusedError, match=r"column v is array<int> in the table and array<tinyint>"):
        stream.run(0, 0, 0)
    assert adds == stream.catalog().table_exists(NAME.identifier)


@pytest.mark.parametrize("adds", [False, True], ids=["new table", "new columns"])
def test_columns_that_are_one_to_iceberg_are_refused(tmp_path: Path, adds: bool) -> None:
    """Iceberg joins nested names with dots, so a nested field can collide with a top-level column."""
    both = sql.StructType().add("a.b", sql.LongType()).add("a", sql.StructType().add("b", sql.LongType()))
    stream = IcebergStream(catalog_properties(tmp_path), schema=both, options={"adds_columns": adds})
    if adds:
        stream.other(schema=sql.StructType(both.fields[1:])).run(0, 0, 0)
    with pytest.raises(TableRefusedError, match=r"shop.orders: pyiceberg failed: .*name.* a\.b"):
        stream.run(0, 0, 0)


def test_values_outside_pythons_range_are_written_without_bounds(tmp_path: Path) -> None:
    """Python has no dates after 9999."""
    stream = IcebergStream(catalog_properties(tmp_path), schema=sql.StructType().add("d", sql.DateType()))
    stream.run(0, 0, 0)
    days = pa.array([5_000_000], pa.int32()).view(pa.date32())
    stream.run(1, 0, 1, write=lambda: stream.files(pa.RecordBatch.from_arrays([days], ["d"])))
    (task,) = stream.load().scan().plan_files()
    assert task.file.record_count == 1
    assert task.file.lower_bounds == {}


def test_statistics_find_files(tmp_path: Path) -> None:
    stream = IcebergStream(catalog_properties(tmp_path))
    stream.run(0, 0, 5)
    stream.run(1, 5, 10)
    table = stream.load()
    assert [*table.scan(row_filter="n >= 10").plan_files()] == []
    assert len([*table.scan(row_filter="n = 9 and journal = 'a'").plan_files()]) == 1


@pytest.mark.parametrize(
    "texts",
    [["m", "z" * 5000, "a" * 5000], ["m", "z" + "a" * 5000, None, "a"], ["\ud7ff" * 17, "m"]],
    ids=["long", "mixed", "without a next character"],
)
def test_a_text_never_hides_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str | None]
) -> None:
    """Parquet has no bounds for long strings, so the bounds of other row groups do not cover the file."""
    for name in ("ROW_GROUP_BYTES", "GATHERED_BYTES"):
        monkeypatch.setattr(writer, name, 1)
    stream = IcebergStream(catalog_properties(tmp_path), schema=sql.StructType().add("t", sql.StringType()))
    stream.run(0, 0, 0)
    batches = [pa.RecordBatch.from_pydict({"t": pa.array([text], pa.string())}) for text in texts]
    stream.run(1, 0, 1, write=lambda: stream.files(*batches))
    (task,) = stream.load().scan().plan_files()
    assert pq.read_metadata(task.file.file_path.removeprefix("file:")).num_row_groups == len(texts)
    for text in filter(None, texts):
        (found,) = (
            stream.load().scan(row_filter=EqualTo(term=Reference("t"), value=literal(text))).to_arrow()["t"]
        )
        assert found.as_py() == text


PARTITIONED = (
    sql.StructType()
    .add("journal", sql.StringType())
    .add("n", sql.LongType())
    .add("at", sql.TimestampType())
    .add("day", sql.DateType())
    .add("price", sql.DecimalType(10, 2))
    .add("x", sql.DoubleType())
)


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        ("journal", ["a/é", None, "b"]),
        ("day(at)", [dt.date(1969, 12, 31), dt.date(2026, 1, 2), None]),
        ("hours(at)", [-1, 490_923, None]),
        ("month(day), n", [(672, -7), (None, 1), (-1, 12)]),
        ("year(at)", [-1, 56, None]),
        ("bucket(8, n)", {0, 1, 2, 3, 4, 5, 6, 7}),
        ("truncate(1, journal)", ["a", None, "b"]),
        ("truncate(10, n), price", [(-10, Decimal("1.50")), (0, None), (10, Decimal("-0.01"))]),
    ],
)
def test_each_file_has_one_value_of_each_partition(tmp_path: Path, partitions: str, expected: Any) -> None:
    """The expected values are those of pyiceberg's own writer, for negative and missing values too."""
    values = [
        ("a/é", -7, dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC), dt.date(2026, 1, 3), Decimal("1.50")),
        (None, 1, dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), None, None),
        ("b", 12, None, dt.date(1969, 12, 3), Decimal("-0.01")),
    ]
    stream = IcebergStream(
        catalog_properties(tmp_path),
        schema=PARTITIONED,
        options={
            "partition_by": parse_iceberg_format_options(
                {"table": "a.b", "catalog": "c", "appId": "o", "partitionBy": partitions}
            ).partition_by
        },
    )
    names = ["journal", "n", "at", "day", "price"]
    read = write_rows(stream, *(dict(zip(names, value, strict=True)) for value in values))
    assert sorted(row["n"] for row in read) == [-7, 1, 12]
    files = [task.file for task in stream.load().scan().plan_files()]
    records = [tuple(file.partition[at] for at in range(len(file.partition))) for file in files]
    if isinstance(expected, set):
        assert {bucket for (bucket,) in records} <= expected
        bucket = BucketTransform(8).transform(ice.LongType())
        made = [
            str(value)
            for (value,), file in zip(records, files, strict=True)
            for _ in range(file.record_count)
        ]
        assert sorted(made) == sorted(str(bucket(n)) for _, n, *_ in values)
    else:
        epoch = dt.date(1970, 1, 1)
        plain = [value if isinstance(value, tuple) else (value,) for value in expected]
        days = [tuple((v - epoch).days if isinstance(v, dt.date) else v for v in value) for value in plain]
        assert sorted(records, key=repr) == sorted(days, key=repr)
    found = stream.load().scan(row_filter="n = 12").to_arrow().to_pylist()
    assert [row["n"] for row in found] == [12]


@pytest.mark.parametrize(
    ("partition_by", "expected"),
    [
        ((), set()),
        (("journal",), {"\ufffdA", "a", None}),
        (("truncate(1, journal)",), {"\ufffd", "a", None}),
    ],
    ids=["none", "identity", "truncate"],
)
def test_texts_that_are_not_utf8_are_written(
    tmp_path: Path, partition_by: tuple[str, ...], expected: set[str | None]
) -> None:
    """Spark makes such strings by a cast of bytes. The partition value is the string as Java shows it."""
    stream = IcebergStream(
        catalog_properties(tmp_path),
        schema=sql.StructType().add("journal", sql.StringType()).add("n", sql.LongType()),
        options={"partition_by": partition_by},
    )
    raw = pa.array([b"\xffA", b"a", None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    batch = pa.RecordBatch.from_arrays([text, pa.array([1, 2, 3])], names=["journal", "n"])
    stream.run(0, 0, 0)
    stream.run(1, 0, 1, write=lambda: stream.files(batch))
    files = [task.file for task in stream.load().scan().plan_files()]
    assert {file.partition[0] for file in files if len(file.partition)} == expected
    assert sorted(stream.load().scan(selected_fields=("n",)).to_arrow()["n"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("kind", [ice.DateType(), ice.UUIDType()], ids=str)
def test_a_partition_that_the_rows_lack_is_null(tmp_path: Path, kind: ice.PrimitiveType) -> None:
    """The column's type may be one that Spark rows do not have."""
    stream = IcebergStream(catalog_properties(tmp_path))
    columns = [("journal", ice.StringType()), ("n", ice.LongType()), ("more", kind)]
    schema = Schema(*(ice.NestedField(at, *column) for at, column in enumerate(columns, 1)))
    spec = PartitionSpec(
        PartitionField(3, 1000, BucketTransform(4), "more_bucket"),
        PartitionField(1, 1001, IdentityTransform(), "journal"),
    )
    stream.catalog().create_table(NAME.identifier, schema, partition_spec=spec)
    stream.run(0, 0, 0)
    stream.run(1, 0, 3)
    assert stream.contents() == {"a": [0, 1, 2]}
    assert stream.load().scan().to_arrow()["more"].null_count == 3


FAR, PAST = 253_402_300_800_000_000, -62_135_596_800_000_001
"""The first instant of year 10000 and the last one before year 1, in microseconds since 1970."""


@pytest.mark.parametrize(
    ("partition", "values"), [("year(at)", [8030, -1970]), ("month(at)", [96_360, -23_629])]
)
def test_years_outside_pythons_range_are_partitions(
    tmp_path: Path, partition: str, values: list[int]
) -> None:
    """Such times occur if a field has other units than expected."""
    stream = IcebergStream(
        catalog_properties(tmp_path),
        schema=sql.StructType().add("at", sql.TimestampType()),
        options={"partition_by": [partition]},
    )
    times = pa.array([FAR, PAST, None], pa.int64()).view(pa.timestamp("us", "UTC"))
    stream.run(0, 0, 0)
    stream.run(1, 0, 3, write=lambda: stream.files(pa.RecordBatch.from_arrays([times], ["at"])))
    files = [task.file for task in stream.load().scan().plan_files()]
    assert sorted(str(file.partition[0]) for file in files) == sorted(map(str, [*values, None]))


@pytest.mark.parametrize(
    ("kind", "partition", "values", "named"),
    [
        (sql.TimestampType(), "day(v)", pa.array([FAR]), "day of v"),
        (sql.TimestampType(), "v", pa.array([PAST]), "identity of v"),
        (sql.TimestampType(), "hour(v)", pa.array([2**63 - 1]), "hour of v"),
        (sql.IntegerType(), "truncate(10, v)", pa.array([-(2**31)], pa.int32()), r"truncate\[10\] of v"),
        (sql.LongType(), "truncate(10, v)", pa.array([-(2**63)]), r"truncate\[10\] of v"),
        (
            sql.DecimalType(4, 2),
            "truncate(100, v)",
            pa.array([Decimal("-99.99")], pa.decimal128(4, 2)),
            r"truncate\[100\] of v",
        ),
    ],
    ids=["day", "identity", "hour", "int", "long", "decimal"],
)
def test_a_value_that_cannot_be_a_partition_is_named(
    tmp_path: Path, kind: sql.DataType, partition: str, values: pa.Array, named: str
) -> None:
    """Days after 9999 cannot be committed by pyiceberg, and a truncation cannot go below a type's minimum."""
    schema = sql.StructType().add("v", kind)
    options = {"partition_by": [partition]}
    stream = IcebergStream(catalog_properties(tmp_path), schema=schema, options=options)
    rows_ = pa.RecordBatch.from_arrays([values.view(arrow_schema(schema).field("v").type)], ["v"])
    stream.run(0, 0, 0)
    with pytest.raises(
        TableRefusedError, match=rf"shop.orders: it is partitioned by {named}, .* in the query"
    ):
        stream.files(rows_)


def test_partitions_of_another_table_are_refused(stream: IcebergStream) -> None:
    """Partitions never change. A query that names none uses the existing ones."""
    for asked, message in (
        (("journal",), r"'partition_by': got journal, but the table has no partitions"),
        (("day(n)",), r"'partition_by': got day\(n\)"),
        (("bucket(0, n)",), r"'partition_by': got bucket\(0, n\); expected a column, day"),
        (("missing",), r"'partition_by': got missing; expected columns of the rows: journal, n"),
        (("n", "n"), "got n twice"),
    ):
        other = stream.other(options={"partition_by": asked})
        with pytest.raises(OptionError, match=message):
            other.table.prepare(ROWS)
    schema = Schema(ice.NestedField(1, "X", ice.DoubleType()), ice.NestedField(2, "at", ice.TimestampType()))
    with pytest.raises(OptionError, match="x is double"):
        partition_spec("partition_by", ("x",), schema)
    spec = partition_spec("partition_by", ("hours(AT)", "bucket(4,at)"), schema)
    assert partition_texts(spec, schema) == ["hour(at)", "bucket(4, at)"]
    assert [field.name for field in spec.fields] == ["at_hour", "at_bucket"]


def test_columns_that_the_table_lacks_are_refused_or_added(stream: IcebergStream) -> None:
    wider = sql.StructType([*ROWS.fields]).add(
        "extra", sql.ArrayType(sql.StructType().add("q", sql.StringType()))
    )
    batch = pa.RecordBatch.from_pylist(
        [{"journal": "a", "n": 10, "extra": [{"q": "z"}]}], schema=arrow_schema(wider)
    )
    refused = stream.other(schema=wider, seen=None)
    with pytest.raises(SchemaMismatchError, match=r"extra.*addNewColumns"):
        refused.files(batch)
    adding = stream.other(schema=wider, seen=None, options={"adds_columns": True})
    adding.run(2, 10, 11, write=lambda: adding.files(batch))
    adding.run(3, 11, 12, write=lambda: adding.files(batch))
    table = stream.load()
    assert len(table.snapshots()) == 4
    assert [field.name for field in table.schema().fields] == ["journal", "n", "extra"]
    extras = [row["extra"] for row in table.scan().to_arrow().to_pylist()]
    assert sorted(extras, key=repr) == sorted([None] * 5 + [[{"q": "z"}]] * 2, key=repr)


def test_columns_that_change_while_a_batch_is_written_are_found(stream: IcebergStream) -> None:
    """Another program adds a column after the files were written and before they are committed."""
    written = stream.files(rows("a", 10, 12))
    with stream.load().update_schema() as update:
        update.add_column("more", ice.StringType())
    with pytest.raises(TableRefusedError, match="its columns changed"):
        stream.run(2, 10, 12, write=lambda: written)
    stream.run(2, 10, 12)


def test_files_stay_where_tasks_wrote_them(stream: IcebergStream, tmp_path: Path) -> None:
    """If the location of data files changed, a commit would name files that do not exist there."""
    files = stream.files(rows("a", 10, 12))
    with stream.load().transaction() as transaction:
        transaction.set_properties({"write.data.path": f"file://{tmp_path}/elsewhere"})
    with pytest.raises(TableRefusedError, match=r"its files got a new location, .* Start the query again"):
        stream.run(2, 10, 12, write=lambda: files)
    stream.other(seen=None).run(2, 10, 12)
    assert stream.contents() == {"a": [*range(5, 12)]}
    assert [*tmp_path.glob("elsewhere/*.parquet")]


def test_columns_that_change_after_the_decision_are_a_conflict(stream: IcebergStream) -> None:
    """A schema change makes no snapshot, so the commit has to require the schema explicitly."""
    written = stream.files(rows("a", 10, 12))
    state = stream.table.read_ledger(stream.app_id)
    with stream.load().update_schema() as update:
        update.add_column("more", ice.StringType())
    conflict = stream.table.commit_files(written.files, entry_without_rows(state, "attempt"))
    assert isinstance(conflict, CommitFailedException)
    assert stream.contents() == {"a": [*range(5, 10)]}


def test_rows_are_written_in_the_columns_of_the_table(tmp_path: Path) -> None:
    properties = catalog_properties(tmp_path)
    schema = Schema(
        ice.NestedField(1, "N", ice.LongType(), required=True),
        ice.NestedField(2, "id", ice.UUIDType()),
        ice.NestedField(3, "journal", ice.StringType()),
        ice.NestedField(4, "more", ice.StringType()),
    )
    open_catalog(NAME.catalog, properties).create_table(NAME.identifier, schema)
    stream = IcebergStream(
        properties, schema=sql.StructType().add("journal", sql.StringType()).add("n", sql.IntegerType())
    )
    assert write_rows(stream, {"journal": "a", "n": 7}) == [
        {"N": 7, "id": None, "journal": "a", "more": None}
    ]
    null = pa.RecordBatch.from_pylist([{"journal": "a"}], schema=arrow_schema(stream.schema))
    with pytest.raises(TableRefusedError, match="column N is NOT NULL, but 1 records of rows have no value"):
        stream.files(null)
    with pytest.raises(SchemaMismatchError, match=r"N.*is NOT NULL in the table, but the batch does not"):
        stream.other(schema=sql.StructType().add("journal", sql.StringType())).table.prepare(
            sql.StructType().add("journal", sql.StringType())
        )
    with pytest.raises(TableRefusedError, match="column id is uuid"):
        stream.table.prepare(sql.StructType([*stream.schema.fields]).add("id", sql.StringType()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"properties": {"format-version": "1"}}, "format version 1"),
        ({"properties": {"write.format.default": "orc"}}, "its files are orc"),
        ({"properties": {"encryption.key-id": "k"}}, "it is encrypted"),
        ({"properties": {"write.wap.enabled": "true"}}, "staged until they are audited"),
        ({"sort_order": SortOrder(SortField(2, transform=IdentityTransform()))}, "a sort order"),
        (
            {
                "schema": Schema(
                    ice.NestedField(1, "journal", ice.StringType()),
                    ice.NestedField(2, "n", ice.LongType()),
                    ice.NestedField(
                        3, "s", ice.StructType(ice.NestedField(4, "x", ice.LongType(), required=True))
                    ),
                )
            },
            "a field within column s is NOT NULL",
        ),
        (
            {
                "schema": Schema(
                    ice.NestedField(1, "journal", ice.StringType()),
                    ice.NestedField(2, "n", ice.LongType()),
                    ice.NestedField(3, "s", ice.StructType(ice.NestedField(4, "x", ice.LongType()))),
                ),
                "partition_spec": PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "x")),
            },
            "partitioned by x, which is a field within a column",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_tables_that_ask_for_more_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    """A writer that ignored these settings would produce another table than its owner asked for."""
    properties = catalog_properties(tmp_path)
    schema = Schema(ice.NestedField(1, "journal", ice.StringType()), ice.NestedField(2, "n", ice.LongType()))
    open_catalog(NAME.catalog, properties).create_table(NAME.identifier, **{"schema": schema, **settings})
    with pytest.raises(TableRefusedError, match=message):
        IcebergStream(properties).run(0, 0, 0)


def test_a_table_of_format_version_3_is_refused(stream: IcebergStream) -> None:
    """Writers of version 3 have to number rows. pyiceberg cannot make such a table, so metadata is edited."""
    metadata_file = Path(stream.load().metadata_location.removeprefix("file://"))
    metadata = json.loads(metadata_file.read_text())
    numbered = [{**snapshot, "first-row-id": 0, "added-rows": 5} for snapshot in metadata["snapshots"]]
    metadata |= {"format-version": 3, "next-row-id": 5, "snapshots": numbered}
    upgraded = metadata_file.with_name("upgraded.metadata.json")
    upgraded.write_text(json.dumps(metadata))
    catalog = stream.catalog()
    catalog.drop_table(NAME.identifier)
    catalog.register_table(NAME.identifier, f"file://{upgraded}")
    with pytest.raises(TableRefusedError, match=r"format version 3, .* without row lineage"):
        stream.run(2, 10, 20)
    assert stream.load().metadata_location == f"file://{upgraded}"


def test_a_catalog_or_a_namespace_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The errors of pyiceberg are extended by the table and a remedy, without passwords."""
    with pytest.raises(TableRefusedError, match=r"catalog prod: .*nonsense.* PYICEBERG_CATALOG__PROD__…"):
        open_catalog("prod", {"type": "nonsense"})
    with pytest.raises(TableRefusedError, match=r"uri: odd://db/lake\. Check the catalog's name"):
        open_catalog("prod", {"uri": "odd://user:password@db/lake"})
    with pytest.raises(TableRefusedError, match=r"ConnectionError: .* Check the addresses"):
        open_catalog("prod", {"type": "rest", "uri": "http://127.0.0.1:1"})
    properties = catalog_properties(tmp_path)
    open_catalog(NAME.catalog, properties).drop_namespace("shop")
    with pytest.raises(TableRefusedError, match=r"iceberg:prod/shop\.orders.*Create the namespace"):
        IcebergStream(properties).run(0, 0, 0)


def test_names_of_tables() -> None:
    assert TableName.parse("iceberg:prod/shop.orders") == NAME
    assert str(NAME) == "iceberg:prod/shop.orders"
    assert TableName.parse("/lake/orders") is None
    for text in ("iceberg:shop.orders", "iceberg:prod/orders", "iceberg:/a.b"):
        with pytest.raises(InputError, match=r"expected iceberg:catalog/namespace\.table"):
            TableName.parse(text)
