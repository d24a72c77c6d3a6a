"""Tests that a reader yields each byte once and in order, whatever the broker does."""

from __future__ import annotations

import gzip
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import grpc
import pytest

from gazette_spark.client import Client
from gazette_spark.errors import (
    AuthError,
    BrokerError,
    CorruptFragmentError,
    GazetteError,
    JournalNotFoundError,
    OffsetJumpError,
    OffsetNotYetAvailableError,
    ProtocolError,
    SuspendedError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.testing.stub_broker import Act, Fail, Hang, StubBroker, chunk, metadata, not_yet
from tests.rig.interrupts import interrupted

JOURNAL = "a/journal"
CONTENT = bytes(range(256)) * 40
HEAD = len(CONTENT)


def meta(offset: int, end: int = HEAD, begin: int = 0, url: str = "") -> pb.ReadResponse:
    return metadata(JOURNAL, begin, end, offset=offset, write_head=HEAD, url=url)


def serve(request: pb.ReadRequest) -> list[Act]:
    """Answer as a broker that follows the protocol and has CONTENT."""
    if request.offset in (-1, HEAD) or request.metadata_only:
        return [not_yet(HEAD)]
    return [meta(request.offset), chunk(request.offset, CONTENT[request.offset :]), not_yet(HEAD)]


def elapsed(started: float) -> float:
    return time.monotonic() - started


@pytest.mark.parametrize(("offset", "end"), [(0, HEAD), (3, 4), (100, 5_000), (HEAD - 1, HEAD)])
def test_a_range_ends_exactly(stub: StubBroker, client: Client, offset: int, end: int) -> None:
    """A broker may send more than the requested range."""
    stub.script("Read", serve)
    with client.read(JOURNAL, offset=offset, end_offset=end) as reader:
        assert reader.read() == CONTENT[offset:end]
        assert reader.offset == end
    assert stub.requests("Read")[0].end_offset == end


CUTS: dict[str, list[Act]] = {
    "before anything": [],
    "after metadata": [meta(0)],
    "after some content": [meta(0), chunk(0, CONTENT[:100])],
    "by a broken connection": [Fail()],
    "by a broken connection after content": [meta(0), chunk(0, CONTENT[:7]), Fail()],
    "by a proxy that is cancelled": [meta(0), Fail(grpc.StatusCode.CANCELLED)],
    "by a stale process": [Fail(grpc.StatusCode.UNKNOWN, "ProcessId doesn't match")],
    "by an internal failure": [Fail(grpc.StatusCode.INTERNAL, "RST_STREAM")],
    "by a lack of brokers": [pb.ReadResponse(status=pb.INSUFFICIENT_JOURNAL_BROKERS)],
    "by an unknown journal": [pb.ReadResponse(status=pb.JOURNAL_NOT_FOUND)],
    "by silence": [Hang()],
    "by silence after content": [meta(0), chunk(0, CONTENT[:9]), Hang()],
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("end", [0, HEAD], ids=["to the head", "to an end"])
def test_streams_that_are_cut(stub: StubBroker, client: Client, name: str, end: int) -> None:
    stub.script("Read", CUTS[name], serve)
    with client.read(JOURNAL, end_offset=end) as reader:
        assert reader.read() == CONTENT
        assert reader.jumps == []


def test_content_that_comes_later_is_waited_for(stub: StubBroker, client: Client) -> None:
    stub.script("Read", [not_yet(0)], [not_yet(0)], serve)
    assert client.read(JOURNAL, end_offset=HEAD).read() == CONTENT


FAILURES: dict[str, tuple[Act, type[GazetteError]]] = {
    "refused token": (Fail(grpc.StatusCode.UNAUTHENTICATED, "no"), AuthError),
    "denied": (Fail(grpc.StatusCode.PERMISSION_DENIED, "no"), AuthError),
    "message too large": (Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "17 MiB"), BrokerError),
    "no such service": (Fail(grpc.StatusCode.UNIMPLEMENTED, "no"), BrokerError),
    "suspended": (pb.ReadResponse(status=pb.SUSPENDED), SuspendedError),
    "a lie": (chunk(0, b"x"), ProtocolError),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_does_not_heal_fails_at_once(stub: StubBroker, client: Client, name: str) -> None:
    act, error = FAILURES[name]
    stub.script("Read", [act])
    with client.read(JOURNAL, end_offset=5) as reader, pytest.raises(error):
        reader.read()
    assert len(stub.requests("Read")) == 1


def test_a_journal_that_does_not_exist(stub: StubBroker, client: Client) -> None:
    stub.script("Read", [pb.ReadResponse(status=pb.JOURNAL_NOT_FOUND)])
    with pytest.raises(JournalNotFoundError, match=JOURNAL):
        client.read(JOURNAL).read()
    assert len(stub.requests("Read")) == 5


HANGS: dict[str, list[Act]] = {
    "hangs": [Hang()],
    "hangs after metadata": [meta(0), Hang()],
    "always ends": [],
    "always ends after metadata": [meta(0)],
    "always fails": [Fail(text="broken again")],
}


@pytest.mark.parametrize("name", HANGS)
@pytest.mark.parametrize("end", [0, 10], ids=["to the head", "to an end"])
def test_a_broker_that_brings_nothing(stub: StubBroker, hasty: Client, name: str, end: int) -> None:
    stub.script("Read", HANGS[name])
    started = time.monotonic()
    with hasty.read(JOURNAL, end_offset=end) as reader, pytest.raises(UnavailableError, match=stub.endpoint):
        reader.read()
    assert elapsed(started) < 10


def test_a_range_that_never_fills(stub: StubBroker, hasty: Client) -> None:
    stub.script("Read", [not_yet(3)])
    with pytest.raises(OffsetNotYetAvailableError, match=JOURNAL) as caught:
        hasty.read(JOURNAL, offset=3, end_offset=5).read()
    assert (caught.value.offset, caught.value.write_head) == (3, 3)


@pytest.mark.parametrize(("offset", "write_head"), [(50, 10), (10, 50)], ids=["past the head", "in a hole"])
def test_nothing_at_the_offset_is_no_end(
    stub: StubBroker, client: Client, offset: int, write_head: int
) -> None:
    """A reader ends without an error only at the write head."""
    stub.script("Read", [not_yet(offset, write_head)])
    with pytest.raises(OffsetNotYetAvailableError):
        client.read(JOURNAL, offset=offset).read()


def test_after_an_error_the_reader_stands_where_it_stood(stub: StubBroker, client: Client) -> None:
    """The reader can be used after a failure, and must not look finished."""
    cut: list[Act] = [meta(0), chunk(0, CONTENT[:100]), Fail(grpc.StatusCode.UNAUTHENTICATED, "expired")]
    stub.script("Read", cut, [Fail(grpc.StatusCode.UNAUTHENTICATED, "expired")], serve)
    reader = client.read(JOURNAL)
    assert next(reader).content == CONTENT[:100]
    for _ in range(2):
        with pytest.raises(AuthError):
            next(reader)
    assert reader.offset == 100
    assert reader.read() == CONTENT[100:]


def jumping(request: pb.ReadRequest) -> list[Act]:
    """Answer as a broker that has lost ``[100, 200)``."""
    if request.offset < 100:
        return [meta(request.offset, 100), chunk(request.offset, CONTENT[request.offset : 100])]
    offset = max(request.offset, 200)
    return [meta(offset, begin=200), chunk(offset, CONTENT[offset:]), not_yet(HEAD)]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_reader_goes_on(stub: StubBroker, interruption: type[BaseException]) -> None:
    """Neither Ctrl-C nor an error in the token function ends the reader."""
    streams = iter([False, True, False])

    def token() -> str:
        if next(streams):
            raise interruption
        return "token"

    stub.script("Read", [meta(0), chunk(0, CONTENT[:100])], serve)
    with Client(stub.endpoint, token=token) as client, client.read(JOURNAL) as reader:
        assert len(next(reader).content) == 100
        with pytest.raises(interruption):
            next(reader)
        assert reader.offset == 100
        assert reader.read() == CONTENT[100:]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_read_loses_no_bytes(stub: StubBroker, interruption: type[BaseException]) -> None:
    streams = iter([False, True, False])

    def token() -> str:
        if next(streams):
            raise interruption
        return "token"

    stub.script("Read", [meta(0), chunk(0, CONTENT[:100])], serve)
    with Client(stub.endpoint, token=token) as client, client.read(JOURNAL) as reader:
        with pytest.raises(interruption):
            reader.read()
        assert reader.offset == 0
        assert reader.read() == CONTENT


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # In the end of a generator.
def test_an_interrupted_reader_is_not_in_use(stub: StubBroker, client: Client) -> None:
    """Otherwise no later read of the same thread would succeed."""
    stub.script("Read", serve)
    for moment in count(1):
        with client.read(JOURNAL) as reader:
            if not interrupted(reader.read, moment):
                break
            reader.read()  # It raises no error.
    assert moment > 20


def test_a_jump_shows_in_the_offsets(stub: StubBroker, client: Client) -> None:
    stub.script("Read", jumping)
    reader = client.read(JOURNAL)
    assert [(each.offset, each.end) for each in reader] == [(0, 100), (200, HEAD)]
    assert reader.jumps == [(100, 200)]


def test_read_raises_once_for_a_jump(stub: StubBroker, client: Client) -> None:
    stub.script("Read", jumping)
    reader = client.read(JOURNAL)
    assert reader.read(150) == CONTENT[:100]
    assert reader.offset == 200
    with pytest.raises(OffsetJumpError) as caught:
        reader.read(150)
    assert (caught.value.requested, caught.value.offset) == (100, 200)
    assert reader.read(10) == CONTENT[200:210]
    assert reader.offset == 210
    assert reader.read() == CONTENT[210:]


def test_a_jump_past_the_end_of_a_range(stub: StubBroker, client: Client) -> None:
    stub.script("Read", jumping)
    reader = client.read(JOURNAL, offset=100, end_offset=150)
    assert list(reader) == []
    assert (reader.offset, reader.jumps) == (150, [(100, 200)])
    with pytest.raises(OffsetJumpError):
        reader.read()
    assert reader.read() == b""


@pytest.mark.parametrize("size", [1, 7, 1000, HEAD, HEAD + 1])
def test_read_in_pieces(stub: StubBroker, client: Client, size: int) -> None:
    stub.script("Read", serve)
    reader = client.read(JOURNAL, end_offset=2_000)
    parts = []
    while part := reader.read(size):
        parts.append(part)
        assert reader.offset == sum(map(len, parts))
    assert b"".join(parts) == CONTENT[:2_000]
    assert all(len(part) == size for part in parts[:-1])
    assert reader.read(0) == b""


def test_iterating_goes_on_where_read_stopped(stub: StubBroker, client: Client) -> None:
    stub.script("Read", serve)
    reader = client.read(JOURNAL)
    assert reader.read(10) == CONTENT[:10]
    rest = next(reader)
    assert (rest.offset, rest.content) == (10, CONTENT[10:])


@pytest.mark.slow
def test_a_blocking_reader_waits_on_a_broker_that_answers(stub: StubBroker, hasty: Client) -> None:
    """A quiet journal is not a failure as long as the broker reports its head."""
    tails = 0

    def quiet(request: pb.ReadRequest) -> Iterator[Act]:
        nonlocal tails
        if request.metadata_only:
            yield not_yet(HEAD)
            return
        tails += 1
        if tails <= 4:
            yield Hang()
        yield meta(0)
        yield chunk(0, CONTENT)

    stub.script("Read", quiet)
    started = time.monotonic()
    with hasty.read(JOURNAL, block=True) as reader:
        assert next(reader).content == CONTENT
    assert elapsed(started) > 1.0


def test_a_blocking_reader_of_a_hung_broker_gives_up(stub: StubBroker, hasty: Client) -> None:
    stub.script("Read", [Hang()])
    started = time.monotonic()
    with pytest.raises(UnavailableError):
        next(hasty.read(JOURNAL, block=True))
    assert elapsed(started) < 10


def test_close_ends_a_waiting_reader(stub: StubBroker, client: Client) -> None:
    waiting = threading.Event()

    def tail(_: pb.ReadRequest) -> Iterator[Act]:
        waiting.set()
        yield Hang()

    stub.script("Read", tail)
    with Client(stub.endpoint) as patient:
        reader = patient.read(JOURNAL, block=True)
        got: list[object] = []
        thread = threading.Thread(target=lambda: got.append(list(reader)))
        thread.start()
        assert waiting.wait(5)
        reader.close()
        thread.join(5)
        assert not thread.is_alive()
        assert got == [[]]
        reader.close()
        assert next(reader, None) is None


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    started = time.monotonic()
    with Client(endpoint, connect_timeout_s=0.5) as client, pytest.raises(UnavailableError, match=endpoint):
        client.read(JOURNAL).read()
    assert elapsed(started) < 10


def test_a_listener_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        started = time.monotonic()
        with Client(endpoint, connect_timeout_s=0.5) as client, pytest.raises(UnavailableError):
            client.write_head(JOURNAL)
        assert elapsed(started) < 10


def stored(root: Path, codec: pb.CompressionCodec, data: bytes) -> Fragment:
    digest = hashlib.sha1(CONTENT, usedforsecurity=False).digest()
    fragment = Fragment(JOURNAL, 0, HEAD, digest, codec, "file:///", 1_700_000_000)
    path = root / fragment.content_path
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return fragment


def points_at(fragment: Fragment, url: str) -> pb.ReadResponse:
    return pb.ReadResponse(write_head=HEAD, fragment=fragment.to_pb(), fragment_url=url)


def brokers_answer(fragment: Fragment, url: str, request: pb.ReadRequest) -> list[Act]:
    """Answer as a broker that has the fragment only in its store."""
    if request.offset == HEAD:
        return [not_yet(HEAD)]
    answer = points_at(fragment, url)
    answer.offset = request.offset
    if request.do_not_proxy:
        return [answer]
    return [answer, chunk(request.offset, CONTENT[request.offset :])]


@pytest.mark.parametrize("offset", [0, 1234])
def test_a_stored_fragment_is_read_from_the_file_root(stub: StubBroker, tmp_path: Path, offset: int) -> None:
    fragment = stored(tmp_path, pb.GZIP, gzip.compress(CONTENT))
    url = f"file:///{fragment.content_path}"
    stub.script("Read", lambda request: brokers_answer(fragment, url, request))
    with Client(stub.endpoint, fragment_root=str(tmp_path)) as client:
        assert client.read(JOURNAL, offset=offset).read() == CONTENT[offset:]
        assert client.read(JOURNAL, offset=offset, end_offset=2_000).read() == CONTENT[offset:2_000]
    assert all(request.do_not_proxy for request in stub.requests("Read"))


@pytest.mark.parametrize("do_not_proxy", [False, True])
def test_without_a_root_files_come_through_the_broker(
    stub: StubBroker, client: Client, tmp_path: Path, do_not_proxy: bool
) -> None:
    """A client that cannot open the URL asks the broker to proxy."""
    fragment = stored(tmp_path, pb.GZIP, gzip.compress(CONTENT))
    url = f"file:///{fragment.content_path}"
    stub.script("Read", lambda request: brokers_answer(fragment, url, request))
    assert client.read(JOURNAL, do_not_proxy=do_not_proxy).read() == CONTENT


def test_a_file_that_is_gone_comes_through_the_broker(stub: StubBroker, tmp_path: Path) -> None:
    fragment = stored(tmp_path, pb.GZIP, gzip.compress(CONTENT))
    stub.script("Read", lambda request: brokers_answer(fragment, "file:///not/there", request))
    with Client(stub.endpoint, fragment_root=str(tmp_path)) as client:
        assert client.read(JOURNAL).read() == CONTENT


def test_a_corrupt_file_is_an_error(stub: StubBroker, tmp_path: Path) -> None:
    """The broker would send the same bytes, so it is not asked."""
    fragment = stored(tmp_path, pb.GZIP, gzip.compress(CONTENT[:-1] + b"?"))
    url = f"file:///{fragment.content_path}"
    stub.script("Read", lambda request: brokers_answer(fragment, url, request))
    with (
        Client(stub.endpoint, fragment_root=str(tmp_path)) as client,
        pytest.raises(CorruptFragmentError, match=fragment.content_name) as caught,
    ):
        client.read(JOURNAL).read()
    assert (caught.value.journal, caught.value.begin, caught.value.end) == (JOURNAL, 0, HEAD)
    assert len(stub.requests("Read")) == 1


def test_a_url_that_leaves_the_root_is_a_lie(stub: StubBroker, tmp_path: Path) -> None:
    fragment = stored(tmp_path, pb.NONE, CONTENT)
    stub.script("Read", [points_at(fragment, "file:///../../etc/passwd")])
    with (
        Client(stub.endpoint, fragment_root=str(tmp_path)) as client,
        pytest.raises(ProtocolError, match="FragmentUrl"),
    ):
        client.read(JOURNAL).read()


def test_a_broker_outside_the_journals_route_proxies(stub: StubBroker, tmp_path: Path) -> None:
    """The broker refuses a read without proxying, so the reader allows proxying."""

    def outside(request: pb.ReadRequest) -> list[Act]:
        if request.do_not_proxy:
            return [pb.ReadResponse(status=pb.NOT_JOURNAL_BROKER)]
        return serve(request)

    stub.script("Read", outside)
    with Client(stub.endpoint, fragment_root=str(tmp_path)) as client:
        assert client.read(JOURNAL).read() == CONTENT


def test_several_open_readers_do_not_starve_each_other(stub: StubBroker, client: Client) -> None:
    """Unread readers must not use up the flow-control window that others need."""
    big = bytes(1 << 20)

    def endless(request: pb.ReadRequest) -> Iterator[Act]:
        yield metadata(JOURNAL, 0, 1 << 30, offset=request.offset)
        for at in range(request.offset, 64 << 20, len(big)):
            yield chunk(at, big)

    stub.script("Read", endless)
    readers = [client.read(JOURNAL) for _ in range(6)]
    assert [len(next(reader).content) for reader in readers] == [len(big)] * 6
    assert len(readers[-1].read(32 << 20)) == 32 << 20
    for reader in readers:
        reader.close()
