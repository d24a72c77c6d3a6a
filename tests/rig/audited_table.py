"""A table that is filled by hand in the sink's way, so that tests can make it wrong in any way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from gazette_spark import Client, JournalOffsets, LedgerEntry
from gazette_spark._ledger.entry import Mode, SkippedGap
from gazette_spark._ledger.row_digest import AuditedRows
from gazette_spark.client import journal_spec
from tests.rig.brokers import BrokerHandle
from tests.rig.row_digest import digest_of

Row = tuple[int, bytes]

RECORD_BYTES = 8
RECORDS = 40
TEXT = b"".join(b"row %03d\n" % number for number in range(RECORDS))


def rows_of(begin: int, end: int) -> list[Row]:
    return [(at, TEXT[at : at + RECORD_BYTES - 1]) for at in range(begin, end, RECORD_BYTES)]


class Orders:
    """A journal of 40 records of 8 bytes, and a table that is filled from it in the sink's way."""

    def __init__(self, broker: BrokerHandle, directory: Path) -> None:
        self.broker = broker
        self.table = directory / "orders"
        self.journal = f"verify/{directory.name}/orders"
        self.attempt: str | None = None
        self.commits = 0
        self.columns = ("journal", "offset", "value")
        self.places: dict[int, int] = {}
        """Begin offset of the acknowledgement of each committed message, by message offset."""
        with Client(broker.endpoint) as client:
            client.create_journals(journal_spec(self.journal))
            client.append(self.journal, TEXT)
        self.commit(0, 0)

    def another_table(self, name: str, columns: tuple[str, str, str]) -> None:
        """Continue with a new table that has columns of these names; "-" omits a column."""
        self.table = self.table.with_name(name)
        self.columns = columns
        self.commits, self.attempt = 0, None

    def commit(
        self,
        begin: int,
        end: int,
        rows: Sequence[Row] | None = None,
        gaps: Sequence[tuple[int, int]] = (),
        *,
        audit: AuditedRows | None = None,
        mode: Mode = "append",
        dead_letters: str | None = None,
        recreated: int | None = None,
    ) -> None:
        """Commit a batch, by default with the rows of its range."""
        self.commits += 1
        entry = LedgerEntry(
            app_id="orders",
            txn_version=self.commits,
            query_id="query",
            batch_id=self.commits,
            start=(JournalOffsets({self.journal: 0}),),
            begin=(JournalOffsets({self.journal: begin}),),
            end=(JournalOffsets({self.journal: end}),),
            attempt=f"attempt {self.commits}",
            parent=self.attempt,
            gaps=tuple(SkippedGap(self.journal, *gap) for gap in gaps),
            audit=None if audit is None else (audit,),
            mode=mode,
            dead_letters=dead_letters,
            recreated={} if recreated is None else {self.journal: recreated},
            isolation="read_committed" if self.places else "read_uncommitted",
        )
        self.attempt = entry.attempt
        self.append(rows_of(begin, end) if rows is None else rows, entry)

    def counted(self, rows: Sequence[Row]) -> AuditedRows:
        return AuditedRows(self.journal, len(rows), digest_of(rows))

    def append(self, rows: Sequence[Row], entry: LedgerEntry | None = None) -> None:
        table = pa.table(
            {
                "journal": pa.array([self.journal] * len(rows), pa.string()),
                "offset": pa.array([offset for offset, _ in rows], pa.int64()),
                "value": pa.array([value for _, value in rows], pa.binary()),
            }
        )
        found = table.rename_columns(list(self.columns)).select(
            [name for name in self.columns if name != "-"]
        )
        if self.places:
            places = [self.places.get(offset, offset) for offset, _ in rows]
            found = found.append_column("_ack_offset", pa.array(places, pa.int64()))
        properties = CommitProperties(custom_metadata={"userMetadata": entry.to_json()} if entry else {})
        write_deltalake(self.table, found, mode="append", commit_properties=properties)
