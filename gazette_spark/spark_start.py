"""What is said to a user while a local Spark starts, and where it fails. Loads no Spark."""

from __future__ import annotations

from pathlib import Path

LOG_TAIL_LINES = 40
"""Lines of the log that a failure shows."""


def starting_spark() -> str:
    """Say that Spark starts, and if it has to fetch Delta before (a guess: Ivy's default places)."""
    has_jars = any(Path.home().glob(".ivy2*/jars/io.delta_delta-spark*"))
    return "starting Spark" if has_jars else "starting Spark; it first downloads Delta's jars"


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a log file."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
