"""The format ``gazette_delta``, called as Spark calls it: each row is in the table once.

There is no Spark in these tests. :class:`Stream` writes the files of a query checkpoint and makes the calls
of Spark's processes, with everything pickled in between.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.transaction import CommitProperties, Transaction
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from gazette_spark import _file_format
from gazette_spark._delta.delta_table import APP_ID_PREFIX
from gazette_spark._delta_format import DeltaFormat
from gazette_spark._file_format import WrittenFiles
from gazette_spark._ledger.delta_reader import DeltaLog
from gazette_spark._ledger.entry import LedgerEntry
from gazette_spark._ledger.history import read_state
from gazette_spark._options.delta_format import REFUSED
from gazette_spark.errors import (
    DeadLetterError,
    FencedError,
    GapError,
    GazetteError,
    OffsetError,
    OptionError,
    OverlapError,
    QueryCheckpointError,
    SchemaMismatchError,
    SinkError,
    TableRefusedError,
)
from gazette_spark.failpoints import FAILPOINT_VARIABLE, FailpointError, calling
from gazette_spark.offsets import JournalOffsets

ROWS = StructType().add("journal", StringType()).add("n", LongType())

End = Mapping[str, int] | str
"""End of a batch: offsets by journal, or the text of another source."""


class Stream:
    """A query of one source into a table. Each byte of a journal is one row."""

    def __init__(self, root: Path, *, checkpoint: Path | None = None, **options: str) -> None:
        self.table = root / "table"
        self.checkpoint = checkpoint or root / "checkpoint"
        self.options = {
            "path": str(self.table),
            "appId": "orders",
            "checkpointLocation": str(self.checkpoint),
        }
        self.options |= options

    def plan(self, batch_id: int, *ends: End, query: str = "query", planned_ms: int | None = None) -> None:
        """Write what Spark writes into the checkpoint before it runs a batch."""
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": query}))
        about = json.dumps({"batchTimestampMs": 1000 + batch_id if planned_ms is None else planned_ms})
        position = "pinned" if batch_id == 0 else ""
        lines = [
            end if isinstance(end, str) else JournalOffsets(end, position).to_json()  # type: ignore[arg-type]  # Any text stands for the literal.
            for end in ends
        ]
        (self.checkpoint / "offsets" / str(batch_id)).write_text("\n".join(["v1", about, *lines]))

    def write(
        self, *batches: pa.RecordBatch, schema: StructType = ROWS, tasks: int = 1, attempts: int = 1
    ) -> list[WrittenFiles]:
        """Run the tasks of a batch, each several times; return the messages of the last attempts."""
        source = DeltaFormat(CaseInsensitiveDict(self.options))
        writer = pickle.dumps(source.streamWriter(schema, overwrite=False))
        messages = [
            [pickle.loads(writer).write(iter(batches[task::tasks])) for task in range(tasks)]
            for _ in range(attempts)
        ]
        return pickle.loads(pickle.dumps(messages[-1]))  # type: ignore[no-any-return]  # Unpickled.

    def commit(self, batch_id: int, messages: Sequence[Any], schema: StructType = ROWS) -> None:
        source = pickle.loads(pickle.dumps(DeltaFormat(CaseInsensitiveDict(self.options))))
        source.streamWriter(schema, overwrite=False).commit(messages, batch_id)

    def run(self, batch_id: int, begin: Mapping[str, int], end: Mapping[str, int], **more: Any) -> None:
        self.plan(batch_id, end, **more)
        self.repeat(batch_id, begin, end)

    def repeat(self, batch_id: int, begin: Mapping[str, int], end: Mapping[str, int]) -> None:
        self.commit(
            batch_id, self.write(*(rows(journal, begin.get(journal, at), at) for journal, at in end.items()))
        )

    def copy(self, name: str, *, query: str | None = None) -> Stream:
        copy = self.checkpoint.with_name(name)
        shutil.copytree(self.checkpoint, copy)
        if query:
            (copy / "metadata").write_text(json.dumps({"id": query}))
        return Stream(self.table.parent, checkpoint=copy)

    def entry(self) -> LedgerEntry | None:
        log = DeltaLog(str(self.table))
        return read_state(log.rows, "orders", table="t").entry

    def contents(self) -> dict[str, list[int]]:
        table = DeltaTable(str(self.table)).to_pyarrow_table().to_pylist()
        journals = sorted({row["journal"] for row in table})
        return {
            journal: sorted(row["n"] for row in table if row["journal"] == journal) for journal in journals
        }

    def version(self) -> int:
        return DeltaTable(str(self.table)).version()


def rows(journal: str, begin: int, end: int) -> pa.RecordBatch:
    """Return one row for each byte of a journal's range."""
    return pa.RecordBatch.from_pydict({"journal": [journal] * (end - begin), "n": [*range(begin, end)]})


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """A query that has written a batch: the table has ``[5, 10)`` of a journal."""
    made = Stream(tmp_path)
    made.run(0, {}, {"a": 5})
    made.run(1, {"a": 5}, {"a": 10})
    return made


