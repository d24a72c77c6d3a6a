"""Files are committed on the snapshot of the decision, and unsupported tables are refused with a reason."""

from __future__ import annotations

import json
import shutil
from copy import copy
from pathlib import Path
from typing import Any, Self, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from gazette_spark._data_files.writer import written_files
from gazette_spark._delta import delta_table
from gazette_spark._delta.features import FEATURES
from gazette_spark._delta.file_commits import FileCommits, refusal
from gazette_spark._delta.file_lane import prepare_files
from gazette_spark._delta.row_steps import TableLayout
from gazette_spark._delta.writers import FileWriter
from gazette_spark._ledger.entry import LedgerEntry
from gazette_spark.errors import TableRefusedError
from gazette_spark.offsets import JournalOffsets

DAYS = pa.table({"day": ["monday", "tuesday"], "n": [1, 2]})


def column(
    name: str = "n", kind: Any = "long", metadata: dict[str, Any] | None = None, *, nullable: bool = True
) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata or {}}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


FILLED_MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False}


@pytest.mark.parametrize(
    ("features", "configuration", "columns", "reason"),
    [
        ({"rowTracking", "domainMetadata"}, {}, [], "it has the table feature domainMetadata, rowTracking"),
        ({"catalogManaged"}, {}, [], "it has the table feature catalogManaged"),
        ({"columnMapping"}, {"delta.columnMapping.mode": "name"}, [], "it maps columns"),
        ({"checkConstraints"}, {"delta.constraints.small": "n < 9"}, [], "it has the constraint small"),
        (set(), {}, [column(metadata={"delta.identity.start": 1})], "column n is an identity"),
        (set(), {}, [column(metadata={"delta.generationExpression": "1"})], "column n is generated"),
        (set(), {}, [column(metadata={"delta.invariants": "{}"})], "column n has an invariant"),
        (set(), {}, [column(metadata={"CURRENT_DEFAULT": "1"})], "column n has a default"),
        (
            set(),
            {},
            [column(metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(3)"})],
            "column n has a maximum length",
        ),
        (set(), {}, [column(kind="variant")], "it has a column of type variant"),
        (
            set(),
            {},
            [column("s", {"type": "array", "elementType": struct(column("x", nullable=False))})],
            "field x of a struct is NOT NULL",
        ),
        (
            set(),
            {},
            [column("s", {"type": "map", "keyType": "string", "valueType": struct(column(kind="variant"))})],
            "it has a column of type variant",
        ),
        (
            set(),
            {},
            [column("s", {"type": "array", "elementType": "long", "containsNull": False})],
            "it has elements of an array that are NOT NULL",
        ),
        (
            set(),
            {},
            [column("s", struct(column("m", FILLED_MAP)))],
            "it has values of a map that are NOT NULL",
        ),
    ],
)
def test_a_table_that_asks_for_more_is_refused(
    features: set[str], configuration: dict[str, str | None], columns: list[dict[str, Any]], reason: str
) -> None:
    found = refusal(frozenset(features), configuration, struct(*columns))
    assert found is not None
    assert found.startswith(reason)


def test_a_plain_table_takes_files() -> None:
    """An enabled feature that the table does not use is no reason to refuse it."""
    plain = struct(column(nullable=False), column("s", struct(column("x", metadata={"comment": "c"}))))
    configuration = {"delta.columnMapping.mode": "none", "delta.enableDeletionVectors": "true"}
    unused = frozenset(name for name, feature in FEATURES.items() if feature.takes_plain_files)
    assert refusal(unused, configuration, plain) is None


class Told(DataFrame):
    """Rows that report one file, and count how often they were collected."""

    def __new__(cls, root: Path, number: int) -> Self:
        """Avoid creating a DataFrame of a session."""
        return object.__new__(cls)

    def __init__(self, root: Path, number: int) -> None:
        self._root, self._number = root, number
        self.runs = 0

    def collect(self) -> list[Row]:
        self.runs += 1
        path = f"part-{self._number}.parquet"
        pq.write_table(pa.table({"n": [self._number]}), self._root / path)
        size = (self._root / path).stat().st_size
        stats = json.dumps({"numRecords": 1})
        return [Row(path=path, size=size, partition_values={}, modification_ms=1, stats=stats)]


def entry(txn_version: int, app_id: str = "orders") -> LedgerEntry:
    at = (JournalOffsets({"a/journal": txn_version}),)
    return LedgerEntry(app_id, txn_version, "query", txn_version, at, at, at, f"try {txn_version}", None)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    DeltaTable.create(str(tmp_path), pa.schema([("n", pa.int64())]))
    return tmp_path


def commits(table: Path) -> FileCommits:
    return FileCommits("t", f"file:{table}", table_id(table), {})


def table_id(table: Path) -> str:
    """Return the id in the metadata of a table's first version, "none" if there is no table."""
    log = table / f"_delta_log/{0:020}.json"
    lines = log.read_text().splitlines() if log.exists() else []
    return next(
        (str(each["metaData"]["id"]) for each in map(json.loads, lines) if "metaData" in each), "none"
    )


def numbers(table: Path) -> list[int]:
    found: list[int] = DeltaTable(str(table)).to_pyarrow_table().column("n").to_pylist()
    return sorted(found)


def test_files_of_another_machine_are_not_committed(table: Path) -> None:
    """A task writes to a directory of that name on its own machine, where no reader finds the file."""
    ours = commits(table)
    ours.open()
    (file,) = Told(table, 1).collect()
    (table / file.path).unlink()
    with pytest.raises(TableRefusedError, match=r"has written part-1\.parquet, .* Nothing was committed"):
        ours.commit_files([file], entry(1))
    assert numbers(table) == []


def test_files_entry_and_number_are_one_commit(table: Path) -> None:
    ours = commits(table)
    for number in (1, 2):
        ours.open()
        assert ours.commit(Told(table, number), entry(number)) is None
        actions = [
            json.loads(line) for line in (table / f"_delta_log/{number:020}.json").read_text().splitlines()
        ]
        assert {next(iter(action)) for action in actions} == {"commitInfo", "add", "txn"}
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        assert info["userMetadata"] == entry(number).to_json()
    assert numbers(table) == [1, 2]


def test_of_two_that_decided_on_one_snapshot_one_commits(table: Path) -> None:
    first, second = commits(table), commits(table)
    for each in (first, second):
        each.open()
    assert first.commit(Told(table, 1), entry(1)) is None
    assert second.commit(Told(table, 2), entry(1)) is not None
    assert second.commit(Told(table, 3), entry(2)) is not None
    assert numbers(table) == [1]
    second.open()
    assert second.commit(Told(table, 4), entry(2)) is None
    assert numbers(table) == [1, 4]


def test_each_run_commits_on_the_snapshot_of_its_own_decision(table: Path) -> None:
    """A sink of load_files can start several runs, and each gets a copy of the writer."""
    first = FileWriter(cast("delta_table.DeltaTable", None), TableLayout(), commits(table))
    second = copy(first)
    first._files.open()
    second._files.open()
    second.commit_entry(cast("SparkSession", None), entry(1))
    second._files.open()
    assert first._files.commit(Told(table, 1), entry(1)) is not None
    assert numbers(table) == []


def test_a_log_that_cannot_be_written_is_named(table: Path) -> None:
    """As on a full disk: the error names table and remedy, without the colour codes of deltalake's text."""
    ours = commits(table)
    ours.open()
    shutil.rmtree(table / "_delta_log")
    (table / "_delta_log").touch()
    with pytest.raises(
        TableRefusedError, match=r"^table t: deltalake cannot commit to it at .* checkpoint"
    ) as error:
        ours.commit(Told(table, 1), entry(1))
    assert str(error.value).isprintable()


def test_commits_of_others_are_no_conflict(table: Path) -> None:
    ours, others = commits(table), commits(table)
    ours.open()
    others.open()
    assert others.commit(Told(table, 1), entry(7, "another")) is None
    write_deltalake(str(table), pa.table({"n": [2]}), mode="append")
    DeltaTable(str(table)).optimize.compact()
    told = Told(table, 3)
    assert ours.commit(told, entry(1)) is None
    assert numbers(table) == [1, 2, 3]
    assert ours.commit(told, entry(2)) is not None  # The snapshot is still the old one.
    assert told.runs == 1


def test_a_table_that_changes_its_columns_stops_the_query(table: Path) -> None:
    ours = commits(table)
    ours.open()
    DeltaTable(str(table)).alter.add_columns([Field("more", PrimitiveType("string"))])
    assert ours.commit(Told(table, 1), entry(1)) is not None
    with pytest.raises(TableRefusedError, match="columns have changed since the query started"):
        ours.open()
    assert numbers(table) == []


def test_a_table_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableRefusedError, match=r"deltalake cannot open it at .*DeltaSink\.start"):
        commits(tmp_path).open()


def test_files_go_into_the_table_that_spark_reads(table: Path) -> None:
    ids = table_id(table), "another"
    stranger = FileCommits("t", f"file:{table}", ids[1], {})
    with pytest.raises(TableRefusedError, match=f"Spark reads the table {ids[1]} at .* table {ids[0]} at "):
        stranger.open()
    ours = commits(table)
    ours.open(f"file://{table}/")
    with pytest.raises(TableRefusedError, match=r"its name now belongs to the table at file:/lake/other\."):
        ours.open("file:/lake/other")
    assert ours.commit(Told(table, 1), entry(1)) is None


@pytest.mark.parametrize("commits_since", [0, 1, 2])
@pytest.mark.parametrize("name", ["orders", "h#sh?"])
def test_a_table_that_is_made_again_stops_the_query(tmp_path: Path, name: str, commits_since: int) -> None:
    """Its log must not seem to continue the old one, however many commits it has."""
    table = tmp_path / name
    DeltaTable.create(str(table), pa.schema([("n", pa.int64())]))
    ours = commits(table)
    ours.open()
    assert ours.commit(Told(table, 1), entry(1)) is None
    ours.open()
    shutil.rmtree(table)
    DeltaTable.create(str(table), pa.schema([("n", pa.int64())]))
    for number in range(commits_since):
        write_deltalake(str(table), pa.table({"n": [number]}), mode="append")
    with pytest.raises(
        TableRefusedError, match=r"Nothing was committed\. If the table was created again, start"
    ):
        ours.open()
    assert numbers(table) == list(range(commits_since))


@pytest.mark.parametrize("name", ["day%201", "back\\slash"])
def test_a_table_that_deltalake_misreads_is_refused(tmp_path: Path, name: str) -> None:
    """It is refused even if the neighbour that deltalake would read is a copy with the same id."""
    copy = tmp_path / name.replace("%20", " ").replace("\\", "/")
    for each in (tmp_path / name, copy):
        each.mkdir(parents=True)
    DeltaTable.create(str(copy), pa.schema([("n", pa.int64())]))
    shutil.copytree(copy, tmp_path / name, dirs_exist_ok=True)
    with pytest.raises(TableRefusedError, match=r"but deltalake would read .*DeltaSink\.start"):
        commits(tmp_path / name)
    assert len(list((tmp_path / name / "_delta_log").iterdir())) == 1


class ReplacedTable(delta_table.DeltaTable):
    """A table that another program partitions in another way once its detail has been read."""

    def check(self, spark: SparkSession, checkpoint: str | None) -> delta_table.TableDetail:
        metadata = DeltaTable(str(self.path)).metadata()
        return delta_table.TableDetail(str(self.path), str(metadata.id), tuple(metadata.partition_columns))

    def schema(self, spark: SparkSession) -> StructType:
        return StructType.fromJson(json.loads(DeltaTable(str(self.path)).schema().to_json()))

    def current_location(self, spark: SparkSession) -> None:
        write_deltalake(str(self.path), DAYS, mode="overwrite", schema_mode="overwrite", partition_by=[])


def test_files_are_for_the_partitions_of_the_snapshot_to_which_they_are_committed(tmp_path: Path) -> None:
    """Otherwise the values of a former partition column would be null."""
    write_deltalake(str(tmp_path), DAYS, partition_by=["day"])
    table = ReplacedTable(path=str(tmp_path), table=None)
    spark, schema = cast("SparkSession", None), table.schema(cast("SparkSession", None))
    ours, target = prepare_files(spark, table, TableLayout(), schema, None, app_id="a", checkpoint=None)
    files = [Row(**file) for file in written_files([("task", iter(DAYS.to_batches()))], target)]
    assert ours.commit_files(files, entry(1)) is None
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist() == DAYS.to_pylist() * 2
