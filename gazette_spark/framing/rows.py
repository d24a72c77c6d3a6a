"""Records to the user's columns: modes, malformed records, the metadata columns of a record's origin.

A format provides an exact half, which reads one record and reports its problem, and maybe a fast half, which
reads a block at once. Where the fast half refuses a block, suspect records are taken out, or else the block
is halved until the failing part is small; those records go through the exact half. Both halves give the same
row where both accept a record, so a row never depends on its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from gazette_spark.errors import OptionError, RecordError
from gazette_spark.framing.base import Block, bounded
from gazette_spark.framing.metadata import Labels, is_metadata, metadata_column

MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")

EXACT_ROWS = 32
"""Largest part of a failed block that goes through the exact half as a whole."""

CLOSE_ROWS = 8
"""Bad records with no more good ones between them follow each other closely."""

WHOLE_RECORD = "_record"
"""Key, in the rescued column, of a record's text where it has no fields at all."""


@dataclass(frozen=True, slots=True)
class Row:
    """Result of reading one record."""

    values: Mapping[str, object] | None
    """Values by field; None: the record cannot be read at all."""
    problem: str | None
    """Reason why the record is malformed, None for a valid record."""
    rescued: Mapping[str, str] = field(default_factory=dict)
    """JSON text of fields that did not fit, by field; filled in only for a column of rescued data."""
    left_out: bool = False
    """The record is not data, and gives no row: a header."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Result of reading a block."""

    values: Mapping[str, pa.Array]
    """Values by field, as long as the block."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Reasons why records are malformed, by index."""


@dataclass(frozen=True, slots=True)
class BlockRefusal:
    """Refusal of a block, without columns."""

    suspect: int | None
    """A record that may be the malformed one: a hint."""


class ExactHalf(Protocol):
    """Reads one record. Immutable."""

    def row(self, record: bytes) -> Row:
        """Read one record. Never raises, whatever its bytes."""


class FastHalf(Protocol):
    """Reads blocks. Immutable."""

    @property
    def usable(self) -> bool:
        """Tell whether it knows all types of the schema."""

    def columns(self, block: Block) -> Columns | BlockRefusal:
        """Return the columns, or a refusal when they might not be each record's own."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The wanted columns, and the mode for malformed records. Can be pickled."""

    schema: pa.Schema
    """The columns that come out, exactly. Metadata columns give a record's origin."""
    mode: str = "PERMISSIVE"
    corrupt_column: str | None = "_corrupt_record"
    """Column, if the schema has it, for the text of malformed records under PERMISSIVE."""
    rescued_column: str | None = None
    """Column, if the schema has it, for fields that did not fit, as JSON."""
    labels: Labels = ()
    """The journal's labels, for the column ``_labels``."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError("mode", repr(self.mode), f"one of {', '.join(MODES)}")
        if not self.schema.names or len(set(self.schema.names)) < len(self.schema.names):
            raise OptionError(
                "schema", ", ".join(self.schema.names) or "no column", "columns, each of its own name"
            )
        if self.rescued_column is not None and self.rescued_column == self.corrupt_column:
            got = f"{self.rescued_column!r}, which columnNameOfCorruptRecord has, too"
            raise OptionError("rescuedDataColumn", got, "a column of its own")
        for column in self.schema:
            if column.name in (self.corrupt_column, self.rescued_column) and column.type != pa.string():
                raise OptionError("schema", f"{column.name} {column.type}", f"{column.name} string")
            is_metadata(column)  # Raises where the type is not the right one.

    @property
    def data_fields(self) -> list[pa.Field]:
        """The columns that come from the records' own fields."""
        special = (self.corrupt_column, self.rescued_column)
        return [column for column in self.schema if column.name not in special and not is_metadata(column)]

    @property
    def rescues(self) -> bool:
        """Tell whether rescued data is wanted."""
        return self.rescued_column is not None and self.rescued_column in self.schema.names


