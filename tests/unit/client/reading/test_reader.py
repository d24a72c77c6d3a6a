"""Tests readers of one call and retrying readers: ends, seeks, cancels, restarts and protocol violations."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gazette_spark.client import Client, Reader, RetryReader
from gazette_spark.errors import (
    AuthError,
    BrokerError,
    ClosedError,
    GazetteError,
    NotJournalBrokerError,
    OffsetJumpError,
    ProtocolError,
    SeekRequiresNewReaderError,
    SuspendedError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.testing.stub_broker import Act, Fail, Hang, StubBroker, chunk, metadata, not_yet

JOURNAL = "a/journal"
CONTENT = bytes(range(256)) * 40
HEAD = len(CONTENT)
PIECE = 1_000


def meta(offset: int, end: int = HEAD, *, begin: int = 0, write_head: int = HEAD) -> pb.ReadResponse:
    return metadata(JOURNAL, begin, end, offset=offset, write_head=write_head)


def serve(request: pb.ReadRequest) -> list[Act]:
    """Answer as a broker that sends CONTENT in small chunks."""
    offset = max(request.offset, 0)
    if offset >= HEAD:
        return [not_yet(offset, HEAD)]
    chunks = [chunk(at, CONTENT[at : at + PIECE]) for at in range(offset, HEAD, PIECE)]
    return [meta(offset), *chunks, not_yet(HEAD)]


def drain(reader: Reader) -> tuple[bytes, GazetteError | None]:
    got = b""
    try:
        while part := reader.read(700):
            got += part
    except GazetteError as error:
        return got, error
    return got, None


@pytest.mark.parametrize(
    ("acts", "end_offset", "expected"),
    [
        pytest.param([meta(0), chunk(0, CONTENT[:50])], 0, 50, id="the broker ends the stream"),
        pytest.param([meta(0), chunk(0, CONTENT[:50]), Hang()], 50, 50, id="at the end of the range"),
        pytest.param([meta(0), chunk(0, CONTENT[:50]), Hang()], 20, 20, id="inside a chunk"),
        pytest.param([meta(0)], 0, 0, id="metadata only"),
        pytest.param([], 0, 0, id="nothing at all"),
    ],
)
def test_what_ends_a_reader_quietly(
    stub: StubBroker, client: Client, acts: list[Act], end_offset: int, expected: int
) -> None:
    stub.script("Read", acts)
    with client.reader(JOURNAL, end_offset=end_offset) as reader:
        assert reader.read() == CONTENT[:expected]
        assert reader.read() == b""
        assert list(reader) == []
        assert reader.offset == expected


def test_an_empty_range_asks_for_nothing(stub: StubBroker, client: Client) -> None:
    """A broker might block for ever on an empty range."""
    assert client.reader(JOURNAL, offset=7, end_offset=7).read() == b""
    assert client.read(JOURNAL, offset=7, end_offset=7).read() == b""
    assert list(client.read(JOURNAL, offset=7, end_offset=7, block=True)) == []
    assert stub.requests("Read") == []


STATUSES: list[tuple[int, type[GazetteError]]] = [
    (pb.SUSPENDED, SuspendedError),
    (pb.NOT_JOURNAL_BROKER, NotJournalBrokerError),
]


@pytest.mark.parametrize(("status", "error"), STATUSES)
def test_a_status_has_no_offset_of_its_own(
    stub: StubBroker, client: Client, status: int, error: type[GazetteError]
) -> None:
    """The offset 0 in the message must not count as a step back."""
    stub.script("Read", [pb.ReadResponse(status=status)])  # type: ignore[arg-type]  # The number of a status.
    with client.reader(JOURNAL, offset=100) as reader, pytest.raises(error):
        reader.read()


def test_a_jump_is_raised_once_and_the_reader_goes_on(stub: StubBroker, client: Client) -> None:
    stub.script("Read", [meta(100), chunk(100, CONTENT[100:200])])
    with client.reader(JOURNAL, offset=10) as reader:
        with pytest.raises(OffsetJumpError) as caught:
            reader.read(5)
        assert (caught.value.requested, caught.value.offset) == (10, 100)
        assert reader.offset == 100
        assert reader.read() == CONTENT[100:200]
        assert reader.jumps == [(10, 100)]


def test_the_write_head_is_told_by_the_first_metadata(stub: StubBroker, client: Client) -> None:
    stub.script("Read", [meta(90, write_head=HEAD), chunk(90, CONTENT[90:95])])
    with client.reader(JOURNAL, offset=-1, block=True) as reader:
        assert reader.offset == -1
        assert reader.read(5) == CONTENT[90:95]
        assert reader.jumps == []


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_reader_that_was_ended(stub: StubBroker, client: Client, end: str) -> None:
    stub.script("Read", serve)
    for begin in (0, 10):
        reader = client.reader(JOURNAL)
        assert reader.read(begin) == CONTENT[:begin]
        rest = reader.offset
        for _ in range(2):
            getattr(reader, end)()
        assert reader.offset == rest
        with pytest.raises(ClosedError, match=JOURNAL):
            reader.read(2 * PIECE)
        reader.close()


def test_seeking_in_a_stream_needs_a_new_reader(stub: StubBroker, client: Client) -> None:
    """A stream can only skip the rest of the current chunk."""
    stub.script("Read", serve)
    with client.reader(JOURNAL) as reader:
        assert reader.read(1) == CONTENT[:1]
        assert reader.seek(PIECE - 1) == PIECE - 1
        with pytest.raises(SeekRequiresNewReaderError, match=JOURNAL):
            reader.seek(PIECE + 1)
        assert reader.read(2) == CONTENT[PIECE - 1 : PIECE + 1]


def stored(root: Path) -> Fragment:
    digest = hashlib.sha1(CONTENT, usedforsecurity=False).digest()
    fragment = Fragment(JOURNAL, 0, HEAD, digest, pb.GZIP, "file:///", 1_700_000_000)
    path = root / fragment.content_path
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(CONTENT))
    return fragment


def points_at(fragment: Fragment, offset: int) -> list[Act]:
    """Answer as a broker that has the fragment only in its store."""
    if offset >= fragment.end:
        return [not_yet(offset, fragment.end)]
    url = f"file:///{fragment.content_path}"
    return [
        pb.ReadResponse(offset=offset, write_head=fragment.end, fragment=fragment.to_pb(), fragment_url=url)
    ]


def test_a_jump_past_the_end_opens_no_fragment(stub: StubBroker, tmp_path: Path) -> None:
    fragment = stored(tmp_path)
    answer = points_at(fragment, 500)
    answer[0].fragment_url = "file:///never/opened"  # type: ignore[union-attr]  # The answers are responses here.
    stub.script("Read", answer)
    with Client(stub.endpoint, fragment_root=str(tmp_path)) as client:
        reader = client.reader(JOURNAL, end_offset=400, do_not_proxy=True)
        with pytest.raises(OffsetJumpError):
            reader.read()
        assert reader.read() == b""


def test_all_or_an_error(stub: StubBroker, client: Client) -> None:
    """A read to the end must not return a part; a sized read still returns it."""
    stub.script("Read", [meta(0), chunk(0, CONTENT[:30]), Fail()])
    with client.reader(JOURNAL) as reader:
        with pytest.raises(UnavailableError):
            reader.read()
        assert (reader.offset, reader.read(100)) == (0, CONTENT[:30])
        with pytest.raises(UnavailableError):
            reader.read(100)


def test_a_seek_past_the_end_of_the_range(stub: StubBroker, client: Client) -> None:
    stub.script("Read", serve)
    reader = client.read(JOURNAL, end_offset=100)
    reader.seek(200)
    assert reader.read() == b""
    reader.seek(90)
    assert reader.read() == CONTENT[90:100]


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_reading_that_is_ended_from_another_thread(stub: StubBroker, client: Client, how: str) -> None:
    """A short result would look like the end."""
    waiting = threading.Event()

    def tail(request: pb.ReadRequest) -> Iterator[Act]:
        yield meta(request.offset)
        yield chunk(0, CONTENT[:5])
        waiting.set()
        yield Hang()

    stub.script("Read", tail)
    reader = client.read(JOURNAL, block=True)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            reader.read(10)
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert waiting.wait(10)
    for _ in range(2):
        getattr(reader, how)()
    thread.join(10)
    assert len(raised) == 1
    assert reader.offset == 0, "what the read had is not lost"
    reader.close()


def test_cancel_before_the_first_read_and_restart(stub: StubBroker, client: Client) -> None:
    stub.script("Read", serve)
    reader = client.read(JOURNAL)
    reader.cancel()
    for _ in range(2):
        with pytest.raises(ClosedError, match="restart"):
            reader.read(1)
        with pytest.raises(ClosedError):
            next(reader)
    reader.restart(pb.ReadRequest(journal=JOURNAL, offset=100, end_offset=200))
    assert reader.read() == CONTENT[100:200]
    assert (reader.journal, reader.request.end_offset) == (JOURNAL, 200)


def test_restart_without_cancel(stub: StubBroker, client: Client) -> None:
    stub.script("Read", [meta(100), chunk(100, CONTENT[100:200]), Hang()], serve)
    reader: RetryReader = client.read(JOURNAL)
    with pytest.raises(OffsetJumpError):
        reader.read(1)
    assert reader.read(10) == CONTENT[100:110]
    reader.restart(pb.ReadRequest(journal=JOURNAL, offset=3))
    assert reader.jumps == []
    assert reader.read() == CONTENT[3:]
    reader.close()
    with pytest.raises(ClosedError):
        reader.restart(pb.ReadRequest(journal=JOURNAL))
    with pytest.raises(ClosedError):
        reader.read()
    assert list(reader) == []


LIES: dict[str, list[Act]] = {
    "a chunk without metadata": [chunk(0, b"LIE")],
    "a chunk again": [meta(0), chunk(0, CONTENT[:9]), chunk(0, b"LIE")],
    "an offset that goes back": [meta(0), chunk(0, CONTENT[:9]), meta(3), chunk(3, b"LIE")],
}
"""Invalid responses before and after the first bytes; ``test_read`` covers them all."""


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("retrying", [False, True], ids=["one call", "retrying"])
def test_a_broker_that_lies(stub: StubBroker, client: Client, name: str, retrying: bool) -> None:
    stub.script("Read", LIES[name])
    reader = client.read(JOURNAL) if retrying else client.reader(JOURNAL)
    got: list[bytes] = []
    with pytest.raises(ProtocolError):
        note(reader, got)
    assert b"".join(got) in (b"", CONTENT[:9])
    assert reader.jumps == []
    assert reader.offset == len(b"".join(got))
    assert len(stub.requests("Read")) == 1


def note(reader: Reader | RetryReader, got: list[bytes]) -> None:
    for each in reader:
        got += [each.content]


def test_a_message_that_is_too_large(stub: StubBroker) -> None:
    size = (16 << 20) + 1
    stub.script("Read", [metadata(JOURNAL, 0, size), chunk(0, bytes(size))])
    # On a busy machine so many bytes may take longer than the idle timeout of `client`.
    patient = Client(stub.endpoint)
    with patient, pytest.raises(BrokerError, match=r"16777\d\d\d") as caught:
        patient.read(JOURNAL).read()
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert len(stub.requests("Read")) == 1


def test_a_single_call_fails_as_it_failed(stub: StubBroker, client: Client) -> None:
    for code, error in (
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.UNAUTHENTICATED, AuthError),
        (grpc.StatusCode.UNKNOWN, BrokerError),
    ):
        stub.script("Read", [meta(0), chunk(0, CONTENT[:3]), Fail(code, "no")])
        reader = client.reader(JOURNAL)
        got, raised = drain(reader)
        assert (got, type(raised)) == (CONTENT[:3], error)
        assert reader.offset == 3
    assert len(stub.requests("Read")) == 3


def test_an_interrupted_single_call_is_not_at_its_end(stub: StubBroker) -> None:
    """A caller that ignores the interruption must not take it for the end."""

    def token() -> str:
        raise KeyboardInterrupt

    stub.script("Read", serve)
    with Client(stub.endpoint, token=token) as client, client.reader(JOURNAL) as reader:
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        with pytest.raises(ClosedError, match=r"interrupted by KeyboardInterrupt"):
            reader.read()
