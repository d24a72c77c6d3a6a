"""Reads the committed messages of a piece: the records that acknowledgements commit.

One task reads a range of a journal from its start to its end. The states of the producers at the start show
which transactions are open. A message of a transaction waits in memory until its fate is known, within a
window of :data:`WINDOW_BYTES`. Messages that have left the window, or lie before the range, are read again
at the end, if their transaction was committed. So no task keeps more than the window, and bytes are read at
most twice.

The rows are the same as those of a reader without a window, but in a different order: messages that are read
again come last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import int64_array
from gazette_spark._formats.framing import Block
from gazette_spark._formats.metadata import ACK_OFFSET, CLOCK, FLAGS, PRODUCER, UUID
from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.cutter import Gap, PieceScan
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.reads import JournalSource, skipped_spans
from gazette_spark._planning.states import RangeStates, StateFiles, without_lost
from gazette_spark.errors import DataLossError, OptionError, SuspendedError
from gazette_spark.message.bulk_sequencer import DROPPED, PENDING, Closings, ProducerStates, Replay, sequence
from gazette_spark.message.interfaces import CONTENT_TYPES
from gazette_spark.message.locator import Locator, locator_for
from gazette_spark.message.uuid_columns import UuidReader, uuid_reader
from gazette_spark.message.uuids import ACK_TXN, UuidColumns, uuid_texts

if TYPE_CHECKING:
    import numpy.typing as npt

    Offsets = npt.NDArray[np.int64]

WINDOW_BYTES = 64 << 20
"""Maximum bytes of blocks kept in memory because the fate of some of their messages is unknown."""


class States(Protocol):
    """Source and destination of the states of producers."""

    def at_begin(self) -> ProducerStates:
        """Return the states at the start of the range."""

    def at_end(self, states: ProducerStates) -> None:
        """Store the states at the end of the range."""


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Records of a block, and the acknowledgement that commits each of them."""

    block: Block
    uuids: UuidColumns
    ack_offsets: Offsets

    def only(self, keep: npt.NDArray[np.bool_]) -> Messages:
        """Return the records that a mask selects."""
        return Messages(self.block.only(keep), self.uuids.take(keep), self.ack_offsets[keep])

    def with_columns(self, names: Collection[str]) -> Block:
        """Return the block with the named metadata columns of messages."""
        build: dict[str, Callable[[], pa.Array]] = {
            UUID: lambda: uuid_texts(self.uuids),
            PRODUCER: lambda: _producers(self.uuids),
            CLOCK: lambda: _nullable(self.uuids.clocks.view(np.int64), pa.int64(), self.uuids.valid),
            FLAGS: lambda: _nullable(self.uuids.flags.astype(np.int32), pa.int32(), self.uuids.valid),
            ACK_OFFSET: lambda: int64_array(self.ack_offsets),
        }
        return replace(self.block, columns={name: build[name]() for name in names if name in build})


