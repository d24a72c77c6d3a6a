"""Tests that records can be encoded and decoded, and that other bytes are refused."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._formats.fixed import HEADER_BYTES, frame
from gazette_spark.errors import OptionError, RecordError
from gazette_spark.message.uuids import OUTSIDE_TXN, Clock, ProducerId, build_uuid, split_uuid
from gazette_spark.protocol.replicated_log_pb2 import Checkpoint, LogEntry
from gazette_spark.replicated_log._entries import (
    MAX_ENTRY_BYTES,
    FrameBuffer,
    Record,
    check_size,
    checkpoint_frame,
    entry_frame,
    take_over_frame,
)

PRODUCER = ProducerId(b"\1\2\3\4\5\6")


def stamp(clock: int) -> uuid.UUID:
    return build_uuid(PRODUCER, Clock(clock), OUTSIDE_TXN)


def only_record(content: bytes, begin: int = 0) -> Record:
    frames = FrameBuffer("a/log", begin)
    frames.feed(content)
    (record,) = frames
    assert frames.begin == frames.end == record.end
    return record


@pytest.mark.parametrize("entry", [b"", b"x", bytearray(b"two"), memoryview(b"a view")])
def test_an_entry_round_trips(entry: bytes) -> None:
    record = only_record(entry_frame(stamp(160), 7, entry), begin=100)
    assert record.content == bytes(entry)
    assert (record.begin, record.earliest) == (100, 7)
    assert split_uuid(record.stamp) == (PRODUCER, 160, OUTSIDE_TXN)


def test_a_take_over_has_no_content() -> None:
    """A takeover writes a record, but no entry."""
    assert only_record(take_over_frame(stamp(160), 0)).content is None


@given(st.integers(0, 1 << 62), st.integers(-1, 1 << 62), st.integers(0, 1 << 40))
def test_a_checkpoint_holds_its_own_end(begin: int, last: int, version: int) -> None:
    """The end is part of the record, so the length of its own encoding counts."""
    content = checkpoint_frame(stamp(160), begin, last=last, version=version)
    on_the_wire = LogEntry.FromString(content[HEADER_BYTES:])
    assert on_the_wire.checkpoint.nextEntryOffset == begin + len(content)
    record = only_record(content, begin)
    assert record.content == Checkpoint(lastEntryOffset=last, nextEntryOffset=begin + len(content))
    assert record.version == version


def test_the_place_of_a_checkpoint_counts() -> None:
    """The offset at which a record was read wins over the offset that its writer expected."""
    content = checkpoint_frame(stamp(160), 50, last=-1, version=1)
    assert only_record(content, 90).content == Checkpoint(
        lastEntryOffset=-1, nextEntryOffset=90 + len(content)
    )


@given(st.lists(st.binary(max_size=300), max_size=20), st.data())
def test_pieces_of_any_size(entries: list[bytes], data: st.DataObject) -> None:
    content = b"".join(entry_frame(stamp(160 * n), 0, entry) for n, entry in enumerate(entries, 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    frames = FrameBuffer("a/log", 1000)
    found: list[Record] = []
    for low, high in zip([0, *cuts], [*cuts, len(content)], strict=True):
        assert frames.end == 1000 + low
        frames.feed(content[low:high])
        found += frames
    assert [record.content for record in found] == entries
    bounds = [1000, *(record.end for record in found)]
    assert [record.begin for record in found] == bounds[:-1]
    assert bounds[-1] == 1000 + len(content)


def test_a_buffer_forgets_what_was_taken() -> None:
    """Memory must not grow with all bytes that were read."""
    frames = FrameBuffer("a/log", 0)
    content = entry_frame(stamp(160), 0, b"x" * 100_000)
    for _ in range(100):
        frames.feed(content)
        assert len(list(frames)) == 1
    assert len(frames._data) < 2_000_000


NO_RECORDS = {
    "another framing": (b'{"id": 1}\n', "no frame begins there"),
    "not a message": (frame(b"\xff\xff\xff"), "not a replicated_log.LogEntry"),
    "without a UUID": (frame(LogEntry(entry=b"x").SerializeToString()), "uuid has 0 bytes"),
    "too long": (frame(b"")[:4] + (1 << 30).to_bytes(4, "little"), "longer than any entry's"),
}


@pytest.mark.parametrize(("content", "problem"), NO_RECORDS.values(), ids=list(NO_RECORDS))
def test_what_is_no_record_is_an_error(content: bytes, problem: str) -> None:
    """The buffer must not skip invalid bytes."""
    frames = FrameBuffer("a/log", 30)
    frames.feed(content)
    for _ in range(2):
        with pytest.raises(RecordError, match=f"'a/log', record at offset 30: .*{problem}"):
            frames.peek()


def test_the_longest_entry() -> None:
    check_size(bytes(MAX_ENTRY_BYTES))
    with pytest.raises(OptionError, match="16777217 bytes; expected at most 16777216 bytes"):
        check_size(memoryview(bytes(MAX_ENTRY_BYTES + 1)))
    longest = entry_frame(stamp((1 << 64) - 1), (1 << 63) - 1, bytes(MAX_ENTRY_BYTES))
    assert only_record(longest).content == bytes(MAX_ENTRY_BYTES)
