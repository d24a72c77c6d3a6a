"""An entry of many journals stores only what moved, and is read as if it had all positions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gazette_spark._ledger.decision import Write, decide
from gazette_spark._ledger.entry import (
    FEW_JOURNALS,
    MAX_DELTA_AGE_MS,
    MAX_DELTAS,
    Batch,
    EntryDelta,
    LedgerEntry,
    LedgerState,
    Positions,
    parse_entry,
)
from gazette_spark._ledger.history import HistoryRow, advanced, find_state, read_state, visible_entries
from gazette_spark.errors import LedgerFormatError
from gazette_spark.offsets import JournalOffsets

GOLDEN = Path(__file__).parents[2] / "golden" / "ledger"
MANY = 10_000


class Table:
    """A table's history to which a test commits batches."""

    def __init__(self, journals: int) -> None:
        self.ends = {f"shop/orders/part-{number:05}": 1_000_000_000_000 for number in range(journals)}
        self.rows: list[HistoryRow] = []
        self.batch_id = 0
        self.now_ms = 1_800_000_000_000
        self.write(())

    @property
    def newest_first(self) -> list[HistoryRow]:
        """Return the history in the order of Delta's DESCRIBE HISTORY."""
        return self.rows[::-1]

    def state(self) -> LedgerState:
        return read_state(lambda limit: self.newest_first[:limit], "orders", table="t")

    def move(self, count: int, *, after_ms: int = 1000, new: int = 0) -> LedgerEntry:
        """Write a batch in which some journals moved and some were pinned."""
        begin = JournalOffsets(self.ends)
        for number, journal in enumerate(list(self.ends)[:count]):
            self.ends[journal] += 1000 + number
        for number in range(new):
            self.ends[f"shop/new-{self.batch_id}-{number}"] = 7
        self.now_ms += after_ms
        return self.write((begin,))

    def write(self, begin: Positions) -> LedgerEntry:
        """Write a batch up to the current ends, and check that it is read back as decided."""
        end = JournalOffsets(self.ends, "" if begin else "pinned")
        wanted = Batch("t", "orders", "query-1", self.batch_id, begin, (end,), planned_ms=self.now_ms)
        known = self.state()
        decision = decide(known, wanted, attempt=f"attempt-{self.batch_id}")
        assert isinstance(decision, Write)
        self.batch_id += 1
        row = HistoryRow(len(self.rows), "WRITE", {"mode": "Append"}, decision.entry.to_json())
        self.rows.append(row)
        if known.entry is not None:
            followed = advanced(known, [row], "orders")
            assert followed is not None
            assert followed.entry == decision.entry
        assert self.state().entry == decision.entry
        return decision.entry


def size(row: HistoryRow) -> int:
    """Return the size of a row's entry in bytes."""
    assert row.user_metadata is not None
    return len(row.user_metadata.encode())


def test_an_entry_is_as_long_as_what_moved() -> None:
    """Of 10,000 journals 50 moved: the entry is below 20 KB, a hundredth of the size of all positions."""
    table = Table(MANY)
    table.move(50)
    assert size(table.rows[0]) > 1_000_000
    assert size(table.rows[1]) < 20_000
    table.move(0, new=2)
    assert size(table.rows[2]) < 1_000
    entries = list(visible_entries(table.newest_first, "orders", table="t"))
    assert [entry.batch_id for _, entry in entries] == [2, 1, 0]
    assert entries[0][1].start == (
        JournalOffsets({**entries[2][1].read_through, "shop/new-2-0": 7, "shop/new-2-1": 7}),
    )


def test_all_positions_come_again_after_some_entries_and_some_time() -> None:
    """A reader never goes far back, and a log clean-up never removes what newer entries need."""
    table = Table(FEW_JOURNALS + 1)
    full = size(table.rows[0])
    for _ in range(MAX_DELTAS + 1):
        table.move(1)
    stored = [size(row) > full / 2 for row in table.rows]
    assert stored == [True, *[False] * MAX_DELTAS, True]
    table.move(1)
    assert size(table.rows[-1]) < full / 2
    table.move(1, after_ms=MAX_DELTA_AGE_MS + 1)
    assert size(table.rows[-1]) > full / 2
    table.move(1, after_ms=-5)
    assert size(table.rows[-1]) > full / 2


