"""Frames are found by their headers, and the length in a header is bounded."""

from __future__ import annotations

import pytest

from gazette_spark._formats.fixed import FIXED, MAGIC, frame, magic_words
from gazette_spark._formats.framing import Block
from gazette_spark._planning.boundary import next_record_end, record_end, window_reader
from gazette_spark._planning.cutter import BLOCK_BYTES, Gap, PieceScan
from gazette_spark._planning.pieces import Piece
from gazette_spark.errors import RecordError
from tests.oracles.lines import FakeJournal

HUGE = MAGIC + b"\xff\xff\xff\xff" + b"x" * 200_000
"""Beginning of a frame that claims to be 4 GiB long."""


def scan_of(
    content: bytes, *, fail: bool = True, max_record_bytes: int = 1000, block_bytes: int = BLOCK_BYTES
) -> PieceScan:
    """Scan all of a journal that begins at offset 100."""
    journal = FakeJournal(content, base=100, chunk_sizes=[1000])
    piece = Piece("a/b", 100, 100 + len(content), 100 + len(content), starts_on_record=True, framing="fixed")
    return PieceScan(
        journal,
        piece,
        fail_on_data_loss=fail,
        max_record_bytes=max_record_bytes,
        block_bytes=block_bytes,
        framing=FIXED,
    )


def test_a_block_knows_its_frames() -> None:
    data = b"".join(map(frame, [b"", b"abc", MAGIC, b"z"]))
    cut = FIXED.cut(data, 50)
    block = Block("a/b", 50, data, cut.starts, cut.ends, FIXED.header_bytes, FIXED.trailer_bytes)
    assert FIXED.values(block).to_pylist() == [b"", b"abc", MAGIC, b"z"]
    assert block.offsets.tolist() == [50, 58, 69, 81]
    assert block.end_offset_array().to_pylist() == [58, 69, 81, 90]
    part = block.rows(1, 3)
    assert (part.offset, part.offsets.tolist()) == (58, [58, 69])
    assert FIXED.values(part).to_pylist() == [b"abc", MAGIC]
    assert magic_words(data).tolist() == [0, 8, 19, 27, 31]


@pytest.mark.parametrize("fail", [True, False], ids=["strict", "loss_allowed"])
def test_a_frame_that_claims_four_gibibytes_is_oversized(fail: bool) -> None:
    """The header alone is enough to refuse the frame: no data is buffered, even where loss is allowed."""
    scan = scan_of(frame(b"ok") + HUGE, fail=fail)
    with pytest.raises(RecordError, match=r"oversized record.*maxRecordBytes=1000") as caught:
        list(scan)
    assert caught.value.offset == 110


def test_the_longest_record_may_arrive_in_parts() -> None:
    scan = scan_of(frame(b"ok") + frame(bytes(1000)), block_bytes=50)
    assert [len(value) for block in scan for value in FIXED.values(block).to_pylist()] == [2, 1000]
    with pytest.raises(RecordError, match=r"oversized record.*maxRecordBytes=1000") as caught:
        list(scan_of(frame(b"ok") + frame(bytes(1001))[:500], block_bytes=50))
    assert caught.value.offset == 110


def test_no_batch_ends_behind_a_frame_that_claims_four_gibibytes() -> None:
    """The planner reads no more than the longest record to detect such a frame."""
    journal = FakeJournal(frame(b"ok") + HUGE)
    with pytest.raises(RecordError, match="oversized record") as caught:
        record_end(journal.window, 0, len(journal.content), 100_000, journal="a/b", framing=FIXED)
    assert (caught.value.journal, caught.value.offset) == ("a/b", 10)


@pytest.mark.parametrize("more", range(8))
def test_a_batch_that_ends_in_a_header_ends_before_it(more: int) -> None:
    """Frames within the longest record lead to that header, so the record begins before the last bytes."""
    inside = bytes(2) + frame(bytes(9)) + MAGIC + b"\x01\0\0\0"
    content = 5 * frame(b"") + frame(inside) + frame(b"")
    true = len(content) - 8
    window = FakeJournal(content).window
    assert record_end(window, 0, true + more, len(inside), framing=FIXED) == true


def test_a_frame_begins_behind_missing_bytes() -> None:
    """The hole cuts the first frame, so the first end that a search finds is the end of the hole."""
    content = frame(b"cut") + frame(b"whole")
    read = window_reader(FakeJournal(content, base=100, holes=[(104, 111)]), "a/b", fail_on_data_loss=False)
    assert next_record_end(read, 100, 100 + len(content), 1000, framing=FIXED) == 111
    assert record_end(read, 100, 100 + len(content), 1000, framing=FIXED) == 100 + len(content)


def test_a_desync_is_an_error_that_names_it() -> None:
    with pytest.raises(RecordError, match=r"desync: .* in the next 4 bytes") as caught:
        list(scan_of(frame(b"ok") + b"f3ab" + frame(b"ok")))
    assert caught.value.offset == 110


def test_a_desync_is_skipped_where_loss_is_allowed() -> None:
    scan = scan_of(frame(b"ok") + b"f3ab" + frame(b"fine") + b"\n", fail=False)
    assert [FIXED.values(block).to_pylist() for block in scan] == [[b"ok", b"fine"]]
    assert scan.gaps == (
        Gap("a/b", 110, 114, 110, 0, kind="desync"),
        Gap("a/b", 126, 127, 126, 0, kind="desync"),
    )
