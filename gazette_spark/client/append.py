"""Append to a journal: one transaction of bytes, all or none.

The stream is: parameters, content in messages of at most 1 MiB, an empty message, half-close. The
commit happens at the half-close; a stream that ends in any other way is rolled back. The broker may
answer early, with a status, while content is still being sent: then its answer counts, not the
failure to send.

Appending again after a broken connection may append twice: raw appends are at-least-once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from gazette_spark.client.channel import Connection
from gazette_spark.client.status import check_status
from gazette_spark.errors import ClosedError, ProtocolError, UnavailableError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journals import validate_journal_name
from gazette_spark.protocol.labels import format_selector, validate_label_set, validate_selector
from gazette_spark.protocol.tokens import Capability, journal_claims

MAX_CONTENT_BYTES = 1 << 20
"""Content of a message: brokers take 4 MiB by default, and smaller ones overlap better."""

OUTBOX_MESSAGES = 4
"""Messages that may wait to be sent: bounds an appender's memory."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did: its bytes are ``[begin, end)`` of the journal, with SHA-1 ``sum``."""

    begin: int
    end: int
    sum: bytes
    registers: pb.LabelSet
    """The journal's registers after the append."""


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """What an append asks for and changes besides its bytes.

    ``offset`` 0 is any; else the append fails unless the write head is there. ``check_registers`` has to
    match, if the journal has any; then ``subtract_registers`` and ``union_registers`` change them.
    """

    journal: str
    offset: int = 0
    check_registers: pb.LabelSelector | None = None
    union_registers: pb.LabelSet | None = None
    subtract_registers: pb.LabelSet | None = None

    def __post_init__(self) -> None:
        validate_journal_name(self.journal, allow_meta=True)
        if self.offset < 0:
            raise ProtocolError("AppendRequest.Offset", f"invalid Offset ({self.offset}; expected 0 or more)")
        if self.check_registers is not None:
            validate_selector(self.check_registers)
        for labels in (self.union_registers, self.subtract_registers):
            if labels is not None:
                validate_label_set(labels)

    @property
    def changes_registers(self) -> bool:
        """Whether the append needs bytes for the sake of the registers."""
        return bool(self.union_registers and self.union_registers.labels) or bool(
            self.subtract_registers and self.subtract_registers.labels
        )

    def request(self) -> pb.AppendRequest:
        """Return the stream's first message."""
        return pb.AppendRequest(
            journal=self.journal,
            offset=self.offset,
            check_registers=self.check_registers,
            union_registers=self.union_registers,
            subtract_registers=self.subtract_registers,
        )


class _Outbox:
    """Messages on their way from the writing thread to gRPC's; closed at the end of either side."""

    def __init__(self) -> None:
        self._messages: deque[pb.AppendRequest] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._dropped = False

    def put(self, message: pb.AppendRequest, *, last: bool = False) -> bool:
        """Add a message, waiting for room; return False once the call has ended.

        The wait ends with the call, and every call has a deadline.
        """
        with self._changed:
            while len(self._messages) >= OUTBOX_MESSAGES and not self._dropped:
                self._changed.wait()
            self._messages.append(message)
            self._closed = self._closed or last
            self._changed.notify_all()
            return not self._dropped

    def drop(self) -> None:
        """End both sides: the call is over."""
        with self._changed:
            self._dropped = True
            self._messages.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[pb.AppendRequest]:
        while True:
            with self._changed:
                while not (self._messages or self._closed or self._dropped):
                    self._changed.wait()
                if not self._messages:
                    return
                message = self._messages.popleft()
                self._changed.notify_all()
            yield message


