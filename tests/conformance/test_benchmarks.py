"""Shows that the benchmarks still run: small ones, whose answers are checked and whose times mean nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.deployed_broker
def test_the_client_beside_gos() -> None:
    """Every job of both programs is done, with right answers, and makes a row."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "client_parity.py"), "--size=4m", "--broker=embedded"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    for job in ("read to a file", "read directly", "read to nowhere", "append 16 MiB", "AppendService"):
        assert done.stdout.count(f"| {job}") == 1, done.stdout
    for codec in ("SNAPPY", "ZSTANDARD", "GZIP"):
        assert done.stdout.count(f"| {codec} |") == 1, done.stdout


def test_the_lag_monitor() -> None:
    """Verdicts by columns agree with the rules one by one."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "lag_bench.py"), "--partitions=500"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "verdicts agree\n"
