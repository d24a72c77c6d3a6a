"""The Delta table of the format ``gazette_delta``, for processes without a Spark session.

Spark starts a Python process for each call of a data source's writer, and none of these processes has a
session. Therefore ``deltalake`` opens, creates and commits to the table here, and its history is read from
the files of its log. If two commits are based on the same snapshot, ``deltalake`` accepts only one.

A process commits one batch and ends, so nothing is remembered between batches. Each batch is decided by the
table's ledger and the query checkpoint alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pyarrow.fs as pa_fs
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gazette_spark._data_files.checkpoint_reader import CheckpointReader
from gazette_spark._data_files.target import FileTarget
from gazette_spark._data_files.writer import object_store
from gazette_spark._delta.delta_table import OCCUPIED, DeltaTable, check_retention
from gazette_spark._delta.file_commits import FileCommits
from gazette_spark._delta.file_lane import file_target, fitted_rows
from gazette_spark._delta.schema_fit import Unfit, bare, fit
from gazette_spark._frames import deltalake_text
from gazette_spark._ledger.delta_reader import directory_history, log_files, named_errors
from gazette_spark._ledger.entry import LedgerEntry, LedgerState
from gazette_spark._ledger.history import HistoryRow, read_state
from gazette_spark._options.delta_format import DeltaFormatOptions
from gazette_spark.errors import MissingModuleError, OptionError, SchemaMismatchError, TableRefusedError
from gazette_spark.locations import deltalake_location, is_inside, local_path

try:
    import deltalake
    from deltalake.exceptions import DeltaError
except ModuleNotFoundError:
    raise MissingModuleError("deltalake") from None

VALUE_TYPES = (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
"""Types of single values that both a Delta table and a task's files support."""


