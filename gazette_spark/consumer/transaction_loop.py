"""Runs a shard's transactions in one thread: does what :mod:`gazette_spark.consumer.transaction` decides.

The commit and the acknowledgements of a transaction go on in the background, in this order, whatever fails:

1. ``finalize_txn``: the state is in the store, messages are being appended.
2. The checkpoint is built: what the sequencer has delivered, and the intents that acknowledge the messages.
3. ``start_commit`` waits for all appends but those to the recovery log, and commits state and checkpoint.
4. The intents are appended; each depends on the commit.

A crash before 3 is done leaves the transaction undone: its messages are never acknowledged, and are consumed
again. A crash after it leaves the intents in the checkpoint, and the next start appends them first.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from gazette_spark.client._append.futures import failure_of, finished_operation
from gazette_spark.client._append.service import AsyncAppend, AsyncJournalClient
from gazette_spark.consumer.application import Application, BeginFinisher, DeferToNextTransaction, Shard
from gazette_spark.consumer.checkpoints import build_checkpoint, read_through, sequencer_of
from gazette_spark.consumer.sources import Sources
from gazette_spark.consumer.specs import recovery_log
from gazette_spark.consumer.transaction import (
    Next,
    Present,
    Prior,
    ReportSkipped,
    TransactionLimits,
    Transactions,
)
from gazette_spark.errors import ClosedError, GazetteError, ShardFailedError
from gazette_spark.failpoints import failpoint
from gazette_spark.message.bulk_sequencer import REMEMBERED
from gazette_spark.message.interfaces import Envelope
from gazette_spark.message.publisher import Publisher, PublisherClock
from gazette_spark.message.sequencer import DROPPED, HELD_BACK, HORIZON_NS, Outcome
from gazette_spark.protocol import consumer_pb2 as pc

logger = logging.getLogger(__name__)

DRAIN_S = 5.0
"""Seconds that a shard which is told to stop waits for a commit and acknowledgements under way."""

SKIPPED = DROPPED | {Outcome.ACK_ROLLBACK}
"""Outcomes after which a message is read through, and never delivered."""


class LoopShard(Shard, Protocol):
    """What the loop needs of its shard beside what applications do."""

    def report(self, read: dict[str, int], published: dict[str, int]) -> None:
        """Add offsets to the progress, and wake those who wait for it."""

    def transaction_began(self) -> None:
        """Called between transactions, now and then: time for what is done rarely."""


@dataclass(slots=True)
class _PriorTransaction:
    """A transaction that commits or acknowledges."""

    commit: Future[None]
    acknowledgements: dict[str, AsyncAppend]
    read: dict[str, int]
    """Progress to report when it is done."""

    def published(self) -> dict[str, int]:
        """Return the ends of its acknowledgements, by journal."""
        return {journal: append.response.end for journal, append in self.acknowledgements.items()}


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
        """Go on after a checkpoint, whose intents have been appended.

        Args:
            shard: The shard.
            app: Consumes its messages.
            store: Its open store.
            checkpoint: The store's.
            sources: Bring the messages that come after it.
        """
        self._shard = shard
        self._app = app
        self._hooks = app if isinstance(app, BeginFinisher) else None
        self._store = store
        self._sources = sources
        self._inbox = sources.inbox
        self._log = recovery_log(shard.spec)
        self._service: AsyncJournalClient = shard.append_service
        self._clock = PublisherClock()
        self._publisher = Publisher(self._service, self._clock)
        self._sequencer = sequencer_of(checkpoint, shard.spec)
        self._machine = Transactions()
        self._delivered: Envelope | None = None
        self._begun = False
        """Whether ``finish_txn`` is owed."""
        self._prior: _PriorTransaction | None = None

    def __repr__(self) -> str:
        return f"TransactionLoop({self._shard.spec.id!r}, {self._machine!r})"

    def run(self) -> None:
        """Run transactions until the sources are closed, or the shard is told to stop.

        Raises:
            ShardFailedError: the application, the store or a journal has failed.
        """
        try:
            while not self._shard.stopping.is_set():
                if not self._step():
                    return
            self._drain()
            raise ClosedError(f"shard {self._shard.spec.id!r}", "it was told to stop")
        except BaseException as error:
            try:
                self._finish(finished_operation(error))
            except ShardFailedError:  # The error on its way says more.
                logger.exception("shard.finish_txn_failed shard=%s", self._shard.spec.id)
            if self._shard.stopping.is_set() and isinstance(error, ClosedError):
                return
            raise

    def _step(self) -> bool:
        """Do one thing, or wait; False: nothing is left to be done."""
        if self._prior is not None:
            self._look_at(self._prior)
        if self._inbox.is_closed:
            self._machine.sources_closed()
        now_s = time.monotonic()
        self._machine.tick(now_s)
        following = self._machine.next(
            delivered=self._delivered is not None, pending=self._sequencer.has_pending()
        )
        match following:
            case Next.CONSUME:
                self._consume()
            case Next.WAIT:
                self._wait(now_s)
            case Next.POLL:
                if not self._queue_next():
                    self._commit()
            case Next.COMMIT:
                self._commit()
            case Next.END:
                return False
        return True

    def _wait(self, now_s: float) -> None:
        reads, deadline_s = self._machine.reads, self._machine.deadline_s
        if reads and self._queue_next():
            return
        self._inbox.wait(None if deadline_s is None else max(0.0, deadline_s - now_s), for_messages=reads)

    def _queue_next(self) -> bool:
        """Take a message from the inbox into the sequencer; False if none is there."""
        try:
            envelope = self._inbox.take()
        except Exception as error:
            raise self._failed("reading messages", error) from error
        if envelope is None:
            return False
        outcome = self._sequencer.queue(envelope)
        if outcome in SKIPPED:
            self._skipped(envelope)
        elif outcome not in HELD_BACK:
            self._delivered = self._next_delivered()
        return True

    def _next_delivered(self) -> Envelope | None:
        attempt = 0
        while True:
            try:
                if self._sequencer.needs_replay:
                    self._sequencer.start_replay(self._sources.replay(self._sequencer.replay_range()))
                return self._sequencer.step()
            except GazetteError as error:
                if not self._sequencer.needs_replay or not self._sources.wait_after(error, attempt):
                    raise self._failed("reading a transaction again", error) from error
            attempt += 1

    def _skipped(self, envelope: Envelope) -> None:
        """Report the progress of a message that is not delivered."""
        where = self._machine.skipped()
        if where is ReportSkipped.NOW:
            self._shard.report({envelope.journal: envelope.end}, {})
        elif where is ReportSkipped.WITH_PRIOR and self._prior is not None:
            self._prior.read[envelope.journal] = envelope.end

    def _consume(self) -> None:
        envelope = self._delivered
        assert envelope is not None
        if self._machine.present is Present.IDLE:
            self._begin()
        try:
            self._app.consume_message(self._shard, self._store, envelope, self._publisher)
        except DeferToNextTransaction:
            self._machine.deferred()
            return
        except Exception as error:
            where = f"journal {envelope.journal!r}, offset {envelope.begin}"
            raise self._failed(f"consume_message of {where}", error) from error
        self._machine.consumed()
        self._delivered = self._next_delivered()

    def _begin(self) -> None:
        self._shard.transaction_began()
        if self._hooks is not None:
            try:
                self._hooks.begin_txn(self._shard, self._store)
            except Exception as error:
                raise self._failed("begin_txn", error) from error
        self._begun = True
        self._machine.begin(time.monotonic(), TransactionLimits.of(self._shard.spec))
        self._clock.update(time.time_ns())

    def _commit(self) -> None:
        try:
            self._app.finalize_txn(self._shard, self._store, self._publisher)
        except Exception as error:
            raise self._failed("finalize_txn", error) from error
        failpoint("consumer.finalized")
        read = self._sequencer.checkpoint(HORIZON_NS, REMEMBERED)
        intents = self._publisher.build_ack_intents()
        checkpoint = build_checkpoint(read, intents)
        progress = read_through(checkpoint)
        try:
            commit = self._store.start_commit(checkpoint, self._service.pending_except(self._log))
            if commit.done() and (problem := failure_of(commit)) is not None:
                raise problem
        except Exception as error:
            raise self._failed("start_commit of the store", error) from error
        failpoint("consumer.committing")
        self._machine.start_commit()
        commit.add_done_callback(self._wake)
        self._prior = _PriorTransaction(commit, {}, progress)
        for each in intents:
            with self._service.start_append(each.journal, dependencies=[commit]) as append:
                append.write(each.intent)
            append.add_done_callback(self._wake)
            self._prior.acknowledgements[each.journal] = append
            failpoint("consumer.acknowledging")
        self._finish(commit)

    def _wake(self, _: object) -> None:
        self._inbox.wake()

    def _finish(self, commit: Future[None]) -> None:
        """Tell the application that its transaction is over, once for each that began."""
        if not self._begun:
            return
        self._begun = False
        if self._hooks is not None:
            try:
                self._hooks.finish_txn(self._shard, self._store, commit)
            except Exception as error:
                raise self._failed("finish_txn", error) from error

    def _look_at(self, prior: _PriorTransaction) -> None:
        """Take note of what the prior transaction has done meanwhile."""
        if self._machine.prior is Prior.COMMITTING:
            if not prior.commit.done():
                return
            if (problem := failure_of(prior.commit)) is not None:
                raise self._failed("the store's commit", problem) from problem
            self._machine.committed()
            failpoint("consumer.committed")
        for journal, append in prior.acknowledgements.items():
            if not append.done():
                return
            if (problem := append.exception()) is not None:
                raise self._failed(f"acknowledging messages in journal {journal!r}", problem) from problem
        self._machine.acknowledged()
        failpoint("consumer.acknowledged")
        self._prior = None
        self._shard.report(prior.read, prior.published())

    def _drain(self) -> None:
        """Wait a little for the commit and the acknowledgements under way: readers downstream need them."""
        until_s = time.monotonic() + DRAIN_S
        while self._prior is not None and (left_s := until_s - time.monotonic()) > 0:
            self._look_at(self._prior)
            if self._prior is not None:
                self._inbox.wait(left_s, for_messages=False)

    def _failed(self, step: str, error: BaseException) -> ShardFailedError:
        return failed(self._shard.spec.id, step, error)


def failed(shard_id: str, step: str, error: BaseException) -> ShardFailedError:
    """Return the error that ends a shard, to be raised from its cause."""
    if isinstance(error, ShardFailedError):
        return error
    cause = str(error) if isinstance(error, GazetteError) else f"{type(error).__name__}: {error}"
    return ShardFailedError(shard_id, step, cause)
