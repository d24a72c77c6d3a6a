"""``gazette-spark lag`` judges recorded windows and replays recorded requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gazette_spark.cli.main import main

NOW_MS = 1_000_000_000


def run(command: str, text: str | bytes, *flags: str) -> Result:
    """Run a command of ``lag`` on stdin."""
    return CliRunner().invoke(main, ["lag", command, "-", *flags], input=text, catch_exceptions=False)


def partition(index: int, current_lag: int) -> dict[str, object]:
    """Return a recorded partition whose lag grows."""
    return {
        "topic": "shop/",
        "partition": index,
        "current_lag": current_lag,
        "broker_offsets": [100],
        "offsets": [
            {"offset": at, "timestamp": NOW_MS + at * 1000, "observedAt": NOW_MS, "lag": 10 + at}
            for at in range(3)
        ],
    }


def recording(**changes: object) -> str:
    """Return a recording of a partition that is slow and one that is fine."""
    fields = {"now_ms": NOW_MS + 2000, "cluster": "local", "group": "größe/%2F"}
    return json.dumps(fields | {"partitions": [partition(0, 98), partition(1, 0)]} | changes)


def test_evaluate_shows_burrows_status() -> None:
    """Every partition; the worst one beside them; names as they are."""
    answer = run("evaluate", recording())
    assert answer.exit_code == 0
    status = json.loads(answer.stdout)
    assert list(status) == [
        "cluster",
        "group",
        "status",
        "complete",
        "partitions",
        "partition_count",
        "maxlag",
        "totallag",
    ]
    assert (status["status"], status["group"], status["totallag"]) == ("WARN", "größe/%2F", 98)
    assert [each["status"] for each in status["partitions"]] == ["WARN", "OK"]
    assert status["maxlag"] == status["partitions"][0]


def test_bad_only_leaves_out_what_is_fine() -> None:
    """The command leaves out what is fine, as Burrow does by default; its counts are of all."""
    status = json.loads(run("evaluate", recording(), "--bad-only").stdout)
    assert ([each["status"] for each in status["partitions"]], status["partition_count"]) == (["WARN"], 2)


def test_an_unknown_group_is_notfound(tmp_path: Path) -> None:
    """The exit code is 0 whatever the verdict; a file is read as stdin is."""
    file = tmp_path / "recording.json"
    file.write_text(recording(partitions=None))
    answer = CliRunner().invoke(main, ["lag", "evaluate", str(file)])
    assert answer.exit_code == 0
    assert json.loads(answer.stdout)["status"] == "NOTFOUND"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("{", "not JSON", id="no JSON"),
        pytest.param(b"\xff", "not UTF-8", id="no text"),
        pytest.param(recording(allowed_lag=-1), "option 'allowed_lag': got -1", id="negative allowed lag"),
        pytest.param(recording(minimum_complete=2), "option 'minimum_complete': got 2", id="share of two"),
        pytest.param(recording(group=5), "group: expected text, got 5", id="a number for a name"),
    ],
)
def test_bad_recordings_are_one_line(text: str | bytes, problem: str) -> None:
    """A bad recording ends the command with exit code 1, one line and nothing on stdout."""
    answer = run("evaluate", text)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert problem in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def lines(*requests: dict[str, object]) -> str:
    """Return requests of one partition, a line each."""
    fields = {"cluster": "local", "group": "orders", "topic": "shop/", "partition": 0}
    return "\n".join(json.dumps(fields | each) for each in requests)


def head(offset: int) -> dict[str, object]:
    """Return the request that tells a write head."""
    return {"request": "broker_offset", "offset": offset, "partition_count": 1}


def commit(order: int, offset: int, second: int = 0) -> dict[str, object]:
    """Return the request that tells a commit, made when it is told."""
    time_ms = NOW_MS + second * 1000
    return {
        "request": "consumer_offset",
        "offset": offset,
        "order": order,
        "timestamp": time_ms,
        "now_ms": time_ms,
    }


def fetch(second: int) -> dict[str, object]:
    """Return the request for a group."""
    return {"request": "fetch_consumer", "now_ms": NOW_MS + second * 1000}


INCIDENT = lines(
    head(100),
    commit(1, 100, 0),
    fetch(0),
    head(200),
    commit(2, 110, 10),
    head(400),
    commit(3, 120, 20),
    {"request": "consumer_owner", "owner": "host-1", "client_id": "driver"},
    fetch(20),
    fetch(41),
    commit(4, 30, 50),
    fetch(50),
    commit(5, 400, 60),
    fetch(60),
)
"""A query is level, falls behind, stops, is restored to an older version, and catches up."""


def test_replay_tells_the_story_of_an_incident() -> None:
    """One answer a fetch, in order: the verdicts at those moments."""
    answer = run("replay", INCIDENT, "--intervals", "2")
    assert (answer.exit_code, answer.stderr) == (0, "")
    found = [json.loads(each) for each in answer.stdout.splitlines()]
    assert [each["status"]["status"] for each in found] == ["OK", "WARN", "ERR", "ERR", "OK"]
    assert [each["status"]["partitions"][0]["status"] for each in found] == [
        "OK",
        "WARN",
        "STOP",
        "REWIND",
        "OK",
    ]
    assert found[1]["topics"]["shop/"] == [
        {
            "offsets": [
                {"offset": 110, "timestamp": NOW_MS + 10_000, "observedAt": NOW_MS + 10_000, "lag": 90},
                {"offset": 120, "timestamp": NOW_MS + 20_000, "observedAt": NOW_MS + 20_000, "lag": 280},
            ],
            "owner": "host-1",
            "client_id": "driver",
            "current-lag": 280,
        }
    ]


STEPS = lines(head(100), commit(1, 10, 0), commit(2, 20, 1), commit(3, 30, 2), fetch(10))


@pytest.mark.parametrize(
    ("flags", "offsets", "status"),
    [
        pytest.param(["--intervals", "3"], [10, 20, 30], "ERR", id="ring length"),
        pytest.param(["--intervals", "2"], [20, 30], "ERR", id="short ring"),
        pytest.param(["--intervals", "3", "--min-distance", "2"], [None, 20, 30], "ERR", id="distance"),
        pytest.param(["--intervals", "3", "--allowed-lag", "70"], [10, 20, 30], "OK", id="allowed lag"),
        pytest.param(["--minimum-complete", "0.5"], [None] * 7 + [10, 20, 30], "OK", id="minimum complete"),
        pytest.param(["--expire-group", "7"], None, "NOTFOUND", id="expiry"),
        pytest.param(["--group-allowlist", "x"], None, "NOTFOUND", id="allow list"),
        pytest.param(["--group-denylist", "^ord"], None, "NOTFOUND", id="deny list"),
    ],
)
def test_flags_are_burrows_settings(flags: list[str], offsets: list[int | None] | None, status: str) -> None:
    """Each does what the setting of that name does."""
    found = json.loads(run("replay", STEPS, *flags).stdout)
    windows = found["topics"] and found["topics"]["shop/"][0]["offsets"]
    assert (windows and [slot and slot["offset"] for slot in windows]) == offsets
    assert found["status"]["status"] == status


def test_bad_only_holds_for_replays() -> None:
    """The verdict's partitions, not the windows."""
    found = json.loads(run("replay", lines(head(9), commit(1, 9), fetch(0)), "--bad-only").stdout)
    assert (len(found["topics"]["shop/"]), found["status"]["partitions"]) == (1, [])


