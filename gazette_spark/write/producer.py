"""The producer of one try of a task: stamps rows with UUIDs, and makes what commits or rolls back the rows.

Each try of a task is a producer of its own, which no other knows. Its rows belong to a transaction that its
acknowledgement (ACK) commits, in each journal. An ACK of a clock before the first row's rolls them back.

Clocks ascend in each journal, as one thread stamps, and an append service keeps one writer's order.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark.errors import MessageError
from gazette_spark.framing.base import int64_array
from gazette_spark.framing.encode import (
    RowRefusal,
    binary_array,
    binary_scalar,
    value_bounds,
    value_octets,
)
from gazette_spark.message.interfaces import FRAMINGS
from gazette_spark.message.locator import CsvColumn, JsonPointer, Locator, locator_for
from gazette_spark.message.uuids import (
    ACK_TXN,
    CONTINUE_TXN,
    Clock,
    ProducerId,
    build_uuid,
    new_producer_id,
    stamp,
    uuid_texts,
)
from gazette_spark.protocol.labels import CONTENT_TYPE_CSV, CONTENT_TYPE_NDJSON, CONTENT_TYPE_PROTO_FIXED

CONTENT_TYPES = {
    "lines": CONTENT_TYPE_NDJSON,
    "csv": CONTENT_TYPE_CSV,
    "fixed": CONTENT_TYPE_PROTO_FIXED,
}
"""Content type of the messages of each framing that has a place for a UUID."""

_NOTHING = binary_scalar(b"")


@dataclass(frozen=True, slots=True)
class TaskIntent:
    """What commits one task's rows in one journal, and what rolls them back."""

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
    """Stamps the rows of one try of a task. For one thread."""

    def __init__(self, uuid_path: str | None, now_ns: int) -> None:
        """Begin with a new producer id.

        Args:
            uuid_path: where rows keep their UUID; None: the framing's default.
            now_ns: nanoseconds since the Unix epoch, where the clock begins.
        """
        self._path = uuid_path or ""
        self._producer: ProducerId = new_producer_id()
        self._clock = Clock.at(now_ns)
        self._touched: dict[str, _Touched] = {}

    def stamped(self, values: pa.Array, journal: str, framing: str) -> pa.Array | RowRefusal:
        """Return rows of a journal with their UUIDs, or the first row that has no place for one.

        Args:
            values: binary or string, without nulls.
            journal: the journal they go to, in this order.
            framing: its framing, one of :data:`CONTENT_TYPES`.
        """
        binary = values if pa.types.is_binary(values.type) else values.cast(pa.binary())
        if not len(binary):
            return binary
        locator = locator_for(CONTENT_TYPES[framing], self._path)
        first = self._clock.ticked()
        uuids = stamp(self._producer, first, len(binary), CONTINUE_TXN)
        self._clock = Clock(int(uuids.clocks[-1]))
        made = with_uuids(binary, uuid_texts(uuids), locator)
        if not isinstance(made, RowRefusal) and journal not in self._touched:
            self._touched[journal] = _Touched(framing, locator, first, made[0].as_py())
        return made

    def intents(self) -> tuple[TaskIntent, ...]:
        """Return what commits or rolls back what was stamped so far, by journal."""
        self._clock = self._clock.ticked()
        return tuple(
            TaskIntent(
                journal,
                self._acknowledgement(touched, self._clock),
                # What a reader that has seen the first row takes for the last one acknowledged before it.
                self._acknowledgement(touched, Clock(touched.first - 1)),
            )
            for journal, touched in self._touched.items()
        )

    def _acknowledgement(self, touched: _Touched, clock: Clock) -> bytes:
        blank = touched.locator.blank(touched.sample)
        record = touched.locator.set(blank, build_uuid(self._producer, clock, ACK_TXN))
        return FRAMINGS[CONTENT_TYPES[touched.framing]].frame(record)


def with_uuids(
    values: pa.BinaryArray, uuids: pa.StringArray, locator: Locator
) -> pa.BinaryArray | RowRefusal:
    """Put UUIDs into rows; refuse the first row that has something else in the place.

    Rows that plainly lack a UUID are done in whole columns, all others one by one.
    """
    plain = _plainly_without(values, locator)
    if plain.all():
        return _spliced(values, uuids, locator)
    odd = np.flatnonzero(~plain)
    one_by_one = []
    for index in odd:
        try:
            one_by_one.append(_set(values[int(index)].as_py(), uuids[int(index)].as_py(), locator))
        except MessageError as error:
            return RowRefusal(
                int(index),
                f"it has no place for a UUID: {error}",
                "Leave the place of option uuidPath empty or out; exactly_once keeps the row's UUID there",
            )
    rest = int64_array(np.flatnonzero(plain))
    together = pa.concat_arrays(
        [_spliced(values.take(rest), uuids.take(rest), locator), binary_array(one_by_one)]
    )
    order = np.empty(len(values), np.int64)
    order[np.concatenate([np.flatnonzero(plain), odd])] = np.arange(len(values))
    return together.take(int64_array(order))


def _set(record: bytes, text: str, locator: Locator) -> bytes:
    locator.get(record)  # Something else than a UUID is not overwritten.
    return locator.set(record, uuid.UUID(text))


def _plainly_without(values: pa.BinaryArray, locator: Locator) -> npt.NDArray[np.bool_]:
    """Return which rows need no parser: by their bytes they are without a UUID, and begin as expected."""
    if isinstance(locator, JsonPointer):
        # An escaped letter may be part of the member's name.
        words = locator.tokens[0].encode(), b"\\u"
        return _begin_with(values, b"{") & ~(_contain(values, words[0]) | _contain(values, words[1]))
    if isinstance(locator, CsvColumn) and locator.index == 0:
        return _begin_with(values, b",")
    return np.zeros(len(values), np.bool_)


def _begin_with(values: pa.BinaryArray, first: bytes) -> npt.NDArray[np.bool_]:
    bounds, octets = value_bounds(values), value_octets(values)
    found = np.diff(bounds) > 0
    found[found] = octets[bounds[:-1][found]] == first[0]
    return found


def _contain(values: pa.BinaryArray, word: bytes) -> npt.NDArray[np.bool_]:
    bounds = value_bounds(values)
    if value_octets(values)[bounds[0] : bounds[-1]].tobytes().find(word) < 0:
        return np.zeros(len(values), np.bool_)
    found = pc.match_substring(values, word)
    bits = np.unpackbits(np.frombuffer(found.buffers()[1], np.uint8), bitorder="little")
    return bits[found.offset : found.offset + len(found)].astype(np.bool_)


def _spliced(values: pa.BinaryArray, uuids: pa.StringArray, locator: Locator) -> pa.BinaryArray:
    texts = uuids.cast(pa.binary())
    if not isinstance(locator, JsonPointer):
        return pc.binary_join_element_wise(texts, values, _NOTHING)
    before = b"{" + b"".join(_name(token) + b":{" for token in locator.tokens[:-1])
    before += _name(locator.tokens[-1]) + b':"'
    empty = pc.match_substring_regex(values, rb"^\{[ \t\r\n]*\}")
    after = b'"' + b"}" * (len(locator.tokens) - 1)
    ends = pc.if_else(empty, binary_scalar(after), binary_scalar(after + b","))
    rest = pc.binary_replace_slice(values, 0, 1, b"")
    return pc.binary_join_element_wise(binary_scalar(before), texts, ends, rest, _NOTHING)


def _name(token: str) -> bytes:
    return json.dumps(token).encode()
