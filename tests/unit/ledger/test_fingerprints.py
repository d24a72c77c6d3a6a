"""The ledger knows which journals its offsets belong to, and refuses a batch of another journal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gazette_spark._ledger.decision import Allowed, Decision, Refusal, Skip, Write, decide
from gazette_spark._ledger.entry import (
    FEW_JOURNALS,
    Batch,
    EntryDelta,
    LedgerEntry,
    LedgerState,
    SkippedGap,
    entry_without_rows,
    parse_entry,
)
from gazette_spark.errors import JournalRecreatedError, LedgerFormatError
from gazette_spark.offsets import Fingerprint, JournalOffsets

A, B = "x/a", "x/b"
OLD, NEW = b"0123456789" * 90, b"abcdefghij" * 90


def known(end: int, created: int = 5, content: bytes = OLD) -> Fingerprint:
    return Fingerprint.of(content[:end], end, created)


def position(end: int, found: Fingerprint | None, pinned: str = "") -> tuple[JournalOffsets]:
    prints = {} if found is None else {A: found}
    return (JournalOffsets({A: end}, pinned, fingerprints=prints),)  # type: ignore[arg-type]  # Any text stands for the literal.


def decided(
    recorded: Fingerprint | None,
    earlier: Fingerprint | None,
    found: Fingerprint | None,
    begin: int = 700,
    *,
    trim: bool = False,
) -> Decision:
    """Decide on a batch up to 800 for a table that ends at 700."""
    end = (JournalOffsets({A: 700}),)
    start = (JournalOffsets({A: 0}),)
    prints = {A: recorded} if recorded else {}
    entry = LedgerEntry("app", 4, "q", 3, start, end, end, "newest", "older", fingerprints=prints)
    batch = Batch("t", "app", "q", 4, position(begin, earlier), position(800, found))
    state = LedgerState(entry, "older", 4, 9, 9)
    return decide(state, batch, attempt="mine", allowed=Allowed(trim=trim))


@pytest.mark.parametrize(
    ("recorded", "earlier", "found"),
    [
        pytest.param(known(700), known(700), known(800), id="the_same_creation"),
        pytest.param(known(700), None, known(800), id="the_batch_before_read_nothing_of_it"),
        pytest.param(known(700), None, known(700, 8), id="compared_by_the_source"),
        pytest.param(known(700), known(700, 8), known(800, 8), id="compared_in_the_batch_before"),
        pytest.param(None, None, known(800, 8), id="an_entry_of_an_old_release"),
        pytest.param(known(700), None, None, id="a_source_of_an_old_release"),
        pytest.param(known(700, 0), None, known(800, 8), id="filled_from_a_store"),
        pytest.param(known(700), None, known(800, 0), id="read_from_a_store"),
        pytest.param(Fingerprint(0, 0, "", 5), None, known(800, 8, NEW), id="nothing_was_read"),
    ],
)
def test_the_same_journal_goes_on(
    recorded: Fingerprint | None, earlier: Fingerprint | None, found: Fingerprint | None
) -> None:
    decision = decided(recorded, earlier, found)
    assert isinstance(decision, Write)
    expected = found or recorded
    assert decision.entry.fingerprints == {A: expected}
    assert parse_entry(decision.entry.to_json(), "app") == decision.entry


@pytest.mark.parametrize(
    ("recorded", "earlier", "found", "compared"),
    [
        pytest.param(known(700), None, known(800, 8, NEW), None, id="another_creation"),
        pytest.param(known(700), known(700), known(800, 8), None, id="created_again_between_two_batches"),
        pytest.param(known(700), None, known(700, 8, NEW), (188, 700), id="other_bytes"),
        pytest.param(known(700), known(700, 5, NEW), known(800), (188, 700), id="other_bytes_before"),
        pytest.param(known(700, 0), known(700, 0, NEW), known(800, 0, NEW), (188, 700), id="of_a_store"),
    ],
)
@pytest.mark.parametrize(("begin", "trim"), [(700, False), (0, True)])
def test_another_journal_is_refused(  # noqa: PLR0917 - pytest names them.
    recorded: Fingerprint,
    earlier: Fingerprint | None,
    found: Fingerprint,
    compared: tuple[int, int] | None,
    begin: int,
    trim: bool,
) -> None:
    """Its first rows would be missing, whether the batch continues the table or is trimmed."""
    decision = decided(recorded, earlier, found, begin, trim=trim)
    assert isinstance(decision, Refusal)
    assert isinstance(decision.error, JournalRecreatedError)
    assert (decision.error.journal, decision.error.compared) == (A, compared)
    assert "table t, journal 'x/a': it was deleted and created again" in str(decision.error)


def test_another_journal_that_stays_behind_an_accepted_gap_is_refused() -> None:
    """Otherwise the entry would record the gap for the journal that the table's rows came from."""
    ends = (JournalOffsets({A: 700, B: 0}),)
    entry = LedgerEntry("app", 4, "q", 3, ends, ends, ends, "n", "o", fingerprints={A: known(700)})
    begin = (JournalOffsets({A: 800, B: 0}, fingerprints={A: known(800, 8, NEW)}),)
    batch = Batch("t", "app", "q", 5, begin, (JournalOffsets({A: 800, B: 10}),))
    allowed = Allowed(gaps=frozenset({SkippedGap(A, 700, 800)}))
    made = decide(LedgerState(entry, "o", 4, 9, 9), batch, attempt="mine", allowed=allowed)
    assert isinstance(made, Refusal)
    assert isinstance(made.error, JournalRecreatedError)
    assert (made.error.journal, made.error.revision) == (A, 5)


