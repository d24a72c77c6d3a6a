"""Runs a shard's transactions: decides when each one begins, reads, waits and commits, and does each step.

There are three classes, from the decision to the action:

- :class:`Transactions` decides what a shard does next. It is pure.
- :class:`ApplicationCalls` calls the application in the order that both hosts guarantee. The tasks of the
  host on Spark also use it.
- :class:`TransactionLoop` carries out the decisions, in the thread of a shard on the local host.

At most two transactions overlap: while the *prior* one commits and then acknowledges, the *present* one
consumes. The following table shows the states of both, and the step that :meth:`Transactions.next` returns:

============  ===================  ==========================  ===============================================
present       prior                reading                     next
============  ===================  ==========================  ===============================================
any           any                  yes, a message delivered    CONSUME it
any           COMMITTING, ACKING   yes, or no more             WAIT: the prior one has to be done
IDLE          DONE                 yes                         WAIT for a message
IDLE          DONE                 no: sources are closed      END
YOUNG         DONE                 yes, or no more             WAIT: the minimum duration is not over
OPEN          DONE                 yes, and one of its         WAIT: the acknowledgement of that sequence may
                                   sequences is pending        come before the maximum duration is over
OPEN          DONE                 yes                         POLL: COMMIT if nothing is ready
OPEN, FULL    DONE                 no more                     COMMIT
============  ===================  ==========================  ===============================================

Events change the states as follows:

====================  ========================================================================================
event                 effect
====================  ========================================================================================
``begin``             IDLE → YOUNG, before its first message is consumed
``consumed``          the message is in the transaction
``deferred``          reads no more: the message is the next transaction's. An error if it is the first
``tick``              YOUNG → OPEN when the minimum is over; OPEN → FULL at the maximum: reads no more
``sources_closed``    reads no more, and neither do later transactions
``start_commit``      present → prior, COMMITTING; a new one is IDLE, and reads. Only if ``next`` is COMMIT,
                      or POLL and nothing is ready
``committed``         prior COMMITTING → ACKING
``acknowledged``      prior ACKING → DONE: its progress may be reported
====================  ========================================================================================

A commit or an acknowledgement that fails ends the shard, so there is no state for it. The caller passes the
time, in seconds from any origin.

A message that is not delivered, because it is a copy or a rollback, is still read through.
:meth:`Transactions.skipped` returns where to report that: a caller of Stat may wait for its offset, and there
may be no later message. Its offset gets into a stored checkpoint only with the next transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from gazette_spark.client._append.futures import failure_of, finished_operation
from gazette_spark.client._append.service import AsyncAppend, AsyncJournalClient
from gazette_spark.consumer.application import Application, BeginFinisher, DeferToNextTransaction, Shard
from gazette_spark.consumer.checkpoints import build_checkpoint, read_through, sequencer_of
from gazette_spark.consumer.sources import Sources
from gazette_spark.consumer.specs import recovery_log
from gazette_spark.errors import (
    ClosedError,
    GazetteError,
    PermanentError,
    ShardFailedError,
    TransactionOrderError,
)
from gazette_spark.failpoints import failpoint
from gazette_spark.message.bulk_sequencer import REMEMBERED
from gazette_spark.message.interfaces import Envelope
from gazette_spark.message.publisher import Publisher, PublisherClock
from gazette_spark.message.sequencer import DROPPED, HELD_BACK, HORIZON_NS, Outcome
from gazette_spark.protocol import consumer_pb2 as pc

logger = logging.getLogger(__name__)

DRAIN_S = 5.0
"""Seconds for which a shard that is told to stop waits for a commit and acknowledgements in progress."""

NOT_RUNNING, CONSUMING, STALLED, PREPARING, COMMITTING, ACKNOWLEDGING = PHASES = (
    "10-not-running",
    "20-consuming",
    "30-stalled",
    "40-preparing",
    "50-committing",
    "60-acknowledging",
)
"""Phases of a transaction, with the names in Gazette's metrics."""

FIRST_DEFERRED = "the application deferred the first message of a transaction, which would be empty"

# A rollback is an acknowledgement that commits nothing: its clock is not above that of the producer's last
# acknowledgement. The sequencer reads through it, and the application never sees it.
SKIPPED = DROPPED | {Outcome.ACK_ROLLBACK}
"""Outcomes after which a message is read through but never delivered."""


