"""The Spark data source ``gazette``: journals as streaming and batch DataFrames.

This file translates Spark's calls and decides nothing. An instance lives in these processes:

- On the driver, Spark makes a :class:`GazetteDataSource` at ``load()``, which checks the options. Spark then
  keeps one reader in a separate Python process for as long as the query runs. The reader asks a
  :class:`~gazette_spark._planning.plan.Planner` for positions and for the pieces of each batch. The
  planner and its client are created by the first such call and exist only in that process.
- On executors, ``read`` runs in other processes. Its reader was pickled before the planner existed and has
  only the options, the schema and the content of the file ``descriptorFile``. Everything about the batch
  comes with the :class:`PiecePartition`: the range, the journal's framing, the token and certificates that
  the driver's files held when the batch was planned, and the credentials that an Iceberg catalog gave out for
  the batch. ``read`` opens a client, yields Arrow record batches, and closes the client.

A task that is repeated therefore reads the same bytes.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from gazette_spark._frames import hide_internal_frames, without_internal_frames
from gazette_spark.errors import GazetteError, MissingModuleError, OptionError

try:
    import pyarrow as pa
except ModuleNotFoundError as missing:
    # This is the first import to fail in a worker whose Python is not the driver's.
    raise MissingModuleError(missing.name or "pyarrow") from None
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from gazette_spark._data_files.target import FileTarget, StoreAccess
from gazette_spark._options.security import OPEN, Security
from gazette_spark._options.source import SourceOptions, parse_options
from gazette_spark._options.table import TARGET_OPTION
from gazette_spark._options.write import checked_address, parse_write_options, spark_purpose
from gazette_spark._planning.access import TaskCredentials, open_journals, opened_pieces
from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.columns import RAW_SCHEMA
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.task import RowReader
from gazette_spark._planning.tracked_position import TrackedPosition
from gazette_spark.failpoints import failpoint
from gazette_spark.offsets import MAX_OFFSET, JournalOffsets
from gazette_spark.spark_versions import (
    ADMISSION_CONTROL,
    ARROW_STREAM_WRITES,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from gazette_spark.version import VERSION

if TYPE_CHECKING:
    # Spark starts a process for each kind of call to a source. Most of these processes need neither gRPC, nor
    # the planner, nor the writers.
    from gazette_spark._data_files.store_credentials import StoreCredentials
    from gazette_spark._planning.gaps import GapsReader
    from gazette_spark._planning.plan import Planner
    from gazette_spark._write.spark_writer import BatchWriter, StreamWriter
    from gazette_spark.client import Client

log = logging.getLogger(__name__)


@hide_internal_frames
class GazetteDataSource(DataSource):
    """Journals of a Gazette cluster. :data:`gazette_spark._options.source.OPTIONS` has the options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Spark advises against overriding this method. But it is always the first call: at load(), or, in
        # Spark 4.2, when a query with a user's schema starts. So the user sees the error about an invalid
        # option.
        super().__init__(options)
        # The address may come from the environment of the driver, which executors do not share. So it becomes
        # an option, which travels with the query.
        if address := checked_address(options, spark_purpose()):
            options["brokerAddress"] = address

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "gazette"

    def schema(self) -> StructType:
        """Return the columns of a query without a user's schema: raw columns, or inferred ones."""
        options = parse_options(self.options)
        if options.read_gaps:
            from gazette_spark._planning.gaps import GAPS_SCHEMA

            return GAPS_SCHEMA
        if options.infer_schema:
            # Imported here because Spark starts many processes, and few of them infer a schema.
            from gazette_spark._planning.inference import query_schema

            return query_schema(options, lambda: open_journals(options))
        if options.format not in (None, "raw"):
            expected = "columns in .schema(...), or inferSchema=true"
            raise OptionError("format", f"{options.format} without a schema", expected)
        return RAW_SCHEMA

    def reader(self, schema: StructType) -> BatchReader | GapsReader:
        """Return the reader of ``spark.read``."""
        options = parse_options(self.options, "batch")
        files = file_target(self.options)
        if options.read_gaps:
            from gazette_spark._planning.gaps import GapsReader

            return GapsReader(options, schema, open_journals)
        return BatchReader(options, schema, files)

    def streamReader(self, schema: StructType) -> BaseStreamReader:  # noqa: N802 - Spark's name.
        """Return the reader of ``spark.readStream``."""
        kind = StreamReader if ADMISSION_CONTROL else TrackingStreamReader
        try:
            return kind(parse_options(self.options, "stream"), schema, file_target(self.options))
        except GazetteError as error:
            return RefusedStream(without_internal_frames(error))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's call.
        """Return the writer of ``df.write``."""
        from gazette_spark._write.spark_writer import BatchWriter

        return BatchWriter(parse_write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Return the writer of ``df.writeStream``."""
        from gazette_spark._write.spark_writer import RowStreamWriter, StreamWriter

        kind = StreamWriter if ARROW_STREAM_WRITES else RowStreamWriter
        return kind(parse_write_options(self.options), schema, overwrite=overwrite)


class PiecePartition(InputPartition):
    """One task's work: one piece of a journal or several small ones, and the credentials to read them."""

    def __init__(self, *pieces: Piece, security: Security = OPEN, store: StoreAccess | None = None) -> None:
        self.pieces = pieces
        self.security = security
        self.store = store

    def __getstate__(self) -> dict[str, Any]:
        """Return the state, with the release that made it."""
        return {**vars(self), "release": VERSION}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state; refuse that of another release, whose driver has started this task.

        Raises:
            OptionError: naming both releases.
        """
        # Options are pickled by position. A release with other options would take the value of one for that
        # of another, such as failOnDataLoss.
        if (sender := state.pop("release", None)) != VERSION:
            got = f"release {VERSION} of gazette_spark on {socket.gethostname()}, and {sender} on the driver"
            expected = "one release everywhere: install it, then start the query again"
            raise OptionError("PYSPARK_PYTHON", got, expected)
        vars(self).update(state)


@hide_internal_frames
class _Reader:
    """Shared code of the readers of streams and batches: makes a batch's tasks, and reads in a task."""

    def __init__(self, options: SourceOptions, schema: StructType, files: FileTarget | None = None) -> None:
        self._options = options
        self._files = files
        # If tasks write data files, Spark's schema describes the rows about those files.
        self._rows = RowReader.of(options, schema if files is None else files.columns_read)
        self._credentials = TaskCredentials(options.security)
        self._store: StoreCredentials | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.selection}, {self._options.origin})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that tasks need."""
        # Spark pickles the reader for each batch and sends it to each task.
        rows, files = self._rows.for_tasks(), self._files and self._files.for_tasks()
        return {**vars(self), "_rows": rows, "_options": rows.options, "_files": files, "_store": None}

    def _partitions(self, planner: Planner, pieces: Iterable[Piece]) -> list[InputPartition]:
        tasks = self._rows.group(planner, pieces)
        security, store = self._credentials.snapshot(), None
        # An Iceberg catalog may give out credentials for a table's store that expire.
        layout = self._files.iceberg if self._files else None
        if layout is not None and layout.issuer is not None:
            if self._store is None:
                # Imported here because few queries write to such a store.
                from gazette_spark._data_files.store_credentials import StoreCredentials

                self._store = StoreCredentials(layout.issuer)
            store = self._store.snapshot()
        return [PiecePartition(*task, security=security, store=store) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's pieces. Runs on executors."""
        failpoint("source.read")
        # Spark reads one empty partition if a batch query has no partitions.
        if not isinstance(partition, PiecePartition):
            return
        rows, options = self._rows, replace(self._options, security=partition.security)
        opened = opened_pieces(options, partition.pieces)
        if self._files is None:
            for journals, piece in opened:
                yield from rows.rows(journals, piece)
            return
        from gazette_spark._data_files.writer import write_files  # Few queries write data files.

        pieces = (
            (f"journal={piece.journal} begin={piece.begin} end={piece.end}", rows.rows(journals, piece))
            for journals, piece in opened
        )
        yield from write_files(pieces, self._files.entered_by(partition.store))