def test_a_batch_behind_the_table_leaves_the_fingerprint_of_its_end() -> None:
    """With ``trim`` a batch may end before the table does."""
    start, ends = (JournalOffsets({A: 0, B: 0}),), (JournalOffsets({A: 900, B: 9}),)
    entry = LedgerEntry("app", 4, "q", 3, start, start, ends, "n", "o", fingerprints={A: known(900)})
    begin = (JournalOffsets({A: 0, B: 9}),)
    end = (JournalOffsets({A: 800, B: 10}, fingerprints={A: known(800)}),)
    made = decide(
        LedgerState(entry, "o", 4, 9, 9),
        Batch("t", "app", "q", 4, begin, end),
        attempt="mine",
        allowed=Allowed(trim=True),
    )
    assert isinstance(made, Write)
    assert made.entry.fingerprints == {A: known(900)}


def test_a_first_batch_records_that_a_journal_was_created_again_over_its_bytes() -> None:
    """Otherwise the batch in which the journal moves would seem to belong to another journal."""
    end = (JournalOffsets({A: 700}),)
    entry = LedgerEntry("app", 4, "q", 3, end, end, end, "n", "o", fingerprints={A: known(700)})
    state = LedgerState(entry, "o", 4, 9, 9)
    for found, kind in ((known(700), Skip), (known(700, 8), Write)):
        batch = Batch("t", "app", "q-2", 0, (), position(700, found, "pinned"), planned_ms=7)
        made = decide(state, batch, attempt="mine")
        assert isinstance(made, kind)
    assert isinstance(made, Write)
    assert made.entry.fingerprints == {A: known(700, 8)}
    assert entry_without_rows(LedgerState(made.entry), "again").fingerprints == made.entry.fingerprints


def test_an_entry_of_many_journals_stores_the_fingerprints_that_changed() -> None:
    names = [f"x/{number}" for number in range(FEW_JOURNALS + 1)]
    prints = {name: known(700) for name in names}
    end = JournalOffsets(dict.fromkeys(names, 700))
    entry = LedgerEntry(
        "app", 4, "q", 3, (end,), (end,), (end,), "n", "o", planned_ms=7, full_ms=7, fingerprints=prints
    )
    moved = JournalOffsets({**end.read_through, names[0]: 800}, fingerprints={names[0]: known(800)})
    batch = Batch("t", "app", "q", 4, (end,), (moved,), planned_ms=8, after_ms=7)
    made = decide(LedgerState(entry, "o", 4, 9, 9), batch, attempt="mine")
    assert isinstance(made, Write)
    text = made.entry.to_json()
    assert json.loads(text)["fingerprints"] == {names[0]: known(800).to_text()}
    stored = parse_entry(text, "app")
    assert isinstance(stored, EntryDelta)
    assert stored.on(entry) == made.entry
    assert made.entry.fingerprints == prints | {names[0]: known(800)}
    lost = replace(made.entry, moved=None)
    assert parse_entry(lost.to_json(), "app") == made.entry


@pytest.mark.parametrize(
    "value", [[], {A: 5}, {A: "5"}, {A: "9:5:0123456789abcdef:1"}, {A: "0:5:01:1"}], ids=str
)
def test_damaged_fingerprints_are_refused(value: object) -> None:
    """A table with an unreadable ledger must not be continued."""
    end = (JournalOffsets({A: 700}),)
    entry = LedgerEntry("app", 4, "q", 3, end, end, end, "n", "o")
    text = json.dumps(json.loads(entry.to_json()) | {"fingerprints": value})
    with pytest.raises(LedgerFormatError, match="fingerprint"):
        parse_entry(text, "app")
