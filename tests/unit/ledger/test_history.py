"""The newest visible entry is found despite other commits, RESTORE, replacement and clean-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gazette_spark._ledger.entry import LedgerEntry, LedgerState
from gazette_spark._ledger.history import (
    FIRST_PAGE,
    HistoryRow,
    advanced,
    app_ids,
    find_state,
    history_row,
    read_state,
    visible_entries,
)
from gazette_spark._verify.tiling import changed_rows, commits_of_others
from gazette_spark.errors import LedgerFormatError, RestoredError
from gazette_spark.offsets import JournalOffsets

APP = "app"


def ours(version: int, number: int, app_id: str = APP) -> HistoryRow:
    """Return a commit of the sink whose attempt is its transaction number as text."""
    ends = (JournalOffsets({"x/a": number}),)
    entry = LedgerEntry(app_id, number, "q", number, ends, ends, ends, str(number), str(number - 1))
    return HistoryRow(version, "WRITE", {"mode": "Append"}, entry.to_json(), f"time {version}")


def other(version: int, operation: str = "OPTIMIZE") -> HistoryRow:
    return HistoryRow(version, operation, {}, None)


def restore(version: int, to: int) -> HistoryRow:
    return HistoryRow(version, "RESTORE", {"version": str(to), "timestamp": None})


def repeated(version: int, number: int) -> HistoryRow:
    """Return Delta's automatic compaction after one of our commits, in the same session."""
    return replace(ours(version, number), operation="OPTIMIZE")


def found(*oldest_first: HistoryRow, complete: bool = True) -> LedgerState | None:
    return find_state(oldest_first[::-1], APP, table="t", complete=complete)


def summary(*oldest_first: HistoryRow) -> tuple[str | None, str | None, int]:
    state = found(*oldest_first)
    assert state is not None
    return state.entry.attempt if state.entry else None, state.previous, state.txn_version


def test_undone_entries_say_where_rows_began() -> None:
    rows = [other(0, "WRITE"), ours(1, 5), ours(2, 6), restore(3, 0)]
    state = found(*rows)
    assert state is not None
    assert state.entry is None
    assert state.undone == (JournalOffsets({"x/a": 6}),)
    assert summary(*rows[:3]) == ("6", "5", 6)


def test_no_table_has_no_state() -> None:
    assert found() == LedgerState()


def test_commits_of_others_are_passed_over() -> None:
    state = found(ours(0, 0), other(1), ours(2, 1), ours(3, 7, "another"), other(4))
    assert state is not None
    assert (state.entry and state.entry.attempt, state.previous, state.txn_version) == ("1", "0", 1)
    assert (state.table_version, state.entry_version, state.entry_time) == (4, 2, "time 2")


CASES = [
    pytest.param([ours(0, 0), ours(1, 1), restore(2, 0)], ("0", None, 1), id="restore"),
    pytest.param([ours(0, 0), ours(1, 1), restore(2, 0), ours(3, 2)], ("2", "0", 2), id="write on a restore"),
    pytest.param(
        [ours(0, 0), ours(1, 1), restore(2, 0), ours(3, 2), restore(4, 1)], ("1", "0", 2), id="restore undone"
    ),
    pytest.param(
        [ours(0, 0), ours(1, 1), restore(2, 0), other(3), restore(4, 3)],
        ("0", None, 1),
        id="restore to a restore",
    ),
    pytest.param(
        [other(0, "CREATE TABLE"), ours(1, 0), restore(2, 0)], (None, None, 0), id="restore to nothing"
    ),
    pytest.param([ours(0, 0), other(1, "CREATE OR REPLACE TABLE")], (None, None, 0), id="replaced"),
    pytest.param([other(0, "CLONE")], (None, None, -1), id="cloned"),
    pytest.param(
        [ours(0, 0), repeated(1, 0), ours(2, 1), repeated(3, 1)], ("1", "0", 1), id="repeated by compactions"
    ),
    pytest.param(
        [ours(0, 0), repeated(1, 0), ours(2, 1), restore(3, 1)], ("0", None, 1), id="restore to a compaction"
    ),
]


@pytest.mark.parametrize(("rows", "expected"), CASES)
def test_what_is_undone_is_not_visible_but_its_number_counts(
    rows: list[HistoryRow], expected: tuple[str | None, str | None, int]
) -> None:
    """The highest number includes undone entries, because Delta would skip a number that is used again."""
    assert summary(*rows) == expected


