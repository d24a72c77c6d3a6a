"""The tables of schedules: what is read from them, and what other writers do to them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark._delta.sql_names import table_at
from gazette_spark._ledger.entry import LedgerEntry, parse_entry
from gazette_spark._ledger.iceberg_reader import SUMMARY_KEY, open_catalog, table_state
from gazette_spark.testing.oracle import OracleVerdict, TableFiles, Version, check_history, read_versions
from tests.rig.crashes.sinks import SINKS, location
from tests.rig.iceberg import NAME, IcebergStream, catalog_properties

RAW = StructType().add("journal", StringType()).add("offset", LongType()).add("value", BinaryType())
"""Columns of raw records."""


class CrashTable(Protocol):
    """A table of one schedule, of either format."""

    def exists(self) -> bool:
        """Return whether there is a table, with or without rows."""
        ...

    def version(self) -> int:
        """Return a number that increases with each commit, 0 without a table."""
        ...

    def entries(self, app_id: str) -> list[LedgerEntry | None]:
        """Return the entry in force at each version of the current history, oldest first."""
        ...

    def restore(self, app_id: str, fraction: float) -> None:
        """Restore one of the versions; the fraction 0 is the oldest one."""
        ...

    def optimize(self) -> None:
        """Rewrite all files as one."""
        ...

    def set_property(self, value: str) -> None:
        """Set a property that has no effect."""
        ...

    def write_as_another(self) -> None:
        """Commit without rows, as another app id of the sink does."""
        ...


def crash_table(kind: str, spark: SparkSession, directory: Path) -> CrashTable:
    return IcebergCrashTable(directory) if SINKS[kind].iceberg else DeltaCrashTable(spark, directory)


@dataclass(frozen=True, slots=True)
class DeltaCrashTable:
    spark: SparkSession
    directory: Path

    def exists(self) -> bool:
        """Return whether there is a table: a query killed in its first commit leaves only a directory."""
        return self.version() > 0

    def version(self) -> int:
        return len(list((self.directory / "_delta_log").glob("*.json")))

    def entries(self, app_id: str) -> list[LedgerEntry | None]:
        return [version.entry for version in read_versions(self.directory, app_id)]

    def restore(self, app_id: str, fraction: float) -> None:
        self.restore_version(int(fraction * self.version()))

    def restore_version(self, version: int) -> None:
        self._sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {version}")

    def optimize(self) -> None:
        self._sql("OPTIMIZE {t}")

    def roll(self) -> None:
        """Make Delta write a checkpoint of its log every other commit."""
        self._sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")

    def set_property(self, value: str) -> None:
        self._sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('note' = '{value}')")

    def write_as_another(self) -> None:
        """Append no rows, with a transaction number and an entry of another app id."""
        nothing = self.spark.read.format("delta").load(location(self.directory)).limit(0)
        options: dict[str, Any] = {"txnAppId": "gazette_spark/other", "txnVersion": self.version()}
        metadata = json.dumps({"app_id": "other", "format_version": 1})
        writer = nothing.write.format("delta").mode("append").options(**options)
        writer.option("userMetadata", metadata).save(location(self.directory))

    def _sql(self, statement: str) -> None:
        """Run a statement on the table, written ``{t}``."""
        self.spark.sql(statement.format(t=table_at(location(self.directory)))).collect()


class IcebergCrashTable:
    """An Iceberg table in a separate catalog, in SQLite in a directory."""

    def __init__(self, directory: Path) -> None:
        self.properties = catalog_properties(directory)
        self._catalog: Catalog = open_catalog(NAME.catalog, self.properties)
        self._others = 0

    def load(self) -> Table | None:
        try:
            return self._catalog.load_table(NAME.identifier)
        except NoSuchTableError:
            return None

    def exists(self) -> bool:
        return self.version() > 0

    def version(self) -> int:
        """Return the sequence number of the newest snapshot, current or not."""
        table = self.load()
        return (
            max((snapshot.sequence_number or 0 for snapshot in table.snapshots()), default=0) if table else 0
        )

    def history(self, app_id: str) -> list[tuple[Snapshot, Version]]:
        """Return the current snapshot and its ancestors, oldest first, with the entry in force at each one.

        It begins with the first snapshot that has an entry of the app id, because earlier entries have
        expired. If there is no such snapshot, it is the current one alone, with the entry that the package
        finds.
        """
        table = self.load()
        snapshot = table.current_snapshot() if table else None
        if table is None or snapshot is None:
            return []
        by_id = {each.snapshot_id: each for each in table.snapshots()}
        chain = [snapshot]
        while (parent := by_id.get(chain[-1].parent_snapshot_id or -1)) is not None:
            chain.append(parent)
        history: list[tuple[Snapshot, Version]] = []
        entry: LedgerEntry | None = None
        for ancestor in reversed(chain):
            summary = ancestor.summary.additional_properties if ancestor.summary else {}
            stored = parse_entry(summary.get(SUMMARY_KEY), app_id)
            # Tables with this few journals have entries with all positions.
            assert stored is None or isinstance(stored, LedgerEntry)
            entry = stored or entry
            if entry is not None:
                history.append((ancestor, _version(table, ancestor, entry)))
        if not history:
            newest = table_state(table, app_id, str(NAME)).entry
            history.append((snapshot, _version(table, snapshot, newest)))
        return history

    def entries(self, app_id: str) -> list[LedgerEntry | None]:
        return [version.entry for _, version in self.history(app_id)]

    def newest(self, app_id: str) -> LedgerEntry | None:
        table = self.load()
        return table_state(table, app_id, str(NAME)).entry if table else None

    def restore(self, app_id: str, fraction: float) -> None:
        """Make an ancestor of the current snapshot the current one.

        Nothing before the oldest visible entry can be restored: that requires ``adopt``, which the schedules
        without Spark draw.
        """
        history, table = self.history(app_id), self.load()
        assert table is not None
        snapshot, _ = history[int(fraction * len(history))]
        table.manage_snapshots().set_current_snapshot(snapshot_id=snapshot.snapshot_id).commit()

    def expire(self, fraction: float) -> None:
        """Expire the oldest snapshots, or all except the current one."""
        table = self.load()
        assert table is not None
        current = table.metadata.current_snapshot_id
        old = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)
        old = old[: int(2 * fraction * len(old)) + 1]
        gone = [each.snapshot_id for each in old if each.snapshot_id != current]
        if gone:
            table.maintenance.expire_snapshots().by_ids(gone).commit()

    def optimize(self) -> None:
        """Rewrite all files into one, in one snapshot."""
        table = self.load()
        assert table is not None
        files = [task.file for task in table.scan().plan_files()]
        if not files:
            return
        rows = table.scan().to_arrow()
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as rewrite:
            for file in files:
                rewrite.delete_data_file(file)
            for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
                rewrite.append_data_file(file)

    def set_property(self, value: str) -> None:
        table = self.load()
        assert table is not None
        with table.transaction() as transaction:
            transaction.set_properties({"note": value})

    def write_as_another(self) -> None:
        self._others += 1
        name = f"other-{self._others}"
        IcebergStream(self.properties, app_id=name, query=name, schema=RAW).run(0, 0, 0)


class _DataFiles(TableFiles):
    def __init__(self) -> None:
        super().__init__(Path("/"))

    def path(self, name: str) -> Path:
        return Path(name.removeprefix("file://"))


def check_iceberg(
    directory: Path,
    truth: Mapping[str, bytes],
    *,
    app_id: str,
    complete: bool,
    checkpoints: Sequence[Path] = (),
) -> OracleVerdict:
    """Check the current snapshot of an Iceberg table and its ancestors, as for a Delta table.

    Entries come from the snapshots' summaries, files from the manifests. The entry that the package finds
    must be the newest one.
    """
    table = IcebergCrashTable(directory)
    versions = [version for _, version in table.history(app_id)]
    verdict = check_history(versions, _DataFiles(), truth, complete=complete, checkpoints=checkpoints)
    found, newest = table.newest(app_id), versions[-1].entry if versions else None
    if (found and found.attempt) != (newest and newest.attempt):
        verdict.violations.append(f"the package finds {found}, and the newest snapshot's entry is {newest}")
    return verdict


def _version(table: Table, snapshot: Snapshot, entry: LedgerEntry | None) -> Version:
    operation = snapshot.summary.operation.value if snapshot.summary else ""
    return Version(snapshot.sequence_number or 0, operation, frozenset(_files(table, snapshot)), entry)


def _files(table: Table, snapshot: Snapshot) -> Iterator[str]:
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file.file_path
