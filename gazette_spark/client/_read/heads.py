"""Requests write heads of many journals and the bytes before them, and confirms heads that are too low.

The request for a head is the cheapest call: a read at the head with metadata only. A caller that has read a
journal up to an offset requests a :class:`Tail` instead: one call returns the head, and the bytes up to it if
they are few. If a head is below an offset that was already read, :func:`settle_head` finds out whether bytes
are lost, or only hidden by a failover of brokers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import grpc

from gazette_spark.client._read.stream import Cursor
from gazette_spark.client._transport.channel import Connection, settle
from gazette_spark.client._transport.retry import backoff_s, within
from gazette_spark.client._transport.status import read_status_error
from gazette_spark.errors import (
    AuthError,
    GazetteError,
    IndexHasGreaterOffsetError,
    JournalNotFoundError,
    NotAllowedError,
    OffsetNotYetAvailableError,
    StatusError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.tokens import Capability, journal_claims

CALLS_IN_FLIGHT = 64
"""Maximum number of concurrent head calls: enough to hide the broker's latency, below its stream limit."""

MANY = 64
"""Number of write heads from which an event loop pays off.

A call on a thread takes 0.45 ms of CPU, one with gRPC's asyncio 0.2 ms. The loop, its thread and its
connections take some milliseconds.
"""

MAX_TAIL_MESSAGES = 1_000
"""Maximum number of messages of a tail's answer, more than its few bytes need even in tiny fragments."""

READ = "/protocol.Journal/Read"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Tail:
    """A journal's write head, and perhaps the bytes before it."""

    write_head: int
    content: bytes | None = None
    """All bytes from the requested offset to the head. None if there are too many, if some are missing, or if
    the stream broke; reading them shows which."""


class Call(Protocol[T_co]):
    """A request about a journal that is in progress."""

    @property
    def journal(self) -> str:
        """The journal's name."""

    def take(self) -> T_co:
        """Wait for the answer."""

    def close(self) -> None:
        """End the request without an answer."""


class HeadCall:
    """One request for a write head, which is sent on creation. :meth:`take` ends it."""

    def __init__(
        self,
        connection: Connection,
        request: pb.ReadRequest,
        *,
        timeout_s: float,
        headers: dict[str, pb.Header] | None = None,
    ) -> None:
        """Send a :func:`head_request`. The answer's header is added to ``headers``, by journal."""
        self.journal = request.journal
        self._connection = connection
        self._headers = headers
        self._answers = _read(connection, request, timeout_s)

    def take(self) -> int:
        """Return the write head.

        Raises:
            StatusError: the broker returns a status such as SUSPENDED instead.
        """
        message: pb.ReadResponse | None = None
        with self._connection.errors():
            for answer in self._answers:
                if message is not None:  # The stream ends after the only answer.
                    settle(self._answers)
                    break
                message = answer
        if message is None:
            raise _no_answer(self._connection, self.journal)
        return head_of(self._connection, self.journal, message, self._headers)

    def close(self) -> None:
        """End the call with no answer."""
        settle(self._answers)


def head_request(journal: str, header: pb.Header | None = None) -> pb.ReadRequest:
    """Return a request for a write head; with the header of an earlier answer, to a member of its route.

    That member does not proxy the request. It first waits for the Etcd revision of the header's sender, so
    that it does not answer for an outdated route.
    """
    # A read does not wait until the broker has listed its stores, so a head can be too low: see
    # `settle_head`.
    request = pb.ReadRequest(journal=journal, offset=-1, metadata_only=True)
    if header is not None:
        request.do_not_proxy, request.min_etcd_revision = True, header.etcd.revision
    return request


def head_of(
    connection: Connection,
    journal: str,
    answer: pb.ReadResponse,
    headers: dict[str, pb.Header] | None = None,
) -> int:
    """Return the write head of the only answer to a head request, and add its header to ``headers``.

    Raises:
        StatusError: the broker returned a status such as SUSPENDED instead.
    """
    if answer.HasField("header"):
        connection.observe(journal, answer.header)
        if headers is not None:
            headers[journal] = answer.header
    # A read at offset -1, the head, cannot return bytes yet.
    if answer.status not in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE):
        raise read_status_error(answer, journal)
    return answer.write_head


