"""The Spark data source ``gazette_delta``: any DataFrame into a Delta table, exactly once.

``df.writeStream.format("gazette_delta")`` and ``df.write.format("gazette_delta")`` write what ``DeltaSink``
and :func:`~gazette_spark.ingest` write, on the same ledger. Tasks write Parquet from Arrow batches, and the
driver commits the names of the files with the ledger entry in one Delta commit.

This file translates Spark's calls. The processes, and the state of an instance in each:

- On the driver Spark makes a :class:`DeltaFormat` at ``start()`` or ``save()``, which checks the options.
- For each batch it makes a writer in a separate Python process on the driver. The constructor makes the
  table if there is none, and compares its columns with those of the rows. Spark pickles the writer then.
- On executors ``write`` runs in other processes. Each attempt of a task writes files with unique names.
- ``commit`` runs in one more process on the driver: that of a stream has a writer of its own, that of a batch
  the pickled one. Spark passes it the number of the batch, and the messages of one attempt of each task. The
  offsets of the batch come from the query checkpoint, whose location Spark passes as an option.

Modules that need more than this translation are loaded by the writers, because PySpark imports this one in
any session that uses a Python data source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from gazette_spark._frames import hide_internal_frames
from gazette_spark.errors import OptionError
from gazette_spark.spark_versions import ARROW_STREAM_WRITES, QUERY_ID, ArrowStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from gazette_spark._delta.format_table import FormatTable
    from gazette_spark._options.delta_format import DeltaFormatOptions
    from gazette_spark._options.table import Use

FORMAT = "gazette_delta"

_WITH_SINK = (
    "append. DeltaSink(upsert=Upsert(keys)) takes update and complete, whose batches give the row of a group "
    "again and again"
)


@hide_internal_frames
class DeltaFormat(DataSource):
    """Writes Delta tables; the options are in :mod:`gazette_spark._options.delta_format`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Spark asks not to override this, but it is the first call, at start() or save().
        super().__init__(options)
        _parsed(options, None)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> NoReturn:
        """Refuse to read."""
        raise OptionError("format", f"{FORMAT} to read", "'delta': the table is a Delta table like any other")

    def writer(self, schema: StructType, overwrite: bool) -> DeltaBatchWriter:  # noqa: FBT001 - Spark's call.
        """Return the writer of ``df.write``."""
        return DeltaBatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DeltaStreamWriter:  # noqa: FBT001, N802
        """Return the writer of ``df.writeStream``."""
        if not ARROW_STREAM_WRITES:
            got = f"Spark {pyspark.__version__}, which passes no Arrow batches to a stream's writer"
            raise OptionError("format", got, "Spark 4.1 or later, or DeltaSink.start")
        return DeltaStreamWriter(self.options, schema, overwrite=overwrite)


@dataclass
class WrittenFiles(WriterCommitMessage):
    """The data files that a task has written."""

    files: Sequence[Row]
    """By ``FILES_SCHEMA``."""
    shape: str
    """Shape of the table that they were written for."""
    query_id: str | None = None
    """The stream's query, as the task's job names it."""


@hide_internal_frames
class _FileWriter:
    """Shared code of the writers of streams and batches: the table, and a task's work.

    ``abort`` stays PySpark's, which does nothing: Spark also calls it after a commit that raised an error,
    and that commit may have succeeded. Files to which no version refers are left to VACUUM.
    """

    def __init__(self, options: DeltaFormatOptions, schema: StructType, checkpoint: str | None) -> None:
        from gazette_spark._delta.format_table import FormatTable

        self._options = options
        self._checkpoint = checkpoint
        self._table: FormatTable | None = FormatTable(options, checkpoint)
        self._target, self._shape = self._table.prepare(schema)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target.table}, {self._options.app_id!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need, without the opened table."""
        return vars(self) | {"_table": None}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        """Write a task's rows to files that no commit refers to yet. Runs on executors."""
        from pyspark import TaskContext

        from gazette_spark._data_files.writer import written_files

        context = TaskContext.get()
        origin = f"partition {context.partitionId() if context else 0} of the batch"
        files = written_files([(origin, iterator)], self._target)
        query_id = context.getLocalProperty(QUERY_ID) if context else None
        return WrittenFiles([Row(**file) for file in files], self._shape, query_id)

    def _opened(self) -> FormatTable:
        if self._table is None:
            from gazette_spark._delta.format_table import FormatTable

            self._table = FormatTable(self._options, self._checkpoint)
        return self._table


@hide_internal_frames
class DeltaStreamWriter(_FileWriter, ArrowStreamWriter):
    """Writes the rows of ``df.writeStream``."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("outputMode", "complete", _WITH_SINK)
        checkpoint = _checkpoint(options)
        if checkpoint is None:
            # Spark may have made one of its own, by a setting or in a temporary directory. It does not say.
            expected = "the query's checkpoint directory, whose offsets go into the table with the rows"
            raise OptionError("checkpointLocation", "nothing", expected)
        super().__init__(_parsed(options, "stream"), schema, checkpoint)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the files of all tasks with the batch's ledger entry, or find the batch in the table."""
        if None in messages:
            # Spark 4.2 takes a continuous trigger, runs no writer in its tasks, and drops their rows.
            got = "continuous, under which Spark passes a Python writer no rows"
            raise OptionError("trigger", got, "processingTime or availableNow")
        files, shape = _reported(messages, self._shape)
        query_ids = (message.query_id for message in messages if isinstance(message, WrittenFiles))
        self._opened().commit_batch(batchId, next(query_ids, None), files, shape)


@hide_internal_frames
class DeltaBatchWriter(_FileWriter, DataSourceArrowWriter):
    """Writes the rows of ``df.write``."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("mode", "overwrite", "append, with .mode('append')")
        super().__init__(_parsed(options, "batch"), schema, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the files of all tasks with their ledger entry, unless the table has the offsets."""
        self._opened().commit_range(*_reported(messages, self._shape))


def _reported(messages: Sequence[WriterCommitMessage | None], shape: str) -> tuple[list[Row], str]:
    """Return the files that tasks report, and the shape of the table that they were written for."""
    written = [message for message in messages if isinstance(message, WrittenFiles) and message.files]
    files = [file for message in written for file in message.files]
    return files, written[0].shape if written else shape


def _parsed(options: Mapping[str, str], use: Use | None) -> DeltaFormatOptions:
    from gazette_spark._options.delta_format import parse_delta_format_options

    return parse_delta_format_options(options, use)


def _checkpoint(options: Mapping[str, str]) -> str | None:
    return next((text for name, text in options.items() if name.lower() == "checkpointlocation"), None)
