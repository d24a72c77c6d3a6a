"""A failpoint fails exactly where, when and how it was configured to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gazette_spark.failpoints import (
    EXIT_STATUS,
    FAILPOINT_VARIABLE,
    GROUP_VARIABLE,
    FailpointError,
    calling,
    failpoint,
)

REACH_THREE_TIMES = """
from gazette_spark.failpoints import failpoint
for number in (1, 2, 3):
    failpoint("here")
    print(number, flush=True)
"""


def reach_in_a_child(spec: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", REACH_THREE_TIMES],
        env=os.environ | {FAILPOINT_VARIABLE: spec} | more,
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )


def test_does_nothing_unless_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FAILPOINT_VARIABLE, raising=False)
    failpoint("here")
    monkeypatch.setenv(FAILPOINT_VARIABLE, "elsewhere:1:kill")
    failpoint("here")


def test_raises_at_the_nth_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, "test.nth:2:raise")
    failpoint("test.nth")
    with pytest.raises(FailpointError, match=r"'test\.nth' was reached"):
        failpoint("test.nth")
    failpoint("test.nth")


def test_counts_anew_when_armed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        monkeypatch.setenv(FAILPOINT_VARIABLE, "test.again:1:raise")
        with pytest.raises(FailpointError):
            failpoint("test.again")
        monkeypatch.delenv(FAILPOINT_VARIABLE)
        failpoint("any")


@pytest.mark.parametrize(
    ("action", "status"),
    [("exit", EXIT_STATUS), ("kill", -signal.SIGKILL), ("kill_group", -signal.SIGKILL)],
    ids=["exit", "kill", "kill group"],
)
def test_ends_the_process(action: str, status: int) -> None:
    done = reach_in_a_child(f"here:2:{action}")
    assert (done.returncode, done.stdout) == (status, "1\n")


def test_kill_group_takes_the_named_group_too() -> None:
    """A process in another group dies with the one that reached the point."""
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    reach_in_a_child("here:1:kill_group", **{GROUP_VARIABLE: str(bystander.pid)})
    assert bystander.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.parametrize(
    "text", ["here", "here:1", "here:0:kill", "here:x:kill", ":1:kill", "here:1:explode"]
)
def test_refuses_a_malformed_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, text)
    with pytest.raises(ValueError, match=r"expected e\.g\. 'sink\.return:2:kill'"):
        failpoint("here")


def test_a_function_is_called_at_the_nth_call_only() -> None:
    called: list[int] = []

    def action() -> None:
        called.append(len(called))
        failpoint("test.called")
        raise KeyError("mine")

    with calling("test.called", action, 2):
        failpoint("test.elsewhere")
        failpoint("test.called")
        with pytest.raises(KeyError, match="mine"):
            failpoint("test.called")
        failpoint("test.called")
    failpoint("test.called")
    assert called == [0]
