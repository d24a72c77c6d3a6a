"""The Spark data source ``gazette``: journals as streaming and batch DataFrames.

This file translates Spark's calls. The processes, and the state of an instance in each:

- On the driver Spark makes a :class:`GazetteDataSource` at ``load()``, which checks the options, and
  keeps one reader in a separate Python process for as long as the query runs. That reader asks a
  :class:`~gazette_spark._planning.plan.Planner` for positions and for the pieces of each batch. The
  planner and its client are made at the first such call and live in that process alone.
- On executors ``read`` runs in other processes, with a reader that was pickled before any of this:
  it has the options, the schema and the content of the file ``descriptorFile``, nothing else. The plan of a
  batch, the journal's framing included, is in its :class:`PiecePartition`, and so are the token and the
  certificates that were in the driver's files when the batch was planned. It opens a client, yields Arrow
  record batches, and closes the client.

So a task that runs twice, or again after a crash, reads the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from gazette_spark._frames import hide_internal_frames, without_internal_frames
from gazette_spark.errors import GazetteError, MissingModuleError, OptionError

try:
    import pyarrow as pa
except ModuleNotFoundError as missing:
    # The first import of a worker that runs another Python than the driver does.
    raise MissingModuleError(missing.name or "pyarrow") from None
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from gazette_spark._data_files.target import FileTarget
from gazette_spark._options.security import OPEN, Security
from gazette_spark._options.source import SourceOptions, parse_options
from gazette_spark._options.table import TARGET_OPTION
from gazette_spark._options.write import checked_address, parse_write_options, spark_purpose
from gazette_spark._planning.access import TaskCredentials, open_journals, opened_pieces
from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.columns import RAW_DDL
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

if TYPE_CHECKING:
    # Spark starts a process for each thing it asks of a source. Of those most need neither gRPC, nor the
    # planner, nor what writes.
    from gazette_spark._planning.gaps import GapsReader
    from gazette_spark._planning.plan import Planner
    from gazette_spark._write.spark_writer import BatchWriter, StreamWriter
    from gazette_spark.client import Client

log = logging.getLogger(__name__)


@hide_internal_frames
class GazetteDataSource(DataSource):
    """Journals of a Gazette cluster; the options are in :data:`gazette_spark._options.source.OPTIONS`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Spark asks not to override this, but it is the first call, whatever the purpose of the source: at
        # load(), or, in Spark 4.2, when a query that gives a schema starts.
        super().__init__(options)
        if address := checked_address(options, spark_purpose()):
            options["brokerAddress"] = address

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "gazette"

    def schema(self) -> str | StructType:
        """Return the columns of a query without a given schema: raw columns, or those of a sample."""
        options = parse_options(self.options)
        if options.read_gaps:
            from gazette_spark._planning.gaps import GAPS_DDL

            return GAPS_DDL
        if options.infer_schema:
            # Loaded when asked for: Spark starts many processes.
            from gazette_spark._planning.inference import query_schema

            return query_schema(options, lambda: open_journals(options))
        if options.format not in (None, "raw"):
            expected = "the columns, given with .schema(...), or inferSchema=true"
            raise OptionError("format", f"{options.format} without a schema", expected)
        return RAW_DDL

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
    """One task's work: a piece of a journal, or several small ones, and how to enter the cluster."""

    def __init__(self, *pieces: Piece, security: Security = OPEN) -> None:
        self.pieces = pieces
        self.security = security


