"""Tasks write data files that Delta readers can read, and report only complete files."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from gazette_spark._data_files.target import FileTarget
from gazette_spark._data_files.writer import write_files, written_files
from gazette_spark.errors import OptionError, TableRefusedError

READ = StructType(
    [
        StructField("p", StringType()),
        StructField("day", DateType()),
        StructField("n", IntegerType()),
        StructField("value", BinaryType()),
    ]
)
WRITTEN = StructType([StructField("N" if f.name == "n" else f.name, f.dataType) for f in READ.fields])
WRITTEN.fields[2].dataType = LongType()
ARROW = pa.schema([("p", pa.string()), ("day", pa.date32()), ("n", pa.int32()), ("value", pa.binary())])
DAY = dt.date(2026, 3, 1)


def target(root: Path, **changes: Any) -> FileTarget:
    """Return a table whose column ``N`` has a wider type than the rows that are read."""
    shapes = json.dumps(READ.jsonValue()), json.dumps(WRITTEN.jsonValue())
    return FileTarget("t", str(root), *shapes, **changes)


def batch(rows: Sequence[tuple[str | None, dt.date | None, int | None, bytes | None]]) -> pa.RecordBatch:
    columns = [
        pa.array(list(each), kind) for each, kind in zip(zip(*rows, strict=True), ARROW.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


def told(given: FileTarget, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    files = write_files([("journal=a/journal begin=10 end=90", batches)], given)
    return [row for each in files for row in each.to_pylist()]


def test_files_are_read_back_by_deltalake(tmp_path: Path) -> None:
    odd = ["a b/c=%é\"'#?&", "", None, "x"]
    rows = [(name, DAY if n % 2 else None, n, b"%d" % n) for n in range(8) for name in [odd[n % 4]]]
    files = told(target(tmp_path, partition_by=("p", "day")), batch(rows[:5]), batch(rows[5:]))
    schema = pa.schema([("p", pa.string()), ("day", pa.date32()), ("N", pa.int64()), ("value", pa.binary())])
    table = DeltaTable.create(str(tmp_path), schema, partition_by=["p", "day"])
    actions = [
        AddAction(f["path"], f["size"], dict(f["partition_values"]), f["modification_ms"], True, f["stats"])
        for f in files
    ]
    table.create_write_transaction(list(actions), "append", table.schema(), partition_by=["p", "day"])
    table.update_incremental()
    found = table.to_pyarrow_table().to_pylist()
    wanted = [{"p": p or None, "day": day, "N": n, "value": value} for p, day, n, value in rows]
    assert sorted(found, key=lambda row: row["N"]) == wanted
    assert sum(f["rows"] for f in files) == 8
    assert all((tmp_path / f["path"]).stat().st_size == f["size"] for f in files)


def each_batch_is_a_row_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHERED_BYTES", "ROW_GROUP_BYTES"):
        monkeypatch.setattr(f"gazette_spark._data_files.writer.{name}", 1)


def test_a_task_writes_a_file_for_each_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gazette_spark._data_files.writer.OPEN_FILES", 2)
    pieces = [(f"journal=a/{n}", [batch([(str(n % 7), DAY, n, b"")])]) for n in range(300)]
    for partition_by, count in (((), 1), (("p",), 7)):
        root = tmp_path / str(count)
        files = [
            row
            for told in write_files(pieces, target(root, partition_by=partition_by))
            for row in told.to_pylist()
        ]
        assert len(files) == count
        tables = [pq.read_table(root / file["path"], partitioning=None) for file in files]
        assert sorted(n for table in tables for n in table.column("N").to_pylist()) == list(range(300))
        assert [file["rows"] for file in files] == [table.num_rows for table in tables]


def test_a_file_is_ended_at_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size counts bytes that were written, so a file ends only after a row group."""
    each_batch_is_a_row_group(monkeypatch)
    batches = [batch([("x", DAY, n, bytes(range(256)) * 40)]) for n in range(4)]
    assert len(told(target(tmp_path, file_bytes=500), *batches)) == 4
    assert len(told(target(tmp_path, file_bytes=10**6), *batches)) == 1
    assert told(target(tmp_path), batch([("x", DAY, 1, b"")]).slice(0, 0)) == []


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each_batch_is_a_row_group(monkeypatch)
    monkeypatch.setattr("gazette_spark._data_files.writer.OPEN_FILES", 2)
    rows = batch([(str(n % 5), DAY, n, b"") for n in range(20)])
    files = told(target(tmp_path, partition_by=("p",)), rows, rows)
    assert sum(f["rows"] for f in files) == 40
    assert len(files) > 5


