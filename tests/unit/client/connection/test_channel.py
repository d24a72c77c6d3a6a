"""Tests how endpoints are parsed, gRPC codes are translated, and channels are reused and closed."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # grpc's stubs leave it out.

from gazette_spark.client import Client, WatchedList
from gazette_spark.client._transport.channel import Connection, Endpoint, rpc_error, settle
from gazette_spark.client._transport.credentials import Credentials
from gazette_spark.errors import (
    AuthError,
    BrokerError,
    ClosedError,
    FlowControlError,
    OptionError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.testing.stub_broker import Act, Fail, Hang, StubBroker, chunk, metadata
from tests.unit.client.listings import pages
from tests.waiting import wait_until

COMMIT = pb.Fragment(journal="a/journal", end=1, sum=pb.SHA1Sum(), compression_codec=pb.NONE)


@pytest.mark.parametrize(
    ("text", "target", "secure"),
    [
        ("http://localhost:8080", "localhost:8080", False),
        ("http://localhost:8080/", "localhost:8080", False),
        ("http://broker", "broker:80", False),
        ("https://broker", "broker:443", True),
        ("https://broker.example:9", "broker.example:9", True),
        ("http://[::1]:8080", "[::1]:8080", False),
        ("unix://localhost/var/run/gazette.sock", "unix:///var/run/gazette.sock", False),
    ],
)
def test_endpoints(text: str, target: str, secure: bool) -> None:
    endpoint = Endpoint.parse(text)
    assert (endpoint.text, endpoint.target, endpoint.secure) == (text, target, secure)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:8080",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://host:1/path",
        "http://host:1?x=1",
        "http://user:secret@host:1",
        "ftp://host:1",
        "http://ho st:1",
        "http://host:1\n",
        "unix://host",
    ],
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(OptionError, match="http://localhost:8080") as caught:
        Endpoint.parse(text)
    assert "secret" not in str(caught.value)


class Failure(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str = "the reason") -> None:
        super().__init__()
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, AuthError),
        (grpc.StatusCode.PERMISSION_DENIED, AuthError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.CANCELLED, UnavailableError),
        (grpc.StatusCode.UNKNOWN, BrokerError),
        (grpc.StatusCode.INTERNAL, BrokerError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, BrokerError),
    ],
)
def test_codes(code: grpc.StatusCode, error: type[Exception]) -> None:
    translated = rpc_error("http://b:1", Failure(code), str)
    assert type(translated) is error
    assert "the reason" in str(translated)
    assert "http://b:1" in str(translated)


def test_an_append_that_was_too_slow() -> None:
    text = "append stream: client stream didn't sustain the minimum append data rate"
    translated = rpc_error("http://b:1", Failure(grpc.StatusCode.UNKNOWN, text), str)
    assert type(translated) is FlowControlError
    assert text in str(translated)
    assert "AppendService" in str(translated)


def test_a_text_that_holds_a_token() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJjYXAiOjh9.c2lnbmF0dXJl"
    connection = Connection("http://b:1", connect_timeout_s=1, credentials=Credentials("opaque-token"))
    text = f"token {token} of Bearer opaque-token is malformed"
    for code in grpc.StatusCode:
        shown = str(connection.rpc_error(Failure(code, text)))
        assert token not in shown
        assert "opaque-token" not in shown


def test_a_connection_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process gets an error, because gRPC would hang."""
    connection = Connection("http://127.0.0.1:1", connect_timeout_s=1)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ClosedError, match="make one in each process"):
        connection.stub(pb_grpc.JournalStub)
    with pytest.raises(ClosedError, match="make one in each process"):
        connection.lease()


def test_channels_of_closed_readers_are_used_again() -> None:
    connection = Connection("http://127.0.0.1:1", connect_timeout_s=1, credentials=Credentials("SECRET"))
    first = connection.lease()
    connection.give_back(first)
    assert connection.lease() is first
    leased = [connection.lease() for _ in range(8)]
    for channel in [first, *leased]:
        connection.give_back(channel)
    connection.close()
    connection.give_back(first)
    assert "SECRET" not in repr(connection)


def drop(client: Client) -> None:
    """Leave an open reader in a reference cycle, as a traceback would."""
    reader = client.read("a/journal")
    assert next(reader).content == b"x"
    reader.jumps.append(reader)  # type: ignore[arg-type] # A cycle, for the collector.


