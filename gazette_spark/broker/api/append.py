"""Serves the Append RPC: takes a stream of chunks, and commits all of it or nothing."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from gazette_spark.broker.api import append_fsm
from gazette_spark.broker.api.append_fsm import StreamEvent, StreamState, SuspendStep
from gazette_spark.broker.api.append_txn import AppendTxn, CommittedAppend
from gazette_spark.broker.api.call import Resolved, ServedCall, ServiceContext, await_request, resolve
from gazette_spark.broker.api.flow_control import TICK_S, MinRate, effective_max_rate
from gazette_spark.broker.api.message_pump import MessageSource, NoMessage
from gazette_spark.broker.journal import JournalClosedError, LiveJournal
from gazette_spark.broker.registry import JournalCatalog
from gazette_spark.broker.replication.proxy import proxy_append
from gazette_spark.errors import NotAllowedError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.requests import validate_append_request

FIRST_MESSAGE_TIMEOUT_S = 10.0
"""Seconds for which a client may occupy a thread between opening an append and sending its first message."""

COMMIT_PATIENCE_S = 5.0
"""Seconds that replicas have to acknowledge a commit after its client has gone."""

_Suspend = pb.JournalSpec.Suspend


@dataclass(eq=False)
class AppendAbortedError(ProtocolError):
    """The append's stream broke a rule and was rolled back. The text is that of Gazette's broker."""

    def __str__(self) -> str:
        return self.problem


def append(
    context: ServiceContext, messages: MessageSource[pb.AppendRequest], call: ServedCall
) -> pb.AppendResponse:
    """Serve one append, and close its messages.

    Raises:
        ProtocolError: the request or its stream breaks a rule; nothing was appended.
        JournalClosedError: the broker stops; nothing was appended.
        ReplicationError: a replica was lost; the content may or may not be appended.
        PeerError: the append was proxied to the primary, which failed.
        OSError: the disk failed; nothing was appended.
    """
    try:
        # An open call without a message occupies one of the server's threads, whose number is fixed.
        request = messages.take(FIRST_MESSAGE_TIMEOUT_S)
        if isinstance(request, NoMessage):
            raise _aborted(append_fsm.UNEXPECTED_EOF)
        # Validate before any waiting, so that a request that breaks a rule is answered immediately.
        validate_append_request(request, first=True)
        # A client or a proxying broker may have a newer revision, in which this journal exists or has other
        # members.
        if not await_request(context, request, call):
            raise JournalClosedError
        # The journal's members may change while the append waits. Until content is read from the stream,
        # starting over loses nothing, so the client does not notice it.
        while (response := _attempt(context, request, messages, call)) is None:
            if not call.is_awaited():
                raise JournalClosedError
        return response
    finally:
        # Close the messages in any case. Otherwise the thread that reads them would wait for the next one.
        messages.close()


def _attempt(
    context: ServiceContext,
    request: pb.AppendRequest,
    messages: MessageSource[pb.AppendRequest],
    call: ServedCall,
) -> pb.AppendResponse | None:
    """Serve the append with the journal's current members; None if they changed before content was taken."""
    # First find the broker that serves the append. Only the primary may, because one broker has to decide the
    # order.
    may_proxy = not request.do_not_proxy
    resolved = resolve(context, request.journal, call.claims, need_primary=True, may_proxy=may_proxy)
    # A fully suspended journal has no members. Resuming it changes its spec, so that members are assigned,
    # and the append starts over. It may then meet NO_JOURNAL_PRIMARY_BROKER for a moment, which clients
    # retry.
    if resolved.status == pb.SUSPENDED and request.suspend == pb.AppendRequest.SUSPEND_RESUME:
        assert resolved.spec is not None
        with suppress(_MovedError):
            _suspend(context, resolved, _Suspend.NONE, resolved.spec.suspend.offset)
        return None
    if resolved.status != pb.OK:
        return _refusal(context, request.journal, resolved.status)
    assert resolved.spec is not None
    # With fewer replicas than the spec requires, the loss of a single broker could lose an acknowledged
    # append.
    if sum(member is not None for member in resolved.slots) < context.registry.keyspace.replica_count(
        resolved.spec
    ):
        return _refusal(context, request.journal, pb.INSUFFICIENT_JOURNAL_BROKERS)
    journal = resolved.journal
    if journal is None:
        return proxy_append(context, request, resolved, messages, call)
    # A client that leaves while its append waits for the turn must not keep its place in the queue.
    call.wake_when_over(journal.wake)
    # Appends to a journal are made one at a time, in the order of their arrival, so their bytes are never
    # mixed. A client that sends slowly also delays those behind it, which is the reason for the minimum rate.
    with journal.fair_lock.turn(lambda: call.is_awaited() and not journal.closed) as granted:
        # The wait may have taken long, so check everything again that could have changed.
        if context.registry.stopped or not call.is_awaited():
            raise JournalClosedError
        # The journal may have moved to other brokers while this append waited for its turn.
        if not granted or not resolved.is_current(context):
            return None
        return _AppendTurn(context, request, resolved, journal, call).run(messages)