def test_a_url_is_written_to_through_deltalake(tmp_path: Path) -> None:
    """Files in a store lie below the table's URL, and a failed task removes them there too."""
    shapes = json.dumps(READ.jsonValue()), json.dumps(WRITTEN.jsonValue())
    store = FileTarget("t", f"file://{tmp_path}", *shapes, partition_by=("p",), not_null=("N",))
    (file,) = told(store, batch([("a b", DAY, 1, b"")]))
    assert (tmp_path / file["path"]).stat().st_size == file["size"]
    assert pq.read_table(tmp_path / file["path"]).column("N").to_pylist() == [1]
    with pytest.raises(TableRefusedError):
        told(store, batch([("c", DAY, 1, b"")]), batch([("c", DAY, None, b"")]))
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_rows_of_many_partitions_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups are ended early when all open files together would buffer too much."""
    monkeypatch.setattr("gazette_spark._data_files.writer.GATHERED_BYTES", 1)
    monkeypatch.setattr("gazette_spark._data_files.writer.WAITING_BYTES", 2000)
    rows = batch([(str(n % 5), DAY, n, bytes(100)) for n in range(50)])
    files = told(target(tmp_path, partition_by=("p",)), *[rows] * 4)
    assert sum(f["rows"] for f in files) == 200
    assert len(files) == 5
    assert max(pq.read_metadata(tmp_path / f["path"]).num_row_groups for f in files) > 1


def test_a_task_that_fails_tells_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(TableRefusedError, match=r"column N is NOT NULL, but 1 .*journal=a/journal begin=10"):
        told(target(tmp_path, not_null=("N",)), batch([("x", DAY, 1, b"")]), batch([("x", DAY, None, b"")]))

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch([("x", DAY, 1, b"")])
        raise ConnectionError

    with pytest.raises(ConnectionError):
        list(write_files([("journal=a/journal", broken())], target(tmp_path)))
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_target_travels_as_text(tmp_path: Path) -> None:
    given = target(tmp_path, partition_by=("p",), not_null=("N",), storage_options={"key": "k"})
    assert FileTarget.from_json(given.to_json()) == given
    assert "'k'" not in repr(given)
    with pytest.raises(OptionError, match="dataFilesSecret"):
        FileTarget.from_json('{"table": "t"}')


def test_columns_whose_values_do_not_repeat_get_no_dictionary(tmp_path: Path) -> None:
    count = 1200
    item = pa.struct([("id", pa.int64()), ("kind", pa.string())])
    columns = {
        "offset": pa.array(range(count), pa.int64()),
        "kind": pa.array(["a", "b", None] * (count // 3)),
        "item": pa.array([{"id": n, "kind": "x"} for n in range(count)], item),
        "sparse": pa.array([None if n else "x" for n in range(count)]),
        "tags": pa.array([[str(n)] for n in range(count)], pa.list_(pa.string())),
    }
    rows = pa.RecordBatch.from_pydict(columns)
    assert keyed(tmp_path / "many", rows) == {"kind", "item.kind", "sparse", "tags.list.element"}
    assert "offset" in keyed(tmp_path / "few", rows.slice(0, 900))
    assert "offset" not in keyed(tmp_path / "pieces", *(rows.slice(at, 40) for at in range(0, count, 40)))


def keyed(root: Path, *batches: pa.RecordBatch) -> set[str]:
    rows = pa.Table.from_batches(batches)
    shape = json.dumps(from_arrow_schema(rows.schema).jsonValue())
    root.mkdir()
    files = write_files([("journal=j", batches)], FileTarget("t", str(root), shape, shape))
    (file,) = [row for each in files for row in each.to_pylist()]
    group = pq.read_metadata(root / file["path"]).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    assert pq.read_table(root / file["path"]).to_pylist() == rows.to_pylist()
    return {each.path_in_schema for each in chunks if each.has_dictionary_page}


@pytest.mark.parametrize(
    ("day", "text"),
    [
        (-96465292, "-262143-01-01"),
        (-4371953, "-10000-01-01"),
        (-719529, "-0001-12-31"),
        (-719528, "0000-01-01"),
        (2932896, "9999-12-31"),
        (2932897, "+10000-01-01"),
        (95026236, "+262142-12-31"),
    ],
)
def test_dates_of_partitions_are_written_as_spark_writes_them(tmp_path: Path, day: int, text: str) -> None:
    days = pa.array([day, None], pa.int32()).view(pa.date32())
    rows = pa.RecordBatch.from_arrays([["x", "y"], days, [1, 2], [b"", b""]], schema=ARROW)
    files = told(target(tmp_path, partition_by=("day",)), rows)
    assert [dict(file["partition_values"]) for file in files] == [{"day": text}, {"day": None}]
    table = DeltaTable.create(str(tmp_path), ARROW, partition_by=["day"])
    actions = [
        AddAction(f["path"], f["size"], dict(f["partition_values"]), f["modification_ms"], True, f["stats"])
        for f in files
    ]
    table.create_write_transaction(list(actions), "append", table.schema(), partition_by=["day"])
    assert len(DeltaTable(str(tmp_path)).get_add_actions()) == 2
    (file,) = told(target(tmp_path), rows.slice(0, 1))
    assert ("day" in json.loads(file["stats"])["minValues"]) is (text == "9999-12-31")


def test_a_date_that_deltalake_cannot_read_is_refused(tmp_path: Path) -> None:
    days = pa.array([95026237], pa.int32()).view(pa.date32())
    rows = pa.RecordBatch.from_arrays([["x"], days, [1], [b""]], schema=ARROW)
    with pytest.raises(
        TableRefusedError, match=r"partition column day has the date \+262143-01-01\. .*start"
    ):
        told(target(tmp_path, partition_by=("day",)), rows)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_long_partition_value_has_a_directory(tmp_path: Path) -> None:
    """File systems limit the length of a name, so the directory's name is cut but the value is complete."""
    texts = ["é" * 300, "é" * 300 + "x"]
    files = told(target(tmp_path, partition_by=("p",)), batch([(each, DAY, 1, b"") for each in texts]))
    assert [dict(file["partition_values"])["p"] for file in files] == texts
    assert all((tmp_path / file["path"]).exists() for file in files)


