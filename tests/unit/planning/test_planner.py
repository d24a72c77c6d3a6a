"""The planner's positions depend only on the position it is given and on the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gazette_spark._formats.fixed import frame
from gazette_spark._options.source import parse_options
from gazette_spark._planning import pieces as pieces_module
from gazette_spark._planning import plan as plan_module
from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.cutter import PieceScan
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.plan import SETTLED_S, TAIL_BYTES, Planner, stream_planner
from gazette_spark._planning.states import StateFiles
from gazette_spark.client._read.heads import SettledHead, Tail
from gazette_spark.errors import (
    DataLossError,
    GazetteError,
    JournalNotFoundError,
    OffsetBeyondHeadError,
    OffsetError,
    OptionError,
    RecordError,
    SuspendedError,
)
from gazette_spark.message.bulk_sequencer import ProducerStates
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol.labels import parse_selector
from tests.oracles.brokers import FIXED, FakeClient, FakeJournal, at, lines, planner_of


def test_a_new_query_starts_at_the_latest_and_is_pinned_there() -> None:
    """The first batch ends where it starts, so the query checkpoint records the start."""
    planner, client = planner_of({"log/a": FakeJournal(lines(3))})
    initial = planner.initial()
    assert initial == at(a=30).at("initial")
    client.journals["log/a"].content += lines(5)
    assert planner.next(initial) == at(a=30).at("pinned")


def test_what_comes_after_a_crash_in_the_first_batch_is_read_from_the_pinned_start() -> None:
    """A second planner, without memory of the first, continues at the recorded start."""
    first, client = planner_of({"log/a": FakeJournal(lines(3))})
    pinned = first.next(first.initial())
    client.journals["log/a"].content += lines(5)
    second, _ = planner_of(client.journals)
    assert second.pieces(second.initial(), pinned) == []
    assert second.next(pinned) == at(a=80)


def test_latest_is_the_end_of_a_whole_record() -> None:
    """The write head may be in the middle of a record, whose rest would become a separate row."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3) + b"half")})
    assert planner.initial().read_through == {"log/a": 30}


def test_a_journal_with_half_a_record_starts_at_its_first_offset() -> None:
    """There is no complete record to start after."""
    planner, _ = planner_of({"log/a": FakeJournal(b"half", begin=500)})
    assert planner.initial().read_through == {"log/a": 500}


def test_earliest_is_the_first_offset_left() -> None:
    """Retention may have removed the first bytes of the journal."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), begin=70)}, startingOffsets="earliest")
    assert planner.initial().read_through == {"log/a": 70}


def test_starting_offsets_by_journal() -> None:
    """-2 and -1 mean earliest and latest. Journals that are not named start at the earliest offset."""
    journals = {f"log/{name}": FakeJournal(lines(3), begin=100) for name in "abcd"}
    text = '{"log/a":110,"log/b":-1,"log/c":-2}'
    planner, _ = planner_of(journals, startingOffsets=text)
    assert planner.initial() == at(a=110, b=130, c=100, d=100).at("initial")


def test_a_table_is_resumed_where_it_ends() -> None:
    """Only selected and existing journals of the ledger count. Others begin with their first byte."""
    journals = {f"log/{name}": FakeJournal(lines(3), begin=100) for name in "ab"}
    text = '{"log/a":110,"log/deleted":7,"log/other":9}'
    for options in ({}, {"startingOffsets": "latest"}, {"startingTimestamp": "5000"}):
        planner, _ = planner_of(journals, resumeOffsets=text, **options)
        assert planner.initial() == at(a=110, b=100).at("initial")


@pytest.mark.parametrize(
    ("offset", "error", "text"),
    [
        pytest.param(131, OffsetError, r"resumeOffsets \(the end of the table\) is past", id="made again"),
        pytest.param(99, DataLossError, "1 bytes are gone", id="before the first byte"),
    ],
)
def test_a_table_that_cannot_be_resumed_is_named(offset: int, error: type[GazetteError], text: str) -> None:
    """The error names the table, because the user never set startingOffsets."""
    planner, _ = planner_of(
        {"log/a": FakeJournal(lines(3), begin=100)}, resumeOffsets=f'{{"log/a":{offset}}}'
    )
    with pytest.raises(error, match=text):
        planner.initial()


def test_a_broker_that_has_just_started_cannot_pin_a_start_too_low() -> None:
    """A new broker reports head 0 until it has listed its stores. Listing fragments waits for that."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), stale_head=0)})
    assert planner.initial().read_through == {"log/a": 30}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        pytest.param({"selector": "app=none"}, OptionError, "matches no journal", id="nothing_matches"),
        pytest.param(
            {"path": "none/here/"},
            OptionError,
            "'path': got 'none/here/', which matches no journal",
            id="nothing_under_a_prefix",
        ),
        pytest.param(
            {"journals": "log/a,log/none"},
            JournalNotFoundError,
            "'log/none': JOURNAL_NOT_FOUND: option 'journals' names it",
            id="no_such_name",
        ),
        pytest.param(
            {"startingOffsets": '{"log/none":0}'},
            JournalNotFoundError,
            "'log/none': JOURNAL_NOT_FOUND: option 'startingOffsets' names it",
            id="no_such_start",
        ),
        pytest.param(
            {"journals": "log/a", "startingOffsets": '{"log/b":0}'},
            OptionError,
            "journal 'log/b', which option 'journals' leaves out",
            id="start_not_selected",
        ),
        pytest.param(
            {"startingOffsets": '{"log/a":131}'}, OffsetError, "past the write head 130", id="past_head"
        ),
        pytest.param(
            {"startingOffsets": '{"log/a":99}'}, DataLossError, "1 bytes are gone", id="before_first"
        ),
        pytest.param(
            {"startingTimestamp": "5000"},
            OffsetError,
            "nothing was stored at startingTimestamp 5000 or later; set startingOffsetsByTime",
            id="time_without_bytes",
        ),
        pytest.param(
            {"startingOffsetsByTimestamp": '{"log/a":5000}'},
            OffsetError,
            "nothing was stored at startingOffsetsByTimestamp 5000 or later; set startingOffsetsByTime",
            id="time_of_a_journal_without_bytes",
        ),
        pytest.param(
            {"startingOffsetsByTimestamp": '{"log/none":5000}'},
            JournalNotFoundError,
            "option 'startingOffsetsByTimestamp' names it",
            id="time_of_no_journal",
        ),
        pytest.param(
            {"journals": "log/a", "startingOffsetsByTimestamp": '{"log/b":5000}'},
            OptionError,
            "'startingOffsetsByTimestamp': got journal 'log/b', which option 'journals' leaves out",
            id="time_of_a_journal_not_selected",
        ),
        pytest.param(
            {"journals": "log/other"}, OptionError, "content-type=application/other; expected", id="type"
        ),
        pytest.param(
            {"journals": "log/other,log/proto", "framing": "csv"},
            OptionError,
            "'framing': got csv, but journal 'log/proto' has the label content-type=application/x-prot",
            id="framing",
        ),
        pytest.param(
            {"journals": "log/proto", "format": "json"}, OptionError, "'format': got json, but", id="format"
        ),
        pytest.param(
            {"journals": "log/proto", "startingOffsets": '{"log/proto":9}'},
            OffsetError,
            "is in the middle of a record of framing fixed, which begins at offset 0 (offset 9)",
            id="inside_a_frame",
        ),
    ],
)
def test_a_start_that_cannot_be_is_named(
    options: dict[str, str], error: type[GazetteError], text: str
) -> None:
    journals = {"log/a": FakeJournal(lines(3), begin=100, mod_times=[4]), "log/b": FakeJournal()}
    if "proto" in str(options):
        journals["log/proto"] = FakeJournal(frame(b"12345678"), content_type=FIXED)
    if "other" in str(options):
        journals["log/other"] = FakeJournal(content_type="application/other")
    with pytest.raises(error) as caught:
        planner_of(journals, **options)[0].initial()
    assert text in str(caught.value)


