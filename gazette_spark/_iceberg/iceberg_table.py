"""An Iceberg table to which files from tasks are committed together with ledger entries.

A catalog's ``commit_table`` is a compare-and-set: it commits only if the branch ``main`` is still at the
snapshot that was read, and columns and partitions have not changed. Each commit adds a snapshot, even one
without rows. So if two writers decided on the same entry, only one of them commits, and a writer that a
rollback has overtaken does not commit either.

A transaction of ``pyiceberg`` must never be committed by its own ``commit_transaction()``. That method
repeats a rejected commit on top of what was committed in the meantime, so two writers of one batch would
both commit.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from gazette_spark.errors import (
    MissingPackageError,
    OptionError,
    SchemaMismatchError,
    TableRefusedError,
)

try:
    from pyiceberg.exceptions import (
        CommitFailedException,
        NoSuchTableError,
        TableAlreadyExistsError,
    )
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
        schema_to_pyarrow,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import (
        AddSnapshotUpdate,
        AssertCurrentSchemaId,
        AssertDefaultSpecId,
        AssertTableUUID,
    )
    from pyiceberg.transforms import UnknownTransform
except ModuleNotFoundError:
    raise MissingPackageError("Iceberg tables need pyiceberg", "gazette-spark[iceberg]") from None

from gazette_spark._data_files.checkpoint_reader import CheckpointReader
from gazette_spark._data_files.iceberg_files import open_store, parse_footer, partition_record, store_access
from gazette_spark._data_files.target import (
    DEFAULT_FILE_BYTES,
    CredentialIssuer,
    FileTarget,
    IcebergLayout,
    check_files,
)
from gazette_spark._delta.schema_fit import Rules, Unfit, bare, fit
from gazette_spark._iceberg.columns import (
    has_required_inside,
    iceberg_schema,
    partition_spec,
    partition_texts,
    spark_schema,
    to_iceberg,
    to_spark,
)
from gazette_spark._ledger.entry import LedgerEntry, LedgerState
from gazette_spark._ledger.history import HistoryRow
from gazette_spark._ledger.iceberg_reader import (
    PROPERTY_PREFIX,
    SUMMARY_KEY,
    TableName,
    iceberg_errors,
    last_rows,
    open_catalog,
    property_text,
    table_history,
    table_state,
    unknown_outcomes,
)
from gazette_spark.failpoints import failpoint
from gazette_spark.locations import is_inside, local_path
from gazette_spark.spark_versions import arrow_schema

log = logging.getLogger(__name__)

FORMAT_VERSION = 2

ANY_NAME = Rules(any_name=True, change_feed=False, type_change="ALTER COLUMN … TYPE")
"""Iceberg identifies columns by ids, so their names may have any character."""

REFUSED_PROPERTIES = {
    "encryption.key-id": "it is encrypted (encryption.key-id)",
    "write.wap.enabled": "its commits are staged until they are audited (write.wap.enabled)",
}
"""Properties that require more of a writer than files of plain rows, and what they mean."""


class IcebergTable:
    """One table of a catalog. It has an open catalog and a version of the table, which cannot be pickled."""

    max_attempts = 20
    """Any commit of others is a conflict, not only one for the same app id."""

    def __init__(
        self,
        name: TableName,
        properties: Mapping[str, str],
        app_id: str,
        *,
        partition_by: Sequence[str] | None = None,
        partition_option: str = "partition_by",
        adds_columns: bool = False,
        file_bytes: int | None = None,
    ) -> None:
        """Name the table. Nothing is read yet.

        Args:
            name: Name of the table.
            properties: Properties of the catalog that replace configured ones.
            app_id: App id of the sink, for errors.
            partition_by: Partitions of a new table. An existing table must have the same.
            partition_option: Name of the option that contains them, for errors.
            adds_columns: Whether to add columns that the table lacks, in the commit of the rows.
            file_bytes: Size at which a task starts another file; None for the default.
        """
        self.name = str(name)
        self._name = name
        self._properties = dict(properties)
        self._app_id = app_id
        self._partition_by, self._partition_option = partition_by, partition_option
        self._adds_columns = adds_columns
        self._file_bytes = file_bytes
        self._rows: StructType | None = None
        """Columns of the rows that tasks write; None before :meth:`prepare`."""
        self._catalog: Any = None
        self._base: tuple[Table, str | None] | None = None
        """The version on which to commit, whose ledger was read last, and the attempt of its newest entry."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the catalog and the version."""
        return vars(self) | {"_catalog": None, "_base": None}

    def __repr__(self) -> str:
        return f"IcebergTable({self.name})"

    def load(self) -> Table | None:
        """Load the newest version of the table, or None if there is no table.

        Raises:
            MissingPackageError: a package that the catalog needs is not installed.
            TableRefusedError: the catalog cannot be accessed, or the table needs more from its writers than
                files of plain rows.
        """
        # The catalog is opened once in each process, because this may request a token and settings from a
        # server.
        if self._catalog is None:
            self._catalog = open_catalog(self._name.catalog, self._properties)
        with iceberg_errors(self.name):
            try:
                table: Table = self._catalog.load_table(self._name.identifier)
            except NoSuchTableError:
                return None
        # Check the table each time, because its properties, partitions and sort order can be altered at any
        # time.
        if reason := refusal(table):
            raise TableRefusedError(self.name, f"{reason}. Nothing was committed")
        return table

    def prepare(self, rows: StructType) -> tuple[FileTarget, str]:
        """Create a missing table, compare its columns, and return where tasks write.

        Returns:
            The target, and the shape of the table, which a commit compares.

        Raises:
            OptionError: the table's partitions are not the requested ones.
            SchemaMismatchError: the columns do not fit the table's.
            TableRefusedError: the table needs more from its writers than files of plain rows, or a column has
                a type that Iceberg does not have.
        """
        table = self.load() or self._make(rows)
        metadata = table.metadata
        if self._partition_by is not None:
            spec = partition_spec(self._partition_option, self._partition_by, metadata.schema())
            existing_texts = partition_texts(metadata.spec(), metadata.schema())
            requested = partition_texts(spec, metadata.schema())
            if existing_texts != requested:
                got = f"{', '.join(requested)}, but the table has "
                got += ", ".join(existing_texts) or "no partitions"
                raise OptionError(self._partition_option, got, "the table's partitions, or another table")
        self._rows = rows
        existing = spark_schema(self.name, metadata.schema(), rows)
        written = self._fitted(rows, existing)
        schema = self._schema_of_files(table)
        # Readers find columns by ids, so files remain readable after a column is renamed or dropped. Files
        # without ids would need a mapping of names, which a table may not have.
        ids = schema_to_pyarrow(schema, include_field_ids=True)
        # Use Spark's types, because tasks get Spark's batches.
        types = arrow_schema(written)
        file_schema = pa.schema([_with_ids(types.field(name), ids.field(name)) for name in written.names])
        # If the catalog added credentials to the configured properties, it also issues newer ones.
        configured, access = {**self._catalog.properties, **table.properties}, store_access(table)
        issuer = None
        if any(value != str(configured.get(key)) for key, value in access.properties.items()):
            issuer = CredentialIssuer(self._name.catalog, self._name.identifier, self._properties)
        layout = IcebergLayout(
            base64.b64encode(file_schema.serialize()).decode(),
            schema.model_dump_json(),
            metadata.spec().model_dump_json(),
            access,
            issuer,
        )
        data = _data_location(table)
        target = FileTarget(
            self.name,
            local_path(data) or data,
            json.dumps(rows.jsonValue()),
            json.dumps(written.jsonValue()),
            partition_by=tuple(field.name for field in metadata.spec().fields),
            not_null=tuple(column.name for column in existing.fields if not column.nullable),
            file_bytes=self._file_bytes or DEFAULT_FILE_BYTES,
            iceberg=layout,
        )
        return target, self._shape(table)

    @property
    def shape(self) -> str:
        """Identity, columns, partitions and location of the version on which to commit."""
        return self._shape(self._opened()[0])

    def _shape(self, table: Table) -> str:
        columns = [field.model_dump(mode="json") for field in self._schema_of_files(table).fields]
        # Tasks report paths below the location of the table's data, which a property may change.
        identity = [str(table.metadata.table_uuid), _data_location(table)]
        return json.dumps([*identity, columns, table.spec().model_dump(mode="json")])

    def read_ledger(self, app_id: str) -> LedgerState:
        """Load the newest version, on which to commit, and return the state of an app id's ledger in it."""
        # The ledger is read from the version on which to commit, so any later commit is a conflict.
        self._base, table = None, self.load()
        if table is None:
            return LedgerState()
        with iceberg_errors(self.name):
            state = table_state(table, app_id, self.name)
        self._base = table, state.entry.attempt if state.entry else None
        return state

    def history(self) -> list[HistoryRow]:
        """Return the history of the table as it is now, newest first; empty if there is no table."""
        table = self.load()
        if table is None:
            return []
        with iceberg_errors(self.name):
            return table_history(table)

    def last_offsets(self, journal: str, offset: str) -> dict[str | None, int | None]:
        """Return the greatest offset of each journal in the version whose ledger was read last.

        Reads two columns of all rows, one file at a time.

        Args:
            journal: Column of the journals' names.
            offset: Column of the offsets.
        """
        with iceberg_errors(self.name):
            return {name: last for name, _, last, _ in last_rows(self._opened()[0], journal, offset)}

    def commit_files(self, files: Sequence[Any], entry: LedgerEntry) -> Exception | None:
        """Commit files with a ledger entry on the version whose ledger was read last.

        Args:
            files: Descriptions of the files, as rows of ``FILES_SCHEMA``.
            entry: Ledger entry of the rows in the files.

        Returns:
            The conflict, or an error that does not reveal whether the commit succeeded.

        Raises:
            TableRefusedError: a file is on another machine's disk, or the catalog refuses the commit for
                another reason.
        """
        table, newest = self._opened()
        check_files(self.name, _data_location(table), files)
        # If two threads share this object, the other one may have read the ledger, decided and committed in
        # between. On its version, the catalog would accept both commits.
        if entry.parent != newest:
            return CommitFailedException(f"the entry follows {entry.parent}, but the newest one is {newest}")
        with iceberg_errors(self.name):
            transaction = _Transaction(table)
            # Add columns only in a commit with rows. Otherwise a pin would add columns for a query that may
            # never write rows.
            if files:
                self._add_columns(transaction)
            updates = transaction.update_snapshot(snapshot_properties={SUMMARY_KEY: entry.to_json()})
            # A fast append adds a manifest for each commit. Merging manifests rewrites them while the batch
            # waits, so it is left to the table's maintenance unless the table's property requests it.
            merges = table.properties.get("commit.manifest-merge.enabled", "").lower() == "true"
            with updates.merge_append() if merges else updates.fast_append() as snapshot:
                for row in files:
                    snapshot.append_data_file(_data_file(row, transaction, _data_location(table)))
            transaction.date_after(table.metadata.last_updated_ms)
            made = transaction.table_metadata.snapshot_by_id(snapshot.snapshot_id)
            assert made is not None
            # The property is set in the commit of the snapshot that it names, so either both exist or
            # neither.
            text = property_text(entry, made.snapshot_id, made.sequence_number or 0)
            transaction.set_properties({PROPERTY_PREFIX + entry.app_id: text})
            metadata = table.metadata
            # pyiceberg itself requires only that main is still at the snapshot that was read. But a change of
            # columns or partitions creates no snapshot, and a table that was created again may have no
            # snapshot, like the old one.
            requirements = (
                *transaction._requirements,
                AssertTableUUID(uuid=metadata.table_uuid),
                AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
                AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
            )
        # After a conflict, a locked database or a broken connection, the ledger that is read next shows
        # whether the commit succeeded. Any other error, such as missing permissions, would occur at each
        # attempt.
        failpoint("iceberg.before_commit")
        with iceberg_errors(self.name):
            try:
                # Call the catalog directly, and only once. The transaction's own commit would try again on
                # top of what was committed in the meantime: in a prototype, two writers of one batch both
                # committed, 200 rows instead of 100 (decision 0045).
                self._catalog.commit_table(table, requirements, transaction._updates)
            except unknown_outcomes() as error:
                log.info("commit_turned_down table=%s error=%s", self.name, type(error).__name__)
                return error
        return None

    def check_checkpoint(self, root: str) -> None:
        """Refuse a query checkpoint inside the table, whose clean-up would delete it.

        Raises:
            TableRefusedError: the checkpoint is inside the table, or has batches of a table that is missing.
        """
        table = self.load()
        if table is None:
            self.checkpoint_files(root).check_new(self.name)
        elif is_inside(root, table.location()):
            problem = f"the query checkpoint {root} lies inside the table; put it elsewhere"
            raise TableRefusedError(self.name, problem)

    def checkpoint_files(self, root: str) -> CheckpointReader:
        """Return a reader of the query checkpoint, which may be in the table's object store."""
        table = self.load()
        properties = table.io.properties if table else self._properties
        return CheckpointReader(root, lambda url: open_store(url, properties))

    def _opened(self) -> tuple[Table, str | None]:
        if self._base is None:
            raise TableRefusedError(self.name, "it was dropped or renamed. Start the query again")
        return self._base

    def _make(self, rows: StructType) -> Table:
        """Create the table with the rows' columns."""
        columns = bare(rows)
        assert isinstance(columns, StructType)
        self._fitted(columns, None)
        with iceberg_errors(self.name):  # For example, to Iceberg a field b of a is also a column "a.b".
            schema = iceberg_schema(self.name, columns)
        # This comes before the table is created, so that an invalid partition leaves no table behind.
        spec = partition_spec(self._partition_option, self._partition_by or (), schema)
        # Another process may have created it at the same time, which opening the table shows.
        with iceberg_errors(self.name), suppress(TableAlreadyExistsError):
            self._catalog.create_table(
                self._name.identifier,
                schema,
                partition_spec=spec,
                properties={"format-version": str(FORMAT_VERSION)},
            )
        table = self.load()
        assert table is not None
        return table

    def _fitted(self, rows: StructType, existing: StructType | None) -> StructType:
        """Return the rows' columns with the table's names and types."""
        fitted = fit(self.name, rows, existing, add=self._adds_columns, rules=ANY_NAME)
        if isinstance(fitted, Unfit):
            raise SchemaMismatchError(self.name, self._app_id, None, fitted.problems)
        columns = {field.name: field.dataType for field in (existing or StructType()).fields}
        for source, column in zip(rows.fields, fitted.schema.fields, strict=True):
            # A column that the table lacks gets Iceberg's type, which may be wider: it has no TINYINT.
            table_type = columns.get(column.name)
            if table_type is None:
                table_type = to_spark(to_iceberg(self.name, column.name, column.dataType, count(1)))
            # Releases of Arrow differ in whether they cast structs by position or by name, so tasks do not
            # convert structs (decision 0032).
            is_nested = "<" in column.dataType.simpleString()
            if table_type is not None and is_nested and bare(source.dataType) != bare(table_type):
                problem = (
                    f"column {source.name} is {table_type.simpleString()} in the table and "
                    f"{source.dataType.simpleString()} in the query. Tasks cannot convert nested columns. "
                    "Make it the table's type in the query"
                )
                raise TableRefusedError(self.name, problem)
        return fitted.schema

    def _schema_of_files(self, table: Table) -> Schema:
        """Return the table's schema after the rows' columns are added."""
        # This transaction is never committed. It only computes the ids that the new columns will get.
        with iceberg_errors(self.name):
            transaction = _Transaction(table)
            self._add_columns(transaction)
            return transaction.table_metadata.schema()

    def _add_columns(self, transaction: Transaction) -> None:
        """Add the rows' columns that the table lacks."""
        if self._rows is None or not self._adds_columns:
            return
        names = {field.name.lower() for field in transaction.table_metadata.schema().fields}
        columns = bare(self._rows)
        assert isinstance(columns, StructType)
        new = [field for field in columns.fields if field.name.lower() not in names]
        if not new:
            return
        with transaction.update_schema() as update:
            for field in new:
                # Ids of nested fields are provisional, because update_schema gives all new fields ids that
                # the table has not used yet.
                kind = to_iceberg(self.name, field.name, field.dataType, count(1))
                update.add_column((field.name,), kind)


