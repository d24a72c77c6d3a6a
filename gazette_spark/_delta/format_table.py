"""A Delta table that the format ``gazette_delta`` fills, in processes without a session of Spark.

Spark starts a Python process for each thing it asks of a data source's writer, and none of them has a
session. So ``deltalake`` opens, makes and commits the table here, and the files of its log are its history.
Decisions, entries and errors are those of :class:`~gazette_spark.sink.DeltaSink`, and so is the fence: of two
commits that were decided on one snapshot, ``deltalake`` lets one through.

A process commits one batch and ends, so nothing is remembered between batches: each is decided by the table's
ledger and the query checkpoint alone.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
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

from gazette_spark._data_files.target import FileTarget
from gazette_spark._data_files.writer import object_store
from gazette_spark._delta.delta_table import OCCUPIED, DeltaTable, check_retention
from gazette_spark._delta.file_commits import FileCommits
from gazette_spark._delta.file_lane import file_target, fitted_rows
from gazette_spark._delta.files import checked_text
from gazette_spark._delta.query_batches import QueryBatches
from gazette_spark._delta.schema_fit import Unfit, bare, fit
from gazette_spark._frames import deltalake_text
from gazette_spark._ledger.decision import Allowed, Committed, Refusal, Skip, decide, verify
from gazette_spark._ledger.delta_reader import directory_history, log_files
from gazette_spark._ledger.entry import Batch, LedgerState, check_app_id, parse_gaps, pinned_journals
from gazette_spark._ledger.history import HistoryRow, read_state
from gazette_spark._options.delta_format import DeltaFormatOptions
from gazette_spark.errors import (
    DeadLetterError,
    MissingModuleError,
    OffsetError,
    OptionError,
    QueryCheckpointError,
    SchemaMismatchError,
    TableRefusedError,
)
from gazette_spark.failpoints import failpoint
from gazette_spark.locations import absolute, deltalake_location, is_inside, local_path, split_scheme
from gazette_spark.offsets import check_forward

try:
    import deltalake
    from deltalake.exceptions import DeltaError
except ModuleNotFoundError:
    raise MissingModuleError("deltalake") from None

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
"""Attempts to commit one batch: commits of others may be faster."""

HADOOP_SCHEMES = ("hdfs", "viewfs")
"""Schemes of file systems that pyarrow enters through Hadoop's library, and ``deltalake`` does not know."""


