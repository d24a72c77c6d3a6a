"""Appends bytes to a journal in one transaction, completely or not at all.

The stream is: parameters, content in messages of at most 1 MiB, an empty message, half-close. The commit
happens at the half-close; a stream that ends in any other way is rolled back. The broker may answer early,
with a status, while content is still being sent. Then its answer counts, not the failure to send.

After a broken connection it is unknown whether the broker has committed. A retry may append the bytes twice,
and without a retry they may be lost: raw appends are at-least-once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Protocol, Self, TypeAlias, TypedDict, Unpack, cast

import grpc

from gazette_spark.client._transport.channel import Connection, starting_call
from gazette_spark.client._transport.status import check_status
from gazette_spark.client.metrics import APPEND_BYTES, ClientMetrics
from gazette_spark.errors import ClosedError, ProtocolError, UnavailableError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journal_specs import MAX_OFFSET, validate_journal_name
from gazette_spark.protocol.labels import format_selector
from gazette_spark.protocol.requests import validate_append_request
from gazette_spark.protocol.tokens import Capability, journal_claims

Bytes: TypeAlias = bytes | bytearray | memoryview

MAX_CONTENT_BYTES = 1 << 20
"""Maximum content of a message, in bytes. Brokers accept 4 MiB by default, but smaller messages overlap
better."""

OUTBOX_MESSAGES = 4
"""Maximum number of messages that wait to be sent, which limits an appender's memory."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of an append: its bytes are ``[begin, end)`` of the journal, with SHA-1 ``sum``."""

    begin: int
    end: int
    sum: bytes
    registers: pb.LabelSet
    """The journal's registers after the append."""

    def __repr__(self) -> str:
        names = ", ".join(f"{label.name}={label.value}" for label in self.registers.labels)
        more = f", registers={{{names}}}" if names else ""
        return f"AppendResult(begin={self.begin}, end={self.end}, sha1={self.sum.hex()}{more})"


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """The conditions of an append, and its changes other than its bytes.

    An ``offset`` other than 0 must be the write head. ``check_registers`` must match the journal's registers,
    if it has any; then ``subtract_registers`` and ``union_registers`` change them. ``suspend`` is one of
    ``pb.AppendRequest.SUSPEND_*``. A broker at an Etcd revision below ``min_etcd_revision`` waits until it
    has reached it. With ``do_not_proxy``, a broker that is not the journal's primary refuses the append
    instead of proxying it.
    """

    journal: str
    offset: int = 0
    check_registers: pb.LabelSelector | None = None
    union_registers: pb.LabelSet | None = None
    subtract_registers: pb.LabelSet | None = None
    suspend: pb.AppendRequest.Suspend = pb.AppendRequest.SUSPEND_RESUME
    min_etcd_revision: int = 0
    do_not_proxy: bool = False

    def __post_init__(self) -> None:
        # Brokers check the same rules, but report a broken one only as gRPC UNKNOWN with a text. Here the
        # caller's line is in the traceback.
        # Check the name first: a protobuf message accepts bytes as a text, and its error for half of a
        # surrogate pair does not mention the journal.
        validate_journal_name(self.journal or "", allow_meta=True, where="AppendRequest.Journal")
        if self.offset > MAX_OFFSET:
            problem = f"invalid Offset ({self.offset}; expected 0 to {MAX_OFFSET})"
            raise ProtocolError("AppendRequest.Offset", problem)
        validate_append_request(self.request())
        if self.min_etcd_revision < 0:
            problem = f"must be 0 or more, got {self.min_etcd_revision}"
            raise ProtocolError("AppendRequest.MinEtcdRevision", problem)

    @property
    def changes_registers(self) -> bool:
        """Whether the append changes registers, which requires bytes."""
        return bool(self.union_registers and self.union_registers.labels) or bool(
            self.subtract_registers and self.subtract_registers.labels
        )

    @property
    def resumes(self) -> bool:
        """Whether the append resumes a suspended journal."""
        return self.suspend == pb.AppendRequest.SUSPEND_RESUME

    @property
    def takes_content(self) -> bool:
        """Whether the append may have bytes: one that only changes the suspension may not."""
        # The other values suspend the journal, or keep it suspended. Brokers answer NOT_ALLOWED to bytes with
        # them.
        return self.suspend in (pb.AppendRequest.SUSPEND_RESUME, pb.AppendRequest.SUSPEND_NO_RESUME)

    def request(self) -> pb.AppendRequest:
        """Return the stream's first message."""
        return pb.AppendRequest(
            journal=self.journal,
            offset=self.offset,
            check_registers=self.check_registers,
            union_registers=self.union_registers,
            subtract_registers=self.subtract_registers,
            suspend=self.suspend,
            min_etcd_revision=self.min_etcd_revision,
            do_not_proxy=self.do_not_proxy,
        )


class AppendKeywords(TypedDict, total=False):
    """The fields of :class:`AppendOptions` except the journal, as keywords of a call."""

    offset: int
    check_registers: pb.LabelSelector | None
    union_registers: pb.LabelSet | None
    subtract_registers: pb.LabelSet | None
    suspend: pb.AppendRequest.Suspend
    min_etcd_revision: int
    do_not_proxy: bool


