"""Wherever a range is cut and however its bytes arrive, the same rows come out, each once."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise, permutations
from typing import Any

import pyarrow as pa
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gazette_spark._planning.boundary import limited_end, next_record_end, record_end, window_reader
from gazette_spark._planning.cutter import Gap, PieceScan, raw_record_batches
from gazette_spark._planning.pieces import (
    ENOUGH_PIECES,
    SHARED_BYTES,
    SHARED_CONTENT_BYTES,
    SHARED_PIECES,
    OffsetRange,
    Piece,
    split,
    tasks,
)
from gazette_spark._planning.reads import skipped_spans
from gazette_spark.errors import RecordError
from gazette_spark.protocol.spans import joined
from tests.oracles.lines import FakeJournal, missing_bytes, records_of

NAME = "a/journal"
LONG = 1 << 20

contents = st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"") + b"\n"), max_size=30).map(
    b"".join
)
chunk_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@st.composite
def journals(draw: st.DrawFn, *, holes: bool = True) -> FakeJournal:
    """Draw a journal that ends with a whole record and arrives in uneven chunks, perhaps with holes."""
    content, base = draw(contents), draw(st.integers(0, 50))
    edges: list[int] = []
    if holes and len(content) > 2:
        places = st.integers(base, base + len(content) - 1)
        edges = sorted(draw(st.lists(places, unique=True, max_size=6)))
        edges = edges[: len(edges) // 2 * 2]
    gone = [(edges[at], edges[at + 1]) for at in range(0, len(edges), 2)]
    return FakeJournal(content, base, gone, draw(chunk_sizes))


def pieces_at(begin: int, end: int, cuts: list[int]) -> list[Piece]:
    edges = [begin, *sorted({cut for cut in cuts if begin < cut < end}), end]
    return [Piece(NAME, low, high, end, starts_on_record=low == begin) for low, high in pairwise(edges)]


ROWS = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def rows_of(
    journal: FakeJournal | None, piece: Piece, *, fail: bool, block_bytes: int
) -> tuple[list[tuple[int, bytes]], list[Gap]]:
    scan = PieceScan(journal, piece, fail_on_data_loss=fail, block_bytes=block_bytes)
    table = pa.Table.from_batches(list(raw_record_batches(scan, ROWS)), ROWS)
    table.validate(full=True)
    return list(zip(*table.to_pydict().values(), strict=True)), list(scan.gaps)


@settings(deadline=None)
@given(journals(holes=False), st.lists(st.integers(0, 500), max_size=8), st.integers(1, 60))
def test_any_cut_gives_the_same_rows(journal: FakeJournal, cuts: list[int], block_bytes: int) -> None:
    begin, end = journal.base, journal.base + len(journal.content)
    if begin < end:
        whole = Piece(NAME, begin, end, end, starts_on_record=True, content=journal.content)
        assert rows_of(None, whole, fail=True, block_bytes=block_bytes)[0] == records_of(journal, begin, end)
    got = [
        row
        for piece in pieces_at(begin, end, cuts)
        for row in rows_of(journal, piece, fail=True, block_bytes=block_bytes)[0]
    ]
    assert got == records_of(journal, begin, end)
    assert journal.open_reads == 0


@settings(deadline=None)
@given(journals(), st.data(), st.integers(1, 60))
def test_each_row_says_when_its_first_byte_was_stored(
    journal: FakeJournal, data: st.DataObject, block_bytes: int
) -> None:
    """Rows have the times of their bytes, whatever is cut or missing; bytes that are not stored have none."""
    begin, end = journal.base, journal.base + len(journal.content)
    edges = data.draw(st.lists(st.integers(begin, end), unique=True, max_size=5).map(sorted))
    journal.stored = [(edge, data.draw(st.integers(0, 3))) for edge in edges]
    schema = pa.schema([("_offset", pa.int64()), ("_fragment_mod_time", pa.timestamp("us", "UTC"))])
    found: dict[int, datetime | None] = {}
    for piece in pieces_at(begin, end, data.draw(st.lists(st.integers(begin, end), max_size=4))):
        try:
            scan = PieceScan(journal, piece, fail_on_data_loss=False, block_bytes=block_bytes)
            for record_batch in raw_record_batches(scan, schema):
                record_batch.validate(full=True)
                found |= dict(zip(*record_batch.to_pydict().values(), strict=True))
        except RecordError:
            assume(False)  # A hole cut off the last record's end.
    assert set(found) == {offset for offset, _ in records_of(journal, begin, end)}
    for offset, time in found.items():
        assert (int(time.timestamp()) if time else 0) == journal.mod_time(offset)


@settings(deadline=None)
@example(FakeJournal(b"xx\nxx\n", 0, [(0, 1), (4, 5)], [1]), [2], 1)
@given(journals(), st.lists(st.integers(0, 500), max_size=8), st.integers(1, 60))
def test_any_cut_gives_the_same_rows_around_holes(
    journal: FakeJournal, cuts: list[int], block_bytes: int
) -> None:
    """A hole removes the records it cuts and no others, and every missing byte is counted once."""
    begin, end = journal.base, journal.base + len(journal.content)
    got: list[tuple[int, bytes]] = []
    gaps: list[Gap] = []
    tail = journal.spans()[-1:]
    if tail and not journal.window(*tail[0]).endswith(b"\n"):
        end = tail[0][0]
    for piece in pieces_at(begin, end, cuts):
        rows, lost = rows_of(journal, piece, fail=False, block_bytes=block_bytes)
        got += rows
        gaps += lost
    assert got == records_of(journal, begin, end)
    missing = [gap for gap in gaps if gap.kind == "missing"]
    assert sum(gap.end - gap.begin for gap in missing) == missing_bytes(journal, begin, end)
    values = sum(len(value) + 1 for _, value in got)
    assert values + sum(gap.end - gap.begin + gap.cut_bytes for gap in gaps) == end - begin


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=4),
    st.lists(st.integers(0, 2000), max_size=20),
    st.integers(1, 40),
    st.integers(0, 300),
)
def test_split_covers_the_ranges(
    spans: list[tuple[int, int]], edges: list[int], min_partitions: int, max_bytes: int
) -> None:
    ranges = [OffsetRange(f"j/{at}", begin, begin + size) for at, (begin, size) in enumerate(spans)]
    fragments = {
        each.journal: [OffsetRange(each.journal, edge, edge + 1) for edge in edges] for each in ranges
    }
    pieces = split(ranges, fragments, min_partitions=min_partitions, max_bytes=max_bytes)
    for each in ranges:
        mine = [piece for piece in pieces if piece.journal == each.journal]
        points = [each.begin, *(piece.end for piece in mine)]
        assert [piece.begin for piece in mine] == points[:-1]
        assert points[-1] == each.end
        assert [piece.starts_on_record for piece in mine] == [at == 0 for at in range(len(mine))]
        assert all(piece.limit == each.end for piece in mine)
    assert all(piece.end > piece.begin for piece in pieces)
    assert not max_bytes or all(piece.end - piece.begin <= max_bytes for piece in pieces)
    assert len(pieces) >= min(min_partitions, sum(each.size_bytes for each in ranges))


@given(
    st.integers(0, 300).flatmap(
        lambda most: st.lists(st.sampled_from([1, 200, SHARED_BYTES - 1, SHARED_BYTES * 3]), max_size=most)
    ),
    st.sampled_from([1, 7, 40, 500]),
)
def test_tasks_hold_each_piece_once(sizes: list[int], min_partitions: int) -> None:
    pieces = [Piece(f"j/{at}", 0, size, size, starts_on_record=True) for at, size in enumerate(sizes)]
    found = tasks(pieces, min_partitions)
    assert [piece for task in found for piece in task] == pieces
    assert len(found) >= min(len(pieces), max(min_partitions, ENOUGH_PIECES))
    for task in found:
        assert 1 <= len(task) <= SHARED_PIECES
        assert len(task) == 1 or sum(piece.end for piece in task) <= SHARED_BYTES


def test_small_pieces_share_tasks() -> None:
    """Two thousand journals with a record each must not become two thousand tasks."""
    pieces = [Piece(f"j/{at}", 0, 200, 200, starts_on_record=True) for at in range(2_000)]
    assert len(tasks(pieces)) == 33
    assert len(tasks(pieces, 1_500)) == 2_000
    assert len(tasks(pieces[:40])) == 40


def test_tasks_bring_few_bytes_along() -> None:
    """Spark ships a task's data with it, and warns above a megabyte."""
    content = bytes(SHARED_CONTENT_BYTES // 10)
    pieces = [
        Piece(f"j/{at}", 0, len(content), len(content), starts_on_record=True, content=content)
        for at in range(2_000)
    ]
    assert {len(task) for task in tasks(pieces)} == {10}


@st.composite
def fragmented(draw: st.DrawFn) -> tuple[list[OffsetRange], list[OffsetRange], OffsetRange]:
    """Draw fragments of a journal, some solid, some overlapping, with holes, and a range of it."""
    fragments, at = [], 0
    for size in draw(st.lists(st.integers(1, 300), min_size=1, max_size=20)):
        at += draw(st.sampled_from([0, 0, 0, 0, -min(at, 40), 25]))
        fragments.append(OffsetRange(NAME, at, at + size))
        at += size
    begin = draw(st.integers(0, at - 1))
    whole = OffsetRange(NAME, begin, draw(st.integers(begin + 1, at)))
    return fragments, [fragment for fragment in fragments if draw(st.booleans())], whole


def spans(*positions: tuple[int, int]) -> list[OffsetRange]:
    return [OffsetRange(NAME, begin, end) for begin, end in positions]


@given(fragmented(), st.integers(1, 60), st.integers(1, 400))
# A solid fragment overlaps another that is not its neighbour in the list.
@example(
    (spans((0, 1), (1, 5), (5, 6), (6, 7), (0, 3), (3, 36)), spans((1, 5)), OffsetRange(NAME, 3, 36)), 1, 1
)
# Two solid fragments overlap.
@example(
    (
        spans((0, 1), (1, 21), (21, 143), (103, 225), *((at, at + 1) for at in range(225, 235))),
        spans((21, 143), (103, 225)),
        OffsetRange(NAME, 0, 235),
    ),
    1,
    1,
)
def test_split_stays_out_of_solid_fragments_while_there_are_enough_pieces(
    found: tuple[list[OffsetRange], list[OffsetRange], OffsetRange], min_partitions: int, max_bytes: int
) -> None:
    fragments, solid, whole = found
    limits: dict[str, Any] = {"min_partitions": min_partitions, "max_bytes": max_bytes}
    anywhere = split([whole], {NAME: fragments}, **limits)
    pieces = split([whole], {NAME: fragments}, solid={NAME: solid}, **limits)
    assert [whole.begin, *(piece.end for piece in pieces)] == [
        *(piece.begin for piece in pieces),
        whole.end,
    ]
    assert [piece.starts_on_record for piece in pieces] == [at == 0 for at in range(len(pieces))]
    assert len(pieces) >= min(min_partitions, whole.size_bytes)
    assert len(pieces) >= min(ENOUGH_PIECES, len(anywhere))
    if pieces == anywhere:
        return
    # Overlapping solid fragments are read as one, so a cut moves to the end of the last of them.
    runs: list[tuple[int, int]] = []
    for fragment in sorted(solid, key=lambda fragment: fragment.begin):
        if runs and fragment.begin < runs[-1][1]:
            runs[-1] = (runs[-1][0], max(runs[-1][1], fragment.end))
        else:
            runs.append((fragment.begin, fragment.end))
    longest = max(end - begin for begin, end in runs)
    assert all(piece.end - piece.begin <= max_bytes + longest for piece in pieces)
    overlapped = {
        fragment
        for fragment, other in permutations(fragments, 2)
        if other.begin < fragment.end and fragment.begin < other.end
    }
    for piece in pieces[1:]:
        inside = [each for each in solid if each.begin + 1 < piece.begin <= each.end]
        assert set(inside) <= overlapped


def boundaries(content: bytes) -> list[int]:
    return [0, *(at + 1 for at, octet in enumerate(content) if octet == 10)]


@given(
    st.binary(max_size=200).map(lambda b: b.translate(bytes(10 if c % 7 == 0 else 65 for c in range(256)))),
    st.data(),
)
def test_record_end_is_the_largest_boundary(content: bytes, data: st.DataObject) -> None:
    """A batch ends at the largest boundary up to the limit, or else at the first one after its begin."""
    begin = data.draw(st.sampled_from(boundaries(content)))
    end = data.draw(st.integers(begin, len(content)))
    read = FakeJournal(content).window
    at_or_before = [at for at in boundaries(content) if begin <= at <= end]
    after = [at for at in boundaries(content) if at > begin]
    assert record_end(read, begin, end, LONG) == at_or_before[-1]
    assert next_record_end(read, begin, len(content), LONG) == (after[0] if after else None)
    expected = at_or_before[-1] if len(at_or_before) > 1 else (after[0] if after else begin)
    assert limited_end(read, begin, end, len(content), LONG) == expected


@settings(deadline=None)
@given(journals(), st.data())
def test_ends_found_around_holes_lose_nothing(journal: FakeJournal, data: st.DataObject) -> None:
    begin, head = journal.base, journal.base + len(journal.content)
    read = window_reader(journal, NAME, fail_on_data_loss=False)
    head = record_end(read, begin, head, LONG)
    middle = limited_end(read, begin, data.draw(st.integers(begin, head)), head, LONG)
    assert begin <= middle <= head
    got: list[tuple[int, bytes]] = []
    for low, high in ((begin, middle), (middle, head)):
        for piece in pieces_at(low, high, []):
            if low < high:
                got += rows_of(journal, piece, fail=False, block_bytes=16)[0]
    assert got == records_of(journal, begin, journal.base + len(journal.content))


@settings(deadline=None)
@given(journals(), st.data())
def test_what_is_planned_to_be_skipped_is_what_is_skipped(journal: FakeJournal, data: st.DataObject) -> None:
    begin, end = journal.base, journal.base + len(journal.content)
    listed = [each for each in journal.spans() if data.draw(st.booleans())]
    planned = skipped_spans(journal, NAME, listed, begin, end)
    missing = [(max(low, begin), min(high, end)) for low, high in journal.holes]
    assert planned == [(low, high) for low, high in missing if low < high]
    cuts = data.draw(st.lists(st.integers(0, 500), max_size=5))
    found = [
        (gap.begin, gap.end)
        for piece in pieces_at(begin, end, cuts)
        for gap in rows_of(journal, piece, fail=False, block_bytes=16)[1]
        if gap.kind == "missing"
    ]
    assert joined(found) == planned
