"""Records of JSON to the user's columns: one row from each record, from that record alone.

The fast half (``framing.json_fast``) gives a whole block to ``pyarrow.json``. Of a block that it refuses, the
records at fault go through the exact half (``framing.json_exact``), or all records where these are not known
or too many. Both halves give the same row for a record, so a row never depends on its neighbours.

With a column for rescued data, a field that does not fit its column, or has no column, does not make a record
malformed. The column has the text of such fields as one JSON object, with the record's journal and offset. A
record that is no JSON object is there as text under ``_record``. A record that is no JSON object is malformed
all the same.

Rows are those of Spark's ``from_json``; ``docs/reference/formats.md`` says where and why they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gazette_spark.errors import OptionError
from gazette_spark.framing.base import Block, as_lines
from gazette_spark.framing.json_fast import FastReader
from gazette_spark.framing.json_values import SPARKS, JsonDialect, readable
from gazette_spark.framing.rows import BlockRefusal, Columns, RowFormat, RowParser
from gazette_spark.framing.text_columns import Mask, spread

TRIES = 4
"""Times that the fast half is given a block, less the records at fault."""

MOST_FAILURES = 5
"""Failures in a row that count: after these the fast half is left out for 31 blocks."""

PART_BYTES = 512 << 10
"""Bytes that the exact half reads at a time, if no record is longer: it takes many times as much memory."""


@dataclass(frozen=True, slots=True)
class JsonFormat(RowFormat):
    """Format of JSON records and the wanted columns. Can be pickled."""

    dialect: JsonDialect = SPARKS

    def __post_init__(self) -> None:
        RowFormat.__post_init__(self)
        for field in self.data_fields:
            if not readable(field.type):
                raise OptionError("schema", f"{field.name} {field.type}", _TYPES)


class JsonParser(RowParser):
    """Parses blocks of JSON records. For one thread.

    ``fast=False`` leaves out the fast half: for tests and for measuring.
    """

    def __init__(self, wanted: JsonFormat, *, fast: bool = True) -> None:
        super().__init__(wanted)
        self._dialect = wanted.dialect
        reader = FastReader(wanted.data_fields, extra_fields=not wanted.rescues, dialect=wanted.dialect)
        self._fast = reader if fast and reader.usable else None
        self._failures = 0
        """Blocks in a row that the fast half was of no use for."""
        self._pause = 0
        """Blocks that it is not tried on, twice as many with each failure."""

    def _parse(self, block: Block) -> Iterator[pa.RecordBatch]:
        found = self._mostly_fast(block)
        if found is not None:
            yield self._finished(block, found)
            return
        for part in _parts(block):
            yield self._finished(part, self._exact(part))

    def _mostly_fast(self, block: Block) -> Columns | None:
        """Return the columns of a block, None where the fast half is of little use for it."""
        if self._fast is None or self._pause:
            self._pause = max(0, self._pause - 1)
            return None
        self._failures = min(self._failures + 1, MOST_FAILURES)
        left = np.ones(len(block), np.bool_)
        for _ in range(TRIES):
            found = self._fast.columns(as_lines(block if left.all() else block.only(left)))
            if not isinstance(found, BlockRefusal):
                self._failures = 0
                return found if left.all() else self._joined(block, left, found)
            suspects = list(found.suspects)
            left[np.flatnonzero(left)[suspects]] = False
            if _are_many(suspects, len(block)):
                break
        self._pause = (1 << self._failures) - 1
        return None

    def _exact(self, block: Block) -> Columns:
        # It loads much that most tasks do without, and Spark starts many processes.
        from gazette_spark.framing.json_exact import ExactReader

        return ExactReader(
            self.format.data_fields, rescue=self.format.rescues, dialect=self._dialect
        ).columns(block)

    def _joined(self, block: Block, left: Mask, found: Columns) -> Columns:
        """Return the columns of a block of which the fast half left out some records."""
        exact = self._exact(block.only(~left))
        here, there = np.flatnonzero(left), np.flatnonzero(~left)
        values = {
            name: spread(len(block), column.type, [(here, column), (there, exact.values[name])])
            for name, column in found.values.items()
        }
        problems = {int(here[index]): problem for index, problem in found.problems.items()}
        problems |= {int(there[index]): problem for index, problem in exact.problems.items()}
        return Columns(values, problems, {int(there[index]): texts for index, texts in exact.rescued.items()})


def _are_many(suspects: list[int], count: int) -> bool:
    """Tell whether more records are at fault than are worth leaving out, as far as one can tell."""
    if len(suspects) < 2:
        # The parser stops at the first one: where that is early, others follow.
        return not suspects or suspects[0] < count // TRIES
    return len(suspects) > count // TRIES


def _parts(block: Block) -> Iterator[Block]:
    """Cut a block into parts of few bytes."""
    first = 0
    while first < len(block):
        most = int(np.searchsorted(block.ends, block.starts[first] + PART_BYTES))
        stop = min(max(most, first + 1), len(block))
        yield block.rows(first, stop)
        first = stop


_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp, "
    "timestamp_ntz, variant, and arrays, structs and maps from strings of these"
)
