"""Long work shows a bar on a terminal, and lines elsewhere."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from click import ClickException

from gazette_spark import progress as progress_module
from gazette_spark.cli.main import main
from gazette_spark.progress import CountedFile, NoBar, progress, tell_of_silence
from tests.waiting import wait_until


def test_quick_work_says_nothing_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("appending", 10) as bar:
        bar.advance(10)
        bar.show("done")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("total", "is_bytes", "line"),
    [
        pytest.param(None, False, "comparing …", id="nothing_counted"),
        pytest.param(4000, False, "comparing: 0 of 4,000", id="begin"),
        pytest.param(4000, True, "comparing: 0 of 4,000 bytes", id="bytes"),
    ],
)
def test_long_work_is_a_line_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, total: float | None, is_bytes: bool, line: str
) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0.0)
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("comparing", total, is_bytes=is_bytes):
        wait_until("the line", lambda: stderr.getvalue().endswith("\n"))
    assert stderr.getvalue() == f"{line}\n"


def test_a_library_prints_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's program, such as a driver that fills a table, has its own log."""
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0.0)
    before = set(threading.enumerate())
    with progress("backfill", has_lines=False):
        assert set(threading.enumerate()) == before


@contextmanager
def terminal_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Make stderr a terminal; return a function that gives the output so far."""
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
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0.0)
    with terminal_screen(monkeypatch) as screen, progress("appending", 4, is_bytes=True) as bar:
        file = CountedFile(io.BytesIO(b"abcd"), bar, "appending")
        assert file.read(2) == b"ab"
        wait_until("the bar", lambda: "2/4 bytes" in screen())
        assert "appending" in screen()


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that only flashes up is a distraction."""
    with terminal_screen(monkeypatch) as screen:
        with progress("appending", 4) as bar:
            bar.advance(4)
        assert "appending" not in screen()


def test_a_file_read_again_is_counted_again() -> None:
    """A second try of an append begins at the file's first byte."""
    file = CountedFile(io.BytesIO(b"abcd"), NoBar(), "appending")
    file.read()
    assert file.at == 4
    file.seek(0)
    assert file.at == 0


@dataclass
class Silent:
    """A connection without an answer for some seconds; None means that it was answered."""

    waits_s: float | None
    problem: str = "failed to connect to all addresses; last error: UNKNOWN: Connection refused"

    def patience_s(self, timeout_s: float) -> float:
        return min(timeout_s, 10.0)


def test_silence_is_explained_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal_screen(monkeypatch) as screen:
        tell_of_silence(lambda: Silent(2.5), "broker 127.0.0.1:1", 60)
        wait_until("the line", lambda: screen().endswith("\n"))
        assert "waiting for broker 127.0.0.1:1: connection refused (8 s left)" in screen()


def test_a_command_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0.1)
    monkeypatch.setattr(progress_module, "LOOK_S", 0.05)
    words = ["journals", "--broker", "http://127.0.0.1:1", "--timeout", "0.8", "list"]
    with terminal_screen(monkeypatch) as screen:
        with pytest.raises(ClickException, match="unavailable"):
            main(words, standalone_mode=False)
        assert screen().count("waiting for broker 127.0.0.1:1: connection refused (1 s left)") == 1


def test_silence_is_explained_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    tell_of_silence(lambda: Silent(2.5), "broker 127.0.0.1:1", 60)
    wait_until("the line", lambda: stderr.getvalue().endswith("\n"))
    assert stderr.getvalue() == "waiting for broker 127.0.0.1:1: connection refused (8 s left)\n"


def test_an_answer_leaves_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    with terminal_screen(monkeypatch) as screen:
        tell_of_silence(lambda: Silent(None), "broker", 60)
        wait_until("the end of the thread", lambda: set(threading.enumerate()) <= before)
        assert screen() == ""
