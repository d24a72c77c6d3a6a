"""The producer of a task attempt: stamps rows with UUIDs, and makes the acknowledgements for them.

Each attempt of a task has a new producer id. In each journal, its rows belong to a transaction that an
acknowledgement (ACK) commits. An ACK with a clock before that of the first row rolls them back.

Clocks ascend in each journal, because one thread stamps the rows and an append service keeps their order.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark._formats.arrays import (
    binary_array,
    binary_scalar,
    int64_array,
    unpacked,
    value_bounds,
    value_octets,
)
from gazette_spark._formats.framing import RowRefusal
from gazette_spark.errors import MessageError
from gazette_spark.message.interfaces import CONTENT_TYPES, FRAMINGS
from gazette_spark.message.locator import CsvColumn, JsonPointer, Locator, locator_for
from gazette_spark.message.uuids import (
    ACK_TXN,
    CONTINUE_TXN,
    UUID_TEXT_BYTES,
    Clock,
    ProducerId,
    build_uuid,
    new_producer_id,
    stamp,
    uuid_texts,
)

_NOTHING = binary_scalar(b"")
_UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

Rows: TypeAlias = npt.NDArray[np.bool_]
"""A mask of the rows of a column."""


@dataclass(frozen=True, slots=True)
class TaskIntent:
    """The acknowledgements that commit one task's rows in one journal, or roll them back."""

    journal: str
    commit: bytes
    rollback: bytes


@dataclass(slots=True)
class _Touched:
    """A journal with rows of this producer."""

    framing: str
    locator: Locator
    first: Clock
    sample: bytes
    """The first row, for an acknowledgement that readers of such rows can read."""


class TaskProducer:
    """Stamps the rows of one task attempt. For one thread."""

    def __init__(self, uuid_path: str | None, now_ns: int) -> None:
        """Begin with a new producer id.

        Args:
            uuid_path: Place of the UUID in a row; None for the framing's default.
            now_ns: Nanoseconds since the Unix epoch, at which the clock begins.
        """
        self._path = uuid_path or ""
        self._producer: ProducerId = new_producer_id()
        self._clock = Clock.at(now_ns)
        self._touched: dict[str, _Touched] = {}

    def stamped(self, values: pa.Array, journal: str, framing: str) -> pa.Array | RowRefusal:
        """Return rows of a journal with their UUIDs, or the first row that has no place for one.

        Args:
            values: Binary or string values without nulls, in the order in which they will be appended.
            journal: Their journal.
            framing: Its framing, one of :data:`CONTENT_TYPES`.
        """
        binary = values if pa.types.is_binary(values.type) else values.cast(pa.binary())
        if not len(binary):
            return binary
        locator = locator_for(CONTENT_TYPES[framing], self._path)
        # Every row has a separate clock, above all earlier ones of this producer: to readers, a row with an
        # equal or smaller clock is a copy.
        first = self._clock.ticked()
        uuids = stamp(self._producer, first, len(binary), CONTINUE_TXN)
        self._clock = Clock(int(uuids.clocks[-1]))
        made = with_uuids(binary, uuid_texts(uuids), locator)
        if not isinstance(made, RowRefusal) and journal not in self._touched:
            self._touched[journal] = _Touched(framing, locator, first, made[0].as_py())
        return made

    def intents(self) -> tuple[TaskIntent, ...]:
        """Return the intents of all rows that were stamped so far, one for each journal."""
        # Use a clock above those of all rows, so that the acknowledgement commits all of them.
        self._clock = self._clock.ticked()
        return tuple(
            TaskIntent(
                journal,
                self._acknowledgement(touched, self._clock),
                # To readers, this clock is the last one before the first row, so they discard the rows.
                self._acknowledgement(touched, Clock(touched.first - 1)),
            )
            for journal, touched in self._touched.items()
        )

    def _acknowledgement(self, touched: _Touched, clock: Clock) -> bytes:
        # An acknowledgement is a record of its journal, and readers of the journal must be able to parse it.
        blank = touched.locator.blank(touched.sample)
        record = touched.locator.set(blank, build_uuid(self._producer, clock, ACK_TXN))
        return FRAMINGS[CONTENT_TYPES[touched.framing]].frame(record)


