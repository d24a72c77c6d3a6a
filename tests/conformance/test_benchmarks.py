"""The benchmarks still run, on small inputs: the answers are checked, and the times mean nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_benchmark(name: str, *flags: str, timeout_s: float) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), *flags],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak
@pytest.mark.slow
def test_committed_messages_beside_all() -> None:
    output = run_benchmark("committed_bench.py", "--memory=5m", timeout_s=240)
    assert output.count("| 10,000 | 20 | first |") == 1, output


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.deployed_broker
def test_the_client_beside_gos() -> None:
    output = run_benchmark("client_parity.py", "--size=4m", "--broker=embedded", timeout_s=240)
    for job in ("read to a file", "read directly", "read to nowhere", "append 16 MiB", "AppendService"):
        assert output.count(f"| {job}") == 1, output
    for codec in ("SNAPPY", "ZSTANDARD", "GZIP"):
        assert output.count(f"| {codec} |") == 1, output


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.own_jvm
def test_a_state_of_ten_million_keys() -> None:
    """A driver with 1 GB merges 10,000 of the keys. Spark would send the whole state to the tasks."""
    output = run_benchmark("consumer_state_bench.py", "--keys=10m", "--touched=10000", timeout_s=900)
    assert output.count("| 10,000,000 | 10,000 |") == 1, output


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.deployed_broker
def test_constant_load() -> None:
    assert run_benchmark("steady_load.py", timeout_s=240) == "each record is in both tables once\n"


def test_the_lag_monitor() -> None:
    output = run_benchmark("lag_bench.py", "--partitions=500", timeout_s=120)
    assert output == "verdicts agree\n"


def test_messages_beside_gos() -> None:
    output = run_benchmark("message_bench.py", timeout_s=120)
    assert output == "2000 messages, embedded broker: all are committed, once\n"


def test_the_replicated_log() -> None:
    output = run_benchmark("replicated_log_bench.py", "--broker=embedded", timeout_s=120)
    assert output == "the logs hold what was committed\n"


@pytest.mark.parametrize("name", ["scan_bench.py", "framing_bench.py"])
def test_framings_and_formats(name: str) -> None:
    output = run_benchmark(name, "--megabytes=1", "--repeat=1", timeout_s=120)
    assert "M rows/s" in output


def test_files_and_commits_by_format() -> None:
    assert run_benchmark("format_bench.py", timeout_s=120) == "both tables have all batches\n"


_ANNOUNCE = """
import sys, tempfile
from pathlib import Path
from bench_data import LINE_BYTES, link_store, make
from end_to_end import announce
from harness import running_broker
from gazette_spark.client import Client
from gazette_spark.protocol import protocol_pb2 as pb
with tempfile.TemporaryDirectory() as folder:
    kept = Path(folder) / "kept"
    sets = [make(kept, 200_000, 2), make(kept, 200_000, 1, pb.GZIP), make(kept, 200_000, 2)]
    root = Path(folder) / "root"
    link_store(list(dict.fromkeys(sets)), root)
    with running_broker("embedded", Path(folder), root) as (endpoint, _), Client(endpoint) as client:
        announce(endpoint, sets)
        for data in sets:
            ids = []
            for name, head in client.write_heads(data.names).items():
                with client.read(name, end_offset=head) as reader:
                    lines = b"".join(chunk.content for chunk in reader).splitlines(keepends=True)
                assert all(len(line) == LINE_BYTES for line in lines)
                ids += [int(line.partition(b",")[0].removeprefix(b'{"id": ')) for line in lines]
            assert sorted(ids) == list(range(data.rows)) and sum(ids) == data.id_sum
