"""Spark's writers of the data source ``gazette``: rows as records of journals, batch and stream.

This file translates only. A writer is made on the driver, in a Python process of Spark's, before anything is
written: there schema and options are checked, and the journals they name are looked up. It is then pickled to
the tasks, each of which opens a client. A task's commit message reports its appends; the driver logs it.

Rows are written at least once: Spark may run a task, or a micro-batch, again; earlier appends stay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from gazette_spark.client import Client
from gazette_spark.errors import OptionError
from gazette_spark.failpoints import failpoint
from gazette_spark.options.write import WriteOptions
from gazette_spark.scan.access import access, carried
from gazette_spark.write.columns import write_columns
from gazette_spark.write.task import Appended, Targets, TaskWriter, open_service

log = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """A task's appends, by journal."""

    journals: Mapping[str, Appended] = field(default_factory=dict)


class _Writer:
    """Shared code of the writers of streams and batches: checks, and a task's work."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            expected = "append, with .mode('append') or .outputMode('append'): journals only grow"
            raise OptionError("mode", "overwrite, or complete", expected)
        columns = [(column.name, column.dataType.simpleString()) for column in schema.fields]
        # Spark makes a writer for each batch: tasks get what the files hold now.
        self._options = replace(options, security=carried(options.security))
        self._columns = write_columns(columns, options)
        if options.target is not None:
            with open_client(options) as client:
                Targets(client, options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.target}, {self._options.broker_address})"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append a task's rows, and return when all of them are in their journals. Runs on executors."""
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        task: TaskWriter | None = None
        with open_client(self._options) as client:
            service = open_service(client, self._options)
            try:
                for record_batch in iterator:
                    if task is None:  # A task without rows connects to nothing.
                        targets = Targets(client, self._options)
                        rng = np.random.default_rng()
                        task = TaskWriter(
                            service, targets, self._options, self._columns, partition=partition, rng=rng
                        )
                    task.write(record_batch)
                    failpoint("writer.rows")
                done = Written(task.finish() if task else {})
                failpoint("writer.written")
                return done
            finally:
                # Nothing waits any more, unless the task has failed: then nothing more is appended.
                service.close(abort=True)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of ``df.write``."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the written bytes: the rows are in the journals already."""
        _log("wrote", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the bytes that a failed query leaves in the journals."""
        _log("failed, and rows it wrote stay in their journals", messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the micro-batches of ``df.writeStream``."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Log the written bytes."""
        _log(f"wrote batch_id={batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the bytes that a failed micro-batch leaves in the journals: the retry writes them again."""
        _log(f"failed, and rows it wrote stay in their journals batch_id={batchId}", messages)


def open_client(options: WriteOptions) -> Client:
    """Return a client as the options say. The caller closes it."""
    return Client(
        options.broker_address,
        timeout_s=options.request_timeout_ms / 1000,
        connect_timeout_s=options.connect_timeout_ms / 1000,
        **access(options.security),
    )


def _log(event: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message.journals for message in messages if isinstance(message, Written)]
    done = [each for journals in written for each in journals.values()]
    names = {name for journals in written for name in journals}
    rows, size = sum(each.rows for each in done), sum(each.bytes for each in done)
    log.info("%s rows=%d bytes=%d journals=%d tasks=%d", event, rows, size, len(names), len(messages))