class _MovedError(Exception):
    """The journal has other members, or another spec, than those for which an append was resolved."""


def _suspend(context: ServiceContext, resolved: Resolved, level: int, offset: int) -> None:
    """Change the suspension of the journal that a call was resolved for.

    Raises:
        _MovedError: it has moved to other brokers, or was created again.
    """
    assert resolved.spec is not None

    spec = resolved.spec

    # Nothing changes between this check and the change. A former primary lacks what its successors have
    # appended, and would suspend a journal as empty whose bytes only they have. The offset of a suspension
    # does not apply to a journal that was created again.
    def check(catalog: JournalCatalog) -> None:
        entry = catalog.items.get(spec.name)
        if entry is None or entry.spec.suspend != spec.suspend or not resolved.is_current(context):
            raise _MovedError

    context.registry.set_suspension(spec.name, level, offset, check)


def _refusal(context: ServiceContext, journal: str, status: int, problem: str = "") -> pb.AppendResponse:
    # A caller that may not see a journal must not see its route either.
    header = context.header(None if status == pb.JOURNAL_NOT_FOUND else journal)
    return pb.AppendResponse(status=pb.Status.Name(status), header=header, store_health_error=problem)


def _aborted(text: str) -> AppendAbortedError:
    return AppendAbortedError("append stream", text)


