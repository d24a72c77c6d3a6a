"""Measures the cost of ``DeltaSink``'s commit beyond Delta's append, on tables of 10 to 10,000 versions.

    python benchmarks/commit_bench.py [--timed] [--versions 10 100 1000 10000] [--commits 20]

Delta alone and the sink alternately append the same rows to two tables of the same age. Delta's append runs
without and with a transaction (txnAppId, as in Delta's streaming sink). With a transaction, Delta looks up
the table's transactions before it writes, for which it computes the table's state.

Spark makes the tables' first versions. The benchmark writes the others into the log: a commit with an entry
and a file each, a checkpoint at the end, and the files that Delta and Hadoop leave on a local disk. Their
rows are not read. The entries are always checked. Times are only measured with ``--timed``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from harness import REPORT, machine, write_section
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import DeltaSink, JournalOffsets, LedgerEntry, local_spark
from gazette_spark._ledger.entry import parse_whole_entry

APP_ID = "bench"
ROWS = 1000
WARM_UP = 5
GOAL_MS = 150
REAL_BEFORE = 2
"""Number of versions that Spark makes before the others are written into the log."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians for one age of the tables."""

    versions: int
    named: bool
    """Whether the table is used by its catalog name instead of its path."""
    plain_ms: float
    txn_ms: float
    sink_ms: float
    slowest_ms: float
    """95th percentile of the sink's commits, minus Delta's median with a transaction."""

    @property
    def overhead_ms(self) -> float:
        """Additional time of the sink compared with Delta with a transaction."""
        return self.sink_ms - self.txn_ms


class Checkpoint:
    """The query checkpoint of a query that Spark does not run, because the benchmark calls its batches."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "offsets").mkdir(parents=True)
        (root / "metadata").write_text('{"id":"8a3bb1a0-0000-4000-8000-000000000000"}')

    def write(self, batch_id: int) -> None:
        """Write the end of a batch. Each batch reads a kilobyte."""
        position = JournalOffsets({"bench/orders": 1024 * batch_id})
        end = position.at("pinned") if batch_id == 0 else position
        (self.root / "offsets" / str(batch_id)).write_text(f'v1\n{{"batchTimestampMs":0}}\n{end.to_json()}')


def grow(table: Path, versions: int) -> None:
    """Write commits into a table's log up to ``versions`` versions, modelled on its last one."""
    log = table / "_delta_log"
    last = max(log.glob("*.json"))
    actions = [json.loads(line) for line in last.read_text().splitlines()]
    text = next(action["commitInfo"].get("userMetadata") for action in actions if "commitInfo" in action)
    entry = parse_whole_entry(text, APP_ID)
    for version in range(int(last.stem) + 1, versions):
        if entry is not None:
            entry = replace(
                entry,
                txn_version=entry.txn_version + 1,
                begin=entry.end,
                attempt=f"made-{version}",
                parent=entry.attempt,
            )
        lines = [json.dumps(aged(action, version, entry)) for action in actions]
        (log / f"{version:020}.json").write_text("\n".join(lines) + "\n")
    DeltaTable(table).create_checkpoint()
    for version in range(versions - 20):
        for name in (f"{version:020}.crc", f".{version:020}.json.crc", f".{version:020}.crc.crc"):
            if not (log / name).exists():
                (log / name).write_bytes(b"\0" * 500)
        if version % 10 == 0 and version:
            (log / f"{version:020}.checkpoint.parquet").write_bytes(b"\0" * 500)


def aged(action: dict[str, dict[str, object]], version: int, entry: LedgerEntry | None) -> object:
    """Return an action of a commit, changed for a later version."""
    ((kind, value),) = action.items()
    value = dict(value)
    if kind == "add":
        value["path"] = f"part-{version:05}-made.zstd.parquet"
    if kind == "txn" and entry is not None:
        value["version"] = entry.txn_version
    if kind == "commitInfo" and entry is not None:
        value["userMetadata"] = entry.to_json()
    return {kind: value}