class CommittedScan:
    """Iterates over the blocks of committed records of a range. Use once, from one thread."""

    def __init__(
        self,
        piece: Piece,
        scan: Callable[[Piece], PieceScan],
        reader: UuidReader,
        states: States,
        *,
        columns: Collection[str] = (),
        include_acks: bool = False,
    ) -> None:
        """Read ``piece``, a whole range.

        Args:
            piece: The range.
            scan: Opens the scan of a piece of the journal.
            reader: Reads the messages' UUIDs.
            states: The states of the journal's producers.
            columns: Names of the metadata columns of messages to add to the blocks.
            include_acks: Whether to yield acknowledgements, too.
        """
        self._piece = piece
        self._scan = scan
        self._reader = reader
        self._states = states
        self._columns = tuple(columns)
        self._include_acks = include_acks
        # Transactions that began before the range were never in the window, so its floor is the range's
        # start.
        self._window = PendingWindow(piece.begin)
        self.gaps: list[Gap] = []
        """Gaps of the first pass; always empty if data loss is an error."""

    def __repr__(self) -> str:
        return f"CommittedScan({self._piece})"

    def __iter__(self) -> Iterator[Block]:
        # The first pass reads the range and decides what its acknowledgements commit. It yields messages
        # whose fate becomes known while their block is in the window.
        scan = self._scan(self._piece)
        sequencing = Sequencing(scan, self._reader, self._states.at_begin())
        for messages, closings in sequencing:
            yield from self._built(self._window.add(messages, closings))
        self.gaps = list(scan.gaps)
        # Messages that are still undecided here belong to transactions that are open at the end. A later
        # batch has them.
        yield from self._built(self._window.finish())
        # The states are written before the second pass because they do not depend on it. A task that dies
        # in the second pass begins again with the same states.
        self._states.at_end(sequencing.states.without_forgotten())
        # The second pass reads only what was committed too late for the window, or began before the range.
        yield from self._built(self._read_again(self._window.replay()))

    def _built(self, parts: Iterator[Messages]) -> Iterator[Block]:
        """Yield blocks with the metadata columns, and acknowledgements only if requested."""
        for messages in parts:
            shown, uuids = messages, messages.uuids
            if not self._include_acks:
                # A message with a clock of 0 has opted out of sequencing, so its flags mean nothing. It is a
                # row.
                acks = uuids.valid & (uuids.flags == ACK_TXN) & (uuids.clocks != 0)
                shown = messages.only(~acks) if acks.any() else messages
            if len(shown.block):
                yield shown.with_columns(self._columns)

    def _read_again(self, replay: Replay) -> Iterator[Messages]:
        for begin, end in replay.spans():
            # Both ends are record boundaries: a transaction begins with a message, and the window's floor is
            # the end of one. The range's content, if the planner had it, does not have these bytes.
            part = replace(self._piece, begin=begin, end=end, limit=end, starts_on_record=True, content=None)
            scan = self._scan(part)
            for block in scan:
                uuids = self._reader.uuids(block)
                # The same bytes have messages of other producers, most of which are already rows. Only those
                # of the transactions that are replayed count.
                acks = replay.sequence(uuids, block.offsets)
                if (committed := acks >= 0).any():
                    yield Messages(block, uuids, acks).only(committed)
            if scan.gaps:
                # Some messages of these transactions may already be rows, so they cannot be omitted whole.
                gap = scan.gaps[0]
                raise DataLossError(gap.journal, gap.begin, gap.end)


class Sequencing:
    """Iterates over the records of a scan with their fates. Use once.

    A transaction that is open where bytes are missing is lost, and none of its messages are delivered.
    """

    def __init__(self, scan: PieceScan, reader: UuidReader, states: ProducerStates) -> None:
        self._scan = scan
        self._reader = reader
        self.states = states
        """States after the records so far."""

    def __iter__(self) -> Iterator[tuple[Messages, Closings]]:
        # Where bytes are missing, every open transaction may have lost messages, so none of them may be
        # delivered in part. The scan reports a gap before the first block after it. A block may contain
        # several gaps, if no record begins at some of its bytes, so it is sequenced in parts: messages before
        # a gap still belong to their transactions, those after it do not.
        seen = 0
        for block in self._scan:
            first = 0
            for gap in self._scan.gaps[seen:]:
                stop = max(first, int(np.searchsorted(block.offsets, gap.end)))
                yield self._next(block.rows(first, stop))
                first = stop
                self.states = without_lost(self.states, gap.journal, gap.begin, gap.end)
            seen = len(self._scan.gaps)
            yield self._next(block.rows(first, len(block)) if first else block)
        # A gap after the last record still counts for the states with which the next batch begins.
        for gap in self._scan.gaps[seen:]:
            self.states = without_lost(self.states, gap.journal, gap.begin, gap.end)

    def _next(self, block: Block) -> tuple[Messages, Closings]:
        uuids = self._reader.uuids(block)
        # Each block continues with the states of the previous one, as if the range were a single block.
        sequenced = sequence(self.states, uuids, block.offsets)
        self.states = sequenced.states
        return Messages(block, uuids, sequenced.ack_offsets), sequenced.closings