def test_an_entry_has_what_moved_of_each_source() -> None:
    """Spark's text of another source cannot be split, so it is stored whole beside the moved journals."""
    many = {f"shop/{number}": 200 for number in range(FEW_JOURNALS + 1)}
    at = ('{"logOffset":2}', JournalOffsets(many))
    parent = LedgerEntry(
        "orders", 7, "q-1", 3, at, at, at, "attempt-1", None,
        planned_ms=1_800_000_000_000, full_ms=1_800_000_000_000,
    )  # fmt: skip
    end = ('{"logOffset":3}', JournalOffsets({**many, "shop/0": 300}))
    batch = Batch("t", "orders", "q-1", 4, at, end, planned_ms=1_800_000_001_000)
    decision = decide(LedgerState(parent), batch, attempt="attempt-2")
    assert isinstance(decision, Write)
    assert decision.entry.moved == ('{"logOffset":3}', {"shop/0": 300})
    stored = parse_entry(decision.entry.to_json(), "orders")
    assert isinstance(stored, EntryDelta)
    assert stored.on(parent) == decision.entry


def test_few_journals_have_all_positions_always() -> None:
    table = Table(FEW_JOURNALS)
    table.move(1)
    assert isinstance(parse_entry(table.rows[1].user_metadata, "orders"), LedgerEntry)


def test_an_entry_on_top_of_a_lost_one_is_lost() -> None:
    table = Table(FEW_JOURNALS + 1)
    table.move(1)
    table.move(1)
    newest = table.newest_first[:2]
    assert find_state(newest, "orders", table="t", complete=False) is None
    state = find_state(newest, "orders", table="t", complete=True)
    assert state is not None
    assert state.entry is None
    assert state.truncated
    assert state.txn_version == 2
    assert list(visible_entries(newest, "orders", table="t")) == []


def test_a_restored_table_goes_on_from_the_entry_it_was_restored_to() -> None:
    table = Table(FEW_JOURNALS + 1)
    first = table.move(1)
    kept = dict(table.ends)
    table.move(1)
    table.rows.append(HistoryRow(len(table.rows), "RESTORE", {"version": "1", "timestamp": None}))
    assert table.state().entry == first
    table.ends = kept
    table.move(2)
    assert isinstance(parse_entry(table.rows[-1].user_metadata, "orders"), EntryDelta)


def test_an_entry_that_goes_back_is_refused() -> None:
    """The rows behind its end would be written again."""
    table = Table(FEW_JOURNALS + 1)
    table.move(1)
    table.move(1)
    value = json.loads(table.rows[-1].user_metadata or "")
    ((journal, end),) = value["moved"][0].items()
    value["moved"] = [{journal: end - 2000}]
    table.rows[-1] = replace(table.rows[-1], user_metadata=json.dumps(value))
    problem = f"version {table.rows[-1].version}: its end of journal '{journal}' is {end - 2000}"
    with pytest.raises(LedgerFormatError, match=problem):
        table.state()


GOLDEN_DELTA = EntryDelta(
    LedgerEntry(
        "orders", 8, "q-1", 4, (), (), (), "attempt-2", "attempt-1",
        planned_ms=1_800_000_001_000, heads={"shop/a": 400}, deltas=1, full_ms=1_800_000_000_000,
    ),
    ({"shop/a": 300, "shop/new": [7, 7]}, '{"logOffset":3}'),
)  # fmt: skip


def test_the_stored_form_is_the_golden_one() -> None:
    """Tables outlive the release that wrote them."""
    text = (GOLDEN / "entry-2-moved.json").read_text()
    stored = parse_entry(text, "orders")
    assert stored == GOLDEN_DELTA
    positions = (JournalOffsets({"shop/a": 200, "shop/b": 5}), '{"logOffset":2}')
    parent = LedgerEntry("orders", 7, "q-1", 3, positions, positions, positions, "attempt-1", "attempt-0")
    assert isinstance(stored, EntryDelta)
    entry = stored.on(parent)
    assert entry is not None
    assert entry.start == (JournalOffsets({"shop/a": 200, "shop/b": 5, "shop/new": 7}), positions[1])
    assert entry.begin == (JournalOffsets({"shop/a": 200, "shop/b": 5, "shop/new": 7}), positions[1])
    assert entry.end == (JournalOffsets({"shop/a": 300, "shop/b": 5, "shop/new": 7}), '{"logOffset":3}')
    assert replace(entry, moved=stored.moved).to_json() == text.strip()
    assert stored.on(replace(parent, attempt="another")) is None
    assert stored.on(replace(parent, end=positions[:1])) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"moved": [{"shop/a": -1}]},
        {"moved": [{"shop/a": [3, 2]}]},
        {"moved": [{"shop/a": [3]}]},
        {"moved": [{"shop/a": "3"}]},
        {"moved": [3]},
        {"moved": None},
        {"parent": None},
        {"full_ms": None},
    ],
    ids=str,
)
def test_a_damaged_entry_is_refused(changes: dict[str, object]) -> None:
    """Any other interpretation would lose or double rows."""
    value = json.loads((GOLDEN / "entry-2-moved.json").read_text()) | changes
    with pytest.raises(LedgerFormatError, match="a field is missing or of the wrong type"):
        parse_entry(json.dumps(value), "orders")
