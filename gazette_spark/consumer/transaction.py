"""A shard's transactions: when each one begins, reads, waits and commits, and what is done in each step.

Three classes, from the decision to the deed:

- :class:`Transactions` decides what a shard does next. It is pure.
- :class:`ApplicationCalls` calls the application, in the one order that both hosts promise. The tasks of the
  host on Spark also use it.
- :class:`TransactionLoop` does what is decided: it is the thread of a shard on the local host.

Transactions overlap, two at most: while the *prior* one commits and then acknowledges, the *present* one
consumes. The states of both, and what :meth:`Transactions.next` has the host do:

============  ===================  ==========================  ===============================================
present       prior                reading                     next
============  ===================  ==========================  ===============================================
any           any                  yes, a message delivered    CONSUME it
any           COMMITTING, ACKING   yes, or no more             WAIT: the prior one has to be done
IDLE          DONE                 yes                         WAIT for a message
IDLE          DONE                 no: sources are closed      END
YOUNG         DONE                 yes, or no more             WAIT: the minimum duration is not over
OPEN          DONE                 yes, and one of its own     WAIT: the acknowledgement of that sequence may
                                   sequences is pending        come before the maximum duration is over
OPEN          DONE                 yes                         POLL: COMMIT if nothing is ready
OPEN, FULL    DONE                 no more                     COMMIT
============  ===================  ==========================  ===============================================

What happens changes the states so:

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

A commit or an acknowledgement that fails ends the shard: there is no state for it. The caller gives the time,
in seconds from any origin.

A message that is not delivered, because it is a copy or rolls back, is read through all the same.
:meth:`Transactions.skipped` says where to report that: a caller of Stat may wait for its offset, and no other
message may follow. Its offset reaches a stored checkpoint only with the next transaction.
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
"""Seconds that a shard which is told to stop waits for a commit and acknowledgements under way."""

NOT_RUNNING, CONSUMING, STALLED, PREPARING, COMMITTING, ACKNOWLEDGING = PHASES = (
    "10-not-running",
    "20-consuming",
    "30-stalled",
    "40-preparing",
    "50-committing",
    "60-acknowledging",
)
"""Phases of a transaction, by the names that Gazette's metrics have for them."""

FIRST_DEFERRED = "the application deferred the first message of a transaction, which would be empty"

# A rollback is an acknowledgement that commits nothing: its clock is at or below that of the producer's last
# acknowledgement. The sequencer reads through it, and the application never sees it.
SKIPPED = DROPPED | {Outcome.ACK_ROLLBACK}
"""Outcomes after which a message is read through, and never delivered."""


class Present(Enum):
    """State of the present transaction."""

    IDLE = "idle"
    """It has no message yet."""
    YOUNG = "young"
    """Its minimum duration is not over."""
    OPEN = "open"
    """Its minimum duration is over, its maximum is not."""
    FULL = "full"
    """Its maximum duration is over."""


class Prior(Enum):
    """State of the transaction before the present one."""

    COMMITTING = "committing"
    ACKING = "acking"
    """It is committed; not all of its acknowledgements are appended."""
    DONE = "done"


class Next(Enum):
    """What the host does next."""

    CONSUME = "consume"
    """Let the application consume the delivered message."""
    WAIT = "wait"
    """Wait for the prior transaction, for the deadline and, where :attr:`Transactions.reads`, a message."""
    POLL = "poll"
    """Take a message if one is ready; if not, start to commit."""
    COMMIT = "commit"
    """Start to commit."""
    END = "end"
    """There is nothing left to do, and no message will come."""