class PendingWindow:
    """The newest blocks with messages whose fate is unknown. Pure: it reads nothing."""

    def __init__(self, begin: int) -> None:
        self._held: deque[Messages] = deque()
        self._size = 0
        self._floor = begin
        """Waiting messages that begin before this offset have left the window."""
        self._closings: list[Closings] = []
        """Transactions that ended since the oldest block in the window."""
        self._again: list[Closings] = []
        """Committed transactions with messages that have left the window."""
        self._until: list[Offsets] = []
        """For each of these transactions, the offset up to which it must be read again."""

    def add(self, messages: Messages, closings: Closings) -> Iterator[Messages]:
        """Take the next block, and yield messages that are known to be committed."""
        # These transactions have ended in the new block. If one began before the floor, some of its messages
        # have left the window, and the second pass must find them, up to the floor: the rest is still here.
        if len(closings):
            # Lost transactions have a negative begin: there is nothing to read again.
            again = closings.take((closings.begins >= 0) & (closings.begins < self._floor))
            self._again.append(again)
            self._until.append(np.full(len(again), self._floor, np.int64))
            # Ends of this block decide messages of earlier blocks only: `sequence` has applied them to the
            # block's own messages, and those that still wait come after their producer's last end.
            if self._held:
                self._closings.append(closings)
        # Most blocks have whole transactions, and pass without a copy.
        committed = messages.ack_offsets >= 0
        if committed.all():
            if len(committed):
                yield messages
        elif committed.any():
            yield messages.only(committed)
        waiting = messages.ack_offsets == PENDING
        if waiting.any():
            self._held.append(messages.only(waiting))
            # All of the block's bytes count, because a block keeps them even if only a few of its messages
            # wait.
            self._size += len(messages.block.data)
        # The oldest blocks leave first, so that all removed messages lie before one offset, the floor.
        while self._size > WINDOW_BYTES:
            yield from self._leave()

    def finish(self) -> Iterator[Messages]:
        """Yield the committed messages of the remaining blocks."""
        while self._held:
            yield from self._leave()

    def replay(self) -> Replay:
        """Return which messages must be read again."""
        # Each transaction has its own end: the floor has moved on between the closings.
        until = np.concatenate([np.zeros(0, np.int64), *self._until])
        return Replay(Closings.joined(self._again), until)

    def _leave(self) -> Iterator[Messages]:
        """Remove the oldest block, and yield its committed messages."""
        oldest = self._held.popleft()
        self._size -= len(oldest.block.data)
        offsets = oldest.block.offsets
        # A range that is read again must end at a record boundary.
        self._floor = oldest.block.end_offset(-1)
        # Messages that no end has decided yet leave as well. Their transactions now begin before the floor,
        # so a later end of one makes the second pass read it again.
        closings = Closings.joined(self._closings)
        acks = resolved(oldest.uuids, offsets, closings)
        committed = acks >= 0
        if committed.any():
            yield Messages(oldest.block, oldest.uuids, acks).only(committed)
        # An end before the floor can decide no message that is still in the window.
        later = closings.take(closings.ack_offsets >= self._floor)
        self._closings = [later] if len(later) and self._held else []


def resolved(uuids: UuidColumns, offsets: Offsets, closings: Closings) -> Offsets:
    """Return the fates of waiting messages, which the next end of their producer's transaction decides."""
    acks = np.full(len(uuids), PENDING, np.int64)
    if not len(closings) or not len(uuids):
        return acks
    # The first end of the producer's transaction after the message decides. A binary search finds it for all
    # messages at once, in keys of the producer's rank and the end's offset. Offsets count from the block's
    # first message, so that both parts fit 63 bits; ends before that message decide nothing, and would give
    # negative numbers.
    producers, ranks = np.unique(closings.producers, return_inverse=True)
    base = int(offsets[0])
    bits = max(int(closings.ack_offsets.max()) - base, int(offsets[-1]) - base, 1).bit_length()
    later = closings.ack_offsets > base
    keys = (ranks[later].astype(np.int64) << bits) | (closings.ack_offsets[later] - base)
    order = np.argsort(keys, kind="stable")
    keys, closings = keys[order], closings.take(later).take(order)
    rank = np.minimum(np.searchsorted(producers, uuids.producers), len(producers) - 1)
    at = np.searchsorted(keys, (rank << bits) | (offsets - base), side="right")
    closed = at < len(keys)
    # Index 0 represents a missing end, which `closed` excludes.
    at = np.where(closed, at, 0)
    closed = closed & (closings.producers[at] == uuids.producers) if len(keys) else closed
    if closed.any():
        # A transaction that was rolled back, or has lost bytes, ends with the clock 0, which is below the
        # clocks of all messages.
        committed = uuids.clocks <= closings.ack_clocks[at]
        acks[closed] = np.where(committed, closings.ack_offsets[at], DROPPED)[closed]
    return acks


