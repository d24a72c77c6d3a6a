"""Tables in a bucket of a real S3 server, under an unusual name, and with two drivers at once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from gazette_spark._delta.s3_log_store import LOG_STORE
from tests.rig.versitygw import running_versitygw
from tests.spark.s3_race_job import BATCHES, VERSIONS
from tests.spark.test_names import ODD

ROOT = Path(__file__).parents[2]
START_WITHIN_S = 90


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_part_finds_a_table_in_a_bucket(tmp_path: Path) -> None:
    """Covers both lanes, dead letters, ``resume``, ``offsets show``, ``verify`` and lag, as on a disk."""
    with running_versitygw(tmp_path / "buckets") as endpoint:
        command = [sys.executable, "-m", "tests.spark.s3_job", endpoint, str(tmp_path), ODD]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1700, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["rows"] == [[1, "a"], [2, "b"], [3, "c"]]
    assert seen["dead letters"] == [[23, "not JSON"]]
    assert seen["read through"] == {"events": 78}
    newest_batch, newest_version = seen["entry"]
    assert seen["offsets of s3a"] == seen["offsets of s3:"] == [newest_batch]
    assert seen["verify"] == "verified"
    assert seen["lag"] == newest_version


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_of_two_drivers_one_gets_each_version(tmp_path: Path) -> None:
    drivers = ("a", "b")
    with running_versitygw(tmp_path / "buckets") as endpoint, ExitStack() as logs:
        # Both must be ready by then: Spark starts in some 30 seconds.
        start = str(time.time() + START_WITHIN_S)
        command = [sys.executable, "-m", "tests.spark.s3_race_job", endpoint]
        programs = [
            subprocess.Popen(
                [*command, str(tmp_path / driver), start, driver, LOG_STORE],
                stdout=subprocess.PIPE,
                stderr=logs.enter_context((tmp_path / f"{driver}.log").open("wb")),
                text=True,
                cwd=ROOT,
            )
            for driver in drivers
        ]
        outputs = [program.communicate(timeout=800)[0] for program in programs]
    for driver, program in zip(drivers, programs, strict=True):
        assert program.returncode == 0, (tmp_path / f"{driver}.log").read_text()[-4000:]
    seen = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert sorted(seen[0]["won"] + seen[1]["won"]) == list(range(VERSIONS))
    assert all(len(result["won"]) > 0 for result in seen), "the drivers did not race"
    rows = max((result["rows"] for result in seen), key=len)
    assert sorted(rows) == [[driver, number] for driver in drivers for number in range(BATCHES)]