class Present(Enum):
    """State of the present transaction."""

    IDLE = "idle"
    """It has no message yet."""
    YOUNG = "young"
    """Its minimum duration is not over."""
    OPEN = "open"
    """Its minimum duration is over, but its maximum duration is not."""
    FULL = "full"
    """Its maximum duration is over."""


class Prior(Enum):
    """State of the previous transaction."""

    COMMITTING = "committing"
    ACKING = "acking"
    """It is committed, but not all of its acknowledgements are appended."""
    DONE = "done"


class Next(Enum):
    """What the host does next."""

    CONSUME = "consume"
    """Let the application consume the delivered message."""
    WAIT = "wait"
    """Wait for the prior transaction, for the deadline and, if :attr:`Transactions.reads`, for a message."""
    POLL = "poll"
    """Take a message if one is ready; otherwise, start to commit."""
    COMMIT = "commit"
    """Start to commit."""
    END = "end"
    """There is nothing left to do, and no message will come."""


class ReportSkipped(Enum):
    """Where to report the progress that a skipped message makes."""

    NOW = "now"
    WITH_PRIOR = "with prior"
    """Together with the progress of the prior transaction, when that is done."""
    WITH_PRESENT = "with present"
    """The checkpoint of the present transaction includes the progress, so there is nothing to do."""


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """The limits for transactions in a shard's spec."""

    min_s: float
    max_s: float
    waits_for_acks: bool = True
    """Whether a transaction stays open for sequences that began in it and are not acknowledged yet."""

    @classmethod
    def of(cls, spec: pc.ShardSpec) -> TransactionLimits:
        """Return the limits of a spec."""
        return cls(
            spec.min_txn_duration.ToNanoseconds() / 1e9,
            spec.max_txn_duration.ToNanoseconds() / 1e9,
            not spec.disable_wait_for_ack,
        )


