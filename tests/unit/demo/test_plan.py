"""The demo kills the query in mid-flight only, as often as planned, and ends when all is in the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gazette_spark.demo.run import Observation, Plan, Step, decide

SCRIPT = Plan(seconds=40.0, pauses_s=(0.5, 1.0))
WRITING = Observation(table_exists=True, writing_s=12.0, committed_s=0.6, in_flight=True)
"""A moment at which the first kill is due."""


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        pytest.param(Observation(), Step.WAIT, id="Spark is starting"),
        pytest.param(Observation(table_exists=True), Step.START_WRITING, id="the query is up"),
        pytest.param(WRITING, Step.KILL, id="first kill"),
        pytest.param(replace(WRITING, writing_s=9.9), Step.WAIT, id="too early"),
        pytest.param(replace(WRITING, in_flight=False), Step.WAIT, id="between two batches"),
        pytest.param(replace(WRITING, committed_s=None), Step.WAIT, id="nothing committed since the start"),
        pytest.param(replace(WRITING, committed_s=0.4), Step.WAIT, id="within the pause"),
        pytest.param(replace(WRITING, kills=1), Step.WAIT, id="second kill is not due"),
        pytest.param(replace(WRITING, kills=1, writing_s=20.0, committed_s=1.0), Step.KILL, id="second kill"),
        pytest.param(
            replace(WRITING, kills=1, writing_s=99.0, committed_s=None), Step.WAIT, id="kills take longer"
        ),
        pytest.param(replace(WRITING, kills=2, writing_s=39.0), Step.WAIT, id="time is not up"),
        pytest.param(replace(WRITING, kills=2, writing_s=40.0), Step.STOP_WRITING, id="time is up"),
        pytest.param(
            replace(WRITING, kills=1, writing_s=40.0, in_flight=False, backlog_batches=3.0),
            Step.STOP_WRITING,
            id="enough left for the last kill",
        ),
        pytest.param(
            replace(WRITING, writing_s=40.0, in_flight=False, backlog_batches=5.0),
            Step.WAIT,
            id="not enough left for both kills",
        ),
        pytest.param(
            replace(WRITING, kills=1, stopped=True, writing_s=50.0, committed_s=0.01),
            Step.KILL,
            id="the last kill while catching up",
        ),
        pytest.param(
            replace(WRITING, kills=1, stopped=True, writing_s=50.0, committed_s=None),
            Step.WAIT,
            id="started again while catching up",
        ),
        pytest.param(replace(WRITING, user_ends=True), Step.STOP_WRITING, id="the user ends it"),
        pytest.param(
            replace(WRITING, user_ends=True, stopped=True, drained=True), Step.FINISH, id="all kills skipped"
        ),
        pytest.param(replace(WRITING, kills=2, stopped=True), Step.WAIT, id="catching up"),
        pytest.param(replace(WRITING, kills=2, stopped=True, drained=True), Step.FINISH, id="all there"),
    ],
)
def test_each_state_leads_on(seen: Observation, step: Step) -> None:
    """The step follows from what is seen and nothing else."""
    assert decide(seen, SCRIPT) is step


def test_a_script_without_kills_only_writes() -> None:
    """The number of kills is the number of pauses."""
    assert decide(replace(WRITING, writing_s=1.0), Plan(40.0, ())) is Step.WAIT
    assert decide(replace(WRITING, writing_s=40.0), Plan(40.0, ())) is Step.STOP_WRITING


def test_a_script_without_an_end_kills_within_half_a_minute() -> None:
    """Kills are spread over the first half of a minute if only the user ends the script."""
    endless = Plan(float("inf"), (0.5, 0.5))
    assert decide(replace(WRITING, writing_s=14.9), endless) is Step.WAIT
    assert decide(replace(WRITING, writing_s=15.0), endless) is Step.KILL
    assert decide(replace(WRITING, kills=1, writing_s=30.0), endless) is Step.KILL
    assert decide(replace(WRITING, kills=2, writing_s=1e9), endless) is Step.WAIT