class Tables:
    """A table of Delta's appends and a table of the sink's, of the same age."""

    def __init__(self, spark: SparkSession, root: Path, versions: int, *, named: bool) -> None:
        self.named = named
        if named:
            warehouse = spark.conf.get("spark.sql.warehouse.dir")
            assert warehouse is not None
            root = Path(warehouse.removeprefix("file:"))
        self.plain = root / f"plain_{versions}"
        self.sunk = root / f"sunk_{versions}"
        self.spark = spark
        self.rows = rows_of(spark)
        self.checkpoint = Checkpoint(root / f"checkpoint_{versions}")
        self.batch_id = 0
        where: dict[str, Any] = {"table": self.sunk.name} if named else {"path": str(self.sunk)}
        first = DeltaSink(APP_ID, checkpoint=str(self.checkpoint.root), **where)
        first_plain = self.rows.limit(0)
        for _ in range(REAL_BEFORE):
            self.append(first_plain if not self.batch_id else self.rows)
            self.sink_batch(first)
        for table in (self.plain, self.sunk):
            grow(table, versions)
        self.sink = DeltaSink(APP_ID, checkpoint=str(self.checkpoint.root), **where)

    def sink_batch(self, sink: DeltaSink | None = None) -> None:
        """Write the sink's next batch."""
        self.checkpoint.write(self.batch_id)
        (sink or self.sink)(self.rows.limit(0) if self.batch_id == 0 else self.rows, self.batch_id)
        self.batch_id += 1

    def plain_batch(self) -> None:
        """Append the same rows with Delta."""
        self.append(self.rows)

    def txn_batch(self) -> None:
        """Append the same rows with Delta in an application's transaction."""
        self.append(self.rows, txnAppId="plain", txnVersion=str(self.batch_id))

    def append(self, rows: DataFrame, **options: str) -> None:
        """Append as the sink does, but without its entry."""
        options["compression"] = "zstd"
        if not self.named:
            rows.write.format("delta").mode("append").options(**options).save(str(self.plain))
        elif self.plain.exists():
            rows.writeTo(self.plain.name).options(**options).append()
        else:
            rows.writeTo(self.plain.name).using("delta").create()

    def check(self, versions: int) -> None:
        """Check that both tables have ``versions`` versions, and that the last entry is the last batch's."""
        assert DeltaTable(self.sunk).version() == versions - 1
        entry = self.sink.ledger(self.spark)
        assert entry is not None
        assert entry.batch_id == self.batch_id - 1
        assert entry.read_through == {"bench/orders": 1024 * entry.batch_id}


def rows_of(spark: SparkSession) -> DataFrame:
    """Return the rows of each commit, in the format raw."""
    columns = ("'bench/orders' AS journal", "id AS offset", "CAST(repeat('x', 100) AS BINARY) AS value")
    return spark.range(ROWS).selectExpr(*columns)


def measure(spark: SparkSession, root: Path, versions: int, commits: int, *, named: bool) -> Measured:
    """Commit to both tables alternately."""
    tables = Tables(spark, root, versions, named=named)
    works = (tables.plain_batch, tables.txn_batch, tables.sink_batch)
    found: list[list[float]] = [[], [], []]
    for _ in range(WARM_UP + commits):
        for work, times in zip(works, found, strict=True):
            times.append(milliseconds(work))
    tables.check(versions + WARM_UP + commits)
    plain, txn, sunk = (statistics.median(times[WARM_UP:]) for times in found)
    slowest = statistics.quantiles(found[2][WARM_UP:], n=20)[-1] - txn
    return Measured(versions, named, plain, txn, sunk, slowest)


def milliseconds(work: Callable[[], None]) -> float:
    """Return the duration of some work in milliseconds."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def report(found: list[Measured], commits: int, about: str) -> str:
    """Return the section of docs/evidence/performance.md."""
    lines = [
        f"`benchmarks/commit_bench.py --timed`: medians of {commits} commits of {ROWS:,} rows, in turn with",
        f"Delta's own append of the same rows; {datetime.now(UTC):%Y-%m-%d}. {about}.",
        "",
        (
            "| versions | Delta's append | with a transaction | `DeltaSink` | added by the sink | "
            "added at p95 | goal |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        goal = "met" if each.overhead_ms <= GOAL_MS else f"missed by {each.overhead_ms / GOAL_MS - 1:.0%}"
        which = f"{each.versions:,}{', by name' if each.named else ''}"
        lines.append(
            f"| {which} | {each.plain_ms:.0f} ms | {each.txn_ms:.0f} ms | {each.sink_ms:.0f} ms | "
            f"{each.overhead_ms:.0f} ms | {each.slowest_ms:.0f} ms | {GOAL_MS} ms: {goal} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timed", action="store_true", help="measure times, and write the performance page")
    parser.add_argument("--versions", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--commits", type=int, default=20)
    options = parser.parse_args()
    about = machine()
    with tempfile.TemporaryDirectory(prefix="commits-", dir=os.environ.get("BENCH_DIR")) as folder:
        spark = local_spark(Path(folder) / "spark", java_options="")
        commits = options.commits if options.timed else 2
        versions = options.versions if options.timed else [10, 40]
        found = [
            measure(spark, Path(folder), each, commits, named=named)
            for named in (False, True)
            for each in versions
        ]
        spark.stop()
    if not options.timed:
        print("entries follow each other")
        return
    text = report(found, commits, about)
    write_section(REPORT, "Commits", text)
    print(text)


if __name__ == "__main__":
    main()
