"""Checks that every record is in a Delta table exactly once and unchanged, at each version.

The table oracle reads the table's log and Parquet files without Spark and without the sink's code, and
compares them with the true bytes of the journals:

- **I1 uniqueness**: no ``(journal, offset)`` twice.
- **I2 contiguity**: in each journal, each record begins where the previous one ends.
- **I3 bytes**: the records, joined, are the journal's bytes.
- **I4 same transaction**: at *every* version, the recorded ends equal the ends of the visible rows.
- **I5 monotonic**: recorded ends never decrease, except by a RESTORE. Each new entry names the previous one,
  and begins where that one ended.
- **I6 agreement**: if an entry's query checkpoint is available, the entry ends where Spark planned the end
  of the batch.

The table must have the columns ``journal, offset, value`` of raw records, be on a local disk, and have a
complete log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from gazette_spark._ledger.entry import EntryDelta, LedgerEntry, Positions, parse_entry
from gazette_spark._ledger.query_checkpoint import parse_offsets, parse_query_id
from gazette_spark.offsets import JournalOffsets

Row = tuple[str, int, bytes]
"""Journal, offset, value without its newline."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the table."""

    number: int
    operation: str
    files: frozenset[str]
    entry: LedgerEntry | None
    """Entry that applies at this version."""

    def recorded(self) -> dict[str, int]:
        """Return the ends of the rows according to the entry."""
        return self.entry.read_through if self.entry else {}


@dataclass(slots=True)
class OracleVerdict:
    """Result of a check."""

    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    altered: int = 0
    versions: int = 0
    entries: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Whether the check has found no problem."""
        return not (self.lost or self.duplicated or self.altered or self.violations)


class TableFiles:
    """Rows of a table's Parquet files, each file read once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rows: dict[str, list[Row]] = {}

    def rows(self, files: frozenset[str]) -> list[Row]:
        """Return the rows of some files, in order."""
        # A file is part of many versions, and never changes.
        for name in files - self._rows.keys():
            table = pq.ParquetFile(self.path(name)).read(["journal", "offset", "value"])
            columns = (column.to_pylist() for column in table.columns)
            self._rows[name] = list(zip(*columns, strict=True))
        return sorted(row for name in files for row in self._rows[name])

    def path(self, name: str) -> Path:
        """Return the path of a file from its name in the table's log."""
        # Paths in Delta's log are percent-encoded.
        return self._directory / unquote(name)


def read_versions(directory: Path, app_id: str) -> Iterator[Version]:
    """Replay a table's log from its beginning."""
    by_number: dict[int, Version] = {}
    files: frozenset[str] = frozenset()
    entry: LedgerEntry | None = None
    whole: dict[str, LedgerEntry] = {}
    for number, path in enumerate(sorted((directory / "_delta_log").glob("*.json"))):
        # A missing commit would hide the files that it added or removed.
        if int(path.stem) != number:
            raise ValueError(f"{path} is not version {number}: the log has a hole")
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        removed = {action["remove"]["path"] for action in actions if "remove" in action}
        files = (files - removed) | {action["add"]["path"] for action in actions if "add" in action}
        info: dict[str, Any] = next(
            (action["commitInfo"] for action in actions if "commitInfo" in action), {}
        )
        operation = info.get("operation", "")
        if operation == "RESTORE":
            # A RESTORE brings back the rows of an old version together with its ledger.
            entry = by_number[int(info["operationParameters"]["version"])].entry
        stored = parse_entry(info.get("userMetadata"), app_id)
        # Most entries name only the journals that moved (decision 0026); their parents contain the rest.
        if isinstance(stored, EntryDelta):
            stored = stored.on(whole[stored.entry.parent or ""])
        # After a commit without an entry, such as an OPTIMIZE or a DELETE, the previous entry still applies.
        entry = stored or entry
        if entry is not None:
            whole[entry.attempt] = entry
        by_number[number] = Version(number, operation, files, entry)
        yield by_number[number]


def check_table(
    directory: Path,
    truth: Mapping[str, bytes],
    *,
    app_id: str,
    starts: Mapping[str, int] | None = None,
    complete: bool = True,
    checkpoints: Sequence[Path] = (),
) -> OracleVerdict:
    """Check a table against the true bytes of its journals.

    Args:
        directory: Directory of the table.
        truth: All bytes ever appended, by journal.
        app_id: App id of the sink that wrote it.
        starts: Starting offsets of the query; 0 for journals that are not named.
        complete: Whether the query has read everything, so that all complete records of the truth that the
            table lacks are lost. Otherwise only those before the table's recorded end are.
        checkpoints: Checkpoint directories of the queries that wrote the table, as far as they exist,
            including all copies.
    """
    versions = read_versions(directory, app_id)
    return check_history(
        versions, TableFiles(directory), truth, starts=starts, complete=complete, checkpoints=checkpoints
    )


