"""Decides when a shard's transactions begin, read, wait and start to commit. Pure, and for one thread.

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

A commit or an acknowledgement that fails ends the shard: there is no state for it. Time is what the caller
says, in seconds from any beginning.

A message that is not delivered, as it is a repeated one or rolls back, is read through all the same. Where to
report that, :meth:`Transactions.skipped` tells: a caller of Stat may wait for its offset, and no other
message may follow. It never gets into a stored checkpoint by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gazette_spark.errors import TransactionOrderError
from gazette_spark.protocol import consumer_pb2 as pc


class Present(Enum):
    """How far the present transaction is."""

    IDLE = "idle"
    """It has no message yet."""
    YOUNG = "young"
    """Its minimum duration is not over."""
    OPEN = "open"
    """Its minimum duration is over, its maximum is not."""
    FULL = "full"
    """Its maximum duration is over."""


class Prior(Enum):
    """How far the transaction before the present one is."""

    COMMITTING = "committing"
    ACKING = "acking"
    """It is committed; not all of its acknowledgements are appended."""
    DONE = "done"


class Next(Enum):
    """What the host does next."""

    CONSUME = "consume"
    """Have the application consume the delivered message."""
    WAIT = "wait"
    """Wait for the prior transaction, for the deadline and, where :attr:`Transactions.reads`, a message."""
    POLL = "poll"
    """Take a message if one is ready; if not, start to commit."""
    COMMIT = "commit"
    """Start to commit."""
    END = "end"
    """Nothing is left to be done, and nothing will come."""


class ReportSkipped(Enum):
    """Where the progress that a skipped message makes is reported."""

    NOW = "now"
    WITH_PRIOR = "with prior"
    """Together with the progress of the prior transaction, when that is done."""
    WITH_PRESENT = "with present"
    """By the checkpoint of the present transaction: nothing is to be done."""


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """What a shard's spec says of its transactions."""

    min_s: float
    max_s: float
    waits_for_acks: bool = True
    """Whether a transaction stays open for sequences that began in it and are not acknowledged."""

    @classmethod
    def of(cls, spec: pc.ShardSpec) -> TransactionLimits:
        """Return the limits of a spec."""
        return cls(
            spec.min_txn_duration.ToNanoseconds() / 1e9,
            spec.max_txn_duration.ToNanoseconds() / 1e9,
            not spec.disable_wait_for_ack,
        )


class Transactions:
    """The transactions of one assignment of a shard, see the module."""

    def __init__(self) -> None:
        self.present = Present.IDLE
        self.prior = Prior.DONE
        self.reads = True
        """Whether the present transaction takes messages."""
        self.consumed_messages = 0
        """Messages in the present transaction."""
        self._closed = False
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
        if self.reads and delivered:
            return Next.CONSUME
        if self.prior is not Prior.DONE:
            return Next.WAIT
        if self.present is Present.IDLE:
            return Next.WAIT if self.reads else Next.END
        if self.present is Present.YOUNG or self._waits_for_acks(pending=pending):
            return Next.WAIT
        return Next.POLL if self.reads else Next.COMMIT

    def _waits_for_acks(self, *, pending: bool) -> bool:
        return pending and self.reads and self._limits.waits_for_acks

    def begin(self, now_s: float, limits: TransactionLimits) -> None:
        """Begin the present transaction, whose first message is about to be consumed."""
        self._check(self.present is Present.IDLE and self.reads, "begin")
        self.present, self._began_s, self._limits = Present.YOUNG, now_s, limits

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
            problem = "the application deferred the first message of a transaction, which would be empty"
            raise TransactionOrderError(problem)
        self.reads = False

    def tick(self, now_s: float) -> None:
        """Tell the time, at least once before each :meth:`next`."""
        if self.present is Present.YOUNG and now_s >= self._began_s + self._limits.min_s:
            self.present = Present.OPEN
        if self.present is Present.OPEN and now_s >= self._began_s + self._limits.max_s:
            self.present = Present.FULL
            self.reads = False

    def sources_closed(self) -> None:
        """No message will come any more: commit what is there, and end."""
        self._closed = True
        self.reads = False

    def start_commit(self) -> None:
        """Make the present transaction the prior one."""
        ready = self.present in (Present.OPEN, Present.FULL) and self.prior is Prior.DONE
        self._check(ready and self.consumed_messages > 0, "start to commit")
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
        if self.present is not Present.IDLE:
            return ReportSkipped.WITH_PRESENT
        return ReportSkipped.NOW if self.prior is Prior.DONE else ReportSkipped.WITH_PRIOR

    def _check(self, allowed: bool, step: str) -> None:  # noqa: FBT001  # An assertion.
        if not allowed:
            raise TransactionOrderError(f"a transaction cannot {step} now: {self!r}")
