"""``gazette-spark lag`` judges recorded windows and replays recorded requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gazette_spark.cli.main import main

NOW_MS = 1_000_000_000


def run(command: str, text: str | bytes, *flags: str) -> Result:
    return CliRunner().invoke(main, ["lag", command, "-", *flags], input=text, catch_exceptions=False)


def partition(index: int, current_lag: int) -> dict[str, object]:
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
    fields = {"now_ms": NOW_MS + 2000, "cluster": "local", "group": "größe/%2F"}
    return json.dumps(fields | {"partitions": [partition(0, 98), partition(1, 0)]} | changes)


def test_evaluate_shows_burrows_status() -> None:
    """Burrow's names for statuses and groups are printed unchanged."""
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
    """The filter is Burrow's default view. The counts still include all partitions."""
    status = json.loads(run("evaluate", recording(), "--bad-only").stdout)
    assert ([each["status"] for each in status["partitions"]], status["partition_count"]) == (["WARN"], 2)


def test_an_unknown_group_is_notfound(tmp_path: Path) -> None:
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
    answer = run("evaluate", text)
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert problem in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
