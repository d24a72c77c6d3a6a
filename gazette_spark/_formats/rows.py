"""Implements the common part of all formats' parsers: modes, malformed records, and the metadata columns.

A format provides a :class:`RecordParser`, which reads each record alone and reports its problem, and perhaps
a :class:`BlockParser`, which reads a block at once. If the block parser refuses a block, suspect records are
removed, or else the block is halved until the failing part is small. These records go through the record
parser. Both parsers give the same row for a record, so a row never depends on its neighbours.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from gazette_spark._formats.framing import MAX_ROWS, Block, as_lines, bounded, gathered
from gazette_spark._formats.metadata import Labels, is_metadata, metadata_column
from gazette_spark._formats.values import spread
from gazette_spark.errors import GazetteError, OptionError, RecordError

MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")

MAX_VALUES = 4 << 20
"""Maximum number of values of a record batch, nulls included: 32 MiB of numbers."""

MAX_REFUSED_ROWS = 32
"""Maximum number of records of a refused block that go through the record parser together."""

CLOSE_ROWS = 256
"""Maximum number of good records between two suspect ones of the same run."""

WHOLE_RECORD = "_record"
"""Key in the rescued column for the text of a record without any fields."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The result of reading a block."""

    values: Mapping[str, pa.Array]
    """Values by field, one for each record of the block."""
    problems: Mapping[int, str] = field(default_factory=dict)
    """Reasons by index why records are malformed."""
    rescued: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """JSON texts, by index and field, of fields that did not fit; only for a column of rescued data."""
    left_out: Sequence[int] = ()
    """Indices of headers, which give no row."""


@dataclass(frozen=True, slots=True)
class BlockRefusal:
    """The refusal of a block."""

    suspects: Sequence[int] = ()
    """Ascending indices of records that may be malformed: a hint."""


class RecordParser(Protocol):
    """Reads each record alone. Immutable."""

    def columns(self, block: Block) -> Columns:
        """Return the columns. Never raises, regardless of the records' bytes."""


