"""The state table of the host on Spark has one row for each key, and the host reads no file without need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gazette_spark._delta import writers
from gazette_spark.consumer import spark as spark_host
from gazette_spark.consumer.micro_batch import STATE
from gazette_spark.protocol import consumer_pb2 as pc
from tests.spark.test_sink_conflicts import conf_set

ROW = "shard STRING, kind STRING, `key` STRING, value STRING, deleted BOOLEAN"

QUOTES = ("it's", '"', "`", "a\\b", "\\u0041", "--", "%_")
ODD_KEYS = ("", " ", "NULL", "${spark.app.name}", "a\nb\tc\0d", "ü☃😀", *QUOTES)
"""Keys with a special meaning in SQL, Spark's variables or the log's JSON."""


@dataclass
class State:
    spark: SparkSession
    path: Path
    rows: dict[tuple[str, str], str] = field(default_factory=dict)
    """Values by shard and key."""

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.table = spark_host.StateTable("tests", path=str(self.path), table=None)
        self.table.open(self.spark)

    def commit(self, changes: Mapping[tuple[str, str], str | None], shards: Collection[str] = ("s",)) -> None:
        """Commit changed values and checkpoints of shards; None deletes a row."""
        rows = [(shard, STATE, key, value, value is None) for (shard, key), value in changes.items()]
        checkpoints = {shard: pc.Checkpoint(ack_intents={"to": b"%d" % len(self.rows)}) for shard in shards}
        self.table.commit(self.spark.createDataFrame(rows, ROW), checkpoints)
        for at, value in changes.items():
            self.rows.pop(at, None)
            self.rows |= {} if value is None else {at: value}

    def check(self) -> None:
        assert self.touching({shard for shard, _ in self.rows}, self.rows) == self.rows
        rows = self.spark.read.format("delta").load(str(self.path)).where(f"kind = '{STATE}'").collect()
        assert sorted((row.shard, row.key, row.value) for row in rows) == sorted(
            (*at, value) for at, value in self.rows.items()
        )

    def touching(self, shards: Iterable[str], keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
        asked = self.spark.createDataFrame([*keys], "shard STRING, `key` STRING")
        rows = self.table.state(self.spark, [*shards], asked).collect()
        assert len({(row.shard, row.key) for row in rows}) == len(rows)
        return {(row.shard, row.key): row.value for row in rows}

    def files(self) -> set[str]:
        frame = self.spark.read.format("delta").load(str(self.path)).where(f"kind = '{STATE}'")
        return {*frame.inputFiles()}

    def sorts(self) -> int:
        history = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.path}`").collect()
        return sum("key" in row.operationParameters.get("zOrderBy", "") for row in history)


@pytest.fixture
def state(spark: SparkSession, tmp_path: Path) -> State:
    return State(spark, tmp_path / "state")


@pytest.mark.parametrize(
    ("listed", "vectors"),
    [
        pytest.param(1000, True, id="named keys"),
        pytest.param(1000, False, id="named keys, a table without deletion vectors", marks=pytest.mark.soak),
        pytest.param(0, True, id="merged", marks=pytest.mark.soak),
    ],
)
def test_a_key_has_one_row(state: State, monkeypatch: pytest.MonkeyPatch, listed: int, vectors: bool) -> None:
    monkeypatch.setattr(writers, "LISTED_KEYS", listed)
    monkeypatch.setattr(spark_host, "LISTED_KEYS", listed)
    if not vectors:
        # Older hosts created the table in this form.
        state.spark.sql(
            f"ALTER TABLE delta.`{state.path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
        )
    # Under this user setting, Spark parses literals differently.
    with conf_set(state.spark, {"spark.sql.parser.escapedStringLiterals": "true"}):
        state.commit({(shard, key): f'"{shard}1"' for shard in "st" for key in ODD_KEYS}, ("s", "t"))
        state.commit({("s", key): '"s2"' for key in ODD_KEYS[::2]} | {("t", ODD_KEYS[1]): None})
        state.open()
        state.commit({("s", key): None for key in ODD_KEYS[:3]} | {("t", ODD_KEYS[1]): '"t3"'}, ("s", "t"))
        state.check()


def test_a_transaction_leaves_the_files_of_other_keys_alone(state: State) -> None:
    """A transaction reads the file of its key and adds one with the new row; existing files stay."""
    for first in "mx":
        state.commit({("s", f"{first}{number}"): "1" for number in range(30)})
    before = state.files()
    asked = state.spark.createDataFrame([("s", "m5")], "shard STRING, `key` STRING")
    read = state.table.state(state.spark, ["s"], asked).inputFiles()
    state.commit({("s", "m5"): "2"})
    assert (len(before), len({*read})) == (2, 1)
    assert before < state.files()
    assert len(state.files()) == 3
    assert state.touching("s", [("s", "m5"), ("s", "x7")]) == {("s", "m5"): "2", ("s", "x7"): "1"}


@pytest.mark.soak
def test_the_state_is_sorted_when_much_has_changed(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting leaves each key in one file of several, and the next host knows how far the state is sorted."""
    monkeypatch.setattr(spark_host, "COMPACT_EVERY", 1)
    monkeypatch.setattr(spark_host, "SORT_ROWS", 100)
    monkeypatch.setitem(spark_host.LAYOUT, "spark.databricks.delta.optimize.maxFileSize", "1000")
    monkeypatch.setitem(spark_host.LAYOUT, "spark.databricks.delta.optimize.minFileSize", "0")
    state.commit({("s", f"{number:04}"): str(number) for number in range(0, 200, 2)})
    assert state.sorts() == 1
    # A fifth of a hundred rows exceeds the limit of a twentieth, but not the minimum of a hundred rows.
    state.commit({("s", f"{number:04}"): str(number) for number in range(1, 40, 2)})
    state.open()
    state.commit({("s", f"{number:04}"): str(-number) for number in range(80)})
    assert state.sorts() == 1, "the next host knows that the first hundred rows are sorted"
    state.commit({("s", f"{number:04}"): str(-number) for number in range(80)})
    state.check()
    files = state.files()
    asked = state.spark.createDataFrame([("s", "0100")], "shard STRING, `key` STRING")
    assert len({*state.table.state(state.spark, ["s"], asked).inputFiles()}) < len(files)
