"""The Spark data source ``gazette``: journals as streaming and batch DataFrames.

This file translates only. The processes, and the state of an instance in each:

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
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gazette_spark._frames import short, short_errors
from gazette_spark.errors import GazetteError, MissingModuleError, OptionError

try:
    import pyarrow as pa
except ModuleNotFoundError as missing:
    # The first import of a worker that runs another Python than the driver does.
    raise MissingModuleError(missing.name or "pyarrow") from None
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gazette_spark._formats import metadata
from gazette_spark._formats.metadata import Labels, is_labels_type, labels_array
from gazette_spark._formats.registry import FORMAT_FRAMINGS, framing_named, row_parser
from gazette_spark._formats.rows import RowParser
from gazette_spark._planning.access import TaskCredentials, access, show_logs
from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from gazette_spark._planning.pieces import Piece, tasks
from gazette_spark._planning.reads import JournalSource
from gazette_spark._planning.tracked_position import TrackedPosition
from gazette_spark.data_files.target import FileTarget
from gazette_spark.failpoints import failpoint
from gazette_spark.offsets import MAX_OFFSET, JournalOffsets
from gazette_spark.options.query_range import EARLIEST, OffsetChoice
from gazette_spark.options.security import OPEN, Security
from gazette_spark.options.source import SourceOptions, parse_options
from gazette_spark.options.table import TARGET_OPTION
from gazette_spark.options.write import checked_address, parse_write_options, spark_purpose
from gazette_spark.spark_versions import (
    ADMISSION_CONTROL,
    ARROW_STREAM_WRITES,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
    arrow_schema,
)

if TYPE_CHECKING:
    # Spark starts a process for each thing it asks of a source. Of those most need neither gRPC, nor the
    # planner, nor what writes.
    from gazette_spark._planning.committed import CommittedScan
    from gazette_spark._planning.gaps import GapsReader
    from gazette_spark._planning.plan import Planner
    from gazette_spark._planning.quarantine import QuarantiningParser
    from gazette_spark._planning.stores import StoreJournals
    from gazette_spark.client import Client
    from gazette_spark.write.spark_writer import BatchWriter, StreamWriter

log = logging.getLogger(__name__)

RAW_DDL = "journal STRING, offset BIGINT, value BINARY"
"""Columns of ``format=raw`` when the query gives no schema."""

RAW_TYPES: dict[str, DataType] = {"journal": StringType(), "offset": LongType(), "value": BinaryType()}
METADATA_TYPES: dict[str, DataType] = {
    metadata.JOURNAL: StringType(),
    metadata.OFFSET: LongType(),
    metadata.END_OFFSET: LongType(),
    metadata.MOD_TIME: TimestampType(),
    metadata.LABELS: MapType(StringType(), ArrayType(StringType())),
    metadata.RECORD: BinaryType(),
}
"""Columns of a record's origin; in no query's schema unless it names them."""
MESSAGE_TYPES: dict[str, DataType] = {
    metadata.UUID: StringType(),
    metadata.PRODUCER: StringType(),
    metadata.CLOCK: LongType(),
    metadata.FLAGS: IntegerType(),
    metadata.ACK_OFFSET: LongType(),
}
"""Likewise, for isolationLevel=read_committed."""

_GAP_EVENTS = {
    "missing": "bytes are gone",
    "desync": "bytes begin no record",
    "rest": "bytes after missing ones may be the rest of a record",
}
"""How the log names what is skipped, by the kind of a gap."""

IDLE_POLL_S = 0.1
"""Least time between two looks at journals that had nothing new: by default Spark asks 100 times a second,
and each look costs the brokers a call per journal. Where a look takes longer, the pause does, too."""


@short_errors
class GazetteDataSource(DataSource):
    """Journals of a Gazette cluster; the options are in :data:`gazette_spark.options.source.OPTIONS`."""

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
            return RefusedStream(short(error))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's call.
        """Return the writer of ``df.write``."""
        from gazette_spark.write.spark_writer import BatchWriter

        return BatchWriter(parse_write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Return the writer of ``df.writeStream``."""
        from gazette_spark.write.spark_writer import RowStreamWriter, StreamWriter

        kind = StreamWriter if ARROW_STREAM_WRITES else RowStreamWriter
        return kind(parse_write_options(self.options), schema, overwrite=overwrite)