class BlockParser(Protocol):
    """Reads blocks. Immutable."""

    def columns(self, block: Block) -> Columns | BlockRefusal:
        """Return the columns, or a refusal if a value might not come from its own record."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The columns of a query, and the mode for malformed records. Can be pickled."""

    schema: pa.Schema
    """Exactly the columns of the rows. Metadata columns show a record's origin."""
    mode: str = "PERMISSIVE"
    corrupt_column: str | None = "_corrupt_record"
    """Name of the column, if the schema has it, for the text of malformed records under PERMISSIVE."""
    rescued_column: str | None = None
    """Name of the column, if the schema has it, for fields that did not fit, as JSON."""
    labels: Labels = ()
    """The journal's labels for the column ``_labels``."""
    messages: bool = False
    """Whether columns with the names of message metadata come with the blocks."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError("mode", repr(self.mode), f"one of {', '.join(MODES)}")
        names = self.schema.names
        if not names or len(set(names)) < len(names):
            raise OptionError("schema", ", ".join(names) or "no column", "columns with distinct names")
        if self.rescued_column is not None and self.rescued_column == self.corrupt_column:
            got = f"{self.rescued_column!r}, which is also columnNameOfCorruptRecord"
            raise OptionError("rescuedDataColumn", got, "another column")
        for column in self.schema:
            if column.name in (self.corrupt_column, self.rescued_column) and column.type != pa.string():
                raise OptionError("schema", f"{column.name} {column.type}", f"{column.name} string")
            is_metadata(column, messages=self.messages)  # Raises if the type is wrong.

    @property
    def data_fields(self) -> list[pa.Field]:
        """The columns that come from the records' fields."""
        special = (self.corrupt_column, self.rescued_column)
        return [
            column
            for column in self.schema
            if column.name not in special and not is_metadata(column, messages=self.messages)
        ]

    @property
    def max_rows(self) -> int:
        """Maximum number of rows of a record batch."""
        # A record may be shorter than the row it gives: of a thousand columns, `{}` has eight kilobytes of
        # nulls.
        return max(1, min(MAX_ROWS, MAX_VALUES // sum(map(_value_count, self.schema.types))))

    @property
    def rescues(self) -> bool:
        """Return whether the schema has the column of rescued data."""
        return self.rescued_column is not None and self.rescued_column in self.schema.names


class RowParser(ABC):
    """Parses blocks of records. For one thread."""

    def __init__(self, row_format: RowFormat) -> None:
        self.format = row_format
        self.malformed = 0
        """Number of malformed records so far."""
        self.first_problem = ""
        """Offset and problem of the first malformed record; "" without one. The text has no values."""

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.format.schema.names}, {self.format.mode}, malformed={self.malformed})"

    def record_batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Yield one record batch for each block that gives rows.

        Blocks of very many rows give several record batches.

        Raises:
            RecordError: a record is malformed and the mode is FAILFAST.
        """
        for block in bounded(blocks, self.format.max_rows):
            parts = [part for part in self._guarded(block) if part.num_rows]
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                # Spark handles each record batch separately, so parts of a block become one again.
                yield from pa.Table.from_batches(parts).combine_chunks().to_batches()

    def _guarded(self, block: Block) -> list[pa.RecordBatch]:
        """Parse a block. A record that makes its parser raise counts as malformed as a whole.

        Parsers should never raise, so this is for unforeseen errors. A PERMISSIVE query must get past such a
        record, because it would meet the same bytes again after each restart. The block is halved until the
        record is alone, so its neighbours keep their rows.
        """
        malformed = self.malformed
        try:
            return list(self._parse(block))
        except (GazetteError, MemoryError):
            raise  # FAILFAST, or a problem of the machine.
        except Exception as error:  # noqa: BLE001  # Nobody knows which a parser may raise.
            # The records that the failed attempt counted are counted again below.
            self.malformed = malformed
            if len(block) == 1:
                return [self.unreadable(block, f"its reader raised {type(error).__name__}: {error}")]
        middle = len(block) // 2
        return self._guarded(block.rows(0, middle)) + self._guarded(block.rows(middle, len(block)))

    def unreadable(self, block: Block, problem: str) -> pa.RecordBatch:
        """Return the row of an unreadable record, the only one of a block, according to the mode.

        Raises:
            RecordError: the mode is FAILFAST.
        """
        nulls = {column.name: pa.nulls(1, column.type) for column in self.format.data_fields}
        text = json.dumps(block.record(0).decode("utf-8", "replace"))
        rescued = {0: {WHOLE_RECORD: text}} if self.format.rescues else {}
        return self._finished(block, Columns(nulls, {0: problem}, rescued))

    @abstractmethod
    def _parse(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Parse a block."""

    def _finished(self, block: Block, columns: Columns) -> pa.RecordBatch:
        """Apply the mode to malformed records, and add the columns that do not come from fields."""
        row_format, problems = self.format, columns.problems
        values = dict(columns.values)
        self.malformed += len(problems)
        if problems and not self.first_problem:
            first = min(problems)
            self.first_problem = f"offset {block.offsets[first]}: {problems[first]}"
        if problems and row_format.mode == "FAILFAST":
            index = min(problems)
            raise RecordError(block.journal, int(block.offsets[index]), f"malformed: {problems[index]}")

        corrupt = row_format.corrupt_column
        if corrupt and corrupt in row_format.schema.names:
            # Under the other modes the column stays, and is null in every row.
            values[corrupt] = pa.nulls(len(block), pa.string())
            if problems and row_format.mode == "PERMISSIVE":
                malformed = np.zeros(len(block), np.bool_)
                malformed[list(problems)] = True
                records = gathered(block.only(malformed))
                try:
                    # Malformed records are usually valid UTF-8, and then cost one cast.
                    texts = records.cast(pa.string())
                except pa.ArrowInvalid:
                    decoded = [record.as_py().decode("utf-8", "replace") for record in records]
                    texts = pa.array(decoded, pa.string())
                values[corrupt] = spread(len(block), pa.string(), [(np.flatnonzero(malformed), texts)])
        if row_format.rescues:
            rescued = []
            for index, members in columns.rescued.items():
                # The record's origin comes first, and a field of the same name does not replace it.
                origin = {"_journal": json.dumps(block.journal), "_offset": str(int(block.offsets[index]))}
                fields = origin | dict(members) | origin
                written = [f"{json.dumps(name)}:{text}" for name, text in fields.items()]
                rescued.append("{" + ",".join(written) + "}")
            at = np.fromiter(columns.rescued, np.int64)
            values[row_format.rescued_column or ""] = spread(
                len(block), pa.string(), [(at, pa.array(rescued, pa.string()))]
            )

        # Rows are also dropped from the block, because offsets and other metadata come from it.
        dropped = [*columns.left_out, *(problems if row_format.mode == "DROPMALFORMED" else ())]
        if dropped:
            keep = np.ones(len(block), np.bool_)
            keep[dropped] = False
            values = {name: column.filter(pa.array(keep)) for name, column in values.items()}
            block = block.only(keep)
        return pa.RecordBatch.from_arrays(
            [
                values[column.name]
                if column.name in values
                else metadata_column(block, column, row_format.labels)
                for column in row_format.schema
            ],
            schema=row_format.schema,
        )


class FallbackParser(RowParser):
    """Parses whole blocks if possible, and other records one by one."""

    def __init__(self, row_format: RowFormat, records: RecordParser, blocks: BlockParser | None) -> None:
        super().__init__(row_format)
        self._record_parser = records
        self._block_parser = blocks

    def _parse(self, block: Block) -> Iterator[pa.RecordBatch]:
        # A suspect record is removed and read alone. While suspects are close together, each such run of
        # records is twice as long as the last one. So blocks with few bad records keep most of their speed,
        # and blocks with only bad records cost few attempts.
        run = 1
        while len(block):
            if self._block_parser is None:
                yield self._finished(block, self._record_parser.columns(block))
                return
            columns = self._block_parser.columns(as_lines(block))
            if not isinstance(columns, BlockRefusal):
                yield self._finished(block, columns)
                return
            if not columns.suspects:
                # The bad record is unknown. The half without it can be read fast again.
                if len(block) <= MAX_REFUSED_ROWS:
                    yield self._finished(block, self._record_parser.columns(block))
                    return
                middle = len(block) // 2
                yield from self._parse(block.rows(0, middle))
                yield from self._parse(block.rows(middle, len(block)))
                return
            # The records before the first suspect are good as far as is known, so they are parsed as a block.
            suspect = columns.suspects[0]
            yield from self._parse(block.rows(0, suspect))
            run = 1 if suspect > CLOSE_ROWS else run * 2
            resume = min(suspect + run, len(block))
            suspects = block.rows(suspect, resume)
            yield self._finished(suspects, self._record_parser.columns(suspects))
            block = block.rows(resume, len(block))


def _value_count(kind: pa.DataType) -> int:
    """Return the number of values of a type in a row, at least; a null struct has those of its fields."""
    return max(1, sum(_value_count(field.type) for field in kind)) if pa.types.is_struct(kind) else 1
