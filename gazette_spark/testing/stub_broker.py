"""Provides a broker that follows a test's script: correct and wrong answers, failures, silence.

A script describes one call as a list of acts: a response message is sent, :class:`Fail` ends the call with a
gRPC status, and :class:`Hang` sends nothing more until the call or the stub ends. After the last act, the
stream ends cleanly. Each call uses one script; the last script is used again for all later calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self, TypeAlias, cast

import grpc
from google.protobuf.message import Message

from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.fragments import sum_to_pb

WORKERS = 32
"""Maximum number of concurrent calls, including hanging ones."""


@dataclass(frozen=True, slots=True)
class Fail:
    """End the call with a gRPC status."""

    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    text: str = "scripted failure"


@dataclass(frozen=True, slots=True)
class Hang:
    """Send nothing more until the call or the stub ends."""


_Request: TypeAlias = Message | list[pb.AppendRequest]
Act: TypeAlias = Message | Fail | Hang
Script: TypeAlias = Sequence[Act] | Callable[[Any], Sequence[Act] | Iterator[Act]]
"""Acts, or a function that returns them for a request; for Append, its argument is the list of all
messages."""


@dataclass(slots=True)
class _Rpc:
    scripts: list[Script] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)


class StubBroker(pb_grpc.JournalServicer):
    """Scripted Journal service on a port of the loopback interface. Use it as a context manager.

    Scripts may be set while it serves.
    """

    def __init__(self, credentials: grpc.ServerCredentials | None = None, *, port: int = 0) -> None:
        """Create a broker, which uses TLS if there are credentials. Port 0 is any free one."""
        self._lock = threading.Lock()
        self._rpcs: dict[str, _Rpc] = {}
        self._stopping = threading.Event()
        self._early: set[str] = set()
        # Do not allow reuse of ports: two stubs on one port would share the calls of a test.
        self._server = grpc.server(ThreadPoolExecutor(WORKERS), options=[("grpc.so_reuseport", 0)])
        pb_grpc.add_JournalServicer_to_server(self, self._server)
        address = f"127.0.0.1:{port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self.endpoint = f"http{'s' if credentials else ''}://127.0.0.1:{self.port}"
        """URL of the stub."""

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        self._server.stop(grace=None).wait(10)

    def script(self, rpc: str, *scripts: Script) -> None:
        """Set the scripts of the next calls of ``rpc``, in order. The last one is repeated."""
        with self._lock:
            self._rpcs.setdefault(rpc, _Rpc()).scripts = list(scripts)

    def answer_early(self, rpc: str = "Append") -> None:
        """Answer after the first message of a client's stream, not after the last."""
        self._early.add(rpc)

    def requests(self, rpc: str) -> list[Any]:
        """Return the requests of all calls so far; of Append, a list of messages per call."""
        with self._lock:
            return list(self._rpcs.setdefault(rpc, _Rpc()).requests)

    def Read(self, request: pb.ReadRequest, context: grpc.ServicerContext) -> Iterator[pb.ReadResponse]:  # noqa: N802
        """Play the next script."""
        return cast(Iterator[pb.ReadResponse], self._play("Read", request, context))

    def List(self, request: pb.ListRequest, context: grpc.ServicerContext) -> Iterator[pb.ListResponse]:  # noqa: N802
        """Play the next script."""
        return cast(Iterator[pb.ListResponse], self._play("List", request, context))

    def Apply(self, request: pb.ApplyRequest, context: grpc.ServicerContext) -> pb.ApplyResponse:  # noqa: N802
        """Play the next script up to its first message."""
        return cast(pb.ApplyResponse, self._one("Apply", request, context))

    def ListFragments(  # noqa: N802
        self, request: pb.FragmentsRequest, context: grpc.ServicerContext
    ) -> pb.FragmentsResponse:
        """Play the next script up to its first message."""
        return cast(pb.FragmentsResponse, self._one("ListFragments", request, context))

    def FragmentStoreHealth(  # noqa: N802
        self, request: pb.FragmentStoreHealthRequest, context: grpc.ServicerContext
    ) -> pb.FragmentStoreHealthResponse:
        """Play the next script up to its first message."""
        return cast(pb.FragmentStoreHealthResponse, self._one("FragmentStoreHealth", request, context))

    def Append(  # noqa: N802
        self, request_iterator: Iterator[pb.AppendRequest], context: grpc.ServicerContext
    ) -> pb.AppendResponse:
        """Read the messages, then play the next script up to its first message."""
        if "Append" in self._early:
            messages = [next(request_iterator)]
        else:
            messages = list(request_iterator)
        return cast(pb.AppendResponse, self._one("Append", messages, context))

    def _next(self, rpc: str, request: _Request) -> Iterator[Act]:
        with self._lock:
            state = self._rpcs.setdefault(rpc, _Rpc())
            state.requests.append(request)
            if not state.scripts:
                return iter([Fail(grpc.StatusCode.UNIMPLEMENTED, f"no script for {rpc}")])
            # The last script is kept, so that a client's retries are also answered.
            script = state.scripts.pop(0) if len(state.scripts) > 1 else state.scripts[0]
        return iter(script(request) if callable(script) else script)

    def _play(self, rpc: str, request: _Request, context: grpc.ServicerContext) -> Iterator[Message]:
        for act in self._next(rpc, request):
            match act:
                case Fail():
                    self._abort(context, act)
                case Hang():
                    ended = threading.Event()
                    # This is False if the call has already ended. Then there is no client to wait for.
                    is_open = context.add_callback(ended.set)
                    while is_open and not (ended.wait(0.05) or self._stopping.is_set()):
                        continue
                    return
                case _:
                    yield act

    def _one(self, rpc: str, request: _Request, context: grpc.ServicerContext) -> Message:
        response = next(self._play(rpc, request, context), None)
        if response is None:
            self._abort(context, Fail(grpc.StatusCode.CANCELLED, "the script has no answer"))
        return response

    def _abort(self, context: grpc.ServicerContext, fail: Fail) -> NoReturn:
        context.abort(fail.code, fail.text)
        # context.abort always raises; this is for the type checker.
        raise AssertionError("abort returned")


def metadata(
    journal: str,
    begin: int,
    end: int,
    *,
    offset: int | None = None,
    write_head: int | None = None,
    sha1: bytes = bytes(20),
    codec: pb.CompressionCodec = pb.NONE,
    url: str = "",
) -> pb.ReadResponse:
    """Return a metadata message about the fragment ``[begin, end)``, to be read from ``offset``."""
    return pb.ReadResponse(
        status=pb.OK,
        offset=begin if offset is None else offset,
        write_head=end if write_head is None else write_head,
        fragment=pb.Fragment(
            journal=journal,
            begin=begin,
            end=end,
            sum=sum_to_pb(sha1),
            compression_codec=codec,
            backing_store="file:///" if url else "",
            mod_time=1_700_000_000 if url else 0,
        ),
        fragment_url=url,
    )


def chunk(offset: int, content: bytes) -> pb.ReadResponse:
    """Return a chunk message."""
    return pb.ReadResponse(offset=offset, content=content)


def not_yet(offset: int, write_head: int | None = None) -> pb.ReadResponse:
    """Return the answer of a broker that has no bytes at ``offset`` yet."""
    return pb.ReadResponse(
        status=pb.OFFSET_NOT_YET_AVAILABLE,
        offset=offset,
        write_head=offset if write_head is None else write_head,
    )
