"""Compares this source with Spark's Kafka source and file readers, and writes the performance page.

    .venv/bin/python benchmarks/end_to_end.py                       # everything, as ``make bench``
    .venv/bin/python benchmarks/end_to_end.py --only one-journal --work json-delta --who Kafka

All readers read the same JSON lines on 127.0.0.1, flat lines and nested events. A reader is Spark's Kafka
source, ``spark.read``, or this source with a real Gazette broker or the embedded one. Its tasks read fragment
files themselves (``direct``, as recommended) or all bytes through the broker. The direct lane writes the
table without Spark's writer. Jobs read raw records or JSON columns, into Spark's ``noop`` sink by a batch
query, or into a Delta table by a streaming one with ``availableNow``. The parts:

- ``stream``: all jobs, two journals;
- ``one-journal``: JSON, from one journal and one Kafka partition;
- ``python-parsers``: JSON events without the native library;
- ``backfill``: compressed fragments with batch queries, and ``spark.read`` on the same files;
- ``formats``: the direct lane into Delta and Iceberg tables;
- ``memory``: a Python worker's peak on journals of 1 GB and 20 GB;
- ``latency``: from an append to the row, at a trickle;
- ``first-row``: from the start of a query to its first row, in a session that is already running;
- ``limits``: the speed of one core for each step.

Times include the whole query: planning, starting tasks and, for Delta, all commits. Each job first runs on a
small data set, then ``--repeat`` times, in turn with the other readers. The median counts, and the page shows
the range. A part begins when the machine is idle. Rows and sums are always checked, because the time of a
wrong answer is meaningless. Data and results are kept in ``--data``, so parts can be measured one by one; the
page shows the newest results. All parts take about two hours on two slow cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Self

import bench_data
import bench_first_row
import bench_latency
import bench_limits
import bench_report
import pyspark
from bench_data import SHAPES, DataSet
from bench_jobs import (
    BACKFILLS,
    TABLE_FORMATS,
    WORKS,
    DirectLane,
    Files,
    Gazette,
    KafkaPeer,
    Peer,
    Result,
    Work,
    run,
)
from bench_kafka import Kafka, running_kafka
from bench_report import WITHOUT_LIBRARY
from harness import MEGABYTE, REPORT, machine, parse_size, running_broker, wait_until_idle
from kafka_jars import kafka_jars

import gazette_spark
from gazette_spark import Client, local_spark
from gazette_spark.client import journal_spec
from gazette_spark.protocol import protocol_pb2 as pb

DATA = Path(__file__).parents[1] / ".cache" / "bench"

WARM_UP_BYTES = 40_000_000
"""Bytes that each job reads before it is measured, so that the JVM has compiled its code and workers run."""

MEMORY_SIZES = (1_000_000_000, 20_000_000_000)

STORE_TIMEOUT_S = 60.0


class Bench:
    """A Spark session with some readers, and the brokers that they need."""

    def __init__(
        self,
        given: argparse.Namespace,
        readers: Sequence[str],
        sets: list[DataSet],
        *,
        parsers: str = "",
    ) -> None:
        """Start what the readers need.

        Args:
            given: the command line.
            readers: their names, as on the page.
            sets: data sets to read.
            parsers: :data:`WITHOUT_LIBRARY` if tasks should parse in Python, which the readers' names show.
        """
        self._stack = ExitStack()
        self._data = given.data
        self._conf = dict(setting.split("=", 1) for setting in given.conf)
        if parsers:
            self._conf["spark.executorEnv.GAZETTE_SPARK_NATIVE"] = "0"
        scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=given.data))
        self.scratch = Path(scratch)
        self.peers: list[Peer] = []
        self.endpoints: dict[str, str] = {}
        self.kafka: Kafka | None = None
        try:
            self._start(readers, sets, parsers)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, readers: Sequence[str], sets: list[DataSet], parsers: str) -> None:
        jars = kafka_jars(self._data / "jars") if "Kafka" in readers else None
        conf = self._conf | ({"spark.jars": ",".join(jars.connector)} if jars else {})
        self.spark = local_spark(self.scratch / "spark", java_options="", conf=conf)
        self._stack.callback(self.spark.stop)
        gazette_spark.register(self.spark)
        peers: list[Peer] = [Files(self.spark)]
        if jars:
            folder = self._data / "kafka"
            address = self._stack.enter_context(running_kafka(jars, folder))
            self.kafka = Kafka(self.spark, address)
            for data in sets:
                if data.codec == pb.NONE and not data.distinct:
                    self.kafka.fill(data, folder)
            peers.append(KafkaPeer(self.kafka))
        for kind in ("deployed", "embedded"):
            if not any(reader.startswith(kind) for reader in readers):
                continue
            root = self.scratch / kind / "fragments"
            root.mkdir(parents=True)
            bench_data.link_store(list(dict.fromkeys(sets)), root)
            endpoint, _ = self._stack.enter_context(running_broker(kind, self.scratch / kind, root))
            self.endpoints[kind] = endpoint
            announce(endpoint, sets)
            for way, stores in (("", root), (" through the broker", None)):
                source = f"{kind},{way or ' direct'}{parsers}"
                lane = f"{kind}, direct lane{way}{parsers}"
                peers.append(Gazette(self.spark, source, endpoint, stores))
                peers.append(DirectLane(self.spark, lane, endpoint, stores))
        by_name = {peer.name.removesuffix(parsers): peer for peer in peers}
        if unknown := [name for name in readers if name not in by_name]:
            raise SystemExit(f"no reader {', '.join(unknown)}; there are {', '.join(by_name)}")
        self.peers = [by_name[name] for name in readers]

    def measure(self, works: Sequence[Work], data: DataSet, warm: DataSet, repeat: int) -> Iterator[Result]:
        """Yield results, alternating between the readers."""
        for work in works:
            able = [peer for peer in self.peers if work.sink != "noop" or not isinstance(peer, DirectLane)]
            for peer in able:
                run(self.spark, peer, work, warm, self.scratch / "out")
            for _ in range(repeat):
                for peer in able:
                    result = run(self.spark, peer, work, data, self.scratch / "out")
                    print_result(result)
                    yield result


def announce(endpoint: str, sets: list[DataSet]) -> None:
    """Create the journals of data sets on a broker, and wait until it has found their fragments."""
    with Client(endpoint) as client:
        for data in dict.fromkeys(sets):
            codec = pb.CompressionCodec.Name(data.codec)
            specs = [journal_spec(name, length=64 << 20, codec=codec) for name in data.names]
            # Not create_journals(), which waits until journals accept appends. These do so only after a
            # reset.
            client.apply([pb.ApplyRequest.Change(upsert=spec) for spec in specs])
            deadline = monotonic() + STORE_TIMEOUT_S
            while sum(client.write_heads(data.names).values()) < data.size_bytes:
                if monotonic() > deadline:
                    raise SystemExit(f"{data.prefix}: the broker did not find the fragments")
                sleep(0.1)
            for name in data.names:
                # An empty append at the end of the stored bytes moves the journal's write head there.
                client.append(name, b"", offset=client.write_head(name))


def print_result(each: Result) -> None:
    """Print a result immediately."""
    cpu = " ".join(f"{role} {cpu_s:.1f}" for role, cpu_s in each.cpu_s.items())
    print(
        f"{each.peer:30} {each.work:22} {each.journals} {each.mb_s:6.0f} MB/s {each.seconds:6.1f} s   "
        f"CPU s: {cpu}   worker {each.worker_bytes / MEGABYTE:.0f} MB",
        flush=True,
    )


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=list(PARTS), help="measure these parts, default all"
    )
    parser.add_argument("--work", action="append", choices=list(WORKS), help="these jobs, default the part's")
    parser.add_argument("--who", action="append", help="readers, named as on the page; default the part's")
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="records, default the part's")
    parser.add_argument("--size", type=parse_size, default=parse_size("1500m"), help="bytes: 200m, 1g")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each job; the median counts")
    parser.add_argument(
        "--memory-size", action="append", type=parse_size, help="sizes for the memory, default 1g and 20g"
    )
    parser.add_argument("--records", type=int, default=150, help="records of the trickle")
    parser.add_argument("--data", type=Path, default=DATA, help="folder for what is kept between runs")
    parser.add_argument("--report", type=Path, default=REPORT, help="markdown page to write sections into")
    parser.add_argument("--conf", action="append", default=[], help="a Spark setting, key=value")
    parser.add_argument(
        "--idle-s", type=float, default=600, help="maximum wait for an idle machine before each part"
    )
    parser.add_argument("--fill", action="store_true", help="only make the data, and fill Kafka")
    given = parser.parse_args()
    # Installed packages are compiled once. If this is set, each of Spark's workers compiles them again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    given.data.mkdir(parents=True, exist_ok=True)
    kept = bench_report.Kept.at(given.data / "results.json")
    for name in given.only or PARTS:
        part = PARTS[name]
        for shape in [shape for shape in part.shapes if shape in (given.shape or SHAPES)]:
            if not given.fill:
                wait_until_idle(given.idle_s)
            part.run(given, kept, part, shape)
        bench_report.write_page(kept, given.report)


def where() -> str:
    """Return the time and the machine of the run, for the page."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC. {machine()}, PySpark {pyspark.__version__}, `local[2]`"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the benchmark. The command line may choose other readers and jobs, and fewer shapes."""

    run: Callable[[argparse.Namespace, bench_report.Kept, Part, str], None]
    """Measures the part with records of a shape."""
    readers: tuple[str, ...] = ()
    works: tuple[str, ...] = ()
    """Names of jobs."""
    shapes: tuple[str, ...] = tuple(SHAPES)
    journals: int = 2
    parsers: str = ""
    """:data:`WITHOUT_LIBRARY` if tasks parse in Python."""


def section(part: str, shape: str) -> str:
    """Return the name under which the results of a part are kept."""
    return part if shape == "flat" else f"{part}-{shape}"


def run_stream(given: argparse.Namespace, kept: bench_report.Kept, part: Part, shape: str) -> None:
    """Measure Kafka and this source."""
    warm = bench_data.make(given.data, WARM_UP_BYTES, part.journals, shape=shape)
    full = bench_data.make(given.data, given.size, part.journals, shape=shape)
    about = where()
    with Bench(given, given.who or part.readers, [warm, full], parsers=part.parsers) as bench:
        if given.fill:
            return
        works = [WORKS[name] for name in given.work or part.works]
        for result in bench.measure(works, full, warm, given.repeat):
            kept.add(section(f"stream-{part.journals}", shape), full.label, about, result)


def run_backfill(given: argparse.Namespace, kept: bench_report.Kept, part: Part, shape: str) -> None:
    """Measure batch queries over compressed fragments, and Spark's file readers."""
    warm = bench_data.make(given.data, WARM_UP_BYTES, part.journals, pb.GZIP, shape)
    full = bench_data.make(given.data, given.size, part.journals, pb.GZIP, shape)
    if given.fill:
        return
    about = where()
    with Bench(given, given.who or part.readers, [warm, full]) as bench:
        works = [BACKFILLS[name] for name in given.work or part.works if name in BACKFILLS]
        for result in bench.measure(works, full, warm, given.repeat):
            kept.add(section("backfill", shape), full.label, about, result)


