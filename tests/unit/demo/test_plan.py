"""The demo kills the query only in mid-flight, as often as planned, and ends once the table is complete."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gazette_spark.demo.run import DemoScript, DemoStep, Observation, decide

SCRIPT = DemoScript(seconds=40.0, pauses_s=(0.5, 1.0))
WRITING = Observation(table_exists=True, writing_s=12.0, committed_s=0.6, in_flight=True)
"""Observation at which the first kill is due."""


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        pytest.param(Observation(), DemoStep.WAIT, id="Spark is starting"),
        pytest.param(Observation(table_exists=True), DemoStep.START_WRITING, id="the query is up"),
        pytest.param(WRITING, DemoStep.KILL, id="first kill"),
        pytest.param(replace(WRITING, writing_s=9.9), DemoStep.WAIT, id="too early"),
        pytest.param(replace(WRITING, in_flight=False), DemoStep.WAIT, id="between two batches"),
        pytest.param(replace(WRITING, committed_s=None), DemoStep.WAIT, id="no commit since the start"),
        pytest.param(replace(WRITING, committed_s=0.4), DemoStep.WAIT, id="within the pause"),
        pytest.param(replace(WRITING, kills=1), DemoStep.WAIT, id="second kill is not due"),
        pytest.param(
            replace(WRITING, kills=1, writing_s=20.0, committed_s=1.0), DemoStep.KILL, id="second kill"
        ),
        pytest.param(
            replace(WRITING, kills=1, writing_s=99.0, committed_s=None), DemoStep.WAIT, id="kills take longer"
        ),
        pytest.param(replace(WRITING, kills=2, writing_s=39.0), DemoStep.WAIT, id="time is not up"),
        pytest.param(replace(WRITING, kills=2, writing_s=40.0), DemoStep.STOP_WRITING, id="time is up"),
        pytest.param(
            replace(WRITING, kills=1, writing_s=40.0, in_flight=False, backlog_batches=3.0),
            DemoStep.STOP_WRITING,
            id="enough left for the last kill",
        ),
        pytest.param(
            replace(WRITING, writing_s=40.0, in_flight=False, backlog_batches=5.0),
            DemoStep.WAIT,
            id="not enough left for both kills",
        ),
        pytest.param(
            replace(WRITING, kills=1, stopped=True, writing_s=50.0, committed_s=0.01),
            DemoStep.KILL,
            id="the last kill while catching up",
        ),
        pytest.param(
            replace(WRITING, kills=1, stopped=True, writing_s=50.0, committed_s=None),
            DemoStep.WAIT,
            id="started again while catching up",
        ),
        pytest.param(replace(WRITING, user_ends=True), DemoStep.STOP_WRITING, id="the user ends it"),
        pytest.param(
            replace(WRITING, user_ends=True, stopped=True, drained=True),
            DemoStep.FINISH,
            id="kills skipped",
        ),
        pytest.param(replace(WRITING, kills=2, stopped=True), DemoStep.WAIT, id="catching up"),
        pytest.param(replace(WRITING, kills=2, stopped=True, drained=True), DemoStep.FINISH, id="all there"),
    ],
)
def test_each_state_leads_on(seen: Observation, step: DemoStep) -> None:
    assert decide(seen, SCRIPT) is step


def test_a_script_without_kills_only_writes() -> None:
    assert decide(replace(WRITING, writing_s=1.0), DemoScript(40.0, ())) is DemoStep.WAIT
    assert decide(replace(WRITING, writing_s=40.0), DemoScript(40.0, ())) is DemoStep.STOP_WRITING


def test_a_script_without_an_end_kills_within_half_a_minute() -> None:
    endless = DemoScript(float("inf"), (0.5, 0.5))
    assert decide(replace(WRITING, writing_s=14.9), endless) is DemoStep.WAIT
    assert decide(replace(WRITING, writing_s=15.0), endless) is DemoStep.KILL
    assert decide(replace(WRITING, kills=1, writing_s=30.0), endless) is DemoStep.KILL
    assert decide(replace(WRITING, kills=2, writing_s=1e9), endless) is DemoStep.WAIT
