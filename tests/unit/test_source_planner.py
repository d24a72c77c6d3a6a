"""The planner's positions follow from the position it is given and the brokers, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pytest

from gazette_spark.errors import (
    DataLossError,
    GazetteError,
    JournalNotFoundError,
    OffsetBeyondHeadError,
    OffsetError,
    OptionError,
    RecordError,
)
from gazette_spark.framing.fixed import frame
from gazette_spark.offsets import JournalOffsets
from gazette_spark.options import Use, parse_options
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import expand_prefix, labels_with_name, parse_selector, selector_matches
from gazette_spark.scan.planner import Planner
from gazette_spark.scan.ranges import Piece

FIXED = "application/x-protobuf-fixed"


@dataclass
class FakeChunk:
    offset: int
    content: bytes


@dataclass
class FakeReader:
    chunks: list[FakeChunk]
    offset: int
    jumps: list[tuple[int, int]]

    def __iter__(self) -> Iterator[FakeChunk]:
        return iter(self.chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


@dataclass
class FakeFragment:
    begin: int


@dataclass
class FakeListed:
    fragment: FakeFragment


@dataclass
class FakeJournal:
    content: bytes = b""
    begin: int = 0
    """Offset of the first byte; what was before is gone."""
    content_type: str = "application/x-ndjson"
    fragments: Sequence[int] = (0,)
    stale_head: int | None = None
    """Head that is answered until the fragments have been listed."""

    @property
    def head(self) -> int:
        return self.begin + len(self.content)


@dataclass
class FakeClient:
    """Brokers in memory, as far as a planner asks."""

    journals: dict[str, FakeJournal]
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    deleted_once_listed: str = ""

    def list_journals(self, selector: str | pb.LabelSelector = "") -> list[pb.ListResponse.Journal]:
        parsed = parse_selector(selector) if isinstance(selector, str) else selector
        specs = [self.spec(name) for name in sorted(self.journals)]
        self.journals.pop(self.deleted_once_listed, None)
        matching = [s for s in specs if selector_matches(expand_prefix(parsed), labels_with_name(s))]
        return [pb.ListResponse.Journal(spec=spec) for spec in matching]

    def spec(self, name: str) -> pb.JournalSpec:
        labels = [pb.Label(name="content-type", value=self.journals[name].content_type)]
        return pb.JournalSpec(name=name, labels=pb.LabelSet(labels=labels))

    def get_journal(self, name: str) -> pb.ListResponse.Journal:
        if name not in self.journals:
            raise JournalNotFoundError(name)
        return pb.ListResponse.Journal(spec=self.spec(name))

    def first_offset(self, journal: str) -> int:
        found = self._found(journal)
        found.stale_head = None
        return found.begin

    def _found(self, journal: str) -> FakeJournal:
        if journal not in self.journals:
            raise JournalNotFoundError(journal)
        return self.journals[journal]

    def write_head(self, journal: str) -> int:
        found = self._found(journal)
        return found.head if found.stale_head is None else found.stale_head

    def write_heads(self, journals: Sequence[str]) -> dict[str, int]:
        return {journal: self.write_head(journal) for journal in journals}

    def list_fragments(self, journal: str) -> list[FakeListed]:
        self.lists.append(journal)
        return [FakeListed(FakeFragment(begin)) for begin in self.journals[journal].fragments]

    def read(self, journal: str, *, offset: int = 0, end_offset: int = 0) -> FakeReader:
        self.reads.append((journal, offset, end_offset))
        found = self.journals[journal]
        begin = max(offset, found.begin)
        content = found.content[begin - found.begin : max(0, end_offset - found.begin)]
        jumps = [(offset, begin)] if begin > offset else []
        return FakeReader([FakeChunk(begin, content)] if content else [], end_offset, jumps)


def planner_of(
    journals: dict[str, FakeJournal], use: Use = "stream", /, **options: str
) -> tuple[Planner, FakeClient]:
    """Return a planner over fake journals; it reads the prefix ``log/`` if not told otherwise."""
    given = {"brokerAddress": "http://broker.test:80"} | options
    if not given.keys() & {"journals", "selector"}:
        given["path"] = "log/"
    client = FakeClient(journals)
    return Planner(client, parse_options(given, use, environ={})), client  # type: ignore[arg-type]


def at(**offsets: int) -> JournalOffsets:
    """Return a position: ``at(a=5)`` is offset 5 of ``log/a``."""
    return JournalOffsets({f"log/{name}": offset for name, offset in offsets.items()})


def lines(count: int, length: int = 10) -> bytes:
    """Return ``count`` records of ``length`` bytes each, newline included."""
    return (b"x" * (length - 1) + b"\n") * count


def test_a_new_query_starts_at_the_latest_and_is_pinned_there() -> None:
    """The first batch ends where it starts, so its entry in the query checkpoint holds the start."""
    planner, client = planner_of({"log/a": FakeJournal(lines(3))})
    initial = planner.initial()
    assert initial == at(a=30).at("initial")
    client.journals["log/a"].content += lines(5)
    assert planner.next(initial) == at(a=30).at("pinned")


def test_what_comes_after_a_crash_in_the_first_batch_is_read_from_the_pinned_start() -> None:
    """A second planner knows nothing of the first, and goes on where that one was pinned."""
    first, client = planner_of({"log/a": FakeJournal(lines(3))})
    pinned = first.next(first.initial())
    client.journals["log/a"].content += lines(5)
    second = Planner(client, first._options)  # type: ignore[arg-type]
    assert second.pieces(second.initial(), pinned) == []
    assert second.next(pinned) == at(a=80)


def test_latest_is_the_end_of_a_whole_record() -> None:
    """The write head may lie inside a record; half of it would be a row of its own."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3) + b"half")})
    assert planner.initial().read_through == {"log/a": 30}


