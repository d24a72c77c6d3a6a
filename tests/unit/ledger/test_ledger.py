"""The table's ledger alone decides whether a batch is written, skipped or refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from gazette_spark._ledger.decision import (
    Allowed,
    Committed,
    Coverage,
    Decision,
    NewRange,
    Refusal,
    Retry,
    Skip,
    Write,
    coverage_of,
    decide,
    verify,
)
from gazette_spark._ledger.entry import Batch, LedgerEntry, LedgerState, Positions, SkippedGap, parse_entry
from gazette_spark.errors import (
    FencedError,
    GapError,
    LedgerFormatError,
    LedgerLostError,
    Mismatch,
    OverlapError,
    RestoredError,
    TableRefusedError,
    TrimError,
)
from gazette_spark.offsets import JournalOffsets

GOLDEN = Path(__file__).parents[2] / "golden" / "ledger"


def at(**offsets: int) -> JournalOffsets:
    """Return a position in journals ``x/a``, ``x/b``, ... of one source."""
    return JournalOffsets({f"x/{name}": offset for name, offset in offsets.items()})


def batch(batch_id: int, begin: Positions, end: Positions) -> Batch:
    return Batch("t", "app", "query-1", batch_id, begin, end)


def entry(end: Positions, *, start: Positions | None = None, txn_version: int = 4) -> LedgerEntry:
    return LedgerEntry(
        "app", txn_version, "query-1", 3, end if start is None else start, end, end, "newest", "older"
    )


def state(end: Positions, *, start: Positions | None = None, **changes: object) -> LedgerState:
    known = LedgerState(entry(end, start=start), "older", 4, 10, 9, "noon")
    return replace(known, **changes)  # type: ignore[arg-type]  # Fields by name, of mixed types.


def decided(known: LedgerState, wanted: Batch, seen: str | None = None) -> Decision:
    return decide(known, wanted, attempt="mine", seen=seen)


def refusal(known: LedgerState, wanted: Batch, seen: str | None = None) -> Exception:
    decision = decided(known, wanted, seen)
    assert isinstance(decision, Refusal)
    return decision.error


ONE_JOURNAL = [
    pytest.param(10, 20, 10, Coverage.NEXT, id="continues"),
    pytest.param(10, 10, 10, Coverage.UNCHANGED, id="has not moved"),
    pytest.param(10, 10, None, Coverage.NEXT, id="new journal is pinned"),
    pytest.param(10, 20, None, Coverage.GAP, id="unknown journal has rows"),
    pytest.param(10, 20, 20, Coverage.COVERED, id="replay of the newest"),
    pytest.param(10, 20, 30, Coverage.COVERED, id="replay of an older one"),
    pytest.param(10, 10, 30, Coverage.COVERED, id="unmoved and behind"),
    pytest.param(11, 20, 10, Coverage.GAP, id="one byte is missing"),
    pytest.param(11, 11, 10, Coverage.GAP, id="unmoved and ahead"),
    pytest.param(9, 20, 10, Coverage.PARTIAL, id="one byte is doubled"),
    pytest.param(3, 8, 10, Coverage.OVERLAP, id="lies before the first byte"),
    pytest.param(10, 9, 10, Coverage.OVERLAP, id="goes back"),
]


@pytest.mark.parametrize(("begin", "end", "recorded", "fit"), ONE_JOURNAL)
def test_one_journal_fits_by_its_offsets(begin: int, end: int, recorded: int | None, fit: Coverage) -> None:
    """The cases are the table in the module's docstring. The table's rows begin at byte 5."""
    assert coverage_of(begin, end, recorded, 5, pinning=False) is fit


def test_a_first_batch_is_never_covered() -> None:
    assert coverage_of(10, 10, 30, 5, pinning=True) is Coverage.OVERLAP
    assert coverage_of(30, 30, 30, 5, pinning=True) is Coverage.UNCHANGED


def test_the_first_batch_on_a_new_table_is_its_first_entry() -> None:
    first = batch(0, (), (at(a=7, b=0).at("pinned"),))
    expected = LedgerEntry(
        "app", 0, "query-1", 0, (at(a=7, b=0),), (at(a=7, b=0),), (at(a=7, b=0),), "mine", None
    )
    assert decided(LedgerState(), first) == Write(expected)


def test_a_batch_that_continues_is_written_on_top() -> None:
    known = state((at(a=10, b=5),), start=(at(a=1, b=2),))
    decision = decided(known, batch(4, (at(a=10),), (at(a=20, c=3),)))
    assert isinstance(decision, Write)
    assert decision.entry.start == (at(a=1, b=2, c=3),)
    assert decision.entry.begin == (at(a=10, b=5, c=3),)
    assert decision.entry.end == (at(a=20, b=5, c=3),)
    assert (decision.entry.parent, decision.entry.txn_version) == ("newest", 5)


def test_numbers_undone_by_restore_are_not_used_again() -> None:
    """Delta keeps the numbers of undone commits and would silently skip a lower one."""
    decision = decided(state((at(a=10),), txn_version=9), batch(4, (at(a=10),), (at(a=20),)))
    assert isinstance(decision, Write)
    assert decision.entry.txn_version == 10


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        pytest.param(at(a=5, b=5), at(a=10, b=5), id="the newest batch"),
        pytest.param(at(a=1, b=2), at(a=5, b=5), id="an older one"),
        pytest.param(at(a=10, b=5), at(a=10, b=5), id="nothing new"),
    ],
)
def test_a_replay_is_skipped(begin: JournalOffsets, end: JournalOffsets) -> None:
    known = state((at(a=10, b=5),), start=(at(a=0, b=0),))
    assert decided(known, batch(4, (begin,), (end,))) == Skip()


def test_a_gap_names_journal_and_offsets() -> None:
    error = refusal(state((at(a=10, b=5),)), batch(4, (at(a=10, b=8),), (at(a=20, b=9),)))
    assert isinstance(error, GapError)
    assert error.mismatches == (Mismatch("journal 'x/b'", 5, 8, 9, "x/b"),)
    assert "journal 'x/b': the table ends at 5, the batch is [8, 9)" in str(error)
    assert "DeltaSink.resume_offsets()" in str(error)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        pytest.param(at(a=5, b=5), at(a=15, b=5), id="straddles the end"),
        pytest.param(at(a=5, b=5), at(a=10, b=9), id="one journal covered, one new"),
    ],
)
def test_a_partly_covered_batch_is_refused(begin: JournalOffsets, end: JournalOffsets) -> None:
    error = refusal(state((at(a=10, b=5),), start=(at(a=0, b=0),)), batch(4, (begin,), (end,)))
    assert isinstance(error, OverlapError)
    assert [mismatch.source for mismatch in error.mismatches] == ["journal 'x/a'"]


def test_a_new_query_behind_the_table_is_refused() -> None:
    """A query with a lost checkpoint that starts at the earliest offsets must not double rows."""
    error = refusal(state((at(a=10),), start=(at(a=0),)), batch(0, (), (at(a=0).at("pinned"),)))
    assert isinstance(error, OverlapError)
    assert "first batch of a new query checkpoint" in str(error)
    assert "sink.resume(reader).load()" in str(error)


def test_a_new_query_that_resumes_is_accepted() -> None:
    assert decided(state((at(a=10),)), batch(0, (), (at(a=10).at("pinned"),))) == Skip()


def test_a_table_without_entries_takes_first_batches_only() -> None:
    """A table that was dropped and created again must not be continued in the middle."""
    later = batch(4, (at(a=10),), (at(a=20),))
    assert isinstance(refusal(LedgerState(), later), GapError)
    assert isinstance(refusal(LedgerState(table_version=50, truncated=True), later), LedgerLostError)


def test_a_ledger_is_not_begun_again_on_one_that_was_cut_off() -> None:
    """The log shows an entry but not the entries below it. A new query would double the table's rows."""
    first = batch(0, (), (at(a=0).at("pinned"),))
    cut_off = LedgerState(txn_version=7, table_version=50, truncated=True)
    assert isinstance(refusal(cut_off, first), LedgerLostError)
    assert isinstance(decided(replace(cut_off, txn_version=-1), first), Write)