def test_other_clusters_are_ignored_aloud() -> None:
    """A line on stderr for each request; the rest goes on. Blank lines are nothing."""
    answer = run("replay", f"\n{STEPS}\n\n", "--cluster", "elsewhere")
    assert answer.exit_code == 0
    assert answer.stderr.splitlines() == [f"line {at}: ignored: unknown cluster" for at in (2, 3, 4, 5)]
    assert json.loads(answer.stdout)["topics"] is None


def test_a_wrong_line_ends_a_replay() -> None:
    """Exit code 1 and the line's number; what was answered before stands."""
    answer = run("replay", f'{STEPS}\n{{"request": "fetch"}}\n{STEPS}')
    assert answer.exit_code == 1
    assert len(answer.stdout.splitlines()) == 1
    assert answer.stderr.startswith("Error: line 6: request: there is no 'fetch'")
    assert len(answer.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        pytest.param(["--intervals", "0"], "'intervals': got 0", id="no slots"),
        pytest.param(["--intervals", "-3"], "'intervals': got -3", id="negative slots"),
        pytest.param(["--min-distance", "-1"], "'min-distance': got -1", id="negative distance"),
        pytest.param(["--allowed-lag", "-1"], "'allowed_lag': got -1", id="negative lag"),
        pytest.param(["--minimum-complete", "1.5"], "'minimum_complete': got 1.5", id="share beyond 1"),
        pytest.param(["--minimum-complete", "nan"], "'minimum_complete': got nan", id="share of nothing"),
        pytest.param(["--group-allowlist", "("], "'group-allowlist': got '('", id="bad expression"),
        pytest.param(["--group-whitelist", "x"], "No such option", id="Burrow's old name"),
    ],
)
def test_bad_flags_are_wrong_usage(flags: list[str], problem: str) -> None:
    """Exit code 2 before anything is read."""
    answer = run("replay", STEPS, *flags)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert problem in answer.stderr
