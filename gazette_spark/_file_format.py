"""The common part of the data sources ``gazette_delta`` and ``gazette_iceberg``, which Spark calls to write.

``df.writeStream.format(…)`` and ``df.write.format(…)`` write the same rows as the sinks and
:func:`~gazette_spark.ingest`, with the same ledger. Tasks write Parquet from Arrow batches, and the driver
commits the names of the files together with the ledger entry in one commit of the table.

Spark calls this module in several processes:

- On the driver, Spark creates a :class:`FileFormat` at ``start()`` or ``save()``, which checks the options.
- For each batch, Spark creates a writer in a separate Python process on the driver. The constructor creates a
  missing table, and compares its columns with those of the rows. Then Spark pickles the writer.
- On executors, ``write`` runs in other processes. Each attempt of a task writes files with unique names.
- ``commit`` runs in one more process on the driver. For a stream, Spark creates a new writer in it; for a
  batch, the process has the pickled one. Spark passes the number of the batch, and the messages of one
  attempt of each task. The offsets of the batch come from the query checkpoint, whose location Spark passes
  as an option.

The writers import all other modules when they need them, because PySpark imports this module in any session
that uses a Python data source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from gazette_spark._frames import hide_internal_frames
from gazette_spark.errors import OptionError
from gazette_spark.spark_versions import ARROW_STREAM_WRITES, QUERY_ID, ArrowStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from gazette_spark._data_files.checkpoint_reader import CheckpointReader
    from gazette_spark._data_files.target import FileTarget
    from gazette_spark._ledger.file_batches import FileBatches, LedgerTable
    from gazette_spark._options.file_format import FileFormatOptions
    from gazette_spark._options.table import Use

    class FormatTable(LedgerTable, Protocol):
        """A table to which a format writes."""

        def prepare(self, schema: StructType) -> tuple[FileTarget, str]:
            """Create a missing table; return where tasks write rows, and the table's shape."""
            ...

        def checkpoint_files(self, root: str) -> CheckpointReader:
            """Return a reader of the query checkpoint."""
            ...


class TableKind:
    """The parts that differ between table formats. Each format has a class with these methods."""

    name: str
    """The format's name."""
    reads: str
    """How to read such a table."""
    complete: str
    """Advice on output modes whose batches repeat rows."""
    without_arrow: str
    """Advice for releases of Spark that pass no Arrow batches to a stream's writer."""

    @staticmethod
    def parse(options: Mapping[str, str], use: Use | None) -> FileFormatOptions:
        """Parse the options that Spark passes."""
        raise NotImplementedError

    @staticmethod
    def open(options: Any, checkpoint: str | None) -> FormatTable:  # noqa: ANN401 - the format's options.
        """Return the table. Nothing is read yet."""
        raise NotImplementedError


