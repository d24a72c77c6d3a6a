"""The gate between entries and checkpoints: many may enter at a time, or one may close it.

One who waits to close it goes before all who come later to enter; so checkpoints are made however many
entries there are. Entering is counted and not bound to a thread: an entry leaves when its broker has
answered, in another thread. The gate is not re-entrant: a thread that closed it may not enter.
"""

from __future__ import annotations

import threading

from gazette_spark.errors import AppendWaitError, CheckpointStateError


class Gate:
    """A lock for many or one that prefers the one. Thread-safe."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._changed = threading.Condition()
        self._inside = 0
        self._closing = 0
        self._holder: threading.Thread | None = None
        """Thread that has closed it; not its number, which a later thread may get."""

    def __repr__(self) -> str:
        state = "closed" if self._holder else f"inside={self._inside}, closing={self._closing}"
        return f"Gate({self._journal!r}, {state})"

    @property
    def closed(self) -> bool:
        """Whether somebody has closed it."""
        return self._holder is not None

    def enter(self, timeout_s: float | None = None) -> None:
        """Enter once nobody holds it closed or waits to close it.

        Raises:
            CheckpointStateError: the thread itself has closed it.
            AppendWaitError: it did not open in time.
        """
        with self._changed:
            self._refuse_holder("an entry")
            if not self._changed.wait_for(lambda: not (self._holder or self._closing), timeout_s):
                problem = "a checkpoint is made; the entry was not appended"
                raise AppendWaitError(self._journal, timeout_s or 0.0, problem)
            self._inside += 1

    def leave(self) -> None:
        """Leave, in any thread."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self, timeout_s: float | None = None) -> None:
        """Close it once all have left; from now on nobody enters.

        Raises:
            CheckpointStateError: the thread itself has closed it.
            AppendWaitError: not all left in time, and the gate is as it was.
        """
        with self._changed:
            self._refuse_holder("another checkpoint")
            self._closing += 1
            try:
                if not self._changed.wait_for(lambda: not (self._holder or self._inside), timeout_s):
                    problem = f"{self._inside} entries are not acknowledged, or another checkpoint is made"
                    raise AppendWaitError(self._journal, timeout_s or 0.0, problem)
                self._holder = threading.current_thread()
            finally:
                self._closing -= 1
                self._changed.notify_all()

    def open(self) -> None:
        """Open it again, from any thread.

        Raises:
            CheckpointStateError: nobody has closed it.
        """
        with self._changed:
            if self._holder is None:
                raise CheckpointStateError(self._journal, "no checkpoint is prepared")
            self._holder = None
            self._changed.notify_all()

    def _refuse_holder(self, what: str) -> None:
        if self._holder is threading.current_thread():
            problem = f"a thread that has prepared a checkpoint would wait for itself with {what}"
            raise CheckpointStateError(self._journal, problem)
