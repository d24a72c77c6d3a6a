"""Measures the cost of ``DeltaSink(audit=True)``: one batch from a store into a table, with and without it.

    python benchmarks/audit_bench.py [--timed] [--size 200m] [--repeat 3]

Rows and digests are always checked against the bytes of the store. Times are only measured with ``--timed``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from bench_data import SCHEMA, DataSet, make, make_line
from bench_processes import measured
from harness import MEGABYTE, REPORT, machine, parse_size, write_section
from pyspark.sql import SparkSession

from gazette_spark import DeltaSink, backfill, local_spark, register
from gazette_spark._ledger.row_digest import AuditedRows
from tests.rig.row_digest import digest_of

KINDS = ("raw", "json")


def write(spark: SparkSession, data: DataSet, kind: str, table: Path, *, audit: bool) -> tuple[float, float]:
    """Fill a new table in one commit; return its seconds and the CPU seconds of all processes."""
    options = {"fragmentStore": f"file://{data.folder}", "journals": ",".join(data.names)}
    options |= {"format": "json"} if kind == "json" else {"framing": "lines"}
    schema = f"{SCHEMA}, _journal STRING, _offset BIGINT" if kind == "json" else None
    sink = DeltaSink("bench", path=str(table), audit=audit)
    begin = time.perf_counter()
    with measured() as usage:
        backfill(sink, options, schema=schema, spark=spark)
    seconds = time.perf_counter() - begin
    entry = sink.ledger(spark)
    assert entry is not None
    assert (entry.audit is not None) == audit
    assert not audit or sum(each.rows for each in entry.audit or ()) == data.rows
    return seconds, sum(usage.cpu_s.values())


def check_digests(spark: SparkSession, data: DataSet, table: Path) -> None:
    """Compare the digests of a small set with digests of its bytes that are computed here."""
    write(spark, data, "raw", table, audit=True)
    entry = DeltaSink("bench", path=str(table)).ledger(spark)
    assert entry is not None
    expected = []
    share = -(-data.rows // data.journals)  # The set is so small that each journal has one fragment.
    for part, name in enumerate(data.names):
        lines = [make_line(number) for number in range(part * share, min((part + 1) * share, data.rows))]
        places = range(0, len(lines) * len(lines[0]), len(lines[0]))
        rows = [(offset, line[:-1]) for offset, line in zip(places, lines, strict=True)]
        expected.append(AuditedRows(name, len(rows), digest_of(rows)))
    assert entry.audit == tuple(expected), (entry.audit, expected)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timed", action="store_true", help="measure times, and write the performance page")
    parser.add_argument("--size", type=parse_size, default=200 * MEGABYTE, metavar="200m")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    about = machine()
    with tempfile.TemporaryDirectory(prefix="audit-") as name:
        folder = Path(name)
        small = make(folder / "kept", MEGABYTE, 2)
        spark = local_spark(folder / "spark", java_options="")
        register(spark)
        check_digests(spark, small, folder / "digests")
        for kind in KINDS:
            write(spark, small, kind, folder / f"small-{kind}", audit=True)
        if not options.timed:
            print("digests agree")
            return
        text = report(spark, make(folder / "kept", options.size, 2), folder, options.repeat)
        spark.stop()
    when = f"best of {options.repeat} runs; {datetime.now(UTC):%Y-%m-%d}. {about}"
    text = f"{options.size // MEGABYTE} MB, {when}.\n\n{text}"
    write_section(REPORT, "Auditing a batch", text)
    print(text)


def report(spark: SparkSession, data: DataSet, folder: Path, repeat: int) -> str:
    """Write each table alternately with and without the audit; return the rows of the report."""
    lines = ["| batch | seconds | with `audit` | CPU seconds | with `audit` |", "|---|---|---|---|---|"]
    for kind in KINDS:
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for turn in range(repeat):
            for audit in (False, True):
                found[audit].append(write(spark, data, kind, folder / f"{kind}-{turn}-{audit}", audit=audit))
        best = {audit: min(found[audit])[0] for audit in found}
        cpu = {audit: statistics.median(each[1] for each in found[audit]) for audit in found}
        lines.append(
            f"| {kind} | {best[False]:.1f} s | {best[True]:.1f} s, {best[True] / best[False] - 1:+.0%} | "
            f"{cpu[False]:.1f} | {cpu[True]:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
