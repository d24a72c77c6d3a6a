"""A search from the newest commit and an incremental walk from an older one find the same state."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._ledger.entry import LedgerEntry, LedgerState
from gazette_spark._ledger.history import HistoryRow, advanced, find_state
from gazette_spark.offsets import JournalOffsets

HERE = (JournalOffsets({"a": 0}),)


@st.composite
def histories(draw: st.DrawFn) -> list[HistoryRow]:
    """Draw commits of two writers and of others, with RESTORE and replacement among them; oldest first.

    "compaction" is Delta's own after a commit: it repeats the commit's entry.
    """
    rows: list[HistoryRow] = []
    newest: dict[str, str | None] = {"app": None, "other": None}
    kinds = st.sampled_from(
        ["app", "app", "app", "other", "compaction", "OPTIMIZE", "RESTORE", "REPLACE TABLE"]
    )
    for version in range(draw(st.integers(1, 9))):
        kind = draw(kinds)
        if kind in newest:
            entry = LedgerEntry(kind, version, "q", version, HERE, HERE, HERE, f"try-{version}", newest[kind])
            newest[kind] = entry.attempt
            rows.append(HistoryRow(version, "WRITE", {}, entry.to_json(), f"at {version}"))
        elif kind == "compaction" and rows and rows[-1].user_metadata:
            rows.append(HistoryRow(version, "OPTIMIZE", {}, rows[-1].user_metadata, f"at {version}"))
        elif kind == "RESTORE" and version:
            rows.append(HistoryRow(version, kind, {"version": str(draw(st.integers(0, version - 1)))}))
        else:
            rows.append(HistoryRow(version, kind if kind == "REPLACE TABLE" else "OPTIMIZE"))
    return rows


def searched(rows: list[HistoryRow]) -> LedgerState:
    """Return the state as a search finds it, without the fields that only its errors use."""
    state = find_state(rows[::-1], "app", table="t", complete=True)
    assert state is not None
    return replace(state, jumps=())


@given(histories(), st.data())
def test_following_a_history_is_searching_it(rows: list[HistoryRow], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(rows)))
    state = advanced(searched(rows[:cut]), rows[cut:], "app")
    undone = any(row.operation in {"RESTORE", "REPLACE TABLE"} for row in rows[cut:])
    assert state is not None or undone or searched(rows[:cut]).entry is None
    if state is not None:
        assert not undone
        assert state == searched(rows)
