"""Measures CPU time and memory of the processes of a benchmark by role, from Linux's ``/proc``."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness import peak_bytes

ROLES = ("JVM", "Python", "broker")
"""Spark's JVM; this Python and Spark's; all brokers and their helpers."""

SAMPLE_S = 0.25

_TICKS = os.sysconf("SC_CLK_TCK")
_BROKERS = (b"kafka.Kafka", b"EmbeddedBroker", b"gazette\0serve", b"/etcd\0")


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    own_s: float
    """CPU seconds of the process itself."""
    waited_s: float
    """CPU seconds of children that have ended."""


@dataclass(slots=True)
class Usage:
    """Usage of the processes during a run."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds by role."""
    worker_bytes: int = 0
    """Peak memory of any of Spark's Python workers since its start, in bytes."""


@contextmanager
def measured() -> Iterator[Usage]:
    """Measure the usage during the block. The result is complete at its end."""
    usage = Usage()
    before = _cpu_s()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_S):
            usage.worker_bytes = max(usage.worker_bytes, _worker_bytes())

    watcher = threading.Thread(target=watch, name="memory", daemon=True)
    watcher.start()
    try:
        yield usage
    finally:
        done.set()
        watcher.join()
        after = _cpu_s()
        # The CPU time of a worker that ended without being waited for is missing afterwards.
        usage.cpu_s = {role: max(after[role] - before[role], 0.0) for role in ROLES}
        usage.worker_bytes = max(usage.worker_bytes, _worker_bytes())


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far, including its children that have ended."""
    process = _processes()[pid]
    return process.own_s + process.waited_s


def driver_bytes() -> tuple[int, int]:
    """Return the peak memory of Spark's JVM and of this Python."""
    return max(map(peak_bytes, pids_of("JVM")), default=0), peak_bytes("self")


def pids_of(role: str) -> list[int]:
    """Return the descendants of this process that have a role."""
    return [pid for pid, has in _roles(_processes()).items() if has == role]


def _cpu_s() -> dict[str, float]:
    """Return the CPU seconds so far by role. Children that have ended count for the process that waited."""
    processes = _processes()
    found = dict.fromkeys(ROLES, 0.0)
    found["Python"] = processes[os.getpid()].own_s
    for pid, role in _roles(processes).items():
        found[role] += processes[pid].own_s
        found["Python" if role == "JVM" else role] += processes[pid].waited_s
    return found


def _worker_bytes() -> int:
    processes = _processes()
    roles = _roles(processes)
    # A child of the JVM shares its memory until it runs its own program. Until then it has the JVM's command.
    workers = (pid for pid, role in roles.items() if role == "Python" and not _role_of(pid))
    return max(map(peak_bytes, workers), default=0)


def _roles(processes: dict[int, _Process]) -> dict[int, str]:
    """Return the role of each descendant of this process."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    roles: dict[int, str] = {}
    left = [(pid, "") for pid in children.get(os.getpid(), ())]
    while left:
        pid, inherited = left.pop()
        role = inherited or _role_of(pid)
        if role:
            roles[pid] = role
        below = "Python" if role == "JVM" else role
        left += [(child, below) for child in children.get(pid, ())]
    return roles


def _role_of(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    if b"SparkSubmit" in command:
        return "JVM"
    return "broker" if any(name in command for name in _BROKERS) else ""


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It has just ended.
            user, system, waited_user, waited_system = (int(text) / _TICKS for text in fields[11:15])
            found[int(entry.name)] = _Process(int(fields[1]), user + system, waited_user + waited_system)
    return found
