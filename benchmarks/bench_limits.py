"""Measures the speed of one core for each step with the benchmark's records, which limits every job."""

from __future__ import annotations

import gzip
import hashlib
import io
import time
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from bench_data import SHAPES
from harness import MEGABYTE
from scan_bench import Memory

from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from gazette_spark._planning.pieces import Piece
from gazette_spark.client._read.codecs import decode_fragment
from gazette_spark.protocol import protocol_pb2 as pb

CHUNK_BYTES = 1 << 20
CORES = 2

_ITEM = pa.struct(
    {"sku": pa.string(), "qty": pa.int32(), "price": pa.float64(), "tags": pa.list_(pa.string())}
)
SCHEMAS = {
    "flat": pa.schema(
        {"id": pa.int64(), "ts": pa.string(), "user": pa.string(), "action": pa.string()}
        | {"amount": pa.float64(), "ok": pa.bool_(), "note": pa.string()}
    ),
    "events": pa.schema(
        {"id": pa.int64(), "ts": pa.timestamp("us", "UTC"), "type": pa.string(), "session": pa.string()}
        | {"user": pa.struct(dict.fromkeys(("id", "name", "country", "plan"), pa.string()))}
        | {"page": pa.struct(dict.fromkeys(("url", "referrer", "title"), pa.string()))}
        | {"items": pa.list_(_ITEM), "amount": pa.float64(), "ok": pa.bool_()}
        | {"geo": pa.struct({"lat": pa.float64(), "lon": pa.float64()}), "note": pa.string()}
    ),
}
"""Arrow schemas of :data:`bench_data.SHAPES`, because there is no Spark to parse them."""

STEPS = {
    "gunzip": "decompress gzip",
    "sha1": "SHA-1, which every fragment is compared with",
    "raw": "bytes to the columns journal, offset, value",
    "parse": "bytes to the columns of the schema",
    "json": "for comparison, `pyarrow.json` alone, timestamps as text",
    "write raw": "journal, offset, value to Parquet, zstd",
    "write": "columns of the schema to Parquet, zstd",
}

LIMITS: Mapping[str, tuple[str, ...]] = {
    "raw → noop": ("sha1", "raw"),
    "JSON → noop": ("sha1", "parse"),
    "raw → Delta": ("sha1", "raw", "write raw"),
    "JSON → Delta": ("sha1", "parse", "write"),
    "backfill raw → noop": ("gunzip", "sha1", "raw"),
    "backfill JSON → noop": ("gunzip", "sha1", "parse"),
    "backfill JSON → Delta": ("gunzip", "sha1", "parse", "write"),
}
"""Steps of each job that no design can avoid."""


def measure(shape: str, repeat: int, size_bytes: int = 64 * MEGABYTE) -> dict[str, float]:
    """Return the MB of journal bytes per CPU second for each step, as the median of some runs."""
    kind = SHAPES[shape]
    content = b"".join(map(kind.line, range(size_bytes // kind.mean_bytes)))
    size = len(content) / MEGABYTE
    packed = gzip.compress(content, 6)
    wanted = JsonFormat(SCHEMAS[shape])

    def blocks() -> PieceScan:
        piece = Piece("bench/limits", 0, len(content), len(content), starts_on_record=True)
        return PieceScan(Memory(content, CHUNK_BYTES), piece, fail_on_data_loss=True)

    raw = list(raw_record_batches(blocks()))
    typed = list(JsonParser(wanted).record_batches(blocks()))
    jobs: dict[str, Callable[[], object]] = {
        "gunzip": lambda: list(decode_fragment(io.BytesIO(packed), pb.GZIP)),
        "sha1": lambda: hashlib.sha1(content, usedforsecurity=False),
        "raw": lambda: list(raw_record_batches(blocks())),
        "parse": lambda: list(JsonParser(wanted).record_batches(blocks())),
        "json": lambda: _parse_alone(content, SCHEMAS[shape]),
        "write raw": lambda: _write(raw, plain=["value"]),
        "write": lambda: _write(typed),
    }
    return {name: size / _median_cpu_s(job, repeat) for name, job in jobs.items()}


def _median_cpu_s(job: Callable[[], object], repeat: int) -> float:
    taken = []
    for _ in range(repeat):
        began = time.process_time()
        job()
        taken.append(time.process_time() - began)
    return sorted(taken)[repeat // 2]


def _parse_alone(content: bytes, schema: pa.Schema) -> None:
    texts = [each.with_type(pa.string()) if pa.types.is_timestamp(each.type) else each for each in schema]
    parse = pj.ParseOptions(explicit_schema=pa.schema(texts), unexpected_field_behavior="ignore")
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin + CHUNK_BYTES) + 1 or len(content)
        read = pj.ReadOptions(use_threads=False, block_size=end - begin + 1)
        pj.read_json(pa.BufferReader(content[begin:end]), read_options=read, parse_options=parse)
        begin = end


def _write(batches: Sequence[pa.RecordBatch], plain: Sequence[str] = ()) -> None:
    table = pa.Table.from_batches(batches)
    dictionaries = [each for each in table.column_names if each not in plain]
    with pq.ParquetWriter(
        io.BytesIO(), table.schema, compression="zstd", use_dictionary=dictionaries if plain else True
    ) as writer:
        writer.write_table(table)


def limit(found: Mapping[str, float], work: str) -> float:
    """Return the MB/s of a job that only does its steps, on all cores."""
    return CORES / sum(1 / found[step] for step in LIMITS[work])


def tables(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the tables of a core's speed by step, and of the limit of each job.

    Args:
        found: MB per CPU second, by shape and step.
    """
    shapes = " | ".join(found)
    rows = [f"| one core | {shapes} |", f"|---|{'---|' * len(found)}"]
    for step, about in STEPS.items():
        rows.append(f"| {about} | {' | '.join(f'{each[step]:.0f} MB/s' for each in found.values())} |")
    rows += ["", f"| limit of two cores | {shapes} |", f"|---|{'---|' * len(found)}"]
    for work in LIMITS:
        rows.append(f"| {work} | {' | '.join(f'{limit(each, work):.0f} MB/s' for each in found.values())} |")
    return "\n".join(rows)
