"""The oracle of upsert tables: at every version, each key's row is that of its last record.

It reads the table's log and Parquet files itself, without Spark and the sink's own search, and compares each
version with the rows of the journals' true bytes, up to the offsets in the version's entry.

A key comes from one journal. The table is on a local disk, has a complete log and no deletion vectors, and is
not partitioned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from gazette_spark.testing.oracle import OracleVerdict, Version, monotonic, read_versions, split_records

Row = tuple[Any, ...]

ReadRecord = Callable[[str, int, bytes], tuple[Hashable, Row | None]]
"""Function from a record's journal, offset and value to its key and its row; None is a deletion."""


def check_upserts(
    directory: Path,
    truth: Mapping[str, bytes],
    read: ReadRecord,
    columns: Sequence[str],
    *,
    app_id: str,
    complete: bool = True,
) -> OracleVerdict:
    """Check a table against the true bytes of its journals.

    Args:
        directory: Directory of the table.
        truth: All bytes ever appended, by journal; the query began at their first.
        read: Reader of a record.
        columns: Columns of the table, in the order of a row's values.
        app_id: App id of the sink that wrote it.
        complete: The query has read everything, so the newest entry records every whole record.
    """
    return check_versions(
        directory,
        truth,
        lambda ends: last_rows(truth, ends, read),
        columns,
        app_id=app_id,
        complete=complete,
    )


def check_versions(
    directory: Path,
    truth: Mapping[str, bytes],
    rows_at: Callable[[Mapping[str, int]], Counter[Row]],
    columns: Sequence[str],
    *,
    app_id: str,
    complete: bool = True,
) -> OracleVerdict:
    """Check that each version of a table has the rows that follow from its recorded offsets.

    Args:
        directory: Directory of the table.
        truth: All bytes ever appended, by journal; the query began at their first.
        rows_at: Returns the rows that the journals make up to some offsets.
        columns: Columns of the table, in the order of a row's values.
        app_id: App id of the sink that wrote it.
        complete: The query has read everything, so the newest entry records every whole record.
    """
    verdict = OracleVerdict()
    files = _Files(directory, columns)
    before: Version | None = None
    for version in read_versions(directory, app_id):
        recorded = version.recorded()
        held = files.rows(version.files)
        wanted_rows = rows_at(recorded)
        verdict.violations += _different(version, held, wanted_rows)
        verdict.violations += monotonic(version, before)
        verdict.versions += 1
        verdict.entries += version.entry is not (before.entry if before else None)
        _count(verdict, held, wanted_rows)
        before = version
    recorded = before.recorded() if before else {}
    wanted = {journal: content.rfind(b"\n") + 1 for journal, content in truth.items()}
    if complete and any(recorded.get(journal) != end for journal, end in wanted.items()):
        verdict.violations.append(f"the table is recorded up to {recorded}, the journals end at {wanted}")
    return verdict


def last_rows(truth: Mapping[str, bytes], ends: Mapping[str, int], read: ReadRecord) -> Counter[Row]:
    by_key: dict[Hashable, Row | None] = {}
    for journal, end in ends.items():
        for offset, value in split_records(truth[journal][:end]):
            key, row = read(journal, offset, value)
            by_key[key] = row
    return Counter(row for row in by_key.values() if row is not None)


def newest_rows(directory: Path, columns: Sequence[str]) -> Counter[Row]:
    """Return the rows of a table's newest version, empty without a table."""
    versions = list(read_versions(directory, ""))
    return _Files(directory, columns).rows(versions[-1].files) if versions else Counter()


def _count(verdict: OracleVerdict, held: Counter[Row], wanted: Counter[Row]) -> None:
    """Count one version in the verdict: missing rows, duplicate rows, and rows without a record."""
    extra = held - wanted
    verdict.rows = held.total()
    verdict.lost = (wanted - held).total()
    verdict.duplicated = sum(count for row, count in extra.items() if row in wanted)
    verdict.altered = extra.total() - verdict.duplicated


class _Files:
    def __init__(self, directory: Path, columns: Sequence[str]) -> None:
        self._directory = directory
        self._columns = list(columns)
        self._rows: dict[str, Counter[Row]] = {}

    def rows(self, files: frozenset[str]) -> Counter[Row]:
        return sum((self._file(name) for name in files), Counter())

    def _file(self, name: str) -> Counter[Row]:
        if name not in self._rows:
            table = pq.ParquetFile(self._directory / unquote(name)).read(self._columns)
            columns = (table[column].to_pylist() for column in self._columns)
            self._rows[name] = Counter(zip(*columns, strict=True))
        return self._rows[name]


def _different(version: Version, held: Counter[Row], wanted: Counter[Row]) -> Iterator[str]:
    for problem, rows in (("lacks", wanted - held), ("has", held - wanted)):
        if rows:
            first = min(rows, key=repr)
            yield f"version {version.number} {problem} {rows.total()} rows it should not, e.g. {first}"