def test_rows_and_entry_are_one_commit(stream: Stream) -> None:
    stream.plan(2, {"a": 20})
    stream.commit(2, stream.write(rows("a", 10, 14), rows("a", 14, 20), tasks=2))
    assert stream.contents() == {"a": [*range(5, 20)]}
    assert stream.version() == 3
    entry = stream.entry()
    assert entry is not None
    assert (entry.starts, entry.read_through, entry.batch_id) == ({"a": 5}, {"a": 20}, 2)
    log = (stream.table / f"_delta_log/{3:020}.json").read_text().splitlines()
    actions = [json.loads(line) for line in log]
    assert sorted(next(iter(action)) for action in actions) == ["add", "add", "commitInfo", "txn"]
    (transaction,) = [action["txn"] for action in actions if "txn" in action]
    assert (transaction["appId"], transaction["version"]) == (APP_ID_PREFIX + "orders", 2)


def test_a_table_is_created_once_by_queries_that_start_together(tmp_path: Path) -> None:
    """A second creation would replace the columns for which the first query writes its files."""
    for number in range(10):
        root, start = tmp_path / str(number), threading.Barrier(2)

        def create(app_id: str, root: Path = root, start: threading.Barrier = start) -> None:
            stream = Stream(root, checkpoint=root / app_id, appId=app_id)
            start.wait()
            stream.write()

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(create, ["orders", "clicks"]))
        assert Stream(root).version() == 0


def test_a_batch_that_runs_again_writes_nothing(stream: Stream) -> None:
    """Spark's record of the batch was lost, after the commit or before it."""
    stream.repeat(1, {"a": 5}, {"a": 10})
    assert stream.version() == 2
    assert stream.contents() == {"a": [*range(5, 10)]}
    first = Stream(stream.table.parent / "first")
    for _ in range(2):
        first.run(0, {}, {"a": 5})
    assert first.version() == 1


def test_files_of_lost_attempts_are_never_committed(stream: Stream) -> None:
    """Tasks that Spark ran several times leave files that no version refers to."""
    stream.plan(2, {"a": 12})
    stream.commit(2, stream.write(rows("a", 10, 12), attempts=3))
    assert stream.contents() == {"a": [*range(5, 12)]}
    assert len([*stream.table.glob("*.parquet")]) == 4


def test_offsets_are_not_committed_without_the_rows_of_a_task(stream: Stream) -> None:
    """Under a continuous trigger Spark 4.2 runs no writer in the tasks and passes no messages."""
    stream.plan(2, {"a": 12})
    with pytest.raises(OptionError, match="'trigger': got continuous"):
        stream.commit(2, [None, None])
    assert stream.version() == 2


def test_a_copied_checkpoint_doubles_nothing(stream: Stream) -> None:
    copy = stream.copy("copy")
    stream.run(2, {"a": 10}, {"a": 20})
    copy.run(2, {"a": 10}, {"a": 16})
    with pytest.raises(OverlapError, match="'a'"):
        copy.run(3, {"a": 16}, {"a": 30})
    assert stream.contents() == {"a": [*range(5, 20)]}


