"""An audit passes what is right and finds the first thing that is wrong, whatever it is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gazette_spark.audit.compare_rows import Rows, Window, first_difference, sorted_rows, windows
from gazette_spark.audit.differences import Difference
from gazette_spark.audit.journal_records import JournalRecords, without
from gazette_spark.audit.tiling import Stored, Tiling, check_contiguous, shared_journals
from gazette_spark.errors import RecordError
from gazette_spark.framing.lines import LINES
from gazette_spark.ledger.entry import LedgerEntry, SkippedGap
from gazette_spark.offsets import JournalOffsets
from gazette_spark.scan.piece_scan import PieceScan
from gazette_spark.scan.ranges import Piece
from tests.oracles.lines import FakeJournal, records_of

NAME = "a/journal"
JOURNALS = ("x/a", "x/b", "x/c")


@st.composite
def ledgers(draw: st.DrawFn) -> list[Stored]:
    """Entries as the sink leaves them: journals appear, move and stay, some of their bytes are gone."""
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
    """Return the tiling of entries that are right."""
    found = check_contiguous("app", entries, cleaned_up=cleaned_up)
    assert isinstance(found, Tiling), found
    return found


@given(ledgers())
def test_what_the_sink_leaves_tiles(entries: list[Stored]) -> None:
    """Spans fill each journal from its start to its end, and each offset has the version that added it."""
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


@given(ledgers(), st.data())
def test_an_entry_taken_out_is_missed(entries: list[Stored], data: st.DataObject) -> None:
    """Any but the last, after which nothing comes; the first ones may have been cleaned up."""
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
    """An entry that is there twice, or after a later one, is seen."""
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
    """A wrong offset in any field but the last entry's end is seen; parents do not hide it."""
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
    """An entry names all journals the table has."""
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
    """A gap that is not in its own entry's bytes, or there twice, is seen."""
    version, entry = entries[-1]
    end = entry.read_through["x/a"]
    gaps = {
        "beyond": [SkippedGap("x/a", end, end + 1)],
        "before": [SkippedGap("x/a", entry.begin[0].read_through["x/a"] - 1, end)],  # type: ignore[union-attr]
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
    """Transaction numbers rise: a writer that did not raise its own was not fenced."""
    position = (JournalOffsets({"x/a": 0}),)
    first = LedgerEntry("app", 3, "q", 0, position, position, position, "one", None)
    found = check_contiguous(
        "app", [(0, first), (1, replace(first, attempt="two", parent="one"))], cleaned_up=False
    )
    assert isinstance(found, Difference)
    assert "transaction number 3 is not above 3" in str(found)
    assert str(found).startswith("table version 1: ")


rows_lists = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([b"", b"a", b"bc"])), max_size=12)


def rows(pairs: list[tuple[int, bytes]]) -> Rows:
    """Return rows in any order as a table would give them."""
    offsets = pa.array([offset for offset, _ in pairs], pa.int64())
    values = pa.array([value for _, value in pairs], pa.binary())
    return sorted_rows(pa.table({"offset": offsets, "value": values}))


def first_by_hand(records: list[tuple[int, bytes]], found: list[tuple[int, bytes]]) -> int | None:
    """Return the least offset at which two collections of rows are not the same."""
    left, right = defaultdict(list), defaultdict(list)
    for offset, value in records:
        left[offset].append(value)
    for offset, value in found:
        right[offset].append(value)
    return next((at for at in sorted({*left, *right}) if sorted(left[at]) != sorted(right[at])), None)


@settings(deadline=None)  # The first use of pyarrow.compute loads it.
@given(st.dictionaries(st.integers(0, 30), st.sampled_from([b"", b"a", b"bc"])), rows_lists)
def test_the_first_difference_is_that_of_a_search_by_hand(
    records: dict[int, bytes], found: list[tuple[int, bytes]]
) -> None:
    """The first difference equals the slow search's for any rows in any order."""
    expected = sorted(records.items())
    answer = first_difference(rows(expected), rows(found))
    assert (answer and answer[0]) == first_by_hand(expected, found)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=6), max_size=30), st.integers(0, 9), st.data())
