"""Groups the tasks of a batch on the driver, and reads the rows of a piece on executors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from gazette_spark._formats import metadata
from gazette_spark._formats.library import warn_if_missing
from gazette_spark._formats.metadata import Labels, labels_array
from gazette_spark._formats.registry import framing_named, row_parser
from gazette_spark._formats.rows import RowFormat, RowParser
from gazette_spark._options.query_range import EARLIEST, OffsetChoice
from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.columns import check_schema, format_of, warn_of_similar_names
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from gazette_spark._planning.pieces import Piece, tasks
from gazette_spark._planning.reads import JournalSource
from gazette_spark.errors import OptionError
from gazette_spark.spark_versions import arrow_schema

if TYPE_CHECKING:
    # Spark starts many processes, and most of them need none of these modules.
    from gazette_spark._planning.committed import CommittedScan
    from gazette_spark._planning.plan import Planner
    from gazette_spark._planning.quarantine import QuarantiningParser

log = logging.getLogger(__name__)

_GAP_EVENTS = {
    "missing": "bytes are gone",
    "desync": "no record begins at these bytes",
    "rest": "bytes after missing ones may belong to a cut record",
}
"""Description of skipped bytes in the log, by the kind of gap."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """The settings that all tasks of a query share. It travels to executors with Spark's reader."""

    options: SourceOptions
    schema: StructType
    """Columns of the rows."""
    descriptors: bytes = field(default=b"", repr=False)
    """Content of the file ``descriptorFile``, which only the driver has."""

    @classmethod
    def of(cls, options: SourceOptions, schema: StructType) -> Self:
        """Return the reader of a query. Runs on the driver.

        Raises:
            OptionError: a column, or the file ``descriptorFile``, cannot be read.
        """
        # Everything that can be refused is refused here: on an executor, the same error would be repeated by
        # every task and its retries, under pages of stack traces.
        check_schema(options, schema)
        descriptors = b""
        if options.descriptor_file is not None:
            try:
                descriptors = Path(options.descriptor_file).read_bytes()
            except OSError as error:
                got = f"{options.descriptor_file!r}, which cannot be read: {error.strerror}"
                raise OptionError("descriptorFile", got, "a file on the driver") from None
        reader = cls(options, schema, descriptors)
        if options.format not in (None, "raw"):
            reader.parser_maker(options.format or "")()  # So that errors are raised on the driver.
        return reader

    def for_tasks(self) -> Self:
        """Return the reader without what tasks do not need: starts of 10,000 journals take a megabyte."""
        start = OffsetChoice(EARLIEST)
        return replace(self, options=replace(self.options, resume_offsets=None, starting_offsets=start))

    def parser_maker(self, form: str, labels: Labels = ()) -> Callable[[], RowParser]:
        """Return a picklable function that makes the parser of a format other than raw."""
        schema = arrow_schema(self.schema)
        return partial(row_parser, form, self.options, schema, labels=labels, descriptors=self.descriptors)

    def group(self, planner: Planner, pieces: Iterable[Piece]) -> list[tuple[Piece, ...]]:
        """Return the pieces of each task of a batch. Runs on the driver.

        Raises:
            OptionError: a column cannot be read from a journal's records or labels.
        """
        names = self.schema.fieldNames()
        labels_type = None
        if metadata.LABELS in names:
            labels_type = to_arrow_type(self.schema[metadata.LABELS].dataType)
        ready: list[Piece] = []
        for piece in pieces:
            labels: Labels = ()
            if labels_type is not None:
                labels = planner.labels(piece.journal)
                labels_array(labels_type, labels, piece.journal)  # So that it raises here, not in a task.
            # The planner may have read the bytes, but does not know when they were stored.
            content = None if metadata.MOD_TIME in names else piece.content
            ready.append(replace(piece, labels=labels, content=content))

        # A journal that does not fit the columns is an error on the driver, before the first task starts.
        forms = {format_of(self.options, self.schema, piece) for piece in ready} - {"raw"}
        for form in forms:
            self.parser_maker(form)()
        if "json" in forms:
            warn_if_missing()
        # An inferred column is a field of the records, regardless of its name.
        if forms & {"json", "csv"} and not self.options.infer_schema:
            warn_of_similar_names(self.options, self.schema)
        if self.options.reads_committed:
            from gazette_spark._planning.committed import uuid_place  # Most queries do not need it.

            for framing in {piece.framing for piece in ready}:
                uuid_place(self.options, framing)
        return tasks(ready, self.options.min_partitions or 1)

    def rows(self, journals: JournalSource | None, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece, as record batches with the query's columns. Runs on an executor.

        Args:
            journals: Brokers or a store; None if the piece has its content.
            piece: The piece.

        Raises:
            DataLossError: bytes are missing, under ``failOnDataLoss=true``.
            RecordError: a record is malformed, under ``mode=FAILFAST``, or longer than ``maxRecordBytes``.
        """
        options, form = self.options, format_of(self.options, self.schema, piece)
        framing = framing_named(piece.framing, options.max_record_bytes, options.sep, options.quote)

        # A record that crashes its parser may have ended the first attempt of this task. So a repeated task
        # parses in a child process, which isolates that record.
        parser: RowParser | QuarantiningParser | None = None
        if form != "raw":
            make_parser, context = self.parser_maker(form, piece.labels), TaskContext.get()
            if context is not None and context.attemptNumber() > 0:
                from gazette_spark._planning.quarantine import QuarantiningParser  # Few tasks are repeated.

                parser = QuarantiningParser(make_parser)
            else:
                parser = make_parser()

        def scan_of(part: Piece) -> PieceScan:
            return PieceScan(
                journals,
                part,
                fail_on_data_loss=options.fail_on_data_loss,
                max_record_bytes=options.max_record_bytes,
                framing=framing,
            )

        scan: PieceScan | CommittedScan = scan_of(piece)
        if options.reads_committed:
            from gazette_spark._planning.committed import committed_scan  # Most queries do not need it.

            assert journals is not None
            scan = committed_scan(journals, piece, options, scan_of, self.schema.fieldNames())

        # Spark compares only the first record batch's schema with its own, including nullability.
        expected = arrow_schema(self.schema)
        if parser is None:
            record_batches = raw_record_batches(scan, expected, framing=framing, labels=piece.labels)
        else:
            record_batches = parser.record_batches(scan)
        for record_batch in record_batches:
            yield pa.RecordBatch.from_arrays(record_batch.columns, schema=expected)

        # Only now are both complete. A task that fails logs neither.
        if parser is not None and parser.malformed:
            log.warning(
                "malformed records mode=%s journal=%s begin=%d end=%d count=%d first=%r: %s",
                *(parser.format.mode, piece.journal, piece.begin, piece.end, parser.malformed),
                *(parser.first_problem, place_of_malformed(parser.format)),
            )
        for gap in scan.gaps:
            event = _GAP_EVENTS[gap.kind]
            log.warning("%s, skipped journal=%s begin=%d end=%d", event, gap.journal, gap.begin, gap.end)


def place_of_malformed(row_format: RowFormat) -> str:
    """Return where the text of malformed records is, or how to keep it."""
    column = row_format.corrupt_column or "_corrupt_record"
    if row_format.mode == "PERMISSIVE" and column in row_format.schema.names:
        return f"the column {column} has their text"
    return (
        f"to keep their text, use mode=PERMISSIVE and a column {column} STRING in the schema, or dead letters"
    )