@pytest.mark.parametrize(
    ("start", "error"), [(0, OverlapError), (12, GapError)], ids=["behind the end", "ahead of it"]
)
def test_a_new_checkpoint_continues_the_table_or_is_refused(
    stream: Stream, start: int, error: type[SinkError]
) -> None:
    shutil.rmtree(stream.checkpoint)
    with pytest.raises(error):
        stream.run(0, {}, {"a": start}, query="another")
    stream.run(0, {}, {"a": 10}, query="another")
    stream.run(1, {"a": 10}, {"a": 12}, query="another")
    assert stream.contents() == {"a": [*range(5, 12)]}


def test_a_gap_is_accepted_to_the_byte(stream: Stream) -> None:
    shutil.rmtree(stream.checkpoint)
    stream.options["acceptGaps"] = '{"a": [[10, 12]]}'
    stream.run(0, {}, {"a": 12}, query="another")
    stream.run(1, {"a": 12}, {"a": 13}, query="another")
    entry = stream.entry()
    assert entry is not None
    assert entry.read_through == {"a": 13}
    assert stream.contents() == {"a": [5, 6, 7, 8, 9, 12]}
    stream.options["acceptGaps"] = '{"a": [12, 10]}'
    with pytest.raises(OptionError, match="'acceptGaps'"):
        stream.write(rows("a", 13, 14))


def die() -> None:
    raise FailpointError("here")


