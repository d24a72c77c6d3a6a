"""Statistics of data files bound their values as Delta compares them."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._data_files.statistics import file_statistics, leaves

SCHEMA = pa.schema(
    [
        ("whole", pa.int64()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(38, 6)),
        ("number", pa.float64()),
        ("ok", pa.bool_()),
        ("raw", pa.binary()),
        ("item", pa.struct([("n", pa.int32()), ("real", pa.float32()), ("tags", pa.list_(pa.string()))])),
    ]
)
MOMENTS = st.datetimes()
TEXTS = st.text(st.sampled_from("aé\U0001f600\U0010ffff"), max_size=40)
ROWS = st.fixed_dictionaries(
    {
        "whole": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "text": st.none() | TEXTS,
        "at": st.none() | MOMENTS.map(lambda each: each.replace(tzinfo=dt.UTC)),
        "local": st.none() | MOMENTS,
        "day": st.none() | st.dates(),
        "price": st.none() | st.decimals(-(10**30), 10**30, places=6),
        "number": st.none() | st.floats(),
        "ok": st.none() | st.booleans(),
        "raw": st.none() | st.binary(max_size=3),
        "item": st.none()
        | st.fixed_dictionaries(
            {
                "n": st.none() | st.integers(-9, 9),
                "real": st.none() | st.floats(width=32),
                "tags": st.none() | st.lists(st.none() | TEXTS, max_size=2),
            }
        ),
    }
)


def written(rows: list[dict[str, Any]], root: Path, group: int, indexed: int = -1) -> dict[str, Any]:
    found: list[pq.FileMetaData] = []
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    with pq.ParquetWriter(root / "file.parquet", SCHEMA, metadata_collector=found) as writer:
        writer.write_table(table, row_group_size=group)
    nan = [row["number"] for row in rows if row["number"] is not None and math.isnan(row["number"])]
    text = file_statistics(found[0], SCHEMA, indexed_leaves=indexed, with_nan=["number"] if nan else [])
    value: dict[str, Any] = json.loads(text)
    return value


def read_as(name: str, bound: Any) -> Any:
    match name:
        case "text":
            return bound.encode()
        case "at" | "local":
            return dt.datetime.fromisoformat(bound)
        case "day":
            return dt.date.fromisoformat(bound)
        case "price":
            return Decimal(repr(bound))
    return bound


@given(rows=st.lists(ROWS, min_size=1, max_size=6), group=st.integers(1, 6))
def test_each_value_lies_within_the_bounds(
    tmp_path_factory: Any, rows: list[dict[str, Any]], group: int
) -> None:
    found = written(rows, tmp_path_factory.mktemp("file"), group)
    assert found["numRecords"] == len(rows)
    for name in ("whole", "text", "at", "local", "day", "price", "number"):
        assert found["nullCount"][name] == sum(row[name] is None for row in rows)
        for row in rows:
            if row[name] is not None and name in found["minValues"]:
                value = row[name].encode() if name == "text" else row[name]
                assert read_as(name, found["minValues"][name]) <= value
                assert value <= read_as(name, found["maxValues"][name])
    inner = [row["item"] and row["item"]["n"] for row in rows]
    assert found["nullCount"]["item"] == {
        "n": sum(each is None for each in inner),
        "real": sum((row["item"] and row["item"]["real"]) is None for row in rows),
    }
    if known := [each for each in inner if each is not None]:
        assert found["minValues"]["item"] == {"n": min(known)}
        assert found["maxValues"]["item"] == {"n": max(known)}
    assert not {"ok", "raw"} & (found["minValues"].keys() | found["maxValues"].keys())


def test_what_delta_orders_otherwise_has_no_bounds(tmp_path: Path) -> None:
    """Delta orders NaN above all numbers while Parquet omits it. Long decimals would be rounded."""
    row = dict.fromkeys(SCHEMA.names)
    rows = [
        row | {"number": 1.5, "price": Decimal("1.5")},
        row | {"number": math.nan, "price": Decimal(10**25)},
    ]
    found = written(rows, tmp_path, 2)
    assert "number" not in found["maxValues"]
    assert "price" not in found["maxValues"]
    assert written(rows[:1], tmp_path, 1)["maxValues"] == {"number": 1.5, "price": 1.5}


def test_times_have_milliseconds_and_are_rounded_outwards(tmp_path: Path) -> None:
    """Delta's protocol has no more digits, and Spark's parser of version 2 misreads them."""
    at = dt.datetime.fromisoformat("2026-01-02T03:04:05.678901")
    row = dict.fromkeys(SCHEMA.names) | {"at": at.replace(tzinfo=dt.UTC), "local": at}
    found = written([row], tmp_path, 1)
    assert found["minValues"] == {"at": "2026-01-02T03:04:05.678Z", "local": "2026-01-02T03:04:05.678"}
    assert found["maxValues"] == {"at": "2026-01-02T03:04:05.679Z", "local": "2026-01-02T03:04:05.679"}
    last = at.replace(year=9999, month=12, day=31, hour=23, minute=59, second=59, microsecond=999999)
    assert "local" not in written([row | {"local": last}], tmp_path, 1)["maxValues"]


def test_only_the_first_leaves_are_spoken_of(tmp_path: Path) -> None:
    """A table property limits how many leaf columns have statistics."""
    rows = [dict.fromkeys(SCHEMA.names) | {"whole": 3, "text": "x"}]
    found = written(rows, tmp_path, 1, indexed=1)
    assert found == {
        "numRecords": 1,
        "minValues": {"whole": 3},
        "maxValues": {"whole": 3},
        "nullCount": {"whole": 0},
    }


def test_leaves_are_parquets_columns(tmp_path: Path) -> None:
    schema = pa.schema(
        [("m", pa.map_(pa.string(), pa.struct([("x", pa.int8())]))), ("l", pa.list_(pa.list_(pa.int8())))]
    )
    assert [leaf.path for leaf in leaves(schema)] == [
        ("m", "key"),
        ("m", "value", "x"),
        ("l", "element", "element"),
    ]
    pq.write_table(schema.empty_table(), tmp_path / "empty.parquet")
    columns = pq.ParquetFile(tmp_path / "empty.parquet").schema
    assert [leaf.stored for leaf in leaves(schema)] == [columns.column(n).path for n in range(len(columns))]
