"""Tests readers of messages: cut records, lost bytes, unreadable records and committed messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pytest

from gazette_spark.client import Client
from gazette_spark.errors import DataLossError, MessageError, RecordError, UnavailableError
from gazette_spark.message import (
    Envelope,
    Message,
    Sequencer,
    framing_by_content_type,
    read_committed,
    read_uncommitted,
)
from gazette_spark.message.iterate import ReadUncommitted
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set
from gazette_spark.testing.stub_broker import Act, StubBroker, chunk, metadata, not_yet
from tests.rig.histories import messages, word_of
from tests.unit.client.listings import header, journal

NAME = "a/journal"
JSON, TABLE, FIXED = "application/x-ndjson", "text/csv", "application/x-protobuf-fixed"


@pytest.fixture
def stub() -> Iterator[StubBroker]:
    with StubBroker() as broker:
        yield broker


@pytest.fixture
def client(stub: StubBroker) -> Iterator[Client]:
    with Client(stub.endpoint, timeout_s=10) as opened:
        yield opened


class Stored:
    """A journal that a stub broker serves in chunks, with gaps between its parts."""

    def __init__(
        self, stub: StubBroker, content: bytes, content_type: str = JSON, chunk_bytes: int = 1 << 20
    ) -> None:
        self.parts = {0: content}
        """Content by offset; the bytes between two parts are missing."""
        self.reads: list[tuple[int, int]] = []
        self._chunk_bytes = chunk_bytes
        listed = journal(NAME)
        if content_type:
            listed.spec.labels.CopyFrom(label_set({"content-type": content_type}))
        stub.script("List", [pb.ListResponse(header=header(1), journals=[listed])])
        stub.script("Read", self._serve)

    @property
    def head(self) -> int:
        return max(offset + len(content) for offset, content in self.parts.items())

    def _serve(self, request: pb.ReadRequest) -> list[Act]:
        self.reads.append((request.offset, request.end_offset))
        for offset, content in sorted(self.parts.items()) if request.offset >= 0 else ():
            end = offset + len(content)
            if request.offset < end:
                begin = max(request.offset, offset)
                data, size = content[begin - offset :], self._chunk_bytes
                chunks = [chunk(begin + at, data[at : at + size]) for at in range(0, len(data), size)]
                return [metadata(NAME, offset, end, offset=begin, write_head=self.head), *chunks]
        return [not_yet(self.head)]


def json_lines(text: str) -> bytes:
    """Return messages as JSON lines of 80 bytes each."""
    lines = [
        b'{"_meta":{"uuid":"%b"},"n":' % str(each.message.get_uuid()).encode() for each in messages(text)
    ]
    return b"".join(line + b"1" * (78 - len(line)) + b"}\n" for line in lines)


def words(found: Sequence[Envelope]) -> str:
    return " ".join(word_of(each).removeprefix(f"{NAME}/") for each in found)


def offsets(found: Sequence[Envelope]) -> list[tuple[int, int]]:
    return [(each.begin, each.end) for each in found]


FIXED_UUID = b"\x0a\x10" + bytes(range(16))
RECORDS = {
    JSON: [b'{"a":1}', b'{"_meta":{"uuid":null},"b":"\xc3\xa9"}', b'{"c":[]}'],
    TABLE: [b",a,b", b',"a\n""b"""\r', b","],
    FIXED: [FIXED_UUID, b"", FIXED_UUID * 3],
}


@pytest.mark.parametrize("content_type", RECORDS)
@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 1_000])
def test_messages_of_any_chunks(
    stub: StubBroker, client: Client, content_type: str, chunk_bytes: int
) -> None:
    framing, records = framing_by_content_type(content_type), RECORDS[content_type]
    frames = [framing.frame(record) for record in records]
    Stored(stub, b"".join(frames), content_type, chunk_bytes)
    with read_uncommitted(client, NAME) as reader:
        found = list(reader)
        assert reader.offset == sum(map(len, frames))
    assert [bytes(each.message) for each in found] == records
    ends = [sum(map(len, frames[: index + 1])) for index in range(3)]
    assert offsets(found) == list(zip([0, *ends[:-1]], ends, strict=True))
    assert {each.journal for each in found} == {NAME}


def test_an_interrupt_does_not_skip_a_message(stub: StubBroker, client: Client) -> None:
    """Whoever presses Ctrl-C in a notebook goes on with the same iterator."""
    Stored(stub, b'{"a":1}\n' * 3)
    reader = read_uncommitted(client, NAME)
    make, pressed = reader.new_message, [False, True, False, False]

    def make_or_interrupt(spec: pb.JournalSpec, record: bytes) -> Message:
        if pressed.pop(0):
            raise KeyboardInterrupt
        return make(spec, record)

    reader.new_message = make_or_interrupt
    assert next(reader).begin == 0
    with pytest.raises(KeyboardInterrupt):
        next(reader)
    assert offsets(list(reader)) == [(8, 16), (16, 24)]


