"""Provides a lock that is granted in order of arrival, and whose waiters may give up."""

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
    def turn(self, keep_waiting: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the turn and hold it for the block.

        Args:
            keep_waiting: called after every :meth:`wake`; False ends the wait without a turn.

        Yields:
            Whether the block has the turn.
        """
        # `threading.Lock` promises no order: a busy client could always get it first, while others wait
        # forever. With tickets in a queue, turns follow the order of arrival.
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            # All waiters wake at each change, because any of them may have to give up.
            while self._queue[0] is not ticket and keep_waiting():
                self._changed.wait()
            granted = self._queue[0] is ticket
        try:
            yield granted
        finally:
            with self._changed:
                # Remove the ticket even without the turn: a ticket without a waiter would block those behind
                # it.
                self._queue.remove(ticket)
                self._changed.notify_all()

    @contextmanager
    def turn_if_free(self) -> Iterator[bool]:
        """Take the turn for the block if it is free, without waiting; yield whether the block has it."""
        with self.turn(lambda: False) as granted:
            yield granted

    def wake(self) -> None:
        """Make every waiting thread check whether it should continue to wait."""
        with self._changed:
            self._changed.notify_all()
