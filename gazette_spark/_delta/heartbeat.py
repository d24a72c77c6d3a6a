"""Keeps the ledger of an idle query from being cleaned up.

Delta deletes log entries past ``delta.logRetentionDuration``, 30 days unless a table says otherwise. A query
without news writes nothing. While others commit to its table, its newest entry grows old, and with the log
entry the ledger is lost. So once a day a query that is idle writes its newest entry again, without rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

HEARTBEAT_S = 24 * 3600.0
"""Seconds without a batch after which the newest entry is written again."""


class Heartbeat:
    """Calls a function whenever a query has been idle for long, until that returns False. Pickles."""

    def __init__(self, interval_s: float = HEARTBEAT_S) -> None:
        self.interval_s = interval_s
        self._timer: threading.Timer | None = None

    def __repr__(self) -> str:
        return f"Heartbeat({self.interval_s:g} s, armed={self._timer is not None})"

    def __getstate__(self) -> float:
        """Return the interval: a timer belongs to its process."""
        return self.interval_s

    def __setstate__(self, state: float) -> None:
        """Take the interval, with nothing armed."""
        self.interval_s, self._timer = state, None

    def arm(self, beat: Callable[[], bool]) -> None:
        """Call ``beat`` after the interval, on a separate thread, unless this is called again before."""
        self.disarm()

        def fire() -> None:
            try:
                again = beat()
            except Exception:  # Whatever this is, the next batch meets it again and reports it.
                log.warning("heartbeat_failed", exc_info=True)
                again = True
            # A batch may have armed another timer meanwhile, or the query may have ended.
            if again and self._timer is timer:
                self.arm(beat)

        timer = threading.Timer(self.interval_s, fire)
        # A program that is done must not wait a day for this thread.
        timer.daemon = True
        self._timer = timer
        timer.start()

    def disarm(self) -> None:
        """Stop calling; a call under way continues."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
