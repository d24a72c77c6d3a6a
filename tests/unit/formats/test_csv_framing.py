"""CSV records end at newlines outside quotes, and a quote opens only at the start of a field."""

from __future__ import annotations

import pytest

from gazette_spark._formats.csv import CSV
from gazette_spark._formats.framing import Block
from gazette_spark._planning.boundary import record_end
from gazette_spark._planning.cutter import Cutter, PieceScan
from gazette_spark._planning.pieces import Piece
from gazette_spark.errors import RecordError
from tests.oracles.lines import FakeJournal


def records(data: bytes) -> list[bytes]:
    cut = CSV.cut(data, 0)
    return CSV.values(Block("a/b", 0, data[: cut.size], cut.starts, cut.ends)).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types.


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"a,b\nc,d\n", [b"a,b", b"c,d"], id="plain"),
        pytest.param(b'"a\nb",c\nd\n', [b'"a\nb",c', b"d"], id="newline_in_quotes"),
        pytest.param(b'"a""\n""b"\nc\n', [b'"a""\n""b"', b"c"], id="doubled_quotes"),
        pytest.param(b'5" nail\n6" nail\n', [b'5" nail', b'6" nail'], id="inches"),
        pytest.param(b'"a"b"\nc\n', [b'"a"b"', b"c"], id="quote_after_quotes"),
        pytest.param(b"\n\r\na\r\n\n", [b"a\r"], id="blank_lines"),
        pytest.param(b'""\n', [b'""'], id="an_empty_field_is_no_blank_line"),
        pytest.param(b'a\n"b\nc\n', [b"a"], id="open_quotes"),
    ],
)
def test_records(data: bytes, expected: list[bytes]) -> None:
    assert records(data) == expected


def test_the_end_of_a_batch_is_not_guessed_inside_quotes() -> None:
    """The last newlines of this tail are inside a quoted field that began long before it.

    If such a field is longer than the longest allowed record, reading the batch reports it, wherever it ends.
    """
    content = b'a,b\n"' + b"line\n" * 40_000
    read = FakeJournal(content).window
    assert record_end(read, 0, len(content), 1 << 20, framing=CSV) == 4
    end = record_end(read, 0, len(content), 1 << 16, framing=CSV)
    piece = Piece("a/b", 0, end, end, starts_on_record=True, framing="csv")
    with pytest.raises(RecordError, match="oversized") as caught:
        list(
            PieceScan(
                FakeJournal(content), piece, fail_on_data_loss=True, max_record_bytes=1 << 16, framing=CSV
            )
        )
    assert caught.value.offset == 4


def test_plain_lines_are_not_taken_for_a_quoted_field_for_ever() -> None:
    """Such a field would exceed the longest allowed record, so the tail is enough to rule it out."""
    journal = FakeJournal(b"a,b\n" * 100_000)
    asked: list[int] = []

    def read(begin: int, end: int) -> bytes:
        asked.append(end - begin)
        return journal.window(begin, end)

    assert record_end(read, 0, 399_999, 100_000, framing=CSV) == 399_996
    assert sum(asked) == 100_001


def test_a_piece_that_ends_inside_a_record_is_an_error() -> None:
    journal = FakeJournal(b'a\n"b\nc"\n')
    piece = Piece("a/b", 0, 5, 5, starts_on_record=True, framing="csv")
    with pytest.raises(RecordError, match="each append must contain whole records") as caught:
        list(PieceScan(journal, piece, fail_on_data_loss=True, framing=CSV))
    assert caught.value.offset == 2


def test_a_piece_in_the_middle_of_records_is_a_slip() -> None:
    """Only the planner's pieces can be read, because they begin and end on record boundaries."""
    for piece in (
        Piece("a/b", 1, 8, 8, starts_on_record=False),
        Piece("a/b", 0, 5, 8, starts_on_record=True),
    ):
        with pytest.raises(ValueError, match="does not begin and end at record boundaries"):
            Cutter(piece, fail_on_data_loss=True, framing=CSV)
