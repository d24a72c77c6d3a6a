"""Write heads of many journals at once, the bytes before them, and whether a low one can be trusted.

A head alone is the cheapest call there is: a read at the head that asks for metadata only. A caller that has
read a journal up to an offset asks for a :class:`Tail` instead: one call returns the head, and the bytes up
to there if they are few. Where a head is below an offset that was already read, :func:`settle_head` finds out
whether bytes are lost or a failover of brokers hides them.
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
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.tokens import Capability, journal_claims

CALLS_IN_FLIGHT = 64
"""Head calls open at a time: the broker's latency is hidden, its stream limit not reached."""

MANY = 64
"""Write heads from which on it is worth an event loop to ask for them.

A call on a thread takes 0.45 ms of a processor, one of gRPC's asyncio kind 0.2 ms. The loop, its thread and
its connections take some milliseconds.
"""

MAX_TAIL_MESSAGES = 1_000
"""Messages of a tail's answer: more than its few bytes need, in fragments however small."""

READ = "/protocol.Journal/Read"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Tail:
    """A journal's write head, and maybe the bytes before it."""

    write_head: int
    content: bytes | None = None
    """All bytes from the offset asked about to the head. None: they are too many, some of them are gone, or
    the stream broke; read them to learn which."""


class Call(Protocol[T_co]):
    """A question about a journal that is under way."""

    @property
    def journal(self) -> str:
        """The journal's name."""

    def take(self) -> T_co:
        """Wait for the answer."""

    def close(self) -> None:
        """End it with no answer."""


class HeadCall:
    """One question for a write head, under way from the start; :meth:`take` ends it."""

    def __init__(
        self,
        connection: Connection,
        request: pb.ReadRequest,
        *,
        timeout_s: float,
        headers: dict[str, pb.Header] | None = None,
    ) -> None:
        """Ask, by a :func:`head_request`. The answer's header is added to ``headers``, by journal."""
        self.journal = request.journal
        self._connection = connection
        self._headers = headers
        self._answers = _read(connection, request, timeout_s)

    def take(self) -> int:
        """Return the write head.

        Raises:
            StatusError: the broker gives none, e.g. SUSPENDED.
        """
        message: pb.ReadResponse | None = None
        with self._connection.errors():
            for answer in self._answers:
                if message is not None:  # There is one answer, and then the end.
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
    """Return a question for a write head; with the header of an earlier answer, for a member of its route.

    That member does not pass the question on. It first waits for what the header's sender knew of Etcd, or it
    might answer for a route that is no more.
    """
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
    """Return the write head from the only answer to a question for it; add its header to ``headers``.

    Raises:
        StatusError: the broker gives none, e.g. SUSPENDED.
    """
    if answer.HasField("header"):
        connection.observe(journal, answer.header)
        if headers is not None:
            headers[journal] = answer.header
    # An offset of -1 is the head itself, where nothing can be read yet.
    if answer.status not in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE):
        raise read_status_error(answer, journal)
    return answer.write_head


