"""Which batches of a query with state or with other sources continue a table, and how sources are swapped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gazette_spark._ledger.decision import Allowed, Decision, Refusal, Skip, Write, decide
from gazette_spark._ledger.entry import (
    Batch,
    LedgerEntry,
    LedgerState,
    Positions,
    parse_entry,
)
from gazette_spark.errors import FencedError, GapError, OverlapError
from tests.unit.ledger.test_ledger import at

FILES = '{"logOffset":0}'


def batch(
    batch_id: int,
    begin: Positions,
    end: Positions,
    *,
    query: str = "query-1",
    planned_ms: int | None = None,
    stateful: bool = False,
) -> Batch:
    """Return a batch; its planning time follows from its number unless given."""
    planned = 1000 + batch_id if planned_ms is None else planned_ms
    return Batch("t", "app", query, batch_id, begin, end, planned_ms=planned, stateful=stateful)


def written(state: LedgerState, wanted: Batch, *, restart: bool = False) -> LedgerState:
    """Assert that the batch is written, and return the state after it."""
    decision = decided(state, wanted, restart=restart)
    assert isinstance(decision, Write), decision
    entry = parse_entry(decision.entry.to_json(), "app")
    assert entry == decision.entry
    version = state.table_version + 1
    before = state.entry.attempt if state.entry else None
    return LedgerState(entry, before, entry.txn_version, version, version)


def decided(state: LedgerState, wanted: Batch, *, restart: bool = False) -> Decision:
    """Return the decision, whose entry is named after the batch and the table's version."""
    attempt = f"{wanted.query_id}-{wanted.batch_id}-{state.table_version}"
    return decide(state, wanted, attempt=attempt, allowed=Allowed(restart=restart))


def refused(state: LedgerState, wanted: Batch, *, restart: bool = False) -> Exception:
    decision = decided(state, wanted, restart=restart)
    assert isinstance(decision, Refusal), decision
    return decision.error


def stateful(batch_id: int, begin: int, end: int, **changes: object) -> Batch:
    return batch(batch_id, (at(a=begin),), (at(a=end),), stateful=True, **changes)  # type: ignore[arg-type]  # Fields by name, of mixed types.


STARTED = written(LedgerState(), batch(0, (), (at(a=0).at("pinned"),), stateful=True))
READ = written(STARTED, stateful(1, 0, 10))
EMITTED = written(READ, stateful(2, 10, 10))
"""Ledger state after a batch in which no offset advanced."""


def test_a_batch_in_which_nothing_moved_is_written_once() -> None:
    """Its rows come from state. Only the same planning of the same batch is a replay."""
    assert decided(EMITTED, stateful(2, 10, 10)) == Skip()
    assert isinstance(decided(EMITTED, stateful(3, 10, 10)), Write)
    assert decided(READ, stateful(1, 0, 10)) == Skip()


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        pytest.param(stateful(2, 10, 10, planned_ms=5), OverlapError, id="planned again"),
        pytest.param(stateful(1, 0, 10), OverlapError, id="older batch"),
        pytest.param(stateful(4, 10, 20), GapError, id="batch after next"),
        pytest.param(stateful(4, 10, 10), GapError, id="batch after next, nothing moved"),
        pytest.param(stateful(3, 10, 20, query="query-2"), OverlapError, id="batch of another query"),
        pytest.param(
            batch(0, (), (at(a=10).at("pinned"),), query="query-2", stateful=True),
            OverlapError,
            id="new query",
        ),
        pytest.param(
            batch(0, (), (at(a=10).at("pinned"),), query="query-2"),
            OverlapError,
            id="new query without state",
        ),
    ],
)
def test_rows_of_state_are_continued_by_the_next_batch_only(wanted: Batch, kind: type[Exception]) -> None:
    error = refused(EMITTED, wanted)
    assert isinstance(error, kind)
    assert "the query's state: the table ends at batch 2 of query query-1" in str(error)
    assert "on_new_checkpoint='restart'" in str(error)
    assert "separate query, sink and app id" in str(error)


def test_a_new_checkpoint_of_a_query_with_state_may_be_accepted() -> None:
    """The accepted query writes an entry immediately, so its next batches are compared with it."""
    first = batch(0, (), (at(a=10).at("pinned"),), query="query-2", stateful=True)
    state = written(EMITTED, first, restart=True)
    assert decided(state, first) == Skip()
    assert isinstance(decided(state, stateful(1, 10, 10, query="query-2")), Write)
    assert isinstance(refused(state, stateful(3, 10, 20), restart=True), OverlapError)
    overlapping = batch(0, (), (at(a=5).at("pinned"),), query="query-2", stateful=True)
    assert isinstance(refused(EMITTED, overlapping, restart=True), OverlapError)


