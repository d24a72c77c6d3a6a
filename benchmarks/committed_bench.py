"""Measure what reading committed messages costs beside reading all: no broker, no Spark, one thread.

    .venv/bin/python benchmarks/committed_bench.py [--megabytes 80] [--memory 5g] [--timed]

The records are nested events with escapes, nulls, non-ASCII text and their UUID first or last. Rates are MB
per second of CPU time from journal bytes to Arrow columns, so that other work on the machine counts little.
The last part reads one open transaction of 10,000 producers, of ``--memory`` bytes, and prints its peak of
memory. Answers are checked. ``--timed`` writes docs/evidence/performance.md.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
from harness import REPORT, machine, parse_size, write_section

from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._planning.committed import CommittedScan
from gazette_spark._planning.cutter import PieceScan
from gazette_spark._planning.pieces import Piece
from gazette_spark.message import ACK_TXN, CONTINUE_TXN, Clock, build_uuid, locator_for, new_producer_id
from gazette_spark.message.bulk_sequencer import ProducerStates, sequence
from gazette_spark.message.uuid_columns import uuid_reader
from gazette_spark.message.uuids import TICK, UuidColumns, split_uuids, uuid_texts
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON

NOW = Clock.at(1_700_000_000_000_000_000)
CHUNK_BYTES = 256 << 10
WIDTH = 1000
"""Bytes of a message of the long transaction."""
PRODUCERS = 10_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        (
            "user",
            pa.struct([("name", pa.string()), ("tags", pa.list_(pa.string())), ("score", pa.float64())]),
        ),
        ("ts", pa.timestamp("us", "UTC")),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("qty", pa.int64())]))),
        ("note", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of the journal."""

    offset: int
    content: bytes
    mod_time: int = 0