@pytest.mark.parametrize(
    ("oldest_first", "attempts"),
    [
        pytest.param([ours(0, 0), other(1), ours(2, 1)], ["1", "0"], id="plain"),
        pytest.param([ours(0, 0), ours(1, 1), restore(2, 0), ours(3, 2)], ["2", "0"], id="restored"),
        pytest.param([ours(0, 0), other(1, "REPLACE TABLE"), ours(2, 1)], ["1"], id="replaced"),
        pytest.param([ours(4, 3), ours(5, 4)], ["4", "3"], id="cleaned up"),
        pytest.param(
            [ours(0, 0), repeated(1, 0), ours(2, 1), restore(3, 1), ours(4, 2), repeated(5, 2)],
            ["2", "0"],
            id="repeated by compactions",
        ),
        pytest.param([], [], id="no table"),
    ],
)
def test_entries_whose_rows_are_visible(oldest_first: list[HistoryRow], attempts: list[str]) -> None:
    entries = visible_entries(oldest_first[::-1], APP, table="t")
    assert [entry.attempt for _, entry in entries] == attempts


def test_an_entry_is_of_the_commit_that_brought_its_rows() -> None:
    """A compaction repeats the entry later, so a RESTORE must use the first of the two commits."""
    rows = [ours(0, 0), ours(1, 1), repeated(2, 1)]
    state = found(*rows)
    assert state is not None
    assert (state.entry_version, state.entry_time, state.table_version) == (1, "time 1", 2)
    assert [row.version for row, _ in visible_entries(rows[::-1], APP, table="t")] == [1, 0]


def test_a_restore_to_a_time_is_followed_where_the_version_is_found() -> None:
    to_a_time = HistoryRow(3, "RESTORE", {"version": None, "timestamp": "2026-11-22 10:00:00.0"})
    rows = [ours(0, 0), ours(1, 1), ours(2, 2), to_a_time][::-1]
    asked: list[int] = []

    def restored(row: HistoryRow, among: Sequence[HistoryRow]) -> int:
        asked.append(row.version)
        assert among == rows
        return 1

    state = find_state(rows, APP, table="t", complete=True, restored=restored)
    assert state is not None
    assert state.entry is not None
    assert (state.entry.attempt, state.previous, state.jumps, asked) == ("1", "0", (), [3])
    assert read_state(lambda _: rows, APP, table="t", restored=restored) == state
    assert find_state(rows, APP, table="t", complete=False) is None


def test_a_restore_to_a_time_is_refused() -> None:
    """The log does not record which version it was. The error says how to make it explicit."""
    row = HistoryRow(2, "RESTORE", {"version": None, "timestamp": "2026-01-01 00:00:00"})
    rows = [row, ours(1, 1), ours(0, 0)]
    message = r"^table t, app id 'app': version 2 .*2026-01-01 00:00:00.* RESTORE TABLE … TO VERSION AS OF"
    for read in (
        lambda: find_state(rows, APP, table="t", complete=True),
        lambda: list(visible_entries(rows, APP, table="t")),
    ):
        with pytest.raises(RestoredError, match=message):
            read()
    assert summary(ours(0, 0), ours(1, 1), row, restore(3, 1)) == ("1", "0", 1)


def test_the_version_of_a_damaged_entry_is_named() -> None:
    """The user has to restore the version before that commit."""
    whole = ours(1, 1)
    cut = replace(whole, user_metadata=str(whole.user_metadata)[:-1])
    state = found(ours(0, 0))
    assert state is not None
    for read in (
        lambda: found(ours(0, 0), cut, other(2)),
        lambda: list(visible_entries([cut, ours(0, 0)], APP, table="t")),
        lambda: advanced(state, [cut, other(2)], APP),
    ):
        with pytest.raises(LedgerFormatError, match=r"^app id 'app': .*: version 1: .*not JSON"):
            read()


@pytest.mark.parametrize("to", ["2", "3", "9" * 5000], ids=["itself", "a later one", "no version"])
def test_a_restore_to_no_earlier_version_is_refused(to: str) -> None:
    """Delta writes no such RESTORE, and following it would not end."""
    rows = [HistoryRow(2, "RESTORE", {"version": to}), ours(1, 1), ours(0, 0)]
    for read in (
        lambda: find_state(rows, APP, table="t", complete=True),
        lambda: list(visible_entries(rows, APP, table="t")),
    ):
        with pytest.raises(RestoredError, match="version 2 restored the table to a version that its commit"):
            read()


def test_a_cleaned_up_history_is_told_from_a_short_one() -> None:
    """Versions below 5 were cleaned up, so their content is unknown instead of absent."""
    state = found(other(5), other(6))
    assert state is not None
    assert (state.entry, state.truncated) == (None, True)
    short = found(other(0), other(1))
    assert short is not None
    assert short.truncated is False


