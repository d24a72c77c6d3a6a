"""The demo's progress: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from gazette_spark.demo.scenario import Progress, Screen

PLAIN_INTERVAL_S = 5.0
"""Time between two lines when the output is not a terminal."""


class DemoScreen(Screen, Protocol):
    """A screen that is also a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


def make_screen(console: Console) -> DemoScreen:
    """Return the screen that suits where the output goes."""
    return BarScreen(console) if console.is_terminal else PlainScreen(console)


class BarScreen:
    """Two bars: appended rows, and rows in the table."""

    def __init__(self, console: Console) -> None:
        self._began = time.monotonic()
        self._console = console
        self._bars = Bars(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[rows]:>12} rows  {task.fields[phase]:<10}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._appended = self._bars.add_task("appended", total=None, rows="0", phase="")
        self._in_table = self._bars.add_task("in the table", total=None, rows="0", phase="starting")

    def say(self, text: str) -> None:
        """Show one line above the bars."""
        self._console.print(f"[dim]{time.monotonic() - self._began:5.1f} s[/]  {text}", highlight=False)

    def show(self, progress: Progress) -> None:
        """Move the bars."""
        total = progress.expected_rows or None
        rows = (progress.appended_rows, progress.table_rows)
        for task, done, phase in zip(
            (self._appended, self._in_table), rows, ("", progress.phase), strict=True
        ):
            self._bars.update(task, total=total, completed=done, rows=f"{done:,}", phase=phase)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bars.stop()


class PlainScreen:
    """Lines only, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._began = time.monotonic()
        self._last = 0.0
        self._console = console

    def say(self, text: str) -> None:
        """Show one line, at once even in a pipe."""
        elapsed = time.monotonic() - self._began
        self._console.print(f"{elapsed:5.1f} s  {text}", highlight=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        """Show a line if the last one is old enough."""
        now = time.monotonic()
        if now - self._last >= PLAIN_INTERVAL_S:
            self._last = now
            self.say(
                f"{progress.phase}: {progress.appended_rows:,} rows appended, "
                f"{progress.table_rows:,} in the table"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return None