def _nullable(
    values: npt.NDArray[np.signedinteger], kind: pa.DataType, valid: npt.NDArray[np.bool_]
) -> pa.Array:
    mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [mask, pa.py_buffer(values)], null_count=-1)


def _producers(uuids: UuidColumns) -> pa.StringArray:
    """Return producer ids as hexadecimal digits, the last part of a UUID's text."""
    if not len(uuids):
        return pa.nulls(0, pa.string())
    # A text has 36 characters, of which the last 12 are the producer.
    data = np.frombuffer(uuid_texts(uuids).buffers()[2], np.uint8).reshape(-1, 36)[:, 24:]
    bounds = np.arange(len(uuids) + 1, dtype=np.int32) * 12
    valid = pa.py_buffer(np.packbits(uuids.valid, bitorder="little"))
    return pa.StringArray.from_buffers(
        len(uuids), pa.py_buffer(bounds), pa.py_buffer(data.tobytes()), valid, null_count=-1
    )


def uuid_place(options: SourceOptions, framing: str) -> Locator:
    """Return the locator of the UUID in messages of a framing.

    Raises:
        OptionError: the framing has no messages, or ``uuidPath`` is invalid for it.
    """
    if framing not in CONTENT_TYPES:
        expected = f"one of {', '.join(CONTENT_TYPES)}, for isolationLevel={options.isolation_level}"
        raise OptionError("framing", framing, expected)
    return locator_for(CONTENT_TYPES[framing], options.uuid_path or "")


def committed_scan(
    client: JournalSource,
    piece: Piece,
    options: SourceOptions,
    scan: Callable[[Piece], PieceScan],
    columns: Collection[str],
) -> CommittedScan:
    """Return the scan of the committed messages of a piece, which must be a whole range.

    Args:
        client: Reads the journal.
        piece: The range, and the offset at which the query began.
        options: Options of the query.
        scan: Returns the scan of all records of a piece of the journal.
        columns: Names of the query's columns.
    """
    reader = uuid_reader(uuid_place(options, piece.framing), separator=options.sep, quote=options.quote)

    def catch_up(states: ProducerStates, at: int, until: int) -> ProducerStates:
        # This happens only without the file of states at the range's start: see `states`.
        part = Piece(piece.journal, at, until, until, starts_on_record=True, framing=piece.framing)
        sequencing = Sequencing(scan(part), reader, states)
        for _ in sequencing:
            pass  # Only the states matter.
        return sequencing.states

    def missing(begin: int, end: int) -> list[tuple[int, int]]:
        # Under `failOnDataLoss=false` retention may have deleted the start of a transaction that is open at
        # the range's start. Its file of states does not show that; the journal does.
        spans: list[tuple[int, int]] = []
        with suppress(SuspendedError):  # It has no fragments.
            fragments = [listed.fragment for listed in client.list_fragments(piece.journal)]
            spans = [(fragment.begin, fragment.end) for fragment in fragments]
        return list(skipped_spans(client, piece.journal, spans, begin, end))

    files = None
    if options.state_location is not None:
        content_type = CONTENT_TYPES[piece.framing]
        files = StateFiles(options.state_location, options.uuid_path or "", content_type)
    states = RangeStates(
        piece.journal,
        piece.begin,
        piece.limit,
        start=piece.start,
        files=files,
        catch_up=catch_up,
        missing=None if options.fail_on_data_loss else missing,
    )
    return CommittedScan(piece, scan, reader, states, columns=columns, include_acks=options.include_acks)
