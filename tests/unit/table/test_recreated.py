"""Ledgers that begin or continue by an explicit entry: adopted tables, and recreated journals."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from delta.exceptions import ConcurrentTransactionException
from pyspark.sql.types import StructType

from gazette_spark._delta.adopt import adopt, fingerprint_at, first_entry, recreated_entry
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._ledger.decision import Allowed, NewRange, Refusal, Skip, Write, decide
from gazette_spark._ledger.entry import Batch, LedgerEntry, LedgerState, parse_entry
from gazette_spark._verify.tiling import Tiling, check_contiguous
from gazette_spark.errors import OffsetBeyondHeadError, TableRefusedError
from gazette_spark.offsets import Fingerprint, JournalOffsets
from tests.oracles.brokers import FakeClient, FakeJournal

END = (JournalOffsets({"x/a": 700, "x/b": 40}), JournalOffsets({"x/a": 900}))
OLD = b"".join(b"old %05d\n" % number for number in range(90))
PRINTS = {"x/a": Fingerprint.of(OLD, 900, 3), "x/b": Fingerprint(40, 40, create_revision=4)}
ENTRY = LedgerEntry(
    "app", 4, "q", 2, END, END, END, "first", "older", planned_ms=99, fingerprints=PRINTS
)  # fmt: skip


def test_rows_go_on_where_the_new_journal_begins() -> None:
    new_print = Fingerprint.of(b"new 0", 5, 8)
    offsets = JournalOffsets({"x/a": 5}, fingerprints={"x/a": new_print})
    entry = recreated_entry(LedgerState(ENTRY, "older", 6, 10, 9), offsets, "second")
    assert entry.fingerprints == {"x/a": new_print, "x/b": PRINTS["x/b"]}
    new = (JournalOffsets({"x/a": 5, "x/b": 40}), JournalOffsets({"x/a": 5}))
    assert (entry.start, entry.begin, entry.end) == (new, new, new)
    assert entry.recreated == {"x/a": 700}
    assert parse_entry(entry.to_json(), "app") == entry
    state = LedgerState(entry, "first", 7, 11, 11)
    end = (JournalOffsets({"x/a": 9, "x/b": 40}), new[1])
    decision = decide(state, Batch("t", "app", "q-2", 1, new, end, planned_ms=101), attempt="mine")
    assert isinstance(decision, Write)
    assert decision.entry.recreated == {}
    assert decision.entry.start == new


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "of another caller"])
def test_a_conflict_does_not_end_an_adoption(monkeypatch: pytest.MonkeyPatch, is_own: bool) -> None:
    """Delta raises one if the answer of the commit was lost, or if another caller was faster."""
    states = [LedgerState(table_version=5)]

    def append(_table: DeltaTable, _rows: object, entry: LedgerEntry, **_options: bool) -> None:
        made = entry if is_own else replace(entry, attempt="other")
        states.append(LedgerState(made, None, entry.txn_version, 6, 6))
        raise ConcurrentTransactionException("an application with the same id has committed")

    monkeypatch.setattr(DeltaTable, "ledger", lambda *_: states[-1])
    monkeypatch.setattr(DeltaTable, "rows", lambda *_: MagicMock(schema=StructType()))
    monkeypatch.setattr(DeltaTable, "append", append)
    entry = adopt(DeltaTable(path="/t", table=None), MagicMock(), "app", JournalOffsets({"a": 7}))
    assert entry.read_through == {"a": 7}


def test_an_adopted_ledger_of_committed_messages_says_where_their_query_began() -> None:
    entry = first_entry("app", JournalOffsets({"x/a": 70}, starts={"x/a": 10}), 5, "append")
    assert parse_entry(entry.to_json(), "app") == entry
    assert (entry.isolation, entry.starts, entry.read_through) == ("read_committed", {"x/a": 10}, {"x/a": 70})
    state = LedgerState(entry, None, 5, 10, 10)

    def batch(number: int, begin: int, end: int, since: int = 10) -> Batch:
        ends = (JournalOffsets({"x/a": end}, "" if number else "pinned", starts={"x/a": since}),)
        begins = (JournalOffsets({"x/a": begin}),) if number else ()
        return Batch("t", "app", "q", number, begins, ends, planned_ms=7)

    trim = Allowed(trim=True)
    assert isinstance(decide(state, batch(0, 10, 10), attempt="mine", allowed=trim), Skip)
    made = decide(state, batch(1, 10, 90), attempt="mine", allowed=trim)
    assert isinstance(made, Write)
    assert made.new_ranges == (NewRange("x/a", 10, 70, 90),)
    refused = decide(state, batch(0, 70, 70, since=20), attempt="mine", allowed=trim)
    assert isinstance(refused, Refusal)
    assert isinstance(refused.error, TableRefusedError)
    tiling = check_contiguous("app", [(3, entry), (4, made.entry)], cleaned_up=False)
    assert isinstance(tiling, Tiling)
    [claim] = tiling.claims
    assert (claim.start, claim.end, claim.adopted, claim.committed) == (10, 90, True, True)


NEW = b"new" * 400
RECORDED = [Fingerprint.of(OLD[:end], end, 3) for end in range(100, 1000, 100)]
"""Fingerprints of nine batches, up to offset 900."""


@pytest.mark.parametrize(
    ("journal", "least"),
    [
        pytest.param(FakeJournal(NEW), 0, id="other_bytes"),
        pytest.param(FakeJournal(b""), 0, id="empty"),
        pytest.param(FakeJournal(OLD + NEW), 900, id="all_bytes"),
        pytest.param(FakeJournal(OLD), 900, id="all_bytes_and_no_more"),
        pytest.param(FakeJournal(OLD[:430]), 400, id="the_first_bytes"),
        pytest.param(FakeJournal(OLD[:430] + NEW), 400, id="the_first_bytes_and_others"),
        pytest.param(FakeJournal(OLD[350:430] + NEW, begin=350), 800, id="retention_has_taken_some"),
        pytest.param(FakeJournal(NEW, begin=950), 900, id="retention_has_taken_all"),
    ],
)
def test_no_offset_is_adopted_behind_which_the_journal_has_rows_of_the_table(
    journal: FakeJournal, least: int
) -> None:
    """Rows that remain in the old journal would be written twice."""
    client = FakeClient({"x/a": journal})
    for offset in {0, least - 1, least, journal.head} - {-1}:
        if offset > journal.head:
            continue
        if offset < least:
            with pytest.raises(TableRefusedError, match=f"has the bytes up to offset {least}, .* rows twice"):
                fingerprint_at(client, "x/a", offset, RECORDED, end=900, table="t")  # type: ignore[arg-type]  # A fake client.
            continue
        found = fingerprint_at(client, "x/a", offset, RECORDED, end=900, table="t")  # type: ignore[arg-type]  # A fake client.
        assert (found.end, found.create_revision) == (offset, 1)
    assert len(client.reads) <= 5 * 4
    with pytest.raises(OffsetBeyondHeadError):
        fingerprint_at(client, "x/a", journal.head + 1, RECORDED, end=900, table="t")  # type: ignore[arg-type]  # A fake client.


@pytest.mark.parametrize(
    ("content", "end", "way_out"),
    [
        pytest.param(OLD, 900, "There is nothing to adopt: start with a new checkpoint", id="same"),
        pytest.param(OLD[:430], 900, r"differ from the table's somewhere in \[400, 500\)", id="lost"),
        pytest.param(OLD, 960, r"differ from the table's somewhere in \[900, 960\)", id="not_recorded"),
    ],
)
def test_a_refusal_says_where_to_go_on(content: bytes, end: int, way_out: str) -> None:
    client = FakeClient({"x/a": FakeJournal(content)})
    with pytest.raises(TableRefusedError, match=way_out):
        fingerprint_at(client, "x/a", 0, RECORDED, end=end, table="t")  # type: ignore[arg-type]  # A fake client.