VALUE_TYPES = (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
"""Types of single values that a Delta table and a task's files have."""


class CheckpointReader:
    """Reads the files of a query checkpoint, in a directory or in a store."""

    def __init__(self, root: str, storage_options: Mapping[str, str]) -> None:
        """Name the checkpoint.

        Args:
            root: Its directory or prefix, in Spark's spelling.
            storage_options: How ``deltalake`` enters its object store.
        """
        self._root = root.rstrip("/")
        directory = local_path(root)
        if directory is not None:
            self._files, self._below = pa_fs.LocalFileSystem(), absolute(directory)
        elif split_scheme(root)[0] in HADOOP_SCHEMES:
            self._files, self._below = pa_fs.FileSystem.from_uri(root)
        else:
            self._files, self._below = object_store(deltalake_location(root), storage_options), ""

    def text(self, path: str) -> str:
        """Return a small file's text.

        Raises:
            QueryCheckpointError: the file is missing, empty or cannot be read.
        """
        try:
            with self._files.open_input_file(self._place(path)) as file:
                return checked_text(file.read().decode(), path)
        except FileNotFoundError:
            return checked_text(None, path)
        except (OSError, UnicodeDecodeError) as error:
            raise QueryCheckpointError(path, f"the file cannot be read: {deltalake_text(error)}") from error

    def exists(self, path: str) -> bool:
        """Say whether there is a directory, or an object below a prefix."""
        place = self._place(path)
        if self._files.get_file_info(place).type != pa_fs.FileType.NotFound:
            return True
        return bool(self._files.get_file_info(pa_fs.FileSelector(place, allow_not_found=True)))

    def _place(self, path: str) -> str:
        below = path.removeprefix(self._root)
        return self._below + below if self._below else below.lstrip("/")


class FormatTable:
    """A table, and the stream that fills it under an app id."""

    def __init__(self, options: DeltaFormatOptions, checkpoint: str | None = None) -> None:
        """Name the table; nothing is read yet.

        Args:
            options: Options of the format.
            checkpoint: The query checkpoint, in Spark's spelling; None for a batch without a query.

        Raises:
            OptionError: an option is invalid.
            TableRefusedError: ``deltalake`` would read another table's log, or the checkpoint lies inside the
                table.
        """
        check_app_id("appId", options.app_id)
        self._options = options
        self._checkpoint = checkpoint
        self._allowed = Allowed(
            gaps=parse_gaps("acceptGaps", options.accept_gaps or {}), restart=options.restart
        )
        table = DeltaTable(path=options.path, table=None)
        self.name = table.name
        self._location = str(table.path)
        if checkpoint is not None and is_inside(checkpoint, self._location):
            problem = f"the query checkpoint {checkpoint} lies inside the table; put it elsewhere"
            raise TableRefusedError(self.name, problem)
        self._files = FileCommits(self.name, self._location, None, options.storage_options)

    def __repr__(self) -> str:
        return f"FormatTable({self.name}, {self._options.app_id!r})"

    def prepare(self, schema: StructType) -> tuple[FileTarget, str]:
        """Make the table if there is none, compare its columns, and say where tasks write.

        Args:
            schema: Columns of the rows.

        Returns:
            The target, and the table's shape, which a commit compares.

        Raises:
            OptionError: the table has other partitions than ``partitionBy`` says.
            SchemaMismatchError: the columns are not the table's.
            TableRefusedError: the table needs more from its writers than files of plain rows.
        """
        self._make(schema)
        snapshot = self._files.open()
        metadata = snapshot.metadata()
        check_retention(self.name, metadata.configuration)
        partitions, expected = tuple(metadata.partition_columns), self._options.partition_by
        if expected is not None and [*map(str.lower, expected)] != [*map(str.lower, partitions)]:
            got = f"{','.join(expected)}, and the table has {','.join(partitions) or 'no partitions'}"
            raise OptionError(
                "partitionBy", got, "the table's partitions, or another table: they never change"
            )
        table_schema = StructType.fromJson(json.loads(snapshot.schema().to_json()))
        fitted = fitted_rows(self.name, self._options.app_id, schema, table_schema, partitions)
        target = file_target(
            self._files,
            schema,
            fitted,
            partitions,
            properties=metadata.configuration,
            file_bytes=self._options.target_file_bytes,
        )
        return target, self._files.shape

    def commit_batch(self, batch_id: int, query_id: str | None, files: Sequence[Row], shape: str) -> None:
        """Bring a batch of the query into the table, or find it there.

        Args:
            batch_id: Number of the batch in the query checkpoint.
            query_id: The query that has run the batch's tasks, None if they do not say.
            files: Rows about the batch's files, by ``FILES_SCHEMA``.
            shape: The table's shape when the files were written.

        Raises:
            QueryCheckpointError: the checkpoint does not have the batch, or is that of another query.
            SinkError: the batch does not continue the table; nothing was written.
        """
        failpoint("sink.entry")
        assert self._checkpoint is not None
        reader = CheckpointReader(self._checkpoint, self._options.storage_options)
        batch = QueryBatches(self.name, self._options.app_id).read(reader, self._checkpoint, batch_id)
        # Spark and this process may take one text for two places: where Spark's default file system is HDFS,
        # a path without a scheme is there. Offsets of another checkpoint must never go with these rows.
        if query_id not in (None, batch.query_id):
            problem = (
                f"it is of query {batch.query_id}, and Spark runs query {query_id}. Nothing was committed. "
                "Give checkpointLocation as an absolute path with its scheme, such as hdfs://namenode/checkpoint"
            )
            raise QueryCheckpointError(self._checkpoint, problem)
        self._commit(batch, files, shape)
        failpoint("sink.return")

    def commit_range(self, files: Sequence[Row], shape: str) -> None:
        """Bring the rows of the offsets that the options name into the table, unless they are there.

        As :meth:`gazette_spark.DeltaSink.write_batch` does, this pins journals that are new to the table by a
        separate commit before, without rows. A failed call may be repeated.

        Args:
            files: Rows about the files, by ``FILES_SCHEMA``.
            shape: The table's shape when the files were written.

        Raises:
            OffsetError: the offsets are not of the same journals, or one goes back.
            SinkError: the range does not continue the table; nothing was written.
        """
        begin, end = self._options.starting_offsets, self._options.ending_offsets
        assert begin is not None
        assert end is not None
        if begin.read_through.keys() != end.read_through.keys():
            raise OffsetError("startingOffsets and endingOffsets are not of the same journals")
        check_forward(begin, end)
        name, app_id, query = self.name, self._options.app_id, f"batch-{uuid.uuid4().hex}"
        seen = None
        if first := pinned_journals(self._ledger(self._files.open()).entry, begin, end, name):
            seen = self._commit(Batch(name, app_id, query, 0, (), (first,)), (), shape)
        self._commit(Batch(name, app_id, query, 1, (begin,), (end,)), files, shape, seen)

    def _commit(self, batch: Batch, files: Sequence[Row], shape: str, seen: str | None = None) -> str | None:
        """Commit a batch's files with its ledger entry, or find the batch in the table.

        This is :meth:`DeltaSink._commit <gazette_spark.sink.DeltaSink>` for files alone: there is nothing to
        trim, to count or to send to dead letters.

        Args:
            batch: What the query asks: the rows between two positions.
            files: Rows about the batch's files, by ``FILES_SCHEMA``.
            shape: The table's shape when the files were written.
            seen: Attempt of the entry on which this process has decided before, None for its first batch.

        Returns:
            Attempt of the newest entry, which has the batch.
        """
        about = f"app_id={batch.app_id} batch_id={batch.batch_id}"
        conflict: Exception | None = None
        for _ in range(MAX_ATTEMPTS):
            # The snapshot to commit on is opened before the ledger is read. So whatever is committed for the
            # app id after the decision is a conflict. Opened later, it would hide a commit in between, and
            # deltalake would take one transaction number twice.
            before = self._ledger(self._files.open())
            decision = decide(before, batch, attempt=uuid.uuid4().hex, seen=seen, allowed=self._allowed)
            if isinstance(decision, Refusal):
                raise decision.error from conflict
            if isinstance(decision, Skip):
                # The files stay as they are: no version refers to them, and VACUUM deletes them.
                log.info("batch_skipped %s", about)
                return before.entry.attempt if before.entry else None
            if before.entry is not None and before.entry.dead_letters is not None:
                problem = (
                    f"the table was last written with dead letters for {before.entry.dead_letters}, which "
                    "this format cannot close. Before, run a batch by DeltaSink.start without dead_letters, "
                    "which closes them"
                )
                raise DeadLetterError(self.name, batch.app_id, problem)
            # Files were written for the columns of a snapshot that other processes have opened. Committed to
            # a table that was altered or made again since, they would be read with other columns.
            if files and shape != self._files.shape:
                problem = (
                    "it was created again, or its columns changed, while the batch was written. Nothing was "
                    "committed. Start the query again"
                )
                raise TableRefusedError(self.name, problem)

            failpoint("sink.before_write")
            conflict = self._files.commit_files(files, decision.entry)
            failpoint("sink.after_write")

            # Only the table knows what has become of the commit: a conflict does not reveal whether it
            # succeeded.
            after = self._ledger(self._files.open())
            outcome = verify(before, after, decision.entry, batch, conflict=conflict is not None)
            if isinstance(outcome, Refusal):
                raise outcome.error from conflict
            if isinstance(outcome, Committed):
                log.info("batch_written %s", about)
                return decision.entry.attempt
        problem = f"batch {batch.batch_id} was turned down {MAX_ATTEMPTS} times by commits of others"
        raise TableRefusedError(self.name, problem) from conflict

    def _ledger(self, snapshot: deltalake.DeltaTable) -> LedgerState:
        """Read the app id's state from the table's log, up to a snapshot or further."""
        directory = local_path(self._location)

        def newest(limit: int) -> list[HistoryRow]:
            if directory is not None:
                return list(islice(directory_history(Path(directory)), limit))
            # One by one: the numbers by which deltalake counts versions back are not always theirs.
            return list(log_files(snapshot, limit))

        return read_state(newest, self._options.app_id, table=self.name)

    def _make(self, schema: StructType) -> None:
        """Make the table of the rows' columns, unless there is one."""
        location, options = self._files.location, self._files.storage_options
        try:
            if deltalake.DeltaTable.is_deltatable(location, options):
                return
        except (DeltaError, OSError) as error:
            raise TableRefusedError(
                self.name, f"deltalake cannot enter {location}: {deltalake_text(error)}"
            ) from error
        fitted = fit(self.name, schema, None, add=True)
        if isinstance(fitted, Unfit):
            raise SchemaMismatchError(self.name, self._options.app_id, None, fitted.problems)
        if (foreign := _foreign_type(fitted.schema)) is not None:
            problem = f"a column has the type {foreign}, which tasks cannot write. Cast it in the query"
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
        self._check_empty()
        try:
            deltalake.DeltaTable.create(
                location,
                deltalake.Schema.from_json(columns.json()),
                mode="ignore",
                partition_by=partition_by,
                storage_options=options,
            )
        except (DeltaError, OSError, ValueError) as error:
            # Another process may have made it at the same time; opening it tells.
            if not deltalake.DeltaTable.is_deltatable(location, options):
                problem = f"deltalake makes no table there: {deltalake_text(error)}"
                raise TableRefusedError(self.name, problem) from error

    def _check_empty(self) -> None:
        """Refuse to make a table in a directory with files of something else."""
        directory = local_path(self._location)
        if directory is None or not Path(directory).is_dir():
            return
        # A log without a commit is of a process that died while it made the table.
        if (Path(directory) / "_delta_log").exists():
            return
        if any(not path.name.startswith((".", "_")) for path in Path(directory).iterdir()):
            raise TableRefusedError(self.name, OCCUPIED)


def _foreign_type(kind: DataType) -> str | None:
    """Return a type within another one that no Delta table of a task's files has, None without one."""
    match kind:
        case StructType():
            inner = [field.dataType for field in kind.fields]
        case ArrayType():
            inner = [kind.elementType]
        case MapType():
            inner = [kind.keyType, kind.valueType]
        case _:
            return None if isinstance(kind, VALUE_TYPES) else kind.simpleString()
    return next((foreign for part in inner if (foreign := _foreign_type(part)) is not None), None)
