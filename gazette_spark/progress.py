"""Shows the progress of work over two seconds, as a bar on a terminal or as lines on stderr."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, BinaryIO, Protocol, TextIO

PATIENCE_S = 2.0
"""Seconds that work may take before progress is shown."""

LINE_S = 10.0
"""Seconds between two lines without a terminal."""

LOOK_S = 0.5
"""Seconds between two polls of Spark's stages."""


class Contact(Protocol):
    """The part of a connection that concerns its first answer."""

    problem: str
    """Reason from the last attempt why there was no answer so far; "" if unknown."""

    @property
    def waits_s(self) -> float | None:
        """Seconds since the first attempt; 0 before it, None after an answer or when closed."""

    def patience_s(self, timeout_s: float) -> float:
        """Return the seconds for which to keep trying within ``timeout_s``."""


class Bar(Protocol):
    """Shows the progress of work."""

    def advance(self, done: float) -> None:
        """Add what was done."""

    def show(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Change the text, and if given what is done in all, and what there is to do."""


class NoBar:
    """A bar that shows nothing."""

    def advance(self, done: float) -> None:
        """Do nothing."""

    def show(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Do nothing."""


class TerminalBar:
    """A bar of ``rich``, shown once the work has taken :data:`PATIENCE_S`."""

    def __init__(self, text: str, total: float | None, *, is_bytes: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        counts = (DownloadColumn(), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)
        columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeElapsedColumn())
        # Without redirection, which would move the output from stdout to the bar's console.
        self._progress = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task(text, total=total)
        # Work that ends sooner shows nothing, because a bar that only flashes is annoying.
        self._timer = threading.Timer(PATIENCE_S, self._progress.start)
        self._timer.daemon = True
        self._timer.start()

    def advance(self, done: float) -> None:
        """Add what was done."""
        self._progress.advance(self._task, done)

    def show(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Change the text, and if given what is done in all, and what there is to do."""
        self._progress.update(self._task, description=text, completed=done, total=total)

    def close(self) -> None:
        """Remove the bar."""
        # Cancel and join the timer first. Otherwise it could start the bar after the stop, and leave it on
        # the screen.
        self._timer.cancel()
        self._timer.join()
        self._progress.stop()


class PlainBar:
    """Prints a line after :data:`PATIENCE_S`, and then one every :data:`LINE_S`, for logs and pipes."""

    def __init__(self, text: str, total: float | None, *, is_bytes: bool) -> None:
        self._text = text
        self._done = 0.0
        self._total = total
        self._is_bytes = is_bytes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print, args=(sys.stderr,), name="progress", daemon=True)
        self._thread.start()

    def advance(self, done: float) -> None:
        """Add what was done."""
        self._done += done

    def show(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Change the text, and if given what is done in all, and what there is to do."""
        self._text = text
        self._done = self._done if done is None else done
        self._total = self._total if total is None else total

    def close(self) -> None:
        """Stop printing lines."""
        self._ended.set()
        self._thread.join()

    def _print(self, stderr: TextIO) -> None:
        pause_s = PATIENCE_S
        # Waiting for the event is the pause, so the thread ends as soon as the work ends.
        while not self._ended.wait(pause_s):
            unit = " bytes" if self._is_bytes else ""
            of_total = "" if self._total is None else f" of {self._total:,.0f}"
            done = f": {self._done:,.0f}{of_total}{unit}" if self._done or of_total else " …"
            print(f"{self._text}{done}", file=stderr, flush=True)
            pause_s = LINE_S


@contextmanager
def progress(
    text: str,
    total: float | None = None,
    *,
    is_bytes: bool = False,
    target: IO[Any] | None = None,
    has_lines: bool = True,
) -> Iterator[Bar]:
    """Yield a bar while work is done.

    Args:
        text: Description of the work.
        total: Amount of work, if it is known.
        is_bytes: Whether bytes are counted.
        target: Target of the work's output. If it is the terminal, the output itself shows the progress.
        has_lines: Whether to print lines if stderr is not a terminal.
    """
    is_terminal = sys.stderr.isatty()
    # A bar among the lines of the output would garble both.
    if (is_terminal and target is not None and target.isatty()) or not (is_terminal or has_lines):
        yield NoBar()
        return
    bar = (TerminalBar if is_terminal else PlainBar)(text, total, is_bytes=is_bytes)
    try:
        yield bar
    finally:
        bar.close()


@contextmanager
def of_spark(spark: Any, bar: Bar, text: str) -> Iterator[None]:  # noqa: ANN401 - a session, not imported here
    """Show the finished tasks of the session's stages in a bar. Spark Connect does not report them."""
    bar.show(text)
    # PySpark's internal name, which Spark Connect's session lacks.
    context = getattr(spark, "_sc", None)
    if context is None or isinstance(bar, NoBar):
        yield
        return
    ended = threading.Event()

    def look() -> None:
        # Spark has no Python callback for tasks, so poll.
        tracker = context.statusTracker()
        while not ended.wait(LOOK_S):
            try:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            except Exception:  # noqa: BLE001 - the session has ended; the work itself reports why
                return
            # A stage may have ended between the two calls.
            planned = [stage for stage in stages if stage is not None and stage.numTasks > 0]
            if planned:
                done = sum(stage.numCompletedTasks for stage in planned)
                bar.show(f"{text}: tasks", done, sum(stage.numTasks for stage in planned))

    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def counted(items: Iterable[Any], bar: Bar) -> Iterator[Any]:
    """Yield the items, and move the bar by one after each."""
    for item in items:
        # The bar advances when the caller requests the next item, after its work on this one.
        yield item
        bar.advance(1)


class CountedFile(io.RawIOBase):
    """A file that updates a bar while it is read, even if it is read again."""

    def __init__(self, file: BinaryIO, bar: Bar, text: str) -> None:
        self._file = file
        self._bar = bar
        self._text = text
        self.at = 0
        """Position in the file, in bytes."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return whether the file can be read again."""
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a byte."""
        self.at = self._file.seek(offset, whence)
        # A retry reads the file again from the start, so the bar goes back.
        self._bar.show(self._text, self.at)
        return self.at

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        content = self._file.read(size)
        self.at += len(content)
        self._bar.advance(len(content))
        return content


def tell_of_silence(contact: Callable[[], Contact], who: str, timeout_s: float) -> None:
    """Print once on stderr if there is no answer within :data:`PATIENCE_S`. A thread checks."""
    stderr = sys.stderr
    # On a terminal, clear the line of a bar, which continues below.
    clear = "\r\x1b[2K" if stderr.isatty() else ""

    def look() -> None:
        pause = threading.Event()
        while (waits_s := contact().waits_s) is not None and waits_s < PATIENCE_S:
            pause.wait(LOOK_S)
        if waits_s is not None:
            cause = contact().problem.rpartition(": ")[2].rstrip("]").lower() or "no answer yet"
            remaining_s = max(0.0, contact().patience_s(timeout_s) - waits_s)
            with suppress(ValueError):  # The command has ended, and closed its stderr.
                print(
                    f"{clear}waiting for {who}: {cause} ({remaining_s:.0f} s left)", file=stderr, flush=True
                )

    threading.Thread(target=look, name="silence", daemon=True).start()