@hide_internal_frames
class _Reader:
    """Shared code of the readers of streams and batches: reading, and the tasks of a batch."""

    def __init__(self, options: SourceOptions, schema: StructType, files: FileTarget | None = None) -> None:
        self._options = options
        self._files = files
        # With files, Spark's schema is that of the rows that describe them.
        self._rows = RowReader.of(options, schema if files is None else files.columns_read)
        self._credentials = TaskCredentials(options.security)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.selection}, {self._options.origin})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need."""
        rows = self._rows.for_tasks()
        return {**vars(self), "_rows": rows, "_options": rows.options}

    def _partitions(self, planner: Planner, pieces: Iterable[Piece]) -> list[InputPartition]:
        tasks, security = self._rows.group(planner, pieces), self._credentials.snapshot()
        return [PiecePartition(*task, security=security) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's pieces. Runs on executors."""
        failpoint("source.read")
        # Spark adds one empty partition to a batch query without partitions.
        if not isinstance(partition, PiecePartition):
            return
        rows, options = self._rows, replace(self._options, security=partition.security)
        opened = opened_pieces(options, partition.pieces)
        if self._files is None:
            for journals, piece in opened:
                yield from rows.rows(journals, piece)
            return
        from gazette_spark._data_files.writer import write_files  # Most queries do without.

        pieces = (
            (f"journal={piece.journal} begin={piece.begin} end={piece.end}", rows.rows(journals, piece))
            for journals, piece in opened
        )
        yield from write_files(pieces, self._files)


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
    """Follows journals. See the module for which process holds what."""

    def __init__(self, options: SourceOptions, schema: StructType, files: FileTarget | None = None) -> None:
        super().__init__(options, schema, files)
        self._client: Client | None = None
        self._planner: Planner | None = None

    def partitions(self, start: dict[str, Any] | None, end: dict[str, Any]) -> list[InputPartition]:
        """Cut the batch ``[start, end)``."""
        failpoint("source.partitions")
        reached = JournalOffsets.from_dict(end)
        if reached.position == "pinned":
            return []
        position = JournalOffsets.from_dict(start)
        return self._partitions(self._plan(), self._plan().pieces(position, reached))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the query checkpoint, or the sink's table, records progress."""

    def stop(self) -> None:
        """Close the client. Spark may also just end the process."""
        if self._planner is not None:
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

        Spark passes it back with each trigger, but one limit only. Where there are others, which Spark cannot
        name, it represents all of them.
        """
        limits = ReadLimits.of(self._options)
        if limits == ReadLimits():
            return ReadAllAvailable()
        return ReadMaxBytes(MAX_OFFSET if limits.max_bytes is None else limits.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the current write heads as the end of this run."""
        self._plan().freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the batch that begins at ``start``, or ``start`` if nothing is new."""
        failpoint("source.latest_offset")
        position = JournalOffsets.from_dict(start)
        if position.position == "initial" and type(limit) is not type(self.getDefaultReadLimit()):
            # Spark names no trigger to a source. Without an option that limits batches it cannot be told.
            log.warning(
                "Trigger.Once runs the first batch only, which records the start and reads nothing: "
                "run it again, or use Trigger.AvailableNow"
            )
        return self._plan().next(position, self._limits(limit)).to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the write heads that were seen last, and open transactions, for the query's progress."""
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
    """Plans batches for Spark 4.0 and 4.1, which ask for the end of a batch and pass nothing.

    It tracks the batches, and so knows where the next one begins. The options' limits apply to every batch.
    """

    def __init__(self, options: SourceOptions, schema: StructType, files: FileTarget | None = None) -> None:
        super().__init__(options, schema, files)
        self._position = TrackedPosition()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of a new query, or of a first batch that runs again."""
        return self._position.first(self._first).to_dict()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark 4.0's form.
        """Return the end of the next batch, or of the last one if nothing is new."""
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
    """Takes the place of a stream's reader that cannot be made, and raises the reason when it is used.

    A ``streamReader`` that raises is stopped by PySpark 4.2 all the same, so that its error is hidden by an
    UnboundLocalError.
    """

    def __init__(self, error: GazetteError) -> None:
        self._error = error
        self._planner = self._client = None

    def refuse(self, *_asked: object, **_named: object) -> NoReturn:
        """Raise the reason."""
        raise self._error

    initialOffset = latestOffset = partitions = refuse  # noqa: N815 - Spark's names.
    getDefaultReadLimit = prepareForTriggerAvailableNow = reportLatestOffset = refuse  # noqa: N815


def file_target(options: Mapping[str, str]) -> FileTarget | None:
    """Return where tasks write data files, None if they give rows."""
    text = options.get(TARGET_OPTION)
    return None if text is None else FileTarget.from_json(text)
