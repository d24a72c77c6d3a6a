"""Fills a table from journals in one batch, so that a stream can continue from its end.

An ordinary batch query reads up to the journals' ends at the time when it is planned, and does not report
these ends. A backfill plans first. The planned range is read *and* recorded in the table's ledger, in the
same commit as the rows. Bytes that are appended in the meantime belong to a later batch, which begins at
``DeltaSink.resume_offsets``.

==============================  ==========================================================
a journal that the table ...    is read from
==============================  ==========================================================
does not have                   the options' offset, by default its first byte
has rows of, or has pinned      the end of the table, regardless of the options
==============================  ==========================================================

Thus a second run writes the records that were added since the first one. With the same ``endingOffsets`` it
writes nothing.

A backfill of committed messages stores the states of producers at its end in ``stateLocation``. The stream
that continues the table starts with these states, so a transaction may begin in the backfill and end in the
stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gazette_spark._delta.preflight import check_workers
from gazette_spark._delta.session import session_or_active
from gazette_spark._ledger.entry import LedgerEntry
from gazette_spark._options.query_range import LATEST
from gazette_spark._options.source import RANGE_OPTIONS, SourceOptions, parse_options
from gazette_spark._planning.access import open_journals
from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.plan import Planner
from gazette_spark.errors import OptionError
from gazette_spark.offsets import Fingerprint, JournalOffsets
from gazette_spark.progress import of_spark, progress

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backfilled:
    """Result of a backfill."""

    begin: JournalOffsets
    end: JournalOffsets
    """End of the table's rows from these journals. Other journals of the table are not included."""
    written: bool
    """Whether there were bytes that the table did not have yet."""

    @property
    def size_bytes(self) -> int:
        """Number of bytes between ``begin`` and ``end``, over all journals."""
        ends = self.end.read_through
        return sum(ends[journal] - begin for journal, begin in self.begin.read_through.items())


class RangeSink(Protocol):
    """A sink that can write the rows of an offset range."""

    def ledger(self, spark: SparkSession | None = None) -> LedgerEntry | None:
        """Return the table's newest entry, or None if there is none."""
        ...

    def write_batch(self, df: DataFrame, begin: JournalOffsets, end: JournalOffsets) -> bool:
        """Write the rows of an offset range to the table, unless it already has them."""
        ...


def backfill(
    sink: RangeSink,
    options: Mapping[str, str],
    *,
    schema: str | StructType | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    bytes_per_commit: int | None = None,
    spark: SparkSession | None = None,
) -> Backfilled:
    """Write all records of journals that a sink's table lacks to the table, as one batch.

    This process plans the batch, so it must be able to reach the brokers or the store. Spark's tasks read it.

    Args:
        sink: The table's sink. The stream that continues the table must use a sink with the same app id.
        options: Options of ``spark.read.format("gazette")``; the option ``path`` is the argument of
            ``load()``. With ``isolationLevel=read_committed``, they must include the ``stateLocation`` of the
            stream.
        schema: As for ``DataFrameReader.schema``.
        transform: Makes the table's rows from the source's rows. It may drop or change rows, but each result
            must depend on one row only; otherwise it would depend on the range.
        bytes_per_commit: Write the range in steps of about this number of bytes over all journals, with a
            separate commit for each step. Finished steps are not repeated after a failure. By default, there
            is one commit for everything.
        spark: The session, if not the active one.

    Returns:
        The range, and whether anything was written. It is safe to call again after any failure.

    Raises:
        OptionError: the options are not those of a batch query.
        JournalRecreatedError: a journal was deleted and created again since the table's rows were read, so
            its offsets refer to other bytes.
        OffsetBeyondHeadError: according to the brokers, a journal ends before the table does.
        SinkError: the table cannot be continued. Nothing was written.
    """
    session = session_or_active(spark)
    located = any(name.lower() == "statelocation" for name in options)
    # A batch query may have a stateLocation only together with messagesSince, whose offsets are known only
    # when the range is known.
    parsed = parse_options({**options, "messagesSince": "{}"} if located else options, "batch")
    if parsed.reads_committed and not located:
        expected = (
            "that of the stream that continues the table, which starts with the open transactions in it"
        )
        raise OptionError("stateLocation", "nothing", expected)
    entry = sink.ledger(session)
    check_workers(session, parsed)
    written = False
    with open_journals(parsed) as journals, progress("backfill", has_lines=False) as bar:
        # Plan once, before Spark reads anything. Spark would plan a batch query when it runs, and would not
        # report up to where it has read (decision 0007).
        planner = Planner(journals, parsed)
        begin, end = planner.batch()
        recorded = entry.read_through if entry else {}
        compared: dict[str, Fingerprint] = {}
        if entry:
            # Journals that end before the table does are not compared: a store may be behind, and for brokers
            # this is a separate error.
            heads = journals.write_heads(list(end.read_through))
            compared = planner.compare(entry.fingerprints, recorded, heads)
        # The table decides where a journal continues, not the options. So the range contains what the table
        # lacks, and a second run writes only the rows since the first one.
        begin, end = continued(
            begin, end, recorded, open_end=is_open(parsed), check_heads=planner.check_heads
        )
        starts: dict[str, int] = {}
        if parsed.reads_committed:
            # A transaction may have begun before the range. The states of producers at the range's start show
            # that, and the starts record since when these states are known.
            starts = planner.continued_starts(begin, entry.starts if entry else {})
        done, whole = 0, Backfilled(begin, end, written=False).size_bytes
        for low, reached in steps(planner, begin, end, bytes_per_commit):
            # The starts show the sink that the rows are committed messages.
            high = replace(reached, starts={name: starts[name] for name in reached.read_through if starts})
            # The query reads exactly this range of these journals. Bytes that are appended and journals that
            # are created in the meantime belong to a later batch. A task that Spark runs again returns the
            # same rows.
            reader = session.read.format("gazette").options(**pinned_options(options, parsed, low, high))
            df = (reader.schema(schema) if schema is not None else reader).load()
            schema = df.schema  # A schema that was inferred must be the same in all steps.
            with of_spark(session, bar, f"backfill, {done:,} of {whole:,} bytes"):
                fingerprints = {name: compared[name] for name in low.read_through if name in compared}
                rows = df if transform is None else transform(df)
                written |= sink.write_batch(rows, replace(low, fingerprints=fingerprints), high)
            done += Backfilled(low, high, written=True).size_bytes
            log.info("backfilled bytes=%d of=%d", done, whole)
    return Backfilled(begin, end, written)


