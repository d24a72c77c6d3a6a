"""The settings of the query's process: one file that serves every restart."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

APP_ID = "gazette-spark-demo"
"""The name under which the query writes to the table."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Addresses and directories of the demo."""

    endpoint: str
    journals: list[str]
    fragment_root: str
    """Folder of ``file://`` stores, or "" to read fragments through the broker."""
    directory: str
    """Holds table, checkpoint and results."""
    max_bytes_per_trigger: int

    @property
    def table(self) -> Path:
        """Directory of the Delta table."""
        return Path(self.directory) / "table"

    @property
    def checkpoint(self) -> Path:
        """Directory of the query checkpoint."""
        return Path(self.directory) / "checkpoint"

    @property
    def rows(self) -> Path:
        """Arrow file of the table's ids and amounts, written at the end."""
        return Path(self.directory) / "rows.arrow"

    @property
    def ledger(self) -> Path:
        """JSON file of the ledger's last entry, written at the end."""
        return Path(self.directory) / "ledger.json"

    def save(self, path: Path) -> None:
        """Write the settings as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read what ``save`` wrote."""
        return cls(**json.loads(path.read_text()))
