"""What the readers of a shard's sources bring, for the one thread that consumes it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from gazette_spark.message.interfaces import Envelope


class Inbox:
    """A queue of messages of limited length, whose taker can also be woken by other events.

    Messages of one source stay in order. The first error that a reader brings is kept, and raised when the
    messages before it are taken.
    """

    def __init__(self, size: int) -> None:
        """Hold at most ``size`` messages, beside those the taker has taken over at once."""
        self._size = size
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._event = threading.Condition(self._lock)
        self._queued: deque[Envelope] = deque()
        self._taken: deque[Envelope] = deque()
        """Of the taking thread alone: a lock for each message would take longer than the rest."""
        self._error: BaseException | None = None
        self._woken = False
        self._closed = False

    def __repr__(self) -> str:
        return f"Inbox(queued={len(self._queued)}, closed={self._closed})"

    @property
    def is_closed(self) -> bool:
        """Whether nothing is taken in any more."""
        return self._closed

    def put(self, envelope: Envelope) -> bool:
        """Add a message, and wait for room before; False: the inbox is closed."""
        with self._lock:
            while len(self._queued) >= self._size and not self._closed:
                self._room.wait()
            if self._closed:
                return False
            self._queued.append(envelope)
            self._event.notify()
            return True

    def fail(self, error: BaseException) -> None:
        """Add an error, in place of all later messages."""
        with self._lock:
            self._error = self._error or error
            self._event.notify()

    def wake(self) -> None:
        """Have the taker look at what else has happened. From any thread."""
        with self._lock:
            self._woken = True
            self._event.notify()

    def close(self) -> None:
        """Take nothing in any more, and let readers and taker go."""
        with self._lock:
            self._closed = self._woken = True
            self._room.notify_all()
            self._event.notify()

    def take(self) -> Envelope | None:
        """Return the next message if there is one.

        Raises:
            Exception: a reader's.
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
        """Wait for a message or an error, if asked to, for :meth:`wake` or :meth:`close`."""
        is_ready: Callable[[], object] = self._has_any if for_messages else lambda: self._woken
        with self._lock:
            self._event.wait_for(is_ready, timeout_s)
            self._woken = False

    def _has_any(self) -> bool:
        return bool(self._woken or self._queued or self._taken or self._error)
