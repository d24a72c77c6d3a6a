"""Every framing gives the records that its oracle finds, however ranges are cut and bytes arrive."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark._formats.fixed import MAGIC, frame
from gazette_spark._planning import boundary
from gazette_spark._planning.boundary import limited_end, record_end
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from gazette_spark._planning.pieces import OffsetRange, Piece, split
from gazette_spark.errors import RecordError
from tests.oracles.framings import FAST, Found, read
from tests.oracles.lines import FakeJournal

NAME = "a/journal"
LONG = 1 << 20

Row = tuple[int, bytes, int]

csv_fields = st.one_of(
    st.text("ab ", max_size=3),
    st.text('ab,\n\r"', max_size=6).map(lambda text: '"' + text.replace('"', '""') + '"'),
    st.text('ab"\r', max_size=4),
)
csv_records = st.one_of(st.lists(csv_fields, max_size=4).map(",".join), st.sampled_from(["", "\r"]))
csv_contents = st.one_of(
    st.lists(csv_records.map(lambda record: record + "\n"), max_size=12).map("".join),
    st.text('a",\n\r', max_size=60),
).map(str.encode)

payloads = st.recursive(
    st.one_of(st.binary(max_size=12), st.sampled_from([MAGIC, MAGIC + b"\x02\0\0\0", MAGIC[:3], b""])),
    lambda inner: st.lists(st.one_of(inner, inner.map(frame)), max_size=3).map(b"".join),
    max_leaves=5,
)
contents = {
    "lines": st.text("ab\n\r", max_size=60).map(str.encode),
    "csv": csv_contents,
    "fixed": st.lists(payloads.map(frame), max_size=8).map(b"".join),
    "none": st.binary(max_size=60),
}
names = pytest.mark.parametrize("name", list(FAST))
chunk_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@st.composite
def cases(draw: st.DrawFn, name: str) -> tuple[FakeJournal, Found]:
    """Draw a journal that ends with a whole record and arrives in uneven chunks, and its records."""
    content, base = draw(contents[name]), draw(st.integers(0, 50))
    end = read(name, content, base).boundaries[-1]
    journal = FakeJournal(content[: end - base], base, (), draw(chunk_sizes))
    return journal, read(name, journal.content, base)


ROWS = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def rows_of(journal: FakeJournal, piece: Piece, block_bytes: int, *, fail: bool = True) -> list[Row]:
    framing = FAST[piece.framing]
    scan = PieceScan(journal, piece, fail_on_data_loss=fail, block_bytes=block_bytes, framing=framing)
    found: list[Row] = []
    for block in scan:
        assert len(block)
        (batch,) = raw_record_batches([block], ROWS, framing=framing)
        batch.validate(full=True)
        ends = block.end_offset_array()
        found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), ends.to_pylist(), strict=True)
    return found


def pieces_at(name: str, begin: int, end: int, cuts: list[int]) -> list[Piece]:
    anchored = FAST[name].anchored
    edges = [begin, *sorted({cut for cut in cuts if begin < cut < end}), end]
    return [
        Piece(
            NAME,
            low,
            high,
            high if anchored else end,
            starts_on_record=anchored or low == begin,
            framing=name,
        )
        for low, high in pairwise(edges)
    ]


@names
@settings(deadline=None)
@given(st.data(), st.integers(1, 60))
def test_any_cut_gives_the_same_records(name: str, data: st.DataObject, block_bytes: int) -> None:
    """Unanchored framings may be cut at any byte, anchored ones at records; each record comes out once."""
    journal, found = data.draw(cases(name))
    begin, end = journal.base, journal.base + len(journal.content)
    places = st.sampled_from(found.boundaries) if FAST[name].anchored else st.integers(begin, end)
    pieces = pieces_at(name, begin, end, data.draw(st.lists(places, max_size=8)))
    assert [row for piece in pieces for row in rows_of(journal, piece, block_bytes)] == found.records
    assert journal.open_reads == 0


@pytest.mark.parametrize("name", ["csv", "fixed"])
@settings(deadline=None)
@given(st.data())
def test_a_cut_inside_a_record_is_never_unseen(name: str, data: st.DataObject) -> None:
    journal, found = data.draw(cases(name))
    begin, end = journal.base, journal.base + len(journal.content)
    edges = data.draw(st.lists(st.integers(begin, end), max_size=6))
    fragments = {NAME: [OffsetRange(NAME, edge, edge) for edge in edges]}
    ranges = [OffsetRange(NAME, begin, end)]
    pieces = split(ranges, fragments, framings={NAME: FAST[name]}, max_bytes=data.draw(st.integers(1, 40)))
    assert [piece.begin for piece in pieces] == [begin, *(piece.end for piece in pieces[:-1])][: len(pieces)]
    true = all(piece.end in found.boundaries for piece in pieces)
    try:
        rows = [row for piece in pieces for row in rows_of(journal, piece, 16)]
    except RecordError:
        assert not true
    else:
        assert true
        assert rows == found.records


def longest_of(found: Found, content: bytes) -> int:
    """Return the lowest limit that lets all records pass, and a carriage return on a blank line."""
    return max([1, *(len(value) for _, value, _ in found.records), len(content) - found.boundaries[-1]])


@names
@settings(deadline=None)
@given(st.data(), st.integers(1, 8))
def test_ends_are_the_largest_boundaries(name: str, data: st.DataObject, window_bytes: int) -> None:
    content = data.draw(contents[name])
    found = read(name, content)
    begin = data.draw(st.sampled_from(found.boundaries))
    end = data.draw(st.integers(begin, len(content)))
    longest = longest_of(found, content)
    longest = data.draw(st.sampled_from([longest, LONG]))
    window = FakeJournal(content).window
    with mock.patch.object(boundary, "FIRST_WINDOW_BYTES", window_bytes):
        got = record_end(window, begin, end, longest, framing=FAST[name])
        assert got == max(at for at in found.boundaries if at <= end)
        after = limited_end(window, begin, end, len(content), LONG, framing=FAST[name])
    if got > begin or end == len(content):
        assert after == got
    elif name != "none":  # The planner always admits a byte, and any byte ends a batch.
        assert after in found.boundaries
        assert sum(begin < stop <= after for _, _, stop in found.records) <= 1
        assert after > begin or found.boundaries[-1] == begin


@names
@settings(deadline=None)
@given(st.data())
def test_a_window_tells_the_truth_or_nothing(name: str, data: st.DataObject) -> None:
    content = data.draw(contents[name])
    found = read(name, content)
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, len(content)))
    longest = longest_of(found, content)
    got = FAST[name].last_boundary(content[begin:end], longest)
    if got is not None:
        assert begin + got == max(at for at in found.boundaries if at <= end)


@settings(deadline=None)
@given(
    st.lists(st.one_of(payloads.map(frame), st.text("f36x", min_size=1, max_size=9).map(str.encode))),
    st.data(),
)
def test_frames_out_of_step_are_skipped_and_counted(parts: list[bytes], data: st.DataObject) -> None:
    content = b"".join(parts)
    content = content[: read("fixed", content).boundaries[-1]]
    found = read("fixed", content)
    journal = FakeJournal(content, 0, (), data.draw(chunk_sizes))
    piece = Piece(NAME, 0, len(content), len(content), starts_on_record=True, framing="fixed")
    scan = PieceScan(
        journal,
        piece,
        fail_on_data_loss=False,
        block_bytes=data.draw(st.integers(1, 60)),
        framing=FAST["fixed"],
    )
    rows = [
        (offset, value)
        for batch in raw_record_batches(scan, ROWS, framing=FAST["fixed"])
        for offset, value in zip(*batch.to_pydict().values(), strict=True)
    ]
    assert rows == [(offset, value) for offset, value, _ in found.records]
    assert [at for gap in scan.gaps for at in range(gap.begin, gap.end)] == found.skipped
    assert all(gap.kind == "desync" for gap in scan.gaps)


@names
@settings(deadline=None)
@given(st.data(), st.integers(1, 30))
def test_a_hole_takes_the_record_it_cuts(name: str, data: st.DataObject, block_bytes: int) -> None:
    """All other records come out; the first line after the hole may be the second half of one."""
    journal, _ = data.draw(cases(name))
    begin, end = journal.base, journal.base + len(journal.content)
    low = data.draw(st.integers(begin, end))
    ends = [at for at in read(name, journal.content, begin).boundaries if low < at < end]
    holes = [(low, high) for high in [data.draw(st.sampled_from(ends))]] if ends else []
    before = read(name, journal.window(begin, low if holes else end), begin)
    after = read(name, journal.window(holes[0][1], end), holes[0][1]) if holes else Found()
    holed = FakeJournal(journal.content, begin, holes, journal.chunk_sizes)
    (piece,) = pieces_at(name, begin, end, [])
    rest = 1 if FAST[name].resyncs else 0
    assert rows_of(holed, piece, block_bytes, fail=False) == before.records + after.records[rest:]


@names
def test_nothing_is_no_record(name: str) -> None:
    """The spans of zero records are still arrays of 64-bit numbers."""
    cut = FAST[name].cut(b"", 0)
    assert (cut.starts.dtype.name, cut.ends.dtype.name, cut.size) == ("int64", "int64", 0)