STORED = {
    "log/a": FakeJournal(lines(6), begin=100, fragments=(100, 120, 145), mod_times=[10, 20]),
    "log/b": FakeJournal(lines(2), fragments=(0, 10), mod_times=[5, 6]),
    "log/c": FakeJournal(),
}


@pytest.mark.parametrize(
    ("timestamp", "start"),
    [
        pytest.param("0", at(a=100, b=0, c=0), id="all"),
        pytest.param("10999", at(a=100, b=20, c=0), id="within_a_second"),
        pytest.param("11000", at(a=120, b=20, c=0), id="next_second"),
        pytest.param("21000", at(a=140, b=20, c=0), id="not_stored_and_inside_a_record"),
    ],
)
def test_a_start_by_time(timestamp: str, start: JournalOffsets) -> None:
    """The start is the first fragment stored since, moved to the begin of the record at its first byte."""
    options = {"startingTimestamp": timestamp, "startingOffsetsByTimestampStrategy": "latest"}
    assert planner_of(STORED, **options)[0].initial() == start.at("initial")


@pytest.mark.parametrize(
    ("options", "start"),
    [
        pytest.param({}, at(a=120, b=0, c=0), id="the others at the earliest"),
        pytest.param({"startingTimestamp": "6000"}, at(a=120, b=10, c=0), id="the others at a time"),
    ],
)
def test_a_start_by_time_in_one_journal(options: dict[str, str], start: JournalOffsets) -> None:
    options |= {
        "startingOffsetsByTimestamp": '{"log/a":11000}',
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert planner_of(STORED, **options)[0].initial() == start.at("initial")
    assert planner_of(STORED, "batch", **options)[0].batch()[0] == start


def test_a_suspended_journal_has_nothing_stored() -> None:
    options = {"startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "latest"}
    planner, client = planner_of({"log/a": FakeJournal(begin=70, suspended=True)}, **options)
    pinned = at(a=70).at("pinned")
    assert planner.next(planner.initial()) == pinned
    assert planner.next(pinned, ReadLimits(max_fragments=1)) is pinned
    client.journals["log/a"].content = lines(2)
    assert planner.next(pinned, ReadLimits(max_fragments=1)) == at(a=90)


def test_all_bytes_of_a_suspended_journal_are_gone() -> None:
    """Retention deletes all fragments, and brokers then suspend the journal."""
    journals = {"log/a": FakeJournal(begin=70, suspended=True)}
    with pytest.raises(DataLossError, match="cannot read offset 50: the next available byte is at 70"):
        planner_of(journals)[0].next(at(a=50))
    for limits in (ReadLimits(), ReadLimits(max_records=3)):
        planner, client = planner_of(journals, failOnDataLoss="false")
        end = planner.next(at(a=50), limits)
        assert (end, end.gaps) == (at(a=70), {"log/a": ((50, 70),)})
        (piece,) = planner.pieces(at(a=50), end)
        assert list(PieceScan(client, piece, fail_on_data_loss=False)) == []


def test_a_broker_that_has_missed_the_end_of_a_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows only bytes before the offset at which the journal was suspended."""
    planner, client = planner_of({"log/a": FakeJournal(begin=70, suspended=True)}, failOnDataLoss="false")
    monkeypatch.setattr(client, "write_heads", lambda names: dict.fromkeys(names, 80))
    with pytest.raises(SuspendedError):
        planner.next(JournalOffsets({"log/a": 50}, revision=1, heads={"log/a": 80}))


def test_a_start_by_time_is_found_behind_a_hole() -> None:
    """Missing bytes before the start are not a loss to a query that does not read them."""
    journal = FakeJournal(lines(3), begin=50, fragments=(20, 50), mod_times=[1, 9])
    planner, client = planner_of({"log/a": journal}, startingTimestamp="9000")
    client.first_offset = lambda journal: 20  # type: ignore[method-assign]  # An answer of the test.
    assert planner.initial() == at(a=50).at("initial")


@pytest.mark.parametrize("timestamp", ["0", "5000", "6000", "10000", "15000", "21000", "30000"])
def test_a_batch_ends_by_time_where_another_starts(timestamp: str) -> None:
    earlier, _ = planner_of(STORED, "batch", endingTimestamp=timestamp)
    options = {"startingTimestamp": timestamp, "startingOffsetsByTimestampStrategy": "latest"}
    later, _ = planner_of(STORED, "batch", **options)
    assert earlier.batch()[0] == at(a=100, b=0, c=0)
    assert earlier.batch()[1] == later.batch()[0]
    assert later.batch()[1] == at(a=160, b=20, c=0)


def test_a_batch_that_ends_by_time_before_its_start_is_named() -> None:
    options = {"startingOffsets": '{"log/a":130}', "endingTimestamp": "15000"}
    with pytest.raises(OffsetError, match="endingTimestamp is before the start at 130"):
        planner_of(STORED, "batch", **options)[0].batch()


def test_a_start_before_the_first_offset_is_moved_when_loss_is_allowed() -> None:
    journals = {"log/a": FakeJournal(lines(3), begin=100)}
    planner, _ = planner_of(journals, startingOffsets='{"log/a":5}', failOnDataLoss="false")
    assert planner.initial().read_through == {"log/a": 100}


@pytest.mark.parametrize(
    ("content_type", "given", "framing"),
    [
        pytest.param("", {}, "lines", id="no_label"),
        pytest.param("application/json", {}, "lines", id="json"),
        pytest.param("text/csv", {}, "csv", id="csv"),
        pytest.param(FIXED, {}, "fixed", id="protobuf"),
        pytest.param(FIXED, {"framing": "none"}, "none", id="bytes_of_anything"),
        pytest.param("text/plain", {"framing": "csv"}, "csv", id="plain_text_may_be_csv"),
        pytest.param("application/other", {"framing": "fixed"}, "fixed", id="the_user_knows"),
        pytest.param("application/other", {"format": "json"}, "lines", id="the_format_knows"),
    ],
)
def test_a_piece_carries_its_journals_framing(content_type: str, given: dict[str, str], framing: str) -> None:
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), content_type=content_type)}, **given)
    assert [piece.framing for piece in planner.pieces(at(a=0), at(a=30))] == [framing]


def test_a_batch_that_is_run_again_asks_once_for_all_journals() -> None:
    """A new planner knows no framing yet. One listing must replace a request for each journal."""
    journals = {f"log/{name}": FakeJournal(lines(3), content_type="text/csv") for name in "abc"}
    planner, client = planner_of(journals)
    asked: list[str] = []
    client.get_journal = asked.append  # type: ignore[method-assign, assignment]  # It records the calls.
    pieces = planner.pieces(at(a=0, b=0, c=0), at(a=30, b=30, c=30))
    assert [piece.framing for piece in pieces] == ["csv"] * 3
    assert asked == []


def test_frames_are_cut_at_fragments_and_ended_at_whole_ones() -> None:
    whole = frame(b"x" * 12) * 3
    journal = FakeJournal(whole + frame(b"half")[:-1], content_type=FIXED, fragments=(0, 20, 40))
    planner, client = planner_of({"log/a": journal}, maxBytesPerPartition="25")
    assert planner.next(at(a=0)) == at(a=60)
    assert planner.next(at(a=0), ReadLimits(30)) == at(a=20)
    assert planner.next(at(a=0), ReadLimits(5)) == at(a=20)
    assert planner_of({"log/a": journal}, maxBytesPerPartition="25")[0].pieces(at(a=0), at(a=60)) == [
        Piece("log/a", begin, begin + 20, begin + 20, starts_on_record=True, framing="fixed")
        for begin in (0, 20, 40)
    ]
    client.journals["log/a"].content += b"f"
    assert planner.next(at(a=60)) == at(a=72)


def test_a_batch_ends_at_whole_records() -> None:
    planner, client = planner_of({"log/a": FakeJournal(lines(3) + b"half")})
    assert planner.next(at(a=0)) == at(a=30)
    assert planner.next(at(a=30)) == at(a=30)
    client.journals["log/a"].content += b" done\n"
    assert planner.next(at(a=30)) == at(a=40)


def test_a_half_written_record_is_looked_at_once() -> None:
    planner, client = planner_of({"log/a": FakeJournal(b"half")})
    planner.next(at(a=0))
    client.reads.clear()
    assert planner.next(at(a=0)) == at(a=0)
    assert client.reads == []


def test_news_come_with_the_head_and_only_once() -> None:
    now = [0.0]
    planner, client = planner_of({"log/a": FakeJournal(), "log/b": FakeJournal()}, "stream", lambda: now[0])
    limits = ReadLimits(min_bytes=100, max_delay_s=60)
    position = at(a=0, b=0)
    both = ["log/a", "log/b"]
    assert planner.next(position, limits) == position
    client.journals["log/a"].content += lines(2) + b"half"
    position = planner.next(position, limits)
    assert position == at(a=20, b=0)
    assert client.tailed == [both, both]
    client.journals["log/b"].content += lines(3)
    for _ in range(3):
        assert planner.next(position, limits) == position
    assert client.tailed[2:] == [["log/b"]]
    now[0] += 61
    position = planner.next(position, limits)
    assert position == at(a=20, b=30)
    assert client.tailed[3:] == [both]
    for _ in range(3):
        assert planner.next(position, limits) == position
    assert client.tailed[4:] == [["log/b"]] * 3
    assert client.reads == []


def test_a_suspended_journal_is_not_asked_while_it_sleeps() -> None:
    planner, client = planner_of({"log/a": FakeJournal(lines(2), suspended=True), "log/b": FakeJournal()})
    assert planner.next(at(a=0, b=0)) == at(a=20, b=0)
    assert client.tailed == [["log/a", "log/b"]]
    assert planner.next(at(a=20, b=0)) == at(a=20, b=0)
    assert client.tailed[1:] == [["log/b"]]
    client.journals["log/a"].suspended = False
    client.journals["log/a"].content += lines(1)
    assert planner.next(at(a=20, b=0)) == at(a=30, b=0)


def test_the_start_comes_back_unchanged_if_nothing_is_new() -> None:
    """Spark compares text, and a changed mark alone would run a batch without rows."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3))})
    start = at(a=30).at("pinned")
    assert planner.next(start) is start


def test_a_limit_is_shared_and_ends_at_whole_records() -> None:
    planner, _ = planner_of({"log/a": FakeJournal(lines(300)), "log/b": FakeJournal(lines(100))})
    assert planner.next(at(a=0, b=0), ReadLimits(415)) == at(a=310, b=100)


def test_a_journal_that_cannot_move_takes_no_share() -> None:
    planner, _ = planner_of({"log/a": FakeJournal(b"x" * 900), "log/b": FakeJournal(lines(100))})
    first = planner.next(at(a=0, b=0), ReadLimits(100))
    assert first == at(a=0, b=50)
    assert planner.next(first, ReadLimits(100)) == at(a=0, b=150)


def test_a_batch_ends_with_fragments() -> None:
    journals = {
        "log/a": FakeJournal(lines(10), fragments=(0, 20, 40, 60, 80)),
        "log/b": FakeJournal(lines(2), fragments=(0, 15)),
    }
    planner, client = planner_of(journals)
    limits = ReadLimits(max_fragments=3)
    assert planner.next(at(a=0, b=0), limits) == at(a=40, b=10)
    assert planner.next(at(a=40, b=10), limits) == at(a=80, b=20)
    client.journals["log/a"].content += lines(1)
    assert planner.next(at(a=80, b=20), limits) == at(a=110, b=20)
    assert planner.next(at(a=0, b=0), ReadLimits(25, max_fragments=4)) == at(a=20, b=10)


def test_a_record_across_a_fragments_end_is_read_whole() -> None:
    planner, _ = planner_of({"log/a": FakeJournal(lines(4), fragments=(0, 5, 35))})
    assert planner.next(at(a=0), ReadLimits(max_fragments=1)) == at(a=10)
    assert planner.next(at(a=10), ReadLimits(max_fragments=1)) == at(a=30)
    assert planner.next(at(a=30), ReadLimits(max_fragments=1)) == at(a=40)


def test_a_batch_waits_for_enough_bytes_or_long_enough() -> None:
    now = [1000.0]
    journals = {"log/a": FakeJournal(lines(1)), "log/b": FakeJournal(lines(1))}
    planner, client = planner_of(journals, "stream", lambda: now[0])
    limits = ReadLimits(min_bytes=50, max_delay_s=60)
    first = planner.next(at(a=0, b=0), limits)
    assert first == at(a=10, b=10)

    client.journals["log/a"].content += lines(2)
    client.journals["log/b"].content += lines(2)
    assert planner.next(first, limits) is first
    assert planner.report() == at(a=30, b=30).to_dict()
    client.journals["log/b"].content += lines(1)
    second = planner.next(first, limits)
    assert second == at(a=30, b=40)

    now[0] += 60
    assert planner.next(second, limits) is second
    client.journals["log/b"].content += b"half"
    assert planner.next(second, limits) is second
    client.journals["log/b"].content += b"\n"
    third = planner.next(second, limits)
    assert third == at(a=30, b=45)

    client.journals["log/a"].content += lines(1)
    assert planner.next(third, limits) is third
    client.journals["log/c"] = FakeJournal(lines(1), begin=7)
    pinned = planner.next(third, limits)
    assert pinned == at(a=30, b=45, c=7)
    now[0] += 60
    assert planner.next(pinned, limits) == at(a=40, b=45, c=17)


def test_available_now_does_not_wait() -> None:
    planner, client = planner_of({"log/a": FakeJournal(lines(4), fragments=(0, 10, 20, 30))})
    planner.freeze()
    limits = ReadLimits(max_fragments=3, min_bytes=1000, max_delay_s=1e9)
    middle = planner.next(at(a=0), limits)
    assert middle == at(a=30)
    client.journals["log/a"].content += lines(200)
    end = planner.next(middle, limits)
    assert end == at(a=40)
    assert planner.next(end, limits) is end


def test_a_limit_below_a_record_reads_one_record() -> None:
    planner, _ = planner_of({"log/a": FakeJournal(lines(3, 70_000)), "log/b": FakeJournal(lines(2))})
    assert planner.next(at(a=0, b=0), ReadLimits(1)) == at(a=70_000, b=10)


def test_a_new_journal_is_pinned_first_and_read_next() -> None:
    """The first available offset is recorded before rows are read, so a crash in between loses nothing."""
    planner, client = planner_of({"log/a": FakeJournal(lines(1))})
    client.journals["log/b"] = FakeJournal(lines(2), begin=40)
    pinned = planner.next(at(a=0))
    assert pinned == at(a=10, b=40)
    assert planner.pieces(at(a=0), pinned) == [
        Piece("log/a", 0, 10, 10, starts_on_record=True, content=lines(1))
    ]
    assert planner.next(pinned) == at(a=10, b=60)


def test_a_journal_that_appears_is_a_change_by_itself() -> None:
    """The journal's first offset must reach the query checkpoint."""
    planner, _ = planner_of({"log/a": FakeJournal(), "log/b": FakeJournal()})
    assert planner.next(at(a=0)) == at(a=0, b=0)


def test_a_pattern_selects_journals_that_match_it_later_too() -> None:
    journals = {f"log/{name}": FakeJournal(lines(1)) for name in ("a1", "a2", "b1", "a1/old")}
    planner, client = planner_of(journals, journalsPattern="log/a[0-9]+", startingOffsets="earliest")
    start = planner.next(planner.initial())
    assert start == at(a1=0, a2=0).at("pinned")
    client.journals["log/a31"] = FakeJournal(lines(2))
    client.journals["log/b2"] = FakeJournal(lines(2))
    assert planner.next(start) == at(a1=10, a2=10, a31=0)
    assert {str(selector) for selector in client.listed} == {str(parse_selector("prefix=log/"))}


def test_a_pattern_that_is_narrowed_keeps_the_offsets_of_what_it_leaves_out() -> None:
    journals = {"log/a": FakeJournal(lines(2)), "log/b": FakeJournal(lines(2))}
    planner, _ = planner_of(journals, journalsPattern="log/[a]")
    assert planner.next(at(a=10, b=10)) == at(a=20, b=10)
    other, _ = planner_of(journals, journalsPattern="log/c.*")
    with pytest.raises(OptionError, match=r"'journalsPattern': got 'log/c\.\*', which matches no journal"):
        other.initial()


def test_a_journal_that_is_selected_later_goes_on_at_the_tables_end() -> None:
    """The checkpoint began under a narrower selection, so it lacks a journal of which the table has rows."""
    journals = {f"log/{name}": FakeJournal(lines(3), begin=9 if name == "c" else 0) for name in "abc"}
    planner, _ = planner_of(journals, resumeOffsets='{"log/a":10,"log/b":20}')
    pinned = planner.next(at(a=20))
    assert pinned == at(a=30, b=20, c=9)
    assert planner.next(pinned) == at(a=30, b=30, c=39)


def test_messages_of_a_journal_that_is_selected_later_count_since_the_tables_query(tmp_path: Path) -> None:
    """A transaction that is open at the table's end began before it."""
    journals = {"log/a": FakeJournal(lines(3)), "log/b": FakeJournal(lines(3))}
    options = {"isolationLevel": "read_committed", "stateLocation": str(tmp_path)}
    planner, _ = planner_of(journals, resumeOffsets='{"log/b":20}', **options)
    start = replace(at(a=10), starts={"log/a": 10})
    with pytest.raises(OffsetError, match="stateLocation does not have the states"):
        planner.next(start)
    StateFiles(str(tmp_path)).save("log/b", 20, 5, ProducerStates.none())
    assert planner.next(start).starts == {"log/a": 10, "log/b": 5}


def test_available_now_ends_at_the_heads_taken_at_its_start() -> None:
    planner, client = planner_of({"log/a": FakeJournal(lines(4)), "log/b": FakeJournal(lines(1))})
    planner.freeze()
    client.journals["log/a"].content += lines(9)
    client.journals["log/c"] = FakeJournal(lines(1))
    middle = planner.next(at(a=0, b=0), ReadLimits(30))
    assert middle == at(a=20, b=10)
    end = planner.next(middle)
    assert end == at(a=40, b=10)
    assert planner.next(end) is end


def test_available_now_reads_journals_that_appeared_before_it() -> None:
    planner, _ = planner_of({"log/a": FakeJournal(lines(1)), "log/new": FakeJournal(lines(2), begin=7)})
    planner.freeze()
    pinned = planner.next(at(a=10))
    assert pinned == at(a=10, new=7)
    end = planner.next(pinned)
    assert end == at(a=10, new=27)
    assert planner.next(end) is end


def test_a_head_below_the_position_is_an_error() -> None:
    """The journal would use its offsets again for other bytes."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(1))})
    with pytest.raises(OffsetBeyondHeadError, match="20 was already read, but the journal now ends at 10"):
        planner.next(at(a=20))


def test_a_head_that_is_low_because_the_broker_has_just_started_is_asked_for_again() -> None:
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), stale_head=0)})
    assert planner.next(at(a=20)) == at(a=30)


def test_a_journal_without_fragments_is_settled_seldom() -> None:
    """Brokers report a head of 0 for it as long as it is idle. To settle the head costs an append."""
    now, asked = [0.0], list[Mapping[str, int]]()

    class Counting(FakeClient):
        def settled_heads(self, reached: Mapping[str, int]) -> dict[str, SettledHead]:
            asked.append(reached)
            return super().settled_heads(reached)

    options = parse_options({"brokerAddress": "http://broker.test:80", "path": "log/"}, "stream", environ={})
    client = Counting({"log/a": FakeJournal(lines(1), stale_head=0)})
    planner = Planner(client, options, clock=lambda: now[0])  # type: ignore[arg-type]  # A fake client.
    for _ in range(3):
        assert planner.next(at(a=10)) == at(a=10)
    assert len(asked) == 1
    client.journals["log/a"] = FakeJournal(lines(2), stale_head=0)
    now[0] = SETTLED_S
    assert planner.next(at(a=10)) == at(a=20)


@pytest.mark.parametrize("start", [at(a=0, gone=5), at(a=0)], ids=["known", "new"])
def test_a_journal_deleted_once_it_is_listed(start: JournalOffsets) -> None:
    journals = {"log/a": FakeJournal(lines(1)), "log/gone": FakeJournal(lines(1))}
    planner, client = planner_of(journals, failOnDataLoss="false")
    client.deleted_once_listed = "log/gone"
    assert planner.next(start).read_through == {**start.read_through, "log/a": 10}


def test_a_journal_deleted_once_it_is_listed_is_no_part_of_a_new_query() -> None:
    journals = {"log/a": FakeJournal(lines(1)), "log/gone": FakeJournal(lines(1))}
    planner, client = planner_of(dict(journals))
    client.deleted_once_listed = "log/gone"
    assert planner.initial() == at(a=10).at("initial")
    planner, client = planner_of(dict(journals))
    client.deleted_once_listed = "log/gone"
    planner.freeze()
    assert planner.next(at(a=0)) == at(a=10)
    planner, client = planner_of(dict(journals), "batch")
    client.deleted_once_listed = "log/gone"
    assert planner.batch() == (at(a=0), at(a=10))


def test_a_journal_deleted_once_it_is_listed_ends_the_query() -> None:
    planner, client = planner_of({"log/a": FakeJournal(lines(1)), "log/gone": FakeJournal(lines(1))})
    client.deleted_once_listed = "log/gone"
    with pytest.raises(JournalNotFoundError, match=r"'log/gone'.*it is gone, perhaps with"):
        planner.next(at(a=0, gone=5))


def test_a_journal_deleted_in_the_middle_of_a_batch() -> None:
    """If the query may lose data, it must get past the batch."""
    start, end = at(a=0, gone=5), at(a=10, gone=15)
    journals = {"log/a": FakeJournal(lines(1))}
    (piece,) = planner_of(journals, failOnDataLoss="false")[0].pieces(start, end)
    assert piece.journal == "log/a"
    with pytest.raises(JournalNotFoundError, match=r"'log/gone'.*gone, with 10 unread bytes; set failOn"):
        planner_of(journals)[0].pieces(start, end)


def test_a_journal_that_is_not_selected_any_more_is_paused() -> None:
    planner, _ = planner_of({"log/a": FakeJournal(lines(1)), "other/b": FakeJournal(lines(9))})
    start = JournalOffsets({"log/a": 0, "other/b": 20})
    assert planner.next(start).read_through == {"log/a": 10, "other/b": 20}


def test_a_record_that_is_too_long_is_named() -> None:
    """The limit keeps a journal without newlines from filling the memory."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(1) + b"x" * 5000)}, maxRecordBytes="1k")
    with pytest.raises(RecordError, match=r"journal 'log/a'.*maxRecordBytes=1024"):
        planner.next(at(a=0))


def test_bytes_gone_at_the_start_are_an_error_when_the_window_shows_it() -> None:
    """The tail window is the first read of a batch."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), begin=100)})
    with pytest.raises(DataLossError) as caught:
        planner.next(at(a=90))
    assert (caught.value.requested, caught.value.available) == (90, 100)


def test_a_limit_that_ends_in_a_hole_makes_progress() -> None:
    """A query that may skip missing bytes must not stop at them."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), begin=10_000)}, failOnDataLoss="false")
    position, seen = at(a=0), 0
    while (end := planner.next(position, ReadLimits(4000))) != position:
        position, seen = end, seen + 1
    assert position == at(a=10_030)
    assert seen <= 4


@pytest.mark.parametrize(
    ("start", "end"),
    [
        pytest.param(at(a=9), at(a=8), id="regress"),
        pytest.param(at(a=9, b=1), at(a=9), id="dropped"),
        pytest.param(at(a=9), at(a=9).at("initial"), id="initial_end"),
    ],
)
def test_an_impossible_batch_is_refused(start: JournalOffsets, end: JournalOffsets) -> None:
    """Spark itself would plan such a batch."""
    with pytest.raises(OffsetError):
        planner_of({})[0].pieces(start, end)


@pytest.mark.parametrize(
    ("content", "content_type", "offset"),
    [
        pytest.param(b"one\ntwo\nthree\n", "application/x-ndjson", 6, id="lines"),
        pytest.param(b"one\ntwo\nthree\n", "text/csv", 6, id="csv"),
        pytest.param(frame(b"one") * 3, FIXED, 12, id="fixed"),
    ],
)
def test_a_position_inside_a_record_is_refused(content: bytes, content_type: str, offset: int) -> None:
    """After an edited query checkpoint, half a record would become a row. Allowing loss permits that."""
    journals = {"log/a": FakeJournal(content, content_type=content_type)}
    start, end = at(a=offset), at(a=len(content))
    with pytest.raises(OffsetError, match=rf"'log/a': the query checkpoint's .* \(offset {offset}\)"):
        planner_of(journals)[0].pieces(start, end)
    assert planner_of(journals, failOnDataLoss="false")[0].pieces(start, end)


def test_a_position_inside_a_record_may_be_of_another_framing() -> None:
    """A run with framing=none also reads half a record, so the checkpoint need not be damaged."""
    journals = {"log/a": FakeJournal(b"one\ntw")}
    half = planner_of(journals, framing="none")[0].next(at(a=0))
    assert half == at(a=6)
    journals["log/a"].content = b"one\ntwo\n"
    with pytest.raises(OffsetError, match=r"'log/a': the query checkpoint's .* a run with another framing"):
        planner_of(journals)[0].pieces(half, at(a=8))


def test_a_position_is_looked_at_when_a_query_goes_on() -> None:
    """The check runs once, because positions that the planner decides itself need none."""
    planner, client = planner_of({"log/a": FakeJournal(lines(9)), "log/b": FakeJournal(lines(9), begin=50)})
    planner.pieces(at(a=10, b=50), at(a=20, b=60))
    assert client.reads == [("log/a", 9, 10)]
    planner.pieces(at(a=20, b=60), at(a=30, b=70))
    assert len(client.reads) == 1
    planner, client = planner_of({"log/a": FakeJournal(lines(9))}, startingOffsets='{"log/a":10}')
    start = planner.initial()
    looked = len(client.reads)
    planner.pieces(start.at(""), at(a=20))
    assert len(client.reads) == looked


def test_small_batches_are_one_piece_a_journal_and_list_nothing() -> None:
    """The usual batch of a stream does not list fragments."""
    planner, client = planner_of({"log/a": FakeJournal(), "log/b": FakeJournal()})
    pieces = planner.pieces(at(a=0, b=5), at(a=10, b=25))
    assert pieces == [
        Piece("log/a", 0, 10, 10, starts_on_record=True),
        Piece("log/b", 5, 25, 25, starts_on_record=True),
    ]
    assert client.lists == []


def test_large_ranges_are_cut() -> None:
    planner, client = planner_of(
        {"log/a": FakeJournal(fragments=(0, 900)), "log/b": FakeJournal()}, maxBytesPerPartition="1000"
    )
    pieces = planner.pieces(at(a=0, b=0), at(a=2000, b=10))
    assert [(piece.journal, piece.begin, piece.end) for piece in pieces][:1] == [("log/a", 0, 901)]
    assert all(piece.end - piece.begin <= 1000 for piece in pieces)
    assert client.lists == ["log/a"]


def test_stored_and_compressed_fragments_are_not_cut() -> None:
    """Bytes that are not stored yet, and uncompressed fragments, can be read from any offset."""
    fragments = range(0, 4000, 100)
    journal = FakeJournal(lines(450), fragments=fragments, mod_times=[9] * 39)
    planner, _ = planner_of({"log/a": journal}, maxBytesPerPartition="40")
    pieces = planner.pieces(at(a=0), at(a=4500))
    assert [piece.end for piece in pieces[:39]] == [each + 101 for each in fragments[:39]]
    assert all(piece.end - piece.begin <= 40 for piece in pieces[39:])


def test_min_partitions_cuts_what_there_is() -> None:
    planner, _ = planner_of({"log/a": FakeJournal()}, minPartitions="4")
    assert len(planner.pieces(at(a=0), at(a=400))) == 4


def test_a_batch_query_reads_all_whole_records() -> None:
    planner, _ = planner_of({"log/a": FakeJournal(lines(3) + b"half", begin=50)}, "batch")
    assert planner.batch() == (at(a=50), at(a=80))


def test_a_batch_query_ends_where_it_is_told() -> None:
    journals = {"log/a": FakeJournal(lines(9)), "log/b": FakeJournal(lines(2))}
    planner, _ = planner_of(journals, "batch", startingOffsets='{"log/a":20}', endingOffsets='{"log/a":45}')
    assert planner.batch() == (at(a=20, b=0), at(a=40, b=20))


@pytest.mark.parametrize(
    ("end", "text"),
    [
        pytest.param(131, "endingOffsets is past the write head 130", id="past_head"),
        pytest.param(99, "endingOffsets is before the start at 100", id="before_start"),
    ],
)
def test_a_batch_end_that_cannot_be_is_named(end: int, text: str) -> None:
    planner, _ = planner_of(
        {"log/a": FakeJournal(lines(3), begin=100)}, "batch", endingOffsets=f'{{"log/a":{end}}}'
    )
    with pytest.raises(OffsetError, match=text) as caught:
        planner.batch()
    assert (caught.value.journal, caught.value.offset) == ("log/a", end)


def test_the_heads_seen_last_are_reported() -> None:
    """Spark shows them in the query's progress. Before the first batch there are none."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3) + b"half")})
    assert planner.report() is None
    planner.next(at(a=0))
    assert planner.report() == at(a=34).to_dict()


def test_a_batch_that_may_skip_bytes_says_which_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    journals = {"log/a": FakeJournal(lines(3), begin=100, fragments=(100,)), "log/b": FakeJournal(lines(2))}
    planner, client = planner_of(journals, failOnDataLoss="false")
    end = planner.next(at(a=70, b=0))
    assert end == at(a=130, b=20)
    assert end.gaps == {"log/a": ((70, 110),)}  # The first record after the gap may be incomplete.
    assert caplog.messages == ["batch skips missing bytes journals=1 bytes=40 largest=log/a:40"]
    assert planner.next(end).to_json() == end.to_json()
    client.journals["log/a"].content += lines(1)
    assert planner.next(end).gaps == {}
    careful, client = planner_of(journals)
    assert careful.next(at(a=100, b=0)).gaps == {}
    assert client.lists == []


def contents(pieces: list[Piece]) -> list[bytes | None]:
    return [piece.content for piece in pieces]


def test_pieces_bring_the_bytes_that_the_planner_has() -> None:
    planner, client = planner_of({"log/a": FakeJournal(lines(3) + b"half"), "log/b": FakeJournal(begin=7)})
    start, end = at(a=0, b=7), at(a=30, b=7)
    assert planner.next(start) == end
    assert contents(planner.pieces(start, end)) == contents(planner.pieces(start, end)) == [lines(3)]
    client.journals["log/a"].content += b" done\n"
    client.journals["log/b"].content += lines(1)
    assert planner.next(end, ReadLimits(5)) == at(a=40, b=17)
    assert contents(planner.pieces(end, at(a=40, b=17))) == [b"half done\n", lines(1)]
    assert client.reads == []


@pytest.mark.parametrize(
    ("length", "options", "has_tails"),
    [
        pytest.param(TAIL_BYTES + 10, {}, True, id="too many"),
        pytest.param(30, {"minPartitions": "2"}, True, id="several pieces"),
        pytest.param(30, {}, False, id="not all there"),
    ],
)
def test_pieces_that_tasks_have_to_read(length: int, options: dict[str, str], has_tails: bool) -> None:
    planner, client = planner_of({"log/a": FakeJournal(lines(length // 10))}, **options)
    client.has_tails = has_tails
    end = planner.next(at(a=0))
    assert set(contents(planner.pieces(at(a=0), end))) == {None}


def test_a_batch_that_is_planned_again_after_a_restart_is_read() -> None:
    """The ends are already known, so the planner reads no bytes."""
    first, client = planner_of({"log/a": FakeJournal(lines(3))})
    end = first.next(at(a=0))
    again, _ = planner_of(client.journals)
    assert contents(again.pieces(at(a=0), end)) == [None]


def test_a_batch_brings_few_bytes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "PLANNED_BYTES", 45)
    planner, _ = planner_of(
        {f"log/{name}": FakeJournal(lines(n)) for name, n in zip("abcd", (3, 1, 2, 1), strict=True)}
    )
    start, end = at(a=0, b=0, c=0, d=0), at(a=30, b=10, c=20, d=10)
    assert planner.next(start) == end
    assert contents(planner.pieces(start, end)) == [None, lines(1), lines(2), lines(1)]


@pytest.mark.parametrize(("look_s", "pause_s"), [(0.01, 0.1), (3, 3)], ids=["quick", "slow"])
def test_a_stream_with_nothing_new_is_looked_at_seldom(look_s: float, pause_s: float) -> None:
    """Spark asks a hundred times a second. A slow look also delays the next one."""
    now, waits = [0.0], list[float]()

    class SlowClient(FakeClient):
        def tails(self, offsets: Mapping[str, int], max_bytes: int) -> dict[str, Tail]:
            now[0] += look_s
            return super().tails(offsets, max_bytes)

    options = parse_options({"brokerAddress": "http://broker.test:80", "path": "log/"}, "stream", environ={})
    client = SlowClient({"log/a": FakeJournal(lines(1))})
    planner = Planner(
        client,  # type: ignore[arg-type]  # A fake client.
        options,
        clock=lambda: now[0],
        idle_poll_s=0.1,
        wait=waits.append,
    )
    assert planner.next(at(a=0)) == at(a=10)
    for _ in range(3):
        planner.next(at(a=10))
    assert waits == pytest.approx([pause_s] * 2)
    planner.freeze()
    planner.next(at(a=10))
    assert len(waits) == 2


def test_a_query_checkpoint_keeps_its_isolation_level(tmp_path: Path) -> None:
    """Messages of open transactions would be lost, and a repeated batch would have other rows."""
    committed = {"isolationLevel": "read_committed", "stateLocation": str(tmp_path)}
    first, client = planner_of({"log/a": FakeJournal(lines(1))}, startingOffsets="earliest", **committed)
    start = first.next(first.initial())
    end = first.next(start)
    uncommitted, _ = planner_of(client.journals)
    with pytest.raises(OptionError, match=r"isolationLevel.*read_committed: messages .* would be lost"):
        uncommitted.next(end)
    with pytest.raises(OptionError, match=r"isolationLevel.*read_committed: the batch .* other rows"):
        uncommitted.pieces(start, end)
    other, _ = planner_of(client.journals, **committed)
    with pytest.raises(OptionError, match=r"isolationLevel.*read_uncommitted: the batch .* other rows"):
        other.pieces(at(a=0), at(a=10))
    # A query that has read all messages up to a position may continue with committed ones.
    client.journals["log/a"].content += lines(1)
    assert other.next(at(a=10)) == at(a=20)


def test_a_planner_that_cannot_be_made_closes_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would leak otherwise, because Spark's process may live on."""
    closed: list[str] = []
    client = SimpleNamespace(close=lambda: closed.append("client"))
    monkeypatch.setattr(plan_module, "open_client", lambda _options: client)
    given = {"brokerAddress": "http://broker.test:80", "path": "log/", "isolationLevel": "read_committed"}
    options = parse_options(given | {"stateLocation": "nothing://opens/this"}, "stream", environ={})
    with pytest.raises(OptionError, match="stateLocation"):
        stream_planner(options)
    assert closed == ["client"]