class TailCall:
    """One request for a tail, which is sent on creation. :meth:`take` ends it."""

    def __init__(
        self, connection: Connection, journal: str, offset: int, *, max_bytes: int, timeout_s: float
    ) -> None:
        self.journal = journal
        self._connection = connection
        self._offset = offset
        self._max_bytes = max_bytes
        # Without `block`, the broker sends what it has and then the write head, in one call.
        request = pb.ReadRequest(journal=journal, offset=offset, end_offset=offset + max_bytes)
        self._answers = _read(connection, request, timeout_s)

    def take(self) -> Tail:
        """Return the tail.

        Raises:
            CorruptFragmentError: the bytes do not match their fragment's sum.
            ProtocolError: the broker contradicts itself about a stored fragment.
            StatusError: the broker returns a status such as SUSPENDED instead of a head.
        """
        messages: list[pb.ReadResponse] = []
        size = 0
        with self._connection.errors():
            for message in self._answers:
                size += len(message.content)
                # `end_offset` bounds the bytes of an honest broker, but not the number of messages. A broker
                # that sends metadata forever would otherwise keep the call until the deadline.
                if size > self._max_bytes or len(messages) == MAX_TAIL_MESSAGES:
                    # There are more bytes than requested. Without the rest, only the head is useful.
                    settle(self._answers)
                    break
                messages.append(message)
        if not messages:
            raise _no_answer(self._connection, self.journal)
        if messages[0].HasField("header"):
            self._connection.observe(self.journal, messages[0].header)
        for message in messages:
            if message.status not in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE):
                raise read_status_error(message, self.journal)
        return tail_of(self.journal, messages, self._offset)

    def close(self) -> None:
        """End the call with no answer."""
        settle(self._answers)


def tail_of(journal: str, messages: Sequence[pb.ReadResponse], offset: int) -> Tail:
    """Return the tail in the messages of a read from an offset on.

    Bytes that are not contiguous, or do not end at the last reported head, are dropped. Bytes of stored
    fragments are checked as in any read. Most tails have none, so they skip the costly checks.
    """
    if any(message.fragment_url for message in messages):
        cursor = Cursor(journal, offset, [])
        with suppress(OffsetNotYetAvailableError):  # The normal end of the stream.
            for message in messages:
                cursor.feed(message)
    # The largest head counts, because the journal may grow while the broker answers.
    head, at, parts, whole = 0, offset, [], True
    for message in messages:
        whole = whole and (message.offset == at or message.status == pb.OFFSET_NOT_YET_AVAILABLE)
        if message.content:
            parts.append(message.content)
            at += len(message.content)
        else:
            head = max(head, message.write_head)
    return Tail(head, b"".join(parts) if whole and at == head else None)


def write_heads(
    dial: Callable[[str], Connection],
    journals: Iterable[str],
    again: Callable[[str], int],
    *,
    timeout_s: float,
    request: Callable[[str], pb.ReadRequest] = head_request,
    headers: dict[str, pb.Header] | None = None,
    refusals: dict[str, StatusError] | None = None,
) -> dict[str, int]:
    """Return many write heads with concurrent calls.

    ``dial`` returns each journal's connection, and ``request`` its request. If a call fails, ``again``
    retries it until the deadline. The headers of the other answers are added to ``headers``, by journal. A
    status that ``again`` raises is added to ``refusals``, by journal, or raised if there is no such mapping.
    """
    # Each journal once, in the caller's order.
    names = list(dict.fromkeys(journals))

    def begin(name: str) -> HeadCall:
        return HeadCall(dial(name), request(name), timeout_s=timeout_s, headers=headers)

    if len(names) < MANY:
        heads = _asked(names, begin)
    else:
        # The loop exists only for these calls and on its own thread, so a caller's loop is not disturbed.
        with ThreadPoolExecutor(1, thread_name_prefix="gazette-heads") as thread:
            asking = _ask_in_loop(dial, names, request, timeout_s=timeout_s, headers=headers)
            heads = thread.submit(asyncio.run, asking).result()
    for name in names:
        if name not in heads:
            try:
                heads[name] = again(name)
            except StatusError as error:
                if refusals is None:
                    raise
                refusals[name] = error
    return {name: heads[name] for name in names if name in heads}


async def _ask_in_loop(
    dial: Callable[[str], Connection],
    journals: Sequence[str],
    request: Callable[[str], pb.ReadRequest],
    *,
    timeout_s: float,
    headers: dict[str, pb.Header] | None,
) -> dict[str, int]:
    """Return the write heads of the journals whose calls succeed."""
    heads: dict[str, int] = {}
    reads: dict[Connection, grpc.aio.UnaryUnaryMultiCallable[pb.ReadRequest, pb.ReadResponse | None]] = {}
    remaining = iter(journals)

    async def ask(journal: str, channels: AsyncExitStack) -> int:
        connection = dial(journal)
        if (read := reads.get(connection)) is None:
            channel = await channels.enter_async_context(connection.new_async_channel())
            # A stopping broker ends its streams without an answer or an error. gRPC passes that to the parser
            # as None, and would log the traceback of a parser that does not accept it.
            read = reads[connection] = channel.unary_unary(
                READ,
                request_serializer=pb.ReadRequest.SerializeToString,
                response_deserializer=lambda data: None if data is None else pb.ReadResponse.FromString(data),
            )
        metadata = connection.metadata(partial(journal_claims, Capability.READ, journal))
        with connection.errors():
            answer = await read(request(journal), timeout=timeout_s, metadata=metadata)
        if answer is None:
            raise _no_answer(connection, journal)
        return head_of(connection, journal, answer, headers)

    async def work(channels: AsyncExitStack) -> None:
        for journal in remaining:  # The workers share the iterator.
            with suppress(GazetteError):  # The caller retries.
                heads[journal] = await ask(journal, channels)

    async with AsyncExitStack() as channels:
        workers = min(CALLS_IN_FLIGHT, len(journals))
        await asyncio.gather(*(work(channels) for _ in range(workers)))
    return heads