def test_a_table_that_lost_its_entries_says_where_to_start() -> None:
    """Starting at the latest offsets would lose rows, so the error says where the undone entries began."""
    later = batch(4, (at(a=10),), (at(a=20),))
    undone = LedgerState(table_version=7, txn_version=4, undone=(at(a=3), None))
    assert '"x/a":3' in str(refusal(undone, later))
    assert "there is no such table" in str(refusal(LedgerState(), later))
    assert "no ledger entry for this app id" in str(refusal(LedgerState(table_version=0), later))
    assert "startingOffsets=earliest" in str(refusal(LedgerState(), later))


def test_a_running_writer_is_fenced_by_another() -> None:
    for end in (15, 20, 30):
        error = refusal(
            state((at(a=end),), start=(at(a=0),)), batch(9, (at(a=15),), (at(a=20),)), seen="mine"
        )
        assert isinstance(error, FencedError)
        assert (error.winner_query_id, error.winner_batch_id) == ("query-1", 3)
        assert (error.winner_table_version, error.winner_time) == (9, "noon")


def test_a_restore_under_a_running_writer_is_a_gap() -> None:
    assert isinstance(refusal(state((at(a=10),)), batch(9, (at(a=15),), (at(a=20),)), seen="x"), GapError)


TRIM = Allowed(trim=True)