def run_formats(given: argparse.Namespace, kept: bench_report.Kept, part: Part, shape: str) -> None:
    """Measure the direct lane into tables of each format, alternately."""
    warm = bench_data.make(given.data, WARM_UP_BYTES, part.journals, shape=shape)
    full = bench_data.make(given.data, given.size, part.journals, shape=shape)
    if given.fill:
        return
    about = where()
    with Bench(given, given.who or part.readers, [warm, full]) as bench:
        for result in bench.measure(list(TABLE_FORMATS.values()), full, warm, given.repeat):
            kept.add(section("formats", shape), full.label, about, result)


def run_memory(given: argparse.Namespace, kept: bench_report.Kept, part: Part, _shape: str) -> None:
    """Measure a worker's peak memory. Each size needs a session, because workers outlive queries."""
    sets = [bench_data.make_repeated(given.data, size) for size in given.memory_size or MEMORY_SIZES]
    if given.fill:
        return
    for data in sets:
        for name in given.work or part.works:
            about = where()
            with Bench(given, given.who or part.readers, [data]) as bench:
                for peer in bench.peers:
                    # The direct lane can only write to a table.
                    work = WORKS[name.replace("noop", "delta") if isinstance(peer, DirectLane) else name]
                    result = run(bench.spark, peer, work, data, bench.scratch / "out")
                    print_result(result)
                    kept.add("memory", "", about, result)


