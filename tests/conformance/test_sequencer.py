"""Our sequencer and Gazette's agree on any history: outcomes, messages, replays, checkpoints and restarts."""

from __future__ import annotations

import json
import logging

import pytest

from tests.conformance.goclient import Event, end_of, run_go
from tests.rig.histories import Case, Run, random_case

CASES_AT_A_TIME = 1_000
"""Cases per run of goclient."""


def gazettes_traces(cases: list[Case]) -> list[Event]:
    """Return what Gazette's Sequencer does in each case."""
    content = "\n".join(json.dumps(case.to_dict()) for case in cases).encode()
    events = run_go("", "sequence", content=content)
    assert end_of(events)["cases"] == len(cases)
    return events[:-1]


def compare(seeds: range) -> set[str]:
    cases = [random_case(seed) for seed in seeds]
    kinds: set[str] = set()
    for seed, case, event in zip(seeds, cases, gazettes_traces(cases), strict=True):
        trace = Run(case).to_end().trace
        assert trace == event["trace"], f"seed {seed}"
        kinds.update(line if line.startswith("queue") else line.split()[0] for line in trace)
    return kinds


ALL_KINDS = {
    "queue outsideAlreadyAcked",
    "queue outsideCommit",
    "queue continueAlreadyAcked",
    "queue continueRingClockLarger",
    "queue continueBeginSpan",
    "queue continueExtendSpan",
    "queue ackRollback",
    "queue ackEmpty",
    "queue ackCommitRing",
    "queue ackCommitReplay",
    "replay",
    "message",
    "pending",
    "offset",
    "state",
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Silence the log, which has a line for each oddity in a history."""
    caplog.set_level(logging.ERROR)


def test_histories() -> None:
    assert compare(range(500)) == ALL_KINDS


@pytest.mark.soak
def test_many_histories(pytestconfig: pytest.Config) -> None:
    first = 10_000 * (1 + int(pytestconfig.getoption("--hypothesis-seed") or 0))
    for begin in range(first, first + 10_000, CASES_AT_A_TIME):
        compare(range(begin, begin + CASES_AT_A_TIME))