class _AppendTurn:
    """One append while it has its journal's turn."""

    def __init__(
        self,
        context: ServiceContext,
        request: pb.AppendRequest,
        resolved: Resolved,
        journal: LiveJournal,
        call: ServedCall,
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

    def run(self, messages: MessageSource[pb.AppendRequest]) -> pb.AppendResponse | None:  # noqa: PLR0911, PLR0912
        """Check the preconditions, stage the content, commit.

        Returns:
            The answer, or None if the journal's members changed before any content was taken.
        """
        journal, request = self._journal, self._request
        # Below, this thread waits for replicas. If one of them hangs, only the end of the call ends the wait.
        self._call.wake_when_over(self._give_up)
        try:
            # The replicas agree first. One of them may have a commit of an earlier primary. Agreeing on it
            # moves the write head and the registers, against which the preconditions are checked.
            if not self._context.replicator.prepare(journal, self._resolved.slots):
                return None

            # Bytes that no store accepts stay on this broker's disk, so an unhealthy store has to stop
            # appends before they fill it.
            if (store := journal.first_store) is not None:
                problem = store.problem() or self._context.persister.lasting_problem(journal)
                if problem:
                    return _refusal(self._context, journal.name, pb.FRAGMENT_STORE_UNHEALTHY, problem)

            # Check the preconditions: registers, then the offset. They stay true until the commit, because no
            # other append has the turn.
            plan = journal.plan(request)
            if plan.status != pb.OK:
                response = _refusal(self._context, journal.name, plan.status)
                if plan.status == pb.REGISTER_MISMATCH:
                    response.registers.CopyFrom(journal.head().registers)
                    response.registers.SetInParent()  # Gazette's client refuses an answer without registers.
                return response

            # Suspension comes after the preconditions, because an append that they refuse must not resume the
            # journal.
            begin = journal.head().spool_end if plan.roll_to is None else plan.roll_to
            try:
                if self._is_suspended(begin):
                    return _refusal(self._context, journal.name, pb.SUSPENDED)
            except _MovedError:
                return None
            # A resumed journal is assigned more replicas, and the append has to reach those, too.
            if not self._resolved.is_current(self._context):
                return None

            # After this, content is read from the stream and cannot be read a second time: the append commits
            # or fails.
            txn = journal.start_append(plan)
            committed: CommittedAppend | None = None
            try:
                self._stage(txn, messages)
                committed = self._commit(txn)
            except NotAllowedError:
                # This is detected only with the first content: a read-only journal accepts appends without
                # bytes.
                return _refusal(self._context, journal.name, pb.NOT_ALLOWED)
            finally:
                # Otherwise staged bytes would become part of the next append.
                if committed is None:
                    txn.roll_back()
        finally:
            self._is_over = True
            if self._patience is not None:
                self._patience.cancel()

        # This is the range of this append alone, with the SHA-1 of its bytes, by which a client recognises
        # it. The fragment that contains the append has another range and sum.
        extent = (committed.begin, committed.end, committed.sum, committed.codec)
        response = pb.AppendResponse(
            status=pb.OK,
            header=self._context.header(journal.name),
            commit=Fragment(journal.name, *extent).to_pb(),
            registers=committed.registers,
            total_chunks=self._chunks,
            delayed_chunks=self._delayed,
        )
        response.registers.SetInParent()  # Gazette's client refuses an answer without registers.
        return response

    def _give_up(self) -> None:
        """Drop a replica that does not answer when the client no longer waits for it.

        A commit in progress gets more time. If some replicas commit it and others do not, the journal has a
        hole at the others until the bytes are stored.
        """
        pipeline = self._journal.pipeline
        if self._is_over or pipeline is None:
            return
        # Nothing has been proposed, so nothing can be partly done: the replicas drop what they staged.
        if not self._is_committing:
            pipeline.cancel()
            return

        def cancel_unless_over() -> None:
            if not self._is_over:
                pipeline.cancel()

        # Replicas that have committed cannot undo the commit. If all commit, the client's retry appends the
        # bytes a second time, which appends may do. That is better than replicas with different ends.
        self._patience = threading.Timer(COMMIT_PATIENCE_S, cancel_unless_over)
        self._patience.daemon = True
        self._patience.start()

    def _is_suspended(self, begin: int) -> bool:
        """Act on the request's suspend field.

        Returns:
            Whether the journal is suspended now, which ends the append. It would have begun at ``begin``.
        """
        journal = self._journal
        step = append_fsm.suspend_step(journal.spec.suspend.level, self._request)
        if step is SuspendStep.RESUME:
            _suspend(self._context, self._resolved, _Suspend.NONE, begin)
        if step is not SuspendStep.TRY:
            return step is SuspendStep.REFUSE
        ignore_age = self._request.suspend == pb.AppendRequest.SUSPEND_NOW
        head = journal.head()
        # Only stored fragments outlive the replicas that a suspended journal gives up.
        if ignore_age and head.spool_end > head.spool_begin:
            journal.roll()
            journal.persist()
        # The stored fragments determine how far the journal can be suspended: fully if there are none,
        # partially if no broker is needed for any byte.
        fragments = [(fragment.end, fragment.mod_time) for fragment in journal.view.fragments()]
        reachable = append_fsm.suspend_level(fragments, journal.spec, ignore_age=ignore_age, now=time.time())
        level = journal.spec.suspend.level
        if reachable > level:  # A journal that is suspended further stays so.
            _suspend(self._context, self._resolved, reachable, begin)
        return max(level, reachable) != _Suspend.NONE

    def _stage(self, txn: AppendTxn, messages: MessageSource[pb.AppendRequest]) -> None:
        """Stage the stream's content; raise unless the client means to commit it."""
        # Content is written to its final place as it arrives, behind the committed bytes, so an append of any
        # size takes little memory. Readers do not see it, and a roll-back only moves the end back.
        journal, state = self._journal, StreamState.CONTENT
        rate = MinRate.start(self._context.min_append_rate, time.monotonic())
        while state is not StreamState.COMMIT:
            # Do not wait longer than a tick, so that a client that sends nothing is noticed.
            message = messages.take(TICK_S)
            content = b"" if isinstance(message, NoMessage) else message.content
            rate = rate.at_time(time.monotonic()).delivered(len(content))
            # The connection broke, or the client cancelled. That is not a half-close, even if the marker has
            # arrived.
            if message is NoMessage.BROKEN:
                raise _aborted(append_fsm.UNEXPECTED_EOF)
            # The rate counts even when a message has arrived: a client that sends a few bytes at a time
            # blocks the journal as long as a silent one does.
            if rate.underflow and message is not NoMessage.END:
                raise _aborted(append_fsm.UNDERFLOW)
            if message is NoMessage.NOT_YET:
                txn.flush()  # Use the pause: staged bytes are on their way to the replicas.
                continue
            if isinstance(message, NoMessage):
                event = StreamEvent.HALF_CLOSE
            else:
                event = append_fsm.classify(message, content)
                self._chunks += 1
            # Only a marker that is followed by a half-close leads to COMMIT.
            state, problem = append_fsm.TRANSITIONS[state, event]
            if problem:
                raise _aborted(problem)
            if event is not StreamEvent.CHUNK:
                continue
            if not append_fsm.may_carry_content(journal.spec, self._request):
                raise NotAllowedError(journal.name)
            # Wait until the journal's maximum rate has room for the chunk. The credit belongs to the journal,
            # not to the append. Otherwise many small appends could exceed the rate.
            now = time.monotonic()
            max_rate = effective_max_rate(journal.spec.max_append_rate, self._context.max_append_rate)
            journal.max_rate, delay_s = journal.max_rate.at_time(now, max_rate).take(len(content))
            self._delayed += bool(delay_s)
            while (remaining_s := now + delay_s - time.monotonic()) > 0:
                # A chunk may be delayed for long, and its client may be gone by then.
                if journal.closed or not self._call.is_awaited():
                    raise _aborted(append_fsm.UNEXPECTED_EOF)
                time.sleep(min(remaining_s, TICK_S))
            txn.write(content)
            # The time of the disk, the replicas and the maximum rate does not reduce the client's credit.
            rate = rate.resumed(time.monotonic())

    def _commit(self, txn: AppendTxn) -> CommittedAppend:
        # Set the flag before checking the client. Otherwise the replicas of a client that leaves in between
        # would be cut off in the middle of the commit.
        self._is_committing = True
        if not self._call.is_awaited():
            raise _aborted(append_fsm.UNEXPECTED_EOF)
        # If the broker stops, the commit below fails with a status after which clients try again.
        if self._journal.abandoned and not self._context.registry.stopped:
            raise _aborted(f"journal {self._journal.name} was deleted during the append")
        # The registers change with the bytes, in the same commit record, or not at all.
        if not append_fsm.modifies_registers(self._request):
            return txn.commit_append(txn.registers)
        # Registers are replicated and stored with a commit, and an append without bytes makes none.
        if not txn.size:
            raise _aborted(append_fsm.REGISTERS_NEED_CONTENT)
        return txn.commit_append(append_fsm.next_registers(txn.registers, self._request))