print("read")
"""


def test_what_the_end_to_end_benchmark_reads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ANNOUNCE],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"},
    )
    assert done.stdout.strip() == "read", done.stderr


_PAGE = """
import sys
from pathlib import Path
from bench_jobs import Result
from bench_limits import measure
from bench_report import HEAD, Kept, goal_of, write_page
page = Path(sys.argv[1])
kept = Kept.at(page.with_name("results.json"))
for peer, median_s in (("Kafka", 10.0), ("deployed, direct", 9.0), ("deployed, direct lane", 2.0)):
    for more_s in (0.5, 0.0, -1.0):
        cpu_s = {"JVM": 8.0, "Python": 3.0, "broker": 0.6}
        result = Result(peer, "JSON → Delta", 2, 400_000_000, median_s + more_s, cpu_s, 200_000_000)
        kept.add("stream-2-events", "400 MB in 2 journals", "one machine", result)
for table, median_s in (("Delta", 2.0), ("Iceberg", 2.1)):
    for more_s in (0.5, 0.0, -1.0):
        runs = 2, 400_000_000, median_s + more_s, {"JVM": 1.0, "Python": 3.0, "broker": 0.1}, 200_000_000
        result = Result("deployed, direct lane", f"JSON → {table}", *runs)
        kept.add("formats-events", "400 MB in 2 journals", "one machine", result)
found = {shape: measure(shape, 1, 1_000_000) for shape in ("flat", "events")}
kept.keep("limits", {"about": "one core", "found": found})
write_page(Kept.at(page.with_name("results.json")), page)
assert "| peer |" not in page.read_text(), "the first table has no backfills yet"
for suffix, shape in (("", "flat"), ("-events", "events")):
    for section, work, reader, _ in HEAD:
        (_, peer), _ = goal_of(work, reader, shape)
        for who, median_s in ((peer, 8.0), (reader, 2.0)):
            if (section + suffix, work) != ("stream-2-events", "JSON → Delta"):
                result = Result(who, work, 2, 400_000_000, median_s, cpu_s, 200_000_000)
                kept.add(section + suffix, "400 MB in 2 journals", "one machine", result)
for _ in range(2):
    write_page(Kept.at(page.with_name("results.json")), page)
"""


def test_the_page_of_the_end_to_end_benchmark(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    subprocess.run(
        [sys.executable, "-c", _PAGE, str(page)],
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"},
    )
    text = page.read_text()
    assert "| JSON → Delta | deployed, direct lane | 200 | 2.0 | 3: 1.0 to 2.5 | 5.00 | 4.5 x: met | " in text
    assert (
        "| JSON → Iceberg | deployed, direct lane | 190 | 2.1 | 3: 1.1 to 2.6 | 0.95 | 0.9 x: met |" in text
    )
    assert text.startswith("# Performance\n\n| job | peer | peer | gazette_spark |")
    for row in (
        "| events: JSON → Delta, direct lane | Kafka | 40 MB/s | 200 MB/s | **5.0** | 4.5 | ",
        "| lines: backfill JSON → noop | `spark.read` | 50 MB/s | 200 MB/s | **4.0** | 2 | ",
    ):
        assert text.count(row) == 1
    # Two cores for 10 s, divided by the goal of 1.4 and by 0.4 GB, allow 35.7 CPU seconds a GB.
    assert "| JSON → Delta | events | deployed, direct | 35.7 | 29.0 |" in text
    assert "| events | deployed, direct lane |" not in text
    (plot,) = tmp_path.glob("*stream-2-events.svg")
    assert f"]({plot.name})" in text
    assert "JSON → Delta: Kafka" in plot.read_text()


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.deployed_broker
def test_planning() -> None:
    brokers = ("--broker=embedded", "--broker=deployed")
    output = run_benchmark("planning_bench.py", *brokers, "--journals=30", "--rounds=1", timeout_s=120)
    assert [line.partition(":")[0] for line in output.splitlines()] == ["embedded", "deployed"]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.deployed_broker
def test_consumers() -> None:
    output = run_benchmark("consumer_bench.py", timeout_s=400)
    assert output.endswith("each stream is summed right, and once\n")
    assert output.count("\n") == 3 + 4 + 4 + 1, output
