"""A backfill reads what the table lacks, and nothing that appears after it was planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gazette_spark._backfill import Backfilled, continued, is_open, pinned_options, steps
from gazette_spark._ledger.entry import LedgerEntry, Positions, unknown_journals
from gazette_spark._options.source import parse_options
from gazette_spark._planning.states import StateFiles
from gazette_spark.errors import DataLossError, OffsetBeyondHeadError, OffsetError, TableRefusedError
from gazette_spark.message.bulk_sequencer import ProducerStates
from gazette_spark.offsets import JournalOffsets, check_forward
from gazette_spark.protocol.spans import joined
from tests.oracles.brokers import FakeJournal, at, lines, planner_of

BROKER = {"brokerAddress": "http://broker.test:80", "path": "log/"}
STORE = {"fragmentStore": "file:///a/store", "framing": "lines", "path": "log/"}


def test_the_table_says_where_to_go_on() -> None:
    begin, end = at(a=0, b=5, c=0), at(a=30, b=20, c=10)
    planner, _ = planner_of({"log/a": FakeJournal(lines(3))})

    def rest(recorded: dict[str, int], *, open_end: bool = True) -> tuple[JournalOffsets, JournalOffsets]:
        return continued(begin, end, recorded, open_end=open_end, check_heads=planner.check_heads)

    assert rest({}) == (begin, end)
    assert rest({"log/a": 12, "log/c": 10}) == (at(a=12, b=5, c=10), end)
    behind = rest({"log/a": 40}, open_end=False)
    assert behind == (at(a=40, b=5, c=0), at(a=40, b=20, c=10))


def test_a_journal_that_ends_before_the_table_is_another() -> None:
    planner, client = planner_of({"log/a": FakeJournal(lines(3))})
    with pytest.raises(OffsetBeyondHeadError, match=r"offset 40 was already read, .* ends at 30"):
        continued(at(a=0), at(a=30), {"log/a": 40}, open_end=True, check_heads=planner.check_heads)
    # The low head came from a replica that had just joined. The primary has the bytes.
    client.journals["log/a"].content += lines(1)
    found = continued(at(a=0), at(a=30), {"log/a": 40}, open_end=True, check_heads=planner.check_heads)
    assert found == (at(a=40), at(a=40))
    assert is_open(parse_options(BROKER, "batch", environ={}))
    for options in (
        STORE,
        BROKER | {"endingTimestamp": "1700000000000"},
        BROKER | {"endingOffsets": '{"log/a":3}'},
    ):
        assert not is_open(parse_options(options, "batch", environ={}))


def test_a_range_is_read_by_itself() -> None:
    options = BROKER | {"STARTINGOFFSETS": "earliest", "format": "json", "endingTimestamp": "1700000000000"}
    parsed = parse_options(options, "batch", environ={})
    pinned = pinned_options(options, parsed, at(a=1, b=5), at(a=9, b=5))
    assert pinned == {
        "format": "json",
        "brokerAddress": "http://broker.test:80",
        "journals": "log/a",
        "startingOffsets": at(a=1).to_json(),
        "endingOffsets": at(a=9).to_json(),
    }
    again = parse_options(pinned, "batch", environ={})
    assert (again.selection.names, again.starting_offsets.named) == (("log/a",), {"log/a": 1})
    other = {name: text for name, text in BROKER.items() if name != "path"}
    other |= {"journalsPattern": "log/.", "startingOffsetsByTimestamp": '{"log/b":5}'}
    given = pinned_options(other, parse_options(other, "batch", environ={}), at(a=1, b=5), at(a=9, b=5))
    assert parse_options(given, "batch", environ={}) == parse_options(
        {name: text for name, text in pinned.items() if name != "format"}, "batch", environ={}
    )
    stored = pinned_options(STORE, parse_options(STORE, "batch", environ={}), at(a=1), at(a=9))
    assert parse_options(stored, "batch", environ={}).fragment_store == "file:///a/store"


def test_committed_messages_go_on_with_their_query(tmp_path: Path) -> None:
    options = {"isolationLevel": "read_committed", "stateLocation": str(tmp_path), "framing": "lines"}
    journals = {f"log/{name}": FakeJournal(lines(30)) for name in "abcd"}
    planner, _ = planner_of(journals, "batch", **options, messagesSince="{}")
    files = StateFiles(str(tmp_path))
    files.save("log/b", 20, 3, ProducerStates.none())
    files.save("log/c", 20, 9, ProducerStates.none())
    starts = planner.continued_starts(at(a=20, b=20, c=20, d=20), {"log/a": 5, "log/b": 5, "log/c": 5})
    assert starts == {"log/a": 5, "log/b": 3, "log/c": 5, "log/d": 20}
    assert files.load("log/d", 20, 20) is not None, "a stream may go on there before a message came"
    begin, end = at(a=20, d=20), replace(at(a=30, d=20), starts={"log/a": 5, "log/d": 20})
    parsed = parse_options(BROKER | options | {"messagesSince": "{}"}, "batch", environ={})
    pinned = pinned_options(BROKER | options, parsed, begin, end)
    again = parse_options(pinned, "batch", environ={})
    assert (again.messages_since, again.state_location) == ({"log/a": 5}, str(tmp_path))
    early = {**options, "messagesSince": '{"log/a":20}', "startingOffsets": '{"log/a":10}'}
    behind, _ = planner_of(journals, "batch", **early)
    with pytest.raises(OffsetError, match="past the start of the query"):
        behind.batch()


@pytest.mark.parametrize("limit", [None, 25])
@pytest.mark.parametrize("allowed", ["true", "false"])
def test_a_range_names_the_bytes_that_are_gone(limit: int | None, allowed: str) -> None:
    journals = {"log/a": FakeJournal(lines(3), begin=100, fragments=(100,)), "log/b": FakeJournal(lines(1))}
    planner, client = planner_of(journals, "batch", failOnDataLoss="false" if allowed == "true" else "true")
    client.has_tails = False
    planner.batch()
    begin, end = at(a=40, b=0), at(a=130, b=10)
    if allowed == "false":
        if limit is not None:
            with pytest.raises(DataLossError):
                list(steps(planner, begin, end, limit))
        return
    ranges = list(steps(planner, begin, end, limit))
    assert (ranges[0][0], ranges[-1][1]) == (begin, end)
    gaps = [gap for _, high in ranges for gap in high.gaps.get("log/a", ())]
    assert joined(gaps) == [(40, 110)]  # The first record after the gap may be incomplete.
    assert not any("log/b" in high.gaps for _, high in ranges)
    for low, high in ranges:
        check_forward(low, high)
        for gap in high.gaps.get("log/a", ()):
            assert low.read_through["log/a"] <= gap[0] < gap[1] <= high.read_through["log/a"]


def test_a_range_that_is_all_gone_is_empty() -> None:
    """Retention may have overtaken a step of a backfill, which then has nothing to read."""
    options = {"startingOffsets": at(a=40).to_json(), "endingOffsets": at(a=60).to_json()}
    journals = {"log/a": FakeJournal(lines(3), begin=100)}
    lossy = planner_of(journals, "batch", failOnDataLoss="false", **options)[0].batch()
    assert lossy == (at(a=60), at(a=60))
    with pytest.raises(DataLossError):
        planner_of(journals, "batch", **options)[0].batch()


def test_a_result_counts_bytes() -> None:
    assert Backfilled(at(a=1, b=5), at(a=9, b=5), written=True).size_bytes == 8


ENTRY = LedgerEntry("orders", 3, "q", 2, (at(a=0),), (at(a=0),), (at(a=9),), "x", None)


def test_journals_new_to_a_table_are_found() -> None:
    assert unknown_journals(None, at(a=1), "t") == at(a=1)
    assert unknown_journals(ENTRY, at(a=9), "t") is None
    assert unknown_journals(ENTRY, at(a=9, b=4), "t") == at(b=4)


@pytest.mark.parametrize(
    "end",
    [("text",), (at(a=9), at(b=9)), (at(a=9), "text"), ()],
    ids=["another_source", "two_of_ours", "ours_and_another", "none"],
)
def test_a_table_of_several_sources_is_refused(end: Positions) -> None:
    """Each of the sources may have written the rows of a journal."""
    with pytest.raises(TableRefusedError, match="with several sources, or with another kind"):
        unknown_journals(replace(ENTRY, end=end), JournalOffsets({"log/a": 1}), "t")
