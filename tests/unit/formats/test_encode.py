"""Encoded values are read back unchanged by a scan, or are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gazette_spark._formats import encode
from gazette_spark._formats.arrays import null_rows
from gazette_spark._formats.csv import CSV, CsvFraming
from gazette_spark._formats.encode import check_values, encoded
from gazette_spark._formats.fixed import FIXED, frame
from gazette_spark._formats.framing import RecordFraming, RowRefusal
from gazette_spark._formats.lines import LINES
from gazette_spark._formats.raw import ChunkFraming

FRAMINGS: dict[str, RecordFraming] = {"lines": LINES, "fixed": FIXED, "csv": CSV, "none": ChunkFraming()}


def joined(values: pa.Array, framing: str) -> bytes:
    made = encoded(values, FRAMINGS[framing])
    assert not isinstance(made, RowRefusal), made
    return b"".join(made)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()], ids=str)
@pytest.mark.parametrize(
    ("framing", "expected"),
    [
        pytest.param("lines", b"a\n\nbc\n", id="lines"),
        pytest.param("fixed", frame(b"a") + frame(b"") + frame(b"bc"), id="fixed"),
        pytest.param("none", b"abc", id="none"),
    ],
)
def test_each_value_gets_its_frame(kind: pa.DataType, framing: str, expected: bytes) -> None:
    assert joined(pa.array(["a", "", "bc"], kind), framing) == expected
    assert joined(pa.array(["before", "a", "", "bc", "after"], kind)[1:4], framing) == expected


@pytest.mark.parametrize("framing", FRAMINGS)
def test_no_values_make_no_bytes(framing: str) -> None:
    assert joined(pa.array([], pa.binary()), framing) == b""
    assert joined(pa.array([b"a"], pa.binary())[1:], framing) == b""


@pytest.mark.parametrize("framing", ["lines", "fixed", "csv"])
def test_pieces_hold_whole_records(framing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is one append, and appends of other writers may come between them."""
    monkeypatch.setattr(encode, "CHUNK_BYTES", 64)
    values = [b"%d" % 10**n for n in range(30)] + [b"x" * 200, b"y"]
    found_pieces = encoded(pa.array(values, pa.binary()), FRAMINGS[framing])
    assert not isinstance(found_pieces, RowRefusal)
    pieces = list(found_pieces)
    assert len(pieces) > 5
    found: list[bytes] = []
    for piece in pieces:
        cut = FRAMINGS[framing].cut(piece, 0)
        assert cut.size == len(piece)
        assert len(piece) <= 64 or len(cut.starts) == 1
        found += [piece[start:end] for start, end in zip(cut.starts, cut.ends, strict=True)]
    assert found == values


@pytest.mark.parametrize(
    ("framing", "values", "index", "problem"),
    [
        pytest.param("lines", ["a", "b\n", "c"], 1, "newline", id="newline_at_the_end"),
        pytest.param("lines", ["a", "b", "\nc"], 2, "newline", id="newline_at_the_start"),
        pytest.param("lines", ["a\nb\nc"], 0, "newline", id="newlines"),
        pytest.param("csv", ["1,a", '2,"b', "3,c"], 1, "not one record", id="open_quote"),
        pytest.param("csv", ["1,a", '2,"b', '3"'], 1, "not one record", id="quotes_closed_by_the_next"),
        pytest.param("csv", ["1,a", "2\n3", "4"], 1, "not one record", id="two_records"),
        pytest.param("csv", ["1", '2,"b'], 1, "not one record", id="open_quote_at_the_end"),
        pytest.param("csv", ["1", "", "2"], 1, "blank line", id="empty"),
        pytest.param("csv", ["1", "2", "\r"], 2, "blank line", id="return"),
    ],
)
def test_values_that_would_be_read_as_something_else_are_refused(
    framing: str, values: list[str], index: int, problem: str
) -> None:
    refused = encoded(pa.array(values), FRAMINGS[framing])
    assert isinstance(refused, RowRefusal)
    assert (refused.index, problem in refused.problem) == (index, True)
    assert refused.advice


def test_csv_of_other_quotes() -> None:
    """The quotes decide which bytes form one record."""
    made = encoded(pa.array(["'a\n;';b", '"']), CsvFraming(";", "'"))
    assert not isinstance(made, RowRefusal)
    assert b"".join(made) == b"'a\n;';b\n\"\n"
    assert isinstance(encoded(pa.array(["'a\n;';b"]), CSV), RowRefusal)


def test_a_refused_value_has_its_index_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index counts all values, not only those of the piece."""
    monkeypatch.setattr(encode, "CHUNK_BYTES", 16)
    refused = encoded(pa.array(["12345678"] * 9 + ["\n"]), LINES)
    assert isinstance(refused, RowRefusal)
    assert refused.index == 9


def test_nulls_and_long_values_are_found() -> None:
    values = pa.array(["a", None, "bb", None, "cccc"])
    assert null_rows(values).tolist() == [1, 3]
    assert null_rows(values[2:]).tolist() == [1]
    found = check_values(values[1:], 3)
    assert found is not None
    assert (found.index, found.problem) == (0, "its value is null")
    long = check_values(pa.array(["a", "bb", "cccc", "ddddd"]), 3)
    assert long is not None
    assert (long.index, long.problem) == (2, "its value has 4 bytes, more than the 3 of maxRecordBytes")
    assert check_values(pa.array(["a", "bb"]), 2) is None
    assert check_values(pa.array([], pa.string()), 1) is None
