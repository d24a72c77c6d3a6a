"""Reads a shard's source journals ahead into one inbox, with one thread for each source.

Readers wait for a broker that cannot be reached, however long that takes. An invalid record or a deleted
journal ends the shard. So does a journal that ends before the offset up to which it was read: its reader
would wait until the missing offsets are written again. Brokers do not report this to a reader, so an
additional thread requests the write heads of journals without new messages.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress

from gazette_spark.client._transport.retry import after_read
from gazette_spark.client.client import Client
from gazette_spark.consumer.checkpoints import read_through, start_offset
from gazette_spark.consumer.specs import BUFFER_SIZE
from gazette_spark.errors import ClosedError, GazetteError, SourceLossError
from gazette_spark.message.interfaces import Envelope, NewMessage
from gazette_spark.message.iterate import ReadUncommitted, checked_replay, read_uncommitted
from gazette_spark.message.sequencer import ReplayRange
from gazette_spark.protocol import consumer_pb2 as pc

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 5.0
"""Seconds for which closing waits for readers, after cancelling them."""

WATCH_S = 30.0
"""Seconds between two checks of the write heads of sources without new messages."""


class Sources:
    """The readers of a shard's sources. :meth:`close` may be called from any thread."""

    def __init__(
        self, client: Client, new_message: NewMessage, spec: pc.ShardSpec, stopping: threading.Event
    ) -> None:
        """Prepare the readers. ``stopping`` ends waits for brokers."""
        self._client = client
        self._new_message = new_message
        self._spec = spec
        self._stopping = stopping
        self._readers: dict[str, ReadUncommitted] = {}
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self.inbox = Inbox(spec.read_channel_size or BUFFER_SIZE)
        """Inbox to which readers add messages."""

    def __repr__(self) -> str:
        return f"Sources({', '.join(map(repr, self._readers.values()))})"

    def start(self, checkpoint: pc.Checkpoint) -> None:
        """Begin to read each source from its checkpoint on.

        Raises:
            JournalNotFoundError: there is no such journal.
            MessageError: a journal's content type has no framing of messages.
        """
        for source in self._spec.sources:
            self._readers[source.journal] = read_uncommitted(
                self._client,
                source.journal,
                self._new_message,
                offset=start_offset(checkpoint, source),
                block=True,
            )
        for journal, reader in self._readers.items():
            name = f"{self._spec.id} reads {journal}"
            self._threads.append(threading.Thread(target=self._read, args=(reader,), name=name, daemon=True))
        name = f"{self._spec.id} watches"
        begins = {journal: reader.offset for journal, reader in self._readers.items()}
        offsets = (begins, read_through(checkpoint))
        self._threads.append(threading.Thread(target=self._watch, args=offsets, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def replay(self, missing: ReplayRange) -> Iterator[Envelope]:
        """Yield messages of a source that have already been read once."""
        if missing.begin == missing.end:
            return  # To a reader, an end offset of 0 means no end.
        source = self._readers[missing.journal]
        reader = self._client.read(missing.journal, offset=missing.begin, end_offset=missing.end)
        with ReadUncommitted(reader, source.spec, self._new_message) as replay:
            yield from checked_replay(replay, source.reader.jumps)

    def wait_after(self, error: GazetteError, attempt: int) -> bool:
        """Wait before a read is tried again; return False if it must not be tried again."""
        wait_s = after_read(error, attempt, waits=True)
        if wait_s is None or self._stopping.is_set():
            return False
        logger.warning("shard.read_retried attempt=%d cause=%s", attempt, error)
        self._stopping.wait(wait_s)
        return True

    def close(self) -> None:
        """End the readers. This may be called again."""
        self._closing.set()
        self.inbox.close()
        for reader in self._readers.values():
            reader.close()
        for thread in self._threads:
            with suppress(RuntimeError):  # The thread may not be started yet.
                thread.join(JOIN_TIMEOUT_S)

    def _read(self, reader: ReadUncommitted) -> None:
        """Move the messages of a source into the inbox until it is closed."""
        attempt = 0
        try:
            while True:
                try:
                    envelope = next(reader, None)
                except GazetteError as error:
                    if not self.wait_after(error, attempt):
                        raise
                    attempt += 1
                    continue
                if envelope is None:
                    break
                attempt = 0
                if not self.inbox.put(envelope):
                    return
            if not self.inbox.is_closed:
                # A reader at the write head never ends by itself. If only the reader were closed, the shard
                # would wait forever.
                raise ClosedError(f"reader of journal {reader.reader.journal!r}", "it was closed")
        except BaseException as error:  # noqa: BLE001  # The shard's thread raises it.
            self.inbox.fail(error)

    def _watch(self, begins: Mapping[str, int], stored: Mapping[str, int]) -> None:
        """End the shard if a journal ends before an offset that this host or an earlier one has read."""
        previous: dict[str, int] = {}
        while not self._closing.is_set():
            read_to = {}
            for journal, reader in self._readers.items():
                offset = reader.reader.offset
                # A source may begin at its spec's min_offset, which may be past the write head. Only offsets
                # count that this reader has read, or that were read before the checkpoint.
                read_to[journal] = offset if offset > begins[journal] else stored.get(journal, 0)
            # A journal with new messages has not lost its end, so brokers need not be asked.
            quiet = {name: offset for name, offset in read_to.items() if previous.get(name, offset) == offset}
            previous = read_to
            # One after the other, so that a journal whose head cannot be read does not hide another's loss.
            for journal, offset in quiet.items():
                if self._closing.is_set():
                    return
                try:
                    head = self._client.settled_heads({journal: offset})[journal]
                    if head.write_head < offset:
                        raise SourceLossError(journal, offset, head.write_head, head.doubt)
                except SourceLossError as error:
                    self.inbox.fail(error)
                    return
                except GazetteError as error:  # The journal's reader waits or fails for the same reason.
                    logger.debug("shard.heads_not_known shard=%s cause=%s", self._spec.id, error)
                except Exception as error:  # noqa: BLE001  # For example, from the client's function for tokens.
                    # Without this thread, a later loss would go unnoticed.
                    self.inbox.fail(error)
                    return
            self._closing.wait(WATCH_S)


class Inbox:
    """Queue of messages from the readers of a shard's sources to the one thread that consumes them.

    Its length is limited, and other events can also wake the consuming thread. Messages of one source stay in
    order. The first error of a reader is raised after the messages before it have been taken.
    """

    def __init__(self, size: int) -> None:
        """Limit the queue to ``size`` messages. Those that the consuming thread has taken do not count."""
        self._size = size
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._event = threading.Condition(self._lock)
        self._queued: deque[Envelope] = deque()
        self._taken: deque[Envelope] = deque()
        """Messages that only the consuming thread uses: locking for each one would take longer than
        everything else."""
        self._error: BaseException | None = None
        self._woken = False
        self._closed = False

    def __repr__(self) -> str:
        return f"Inbox(queued={len(self._queued)}, closed={self._closed})"

    @property
    def is_closed(self) -> bool:
        """Whether the inbox refuses messages."""
        return self._closed

    @property
    def _ended(self) -> bool:
        return self._closed or self._error is not None

    def put(self, envelope: Envelope) -> bool:
        """Wait for room and add a message; return False if the inbox is closed, or has an error."""
        with self._lock:
            while len(self._queued) >= self._size and not self._ended:
                self._room.wait()
            if self._ended:
                return False
            self._queued.append(envelope)
            self._event.notify()
            return True

    def fail(self, error: BaseException) -> None:
        """Add an error, which replaces all later messages."""
        with self._lock:
            self._error = self._error or error
            # Readers of other sources end. With messages that always come in time, the shard would run on,
            # and read the source of the error no more.
            self._room.notify_all()
            self._event.notify()

    def wake(self) -> None:
        """End the consuming thread's wait, so that it checks for other events. Any thread may call it."""
        with self._lock:
            self._woken = True
            self._event.notify()

    def close(self) -> None:
        """Refuse further messages, and end the waits of all threads."""
        with self._lock:
            self._closed = self._woken = True
            self._room.notify_all()
            self._event.notify()

    def take(self) -> Envelope | None:
        """Return the next message, or None if there is none.

        Raises:
            Exception: the error of a reader.
        """
        if self._taken:
            return self._taken.popleft()
        with self._lock:
            self._taken, self._queued = self._queued, self._taken
            self._room.notify_all()
            if not self._taken and self._error is not None:
                raise self._error
        return self._taken.popleft() if self._taken else None

    def wait(self, timeout_s: float | None, *, for_messages: bool) -> None:
        """Wait for :meth:`wake` or :meth:`close`, and on request for a message or an error."""
        with self._lock:
            self._event.wait_for(
                lambda: self._woken or (for_messages and (self._queued or self._taken or self._error)),
                timeout_s,
            )
            self._woken = False