class PiecePartition(InputPartition):
    """One task's work: a piece of a journal, or several small ones, and how to enter the cluster."""

    def __init__(self, *pieces: Piece, security: Security = OPEN) -> None:
        self.pieces = pieces
        self.security = security


@short_errors
class _Reader:
    """Shared code of the readers of streams and batches: options, schema, and reading a piece."""

    def __init__(self, options: SourceOptions, schema: StructType, files: FileTarget | None = None) -> None:
        if files is not None:
            schema = files.columns_read  # Spark's are those of the rows that tell of files.
        check_schema(options, schema)
        self._options = options
        self._files = files
        self._schema = schema
        self._descriptors = read_descriptors(options)
        self._credentials = TaskCredentials(options.security)
        if options.format not in (None, "raw"):
            self._parser_maker(options.format or "")()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.selection}, {self._options.origin})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need: of 10,000 journals, offsets and fingerprints to start at are a megabyte."""
        options = replace(self._options, resume_offsets=None, starting_offsets=OffsetChoice(EARLIEST))
        return {**vars(self), "_options": options}

    def _parser_maker(self, form: str, labels: Labels = ()) -> Callable[[], RowParser]:
        schema = arrow_schema(self._schema)
        return partial(row_parser, form, self._options, schema, labels=labels, descriptors=self._descriptors)

    def _partitions(self, planner: Planner, pieces: Iterable[Piece]) -> list[InputPartition]:
        names = self._schema.fieldNames()
        labelled, timed = metadata.LABELS in names, metadata.MOD_TIME in names
        kind = to_arrow_type(self._schema[metadata.LABELS].dataType) if labelled else None
        found: list[Piece] = []
        forms, framings = set(), set()
        for piece in pieces:
            labels = planner.labels(piece.journal) if labelled else ()
            if kind is not None:
                labels_array(kind, labels, piece.journal)  # Raises on the driver rather than in a task.
            # Who read the bytes to plan the batch did not ask when they were stored.
            content = None if timed else piece.content
            found.append(replace(piece, labels=labels, content=content) if labelled or timed else piece)
            forms.add(format_of(self._options, self._schema, piece))
            framings.add(piece.framing)
        for form in forms - {"raw"}:
            self._parser_maker(form)()  # Raises on the driver rather than in a task.
        if self._options.reads_committed:
            from gazette_spark._planning.committed import uuid_place  # Most queries do without.

            for framing in framings:
                uuid_place(self._options, framing)  # Likewise.
        security = self._credentials.snapshot()
        least = self._options.min_partitions or 1
        return [PiecePartition(*task, security=security) for task in tasks(found, least)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's pieces. Runs on executors."""
        failpoint("source.read")
        # Spark adds one empty partition to a batch query without partitions.
        if not isinstance(partition, PiecePartition):
            return
        options = replace(self._options, security=partition.security)
        opened = opened_pieces(options, partition.pieces)
        if self._files is None:
            for journals, piece in opened:
                yield from self._rows(journals, piece)
            return
        from gazette_spark.data_files.writer import write_files  # Most queries do without.

        pieces = (
            (f"journal={each.journal} begin={each.begin} end={each.end}", self._rows(journals, each))
            for journals, each in opened
        )
        yield from write_files(pieces, self._files)

    def _rows(self, journals: JournalSource | None, piece: Piece) -> Iterator[pa.RecordBatch]:
        form = format_of(self._options, self._schema, piece)
        parser: RowParser | QuarantiningParser | None = None
        if form != "raw":
            make = self._parser_maker(form, piece.labels)
            context = TaskContext.get()
            if context is not None and context.attemptNumber() > 0:
                # The first try may have died of a record that no parser survives.
                from gazette_spark._planning.quarantine import QuarantiningParser  # Few tasks run twice.

                parser = QuarantiningParser(make)
            else:
                parser = make()
        return record_batches(journals, piece, self._options, self._schema, parser)


