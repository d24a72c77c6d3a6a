"""Defines named points at which a test can make the process fail.

``GAZETTE_SPARK_FAILPOINT="name:nth:action"`` arms one point: the *nth* call of ``failpoint(name)`` in a
process, counted from 1, performs the action once. Without the variable, a point only looks up the variable.

=============  ==============================================================================
action         effect
=============  ==============================================================================
``raise``      a :class:`FailpointError` is raised
``exit``       the process ends immediately with status 70, without handlers or flushing
``kill``       SIGKILL to the process
``kill_group`` SIGKILL to its process group, and before that to the group named by
               ``GAZETTE_SPARK_FAILPOINT_GROUP``, if set
=============  ==============================================================================

Spark's Python workers run in a separate process group. For workers to kill the driver and its JVM as well,
the driver must lead a session and put its process id into the second variable before it starts the JVM.
Workers inherit both variables.

A test in the same process can make a point call a function; see :func:`calling`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gazette_spark.errors import GazetteError

FAILPOINT_VARIABLE = "GAZETTE_SPARK_FAILPOINT"
GROUP_VARIABLE = "GAZETTE_SPARK_FAILPOINT_GROUP"
ACTIONS = ("raise", "exit", "kill", "kill_group")
EXIT_STATUS = 70

_hits: dict[str, int] = {}
"""Number of calls of the armed point, by the variable's text. It is global, because the places that call a
point share nothing else. Counting starts again at 1 for another text, and after a call without a text."""

_calls: list[_Call] = []
"""Calls that :func:`calling` has registered in this process."""


@dataclass(eq=False)
class FailpointError(GazetteError):
    """An armed failpoint was reached."""

    name: str

    def __str__(self) -> str:
        return f"failpoint {self.name!r} was reached; it is armed by {FAILPOINT_VARIABLE}"


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One armed point."""

    name: str
    nth: int
    action: str

    @classmethod
    def parse(cls, text: str) -> Failpoint:
        """Read ``name:nth:action``.

        Raises:
            ValueError: the text has another form. Otherwise a test could arm nothing and still pass.
        """
        match text.split(":"):
            case [name, nth, action] if name and nth.isdecimal() and int(nth) > 0 and action in ACTIONS:
                return cls(name, int(nth), action)
        raise ValueError(
            f"{FAILPOINT_VARIABLE}: got {text!r}; expected e.g. 'sink.return:2:kill', action one of "
            + ", ".join(ACTIONS)
        )


@dataclass(eq=False, slots=True)
class _Call:
    name: str
    left: int
    action: Callable[[], None]


@contextmanager
def calling(name: str, action: Callable[[], None], nth: int = 1) -> Iterator[None]:
    """Call ``action`` once, at the nth call of ``failpoint(name)`` within this block, in any thread.

    The point raises the exceptions of ``action``. ``action`` may reach the same point itself.
    """
    call = _Call(name, nth, action)
    _calls.append(call)
    try:
        yield
    finally:
        _calls.remove(call)


def failpoint(name: str) -> None:
    """Perform the action of the point if the environment, or code in this process, has armed it."""
    for call in tuple(_calls):
        if call.name == name:
            call.left -= 1
            if call.left == 0:
                call.action()
    text = os.environ.get(FAILPOINT_VARIABLE)
    if not text:
        _hits.clear()
        return
    armed = Failpoint.parse(text)
    if armed.name != name:
        return
    _hits[text] = _hits.get(text, 0) + 1
    if _hits[text] != armed.nth:
        return
    if armed.action == "raise":
        raise FailpointError(armed.name)
    if armed.action == "exit":
        os._exit(EXIT_STATUS)
    if armed.action == "kill_group":
        named = os.environ.get(GROUP_VARIABLE)
        if named:
            os.killpg(int(named), signal.SIGKILL)
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returned")  # The signal is delivered before the call returns.