class _Transaction(Transaction):
    """A transaction that applies its updates once, and not each time that the metadata is read."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._applied: tuple[Any, ...] = self._updates
        self._metadata: TableMetadata = table.metadata

    @property
    def table_metadata(self) -> TableMetadata:
        """Return the metadata with the updates so far."""
        # pyiceberg makes a deep copy of the metadata each time, with all snapshots, some twenty times for a
        # commit. At a thousand snapshots that took most of a commit's time. The returned object never
        # changes: an update makes another tuple and another copy.
        if self._applied is not self._updates:
            self._applied, self._metadata = self._updates, super().table_metadata
        return self._metadata

    def date_after(self, time_ms: int) -> None:
        """Give the new snapshot a time after another one, even if this machine's clock is behind it."""
        # pyiceberg takes this machine's time. Iceberg for Java, Go and Rust cannot load a table whose
        # snapshots go back in time by more than a minute. The time may not be the same either: pyiceberg
        # would give the metadata this machine's time instead.
        self._updates = tuple(
            AddSnapshotUpdate(
                snapshot=update.snapshot.model_copy(
                    update={"timestamp_ms": max(update.snapshot.timestamp_ms, time_ms + 1)}
                )
            )
            if isinstance(update, AddSnapshotUpdate)
            else update
            for update in self._updates
        )


