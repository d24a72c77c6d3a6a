"""Serves the Journal service with faults before and after each call. Only brokers with faults use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import grpc
from google.protobuf.message import Message

from gazette_spark.broker.faults import Fault, Faults
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc

TICK_S = 0.02
"""Seconds between checks whether the client of a held call is still there."""


def hold(faults: list[Fault], is_awaited: Callable[[], bool]) -> None:
    """Apply the delays and stalls of the faults, as long as the client waits."""
    for fault in faults:
        remaining_s = fault.delay_s
        while (remaining_s > 0 or fault.stalls) and is_awaited() and not fault.released.wait(TICK_S):
            remaining_s -= TICK_S


def corrupt(content: bytes) -> bytes:
    """Change the byte in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class FaultyService(pb_grpc.JournalServicer):
    """Serves as ``inner`` does, except for the faults."""

    def __init__(
        self, inner: pb_grpc.JournalServicer, faults: Faults, header: Callable[[str | None], pb.Header]
    ) -> None:
        self._inner = inner
        self._faults = faults
        self._header = header

    def __repr__(self) -> str:
        return f"FaultyService({self._inner!r}, {self._faults!r})"

    def List(self, request: pb.ListRequest, context: grpc.ServicerContext) -> Iterator[pb.ListResponse]:  # noqa: N802 - the wire's name
        """Serve List."""
        faults = self._begin("List", "", context)
        if (status := _status(faults)) is not None:
            yield pb.ListResponse(status=_name(status), header=self._header(None))
            return
        yield from self._inner.List(request, context)

    def Apply(self, request: pb.ApplyRequest, context: grpc.ServicerContext) -> pb.ApplyResponse:  # noqa: N802 - the wire's name
        """Serve Apply."""
        return self._unary("Apply", "", request, context, pb.ApplyResponse)  # type: ignore[no-any-return]

    def ListFragments(  # noqa: N802 - the wire's name
        self, request: pb.FragmentsRequest, context: grpc.ServicerContext
    ) -> pb.FragmentsResponse:
        """Serve ListFragments."""
        journal = request.journal
        return self._unary("ListFragments", journal, request, context, pb.FragmentsResponse)  # type: ignore[no-any-return]

    def FragmentStoreHealth(  # noqa: N802 - the wire's name
        self, request: pb.FragmentStoreHealthRequest, context: grpc.ServicerContext
    ) -> pb.FragmentStoreHealthResponse:
        """Serve FragmentStoreHealth."""
        made = pb.FragmentStoreHealthResponse
        return self._unary("FragmentStoreHealth", "", request, context, made)  # type: ignore[no-any-return]

    def Replicate(  # noqa: N802 - the wire's name
        self, request_iterator: Iterator[pb.ReplicateRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ReplicateResponse]:
        """Serve Replicate."""
        self._begin("Replicate", "", context)
        yield from self._inner.Replicate(request_iterator, context)

    def Read(self, request: pb.ReadRequest, context: grpc.ServicerContext) -> Iterator[pb.ReadResponse]:  # noqa: N802 - the wire's name
        """Serve Read."""
        faults = self._begin("Read", request.journal, context)
        if (status := _status(faults)) is not None:
            yield pb.ReadResponse(status=_name(status), header=self._header(request.journal))
            return
        # The broker serves a later offset than the client requested, as if the journal had lost the bytes.
        request.offset += sum(fault.jump for fault in faults)
        responses = self._inner.Read(request, context)
        for fault in faults:
            responses = _spoil(responses, fault, context)
        yield from responses

    def Append(  # noqa: N802 - the wire's name
        self, request_iterator: Iterator[pb.AppendRequest], context: grpc.ServicerContext
    ) -> pb.AppendResponse:
        """Serve Append."""
        # The first message contains the journal, which selects the faults.
        first = next(request_iterator, None)
        if first is None:
            return self._inner.Append(iter(()), context)
        faults = self._begin("Append", first.journal, context)
        if (status := _status(faults)) is not None:
            return pb.AppendResponse(status=_name(status), header=self._header(first.journal))
        messages: Iterator[pb.AppendRequest] = chain([first], request_iterator)
        # The broker would report the broken stream with its own error. The client should see the fault's
        # error.
        failing: Any = _FailsAs(context)
        for fault in faults:
            if fault.code is not None and fault.after_bytes:
                messages = _cut(messages, fault, failing)
        response = self._inner.Append(messages, failing)
        _end(faults, context)
        return response

    def _unary(
        self,
        rpc: str,
        journal: str,
        request: Message,
        context: grpc.ServicerContext,
        made: Callable[..., Any],
    ) -> Any:  # noqa: ANN401 - one for several messages
        faults = self._begin(rpc, journal, context)
        if (status := _status(faults)) is not None:
            return made(status=status, header=self._header(journal or None))
        response = getattr(self._inner, rpc)(request, context)
        _end(faults, context)
        return response

    def _begin(self, rpc: str, journal: str, context: grpc.ServicerContext) -> list[Fault]:
        """Return a call's faults, after applying those that come before the call is served."""
        faults = self._faults.take(rpc, journal.partition(";")[0])
        hold(faults, context.is_active)
        for fault in faults:
            if fault.code is not None and not (fault.after_bytes or fault.answer_is_lost):
                context.abort(fault.code, fault.text)
        return faults


class _FailsAs:
    """A servicer context through which an interrupted call fails with its fault's error."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context
        self.fault: Fault | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the context
        return getattr(self._context, name)

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        fault = self.fault
        if fault is not None and fault.code is not None:
            self._context.abort(fault.code, fault.text)
        self._context.abort(code, details)


def _cut(messages: Iterator[pb.AppendRequest], fault: Fault, failing: _FailsAs) -> Iterator[pb.AppendRequest]:
    seen = 0
    for message in messages:
        seen += len(message.content)
        if seen >= fault.after_bytes:
            failing.fault = fault
            # To the message pump this is a broken connection, so the append is rolled back.
            raise ConnectionError(fault.text)
        yield message


def _spoil(
    responses: Iterator[pb.ReadResponse], fault: Fault, context: grpc.ServicerContext
) -> Iterator[pb.ReadResponse]:
    remaining_bytes, corrupts = fault.after_bytes, fault.corrupts
    stops = fault.ends or (fault.code is not None and fault.after_bytes > 0)
    for response in responses:
        if corrupts and response.content:
            response.content, corrupts = corrupt(response.content), False
        if stops and len(response.content) >= remaining_bytes:
            if remaining_bytes:
                yield pb.ReadResponse(offset=response.offset, content=response.content[:remaining_bytes])
            if response.content or fault.ends:
                break
        remaining_bytes -= len(response.content)
        yield response
    else:
        return
    if fault.code is not None:
        context.abort(fault.code, fault.text)


def _end(faults: list[Fault], context: grpc.ServicerContext) -> None:
    for fault in faults:
        if fault.answer_is_lost and fault.code is not None:
            context.abort(fault.code, fault.text)


def _status(faults: list[Fault]) -> int | None:
    return next((fault.status for fault in faults if fault.status is not None), None)


def _name(status: int) -> Any:  # noqa: ANN401 - what an enum's field takes
    return pb.Status.Name(status)
