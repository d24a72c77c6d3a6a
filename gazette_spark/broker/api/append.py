"""The Append RPC: take a stream of chunks, and commit all of it or nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from gazette_spark.broker.api import append_fsm
from gazette_spark.broker.api.append_fsm import StreamEvent, StreamState, SuspendStep
from gazette_spark.broker.api.append_txn import AppendTxn, Committed
from gazette_spark.broker.api.call import Call, Resolved, ServiceContext, await_request, resolve
from gazette_spark.broker.api.flow_control import TICK_S, MinRate, effective_max_rate
from gazette_spark.broker.api.message_pump import MessageSource, NoMessage
from gazette_spark.broker.journal import JournalClosedError, LiveJournal
from gazette_spark.broker.replication.pipeline import Pipeline
from gazette_spark.broker.replication.proxy import proxy_append
from gazette_spark.errors import NotAllowedError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.requests import validate_append_request

FIRST_MESSAGE_TIMEOUT_S = 10.0
"""A client that opens an append and says nothing holds a thread for this long."""

COMMIT_PATIENCE_S = 5.0
"""Time that replicas have to acknowledge a commit whose client is gone."""

_Suspend = pb.JournalSpec.Suspend


@dataclass(eq=False)
class AppendAbortedError(ProtocolError):
    """The append's stream broke a rule, and was rolled back. Its text is Gazette's own."""

    def __str__(self) -> str:
        return self.problem


def append(
    context: ServiceContext, messages: MessageSource[pb.AppendRequest], call: Call
) -> pb.AppendResponse:
    """Serve one append, and close its messages.

    Raises:
        ProtocolError: the request or its stream breaks a rule; nothing was appended.
        JournalClosedError: the broker stops; nothing was appended.
        ReplicationError: a replica was lost; the content may come to be appended, or not.
        PeerError: the primary, to which the append was passed on, failed.
        OSError: the disk refused; nothing was appended.
    """
    try:
        request = _first_message(messages)
        if not await_request(context, request, call):
            raise JournalClosedError
        while (response := _attempt(context, request, messages, call)) is None:
            if not call.is_wanted():
                raise JournalClosedError
        return response
    finally:
        messages.close()


def _attempt(
    context: ServiceContext, request: pb.AppendRequest, messages: MessageSource[pb.AppendRequest], call: Call
) -> pb.AppendResponse | None:
    """Serve the append by the journal's members of now; None if they changed before its content was taken."""
    may_proxy = not request.do_not_proxy
    resolved = resolve(context, request.journal, call.claims, need_primary=True, may_proxy=may_proxy)
    if resolved.status == pb.SUSPENDED and request.suspend == pb.AppendRequest.SUSPEND_RESUME:
        assert resolved.spec is not None
        context.registry.set_suspension(resolved.spec.name, _Suspend.NONE, resolved.spec.suspend.offset)
        return None
    if resolved.status != pb.OK:
        return _refusal(context, request.journal, resolved.status)
    assert resolved.spec is not None
    if sum(member is not None for member in resolved.slots) < context.registry.keyspace.wanted(resolved.spec):
        return _refusal(context, request.journal, pb.INSUFFICIENT_JOURNAL_BROKERS)
    journal = resolved.journal
    if journal is None:
        return proxy_append(context, request, resolved, messages, call)
    call.wake_when_over(journal.wake)
    with journal.fair_lock.turn(lambda: call.is_wanted() and not journal.closed) as granted:
        if context.registry.stopped or not call.is_wanted():
            raise JournalClosedError
        if not granted or not resolved.is_current(context):
            return None
        return _AppendTurn(context, request, resolved, journal, call).run(messages)


def _first_message(messages: MessageSource[pb.AppendRequest]) -> pb.AppendRequest:
    request = messages.take(FIRST_MESSAGE_TIMEOUT_S)
    if isinstance(request, NoMessage):
        raise _aborted(append_fsm.UNEXPECTED_EOF)
    validate_append_request(request, first=True)
    return request


