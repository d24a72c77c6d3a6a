"""Measure MB/s from journals to nothing and to Delta, raw and as JSON; no pass or fail.

    .venv/bin/python benchmarks/end_to_end.py --broker embedded --broker deployed --size 1g

Each broker runs in a process of its own, as it would in production. Journals are filled with JSON
lines of 182 bytes, four at a time, before the clock runs. Then four jobs read all of it:

- raw → noop and JSON → noop: a batch query into Spark's ``noop`` sink;
- raw → Delta and JSON → Delta: a streaming query with ``availableNow`` through ``DeltaSink``.

The time is that of the whole query: planning, starting tasks and, for Delta, all commits. Row counts
are checked always: a number for a wrong answer is worth nothing. Results go into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import pyspark
from harness import MEGABYTE, REPORT, machine, parse_size, running_broker, write_section
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

import gazette_spark
from gazette_spark.client import Client
from gazette_spark.protocol.journals import journal_spec
from gazette_spark.sink import DeltaSink
from gazette_spark.testing.local_spark import local_spark

LINE_BYTES = 182
"""Length of a record with its newline."""

JOURNALS = 4

APPEND_BYTES = 4 << 20
"""About how much one append holds."""

WARM_UP_BYTES = 20 << 20
"""What is read once before measuring, so that the JVM has compiled and workers run."""

FRAGMENT_BYTES = 64 << 20

QUERY_TIMEOUT_S = 1800.0
STORE_TIMEOUT_S = 120.0

SCHEMA = "id BIGINT, ts STRING, user STRING, action STRING, amount DOUBLE, ok BOOLEAN, note STRING"


@dataclass(frozen=True)
class Result:
    """One measured job."""

    job: str
    seconds: float
    size_bytes: int

    @property
    def rate(self) -> float:
        """MB/s of journal bytes."""
        return self.size_bytes / MEGABYTE / self.seconds


@dataclass(frozen=True)
class Source:
    """Filled journals, and where their fragments are if workers read those themselves."""

    endpoint: str
    prefix: str
    rows: int
    fragment_root: str | None = None

    def options(self, *, typed: bool) -> dict[str, str]:
        """Return the options of a reader."""
        found = {"brokerAddress": self.endpoint, "startingOffsets": "earliest"}
        if typed:
            found["format"] = "json"
        if self.fragment_root:
            found["fragmentRoot"] = self.fragment_root
        return found


def make_line(number: int) -> bytes:
    """Return a record of exactly ``LINE_BYTES`` bytes."""
    fields = {
        "id": number,
        "ts": f"2026-11-21T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.000Z",
        "user": f"user-{number * 7919 % 100_003}",
        "action": ("view", "click", "buy", "return")[number % 4],
        "amount": number % 10_000 / 100,
        "ok": number % 3 > 0,
        "note": "",
    }
    room = LINE_BYTES - 1 - len(json.dumps(fields))
    fields["note"] = (f"{number * 2_654_435_761 % (1 << 64):016x}" * 6)[:room]
    return json.dumps(fields).encode() + b"\n"


def fill(client: Client, prefix: str, size_bytes: int) -> int:
    """Create journals under ``prefix`` and append ``size_bytes`` of records in all; return the records."""
    names = [f"{prefix}part-{part}" for part in range(JOURNALS)]
    client.create_journals(
        *(journal_spec(name, length=FRAGMENT_BYTES, refresh_interval_s=1) for name in names)
    )
    rows = size_bytes // LINE_BYTES
    per_append = APPEND_BYTES // LINE_BYTES
    for turn, first in enumerate(range(0, rows, per_append)):
        content = b"".join(map(make_line, range(first, min(first + per_append, rows))))
        client.append(names[turn % JOURNALS], content)
    return rows


def wait_stored(client: Client, prefix: str) -> None:
    """Wait until each journal's fragments are in the store, but for the last, which is still open."""
    pause = threading.Event()
    deadline = monotonic() + STORE_TIMEOUT_S
    for each in client.list_journals(f"prefix={prefix}"):
        while any(not f.fragment.mod_time for f in client.list_fragments(each.spec.name)[:-1]):
            if monotonic() > deadline:
                raise SystemExit(f"{each.spec.name}: fragments were not stored in time")
            pause.wait(0.2)