def test_windows_show_the_first_difference(lines: list[bytes], base: int, data: st.DataObject) -> None:
    """Windows of any size together hold each record of the range once, in order."""
    content = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    journal = FakeJournal(content, base, [], [7, 3])
    end = base + len(content)
    expected = records_of(journal, base, end)
    held = list(expected)
    if len(held) > 0 and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(held) - 1))
        offset, value = held[at]
        held[at : at + 1] = data.draw(
            st.sampled_from(
                [[], [(offset, value)] * 2, [(offset, value + b"!")], [(offset, value), (offset + 1, b"")]]
            )
        )
    held = [
        row for row in held if row[0] < end
    ]  # Rows past the range are looked for once, in the whole table.
    size = data.draw(st.integers(1, 40))
    blocks = JournalRecords(journal, NAME, base, end, LINES)
    found: list[Window] = list(windows(blocks, base, end, LINES, values=True, window_bytes=size))
    assert [(each.begin, each.end) for each in found] == list(pairwise([base, *(each.end for each in found)]))
    assert [int(at) for each in found for at in each.records.offsets] == [offset for offset, _ in expected]
    answers = [
        first_difference(
            each.records_of(each.begin, each.end),
            rows([row for row in held if each.begin <= row[0] < each.end]),
        )
        for each in found
    ]
    first = next((answer[0] for answer in answers if answer), None)
    assert first == first_by_hand(expected, held)


@settings(deadline=None)
@given(st.data())
def test_recorded_gaps_are_read_as_the_query_read_them(data: st.DataObject) -> None:
    """The same records come out, whether the bytes are still gone or are there again."""
    lines = data.draw(st.lists(st.binary(max_size=8), min_size=1, max_size=20))
    content = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines) + b"end\n"
    edges = sorted(data.draw(st.lists(st.integers(0, len(content) - 4), unique=True, max_size=6)))
    gaps = [(edges[at], edges[at + 1]) for at in range(0, len(edges) // 2 * 2, 2)]
    lossy = FakeJournal(content, 0, gaps, data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    scan = PieceScan(lossy, Piece(NAME, 0, len(content), len(content), head=True), fail_on_data_loss=False)
    try:
        expected = [int(at) for block in scan for at in block.offsets]
    except RecordError:
        assume(False)  # A gap took the last record's end.
    whole = FakeJournal(content, 0, [], [5, 11])
    for journal in (whole, lossy):
        read = JournalRecords(journal, NAME, 0, len(content), LINES, gaps=gaps)
        assert [int(at) for block in read for at in block.offsets] == expected
        assert (read.gone, journal.open_reads) == ([], 0)
    unrecorded = JournalRecords(lossy, NAME, 0, len(content), LINES)
    assert [int(at) for block in unrecorded for at in block.offsets] == expected
    missing = {at for begin, end in gaps for at in range(begin, end)}
    gone = {at for begin, end in unrecorded.gone for at in range(begin, end)}
    assert gone >= missing
    assert not gone & set(expected)


@given(
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.lists(st.integers(0, 20), unique=True, max_size=6).map(sorted),
)
def test_a_span_without_gaps_is_the_rest(span: tuple[int, int], edges: list[int]) -> None:
    """Every byte of the span that is in no gap, and no other; no part is empty."""
    gaps = [(edges[at], edges[at + 1]) for at in range(0, len(edges) // 2 * 2, 2)]
    parts = list(without(span, gaps))
    assert all(low < high for low, high in parts)
    left = [at for low, high in parts for at in range(low, high)]
    assert left == [at for at in range(*span) if not any(low <= at < high for low, high in gaps)]


@pytest.mark.parametrize("nulls", [0, 1])
def test_a_null_is_no_record(nulls: int) -> None:
    """A row whose bytes are null differs from an empty record, too."""
    values = pa.array([b"" if not nulls else None], pa.binary())
    answer = first_difference(Rows(np.array([4]), pa.array([b""], pa.binary())), Rows(np.array([4]), values))
    assert answer == (None if not nulls else (4, "the row's bytes are not the record's"))