def test_a_journal_with_half_a_record_starts_at_its_first_offset() -> None:
    """There is no whole record to start after."""
    planner, _ = planner_of({"log/a": FakeJournal(b"half", begin=500)})
    assert planner.initial().read_through == {"log/a": 500}


def test_earliest_is_the_first_offset_left() -> None:
    """Retention moves it."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), begin=70)}, startingOffsets="earliest")
    assert planner.initial().read_through == {"log/a": 70}


def test_starting_offsets_by_journal() -> None:
    """Offsets, -2 and -1 for those named, earliest for the others."""
    journals = {f"log/{name}": FakeJournal(lines(3), begin=100) for name in "abcd"}
    text = '{"log/a":110,"log/b":-1,"log/c":-2}'
    planner, _ = planner_of(journals, startingOffsets=text)
    assert planner.initial() == at(a=110, b=130, c=100, d=100).at("initial")


def test_a_broker_that_has_just_started_cannot_pin_a_start_too_low() -> None:
    """It answers with a head of 0 until it has listed its stores; listing fragments waits for that."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), stale_head=0)})
    assert planner.initial().read_through == {"log/a": 30}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        pytest.param({"selector": "app=none"}, OptionError, "matches no journal", id="nothing_matches"),
        pytest.param({"journals": "log/a,log/none"}, JournalNotFoundError, "'log/none'", id="no_such_name"),
        pytest.param(
            {"startingOffsets": '{"log/none":0}'}, JournalNotFoundError, "'log/none'", id="no_such_start"
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
            {"journals": "log/other"}, OptionError, "content-type=application/other; expected", id="type"
        ),
        pytest.param(
            {"journals": "log/other,log/proto", "framing": "csv"},
            OptionError,
            "'framing': got csv, and journal 'log/proto' has the label content-type=application/x-prot",
            id="framing",
        ),
        pytest.param(
            {"journals": "log/proto", "format": "json"}, OptionError, "'format': got json, and", id="format"
        ),
        pytest.param(
            {"journals": "log/proto", "startingOffsets": '{"log/proto":9}'},
            OffsetError,
            "lies inside a record: what stands at it begins none of framing fixed",
            id="inside_a_frame",
        ),
    ],
)
def test_a_start_that_cannot_be_is_named(
    options: dict[str, str], error: type[GazetteError], text: str
) -> None:
    """Before anything is written to the query checkpoint."""
    journals = {"log/a": FakeJournal(lines(3), begin=100), "log/b": FakeJournal()}
    if "proto" in str(options):
        journals["log/proto"] = FakeJournal(frame(b"12345678"), content_type=FIXED)
    if "other" in str(options):
        journals["log/other"] = FakeJournal(content_type="application/other")
    with pytest.raises(error) as caught:
        planner_of(journals, **options)[0].initial()
    assert text in str(caught.value)


