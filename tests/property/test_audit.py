"""An audit accepts a correct table and finds the first error in any other."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import xor
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gazette_spark._formats.lines import LINES
from gazette_spark._ledger.entry import LedgerEntry, SkippedGap
from gazette_spark._planning.cutter import MAX_RECORD_BYTES, PieceScan
from gazette_spark._planning.pieces import OffsetRange, Piece, split
from gazette_spark._verify.gap_reads import gone_of, skipping_scan
from gazette_spark._verify.journal_source import PlannedRange
from gazette_spark._verify.parts import GONE, SHARED, Bins, Part, Totals, first_difference, parts_of, unequal
from gazette_spark._verify.tiling import (
    CommittedSpan,
    CoveredRange,
    Difference,
    Stored,
    Tiling,
    check_contiguous,
    shared_journals,
)
from gazette_spark.errors import RecordError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol.spans import joined
from tests.oracles.lines import FakeJournal, records_of
from tests.rig.row_digest import digest_of, row_text, that_cancel_out, words_of

NAME = "a/journal"
JOURNALS = ("x/a", "x/b", "x/c")


@st.composite
def ledgers(draw: st.DrawFn) -> list[Stored]:
    """Draw entries as the sink writes them: journals appear, advance or pause; some bytes are gone."""
    entries: list[Stored] = []
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    version, number, parent = -1, -1, None
    for batch in range(draw(st.integers(1, 8))):
        version += draw(st.integers(1, 3))
        number += draw(st.integers(1, 2))
        begins, gaps = dict(ends), []
        for journal in JOURNALS:
            if journal not in ends and (draw(st.booleans()) or (journal == "x/a" and not ends)):
                begins[journal] = starts[journal] = ends[journal] = draw(st.integers(0, 20))
            elif journal in ends and draw(st.booleans()):
                ends[journal] += draw(st.integers(1, 20))
                low = draw(st.integers(begins[journal], ends[journal]))
                high = draw(st.integers(low, ends[journal]))
                gaps += [SkippedGap(journal, low, high)] if low < high else []
        start, begin, end = ((JournalOffsets(dict(each)),) for each in (starts, begins, ends))
        attempt = f"attempt {batch}"
        entry = LedgerEntry("app", number, "query", batch, start, begin, end, attempt, parent, tuple(gaps))
        entries.append((version, entry))
        parent = attempt
    return entries


def tiled(entries: list[Stored], *, cleaned_up: bool = False) -> Tiling:
    found = check_contiguous("app", entries, cleaned_up=cleaned_up)
    assert isinstance(found, Tiling), found
    return found


@given(ledgers())
def test_what_the_sink_leaves_tiles(entries: list[Stored]) -> None:
    tiling = tiled(entries)
    newest = entries[-1][1].read_through
    assert {claim.journal: claim.end for claim in tiling.claims} == newest
    gaps = {(gap.journal, (gap.begin, gap.end)) for _, entry in entries for gap in entry.gaps}
    assert {(claim.journal, gap) for claim in tiling.claims for gap in claim.gaps} == gaps
    for claim in tiling.claims:
        edges = [claim.start, *(span.end for span in claim.spans)]
        assert [(span.begin, span.end) for span in claim.spans] == list(pairwise(edges))
        assert edges[-1] == claim.end
        for span in claim.spans:
            assert {claim.version_at(at) for at in range(span.begin, span.end)} == {span.table_version}
    assert not shared_journals([tiling])
    assert shared_journals([tiling, tiling]) == frozenset(newest)


def entry_of(number: int, *sources: dict[str, tuple[int, int, int]], **changes: Any) -> Stored:
    """Build an entry on top of the previous one from ``(start, begin, end)`` of each source's journals."""
    start, begin, end = (
        tuple(JournalOffsets({name: at[which] for name, at in source.items()}) for source in sources)
        for which in range(3)
    )
    parent = f"attempt {number - 1}" if number else None
    made = LedgerEntry("app", number, "query", number, start, begin, end, f"attempt {number}", parent)
    return number, replace(made, **changes)


