"""Fetches a log's entries for a secondary, each once and in order.

A thread reads ahead up to READ_AHEAD_BYTES of the journal; the receiver cuts them into records and drops
repetitions. So a waiting fetch can end at any time, by its timeout, by a cancellation, or by closing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from gazette_spark._formats.fixed import HEADER_BYTES, MAGIC
from gazette_spark.client import Chunk, Client, RetryReader
from gazette_spark.closing import Closing
from gazette_spark.errors import (
    ClosedError,
    FetchCancelledError,
    FetchTimeoutError,
    LogDataLossError,
    NoMoreMessageError,
    OffsetError,
    RecordError,
)
from gazette_spark.message.uuids import ProducerId, split_uuid
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.replicated_log_pb2 import Checkpoint
from gazette_spark.replicated_log._entries import FrameBuffer, Record
from gazette_spark.replicated_log._journal import ensure_journal, read_records


class RepeatFilter:
    """Distinguishes repeated records from new ones, in a log that is read from any record's begin. Pure.

    A writer's clock increases along the log, and each of its records is appended, and repeated if an answer
    was lost, before the next one. So a record whose clock is not above the earlier clocks of its writer is a
    repetition.

    A receiver that starts in the middle has not seen earlier clocks. A record has the offset from which a
    copy may be in the log. If that is before the receiver's start, the bytes between are read first. These
    are few, because they were appended while the record waited for its answer.
    """

    def __init__(self, start: int) -> None:
        """Start at an offset."""
        self._learned_from = start
        self._clocks: dict[ProducerId, int] = {}

    def missing(self, record: Record) -> tuple[int, int] | None:
        """Return the range whose records must be :meth:`learned <learn>` before this one, if any."""
        producer, clock, _ = split_uuid(record.stamp)
        # A clock that is not above an earlier one is a repetition in any case. Otherwise a copy may be before
        # the start, but not before the offset that the record names.
        if clock <= self._clocks.get(producer, 0) or record.earliest >= self._learned_from:
            return None
        return record.earliest, self._learned_from

    def learn(self, record: Record) -> None:
        """Record the clock of a record before the start."""
        producer, clock, _ = split_uuid(record.stamp)
        self._clocks[producer] = max(clock, self._clocks.get(producer, 0))

    def learned_from(self, begin: int) -> None:
        """Record that all records from an offset on were learned."""
        self._learned_from = min(begin, self._learned_from)

    def is_new(self, record: Record) -> bool:
        """Return whether the next record is new, if nothing is :meth:`missing`; without a clock it is."""
        producer, clock, _ = split_uuid(record.stamp)
        if 0 < clock <= self._clocks.get(producer, 0):
            return False
        self.learn(record)
        return True


@runtime_checkable
class Cancellation(Protocol):
    """Cancels a blocked fetch: a :class:`threading.Event` or a similar object."""

    def is_set(self) -> bool:
        """Return whether to stop."""


@runtime_checkable
class _Waitable(Protocol):
    def wait(self) -> object:
        """Block until the event has happened."""


def cancel_on(event: Cancellation | Future[Any] | _Waitable | Callable[[], object]) -> Cancellation:
    """Return a cancellation for an event, for example that the node has become primary.

    Args:
        event: A ``threading.Event`` or a similar object, which is returned unchanged; or a future; or an
            object whose ``wait()`` blocks until the event; or a function that blocks until the event, such as
            the ``get`` of a queue of notifications. A daemon thread waits for the last two.
    """
    if isinstance(event, Cancellation):
        return event
    happened = threading.Event()
    if isinstance(event, Future):
        event.add_done_callback(lambda _: happened.set())
        return happened
    wait = event.wait if isinstance(event, _Waitable) else event

    def watch() -> None:
        try:
            wait()
        finally:
            happened.set()

    threading.Thread(target=watch, name="cancel-on", daemon=True).start()
    return happened


READ_AHEAD_BYTES = 4 << 20
"""Maximum number of bytes that are read ahead."""

POLL_S = 0.02
"""Seconds between two checks of a waiting fetch's cancellation."""

IDLE_S = 10.0
"""Seconds without a byte after which a fetch compares the write head with its offset."""


