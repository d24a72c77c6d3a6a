"""Measures the CPU time of files and commits of a Delta and an Iceberg table, without Spark.

    python benchmarks/format_bench.py [--timed] [--rows 1000000] [--repeat 5] [--commits 30]

The files are those of a task. A commit includes everything that a batch needs: reading the ledger, deciding,
committing, and reading again. The Iceberg catalog is in SQLite. The tables' ends are always checked.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import REPORT, machine, write_section
from pyspark.sql import Row
from pyspark.sql.types import DoubleType, LongType, StringType, StructType, TimestampType

from gazette_spark import JournalOffsets
from gazette_spark._data_files.writer import written_files
from gazette_spark._delta.format_table import DeltaFormatTable
from gazette_spark._iceberg.iceberg_table import IcebergTable
from gazette_spark._ledger.decision import Allowed
from gazette_spark._ledger.entry import Batch
from gazette_spark._ledger.file_batches import BatchFiles, FileBatches, no_files
from gazette_spark._options.delta_format import parse_delta_format_options
from gazette_spark.spark_versions import arrow_schema
from tests.rig.iceberg import NAME, catalog_properties

SCHEMA = (
    StructType()
    .add("id", LongType())
    .add("user", StringType())
    .add("amount", DoubleType())
    .add("at", TimestampType())
    .add("_journal", StringType())
    .add("_offset", LongType())
)
BATCH_ROWS = 65_536
SMALL_ROWS = 1000
"""Number of rows of the batches whose commits are measured."""


def events(rows: int) -> list[pa.RecordBatch]:
    """Return rows in the form that a task gets."""
    ids = np.arange(rows)
    columns = [ids, np.char.add("user-", (ids % 10_007).astype(str)), (ids % 9973) / 4]
    columns += [1_700_000_000_000_000 + ids * 1000, np.full(rows, "bench/orders"), ids * 120]
    schema = arrow_schema(SCHEMA)
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, schema, strict=True)]
    batches: list[pa.RecordBatch] = pa.table(arrays, schema=schema).to_batches(BATCH_ROWS)
    return batches


def cpu_s(work: Callable[[], object]) -> float:
    """Return the CPU seconds of some work, on all threads."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(
    table: DeltaFormatTable | IcebergTable, batches: list[pa.RecordBatch], repeat: int, commits: int
) -> tuple[float, float]:
    """Return the medians of the CPU seconds of a task's files, and of a commit."""
    target, shape = table.prepare(SCHEMA)
    task_s = [cpu_s(lambda: written_files([("events", batches)], target)) for _ in range(repeat)]
    small = [batches[0].slice(0, SMALL_ROWS)]
    stream = FileBatches(table, "bench", Allowed())
    commit_s: list[float] = []
    seen = None
    for number in range(commits + 1):
        end = JournalOffsets({"bench/orders": SMALL_ROWS * number}, "" if number else "pinned")
        starts = (JournalOffsets({"bench/orders": SMALL_ROWS * (number - 1)}),) if number else ()
        batch = Batch(table.name, "bench", "query", number, starts, (end,), planned_ms=1000 + number)
        files = [Row(**file) for file in written_files([("events", small)], target)]
        write: Callable[[], BatchFiles] = partial(BatchFiles, files, shape) if number else no_files
        begin = time.process_time()
        seen = stream.commit(batch, write, seen=seen)
        commit_s.append(time.process_time() - begin)
    entry = table.read_ledger("bench").entry
    assert entry is not None
    assert entry.read_through == {"bench/orders": SMALL_ROWS * commits}
    return statistics.median(task_s), statistics.median(commit_s[1:])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timed", action="store_true", help="measure times, and write the performance page")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--commits", type=int, default=30)
    options = parser.parse_args()
    about = machine()
    rows, repeat, commits = (
        (options.rows, options.repeat, options.commits) if options.timed else (SMALL_ROWS, 1, 2)
    )
    with tempfile.TemporaryDirectory(prefix="format-") as name:
        folder = Path(name)
        (folder / "delta").mkdir()
        delta = DeltaFormatTable(
            parse_delta_format_options({"appId": "bench", "path": str(folder / "delta")}, None)
        )
        iceberg = IcebergTable(NAME, catalog_properties(folder / "iceberg"), "bench")
        results = {
            "Delta": measure(delta, events(rows), repeat, commits),
            "Iceberg": measure(iceberg, events(rows), repeat, commits),
        }
    if not options.timed:
        print("both tables have all batches")
        return
    lines = [f"| table | files of {rows:,} events: CPU | a commit: CPU |", "|---|---|---|"]
    lines += [
        f"| {kind} | {task:.2f} s | {commit * 1000:.0f} ms |" for kind, (task, commit) in results.items()
    ]
    text = (
        f"`benchmarks/format_bench.py --timed`: medians of {repeat} tasks, and of {commits} batches of "
        f"{SMALL_ROWS:,} rows; {datetime.now(UTC):%Y-%m-%d}. {about}.\n"
        "No Spark. The Iceberg catalog is in SQLite.\n\n"
    )
    text += "\n".join(lines)
    write_section(REPORT, "Files and commits by table format", text)
    print(text)


if __name__ == "__main__":
    main()
