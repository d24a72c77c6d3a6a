"""A table's history or a query checkpoint becomes the steps of a query."""

from __future__ import annotations

import json

from gazette_spark._ledger.entry import LedgerEntry, SkippedGap
from gazette_spark._ledger.history import HistoryRow, app_ids
from gazette_spark._ledger.positions import (
    checkpoint_commit,
    finished_batches,
    reaches_back,
    table_commits,
)
from gazette_spark.offsets import JournalOffsets


def entry(offset: int, app_id: str = "orders") -> str:
    at = (JournalOffsets({"a/b": offset}),)
    return LedgerEntry(app_id, offset, "query", 1, at, at, at, f"attempt-{offset}", None).to_json()


def history(*operations: tuple[str, str | None]) -> list[HistoryRow]:
    """Return rows of (operation, metadata or restored version), newest first, a second apart."""
    return [
        HistoryRow(
            version,
            operation=operation,
            parameters={"version": detail} if operation == "RESTORE" else {},
            user_metadata=None if operation == "RESTORE" else detail,
            time=f"1970-01-01 00:00:{version:02}.500+00:00",
        )
        for version, (operation, detail) in reversed(list(enumerate(operations)))
    ]


def steps(rows: list[HistoryRow], known: int = -1) -> list[tuple[int, int, int]]:
    """Return (order, time, offset of a/b) of each step."""
    return [
        (each.order, each.timestamp_ms, each.read_through["a/b"])
        for each in table_commits(rows, "orders", known)
    ]


def test_each_entry_is_a_step() -> None:
    rows = history(
        ("WRITE", entry(10)), ("OPTIMIZE", None), ("WRITE", entry(99, "else")), ("WRITE", entry(30))
    )
    assert steps(rows) == [(0, 500, 10), (3, 3500, 30)]
    assert steps(rows, known=0) == [(3, 3500, 30)]
    assert app_ids(rows) == ["else", "orders"]


def test_steps_say_what_they_are() -> None:
    at = (JournalOffsets({"a/b": 50}),)
    fence = LedgerEntry("orders", 5, "other", 1, at, at, at, "fence", None, is_fence=True).to_json()
    other = LedgerEntry("orders", 4, "other", 1, at, at, at, "x", None).to_json()
    rows = history(
        ("WRITE", entry(10)),
        ("WRITE", entry(20)),
        ("RESTORE", "0"),
        ("WRITE", entry(30)),
        ("WRITE", other),
        ("WRITE", fence),
    )
    events = [step.event for step in table_commits(rows, "orders")]
    assert events == ["commit", "commit", "restore", "commit", "start", "start"]


def test_an_entry_that_a_compaction_repeats_is_one_step() -> None:
    assert steps(history(("MERGE", entry(10)), ("OPTIMIZE", entry(10)))) == [(0, 500, 10)]


def test_a_restore_is_a_step_back() -> None:
    rows = history(
        ("WRITE", entry(10)), ("OPTIMIZE", None), ("WRITE", entry(30)), ("RESTORE", "1"), ("WRITE", entry(20))
    )
    assert steps(rows) == [(0, 500, 10), (2, 2500, 30), (3, 3500, 10), (4, 4500, 20)]


def test_a_restore_of_a_restore_is_followed() -> None:
    rows = history(
        ("WRITE", entry(10)), ("WRITE", entry(30)), ("RESTORE", "0"), ("RESTORE", "1"), ("RESTORE", "2")
    )
    assert [offset for _, _, offset in steps(rows)] == [10, 30, 10, 30, 10]


def test_a_restore_to_what_is_not_known_is_no_step() -> None:
    rows = history(("WRITE", entry(10)), ("WRITE", entry(30)), ("RESTORE", "0"))[:-1]
    assert steps(rows) == [(1, 1500, 30)]
    assert reaches_back(rows)
    assert not reaches_back(rows[1:])
    assert steps([HistoryRow(2, operation="RESTORE", time="1970-01-01 00:00:02.000+00:00"), *rows[1:]]) == [
        (1, 1500, 30)
    ]


def test_what_was_replaced_is_gone() -> None:
    rows = history(("WRITE", entry(10)), ("CLONE", None), ("WRITE", entry(30)), ("RESTORE", "1"))
    assert steps(rows) == [(0, 500, 10), (2, 2500, 30)]


def test_metadata_of_others_is_left_alone() -> None:
    rows = history(("WRITE", "no json"), ("WRITE", json.dumps([1])), ("WRITE", json.dumps({"app_id": 7})))
    assert app_ids(rows) == []
    assert steps(rows) == []


def test_a_step_has_the_heads_its_batch_saw() -> None:
    at = (JournalOffsets({"a/b": 10, "a/c": 5}),)
    seen = LedgerEntry("orders", 1, "query", 1, at, at, at, "x", None, planned_ms=1, heads={"a/b": 30})
    old = LedgerEntry("orders", 2, "query", 2, at, at, at, "y", "x")
    turn = LedgerEntry("orders", 3, "query", 3, at, at, at, "z", "y", is_fence=True)
    entries = [("WRITE", each.to_json()) for each in (seen, old, turn)]
    steps = table_commits(history(*entries, ("RESTORE", "0")), "orders")
    assert [each.heads for each in steps] == [{"a/b": 30, "a/c": 5}, {}, {}, {}]
    assert [each.planned_ms for each in steps] == [1, None, None, None]


def test_a_step_has_the_gaps_of_its_batch_once() -> None:
    at = (JournalOffsets({"a/b": 10}),)
    gaps = (SkippedGap("a/b", 0, 4), SkippedGap("a/b", 6, 8))
    text = LedgerEntry(
        "orders", 1, "q", 1, at, at, at, "x", None, gaps=gaps, accepted_gaps=gaps[:1], trimmed_bytes=3
    ).to_json()
    steps = table_commits(
        history(("WRITE", text), ("OPTIMIZE", text), ("WRITE", entry(30)), ("RESTORE", "0")), "orders"
    )
    assert [(each.gaps, each.accepted_gaps) for each in steps] == [(gaps, gaps[:1]), ((), ()), ((), ())]
    assert [each.trimmed_bytes for each in steps] == [3, 0, 0]


def test_a_batch_of_a_query_checkpoint_has_the_heads_its_plan_saw() -> None:
    new = JournalOffsets({"a/b": 10, "a/c": 5}, revision=3, heads={"a/b": 30})
    step = checkpoint_commit(3, (new, JournalOffsets({"a/d": 1})), 1000)
    assert step is not None
    assert step.heads == {"a/b": 30, "a/c": 5}


def test_a_batch_counts_once_it_is_committed() -> None:
    """Spark writes a batch's end before it runs, and its commit afterwards."""
    assert list(finished_batches(["0", "1", "2", "10"], ["0", "1", "10", ".10.crc"])) == [10, 1, 0]


def test_a_batch_of_several_sources_is_as_far_as_the_last_of_them() -> None:
    ends = (JournalOffsets({"a/b": 10, "a/c": 5}), "foreign", None, JournalOffsets({"a/b": 7}))
    step = checkpoint_commit(3, ends, 1000)
    assert step is not None
    assert (step.order, step.timestamp_ms, step.read_through) == (3, 1000, {"a/b": 7, "a/c": 5})
    assert checkpoint_commit(3, ("foreign",), 1000) is None
