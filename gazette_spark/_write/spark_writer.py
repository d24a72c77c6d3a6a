"""Spark's writers of the data source ``gazette``, which write rows as records of journals.

This file only translates. Spark creates a writer in a Python process on the driver before anything is
written. The constructor checks schema and options, and looks up the journals that they name. Spark then sends
the writer to the tasks, each of which opens a client. A task's commit message reports its appends, and the
driver logs them.

Rows are written at least once: Spark may run a task, or a micro-batch, again; earlier appends stay.

With ``deliveryGuarantee=exactly_once`` tasks write messages of transactions, and hand their intents to the
driver, which commits them: :mod:`gazette_spark._write.transactions`. On the driver, Spark gives a writer
neither the query nor the run. Tasks see both as local properties of their job, and hand them over as well.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from gazette_spark._frames import hide_internal_frames
from gazette_spark._options.write import WriteOptions
from gazette_spark._planning.access import access, security_for_tasks
from gazette_spark._write.columns import write_columns
from gazette_spark._write.producer import TaskIntent, TaskProducer
from gazette_spark._write.task import Targets, TaskAppends, TaskWriter, open_service
from gazette_spark._write.transaction_journal import check_transaction_journal, commit_transaction
from gazette_spark._write.transactions import Attempt
from gazette_spark.client import Client
from gazette_spark.errors import GazetteError, OptionError, TransactionError
from gazette_spark.failpoints import failpoint
from gazette_spark.message.publisher import AckIntent, write_ack_intents
from gazette_spark.spark_versions import QUERY_ID, ArrowStreamWriter

log = logging.getLogger(__name__)


BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""Local properties of a stream's jobs, beside the query's id. The job group is the run's id."""

ROWS_AT_ONCE = 10_000
"""Rows of each record batch that we build from rows: Spark's default."""

ROLLBACK_TIMEOUT_S = 10.0
"""Time limit for a failed task to roll its rows back."""


@dataclass(frozen=True)
class TaskJob:
    """The job of a task, as Spark's local properties name it."""

    query: str | None = None
    run: str | None = None
    batch: str | None = None


@dataclass
class Written(WriterCommitMessage):
    """A task's appends by journal and, for exactly-once writes, the intents that commit them."""

    journals: Mapping[str, TaskAppends] = field(default_factory=dict)
    intents: Sequence[TaskIntent] = ()
    job: TaskJob = TaskJob()


