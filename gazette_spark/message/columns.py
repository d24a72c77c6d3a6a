"""Which messages are committed, by columns: the engine of reading committed messages in bulk.

:func:`sequence` takes the messages of some bytes of a journal and the states of its producers at their begin.
It tells of each message whether it is committed, and by which acknowledgement, and returns the states at
their end. So the states at an offset follow from the journal's bytes alone, however these were cut: a state
holds all that a later message can depend on.

The rules are those of :class:`~gazette_spark.message.sequencer.Sequencer`. Most producers' clocks ascend from
message to message; these are handled as arrays. A producer that repeated messages, or went back, is handled
message by message.

One difference: an acknowledgement whose clock is that of a message it commits is delivered here, where the
sequencer takes it for a duplicate of that message. No publisher makes one; whether it is such a one can only
be told by reading the transaction again.

A transaction may begin long before its acknowledgement. Its messages are then ``PENDING`` when they are seen,
and a :class:`Closings` names the transaction once its fate is known. Who did not keep the messages reads
them again with :class:`Replay`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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
"""Instead of an acknowledgement's offset: the message is a duplicate, or was rolled back."""
PENDING = -2
"""Instead of an acknowledgement's offset: no acknowledgement or rollback was seen yet."""

NO_TRANSACTION = -1
"""Instead of a transaction's begin: there is none."""
LOST = -2
"""Instead of a transaction's begin: bytes of the transaction are gone, so none of it is delivered."""

FORGET_AFTER = (24 * 3600 * 10_000_000) << 4
"""A producer without a transaction may be forgotten once the journal's largest clock is so far ahead: a day,
the horizon of Gazette's consumers. A message that it repeats later is delivered again."""

REMEMBERED = 1024
"""Producers of a journal that are remembered at any age: those that wrote last.

Clocks are what producers say. By age alone, one message of the year 2100 would make a reader forget every
other producer and deliver their retried appends twice, for good. Neither the time of reading nor that of
fragments can take the clocks' place: a range that is read twice, by a stream and years later by ``verify``,
must give the same rows. The order in which producers write is in the journal's bytes, and no producer can
write for another one."""