class Transactions:
    """Decides about the transactions of one assignment of a shard; see the module. Pure, for one thread."""

    def __init__(self) -> None:
        self.present = Present.IDLE
        self.prior = Prior.DONE
        self.reads = True
        """Whether the present transaction takes messages."""
        self.consumed_messages = 0
        """Number of messages in the present transaction."""
        self.stalled_since_s: float | None = None
        """Time at which the present transaction became full while the prior one was not done; else None."""
        self._closed = False
        # Limits are taken from the spec when a transaction begins. A spec that is applied later counts from
        # the next transaction on, so the deadlines of an open transaction do not change.
        self._limits = TransactionLimits(0, 0)
        self._began_s = 0.0

    def __repr__(self) -> str:
        return (
            f"Transactions(present={self.present.name}, prior={self.prior.name}, reads={self.reads}, "
            f"consumed_messages={self.consumed_messages})"
        )

    @property
    def deadline_s(self) -> float | None:
        """Time at which :meth:`tick` will change something; None if only other events will."""
        if self.present is Present.YOUNG:
            return self._began_s + self._limits.min_s
        if self.present is Present.OPEN:
            return self._began_s + self._limits.max_s
        return None

    def next(self, *, delivered: bool, pending: bool) -> Next:
        """Return what to do.

        Args:
            delivered: Whether the sequencer has delivered a message that is not consumed yet.
            pending: Whether a sequence that began in the present transaction waits for its acknowledgement.
        """
        # Consuming comes before everything else, even while the prior transaction commits: this overlap makes
        # transactions cheap. Also, a message that the sequencer has delivered cannot be put back.
        if self.reads and delivered:
            return Next.CONSUME
        # At most two transactions overlap: a store never starts a commit before the previous
        # commit has ended.
        if self.prior is not Prior.DONE:
            return Next.WAIT
        # No transaction is empty: a commit without a message would only repeat the checkpoint.
        if self.present is Present.IDLE:
            return Next.WAIT if self.reads else Next.END
        # Ending a transaction within a sequence costs a replay, because the sequence's messages leave the
        # ring.
        waits_for_acks = pending and self.reads and self._limits.waits_for_acks
        if self.present is Present.YOUNG or waits_for_acks:
            return Next.WAIT
        # An open transaction ends as soon as no message is ready, as in Gazette: waiting longer would add
        # latency, and under load the next message is always ready. A full or draining transaction takes no
        # more messages, so there is nothing to poll for.
        return Next.POLL if self.reads else Next.COMMIT

    def begin(self, now_s: float, limits: TransactionLimits) -> None:
        """Begin the present transaction, whose first message will be consumed next."""
        self._check(self.present is Present.IDLE and self.reads, "begin")
        self.present, self._began_s, self._limits = Present.YOUNG, now_s, limits
        self.stalled_since_s = None

    def consumed(self) -> None:
        """Count a message that the application has consumed."""
        self._check(self.present is not Present.IDLE and self.reads, "consume")
        self.consumed_messages += 1

    def deferred(self) -> None:
        """Leave the delivered message to the next transaction.

        Raises:
            TransactionOrderError: the message is the transaction's first one.
        """
        if self.consumed_messages == 0:
            raise TransactionOrderError(FIRST_DEFERRED)
        self.reads = False

    def tick(self, now_s: float) -> None:
        """Set the time. Call this at least once before each :meth:`next`."""
        if self.present is Present.YOUNG and now_s >= self._began_s + self._limits.min_s:
            # One call may make both steps, because consuming a single message may take longer than the
            # maximum.
            self.present = Present.OPEN
        if self.present is Present.OPEN and now_s >= self._began_s + self._limits.max_s:
            self.present = Present.FULL
            self.reads = False
            if self.prior is not Prior.DONE:
                self.stalled_since_s = now_s

    def sources_closed(self) -> None:
        """Note that no more messages will come: commit what was consumed, and end."""
        self._closed = True
        self.reads = False

    def start_commit(self) -> None:
        """Make the present transaction the prior one."""
        ready = self.present in (Present.OPEN, Present.FULL) and self.prior is Prior.DONE
        self._check(ready and self.consumed_messages > 0, "start to commit")
        # The next transaction reads again, whether this one ended by a deferral, by its maximum duration or
        # because no message was ready. Only closed sources stay closed.
        self.present, self.prior = Present.IDLE, Prior.COMMITTING
        self.reads = not self._closed
        self.consumed_messages = 0

    def committed(self) -> None:
        """Note that the store has committed the prior transaction."""
        self._check(self.prior is Prior.COMMITTING, "be committed")
        self.prior = Prior.ACKING

    def acknowledged(self) -> None:
        """Note that all acknowledgements of the prior transaction are appended."""
        self._check(self.prior is Prior.ACKING, "be acknowledged")
        self.prior = Prior.DONE

    def skipped(self) -> ReportSkipped:
        """Return where to report the progress of a message that was read but is not delivered."""
        # The sequencer's offset is already past the skipped message, so the checkpoint of an open transaction
        # includes it. Without an open transaction, it is reported immediately, but never before the prior
        # transaction: reported progress promises that everything before it is committed and acknowledged.
        if self.present is not Present.IDLE:
            return ReportSkipped.WITH_PRESENT
        return ReportSkipped.NOW if self.prior is Prior.DONE else ReportSkipped.WITH_PRIOR

    def _check(self, allowed: bool, step: str) -> None:  # noqa: FBT001  # An assertion.
        if not allowed:
            raise TransactionOrderError(f"a transaction cannot {step} now: {self!r}")