def with_uuids(
    values: pa.BinaryArray, uuids: pa.StringArray, locator: Locator
) -> pa.BinaryArray | RowRefusal:
    """Put UUIDs into rows; refuse the first row that has a different value in that place.

    Rows that clearly lack a UUID, and rows that begin with one, are changed in whole columns; all other rows
    are changed one by one.
    """
    plain, stamped = _groups(values, locator)
    if plain.all():
        return _spliced(values, uuids, locator)
    if stamped.all():
        return _replaced(values, uuids, locator)
    odd = np.flatnonzero(~(plain | stamped))
    one_by_one = []
    for index in odd:
        record, text = values[int(index)].as_py(), uuids[int(index)].as_py()
        try:
            # Raises an error if the place has anything other than a UUID: that must not be overwritten.
            locator.get(record)
            one_by_one.append(locator.set(record, uuid.UUID(text)))
        except MessageError as error:
            return RowRefusal(
                int(index),
                f"it has no place for a UUID: {error}",
                "Leave the place of option uuidPath empty or omit it; exactly_once puts the row's UUID there",
            )
    parts, indices = [binary_array(one_by_one)], [odd]
    for rows, make in ((np.flatnonzero(plain), _spliced), (np.flatnonzero(stamped), _replaced)):
        if len(rows):
            taken = int64_array(rows)
            parts.append(make(values.take(taken), uuids.take(taken), locator))
            indices.append(rows)
    # The groups are put back into the rows' order, which their clocks follow.
    order = np.empty(len(values), np.int64)
    order[np.concatenate(indices)] = np.arange(len(values))
    return pa.concat_arrays(parts).take(int64_array(order))


def _groups(values: pa.BinaryArray, locator: Locator) -> tuple[Rows, Rows]:
    """Return masks of the rows without a UUID, and of those that begin with one, by their bytes alone."""
    none = np.zeros(len(values), np.bool_)
    if isinstance(locator, CsvColumn) and locator.index == 0:
        return _begin_with(values, b","), none
    # The search below would miss a name with an escape. Many programs write \/ for a slash.
    if not isinstance(locator, JsonPointer) or any(
        json.dumps(token)[1:-1] != token or "/" in token for token in locator.tokens
    ):
        return none, none
    # An escape can spell a letter of the member's name, which the search for the name would miss.
    odd = _contain(values, b"\\u00", r"\\u00[2-7]")
    first, last = (f'"{token}"'.encode() for token in (locator.tokens[0], locator.tokens[-1]))
    named = _contain(values, first)
    plain = _begin_with(values, b"{") & ~odd & ~named
    if not named.any():
        return plain, none
    begins = _flags(pc.match_substring_regex(values, f'^{re.escape(_opening(locator))}{_UUID}"'))
    # JSON parsers take the last of repeated names, so replace the first one only if it is the only one.
    once = _equal(pc.count_substring(values, first), 1) & _equal(pc.count_substring(values, last), 1)
    return plain, begins & once & ~odd


def _begin_with(values: pa.BinaryArray, first: bytes) -> Rows:
    bounds, octets = value_bounds(values), value_octets(values)
    begins = np.diff(bounds) > 0
    begins[begins] = octets[bounds[:-1][begins]] == first[0]
    return begins


def _contain(values: pa.BinaryArray, word: bytes, pattern: str | None = None) -> Rows:
    """Return a mask of values that have a word or, with a pattern, match it. A match always has the word."""
    bounds = value_bounds(values)
    # This is much faster than Arrow's search, and usually sufficient.
    if value_octets(values)[bounds[0] : bounds[-1]].tobytes().find(word) < 0:
        return np.zeros(len(values), np.bool_)
    if pattern is not None:
        return _flags(pc.match_substring_regex(values, pattern))
    return _flags(pc.match_substring(values, word))


def _flags(mask: pa.BooleanArray) -> Rows:
    return unpacked(mask.buffers()[1], mask.offset, len(mask))


def _equal(column: pa.Int32Array, number: int) -> Rows:
    numbers = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column)]
    return np.asarray(numbers == number, np.bool_)


def _spliced(values: pa.BinaryArray, uuids: pa.StringArray, locator: Locator) -> pa.BinaryArray:
    """Return rows that have no UUID, with their UUIDs."""
    texts = uuids.cast(pa.binary())
    if not isinstance(locator, JsonPointer):
        return pc.binary_join_element_wise(texts, values, _NOTHING)
    empty = pc.match_substring_regex(values, rb"^\{[ \t\r\n]*\}")
    after = b'"' + b"}" * (len(locator.tokens) - 1)
    ends = pc.if_else(empty, binary_scalar(after), binary_scalar(after + b","))
    rest = pc.binary_replace_slice(values, 0, 1, b"")
    opening = binary_scalar(_opening(locator).encode())
    return pc.binary_join_element_wise(opening, texts, ends, rest, _NOTHING)


def _replaced(values: pa.BinaryArray, uuids: pa.StringArray, locator: Locator) -> pa.BinaryArray:
    """Return rows that begin with a UUID, with their new UUIDs in its place."""
    assert isinstance(locator, JsonPointer)
    opening = _opening(locator).encode()
    rest = pc.binary_replace_slice(values, 0, len(opening) + UUID_TEXT_BYTES, b"")
    return pc.binary_join_element_wise(binary_scalar(opening), uuids.cast(pa.binary()), rest, _NOTHING)


def _opening(locator: JsonPointer) -> str:
    """Return the text before the UUID in a document to which this module has added one."""
    return "{" + ":{".join(json.dumps(token) for token in locator.tokens) + ':"'
