"""Compares the framings, and the formats on their records, in memory and in one thread.

``python benchmarks/framing_bench.py --megabytes 100`` prints MB per CPU second. Every answer is
checked.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from google.protobuf import descriptor_pb2
from scan_bench import LINE_BYTES, SCHEMA, Memory, count, line, report

from gazette_spark._formats.csv_parser import CsvFormat, CsvParser
from gazette_spark._formats.fixed import frame
from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._formats.protobuf import ProtobufFormat, ProtobufParser
from gazette_spark._formats.registry import framing_named
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from gazette_spark._planning.pieces import Piece
from gazette_spark.protocol import protocol_pb2 as pb

Build = Callable[[Iterable[Block]], Iterator[pa.RecordBatch]]


def csv_record(index: int, *, quote: str = "", misfit: bool = False) -> bytes:
    """Return one CSV record of 182 bytes."""
    when = f"2024-05-01T12:{index // 60 % 60:02}:{index % 60:02}.123456Z"
    number = "x" if misfit else str(index)
    head = f"{number},{when},{quote}user-{index % 9973:06}{quote},click,true,{index * 1.5},{quote}"
    inside = "x" * (LINE_BYTES - 1 - 2 * len(quote) - len(head) - 2) + (",\n" if quote else "xx")
    return (head + inside + quote).ljust(LINE_BYTES - 1, "x").encode()[: LINE_BYTES - 1] + b"\n"


def message(index: int) -> bytes:
    """Return a frame of a message with seven fields."""
    found = pb.Fragment(journal=f"acme/user-{index % 9973:06}", begin=index, end=index + 7, mod_time=index)
    found.compression_codec = pb.GZIP
    found.backing_store = "file:///" + "x" * 100
    found.sum.part1 = index + 1
    return frame(found.SerializeToString())


def descriptors() -> bytes:
    """Return the descriptor set of Gazette's own messages."""
    files = descriptor_pb2.FileDescriptorSet()
    pending = [pb.DESCRIPTOR]
    while pending:
        file = pending.pop()
        file.CopyToProto(files.file.add())
        pending += file.dependencies
    return files.SerializeToString()


def repeated(records: list[bytes], megabytes: int) -> tuple[bytes, int]:
    """Return records repeated up to ``megabytes``, and their number."""
    size = sum(map(len, records))
    times = max(1, megabytes * 1_000_000 // size)
    return b"".join(records) * times, len(records) * times


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()

    def measure(name: str, framing: str, records: list[bytes], build: Build | None, rows: int = 0) -> None:
        content, found = repeated(records, options.megabytes)
        cutter = framing_named(framing, 1 << 24)
        piece = Piece("bench/all", 0, len(content), len(content), starts_on_record=True, framing=framing)

        memory = Memory(content, 32 << 10)

        def run() -> int:
            scan = PieceScan(memory, piece, fail_on_data_loss=True, framing=cutter)
            return count(build(scan) if build else raw_record_batches(scan, framing=cutter))

        report(name, len(content), rows or found, run, options.repeat)

    each = range(10_000)
    lines, plain = [line(at) for at in each], [csv_record(at) for at in each]
    quoted, frames = [csv_record(at, quote='"') for at in each], [frame(line(at)[:174]) for at in each]
    misfits = [csv_record(at, misfit=at % 1000 == 0) for at in each]
    irregular = [b'5" nail,' + csv_record(at)[8:] for at in each]
    nested = [frame(frame(line(at)[:83]) * 2) for at in each]
    chunks = -(-len(b"".join(lines)) * max(1, options.megabytes * 1_000_000 // (182 * 10_000)) // (1 << 20))
    measure("raw: lines", "lines", lines, None)
    measure("raw: fixed", "fixed", frames, None)
    measure("raw: fixed, frames inside frames", "fixed", nested, None)
    measure("raw: csv without quotes", "csv", plain, None)
    measure("raw: csv, newlines in quotes", "csv", quoted, None)
    measure("raw: csv, quotes in plain fields", "csv", irregular, None)
    measure("raw: none", "none", lines, None, chunks)
    measure("json: 7 columns", "lines", lines, JsonParser(JsonFormat(SCHEMA)).record_batches)
    wanted = CsvFormat(SCHEMA)
    measure("csv: 7 columns", "csv", plain, CsvParser(wanted).record_batches)
    measure("csv: 7 columns, quoted", "csv", quoted, CsvParser(wanted).record_batches)
    measure("csv: 1 in 1000 malformed", "csv", misfits, CsvParser(wanted).record_batches)
    columns = pa.schema(
        [
            ("journal", pa.string()),
            ("begin", pa.int64()),
            ("end", pa.int64()),
            ("mod_time", pa.int64()),
            ("compression_codec", pa.string()),
            ("backing_store", pa.string()),
            ("sum", pa.struct([("part1", pa.int64())])),
        ]
    )
    form = ProtobufFormat(columns, descriptor_set=descriptors(), message="protocol.Fragment")
    options.megabytes = max(1, options.megabytes // 20)
    measure("protobuf: 7 columns", "fixed", [message(at) for at in each], ProtobufParser(form).record_batches)


if __name__ == "__main__":
    main()