def refusal(table: Table) -> str | None:
    """Return the reason why a table does not accept files from tasks, or None if it does."""
    metadata = table.metadata
    properties, schema = metadata.properties, table.schema()
    reasons = [
        reason for name, reason in REFUSED_PROPERTIES.items() if properties.get(name, "false") != "false"
    ]
    # Version 1 has no sequence numbers, by which the ledger is ordered. Version 3 requires row lineage from
    # writers.
    if metadata.format_version != FORMAT_VERSION:
        version = f"format version {metadata.format_version}"
        reasons.append(f"it has {version}, but the sink writes version {FORMAT_VERSION}, without row lineage")
    file_format = properties.get("write.format.default", "parquet")
    if file_format.lower() != "parquet":
        reasons.append(f"its files are {file_format} (write.format.default), but tasks write Parquet")
    # To sort their rows, tasks would have to keep all of them in memory.
    if table.sort_order().fields:
        reasons.append("it has a sort order (WRITE ORDERED BY), which tasks do not keep")
    for field in table.spec().fields:
        if isinstance(field.transform, UnknownTransform):
            reasons.append(f"it is partitioned by {field.transform}, which pyiceberg does not support")
        elif schema.find_column_name(field.source_id) not in {column.name for column in schema.fields}:
            reasons.append(f"it is partitioned by {field.name}, which is a field within a column")
    reasons += [
        f"a field within column {column.name} is NOT NULL, which tasks do not check"
        for column in schema.fields
        if has_required_inside(column.field_type)
    ]
    return reasons[0] if reasons else None


