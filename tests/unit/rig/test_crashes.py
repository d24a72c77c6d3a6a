"""A seed is a schedule that holds all that may happen; what fails is reported with the way to replay it."""

from __future__ import annotations

import shlex
from typing import Any, get_args

import pytest

from tests.rig.crashes.__main__ import parse, replay
from tests.rig.crashes.children import command_to_die
from tests.rig.crashes.outcomes import CRASHED, UnexpectedEndError, outcome
from tests.rig.crashes.points import BY_NAME, POINTS, reachable
from tests.rig.crashes.report import summary
from tests.rig.crashes.scenario import Scenario
from tests.rig.crashes.schedules import KINDS, SIGKILLS, Kind, Settings, draw

ALL = frozenset(point.feature for point in POINTS)


def test_a_seed_is_a_schedule() -> None:
    """The same seed draws the same steps, another one others."""
    settings = Settings(steps=30, kill_share=0.2)
    assert draw(7, settings) == draw(7, settings) != draw(8, settings)


def test_every_kind_and_point_comes_up() -> None:
    """Long schedules have each kind of step, and die at each point that the sink reaches."""
    steps = draw(1, Settings(steps=3000, kill_share=0.3, features=ALL))
    assert {step.kind for step in steps} == set(KINDS) == set(get_args(Kind))
    for kind in ("crash", "kill"):
        wanted = {point.name for point in reachable(ALL, by_kill=kind == "kill")}
        assert {step.point for step in steps if step.kind == kind} == wanted


def test_without_kills_no_child_process_is_needed() -> None:
    """A schedule without kills needs no child process, and no point that only some sinks reach."""
    steps = draw(1, Settings(steps=1000))
    assert not SIGKILLS & {step.kind for step in steps}
    names = {name for step in steps for name in step.point.split("|")}
    assert not names & {point.name for point in POINTS if point.feature}


def test_a_schedule_of_some_kinds_is_replayed_by_its_command() -> None:
    """Other kinds are not drawn; kills come by their own share."""
    settings = Settings(1000, 0.1, frozenset({"zombie", "sink crashes"}))
    assert {step.kind for step in draw(1, settings)} == {"zombie", "sink crashes", *SIGKILLS}
    given = parse(shlex.split(replay(7, settings))[3:])
    assert (given.seed, given.schedules) == (7, 1)
    assert Settings(given.steps, given.kill_share, frozenset(given.only)) == settings


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_carried_out(kind: str) -> None:
    """A scenario has a method for it."""
    assert callable(getattr(Scenario, f"_{kind.replace(' ', '_')}"))


@pytest.mark.parametrize(
    ("point", "command"),
    [
        ("before the WAL", {"rename": r"before 2 /offsets/\d+"}),
        ("before the write", {"failpoint": "sink.before_write:2:kill_group"}),
    ],
    ids=["rename", "failpoint"],
)
def test_a_child_is_told_where_to_die(point: str, command: dict[str, str]) -> None:
    """At a rename or at a failpoint; a point that no kill reaches is refused."""
    assert command_to_die(BY_NAME[point], 2) == command
    with pytest.raises(ValueError, match="in a task"):
        command_to_die(BY_NAME["in a task"], 1)


def test_endings_are_told_apart() -> None:
    """A planned crash, a refusal of the sink, and whatever else."""
    assert outcome("FailpointError: failpoint 'sink.entry' was reached; it is") == CRASHED
    assert outcome("gazette_spark.errors.sink_errors.GapError: table t, app id") == "GapError"
    with pytest.raises(UnexpectedEndError, match="disk full"):
        outcome("java.io.IOException: disk full")


def record(**fields: Any) -> dict[str, Any]:
    """A schedule without a failure."""
    numbers = dict.fromkeys(("sigkills", "zombies", "lost", "duplicated", "altered"), 0)
    usual = {
        "seed": 3,
        "replay": "again",
        "cycles": 150,
        "retries": 50,
        "rows": 9,
        "versions": 4,
        "points": {},
        "failure": "",
    }
    return numbers | usual | fields


def test_the_summary_bounds_the_rate_of_failures() -> None:
    """The rule of three bounds the rate, over all crashes and kills."""
    text = summary([record(), record(sigkills=100, points={"before the WAL": 2})])
    assert "crash cycles 300, of the sink alone 100\nSIGKILLs 100" in text
    assert "no failure in 500 crashes: with 95 % confidence below 0.60%" in text


def test_the_summary_shows_how_to_run_a_failure_again() -> None:
    """A failure's seed and command are shown; no rate is claimed then."""
    text = summary([record(), record(seed=17, failure="lost 1", replay="python -m x --seed 17")])
    assert "seed 17: lost 1\n  run it again: python -m x --seed 17" in text
    assert "confidence" not in text
