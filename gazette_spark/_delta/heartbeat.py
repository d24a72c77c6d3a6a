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

CHECK_S = 60.0
"""Maximum number of seconds between the end of a query and the end of its thread."""


class Heartbeat:
    """Calls a function whenever a query has been idle for long, until it returns False. It can be pickled."""

    def __init__(self, interval_s: float = HEARTBEAT_S) -> None:
        self.interval_s = interval_s
        self._disarmed: threading.Event | None = None

    def __repr__(self) -> str:
        return f"Heartbeat({self.interval_s:g} s, armed={self._disarmed is not None})"

    def __getstate__(self) -> float:
        """Return the interval, because a thread belongs to its process."""
        return self.interval_s

    def __setstate__(self, state: float) -> None:
        """Restore the interval, without a thread."""
        self.interval_s, self._disarmed = state, None

    def arm(self, beat: Callable[[], bool], is_active: Callable[[], bool]) -> None:
        """Call ``beat`` on a separate thread after the interval, unless this is called again before that.

        The thread ends with its query, because ``beat`` refers to the last batch, and a program may run many
        queries in a day.
        """
        self.disarm()
        disarmed = self._disarmed = threading.Event()

        def run() -> None:
            left_s = self.interval_s
            while not disarmed.wait(min(left_s, CHECK_S)) and is_active():
                left_s -= CHECK_S
                if left_s > 0:
                    continue
                left_s = self.interval_s
                try:
                    if not beat():
                        return
                except Exception:  # The next batch meets the same problem and reports it.
                    log.warning("heartbeat_failed", exc_info=True)

        # A program that has finished must not wait a day for this thread.
        threading.Thread(target=run, name="heartbeat", daemon=True).start()

    def disarm(self) -> None:
        """Stop calling. A call that has begun continues."""
        if self._disarmed is not None:
            self._disarmed.set()
            self._disarmed = None