@hide_internal_frames
class FileFormat(DataSource):
    """A format for files that tasks write. A subclass names the kind of its tables."""

    kind: type[TableKind]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Spark's documentation asks not to override this, but it is the first call, at start() or save().
        super().__init__(options)
        self.kind.parse(options, None)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.kind.name

    def schema(self) -> NoReturn:
        """Refuse to read."""
        raise OptionError("format", f"{self.kind.name} to read", self.kind.reads)

    def writer(self, schema: StructType, overwrite: bool) -> FileBatchWriter:  # noqa: FBT001 - Spark's call.
        """Return the writer of ``df.write``."""
        return FileBatchWriter(self.kind, self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> FileStreamWriter:  # noqa: FBT001, N802
        """Return the writer of ``df.writeStream``."""
        # Spark 4.0 passes rows to a stream's writer, with one Python object for each value.
        if not ARROW_STREAM_WRITES:
            got = f"Spark {pyspark.__version__}, which passes no Arrow batches to a stream's writer"
            raise OptionError("format", got, f"Spark 4.1 or later{self.kind.without_arrow}")
        return FileStreamWriter(self.kind, self.options, schema, overwrite=overwrite)


@dataclass
class WrittenFiles(WriterCommitMessage):
    """The data files that a task has written."""

    files: Sequence[Row]
    """Descriptions of the files, as rows of ``FILES_SCHEMA``."""
    shape: str
    """Shape of the table for which they were written."""
    query_id: str | None = None
    """Id of the stream's query, from the properties of the task's job."""


@hide_internal_frames
class _FileWriter:
    """Shared code of the writers of streams and batches: the table, and a task's work.

    ``abort`` is PySpark's, which does nothing: Spark also calls it after a commit that raised an error, and
    that commit may have succeeded. Files to which no version refers are left to the table's clean-up.
    """

    def __init__(
        self, kind: type[TableKind], options: FileFormatOptions, schema: StructType, checkpoint: str | None
    ) -> None:
        from gazette_spark._ledger.decision import Allowed
        from gazette_spark._ledger.entry import check_app_id, parse_gaps

        check_app_id("appId", options.app_id)
        gaps = parse_gaps("acceptGaps", options.accept_gaps or {})
        self._allowed = Allowed(gaps=gaps, restart=options.restart)
        self._kind, self._options = kind, options
        self._schema, self._checkpoint = schema, checkpoint
        self._table: FormatTable | None = kind.open(options, checkpoint)
        # This happens before any task runs, so that rows that do not fit are refused early. The table has to
        # exist, because the files are written for its columns and id.
        self._target, self._shape = self._table.prepare(schema)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target.table}, {self._options.app_id!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks need, without the opened table."""
        return vars(self) | {"_table": None}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write a task's rows to files to which no commit refers yet. Runs on executors."""
        from pyspark import TaskContext

        from gazette_spark._data_files.writer import written_files

        context = TaskContext.get()
        origin = f"partition {context.partitionId() if context else 0} of the batch"
        files = written_files([(origin, iterator)], self._target)
        # The commit compares this id with the query checkpoint: Spark and this process may resolve the same
        # path to two places, and offsets of another query must not be committed with these rows.
        query_id = context.getLocalProperty(QUERY_ID) if context else None
        return WrittenFiles([Row(**file) for file in files], self._shape, query_id)

    def _batches(self) -> tuple[FormatTable, FileBatches]:
        """Return the table, and the stream's batches in it."""
        from gazette_spark._ledger.file_batches import FileBatches

        # This writer was unpickled in another process, so call prepare again: the commit needs its results,
        # such as the rows' columns.
        if self._table is None:
            self._table = self._kind.open(self._options, self._checkpoint)
            self._table.prepare(self._schema)
        return self._table, FileBatches(self._table, self._options.app_id, self._allowed)


@hide_internal_frames
class FileStreamWriter(_FileWriter, ArrowStreamWriter):
    """Writes the rows of ``df.writeStream``."""

    def __init__(
        self, kind: type[TableKind], options: Mapping[str, str], schema: StructType, *, overwrite: bool
    ) -> None:
        # Spark passes the mode complete as overwrite. Then each batch is the whole result, and rows that are
        # no longer in it would have to be deleted.
        if overwrite:
            raise OptionError("outputMode", "complete", kind.complete)
        checkpoint = _checkpoint(options)
        if checkpoint is None:
            # Spark may have chosen a directory, from a setting or a temporary one, but does not report it.
            expected = "the query's checkpoint directory, whose offsets go into the table with the rows"
            raise OptionError("checkpointLocation", "nothing", expected)
        super().__init__(kind, kind.parse(options, "stream"), schema, checkpoint)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the files of all tasks with the batch's ledger entry, unless the table has the batch."""
        from gazette_spark._ledger.file_batches import BatchFiles

        if None in messages:
            # Spark 4.2 accepts a continuous trigger, but runs no writer in the tasks and drops their rows.
            got = "continuous, under which Spark passes a Python writer no rows"
            raise OptionError("trigger", got, "processingTime or availableNow")
        # Use the shape of the table for which the tasks wrote, not the one in this process: the two differ if
        # the table was altered in between.
        files, shape = _reported(messages, self._shape)
        query_ids = (message.query_id for message in messages if isinstance(message, WrittenFiles))
        table, batches = self._batches()
        root = self._checkpoint
        assert root is not None
        batches.commit_planned(
            table.checkpoint_files(root), root, batchId, next(query_ids, None), BatchFiles(files, shape)
        )


@hide_internal_frames
class FileBatchWriter(_FileWriter, DataSourceArrowWriter):
    """Writes the rows of ``df.write``."""

    def __init__(
        self, kind: type[TableKind], options: Mapping[str, str], schema: StructType, *, overwrite: bool
    ) -> None:
        if overwrite:
            raise OptionError("mode", "overwrite", "append, with .mode('append')")
        super().__init__(kind, kind.parse(options, "batch"), schema, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks with their ledger entry, unless the table has the offsets."""
        from gazette_spark._ledger.file_batches import BatchFiles

        files = BatchFiles(*_reported(messages, self._shape))
        begin, end = self._options.starting_offsets, self._options.ending_offsets
        assert begin is not None
        assert end is not None
        # The ledger would find nothing to write in such a range, and the rows would be lost.
        if files.files and begin.read_through == end.read_through:
            rows = sum(file.rows for file in files.files)
            expected = "the offsets at which the batch ends: it has rows, but the range has no bytes"
            raise OptionError("endingOffsets", f"startingOffsets, for {rows} rows", expected)
        self._batches()[1].commit_range(begin, end, lambda: files)


def _reported(messages: Sequence[WriterCommitMessage | None], shape: str) -> tuple[list[Row], str]:
    """Return the files that tasks report, and the shape of the table for which they were written."""
    # Spark passes the messages of one attempt of each task. No commit names the files of the others.
    written = [message for message in messages if isinstance(message, WrittenFiles) and message.files]
    files = [file for message in written for file in message.files]
    return files, written[0].shape if written else shape


def _checkpoint(options: Mapping[str, str]) -> str | None:
    return next((text for name, text in options.items() if name.lower() == "checkpointlocation"), None)