class ReportSkipped(Enum):
    """Where the progress that a skipped message makes is reported."""

    NOW = "now"
    WITH_PRIOR = "with prior"
    """Together with the progress of the prior transaction, when that is done."""
    WITH_PRESENT = "with present"
    """The checkpoint of the present transaction includes it, so there is nothing to do."""


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """The limits of transactions that a shard's spec sets."""

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
    """Decides about the transactions of one assignment of a shard, see the module. Pure, for one thread."""

    def __init__(self) -> None:
        self.present = Present.IDLE
        self.prior = Prior.DONE
        self.reads = True
        """Whether the present transaction takes messages."""
        self.consumed_messages = 0
        """Messages in the present transaction."""
        self.stalled_since_s: float | None = None
        """When the present transaction became full before the prior one was done; None: it did not."""
        self._closed = False
        # Taken from the spec when a transaction begins. A spec that is applied meanwhile counts from the next
        # transaction on, so the deadlines of an open one do not jump.
        self._limits = TransactionLimits(0, 0)
        self._began_s = 0.0

    def __repr__(self) -> str:
        return (
            f"Transactions(present={self.present.name}, prior={self.prior.name}, reads={self.reads}, "
            f"consumed_messages={self.consumed_messages})"
        )

    @property
    def deadline_s(self) -> float | None:
        """When :meth:`tick` will change something; None: only other events will."""
        if self.present is Present.YOUNG:
            return self._began_s + self._limits.min_s
        if self.present is Present.OPEN:
            return self._began_s + self._limits.max_s
        return None

    def next(self, *, delivered: bool, pending: bool) -> Next:
        """Return what to do.

        Args:
            delivered: Whether the sequencer has delivered a message that is not consumed.
            pending: Whether a sequence that began in the present transaction waits for its acknowledgement.
        """
        # Consuming comes before everything else, even while the prior transaction commits: that overlap is
        # what makes transactions cheap. A message that the sequencer has delivered cannot be put back,
        # either.
        if self.reads and delivered:
            return Next.CONSUME
        # Two transactions at most overlap: a store is never asked to start a commit before the one before has
        # ended.
        if self.prior is not Prior.DONE:
            return Next.WAIT
        # No transaction is empty: a commit without a message would only repeat the checkpoint.
        if self.present is Present.IDLE:
            return Next.WAIT if self.reads else Next.END
        # To end a transaction inside a sequence costs a replay: the sequence's messages leave the ring.
        waits_for_acks = pending and self.reads and self._limits.waits_for_acks
        if self.present is Present.YOUNG or waits_for_acks:
            return Next.WAIT
        # An open transaction ends as soon as no message is ready, as in Gazette: waiting longer would add
        # latency, and under load the next message is always ready. A full or draining one takes no more
        # messages, so there is nothing to poll for.
        return Next.POLL if self.reads else Next.COMMIT

    def begin(self, now_s: float, limits: TransactionLimits) -> None:
        """Begin the present transaction, whose first message is about to be consumed."""
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
            TransactionOrderError: it is the first one.
        """
        if self.consumed_messages == 0:
            raise TransactionOrderError(FIRST_DEFERRED)
        self.reads = False

    def tick(self, now_s: float) -> None:
        """Set the time; call it at least once before each :meth:`next`."""
        if self.present is Present.YOUNG and now_s >= self._began_s + self._limits.min_s:
            # Both steps may be made by one call, because consuming a single message may outlast the maximum.
            self.present = Present.OPEN
        if self.present is Present.OPEN and now_s >= self._began_s + self._limits.max_s:
            self.present = Present.FULL
            self.reads = False
            if self.prior is not Prior.DONE:
                self.stalled_since_s = now_s

    def sources_closed(self) -> None:
        """No more messages will come: commit what is there, and end."""
        self._closed = True
        self.reads = False

    def start_commit(self) -> None:
        """Make the present transaction the prior one."""
        ready = self.present in (Present.OPEN, Present.FULL) and self.prior is Prior.DONE
        self._check(ready and self.consumed_messages > 0, "start to commit")
        # The next transaction reads again, whether this one ended by a deferral, by its maximum or because
        # nothing was ready. Only closed sources stay closed.
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
        """Return where a message that was read, but is not delivered, shows as progress."""
        # The sequencer's offset is already past the skipped message, so the checkpoint of an open transaction
        # includes it. Without one, it is reported at once, but never before the prior transaction: progress
        # that is reported promises that all before it is committed and acknowledged.
        if self.present is not Present.IDLE:
            return ReportSkipped.WITH_PRESENT
        return ReportSkipped.NOW if self.prior is Prior.DONE else ReportSkipped.WITH_PRIOR

    def _check(self, allowed: bool, step: str) -> None:  # noqa: FBT001  # An assertion.
        if not allowed:
            raise TransactionOrderError(f"a transaction cannot {step} now: {self!r}")


class ApplicationCalls:
    """Calls an application for one transaction after another: begin, consume, finalize, finish.

    Every ``begin_txn`` is followed by one ``finish_txn``, whatever fails in between. An exception of the
    application becomes a ShardFailedError that names the step.
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
        # Looked up once: the check of a runtime protocol compares the names of methods, and is slow.
        self._hooks = app if isinstance(app, BeginFinisher) else None
        self._shard = shard
        self._store = store
        self._publisher = publisher

    def begin(self) -> None:
        """Begin a transaction."""
        if (hooks := self._hooks) is not None:
            self._call("begin_txn", lambda: hooks.begin_txn(self._shard, self._store))
        # Only now, because a failed begin_txn holds nothing that finish_txn would release.
        self._has_begun, self._consumed_messages = True, 0

    def consume(self, envelope: Envelope) -> bool:
        """Let the application consume a message; return False if it defers it to the next transaction."""
        # Called for each message, so the text of an error is made only where there is one.
        try:
            # The publisher stamps and appends in the background. What it publishes here is uncommitted
            # (CONTINUE_TXN) until this transaction's intents are appended, so readers hold it back.
            self._app.consume_message(self._shard, self._store, envelope, self._publisher)
        except Exception as error:
            step = f"consume_message of journal {envelope.journal!r}, offset {envelope.begin}"
            if not isinstance(error, DeferToNextTransaction):
                raise failed(self._shard.spec.id, step, error) from error
            if self._consumed_messages:
                return False
            # The next transaction would begin with the same message, and so would all that follow.
            raise failed(self._shard.spec.id, step, TransactionOrderError(FIRST_DEFERRED)) from error
        self._consumed_messages += 1
        return True

    def finalize(self) -> None:
        """Let the application move what it has in memory into the store, and publish."""
        self._call("finalize_txn", lambda: self._app.finalize_txn(self._shard, self._store, self._publisher))

    def finish(self, commit: Future[None]) -> None:
        """Tell the application that its transaction starts to commit."""
        # Cleared first: if finish_txn itself raises, abort must not call it a second time.
        self._has_begun = False
        if (hooks := self._hooks) is not None:
            self._call("finish_txn", lambda: hooks.finish_txn(self._shard, self._store, commit))

    def abort(self, error: BaseException) -> None:
        """Tell the application that its transaction has failed, if one has begun."""
        # A commit that fails later, in the background, is not reported here: finish_txn has been called by
        # then, and has been given the commit's future.
        if self._has_begun:
            try:
                self.finish(finished_operation(error))
            except ShardFailedError:  # The error that the transaction failed with says more.
                logger.exception("shard.finish_txn_failed shard=%s", self._shard.spec.id)

    def _call(self, step: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            raise failed(self._shard.spec.id, step, error) from error


@dataclass(slots=True)
class TransactionCounts:
    """What the transactions of one assignment have done, for metrics. Changed by the shard's thread only."""

    transactions: int = 0
    """Those that are committed and acknowledged; all numbers are theirs."""
    messages: int = 0
    read_bytes: int = 0
    phase_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Seconds by phase; of two that overlap, both count."""


class LoopShard(Shard, Protocol):
    """What the loop needs of its shard besides what applications use."""

    counts: TransactionCounts

    def report(self, read: dict[str, int], published: dict[str, int]) -> None:
        """Add offsets to the progress, and wake those who wait for it."""

    def transaction_began(self) -> None:
        """Called between transactions: time for what is done rarely."""


@dataclass(slots=True)
class _PriorTransaction:
    """A transaction that commits or acknowledges."""

    commit: Future[None]
    acknowledgements: dict[str, AsyncAppend]
    read: dict[str, int]
    """Progress to report when it is done."""
    messages: int
    read_bytes: int
    phase_s: dict[str, float]
    since_s: float
    """When the current phase began."""

    def end_phase(self, phase: str) -> None:
        """Note that a phase has ended, and another one begins."""
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
        """Continue after a checkpoint, whose intents have been appended.

        Args:
            shard: The shard.
            app: Consumes its messages.
            store: Its open store.
            checkpoint: The store's.
            sources: Bring the messages that come after it.
        """
        self._shard = shard
        self._store = store
        self._sources = sources
        self._inbox = sources.inbox
        self._service: AsyncJournalClient = shard.append_service
        # One clock for all that the shard publishes, so that the acknowledgements of a transaction are later
        # than its messages in every journal. Readers drop a message whose clock is not above the last
        # acknowledgement.
        self._clock = PublisherClock()
        self._publisher = Publisher(self._service, self._clock)
        self._calls = ApplicationCalls(app, shard, store, self._publisher)
        # The checkpoint has the offsets and the producers' states, but not the messages of open sequences.
        # Where such a sequence is acknowledged later, the sequencer asks for a replay of its bytes.
        self._sequencer = sequencer_of(checkpoint, shard.spec)
        self._machine = Transactions()
        self._delivered: Envelope | None = None
        """The committed message that the application consumes next."""
        self._prior: _PriorTransaction | None = None
        self._prepared_s = time.monotonic()
        """When the prior transaction began to commit."""
        self._began_s = 0.0
        self._read_bytes = 0
        """Bytes that the present transaction has consumed."""

    def __repr__(self) -> str:
        return f"TransactionLoop({self._shard.spec.id!r}, {self._machine!r})"

    def run(self) -> None:  # noqa: C901, PLR0912 - told in order
        """Run transactions until the sources are closed, or the shard is told to stop.

        Raises:
            ShardFailedError: the application, the store or a journal has failed.
        """
        try:
            while not self._shard.stopping.is_set():
                # Commits and appends end in other threads, which only wake this one. Every state changes
                # here, in one thread and at one place of the loop, so no lock guards the machine.
                if self._prior is not None:
                    self._advance_prior(self._prior)
                if self._inbox.is_closed:
                    # The host drains the shard: it takes no more messages, the open transaction commits, and
                    # the loop ends when that is acknowledged.
                    self._machine.sources_closed()
                # The machine does not look at the clock: the time becomes a state here, once a round. The
                # wall clock may be set back, and would then hold a transaction open.
                now_s = time.monotonic()
                self._machine.tick(now_s)
                has_message, is_pending = self._delivered is not None, self._sequencer.has_pending()
                match self._machine.next(delivered=has_message, pending=is_pending):
                    case Next.CONSUME:
                        self._consume()
                    case Next.WAIT:
                        # A transaction that takes no more messages waits for other events only. If messages
                        # ended the wait as well, a full inbox would make this a busy loop until the prior
                        # commit is done.
                        reads, deadline_s = self._machine.reads, self._machine.deadline_s
                        if not (reads and self._queue_next()):
                            timeout_s = None if deadline_s is None else max(0.0, deadline_s - now_s)
                            self._inbox.wait(timeout_s, for_messages=reads)
                    case Next.POLL:
                        # Reading ahead has filled the inbox under load, so a message that is missing here
                        # means that the journals have none ready.
                        if not self._queue_next():
                            self._commit()
                    case Next.COMMIT:
                        self._commit()
                    case Next.END:
                        return
            # The shard is told to stop. What the present transaction has consumed is dropped, and will be
            # consumed again. Readers downstream wait for the acknowledgements of the prior one, so give these
            # a moment; if it is too short, the next assignment finds them in the checkpoint.
            until_s = time.monotonic() + DRAIN_S
            while self._prior is not None and (timeout_s := until_s - time.monotonic()) > 0:
                self._advance_prior(self._prior)
                if self._prior is not None:
                    self._inbox.wait(timeout_s, for_messages=False)
            raise ClosedError(f"shard {self._shard.spec.id!r}", "it was told to stop")
        except BaseException as error:
            # BaseException, because begin_txn may have taken something that other shards wait for, such as a
            # place among those that may run: finish_txn has to give it back whatever ends this thread.
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
        # The sequencer takes a message only when it delivers none. The loop ensures that: as long as a
        # message is delivered it is consumed, or the transaction does not read.
        outcome = self._sequencer.queue(envelope)
        if outcome in SKIPPED:
            # A caller of Stat may wait for this offset although no transaction will have the message.
            where = self._machine.skipped()
            if where is ReportSkipped.NOW:
                self._shard.report({envelope.journal: envelope.end}, {})
            elif where is ReportSkipped.WITH_PRIOR and self._prior is not None:
                self._prior.read[envelope.journal] = envelope.end
        elif outcome not in HELD_BACK:
            # The message commits: itself, or the sequence that it acknowledges, which comes out message by
            # message. A message that is held back waits in the sequencer for its acknowledgement.
            self._delivered = self._next_delivered()
        return True

    def _next_delivered(self) -> Envelope | None:
        """Return the sequencer's next committed message, reading a journal again as often as it takes."""
        attempt = 0
        while True:
            try:
                # The sequence is longer than the ring, or began before the checkpoint, so its first messages
                # are read from the journal again. They must still be there: hence a fragment may be pruned
                # only after its readers' oldest open sequence has passed it.
                if self._sequencer.needs_replay:
                    self._sequencer.start_replay(self._sources.replay(self._sequencer.replay_range()))
                return self._sequencer.step()
            except GazetteError as error:
                # Only the replay is tried again, from where it broke off. Any other error is one of the
                # sequence itself.
                if not self._sequencer.needs_replay or not self._sources.wait_after(error, attempt):
                    raise self._failed("reading a transaction again", error) from error
            attempt += 1

    def _consume(self) -> None:
        """Let the application consume the delivered message, and begin a transaction if none is open.

        A crash here leaves nothing: what was published is never acknowledged, the store has changed in memory
        only, and the messages are consumed again from the last checkpoint on.
        """
        envelope = self._delivered
        assert envelope is not None
        if self._machine.present is Present.IDLE:
            # Hints need no timer of their own: a shard without messages records nothing, so the hints that it
            # has stay as good as they are.
            self._shard.transaction_began()
            self._calls.begin()
            # begin_txn may block for long, and the transaction's shortest duration is one of reading.
            self._began_s, self._read_bytes = time.monotonic(), 0
            self._machine.begin(self._began_s, TransactionLimits.of(self._shard.spec))
            # Once a transaction, as Gazette's shards do. Between two updates the clock ticks by 1 µs a
            # message, and it never goes back, even if the wall clock does.
            self._clock.update(time.time_ns())
        if not self._calls.consume(envelope):
            # The sequencer has not moved on, so the message is in no checkpoint before it is consumed.
            self._machine.deferred()
            return
        self._machine.consumed()
        self._read_bytes += envelope.end - envelope.begin
        # With this step the sequencer counts the message as processed.
        self._delivered = self._next_delivered()

    def _commit(self) -> None:
        """Start to commit the present transaction, which makes it the prior one.

        The steps are in an order in which a crash between any two of them leaves each message counted once.
        All phases after the first run in the background, while the next transaction consumes.
        """
        began_s, messages = time.monotonic(), self._machine.consumed_messages

        # 1. The application brings everything into the store, and publishes what it has not published yet.
        # Still only in memory, or published and not acknowledged: a crash drops it.
        self._calls.finalize()
        failpoint("consumer.finalized")

        # 2. The checkpoint says which messages are in the state, and how the published ones will be
        # acknowledged. The intents are built now, with their clocks, so that whoever recovers the checkpoint
        # appends the very same bytes, and readers drop what is appended twice.
        intents = self._publisher.build_ack_intents()
        checkpoint = build_checkpoint(self._sequencer.checkpoint(HORIZON_NS, REMEMBERED), intents)
        # The offset of a source stays before an acknowledgement whose sequence is consumed in part, so a
        # restart reads the acknowledgement again and continues the sequence. The offset of the last byte read
        # would lose the rest of it.
        progress = read_through(checkpoint)

        # 3. The store commits state and checkpoint, both or neither, after everything that was published is
        # durable: an acknowledgement must not commit messages that are lost. It does not wait for appends to
        # the recovery log, because the commit itself is one of these. A crash before the store has committed
        # leaves the transaction undone; after it, the transaction is done, and the intents are in its
        # checkpoint: the next assignment appends them before it reads.
        log = recovery_log(self._shard.spec)
        try:
            commit = self._store.start_commit(checkpoint, self._service.pending_except(log))
            # A commit that has failed already is an error of this step. Without this look it would be noticed
            # only after the next transaction has begun to consume.
            if commit.done() and (problem := failure_of(commit)) is not None:
                raise problem
        except Exception as error:
            raise self._failed("start_commit of the store", error) from error
        failpoint("consumer.committing")
        self._machine.start_commit()
        commit.add_done_callback(lambda _: self._inbox.wake())

        # 4. The acknowledgements are appended, each only if the commit succeeds. A crash between two of them
        # leaves the rest to the next assignment.
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
            # The dependency is the fence of the acknowledgements: a store that was fenced off fails its
            # commit, and a failed dependency fails this append and all later ones to the journal.
            with self._service.start_append(intent.journal, dependencies=[commit]) as append:
                append.write(intent.intent)
            append.add_done_callback(lambda _: self._inbox.wake())
            self._prior.acknowledgements[intent.journal] = append
            failpoint("consumer.acknowledging")
        # After the acknowledgements are queued, so that a slow hook of the application does not delay them.
        self._calls.finish(commit)

    def _advance_prior(self, prior: _PriorTransaction) -> None:
        """Note what the prior transaction has done meanwhile; report its progress when it is done.

        Not before: who waits for an offset of a source may then read what the shard published up to there.
        """
        if self._machine.prior is Prior.COMMITTING:
            if not prior.commit.done():
                return
            if (problem := failure_of(prior.commit)) is not None:
                raise self._failed("the store's commit", problem) from problem
            self._machine.committed()
            prior.end_phase(COMMITTING)
            failpoint("consumer.committed")
        # An acknowledgement that fails ends the shard although its transaction is committed. The checkpoint
        # has the intent, so the next assignment appends it; going on would report progress whose messages
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
        # Counted only now, because a transaction that fails is done again by the next assignment.
        counts = self._shard.counts
        counts.transactions += 1
        counts.messages += prior.messages
        counts.read_bytes += prior.read_bytes
        for phase, phase_s in prior.phase_s.items():
            counts.phase_s[phase] += phase_s
        # The end of an acknowledgement is behind everything that the transaction published to that journal: a
        # reader that has come so far has seen all of it.
        ends = {journal: append.response.end for journal, append in prior.acknowledgements.items()}
        self._shard.report(prior.read, ends)

    def _failed(self, step: str, error: BaseException) -> ShardFailedError:
        return failed(self._shard.spec.id, step, error)


def failed(shard_id: str, step: str, error: BaseException) -> ShardFailedError:
    """Return the error that ends a shard, to be raised from its cause."""
    # The innermost step is the one to name: an error may pass here on its way up through a second step.
    if isinstance(error, ShardFailedError):
        return error
    # Errors of this package are complete sentences. Others may have a text that says nothing without their
    # type, such as KeyError.
    cause = str(error) if isinstance(error, GazetteError) else f"{type(error).__name__}: {error}"
    return ShardFailedError(shard_id, step, cause, isinstance(error, PermanentError))
