"""Measure how fast journal bytes become Arrow columns: no broker, no Spark, all in memory, one thread.

``python benchmarks/scan_bench.py --megabytes 200`` prints MB per second of CPU time for raw columns, for
JSON, for JSON with some malformed records, and for the exact JSON reader alone. CPU time, so that what else
the machine does counts little. Every answer is checked.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.json as pj

from gazette_spark.framing.json import JsonFormat, JsonParser
from gazette_spark.scan.piece_scan import PieceScan, raw_record_batches
from gazette_spark.scan.ranges import Piece

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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of the journal."""

    offset: int
    content: bytes
    mod_time: int = 0


class Memory:
    """A journal in memory: client and reader in one."""

    def __init__(self, content: bytes, chunk_bytes: int) -> None:
        self.chunks = [
            Chunk(at, content[at : at + chunk_bytes]) for at in range(0, len(content), chunk_bytes)
        ]
        self.offset = len(content)
        self.jumps: list[tuple[int, int]] = []

    def read(self, _journal: str, *, offset: int = 0, end_offset: int = 0) -> Self:
        """Open a read of all of it."""
        assert (offset, end_offset) == (0, self.offset)
        return self

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        pass


def line(index: int) -> bytes:
    """Return one JSON line of 182 bytes."""
    head = (
        f'{{"id":{index},"ts":"2024-05-01T12:{index // 60 % 60:02}:{index % 60:02}.123456Z",'
        f'"user":"user-{index % 9973:06}","action":"click","ok":true,"value":{index * 1.5},"note":"'
    )
    return (head + "x" * (LINE_BYTES - 3 - len(head)) + '"}\n').encode()


def content_of(megabytes: int, *, bad_every: int = 0) -> bytes:
    """Return lines, every so often one that is no JSON."""
    distinct = [line(at) for at in range(20_000)]
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
    """Return how many rows come out."""
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
        piece = Piece("bench/lines", 0, len(content), len(content), head=True)
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
    measure(
        "json: exact half alone", small, lambda blocks: JsonParser(wanted, fast=False).record_batches(blocks)
    )
    blocks = [block.data for block in scan(clean)]
    size, rows = sum(map(len, blocks)), len(clean) // LINE_BYTES
    report("pyarrow.json alone", size, rows, lambda: sum(map(pyarrow_rows, blocks)), options.repeat)


def pyarrow_rows(data: bytes) -> int:
    """Parse a block with nothing around it: the ceiling."""
    read = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parse = pj.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")
    return int(pj.read_json(pa.BufferReader(data), read, parse).num_rows)


if __name__ == "__main__":
    main()
