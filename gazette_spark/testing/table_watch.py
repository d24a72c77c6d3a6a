"""Reads the state of a running query from its table and query checkpoint on disk, without Spark.

Both are logs of numbered files that appear complete, by a rename. So they can be read at any moment, and a
kill cannot damage them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gazette_spark._ledger.entry import parse_whole_entry


@dataclass(frozen=True, slots=True)
class TableState:
    """Summary of the commits of a Delta table up to a version."""

    commits: int = 0
    rows: int = 0
    data_commits: int = 0
    """Number of commits that added rows."""
    metadata: str = ""
    """``userMetadata`` of the newest commit that has it, which is the ledger entry."""

    def after(self, actions: Iterable[Mapping[str, Any]]) -> TableState:
        """Return the state after one more commit to a table that is only appended to."""
        rows, metadata = 0, self.metadata
        for action in actions:
            match action:
                case {"add": {"stats": str(stats)}}:
                    rows += json.loads(stats)["numRecords"]
                # A commit without an entry does not change the ledger.
                case {"commitInfo": {"userMetadata": str(user_metadata)}}:
                    metadata = user_metadata
        return TableState(self.commits + 1, self.rows + rows, self.data_commits + (rows > 0), metadata)


class TableWatch:
    """Follows the Delta log of the table at ``path``, reading each commit once."""

    def __init__(self, path: Path) -> None:
        self.state = TableState()
        self._log = path / "_delta_log"

    def look(self) -> TableState:
        """Read the commits since the last call."""
        # A commit never changes, so each one is read once. The next one has the next number, or does not
        # exist yet.
        while (commit := self._log / f"{self.state.commits:020}.json").exists():
            self.state = self.state.after(map(json.loads, commit.read_text().splitlines()))
        return self.state


def ledger_heads(metadata: str, app_id: str) -> dict[str, int]:
    """Return the offset up to which the table has each journal, according to the ledger."""
    entry = parse_whole_entry(metadata, app_id)
    return entry.read_through if entry else {}


def batch_in_flight(checkpoint: Path) -> int | None:
    """Return the id of the batch that is planned but not yet recorded as done, if there is one."""
    # Spark writes offsets/N before it reads the batch, and commits/N when the sink has it.
    planned, done = _newest(checkpoint / "offsets"), _newest(checkpoint / "commits")
    return planned if planned > done else None


def _newest(directory: Path) -> int:
    """Return the largest number among the file names, or -1."""
    if not directory.is_dir():
        return -1
    return max((int(path.name) for path in directory.iterdir() if path.name.isdigit()), default=-1)