class RowParser:
    """Parses blocks of records. For one thread."""

    def __init__(self, wanted: RowFormat, exact: ExactHalf, fast: FastHalf | None) -> None:
        self.format = wanted
        self.malformed = 0
        """Malformed records so far."""
        self._exact = exact
        self._reader = fast

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.format.schema.names}, {self.format.mode}, malformed={self.malformed})"

    def record_batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Yield one record batch for each block, less those that would have no row.

        Blocks of very many rows give several.

        Raises:
            RecordError: a record is malformed and the mode is FAILFAST.
        """
        for block in bounded(blocks):
            parts = [part for part in self._parse(block) if part.num_rows]
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                yield from pa.Table.from_batches(parts).combine_chunks().to_batches()

    def may_be_fast(self, row: Row, record: bytes) -> bool:  # noqa: ARG002 - for formats that differ.
        """Tell whether the fast half may accept a record that the exact half gives this row for."""
        return False

    def _parse(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Parse a block, fast wherever possible.

        A suspect record is taken out and read exactly. While suspects follow each other closely, each such
        run of records is twice as long as the last one. So blocks with few bad records keep most of their
        speed, and blocks of bad records alone cost a few attempts.
        """
        run = 1
        while len(block):
            answer = self._fast(block)
            if not isinstance(answer, BlockRefusal):
                yield answer
                return
            if answer.suspect is None:
                yield from self._halves(block)
                return
            yield from self._parse(block.rows(0, answer.suspect))
            run = 1 if answer.suspect > CLOSE_ROWS else run * 2
            resume = min(answer.suspect + run, len(block))
            yield from self._slow(block.rows(answer.suspect, resume))
            block = block.rows(resume, len(block))

    def _halves(self, block: Block) -> Iterator[pa.RecordBatch]:
        if len(block) <= EXACT_ROWS or self._reader is None or not self._reader.usable:
            yield from self._slow(block)
            return
        middle = len(block) // 2
        yield from self._parse(block.rows(0, middle))
        yield from self._parse(block.rows(middle, len(block)))

    def _fast(self, block: Block) -> pa.RecordBatch | BlockRefusal:
        """Parse a whole block, if the fast half can."""
        found = BlockRefusal(None) if self._reader is None else self._reader.columns(block)
        if isinstance(found, BlockRefusal):
            return found
        return self._finished(block, found, ())

    def _slow(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Parse record by record; hand rows on in runs."""
        rows: list[Row] = []
        first = 0
        for index in range(len(block)):
            record = block.record(index)
            row = self._exact.row(record)
            alone: pa.RecordBatch | BlockRefusal = BlockRefusal(None)
            if self.may_be_fast(row, record):
                alone = self._fast(block.rows(index, index + 1))
            if isinstance(alone, BlockRefusal):
                rows.append(row)
                continue
            yield self._run(block.rows(first, index), rows)
            yield alone
            rows, first = [], index + 1
        yield self._run(block.rows(first, len(block)), rows)

    def _run(self, block: Block, rows: list[Row]) -> pa.RecordBatch:
        """Build the columns of rows that were read one by one."""
        values = {
            column.name: pa.array([(row.values or {}).get(column.name) for row in rows], column.type)
            for column in self.format.data_fields
        }
        problems = {index: row.problem for index, row in enumerate(rows) if row.problem is not None}
        return self._finished(block, Columns(values, problems), rows)

    def _finished(self, block: Block, found: Columns, rows: Sequence[Row]) -> pa.RecordBatch:
        """Do with malformed records as the mode says, and add the other columns."""
        values = dict(found.values)
        self._count(block, found.problems)
        corrupt = self.format.corrupt_column
        if corrupt and corrupt in self.format.schema.names:
            values[corrupt] = _texts(self._corrupt_texts(block, found.problems), len(block))
        if self.format.rescues:
            rescued = {
                index: self._rescued(block, index, row) for index, row in enumerate(rows) if row.rescued
            }
            values[self.format.rescued_column or ""] = _texts(rescued, len(block))
        dropped = [index for index, row in enumerate(rows) if row.left_out]
        if self.format.mode == "DROPMALFORMED":
            dropped += found.problems
        if dropped:
            keep = np.ones(len(block), np.bool_)
            keep[dropped] = False
            values = {name: column.filter(pa.array(keep)) for name, column in values.items()}
            block = block.only(keep)
        schema = self.format.schema
        columns = [
            values[column.name]
            if column.name in values
            else metadata_column(block, column, self.format.labels)
            for column in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _count(self, block: Block, problems: Mapping[int, str]) -> None:
        self.malformed += len(problems)
        if problems and self.format.mode == "FAILFAST":
            index = min(problems)
            raise RecordError(block.journal, int(block.offsets[index]), f"malformed: {problems[index]}")

    def _corrupt_texts(self, block: Block, problems: Mapping[int, str]) -> dict[int, str]:
        if self.format.mode != "PERMISSIVE":
            return {}
        return {index: block.record(index).decode("utf-8", "replace") for index in problems}

    def _rescued(self, block: Block, index: int, row: Row) -> str:
        """Return the fields that did not fit as one JSON object, with the record's origin."""
        place = {"_journal": json.dumps(block.journal), "_offset": str(int(block.offsets[index]))}
        members = [f"{json.dumps(name)}:{text}" for name, text in (place | dict(row.rescued) | place).items()]
        return "{" + ",".join(members) + "}"


def _texts(found: Mapping[int, str], count: int) -> pa.StringArray:
    """Return a column of texts by index, null elsewhere."""
    if not found:
        return pa.nulls(count, pa.string())
    return pa.array([found.get(index) for index in range(count)], pa.string())
