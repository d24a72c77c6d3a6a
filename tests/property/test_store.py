"""Read without a broker, each whole record comes once, however its bytes are stored; losses are reported."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gazette_spark._backfill import steps
from gazette_spark._planning.plan import Planner
from gazette_spark._planning.stores import StoreJournals, store_selection, with_fragments
from gazette_spark.errors import DataLossError, FragmentConflictError, RecordError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.oracles.lines import FakeJournal, records_of
from tests.oracles.stores import MemoryFiles, plan, read, rows_of, store_options

NAMES = ("log/a", "log/b/c", "log/d")
CODECS = (pb.NONE, pb.GZIP, pb.SNAPPY, pb.ZSTANDARD, pb.GZIP_OFFLOAD_DECOMPRESSION)

contents = st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"") + b"\n"), max_size=12).map(
    b"".join
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[FakeJournal, list[tuple[int, int]]]:
    """Draw a journal and its stored spans: rolled anywhere, by several replicas, some deleted."""
    content, base = draw(contents) + b"y" * draw(st.integers(0, 3)), draw(st.sampled_from([0, 7, 1 << 40]))
    spans: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(1, 3))):
        rolls = draw(st.lists(st.integers(0, len(content)), max_size=6))
        edges = sorted({0, *rolls, len(content)})
        spans |= {(base + low, base + high) for low, high in pairwise(edges)}
    deleted = draw(st.sets(st.sampled_from(sorted(spans)), max_size=3)) if spans else set()
    return FakeJournal(content, base), sorted(spans - deleted)


def holes_of(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    held = {at for low, high in spans for at in range(low, high)}
    if not held:
        return []
    gone = [at for at in range(min(held), max(held)) if at not in held]
    starts = [at for at in gone if at - 1 not in gone]
    return [(at, next(stop for stop in range(at, max(held) + 1) if stop in held)) for at in starts]


def left_of(journal: FakeJournal, spans: list[tuple[int, int]]) -> FakeJournal:
    low, high = min(begin for begin, _ in spans), max(end for _, end in spans)
    return FakeJournal(journal.window(low, high), low, holes_of(spans))


@settings(deadline=None)
@given(
    st.lists(histories(), min_size=1, max_size=3),
    st.data(),
    st.sampled_from([{}, {"maxBytesPerPartition": "20"}, {"minPartitions": "5"}]),
)
def test_every_whole_record_comes_once(
    stories: list[tuple[FakeJournal, list[tuple[int, int]]]], data: st.DataObject, cut: dict[str, str]
) -> None:
    files, expected, lossy = MemoryFiles(), [], False
    for name, (journal, spans) in zip(NAMES, stories, strict=False):
        for begin, end in spans:
            files.put(name, begin, journal.window(begin, end), data.draw(st.sampled_from(CODECS)))
        if spans:
            left = left_of(journal, spans)
            lossy = lossy or bool(left.holes)
            expected += [(name, *record) for record in records_of(left, left.base, 1 << 62)]
    assume(files.files)
    assert sorted(rows_of(files, failOnDataLoss="false", **cut)) == sorted(expected)
    if lossy:
        with pytest.raises(DataLossError):
            rows_of(files, **cut)
    else:
        assert sorted(rows_of(files, **cut)) == sorted(expected)
    assert files.open_files == 0


@settings(deadline=None)
@given(histories(), st.data())
def test_what_is_deleted_after_the_plan_is_lost_and_nothing_else(
    story: tuple[FakeJournal, list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Other fragments that overlap the deleted one replace it; a row is missing only if it lost a byte."""
    journal, spans = story
    assume(spans)
    files = MemoryFiles()
    paths = {span: files.put("log/a", span[0], journal.window(*span)) for span in spans}
    options = store_options(failOnDataLoss="false", maxBytesPerPartition="20")
    pieces = plan(files, options)
    gone = data.draw(st.sets(st.sampled_from(spans)))
    for span in gone:
        del files.files[paths[span]]
    left = [span for span in spans if span not in gone]
    expected = []
    if left and pieces:
        end = max(piece.end for piece in pieces)
        found = records_of(left_of(journal, left), min(piece.begin for piece in pieces), end)
        expected = [("log/a", *record) for record in found]
    assert read(files, options, pieces) == expected


@st.composite
def disagreements(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    at = draw(st.integers(0, 59))
    around = st.tuples(st.integers(0, at), st.integers(at + 1, 64))
    anywhere = st.tuples(st.integers(0, 63), st.integers(1, 30)).map(lambda s: (s[0], min(64, sum(s))))
    return at, [draw(around), draw(around), *draw(st.lists(anywhere, max_size=3))]


@settings(deadline=None)
@example((2, [(0, 4), (0, 4)]))
@given(disagreements())
def test_fragments_that_disagree_are_never_read_in_silence(found: tuple[int, list[tuple[int, int]]]) -> None:
    at, (odd, *spans) = found
    content = b"xyz\n" * 16
    other = bytes([*content[:at], content[at] ^ 1, *content[at + 1 :]])
    files = MemoryFiles()
    for low, high in spans:
        files.put("log/a", low, content[low:high])
    files.put("log/a", odd[0], other[odd[0] : odd[1]], pb.GZIP)
    with pytest.raises(FragmentConflictError, match="do not agree"):
        rows_of(files, framing="none", failOnDataLoss="false")


@settings(deadline=None)
@given(st.lists(histories(), min_size=1, max_size=3), st.integers(1, 60))
def test_a_backfill_in_steps_reads_what_one_reads(
    stories: list[tuple[FakeJournal, list[tuple[int, int]]]], limit: int
) -> None:
    files = MemoryFiles()
    for name, (journal, spans) in zip(NAMES, stories, strict=False):
        for begin, end in spans:
            files.put(name, begin, journal.window(begin, end))
    assume(files.files)
    options = store_options(failOnDataLoss="false")
    with StoreJournals.listed(files, store_selection(options)) as journals:
        planner = Planner(journals, options)
        first, last = planner.batch()
        ranges = list(steps(planner, first, last, limit))
        found = [
            row
            for low, high in ranges
            for row in read(files, options, with_fragments(journals, planner.pieces(low, high), options))
        ]
    gone = any(left_of(*story).holes for story in stories if story[1])
    assert [first, *(high for _, high in ranges)] == [*(low for low, _ in ranges), last]
    assert sorted(found) == sorted(rows_of(files, failOnDataLoss="false"))
    for low, high in ranges:
        sizes = [high.read_through[name] - at for name, at in low.read_through.items()]
        assert max(sizes) > 0
        assert sum(sizes) <= limit + 12 * len(sizes) or gone


@settings(deadline=None)
@given(histories(), st.data())
def test_times_are_those_of_a_broker(
    story: tuple[FakeJournal, list[tuple[int, int]]], data: st.DataObject
) -> None:
    journal, spans = story
    assume(spans)
    files = MemoryFiles()
    for begin, end in spans:
        files.put("log/a", begin, journal.window(begin, end), mod_time=data.draw(st.integers(100, 105)))
    time = str(data.draw(st.integers(99, 106)) * 1000)
    late = {"startingOffsetsByTimestampStrategy": "latest"}
    try:
        before = rows_of(files, failOnDataLoss="false", endingTimestamp=time)
        after = rows_of(files, failOnDataLoss="false", startingTimestamp=time, **late)
    except RecordError:
        assume(False)
    assert before + after == rows_of(files, failOnDataLoss="false")