class _ReadAhead:
    """Reads a journal from an offset on in a separate thread."""

    def __init__(self, client: Client, journal: str, offset: int) -> None:
        self._reader: RetryReader = client.read(journal, offset=offset, block=True)
        self._offset = offset
        self._changed = threading.Condition()
        # A fetch must be able to end at any time, and a read cannot be interrupted without losing its stream.
        # So another thread reads, and the fetch waits for it here.
        self._chunks: deque[Chunk] = deque()
        self._size = 0
        self._ended = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="replicated-log-read", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> Chunk | None:
        """Return the next chunk; None if there is none within the timeout.

        Raises:
            Exception: the journal can no longer be read, and there are no more chunks.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._ended, timeout_s)
            if self._chunks:
                chunk = self._chunks.popleft()
                self._size -= len(chunk.content)
                self._changed.notify_all()
                return chunk
            # All chunks that arrived before the failure have been returned.
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        # The lock is not held, because this ends the wait of the other thread, which then needs the lock.
        self._reader.close()
        self._thread.join()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            at = self._offset
            for chunk in self._reader:
                # A log has no gaps, and a replica that skipped one would differ from its primary. So a jump
                # is an error here.
                if chunk.offset != at:
                    error = LogDataLossError(self._reader.journal, at, chunk.offset)
                    break
                at = chunk.end
                if not self._put(chunk):
                    break
        # This includes errors of the client's function for tokens. Otherwise a fetch would interpret the end
        # of this thread as silence.
        except Exception as failure:  # noqa: BLE001
            error = failure
        finally:
            self._reader.close()
            with self._changed:
                self._ended = True
                self._error = error
                self._changed.notify_all()

    def _put(self, chunk: Chunk) -> bool:
        with self._changed:
            # A receiver that fetches nothing must not fill the memory.
            self._changed.wait_for(lambda: self._size < READ_AHEAD_BYTES or self._ended)
            self._chunks.append(chunk)
            self._size += len(chunk.content)
            self._changed.notify_all()
            return not self._ended


class Receiver(Closing):
    """Fetches a log's entries and checkpoints. For one thread, but any thread may call :meth:`close`.

    After an error the next fetch continues at the same offset.
    """

    def __init__(self, client: Client, journal: str, *, spec: pb.JournalSpec | None = None) -> None:
        """Make a receiver at the log's first offset, and the journal if it is missing.

        Args:
            client: Makes the calls. The caller closes it.
            journal: Name of the log.
            spec: Spec of a new journal, such as stores and replication; its content type is set here.

        Raises:
            OptionError: the journal is not a log, or is write-only.
        """
        ensure_journal(client, journal, spec, pb.JournalSpec.O_WRONLY)
        self.journal = journal
        self.version = 0
        """The log's version after the last fetched checkpoint; 0 without one."""
        self._client = client
        self._ahead: _ReadAhead | None = None
        self._closed = False
        self._begin(0)

    def _begin(self, offset: int) -> None:
        self._frames = FrameBuffer(self.journal, offset)
        self._repeats = RepeatFilter(offset)
        self._head = 0

    def __repr__(self) -> str:
        return f"Receiver({self.journal!r}, offset={self.offset})"

    def close(self) -> None:
        """End the receiver, from any thread. May be called again. A current fetch raises ClosedError."""
        self._closed = True
        if (ahead := self._ahead) is not None:
            ahead.close()

    @property
    def offset(self) -> int:
        """Offset of the next record: all earlier ones are fetched. A replica stores it with its state."""
        return self._frames.begin

    def set_offset(self, offset: int) -> None:
        """Continue at an offset: that of a checkpoint, or the begin or end of any entry.

        Raises:
            OffsetError: no entry begins or ends there.
            LogDataLossError: the log does not reach that far, or begins after it.
        """
        if offset < 0:
            raise OffsetError("expected an entry's begin or end", self.journal, offset)
        self._check_open()
        # At the head there is nothing to compare: the next entry will begin there.
        head = self._head_from(offset)
        if head != offset:
            end = min(offset + HEADER_BYTES, head)
            with self._client.read(self.journal, offset=offset, end_offset=end) as reader:
                header = b"".join(chunk.content for chunk in reader)
                if reader.jumps:
                    raise LogDataLossError(self.journal, offset, reader.jumps[0][1])
            # A frame begins with a magic number. An offset inside an entry would make all later bytes
            # unreadable.
            if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
                raise OffsetError("no entry begins or ends there", self.journal, offset)
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        self._begin(offset)

    def fetch_entry(
        self, timeout_s: float | None = None, cancel: Cancellation | None = None
    ) -> bytes | Checkpoint:
        """Wait for the next entry or checkpoint, and return it.

        Args:
            timeout_s: Seconds to wait; None for no limit.
            cancel: Ends the wait when it is set: a ``threading.Event``, or the result of
                :func:`~gazette_spark.replicated_log.cancel_on`.

        Raises:
            FetchTimeoutError: nothing arrived in time.
            FetchCancelledError: ``cancel`` was set.
            LogDataLossError: entries are gone.
            RecordError: the journal contains something else.
        """
        return self._fetch(timeout_s, cancel, to_head=False)

    def try_fetch_entry(
        self, timeout_s: float | None = None, cancel: Cancellation | None = None
    ) -> bytes | Checkpoint:
        """Return the next entry or checkpoint, or raise NoMoreMessageError at the end of the log.

        The journal's primary reports the end, after all appends that it has acknowledged. A secondary that
        has called ``Writer.take_over`` and fetches until this error has everything, and is the primary. The
        request is an append without bytes, so the client needs the right to append.

        Raises:
            NoMoreMessageError: everything has been fetched.
            LogDataLossError: the log ends before the fetched entries, or entries are gone.
        """
        return self._fetch(timeout_s, cancel, to_head=True)

    def _fetch(  # noqa: C901 - told in order
        self, timeout_s: float | None, cancel: Cancellation | None, *, to_head: bool
    ) -> bytes | Checkpoint:
        begun = time.monotonic()
        idle_since = begun
        while True:
            self._check_open()
            if cancel is not None and cancel.is_set():
                raise FetchCancelledError(self.journal, self.offset)
            # First return what has arrived, even if the time is over: a timeout of 0 returns an available
            # entry.
            record = self._next_record()
            if record is not None:
                if record.content is None:
                    # A takeover has no content, but its clock counts.
                    continue
                if isinstance(record.content, Checkpoint):
                    self.version = record.version
                return record.content
            left_s = None if timeout_s is None else timeout_s - (time.monotonic() - begun)
            at = self._frames.end
            if to_head and at >= self._head:
                # Is this the end of the log? The current primary answers an append without bytes after all
                # appends that were acknowledged before. The head of a read may come from an outdated broker.
                wait_s = None if left_s is None else max(0.1, left_s)
                self._head = self._client.append(self.journal, b"", timeout_s=wait_s).end
                if self._head < at:
                    raise LogDataLossError(self.journal, at, self._head)
                if self._head == at and at > self.offset:
                    raise RecordError(self.journal, self.offset, "the journal ends inside the entry")
                if self._head == at:
                    raise NoMoreMessageError(self.journal, at)
            if self._take_chunk(left_s, polls=cancel is not None):
                idle_since = time.monotonic()
            elif left_s is not None and left_s <= 0:
                raise FetchTimeoutError(self.journal, self.offset, timeout_s or 0.0)
            elif time.monotonic() - idle_since >= IDLE_S:
                # A reader would wait forever for offsets that its journal has lost, because brokers do not
                # report that. So the write head is compared, and the caller gets an error.
                idle_since = time.monotonic()
                self._head_from(self._frames.end)

    def _next_record(self) -> Record | None:
        """Return the next record of the received bytes that is not a repetition."""
        while (record := self._frames.peek()) is not None:
            # Do this before advancing, so that the record is judged again after a failure.
            if (missing := self._repeats.missing(record)) is not None:
                for earlier in read_records(self._client, self.journal, *missing):
                    self._repeats.learn(earlier)
                self._repeats.learned_from(missing[0])
            self._frames.advance(record.end)
            if self._repeats.is_new(record):
                return record
        return None

    def _take_chunk(self, left_s: float | None, *, polls: bool) -> bool:
        """Wait a while for bytes, and return whether any arrived."""
        # The thread begins with the first fetch, and again after an error, at the first byte that was not
        # received.
        if self._ahead is None:
            self._ahead = _ReadAhead(self._client, self.journal, self._frames.end)
            if self._closed:  # Another thread has closed the receiver, and found nothing to end.
                self._ahead.close()
        wait_s = min(IDLE_S if left_s is None else max(0.0, left_s), POLL_S if polls else IDLE_S)
        try:
            chunk = self._ahead.take(wait_s)
        except Exception:
            self._ahead.close()
            self._ahead = None
            raise
        if chunk is None:
            return False
        self._frames.feed(chunk.content)
        return True

    def _head_from(self, offset: int) -> int:
        """Return the write head.

        Raises:
            LogDataLossError: it is below the offset, and the journal's primary does not refute that in time.
        """
        # A replica that replaced a dead broker may report a head that is too low, so a low head is confirmed
        # first.
        settled = self._client.settled_heads({self.journal: offset})[self.journal]
        if settled.write_head < offset:
            raise LogDataLossError(self.journal, offset, settled.write_head, settled.doubt)
        return settled.write_head

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"receiver of log {self.journal!r}", "it is closed")