@short_errors
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


@short_errors
class BaseStreamReader(_Reader, DataSourceStreamReader):
    """Follows journals; how it is asked depends on Spark. See the module for which process holds what."""

    def __init__(self, options: SourceOptions, schema: StructType, files: FileTarget | None = None) -> None:
        super().__init__(options, schema, files)
        self._client: Client | None = None
        self._planner: Planner | None = None
        self._available_now = False
        self._idle_until = float("-inf")

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

    def _next(self, start: JournalOffsets, limits: ReadLimits) -> JournalOffsets:
        """Return the end of the batch that begins at ``start``, or ``start`` if nothing is new."""
        self._wait_if_idle()
        began = time.monotonic()
        end = self._plan().next(start, limits)
        if end is start:
            now = time.monotonic()
            self._idle_until = now + max(IDLE_POLL_S, now - began)
        return end

    def _plan(self) -> Planner:
        if self._planner is None:
            from gazette_spark._planning.listing import follow
            from gazette_spark._planning.plan import Planner

            show_logs(self._options.log_level)
            self._client = open_client(self._options)
            self._planner = Planner(self._client, self._options, follow(self._client, self._options))
        return self._planner

    def _wait_if_idle(self) -> None:
        left = self._idle_until - time.monotonic()
        if left > 0 and not self._available_now:
            _wait(left)