def trimmed(known: LedgerState, wanted: Batch) -> Write:
    decision = decide(known, wanted, attempt="mine", allowed=TRIM)
    assert isinstance(decision, Write)
    return decision


def test_a_partly_covered_batch_is_trimmed_on_request() -> None:
    known = state((at(a=10, b=5, c=30, d=7),), start=(at(a=0, b=0, c=0, d=0),))
    decision = trimmed(known, batch(4, (at(a=5, b=5, c=20, d=7),), (at(a=15, b=9, c=30, d=7),)))
    assert decision.new_ranges == (
        NewRange("x/a", 5, 10, 15),
        NewRange("x/b", 5, 5, 9),
        NewRange("x/c", 20, 30, 30),
    )
    assert decision.entry.begin == (at(a=10, b=5, c=30, d=7),)
    assert decision.entry.end == (at(a=15, b=9, c=30, d=7),)


def test_a_covered_journal_does_not_go_back() -> None:
    decision = trimmed(
        state((at(a=10, b=5),), start=(at(a=0, b=0),)), batch(4, (at(a=2, b=5),), (at(a=4, b=9),))
    )
    assert decision.new_ranges == (NewRange("x/a", 2, 4, 4), NewRange("x/b", 5, 5, 9))
    assert decision.entry.trimmed_bytes == 2
    assert decision.entry.end == (at(a=10, b=9),)


def test_a_batch_that_continues_is_not_trimmed() -> None:
    assert trimmed(state((at(a=10),)), batch(4, (at(a=10),), (at(a=20),))).new_ranges == ()


def test_a_query_that_keeps_state_is_not_trimmed() -> None:
    """Its state would absorb records that the table or its dead letters already have, and emit them later."""
    known = state((at(a=10),), start=(at(a=0),))
    for wanted in (batch(0, (), (at(a=0),)), batch(4, (at(a=5),), (at(a=15),))):
        stateful = replace(wanted, stateful=True, query_id="another")
        decision = decide(known, stateful, attempt="mine", allowed=TRIM)
        assert isinstance(decision, Refusal)
        assert isinstance(decision.error, OverlapError)
    first = decide(
        known,
        replace(batch(0, (), (at(a=0),)), stateful=True, query_id="another"),
        attempt="mine",
        allowed=TRIM,
    )
    assert isinstance(first, Refusal)
    assert "does not support a query that keeps state" in str(first.error)


def test_a_writer_that_trims_may_start_behind_the_table() -> None:
    known = state((at(a=10),), start=(at(a=5),))
    behind = batch(0, (), (at(a=5).at("pinned"),))
    assert decide(known, behind, attempt="mine", allowed=TRIM) == Skip()
    before = decide(known, batch(0, (), (at(a=4).at("pinned"),)), attempt="mine", allowed=TRIM)
    assert isinstance(before, Refusal)
    assert isinstance(before.error, OverlapError)


def test_gaps_in_what_is_trimmed_away_are_not_recorded_again() -> None:
    known = state((at(a=14),), start=(at(a=0),))
    decision = trimmed(known, batch(4, (at(a=5),), (skipping(30, (6, 8), (12, 16), (20, 22)),)))
    assert decision.entry.gaps == (SkippedGap("x/a", 14, 16), SkippedGap("x/a", 20, 22))