class Appender:
    """One append under way: write, then :meth:`commit_append` or :meth:`abort`. For one thread.

    The call begins with the first write, for brokers end appends that bring less than 64 KiB a second.
    As a context manager it aborts what was not committed.
    """

    def __init__(self, connection: Connection, options: AppendOptions, *, timeout_s: float) -> None:
        self.options = options
        self.sent_bytes = 0
        self._connection = connection
        self._timeout_s = timeout_s
        self._outbox = _Outbox()
        self._call: Any = None
        self._over = False

    def __repr__(self) -> str:
        return f"Appender({self.options.journal!r}, sent_bytes={self.sent_bytes})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def write(self, content: bytes) -> int:
        """Send bytes, of any number; return how many.

        Raises:
            GazetteError: the broker has ended the append; nothing was appended.
        """
        self._check_open()
        view = memoryview(content)
        for at in range(0, len(view), MAX_CONTENT_BYTES):
            piece = bytes(view[at : at + MAX_CONTENT_BYTES])
            self._put(pb.AppendRequest(content=piece))
            self.sent_bytes += len(piece)
        return len(view)

    def commit_append(self) -> AppendResult:
        """Commit what was written, and return where it is. With nothing written: a write barrier.

        Raises:
            GazetteError: nothing was appended; but after an UnavailableError it may have been.
        """
        self._check_open()
        if self.sent_bytes == 0 and self.options.changes_registers:
            self.abort()
            raise ProtocolError("AppendRequest", "register modification requires non-empty Append")
        self._put(pb.AppendRequest(), last=True)
        return self._result()

    def abort(self) -> None:
        """Roll the append back, unless it is over. May be called again."""
        if not self._over:
            self._over = True
            if self._call is not None:
                self._call.cancel()
            self._outbox.drop()

    def _put(self, message: pb.AppendRequest, *, last: bool = False) -> None:
        if self._call is None:
            claims = journal_claims(Capability.APPEND, self.options.journal)
            metadata = self._connection.metadata(claims)
            self._outbox.put(self.options.request())
            self._call = self._connection.stub().Append.future(
                iter(self._outbox), timeout=self._timeout_s, metadata=metadata
            )
            self._call.add_done_callback(lambda _: self._outbox.drop())
        if not self._outbox.put(message, last=last):
            self._result()
            self.abort()
            raise ProtocolError("AppendResponse", "the broker committed an append that was not finished")

    def _result(self) -> AppendResult:
        """Take the broker's answer."""
        self._over = True
        with self._connection.errors():
            try:
                response: pb.AppendResponse = self._call.result()
            except grpc.FutureCancelledError:
                raise UnavailableError(self._connection.endpoint.text, "the append was cancelled") from None
        return append_result(response, self.options.journal, self.sent_bytes)

    def _check_open(self) -> None:
        if self._over:
            raise ClosedError(f"append to journal {self.options.journal!r}", "it was committed or aborted")


def append_result(response: pb.AppendResponse, journal: str, sent_bytes: int) -> AppendResult:
    """Return what the broker says it did.

    Raises:
        StatusError: it did nothing.
        ProtocolError: it says something else than what was asked.
    """
    detail = response.store_health_error
    if response.status == pb.REGISTER_MISMATCH:
        detail = (
            f"its registers are {format_selector(pb.LabelSelector(include=response.registers)) or 'empty'}"
        )
    check_status(response.status, journal, detail)
    if not (response.HasField("commit") and response.HasField("registers")):
        raise ProtocolError("AppendResponse", "expected Commit and Registers")
    commit = response.commit
    if commit.end - commit.begin != sent_bytes:
        raise ProtocolError(
            "AppendResponse.Commit", f"[{commit.begin}, {commit.end}) for an append of {sent_bytes} bytes"
        )
    return AppendResult(commit.begin, commit.end, Fragment.from_pb(commit).sum, response.registers)


class Content:
    """Bytes to append, as often as it takes: a one-shot iterator only once."""

    def __init__(self, content: bytes | Iterable[bytes]) -> None:
        self._pieces: Iterable[bytes] = (content,) if isinstance(content, bytes) else content
        self._one_shot = iter(self._pieces) is self._pieces
        self.spent = False
        """Nothing can be sent again."""

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.spent = self._one_shot
            yield piece
