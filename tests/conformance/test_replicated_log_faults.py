"""Primaries are killed and cut off, and answers lost; no replica applies an entry twice or misses one.

The nodes, the faults and the judge are in ``tests/rig/log_nodes.py`` and ``log_history.py``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.replicated_log import _registers as registers
from gazette_spark.replicated_log._receiver import RepeatFilter
from tests.rig.brokers import BrokerHandle
from tests.rig.log_history import problems
from tests.rig.log_nodes import Run, run_nodes

pytestmark = pytest.mark.brokers("embedded", "deployed")

SEED = 2026
SECONDS = 6.0
SOAK_SECONDS = 300.0


def told(run: Run) -> str:
    history = run.history
    steps = history.replicas["fresh"]
    return (
        f"steps={len(steps)} acknowledged={len(history.acknowledged)} promotions={len(history.promotions)} "
        f"checkpoints={sum(isinstance(step, int) for step in steps)} repeats={run.repeats}"
    )


def check(run: Run) -> None:
    print(told(run))  # noqa: T201 - shown by -rP, and with a failure
    assert run.failures == []
    assert problems(run.history) == []
    assert len(run.history.promotions) >= 2
    assert run.history.acknowledged
    assert run.repeats > 0


def test_a_log_through_faults(broker: BrokerHandle, journal_name: str) -> None:
    check(run_nodes(broker.endpoint, journal_name, seed=SEED, seconds=SECONDS))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_a_log_through_many_faults(broker: BrokerHandle, journal_name: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")  # noqa: T201 - shown by -rP, and with a failure
    check(run_nodes(broker.endpoint, journal_name, seed=seed, seconds=SOAK_SECONDS))


def keep_repeats(patch: pytest.MonkeyPatch) -> str:
    """Let receivers drop no repeats; return a pattern of the judge's finding."""
    patch.setattr(RepeatFilter, "is_new", lambda _self, _record: True)
    return "fresh applied .* times"


def fence_nobody(patch: pytest.MonkeyPatch) -> str:
    """Let brokers accept the appends of all writers; return a pattern of the judge's finding."""
    patch.setattr(registers, "next_step", lambda *_, **__: registers.Step.APPEND)
    patch.setattr(registers, "author_check", lambda _author: pb.LabelSelector())
    patch.setattr(registers, "check_author", lambda *_: None)
    return "became primary without"


@pytest.mark.brokers("embedded")
@pytest.mark.parametrize("mutate", [keep_repeats, fence_nobody])
def test_a_log_that_breaks_its_promise_is_found_out(
    broker: BrokerHandle,
    journal_name: str,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], str],
) -> None:
    expected = mutate(monkeypatch)
    run = run_nodes(broker.endpoint, journal_name, seed=SEED, seconds=2.0)
    assert run.failures == []
    assert any(re.search(expected, each) for each in problems(run.history)), problems(run.history)