@pytest.mark.parametrize("seen", [None, "newest"], ids=["fresh", "running"])
def test_trimming_is_no_excuse_for_a_gap_or_a_fence(seen: str | None) -> None:
    known = state((at(a=10, b=5),), start=(at(a=0, b=0),))
    ahead = decide(
        known, batch(4, (at(a=5, b=6),), (at(a=15, b=9),)), attempt="mine", seen=seen, allowed=TRIM
    )
    assert isinstance(ahead, Refusal)
    assert isinstance(ahead.error, GapError)
    wanted = batch(4, (at(a=5, b=5),), (at(a=15, b=9),))
    overtaken = decide(known, wanted, attempt="mine", seen="another", allowed=TRIM)
    assert isinstance(overtaken, Refusal)
    assert isinstance(overtaken.error, FencedError)


def test_rows_of_several_sources_are_not_trimmed() -> None:
    """A joined row does not show which source its offset belongs to. The error gives a remedy."""
    known = state((at(a=10), at(b=5)), start=(at(a=0), at(b=0)))
    decision = decide(known, batch(4, (at(a=5), at(b=5)), (at(a=15), at(b=9))), attempt="mine", allowed=TRIM)
    assert isinstance(decision, Refusal)
    assert isinstance(decision.error, TrimError)
    assert "DeltaSink.resume(reader)" in str(decision.error)
    assert str(pickle.loads(pickle.dumps(decision.error))) == str(decision.error)


def accepting(*gaps: tuple[str, int, int]) -> Allowed:
    return Allowed(gaps=frozenset(SkippedGap(*gap) for gap in gaps))


def test_an_accepted_gap_is_recorded() -> None:
    known = state((at(a=10, b=5),))
    wanted = batch(4, (at(a=15, b=5),), (JournalOffsets({"x/a": 30, "x/b": 9}, gaps={"x/a": ((20, 22),)}),))
    decision = decide(known, wanted, attempt="mine", allowed=accepting(("x/a", 10, 15)))
    assert isinstance(decision, Write)
    assert decision.entry.begin == (at(a=10, b=5),)
    assert decision.entry.accepted_gaps == (SkippedGap("x/a", 10, 15),)
    assert decision.entry.gaps == (SkippedGap("x/a", 10, 15), SkippedGap("x/a", 20, 22))
    assert decision.new_ranges == ()


def test_an_accepted_gap_is_recorded_by_the_first_batch() -> None:
    first = batch(0, (), (at(a=15).at("pinned"),))
    decision = decide(state((at(a=10),)), first, attempt="mine", allowed=accepting(("x/a", 10, 15)))
    assert isinstance(decision, Write)
    assert (decision.entry.begin, decision.entry.end) == ((at(a=10),), (at(a=15),))
    assert decision.entry.accepted_gaps == (SkippedGap("x/a", 10, 15),)


@pytest.mark.parametrize(
    "gap",
    [("x/a", 10, 14), ("x/a", 9, 15), ("x/a", 10, 16), ("x/b", 10, 15)],
    ids=["too short", "too early", "too long", "other journal"],
)
def test_a_gap_is_accepted_to_the_byte_only(gap: tuple[str, int, int]) -> None:
    wanted = batch(4, (at(a=15),), (at(a=20),))
    decision = decide(state((at(a=10),)), wanted, attempt="mine", allowed=accepting(gap))
    assert isinstance(decision, Refusal)
    assert isinstance(decision.error, GapError)
    assert decision.error.missing == {"x/a": [(10, 15)]}
    assert "accept_gaps={'x/a': [(10, 15)]}" in str(decision.error)


def test_a_journal_the_table_does_not_know_has_no_range_to_accept() -> None:
    """Its begin is pinned by a first batch, so there is no range to accept."""
    error = refusal(state((at(a=10),)), batch(4, (at(a=10, z=5),), (at(a=10, z=9),)))
    assert isinstance(error, GapError)
    assert error.missing == {}
    assert "accept_gaps" not in str(error)


FOREIGN = [
    pytest.param('{"n":1}', '{"n":2}', Write, id="continues"),
    pytest.param('{"n":0}', '{"n":1}', Refusal, id="is there, but of another batch"),
    pytest.param('{"n":1}', '{"n":1}', Skip, id="has not moved"),
    pytest.param('{"n":5}', '{"n":6}', Refusal, id="is elsewhere"),
]


