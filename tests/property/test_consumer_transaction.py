"""In any order of events, transactions keep their order, and all of them finish."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gazette_spark.consumer.transaction import (
    Next,
    Present,
    Prior,
    ReportSkipped,
    TransactionLimits,
    Transactions,
)
from gazette_spark.errors import TransactionOrderError


@dataclass
class Txn:
    began_s: float
    limits: TransactionLimits
    messages: list[int] = field(default_factory=list)
    reported: list[int] = field(default_factory=list)
    """Skipped messages that are reported with the transaction."""


class Shard:
    def __init__(self, limits: list[TransactionLimits]) -> None:
        self.machine = Transactions()
        self.limits = limits
        self.now_s = 0.0
        self.sent = 0
        self.delivered: list[int] = []
        """Committed messages that are not yet consumed, next one first."""
        self.pending = False
        """Whether a sequence that began after the last checkpoint is not yet acknowledged."""
        self.open: Txn | None = None
        self.done: list[Txn] = []
        """Transactions that have started to commit."""
        self.committed = 0
        self.acknowledged = 0
        self.skipped = 0
        self.reported = 0
        """Number of skipped messages that Stat shows."""
        self.closed = False
        self.deferred: int | None = None

    def settle(self) -> Next:
        """Do everything that needs no further event; return what the host waits for."""
        while True:
            self.machine.tick(self.now_s)
            self.check()
            following = self.machine.next(delivered=bool(self.delivered), pending=self.pending)
            if following is Next.CONSUME:
                self.consume()
            elif following in (Next.POLL, Next.COMMIT):
                self.commit(following)
            else:
                return following

    def consume(self) -> None:
        if self.open is None:
            self.open = Txn(self.now_s, self.limits[len(self.done) % len(self.limits)])
            self.machine.begin(self.now_s, self.open.limits)
        assert self.now_s < self.open.began_s + max(self.open.limits.min_s, self.open.limits.max_s) or (
            self.now_s == self.open.began_s
        )
        if self.deferred == self.delivered[0] and self.open.messages:
            self.deferred = None
            self.machine.deferred()
            return
        self.open.messages.append(self.delivered.pop(0))
        self.machine.consumed()

    def commit(self, following: Next) -> None:
        """Start to commit, and check that this is allowed."""
        assert self.open is not None
        assert self.open.messages
        # Never two commits at a time, nor one before the predecessor's acknowledgements.
        assert self.committed == self.acknowledged == len(self.done)
        assert self.now_s >= self.open.began_s + self.open.limits.min_s
        full = self.now_s >= self.open.began_s + self.open.limits.max_s
        if following is Next.POLL:
            assert not full
            assert not (self.pending and self.open.limits.waits_for_acks)
        self.machine.start_commit()
        self.done.append(self.open)
        self.open = None
        self.pending = False

    def check(self) -> None:
        assert (self.machine.prior is Prior.DONE) == (self.acknowledged == len(self.done))
        assert (self.machine.prior is Prior.COMMITTING) == (self.committed < len(self.done))
        assert (self.machine.present is Present.IDLE) == (self.open is None)

    def happen(self, event: tuple[str, int]) -> None:
        kind, size = event
        match kind:
            case "messages" if self.machine.reads and not self.delivered and not self.closed:
                self.delivered = list(range(self.sent, self.sent + size))
                self.sent += size
            case "begin sequence" if self.machine.reads and not self.delivered:
                self.pending = True
            case "end sequence" if self.machine.reads and not self.delivered:
                self.pending = False
            case "skip" if self.machine.reads and not self.delivered:
                self.skip()
            case "time":
                self.now_s += size / 4
            case "commit" if self.machine.prior is Prior.COMMITTING:
                self.machine.committed()
                self.committed += 1
            case "acknowledge" if self.machine.prior is Prior.ACKING:
                self.machine.acknowledged()
                self.acknowledged += 1
                self.reported += len(self.done[-1].reported)
            case "defer":
                self.deferred = self.sent + size
            case "close":
                self.machine.sources_closed()
                self.closed = True

    def skip(self) -> None:
        self.skipped += 1
        match self.machine.skipped():
            case ReportSkipped.NOW:
                assert self.open is None
                assert self.acknowledged == len(self.done)
                self.reported += 1
            case ReportSkipped.WITH_PRIOR:
                assert self.open is None
                self.done[-1].reported.append(self.skipped)
            case ReportSkipped.WITH_PRESENT:
                assert self.open is not None
                self.open.reported.append(self.skipped)


EVENTS = st.tuples(
    st.sampled_from(
        [
            "messages",
            "begin sequence",
            "end sequence",
            "skip",
            "time",
            "commit",
            "acknowledge",
            "defer",
        ]
    ),
    st.integers(1, 4),
)
LIMITS = st.builds(
    TransactionLimits,
    st.sampled_from([0.0, 0.5, 2.0]),
    st.sampled_from([0.25, 1.0, 3.0]),
    st.booleans(),
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LIMITS, min_size=1, max_size=3), st.lists(EVENTS, max_size=60))
def test_transactions_keep_their_order(
    limits: list[TransactionLimits], events: list[tuple[str, int]]
) -> None:
    """No order of events breaks a rule, each message is in one transaction, and closing commits all."""
    shard = Shard(limits)
    shard.settle()
    for event in events:
        shard.happen(event)
        shard.settle()
    # No message is stuck: time and the store's answers are enough.
    for _ in range(200):
        if not shard.delivered and shard.open is None and shard.machine.prior is Prior.DONE:
            break
        for event in (("time", 4), ("commit", 1), ("acknowledge", 1)):
            shard.happen(event)
            shard.settle()
    assert [message for txn in shard.done for message in txn.messages] == list(range(shard.sent))
    assert shard.reported == shard.skipped
    shard.happen(("close", 0))
    assert shard.settle() is Next.END


@given(LIMITS, st.lists(EVENTS, max_size=40))
def test_closed_sources_end_soon(limits: TransactionLimits, events: list[tuple[str, int]]) -> None:
    shard = Shard([limits])
    for event in events:
        shard.happen(event)
        shard.settle()
    shard.happen(("close", 0))
    for _ in range(4):
        if shard.settle() is Next.END:
            break
        for event in (("time", 40), ("commit", 1), ("acknowledge", 1)):
            shard.happen(event)
            shard.settle()
    assert shard.settle() is Next.END
    assert shard.open is None
    assert shard.acknowledged == len(shard.done)


@given(st.lists(EVENTS, max_size=30), st.sampled_from(["start_commit", "committed", "acknowledged"]))
def test_steps_out_of_order_change_nothing(events: list[tuple[str, int]], step: str) -> None:
    """A host that commits, or reports a commit, at the wrong time gets an error."""
    shard = Shard([TransactionLimits(1, 2)])
    for event in events:
        shard.happen(event)
        shard.settle()
    allowed = {
        # The machine does not know what is pending; otherwise it has committed what it could.
        "start_commit": shard.pending and shard.open is not None,
        "committed": shard.machine.prior is Prior.COMMITTING,
        "acknowledged": shard.machine.prior is Prior.ACKING,
    }
    if not allowed[step]:
        before = repr(shard.machine)
        with pytest.raises(TransactionOrderError):
            getattr(shard.machine, step)()
        assert repr(shard.machine) == before