def test_a_process_that_dies_in_the_commit_loses_and_doubles_nothing(stream: Stream) -> None:
    """SIGKILL hits after the commit and before the answer. The batch runs again with new files."""
    stream.plan(2, {"a": 20})
    messages = stream.write(rows("a", 10, 20))
    script = (
        "import pickle, sys; stream, messages = pickle.load(sys.stdin.buffer); stream.commit(2, messages)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps((stream, messages)),
        env={**os.environ, FAILPOINT_VARIABLE: "sink.after_write:1:kill"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert stream.version() == 3
    stream.repeat(2, {"a": 10}, {"a": 20})
    stream.run(3, {"a": 20}, {"a": 21})
    assert stream.contents() == {"a": [*range(5, 21)]}
    assert stream.version() == 4


def test_of_two_writers_that_decided_on_one_entry_one_commits(stream: Stream) -> None:
    """Another query writes the batch between decision and commit, so the first one is fenced."""
    other = stream.copy("copy", query="other")
    stream.plan(2, {"a": 20})
    messages = stream.write(rows("a", 10, 20))

    def overtake() -> None:
        other.run(2, {"a": 10}, {"a": 15}, query="other")

    with calling("sink.before_write", overtake), pytest.raises(FencedError, match="query other"):
        stream.commit(2, messages)
    assert stream.contents() == {"a": [*range(5, 15)]}


def test_a_driver_that_was_replaced_adds_nothing(stream: Stream) -> None:
    """Its successor runs the same batch between decision and commit."""
    stream.plan(2, {"a": 20})
    messages = stream.write(rows("a", 10, 20))
    with (
        calling("sink.before_write", partial(stream.repeat, 2, {"a": 10}, {"a": 20})),
        pytest.raises(FencedError),
    ):
        stream.commit(2, messages)
    assert stream.contents() == {"a": [*range(5, 20)]}
    assert stream.version() == 3


def test_commits_of_others_are_no_conflict(stream: Stream) -> None:
    """Another program appends and compacts between decision and commit."""
    table = str(stream.table)

    def interfere() -> None:
        write_deltalake(table, pa.Table.from_batches([rows("other", 0, 2)]), mode="append")
        DeltaTable(table).optimize.compact()

    stream.plan(2, {"a": 12})
    with calling("sink.before_write", interfere):
        stream.commit(2, stream.write(rows("a", 10, 12)))
    assert stream.contents() == {"a": [*range(5, 12)], "other": [0, 1]}


def test_journals_are_decided_one_by_one(stream: Stream) -> None:
    """Two queries of separate journals may alternate under one app id, like two flows into one sink."""
    other = Stream(stream.table.parent, checkpoint=stream.checkpoint.with_name("other"))
    other.run(0, {}, {"b": 0}, query="other")
    stream.run(2, {"a": 10}, {"a": 11})
    other.run(1, {"b": 0}, {"b": 2}, query="other")
    stream.run(3, {"a": 11}, {"a": 12})
    other.repeat(1, {"b": 0}, {"b": 2})
    assert stream.contents() == {"a": [*range(5, 12)], "b": [0, 1]}


def test_a_query_of_other_sources_is_bound_to_its_checkpoint(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    for batch_id, n in enumerate([2, 5]):
        stream.plan(batch_id, str(n))
        stream.commit(batch_id, stream.write(rows("rate", n - 2, n)))
    stream.commit(1, stream.write(rows("rate", 3, 5)))
    assert stream.contents() == {"rate": [0, 1, 3, 4]}
    entry = stream.entry()
    assert entry is not None
    assert entry.end == ("5",)
    shutil.rmtree(stream.checkpoint)
    stream.plan(0, "2", query="another")
    with pytest.raises(OverlapError, match="on_new_checkpoint='restart'"):
        stream.commit(0, stream.write(rows("rate", 10, 11)))
    stream.options["onNewCheckpoint"] = "restart"
    stream.commit(0, stream.write(rows("rate", 10, 11)))
    assert stream.contents() == {"rate": [0, 1, 3, 4, 10]}


def test_a_union_of_sources_has_a_position_for_each(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.plan(0, {"a": 0}, "-")
    stream.commit(0, stream.write())
    stream.plan(1, {"a": 2}, "7")
    stream.commit(1, stream.write(rows("a", 0, 2)))
    entry = stream.entry()
    assert entry is not None
    assert entry.end == (JournalOffsets({"a": 2}), "7")


def test_a_checkpoint_that_lacks_the_batch_is_an_error(stream: Stream) -> None:
    """Nothing may be committed without offsets."""
    with pytest.raises(QueryCheckpointError, match=r"offsets/2: the file is missing"):
        stream.commit(2, stream.write(rows("a", 10, 11)))
    (stream.checkpoint / "offsets" / "2").write_bytes(b"\xff")
    with pytest.raises(QueryCheckpointError, match=r"offsets/2: the file cannot be read"):
        stream.commit(2, stream.write(rows("a", 10, 11)))
    assert stream.version() == 2


def test_offsets_of_another_query_never_go_with_the_rows(stream: Stream) -> None:
    """Spark's checkpoint is on another file system, and this machine has one with the same name."""
    stream.plan(2, {"a": 12})
    (message,) = stream.write(rows("a", 10, 12))
    with pytest.raises(QueryCheckpointError, match="it belongs to query query, but Spark runs other"):
        stream.commit(2, [replace(message, query_id="other")])
    assert stream.version() == 2
    stream.commit(2, [replace(message, query_id="query")])
    assert stream.contents() == {"a": [*range(5, 12)]}


def test_state_binds_a_query_to_its_checkpoint(tmp_path: Path) -> None:
    """A copy that planned the batch again is refused, although its offsets would continue the table."""
    stream = Stream(tmp_path)
    (stream.checkpoint / "state" / "0").mkdir(parents=True)
    stream.run(0, {}, {"a": 0})
    stream.run(1, {"a": 0}, {"a": 5})
    copy = stream.copy("copy")
    stream.run(2, {"a": 5}, {"a": 6})
    copy.plan(2, {"a": 6}, planned_ms=77)
    with pytest.raises(OverlapError, match="the query's state"):
        copy.commit(2, copy.write(rows("a", 5, 6)))
    entry = stream.entry()
    assert entry is not None
    assert entry.stateful


# The table


def test_a_new_table_has_the_columns_and_partitions_that_are_asked_for(tmp_path: Path) -> None:
    stream = Stream(tmp_path, partitionBy="JOURNAL")
    stream.run(0, {}, {"a": 0, "b": 0})
    stream.run(1, {"a": 0, "b": 0}, {"a": 2, "b": 1})
    assert DeltaTable(str(stream.table)).metadata().partition_columns == ["journal"]
    assert sorted(path.name for path in stream.table.glob("journal=*")) == ["journal=a", "journal=b"]
    assert stream.contents() == {"a": [0, 1], "b": [0]}
    for other in ("n", "journal,n"):
        stream.options["partitionBy"] = other
        with pytest.raises(OptionError, match=r"'partitionBy': got .*, but the table has journal"):
            stream.write()
    del stream.options["partitionBy"]
    stream.write()
    with pytest.raises(
        OptionError, match=r"'partitionBy': got day; expected columns of the rows: journal, n"
    ):
        Stream(tmp_path / "other", partitionBy="day").write()
    with pytest.raises(OptionError, match=r"'partitionBy': got .*; expected each column once"):
        Stream(tmp_path / "other", partitionBy="n, N").write()
    floats = StructType().add("x", DoubleType()).add("n", LongType())
    with pytest.raises(TableRefusedError, match="partitioned by x double, which this lane does not support"):
        Stream(tmp_path / "other", partitionBy="x").write(schema=floats)
    assert not (tmp_path / "other" / "table").exists()


def test_a_partition_that_the_rows_lack_is_null(tmp_path: Path) -> None:
    """One of the columns has a name that the code uses for an index."""
    stream = Stream(tmp_path)
    columns = pa.schema(
        [("journal", pa.string()), ("n", pa.int64()), ("day", pa.date32()), ("#", pa.string())]
    )
    DeltaTable.create(str(stream.table), columns, partition_by=["day", "#", "journal"])
    stream.run(0, {}, {"a": 0, "b": 0})
    stream.run(1, {"a": 0, "b": 0}, {"a": 2, "b": 1})
    read = DeltaTable(str(stream.table)).to_pyarrow_table().to_pylist()
    assert [{row["day"], row["#"]} for row in read] == [{None}] * 3
    assert stream.contents() == {"a": [0, 1], "b": [0]}


def test_an_empty_text_is_no_value_of_a_partition_that_is_not_null(tmp_path: Path) -> None:
    """Delta stores an empty string there as null, which a NOT NULL column must not have."""
    stream = Stream(tmp_path)
    columns = pa.schema([pa.field("journal", pa.string(), nullable=False), ("n", pa.int64())])
    DeltaTable.create(str(stream.table), columns, partition_by=["journal"])
    with pytest.raises(
        TableRefusedError, match=r"column journal is NOT NULL, but 2 rows have an empty string"
    ):
        stream.write(pa.RecordBatch.from_pydict({"journal": ["a", "", ""], "n": [1, 2, 3]}))
    assert not [*stream.table.rglob("*.parquet")]


def test_rows_need_a_column_that_files_have(tmp_path: Path) -> None:
    """Files lack partition columns, so rows with only such columns were lost, in new and existing tables."""
    with pytest.raises(TableRefusedError, match=r"by each column of the rows \(journal, n\)"):
        Stream(tmp_path, partitionBy="n,journal").write()
    assert not (tmp_path / "table").exists()
    columns = pa.schema([("n", pa.int64()), ("journal", pa.string()), ("more", pa.string())])
    DeltaTable.create(str(tmp_path / "table"), columns, partition_by=["journal", "n"])
    with pytest.raises(TableRefusedError, match=r"by each column of the rows \(journal, n\)"):
        Stream(tmp_path).write()


def test_rows_are_written_in_the_columns_of_the_table(tmp_path: Path) -> None:
    """Names differ in case, types are narrower, a column is missing. Times are in the session's zone."""
    written = pa.schema(
        [
            ("At", pa.timestamp("us", "America/New_York")),
            ("tags", pa.map_(pa.string(), pa.timestamp("us", "America/New_York"))),
            ("item", pa.struct([("at", pa.timestamp("us", "America/New_York")), ("n", pa.int64())])),
            ("n", pa.int32()),
        ]
    )
    stored = pa.schema(
        [
            ("n", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
            ("item", pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])),
            ("more", pa.string()),
        ]
    )
    stream = Stream(tmp_path)
    DeltaTable.create(str(stream.table), stored)
    item = StructType().add("at", TimestampType()).add("n", LongType())
    schema = StructType().add("At", TimestampType()).add("tags", MapType(StringType(), TimestampType()))
    schema = schema.add("item", item).add("n", IntegerType())
    moment = 1772323200000000
    row = {"At": moment, "tags": [("t", moment)], "item": {"at": moment, "n": 1}, "n": 7}
    batch = pa.RecordBatch.from_pylist([row], schema=written)
    stream.plan(0, {"a": 0})
    stream.commit(0, stream.write(schema=schema), schema)
    stream.plan(1, {"a": 1})
    stream.commit(1, stream.write(batch, schema=schema), schema)
    (stored_row,) = DeltaTable(str(stream.table)).to_pyarrow_table().to_pylist()
    at = pa.scalar(moment, pa.timestamp("us", "UTC")).as_py()
    assert stored_row == {"n": 7, "at": at, "tags": [("t", at)], "item": {"at": at, "n": 1}, "more": None}


@pytest.mark.parametrize(
    ("schema", "error", "text"),
    [
        (StructType().add("n", NullType()), SchemaMismatchError, "'n' has no type in the batch"),
        (StructType().add("a b", LongType()), SchemaMismatchError, "'a b' has ' ' in its name"),
        (StructType().add("v", VariantType()), TableRefusedError, "a column has the type variant"),
        (StructType().add("s", StructType()), TableRefusedError, "a column has the type struct<>"),
        (
            StructType().add("tags", MapType(StringType(), ArrayType(DayTimeIntervalType()))),
            TableRefusedError,
            "a column has the type interval day to second",
        ),
        (
            StructType().add("at", MapType(StringType(), ArrayType(TimestampNTZType()))),
            TableRefusedError,
            "a column has the type timestamp_ntz in a map",
        ),
        (StructType().add("s", StringType("UNICODE_CI")), TableRefusedError, "type string collate UNICODE"),
    ],
    ids=["no type", "name", "variant", "no fields", "interval", "time in a map", "collation"],
)
def test_no_table_is_made_of_columns_that_delta_or_tasks_cannot_write(
    tmp_path: Path, schema: StructType, error: type[GazetteError], text: str
) -> None:
    stream = Stream(tmp_path)
    with pytest.raises(error, match=text):
        stream.write(schema=schema)
    assert not stream.table.exists()


def test_no_table_is_made_among_files_of_something_else(tmp_path: Path) -> None:
    """A table is still created where a process died in its first commit."""
    stream = Stream(tmp_path)
    stream.table.mkdir()
    (stream.table / "notes.txt").touch()
    with pytest.raises(TableRefusedError, match="has files but no Delta table"):
        stream.write()
    (stream.table / "_delta_log").mkdir()
    (stream.table / "_delta_log" / ".00000000000000000000.json.5f1c.tmp").touch()
    stream.run(0, {}, {"a": 0})
    assert stream.entry() is not None


def test_a_table_that_asks_for_more_is_refused(stream: Stream) -> None:
    DeltaTable(str(stream.table)).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 1 days"}
    )
    with pytest.raises(TableRefusedError, match=r"UNSET TBLPROPERTIES"):
        stream.write()


def recorded(stream: Stream, **changes: Any) -> None:
    """Commit an entry that differs from the newest one, as another writer would leave it."""
    newest = stream.entry()
    assert newest is not None
    entry = replace(
        newest, txn_version=newest.txn_version + 1, attempt="other", parent=newest.attempt, **changes
    )
    write_deltalake(
        str(stream.table),
        pa.Table.from_batches([rows("a", 0, 0)]),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": entry.to_json()},
            app_transactions=[Transaction(APP_ID_PREFIX + "orders", entry.txn_version)],
        ),
    )


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"mode": "upsert"}, TableRefusedError, "keeps one row for each key by upsert"),
        ({"dead_letters": "dead"}, DeadLetterError, r"DeltaSink\.start without dead_letters"),
    ],
)
def test_rows_of_another_kind_stay_with_the_sink(
    stream: Stream, changes: dict[str, Any], error: type[SinkError], text: str
) -> None:
    recorded(stream, **changes)
    with pytest.raises(error, match=text):
        stream.run(2, {"a": 10}, {"a": 11})
    assert stream.contents() == {"a": [*range(5, 10)]}


