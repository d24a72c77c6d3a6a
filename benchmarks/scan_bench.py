"""Measures how fast journal bytes become Arrow columns, without broker or Spark, in memory, in one thread.

``python benchmarks/scan_bench.py --megabytes 200`` prints MB per second of CPU time for raw columns, for
JSON, for JSON with some malformed records, for records with one field of another type, for maps, for
decimals in structs, and for the exact JSON reader alone. Two others follow: ``pyarrow.json``, and
``json.loads`` with ``pa.Table.from_pylist``. CPU time is used, so that other work on the machine has little
effect. Every answer is checked.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.json as pj

from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from gazette_spark._planning.pieces import Piece
from gazette_spark.protocol import protocol_pb2 as pb

LINE_BYTES = 182
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("user", pa.string()),
        ("action", pa.string()),
        ("ok", pa.bool_()),
        ("value", pa.float64()),
        ("note", pa.string()),
    ]
)
MAPS = pa.schema([("id", pa.int64()), ("tags", pa.map_(pa.string(), pa.int64())), ("note", pa.string())])
ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("total", pa.struct([("net", pa.decimal128(18, 4)), ("tax", pa.decimal128(18, 4))])),
        ("note", pa.string()),
    ]
)
Fields = Callable[[int], str]
"""Function that returns the fields of a record, except the last one, which fills up the record."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of the journal."""

    offset: int
    content: bytes
    mod_time: int = 0


class Memory:
    """A journal in memory, which is both client and reader."""

    def __init__(self, content: bytes, chunk_bytes: int) -> None:
        self.chunks = [
            Chunk(at, content[at : at + chunk_bytes]) for at in range(0, len(content), chunk_bytes)
        ]
        self.offset = len(content)
        self.jumps: list[tuple[int, int]] = []

    def read(self, _journal: str, *, offset: int = 0, end_offset: int = 0) -> Self:
        """Open a read of the whole journal."""
        assert (offset, end_offset) == (0, self.offset)
        return self

    def get_journal(self, name: str) -> pb.ListResponse.Journal:
        """Return a journal that is not suspended."""
        return pb.ListResponse.Journal(spec={"name": name})

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        pass


def usual_fields(index: int) -> str:
    """Return six fields of the usual types."""
    return _event(index, "true")


def wrong_field(index: int) -> str:
    """Return the same fields, but ``ok`` is not a boolean."""
    return _event(index, "1")


def map_fields(index: int) -> str:
    """Return a map of four numbers."""
    return f'"id":{index},"tags":{{"alpha":{index},"beta":{index % 7},"gamma":12,"delta":{index * 3}}}'


def order_fields(index: int) -> str:
    """Return a struct of two decimals."""
    return f'"id":{index},"total":{{"net":{index % 10_000}.25,"tax":"{index % 100}.5"}}'


def _event(index: int, ok: str) -> str:
    at = f"2024-05-01T12:{index // 60 % 60:02}:{index % 60:02}.123456Z"
    return (
        f'"id":{index},"ts":"{at}","user":"user-{index % 9973:06}","action":"click","ok":{ok},'
        f'"value":{index * 1.5}'
    )


def line(index: int, fields: Fields = usual_fields) -> bytes:
    """Return one JSON line of 182 bytes."""
    head = "{" + fields(index) + ',"note":"'
    return (head + "x" * (LINE_BYTES - 3 - len(head)) + '"}\n').encode()


