"""A batch that is limited to a number of records ends right after exactly that many."""

from __future__ import annotations

import pytest

from gazette_spark._formats.csv import CSV
from gazette_spark._formats.fixed import FIXED, frame
from gazette_spark._formats.framing import RecordFraming
from gazette_spark._formats.lines import LINES
from gazette_spark._planning.cutter import BLOCK_BYTES
from gazette_spark._planning.ends import counted_end, counted_end_of
from gazette_spark._planning.pieces import Piece
from gazette_spark.errors import DataLossError, RecordError
from tests.oracles.lines import FakeJournal

NAME = "acme/logs"

RECORDS: dict[str, tuple[RecordFraming, list[bytes], bytes]] = {
    "lines": (LINES, [b"a\n", b"\n", b"x" * 99_999 + b"\n"] * 40, b"half"),
    "csv": (CSV, [b'1,"a\nb"\n', b"2," + b"y" * 70_000 + b"\n"] * 40, b'"half\n'),
    "fixed": (FIXED, [frame(b""), frame(b"z" * 90_000), frame(b"\n")] * 40, frame(b"half")[:-1]),
}
"""By name: the framing, some records, and the beginning of another record."""


class Noted(FakeJournal):
    ends: tuple[int, ...] = ()

    def window(self, begin: int, end: int) -> bytes:
        self.ends = (*self.ends, end)
        return super().window(begin, end)


def ended(
    journal: FakeJournal,
    count: int,
    *,
    end: int = 0,
    lossless: bool = True,
    framing: RecordFraming = LINES,
    longest: int = 1 << 20,
) -> int:
    """Return the end of a range, up to ``end`` or the head, that is limited to some records."""
    end = end or journal.base + len(journal.content)
    piece = Piece(NAME, journal.base, end, end, starts_on_record=True, framing=framing.name)
    return counted_end(
        journal,
        piece,
        count,
        fail_on_data_loss=lossless,
        max_record_bytes=longest,
        framing=framing,
    )


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("count", [1, 2, 3, 50, 80, 1000])
def test_a_counted_range_has_so_many_records(kind: str, count: int) -> None:
    framing, records, rest = RECORDS[kind]
    content = b"".join(records) + rest
    journal = FakeJournal(content, base=10, chunk_sizes=(70_001, 3))
    fits = count <= len(records)
    expected = 10 + (sum(map(len, records[:count])) if fits else len(content))
    assert ended(journal, count, framing=framing) == expected
    assert counted_end_of(content, 10, count, framing) == expected
    assert journal.open_reads == 0


def test_records_on_both_sides_of_missing_bytes_count() -> None:
    journal = FakeJournal(b"a\nb\nc\nd\ne\n", holes=[(3, 5)])
    assert [ended(journal, count, lossless=False) for count in (1, 2, 3)] == [2, 8, 10]
    with pytest.raises(DataLossError):
        ended(journal, 2)


def test_records_before_a_hole_up_to_the_end_count() -> None:
    """Nothing follows the hole, so the records before it count last."""
    journal = FakeJournal(b"a\nb\nc\nd\ne\n", holes=[(4, 9)])
    assert [ended(journal, count, end=8, lossless=False) for count in (1, 2, 3)] == [2, 4, 8]


def test_bytes_behind_the_last_record_are_not_read() -> None:
    journal = Noted(b"a\n" * (4 * BLOCK_BYTES), chunk_sizes=(BLOCK_BYTES,))
    assert ended(journal, 5) == 10
    assert journal.ends == (BLOCK_BYTES,)


@pytest.mark.parametrize("count", [2, 3])
def test_an_oversized_record_is_named(count: int) -> None:
    journal = FakeJournal(b"a\n" + b"x" * 2000 + b"\nb\n")
    assert ended(journal, 1, longest=1000) == 2
    with pytest.raises(RecordError, match="oversized record") as caught:
        ended(journal, count, longest=1000)
    assert (caught.value.journal, caught.value.offset) == (NAME, 2)
