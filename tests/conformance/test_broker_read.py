"""Both brokers answer each combination of read parameters alike."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
import pytest

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import CALL_TIMEOUT_S, Wire, spec, wait_for
from tests.rig.brokers import BrokerHandle

CODECS = ["NONE", "GZIP", "ZSTANDARD", "SNAPPY"]
CONTENT = b"0123456789"


@pytest.fixture
def ten_bytes(wire: Wire, journal: str) -> str:
    """Yield the name of a journal of ten bytes, which only the broker has, or which are already stored."""
    wire.append(journal, CONTENT)
    return journal


def caught_up(message: pb.ReadResponse) -> tuple[str, int, int]:
    """Return status name, offset and write head of a metadata message."""
    return pb.Status.Name(message.status), message.offset, message.write_head


def test_stream_grammar(wire: Wire, ten_bytes: str) -> None:
    first, *middle, last = wire.read(ten_bytes)
    assert first.status == pb.OK
    assert first.HasField("header")
    assert (first.offset, first.write_head) == (0, 10)
    assert (first.fragment.begin, first.fragment.end) == (0, 10)
    assert first.fragment.journal == ten_bytes
    assert not first.content
    assert b"".join(chunk.content for chunk in middle) == CONTENT
    for message in [*middle, last]:
        assert not message.HasField("header")
    for chunk in middle:
        assert (chunk.status, chunk.write_head, chunk.HasField("fragment")) == (pb.OK, 0, False)
    assert caught_up(last) == ("OFFSET_NOT_YET_AVAILABLE", 10, 10)


def test_chunks_carry_their_offsets(wire: Wire, journal: str) -> None:
    content = bytes(range(256)) * 1000
    wire.append(journal, content)
    expected = 7
    for message in wire.read(journal, offset=7):
        if message.content:
            assert message.offset == expected
            assert message.content == content[expected : expected + len(message.content)]
            expected += len(message.content)
    assert expected == len(content)


def test_write_head_by_metadata(wire: Wire, ten_bytes: str) -> None:
    messages = wire.read(ten_bytes, offset=-1, metadata_only=True)
    assert [caught_up(each) for each in messages] == [("OFFSET_NOT_YET_AVAILABLE", 10, 10)]


def test_write_head_of_an_empty_journal(wire: Wire, journal: str) -> None:
    messages = wire.read(journal, offset=-1, metadata_only=True)
    assert [caught_up(each) for each in messages] == [("OFFSET_NOT_YET_AVAILABLE", 0, 0)]


def test_metadata_only_gives_one_message(wire: Wire, ten_bytes: str) -> None:
    (message,) = wire.read(ten_bytes, offset=4, metadata_only=True)
    assert caught_up(message) == ("OK", 4, 10)
    assert (message.fragment.begin, message.fragment.end) == (0, 10)


@pytest.mark.parametrize("offset", [pytest.param(10, id="at-head"), pytest.param(11, id="past-head")])
def test_offset_not_below_the_head(wire: Wire, ten_bytes: str, offset: int) -> None:
    messages = wire.read(ten_bytes, offset=offset)
    assert [caught_up(each) for each in messages] == [("OFFSET_NOT_YET_AVAILABLE", offset, 10)]


def test_empty_range_at_the_head(wire: Wire, ten_bytes: str) -> None:
    messages = wire.read(ten_bytes, offset=10, end_offset=10)
    assert [caught_up(each) for each in messages] == [("OFFSET_NOT_YET_AVAILABLE", 10, 10)]


@pytest.mark.parametrize(
    ("offset", "end_offset", "expected"),
    [
        pytest.param(0, 10, b"0123456789", id="whole"),
        pytest.param(3, 7, b"3456", id="middle"),
        pytest.param(9, 10, b"9", id="last-byte"),
        pytest.param(0, 1, b"0", id="first-byte"),
    ],
)
def test_end_offset_clips(wire: Wire, ten_bytes: str, offset: int, end_offset: int, expected: bytes) -> None:
    messages = wire.read(ten_bytes, offset=offset, end_offset=end_offset)
    assert b"".join(each.content for each in messages) == expected
    assert all(each.status == pb.OK for each in messages)


def test_end_offset_past_the_head(wire: Wire, ten_bytes: str) -> None:
    messages = wire.read(ten_bytes, offset=5, end_offset=20)
    assert b"".join(each.content for each in messages) == b"56789"
    assert caught_up(messages[-1]) == ("OFFSET_NOT_YET_AVAILABLE", 10, 10)


def test_blocking_read_follows_appends(wire: Wire, journal: str) -> None:
    call = wire.open_read(journal, block=True)
    got = b""
    wire.append(journal, b"first ")
    while len(got) < 6:
        got += next(call).content
    wire.append(journal, b"second")
    while len(got) < 12:
        got += next(call).content
    call.cancel()
    assert got == b"first second"


def test_blocking_read_from_the_head(wire: Wire, ten_bytes: str) -> None:
    call = wire.open_read(ten_bytes, offset=-1, block=True)
    first: list[pb.ReadResponse] = []
    reader = threading.Thread(target=lambda: first.append(next(call)))
    reader.start()
    # The broker resolves -1 when it handles the read, so append until it has answered.
    wait_for(lambda: bool(first) or not wire.append(ten_bytes, b"x"), "first answer of the read")
    reader.join(CALL_TIMEOUT_S)
    assert first[0].status == pb.OK
    assert first[0].offset >= 10
    assert next(call).content.strip(b"x") == b""
    call.cancel()


def test_cancelled_blocking_read_does_not_stop_others(wire: Wire, ten_bytes: str) -> None:
    call = wire.open_read(ten_bytes, block=True)
    assert next(call).status == pb.OK
    call.cancel()
    assert wire.content(ten_bytes) == CONTENT


def test_unknown_journal(wire: Wire, journal_name: str) -> None:
    assert [each.status for each in wire.read(journal_name)] == [pb.JOURNAL_NOT_FOUND]


def test_write_only_journal(wire: Wire, journal_name: str) -> None:
    wire.create(spec(journal_name, flags=pb.JournalSpec.O_WRONLY))
    assert wire.append(journal_name, b"x").status == pb.OK
    assert [each.status for each in wire.read(journal_name)] == [pb.NOT_ALLOWED]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"offset": -2}, id="offset-below-minus-one"),
        pytest.param({"offset": 5, "end_offset": 4}, id="end-before-offset"),
        pytest.param({"end_offset": -1}, id="negative-end"),
    ],
)
def test_malformed_read_is_refused(wire: Wire, ten_bytes: str, fields: dict[str, int]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.read(ten_bytes, **fields)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN


def test_meta_suffix_reads_the_journal(wire: Wire, ten_bytes: str) -> None:
    assert wire.content(f"{ten_bytes};some/meta") == CONTENT


def test_stored_fragments_read_the_same(wire: Wire, fresh_prefix: str, broker: BrokerHandle) -> None:
    codecs = {f"{fresh_prefix}{name}": pb.CompressionCodec.Value(name) for name in CODECS}
    wire.create(*(spec(name, compression_codec=codec) for name, codec in codecs.items()))
    for name in codecs:
        wire.append(name, CONTENT * 1000)
        wire.append(name, b"more")
    for name, codec in codecs.items():
        stored = wire.wait_persisted(name, 1).fragments[0]
        assert (stored.spec.backing_store, stored.spec.compression_codec) == ("file:///", codec)
        first = wire.read(name, end_offset=10_000)[0]
        assert first.fragment == stored.spec
        path = broker.file_root / first.fragment_url.removeprefix("file:///")
        assert path.is_file()
        assert wire.content(name, offset=9_995) == b"56789more"


def test_do_not_proxy_offers_the_url_only(wire: Wire, ten_bytes: str, broker: BrokerHandle) -> None:
    wire.append(ten_bytes, b"more")
    wire.wait_persisted(ten_bytes, 1)
    messages = wire.read(ten_bytes, do_not_proxy=True, offset=2)
    assert [caught_up(each) for each in messages] == [("OK", 2, 14)]
    assert Path(messages[0].fragment_url.removeprefix("file://")).parts[0] == "/"
    assert not messages[0].content


def test_missing_fragment_jumps(wire: Wire, ten_bytes: str, broker: BrokerHandle) -> None:
    lose_first_fragment(wire, ten_bytes, broker)
    messages = wire.read(ten_bytes)
    assert (messages[0].status, messages[0].offset) == (pb.OK, 10)
    assert b"".join(each.content for each in messages).startswith(b"second")


def test_jump_past_the_end_gives_nothing(wire: Wire, ten_bytes: str, broker: BrokerHandle) -> None:
    lose_first_fragment(wire, ten_bytes, broker)
    messages = wire.read(ten_bytes, offset=2, end_offset=8)
    assert [(each.status, each.offset, each.content) for each in messages] == [(pb.OK, 10, b"")]


def test_begin_mod_time_skips_old_fragments(wire: Wire, ten_bytes: str) -> None:
    wire.append(ten_bytes, b"second")
    stored = wire.wait_persisted(ten_bytes, 1).fragments[0].spec
    messages = wire.read(ten_bytes, begin_mod_time=stored.mod_time + 1)
    assert messages[0].offset == 10
    assert b"".join(each.content for each in messages) == b"second"


def lose_first_fragment(wire: Wire, journal: str, broker: BrokerHandle) -> None:
    wire.append(journal, b"second")
    roll_by_reapply(wire, journal)
    first = wire.wait_persisted(journal, 2).fragments[0]
    path = broker.file_root / first.signed_url.removeprefix("file:///")
    assert path.is_file()
    path.unlink()
    wait_for(lambda: 0 not in [begin for begin, _ in wire.spans(journal)], "refresh without the fragment")


def roll_by_reapply(wire: Wire, journal: str) -> None:
    """Close the journal's current fragment: shrink its limit, fill it, and append once more."""
    changed = spec(journal, length=1024)
    assert wire.apply(pb.ApplyRequest.Change(expect_mod_revision=-1, upsert=changed)).status == pb.OK
    filled = wire.append(journal, b"x" * 2000).commit.end

    def is_closed() -> bool:
        wire.append(journal, b"y")
        return any(end >= filled and begin > 0 for begin, end in wire.spans(journal)[1:-1])

    wait_for(is_closed, "closed fragment")
