"""The oracle detects each broken invariant, in tables whose log and files are written by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gazette_spark._ledger.entry import LedgerEntry
from gazette_spark.offsets import JournalOffsets
from gazette_spark.testing.oracle import OracleVerdict, check_table

APP = "app"
TRUTH = {"j": b"one\ntwo\nthree\n"}
RECORDS = {0: b"one", 4: b"two", 8: b"three"}


def at(offset: int) -> tuple[JournalOffsets]:
    return (JournalOffsets({"j": offset}),)


ENTRIES = (
    LedgerEntry(APP, 0, "q", 0, at(0), at(0), at(0), "first", None),
    LedgerEntry(APP, 1, "q", 1, at(0), at(0), at(4), "second", "first"),
    LedgerEntry(APP, 2, "q", 2, at(0), at(4), at(14), "third", "second"),
)


class Table:
    """A table of three versions, and the query checkpoint it was written from."""

    def __init__(self, root: Path) -> None:
        self.root = root / "table"
        self.checkpoint = root / "checkpoint"
        (self.root / "_delta_log").mkdir(parents=True)
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text('{"id":"q"}')

    def plan(self, batch_id: int, end: int) -> None:
        text = JournalOffsets({"j": end}).to_json()
        (self.checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{text}")

    def commit(self, number: int, offsets: list[int], entry: LedgerEntry) -> None:
        rows = [("j", offset, RECORDS[offset]) for offset in offsets]
        columns = (
            dict(zip(("journal", "offset", "value"), zip(*rows, strict=True), strict=True)) if rows else {}
        )
        info = {"operation": "WRITE", "userMetadata": entry.to_json()}
        actions: list[dict[str, object]] = [{"commitInfo": info}]
        if rows:
            pq.write_table(pa.table(columns), self.root / f"{number}.parquet")
            actions.append({"add": {"path": f"{number}.parquet"}})
        log = self.root / "_delta_log" / f"{number:020}.json"
        log.write_text("\n".join(json.dumps(action) for action in actions))

    def restore(self, number: int, to: int, gone: list[int]) -> None:
        info = {"operation": "RESTORE", "operationParameters": {"version": str(to)}}
        actions: list[dict[str, object]] = [{"commitInfo": info}]
        actions += [{"remove": {"path": f"{each}.parquet"}} for each in gone]
        log = self.root / "_delta_log" / f"{number:020}.json"
        log.write_text("\n".join(json.dumps(action) for action in actions))

    def verdict(self) -> OracleVerdict:
        return check_table(self.root, TRUTH, app_id=APP, checkpoints=[self.checkpoint])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table(tmp_path)
    for number, offsets in enumerate([[], [0], [4, 8]]):
        made.commit(number, offsets, ENTRIES[number])
        made.plan(number, ENTRIES[number].read_through["j"])
    return made


def test_a_good_table_is_exact(table: Table) -> None:
    verdict = table.verdict()
    assert verdict.exact, verdict
    assert (verdict.rows, verdict.versions, verdict.entries) == (3, 3, 3)


@pytest.mark.parametrize(
    ("offsets", "entry", "found"),
    [
        pytest.param([0, 4, 8], ENTRIES[2], "I1", id="a row twice"),
        pytest.param([8], ENTRIES[2], "I2", id="a row missing"),
        pytest.param([4], ENTRIES[2], "I4", id="recorded past the rows"),
        pytest.param([4, 8], replace(ENTRIES[2], begin=at(0), end=at(0)), "I5", id="recorded goes back"),
        pytest.param([4, 8], replace(ENTRIES[2], parent="first"), "I5", id="another parent"),
        pytest.param([4, 8], replace(ENTRIES[2], begin=at(0)), "I5", id="begins before the end"),
        pytest.param([4], replace(ENTRIES[2], end=at(8)), "I6", id="ends where no batch was planned"),
    ],
)
def test_a_broken_version_is_seen(table: Table, offsets: list[int], entry: LedgerEntry, found: str) -> None:
    table.commit(2, offsets, entry)
    assert [text for text in table.verdict().violations if text.startswith(f"{found} version 2")]


def test_a_restored_entry_is_not_held_against_what_was_undone(table: Table) -> None:
    """The restored entry ends at its batch's planned end, though the undone version went further."""
    table.restore(3, 1, [2])
    verdict = check_table(table.root, TRUTH, app_id=APP, complete=False, checkpoints=[table.checkpoint])
    assert verdict.exact, verdict


def test_another_querys_checkpoint_says_nothing(table: Table) -> None:
    table.plan(2, 8)
    assert not table.verdict().exact
    (table.checkpoint / "metadata").write_text('{"id":"other"}')
    assert table.verdict().exact