@hide_internal_frames
class BatchReader(_Reader, DataSourceReader):
    """Reads ``[startingOffsets, endingOffsets)`` once."""

    def partitions(self) -> list[InputPartition]:
        """Fix the query's ends and cut the range between into pieces."""
        from gazette_spark._planning.plan import Planner
        from gazette_spark._planning.stores import with_fragments

        failpoint("source.partitions")
        with open_journals(self._options) as journals:
            planner = Planner(journals, self._options)
            pieces = planner.pieces(*planner.batch())
            return self._partitions(planner, with_fragments(journals, pieces, self._options))


@hide_internal_frames
class BaseStreamReader(_Reader, DataSourceStreamReader):
    """Follows journals. The module's docstring says which process has which state."""

    def __init__(self, options: SourceOptions, schema: StructType, files: FileTarget | None = None) -> None:
        super().__init__(options, schema, files)
        self._client: Client | None = None
        self._planner: Planner | None = None

    def partitions(self, start: dict[str, Any] | None, end: dict[str, Any]) -> list[InputPartition]:
        """Cut the batch ``[start, end)``."""
        failpoint("source.partitions")
        reached = JournalOffsets.from_dict(end)
        # This batch only records the query's start. It reads nothing, regardless of the start that Spark
        # passes.
        if reached.position == "pinned":
            return []
        position = JournalOffsets.from_dict(start)
        return self._partitions(self._plan(), self._plan().pieces(position, reached))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the query checkpoint, or the sink's table, records progress."""

    def stop(self) -> None:
        """Close the client. Spark may also end the process without this call."""
        if self._planner is not None:
            # The planner's watch uses the client, so it ends first.
            self._planner.close()
            self._planner = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def _plan(self) -> Planner:
        if self._planner is None:
            from gazette_spark._planning.plan import stream_planner

            self._planner, self._client = stream_planner(self._options)
        return self._planner