class DeltaFormatTable:
    """The table to which :class:`~gazette_spark._ledger.file_batches.FileBatches` commits."""

    max_attempts = 5

    def __init__(self, options: DeltaFormatOptions, checkpoint: str | None = None) -> None:
        """Name the table. Nothing is read yet.

        Args:
            options: Options of the format.
            checkpoint: The query checkpoint, in Spark's spelling; None for a batch without a query.

        Raises:
            TableRefusedError: ``deltalake`` would read another table's log, or the checkpoint lies inside the
                table.
        """
        self._options = options
        table = DeltaTable(path=options.path, table=None)
        self.name = table.name
        self._location = str(table.path)
        self._checkpoint = checkpoint
        if checkpoint is not None and is_inside(checkpoint, self._location):
            problem = f"the query checkpoint {checkpoint} lies inside the table; put it elsewhere"
            raise TableRefusedError(self.name, problem)
        # Without a session, the table's id is not known in advance, so the id of the first snapshot is kept.
        # From then on, another table is refused.
        self._files = FileCommits(self.name, self._location, None, options.storage_options)

    def __repr__(self) -> str:
        return f"DeltaFormatTable({self.name}, {self._options.app_id!r})"

    def prepare(self, schema: StructType) -> tuple[FileTarget, str]:
        """Create the table if it does not exist, compare its columns, and return where tasks write.

        Returns:
            The target, and the shape of the table, which a commit compares.

        Raises:
            OptionError: the table's partitions are not those in ``partitionBy``.
            SchemaMismatchError: the columns are not the table's.
            TableRefusedError: the table needs more from its writers than files of plain rows, or is missing
                although the query has written batches.
        """
        self._make(schema)
        snapshot = self._files.open()
        metadata = snapshot.metadata()
        check_retention(self.name, metadata.configuration)
        partitions, expected = tuple(metadata.partition_columns), self._options.partition_by
        if expected is not None and [*map(str.lower, expected)] != [*map(str.lower, partitions)]:
            got = f"{','.join(expected)}, but the table has {','.join(partitions) or 'no partitions'}"
            raise OptionError(
                "partitionBy", got, "the table's partitions, or another table: they never change"
            )
        target = file_target(
            self._files,
            snapshot,
            schema,
            app_id=self._options.app_id,
            file_bytes=self._options.target_file_bytes,
        )
        return target, self._files.shape

    @property
    def shape(self) -> str:
        """Id, columns and partitions of the opened table."""
        return self._files.shape

    def read_ledger(self, app_id: str) -> LedgerState:
        """Open the newest snapshot, and read an app id's state from the log."""
        # If the snapshot were opened after the ledger was read, it would hide a commit in between, and
        # deltalake would accept the same transaction number twice.
        snapshot = self._files.open()
        directory = local_path(self._location)

        def newest(limit: int) -> list[HistoryRow]:
            with named_errors(self._location):
                if directory is not None:
                    return list(islice(directory_history(Path(directory)), limit))
                # Read the files one by one, because deltalake counts versions backwards, and its numbers are
                # not always right.
                return list(log_files(snapshot, limit))

        return read_state(newest, app_id, table=self.name)

    def commit_files(self, files: Sequence[Row], entry: LedgerEntry) -> Exception | None:
        """Commit files with a ledger entry on the snapshot that was opened last."""
        return self._files.commit_files(files, entry)

    def checkpoint_files(self, root: str) -> CheckpointReader:
        """Return a reader of the query checkpoint, which may be in the table's object store."""

        def open_store(url: str) -> tuple[pa_fs.FileSystem, str]:
            return object_store(deltalake_location(url), self._options.storage_options), ""

        return CheckpointReader(root, open_store)

    def _make(self, schema: StructType) -> None:
        """Create the table with the rows' columns, unless it exists."""
        location, options = self._files.location, self._files.storage_options
        try:
            if deltalake.DeltaTable.is_deltatable(location, options):
                return
        except (DeltaError, OSError) as error:
            raise TableRefusedError(
                self.name, f"deltalake cannot access {location}: {deltalake_text(error)}"
            ) from error
        fitted = fit(self.name, schema, None, add=True)
        if isinstance(fitted, Unfit):
            raise SchemaMismatchError(self.name, self._options.app_id, None, fitted.problems)
        if (foreign := _foreign_type(fitted.schema)) is not None:
            problem = f"a column has the type {foreign}, for which no table can be made. Cast it in the query"
            raise TableRefusedError(self.name, problem)
        columns = bare(fitted.schema)
        assert isinstance(columns, StructType)
        names = {column.name.lower(): column.name for column in schema.fields}
        partition_by = [names.get(name.lower(), name) for name in self._options.partition_by or ()]
        if unknown := [name for name in partition_by if name not in columns.names]:
            raise OptionError(
                "partitionBy", ", ".join(unknown), f"columns of the rows: {', '.join(columns.names)}"
            )
        fitted_rows(self.name, self._options.app_id, schema, columns, partition_by)
        # The columns were compared first, so that rows that do not fit leave no table behind. Nor is a table
        # created in a directory with other files. A log without a commit is left by a process that died while
        # it created the table.
        path = local_path(self._location)
        if path is not None and Path(path).is_dir():
            files = [file.name for file in Path(path).iterdir()]
            if "_delta_log" not in files and any(not name.startswith((".", "_")) for name in files):
                raise TableRefusedError(self.name, OCCUPIED)
        # An empty table would be in the way of one that was dropped.
        if self._checkpoint is not None:
            self.checkpoint_files(self._checkpoint).check_new(self.name)
        try:
            deltalake.DeltaTable.create(
                location,
                deltalake.Schema.from_json(columns.json()),
                mode="ignore",
                partition_by=partition_by,
                storage_options=options,
                # deltalake would otherwise create the table again on top of another creation, and replace its
                # columns and its id.
                commit_properties=deltalake.CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError, ValueError) as error:
            # Another process may have created it at the same time, or this one without an answer. Opening the
            # table shows that.
            if not deltalake.DeltaTable.is_deltatable(location, options):
                problem = f"deltalake cannot create a table there: {deltalake_text(error)}"
                raise TableRefusedError(self.name, problem) from error


def _foreign_type(kind: DataType, *, in_map: bool = False) -> str | None:
    """Return a type, within another one, for which no Delta table can be made here, or None."""
    match kind:
        case StructType() if kind.fields:  # Parquet has no struct without fields.
            inner = [field.dataType for field in kind.fields]
        case ArrayType():
            inner = [kind.elementType]
        case MapType():
            inner, in_map = [kind.keyType, kind.valueType], True
        # The type needs a table feature. deltalake 1.6.6 looks for it everywhere but in maps, and could not
        # open the table that it has made.
        case TimestampNTZType() if in_map:
            return "timestamp_ntz in a map"
        # deltalake would make a column with the collation, but without the table feature that it needs.
        case StringType() if kind != StringType():
            return kind.simpleString()
        case _:
            return None if isinstance(kind, VALUE_TYPES) else kind.simpleString()
    reasons = (_foreign_type(part, in_map=in_map) for part in inner)
    return next((foreign for foreign in reasons if foreign is not None), None)