def test_a_journal_goes_over_with_its_source() -> None:
    """Swapping two sources, or adding one in front, leaves no gap; skipped bytes are reported."""
    first = entry_of(0, {"x/a": (0, 0, 10)}, {"x/b": (5, 5, 20)})
    swapped = entry_of(1, {"x/b": (5, 20, 25)}, {"x/a": (0, 10, 12)})
    pushed = entry_of(2, {"x/c": (7, 7, 7)}, {"x/b": (5, 25, 30)}, {"x/a": (0, 12, 12)})
    claims = {claim.journal: claim for claim in tiled([first, swapped, pushed]).claims}
    assert {name: (claim.source, claim.start, claim.end) for name, claim in claims.items()} == {
        "x/a": (2, 0, 12), "x/b": (1, 5, 30), "x/c": (0, 7, 7),
    }  # fmt: skip
    assert [(span.begin, span.end) for span in claims["x/b"].spans] == [(5, 20), (20, 25), (25, 30)]
    torn = entry_of(1, {"x/b": (5, 21, 25)}, {"x/a": (0, 10, 12)})
    assert isinstance(check_contiguous("app", [first, torn], cleaned_up=False), Difference)


def test_a_journal_that_was_made_again_begins_again() -> None:
    """The audit compares none of its rows, because old and new ones share a journal name."""
    first = entry_of(0, {"x/a": (0, 0, 10), "x/b": (0, 0, 4)})
    again = {"x/a": (3, 3, 3), "x/b": (0, 4, 4)}
    following = entry_of(2, {"x/a": (3, 3, 8), "x/b": (0, 4, 6)})
    tiling = tiled([first, entry_of(1, again, recreated={"x/a": 10}), following])
    assert [(claim.journal, claim.start, claim.end) for claim in tiling.claims] == [
        ("x/a", 3, 8),
        ("x/b", 0, 6),
    ]
    assert shared_journals([tiling]) == {"x/a"}
    for recreated in ({}, {"x/a": 9}):
        wrong = entry_of(1, again, recreated=recreated)
        assert isinstance(check_contiguous("app", [first, wrong], cleaned_up=False), Difference)


@given(ledgers(), st.data())
def test_an_entry_taken_out_is_missed(entries: list[Stored], data: st.DataObject) -> None:
    """Any entry but the last, whose absence nothing shows. The first entries may have been cleaned up."""
    assume(len(entries) > 1)
    at = data.draw(st.integers(0, len(entries) - 2))
    rest = entries[:at] + entries[at + 1 :]
    found = check_contiguous("app", rest, cleaned_up=False)
    assert isinstance(found, Difference)
    assert found.table_version == entries[at + 1][0]
    if at == 0:
        assert tiled(rest, cleaned_up=True).cleaned_up
    else:
        assert check_contiguous("app", rest, cleaned_up=True) == found


@given(ledgers(), st.data())
def test_an_entry_in_another_place_is_seen(entries: list[Stored], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(entries) - 1))
    to = data.draw(st.integers(0, len(entries) - 1))
    assert isinstance(
        check_contiguous("app", [*entries[: at + 1], *entries[at:]], cleaned_up=False), Difference
    )
    others = entries[:at] + entries[at + 1 :]
    moved = [*others[:to], entries[at], *others[to:]]
    assert (moved == entries) == isinstance(check_contiguous("app", moved, cleaned_up=False), Tiling)


@given(ledgers(), st.data(), st.sampled_from(["start", "begin", "end"]), st.sampled_from([-1, 1]))
def test_an_offset_that_is_wrong_is_seen(
    entries: list[Stored], data: st.DataObject, which: str, by: int
) -> None:
    at = data.draw(st.integers(0, len(entries) - 1))
    assume(which != "end" or at < len(entries) - 1)
    version, entry = entries[at]
    (position,) = getattr(entry, which)
    assert isinstance(position, JournalOffsets)
    journal = data.draw(st.sampled_from(sorted(position.read_through)))
    offset = position.read_through[journal] + by
    assume(offset >= 0)
    wrong = (JournalOffsets({**position.read_through, journal: offset}),)
    change: dict[str, Any] = {which: wrong}
    damaged = [*entries[:at], (version, replace(entry, **change)), *entries[at + 1 :]]
    found = check_contiguous("app", damaged, cleaned_up=False)
    assert isinstance(found, Difference)
    assert found.table_version >= version


