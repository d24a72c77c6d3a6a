"""Progress of work that takes longer than two seconds: a bar on a terminal, and otherwise lines on stderr."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, BinaryIO, Protocol, TextIO

PATIENCE_S = 2.0
"""Time that work may take without a sign of life."""

LINE_S = 10.0
"""Time between two lines without a terminal."""

LOOK_S = 0.5
"""Time between two looks at Spark's stages."""


class Contact(Protocol):
    """A connection, as far as its first answer."""

    problem: str
    """Why there was no answer so far, as the last try found; "" if nothing is known."""

    @property
    def waits_s(self) -> float | None:
        """Seconds since the first try; 0 before it, None once there was an answer or it is closed."""

    def patience_s(self, timeout_s: float) -> float:
        """Return the seconds for which to keep trying within ``timeout_s``."""


class Bar(Protocol):
    """Shows how far work is."""

    def advance(self, done: float) -> None:
        """Add what was done."""

    def show(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Change the text, and if given what is done in all, and what there is to do."""


class NoBar:
    """Shows nothing."""

    def advance(self, done: float) -> None:
        """Do nothing."""

    def show(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Do nothing."""


class TerminalBar:
    """A bar of ``rich``, from the moment that the work has taken :data:`PATIENCE_S`."""

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
        # Without redirection: it would move what is written to stdout to the bar's console.
        self._progress = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task(text, total=total)
        # Work that ends sooner shows nothing: a bar that flashes up only disturbs.
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
        # Cancelled and joined before the stop: the timer could otherwise start the bar after it, and leave it
        # on the screen.
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
        """Print no further line."""
        self._ended.set()
        self._thread.join()

    def _print(self, stderr: TextIO) -> None:
        pause_s = PATIENCE_S
        # The wait is the pause, so the end of the work ends the thread at once.
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
        text: What is done.
        total: How much there is to do, if that is known.
        is_bytes: Whether bytes are counted.
        target: Where the work's output goes. If that is the terminal, the output shows the progress.
        has_lines: Whether to print lines where stderr is not a terminal.
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
def of_spark(spark: Any, bar: Bar, text: str) -> Iterator[None]:  # noqa: ANN401 - a session, not loaded here
    """Move a bar by the finished tasks of the session's stages; Spark Connect does not report them."""
    bar.show(text)
    # PySpark's own name. Spark Connect's session has none.
    context = getattr(spark, "_sc", None)
    if context is None or isinstance(bar, NoBar):
        yield
        return
    ended = threading.Event()

    def look() -> None:
        # Spark has no callback for tasks in Python, so look again and again.
        tracker = context.statusTracker()
        while not ended.wait(LOOK_S):
            try:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            except Exception:  # noqa: BLE001 - the session ends; the work itself says why
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
        # The bar moves when the caller comes back for more, so after its work on the item.
        yield item
        bar.advance(1)


class CountedFile(io.RawIOBase):
    """A file that moves a bar as it is read, also when it is read again."""

    def __init__(self, file: BinaryIO, bar: Bar, text: str) -> None:
        self._file = file
        self._bar = bar
        self._text = text
        self.at = 0
        """Bytes that were read since the begin."""

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say whether it can be read again."""
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a byte."""
        self.at = self._file.seek(offset, whence)
        # A retry reads the file again from the begin, and the bar goes back with it.
        self._bar.show(self._text, self.at)
        return self.at

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        content = self._file.read(size)
        self.at += len(content)
        self._bar.advance(len(content))
        return content


def tell_of_silence(contact: Callable[[], Contact], who: str, timeout_s: float) -> None:
    """Say once on stderr that nobody has answered for :data:`PATIENCE_S`; look in a thread."""
    stderr = sys.stderr
    # On a terminal, the line begins where a bar may be drawn, which goes on below.
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
