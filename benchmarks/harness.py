"""Shared by all benchmarks: runs a broker's process, and writes a section of docs/evidence/performance.md."""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rig.brokers import DeployedBroker

START_TIMEOUT_S = 60.0

MEGABYTE = 1_000_000

IDLE_CORES = 0.2
"""Number of busy cores below which the machine counts as idle."""

SAMPLE_S = 2.0
"""Seconds over which busy cores are counted."""

REPORT = Path(__file__).parents[1] / "docs" / "evidence" / "performance.md"


@contextmanager
def running_broker(kind: str, directory: Path, root: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Run a broker in a separate process; yield its endpoint and file root, by default a new one."""
    if kind == "deployed":
        with DeployedBroker(directory / "deployed", file_root=root) as broker:
            yield broker.endpoint, broker.file_root
        return
    root = root or directory / "embedded"
    code = (
        "import sys; from gazette_spark.broker.embedded import EmbeddedBroker\n"
        "with EmbeddedBroker(sys.argv[1]) as broker:\n"
        "    print(broker.endpoint, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(root)]
    root.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), root
        finally:
            process.stdin.close()  # The broker ends when its standard input ends.
            process.wait(START_TIMEOUT_S)


def machine() -> str:
    """Describe the machine, and how busy it is."""
    cpu = "unknown CPU"
    memory = ""
    if (info := Path("/proc/cpuinfo")).exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        cpu = found[1] if found else cpu
        kilobytes = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
        memory = f", {int(kilobytes[1]) >> 20} GB" if kilobytes else ""
    return (
        f"{os.cpu_count()} x {cpu}{memory}, {platform.system()} {platform.release().split('-')[0]}; "
        f"Python {platform.python_version()}; "
        f"{busy_cores():.1f} cores busy before the run"
    )


def busy_cores() -> float:
    """Return how many cores are busy, as the mean of :data:`SAMPLE_S` seconds, from Linux's ``/proc/stat``.

    The load average does not tell, because it still counts the part of the benchmark that has just ended.
    """

    def ticks() -> tuple[int, int]:
        found = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle, waiting_for_disk = found[3:5]
        return sum(found), idle + waiting_for_disk

    total, idle = ticks()
    time.sleep(SAMPLE_S)
    total_now, idle_now = ticks()
    return (os.cpu_count() or 1) * (1 - (idle_now - idle) / max(total_now - total, 1))


def wait_until_idle(at_most_s: float) -> None:
    """Wait until the machine is idle, at most for a time. :func:`machine` reports how busy it is."""
    deadline = time.monotonic() + at_most_s
    while busy_cores() >= IDLE_CORES and time.monotonic() < deadline:
        pass


def peak_bytes(process: int | str) -> int:
    """Return the peak memory of a process, by its id or ``self``; 0 if it has ended.

    ``ru_maxrss`` is not suitable, because it begins with the parent's peak at the fork.
    """
    try:
        found = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


def write_section(path: Path, title: str, text: str) -> None:
    """Replace the section with the same title in a markdown file, or append it."""
    before = path.read_text() if path.exists() else "# Performance\n"
    section = f"## {title}\n\n{text}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(before):
        after = pattern.sub(lambda _: section + "\n", before)
    else:
        after = f"{before.rstrip()}\n\n{section}"
    path.write_text(after.rstrip() + "\n")


def parse_size(text: str) -> int:
    """Parse ``500k``, ``200m`` or ``1g``: decimal kilobytes, megabytes and gigabytes."""
    found = re.fullmatch(r"(\d+)([kmg])", text.lower())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 200m or 1g")
    return int(found[1]) * {"k": 1000, "m": MEGABYTE, "g": 1000 * MEGABYTE}[found[2]]