def test_a_start_before_the_first_offset_is_moved_when_loss_is_allowed() -> None:
    """Under failOnDataLoss=false the bytes that are gone are skipped."""
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
    """From the option, the format or the label; a planner that never listed the journal asks for it."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), content_type=content_type)}, **given)
    assert [piece.framing for piece in planner.pieces(at(a=0), at(a=30))] == [framing]


def test_a_batch_that_is_run_again_asks_once_for_all_journals() -> None:
    """A planner that has just been made knows no journal's framing."""
    journals = {f"log/{name}": FakeJournal(lines(3), content_type="text/csv") for name in "abc"}
    planner, client = planner_of(journals)
    asked: list[str] = []
    client.get_journal = asked.append  # type: ignore[method-assign, assignment]
    pieces = planner.pieces(at(a=0, b=0, c=0), at(a=30, b=30, c=30))
    assert [piece.framing for piece in pieces] == ["csv"] * 3
    assert asked == []


def test_frames_are_cut_at_fragments_and_ended_at_whole_ones() -> None:
    """A frame that is half written stays for a later batch, and pieces begin where fragments do."""
    whole = frame(b"x" * 12) * 3
    journal = FakeJournal(whole + frame(b"half")[:-1], content_type=FIXED, fragments=(0, 20, 40))
    planner, client = planner_of({"log/a": journal}, maxBytesPerPartition="25")
    assert planner.next(at(a=0)) == at(a=60)
    assert planner.next(at(a=0), 30) == at(a=20)
    assert planner.next(at(a=0), 5) == at(a=20)
    assert planner.pieces(at(a=0), at(a=60)) == [
        Piece("log/a", begin, begin + 20, begin + 20, head=True, framing="fixed") for begin in (0, 20, 40)
    ]
    client.journals["log/a"].content += b"f"
    assert planner.next(at(a=60)) == at(a=72)


def test_a_batch_ends_at_whole_records() -> None:
    """The half-written record stays for a later batch."""
    planner, client = planner_of({"log/a": FakeJournal(lines(3) + b"half")})
    assert planner.next(at(a=0)) == at(a=30)
    assert planner.next(at(a=30)) == at(a=30)
    client.journals["log/a"].content += b" done\n"
    assert planner.next(at(a=30)) == at(a=40)


def test_a_half_written_record_is_looked_at_once() -> None:
    """A planner asked again and again reads nothing until the journal has grown."""
    planner, client = planner_of({"log/a": FakeJournal(b"half")})
    planner.next(at(a=0))
    client.reads.clear()
    assert planner.next(at(a=0)) == at(a=0)
    assert client.reads == []


def test_the_start_comes_back_unchanged_if_nothing_is_new() -> None:
    """Its mark included: Spark compares text, and a batch without rows would be run for the mark."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3))})
    start = at(a=30).at("pinned")
    assert planner.next(start) is start


def test_a_limit_is_shared_and_ends_at_whole_records() -> None:
    """In proportion to the backlog."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(300)), "log/b": FakeJournal(lines(100))})
    assert planner.next(at(a=0, b=0), 415) == at(a=310, b=100)


