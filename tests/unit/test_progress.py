"""Long work shows a bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gazette_spark import progress as progress_module
from gazette_spark.progress import CountedFile, NoBar, progress
from tests.waiting import wait_until


def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Logs and pipes get results and errors only."""
    with progress("appending", 10) as bar:
        bar.advance(10)
        bar.show("done")
    assert capsys.readouterr() == ("", "")


@contextmanager
def terminal_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Make stderr a terminal; the function returns what was written to it so far."""
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    os.set_blocking(master, False)
    seen = []
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb", buffering=0) as other:
        monkeypatch.setattr(sys, "stderr", terminal)

        def written() -> str:
            seen.append(other.read() or b"")
            return b"".join(seen).decode()

        yield written


def test_a_terminal_shows_a_bar_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar shows the text and how much is done."""
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0.0)
    with terminal_screen(monkeypatch) as screen, progress("appending", 4, is_bytes=True) as bar:
        file = CountedFile(io.BytesIO(b"abcd"), bar, "appending")
        assert file.read(2) == b"ab"
        wait_until("the bar", lambda: "2/4 bytes" in screen())
        assert "appending" in screen()


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that flashes up helps nobody."""
    with terminal_screen(monkeypatch) as screen:
        with progress("appending", 4) as bar:
            bar.advance(4)
        assert "appending" not in screen()


def test_a_file_read_again_is_counted_again() -> None:
    """A second try of an append begins at its first byte."""
    file = CountedFile(io.BytesIO(b"abcd"), NoBar(), "appending")
    file.read()
    assert file.at == 4
    file.seek(0)
    assert file.at == 0
