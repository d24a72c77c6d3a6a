"""An Iceberg catalog in SQLite, and a writer of batches of files, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructType

from gazette_spark._data_files.target import FileTarget
from gazette_spark._data_files.writer import written_files
from gazette_spark._iceberg.iceberg_table import IcebergTable
from gazette_spark._ledger.decision import Allowed
from gazette_spark._ledger.entry import Batch, LedgerEntry
from gazette_spark._ledger.file_batches import BatchFiles, FileBatches, no_files
from gazette_spark._ledger.iceberg_reader import TableName, open_catalog, table_state
from gazette_spark.offsets import Fingerprint, JournalOffsets, Position

NAME = TableName("prod", "shop.orders")

ROWS = StructType().add("journal", StringType()).add("n", LongType())


def catalog_properties(root: Path) -> dict[str, str]:
    """Return the properties of a catalog below a directory, with the namespace ``shop``."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{root}/catalog.db",
        "warehouse": f"file://{root}/warehouse",
    }
    root.mkdir(parents=True, exist_ok=True)
    open_namespace(properties)
    return properties


class CredentialGivingCatalog(SqlCatalog):
    """A catalog that vends new storage credentials whenever it loads a table, as REST catalogs may."""

    loads = 0

    def load_table(self, identifier: str | Identifier) -> Table:
        table = super().load_table(identifier)
        CredentialGivingCatalog.loads += 1
        table.io.properties |= {"s3.session-token": f"token {self.loads}"}
        return table


def credential_giving_properties(root: Path) -> dict[str, str]:
    """Return the properties of such a catalog below a directory; the catalog has a password, too."""
    properties = catalog_properties(root)
    del properties["type"]
    implementation = f"{CredentialGivingCatalog.__module__}.{CredentialGivingCatalog.__name__}"
    return properties | {"py-catalog-impl": implementation, "token": "password of the catalog"}


def open_namespace(properties: Mapping[str, str]) -> Catalog:
    catalog = open_catalog(NAME.catalog, properties)
    catalog.create_namespace_if_not_exists("shop")
    return catalog


def rows(journal: str, begin: int, end: int) -> pa.RecordBatch:
    """Return the rows of a journal's bytes, one row for each byte."""
    return pa.RecordBatch.from_pydict({"journal": [journal] * (end - begin), "n": [*range(begin, end)]})


@dataclass
class IcebergStream:
    """A query of one journal into a table, with one row for each byte."""

    properties: Mapping[str, str]
    app_id: str = "orders"
    query: str = "query"
    schema: StructType = ROWS
    options: Mapping[str, Any] = field(default_factory=dict)
    allowed: Allowed = field(default_factory=Allowed)
    seen: str | None = None
    """Attempt of the entry after this writer's last batch."""

    def __post_init__(self) -> None:
        self.table = IcebergTable(NAME, self.properties, self.app_id, **self.options)

    def other(self, **changes: Any) -> IcebergStream:
        return replace(self, **changes)

    def files(self, *batches: pa.RecordBatch) -> BatchFiles:
        target, shape = self.table.prepare(self.schema)
        written = written_files([("rows", batches)], FileTarget.from_json(target.to_json()))
        return BatchFiles([Row(**file) for file in written], shape)

    def run(
        self,
        batch_id: int,
        begin: int,
        end: int,
        *,
        journal: str = "a",
        write: Callable[[], BatchFiles] | None = None,
        fingerprints: Mapping[str, Fingerprint] | None = None,
    ) -> str | None:
        batches = FileBatches(self.table, self.app_id, self.allowed)
        position: Position = "pinned" if batch_id == 0 else ""
        ends = JournalOffsets({journal: end}, position, fingerprints=fingerprints or {})
        starts = () if batch_id == 0 else (JournalOffsets({journal: begin}),)
        batch = Batch(
            self.table.name,
            self.app_id,
            self.query,
            batch_id,
            starts,
            (ends,),
            planned_ms=1000 + batch_id,
            after_ms=None if batch_id == 0 else 999 + batch_id,
        )
        if batch_id == 0:
            self.table.prepare(self.schema)
        files = write or (no_files if batch_id == 0 else lambda: self.files(rows(journal, begin, end)))
        self.seen = batches.commit(batch, files, seen=self.seen)
        return self.seen

    def catalog(self) -> Catalog:
        return open_catalog(NAME.catalog, self.properties)

    def load(self) -> Table:
        return self.catalog().load_table(NAME.identifier)

    def entry(self) -> LedgerEntry | None:
        return table_state(self.load(), self.app_id, "t").entry

    def contents(self) -> dict[str, list[int]]:
        table = self.load().scan().to_arrow().to_pylist()
        journals = sorted({row["journal"] for row in table})
        return {
            journal: sorted(row["n"] for row in table if row["journal"] == journal) for journal in journals
        }

    def roll_back(self, snapshots: int) -> None:
        table = self.load()
        at = table.current_snapshot()
        for _ in range(snapshots):
            assert at is not None
            assert at.parent_snapshot_id is not None
            at = table.snapshot_by_id(at.parent_snapshot_id)
        assert at is not None
        table.manage_snapshots().set_current_snapshot(snapshot_id=at.snapshot_id).commit()

    def append_foreign(self, *numbers: int) -> None:
        self.load().append(pa.table({"journal": ["other"] * len(numbers), "n": list(numbers)}))

    def expire(self, keep: Sequence[int] = ()) -> None:
        """Expire all snapshots except the current one and ``keep`` others."""
        table = self.load()
        current = table.current_snapshot()
        assert current is not None
        kept = {current.snapshot_id, *keep}
        gone = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id not in kept]
        if gone:
            table.maintenance.expire_snapshots().by_ids(gone).commit()