@pytest.mark.parametrize(
    "rows",
    [[other(5), other(6)], [ours(5, 5), restore(6, 3)], [other(5), other(6, "REPLACE TABLE"), other(7)]],
    ids=["no entry", "restored before it", "replaced, and numbers from before count"],
)
def test_a_page_that_does_not_tell_asks_for_more(rows: list[HistoryRow]) -> None:
    assert found(*rows, complete=False) is None


def test_a_replacement_ends_the_search_in_any_page() -> None:
    """Older entries belong to rows that are gone, whether or not the page has older commits."""
    state = found(ours(4, 0), other(5, "REPLACE TABLE"), ours(6, 1), complete=False)
    assert state is not None
    assert state.entry is not None
    assert (state.entry.attempt, state.previous, state.jumps) == ("1", None, (5,))


def test_history_is_read_in_growing_pages_and_no_further_than_needed() -> None:
    """A table with 10,000 versions costs one small page if the newest commit is ours."""
    rows = [other(version) for version in range(10_000)]
    rows[-3], rows[-4] = ours(9_997, 1), ours(9_996, 0)
    asked: list[int] = []

    def read_page(limit: int) -> list[HistoryRow]:
        asked.append(limit)
        return rows[::-1][:limit]

    state = read_state(read_page, APP, table="t")
    assert state.entry is not None
    assert asked == [FIRST_PAGE]
    rows[-3], rows[-4], rows[-100], rows[-101] = other(9_997), other(9_996), ours(9_900, 1), ours(9_899, 0)
    assert read_state(read_page, APP, table="t").entry_version == 9_900
    assert asked == [FIRST_PAGE, FIRST_PAGE, FIRST_PAGE * 16]


def test_a_commits_information_is_a_line_of_the_history() -> None:
    """Spark writes a restored version as a number, while ``DESCRIBE HISTORY`` shows text."""
    info = {
        "version": 3,
        "timestamp": 1500,
        "operation": "RESTORE",
        "operationParameters": {"version": 1, "timestamp": None},
        "userMetadata": "of the session",
        "operationMetrics": {"numRestoredFiles": "1"},
    }
    assert history_row(info) == HistoryRow(
        3,
        "RESTORE",
        {"version": "1", "timestamp": None},
        "of the session",
        "1970-01-01 00:00:01.500+00:00",
        {"numRestoredFiles": "1"},
    )
    assert history_row({"version": 4}) == HistoryRow(4, time="1970-01-01 00:00:00.000+00:00")


ANYTHING = [None, 5, -1, True, 0.5, 1e300, 10**18, 10**30, "", "x", [], [1], {}, {"version": "9" * 5000}]


@pytest.mark.parametrize(
    "field", ["timestamp", "operation", "operationParameters", "operationMetrics", "userMetadata"]
)
@pytest.mark.parametrize("value", ANYTHING, ids=lambda value: repr(value)[:20])
def test_a_commit_of_others_may_say_anything_about_itself(field: str, value: object) -> None:
    """Delta's protocol allows any object as commitInfo. Such a commit must not hide an entry before it."""
    row = history_row({"version": 1, field: value})
    state = found(ours(0, 0), row)
    assert state is not None
    assert (state.entry and state.entry.attempt, state.table_version) == ("0", 1)
    assert changed_rows(row) == {}
    assert app_ids([row]) == []


@pytest.mark.parametrize(
    ("operation", "metrics", "rows"),
    [
        pytest.param("WRITE", {"num_added_rows": 3, "num_removed_files": 0}, {"added": 3}, id="append"),
        pytest.param(
            "STREAMING UPDATE", {"numOutputRows": "6", "numRemovedFiles": "0"}, {"added": 6}, id="stream"
        ),
        pytest.param("STREAMING UPDATE", {"numOutputRows": "2", "numRemovedFiles": "1"}, {}, id="complete"),
        pytest.param("WRITE", {"num_added_rows": 0, "num_removed_files": 1}, {}, id="emptied by deltalake"),
        pytest.param("WRITE", {"numOutputRows": "0", "numRemovedFiles": "1"}, {}, id="emptied by Spark"),
        pytest.param(
            "WRITE",
            {"numOutputRows": "2", "numRemovedFiles": "1", "numDeletedRows": "1"},
            {"added": 2, "deleted": 1},
            id="replaceWhere",
        ),
        pytest.param(
            "MERGE", {"numOutputRows": "9", "numTargetRowsInserted": "1"}, {"added": 1}, id="copied rows"
        ),
    ],
)
def test_metrics_count_the_changed_rows(operation: str, metrics: dict[str, object], rows: object) -> None:
    """An overwrite does not count the rows of the files that it removes, so their number is unknown."""
    commit = HistoryRow(1, operation, metrics=metrics)
    assert changed_rows(commit) == rows
    assert [each.rows for each in commits_of_others([commit], [])] == [rows]
