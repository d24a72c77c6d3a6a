"""The demo command ends with its proof, and fails with a clear error if it cannot.

The query runs in a separate JVM, which the demo kills and restarts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.demo.run import new_journals
from tests.rig.brokers import DeployedBroker

COMMAND = [sys.executable, "-m", "gazette_spark.cli", "demo"]
SHORT = ["--seconds", "8", "--rate", "3000"]
ONE_KILL = ["--kill", "1"]
"""Options for one kill, because each kill costs another start of Spark. A user's demo has two, as in soak."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run_demo(directory: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    directory.mkdir()
    return subprocess.run(
        [*COMMAND, *args],
        env=os.environ | {"TMPDIR": str(directory)} | env,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def figures(output: str) -> dict[str, int]:
    found = re.findall(r"^([a-z][\w /]*?) {2,}([\d,]+)", output, re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in found}


def check_report(done: subprocess.CompletedProcess[str], kills: int) -> dict[str, int]:
    assert done.returncode == 0, done.stdout + done.stderr
    report = figures(done.stdout)
    assert report["rows appended"] == report["rows in the table"] >= 3000 * 8 * 0.9
    assert (report["lost"], report["duplicated"], report["foreign or altered"]) == (0, 0, 0)
    assert report["kills of the query"] == kills
    # The pinned first batch, and a commit before each kill and after the last one.
    assert report["commits of the table"] >= kills + 2
    assert len(re.findall(r"kill \d: SIGKILL to the query in the middle of batch", done.stdout)) == kills
    return report


def test_nothing_is_lost_or_doubled_and_nothing_stays_behind(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "tmp", *SHORT, *ONE_KILL)
    report = check_report(done, 1)
    ledger = dict(re.findall(r"^ *(shop/[\w-]+) +([\d,]+)", done.stdout, re.MULTILINE))
    assert sorted(ledger) == ["shop/orders", "shop/page-views", "shop/payments", "shop/telemetry"]
    assert sum(int(offset.replace(",", "")) for offset in ledger.values()) == report["bytes appended"]
    assert list((tmp_path / "tmp").glob("gazette-spark-demo-*")) == []


@pytest.mark.soak
def test_the_same_on_a_real_broker(tmp_path: Path, deployed_broker: DeployedBroker) -> None:
    """``--broker`` leaves no journal behind; ``--keep`` leaves a table whose ledger can be shown."""
    keep = tmp_path / "kept"
    done = run_demo(tmp_path / "tmp", *SHORT, "--broker", deployed_broker.endpoint, "--keep", str(keep))
    report = check_report(done, 2)
    with Client(deployed_broker.endpoint) as client:
        assert [each for each in client.list_journals() if "demo" in each.spec.name] == []
    show = [sys.executable, "-m", "gazette_spark.cli", "offsets", "show", str(keep / "table")]
    shown = subprocess.run(
        [*show, "--format", "json"], capture_output=True, text=True, check=True, timeout=60
    )
    (entry,) = json.loads(shown.stdout)
    assert sum(entry["end"][0]["journals"].values()) == report["bytes appended"]
    assert (keep / "query.log").exists()


def test_journals_on_a_broker_that_lives_on_are_removed(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker, Client(broker.endpoint) as client:
        for _ in range(2):
            with new_journals(client, deployed=True) as names:
                assert sorted(each.spec.name for each in client.list_journals()) == sorted(names)
        assert list(client.list_journals()) == []


def test_a_query_that_dies_by_itself_fails_the_demo_with_its_log(tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho this machine has no memory left >&2\nexit 1\n")
    java.chmod(0o755)
    done = run_demo(tmp_path / "tmp", *SHORT, JAVA_HOME=str(tmp_path / "java"))
    assert done.returncode == 1
    assert "this machine has no memory left" in done.stderr
    assert done.stderr.splitlines()[-1] == "Error: the query's process ended by itself with exit code 1"
    (kept,) = (tmp_path / "tmp").glob("gazette-spark-demo-*")
    assert f"kept for inspection: {kept}" in done.stderr


@pytest.mark.parametrize(
    ("args", "env", "problem"),
    [
        pytest.param([], {"JAVA_HOME": "/nowhere"}, "no Java in JAVA_HOME (/nowhere)", id="no java"),
        pytest.param(["--broker", "http://127.0.0.1:1"], {}, "127.0.0.1:1", id="no broker"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, args: list[str], env: dict[str, str], problem: str
) -> None:
    done = run_demo(tmp_path / "tmp", *args, **env)
    assert done.returncode == 1
    assert problem in done.stderr.splitlines()[-1]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    """``--keep`` requires an empty or new directory."""
    (tmp_path / "mine").write_text("mine")
    done = run_demo(tmp_path / "tmp", "--keep", str(tmp_path))
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_directory_that_cannot_be_made_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep = tmp_path / "file" / "kept"
    done = run_demo(tmp_path / "tmp", "--keep", str(keep))
    assert (done.returncode, f"{keep} cannot be created" in done.stderr.splitlines()[-1]) == (2, True)


@pytest.mark.soak
def test_quickstart_ends_with_a_verified_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gazette_spark.cli", "quickstart", "--for", "5s"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"lag page http://127\.0\.0\.1:\d+", done.stderr)
    assert "VERIFIED: " in done.stdout
    assert list(tmp_path.glob("gazette-spark-demo-*")) == []
