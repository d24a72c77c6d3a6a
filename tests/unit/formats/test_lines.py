"""Lines end only at newlines, and their values are the journal's bytes unchanged."""

from __future__ import annotations

import pytest

from gazette_spark._formats.framing import Block, bounded
from gazette_spark._formats.lines import LINES, SCAN_BYTES, newlines
from tests.oracles.framings import line_spans

pytestmark = pytest.mark.usefixtures("native_library")


@pytest.mark.parametrize(
    ("window", "first", "last"),
    [
        pytest.param(b"", None, None, id="empty"),
        pytest.param(b"abc", None, None, id="no-newline"),
        pytest.param(b"\n", 1, 1, id="only-a-newline"),
        pytest.param(b"ab\nc\n\nd", 3, 6, id="several"),
        pytest.param(b"ab\r\rc", None, None, id="carriage-returns-do-not-count"),
    ],
)
def test_boundaries(window: bytes, first: int | None, last: int | None) -> None:
    assert LINES.first_boundary(window, 0) == first
    assert LINES.last_boundary(window, 1 << 20) == last


@pytest.mark.parametrize("size", [0, 1, 7, 63, 64, 65, 1000, SCAN_BYTES + 9])
def test_all_newlines_are_found(size: int) -> None:
    pattern = b"\n\n\x0b\x8a" + b"x" * 60 + b"\n"
    for data in (b"\n" * size, b"x" * size, (pattern * (size // len(pattern) + 1))[:size]):
        assert newlines(data).tolist() == [at for at, octet in enumerate(data) if octet == 0x0A]


def test_values_keep_every_byte_but_the_newline() -> None:
    lines = [b"", b"a\r", b"\x00", b"\xff\xfe", b"", b"x" * (SCAN_BYTES + 1), b"last"]
    data = b"".join(line + b"\n" for line in lines)
    block = Block("a/b", 7, data, *line_spans(data))
    found = LINES.values(block)
    found.validate(full=True)
    assert found.to_pylist() == lines
    assert [block.record(at) for at in range(len(block))] == lines
    assert block.offsets.tolist()[:4] == [7, 8, 11, 13]


def test_rows_are_a_part_of_a_block() -> None:
    data = b"a\nbb\n\nccc\n"
    block = Block("a/b", 100, data, *line_spans(data))
    part = block.rows(1, 3)
    assert (LINES.values(part).to_pylist(), part.offsets.tolist()) == ([b"bb", b""], [102, 105])
    assert part.data == b"bb\n\n"
    assert (len(block.rows(2, 2)), LINES.values(block.rows(4, 4)).to_pylist()) == (0, [])


def test_many_short_records_are_cut_into_several_batches() -> None:
    data = b"\n" * 10
    parts = list(bounded([Block("a/b", 5, data, *line_spans(data))], 4))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert [offset for part in parts for offset in part.offset_array().to_pylist()] == list(range(5, 15))
    assert parts[0].journal_array().to_pylist() == ["a/b"] * 4