def test_blank_lines_are_in_no_frame(stub: StubBroker, client: Client) -> None:
    Stored(stub, b"\n,a\n\r\n\n,b\n\n", TABLE)
    assert offsets(list(read_uncommitted(client, NAME))) == [(1, 4), (7, 10)]


def test_a_message_that_cannot_be_read(stub: StubBroker, client: Client) -> None:
    """The next call continues after the bad record."""
    Stored(stub, b'{"a":1}\n\n{"b"\n{"c":1}\n')
    reader = read_uncommitted(client, NAME)
    assert next(reader).begin == 0
    for offset, says in ((8, "not JSON"), (9, "not JSON")):
        assert reader.offset == offset
        with pytest.raises(RecordError, match=f"'{NAME}', record at offset {offset}: {says}"):
            next(reader)
    assert offsets(list(reader)) == [(14, 22)]


def test_a_class_of_ones_own(stub: StubBroker, client: Client) -> None:
    def make(spec: pb.JournalSpec, record: bytes) -> None:
        raise ValueError(f"{spec.name} has {record!r}")

    Stored(stub, b'{"a":1}\n')
    with pytest.raises(RecordError, match=f"offset 0: {NAME} has b'{{\"a\":1}}'"):
        next(read_uncommitted(client, NAME, make))  # type: ignore[arg-type]  # It makes no message.


def test_frames_out_of_step(stub: StubBroker, client: Client) -> None:
    frame = framing_by_content_type(FIXED).frame
    Stored(stub, frame(b"") + b"noise" + frame(FIXED_UUID), FIXED)
    reader = read_uncommitted(client, NAME)
    assert offsets([next(reader)]) == [(0, 8)]
    with pytest.raises(RecordError, match="offset 8: no message begins here or before offset 13"):
        next(reader)
    assert offsets(list(reader)) == [(13, 39)]


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        (JSON, b'{}\n{"a":1'),
        (TABLE, b',\n,"a\n\n'),
        (FIXED, b"\x66\x33\x93\x36\x00\x00\x00\x00\x66\x33\x93\x36\x09"),
    ],
    ids=["json", "csv", "fixed"],
)
def test_a_cut_message(stub: StubBroker, client: Client, content_type: str, content: bytes) -> None:
    """A range must not end inside a message, while a message at the write head may still grow."""
    Stored(stub, content, content_type)
    reader = read_uncommitted(client, NAME)
    first = next(reader)
    assert list(reader) == []
    assert reader.offset == first.end
    reader = read_uncommitted(client, NAME, end_offset=len(content))
    assert next(reader) == first
    with pytest.raises(
        RecordError, match=f"offset {first.end}: the range ends within it, at offset {len(content)}"
    ):
        next(reader)
    assert list(reader) == []