class ApplicationCalls:
    """Calls an application for one transaction after another: begin, consume, finalize, finish.

    Every ``begin_txn`` is followed by one ``finish_txn``, even if a step between them fails. An exception of
    the application becomes a ShardFailedError that names the step.
    """

    def __init__(
        self,
        app: Application[Any],
        shard: Shard,
        store: Any,  # noqa: ANN401  # The application's.
        publisher: Publisher,
    ) -> None:
        self._has_begun = False
        """Whether ``finish_txn`` has to be called."""
        self._consumed_messages = 0
        self._app = app
        # Check this once: checking a runtime protocol compares the names of methods and is slow.
        self._hooks = app if isinstance(app, BeginFinisher) else None
        self._shard = shard
        self._store = store
        self._publisher = publisher

    def begin(self) -> None:
        """Begin a transaction."""
        if (hooks := self._hooks) is not None:
            self._call("begin_txn", lambda: hooks.begin_txn(self._shard, self._store))
        # Set this only now, because a failed begin_txn has taken nothing that finish_txn would release.
        self._has_begun, self._consumed_messages = True, 0

    def consume(self, envelope: Envelope) -> bool:
        """Let the application consume a message; return False if it defers the message."""
        # This runs for each message, so the text of an error is made only if there is an error.
        try:
            # The publisher stamps messages and appends them in the background. They are uncommitted
            # (CONTINUE_TXN) until this transaction's intents are appended, so readers withhold them.
            self._app.consume_message(self._shard, self._store, envelope, self._publisher)
        except Exception as error:
            step = f"consume_message of journal {envelope.journal!r}, offset {envelope.begin}"
            if not isinstance(error, DeferToNextTransaction):
                raise failed(self._shard.spec.id, step, error) from error
            if self._consumed_messages:
                return False
            # The next transaction would begin with the same message, as would all later ones.
            raise failed(self._shard.spec.id, step, TransactionOrderError(FIRST_DEFERRED)) from error
        self._consumed_messages += 1
        return True

    def finalize(self) -> None:
        """Let the application move its data in memory into the store, and publish."""
        self._call("finalize_txn", lambda: self._app.finalize_txn(self._shard, self._store, self._publisher))

    def finish(self, commit: Future[None]) -> None:
        """Tell the application that its transaction starts to commit."""
        # Clear this first: if finish_txn itself raises, abort must not call it a second time.
        self._has_begun = False
        if (hooks := self._hooks) is not None:
            self._call("finish_txn", lambda: hooks.finish_txn(self._shard, self._store, commit))

    def abort(self, error: BaseException) -> None:
        """Tell the application that its transaction has failed, if one has begun."""
        # A commit that fails later, in the background, is not reported here: by then, finish_txn has been
        # called with the commit's future.
        if self._has_begun:
            try:
                self.finish(finished_operation(error))
            except ShardFailedError:  # The error of the transaction is more useful.
                logger.exception("shard.finish_txn_failed shard=%s", self._shard.spec.id)

    def _call(self, step: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            raise failed(self._shard.spec.id, step, error) from error


@dataclass(slots=True)
class TransactionCounts:
    """Counts of one assignment's transactions, for metrics. Only the shard's thread changes them."""

    transactions: int = 0
    """Number of committed and acknowledged transactions. All other numbers are about these."""
    messages: int = 0
    read_bytes: int = 0
    phase_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Seconds by phase. If two phases overlap, both count."""


class LoopShard(Shard, Protocol):
    """What the loop needs of its shard in addition to what applications use."""

    counts: TransactionCounts

    def report(self, read: dict[str, int], published: dict[str, int]) -> None:
        """Add offsets to the progress, and wake threads that wait for it."""

    def transaction_began(self) -> None:
        """Do work that is rarely needed. Called between transactions."""


@dataclass(slots=True)
class _PriorTransaction:
    """A transaction that commits or acknowledges."""

    commit: Future[None]
    acknowledgements: dict[str, AsyncAppend]
    read: dict[str, int]
    """Progress to report when the transaction is done."""
    messages: int
    read_bytes: int
    phase_s: dict[str, float]
    since_s: float
    """When the current phase began."""

    def end_phase(self, phase: str) -> None:
        """Note that a phase has ended and another one begins."""
        now_s = time.monotonic()
        self.phase_s[phase], self.since_s = now_s - self.since_s, now_s


class TransactionLoop:
    """The transactions of one assignment of a shard. All methods are for the shard's thread."""

    def __init__(
        self,
        shard: LoopShard,
        app: Application[Any],
        store: Any,  # noqa: ANN401  # The application's.
        checkpoint: pc.Checkpoint,
        sources: Sources,
    ) -> None:
        """Continue after a checkpoint whose intents have been appended.

        Args:
            shard: The shard.
            app: Application that consumes the shard's messages.
            store: The shard's open store.
            checkpoint: The store's checkpoint.
            sources: Readers of the messages after the checkpoint.
        """
        self._shard = shard
        self._store = store
        self._sources = sources
        self._inbox = sources.inbox
        self._service: AsyncJournalClient = shard.append_service
        # One clock serves everything that the shard publishes, so that in every journal the acknowledgements
        # of a transaction are later than its messages. Readers drop a message whose clock is not above the
        # last acknowledgement.
        self._clock = PublisherClock()
        self._publisher = Publisher(self._service, self._clock)
        self._calls = ApplicationCalls(app, shard, store, self._publisher)
        # The checkpoint has the offsets and the producers' states, but not the messages of open sequences. If
        # such a sequence is acknowledged later, the sequencer requests a replay of its bytes.
        self._sequencer = sequencer_of(checkpoint, shard.spec)
        self._machine = Transactions()
        self._delivered: Envelope | None = None
        """The committed message that the application consumes next."""
        self._prior: _PriorTransaction | None = None
        self._prepared_s = time.monotonic()
        """Time at which the prior transaction began to commit."""
        self._began_s = 0.0
        self._read_bytes = 0
        """Number of bytes that the present transaction has consumed."""

    def __repr__(self) -> str:
        return f"TransactionLoop({self._shard.spec.id!r}, {self._machine!r})"

    def run(self) -> None:  # noqa: C901, PLR0912 - told in order
        """Run transactions until the sources are closed, or the shard is told to stop.

        Raises:
            ShardFailedError: the application, the store or a journal has failed.
        """
        try:
            while not self._shard.stopping.is_set():
                # Commits and appends end in other threads, which only wake this one. All states change here,
                # in one thread and at one place in the loop, so the machine needs no lock.
                if self._prior is not None:
                    self._advance_prior(self._prior)
                if self._inbox.is_closed:
                    # The host drains the shard: it takes no more messages, the open transaction is committed,
                    # and the loop ends when it is acknowledged.
                    self._machine.sources_closed()
                # The machine does not read the clock: the time is set here, once in each round. A wall clock
                # may be set back, which would keep a transaction open.
                now_s = time.monotonic()
                self._machine.tick(now_s)
                has_message, is_pending = self._delivered is not None, self._sequencer.has_pending()
                match self._machine.next(delivered=has_message, pending=is_pending):
                    case Next.CONSUME:
                        self._consume()
                    case Next.WAIT:
                        # A transaction that takes no more messages waits only for other events. If messages
                        # also ended the wait, a full inbox would make this a busy loop until the prior commit
                        # is done.
                        reads, deadline_s = self._machine.reads, self._machine.deadline_s
                        if not (reads and self._queue_next()):
                            timeout_s = None if deadline_s is None else max(0.0, deadline_s - now_s)
                            self._inbox.wait(timeout_s, for_messages=reads)
                    case Next.POLL:
                        # Under load, reading ahead has filled the inbox, so if no message is here, the
                        # journals have none ready.
                        if not self._queue_next():
                            self._commit()
                    case Next.COMMIT:
                        self._commit()
                    case Next.END:
                        return
            # The shard was told to stop. The messages that the present transaction has consumed are dropped
            # and will be consumed again. Downstream readers wait for the acknowledgements of the prior
            # transaction, so wait a moment for these. If that is too short, the next assignment finds them in
            # the checkpoint.
            until_s = time.monotonic() + DRAIN_S
            while self._prior is not None and (timeout_s := until_s - time.monotonic()) > 0:
                self._advance_prior(self._prior)
                if self._prior is not None:
                    self._inbox.wait(timeout_s, for_messages=False)
            raise ClosedError(f"shard {self._shard.spec.id!r}", "it was told to stop")
        except BaseException as error:
            # Catch BaseException, because begin_txn may have taken something for which other shards wait,
            # such as a semaphore. finish_txn has to release it, regardless of what ends this thread.
            self._calls.abort(error)
            if self._shard.stopping.is_set() and isinstance(error, ClosedError):
                return
            raise

    def _queue_next(self) -> bool:
        """Move a message from the inbox to the sequencer; return False if there is none."""
        try:
            envelope = self._inbox.take()
        except Exception as error:
            raise self._failed("reading messages", error) from error
        if envelope is None:
            return False
        # The sequencer accepts a message only if it has none to deliver. The loop ensures that: as long as
        # there is a delivered message, it is consumed, or the transaction does not read.
        outcome = self._sequencer.queue(envelope)
        if outcome in SKIPPED:
            # A caller of Stat may wait for this offset, although no transaction will contain the message.
            where = self._machine.skipped()
            if where is ReportSkipped.NOW:
                self._shard.report({envelope.journal: envelope.end}, {})
            elif where is ReportSkipped.WITH_PRIOR and self._prior is not None:
                self._prior.read[envelope.journal] = envelope.end
        elif outcome not in HELD_BACK:
            # The message commits itself or the sequence that it acknowledges, which is delivered message by
            # message. A message that is withheld waits in the sequencer for its acknowledgement.
            self._delivered = self._next_delivered()
        return True

    def _next_delivered(self) -> Envelope | None:
        """Return the sequencer's next committed message, after reading a journal again if necessary."""
        attempt = 0
        while True:
            try:
                # The sequence is longer than the ring, or began before the checkpoint, so its first messages
                # are read from the journal again. They must still exist, so a fragment may be pruned only
                # after the oldest open sequence of its readers has passed it.
                if self._sequencer.needs_replay:
                    self._sequencer.start_replay(self._sources.replay(self._sequencer.replay_range()))
                return self._sequencer.step()
            except GazetteError as error:
                # Only the replay is tried again, from where it stopped. Any other error is an error of the
                # sequence itself.
                if not self._sequencer.needs_replay or not self._sources.wait_after(error, attempt):
                    raise self._failed("reading a transaction again", error) from error
            attempt += 1

    def _consume(self) -> None:
        """Let the application consume the delivered message, and begin a transaction if none is open.

        A crash here leaves nothing behind: published messages are never acknowledged, the store has changed
        only in memory, and the messages are consumed again from the last checkpoint on.
        """
        envelope = self._delivered
        assert envelope is not None
        if self._machine.present is Present.IDLE:
            # Hints need no separate timer: a shard without messages records nothing, so its existing hints
            # remain good.
            self._shard.transaction_began()
            self._calls.begin()
            # begin_txn may block for long, but the transaction's minimum duration counts only reading.
            self._began_s, self._read_bytes = time.monotonic(), 0
            self._machine.begin(self._began_s, TransactionLimits.of(self._shard.spec))
            # Update the clock once for each transaction, as Gazette's shards do. Between two updates it ticks
            # by 1 µs for each message, and it never goes back, even if the wall clock does.
            self._clock.update(time.time_ns())
        if not self._calls.consume(envelope):
            # The sequencer has not moved on, so no checkpoint includes the message before it is consumed.
            self._machine.deferred()
            return
        self._machine.consumed()
        self._read_bytes += envelope.end - envelope.begin
        # In this step, the sequencer counts the message as processed.
        self._delivered = self._next_delivered()

    def _commit(self) -> None:
        """Start to commit the present transaction, which becomes the prior one.

        The order of the steps ensures that after a crash between any two of them, each message still counts
        once. All phases after the first run in the background, while the next transaction consumes.
        """
        began_s, messages = time.monotonic(), self._machine.consumed_messages

        # 1. The application moves everything into the store, and publishes the remaining messages. The
        #    changes are only in memory, and the messages are not acknowledged, so a crash drops them.
        self._calls.finalize()
        failpoint("consumer.finalized")

        # 2. The checkpoint records which messages are in the state, and how the published ones will be
        #    acknowledged. The intents are built now, with their clocks, so that any process that recovers the
        #    checkpoint appends exactly the same bytes, and readers drop what is appended twice.
        intents = self._publisher.build_ack_intents()
        checkpoint = build_checkpoint(self._sequencer.checkpoint(HORIZON_NS, REMEMBERED), intents)
        # If a sequence is only partly consumed, the offset of its source stays before the acknowledgement, so
        # that a restart reads the acknowledgement again and continues the sequence. With the offset of the
        # last byte read, the rest of the sequence would be lost.
        progress = read_through(checkpoint)

        # 3. The store commits state and checkpoint together, after everything that was published is durable:
        #    an acknowledgement must not commit messages that are lost. It does not wait for appends to the
        #    recovery log, because the commit itself is one of them. A crash before the store has committed
        #    leaves the transaction undone. After that, the transaction is done and the intents are in its
        #    checkpoint, so the next assignment appends them before it reads.
        log = recovery_log(self._shard.spec)
        try:
            commit = self._store.start_commit(checkpoint, self._service.pending_except(log))
            # A commit that has already failed is an error of this step. Without this check, it would be
            # noticed only after the next transaction has begun to consume.
            if commit.done() and (problem := failure_of(commit)) is not None:
                raise problem
        except Exception as error:
            raise self._failed("start_commit of the store", error) from error
        failpoint("consumer.committing")
        self._machine.start_commit()
        commit.add_done_callback(lambda _: self._inbox.wake())

        # 4. The acknowledgements are appended, each only if the commit succeeds. After a crash between two of
        #    them, the next assignment appends the rest.
        stalled_since_s = self._machine.stalled_since_s
        consumed_s = began_s if stalled_since_s is None else stalled_since_s
        phase_s = {
            NOT_RUNNING: self._began_s - self._prepared_s,
            CONSUMING: consumed_s - self._began_s,
            STALLED: began_s - consumed_s,
        }
        self._prior = _PriorTransaction(
            commit, {}, progress, messages, self._read_bytes, phase_s, since_s=began_s
        )
        self._prior.end_phase(PREPARING)
        self._prepared_s = self._prior.since_s
        for intent in intents:
            # The dependency also fences the acknowledgements: the commit of a store that was fenced off
            # fails, and with a failed dependency, this append and all later ones to the journal fail.
            with self._service.start_append(intent.journal, dependencies=[commit]) as append:
                append.write(intent.intent)
            append.add_done_callback(lambda _: self._inbox.wake())
            self._prior.acknowledgements[intent.journal] = append
            failpoint("consumer.acknowledging")
        # Call this after the acknowledgements are queued, so that a slow hook of the application does not
        # delay them.
        self._calls.finish(commit)

    def _advance_prior(self, prior: _PriorTransaction) -> None:
        """Update the state of the prior transaction, and report its progress when it is done.

        Progress is not reported earlier, because a caller that waits for an offset of a source may then read
        what the shard has published up to it.
        """
        if self._machine.prior is Prior.COMMITTING:
            if not prior.commit.done():
                return
            if (problem := failure_of(prior.commit)) is not None:
                raise self._failed("the store's commit", problem) from problem
            self._machine.committed()
            prior.end_phase(COMMITTING)
            failpoint("consumer.committed")
        # A failed acknowledgement ends the shard, although its transaction is committed. The checkpoint has
        # the intent, so the next assignment appends it. Continuing would report progress whose messages
        # readers do not see yet.
        for journal, append in prior.acknowledgements.items():
            if not append.done():
                return
            if (problem := append.exception()) is not None:
                raise self._failed(f"acknowledging messages in journal {journal!r}", problem) from problem
        self._machine.acknowledged()
        prior.end_phase(ACKNOWLEDGING)
        failpoint("consumer.acknowledged")
        self._prior = None
        # Count the transaction only now, because the next assignment repeats a transaction that fails.
        counts = self._shard.counts
        counts.transactions += 1
        counts.messages += prior.messages
        counts.read_bytes += prior.read_bytes
        for phase, phase_s in prior.phase_s.items():
            counts.phase_s[phase] += phase_s
        # The end of an acknowledgement is after everything that the transaction published to that journal, so
        # a reader that has reached it has seen all of that.
        ends = {journal: append.response.end for journal, append in prior.acknowledgements.items()}
        self._shard.report(prior.read, ends)

    def _failed(self, step: str, error: BaseException) -> ShardFailedError:
        return failed(self._shard.spec.id, step, error)


def failed(shard_id: str, step: str, error: BaseException) -> ShardFailedError:
    """Return the error that ends a shard. Raise it from its cause."""
    # Name the innermost step: an error may come here again on its way up through a second step.
    if isinstance(error, ShardFailedError):
        return error
    # Errors of this package are complete sentences. The text of others, such as KeyError, may mean nothing
    # without their type.
    cause = str(error) if isinstance(error, GazetteError) else f"{type(error).__name__}: {error}"
    return ShardFailedError(shard_id, step, cause, isinstance(error, PermanentError))
