"""Does background work: uploads closed spools, pulses journals so that idle ones roll, lists stores again.

One thread checks every journal once a tick and decides about due work; uploads run in a small pool. After a
failed upload the spool stays readable on disk. The upload is retried after a second, then after twice as
long, up to a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gazette_spark.broker.journal import JournalClosedError, LiveJournal
from gazette_spark.broker.replication.pipeline import ReplicationError
from gazette_spark.errors import ProtocolError

_log = logging.getLogger(__name__)

UPLOAD_THREADS = 2
"""Number of upload threads. Each upload compresses on one core; appends and reads need the others."""

MAX_TICK_S = 1.0
"""Maximum interval between checks of the journals."""

MAX_RETRY_S = 60.0
"""Maximum seconds until a failed upload is retried. The first retry comes after a second, and each later one
after twice the time."""


MAX_FAILURES = 5
"""Number of consecutive failures after which appends are refused, which takes half a minute. Gazette does the
same after this number of failed health checks. Uploads are still tried, and a successful one ends the
refusals."""


def retry_after(failures: int) -> float:
    """Return the seconds to wait after a number of failures in a row."""
    return min(MAX_RETRY_S, 2.0 ** min(failures - 1, 10))


@dataclass(slots=True)
class _Due:
    pulse: float
    refresh: float


@dataclass(slots=True)
class _Failed:
    """Consecutive failed uploads of a journal."""

    count: int
    retry: float
    """Time of the next attempt, on the monotonic clock."""
    problem: str


class Persister:
    """Owns the threads of the background work. One thread calls ``start`` and ``stop``, each once."""

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
        self._failed: dict[LiveJournal, _Failed] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="gazette-pulse", daemon=True)

    def __repr__(self) -> str:
        return f"Persister(uploading={len(self._uploading)}, stopping={self._stopping})"

    def start(self) -> None:
        """Start the background work, and upload the spools that an earlier broker left."""
        for journal in self._journals():
            if journal.sealed():
                self.upload(journal)
        self._thread.start()

    def stop(self) -> None:
        """Finish the uploads in progress and end the threads. Spools that are not stored stay on disk."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        # Uploads that have begun are finished. The others are done when the broker starts again.
        self._pool.shutdown(wait=True, cancel_futures=True)

    def upload(self, journal: LiveJournal) -> None:
        """Request the upload of a journal's closed spools. Any thread may call it."""
        with self._changed:
            if self._stopping:
                return
            # A journal has one upload at a time, oldest spool first. Spools that were closed in the meantime
            # need another round.
            if journal in self._uploading:
                self._again.add(journal)
                return
            self._uploading.add(journal)
            self._pool.submit(self._upload, journal)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no upload is in progress or queued; return False at the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._uploading, timeout_s)

    def problem(self, journal: LiveJournal) -> str:
        """Return why the journal's last upload failed; empty if it did not."""
        with self._changed:
            failed = self._failed.get(journal)
            return failed.problem if failed is not None else ""

    def lasting_problem(self, journal: LiveJournal) -> str:
        """Return why so many consecutive uploads failed that appends are refused; empty otherwise."""
        with self._changed:
            failed = self._failed.get(journal)
            if failed is None or failed.count <= MAX_FAILURES:
                return ""
            return f"{failed.count} uploads in a row have failed, the last one because: {failed.problem}"

    def _upload(self, journal: LiveJournal) -> None:
        problem = ""
        try:
            journal.persist()
        except JournalClosedError:  # It was deleted, so nothing is left to do.
            pass
        except (OSError, ProtocolError) as error:
            problem = str(error)
            if not journal.closed:
                _log.warning("persist_failed journal=%s error=%s", journal.name, error)
        except Exception as error:  # noqa: BLE001 - a pool's worker has no caller that gets it
            # This is a bug in this package: the spool stays readable, and the upload is retried.
            problem = repr(error)
            _log.exception("persist_failed journal=%s", journal.name)
        finally:
            with self._changed:
                # Do this under the lock together with the flags: a spool that is closed now is either noticed
                # by `again` or starts a new upload.
                failed = self._failed.pop(journal, None)
                if problem:
                    count = 1 if failed is None else failed.count + 1
                    self._failed[journal] = _Failed(count, time.monotonic() + retry_after(count), problem)
                # There must be no moment in between at which nothing is uploaded. `wait_idle` would take it
                # for the end, and a cluster that stops would drop a spool that is not stored.
                if journal in self._again and not self._stopping:
                    self._pool.submit(self._upload, journal)
                else:
                    self._uploading.discard(journal)
                self._again.discard(journal)
                self._changed.notify_all()

    def _run(self) -> None:
        tick = min(MAX_TICK_S, self._pulse_interval_s / 4)
        while not self._wait(tick):
            now = time.monotonic()
            live = self._journals()
            for journal in live:
                refresh_s = journal.spec.fragment.refresh_interval.ToNanoseconds() / 1e9
                due = self._due.setdefault(id(journal), _Due(now + self._pulse_interval_s, now + refresh_s))
                try:
                    if now >= due.pulse:
                        due.pulse = now + self._pulse_interval_s
                        # If the turn of a journal is taken, an append does the work of the pulse.
                        with journal.fair_lock.turn_if_free() as granted:
                            if granted and not journal.closed:
                                self._pulse_journal(journal)
                        if journal.first_store is not None and journal.sealed():
                            self.upload(journal)
                    if now >= due.refresh:
                        due.refresh = now + refresh_s
                        journal.refresh()
                # One journal's failure must not end the thread that serves all of them.
                except (OSError, ReplicationError, JournalClosedError) as error:
                    _log.warning("pulse_failed journal=%s error=%s", journal.name, error)
                except Exception:  # noqa: BLE001
                    # This is a bug in this package. Without this thread, no journal would be uploaded or
                    # listed again.
                    _log.exception("pulse_failed journal=%s", journal.name)
            with self._changed:
                present = set(live)
                self._failed = {key: failed for key, failed in self._failed.items() if key in present}
                to_retry = [key for key, failed in self._failed.items() if now >= failed.retry]
            for journal in to_retry:
                self.upload(journal)
            live_ids = {id(journal) for journal in live}
            # Remove journals that no longer exist: a later journal's object may have the same id.
            self._due = {key: due for key, due in self._due.items() if key in live_ids}

    def _wait(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping, seconds)