@pytest.mark.timeout(30)
@pytest.mark.parametrize("collects_when", ["between two readers", "a reader opens its channel"])
def test_readers_that_are_dropped(monkeypatch: pytest.MonkeyPatch, collects_when: str) -> None:
    """The garbage collector may end a reader at any time, even while the channel lock is held."""
    script: list[Act] = [metadata("a/journal", 0, 2), chunk(0, b"x"), Hang()]
    with StubBroker() as broker, Client(broker.endpoint, timeout_s=10) as client:
        broker.script("Read", script)
        gc.disable()
        try:
            drop(client)
            if collects_when == "between two readers":
                gc.collect()
            else:
                connection = client.default_connection
                make = connection._new_channel
                # At this point the lock is held, and any allocation may start the collector.
                monkeypatch.setattr(connection, "_new_channel", lambda: (gc.collect(), make())[1])
            for _ in range(3):
                with client.read("a/journal") as reader:
                    assert next(reader).content == b"x"
        finally:
            gc.enable()


def test_streams_that_have_ended_leave_no_channel() -> None:
    """A stream that fails before it starts, for want of a token, opens no channel."""
    fails = False

    def token() -> str:
        if fails:
            raise ZeroDivisionError
        return "token"

    with StubBroker() as broker, Client(broker.endpoint, timeout_s=10, token=token) as client:
        broker.script("List", [*pages(5, ["a/journal"]), Hang()])
        for _ in range(2):
            with WatchedList(client):
                assert client.default_connection.is_open
            assert not client.default_connection.is_open
        fails = True
        with pytest.raises(ZeroDivisionError):
            client.read("a/journal").read()
        assert not client.default_connection.is_open


@pytest.mark.timeout(30)
@pytest.mark.parametrize("begins", ["an append", "another call"])
def test_a_call_without_a_thread_leaves_the_channel_to_later_calls(
    monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    """A machine may start no more threads for a while. gRPC alone would never end later calls."""
    with StubBroker() as broker, Client(broker.endpoint, timeout_s=10) as client:
        broker.script("Append", [pb.AppendResponse(commit=COMMIT, registers=pb.LabelSet())])
        broker.script("ListFragments", [pb.FragmentsResponse()])

        def call() -> None:
            if begins == "an append":
                client.append("a/journal", b"x")
                return
            connection = client.default_connection
            with connection.errors():
                connection.stub(pb_grpc.JournalStub).ListFragments.future(
                    pb.FragmentsRequest(journal="a/journal"), timeout=10
                ).result()

        def refuse(_thread: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as machine:
            machine.setattr(cygrpc.ForkManagedThread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                call()
        call()


def test_an_append_without_a_thread_for_its_messages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, it would block its journal until its deadline."""
    served: list[bool] = []
    starts, serve, start = itertools.count(), StubBroker.Append, cygrpc.ForkManagedThread.start

    def counted(*call: Any) -> pb.AppendResponse:
        served.append(False)
        try:
            return serve(*call)
        finally:
            served[served.index(False)] = True

    def start_one(thread: Any) -> None:
        if next(starts):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(StubBroker, "Append", counted)
    with StubBroker() as broker, Client(broker.endpoint, timeout_s=60) as client:
        broker.script("Append", [pb.AppendResponse(commit=COMMIT, registers=pb.LabelSet())])
        with monkeypatch.context() as machine:
            machine.setattr(cygrpc.ForkManagedThread, "start", start_one)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                client.append("a/journal", b"x")
        client.append("a/journal", b"x")
        wait_until("no append is open", lambda: all(served), 20)


def test_grpc_has_what_settle_asks_for() -> None:
    """These names are private to gRPC: a release without them must fail here, not for a user."""
    with StubBroker() as stub:
        stub.script("List", [Fail()])
        connection = Connection(stub.endpoint, connect_timeout_s=5)
        call: Any = connection.stub(pb_grpc.JournalStub).List(pb.ListRequest(), timeout=20)
        assert call._state.due
        settle(call)
        assert not call._state.due
        connection.close()


def test_settle_without_grpcs_private_names() -> None:
    class Call:
        cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    call = Call()
    settle(call)  # type: ignore[arg-type]  # As much of a call as is needed.
    assert call.cancelled