@pytest.mark.parametrize(("begin", "end", "kind"), FOREIGN)
def test_another_source_is_compared_as_text(begin: str, end: str, kind: type) -> None:
    """Texts have no order: a batch in which only the text moved is written, one from elsewhere is refused."""
    known = state((at(a=10), '{"n":1}'))
    assert isinstance(decided(known, batch(4, (at(a=10), begin), (at(a=10), end))), kind)


def test_another_source_may_read_in_the_first_batch() -> None:
    decision = decided(LedgerState(), batch(0, (), (at(a=7).at("pinned"), '{"n":1}')))
    assert isinstance(decision, Write)
    assert decision.entry.begin == (at(a=7), None)
    assert decision.entry.end == (at(a=7), '{"n":1}')


def test_an_entry_without_its_parent_is_not_built_upon() -> None:
    """The writer was killed before it noticed a RESTORE, so the next one has to notice it."""
    broken = state((at(a=10),), previous="oldest", entry_version=12, jumps=(11,))
    for wanted in (batch(4, (at(a=10),), (at(a=20),)), batch(3, (at(a=5),), (at(a=10),))):
        error = refusal(broken, wanted)
        assert isinstance(error, RestoredError)
        assert "TO VERSION AS OF 10 repairs the table" in str(error)
    trusted = state((at(a=10),), previous=None, truncated=True)
    assert isinstance(decided(trusted, batch(4, (at(a=10),), (at(a=20),))), Write)


WANTED = batch(4, (at(a=10),), (at(a=20),))
BEFORE = state((at(a=10),))
WRITTEN = LedgerEntry("app", 5, "query-1", 4, (at(a=0),), (at(a=10),), (at(a=20),), "mine", "newest")
AFTER = LedgerState(WRITTEN, "newest", 5, 11, 11, "later")


def verified(after: LedgerState, *, conflict: bool = False) -> object:
    return verify(BEFORE, after, WRITTEN, WANTED, conflict=conflict)


def test_a_write_found_on_its_parent_has_landed() -> None:
    """Even if Delta raised a conflict, the entry shows that only the answer was lost."""
    assert verified(AFTER) == Committed()
    assert verified(AFTER, conflict=True) == Committed()


def test_a_write_turned_down_is_decided_again() -> None:
    """This covers a conflict, and a silent skip because of a commit that was undone since."""
    assert verified(BEFORE, conflict=True) == Retry()
    assert verified(replace(BEFORE, txn_version=5)) == Retry()
    assert verified(LedgerState(txn_version=5, table_version=12, jumps=(12,))) == Retry()


def test_a_silent_skip_without_an_entry_means_a_lost_ledger() -> None:
    """Delta knows the number but the history does not, so guessing is unsafe."""
    outcome = verified(BEFORE)
    assert isinstance(outcome, Refusal)
    assert isinstance(outcome.error, LedgerLostError)


@pytest.mark.parametrize("winner", ["newest", "mine"], ids=["instead of ours", "on top of ours"])
def test_a_write_overtaken_is_fenced(winner: str) -> None:
    other = replace(WRITTEN, attempt="other", parent=winner, query_id="query-2")
    outcome = verified(LedgerState(other, winner, 6, 12, 12, "later"))
    assert isinstance(outcome, Refusal)
    assert isinstance(outcome.error, FencedError)
    assert outcome.error.winner_query_id == "query-2"


def test_a_restore_between_decision_and_write_is_seen() -> None:
    """The entry below ours differs from the one decided on. The error names the RESTORE that repairs it."""
    outcome = verified(replace(AFTER, previous="older", entry_version=12, jumps=(11,)))
    assert isinstance(outcome, Refusal)
    assert isinstance(outcome.error, RestoredError)
    assert "RESTORE TABLE … TO VERSION AS OF 10" in str(outcome.error)


def test_a_parent_that_was_cleaned_up_is_no_restore() -> None:
    """Delta may clean up old log entries at any commit, so a missing parent alone is not a RESTORE."""
    cleaned = replace(AFTER, previous=None, truncated=True)
    assert verified(cleaned) == Committed()
    assert isinstance(verified(replace(cleaned, jumps=(11,))), Refusal)