def append_options(journal: str | AppendOptions, **keywords: Unpack[AppendKeywords]) -> AppendOptions:
    """Return the options of a call from a journal's name and keywords.

    With an :class:`AppendOptions`, keywords replace its fields.
    """
    # Without keywords the object itself is returned: an AppendService recognises equal options fastest by
    # identity.
    if isinstance(journal, AppendOptions):
        return replace(journal, **keywords) if keywords else journal
    return AppendOptions(journal, **keywords)


class _Outbox:
    """Messages on their way from the writing thread to gRPC's, closed when either side ends."""

    # gRPC takes the messages of a call from an iterator, in its own thread. A caller that writes piece by
    # piece needs a hand-over between the two threads, and it must be bounded: otherwise a writer that is
    # faster than the network would collect the whole append in memory.
    def __init__(self) -> None:
        self._messages: deque[pb.AppendRequest] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._dropped = False

    def put(self, message: pb.AppendRequest, *, last: bool = False) -> bool:
        """Wait for room and add a message; return False if the call has ended.

        The wait ends at the latest with the call, and every call has a deadline.
        """
        with self._changed:
            while len(self._messages) >= OUTBOX_MESSAGES and not self._dropped:
                self._changed.wait()
            if self._dropped:
                return False
            # Message and flag change under one lock: an iteration that saw the flag without the message would
            # half-close too early, which is a rollback.
            self._messages.append(message)
            self._closed = self._closed or last
            self._changed.notify_all()
            return True

    def drop(self) -> None:
        """End both sides, because the call is over."""
        # The waiting messages are no longer needed. Ending the iteration half-closes the stream, which cannot
        # commit: a half-close without the empty message before it is a rollback.
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
            # Yield outside the lock, because gRPC resumes this generator only when the network takes the next
            # message.
            yield message


