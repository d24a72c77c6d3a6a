"""Decides which messages are committed, in columns: the engine that reads committed messages in bulk.

:func:`sequence` takes the messages in a range of a journal, and the states of its producers at the begin. It
returns for each message whether it is committed, and by which acknowledgement, and the states at the end. A
state has everything on which a later message can depend. So the states at an offset follow from the journal's
bytes alone, regardless of how they were cut.

The rules are those of :class:`~gazette_spark.message.sequencer.Sequencer`. The clocks of most producers
ascend from message to message, and these producers are sequenced with array operations. A producer that
repeated messages, or went back, is sequenced message by message.

There is one difference: an acknowledgement with the clock of a message that it commits is delivered here,
whereas the sequencer considers it a copy of that message. No publisher makes such an acknowledgement, and
only a replay of the transaction could reveal it.

A transaction may begin long before its acknowledgement. Its messages are ``PENDING`` when they are sequenced,
and a :class:`Closings` describes the transaction when it has ended. A caller that has not kept the
messages reads them again with :class:`Replay`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gazette_spark.message.uuids import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, UuidColumns
from gazette_spark.protocol.spans import Spans, joined

if TYPE_CHECKING:
    import numpy.typing as npt

    Offsets = npt.NDArray[np.int64]
    Clocks = npt.NDArray[np.uint64]

DROPPED = -1
"""Replaces an acknowledgement's offset if the message is a copy, or was rolled back."""
PENDING = -2
"""Replaces an acknowledgement's offset if the message's transaction is still open."""

NO_TRANSACTION = -1
"""Replaces a transaction's begin if no transaction is open."""
LOST = -2
"""Replaces a transaction's begin if some of its bytes are gone, so that none of it is delivered."""

FORGET_AFTER = (24 * 3600 * 10_000_000) << 4
"""A producer without a transaction may be forgotten when the journal's largest clock is this far ahead: a
day, the horizon of Gazette's consumers. A message that it repeats later is delivered again."""

REMEMBERED = 1024
"""Number of a journal's producers that are remembered regardless of age: those that wrote most recently.

Producers choose their clocks. If only age counted, one message of the year 2100 would make a reader forget
all other producers, and deliver their later retried appends twice. Neither the time of reading nor the
time of fragments can replace the clocks: a range that is read twice, by a stream and years later by
``verify``, must give the same rows. The order in which producers write is in the journal's bytes, and no
producer can write in the name of another."""


@dataclass(frozen=True, slots=True, eq=False)
class ProducerStates:
    """The states of a journal's producers at an offset, as columns sorted by producer."""

    producers: npt.NDArray[np.int64]
    last_acks: Clocks
    """Clock of the newest delivered message: messages up to it are copies."""
    last_clocks: Clocks
    """Largest clock of the open transaction; equal to ``last_acks`` without one."""
    begins: Offsets
    """First offset of the open transaction, ``NO_TRANSACTION`` or ``LOST``."""
    last_offsets: Offsets
    """First offset of the producer's last message."""
    newest: int = 0
    """Largest clock of the journal up to now."""

    def __len__(self) -> int:
        return len(self.producers)

    @classmethod
    def none(cls) -> ProducerStates:
        """Return the states at the start of a query, before any producer has written."""
        clocks, offsets = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        return cls(offsets, clocks, clocks, offsets, offsets)

    def without_forgotten(self) -> ProducerStates:
        """Return the states without forgotten producers."""
        if len(self) <= REMEMBERED:
            return self
        # The states include all producers that wrote most recently, because these are never forgotten.
        wrote_last = self.last_offsets >= np.partition(self.last_offsets, -REMEMBERED)[-REMEMBERED]
        # An open transaction keeps its producer, however old it is. Otherwise a late acknowledgement would
        # commit nothing. Gazette may forget such a producer.
        open_ = self.begins != NO_TRANSACTION
        keep = open_ | wrote_last | ~_far_behind(self.last_clocks, self.newest)
        return ProducerStates(
            self.producers[keep],
            self.last_acks[keep],
            self.last_clocks[keep],
            self.begins[keep],
            self.last_offsets[keep],
            self.newest,
        )

    def open_before(self, offset: int) -> npt.NDArray[np.bool_]:
        """Return a mask of producers whose open transaction begins before an offset."""
        return (self.begins >= 0) & (self.begins < offset)

    def awaited(self, now: int) -> npt.NDArray[np.bool_]:
        """Return a mask of producers with an open transaction that has a message of the last day.

        Args:
            now: The current time as a clock. A larger clock of the journal does not count.
        """
        # A killed task leaves its transaction open forever. After a day, readers stop waiting for it.
        return (self.begins >= 0) & ~_far_behind(self.last_clocks, min(self.newest, now))

    def lost_since(self, available: int) -> ProducerStates:
        """Return the states if bytes before an offset are gone: transactions that began there are lost."""
        # Mark them instead of removing them: the messages that still come belong to the transaction until it
        # ends.
        return replace(self, begins=np.where(self.open_before(available), LOST, self.begins))


