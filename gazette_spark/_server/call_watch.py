"""Wakes threads whose call gRPC does not end: its token expired, or its HTTP client disconnected."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

TICK_S = 0.2
"""Seconds between two checks of the waiting calls."""


@dataclass(eq=False, frozen=True, slots=True)
class _Watched:
    is_over: Callable[[], bool]
    wake: Callable[[], None]


class CallWatch:
    """Checks all waiting calls in one thread, which :meth:`stop` ends. Thread-safe."""

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._changed = threading.Condition()
        self._watched: set[_Watched] = set()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def __repr__(self) -> str:
        return f"CallWatch({len(self._watched)} calls)"

    def watch(self, is_over: Callable[[], bool], wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` once when ``is_over`` has become true. Return a function that cancels this."""
        watched = _Watched(is_over, wake)
        with self._changed:
            self._watched.add(watched)
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="gazette-call-watch", daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify_all()
        return lambda: self._forget(watched)

    def stop(self) -> None:
        """End the thread. Later calls of :meth:`watch` have no effect."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _forget(self, watched: _Watched) -> None:
        with self._changed:
            self._watched.discard(watched)

    def _run(self) -> None:
        while self._wait():
            # Outside the lock, because a check may poll a socket, and a wake-up acquires other locks.
            for watched in [one for one in self._snapshot() if one.is_over()]:
                self._forget(watched)
                try:
                    watched.wake()
                except Exception:
                    # Such as a connection to another broker that was closed in the meantime. Without this
                    # thread, no other call would end.
                    log.exception("call_not_woken call=%r", watched)

    def _snapshot(self) -> list[_Watched]:
        with self._changed:
            return list(self._watched)

    def _wait(self) -> bool:
        with self._changed:
            # If there are no calls to watch, the thread sleeps until there is one.
            self._changed.wait_for(lambda: self._watched or self._stopped)
            self._changed.wait_for(lambda: self._stopped, self._tick_s)
            return not self._stopped
