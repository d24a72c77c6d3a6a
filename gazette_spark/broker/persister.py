"""Background work: upload closed spools, pulse journals so that idle ones roll, list stores again.

One thread looks at every journal once a tick and decides what is due; uploads run in a small pool. A
failed upload leaves its spool where it is and is tried again at the journal's next pulse.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gazette_spark.broker.journal import JournalClosedError, LiveJournal
from gazette_spark.broker.pipeline import ReplicationError

_log = logging.getLogger(__name__)

UPLOAD_THREADS = 2
"""Compression takes a core each; appends and reads want the rest."""

MAX_TICK_S = 1.0
"""Longest time between two looks at the journals."""


@dataclass(slots=True)
class _Due:
    pulse: float
    refresh: float


class Persister:
    """Owns the threads of the background work. ``start`` and ``stop`` once each, from one thread."""

    def __init__(
        self,
        journals: Callable[[], list[LiveJournal]],
        pulse_interval_s: float,
        pulse: Callable[[LiveJournal], None] = LiveJournal.pulse,
    ) -> None:
        """Prepare the work; ``pulse`` is called with a journal's turn."""
        self._journals = journals
        self._pulse_journal = pulse
        self._pulse_interval_s = pulse_interval_s
        self._due: dict[int, _Due] = {}
        self._pool = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="gazette-upload")
        self._changed = threading.Condition()
        self._uploading: set[LiveJournal] = set()
        self._again: set[LiveJournal] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="gazette-pulse", daemon=True)

    def __repr__(self) -> str:
        return f"Persister(uploading={len(self._uploading)}, stopping={self._stopping})"

    def start(self) -> None:
        """Begin to look after the journals, and upload what an earlier broker left."""
        for journal in self._journals():
            if journal.sealed():
                self.upload(journal)
        self._thread.start()

    def stop(self) -> None:
        """Finish the uploads in progress and end the threads. Spools not stored stay on disk."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def upload(self, journal: LiveJournal) -> None:
        """Have a journal's closed spools uploaded soon. Any thread."""
        with self._changed:
            if self._stopping:
                return
            if journal in self._uploading:
                self._again.add(journal)
                return
            self._uploading.add(journal)
            self._pool.submit(self._upload, journal)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no upload is in progress or queued; False when the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._uploading, timeout_s)

    def _upload(self, journal: LiveJournal) -> None:
        try:
            journal.persist()
        except OSError as error:
            if not journal.closed:
                _log.warning("persist_failed journal=%s error=%s", journal.name, error)
        except Exception:  # noqa: BLE001 - a pool's worker has no caller: unlogged, the error would be lost
            _log.exception("persist_failed journal=%s", journal.name)
        finally:
            with self._changed:
                again = journal in self._again
                self._again.discard(journal)
                self._uploading.discard(journal)
                self._changed.notify_all()
        if again:
            self.upload(journal)

    def _run(self) -> None:
        tick = min(MAX_TICK_S, self._pulse_interval_s / 4)
        while not self._wait(tick):
            now = time.monotonic()
            live = self._journals()
            for journal in live:
                self._look_after(journal, now)
            known = {id(journal) for journal in live}
            self._due = {key: due for key, due in self._due.items() if key in known}

    def _wait(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping, seconds)

    def _look_after(self, journal: LiveJournal, now: float) -> None:
        refresh_s = journal.spec.fragment.refresh_interval.ToNanoseconds() / 1e9
        due = self._due.setdefault(id(journal), _Due(now + self._pulse_interval_s, now + refresh_s))
        try:
            if now >= due.pulse:
                due.pulse = now + self._pulse_interval_s
                self._pulse(journal)
            if now >= due.refresh:
                due.refresh = now + refresh_s
                journal.refresh()
        except (OSError, ReplicationError, JournalClosedError) as error:
            _log.warning("pulse_failed journal=%s error=%s", journal.name, error)

    def _pulse(self, journal: LiveJournal) -> None:
        with journal.turnstile.turn_if_free() as granted:
            if granted and not journal.closed:
                self._pulse_journal(journal)
        if journal.first_store is not None and journal.sealed():
            self.upload(journal)