def test_a_fence_is_no_replay() -> None:
    """A fence names the next batch, so the batch itself must not count as written."""
    assert READ.entry is not None
    fence = replace(READ, entry=replace(READ.entry, batch_id=2, planned_ms=None, is_fence=True))
    assert isinstance(decided(fence, stateful(2, 10, 10)), Write)


def two(batch_id: int, begin: Positions, end: Positions, query: str = "query-1", **changes: object) -> Batch:
    return batch(batch_id, begin, end, query=query, **changes)  # type: ignore[arg-type]  # Fields by name, of mixed types.


BOTH = written(
    written(LedgerState(), two(0, (), (at(a=0).at("pinned"), None))),
    two(1, (at(a=0), None), (at(a=10), FILES)),
)


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(two(0, (), (at(a=10).at("pinned"), FILES), "query-2"), id="lost checkpoint, same text"),
        pytest.param(
            two(0, (), (at(a=10, b=0).at("pinned"), FILES), "query-2"), id="lost checkpoint, one journal more"
        ),
        pytest.param(two(0, (), (at(a=10).at("pinned"), None), "query-2"), id="lost checkpoint, no file yet"),
        pytest.param(two(0, (), (FILES, at(a=10).at("pinned")), "query-2"), id="lost checkpoint, swapped"),
        pytest.param(two(1, (at(a=0), None), (at(a=10), FILES), planned_ms=7), id="planned again"),
        pytest.param(two(2, (at(a=10), '{"logOffset":3}'), (at(a=12), '{"logOffset":4}')), id="elsewhere"),
    ],
)
def test_equal_texts_of_another_source_prove_nothing(wanted: Batch) -> None:
    """A new checkpoint may begin at the text where the table ends and still have other rows."""
    error = refused(BOTH, wanted)
    assert isinstance(error, OverlapError)
    assert "source" in str(error)


def test_another_source_is_continued_by_its_own_query() -> None:
    assert decided(BOTH, two(1, (at(a=0), None), (at(a=10), FILES))) == Skip()
    following = two(2, (at(a=10), FILES), (at(a=10), '{"logOffset":1}'))
    assert isinstance(decided(BOTH, following), Write)


def test_a_new_checkpoint_of_another_source_may_be_accepted() -> None:
    first = two(0, (), (at(a=10).at("pinned"), FILES), "query-2")
    state = written(BOTH, first, restart=True)
    assert state.entry is not None
    assert state.entry.end == (at(a=10), FILES)
    assert isinstance(
        refused(BOTH, two(0, (), (at(a=9).at("pinned"), FILES), "query-2"), restart=True), OverlapError
    )
    assert isinstance(decided(state, two(1, (at(a=10), FILES), (at(a=11), FILES), "query-2")), Write)


def test_another_source_may_be_left_out_and_is_not_forgotten() -> None:
    state = written(BOTH, batch(0, (), (at(a=10, b=0).at("pinned"),), query="query-2"))
    state = written(state, batch(1, (at(a=10, b=0),), (at(a=20, b=0),), query="query-2"))
    assert state.entry is not None
    assert state.entry.end == (at(a=20, b=0), FILES)
    again = two(0, (), (at(a=20, b=0).at("pinned"), FILES), "query-3")
    assert isinstance(refused(state, again), OverlapError)


def test_another_source_may_be_added_where_there_was_none() -> None:
    """The table has no rows of the new source."""
    state = written(LedgerState(), batch(0, (), (at(a=0).at("pinned"),)))
    state = written(state, batch(1, (at(a=0),), (at(a=10),)))
    state = written(state, two(0, (), (FILES, at(a=10).at("pinned")), "query-2"))
    assert state.entry is not None
    assert state.entry.end == (FILES, at(a=10))


UNION = written(
    written(LedgerState(), batch(0, (), (at(a=0).at("pinned"), at(b=0).at("pinned")))),
    batch(1, (at(a=0), at(b=0)), (at(a=10), at(b=20))),
)
"""Ledger state of a query with two Gazette sources of one journal each."""