def steps(
    planner: Planner, begin: JournalOffsets, end: JournalOffsets, limit: int | None
) -> Iterator[tuple[JournalOffsets, JournalOffsets]]:
    """Yield consecutive ranges from ``begin`` to ``end``, on record boundaries.

    Each end contains what the ledger records: the journals' fingerprints and, with ``failOnDataLoss=false``,
    the missing bytes.

    Args:
        planner: Planner of the journals.
        begin: First byte of each journal.
        end: Byte after the last one.
        limit: Number of bytes of a range over all journals, which one record of each journal may exceed. None
            for a single range.
    """
    if begin == end or limit is None:
        yield from [] if begin == end else [(begin, planner.completed(begin, end))]
        return
    ends = {name: until for name, until in end.read_through.items() if until > begin.read_through[name]}
    # The end has already been decided. Without this call, a step would continue into bytes that were appended
    # later.
    planner.freeze(JournalOffsets(ends))
    at = JournalOffsets({name: begin.read_through[name] for name in ends})
    done = begin
    while (reached := planner.next(at, ReadLimits(max_bytes=limit))) != at:
        # Journals that have reached their end keep it, because the sink needs begin and end for the same
        # journals in each step.
        following = JournalOffsets(
            {**done.read_through, **reached.read_through},
            gaps=reached.gaps,
            fingerprints=reached.fingerprints,
        )
        yield done, following
        at, done = reached, following.plain()


def continued(
    begin: JournalOffsets,
    end: JournalOffsets,
    recorded: Mapping[str, int],
    *,
    open_end: bool,
    check_heads: Callable[[Mapping[str, int]], None],
) -> tuple[JournalOffsets, JournalOffsets]:
    """Return the part of a range that a table lacks.

    Args:
        begin: Where the journals start according to the options.
        end: Where they end according to the options.
        recorded: Where the table's rows end, by journal.
        open_end: Whether the end is the journals' own end and not an option, so that they have no more bytes.
        check_heads: Raises OffsetBeyondHeadError if a journal really ends before an offset. The first answer
            may come from a replica that has just joined.

    Raises:
        OffsetBeyondHeadError: with an open end, a journal ends before the table does.
    """
    begins, ends = {}, {}
    for journal, until in end.read_through.items():
        since = recorded.get(journal, begin.read_through[journal])
        # An end before the table's end is an empty range and not an error, because a store may be behind the
        # brokers, and an option may name an earlier offset.
        begins[journal], ends[journal] = since, max(since, until)
    beyond = {journal: since for journal, since in begins.items() if end.read_through[journal] < since}
    if open_end and beyond:
        check_heads(beyond)
    return JournalOffsets(begins), JournalOffsets(ends)


def is_open(options: SourceOptions) -> bool:
    """Return whether a range ends at the brokers' write heads; the end of a store may be behind them."""
    choice = options.ending_offsets
    ends = (choice.default, *choice.named.values())
    return options.fragment_store is None and options.ending_timestamp is None and set(ends) == {LATEST}


def pinned_options(
    options: Mapping[str, str], parsed: SourceOptions, begin: JournalOffsets, end: JournalOffsets
) -> dict[str, str]:
    """Return the options of a query that reads exactly a range, without journals that are created later."""
    # The plan replaces these options, also because the Spark session may name another broker.
    answered = RANGE_OPTIONS | {"brokeraddress"}
    pinned = {name: text for name, text in options.items() if name.lower() not in answered}
    # Journals without bytes in the range are not read.
    read = [name for name, until in end.read_through.items() if until > begin.read_through[name]]
    pinned["journals"] = ",".join(read)
    pinned["startingOffsets"] = JournalOffsets({name: begin.read_through[name] for name in read}).to_json()
    pinned["endingOffsets"] = JournalOffsets({name: end.read_through[name] for name in read}).to_json()
    if end.starts:
        pinned["messagesSince"] = JournalOffsets({name: end.starts[name] for name in read}).to_json()
    if parsed.broker_address:
        pinned["brokerAddress"] = parsed.broker_address
    return pinned
