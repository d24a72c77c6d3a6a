"""How long a reader waits for a stored fragment's bytes, and whether it still wants them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from gazette_spark.errors import ClosedError, DirectReadError


class FetchLimit:
    """Bounds each wait for a fragment's bytes by a time, and ends all of them by :meth:`cancel`.

    One thread waits, with ``changed`` held; :meth:`cancel` may be called from any.
    """

    def __init__(self, timeout_s: Callable[[], float] = lambda: math.inf) -> None:
        """Make a limit; ``timeout_s`` returns the seconds that the next bytes may take from now on."""
        self.changed = threading.Condition()
        """Notified of bytes, of the end, and of a cancel."""
        self._timeout_s = timeout_s
        self._until = math.inf
        self._cancelled = False

    def begin(self) -> None:
        """Begin to wait for the next bytes."""
        self._until = time.monotonic() + self._timeout_s()

    def cancel(self) -> None:
        """End the wait under way, and all later ones, with a ClosedError."""
        with self.changed:
            self._cancelled = True
            self.changed.notify_all()

    def wait(self, source: str) -> None:
        """Wait for a change; ``changed`` is held.

        Raises:
            ClosedError: the wait was cancelled.
            DirectReadError: the time is over.
        """
        if self._cancelled:
            raise ClosedError(f"read of fragment {source}", "it was cancelled")
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise DirectReadError(source, "no bytes within the time limit", passing=True)
        self.changed.wait(None if math.isinf(left_s) else left_s)
