"""Audits a table in this process: rows with ``deltalake`` or ``pyiceberg``, sums with NumPy.

Without a JVM this saves most of the time of a small audit, because Spark takes about twenty seconds to start
and to run its first job. Delta tables that are too large for the memory of one process, or that ``deltalake``
cannot read, are left to Spark.

Iceberg tables are all compared here, because a session of Spark need not be able to read them. Large ones are
summed batch by batch: a file of the table is in memory at a time, and rows are read again only where the sums
differ.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark._delta.sql_names import path_of, table_at
from gazette_spark._formats.arrays import Positions
from gazette_spark._ledger.delta_reader import (
    DeltaLog,
    column_types,
    log_damage,
    log_files,
    named_errors,
    open_table,
    run_sql,
)
from gazette_spark._ledger.history import HistoryRow
from gazette_spark._ledger.iceberg_reader import (
    IcebergLog,
    TableName,
    column_batches,
    iceberg_errors,
    input_error,
    table_history,
)
from gazette_spark._ledger.row_digest import row_text, tree_digest
from gazette_spark._options.source import SourceOptions, parse_options
from gazette_spark._planning.access import security_for_tasks
from gazette_spark._verify.data_ends import sql_name
from gazette_spark._verify.engine import NO_TABLE, Sides
from gazette_spark._verify.journal_source import AuditReader, PlannedPartition, PlannedRange, record_schema
from gazette_spark._verify.parts import (
    DEAD,
    FOREIGN,
    RECORDS,
    ROWS,
    STRAY,
    WORDS,
    Bins,
    Part,
    Totals,
    first_difference,
)
from gazette_spark.errors import InputError, MissingPackageError
from gazette_spark.locations import local_path

SMALL_BYTES = 64 << 20
"""Maximum bytes of journals, and of a Delta table's files, that are compared in memory."""

MAX_MEMORY = 1 << 30
"""Maximum bytes of a table's rows in memory, because files may be compressed a hundredfold."""

MAX_REQUESTS = 500
"""Maximum number of commits that are read from an object store, which takes some milliseconds each."""

READERS = 4
"""Number of pieces of journals that are read concurrently."""

CHUNK_ROWS = 1 << 17
"""Minimum number of rows that are summed at a time, of a table that is not kept in memory."""

SIDE = pa.schema(
    [
        ("side", pa.int8()),
        ("app_id", pa.large_string()),
        ("journal", pa.large_string()),
        ("offset", pa.int64()),
        ("place", pa.int64()),
        ("value", pa.large_binary()),
    ]
)
"""Columns of a side. ``place`` is the offset that committed a row: ``offset``, except for messages."""


class NeedsSparkError(Exception):
    """The table cannot be compared in this process. The text says why."""


class DriverEngine:
    """Compares in this process: small Delta tables, and all Iceberg tables.

    Args:
        location: The table's directory or URL in Spark's spelling.
        options: The source's options for reading the journals.
        locations: Locations of dead-letter tables by their names in a catalog.

    Raises (all methods):
        NeedsSparkError: the table is too large, or ``deltalake`` cannot read it.
    """

    def __init__(self, location: str, options: Mapping[str, str], locations: Mapping[str, str]) -> None:
        name = TableName.parse(location)
        self.table = table_at(location) if name is None else str(name)
        self._rows = _TableRows(location) if name is None else _IcebergRows(name)
        self._options = options
        self._locations = locations

    def history(self) -> Sequence[HistoryRow]:
        """Return the table's commits up to the opened version, newest first."""
        return self._rows.history()

    def types(self, version: int) -> Mapping[str, str]:
        """Return the type of each column, by name."""
        self._check(version)
        return self._rows.types

    def count(self, version: int) -> int:
        """Return the number of rows."""
        self._check(version)
        # COUNT(*) would trust the statistics of files, which may be missing or wrong.
        return sum(batch.num_rows for batch in self._rows.select([next(iter(self._rows.types))]))

    def comparison(self, plan: Mapping[str, PlannedRange], sides: Sides) -> DriverComparison:
        """Return the sides of an audit for comparison."""
        self._check(sides.version)
        options = parse_options({**self._options, **sides.source_options}, "batch")
        # Check this before anything is read, so that leaving the table to Spark costs nothing.
        size = sum(piece.end - piece.begin for read in plan.values() for piece in read.pieces)
        is_small = size <= SMALL_BYTES
        if isinstance(self._rows, _IcebergRows):
            # Each question of the audit reads everything again, so that nothing has to be kept. If nothing
            # differs, the sums of all bins are the only question.
            return DriverComparison(
                lambda: _chunks(
                    itertools.chain(_records(options, plan, sides, at_once=is_small), self._table_rows(sides))
                ),
                values=sides.values,
                places=sides.has_messages,
            )
        if not is_small:
            raise NeedsSparkError(f"its journals have {size >> 20} MiB")
        batches = [*_records(options, plan, sides, at_once=True), *self._table_rows(sides)]
        columns = {"app_id": "app_id", "journal": "journal", "offset": "offset", "value": "raw"}
        for app_id, names in sides.letters.items():
            for location in {self._locations.get(name) or path_of(name) for name in names}:
                if location is None:
                    raise NeedsSparkError("its dead letters are in a catalog")
                for batch in _TableRows(location).select(list(columns.values())):
                    letters = _side(DEAD, batch.num_rows, **dict(zip(columns, batch.columns, strict=True)))
                    batches.append(letters.filter(pc.equal(letters["app_id"], app_id)))
        rows = pa.Table.from_batches(batches, SIDE).combine_chunks()
        return DriverComparison(lambda: [rows], values=sides.values, places=sides.has_messages)

    def _check(self, version: int) -> None:
        if version != self._rows.version:
            raise NeedsSparkError(f"its log does not show version {self._rows.version}")

    def _table_rows(self, sides: Sides) -> Iterator[pa.RecordBatch]:
        names = sides.names
        if names is None:
            return
        columns = {"journal": names.journal, "offset": names.offset}
        columns |= {"place": names.place} if sides.has_messages and names.place else {}
        columns |= {"value": names.value} if sides.values and names.value else {}
        recreated = pa.array(sorted(sides.recreated), pa.large_string())
        for batch in self._rows.select(list(columns.values())):
            rows = _side(ROWS, batch.num_rows, **dict(zip(columns, batch.columns, strict=True)))
            yield rows.filter(pc.invert(pc.is_in(rows["journal"], recreated)))