def test_a_file_names_spark_as_its_writer(tmp_path: Path) -> None:
    """Otherwise a setting of Spark's readers rejects or changes dates before 1582."""
    (file,) = told(target(tmp_path), batch([("a", DAY, 1, b"")]))
    assert b"org.apache.spark.version" in (pq.read_metadata(tmp_path / file["path"]).metadata or {})


@pytest.mark.parametrize("odd", [float("inf"), float("-inf")])
def test_an_infinity_has_no_bounds(tmp_path: Path, odd: float) -> None:
    """JSON cannot represent infinity, and deltalake rejects a commit whose statistics contain it."""
    rows = pa.RecordBatch.from_pydict({"real": pa.array([1.5, odd]), "n": pa.array([1, 2])})
    shape = json.dumps(from_arrow_schema(rows.schema).jsonValue())
    files = write_files([("journal=j", [rows])], FileTarget("t", str(tmp_path), shape, shape))
    (file,) = [row for each in files for row in each.to_pylist()]
    stats = json.loads(file["stats"], parse_constant=pytest.fail)
    assert stats["minValues"] == {"n": 1}
    assert stats["maxValues"] == {"n": 2}


@pytest.mark.parametrize("partition_by", [(), ("p",)], ids=["whole", "by text"])
def test_texts_that_are_not_utf8_are_written_as_they_are(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    """Spark makes such strings by a cast of bytes. They have no bounds, and JSON has Delta's form of them."""
    kinds = StructType([StructField("p", StringType()), StructField("text", StringType())])
    shape = json.dumps(kinds.jsonValue())
    texts = [b"\xff%d" % n for n in range(2000)]
    rows = pa.RecordBatch.from_arrays([as_text([b"\xffA"] * 2000), as_text(texts)], names=["p", "text"])
    described = FileTarget("t", str(tmp_path), shape, shape, partition_by=partition_by)
    (file,) = written_files([("journal=j", [rows])], described)
    stored = pq.read_table(tmp_path / file["path"], partitioning=None)
    assert [text.as_buffer().to_pybytes() for text in stored.column("text")] == texts
    assert file["partition_values"] == dict.fromkeys(partition_by, "\ufffdA")
    assert json.loads(file["stats"])["minValues"] == {}


def as_text(values: list[bytes]) -> pa.StringArray:
    """Return bytes as a string array without validation, as Spark passes strings."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