GOLDEN_ENTRY = LedgerEntry(
    app_id="orders",
    txn_version=12,
    query_id="6f1c0d1e-7f0a-4c4b-9c39-2f7a3a9f4d11",
    batch_id=11,
    start=(JournalOffsets({"shop/orders/0": 0, "shop/orders/ü": 128}), None),
    begin=(JournalOffsets({"shop/orders/0": 1024, "shop/orders/ü": 128}), '{"0":10}'),
    end=(JournalOffsets({"shop/orders/0": 9007199254740993, "shop/orders/ü": 128}), '{"0":25}'),
    attempt="0f8e4e0b8f7d4f0f9a3e1d2c3b4a5968",
    parent="a1b2c3d4e5f60718293a4b5c6d7e8f90",
)


def test_the_stored_form_is_the_golden_one() -> None:
    """Tables outlive releases, so form 1 must stay readable and be written in exactly this form."""
    text = (GOLDEN / "entry-1.json").read_text(encoding="utf-8").rstrip("\n")
    assert GOLDEN_ENTRY.to_json() == text
    assert parse_entry(text, "orders") == GOLDEN_ENTRY


def test_an_offset_may_be_the_first_one() -> None:
    """This happens if a journal is created again before the first of its rows was read."""
    entry = replace(GOLDEN_ENTRY, recreated={"shop/orders/0": 0})
    assert parse_entry(entry.to_json(), "orders") == entry


def test_an_entry_says_what_its_batch_skipped() -> None:
    text = (GOLDEN / "entry-1-gaps.json").read_text(encoding="utf-8").rstrip("\n")
    gaps = (SkippedGap("shop/orders/0", 1024, 2000), SkippedGap("shop/orders/0", 9000, 9001))
    entry = replace(GOLDEN_ENTRY, gaps=gaps)
    assert entry.to_json() == text
    assert parse_entry(text, "orders") == entry


def test_an_entry_says_which_gaps_were_accepted() -> None:
    text = (GOLDEN / "entry-1-accepted-gaps.json").read_text(encoding="utf-8").rstrip("\n")
    accepted = (SkippedGap("shop/orders/0", 1024, 2000),)
    gaps = (*accepted, SkippedGap("shop/orders/0", 9000, 9001))
    entry = replace(GOLDEN_ENTRY, gaps=gaps, accepted_gaps=accepted)
    assert entry.to_json() == text
    assert parse_entry(text, "orders") == entry


def test_an_entry_says_how_much_of_its_batch_was_trimmed() -> None:
    text = (GOLDEN / "entry-1-trimmed.json").read_text(encoding="utf-8").rstrip("\n")
    entry = replace(GOLDEN_ENTRY, trimmed_bytes=4096)
    assert entry.to_json() == text
    assert parse_entry(text, "orders") == entry
    with pytest.raises(LedgerFormatError, match="of the wrong type"):
        parse_entry(text.replace("4096", "true"), "orders")


def test_an_entry_says_that_rows_were_merged() -> None:
    """An entry without the field says that its rows were appended."""
    text = (GOLDEN / "entry-1-upsert.json").read_text(encoding="utf-8").rstrip("\n")
    entry = replace(GOLDEN_ENTRY, mode="upsert")
    assert entry.to_json() == text
    assert parse_entry(text, "orders") == entry


def test_a_mode_of_a_later_release_is_refused() -> None:
    """A later release may put rows into the table in a way that appending would break."""
    value = json.loads(GOLDEN_ENTRY.to_json()) | {"mode": "history"}
    with pytest.raises(LedgerFormatError, match="mode 'history'; use the release"):
        parse_entry(json.dumps(value), "orders")


def test_rows_are_not_appended_to_a_table_of_one_row_per_key() -> None:
    """A writer started without ``upsert`` is refused, even for a replay. The opposite change is accepted."""
    known = state((at(a=10),))
    assert known.entry is not None
    upserted = replace(known, entry=replace(known.entry, mode="upsert"))
    for end in (20, 10):
        error = refusal(upserted, batch(4, (at(a=10),), (at(a=end),)))
        assert isinstance(error, TableRefusedError)
        assert "app id 'app' keeps one row for each key" in str(error)
        assert "batch 4" in str(error)
    merging = replace(batch(4, (at(a=10),), (at(a=20),)), mode="upsert")
    for each in (known, upserted):
        decision = decided(each, merging)
        assert isinstance(decision, Write)
        assert decision.entry.mode == "upsert"