def test_swapped_sources_continue_where_each_journal_ended() -> None:
    state = written(UNION, batch(1, (at(b=20), at(a=10)), (at(b=25), at(a=10)), query="query-2"))
    assert state.entry is not None
    assert state.entry.end == (at(b=25), at(a=10))
    assert state.entry.read_through == {"x/a": 10, "x/b": 25}
    assert state.entry.start == (at(b=0), at(a=0))


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        pytest.param(
            batch(0, (), (at(b=0).at("pinned"), at(a=0).at("pinned")), query="q"),
            OverlapError,
            id="swapped",
        ),
        pytest.param(
            batch(2, (at(a=10), at(b=20, a=0)), (at(a=10), at(b=20, a=5))),
            OverlapError,
            id="one journal twice",
        ),
        pytest.param(
            batch(0, (), (at(c=0).at("pinned"), at(a=0).at("pinned"), at(b=20).at("pinned")), query="q"),
            OverlapError,
            id="one more in front, one from its beginning",
        ),
        pytest.param(
            batch(1, (at(b=30), at(a=10)), (at(b=30), at(a=12)), query="q"), GapError, id="past the end"
        ),
    ],
)
def test_a_journal_is_known_under_any_source(wanted: Batch, kind: type[Exception]) -> None:
    """Otherwise it would be written again from its first bytes under the new source number."""
    assert isinstance(refused(UNION, wanted), kind)


def test_a_source_in_front_moves_the_others_back() -> None:
    first = (at(c=0).at("pinned"), at(a=10).at("pinned"))
    state = written(UNION, batch(0, (), first, query="query-2"))
    assert state.entry is not None
    assert state.entry.read_through == {"x/a": 10, "x/b": 20, "x/c": 0}
    later = batch(0, (), (at(b=0).at("pinned"),), query="query-3")
    assert isinstance(refused(state, later), OverlapError)


def test_a_fence_comes_before_the_checkpoint() -> None:
    """A running writer that was overtaken must learn which writer overtook it."""
    decision = decide(EMITTED, stateful(1, 0, 10), attempt="mine", seen="another")
    assert isinstance(decision, Refusal)
    assert isinstance(decision.error, FencedError)


def test_an_entry_without_the_new_fields_has_the_old_form() -> None:
    entry = LedgerEntry("app", 1, "q", 0, (at(a=0),), (at(a=0),), (at(a=0),), "mine", None)
    assert "planned_ms" not in entry.to_json()
    assert "stateful" not in entry.to_json()


def test_a_batch_follows_its_own_checkpoints_planning() -> None:
    """A copy of the checkpoint wrote a batch of that number too, and a RESTORE brought back the other one."""
    ours = replace(stateful(3, 10, 20), after_ms=1002)
    theirs = replace(stateful(3, 10, 20), after_ms=7)
    assert isinstance(decided(EMITTED, ours), Write)
    assert isinstance(refused(EMITTED, theirs), OverlapError)


def test_a_query_without_state_takes_over_for_good() -> None:
    """Without an entry of its first batch, the second one would still be compared with the old query."""
    first = batch(0, (), (at(a=10).at("pinned"),), query="query-2")
    state = written(EMITTED, first, restart=True)
    assert isinstance(decided(state, batch(1, (at(a=10),), (at(a=20),), query="query-2")), Write)


def test_a_journal_is_not_forgotten_for_a_source_that_has_no_position_yet() -> None:
    """The new source takes the journal's number but has no text yet, so the journal's end moves behind it."""
    state = written(LedgerState(), batch(0, (), (at(a=0).at("pinned"),)))
    state = written(state, batch(1, (at(a=0),), (at(a=10),)))
    state = written(state, batch(0, (), (None, at(b=0).at("pinned")), query="query-2"))
    state = written(state, batch(1, (None, at(b=0)), (FILES, at(b=2)), query="query-2"))
    assert state.entry is not None
    assert state.entry.read_through == {"x/a": 10, "x/b": 2}


def test_a_text_that_is_kept_has_the_same_place_in_start_and_end() -> None:
    """The source had no text at the start, and the journals behind it must still keep their numbers."""
    first = (FILES, at(a=0).at("pinned"), at(b=0).at("pinned"))
    state = written(LedgerState(), two(0, (), (None, *first[1:])))
    state = written(state, two(1, (None, at(a=0), at(b=0)), (FILES, at(a=5), at(b=10))))
    state = written(state, batch(0, (), (at(c=0).at("pinned"),), query="query-2"))
    state = written(state, batch(1, (at(c=0),), (at(c=1),), query="query-2"))
    assert decided(state, batch(0, (), (at(c=1, b=10).at("pinned"),), query="query-3")) == Skip()
    state = written(state, batch(1, (at(c=1, b=10),), (at(c=1, b=12),), query="query-3"))
    assert state.entry is not None
    assert state.entry.read_through == {"x/a": 5, "x/b": 12, "x/c": 1}
