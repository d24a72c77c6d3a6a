"""The demo reads commits, rows and ledger from the table's log, and the current batch from the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gazette_spark._ledger.entry import LedgerEntry
from gazette_spark.offsets import JournalOffsets
from gazette_spark.testing.table_watch import TableState, TableWatch, batch_in_flight, ledger_heads


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    (log / f"{version:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


def add(rows: int) -> dict[str, Any]:
    return {"add": {"path": "x", "stats": json.dumps({"numRecords": rows, "minValues": {}})}}


def info(metadata: str | None) -> dict[str, Any]:
    return {"commitInfo": {"operation": "WRITE"} | ({"userMetadata": metadata} if metadata else {})}


def test_commits_are_added_up_as_they_come(tmp_path: Path) -> None:
    watch = TableWatch(tmp_path)
    assert watch.look() == TableState()
    commit(tmp_path, 0, info("first"), {"metaData": {}})
    assert watch.look() == TableState(commits=1, rows=0, data_commits=0, metadata="first")
    commit(tmp_path, 1, info("second"), add(10), add(5))
    commit(tmp_path, 2, info(None), {"protocol": {}})
    assert watch.look() == TableState(commits=3, rows=15, data_commits=1, metadata="second")
    assert watch.look() == TableState(commits=3, rows=15, data_commits=1, metadata="second")


def test_other_files_of_the_log_are_not_commits(tmp_path: Path) -> None:
    commit(tmp_path, 0, add(1))
    for name in ("00000000000000000001.crc", ".00000000000000000001.json.tmp", "_last_checkpoint"):
        (tmp_path / "_delta_log" / name).write_text("{}")
    assert TableWatch(tmp_path).look().commits == 1


def test_the_ledger_says_how_far_each_journal_is_filled() -> None:
    ends = (JournalOffsets({"a/b": 30, "a/c": 5}),)
    metadata = LedgerEntry("orders", 1, "q", 1, ends, ends, ends, "x", None).to_json()
    assert ledger_heads(metadata, "orders") == {"a/b": 30, "a/c": 5}
    assert ledger_heads(metadata, "returns") == ledger_heads("nightly", "orders") == {}


@pytest.mark.parametrize(
    ("offsets", "commits", "batch"),
    [
        pytest.param([], [], None, id="nothing yet"),
        pytest.param([0], [], 0, id="first batch"),
        pytest.param([8, 9, 10], [8, 9], 10, id="numbers, not text"),
        pytest.param([8, 9, 10], [8, 9, 10], None, id="between two batches"),
    ],
)
def test_a_planned_batch_is_in_flight_until_it_is_done(
    tmp_path: Path, offsets: list[int], commits: list[int], batch: int | None
) -> None:
    for name, numbers in (("offsets", offsets), ("commits", commits)):
        (tmp_path / name).mkdir()
        for number in numbers:
            (tmp_path / name / str(number)).touch()
            (tmp_path / name / f".{number}.crc").touch()
    assert batch_in_flight(tmp_path) == batch


def test_a_query_without_a_checkpoint_has_nothing_in_flight(tmp_path: Path) -> None:
    """The directories appear only once the query has started."""
    assert batch_in_flight(tmp_path / "none") is None