def run_latency(given: argparse.Namespace, kept: bench_report.Kept, part: Part, _shape: str) -> None:
    """Measure a trickle."""
    if given.fill:
        return
    about = where()
    journal = "bench/trickle"
    with Bench(given, given.who or part.readers, []) as bench:
        found = []
        if (kafka := bench.kafka) is not None:
            topic = f"trickle-{os.getpid()}"
            kafka.create(topic, 1)
            producer = kafka.producer()
            found.append(
                bench_latency.trickle(
                    bench.spark,
                    "Kafka",
                    kafka.raw(topic, stream=True),
                    lambda text: kafka.send(producer, topic, text),
                    records=given.records,
                )
            )
            producer.close()
        for kind, endpoint in bench.endpoints.items():
            with Client(endpoint) as client:
                client.create_journals(journal_spec(journal))
                reader = bench.spark.readStream.format("gazette").option("brokerAddress", endpoint)
                frame = reader.option("startingOffsets", "earliest").load(journal)

                def append(text: str, client: Client = client) -> object:
                    return client.append(journal, text.encode() + b"\n")

                found.append(
                    bench_latency.trickle(
                        bench.spark,
                        kind,
                        frame,
                        append,
                        records=given.records,
                    )
                )
    print(bench_latency.table(found))
    kept.keep("latency", {"about": about, "found": [asdict(each) for each in found]})


