"""The differences that an audit finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where table, ledger and journals disagree."""

    problem: str
    table_version: int
    """Version of the entry that differs, or of the rows that differ."""
    journal: str | None = None
    offset: int | None = None
    end_offset: int | None = None
    """If given, the difference is somewhere in ``[offset, end_offset)``."""

    def __str__(self) -> str:
        place = [f"table version {self.table_version}"]
        if self.journal is not None:
            place.append(f"journal {self.journal!r}")
        if self.end_offset is not None:
            place.append(f"offsets [{self.offset}, {self.end_offset})")
        elif self.offset is not None:
            place.append(f"offset {self.offset}")
        return f"{', '.join(place)}: {self.problem}"