@dataclass(frozen=True, slots=True, eq=False)
class ProducerStates:
    """States of a journal's producers at an offset: columns, ascending by producer."""

    producers: npt.NDArray[np.int64]
    last_acks: Clocks
    """Clock of the last message that was delivered: messages up to it are duplicates."""
    last_clocks: Clocks
    """Largest clock of the open transaction; ``last_acks`` without one."""
    begins: Offsets
    """Where the open transaction begins, ``NO_TRANSACTION`` or ``LOST``."""
    last_offsets: Offsets
    """Where the producer's last message begins."""
    newest: int = 0
    """Largest clock of the journal so far."""

    def __len__(self) -> int:
        return len(self.producers)

    @classmethod
    def none(cls) -> ProducerStates:
        """Return the states at a query's start: no producer is known."""
        clocks, offsets = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        return cls(offsets, clocks, clocks, offsets, offsets)

    def kept(self) -> ProducerStates:
        """Return the states without producers that are forgotten."""
        if len(self) <= REMEMBERED:
            return self
        # Those that wrote last are all there, since none of them was ever forgotten.
        wrote_last = self.last_offsets >= np.partition(self.last_offsets, -REMEMBERED)[-REMEMBERED]
        open_ = self.begins != NO_TRANSACTION
        return self._take(open_ | wrote_last | ~_far_behind(self.last_clocks, self.newest))

    def open_before(self, offset: int) -> npt.NDArray[np.bool_]:
        """Tell of each producer whether its open transaction begins before an offset."""
        return (self.begins >= 0) & (self.begins < offset)

    def awaited(self, now: int) -> npt.NDArray[np.bool_]:
        """Tell of each producer whether its transaction is open, and has a message of the last day.

        Args:
            now: The present time as a clock. A larger one of the journal does not count.
        """
        return (self.begins >= 0) & ~_far_behind(self.last_clocks, min(self.newest, now))

    def lost_since(self, available: int) -> ProducerStates:
        """Return the states where bytes before ``available`` are gone: transactions they held are lost."""
        gone = self.open_before(available)
        return replace(self, begins=np.where(gone, LOST, self.begins))

    def _take(self, keep: npt.NDArray[np.bool_]) -> ProducerStates:
        return ProducerStates(
            self.producers[keep],
            self.last_acks[keep],
            self.last_clocks[keep],
            self.begins[keep],
            self.last_offsets[keep],
            self.newest,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Closings:
    """Transactions that were open when some messages began, and ended among them: columns, one row each."""

    producers: npt.NDArray[np.int64]
    begins: Offsets
    """Where the transaction began."""
    last_acks: Clocks
    """Messages up to this clock are duplicates from before it."""
    ack_clocks: Clocks
    """Messages up to this clock are committed; 0: none is."""
    ack_offsets: Offsets
    """Where the message begins that ended it."""

    def __len__(self) -> int:
        return len(self.producers)

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int, int]]) -> Closings:
        """Return rows of producer, begin, last acknowledged clock, clock and offset of the end."""
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
        """Return all rows of some."""
        every = [cls.of(()), *parts]
        names = ("producers", "begins", "last_acks", "ack_clocks", "ack_offsets")
        return cls(*(np.concatenate([getattr(each, name) for each in every]) for name in names))

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Closings:
        """Return some rows."""
        return Closings(
            self.producers[rows],
            self.begins[rows],
            self.last_acks[rows],
            self.ack_clocks[rows],
            self.ack_offsets[rows],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Sequenced:
    """What :func:`sequence` found."""

    ack_offsets: Offsets
    """For each message the offset at which the message begins that committed it, ``DROPPED`` or ``PENDING``.
    Messages outside of transactions, and acknowledgements, have their own."""
    closings: Closings
    """Transactions of earlier messages that ended among these."""
    states: ProducerStates
    """The states behind these messages."""


def sequence(states: ProducerStates, uuids: UuidColumns, offsets: Offsets) -> Sequenced:
    """Sequence messages that follow each other in a journal.

    Args:
        states: States of the producers where the messages begin.
        uuids: The messages' UUIDs. A message without one, or with a clock of 0, is always committed.
        offsets: Where each message begins, ascending.
    """
    acks = np.full(len(uuids), DROPPED, np.int64)
    sequenced = uuids.valid & (uuids.clocks != 0)
    acks[~sequenced] = offsets[~sequenced]
    rows = np.flatnonzero(sequenced)
    if not len(rows):
        return Sequenced(acks, Closings.of(()), states)
    order = rows[np.argsort(uuids.producers[rows], kind="stable")]
    segments = _Segments.of(states, uuids, offsets, order)
    # A forgotten producer begins anew. So it makes no difference whether its state was tidied up before.
    if (
        new := segments.forgotten(segments.heads, segments.last_clocks, segments.begins == NO_TRANSACTION)
    ).any():
        segments.last_acks[new] = segments.last_clocks[new] = segments.clocks[segments.heads][
            new
        ] - np.uint64(1)
    regular = segments.regular()
    found = _by_columns(segments, acks)
    singles = [_one_by_one(segments, int(at), acks) for at in np.flatnonzero(~regular)]
    kept = found.take(regular[np.searchsorted(segments.producers, found.producers)])
    return Sequenced(acks, Closings.joined([kept, *singles]), segments.states())


@dataclass(eq=False)
class _Segments:
    """The messages by producer, each producer's in order, and its state; changed in place."""

    order: npt.NDArray[np.int64]
    """Index of each message."""
    producers: npt.NDArray[np.int64]
    heads: npt.NDArray[np.int64]
    """Where each producer's messages begin in ``order``."""
    tails: npt.NDArray[np.int64]
    """Just past its last message."""
    clocks: Clocks
    flags: npt.NDArray[np.uint16]
    offsets: Offsets
    last_acks: Clocks
    last_clocks: Clocks
    begins: Offsets
    newest: Clocks
    """Largest clock of the journal before each message, by its index."""
    old: ProducerStates
    """The states before these messages."""

    @classmethod
    def of(
        cls, states: ProducerStates, uuids: UuidColumns, offsets: Offsets, order: npt.NDArray[np.int64]
    ) -> _Segments:
        by_row = uuids.producers[order]
        heads = np.flatnonzero(np.append(True, by_row[1:] != by_row[:-1]))
        producers, clocks = by_row[heads], uuids.clocks[order]
        flags = uuids.flags[order]
        at = np.searchsorted(states.producers, producers)
        known = np.zeros(len(producers), np.bool_)
        inside = at < len(states)
        known[inside] = states.producers[at[inside]] == producers[inside]
        fresh = clocks[heads] - np.uint64(1)
        last_acks, last_clocks, begins = fresh.copy(), fresh.copy(), np.full(len(heads), NO_TRANSACTION)
        for column, stored in (
            (last_acks, states.last_acks),
            (last_clocks, states.last_clocks),
            (begins, states.begins),
        ):
            column[known] = stored[at[known]]
        newest = np.maximum.accumulate(np.append(np.uint64(states.newest), uuids.clocks))
        return cls(
            order,
            producers,
            heads,
            np.append(heads[1:], len(order)),
            clocks,
            np.where(flags > ACK_TXN, np.uint16(OUTSIDE_TXN), flags),
            offsets[order],
            last_acks,
            last_clocks,
            begins,
            newest,
            states,
        )

    def regular(self) -> npt.NDArray[np.bool_]:
        """Tell of each producer whether its clocks ascend, from its state on."""
        before = np.empty_like(self.clocks)
        before[1:] = self.clocks[:-1]
        before[self.heads] = self.last_clocks
        return np.asarray(np.logical_and.reduceat(self.clocks > before, self.heads))

    @cached_property
    def previous(self) -> Offsets:
        """For each message the index of the producer's previous one, -1 without; past all for others."""
        found = np.full(len(self.newest), len(self.newest), np.int64)
        found[self.order[1:]] = self.order[:-1]
        found[self.order[self.heads]] = -1
        return found

    def forgotten(
        self, firsts: npt.NDArray[np.int64], last_clocks: Clocks, candidates: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Tell of each candidate whether it was forgotten before its message at ``order[firsts]``."""
        found = np.zeros(len(candidates), np.bool_)
        if len(self.old) + len(self.producers) > REMEMBERED:
            rows = self.order[np.where(candidates, firsts, 0)]
            day_ago = np.maximum(self.newest[rows], np.uint64(FORGET_AFTER)) - np.uint64(FORGET_AFTER)
            for at in np.flatnonzero(candidates & (last_clocks < day_ago)).tolist():
                found[at] = self.is_forgotten(at, int(last_clocks[at]), int(rows[at]))
        return found

    def is_forgotten(self, at: int, last_clock: int, row: int) -> bool:
        """Tell whether a producer was forgotten before its message ``row``, wherever states were tidied up.

        That is: a day before the newest clock, and with ``REMEMBERED`` others that wrote after it.
        """
        if len(self.old) + len(self.producers) <= REMEMBERED:
            return False
        if last_clock + FORGET_AFTER >= int(self.newest[row]):
            return False
        previous = int(self.previous[row])
        # A producer that wrote several times since counts with the first of these messages.
        others = int(np.count_nonzero(self.previous[previous + 1 : row] <= previous))
        if previous >= 0 or others >= REMEMBERED:
            return others >= REMEMBERED
        known = int(np.searchsorted(self.old.producers, self.producers[at]))
        if known == len(self.old) or self.old.producers[known] != self.producers[at]:
            return False
        later = self.old.last_offsets > self.old.last_offsets[known]
        if others + np.count_nonzero(later) < REMEMBERED:
            return False
        # Those that wrote both before these messages and among them count once.
        later &= ~np.isin(self.old.producers, self.producers[self.order[self.heads] < row])
        return others + int(np.count_nonzero(later)) >= REMEMBERED

    def states(self) -> ProducerStates:
        """Return all states, those of other producers as they were."""
        old = self.old
        others = np.ones(len(old), np.bool_)
        if len(old):
            at = np.searchsorted(self.producers, old.producers)
            inside = at < len(self.producers)
            others[inside] = self.producers[at[inside]] != old.producers[inside]
        merged = [
            np.concatenate([new, stored[others]])
            for new, stored in (
                (self.producers, old.producers),
                (self.last_acks, old.last_acks),
                (self.last_clocks, old.last_clocks),
                (self.begins, old.begins),
                (self.offsets[self.tails - 1], old.last_offsets),
            )
        ]
        order = np.argsort(merged[0], kind="stable")
        producers, last_acks, last_clocks, begins, last_offsets = (column[order] for column in merged)
        return ProducerStates(producers, last_acks, last_clocks, begins, last_offsets, int(self.newest[-1]))


def _by_columns(segments: _Segments, acks: Offsets) -> Closings:
    """Sequence all producers as if their clocks ascended; return the transactions that ended.

    States of producers whose clocks do not ascend are left alone; what is found for them is wrong and is
    replaced.
    """
    regular, heads, tails = segments.regular(), segments.heads, segments.tails
    count = len(segments.order)
    ends = segments.flags != CONTINUE_TXN
    index = np.arange(count)
    following = np.minimum.accumulate(np.where(ends, index, count)[::-1])[::-1]
    segment_ends = np.repeat(tails, tails - heads)
    open_ = following >= segment_ends
    ender = np.where(open_, 0, following)
    committed = ends | (segments.flags[ender] == ACK_TXN)
    fate = np.where(committed, segments.offsets[ender], DROPPED)
    fate[open_] = PENDING
    # A transaction that began before these messages.
    first = following[heads]
    carried = segments.begins != NO_TRANSACTION
    ended = carried & (first < tails)
    lost = segments.begins == LOST
    enders = first[ended]
    acknowledged = (segments.flags[enders] == ACK_TXN) & ~lost[ended]
    closings = Closings(
        segments.producers[ended],
        segments.begins[ended],
        segments.last_acks[ended],
        np.where(acknowledged, segments.clocks[enders], np.uint64(0)),
        segments.offsets[enders],
    )
    if lost.any():
        # Messages of the lost transaction, up to its end.
        before = index < np.repeat(first, tails - heads)
        fate[before & np.repeat(lost, tails - heads)] = DROPPED
    acks[segments.order] = fate
    # The states after the last message that ended a transaction.
    since = np.maximum.accumulate(np.where(ends, index, -1))[tails - 1]
    any_end = since >= heads
    last = np.where(any_end, since, 0)
    last_acks = np.where(any_end, segments.clocks[last], segments.last_acks)
    next_begin = segments.offsets[np.minimum(np.where(any_end, since + 1, heads), count - 1)]
    opens = any_end & (since < tails - 1)
    begins = np.where(any_end & ~opens, NO_TRANSACTION, next_begin)
    first_open = np.where(opens, last + 1, 0)
    new = segments.forgotten(first_open, segments.clocks[last], regular & opens)
    last_acks = np.where(new, segments.clocks[first_open] - np.uint64(1), last_acks)
    begins = np.where(~any_end & carried, segments.begins, begins)
    segments.last_acks = np.where(regular, last_acks, segments.last_acks)
    segments.last_clocks = np.where(regular, segments.clocks[tails - 1], segments.last_clocks)
    segments.begins = np.where(regular, begins, segments.begins)
    return closings


@dataclass(slots=True, eq=False)
class _Producer:
    """One producer whose clocks are anything; changed message by message."""

    producer: int
    last_ack: int
    last_clock: int
    begin: int
    acks: Offsets
    """Of all messages of the journal's bytes."""
    carried: tuple[int, int] | None = None
    """Begin, and last acknowledged clock, of a transaction that began earlier."""
    pending: list[tuple[int, int]] = field(default_factory=list)
    """Clocks and indices of the open transaction's messages."""
    closings: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def take(self, clock: int, flags: int, offset: int, row: int) -> None:
        """Take the next message."""
        self.acks[row] = DROPPED
        if flags == CONTINUE_TXN:
            if clock > self.last_clock:
                self._extend(clock, offset, row)
        elif clock > self.last_ack:
            self._end(clock if flags == ACK_TXN and self.begin != LOST else 0, clock, offset)
            self.acks[row] = offset
        elif flags == ACK_TXN:
            self._end(0, clock, offset)  # A repeated acknowledgement, or a lower one: rolled back.

    def _extend(self, clock: int, offset: int, row: int) -> None:
        if self.begin == NO_TRANSACTION:
            self.begin = offset
        if self.begin != LOST:
            self.pending.append((clock, row))
            self.acks[row] = PENDING
        self.last_clock = clock

    def _end(self, ack_clock: int, clock: int, offset: int) -> None:
        """End the transaction: its messages up to ``ack_clock`` are committed."""
        for each, row in self.pending:
            self.acks[row] = offset if each <= ack_clock else DROPPED
        if self.carried is not None:
            self.closings.append((self.producer, *self.carried, ack_clock, offset))
        self.pending, self.carried = [], None
        self.last_ack = self.last_clock = clock
        self.begin = NO_TRANSACTION


def _one_by_one(segments: _Segments, at: int, acks: Offsets) -> Closings:
    """Sequence one producer's messages, whatever its clocks are."""
    low, high = int(segments.heads[at]), int(segments.tails[at])
    begin, last_ack = int(segments.begins[at]), int(segments.last_acks[at])
    one = _Producer(int(segments.producers[at]), last_ack, int(segments.last_clocks[at]), begin, acks)
    one.carried = None if begin == NO_TRANSACTION else (begin, last_ack)
    columns = (segments.clocks, segments.flags, segments.offsets, segments.order)
    for clock, flags, offset, row in zip(*(column[low:high].tolist() for column in columns), strict=True):
        if one.begin == NO_TRANSACTION and segments.is_forgotten(at, one.last_clock, row):
            one.last_ack = one.last_clock = clock - 1
        one.take(clock, flags, offset, row)
    segments.last_acks[at], segments.last_clocks[at] = one.last_ack, one.last_clock
    segments.begins[at] = one.begin
    return Closings.of(one.closings)


class Replay:
    """Finds the messages of committed transactions in bytes that are read again. One pass, ascending.

    Give it each transaction with the offset up to which its messages are wanted; a producer's transactions do
    not overlap.
    """

    def __init__(self, transactions: Closings, until: Offsets) -> None:
        wanted = (transactions.ack_clocks != 0) & (transactions.begins < until)
        order = np.argsort(transactions.begins[wanted], kind="stable")
        self._all = transactions.take(wanted).take(order)
        self._until = until[wanted][order]
        self._last = self._all.last_acks.copy()

    def spans(self) -> Spans:
        """Return the bytes to read again."""
        return joined(zip(self._all.begins.tolist(), self._until.tolist(), strict=True))

    def sequence(self, uuids: UuidColumns, offsets: Offsets) -> Offsets:
        """Return the acknowledgement's offset of each message that is committed, ``DROPPED`` for others."""
        acks = np.full(len(uuids), DROPPED, np.int64)
        if not len(uuids):
            return acks
        active = np.flatnonzero((self._all.begins <= offsets[-1]) & (self._until > offsets[0]))
        candidates = np.flatnonzero(uuids.valid & (uuids.clocks != 0) & (uuids.flags == CONTINUE_TXN))
        while len(active) and len(candidates):
            producers, first = np.unique(self._all.producers[active], return_index=True)
            chosen = active[first]
            at = np.minimum(np.searchsorted(producers, uuids.producers[candidates]), len(producers) - 1)
            mine = producers[at] == uuids.producers[candidates]
            self._sequence_some(candidates[mine], chosen[at[mine]], uuids.clocks, offsets, acks)
            active = np.delete(active, first)
        return acks

    def _sequence_some(
        self,
        rows: npt.NDArray[np.int64],
        transaction: npt.NDArray[np.int64],
        clocks: Clocks,
        offsets: Offsets,
        acks: Offsets,
    ) -> None:
        """Find the messages of transactions, one of each producer, among rows of these producers."""
        inside = (offsets[rows] >= self._all.begins[transaction]) & (offsets[rows] < self._until[transaction])
        rows, transaction = rows[inside], transaction[inside]
        if not len(rows):
            return
        order = np.argsort(transaction, kind="stable")
        rows, transaction = rows[order], transaction[order]
        heads = np.flatnonzero(np.append(True, transaction[1:] != transaction[:-1]))
        clocks, tails = clocks[rows], np.append(heads[1:], len(rows))
        before = np.empty_like(clocks)
        before[1:] = clocks[:-1]
        before[heads] = self._last[transaction[heads]]
        ascending = np.logical_and.reduceat(clocks > before, heads)
        for segment in np.flatnonzero(~ascending):
            low, high = heads[segment], tails[segment]
            before[low:high] = np.maximum.accumulate(
                np.append(self._last[transaction[low]], clocks[low : high - 1])
            )
        largest = np.maximum.reduceat(np.maximum(clocks, before), heads)
        self._last[transaction[heads]] = largest
        committed = (clocks > before) & (clocks <= self._all.ack_clocks[transaction])
        acks[rows[committed]] = self._all.ack_offsets[transaction[committed]]


def _far_behind(clocks: Clocks, newest: int) -> npt.NDArray[np.bool_]:
    return clocks < np.uint64(max(0, newest - FORGET_AFTER))