def run_first_row(given: argparse.Namespace, kept: bench_report.Kept, part: Part, shape: str) -> None:
    """Measure the time to a query's first row."""
    data = bench_data.make(given.data, WARM_UP_BYTES, part.journals, shape=shape)
    if given.fill:
        return
    about = where()
    with Bench(given, given.who or part.readers, [data]) as bench:
        measured = bench_first_row.measure(bench.peers, data, bench.scratch / "checkpoints")
    print(bench_first_row.table(measured))
    kept.keep("first-row", {"about": about, "measured": [asdict(peer) for peer in measured]})


def run_limits(given: argparse.Namespace, kept: bench_report.Kept, _part: Part, _shape: str) -> None:
    """Measure the steps of a job on one core."""
    if not given.fill:
        found = {shape: bench_limits.measure(shape, given.repeat) for shape in SHAPES}
        kept.keep("limits", {"about": where(), "found": found})


_DIRECT = ("deployed, direct", "deployed, direct lane")
_BROKER = ("deployed, through the broker", "deployed, direct lane through the broker")
_EMBEDDED = ("embedded, direct", "embedded, direct lane")
_JSON = ("json-noop", "json-delta")
_ONE_SHAPE = ("flat",)

PARTS = {
    "stream": Part(run_stream, ("Kafka", *_DIRECT, *_BROKER, *_EMBEDDED), tuple(WORKS)),
    "one-journal": Part(run_stream, ("Kafka", *_DIRECT), _JSON, journals=1),
    "python-parsers": Part(run_stream, _DIRECT, _JSON, ("events",), parsers=WITHOUT_LIBRARY),
    "backfill": Part(run_backfill, ("spark.read", *_DIRECT), tuple(BACKFILLS)),
    "formats": Part(run_formats, ("deployed, direct lane",)),
    "memory": Part(run_memory, (*_DIRECT, *_BROKER), ("json-noop",), _ONE_SHAPE, journals=1),
    "latency": Part(run_latency, ("Kafka", "deployed, direct"), (), _ONE_SHAPE, journals=1),
    "first-row": Part(run_first_row, ("Kafka", "deployed, direct"), (), ("events",)),
    "limits": Part(run_limits, (), (), _ONE_SHAPE),
}
"""What ``make bench`` measures, in this order. Readers that only repeat another ratio are left out, so that
everything takes place in one session."""


if __name__ == "__main__":
    main()
