"""Real log files of this machine, as lines and as JSON lines.

These are the package manager's logs, if there are any, and always the real broker's own. They are copied
once, because a log may grow while the tests run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

CANDIDATES = (
    "/var/log/dpkg.log",
    "/var/log/alternatives.log",
    "/var/log/bootstrap.log",
    "/var/log/fontconfig.log",
    "/var/log/apt/history.log",
    "/var/log/apt/term.log",
    "/var/log/pacman.log",
    "/var/log/dnf.log",
    "/var/log/install.log",
)
"""Text logs a Linux machine may have."""

MAX_LOG_BYTES = 4 << 20
"""Maximum bytes used of a log; more shows nothing new and takes time."""

JSON_DDL = "log STRING, line_number BIGINT, text STRING, size BIGINT, words ARRAY<STRING>"
"""Columns of :attr:`RealLog.json_lines`."""


@dataclass(frozen=True)
class RealLog:
    name: str
    lines: bytes

    @property
    def json_lines(self) -> bytes:
        return b"".join(json_line(self.name, *numbered) for numbered in enumerate(split(self.lines)))


def split(content: bytes) -> list[bytes]:
    r"""Split at newlines only, because logs of terminals contain ``\r`` and form feeds inside lines."""
    return content.removesuffix(b"\n").split(b"\n")


def json_line(log: str, number: int, line: bytes) -> bytes:
    text = line.decode("utf-8", "backslashreplace")
    fields = {"log": log, "line_number": number, "text": text, "size": len(line), "words": text.split()}
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def find_logs(more: dict[str, Path]) -> list[RealLog]:
    """Read the machine's logs and ``more``; leave out a line that is cut off at the end of a file."""
    paths = {Path(each).name.replace(".", "-"): Path(each) for each in CANDIDATES} | more
    found = []
    for name, path in paths.items():
        try:
            content = path.read_bytes()[:MAX_LOG_BYTES]
        except (FileNotFoundError, PermissionError):
            continue
        if whole := content[: content.rfind(b"\n") + 1]:
            found.append(RealLog(name, whole))
    return found
