"""Tests that the cursor follows a stream of messages and rejects protocol violations."""

from __future__ import annotations

import hashlib

import pytest

from gazette_spark.client._read.chunks import Chunk
from gazette_spark.client._read.stream import Cursor, ReadOptions
from gazette_spark.errors import (
    BrokerError,
    CorruptFragmentError,
    GazetteError,
    OffsetNotYetAvailableError,
    ProtocolError,
    SuspendedError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import sum_to_pb
from gazette_spark.testing.stub_broker import chunk, metadata, not_yet

JOURNAL = "a/journal"


def follow(messages: list[pb.ReadResponse], offset: int = 0) -> tuple[Cursor, list[Chunk]]:
    cursor = Cursor(JOURNAL, offset, [])
    return cursor, [got for message in messages if (got := cursor.feed(message)) is not None]


def meta(begin: int, end: int, **keys: object) -> pb.ReadResponse:
    return metadata(JOURNAL, begin, end, **keys)  # type: ignore[arg-type]  # Fields by name, of mixed types.


def test_a_tail_that_grows() -> None:
    """Each commit to the same fragment sends metadata with a larger end."""
    cursor, chunks = follow([meta(0, 3), chunk(0, b"abc"), meta(0, 5, offset=3), chunk(3, b"de")])
    assert chunks == [Chunk(0, b"abc"), Chunk(3, b"de")]
    assert (cursor.offset, cursor.jumps, cursor.write_head) == (5, [], 5)


def test_a_jump_is_noted_once() -> None:
    cursor, chunks = follow([meta(100, 103), chunk(100, b"abc")], offset=7)
    assert chunks == [Chunk(100, b"abc")]
    assert cursor.jumps == [(7, 100)]


def test_a_chunk_knows_when_its_fragment_was_stored() -> None:
    """The time is 0 while only a broker has the fragment."""
    stored = meta(0, 3, url="file:///x")
    stored.fragment.mod_time = 1_700_000_000
    stored.fragment.sum.CopyFrom(sum_to_pb(hashlib.sha1(b"abc").digest()))
    _, chunks = follow([stored, chunk(0, b"abc"), meta(3, 5), chunk(3, b"de")])
    assert [each.mod_time for each in chunks] == [1_700_000_000, 0]


def test_the_write_head_is_no_jump() -> None:
    cursor, chunks = follow([meta(0, 12, offset=10), chunk(10, b"ab")], offset=-1)
    assert chunks == [Chunk(10, b"ab")]
    assert cursor.jumps == []


def test_an_offset_not_yet_available_may_have_jumped() -> None:
    cursor = Cursor(JOURNAL, 5, [])
    with pytest.raises(OffsetNotYetAvailableError) as caught:
        cursor.feed(not_yet(8))
    assert (caught.value.offset, caught.value.write_head) == (8, 8)
    assert (cursor.offset, cursor.jumps) == (8, [(5, 8)])


def test_other_statuses_are_errors_of_their_own() -> None:
    with pytest.raises(SuspendedError, match=JOURNAL):
        follow([pb.ReadResponse(status=pb.SUSPENDED)])


def with_fragment(message: pb.ReadResponse) -> pb.ReadResponse:
    message.fragment.CopyFrom(meta(0, 10).fragment)
    return message


LIES = {
    "a chunk before any metadata": ([chunk(0, b"a")], 0),
    "a chunk at a lower offset": ([meta(0, 10), chunk(0, b"abc"), chunk(1, b"b")], 0),
    "a repeated chunk": ([meta(0, 10), chunk(0, b"abc"), chunk(0, b"abc")], 0),
    "a chunk that leaves bytes out": ([meta(0, 10), chunk(0, b"abc"), chunk(4, b"e")], 0),
    "content past the fragment": ([meta(0, 2), chunk(0, b"abc")], 0),
    "content together with a fragment": ([meta(0, 10), with_fragment(chunk(0, b"abc"))], 0),
    "content together with a status": ([meta(0, 10), pb.ReadResponse(status=pb.SUSPENDED, content=b"a")], 0),
    "content together with a write head": ([meta(0, 10), pb.ReadResponse(write_head=10, content=b"a")], 0),
    "metadata that goes back": ([meta(0, 10, offset=3)], 5),
    "a status that goes back": ([not_yet(3)], 5),
    "a fragment before the offset": ([meta(0, 10, offset=10)], 10),
    "a fragment behind the offset": ([meta(8, 10, offset=5)], 5),
    "a fragment past the write head": ([meta(0, 10, write_head=9)], 0),
    "a fragment of another journal": ([metadata("another/journal", 0, 10)], 0),
    "a fragment of another journal, behind a jump": ([metadata("another/journal", 5, 10)], 0),
    "a journal that leads out of the store": ([metadata("../x/journal", 0, 10)], 0),
    "a fragment that ends before it begins": ([metadata(JOURNAL, 5, 0, offset=0, write_head=9)], 0),
    "metadata without a fragment": ([pb.ReadResponse(offset=0, write_head=10)], 0),
    "a status nobody knows": ([pb.ReadResponse(status=99)], 0),  # type: ignore[arg-type]  # No known status.
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(name: str) -> None:
    messages, offset = LIES[name]
    cursor = Cursor(JOURNAL, offset, [])
    for message in messages[:-1]:
        cursor.feed(message)
    before = cursor.offset
    with pytest.raises(ProtocolError):
        cursor.feed(messages[-1])
    assert cursor.offset == before
    assert cursor.jumps == []


def test_a_stored_fragment_is_held_to_its_sum() -> None:
    good = hashlib.sha1(b"abcdef", usedforsecurity=False).digest()
    stored = meta(0, 6, sha1=good, url="https://store/f?sig=SECRET")
    _, chunks = follow([stored, chunk(0, b"abc"), chunk(3, b"def")])
    assert b"".join(each.content for each in chunks) == b"abcdef"
    cursor = Cursor(JOURNAL, 0, [])
    cursor.feed(stored)
    cursor.feed(chunk(0, b"abc"))
    with pytest.raises(CorruptFragmentError, match=good.hex()) as caught:
        cursor.feed(chunk(3, b"dEf"))
    assert (caught.value.begin, caught.value.end, caught.value.source) == (0, 6, "https://store/f")
    assert cursor.offset == 3


def test_a_part_of_a_stored_fragment_cannot_be_held_to_its_sum() -> None:
    """The checksum covers the whole fragment."""
    _, chunks = follow([meta(0, 6, offset=3, url="file:///f"), chunk(3, b"def")], offset=3)
    assert chunks == [Chunk(3, b"def")]


@pytest.mark.parametrize(
    ("url", "text", "kind"),
    [
        pytest.param("", "no such thing", BrokerError, id="held by the broker"),
        pytest.param("https://s/f?sig=SECRET", "store timed out", BrokerError, id="store trouble"),
        pytest.param("https://s/f?sig=SECRET", "unexpected EOF", CorruptFragmentError, id="short file"),
    ],
)
def test_a_brokers_text_gets_what_it_is_about(url: str, text: str, kind: type[GazetteError]) -> None:
    cursor, _ = follow([meta(0, 6, url=url), chunk(0, b"abc")])
    explained = cursor.explain(BrokerError("http://b:1", "UNKNOWN", text))
    assert type(explained) is kind
    assert JOURNAL in str(explained)
    assert text in str(explained)
    assert ("[0, 6)" in str(explained)) is bool(url)
    assert "SECRET" not in str(explained)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"offset": -2}, id="offset below -1"),
        pytest.param({"offset": 5, "end_offset": 4}, id="end before offset"),
        pytest.param({"end_offset": -1}, id="negative end"),
        pytest.param({"begin_mod_time": -1}, id="negative time"),
        pytest.param({"journal": "../x"}, id="journal that goes up"),
        pytest.param({"journal": "a/../../x"}, id="journal that goes further up"),
        pytest.param({"journal": ""}, id="no journal"),
    ],
)
def test_bad_reads_are_refused_before_sending(keys: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        ReadOptions(**({"journal": JOURNAL} | keys))  # type: ignore[arg-type]  # Fields by name, of mixed types.