class Read:
    """A read of made bytes."""

    jumps: tuple[tuple[int, int], ...] = ()

    def __init__(self, content: Callable[[int, int], bytes], offset: int, end_offset: int) -> None:
        self._content = content
        self._end = end_offset
        self.offset = offset

    def __iter__(self) -> Iterator[Chunk]:
        while self.offset < self._end:
            chunk = Chunk(self.offset, self._content(self.offset, self._end))
            self.offset += len(chunk.content)
            yield chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close nothing."""


@dataclass(frozen=True)
class Made:
    """A journal whose bytes are made when they are read."""

    content: Callable[[int, int], bytes]

    def read(self, _journal: str, *, offset: int = 0, end_offset: int = 0) -> Read:
        """Open a read."""
        return Read(self.content, offset, end_offset)


class NoStates:
    """States of a query that begins here and ends here."""

    def at_begin(self) -> ProducerStates:
        """Return none."""
        return ProducerStates.none()

    def at_end(self, states: ProducerStates) -> None:
        """Forget them."""


def events(size: int, producers: int, messages: int, *, last: bool) -> tuple[bytes, int]:
    """Return events in transactions of so many messages, and how many are committed."""
    draw = random.Random(1)
    ids = [new_producer_id() for _ in range(producers)]
    opened = [0] * producers
    lines: list[bytes] = []
    clock, total, committed = NOW, 0, 0
    while total < size:
        producer, clock = draw.randrange(producers), clock.ticked()
        opened[producer] += 1
        ends = opened[producer] > messages
        uuid = {"uuid": str(build_uuid(ids[producer], clock, ACK_TXN if ends else CONTINUE_TXN))}
        if ends:
            committed += messages
            opened[producer] = 0
        event = {} if ends else event_of(draw, len(lines))
        document = event | {"_meta": uuid} if last else {"_meta": uuid} | event
        lines.append(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        total += len(lines[-1])
    return b"".join(lines), committed


def event_of(draw: random.Random, number: int) -> dict[str, object]:
    """Return an event as programs store them."""
    return {
        "id": number,
        "user": {"name": f"näme {draw.randrange(10_000)}", "tags": ["a", 'b"c'], "score": draw.random()},
        "ts": f"2024-01-01T00:00:{number % 60:02}Z",
        "items": [{"sku": f"s{draw.randrange(999)}", "qty": draw.randrange(9)} for _ in range(3)],
        "note": None if number % 3 else "x" * 40,
    }


def committed_scan(journal: Made, size: int) -> CommittedScan:
    """Return the scan of all committed messages."""
    return CommittedScan(
        Piece("a/b", 0, size, size, starts_on_record=True),
        lambda piece: PieceScan(journal, piece, fail_on_data_loss=True),
        uuid_reader(locator_for(CONTENT_TYPE_NDJSON)),
        NoStates(),
    )


def compared(size: int, producers: int, messages: int, *, last: bool) -> str:
    """Return a row of the table: all records beside committed messages, the better of three turns each."""
    content, expected = events(size, producers, messages, last=last)
    journal = Made(lambda begin, end: content[begin : min(end, begin + CHUNK_BYTES)])
    piece = Piece("a/b", 0, len(content), len(content), starts_on_record=True)
    best = {"all": float("inf"), "committed": float("inf")}
    for kind in ("all", "committed") * 3:
        blocks = (
            PieceScan(journal, piece, fail_on_data_loss=True)
            if kind == "all"
            else committed_scan(journal, len(content))
        )
        begin = time.process_time()
        rows = sum(each.num_rows for each in JsonParser(JsonFormat(SCHEMA)).record_batches(blocks))
        best[kind] = min(best[kind], time.process_time() - begin)
        assert kind == "all" or rows == expected, (rows, expected)
    rates = [len(content) / 1e6 / best[kind] for kind in ("all", "committed")]
    place = "last" if last else "first"
    return (
        f"| {producers:,} | {messages:,} | {place} | {rates[0]:.0f} | {rates[1]:.0f} | "
        f"{rates[1] / rates[0]:.2f} |"
    )


def sequenced(producers: int) -> str:
    """Return how many UUIDs a second are split and sequenced, from a column of texts, in blocks of 4,096."""
    count, blocks = 4096, 200
    numbers = np.random.default_rng(0).integers(0, producers, count)
    flags = np.where(np.arange(count) % 100 == 99, ACK_TXN, CONTINUE_TXN).astype(np.uint16)
    valid = np.ones(count, np.bool_)
    texts = []
    for block in range(blocks):
        clocks = np.uint64(NOW) + np.uint64(TICK) * (
            np.arange(count, dtype=np.uint64) + np.uint64(block * count)
        )
        texts.append(uuid_texts(UuidColumns(numbers, clocks, flags, valid)))
    states = ProducerStates.none()
    begin = time.process_time()
    for block, column in enumerate(texts):
        states = sequence(
            states, split_uuids(column), np.arange(count, dtype=np.int64) + block * count
        ).states
    return f"{count * blocks / (time.process_time() - begin) / 1e6:.1f}"


def long_transaction(size: int) -> str:
    """Read a transaction that outgrows the window; return the most memory in MB, and CPU seconds."""
    count = size // WIDTH
    head = b'{"_meta":{"uuid":"'
    tail = b'"},"pad":"' + b"x" * (WIDTH - len(head) - 36 - 13) + b'"}\n'
    template = np.frombuffer(head + b"0" * 36 + tail, np.uint8)

    def content(begin: int, end: int) -> bytes:
        first = begin // WIDTH
        index = np.arange(first, min(first + 250, end // WIDTH))
        producers = np.where(index < count, index % PRODUCERS, index - count).astype(np.int64)
        flags = np.where(index < count, CONTINUE_TXN, ACK_TXN).astype(np.uint16)
        clocks = np.uint64(NOW) + index.astype(np.uint64) * np.uint64(TICK)
        uuids = uuid_texts(UuidColumns(producers, clocks, flags, np.ones(len(index), np.bool_)))
        rows = np.tile(template, (len(index), 1))
        rows[:, len(head) : len(head) + 36] = np.frombuffer(uuids.buffers()[2], np.uint8).reshape(-1, 36)
        return rows.tobytes()

    begin = time.process_time()
    found = sum(len(block) for block in committed_scan(Made(content), (count + PRODUCERS) * WIDTH))
    assert found == count, (found, count)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return f"{most} MB, {time.process_time() - begin:.0f} CPU seconds, the making of the bytes included"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=4)
    parser.add_argument("--memory", type=parse_size, default=parse_size("50m"))
    parser.add_argument("--timed", action="store_true", help="write the performance page")
    given = parser.parse_args()
    # First: the peak is the process's.
    memory = long_transaction(given.memory)
    lines = [
        (
            f"{machine()}. Nested JSON events, from journal bytes to Arrow columns, one thread, MB per CPU "
            "second:"
        ),
        "",
        "| producers | messages per transaction | position of the UUID | all records | committed | ratio |",
        "|---|---|---|---|---|---|",
        *(
            compared(given.megabytes * 1_000_000, producers, messages, last=last)
            for producers, messages, last in (
                (4, 100, False),
                (4, 5000, False),
                (10_000, 20, False),
                (4, 100, True),
            )
        ),
        "",
        (
            f"UUIDs split and sequenced, in millions per CPU second: {sequenced(1)} for one producer, "
            f"{sequenced(PRODUCERS)} for 10,000."
        ),
        "",
        f"One open transaction of {given.memory / 1e9:g} GB by 10,000 producers took at most {memory}.",
    ]
    text = "\n".join(lines)
    print(text)
    if given.timed:
        write_section(REPORT, "Committed messages", text)


if __name__ == "__main__":
    main()