@dataclass(frozen=True, slots=True, eq=False)
class Closings:
    """Transactions that were open before a range and ended inside it, as columns."""

    producers: npt.NDArray[np.int64]
    begins: Offsets
    """First offset of the transaction."""
    last_acks: Clocks
    """Messages up to this clock are copies of messages before the transaction."""
    ack_clocks: Clocks
    """Messages up to this clock are committed; 0 if none are."""
    ack_offsets: Offsets
    """Offset of the message that ended the transaction."""

    def __len__(self) -> int:
        return len(self.producers)

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int, int]]) -> Closings:
        """Return columns of rows: producer, begin, last acknowledged clock, clock and offset of the end."""
        producers, begins, last_acks, clocks, offsets = zip(*rows, strict=True) if rows else ((),) * 5
        return cls(
            np.array(producers, np.int64),
            np.array(begins, np.int64),
            np.array(last_acks, np.uint64),
            np.array(clocks, np.uint64),
            np.array(offsets, np.int64),
        )

    @classmethod
    def joined(cls, parts: Iterable[Closings]) -> Closings:
        """Return the rows of all parts."""
        parts = [cls.of(()), *parts]
        names = ("producers", "begins", "last_acks", "ack_clocks", "ack_offsets")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Closings:
        """Return rows by index or mask."""
        return Closings(
            self.producers[rows],
            self.begins[rows],
            self.last_acks[rows],
            self.ack_clocks[rows],
            self.ack_offsets[rows],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Sequenced:
    """The result of :func:`sequence`."""

    ack_offsets: Offsets
    """For each message the offset of the message that committed it, or ``DROPPED`` or ``PENDING``. Messages
    outside of transactions, and acknowledgements, have their own offset."""
    closings: Closings
    """Transactions of earlier messages that ended in this range."""
    states: ProducerStates
    """The states after these messages."""


def sequence(states: ProducerStates, uuids: UuidColumns, offsets: Offsets) -> Sequenced:
    """Sequence consecutive messages of a journal.

    Args:
        states: States of the producers at the first message.
        uuids: The messages' UUIDs. A message without one, or with a clock of 0, is always committed.
        offsets: First offset of each message, ascending.
    """
    ack_offsets = np.full(len(uuids), DROPPED, np.int64)
    # A message without a UUID or a clock has opted out: it commits itself and changes no producer's state.
    is_sequenced = uuids.valid & (uuids.clocks != 0)
    ack_offsets[~is_sequenced] = offsets[~is_sequenced]
    rows = np.flatnonzero(is_sequenced)
    if not len(rows):
        return Sequenced(ack_offsets, Closings.of(()), states)

    # Producers do not depend on each other. Sorted by producer, in the journal's order within each, the
    # messages of a producer are one run, which array operations can handle for all producers together.
    runs = _Runs.of(states, uuids, offsets, rows[np.argsort(uuids.producers[rows], kind="stable")])

    # A forgotten producer starts over, as if its first message here were its first ever. This must be decided
    # here although `without_forgotten` drops such states: rows must not depend on where a caller has cut the
    # journal, and so on whether a state was already dropped.
    first_clocks = runs.clocks[runs.heads]
    starts_over = runs.forgotten(runs.heads, runs.last_clocks, runs.begins == NO_TRANSACTION)
    runs.last_acks = np.where(starts_over, first_clocks - np.uint64(1), runs.last_acks)
    runs.last_clocks = np.where(starts_over, first_clocks - np.uint64(1), runs.last_clocks)

    # If a producer's clocks ascend from its state on, no message is a copy and no acknowledgement rolls back.
    # Then only flags decide, which array operations can handle.
    previous_clocks = np.empty_like(runs.clocks)
    previous_clocks[1:] = runs.clocks[:-1]
    previous_clocks[runs.heads] = runs.last_clocks
    ascends = np.asarray(np.logical_and.reduceat(runs.clocks > previous_clocks, runs.heads))
    closings = _sequence_ascending(runs, ascends, ack_offsets)
    irregular = [_sequence_irregular(runs, int(at), ack_offsets) for at in np.flatnonzero(~ascends)]
    return Sequenced(ack_offsets, Closings.joined([closings, *irregular]), runs.states())


@dataclass(eq=False)
class _Runs:
    """Messages sorted by producer, and the states of their producers, which sequencing changes in place.

    Messages are columns in the order of ``order``; producers are columns with one row for each run.
    """

    order: npt.NDArray[np.int64]
    """Index of each message in the original order."""
    clocks: Clocks
    flags: npt.NDArray[np.uint16]
    offsets: Offsets

    producers: npt.NDArray[np.int64]
    heads: npt.NDArray[np.int64]
    """First index of each producer's run in ``order``."""
    tails: npt.NDArray[np.int64]
    """Index after each producer's run in ``order``."""
    last_acks: Clocks
    last_clocks: Clocks
    begins: Offsets

    newest: Clocks
    """Largest clock of the journal before each message, by index."""
    before: ProducerStates
    """The states before these messages."""

    @classmethod
    def of(
        cls, states: ProducerStates, uuids: UuidColumns, offsets: Offsets, order: npt.NDArray[np.int64]
    ) -> _Runs:
        producer_of_message = uuids.producers[order]
        # The messages of a producer are next to each other, so a run begins where the producer changes.
        heads = np.flatnonzero(np.append(True, producer_of_message[1:] != producer_of_message[:-1]))
        producers, clocks = producer_of_message[heads], uuids.clocks[order]
        at = np.searchsorted(states.producers, producers)
        has_state = np.zeros(len(producers), np.bool_)
        inside = at < len(states)
        has_state[inside] = states.producers[at[inside]] == producers[inside]
        # For a new producer, all clocks below its first message count as acknowledged.
        initial = clocks[heads] - np.uint64(1)
        last_acks, last_clocks, begins = (
            initial.copy(),
            initial.copy(),
            np.full(len(heads), NO_TRANSACTION),
        )
        for column, stored in (
            (last_acks, states.last_acks),
            (last_clocks, states.last_clocks),
            (begins, states.begins),
        ):
            column[has_state] = stored[at[has_state]]
        flags = uuids.flags[order]
        return cls(
            order,
            clocks,
            # As in Gazette, unknown flags count as a message outside of transactions.
            np.where(flags > ACK_TXN, np.uint16(OUTSIDE_TXN), flags),
            offsets[order],
            producers,
            heads,
            np.append(heads[1:], len(order)),
            last_acks,
            last_clocks,
            begins,
            # The largest clock before each message, because a message does not age its own producer. The last
            # entry is the largest clock of all.
            np.maximum.accumulate(np.append(np.uint64(states.newest), uuids.clocks)),
            states,
        )

    @cached_property
    def previous(self) -> Offsets:
        """Index of the previous message of each message's producer, or -1 for its first.

        Messages that are not sequenced have an index past all messages.
        """
        # Within a run, the previous entry of `order` is the producer's previous message. That is wrong for
        # the first message of each run, which the third assignment corrects.
        previous = np.full(len(self.newest), len(self.newest), np.int64)
        previous[self.order[1:]] = self.order[:-1]
        previous[self.order[self.heads]] = -1
        return previous

    def forgotten(
        self, firsts: npt.NDArray[np.int64], last_clocks: Clocks, candidates: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of candidates that were forgotten before their messages at ``order[firsts]``."""
        # Counting later writers takes a pass for each producer. Two tests make that rare: the number of
        # producers must exceed the number that is always remembered, and the producer's last clock must be a
        # day behind.
        forgotten = np.zeros(len(candidates), np.bool_)
        if len(self.before) + len(self.producers) > REMEMBERED:
            rows = self.order[np.where(candidates, firsts, 0)]
            day_ago = np.maximum(self.newest[rows], np.uint64(FORGET_AFTER)) - np.uint64(FORGET_AFTER)
            for at in np.flatnonzero(candidates & (last_clocks < day_ago)).tolist():
                forgotten[at] = self.is_forgotten(at, int(last_clocks[at]), int(rows[at]))
        return forgotten

    def is_forgotten(self, at: int, last_clock: int, row: int) -> bool:
        """Return whether a producer was forgotten before its message ``row``, wherever the range begins.

        It was if its last clock is a day behind the newest one, and ``REMEMBERED`` others wrote after it.
        """
        if len(self.before) + len(self.producers) <= REMEMBERED:
            return False
        if last_clock + FORGET_AFTER >= int(self.newest[row]):
            return False
        previous = int(self.previous[row])
        # A producer that wrote several times since then counts only with the first of these messages.
        later_writers = int(np.count_nonzero(self.previous[previous + 1 : row] <= previous))
        if previous >= 0 or later_writers >= REMEMBERED:
            return later_writers >= REMEMBERED
        # The producer's last message is before this range, so producers of the states count as well.
        state = int(np.searchsorted(self.before.producers, self.producers[at]))
        if state == len(self.before) or self.before.producers[state] != self.producers[at]:
            return False
        later = self.before.last_offsets > self.before.last_offsets[state]
        # Even if some are counted twice, there are too few. Otherwise the costlier comparison is needed.
        if later_writers + np.count_nonzero(later) < REMEMBERED:
            return False
        # Producers that wrote both before and in this range count once.
        later &= ~np.isin(self.before.producers, self.producers[self.order[self.heads] < row])
        return later_writers + int(np.count_nonzero(later)) >= REMEMBERED

    def states(self) -> ProducerStates:
        """Return the states of all producers. Those of producers that have not written are unchanged."""
        before = self.before
        # A range of a journal with thousands of producers has messages of a few.
        silent = np.ones(len(before), np.bool_)
        if len(before):
            at = np.searchsorted(self.producers, before.producers)
            inside = at < len(self.producers)
            silent[inside] = self.producers[at[inside]] != before.producers[inside]
        columns = [
            np.concatenate([changed, stored[silent]])
            for changed, stored in (
                (self.producers, before.producers),
                (self.last_acks, before.last_acks),
                (self.last_clocks, before.last_clocks),
                (self.begins, before.begins),
                (self.offsets[self.tails - 1], before.last_offsets),
            )
        ]
        # The states stay sorted by producer, which searches rely on.
        order = np.argsort(columns[0], kind="stable")
        producers, last_acks, last_clocks, begins, last_offsets = (column[order] for column in columns)
        return ProducerStates(producers, last_acks, last_clocks, begins, last_offsets, int(self.newest[-1]))


def _sequence_ascending(runs: _Runs, ascends: npt.NDArray[np.bool_], ack_offsets: Offsets) -> Closings:
    """Sequence all runs as if their clocks ascended, and return the transactions that ended in runs that do.

    The states of other producers do not change. The results for their messages are wrong, and the caller
    replaces them.
    """
    heads, tails, flags = runs.heads, runs.tails, runs.flags
    count = len(runs.order)
    index = np.arange(count)

    # A message other than CONTINUE ends the transaction that is open before it: an acknowledgement commits
    # it, a message outside of transactions discards it. So the next such message of the run decides the fate
    # of a CONTINUE. If there is none in the run, its transaction is still open.
    is_end = flags != CONTINUE_TXN
    next_end = np.minimum.accumulate(np.where(is_end, index, count)[::-1])[::-1]
    is_open = next_end >= np.repeat(tails, tails - heads)
    # Index 0 replaces a missing end, so that look-ups are valid; those results are replaced below. An end is
    # always delivered itself, because its clock is above the last one. An acknowledgement has the largest
    # clock of its transaction, so it commits all of it.
    end = np.where(is_open, 0, next_end)
    is_committed = is_end | (flags[end] == ACK_TXN)
    fate = np.where(is_committed, runs.offsets[end], DROPPED)
    fate[is_open] = PENDING

    # The first end of a run also ends a transaction that began before this range. If some of its bytes are
    # lost, it is not delivered in part: its messages here are dropped, and the others are not replayed.
    first_end = next_end[heads]
    is_carried = runs.begins != NO_TRANSACTION
    has_ended = is_carried & (first_end < tails)
    is_lost = runs.begins == LOST
    # The messages of that transaction lie before this range. The caller may still have them, or reads them
    # again.
    closed = has_ended & ascends
    closing_ends = first_end[closed]
    is_acknowledged = (flags[closing_ends] == ACK_TXN) & ~is_lost[closed]
    closings = Closings(
        runs.producers[closed],
        runs.begins[closed],
        runs.last_acks[closed],
        np.where(is_acknowledged, runs.clocks[closing_ends], np.uint64(0)),
        runs.offsets[closing_ends],
    )
    if is_lost.any():
        before_first_end = index < np.repeat(first_end, tails - heads)
        fate[before_first_end & np.repeat(is_lost, tails - heads)] = DROPPED
    ack_offsets[runs.order] = fate

    # The last end of a run decides the state after it: its clock is acknowledged, and the messages after it
    # are the open transaction. A run without an end continues the earlier transaction.
    last_end = np.maximum.accumulate(np.where(is_end, index, -1))[tails - 1]
    has_end = last_end >= heads
    # The bounds only keep indices valid: the entries at replaced indices are not used.
    last = np.where(has_end, last_end, 0)
    last_acks = np.where(has_end, runs.clocks[last], runs.last_acks)
    next_begin = runs.offsets[np.minimum(np.where(has_end, last_end + 1, heads), count - 1)]
    opens = has_end & (last_end < tails - 1)
    begins = np.where(has_end & ~opens, NO_TRANSACTION, next_begin)
    begins = np.where(~has_end & is_carried, runs.begins, begins)

    # Between its last end and the open transaction, a producer may have been forgotten. Then it starts over,
    # as above.
    first_open = np.where(opens, last + 1, 0)
    starts_over = runs.forgotten(first_open, runs.clocks[last], ascends & opens)
    last_acks = np.where(starts_over, runs.clocks[first_open] - np.uint64(1), last_acks)

    # Other producers keep the states with which `_sequence_irregular` begins.
    runs.last_acks = np.where(ascends, last_acks, runs.last_acks)
    runs.last_clocks = np.where(ascends, runs.clocks[tails - 1], runs.last_clocks)
    runs.begins = np.where(ascends, begins, runs.begins)
    return closings


def _sequence_irregular(runs: _Runs, at: int, ack_offsets: Offsets) -> Closings:
    """Sequence the messages of one producer one by one, with any clocks, like ``Sequencer.queue``."""
    producer, begin = int(runs.producers[at]), int(runs.begins[at])
    last_ack, last_clock = int(runs.last_acks[at]), int(runs.last_clocks[at])
    carried = None if begin == NO_TRANSACTION else (begin, last_ack)
    open_messages: list[tuple[int, int]] = []
    closings: list[tuple[int, int, int, int, int]] = []
    run = slice(int(runs.heads[at]), int(runs.tails[at]))
    columns = (runs.clocks, runs.flags, runs.offsets, runs.order)
    for clock, flags, offset, row in zip(*(column[run].tolist() for column in columns), strict=True):
        # Here, too, a producer may be forgotten between any two of its messages. The next one then counts as
        # its first.
        if begin == NO_TRANSACTION and runs.is_forgotten(at, last_clock, row):
            last_ack = last_clock = clock - 1
        ack_offsets[row] = DROPPED
        if flags == CONTINUE_TXN:
            # This is a copy. A retried append leaves one if its first answer was lost.
            if clock <= last_clock:
                continue
            if begin == NO_TRANSACTION:
                begin = offset
            # No message of a transaction that has lost bytes is delivered. The transaction still ends like
            # any other.
            if begin != LOST:
                open_messages.append((clock, row))
                ack_offsets[row] = PENDING
            last_clock = clock
            continue
        if clock > last_ack:
            ack_offsets[row] = offset
            # A message outside of transactions commits itself and discards the open transaction.
            committed_clock = clock if flags == ACK_TXN and begin != LOST else 0
        elif flags == ACK_TXN:
            committed_clock = 0  # A rollback.
        else:
            continue
        # The transaction has ended. Messages above the acknowledgement's clock will never be committed.
        for message_clock, message_row in open_messages:
            ack_offsets[message_row] = offset if message_clock <= committed_clock else DROPPED
        # The transaction began before this range, so its first messages are not among `open_messages`. Its
        # first end decides it, regardless of the kind of end.
        if carried is not None:
            closings.append((producer, *carried, committed_clock, offset))
        open_messages, carried = [], None
        # This includes a rollback, as in Gazette: the acknowledgement of a recovered producer may be lower
        # than the last one, and the messages after it may reuse clocks.
        last_ack = last_clock = clock
        begin = NO_TRANSACTION
    runs.last_acks[at], runs.last_clocks[at], runs.begins[at] = last_ack, last_clock, begin
    return Closings.of(closings)


class Replay:
    """Finds the messages of committed transactions in bytes that are read again, in one ascending pass.

    Each transaction comes with the offset up to which its messages must be found. The transactions of a
    producer do not overlap.
    """

    def __init__(self, transactions: Closings, until: Offsets) -> None:
        # Rolled back and lost transactions have a clock of 0, and commit no messages.
        selected = (transactions.ack_clocks != 0) & (transactions.begins < until)
        order = np.argsort(transactions.begins[selected], kind="stable")
        self._transactions = transactions.take(selected).take(order)
        self._until = until[selected][order]
        self._last_clocks = self._transactions.last_acks.copy()
        """Largest clock of each transaction so far: messages up to it are copies."""

    def spans(self) -> Spans:
        """Return the bytes to read again."""
        return joined(zip(self._transactions.begins.tolist(), self._until.tolist(), strict=True))

    def sequence(self, uuids: UuidColumns, offsets: Offsets) -> Offsets:
        """Return the acknowledgement's offset of each committed message, and ``DROPPED`` for others."""
        ack_offsets = np.full(len(uuids), DROPPED, np.int64)
        if not len(uuids):
            return ack_offsets
        transactions = self._transactions
        # Transactions of different producers overlap, and a producer may have several in the bytes of one
        # block.
        active = np.flatnonzero((transactions.begins <= offsets[-1]) & (self._until > offsets[0]))
        candidates = np.flatnonzero(uuids.valid & (uuids.clocks != 0) & (uuids.flags == CONTINUE_TXN))
        # Each pass takes the first transaction of each producer, so that a message belongs to at most one
        # transaction of the pass.
        while len(active) and len(candidates):
            producers, first = np.unique(transactions.producers[active], return_index=True)
            at = np.minimum(np.searchsorted(producers, uuids.producers[candidates]), len(producers) - 1)
            # Most messages in these bytes are from producers that have nothing to replay.
            is_of_producer = producers[at] == uuids.producers[candidates]
            rows = candidates[is_of_producer]
            transaction = active[first][at[is_of_producer]]
            active = np.delete(active, first)
            inside = offsets[rows] >= transactions.begins[transaction]
            inside &= offsets[rows] < self._until[transaction]
            rows, transaction = rows[inside], transaction[inside]
            if not len(rows):
                continue
            # As in `sequence`, the messages of a transaction form one run.
            order = np.argsort(transaction, kind="stable")
            rows, transaction = rows[order], transaction[order]
            heads = np.flatnonzero(np.append(True, transaction[1:] != transaction[:-1]))
            tails, clocks = np.append(heads[1:], len(rows)), uuids.clocks[rows]
            # A message counts if its clock is above all earlier clocks. If clocks ascend, the previous one is
            # the largest; only other runs need a running maximum.
            largest = np.empty_like(clocks)
            largest[1:] = clocks[:-1]
            largest[heads] = self._last_clocks[transaction[heads]]
            ascends = np.logical_and.reduceat(clocks > largest, heads)
            for run in np.flatnonzero(~ascends):
                low, high = heads[run], tails[run]
                before = np.append(self._last_clocks[transaction[low]], clocks[low : high - 1])
                largest[low:high] = np.maximum.accumulate(before)
            # Keep these from block to block, because a copy may be in another block than its original.
            self._last_clocks[transaction[heads]] = np.maximum.reduceat(np.maximum(clocks, largest), heads)
            # The same two rules as in `sequence`: no copies, and nothing above the acknowledgement's clock.
            is_committed = (clocks > largest) & (clocks <= transactions.ack_clocks[transaction])
            ack_offsets[rows[is_committed]] = transactions.ack_offsets[transaction[is_committed]]
        return ack_offsets


def _far_behind(clocks: Clocks, newest: int) -> npt.NDArray[np.bool_]:
    return clocks < np.uint64(max(0, newest - FORGET_AFTER))
