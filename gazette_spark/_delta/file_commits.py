"""Commits files that tasks have written: names, transaction and ledger entry in one Delta commit.

``deltalake`` makes the commit on the snapshot that was opened before the history was read, so anything that
was committed for the app id since then is a conflict. If the snapshot were opened later, ``deltalake`` would
accept the same transaction number twice.

Each snapshot shows what the table requires of its writers. A table that requires more than files of plain
rows is refused because of its features (:mod:`gazette_spark._delta.features`), its properties or its columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Row

from gazette_spark._data_files.target import check_files, checked_storage_options
from gazette_spark._delta.delta_table import APP_ID_PREFIX
from gazette_spark._delta.features import refused_by_direct_lane, writer_features
from gazette_spark._frames import deltalake_text
from gazette_spark._ledger.delta_reader import is_catalog_managed
from gazette_spark._ledger.entry import LedgerEntry
from gazette_spark.errors import MissingModuleError, TableRefusedError
from gazette_spark.locations import deltalake_location, is_same, misread_by_deltalake

if TYPE_CHECKING:
    from deltalake import DeltaTable as Snapshot

OTHER_WAY = "Start the query with DeltaSink.start(..., lane='spark'), whose rows Spark writes"

# Spark's writer computes or checks these for each row. But the values in a file from a task stay as they are,
# and deltalake's commit does not look at them.
REFUSED_COLUMNS = {
    "CURRENT_DEFAULT": "has a default",
    "__CHAR_VARCHAR_TYPE_STRING": "has a maximum length",
    "delta.generationExpression": "is generated",
    "delta.identity": "is an identity",
    "delta.invariants": "has an invariant",
}
"""Metadata of columns whose values a writer has to compute or check."""


def refusal(
    features: frozenset[str], configuration: Mapping[str, str | None], columns: Mapping[str, Any]
) -> str | None:
    """Return the reason why a table does not accept files from tasks, or None if it does.

    Args:
        features: Names of the writer's features.
        configuration: The table's properties.
        columns: The table's schema, as JSON.
    """
    if refused := refused_by_direct_lane(features):
        return f"it has the table feature {', '.join(refused)}"
    # The feature alone requires nothing. With the mode, columns have other names in files than in the table.
    if configuration.get("delta.columnMapping.mode") not in (None, "none"):
        return "it maps columns (delta.columnMapping.mode)"
    # The same applies to CHECK constraints: a writer has to evaluate them, but no writer sees these rows.
    if checks := [name for name in configuration if name.startswith("delta.constraints.")]:
        return f"it has the constraint {checks[0].removeprefix('delta.constraints.')}"
    return _column_refusal(columns, top=True)


def _column_refusal(kind: Any, *, top: bool = False) -> str | None:  # noqa: ANN401 - a type as JSON.
    if isinstance(kind, str):
        return "it has a column of type variant" if kind == "variant" else None
    inner = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    reasons = [_column_refusal(column) for column in inner]
    # Neither tasks nor Delta look for nulls there, but Spark's lane does.
    for key, parts in (("containsNull", "elements of an array"), ("valueContainsNull", "values of a map")):
        if kind.get(key) is False:
            reasons.append(f"it has {parts} that are NOT NULL")
    for column in kind.get("fields", ()):
        for key in column.get("metadata") or {}:
            # An identity column has several keys, one for each setting of its sequence.
            name = "delta.identity" if key.startswith("delta.identity.") else key
            if name in REFUSED_COLUMNS:
                reasons.append(f"column {column['name']} {REFUSED_COLUMNS[name]}")
        # Tasks look for nulls in the table's columns, but not inside values.
        if not top and not column["nullable"]:
            reasons.append(f"field {column['name']} of a struct is NOT NULL")
        reasons.append(_column_refusal(column["type"]))
    return next((reason for reason in reasons if reason), None)


class FileCommits:
    """Commits the files of one table's batches. It has an open snapshot, which cannot be pickled."""

    def __init__(
        self, table: str, location: str, table_id: str | None, storage_options: Mapping[str, str]
    ) -> None:
        """Name the table.

        Args:
            table: Name of the table in errors.
            location: The table's directory or prefix, in Spark's spelling.
            table_id: The id in the table's metadata, as Spark reads it; None takes the id of the table that
                is opened first.
            storage_options: Options of ``deltalake`` for the table's object store, such as credentials.

        Raises:
            OptionError: one of the ``storage_options`` would let deltalake commit without checking for a
                concurrent commit.
            TableRefusedError: ``deltalake`` would read another table's log, or would commit without the
                catalog that orders the commits.
        """
        self.table = table
        self.spark_location, self.table_id = location, table_id
        # The catalog orders the commits of such a table. It would not recognize a commit that deltalake puts
        # into the log.
        if is_catalog_managed(location):
            problem = "its catalog decides which commits count (table feature catalogManaged)"
            raise TableRefusedError(table, f"{problem}, and deltalake does not ask it. {OTHER_WAY}")
        # deltalake lists one directory but reads the files of another, so a commit would be decided on
        # another table's snapshot (decision 0032).
        if other := misread_by_deltalake(location):
            problem = f"it is at {location}, but deltalake would read {other}. {OTHER_WAY}"
            raise TableRefusedError(table, problem)
        self.location = deltalake_location(location)
        self.storage_options = checked_storage_options(storage_options, self.location)
        self._snapshot: Snapshot | None = None
        self._catalog_location: str | None = None
        """The table's location in the catalog when the query started, in the catalog's spelling."""
        self._newest_commit: list[dict[str, Any]] = []
        """What the log records about the commit of the snapshot's version."""
        self._columns: str | None = None
        """Columns and partitions of the table for which the tasks write files."""
        self._collected: tuple[DataFrame, list[Row]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without open handles, because Spark Connect pickles the sink."""
        return vars(self) | {"_snapshot": None, "_collected": None}

    def __repr__(self) -> str:
        return f"FileCommits({self.table}, {self.location})"

    def open(self, current_location: str | None = None) -> Snapshot:
        """Open the newest snapshot, on which to commit. Call this before reading the history.

        Args:
            current_location: Where the table is now according to the catalog; None if the catalog does not
                show it.

        Raises:
            TableRefusedError: the table cannot be opened, is not the one that Spark reads, does not accept
                files from tasks, or has changed its columns since the query started.
        """
        # While the query runs, a name in the catalog can be given to another table. Spark follows the name,
        # but this object uses the directory, so rows would go to one table and decisions would be based on
        # the other.
        if self._catalog_location is None:
            self._catalog_location = current_location
        elif current_location is not None and not is_same(current_location, self._catalog_location):
            problem = (
                f"it was at {self._catalog_location} when the query started, and its name now belongs to the "
                f"table at {current_location}. Nothing was committed. Start the query again"
            )
            raise TableRefusedError(self.table, problem)
        try:
            # Only this lane needs deltalake, so only its users have to install it.
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError
        except ModuleNotFoundError:
            raise MissingModuleError("deltalake") from None
        try:
            # An update reads the commits after the snapshot's version. If the table was created again in the
            # meantime, an update would mistake the new commits for a continuation, or find none. Therefore it
            # starts only from a commit that is still in the log. deltalake shows no commits for a name with #
            # or ?, so such a table is opened each time.
            last = self._newest_commit
            if self._snapshot is not None and last and self._snapshot.history(1) == last:
                self._snapshot.update_incremental()
            else:
                self._snapshot = DeltaTable(self.location, storage_options=self.storage_options)
            self._newest_commit = self._snapshot.history(1)
        except (DeltaError, OSError) as error:
            # The state after an interrupted update is unknown, so the next call opens the table again.
            self._snapshot = None
            problem = f"deltalake cannot open it at {self.location}: {deltalake_text(error)}. {OTHER_WAY}"
            raise TableRefusedError(self.table, problem) from error
        snapshot = self._snapshot
        # The requirements for writers can be altered at any time, so each snapshot is checked. A change after
        # that makes the commit conflict.
        metadata, columns = snapshot.metadata(), snapshot.schema().to_json()
        # Decisions are based on the table that Spark reads. Files that are committed to another table would
        # be missing in the one and superfluous in the other, so the ids have to be equal, however Spark and
        # deltalake interpret the location.
        opened_id = str(metadata.id)
        self.table_id = self.table_id or opened_id
        if opened_id != self.table_id:
            self._snapshot = None
            problem = (
                f"Spark reads the table {self.table_id} at {self.spark_location}, but deltalake opens the "
                f"table {opened_id} at {self.location}. Nothing was committed. If the table was "
                f"created again, start the query again. {OTHER_WAY}"
            )
            raise TableRefusedError(self.table, problem)
        # The list contains accepted features, not refused ones, because unknown future features must not be
        # accepted (decision 0032).
        protocol = snapshot.protocol()
        features = writer_features(protocol.min_writer_version, protocol.writer_features or ())
        if reason := refusal(features, metadata.configuration, json.loads(columns)):
            raise TableRefusedError(
                self.table, f"{reason}, which the direct lane does not support. {OTHER_WAY}"
            )
        # Tasks write the columns that the table had at the query's start. If the columns have changed since,
        # new columns would be null in their files, and files for other partition columns would not be found.
        now = json.dumps([columns, metadata.partition_columns])
        if self._columns not in (None, now):
            problem = "its columns have changed since the query started. Start the query again"
            raise TableRefusedError(self.table, problem)
        self._columns = now
        return snapshot

    @property
    def shape(self) -> str:
        """Id, columns and partitions of the opened table. Files fit only a table of the same shape."""
        return f"{self.table_id} {self._columns}"

    def commit(self, file_rows: DataFrame | None, entry: LedgerEntry) -> Exception | None:
        """Commit the files that tasks report together with a ledger entry.

        Args:
            file_rows: A DataFrame of ``FILES_SCHEMA``. Running it writes the files; a second call with the
                same object commits the same files. None for an entry without rows.
            entry: Ledger entry of the rows in the files.

        Returns:
            The conflict, if any. Only the history shows whether the commit succeeded.
        """
        # This is an entry without rows, such as a heartbeat.
        if file_rows is None:
            return self.commit_files([], entry)
        # Running the DataFrame runs the tasks, which write the files. If a batch is decided again after a
        # conflict, the same files are committed: they contain its rows, regardless of the table's version.
        if self._collected is None or self._collected[0] is not file_rows:
            self._collected = file_rows, file_rows.collect()
        return self.commit_files(self._collected[1], entry)

    def commit_files(self, files: Sequence[Row], entry: LedgerEntry) -> Exception | None:
        """Commit files with a ledger entry; see :meth:`commit`.

        Args:
            files: Descriptions of the files, as rows of ``FILES_SCHEMA``.
            entry: Ledger entry of the rows in the files.

        Raises:
            TableRefusedError: a file is on another machine's disk, or the log cannot be written, for example
                because the disk is full.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        snapshot = self._snapshot
        assert snapshot is not None
        check_files(self.table, self.spark_location, files)
        # data_change marks the rows as new, unlike those of a compaction, so that streams that read the table
        # process them.
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=row.path,
                size=row.size,
                partition_values=row.partition_values,
                modification_time=row.modification_ms,
                data_change=True,
                stats=row.stats,
            )
            for row in files
        ]
        try:
            # deltalake compares the transaction number only with commits since its snapshot. This is a
            # compare-and-set because the snapshot is older than the ledger that was read: any commit of the
            # app id that the decision did not see came after the snapshot, whichever lane made it.
            snapshot.create_write_transaction(
                actions,
                "append",
                snapshot.schema(),
                partition_by=snapshot.metadata().partition_columns,
                commit_properties=CommitProperties(
                    custom_metadata={"userMetadata": entry.to_json()},
                    app_transactions=[Transaction(APP_ID_PREFIX + entry.app_id, entry.txn_version)],
                ),
            )
        # The commit was rejected, or the answer was lost; the history shows which. Files that are never
        # committed are left to VACUUM.
        except CommitFailedError as error:
            return error
        # deltalake has tried again for minutes where that could help.
        except (DeltaError, OSError) as error:
            problem = (
                f"deltalake cannot commit to it at {self.location}: {deltalake_text(error)}. Give the driver "
                "access and space, and start the query again with the same checkpoint: the table then shows "
                "whether it has the batch"
            )
            raise TableRefusedError(self.table, problem) from error
        return None