@given(ledgers(), st.data())
def test_a_journal_that_is_left_out_is_missed(entries: list[Stored], data: st.DataObject) -> None:
    version, entry = entries[-1]
    journal = data.draw(st.sampled_from(sorted(entry.read_through)))

    def less(position: object) -> tuple[JournalOffsets]:
        assert isinstance(position, JournalOffsets)
        return (JournalOffsets({n: at for n, at in position.read_through.items() if n != journal}),)

    which = data.draw(st.sampled_from(["start", "begin", "end"]))
    change: dict[str, Any] = {which: less(getattr(entry, which)[0])}
    damaged = replace(entry, **change, gaps=())
    found = check_contiguous("app", [*entries[:-1], (version, damaged)], cleaned_up=False)
    assert isinstance(found, Difference)
    assert (found.table_version, found.journal) == (version, journal)


@given(ledgers(), st.sampled_from(["beyond", "before", "another journal", "twice"]))
def test_a_gap_elsewhere_is_seen(entries: list[Stored], where: str) -> None:
    version, entry = entries[-1]
    end = entry.read_through["x/a"]
    gaps = {
        "beyond": [SkippedGap("x/a", end, end + 1)],
        "before": [SkippedGap("x/a", entry.begin[0].read_through["x/a"] - 1, end)],  # type: ignore[union-attr]  # A journal has offsets.
        "another journal": [SkippedGap("y", 0, 1)],
        "twice": [*entry.gaps, *entry.gaps],
    }[where]
    assume(gaps)
    found = check_contiguous(
        "app", [*entries[:-1], (version, replace(entry, gaps=tuple(gaps)))], cleaned_up=False
    )
    assert isinstance(found, Difference)
    assert found.table_version == version


def test_the_tiling_of_no_transaction_order_is_refused() -> None:
    """A transaction number that does not rise means that the writer was not fenced."""
    position = (JournalOffsets({"x/a": 0}),)
    first = LedgerEntry("app", 3, "q", 0, position, position, position, "one", None)
    found = check_contiguous(
        "app", [(0, first), (1, replace(first, attempt="two", parent="one"))], cleaned_up=False
    )
    assert isinstance(found, Difference)
    assert "transaction number 3 is not above 3" in str(found)
    assert str(found).startswith("table version 1: ")


RowList = list[tuple[int, bytes]]
Row = tuple[int, bytes | None]

values = st.sampled_from([b"", b"a", b"bc"])
rows_lists = st.lists(st.tuples(st.integers(0, 30), values), max_size=12)


def first_by_hand(records: RowList, found: RowList) -> int | None:
    left, right = defaultdict(list), defaultdict(list)
    for offset, value in records:
        left[offset].append(value)
    for offset, value in found:
        right[offset].append(value)
    return next((at for at in sorted({*left, *right}) if sorted(left[at]) != sorted(right[at])), None)


@given(st.dictionaries(st.integers(0, 30), values), rows_lists)
def test_the_first_difference_is_that_of_a_search_by_hand(records: dict[int, bytes], found: RowList) -> None:
    answer = first_difference(Counter(records.items()), Counter(found))
    assert (answer and answer[0]) == first_by_hand(list(records.items()), found)


def test_a_null_is_no_record() -> None:
    assert first_difference({(4, b""): 1}, {(4, b""): 1}) is None
    assert first_difference({(4, b""): 1}, {(4, None): 1}) == (4, "the row's bytes differ from the record's")


def span_lists() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 60), min_size=2, max_size=8, unique=True).map(sorted)


@st.composite
def covered_ranges(draw: st.DrawFn) -> tuple[CoveredRange, list[tuple[int, int]]]:
    """Draw a covered range, whose first entries may be cleaned up, and its missing bytes."""
    edges = draw(span_lists())
    spans = tuple(CommittedSpan(low, high, version) for version, (low, high) in enumerate(pairwise(edges)))
    start = draw(st.integers(0, edges[0]))
    claim = CoveredRange("app", 0, NAME, start, edges[-1], len(spans), spans, adopted=draw(st.booleans()))
    lost = draw(span_lists())
    gone = [(max(low, start), min(high, edges[-1])) for low, high in zip(lost[::2], lost[1::2], strict=False)]
    return claim, [(low, high) for low, high in gone if low < high]