class Appender:
    """An append in progress: write, then :meth:`commit_append` or :meth:`abort`. For one thread.

    The call begins with the first write, because brokers end appends with less than 64 KiB per second. After
    its end, writes and commits are refused, but another abort is allowed; only :meth:`reset` makes it usable
    again. As a context manager it aborts an append that was not committed.
    """

    def __init__(
        self,
        connection: Connection,
        options: AppendOptions,
        *,
        timeout_s: float,
        metrics: ClientMetrics | None = None,
    ) -> None:
        self.options = options
        self._metrics = metrics or ClientMetrics()
        self._connection = connection
        self._timeout_s = timeout_s
        self._begin()

    # Everything that belongs to one attempt is set here and nowhere else, so that an attempt after a reset
    # shares nothing with the cancelled call, whose callbacks may still be under way.
    def _begin(self) -> None:
        self.sent_bytes = 0
        self.response: pb.AppendResponse | None = None
        """The broker's answer, which may be a refusal; None until it arrives."""
        self._outbox = _Outbox()
        self._call: Any = None
        self._over = False
        self._aborted = False

    def __repr__(self) -> str:
        return f"Appender({self.options.journal!r}, sent_bytes={self.sent_bytes})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.abort()

    @property
    def request(self) -> pb.AppendRequest:
        """The request's first message."""
        return self.options.request()

    def write(self, content: Bytes) -> int:
        """Send any number of bytes, and return their number.

        Raises:
            GazetteError: the broker has ended the append; nothing was appended.
        """
        self._check_open()
        # Empty content sends no message, because a message without bytes marks a commit, after which the
        # broker accepts only the half-close.
        view = memoryview(content).cast("B")
        for at in range(0, len(view), MAX_CONTENT_BYTES):
            piece = bytes(view[at : at + MAX_CONTENT_BYTES])
            # `_put` raises if the broker has ended the append, so `sent_bytes` counts only what was handed
            # over.
            self._put(pb.AppendRequest(content=piece))
            self.sent_bytes += len(piece)
        return len(view)

    def commit_append(self) -> AppendResult:
        """Commit the written bytes, and return their range. Without bytes this is a write barrier.

        Raises:
            StatusError: nothing was appended.
            GazetteError: the append failed. After an UnavailableError the bytes may have been appended.
        """
        self._check_open()
        # A broker refuses this too, but only when it is the append's turn in the journal.
        if self.sent_bytes == 0 and self.options.changes_registers:
            self.abort()
            raise ProtocolError("AppendRequest", "register modification requires non-empty Append")
        # The empty message declares the commit, and the half-close that follows it makes the commit. Two
        # steps let the broker distinguish a complete append from a stream that breaks off.
        self._put(pb.AppendRequest(), last=True)
        return self._result()

    def reset(self) -> None:
        """Reset to the initial state, for a retry or another append. An uncommitted append is aborted."""
        self.abort()
        self._begin()

    def abort(self) -> None:
        """Roll back the append, unless it is over. May be called again, and from any thread.

        If another thread waits for the commit, the append may be rolled back or committed.
        """
        # The flags come before the cancellation. Another thread may be about to make the call in `_put`: it
        # either sees the flag or has published a call to cancel here.
        self._over = self._aborted = True
        if self._call is not None:
            self._call.cancel()
        self._outbox.drop()

    def _put(self, message: pb.AppendRequest, *, last: bool = False) -> None:
        # The call begins with the first message. After that, the append occupies its journal at the broker,
        # and other appends to it wait.
        if self._call is None:
            # A token is signed for this call alone and claims only appends to this journal, so a leaked one
            # is worth little.
            claims = journal_claims(Capability.APPEND, self.options.journal)
            metadata = self._connection.metadata(claims)
            # There is room, because the queue is empty before the call.
            self._outbox.put(self.options.request())
            with starting_call():
                self._call = self._connection.stub(pb_grpc.JournalStub).Append.future(
                    iter(self._outbox), timeout=self._timeout_s, metadata=metadata
                )
            outbox = self._outbox  # This call's outbox, even after a reset.
            self._call.add_done_callback(lambda _: outbox.drop())
            # Hold the connection. Otherwise it is closed when it has been idle for a while, ending the call.
            self._connection.hold()
            self._call.add_done_callback(lambda _: self._connection.release())
            if self._aborted:  # Another thread aborted before there was a call to cancel.
                self._call.cancel()
        if not self._outbox.put(message, last=last):
            # The broker has answered while content was still being sent. The answer can only be a refusal,
            # because a commit requires the half-close.
            self._result()
            self.abort()
            raise ProtocolError("AppendResponse", "the broker committed an append that was not finished")

    def _result(self) -> AppendResult:
        """Wait for the broker's answer and return its result."""
        self._over = True
        # Only a status proves that nothing was appended. After a broken connection or a deadline the broker
        # may have committed, and with an error of gRPC some of its replicas may have.
        with self._connection.errors():
            try:
                self.response = self._call.result()
            except grpc.FutureCancelledError:
                raise UnavailableError(self._connection.endpoint.text, "the append was cancelled") from None
        response, journal = self.response, self.options.journal
        assert response is not None
        # Observe the header before the status is checked: a broker that is not the primary names the primary
        # in it, and the next attempt calls that one.
        self._connection.observe(journal, response.header)
        detail = response.store_health_error
        # The registers show which writer has fenced this one.
        if response.status == pb.REGISTER_MISMATCH:
            registers = format_selector(pb.LabelSelector(include=response.registers))
            detail = f"its registers are {registers or 'empty'}"
        check_status(response.status, journal, detail)
        # An absent fragment reads as [0, 0) and an absent label set as an empty one, so only the presence of
        # the fields shows that an answer lacks them.
        if not (response.HasField("commit") and response.HasField("registers")):
            raise ProtocolError("AppendResponse", "expected Commit and Registers")
        commit = response.commit
        # Callers compute with this range: writers that share an append find their bytes in it by counting
        # from its begin.
        if commit.end - commit.begin != self.sent_bytes:
            span = f"[{commit.begin}, {commit.end})"
            raise ProtocolError("AppendResponse.Commit", f"{span} for an append of {self.sent_bytes} bytes")
        self._metrics.add(APPEND_BYTES, self.sent_bytes, journal)
        return AppendResult(commit.begin, commit.end, Fragment.from_pb(commit).sum, response.registers)

    def _check_open(self) -> None:
        if self._over:
            raise ClosedError(f"append to journal {self.options.journal!r}", "it was committed or aborted")


class Readable(Protocol):
    """A file opened for reading bytes, or a similar object."""

    def read(self, size: int = ..., /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""


Piece: TypeAlias = Bytes | Readable


class Content:
    """Bytes to append, the same for each attempt.

    Pieces are bytes or files; each attempt reads a file from its first byte. Content that cannot restart,
    such as an iterator or a pipe, is ``spent`` after its first bytes were read.
    """

    def __init__(self, content: Piece | Iterable[Piece]) -> None:
        alone = isinstance(content, bytes | bytearray | memoryview) or hasattr(content, "read")
        self._pieces = cast(Iterable[Piece], (content,) if alone else content)
        # An iterator returns itself; a list or a tuple returns a new iterator each time.
        self._one_shot = iter(self._pieces) is self._pieces
        self.spent = False
        """Whether the content cannot be sent again."""

    def __iter__(self) -> Iterator[Bytes]:
        for piece in self._pieces:
            # Set this before the bytes are sent: a retry must not append only the rest.
            self.spent = self.spent or self._one_shot
            if isinstance(piece, bytes | bytearray | memoryview):
                yield piece
            else:
                yield from self._read(piece)

    def _read(self, file: Readable) -> Iterator[bytes]:
        # An opened pipe has `seek` but cannot seek; an object with only `read` has neither.
        can_restart = getattr(file, "seekable", lambda: hasattr(file, "seek"))()
        if can_restart:
            cast(BinaryIO, file).seek(0)
        while content := file.read(MAX_CONTENT_BYTES):
            self.spent = self.spent or not can_restart
            yield content