def test_a_jump_drops_what_it_cuts(
    stub: StubBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that lost bytes is dropped and logged."""
    stored = Stored(stub, b'{}\n{"a":')
    stored.parts[100] = b'{"b":1}\n'
    with caplog.at_level(logging.WARNING):
        assert offsets(list(read_uncommitted(client, NAME))) == [(0, 3), (100, 108)]
    assert f"lost bytes journal={NAME} from=8 to=100 dropped_bytes=5" in caplog.text
    assert offsets(list(read_uncommitted(client, NAME, offset=50))) == [(100, 108)]


@pytest.mark.parametrize(
    ("content_type", "content"),
    [(JSON, b'{"a":"' + b"x" * 200), (FIXED, b"\x66\x33\x93\x36\xff\xff\xff\xff" + b"x" * 20)],
    ids=["line", "header"],
)
def test_messages_have_a_greatest_length(
    stub: StubBroker, client: Client, content_type: str, content: bytes
) -> None:
    """The error is raised before the message fills the memory."""
    Stored(stub, content, content_type, chunk_bytes=10)
    whole = read_uncommitted(client, NAME)
    reader = ReadUncommitted(whole.reader, whole.spec, whole.new_message, max_message_bytes=100)
    for _ in range(2):
        with pytest.raises(RecordError, match="offset 0: it is longer than max_message_bytes=100"):
            next(reader)
    assert reader.reader.offset <= 120


def test_the_write_head_as_a_begin(stub: StubBroker, client: Client) -> None:
    Stored(stub, b"{}\n")
    reader = read_uncommitted(client, NAME, offset=-1)
    assert reader.offset == -1
    assert list(reader) == []
    assert reader.offset == 3


@pytest.mark.parametrize("content_type", ["", "application/x-gazette-recoverylog"])
def test_journals_without_messages(stub: StubBroker, client: Client, content_type: str) -> None:
    Stored(stub, b"", content_type)
    with pytest.raises(MessageError, match=f"journal '{NAME}'"):
        read_committed(client, NAME)


HISTORY = "A1C B1C A1C A2C B2C A3C A4K A4K B4C A5O B3K"
COMMITTED = "A1C A2C A3C A4K A5O B1C B2C B3K"


@pytest.mark.parametrize("ring", [1, 3, 8192])
@pytest.mark.parametrize("chunk_bytes", [7, 1 << 20])
def test_committed_messages(stub: StubBroker, client: Client, ring: int, chunk_bytes: int) -> None:
    stored = Stored(stub, json_lines(f"{HISTORY} C1C"), chunk_bytes=chunk_bytes)
    sequencer = Sequencer(ring_messages=ring)
    with read_committed(client, NAME, sequencer=sequencer) as reader:
        assert words(list(reader)) == COMMITTED
    assert sequencer.offsets == {NAME: stored.head}
    assert sequencer.has_pending()
    replays = {(0, 480), (80, 800)} if ring == 1 else {(0, 400), (80, 640)} if ring == 3 else set()
    assert {read for read in stored.reads if read[1]} == replays


def test_the_next_reader_goes_on(stub: StubBroker, client: Client) -> None:
    stored = Stored(stub, json_lines("A1C B1O A2C"))
    sequencer = Sequencer()
    assert words(list(read_committed(client, NAME, sequencer=sequencer))) == "B1O"
    kept_offsets, states = sequencer.checkpoint()
    stored.parts[0] += json_lines("A3C A4K")
    sequencer = Sequencer(kept_offsets, states)
    assert words(list(read_committed(client, NAME, sequencer=sequencer))) == "A1C A2C A3C A4K"


def test_a_transaction_that_lost_bytes(
    stub: StubBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """An incomplete transaction is delivered only with ``fail_on_data_loss=False``."""
    content = json_lines("A1C A2C B1O A3C A4K B2O")
    stored = Stored(stub, content[:320])
    sequencer = Sequencer(ring_messages=2)
    assert words(list(read_committed(client, NAME, sequencer=sequencer))) == "B1O"
    checkpoint = sequencer.checkpoint()
    stored.parts = {80: content[80:]}
    reader = read_committed(client, NAME, sequencer=Sequencer(*checkpoint))
    for _ in range(2):
        with pytest.raises(DataLossError, match="cannot read offset 0: the next available byte is at 80"):
            next(reader)
    stored.parts = {0: content[:80], 160: content[160:]}
    reader = read_committed(client, NAME, sequencer=Sequencer(*checkpoint))
    assert words([next(reader)]) == "A1C"
    with pytest.raises(DataLossError, match="cannot read offset 80"):
        next(reader)
    reader = read_committed(client, NAME, sequencer=Sequencer(*checkpoint), fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING):
        assert words(list(reader)) == "A1C A3C A4K B2O"
    assert f"replay lacks bytes journal={NAME} from=80 to=160" in caplog.text


def test_bytes_that_were_missing_before(stub: StubBroker, client: Client) -> None:
    """A gap that the reader has already passed is not a loss of this transaction."""
    content = json_lines("A1C B1C A2C A3K")
    stored = Stored(stub, content[:80])
    stored.parts[100] = json_lines("A2C A3K")
    assert words(list(read_committed(client, NAME, sequencer=Sequencer(ring_messages=1)))) == "A1C A2C A3K"


def test_a_replay_over_what_cannot_be_read(
    stub: StubBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    Stored(stub, json_lines("A1C") + b"{}}\n" + json_lines("A2C A3K"))
    reader = read_committed(client, NAME, sequencer=Sequencer(ring_messages=1))
    with pytest.raises(RecordError, match="offset 80"):
        next(reader)
    with caplog.at_level(logging.WARNING):
        assert words(list(reader)) == "A1C A2C A3K"
    assert "replay skips a record" in caplog.text


def test_a_replay_that_breaks_is_tried_again(stub: StubBroker, client: Client) -> None:
    stored = Stored(stub, json_lines("A1C A2C A3C A4C A5K"), chunk_bytes=80)
    reader = read_committed(client, NAME, sequencer=Sequencer(ring_messages=1), timeout_s=0.3)
    content = stored.parts[0]
    assert words([next(reader)]) == "A1C"
    stored.parts = {0: content[:80]}
    assert reader._replay is not None  # The test breaks the broker's connection.
    reader._replay.reader.cancel()
    with pytest.raises((UnavailableError, ValueError)):
        list(reader)
    stored.parts = {0: content}
    assert words(list(reader)) == "A2C A3C A4C A5K"


def test_a_reader_that_is_closed(stub: StubBroker, client: Client) -> None:
    """A reader closed during a replay must not skip the rest and continue."""
    Stored(stub, json_lines("A1C A2C A3C A4C A5K A6O"), chunk_bytes=80)
    reader = read_committed(client, NAME, sequencer=Sequencer(ring_messages=1))
    assert words([next(reader)]) == "A1C"
    reader.close()
    assert list(reader) == []
    assert words(list(reader)) == ""
