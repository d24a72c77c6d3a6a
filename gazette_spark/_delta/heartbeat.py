"""Keeps the ledger of an idle query from being cleaned up.

Delta deletes log entries that are older than ``delta.logRetentionDuration``, by default 30 days. A query
without new rows writes nothing. If others commit to its table, its newest entry becomes old, and the ledger
is lost together with the log entry. Therefore an idle query writes its newest entry again once a day, without
rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

HEARTBEAT_S = 24 * 3600.0
"""Seconds without a batch after which the newest entry is written again."""


class Heartbeat:
    """Calls a function whenever a query has been idle for long, until it returns False. It can be pickled."""

    def __init__(self, interval_s: float = HEARTBEAT_S) -> None:
        self.interval_s = interval_s
        self._timer: threading.Timer | None = None

    def __repr__(self) -> str:
        return f"Heartbeat({self.interval_s:g} s, armed={self._timer is not None})"

    def __getstate__(self) -> float:
        """Return the interval, because a timer belongs to its process."""
        return self.interval_s

    def __setstate__(self, state: float) -> None:
        """Restore the interval, without a timer."""
        self.interval_s, self._timer = state, None

    def arm(self, beat: Callable[[], bool]) -> None:
        """Call ``beat`` on a separate thread after the interval, unless this is called again before that."""
        self.disarm()

        def fire() -> None:
            try:
                again = beat()
            except Exception:  # The next batch meets the same problem and reports it.
                log.warning("heartbeat_failed", exc_info=True)
                again = True
            # In the meantime, a batch may have started another timer, or the query may have ended.
            if again and self._timer is timer:
                self.arm(beat)

        timer = threading.Timer(self.interval_s, fire)
        # A program that has finished must not wait a day for this thread.
        timer.daemon = True
        self._timer = timer
        timer.start()

    def disarm(self) -> None:
        """Stop calling. A call that has begun continues."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
