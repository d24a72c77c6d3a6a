"""The oracle of upserts detects a table whose rows are not the last ones of their keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gazette_spark._ledger.entry import LedgerEntry
from gazette_spark.offsets import JournalOffsets
from tests.rig.upsert_oracle import check_upserts

TRUTH = {"x": b"k=1\nl=2\nk=3\nl=\n", "y": b"m=4\n"}
"""Two puts of k, a put and a deletion of l, and a put of m. The records of x end at 4, 8, 12 and 15."""


def read_record(journal: str, offset: int, value: bytes) -> tuple[str, tuple[Any, ...] | None]:
    """Parse ``KEY=VALUE``; a missing value deletes the key."""
    key, _, number = value.decode().partition("=")
    return key, (key, int(number)) if number else None


class Log:
    """A table in which each version has all of its rows in one new file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.entries: list[LedgerEntry] = []
        """Ledger entry of each version."""
        (directory / "_delta_log").mkdir()

    def commit(self, rows: list[tuple[str, int]], operation: str = "MERGE", /, **ends: int) -> None:
        """Add a version with these rows that records these ends, or that restored the version ``to``."""
        number = len(list(self.directory.glob("*.parquet")))
        columns = {"id": [key for key, _ in rows], "n": [n for _, n in rows]}
        schema = pa.schema({"id": pa.string(), "n": pa.int64()})
        pq.write_table(pa.table(columns, schema), self.directory / f"{number}.parquet")
        info: dict[str, Any] = {"operation": operation}
        if operation == "RESTORE":
            info["operationParameters"] = {"version": ends["to"]}
            self.entries.append(self.entries[ends["to"]])
        else:
            end = (JournalOffsets(ends),)
            before = self.entries[-1] if self.entries else None
            # An entry that ends before its begin would not be read.
            reached = before.read_through if before else ends
            begin = (JournalOffsets({name: min(at, reached[name]) for name, at in ends.items()}),)
            parent = before.attempt if before else None
            entry = LedgerEntry(
                "app", number, "q", number, end, begin, end, str(number), parent, mode="upsert"
            )
            info["userMetadata"] = entry.to_json()
            self.entries.append(entry)
        actions = [
            {"commitInfo": info},
            {"add": {"path": f"{number}.parquet"}},
            *([{"remove": {"path": f"{number - 1}.parquet"}}] if number else []),
        ]
        log = self.directory / "_delta_log" / f"{number:020}.json"
        log.write_text("\n".join(json.dumps(action) for action in actions))


def violations(log: Log) -> list[str]:
    return check_upserts(log.directory, TRUTH, read_record, ["id", "n"], app_id="app").violations


def test_the_last_rows_at_every_version_are_exact(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.commit([], x=0, y=0)
    log.commit([("k", 1), ("l", 2)], x=8, y=0)
    log.commit([("k", 3), ("l", 2)], x=12, y=0)
    log.commit([("l", 2), ("k", 1)], "RESTORE", to=1)
    log.commit([("k", 3), ("m", 4)], x=15, y=4)
    verdict = check_upserts(tmp_path, TRUTH, read_record, ["id", "n"], app_id="app")
    assert verdict.exact, verdict
    assert (verdict.rows, verdict.versions, verdict.entries) == (2, 5, 5)


@pytest.mark.parametrize(
    ("rows", "ends", "problem"),
    [
        pytest.param([("k", 3)], {"x": 15, "y": 4}, "version 1 lacks 1 rows", id="row missing"),
        pytest.param([("k", 1), ("m", 4)], {"x": 15, "y": 4}, "version 1 has 1 rows", id="row not replaced"),
        pytest.param(
            [("k", 3), ("l", 2), ("m", 4)], {"x": 15, "y": 4}, "version 1 has 1 rows", id="row not deleted"
        ),
        pytest.param(
            [("k", 3), ("m", 4), ("m", 4)], {"x": 15, "y": 4}, "version 1 has 1 rows", id="row doubled"
        ),
        pytest.param(
            [("k", 3), ("m", 4)], {"x": 12, "y": 4}, "version 1 lacks 1 rows", id="end not recorded"
        ),
        pytest.param([("k", 1), ("m", 4)], {"x": 4, "y": 4}, "x went from 8 back to 4", id="end goes back"),
        pytest.param([("k", 3)], {"x": 15, "y": 0}, "the table is recorded up to", id="not complete"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, rows: list[tuple[str, int]], ends: dict[str, int], problem: str
) -> None:
    log = Log(tmp_path)
    log.commit([("k", 1), ("l", 2)], x=8, y=0)
    log.commit(rows, **ends)
    assert any(problem in each for each in violations(log))