@given(covered_ranges(), st.booleans(), st.booleans(), st.integers(1, 20), st.integers(1, 9))
def test_parts_and_bins_fill_a_range(
    drawn: tuple[CoveredRange, list[tuple[int, int]]], refused: bool, by_commit: bool, least: int, most: int
) -> None:
    """Each offset is in one part and in one bin. The audit compares no part with missing bytes."""
    claim, gone = drawn
    parts = list(parts_of(claim, gone, refused=SHARED if refused else None, by_commit=by_commit))
    first = 0 if claim.adopted and claim.start else claim.start
    bins = Bins.of(parts, least=least, most=most)
    filled = list(zip(bins.begins.tolist(), bins.ends.tolist(), strict=True))
    for cuts in ([(each.begin, each.end) for each in parts], filled):
        assert [low for low, _ in cuts] == [first, *(high for _, high in cuts[:-1])]
        assert cuts[-1][1] == claim.end
        assert all(low < high for low, high in cuts)
    assert {low // bins.width == (high - 1) // bins.width for low, high in filled} == {True}
    missing = {at for low, high in gone for at in range(low, high)}
    for part in parts:
        offsets = set(range(part.begin, part.end))
        if part.reason is None:
            assert not offsets & missing
        if part.reason == GONE:
            assert offsets <= missing
        if by_commit and part.reason in (None, GONE):
            assert part.span is None or part.span.begin <= part.begin < part.end <= part.span.end
    if not refused:
        told = {at for part in parts if part.reason == GONE for at in range(part.begin, part.end)}
        assert told == missing


def sums(bins: Bins, found: Iterable[Row], salt: bytes = b"") -> Totals:
    by_bin: dict[int, list[list[int]]] = defaultdict(list)
    for offset, value in found:
        at = int(bins.begins.searchsorted(offset, side="right")) - 1
        by_bin[at].append(words_of(salt, offset, value))
    return Totals.gathered(
        len(bins), [(at, at, len(words), *map(sum, zip(*words, strict=True))) for at, words in by_bin.items()]
    )


@given(
    st.dictionaries(st.integers(0, 59), values),
    st.lists(st.tuples(st.integers(0, 59), values), max_size=4),
    st.data(),
)
def test_bins_that_differ_are_found(records: dict[int, bytes], extra: RowList, data: st.DataObject) -> None:
    """Bins differ exactly if their rows do. A dead letter counts as its record's row."""
    kept = [row for row in records.items() if data.draw(st.integers(0, 9))]
    buried = [row for row in kept if data.draw(st.booleans())]
    there = [row for row in kept if row not in buried] + extra
    claim = CoveredRange("app", 0, NAME, 0, 60, 0, ())
    bins = Bins.of([Part(claim, 0, 20), Part(claim, 20, 30, reason=GONE), Part(claim, 30, 60)], least=8)
    found = unequal(bins, sums(bins, list(records.items())), sums(bins, there), sums(bins, buried))
    expected = []
    for at, (low, high) in enumerate(zip(bins.begins, bins.ends, strict=True)):
        here = [row for row in there + buried if low <= row[0] < high]
        if bins.one(at).reason is None and Counter(here) != Counter(
            row for row in records.items() if low <= row[0] < high
        ):
            expected.append(at)
    assert found == expected
    assert bins.by_part(sums(bins, there).counts).tolist() == [
        sum(each.begin <= offset < each.end for offset, _ in there) for each in bins.parts
    ]


MANY: list[Row] = [(at * 8, b"row %03d" % at) for at in range(160)]

counts_of_rows = st.dictionaries(
    st.one_of(st.sampled_from(MANY), st.tuples(st.integers(0, 1279), values)),
    st.integers(0, 5),
    max_size=12,
)
"""Rows, from the journal or not, and how many times a table contains each."""


@given(counts_of_rows, st.binary(min_size=16, max_size=16), st.booleans())
def test_no_other_rows_have_the_same_digests(counts: dict[Row, int], salt: bytes, in_bytes: bool) -> None:
    there = [row for row in MANY if row not in counts]
    there += [row for row, count in counts.items() for _ in range(count)]
    if in_bytes:
        check_digests(MANY, there, salt)
    else:
        check_digests([(at, None) for at, _ in MANY], [(at, None) for at, _ in there], salt)


@given(st.integers(0, 3), st.binary(min_size=16, max_size=16))
def test_rows_that_are_solved_for_have_other_digests(word: int, salt: bytes) -> None:
    """The digests change even if the XOR of the removed rows' digests is zero, whatever the salt."""
    digests = [int.from_bytes(hashlib.sha256(row_text(*row)).digest()[:8]) for row in MANY]
    salted = [words_of(salt, *row)[word] for row in MANY]
    deleted = that_cancel_out([salted[at] << 64 | digests[at] for at in range(len(MANY))])
    assert reduce(xor, (salted[at] for at in deleted)) == 0
    others = [row for at, row in enumerate(MANY) if at not in deleted]
    there = others + others[: len(deleted) // 2] * 2
    assert len(there) == len(MANY)
    check_digests(MANY, there, salt)


def check_digests(records: Sequence[Row], there: Sequence[Row], salt: bytes) -> None:
    same = Counter(there) == Counter(records)
    bins = Bins.of([Part(CoveredRange("app", 0, NAME, 0, 1280, 0, ()), 0, 1280)])
    found = unequal(bins, sums(bins, records, salt), sums(bins, there, salt), sums(bins, []))
    assert (found == []) == same
    assert (digest_of(there) == digest_of(records)) == same


@settings(deadline=None)
@given(st.lists(st.binary(max_size=6), min_size=1, max_size=30), st.data())
def test_a_look_at_some_offsets_reads_their_records(lines: list[bytes], data: st.DataObject) -> None:
    """The pieces near a range of offsets contain every record that begins there, exactly once."""
    content = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    journal = FakeJournal(content, 0, [], [7, 3])
    size = data.draw(st.integers(1, len(content)))
    pieces = split([OffsetRange(NAME, 0, len(content))], max_bytes=size)
    low = data.draw(st.integers(0, len(content) - 1))
    high = data.draw(st.integers(low + 1, len(content)))
    read = [
        int(at)
        for piece in PlannedRange((), (), tuple(pieces)).near(low, high).pieces
        for block in skipping_scan(journal, piece, LINES, (), MAX_RECORD_BYTES)
        for at in block.offsets
    ]
    expected = [offset for offset, _ in records_of(journal, 0, len(content))]
    assert [at for at in read if low <= at < high] == [at for at in expected if low <= at < high]


@settings(deadline=None)
@given(st.data())
def test_recorded_gaps_are_read_as_the_query_read_them(data: st.DataObject) -> None:
    lines = data.draw(st.lists(st.binary(max_size=8), min_size=1, max_size=20))
    content = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines) + b"end\n"
    edges = sorted(data.draw(st.lists(st.integers(0, len(content) - 4), unique=True, max_size=6)))
    gaps = [(edges[at], edges[at + 1]) for at in range(0, len(edges) // 2 * 2, 2)]
    lossy = FakeJournal(content, 0, gaps, data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    piece = Piece(NAME, 0, len(content), len(content), starts_on_record=True)
    scan = PieceScan(lossy, piece, fail_on_data_loss=False)
    try:
        expected = [int(at) for block in scan for at in block.offsets]
        recorded = joined((gap.begin, gap.end) for gap in scan.gaps)
    except RecordError:
        assume(False)  # A gap cut off the last record's end.
    whole = FakeJournal(content, 0, [], [5, 11])
    for journal in (whole, lossy):
        read = skipping_scan(journal, piece, LINES, recorded, MAX_RECORD_BYTES)
        assert [int(at) for block in read for at in block.offsets] == expected
        assert (gone_of(read.gaps, recorded), journal.open_reads) == ([], 0)
    unrecorded = skipping_scan(lossy, piece, LINES, (), MAX_RECORD_BYTES)
    assert [int(at) for block in unrecorded for at in block.offsets] == expected
    missing = {at for begin, end in gaps for at in range(begin, end)}
    gone = {at for begin, end in gone_of(unrecorded.gaps, ()) for at in range(begin, end)}
    assert gone >= missing
    assert not gone & set(expected)