@hide_internal_frames
class StreamReader(BaseStreamReader, SupportsTriggerAvailableNow):
    """Plans batches for Spark 4.2 and later, which pass the start and the limit of each batch."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are those below.
        """Return the start of a new query."""
        return self._plan().initial().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxBytesPerTrigger``, or no limit.

        Spark passes the limit back with each trigger, and supports only one. If other limits are set, this
        one represents all of them.
        """
        limits = ReadLimits.of(self._options)
        if limits == ReadLimits():
            return ReadAllAvailable()
        # `ReadAllAvailable` would disable the other limits, because Trigger.Once passes it to mean no limit
        # at all.
        return ReadMaxBytes(MAX_OFFSET if limits.max_bytes is None else limits.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the current write heads as the end of this run."""
        self._plan().freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the batch that begins at ``start``, or ``start`` if nothing is new."""
        failpoint("source.latest_offset")
        position = JournalOffsets.from_dict(start)
        if position.position == "initial" and type(limit) is not type(self.getDefaultReadLimit()):
            # Spark does not name the trigger. Trigger.Once can be recognised only by the absence of a limit
            # that an option sets.
            log.warning(
                "Trigger.Once runs the first batch only, which records the start and reads nothing: "
                "run it again, or use Trigger.AvailableNow"
            )
        return self._plan().next(position, self._limits(limit)).to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest known write heads and open transactions, for the query's progress."""
        return None if self._planner is None else self._planner.report()

    def _limits(self, limit: ReadLimit) -> ReadLimits:
        match limit:
            case ReadAllAvailable():
                return ReadLimits()
            case ReadMaxBytes(max_bytes=max_bytes):
                return replace(ReadLimits.of(self._options), max_bytes=max_bytes)
        raise OptionError("trigger", f"the read limit {limit}", "maxBytesPerTrigger or no limit")


@hide_internal_frames
class TrackingStreamReader(BaseStreamReader):
    """Plans batches for Spark 4.0 and 4.1, which request the end of a batch without passing its start.

    It tracks the batches and so knows where the next one begins. The options' limits apply to every batch.
    """

    def __init__(self, options: SourceOptions, schema: StructType, files: FileTarget | None = None) -> None:
        super().__init__(options, schema, files)
        self._position = TrackedPosition()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of a new query, or of a first batch that is repeated."""
        return self._position.first(self._first).to_dict()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark 4.0's form.
        """Return the end of the next batch, or of the previous one if nothing is new."""
        failpoint("source.latest_offset")
        if not self._position.is_known:
            log.warning(
                "a new query's first batch records the start and reads nothing. Under Trigger.AvailableNow "
                "and Trigger.Once this Spark runs one batch: run the query again"
            )
        begin = self._position.next_begin(self._first)
        end = self._plan().next(begin, ReadLimits.of(self._options))
        self._position.plan(begin, end)
        return end.to_dict()

    def partitions(self, start: dict[str, Any] | None, end: dict[str, Any]) -> list[InputPartition]:
        """Cut the batch ``[start, end)``; an empty one shows where a restarted query continues."""
        if not self._position.check(JournalOffsets.from_dict(start), JournalOffsets.from_dict(end)):
            return []
        return super().partitions(start, end)

    def _first(self) -> JournalOffsets:
        return self._plan().initial()


@hide_internal_frames
class RefusedStream(StreamReader):
    """Replaces a stream's reader that cannot be created, and raises the reason at its first use.

    If ``streamReader`` itself raised, PySpark 4.2 would stop the missing reader and hide the error behind an
    UnboundLocalError.
    """

    def __init__(self, error: GazetteError) -> None:
        self._error = error
        self._planner = self._client = None

    def refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise the reason."""
        raise self._error

    initialOffset = latestOffset = partitions = refuse  # noqa: N815 - Spark's names.
    getDefaultReadLimit = prepareForTriggerAvailableNow = reportLatestOffset = refuse  # noqa: N815
    __getstate__ = refuse  # A test without a JVM pickles the reader before its first use.


def file_target(options: Mapping[str, str]) -> FileTarget | None:
    """Return where tasks write data files; None if they return rows."""
    text = options.get(TARGET_OPTION)
    return FileTarget.from_json(text) if text else None
