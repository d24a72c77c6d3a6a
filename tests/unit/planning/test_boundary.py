"""A batch ends on a record boundary, reads little to find it, and never stops a query for good."""

from __future__ import annotations

import pytest

from gazette_spark._planning.boundary import (
    FIRST_WINDOW_BYTES,
    limited_end,
    next_record_end,
    record_end,
    window_reader,
)
from gazette_spark.errors import DataLossError, RecordError
from tests.oracles.lines import FakeJournal

NAME = "acme/logs"
LONG = 1 << 20


def test_a_half_written_record_is_left_out() -> None:
    journal = FakeJournal(b"aa\nbb\ncc", base=10)
    assert record_end(window_reader(journal, NAME), 10, 18, LONG) == 16
    assert record_end(window_reader(journal, NAME), 16, 18, LONG) == 16
    assert record_end(window_reader(journal, NAME), 16, 16, LONG) == 16


def test_only_a_tail_is_read_and_no_byte_twice() -> None:
    journal = FakeJournal(b"a\n" * 200_000 + b"x" * 150_000)
    assert record_end(window_reader(journal, NAME), 0, 550_000, LONG) == 400_000
    first = FIRST_WINDOW_BYTES
    assert journal.reads == [(550_000 - first, 550_000), (550_000 - 3 * first, 550_000 - first)]
    journal.reads.clear()
    assert next_record_end(window_reader(journal, NAME), 0, 550_000, LONG) == 2
    assert journal.reads == [(0, first)]


def test_a_limit_below_a_record_lets_one_record_go() -> None:
    read = window_reader(FakeJournal(b"a" * 99 + b"\nbb\ncc"), NAME)
    assert limited_end(read, 0, 10, 105, LONG) == 100
    assert limited_end(read, 0, 102, 105, LONG) == 100
    assert limited_end(read, 100, 101, 105, LONG) == 103
    assert limited_end(read, 103, 104, 105, LONG) == 103
    assert limited_end(read, 0, 10**9, 105, LONG) == 103


@pytest.mark.parametrize("length", [1_001, 500_000])
def test_an_oversized_record_is_named(length: int) -> None:
    read = window_reader(FakeJournal(b"a\n" + b"x" * length + b"\n"), NAME)
    message = (
        "oversized record: it begins here and does not end before offset 1003, more than maxRecordBytes=1000"
    )
    with pytest.raises(RecordError, match=message) as caught:
        next_record_end(read, 2, length + 3, 1000, journal=NAME)
    assert (caught.value.journal, caught.value.offset) == (NAME, 2)
    where = "and" if length == 1_001 else "or earlier and"
    message = f"oversized record: it begins here {where} does not end before offset {length + 2}, more than"
    with pytest.raises(RecordError, match=message) as caught:
        record_end(read, 2, length + 2, 1000, journal=NAME)
    assert 2 <= caught.value.offset <= length + 1 - 1000
    assert next_record_end(read, 2, length + 3, length) == length + 3


def test_a_hole_is_an_error_or_ends_a_search() -> None:
    journal = FakeJournal(b"aa\nbb\ncc", holes=[(4, 6)])
    with pytest.raises(DataLossError) as caught:
        record_end(window_reader(journal, NAME), 0, 8, LONG)
    assert (caught.value.journal, caught.value.requested, caught.value.available) == (NAME, 4, 6)
    with pytest.raises(DataLossError) as caught:
        window_reader(journal, NAME)(0, 6)
    assert (caught.value.requested, caught.value.available) == (4, 6)
    read = window_reader(journal, NAME, fail_on_data_loss=False)
    assert record_end(read, 0, 8, LONG) == 6
    assert next_record_end(read, 3, 8, LONG) is None
    assert record_end(read, 0, 5, LONG) == 5
    assert limited_end(read, 0, 8, 8, LONG) == 5
    assert limited_end(read, 5, 8, 8, LONG) == 5
    assert limited_end(read, 0, 6, 6, LONG) == 6
    longer = window_reader(FakeJournal(b"aa\nbb\ncc\nd", holes=[(4, 6)]), NAME, fail_on_data_loss=False)
    assert limited_end(longer, 0, 6, 10, LONG) == 5
    assert limited_end(longer, 5, 6, 10, LONG) == next_record_end(longer, 3, 10, LONG) == 9
    assert next_record_end(longer, 3, 10, 3) == 9
    with pytest.raises(RecordError, match="begins here"):
        next_record_end(longer, 3, 10, 1)
    assert read(3, 3) == b""