def to_noop(spark: SparkSession, source: Source, *, typed: bool) -> int:
    """Read everything by a batch query; return the rows seen."""
    reader = spark.read.format("gazette").options(**source.options(typed=typed))
    frame: DataFrame = (reader.schema(SCHEMA) if typed else reader).load(source.prefix)
    # Counts what is in the rows as well: a column that was not parsed would be null.
    seen = Observation()
    counted = F.count("id") if typed else F.count("value")
    frame.observe(seen, counted.alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def to_delta(spark: SparkSession, source: Source, directory: Path, *, typed: bool) -> float:
    """Stream everything into a Delta table in ``directory``; return the seconds of the query."""
    reader = spark.readStream.format("gazette").options(**source.options(typed=typed))
    frame: DataFrame = (reader.schema(SCHEMA) if typed else reader).load(source.prefix)
    sink = DeltaSink("benchmark", path=str(directory / "table"), checkpoint=str(directory / "checkpoint"))
    began = monotonic()
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(QUERY_TIMEOUT_S):
        query.stop()
        raise SystemExit("the query did not end in time")
    return monotonic() - began


def measure(spark: SparkSession, source: Source, directory: Path) -> Iterator[Result]:
    """Run the four jobs, check each one's rows, and yield what they took."""
    size_bytes = source.rows * LINE_BYTES
    for typed in (False, True):
        name = "JSON" if typed else "raw"
        began = monotonic()
        seen = to_noop(spark, source, typed=typed)
        seconds = monotonic() - began
        check(f"{name} → noop", seen, source.rows)
        yield Result(f"{name} → noop", seconds, size_bytes)

        folder = directory / f"{source.prefix.strip('/')}-{name}"
        seconds = to_delta(spark, source, folder, typed=typed)
        table = spark.read.format("delta").load(str(folder / "table"))
        check(
            f"{name} → Delta",
            table.where("id is not null" if typed else "value is not null").count(),
            source.rows,
        )
        yield Result(f"{name} → Delta", seconds, size_bytes)


def check(job: str, seen: int, expected: int) -> None:
    """End the benchmark if rows are missing or too many."""
    if seen != expected:
        raise SystemExit(f"{job}: {seen} rows, but {expected} were appended")


def table(results: list[Result]) -> str:
    """Return results as a markdown table."""
    rows = [f"| {each.job} | {each.rate:.0f} | {each.seconds:.1f} |" for each in results]
    return "\n".join(["| job | MB/s | seconds |", "|---|---|---|", *rows])


def run(kind: str, size_bytes: int, *, fragments: bool) -> list[Result]:
    """Measure one broker."""
    with tempfile.TemporaryDirectory(prefix="gazette-benchmark-") as folder:
        directory = Path(folder)
        with running_broker(kind, directory) as (endpoint, root), Client(endpoint) as client:
            shared = str(root) if fragments else None
            warm = Source(endpoint, "warm-up/", fill(client, "warm-up/", WARM_UP_BYTES), shared)
            full = Source(endpoint, "full-size/", fill(client, "full-size/", size_bytes), shared)
            wait_stored(client, full.prefix)
            spark = local_spark(directory / "spark", java_options="")
            gazette_spark.register(spark)
            try:
                list(measure(spark, warm, directory))
                results = []
                for result in measure(spark, full, directory):
                    print(
                        f"{kind:9} {result.job:13} {result.rate:6.0f} MB/s {result.seconds:7.1f} s",
                        flush=True,
                    )
                    results.append(result)
            finally:
                spark.stop()
    return results


def main() -> None:
    """Run the benchmark as the command line says."""
    assert len({len(make_line(number)) for number in (0, 9, 10, 12_345, 9_999_999)}) == 1
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--broker", action="append", choices=["embedded", "deployed"], default=None)
    parser.add_argument("--size", type=parse_size, default=parse_size("1g"), help="bytes to read: 200m, 1g")
    parser.add_argument("--fragments", action="store_true", help="let workers read fragment files themselves")
    parser.add_argument("--report", type=Path, default=REPORT, help="markdown file to write a section into")
    given = parser.parse_args()
    for kind in given.broker or ["embedded"]:
        where = f"{machine()}; PySpark {pyspark.__version__}, `local[2]`"
        results = run(kind, given.size, fragments=given.fragments)
        how = "fragment files read by the workers" if given.fragments else "all bytes through the broker"
        text = (
            f"{given.size / MEGABYTE:.0f} MB of {LINE_BYTES}-byte JSON lines in {JOURNALS} journals, {how}; "
            f"{datetime.now(UTC):%Y-%m-%d}.\n{where}.\n\n{table(results)}"
        )
        write_section(
            given.report, f"End to end, {kind} broker" + (", fragments" if given.fragments else ""), text
        )


if __name__ == "__main__":
    main()