class _TableRows:
    """The rows of a small table's newest version, through ``deltalake``."""

    def __init__(self, location: str) -> None:
        self.location = location
        with _left_to_spark(location):
            self.delta = open_table(location)
            self.version = self.delta.version()
            self.types = column_types(self.delta)

    def history(self) -> Sequence[HistoryRow]:
        """Return the table's commits up to the opened version, newest first."""
        # Local files are read one by one, which takes little time. In an object store, each file is a
        # request.
        if local_path(self.location) is not None:
            return [row for row in DeltaLog(self.location).rows(None) if row.version <= self.version]
        if self.version > MAX_REQUESTS:
            raise NeedsSparkError(f"its log may have {self.version:,} files in an object store")
        with _left_to_spark(self.location):
            return list(log_files(self.delta, None))

    def select(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of some columns."""
        with _left_to_spark(self.location):
            files = pa.table(self.delta.get_add_actions())
        size = pc.sum(files["size_bytes"]).as_py() or 0
        if size > SMALL_BYTES:
            raise NeedsSparkError(f"{self.location} has files of {size >> 20} MiB")
        query = f"SELECT {', '.join(map(sql_name, columns))} FROM rows"  # noqa: S608 - quoted
        size = 0
        with _left_to_spark(self.location):
            for batch in run_sql(self.delta, query):
                size += batch.nbytes
                if size > MAX_MEMORY:
                    raise NeedsSparkError(f"{self.location} has more than {MAX_MEMORY >> 20} MiB of rows")
                yield batch


class _IcebergRows:
    """The rows of an Iceberg table's newest version, through ``pyiceberg``."""

    def __init__(self, name: TableName) -> None:
        self._name = str(name)
        self._table = IcebergLog(name).table()
        with iceberg_errors(self._name, input_error):
            self._history = table_history(self._table)
        self.version = self._history[0].version
        self.types = {column.name: str(column.field_type) for column in self._table.schema().fields}

    def history(self) -> Sequence[HistoryRow]:
        """Return the current snapshot and its ancestors, newest first."""
        return self._history

    def select(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of some columns."""
        with iceberg_errors(self._name, input_error):
            for batch in column_batches(self._table, columns):
                yield batch.select(columns)


@contextmanager
def _left_to_spark(location: str) -> Iterator[None]:
    """Leave tables that ``deltalake`` cannot read to Spark. If Spark cannot either, its error says why."""
    try:
        with named_errors(location):
            yield
    except InputError as error:
        if type(error.__cause__).__name__ == "TableNotFoundError":
            raise InputError(NO_TABLE.format(table_at(location))) from None
        # Spark could not read the table either, and would print pages of stack traces.
        if log_damage(location):
            raise
        raise NeedsSparkError(str(error)) from error
    except MissingPackageError as error:
        raise NeedsSparkError(str(error)) from error


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches in tables of many rows, because each sum over all bins takes time."""
    chunk: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        chunk.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK_ROWS:
            yield pa.Table.from_batches(chunk, SIDE).combine_chunks()
            chunk, rows = [], 0
    yield pa.Table.from_batches(chunk, SIDE).combine_chunks()


def _records(
    options: SourceOptions, plan: Mapping[str, PlannedRange], sides: Sides, *, at_once: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a plan.

    Args:
        options: Options of the source.
        plan: The ranges.
        sides: Description of the comparison.
        at_once: Whether to read several pieces concurrently, and keep them whole. Otherwise only one batch is
            in memory at a time.
    """
    schema = record_schema(values=sides.reads_values, places=sides.has_messages)
    reader = AuditReader(options, schema, "")
    security = security_for_tasks(options.security)
    pieces = [
        PlannedPartition(piece, security, read.gaps, committed=read.committed)
        for read in plan.values()
        for piece in read.pieces
    ]

    def read_whole(piece: PlannedPartition) -> list[pa.RecordBatch]:
        return list(reader.read(piece))

    with ThreadPoolExecutor(READERS) as pool:
        batches = pool.map(read_whole, pieces) if at_once else map(reader.read, pieces)
        for batch in itertools.chain.from_iterable(batches):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield _side(RECORDS, batch.num_rows, **columns)


def _side(number: int, size: int, **columns: pa.Array) -> pa.RecordBatch:
    """Return rows of a side. Missing columns are null, except the place, which is then the offset."""
    kinds = dict(zip(SIDE.names, SIDE.types, strict=True))
    made = {name: column.cast(kinds[name]) for name, column in columns.items()}
    made["place"] = pc.coalesce(made["place"], made["offset"]) if "place" in made else made["offset"]
    made["side"] = pa.repeat(pa.scalar(number, pa.int8()), size)
    return pa.RecordBatch.from_arrays(
        [made.get(name, pa.nulls(size, kind)) for name, kind in kinds.items()], schema=SIDE
    )


@dataclass(frozen=True, slots=True, eq=False)
class DriverComparison:
    """Compares the sides of an audit, a chunk of rows at a time."""

    chunks: Callable[[], Iterable[pa.Table]]
    """Returns the rows of all sides, in tables with the columns :data:`SIDE`."""
    values: bool
    """Whether the records' bytes are also compared."""
    places: bool = False
    """Whether rows may be committed messages, whose places differ from their offsets."""
    salt: bytes = field(default_factory=lambda: token_bytes(16))
    """Makes the digests' sums unpredictable, see :mod:`gazette_spark._verify.parts`."""

    def totals(self, bins: Bins) -> list[Totals]:
        """Return the sums of each side."""
        size = len(bins)
        totals = [Totals.gathered(size, ())] * 3
        for chunk in self.chunks():
            side = chunk["side"].to_numpy()
            rows, at = _in_bins(chunk, bins, "offset")
            nowhere = _nowhere(chunk, rows)
            foreign = int(chunk["journal"].is_null().to_numpy()[nowhere].sum())
            outside = {STRAY: len(nowhere) - foreign, FOREIGN: foreign}
            committed_rows, committed_at = rows, at
            if self.places:
                committed_rows, committed_at = _in_bins(chunk, bins, "place")
                # As in Spark's engine, only rows in a bin by their offset, and rows of the table in none, are
                # counted where they were committed.
                is_counted = np.isin(committed_rows, np.concatenate([rows, nowhere]))
                committed_rows, committed_at = committed_rows[is_counted], committed_at[is_counted]
            for index, number in enumerate((RECORDS, ROWS, DEAD)):
                is_here = side[rows] == number
                digests = np.zeros((size, WORDS), np.int64)
                np.add.at(digests, at[is_here], self._words(chunk.take(rows[is_here])))
                committed = np.bincount(committed_at[side[committed_rows] == number], minlength=size)
                totals[index] += Totals(
                    np.bincount(at[is_here], minlength=size).astype(np.int64),
                    digests,
                    committed.astype(np.int64),
                    outside if number == ROWS else {},
                )
        return totals

    def first_in(self, part: Part, what: str) -> tuple[int, str, int | None] | None:
        """Return the first offset of a part at which rows differ from records, or None.

        Returns:
            The offset, the problem, and the place of the record.
        """
        bins = Bins.of([part])
        near = pa.concat_tables(chunk.take(_in_bins(chunk, bins, "offset")[0]) for chunk in self.chunks())
        sides, offsets, places = (near[name].to_pylist() for name in ("side", "offset", "place"))
        values = near["value"].to_pylist() if self.values else [None] * len(near)
        records: Counter[tuple[int, bytes | None]] = Counter()
        actual: Counter[tuple[int, bytes | None]] = Counter()
        for side, offset, value in zip(sides, offsets, values, strict=True):
            (records if side == RECORDS else actual)[offset, value] += 1
        difference = first_difference(records, actual, what)
        if difference is None:
            return None
        at = [
            place
            for side, offset, place in zip(sides, offsets, places, strict=True)
            if side == RECORDS and offset == difference[0]
        ]
        return *difference, max(at, default=None)

    def first_stray(self, bins: Bins) -> tuple[str, int | None]:
        """Return the journal and offset of the first row that is in no bin, which must exist."""
        order = [("journal", "ascending"), ("offset", "ascending")]
        firsts = []
        for chunk in self.chunks():
            rows, _ = _in_bins(chunk, bins, "offset")
            strays = chunk.select(["journal", "offset"]).take(_nowhere(chunk, rows))
            firsts.append(strays.filter(strays["journal"].is_valid()).sort_by(order).slice(0, 1))
        first = pa.concat_tables(firsts).sort_by(order)
        return first["journal"][0].as_py(), first["offset"][0].as_py()

    def digests(self, number: int, parts: Sequence[Part]) -> dict[int, str]:
        """Return the digest of a side's rows, computed as in a ledger entry, by the index of their part."""
        bins = Bins.of(parts)
        selected, part_of = [], []
        for chunk in self.chunks():
            rows, at = _in_bins(chunk, bins, "place")
            is_here = chunk["side"].to_numpy()[rows] == number
            selected.append(chunk.select(["offset", "value"]).take(rows[is_here]))
            part_of.append(bins.part[at[is_here]])
        part = np.concatenate(part_of)
        everything = pa.concat_tables(selected)
        digests = {}
        for index in np.unique(part).tolist():
            group = everything.take(np.flatnonzero(part == index))
            offsets, values = group["offset"].to_pylist(), group["value"].to_pylist()
            digests[index] = tree_digest(zip(offsets, values, strict=True))
        return digests

    def _words(self, selected: pa.Table) -> Positions:
        """Return the words of the salted digests of rows."""
        offsets = selected["offset"].to_pylist()
        values = selected["value"].to_pylist() if self.values else [None] * len(selected)
        # The hash of the salt is computed once, and copied for each row.
        salt = hashlib.sha256(self.salt)
        halves = []
        for offset, value in zip(offsets, values, strict=True):
            digest = salt.copy()
            digest.update(row_text(offset, value))
            halves.append(digest.digest()[: 4 * WORDS])
        return np.frombuffer(b"".join(halves), np.uint32).reshape(-1, WORDS).astype(np.int64)


def _nowhere(chunk: pa.Table, rows: Positions) -> Positions:
    """Return the table's rows other than these, which are in no bin and should not exist."""
    return np.setdiff1d(np.flatnonzero(chunk["side"].to_numpy() == ROWS), rows)


def _in_bins(chunk: pa.Table, bins: Bins, column: str) -> tuple[Positions, Positions]:
    """Return pairs of a row and the bin of its offset in a column."""
    journals = chunk["journal"].combine_chunks().dictionary_encode()
    # Rows are grouped by journal once. Then each range needs one binary search per row of its journal.
    codes = journals.indices.fill_null(len(journals.dictionary)).to_numpy()
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(len(journals.dictionary) + 1))
    rows_of = dict(zip(journals.dictionary.to_pylist(), np.split(order, edges[1:]), strict=False))
    offsets = chunk[column].fill_null(-1).to_numpy()
    app_ids = chunk["app_id"]
    rows, at = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    # A claim's bins are adjacent and ascending.
    claim_of = [id(bins.parts[part].claim) for part in bins.part.tolist()]
    for _, group in itertools.groupby(range(len(bins)), claim_of.__getitem__):
        numbers = np.array(list(group))
        claim = bins.parts[int(bins.part[numbers[0]])].claim
        its = rows_of.get(claim.journal, rows[0])
        writers = app_ids.take(its)
        its = its[pc.or_(writers.is_null(), pc.equal(writers, claim.app_id).fill_null(False)).to_numpy()]  # noqa: FBT003
        nearest = np.searchsorted(bins.begins[numbers], offsets[its], "right") - 1
        is_in = (nearest >= 0) & (offsets[its] < bins.ends[numbers][nearest])
        rows.append(its[is_in])
        at.append(numbers[nearest[is_in]])
    return np.concatenate(rows), np.concatenate(at)