class TailCall:
    """One question for a tail, under way from the start; :meth:`take` ends it."""

    def __init__(
        self, connection: Connection, journal: str, offset: int, *, max_bytes: int, timeout_s: float
    ) -> None:
        self.journal = journal
        self._connection = connection
        self._offset = offset
        self._max_bytes = max_bytes
        request = pb.ReadRequest(journal=journal, offset=offset, end_offset=offset + max_bytes)
        self._answers = _read(connection, request, timeout_s)

    def take(self) -> Tail:
        """Return the tail.

        Raises:
            CorruptFragmentError: the bytes are not those of their fragment's sum.
            ProtocolError: the broker contradicts itself about a stored fragment.
            StatusError: the broker does not even give a head, e.g. SUSPENDED.
        """
        messages: list[pb.ReadResponse] = []
        size = 0
        with self._connection.errors():
            for message in self._answers:
                size += len(message.content)
                if size > self._max_bytes or len(messages) == MAX_TAIL_MESSAGES:
                    # More than was asked for. Without the rest there is a head only.
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

    Bytes that do not follow each other, or that do not end at the last reported head, are dropped. Those of
    stored fragments are checked as in any read. Most tails have none, and the checks cost time.
    """
    if any(message.fragment_url for message in messages):
        cursor = Cursor(journal, offset, [])
        with suppress(OffsetNotYetAvailableError):  # It ends the stream.
            for message in messages:
                cursor.feed(message)
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
) -> dict[str, int]:
    """Return many write heads, with many calls under way at once.

    ``dial`` gives each journal's connection, and ``request`` the question. Each journal whose call fails is
    given to ``again``, which tries for as long as it takes. The headers of the other answers are added to
    ``headers``, by journal.
    """
    names = list(dict.fromkeys(journals))

    def begin(name: str) -> HeadCall:
        return HeadCall(dial(name), request(name), timeout_s=timeout_s, headers=headers)

    if len(names) < MANY:
        return _asked(names, begin, again)
    # The loop lives for this round only and on its own thread, so a caller's loop is not disturbed.
    with ThreadPoolExecutor(1, thread_name_prefix="gazette-heads") as thread:
        asking = _ask_in_loop(dial, names, request, timeout_s=timeout_s, headers=headers)
        heads = thread.submit(asyncio.run, asking).result()
    return {name: heads[name] if name in heads else again(name) for name in names}


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
            # A broker that stops ends its streams without an answer and without an error. gRPC passes that on
            # as None, and would log the traceback of a parser that does not take it.
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
        for journal in remaining:  # Shared: whoever has an answer takes the next one.
            with suppress(GazetteError):  # The caller asks again, for as long as it takes.
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

    return _asked(offsets, begin, again)


@dataclass(frozen=True, slots=True)
class SettledHead:
    """A journal's write head, at or above the offset that was asked about unless bytes are lost."""

    write_head: int
    doubt: str = ""
    """Why no broker could confirm a head that is too low. Empty: the head is high enough, or confirmed."""


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
    appends that it has taken part in. A replica that replaces a dead broker takes part in none until somebody
    appends, and lists the store every ``refresh_interval``. Until then its write head is too low by all that
    its peers hold in their spools. Which member answers is chance, so a head below an offset already read
    proves a loss only once the journal's members confirm it:

    ===============================  ===========================================================
    answer                           what it says
    ===============================  ===========================================================
    a read, from any member          the journal has at least so many bytes
    reads, from each member          all acknowledged bytes, unless all that answer joined late
    an append of no bytes            all acknowledged bytes: the replicas have agreed on their end
    ===============================  ===========================================================

    The append changes nothing, not even the suspension of a journal, but needs a token that may append.
    Without one, and while brokers refuse appends, the members are asked again until the time is over. Routes
    lead to the members, where this client can reach them; any broker passes on the append.

    Args:
        reached: that offset.
        ask_members: returns the highest write head that a member gives to a read.
        append_nothing: appends no bytes within so many seconds, and returns the write head.
        timeout_s: seconds after which the last answer counts.
        clock: monotonic seconds.
        sleep: waits for so many seconds.

    Raises:
        GazetteError: the journal cannot be asked about.
    """
    started, attempt, may_append, doubt = clock(), 0, True, ""
    while True:
        head = ask_members()
        if head >= reached:
            return SettledHead(head)
        left_s = timeout_s - (clock() - started)
        if may_append and left_s > 0:
            try:
                return SettledHead(append_nothing(left_s))
            except (AuthError, JournalNotFoundError, NotAllowedError):
                # A token that does not cover an append may get the answer of a missing journal. If it is
                # missing, the next question says so.
                may_append = False
                doubt = "this client may not append, so it could not have the journal's replicas agree"
            except IndexHasGreaterOffsetError:
                # All replicas are lost, or a broker that is cut off still holds bytes: it may yet store them.
                doubt = "the brokers take no append before an operator confirms their bytes as lost"
            except GazetteError as error:
                doubt = f"the journal's replicas have not agreed on its end: {error}"
        wait_s = within(backoff_s(attempt), timeout_s - (clock() - started))
        if wait_s is None:
            return SettledHead(head, f"{doubt}, within {timeout_s:g} s")
        sleep(wait_s)
        attempt += 1


def _asked(
    journals: Iterable[str], begin: Callable[[str], Call[T]], again: Callable[[str], T]
) -> dict[str, T]:
    answers: dict[str, T] = {}
    under_way: deque[Call[T]] = deque()

    def take() -> None:
        call = under_way.popleft()
        try:
            answers[call.journal] = call.take()
        except GazetteError:
            answers[call.journal] = again(call.journal)

    try:
        for journal in journals:
            if len(under_way) == CALLS_IN_FLIGHT:
                take()
            under_way.append(begin(journal))
        while under_way:
            take()
    finally:
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