def _refusal(context: ServiceContext, journal: str, status: int, problem: str = "") -> pb.AppendResponse:
    header = context.header(None if status == pb.JOURNAL_NOT_FOUND else journal)
    return pb.AppendResponse(status=pb.Status.Name(status), header=header, store_health_error=problem)


def _aborted(text: str) -> AppendAbortedError:
    return AppendAbortedError("append stream", text)


class _AppendTurn:
    """One append that has its journal's turn."""

    def __init__(
        self,
        context: ServiceContext,
        request: pb.AppendRequest,
        resolved: Resolved,
        journal: LiveJournal,
        call: Call,
    ) -> None:
        self._context = context
        self._request = request
        self._resolved = resolved
        self._journal = journal
        self._call = call
        self._chunks = 0
        self._delayed = 0
        self._is_over = False
        self._is_committing = False
        self._patience: threading.Timer | None = None

    def run(self, messages: MessageSource[pb.AppendRequest]) -> pb.AppendResponse | None:
        """Check the preconditions, stage the content, commit.

        Returns:
            The answer, or None if the journal's members changed before any content was taken.
        """
        self._call.wake_when_over(self._give_up)
        try:
            if not self._context.replicator.prepare(self._journal, self._resolved.slots):
                return None
            return self._append(messages)
        finally:
            self._is_over = True
            if self._patience is not None:
                self._patience.cancel()

    def _give_up(self) -> None:
        """Drop a replica that does not answer, when the client no longer waits for it.

        A commit under way is better ended: where some replicas have it and others do not, the journal has a
        hole at the others until the bytes are stored.
        """
        pipeline = self._journal.pipeline
        if self._is_over or pipeline is None:
            return
        if self._is_committing:
            self._patience = threading.Timer(COMMIT_PATIENCE_S, self._lose_patience, [pipeline])
            self._patience.daemon = True
            self._patience.start()
        else:
            pipeline.cancel()

    def _lose_patience(self, pipeline: Pipeline) -> None:
        if not self._is_over:
            pipeline.cancel()

    def _append(self, messages: MessageSource[pb.AppendRequest]) -> pb.AppendResponse | None:
        journal, request = self._journal, self._request
        if (store := journal.first_store) is not None:
            # What cannot be stored stays on the broker's disk, so it must not become ever more.
            problem = store.problem() or self._context.persister.lasting_problem(journal)
            if problem:
                return self._refuse(pb.FRAGMENT_STORE_UNHEALTHY, problem)
        plan = journal.plan(request)
        if plan.status != pb.OK:
            return self._precondition_failed(plan.status)
        # Last: an append that is refused must not resume the journal.
        if self._is_suspended(journal.head().spool_end if plan.roll_to is None else plan.roll_to):
            return self._refuse(pb.SUSPENDED)
        if not self._resolved.is_current(self._context):
            return None  # It is resumed, and has more members now.
        txn = journal.start_append(plan)
        committed: Committed | None = None
        try:
            self._stage(txn, messages)
            committed = self._commit(txn)
        except NotAllowedError:
            return self._refuse(pb.NOT_ALLOWED)
        finally:
            if committed is None:
                txn.roll_back()
        return self._answer(committed)

    def _refuse(self, status: int, problem: str = "") -> pb.AppendResponse:
        return _refusal(self._context, self._journal.name, status, problem)

    def _is_suspended(self, begin: int) -> bool:
        """Act on the request's suspend field; whether the append, which would begin there, ends here."""
        journal = self._journal
        step = append_fsm.suspend_step(journal.spec.suspend.level, self._request)
        if step is SuspendStep.RESUME:
            self._context.registry.set_suspension(journal.name, _Suspend.NONE, begin)
        if step is SuspendStep.TRY:
            return self._try_suspend(begin)
        return step is SuspendStep.REFUSE

    def _try_suspend(self, begin: int) -> bool:
        journal = self._journal
        ignore_age = self._request.suspend == pb.AppendRequest.SUSPEND_NOW
        head = journal.head()
        if ignore_age and head.spool_end > head.spool_begin:
            journal.roll()
            journal.persist()
        present = journal.spec.suspend.level
        held = [(fragment.end, fragment.mod_time) for fragment in journal.view.fragments()]
        reachable = append_fsm.suspend_level(held, journal.spec, ignore_age=ignore_age, now=time.time())
        level = max(present, reachable)
        if level != present:
            self._context.registry.set_suspension(journal.name, level, begin)
        return level != _Suspend.NONE

    def _precondition_failed(self, status: int) -> pb.AppendResponse:
        response = self._refuse(status)
        if status == pb.REGISTER_MISMATCH:
            response.registers.CopyFrom(self._journal.head().registers)
            response.registers.SetInParent()  # An absent empty set is refused by Gazette's client.
        return response

    def _stage(self, txn: AppendTxn, messages: MessageSource[pb.AppendRequest]) -> None:
        """Take the stream to its end; raise unless it ends in a commit."""
        state = StreamState.CONTENT
        rate = MinRate.start(self._context.min_append_rate, time.monotonic())
        while state is not StreamState.COMMIT:
            message = messages.take(TICK_S)
            content = b"" if isinstance(message, NoMessage) else message.content
            rate = rate.at_time(time.monotonic()).delivered(len(content))
            if message is NoMessage.BROKEN:
                raise _aborted(append_fsm.UNEXPECTED_EOF)
            # Whatever came: a client that drips holds the journal as one that is silent does.
            if rate.underflow and message is not NoMessage.END:
                raise _aborted(append_fsm.UNDERFLOW)
            if message is NoMessage.NOT_YET:
                txn.flush()
                continue
            if isinstance(message, NoMessage):
                event = StreamEvent.HALF_CLOSE
            else:
                event = append_fsm.classify(message, content)
                self._chunks += 1
            state, problem = append_fsm.TRANSITIONS[state, event]
            if problem:
                raise _aborted(problem)
            if event is StreamEvent.CHUNK:
                if not append_fsm.may_carry_content(self._journal.spec, self._request):
                    raise NotAllowedError(self._journal.name)
                self._hold_back(len(content))
                txn.write(content)
                rate = rate.resumed(time.monotonic())  # Nor is the time of disk and replicas the client's.

    def _hold_back(self, size: int) -> None:
        """Wait until the journal's maximum rate has room for a chunk; that time is not the client's."""
        journal, now = self._journal, time.monotonic()
        rate = effective_max_rate(journal.spec.max_append_rate, self._context.max_append_rate)
        journal.max_rate, seconds = journal.max_rate.at_time(now, rate).take(size)
        self._delayed += bool(seconds)
        while (left := now + seconds - time.monotonic()) > 0:
            if journal.closed or not self._call.is_wanted():
                raise _aborted(append_fsm.UNEXPECTED_EOF)
            time.sleep(min(left, TICK_S))

    def _commit(self, txn: AppendTxn) -> Committed:
        # First: a client that leaves after this is checked must not break the commit.
        self._is_committing = True
        if not self._call.is_wanted():
            raise _aborted(append_fsm.UNEXPECTED_EOF)
        if self._journal.abandoned:
            raise _aborted(f"journal {self._journal.name} was deleted during the append")
        if not append_fsm.modifies_registers(self._request):
            return txn.commit_append(txn.registers)
        if not txn.size:
            raise _aborted(append_fsm.REGISTERS_NEED_CONTENT)
        return txn.commit_append(append_fsm.next_registers(txn.registers, self._request))

    def _answer(self, committed: Committed) -> pb.AppendResponse:
        fragment = Fragment(
            journal=self._journal.name,
            begin=committed.begin,
            end=committed.end,
            sum=committed.sum,
            codec=committed.codec,
        )
        response = pb.AppendResponse(
            status=pb.OK,
            header=self._context.header(self._journal.name),
            commit=fragment.to_pb(),
            registers=committed.registers,
            total_chunks=self._chunks,
            delayed_chunks=self._delayed,
        )
        response.registers.SetInParent()  # An absent empty set is refused by Gazette's client.
        return response
