"""Tests when a transaction begins, reads, waits and commits, with Gazette's own cases."""

from __future__ import annotations

import pytest

from gazette_spark.consumer.transaction import (
    Next,
    Present,
    Prior,
    ReportSkipped,
    TransactionLimits,
    Transactions,
)
from gazette_spark.errors import TransactionOrderError
from gazette_spark.protocol import consumer_pb2 as pc

LIMITS = TransactionLimits(min_s=1, max_s=10)


def begun(limits: TransactionLimits = LIMITS, *, messages: int = 1) -> Transactions:
    """Return transactions of which the first began at 0 and has consumed messages."""
    machine = Transactions()
    machine.begin(0, limits)
    for _ in range(messages):
        machine.consumed()
    return machine


def decide(machine: Transactions, *, delivered: bool = False, pending: bool = False) -> Next:
    return machine.next(delivered=delivered, pending=pending)


def committing() -> Transactions:
    """Return transactions at time 10: the first is committing, the second has a message."""
    machine = begun()
    machine.tick(1)
    machine.start_commit()
    machine.begin(10, LIMITS)
    machine.consumed()
    return machine


def test_limits_are_the_specs() -> None:
    spec = pc.ShardSpec()
    spec.min_txn_duration.FromMilliseconds(20)
    spec.max_txn_duration.FromSeconds(3)
    assert TransactionLimits.of(spec) == TransactionLimits(0.02, 3.0, waits_for_acks=True)
    spec.disable_wait_for_ack = True
    assert not TransactionLimits.of(spec).waits_for_acks


def test_an_idle_shard_waits() -> None:
    machine = Transactions()
    assert (decide(machine), machine.deadline_s) == (Next.WAIT, None)
    assert decide(machine, delivered=True) is Next.CONSUME


def test_a_transaction_lasts_its_minimum() -> None:
    machine = begun()
    machine.tick(0.9)
    assert (decide(machine), machine.deadline_s) == (Next.WAIT, 1)
    machine.tick(1)
    assert (decide(machine), machine.deadline_s) == (Next.POLL, 10)


def test_no_minimum_is_over_at_once() -> None:
    machine = begun(TransactionLimits(0, 10))
    machine.tick(0)
    assert decide(machine) is Next.POLL


def test_a_minimum_above_the_maximum_counts() -> None:
    """The transaction reads until its minimum is over."""
    machine = begun(TransactionLimits(5, 1))
    machine.tick(4)
    assert decide(machine, delivered=True) is Next.CONSUME
    machine.tick(5)
    assert decide(machine, delivered=True) is Next.COMMIT


def test_it_waits_for_acknowledgements_up_to_its_maximum() -> None:
    """An open sequence extends the transaction, but not beyond its maximum duration."""
    machine = begun()
    machine.tick(9.9)
    assert decide(machine, pending=True) is Next.WAIT
    assert decide(machine, pending=False) is Next.POLL
    machine.tick(10)
    assert decide(machine, pending=True) is Next.COMMIT


def test_waiting_for_acknowledgements_can_be_disabled() -> None:
    machine = begun(TransactionLimits(1, 10, waits_for_acks=False))
    machine.tick(1)
    assert decide(machine, pending=True) is Next.POLL


def test_the_maximum_ends_reading_within_a_sequence() -> None:
    """The remaining messages belong to the next transaction."""
    machine = begun()
    machine.tick(10)
    assert decide(machine, delivered=True) is Next.COMMIT
    machine.start_commit()
    assert decide(machine, delivered=True) is Next.CONSUME


def test_a_transaction_waits_for_its_predecessor() -> None:
    """The predecessor's acknowledgements must have been appended, too."""
    machine = committing()
    machine.tick(11)
    assert decide(machine) is Next.WAIT
    machine.committed()
    assert decide(machine) is Next.WAIT
    machine.tick(20)
    assert (decide(machine, delivered=True), machine.reads) == (Next.WAIT, False)
    machine.acknowledged()
    assert decide(machine, delivered=True) is Next.COMMIT


def test_a_full_transaction_is_stalled_by_its_predecessor() -> None:
    machine = committing()
    stalled_since_s = []
    for now_s in (15, 21, 22):
        machine.tick(now_s)
        stalled_since_s.append(machine.stalled_since_s)
    machine.committed()
    machine.acknowledged()
    machine.start_commit()
    machine.begin(30, LIMITS)
    machine.committed()
    machine.acknowledged()
    for now_s in (31, 41):
        machine.tick(now_s)
        stalled_since_s.append(machine.stalled_since_s)
    assert stalled_since_s == [None, 21, 21, None, None]


def test_a_transaction_reads_while_its_predecessor_commits() -> None:
    assert decide(committing(), delivered=True) is Next.CONSUME


def test_a_deferred_message_begins_the_next_transaction() -> None:
    """The transaction stops reading, but still lasts its minimum."""
    machine = begun()
    machine.deferred()
    assert decide(machine, delivered=True, pending=True) is Next.WAIT
    machine.tick(1)
    assert decide(machine, delivered=True, pending=True) is Next.COMMIT
    machine.start_commit()
    assert decide(machine, delivered=True) is Next.CONSUME


def test_the_first_message_cannot_be_deferred() -> None:
    with pytest.raises(TransactionOrderError, match="first message"):
        begun(messages=0).deferred()


def test_closed_sources_end_it_all() -> None:
    machine = begun()
    machine.sources_closed()
    machine.tick(1)
    assert decide(machine) is Next.COMMIT
    machine.start_commit()
    assert decide(machine) is Next.WAIT
    machine.committed()
    machine.acknowledged()
    assert decide(machine) is Next.END


def test_skipped_messages_are_progress() -> None:
    """They are reported at once if no commit will cover them."""
    machine = Transactions()
    assert machine.skipped() is ReportSkipped.NOW
    machine.begin(0, LIMITS)
    machine.consumed()
    assert machine.skipped() is ReportSkipped.WITH_PRESENT
    machine.tick(1)
    machine.start_commit()
    assert machine.skipped() is ReportSkipped.WITH_PRIOR
    machine.committed()
    assert machine.skipped() is ReportSkipped.WITH_PRIOR
    machine.acknowledged()
    assert machine.skipped() is ReportSkipped.NOW


@pytest.mark.parametrize("step", ["start_commit", "committed", "acknowledged", "consumed"])
def test_steps_out_of_order_are_refused(step: str) -> None:
    machine = Transactions()
    with pytest.raises(TransactionOrderError, match="present=IDLE"):
        getattr(machine, step)()
    assert (machine.present, machine.prior) == (Present.IDLE, Prior.DONE)
