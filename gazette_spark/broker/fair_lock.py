"""A lock that is granted in order of arrival, and that a waiter may give up on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class FairLock:
    """Grants one turn at a time, first come first served. Any thread may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    def __repr__(self) -> str:
        return f"FairLock(waiting={max(0, len(self._queue) - 1)})"

    @contextmanager
    def turn(self, still_wanted: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the turn and hold it for the block.

        Args:
            still_wanted: asked after every :meth:`wake`; False gives up.

        Yields:
            Whether the block has the turn.
        """
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            while self._queue[0] is not ticket and still_wanted():
                self._changed.wait()
            granted = self._queue[0] is ticket
        try:
            yield granted
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()

    @contextmanager
    def turn_if_free(self) -> Iterator[bool]:
        """Have the turn for the block if it is free; yield whether it does."""
        with self.turn(lambda: False) as granted:
            yield granted

    def wake(self) -> None:
        """Have every waiter ask whether it still wants its turn."""
        with self._changed:
            self._changed.notify_all()