def test_a_limit_below_a_record_reads_one_record() -> None:
    """The limit is soft."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3, 70_000)), "log/b": FakeJournal(lines(2))})
    assert planner.next(at(a=0, b=0), 1) == at(a=70_000, b=10)


def test_a_new_journal_is_pinned_first_and_read_next() -> None:
    """From its first available offset, so that a crash in between loses nothing."""
    planner, client = planner_of({"log/a": FakeJournal(lines(1))})
    client.journals["log/b"] = FakeJournal(lines(2), begin=40)
    pinned = planner.next(at(a=0))
    assert pinned == at(a=10, b=40)
    assert planner.pieces(at(a=0), pinned) == [Piece("log/a", 0, 10, 10, head=True)]
    assert planner.next(pinned) == at(a=10, b=60)


def test_a_journal_that_appears_is_a_change_by_itself() -> None:
    """Its first offset must reach the query checkpoint."""
    planner, _ = planner_of({"log/a": FakeJournal(), "log/b": FakeJournal()})
    assert planner.next(at(a=0)) == at(a=0, b=0)


def test_available_now_ends_at_the_heads_taken_at_its_start() -> None:
    """However much is appended meanwhile, and whatever journals appear."""
    planner, client = planner_of({"log/a": FakeJournal(lines(4)), "log/b": FakeJournal(lines(1))})
    planner.freeze()
    client.journals["log/a"].content += lines(9)
    client.journals["log/c"] = FakeJournal(lines(1))
    middle = planner.next(at(a=0, b=0), 30)
    assert middle == at(a=20, b=10)
    end = planner.next(middle)
    assert end == at(a=40, b=10)
    assert planner.next(end) is end


def test_available_now_reads_journals_that_appeared_before_it() -> None:
    """Pinned in one batch, read in the next, then the run ends."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(1)), "log/new": FakeJournal(lines(2), begin=7)})
    planner.freeze()
    pinned = planner.next(at(a=10))
    assert pinned == at(a=10, new=7)
    end = planner.next(pinned)
    assert end == at(a=10, new=27)
    assert planner.next(end) is end


def test_a_head_below_the_position_is_an_error() -> None:
    """Offsets would be used again for other bytes."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(1))})
    with pytest.raises(OffsetBeyondHeadError, match="20 was already read, but the journal now ends at 10"):
        planner.next(at(a=20))


def test_a_head_that_is_low_because_the_broker_has_just_started_is_asked_for_again() -> None:
    """No false alarm, and no row lost."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), stale_head=0)})
    assert planner.next(at(a=20)) == at(a=30)


def test_a_deleted_journal_ends_the_query() -> None:
    """With the journal and the way out."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(1))})
    with pytest.raises(JournalNotFoundError, match=r"'log/gone'.*it is gone; set failOnDataLoss=false"):
        planner.next(at(a=0, gone=5))


@pytest.mark.parametrize("start", [at(a=0, gone=5), at(a=0)], ids=["known", "new"])
def test_a_journal_deleted_once_it_is_listed(start: JournalOffsets) -> None:
    """Whether a query has read it, or has just found it, it is as if it had never been listed."""
    journals = {"log/a": FakeJournal(lines(1)), "log/gone": FakeJournal(lines(1))}
    planner, client = planner_of(journals, failOnDataLoss="false")
    client.deleted_once_listed = "log/gone"
    assert planner.next(start).read_through == {**start.read_through, "log/a": 10}


def test_a_journal_deleted_once_it_is_listed_ends_the_query() -> None:
    """With the way out, as any deleted one."""
    planner, client = planner_of({"log/a": FakeJournal(lines(1)), "log/gone": FakeJournal(lines(1))})
    client.deleted_once_listed = "log/gone"
    with pytest.raises(JournalNotFoundError, match=r"'log/gone'.*it is gone; set failOnDataLoss=false"):
        planner.next(at(a=0, gone=5))


def test_a_deleted_journal_is_left_out_when_loss_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    """Its offset is kept, and one warning is logged however often it is seen."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(1))}, failOnDataLoss="false")
    assert planner.next(at(a=0, gone=5)) == at(a=10, gone=5)
    planner.next(at(a=10, gone=5))
    assert [record.getMessage() for record in caplog.records] == [
        "journal is gone, its offset is kept journal=log/gone"
    ]