@hide_internal_frames
class _Writer:
    """Shared code of the writers of streams and batches: checks, and a task's work."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            expected = "append, with .mode('append') or .outputMode('append'): journals only grow"
            raise OptionError("mode", "overwrite, or complete", expected)
        columns = [(column.name, column.dataType.simpleString()) for column in schema.fields]
        # Spark creates a writer for each batch, so tasks get the current content of token and key files.
        self._options = replace(options, security=security_for_tasks(options.security))
        self._columns = write_columns(columns, options)
        # Mistakes in names are found before the first task starts. With the column `journal` there is nothing
        # to look up yet.
        if options.target is not None or options.transaction_journal is not None:
            with open_client(options) as client:
                Targets(client, options)
                if options.transaction_journal is not None:
                    check_transaction_journal(client, options.transaction_journal)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.target}, {self._options.broker_address})"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append a task's rows, and return when all of them are in their journals. Runs on executors."""
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        job = TaskJob()
        if context:
            job = TaskJob(*(context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID, BATCH_ID)))
        # Use a new producer for each attempt. Two attempts of a task, such as a speculative copy, would
        # otherwise share clocks, and readers would drop rows of both as copies: see decision 29.
        producer = None
        if self._options.exactly_once:
            producer = TaskProducer(self._options.uuid_path, time.time_ns())
        task: TaskWriter | None = None
        with open_client(self._options) as client:
            service = open_service(client, self._options)
            try:
                for record_batch in iterator:
                    if task is None:  # A task without rows needs no connection.
                        targets = Targets(client, self._options)
                        rng = np.random.default_rng()
                        task = TaskWriter(
                            service,
                            targets,
                            self._options,
                            self._columns,
                            partition=partition,
                            rng=rng,
                            producer=producer,
                        )
                    task.write(record_batch)
                    failpoint("writer.rows")
                done = Written(task.finish() if task else {}, producer.intents() if producer else (), job)
                failpoint("writer.written")
                return done
            except Exception:
                if producer:
                    # Flush first: an append that arrives after the rollback would open the transaction again.
                    with suppress(GazetteError):
                        service.flush(ROLLBACK_TIMEOUT_S)
                    self._roll_back(client, producer.intents())
                raise
            finally:
                # After success no append is pending. After a failure, pending appends are dropped.
                service.close(abort=True)

    def _roll_back(self, client: Client, intents: Sequence[TaskIntent]) -> None:
        """Roll back rows that nobody will commit. This is best effort: without it, readers buffer them."""
        try:
            write_ack_intents(
                client,
                (AckIntent(intent.journal, intent.rollback) for intent in intents),
                timeout_s=ROLLBACK_TIMEOUT_S,
            )
        except GazetteError as error:
            log.warning("writer.not_rolled_back journals=%d error=%s", len(intents), error)

    def _commit(
        self, messages: Sequence[WriterCommitMessage | None], query: str, batch: int | None, author: str
    ) -> None:
        """Commit the rows of all tasks, or the rows of an earlier attempt that is recorded already."""
        options = self._options
        assert options.transaction_journal is not None
        written = [message for message in messages if isinstance(message, Written)]
        # The intents of all tasks become one append per journal, so that all of a batch's rows in a journal
        # become visible to readers at the same time.
        intents: dict[str, bytes] = {}
        rollbacks: dict[str, bytes] = {}
        for intent in (intent for message in written for intent in message.intents):
            intents[intent.journal] = intents.get(intent.journal, b"") + intent.commit
            rollbacks[intent.journal] = rollbacks.get(intent.journal, b"") + intent.rollback
        rows = sum(appends.rows for message in written for appends in message.journals.values())
        first = options.transaction_first_batch
        attempt = Attempt(query, batch, author, intents, rows, first)
        with open_client(options) as client:
            commit_transaction(client, options.transaction_journal, attempt, rollbacks)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Roll back the tasks of a job that failed before its commit began.

        If every task has sent a message, the commit may have begun and recorded the rows, so they stay.
        """
        # Spark also aborts after a failed commit, and the record may be in the transaction journal, or still
        # on its way to it. Rolling back then would lose rows for good. A missing message proves that no
        # commit was begun.
        if not self._options.exactly_once or None not in messages:
            return
        written = [message for message in messages if isinstance(message, Written)]
        with open_client(self._options) as client:
            self._roll_back(client, [intent for message in written for intent in message.intents])


@hide_internal_frames
class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of ``df.write``."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.transaction_first_batch is not None:
            raise OptionError("transactionFirstBatch", "a batch write", "to be used by a stream only")
        super().__init__(options, schema, overwrite=overwrite)
        self._transaction = options.transaction_id or uuid.uuid4().hex
        """Created here because Spark sends this same object to the tasks and uses it for the commit."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit exactly-once rows, and log what was written: other rows are in the journals already."""
        if self._options.exactly_once:
            self._commit(messages, self._transaction, None, uuid.uuid4().hex)
        _log("wrote", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Roll exactly-once rows back, and log the bytes that a failed query leaves in the journals."""
        self._abort(messages)
        _log("failed, and rows it wrote stay in their journals", messages)


@hide_internal_frames
class StreamWriter(_Writer, ArrowStreamWriter):
    """Writes the micro-batches of ``df.writeStream``."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.transaction_id is not None:
            raise OptionError("transactionId", "a stream", "to be used by a batch write only")
        super().__init__(options, schema, overwrite=overwrite)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """Commit exactly-once rows, and log the written bytes."""
        if None in messages:
            # Spark 4.2 accepts a continuous trigger, runs no writer in its tasks, and drops their rows.
            got = "continuous, under which Spark passes a Python writer no rows"
            raise OptionError("trigger", got, "processingTime or availableNow")
        if self._options.exactly_once:
            # The driver knows neither the query nor the run, so the tasks report them. If they disagree, this
            # Spark passes the properties differently, and a wrong id would commit a batch twice or not at
            # all.
            jobs = {message.job for message in messages if isinstance(message, Written)}
            job = jobs.pop() if len(jobs) == 1 else TaskJob()
            if not (job.query and job.run) or job.batch != str(batchId):
                problem = f"the tasks of batch {batchId} do not name one query, run and batch, but {job}"
                advice = "Write with deliveryGuarantee=at_least_once under this Spark, and report it"
                raise TransactionError(str(self._options.transaction_journal), problem, advice)
            self._commit(messages, str(job.query), batchId, str(job.run))
        _log(f"wrote batch_id={batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Roll exactly-once rows back, and log the bytes that a failed micro-batch leaves in the journals.

        The retry writes them again.
        """
        self._abort(messages)
        _log(f"failed, and rows it wrote stay in their journals batch_id={batchId}", messages)


@hide_internal_frames
class RowStreamWriter(StreamWriter):
    """Writes the micro-batches of Spark 4.0, which passes rows, not record batches, to a stream's writer."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> Written:
        """Append a task's rows. Runs on executors."""
        return super().write(record_batches(iterator, self._schema))


def record_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches, with the conversion that later releases of Spark do themselves."""
    from pyspark.sql.conversion import LocalDataToArrowConversion  # Only Spark 4.0 has it.

    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        table = LocalDataToArrowConversion.convert(chunk, schema, use_large_var_types=False)
        yield from table.combine_chunks().to_batches()


def open_client(options: WriteOptions) -> Client:
    """Return a client with the options. The caller closes it."""
    return Client(
        options.broker_address,
        timeout_s=options.request_timeout_ms / 1000,
        connect_timeout_s=options.connect_timeout_ms / 1000,
        **access(options.security),
    )


def _log(event: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message.journals for message in messages if isinstance(message, Written)]
    names = {name for journals in written for name in journals}
    rows = sum(appends.rows for journals in written for appends in journals.values())
    size = sum(appends.bytes for journals in written for appends in journals.values())
    log.info("%s rows=%d bytes=%d journals=%d tasks=%d", event, rows, size, len(names), len(messages))