def content_of(megabytes: int, *, bad_every: int = 0, fields: Fields = usual_fields) -> bytes:
    """Return lines, some of which are not valid JSON."""
    distinct = [line(at, fields) for at in range(20_000)]
    if bad_every:
        for at in range(0, len(distinct), bad_every):
            distinct[at] = b"!" + distinct[at][1:]
    count = megabytes * 1_000_000 // LINE_BYTES
    return b"".join(distinct * (count // len(distinct) + 1))[: count * LINE_BYTES]


def report(name: str, size: int, rows: int, run: Callable[[], int], repeat: int) -> None:
    """Check the row count, then print the best of some runs."""
    best = float("inf")
    for _ in range(repeat):
        begin = time.process_time()
        found = run()
        best = min(best, time.process_time() - begin)
        assert found == rows, f"{name}: {found} rows, not {rows}"
    print(f"{name:<42} {size / best / 1e6:8.0f} MB/s {rows / best / 1e6:8.2f} M rows/s")


def count(batches: Iterator[pa.RecordBatch]) -> int:
    """Return the number of rows."""
    return sum(batch.num_rows for batch in batches)


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--chunk-kib", type=int, default=32, help="size of the chunks a broker sends")
    parser.add_argument("--block-kib", type=int, default=1024, help="size of the blocks that are parsed")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    block_bytes = options.block_kib << 10

    def scan(content: bytes) -> PieceScan:
        piece = Piece("bench/lines", 0, len(content), len(content), starts_on_record=True)
        memory = Memory(content, options.chunk_kib << 10)
        return PieceScan(memory, piece, fail_on_data_loss=True, block_bytes=block_bytes)

    def measure(name: str, content: bytes, run: Callable[[PieceScan], Iterator[pa.RecordBatch]]) -> None:
        scans = [scan(content) for _ in range(options.repeat)]
        report(
            name, len(content), len(content) // LINE_BYTES, lambda: count(run(scans.pop())), options.repeat
        )

    wanted = JsonFormat(SCHEMA)
    decimals = JsonFormat(SCHEMA.set(5, pa.field("value", pa.decimal128(18, 4))))
    clean, small = content_of(options.megabytes), content_of(max(1, options.megabytes // 20))
    measure("raw: journal, offset, value", clean, raw_record_batches)
    measure("json: 7 columns", clean, lambda blocks: JsonParser(wanted).record_batches(blocks))
    measure("json: a decimal column", clean, lambda blocks: JsonParser(decimals).record_batches(blocks))
    for bad_every in (10_000, 1_000, 100, 1):
        spoilt = content_of(options.megabytes, bad_every=bad_every)
        measure(
            f"json: 1 in {bad_every} malformed",
            spoilt,
            lambda blocks: JsonParser(wanted).record_batches(blocks),
        )
    for name, fields, schema in (
        ("json: one wrong field in each record", wrong_field, SCHEMA),
        ("json: a map", map_fields, MAPS),
        ("json: decimals in a struct", order_fields, ORDERS),
    ):
        odd = JsonFormat(schema)
        content = content_of(max(1, options.megabytes // 5), fields=fields)
        measure(name, content, partial(parsed, odd))
    measure(
        "json: reference parser", small, lambda blocks: JsonParser(wanted, fast=False).record_batches(blocks)
    )
    blocks = [block.data for block in scan(clean)]
    size, rows = sum(map(len, blocks)), len(clean) // LINE_BYTES
    report("pyarrow.json alone", size, rows, lambda: sum(map(pyarrow_rows, blocks)), options.repeat)
    blocks = [block.data for block in scan(small)]
    size, rows = sum(map(len, blocks)), len(small) // LINE_BYTES
    report("json.loads and from_pylist", size, rows, lambda: sum(map(python_rows, blocks)), options.repeat)


def parsed(wanted: JsonFormat, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
    """Parse blocks as a task does, with one parser."""
    return JsonParser(wanted).record_batches(blocks)


def pyarrow_rows(data: bytes) -> int:
    """Parse a block with only ``pyarrow.json``, which is the upper limit."""
    read = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parse = pj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")
    return int(pj.read_json(pa.BufferReader(data), read, parse).num_rows)


def python_rows(data: bytes) -> int:
    """Parse a block with Python's parser, with times as texts."""
    texts = SCHEMA.set(1, pa.field("ts", pa.string()))
    found = [json.loads(record) for record in data.splitlines()]
    return int(pa.Table.from_pylist(found, texts).num_rows)


if __name__ == "__main__":
    main()