def test_an_entry_names_its_dead_letters() -> None:
    text = (GOLDEN / "entry-1-dead-letters.json").read_text(encoding="utf-8").rstrip("\n")
    entry = replace(GOLDEN_ENTRY, dead_letters="shop.orders_dead")
    assert entry.to_json() == text
    assert parse_entry(text, "orders") == entry
    with pytest.raises(LedgerFormatError):
        parse_entry(text.replace('"shop.orders_dead"', "7"), "orders")


def test_an_entry_names_the_newest_dead_letters() -> None:
    """An entry without the field was written by an old release."""
    text = (GOLDEN / "entry-1-dead-attempt.json").read_text(encoding="utf-8").rstrip("\n")
    entry = replace(GOLDEN_ENTRY, dead_letters="shop.orders_dead", dead_attempt="d7")
    assert entry.to_json() == text
    assert parse_entry(text, "orders") == entry
    with pytest.raises(LedgerFormatError):
        parse_entry(text.replace('"d7"', "7"), "orders")


def skipping(offset: int, *gaps: tuple[int, int]) -> JournalOffsets:
    return JournalOffsets({"x/a": offset}, gaps={"x/a": gaps})


def test_what_a_batch_skips_is_recorded_with_its_rows() -> None:
    decision = decided(state((at(a=10),)), batch(4, (at(a=10),), (skipping(30, (12, 15), (20, 30)),)))
    assert isinstance(decision, Write)
    assert decision.entry.gaps == (SkippedGap("x/a", 12, 15), SkippedGap("x/a", 20, 30))
    assert decision.entry.end == (at(a=30),)
    assert '"format_version":2' not in decision.entry.to_json()


def test_a_gap_is_recorded_once() -> None:
    ends = (skipping(30, (12, 15)),)
    stays = batch(4, (*ends, "1"), (*ends, "2"))
    decision = decided(state((at(a=30), "1")), stays)
    assert isinstance(decision, Write)
    assert decision.entry.gaps == ()


@pytest.mark.parametrize("gaps", [5, [["x/a", 3, 3]], [["x/a", -1, 3]], [["x/a", "1", 3]], [[1, 2]]], ids=str)
@pytest.mark.parametrize("field", ["gaps", "accepted_gaps"])
def test_a_damaged_gap_is_refused(field: str, gaps: object) -> None:
    value = json.loads(GOLDEN_ENTRY.to_json()) | {field: gaps}
    with pytest.raises(LedgerFormatError, match="expected a gap"):
        parse_entry(json.dumps(value), "orders")


def test_a_future_form_fails_well() -> None:
    """An entry of a later release must not be overlooked."""
    text = (GOLDEN / "entry-from-the-future.json").read_text(encoding="utf-8")
    with pytest.raises(LedgerFormatError, match="format_version 3, but this release reads at most 2"):
        parse_entry(text, "orders")


@pytest.mark.parametrize(
    "text",
    [None, "", "nightly compaction", '{"app_id":"other","format_version":1}', '{"app_id"', '["app_id"]'],
    ids=["none", "empty", "prose", "other app", "half a JSON", "list"],
)
def test_what_others_write_is_no_entry(text: str | None) -> None:
    """Other writers may put anything into a commit's metadata."""
    assert parse_entry(text, "orders") is None


@pytest.mark.parametrize("size", [40, 100, -1])
def test_a_cut_entry_is_refused(size: int) -> None:
    """If it were treated as another writer's text, an older entry would seem to be the newest."""
    with pytest.raises(LedgerFormatError, match=r"not JSON.* restore the metadata of this commit"):
        parse_entry(GOLDEN_ENTRY.to_json()[:size], "orders")
    assert parse_entry(GOLDEN_ENTRY.to_json()[:size], "order") is None
    assert parse_entry(f"a copy of {GOLDEN_ENTRY.to_json()}", "orders") is None


@pytest.mark.parametrize("damage", ["attempt", "end", "txn_version"])
def test_a_damaged_entry_is_refused(damage: str) -> None:
    """Otherwise an older entry would seem to be the newest."""
    value = json.loads(GOLDEN_ENTRY.to_json())
    del value[damage]
    with pytest.raises(LedgerFormatError, match="missing or of the wrong type"):
        parse_entry(json.dumps(value), "orders")


