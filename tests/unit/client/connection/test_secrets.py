"""Tests that the client never shows, logs or pickles a token or key, even if the broker repeats it."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from gazette_spark.client import AppendService, Client, WatchedList
from gazette_spark.client._read.heads import MANY
from gazette_spark.client._transport.credentials import Credentials
from gazette_spark.errors import GazetteError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.protocol.tokens import KeySet
from gazette_spark.testing.stub_broker import Fail, StubBroker

JOURNAL = "a/journal"
CANARY = "canary-5f2c91"
KEY = "Y2FuYXJ5LTVmMmM5MQ=="
"""The canary as a base64 key."""
HOLDERS = {
    "a token": lambda endpoint: Client(endpoint, token=CANARY, timeout_s=1),
    "keys": lambda endpoint: Client(endpoint, auth_keys=KEY, timeout_s=1),
}
CALLS: dict[str, Callable[[Client], object]] = {
    "list": lambda client: client.list_journals(),
    "watch": lambda client: WatchedList(client, "").start(),
    "apply": lambda client: client.apply([pb.ApplyRequest.Change(upsert=journal_spec(JOURNAL))]),
    "append": lambda client: client.append(JOURNAL, b"x"),
    "read": lambda client: client.read(JOURNAL).read(),
    "one read": lambda client: client.reader(JOURNAL).read(),
    "head": lambda client: client.write_head(JOURNAL),
    "many heads": lambda client: client.write_heads([f"{JOURNAL}/{number}" for number in range(MANY)]),
    "fragments": lambda client: client.list_fragments(JOURNAL),
    "store": lambda client: client.store_health("file:///"),
}


class Parrot(grpc.ServerInterceptor):  # type: ignore[type-arg]  # The class itself takes no arguments.
    """A server that fails every call with a text that repeats the caller's token."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def intercept_service(
        self, continuation: object, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        header = dict(details.invocation_metadata)["authorization"]
        assert isinstance(header, str)

        def fail(_request: object, context: grpc.ServicerContext) -> None:
            context.abort(self._code, f"cannot verify {header!r} nor {header.split()[1]}")

        return grpc.stream_stream_rpc_method_handler(fail)


@pytest.fixture(
    params=[grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED],
    ids=["unauthenticated", "unknown", "unimplemented"],
)
def parrot(request: pytest.FixtureRequest) -> Iterator[str]:
    """The endpoint of a broker that repeats tokens, with several gRPC codes."""
    server = grpc.server(ThreadPoolExecutor(4), interceptors=[Parrot(request.param)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(None).wait(10)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_broker_that_repeats_the_token(
    parrot: str, holder: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with HOLDERS[holder](parrot) as client:
        with pytest.raises(GazetteError, match="cannot verify") as caught:
            CALLS[call](client)
        said = [
            *traceback.format_exception(caught.value),
            repr(vars(caught.value)),
            repr(pickle.dumps(caught.value)),
            caplog.text,
        ]
        for text in said:
            assert CANARY not in text
            assert KEY not in text
            assert "eyJ" not in text


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_holds_a_secret_shows_none(holder: str) -> None:
    with StubBroker() as stub, HOLDERS[holder](stub.endpoint) as client:
        stub.script("Read", [Fail()])
        with AppendService(client) as service:
            objects = [
                client,
                client.default_connection,
                client._dialer,
                client.read(JOURNAL),
                client.reader(JOURNAL),
                client.appender(JOURNAL),
                WatchedList(client, ""),
                service,
            ]
            for each in objects:
                for text in (repr(each), str(each)):
                    assert CANARY not in text
                    assert KEY not in text
                # Python 3.14 raises PicklingError for local functions.
                with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
                    pickle.dumps(each)


def test_credentials_are_not_pickled() -> None:
    for each in (Credentials(CANARY), Credentials(auth_keys=KeySet.parse(KEY))):
        assert CANARY not in repr(each)
        with pytest.raises(TypeError, match="contain secrets"):
            pickle.dumps(each)