def test_a_journal_that_is_not_selected_any_more_is_paused() -> None:
    """Its labels, or the query's options, have changed; coming back it goes on where it was."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(1)), "other/b": FakeJournal(lines(9))})
    start = JournalOffsets({"log/a": 0, "other/b": 20})
    assert planner.next(start).read_through == {"log/a": 10, "other/b": 20}


def test_a_record_that_is_too_long_is_named() -> None:
    """A limit on records keeps a journal without newlines from filling the memory."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(1) + b"x" * 5000)}, maxRecordBytes="1k")
    with pytest.raises(RecordError, match=r"journal 'log/a'.*maxRecordBytes=1024"):
        planner.next(at(a=0))


def test_bytes_gone_at_the_start_are_an_error_when_the_window_shows_it() -> None:
    """The tail window is the first read of a batch."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), begin=100)})
    with pytest.raises(DataLossError) as caught:
        planner.next(at(a=90))
    assert (caught.value.wanted, caught.value.available) == (90, 100)


def test_a_limit_that_ends_in_a_hole_makes_progress() -> None:
    """A query that may skip what is gone is not stopped by it."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3), begin=10_000)}, failOnDataLoss="false")
    position, seen = at(a=0), 0
    while (end := planner.next(position, 4000)) != position:
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
    """Spark would plan it."""
    with pytest.raises(OffsetError):
        planner_of({})[0].pieces(start, end)


def test_small_batches_are_one_piece_a_journal_and_list_nothing() -> None:
    """The usual batch of a stream costs no listing of fragments."""
    planner, client = planner_of({"log/a": FakeJournal(), "log/b": FakeJournal()})
    pieces = planner.pieces(at(a=0, b=5), at(a=10, b=25))
    assert pieces == [Piece("log/a", 0, 10, 10, head=True), Piece("log/b", 5, 25, 25, head=True)]
    assert client.lists == []


def test_large_ranges_are_cut() -> None:
    """At fragment edges where they suit."""
    planner, client = planner_of(
        {"log/a": FakeJournal(fragments=(0, 900)), "log/b": FakeJournal()}, maxBytesPerPartition="1000"
    )
    pieces = planner.pieces(at(a=0, b=0), at(a=2000, b=10))
    assert [(piece.journal, piece.begin, piece.end) for piece in pieces][:1] == [("log/a", 0, 901)]
    assert all(piece.end - piece.begin <= 1000 for piece in pieces)
    assert client.lists == ["log/a"]


def test_min_partitions_cuts_what_there_is() -> None:
    """Over all journals of a batch."""
    planner, _ = planner_of({"log/a": FakeJournal()}, minPartitions="4")
    assert len(planner.pieces(at(a=0), at(a=400))) == 4


def test_a_batch_query_reads_all_whole_records() -> None:
    """From the earliest to the latest."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3) + b"half", begin=50)}, "batch")
    assert planner.batch() == (at(a=50), at(a=80))


def test_a_batch_query_ends_where_it_is_told() -> None:
    """A record that is cut there is left out; journals not named end at their latest."""
    journals = {"log/a": FakeJournal(lines(9)), "log/b": FakeJournal(lines(2))}
    planner, _ = planner_of(journals, "batch", startingOffsets='{"log/a":20}', endingOffsets='{"log/a":45}')
    assert planner.batch() == (at(a=20, b=0), at(a=40, b=20))


@pytest.mark.parametrize(
    ("end", "text"),
    [
        pytest.param(131, "endingOffsets lies past the write head 130", id="past_head"),
        pytest.param(99, "endingOffsets lies before the start at 100", id="before_start"),
    ],
)
def test_a_batch_end_that_cannot_be_is_named(end: int, text: str) -> None:
    """With journal and offset."""
    planner, _ = planner_of(
        {"log/a": FakeJournal(lines(3), begin=100)}, "batch", endingOffsets=f'{{"log/a":{end}}}'
    )
    with pytest.raises(OffsetError, match=text) as caught:
        planner.batch()
    assert (caught.value.journal, caught.value.offset) == ("log/a", end)


def test_the_heads_seen_last_are_reported() -> None:
    """Spark shows them in the query's progress; before the first batch there are none."""
    planner, _ = planner_of({"log/a": FakeJournal(lines(3) + b"half")})
    assert planner.latest() is None
    planner.next(at(a=0))
    assert planner.latest() == at(a=34)
