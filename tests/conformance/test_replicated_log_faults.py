"""Primaries are killed and cut off, and answers lost; no replica applies an entry twice or misses one.

The nodes, what is done to them, and the judge are in ``tests/rig/log_nodes.py`` and ``log_history.py``.
"""

from __future__ import annotations

import random

import pytest

from gazette_spark.replicated_log.repeats import RepeatFilter
from tests.rig.brokers import BrokerHandle
from tests.rig.log_history import problems
from tests.rig.log_nodes import Run, run_nodes

pytestmark = pytest.mark.brokers("embedded", "deployed")

SEED = 2026
SECONDS = 6.0
SOAK_SECONDS = 300.0


def told(run: Run) -> str:
    """Return what a run was made of."""
    history = run.history
    steps = history.replicas["fresh"]
    return (
        f"steps={len(steps)} acknowledged={len(history.acknowledged)} promotions={len(history.promotions)} "
        f"checkpoints={sum(isinstance(step, int) for step in steps)} repeats={run.repeats}"
    )


def check(run: Run) -> None:
    """Require a sound history that is worth its time."""
    print(told(run))  # noqa: T201 - shown by -rP, and with a failure
    assert run.failures == []
    assert problems(run.history) == []
    assert len(run.history.promotions) >= 2
    assert run.history.acknowledged
    assert run.repeats > 0


def test_a_log_through_faults(broker: BrokerHandle, journal_name: str) -> None:
    """A few seconds of kills, partitions, lost answers and take-overs."""
    check(run_nodes(broker.endpoint, journal_name, seed=SEED, seconds=SECONDS))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_a_log_through_many_faults(broker: BrokerHandle, journal_name: str) -> None:
    """Minutes of them, by a fresh seed."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")  # noqa: T201 - shown by -rP, and with a failure
    check(run_nodes(broker.endpoint, journal_name, seed=seed, seconds=SOAK_SECONDS))


@pytest.mark.brokers("embedded")
def test_replicas_that_keep_repeats_are_found_out(
    broker: BrokerHandle, journal_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same faults without the filter of repeats: the judge sees entries that were applied twice."""
    monkeypatch.setattr(RepeatFilter, "is_new", lambda _self, _record: True)
    run = run_nodes(broker.endpoint, journal_name, seed=SEED, seconds=1.0)
    assert run.failures == []
    assert [each for each in problems(run.history) if each.startswith("fresh applied")]