@short_errors
class StreamReader(BaseStreamReader, SupportsTriggerAvailableNow):
    """Asked with the start and the limit of each batch, by Spark 4.2 and later."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are those below.
        """Return the start of a new query."""
        return self._plan().initial().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxBytesPerTrigger``, or no limit.

        Spark passes it back with each trigger, but one limit only. Where there are others, which Spark cannot
        name, it represents all of them.
        """
        limits = limits_of(self._options)
        if limits == ReadLimits():
            return ReadAllAvailable()
        return ReadMaxBytes(MAX_OFFSET if limits.max_bytes is None else limits.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the present write heads as the end of this run."""
        self._available_now = True
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
        return self._next(position, self._limits(limit)).to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the write heads that were seen last, and open transactions, for the query's progress."""
        if self._planner is None or (latest := self._planner.latest()) is None:
            return None
        opened = self._planner.open_transactions()
        return latest.to_dict() | ({"transactions": opened} if opened else {})

    def _limits(self, limit: ReadLimit) -> ReadLimits:
        match limit:
            case ReadAllAvailable():
                return ReadLimits()
            case ReadMaxBytes(max_bytes=max_bytes):
                return replace(limits_of(self._options), max_bytes=max_bytes)
        raise OptionError("trigger", f"the read limit {limit}", "maxBytesPerTrigger or no limit")


@short_errors
class TrackingStreamReader(BaseStreamReader):
    """Asked for the end of a batch alone, by Spark 4.0 and 4.1.

    It tracks the batches, and so knows where the next one begins. The options' limits hold for each.
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
        end = self._next(begin, limits_of(self._options))
        self._position.plan(begin, end)
        return end.to_dict()

    def partitions(self, start: dict[str, Any] | None, end: dict[str, Any]) -> list[InputPartition]:
        """Cut the batch ``[start, end)``; an empty one tells where a query goes on."""
        if not self._position.check(JournalOffsets.from_dict(start), JournalOffsets.from_dict(end)):
            return []
        return super().partitions(start, end)

    def _first(self) -> JournalOffsets:
        return self._plan().initial()


@short_errors
class RefusedStream(StreamReader):
    """Stands for a stream's reader that cannot be made, and raises the reason when it is used.

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


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def file_target(options: Mapping[str, str]) -> FileTarget | None:
    """Return where tasks write data files, None if they give rows."""
    text = options.get(TARGET_OPTION)
    return None if text is None else FileTarget.from_json(text)


def limits_of(options: SourceOptions) -> ReadLimits:
    """Return how much a batch of a stream reads, as the options say."""
    return ReadLimits(
        options.max_bytes_per_trigger,
        options.max_fragments_per_trigger,
        options.min_bytes_per_trigger or 0,
        math.inf if options.min_bytes_per_trigger is None else options.max_trigger_delay.total_seconds(),
        options.max_records_per_trigger,
    )


def open_journals(options: SourceOptions) -> Client | StoreJournals:
    """Return the source of a batch: brokers or a store. The caller closes it."""
    show_logs(options.log_level)
    if options.fragment_store is None:
        return open_client(options)
    from gazette_spark._planning.stores import listed_store

    return listed_store(options)


def opened_pieces(
    options: SourceOptions, pieces: Collection[Piece]
) -> Iterator[tuple[JournalSource | None, Piece]]:
    """Yield the pieces of a task, each with what it is read from until the next one: brokers or a store.

    Nothing is needed where all pieces bring their content, but to look for the states of producers.
    """
    show_logs(options.log_level)
    if not options.reads_committed and all(piece.content is not None for piece in pieces):
        yield from ((None, piece) for piece in pieces)
        return
    if options.fragment_store is None:
        with open_client(options) as client:
            for piece in pieces:
                yield client, piece
        return
    from gazette_spark._planning.stores import store_of_piece

    for piece in pieces:
        with store_of_piece(options, piece) as journals:
            yield journals, piece


def open_client(options: SourceOptions) -> Client:
    """Return a client as the options say. The caller closes it."""
    from gazette_spark.client import Client

    return Client(
        options.broker_address,
        timeout_s=options.request_timeout_ms / 1000,
        idle_timeout_s=options.idle_timeout_ms / 1000,
        connect_timeout_s=options.connect_timeout_ms / 1000,
        fragment_root=options.fragment_root,
        **access(options.security),
    )


def metadata_types(options: SourceOptions) -> dict[str, DataType]:
    """Return the columns of a record's origin that a query may name."""
    return METADATA_TYPES | (MESSAGE_TYPES if options.reads_committed else {})


def read_descriptors(options: SourceOptions) -> bytes:
    """Return the content of the file ``descriptorFile``; executors get the bytes, not the file.

    Raises:
        OptionError: the file cannot be read.
    """
    if options.descriptor_file is None:
        return b""
    try:
        return Path(options.descriptor_file).read_bytes()
    except OSError as error:
        got = f"{options.descriptor_file!r}, which cannot be read: {error.strerror}"
        raise OptionError("descriptorFile", got, "a file on the driver") from None


def record_batches(
    client: JournalSource | None,
    piece: Piece,
    options: SourceOptions,
    schema: StructType,
    parser: RowParser | QuarantiningParser | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece in the schema's columns, as Arrow sees them; raw ones without a parser.

    Spark compares the first record batch's schema with its own, nullability included, and does not
    look at the later ones.
    """
    expected = arrow_schema(schema)
    framing = framing_named(piece.framing, options.max_record_bytes, options.sep, options.quote)

    def scan_of(part: Piece) -> PieceScan:
        return PieceScan(
            client,
            part,
            fail_on_data_loss=options.fail_on_data_loss,
            max_record_bytes=options.max_record_bytes,
            framing=framing,
        )

    scan: PieceScan | CommittedScan
    if options.reads_committed:
        from gazette_spark._planning.committed import committed_scan  # Most queries do without.

        assert client is not None
        scan = committed_scan(client, piece, options, scan_of, schema.fieldNames())
    else:
        scan = scan_of(piece)
    if parser is None:
        built = raw_record_batches(scan, expected, framing=framing, labels=piece.labels)
    else:
        built = parser.record_batches(scan)
    for record_batch in built:
        yield pa.RecordBatch.from_arrays(record_batch.columns, schema=expected)
    if parser is not None and parser.malformed:
        log.warning(
            "malformed records mode=%s journal=%s begin=%d end=%d count=%d",
            *(parser.format.mode, piece.journal, piece.begin, piece.end, parser.malformed),
        )
    for gap in scan.gaps:
        event = _GAP_EVENTS[gap.kind]
        log.warning("%s, skipped journal=%s begin=%d end=%d", event, gap.journal, gap.begin, gap.end)


def format_of(options: SourceOptions, schema: StructType, piece: Piece) -> str:
    """Return the format a piece is read in.

    Raises:
        OptionError: it is not given, and the journal's framing does not imply one for these columns.
    """
    if options.format or is_raw(schema):
        return options.format or "raw"
    for form, framing in FORMAT_FRAMINGS.items():
        if framing == piece.framing:
            return form
    got = f"nothing, for columns {', '.join(schema.fieldNames())} of journal {piece.journal!r}"
    expected = f"raw: framing {piece.framing} implies no format, and raw has the columns {RAW_DDL}"
    raise OptionError("format", got, expected)


def is_raw(schema: StructType) -> bool:
    """Tell whether columns, without a format, are those of ``format=raw``: one of its names will do.

    A column ``value string`` is a slip far more often than a field of the records, so it is refused.
    """
    return any(name.lower() in RAW_TYPES for name in schema.fieldNames())


def check_schema(options: SourceOptions, schema: StructType) -> None:
    """Check the columns a query asks for.

    Raises:
        OptionError: naming the first column that cannot be read.
    """
    if not schema.fields:
        raise OptionError("schema", "no columns", RAW_DDL)
    seen: set[str] = set()
    for column in schema.fields:
        if column.name.lower() in seen:
            raise OptionError("schema", f"column {column.name!r} twice", "each column once, in any case")
        seen.add(column.name.lower())
        of_uuid = options.reads_committed and column.name in MESSAGE_TYPES.keys() - {metadata.ACK_OFFSET}
        if of_uuid and not column.nullable:
            raise OptionError("schema", f"{column.name} NOT NULL", "nullable: a message may have none")
        if column.name == metadata.MOD_TIME and not column.nullable:
            raise OptionError("schema", f"{column.name} NOT NULL", "nullable: not all bytes are stored yet")
        if column.name == metadata.LABELS and options.fragment_store is not None:
            raise OptionError("schema", "_labels with fragmentStore", "no labels: only brokers know them")
    raw = options.format == "raw" or (options.format is None and is_raw(schema))
    for column in schema.fields:
        check = _check_raw_column if raw else _check_field_column
        check(options, column)
    rescued = options.rescued_data_column
    if rescued and (raw or rescued not in schema.fieldNames()):
        got = f"{rescued!r}, which is no column of format={'raw' if raw else 'json, as the schema says'}"
        raise OptionError(
            "rescuedDataColumn", got, f"format=json and a column {rescued} string in the schema"
        )


def _check_raw_column(options: SourceOptions, column: StructField) -> None:
    if not _has_type(column, RAW_TYPES | metadata_types(options)):
        got = f"column {column.name} {column.dataType.simpleString()} under format=raw"
        raise OptionError("schema", got, f"columns out of {RAW_DDL}, or another format: json, csv, protobuf")


def _check_field_column(options: SourceOptions, column: StructField) -> None:
    origin = metadata_types(options)
    fixed = origin | {options.column_name_of_corrupt_record: StringType()}
    if options.rescued_data_column:
        fixed[options.rescued_data_column] = StringType()
    if column.name in fixed and not _has_type(column, fixed):
        got = f"column {column.name} {column.dataType.simpleString()}"
        form = (metadata.DDL | metadata.MESSAGE_DDL).get(column.name) or fixed[column.name].simpleString()
        raise OptionError("schema", got, f"{column.name} {form}")
    if not column.nullable and column.name not in origin:
        got = f"column {column.name} NOT NULL"
        raise OptionError("schema", got, "nullable columns: a record may lack any field")


def _has_type(column: StructField, types: Mapping[str, DataType]) -> bool:
    if column.name == metadata.LABELS and isinstance(column.dataType, StructType):
        return is_labels_type(to_arrow_type(column.dataType))
    return types.get(column.name) == column.dataType