def tails(
    dial: Callable[[str], Connection],
    offsets: Mapping[str, int],
    again: Callable[[str], Tail],
    *,
    max_bytes: int,
    timeout_s: float,
) -> dict[str, Tail]:
    """Return the bytes after an offset in each of many journals; see :func:`write_heads`."""

    def begin(name: str) -> TailCall:
        return TailCall(dial(name), name, offsets[name], max_bytes=max_bytes, timeout_s=timeout_s)

    answers = _asked(offsets, begin)
    return {name: answers[name] if name in answers else again(name) for name in offsets}


@dataclass(frozen=True, slots=True)
class SettledHead:
    """A journal's write head, at or past the requested offset unless bytes are lost."""

    write_head: int
    doubt: str = ""
    """Why no broker could confirm a head that is too low; empty if the head is high enough, or confirmed."""


def settle_head(
    reached: int,
    ask_members: Callable[[], int],
    append_nothing: Callable[[float], int],
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> SettledHead:
    """Find out whether a journal ends before an offset that was already read.

    A member of a journal answers reads from its index: the stored fragments that it has listed, and the
    appends in which it has taken part. A replica that replaces a dead broker takes part in the next append,
    and lists the store every ``refresh_interval``. Until then its write head lacks all that its peers have in
    their spools. Which member answers is random, so a head below an offset that was already read proves a
    loss only after the journal's members confirm it:

    ===============================  ===========================================================
    answer                           proves
    ===============================  ===========================================================
    a read, from any member          the journal has at least these bytes
    reads, from each member          all acknowledged bytes, unless all that answer joined late
    an append of no bytes            all acknowledged bytes: the replicas have agreed on their end
    ===============================  ===========================================================

    The append changes nothing, not even the suspension of a journal, but needs a token that may append.
    Without such a token, and while brokers refuse appends, the members are called again until the timeout.
    The members are called through the journal's route if this client can reach them; any broker proxies the
    append.

    Args:
        reached: The offset that was already read.
        ask_members: Returns the highest write head that a member reports for a read.
        append_nothing: Appends no bytes within a number of seconds, and returns the write head.
        timeout_s: Seconds after which the last answer counts.
        clock: Monotonic seconds.
        sleep: Waits for a number of seconds.

    Raises:
        GazetteError: no broker answers for the journal.
    """
    # First the cheap request, which is enough if the head was only late. Then the append that proves it.
    started, attempt, may_append, doubt = clock(), 0, True, ""
    while True:
        # The first answer may be that of a member that joined late. Together, the members report more.
        head = ask_members()
        if head >= reached:
            return SettledHead(head)
        left_s = timeout_s - (clock() - started)
        if may_append and left_s > 0:
            try:
                return SettledHead(append_nothing(left_s))
            except (AuthError, JournalNotFoundError, NotAllowedError):
                # A token that does not cover appends may get the answer for a missing journal. If the journal
                # is really missing, the next request shows it.
                may_append = False
                doubt = "this client may not append, so it could not make the journal's replicas agree"
            except IndexHasGreaterOffsetError:
                # All replicas are lost, or a disconnected broker still has bytes, which it may yet store.
                doubt = "the brokers refuse appends until an operator confirms that their bytes are lost"
            except GazetteError as error:
                doubt = f"the journal's replicas have not agreed on its end: {error}"
        wait_s = within(backoff_s(attempt), timeout_s - (clock() - started))
        if wait_s is None:
            return SettledHead(head, f"{doubt}, within {timeout_s:g} s")
        sleep(wait_s)
        attempt += 1


def _asked(journals: Iterable[str], begin: Callable[[str], Call[T]]) -> dict[str, T]:
    """Return the answers of the calls that succeed."""
    answers: dict[str, T] = {}
    under_way: deque[Call[T]] = deque()

    def take() -> None:
        call = under_way.popleft()
        with suppress(GazetteError):  # The caller retries.
            answers[call.journal] = call.take()

    try:
        for journal in journals:
            # The oldest call is the likeliest to have its answer. Taking it makes room for the next one.
            if len(under_way) == CALLS_IN_FLIGHT:
                take()
            under_way.append(begin(journal))
        while under_way:
            take()
    finally:
        # Calls are left only after an error that is not a broker's. A call that is never taken would stay
        # open at the broker.
        for call in under_way:
            call.close()
    return answers


def _read(
    connection: Connection, request: pb.ReadRequest, timeout_s: float
) -> grpc.CallIterator[pb.ReadResponse]:
    metadata = connection.metadata(partial(journal_claims, Capability.READ, request.journal))
    call: grpc.CallIterator[pb.ReadResponse] = connection.stub(pb_grpc.JournalStub).Read(
        request, timeout=timeout_s, metadata=metadata
    )
    return call


def _no_answer(connection: Connection, journal: str) -> UnavailableError:
    problem = f"journal {journal!r}: the stream ended with no answer"
    return UnavailableError(connection.endpoint.text, problem)