def _data_location(table: Table) -> str:
    default = f"{table.location().rstrip('/')}/data"
    return table.properties.get("write.data.path", default).rstrip("/")


def _with_ids(column: pa.Field, with_ids: pa.Field) -> pa.Field:
    """Return a column of Spark's type with the ids of the table's column, at all levels.

    ``pyiceberg`` uses another Arrow type for texts, which does not matter in files.
    """
    kind, id_kind = column.type, with_ids.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_ids(inner, id_kind.field(inner.name)) for inner in kind])
    elif pa.types.is_map(kind):
        key = _with_ids(kind.key_field, id_kind.key_field).with_nullable(False)  # noqa: FBT003 - Arrow's.
        kind = pa.map_(key, _with_ids(kind.item_field, id_kind.item_field))
    elif pa.types.is_list(kind):
        element = _with_ids(kind.value_field, id_kind.value_field)
        kind = pa.list_(element.with_name(kind.value_field.name))
    return pa.field(column.name, kind, nullable=True, metadata=with_ids.metadata)


def _data_file(row: Any, transaction: Transaction, location: str) -> DataFile:  # noqa: ANN401 - a Row.
    """Return the entry of a file in a manifest."""
    metadata = transaction.table_metadata
    schema, spec = metadata.schema(), metadata.spec()
    footer = parse_footer(row.stats)
    path_ids = parquet_path_to_id_mapping(schema)
    # Parquet's writer leaves out the bounds of texts and bytes beyond 4 KB.
    unbounded = {
        path_ids[column.path_in_schema]
        for group in map(footer.row_group, range(footer.num_row_groups))
        for column in map(group.column, range(group.num_columns))
        if (bounds := column.statistics) is not None and bounds.num_values > 0 and not bounds.has_min_max
    }

    def statistics(properties: Mapping[str, str]) -> Mapping[str, Any]:
        plan = compute_statistics_plan(schema, dict(properties))
        # pyiceberg would take the bounds of the other row groups for those of the file, and readers would
        # skip the file for values that it has.
        for field_id in unbounded & plan.keys():
            if plan[field_id].mode.type is not MetricModeTypes.NONE:
                plan[field_id] = replace(plan[field_id], mode=MetricsMode(MetricModeTypes.COUNTS))
        counted = data_file_statistics_from_parquet_metadata(footer, plan, path_ids)
        return counted.to_serialized_dict()

    try:
        counts = statistics(metadata.properties)
    except (OverflowError, UnicodeError):
        # Python has no dates before year 1 or after year 9999, and no texts of bytes that are not UTF-8, such
        # as CAST(X'FF' AS STRING). The upper bound that pyiceberg makes of a text may end in half a surrogate
        # pair. A file without bounds is only slower to read.
        counts = statistics({"write.metadata.metrics.default": "counts"})
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/{row.path}",
        file_format=FileFormat.PARQUET,
        partition=partition_record(
            tuple(row.partition_values[field.name] for field in spec.fields), spec, schema
        ),
        file_size_in_bytes=row.size,
        sort_order_id=None,
        spec_id=spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **counts,
    )