def check_history(
    versions: Iterable[Version],
    files: TableFiles,
    truth: Mapping[str, bytes],
    *,
    starts: Mapping[str, int] | None = None,
    complete: bool = True,
    checkpoints: Sequence[Path] = (),
) -> OracleVerdict:
    """Check the versions of a table, oldest first, against the true bytes of its journals.

    The other arguments are as for :func:`check_table`. The first version need not be the table's first.
    """
    verdict = OracleVerdict()
    starts = dict.fromkeys(truth, 0) | dict(starts or {})
    before: Version | None = None
    ends = dict(starts)
    for version in versions:
        files_before = before.files if before else frozenset()
        if (
            not version.files >= files_before
        ):  # This is not an append, so the previous version does not matter.
            files_before, ends = frozenset(), dict(starts)
        verdict.violations += _unique_and_contiguous(version, files.rows(version.files - files_before), ends)
        verdict.violations += _same_transaction(version, ends, starts)
        verdict.violations += monotonic(version, before)
        verdict.violations += _agrees(version, before, checkpoints)
        verdict.versions += 1
        verdict.entries += version.entry is not (before.entry if before else None)
        before = version
    if before is None:
        verdict.violations.append("there is no table")
        return verdict
    # Bytes after the last newline are not a record yet.
    expected_ends = {journal: content.rfind(b"\n") + 1 for journal, content in truth.items()}
    if not complete:
        expected_ends = {journal: before.recorded().get(journal, 0) for journal in truth}
    _compare(verdict, files.rows(before.files), truth, starts, expected_ends)
    return verdict


def _unique_and_contiguous(version: Version, rows: list[Row], ends: dict[str, int]) -> Iterator[str]:
    """Check I1 and I2 for rows that were added after ``ends``, and update ``ends``."""
    for journal, offset, value in rows:
        end = ends.get(journal, 0)
        if offset < end:
            yield f"I1 version {version.number}: {journal} offset {offset} is there already"
        if offset > end:
            yield f"I2 version {version.number}: {journal} continues at {offset} after {end}"
        # Add 1 for the newline, which is not in the column value.
        ends[journal] = max(end, offset + len(value) + 1)


def _same_transaction(version: Version, ends: Mapping[str, int], starts: Mapping[str, int]) -> Iterator[str]:
    """Check I4."""
    recorded = version.recorded()
    for journal, holds in ends.items():
        says = recorded.get(journal, starts.get(journal, 0))
        if says != holds:
            yield f"I4 version {version.number}: {journal} is recorded up to {says}, its rows end at {holds}"


def monotonic(version: Version, before: Version | None) -> Iterator[str]:
    """Check I5: no journal's recorded end decreases, except by a RESTORE."""
    if before is None or version.operation == "RESTORE":
        return
    now = version.recorded()
    for journal, offset in before.recorded().items():
        if now.get(journal, -1) < offset:
            yield f"I5 version {version.number}: {journal} went from {offset} back to {now.get(journal)}"
    if version.entry is None or before.entry is None or version.entry == before.entry:
        return
    # Two writers that both continue the same entry are each monotonic. The chain of parents reveals
    # them.
    if version.entry.parent != before.entry.attempt:
        yield f"I5 version {version.number}: its entry follows {version.entry.parent}, not the one before it"
    begins = _offsets(version.entry.begin)
    for journal, offset in before.recorded().items():
        if begins.get(journal, offset) != offset:
            yield f"I5 version {version.number}: {journal} begins at {begins[journal]}, not at {offset}"


def _agrees(version: Version, before: Version | None, checkpoints: Sequence[Path]) -> Iterator[str]:
    """Check I6 for an entry that is new in the version, which excludes a RESTORE."""
    entry = version.entry
    if entry is None or version.operation == "RESTORE" or (before is not None and entry == before.entry):
        return
    recorded = before.recorded() if before else {}
    planned = []
    for checkpoint in checkpoints:
        about, offsets = checkpoint / "metadata", checkpoint / "offsets" / str(entry.batch_id)
        is_planned = about.exists() and offsets.exists()
        # The query checkpoint of another query is irrelevant for this entry.
        if is_planned and parse_query_id(about.read_text(), str(about)) == entry.query_id:
            planned.append(_offsets(parse_offsets(offsets.read_text(), str(offsets))))
    # If a batch was trimmed, the table may have more of some journals than the batch planned.
    reached = [{name: max(end, recorded.get(name, end)) for name, end in ends.items()} for ends in planned]
    if planned and all(entry.read_through | ends != entry.read_through for ends in reached):
        says = f"was planned up to {planned}, its entry says {entry.read_through}"
        yield f"I6 version {version.number}: batch {entry.batch_id} {says}"


def _offsets(positions: Positions) -> dict[str, int]:
    return {
        journal: offset
        for position in positions
        if isinstance(position, JournalOffsets)
        for journal, offset in position.read_through.items()
    }


def _compare(
    verdict: OracleVerdict,
    rows: list[Row],
    truth: Mapping[str, bytes],
    starts: Mapping[str, int],
    ends: Mapping[str, int],
) -> None:
    """Check I3, record by record, so that the verdict can count."""
    expected = {
        (journal, offset): value
        for journal, content in truth.items()
        for offset, value in split_records(content[: ends[journal]], starts[journal])
    }
    actual = {(journal, offset): value for journal, offset, value in rows}
    verdict.rows = len(rows)
    # Compare by position, not by content: two records with equal bytes are still two records.
    verdict.duplicated = len(rows) - len(actual)
    verdict.lost = len(expected.keys() - actual.keys())
    verdict.altered = sum(expected.get(key) != value for key, value in actual.items())


def split_records(content: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield offset and value of each complete record from ``start`` on."""
    offset = start
    # The last part is not a record: it follows the last newline, or is empty.
    for line in content[start:].split(b"\n")[:-1]:
        yield offset, line
        offset += len(line) + 1
