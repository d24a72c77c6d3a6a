"""What an append to a table does with the settings that a session accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StructType

from gazette_spark._delta import delta_table
from gazette_spark._delta.delta_table import DICTIONARY_KEY, FOLLOWED_COMMITS, DeltaTable
from gazette_spark._ledger.history import HistoryRow
from gazette_spark.errors import OptionError

ENTRY = SimpleNamespace(app_id="orders", txn_version=7, to_json=lambda: "{}")


class Rows:
    """A DataFrame with a binary column, its session and its writer in one; records settings and saves."""

    schema = StructType().add("value", BinaryType())

    def __init__(self, *, settings: bool) -> None:
        self.sparkSession = self.conf = self.write = self
        self._settings = settings
        self.kept: dict[str, str] = {}
        self.saved: list[dict[str, str]] = []

    def get(self, key: str, default: None) -> str | None:
        return self.kept.get(key, default)

    def set(self, key: str, value: str) -> None:
        if not self._settings:
            raise PySparkException(f"[CONFIG_NOT_AVAILABLE] {key}")
        self.kept[key] = value

    def unset(self, key: str) -> None:
        self.set(key, "")
        del self.kept[key]

    def format(self, _name: str) -> Self:
        return self

    def mode(self, _name: str) -> Self:
        return self

    def options(self, **_options: str) -> Self:
        return self

    def save(self, _path: str) -> None:
        self.saved.append(dict(self.kept))


def appended(*, settings: bool) -> list[dict[str, str]]:
    """Append; return the settings at each save."""
    rows = Rows(settings=settings)
    DeltaTable(path="/data/orders", table=None).append(cast(Any, rows), cast(Any, ENTRY), exists=True)
    assert rows.kept == {}, "the session is left as it was"
    return rows.saved


def test_a_session_that_refuses_a_setting_pays_for_it_in_time_only() -> None:
    """Serverless compute accepts few settings. Without this one Parquet looks for repeated values."""
    assert appended(settings=True) == [{DICTIONARY_KEY: "false"}]
    assert appended(settings=False) == [{}]


CHECKPOINT = -1
"""Stands for the file that names a log's last checkpoint."""


class Log:
    """A table's log: operations by version; "" is a commit without an operation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operations: dict[int, str]) -> None:
        self.operations = operations
        self.on_read: Callable[[int], object] = lambda _version: None
        monkeypatch.setattr(delta_table, "is_classic", lambda _spark: True)
        monkeypatch.setattr(delta_table, "path_exists", lambda _spark, path: version_of(path) in operations)
        monkeypatch.setattr(delta_table, "find_line", self._line)

    def _line(self, _spark: object, path: str, _pattern: str) -> str | None:
        operation = self.operations.get(version_of(path))
        self.on_read(version_of(path))
        return operation and json.dumps({"commitInfo": {"operation": operation}})

    def newest(self) -> list[HistoryRow] | None:
        table = DeltaTable(path="/data/orders", table=None)
        table._location = "/data/orders"
        asked: list[HistoryRow] = []
        table.history = lambda spark, limit: asked  # type: ignore[method-assign]  # A history of the test.
        found = table.newest(cast(Any, None), 8)
        return None if found is asked else found


def version_of(path: str) -> int:
    name = path.rpartition("/")[2]
    return CHECKPOINT if name == "_last_checkpoint" else int(name.removesuffix(".json"))


def test_commits_of_a_young_table_are_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Log(monkeypatch, {0: "CREATE TABLE", 1: "", 2: "WRITE"}).newest()
    assert [(row.version, row.operation) for row in rows or []] == [
        (2, "WRITE"),
        (1, ""),
        (0, "CREATE TABLE"),
    ]


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param({}, id="none"),
        pytest.param({3: "WRITE", 4: "WRITE", CHECKPOINT: ""}, id="cleaned up"),
        pytest.param({0: "WRITE", 3: "WRITE", CHECKPOINT: ""}, id="cleaned up but for the first commit"),
        pytest.param(dict.fromkeys(range(FOLLOWED_COMMITS), "WRITE"), id="many"),
        pytest.param({0: "WRITE", 1: "RESTORE"}, id="restored"),
        pytest.param({0: "WRITE", 1: "REPLACE TABLE"}, id="replaced"),
    ],
)
def test_of_any_other_table_delta_is_asked(
    operations: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Log(monkeypatch, operations).newest() is None


def test_a_cleanup_meanwhile_has_delta_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was cleaned up must not seem to have never existed."""
    log = Log(monkeypatch, {0: "CREATE TABLE", 1: "WRITE", 2: "WRITE", CHECKPOINT: ""})
    log.on_read = lambda version: (
        [log.operations.pop(each, None) for each in (0, 1)] if version == 0 else None
    )
    assert log.newest() is None


def test_a_relative_path_is_where_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink, its dead letters and ``verify`` all name tables this way. A URL stays as it is."""
    monkeypatch.chdir(tmp_path)
    assert DeltaTable(path="shop/orders", table=None).path == f"{tmp_path}/shop/orders"
    for path in ("/data/orders", "s3://shop/orders", "dbfs:/shop/orders"):
        assert DeltaTable(path=path, table=None).path == path


@pytest.mark.parametrize("name", ["/lake/orders@v1", "s3a://lake/orders@V07/", "orders@20260301120000000"])
def test_a_name_that_delta_takes_for_a_version_is_refused(name: str) -> None:
    """Reads would go to the table ``orders``."""
    with pytest.raises(OptionError, match=r"'path'.*version of another table"):
        DeltaTable(path=name, table=None)
    assert DeltaTable(path="/lake/orders@v1x", table=None).path == "/lake/orders@v1x"
