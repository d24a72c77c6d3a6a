"""Returns messages for the start of a local Spark session. This module does not import Spark."""

from __future__ import annotations

from pathlib import Path

LOG_TAIL_LINES = 40
"""Number of log lines that a failure shows."""


def starting_spark() -> str:
    """Return a message, with a hint if Delta is not in Ivy's default cache and so may be downloaded first."""
    has_jars = any(Path.home().glob(".ivy2*/jars/io.delta_delta-spark*"))
    return "starting Spark" if has_jars else "starting Spark; it first downloads Delta's jars"


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a log file."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