def recreate(stream: Stream) -> None:
    """Create the table again, with the entries of its old log."""
    again = stream.table.with_name("again")
    write_deltalake(str(again), DeltaTable(str(stream.table)).to_pyarrow_table())
    shutil.rmtree(stream.table)
    again.rename(stream.table)


@pytest.mark.parametrize(
    "change",
    [
        lambda stream: DeltaTable(str(stream.table)).alter.add_columns(
            [Field("more", PrimitiveType("string"))]
        ),
        recreate,
    ],
    ids=["columns", "recreated"],
)
def test_files_are_committed_to_the_table_that_they_were_written_for(
    stream: Stream, change: Callable[[Stream], None]
) -> None:
    stream.plan(2, {"a": 12})
    messages = stream.write(rows("a", 10, 12))
    change(stream)
    with pytest.raises(SinkError):
        stream.commit(2, messages)
    assert stream.contents() == {"a": [*range(5, 10)]}


def test_a_null_where_the_table_takes_none_ends_the_task(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    DeltaTable.create(
        str(stream.table), pa.schema([("journal", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    )
    with pytest.raises(
        TableRefusedError, match=r"column n is NOT NULL, but 1 records of partition 0 of the batch"
    ):
        stream.write(pa.RecordBatch.from_pydict({"journal": ["a"], "n": pa.array([None], pa.int64())}))
    assert not [*stream.table.glob("*.parquet")]


def test_a_dropped_table_is_not_made_again(stream: Stream) -> None:
    """An empty table would be in the way of the old directory."""
    (stream.checkpoint / "commits").mkdir()
    stream.run(2, {"a": 10}, {"a": 12})
    (stream.checkpoint / "commits/2").touch()
    stream.run(3, {"a": 12}, {"a": 13})
    shutil.rmtree(stream.table)
    with pytest.raises(TableRefusedError, match=r"no such table, but the query .* has written batches"):
        stream.run(4, {"a": 13}, {"a": 14})
    assert not stream.table.exists()


# Batches without a query


def write_range(
    root: Path,
    begin: Mapping[str, int],
    end: Mapping[str, int],
    *,
    batch: pa.RecordBatch | None = None,
    **options: str,
) -> None:
    """Write a range of offsets as ``df.write`` does, with a row for each byte or with other rows."""
    position = {"startingOffsets": json.dumps(begin), "endingOffsets": json.dumps(end)}
    given = {"path": str(root / "table"), "appId": "orders"} | position | options
    source = DeltaFormat(CaseInsensitiveDict(given))
    writer = pickle.dumps(source.writer(ROWS, overwrite=False))
    batches = [rows(journal, begin[journal], end[journal]) for journal in end] if batch is None else [batch]
    pickle.loads(writer).commit([pickle.loads(writer).write(iter(batches))])


@pytest.mark.parametrize("position", [{"shop/a": 5}, {}], ids=["no bytes", "no journals"])
def test_rows_of_no_bytes_are_refused(tmp_path: Path, position: Mapping[str, int]) -> None:
    """The ledger would have nothing to write, so the rows would be lost. An empty batch is accepted."""
    write_range(tmp_path, {"shop/a": 0}, {"shop/a": 5})
    with pytest.raises(OptionError, match=r"'endingOffsets': got startingOffsets, for 3 rows; expected"):
        write_range(tmp_path, position, position, batch=rows("shop/a", 5, 8))
    write_range(tmp_path, position, position)
    assert Stream(tmp_path).contents() == {"shop/a": [*range(5)]}


def test_a_batch_is_written_once_and_a_stream_goes_on(tmp_path: Path) -> None:
    for _ in range(2):
        write_range(tmp_path, {"shop/a": 3}, {"shop/a": 5})
    write_range(tmp_path, {"shop/a": 5, "shop/b": 0}, {"shop/a": 6, "shop/b": 2})
    with pytest.raises(GapError):
        write_range(tmp_path, {"shop/a": 7}, {"shop/a": 8})
    with pytest.raises(OverlapError):
        write_range(tmp_path, {"shop/a": 5}, {"shop/a": 8})
    with pytest.raises(OffsetError, match="name different journals"):
        write_range(tmp_path, {"shop/a": 6, "shop/b": 2}, {"shop/a": 8})
    stream = Stream(tmp_path)
    stream.run(0, {}, {"shop/a": 6, "shop/b": 2})
    stream.run(1, {"shop/a": 6, "shop/b": 2}, {"shop/a": 7, "shop/b": 3})
    assert stream.contents() == {"shop/a": [3, 4, 5, 6], "shop/b": [0, 1, 2]}


def test_a_batch_that_dies_may_be_repeated(tmp_path: Path) -> None:
    """The write dies at each of its four points. An earlier commit has pinned its journals."""
    for point in ("sink.before_write", "sink.after_write"):
        for nth in (1, 2):
            root = tmp_path / f"{point}{nth}"
            with calling(point, die, nth), pytest.raises(FailpointError):
                write_range(root, {"shop/a": 3}, {"shop/a": 5})
            write_range(root, {"shop/a": 3}, {"shop/a": 5})
            assert Stream(root).contents() == {"shop/a": [3, 4]}
            assert Stream(root).version() == 2


# Options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({name: "x"}, f"option '{name}': got \"x\"; expected ") for name in REFUSED),
        ({"upsert": "id"}, "expected to be unset; DeltaSink supports it, for rows that Spark writes"),
        ({"appid": ""}, "'appId'"),
        ({"appId": "x" * 513}, "'appId'.*1 to 512 printable"),
        ({"path": " "}, "'path': .*the table's directory or URL"),
        ({"path": "/lake/orders@v1"}, "'path': .*whose name does not end in @v"),
        ({"targetFileByte": "1"}, "'targetfilebyte': got an unknown option; expected 'targetFileBytes'"),
        ({"startingOffsets": "{}"}, "'startingOffsets': got a stream query; expected .* batch"),
        ({"acceptGaps": "x"}, "'acceptGaps': .*JSON such as"),
        ({"onNewCheckpoint": "go on"}, "'onNewCheckpoint': .*fail or restart"),
        ({"storage.allow_unsafe_rename": "true"}, "ALLOW_UNSAFE_RENAME"),
        ({"checkpointLocation": "table/below"}, "lies inside the table"),
    ],
)
def test_an_option_that_cannot_be_had_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = Stream(tmp_path)
    if "storage.allow_unsafe_rename" in options:
        options = options | {"path": "s3://lake/orders"}
    stream.options |= options
    with pytest.raises((OptionError, TableRefusedError), match=text):
        stream.write()
    assert [*tmp_path.iterdir()] == []


def test_what_is_required_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ranges = (
        {"path": str(tmp_path / "t")},
        {"startingOffsets": '{"shop/a":1}', "endingOffsets": '{"shop/a":1}'},
    )
    app = path | {"appId": "orders"}

    def source(options: Mapping[str, str]) -> DeltaFormat:
        return DeltaFormat(CaseInsensitiveDict(dict(options)))

    with pytest.raises(OptionError, match="'appId': got nothing"):
        source(path)
    with pytest.raises(OptionError, match="'path': got nothing"):
        source({"appId": "orders"})
    with pytest.raises(OptionError, match="'checkpointLocation': got nothing"):
        source(app).streamWriter(ROWS, overwrite=False)
    with pytest.raises(OptionError, match=r"'outputMode': got complete; expected append.*DeltaSink\(upsert"):
        source(app).streamWriter(ROWS, overwrite=True)
    with pytest.raises(OptionError, match=r"'startingOffsets': got nothing.*cannot be written exactly once"):
        source(app).writer(ROWS, overwrite=False)
    with pytest.raises(OptionError, match="'onNewCheckpoint': got a batch query"):
        source(app | ranges | {"onNewCheckpoint": "restart"}).writer(ROWS, overwrite=False)
    with pytest.raises(OptionError, match="'mode': got overwrite"):
        source(app | ranges).writer(ROWS, overwrite=True)
    with pytest.raises(OptionError, match="to read; expected 'delta'"):
        source(app).schema()
    monkeypatch.setattr(_file_format, "ARROW_STREAM_WRITES", False)
    with pytest.raises(
        OptionError, match=r"got Spark 4\.\d+\.\d+.*expected Spark 4\.1 or later, or DeltaSink"
    ):
        source(app).streamWriter(ROWS, overwrite=False)
    assert not (tmp_path / "t").exists()


def test_spark_adds_names_of_its_own(tmp_path: Path) -> None:
    assert Stream(tmp_path, queryName="orders").write() == [
        WrittenFiles([], Stream(tmp_path).write()[0].shape)
    ]