@pytest.mark.parametrize("field", ["start", "begin", "end"])
@pytest.mark.parametrize("offset", [None, 0, 2**62])
def test_an_entry_whose_bounds_do_not_fit_together_is_refused(field: str, offset: int | None) -> None:
    """Without its end, a journal would seem new and its rows would be written again."""
    value = json.loads(GOLDEN_ENTRY.to_json())
    journals = value[field][0]["journals"]
    if offset is None:
        del journals["shop/orders/0"]
    else:
        journals["shop/orders/0"] = offset
    if (field, offset) in (("start", 0), ("begin", 0), ("end", 2**62)):
        assert parse_entry(json.dumps(value), "orders")
    else:
        with pytest.raises(LedgerFormatError, match="journal 'shop/orders/0' do not fit together"):
            parse_entry(json.dumps(value), "orders")


def test_an_entry_with_a_bad_offset_is_refused() -> None:
    value = json.loads(GOLDEN_ENTRY.to_json())
    value["end"][0]["journals"]["shop/orders/0"] = -1
    with pytest.raises(LedgerFormatError, match="must be from 0 to 2"):
        parse_entry(json.dumps(value), "orders")


def test_read_through_joins_the_sources() -> None:
    both = entry((at(a=10, b=5), "foreign", at(a=7, c=1)))
    assert both.read_through == {"x/a": 7, "x/b": 5, "x/c": 1}


def test_refusals_survive_pickling() -> None:
    """Spark carries errors between processes."""
    error = refusal(state((at(a=10),)), batch(4, (at(a=15),), (at(a=20),)))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_long_list_of_mismatches_is_cut_in_the_text_only() -> None:
    names = [f"j{number:02}" for number in range(12)]
    known = state((at(**dict.fromkeys(names, 1)),))
    wanted = batch(4, (at(**dict.fromkeys(names, 5)),), (at(**dict.fromkeys(names, 9)),))
    error = refusal(known, wanted)
    assert isinstance(error, GapError)
    assert len(error.mismatches) == 12
    assert "and 2 more" in str(error)


def test_the_isolation_is_stored() -> None:
    text = (GOLDEN / "entry-1-committed.json").read_text(encoding="utf-8").rstrip("\n")
    entry = replace(GOLDEN_ENTRY, isolation="read_committed")
    assert entry.to_json() == text
    assert parse_entry(text, "orders") == entry
    with pytest.raises(LedgerFormatError, match="isolation 'serializable'"):
        parse_entry(text.replace("read_committed", "serializable"), "orders")


def committed(batch_id: int, begin: int, end: int, start: int) -> Batch:
    position = replace(at(a=end), starts={"x/a": start})
    return batch(batch_id, (at(a=begin),), (position,))


def test_an_app_id_keeps_its_isolation() -> None:
    """Records and committed messages must not be mixed under one app id."""
    known = state((at(a=10),), start=(at(a=5),))
    assert known.entry is not None
    other = replace(known, entry=replace(known.entry, isolation="read_committed"))
    assert "isolationLevel=read_uncommitted" in str(refusal(known, committed(4, 10, 20, 5)))
    assert "isolationLevel=read_committed" in str(refusal(other, batch(4, (at(a=10),), (at(a=20),))))
    for start in (0, 5):
        decision = decided(other, committed(4, 10, 20, start))
        assert isinstance(decision, Write)
        assert decision.entry.isolation == "read_committed"


def test_a_query_must_know_the_transactions_that_were_open() -> None:
    """A query that began after the table's begin would write only a part of such a transaction."""
    known = state((at(a=10),), start=(at(a=5),))
    assert known.entry is not None
    known = replace(known, entry=replace(known.entry, isolation="read_committed"))
    error = refusal(known, committed(4, 10, 20, 10))
    assert isinstance(error, TableRefusedError)
    assert "began at offset 10 of journal 'x/a'" in str(error)
    assert "stateLocation" in str(error)


def test_an_entry_is_shown_as_a_table() -> None:
    few = entry((JournalOffsets({"shop/<b>": 4096}),))
    assert str(few).splitlines()[1:] == ["shop/<b>  read through 4,096"]
    assert "<td>shop/&lt;b&gt;</td><td style='text-align:right'>4,096</td>" in few._repr_html_()
    many = entry((JournalOffsets({f"shop/{number:03}": number for number in range(60)}),))
    assert str(many).splitlines()[-1] == "… and 10 more journals"
    assert "… and 10 more journals" in many._repr_html_()
