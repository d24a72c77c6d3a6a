"""Compares our client with Gazette's programs, and the embedded broker with the real one.

    .venv/bin/python benchmarks/client_parity.py                     # small; only checks the answers
    .venv/bin/python benchmarks/client_parity.py --timed             # writes the performance page, 10 minutes
    .venv/bin/python benchmarks/client_parity.py --timed --size 10g --only read    # the long read

One run does every job with both, ``gazctl`` or ``goclient`` (tests/go) and ours, alternately, on each broker.
The best of ``--rounds`` counts. Every job is a separate process. After the time is measured, the content is
always checked: files by their SHA-1, appends by reading them back.

- *read to a file*: the whole journal. The time of ``gazctl journals read -o`` includes the whole command.
- *read directly*: the same with local store files: ``fragment_root``, and gazctl's ``--file-root``.
- *read and discard*: ``RetryReader`` of both languages.
- *append*: transactions of 16 MiB that do not compress, into a journal without a store.
- *AppendService*: records of 200 bytes, one append each.
- *memory*: peak memory of the reading process.
- *decode*: a fragment's file, compared with the codec's library (``fragment_decode.py``), without a broker.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import fragment_decode
from harness import MEGABYTE, REPORT, machine, parse_size, peak_bytes, running_broker, write_section

from gazette_spark import Client
from gazette_spark.client import journal_spec
from tests.rig.gazctl import clean_environment, find_binary

BLOCK_BYTES = 4 << 20
"""Bytes of one append to the journal that is read. They are repeated, because making new lines takes long."""

FRAGMENT_BYTES = 64 << 20
APPEND_BYTES = 16 << 20
RECORD_BYTES = 200

STORE_TIMEOUT_S = 300.0

SAMPLE_S = 0.02
"""Seconds between samples of a program's memory, whose peak can only be read while it runs."""

SMALL_BYTES = 40 * MEGABYTE
"""Size that is enough for several fragments and appends, but not for meaningful times."""

JOBS = ("read", "append", "service", "decode")

Job = Callable[[], dict[str, Any]]


@dataclass
class Best:
    """The best of several runs of one job by one program."""

    seconds: float = float("inf")
    done: dict[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0

    def add(self, done: dict[str, Any]) -> None:
        """Add a run."""
        self.peak_bytes = max(self.peak_bytes, int(done.get("peak_bytes", 0)))
        if done["seconds"] < self.seconds:
            self.seconds, self.done = done["seconds"], done

    @property
    def rate(self) -> float:
        """MB/s."""
        return float(self.done["bytes"]) / MEGABYTE / self.seconds


@dataclass(frozen=True)
class Pair:
    """Results of one job with this package's program and with Gazette's."""

    job: str
    ours: Best
    theirs: Best
    least_ratio: float | None = None


def make_block(first: int = 0) -> bytes:
    """Return about ``BLOCK_BYTES`` of JSON lines, numbered from ``first``."""
    lines = []
    for number in range(first, first + BLOCK_BYTES // 128):
        user, amount = number * 7919 % 100_003, number % 10_000 / 100
        token = f"{number * 2_654_435_761 % (1 << 64):016x}"
        lines.append(f'{{"id":{number:08},"user":"user-{user:06}","amount":{amount:07.2f},"token":"{token}"')
        lines[-1] += f',"note":"{token[:8]}{token}"}}\n'
    return "".join(lines).encode()


@dataclass(frozen=True)
class Filled:
    """Length and content digest of a journal to read."""

    name: str
    size: int
    sha1: str


def fill(client: Client, name: str, size: int) -> Filled:
    """Append about ``size`` bytes to a new journal, and wait until they are stored."""
    client.create_journals(journal_spec(name, length=FRAGMENT_BYTES, codec="SNAPPY", refresh_interval_s=1))
    block = make_block()
    digest = hashlib.sha1(usedforsecurity=False)
    total = 0
    while total < size:
        client.append(name, block)
        digest.update(block)
        total += len(block)
    wait_stored(client, name)
    return Filled(name, total, digest.hexdigest())


def wait_stored(client: Client, name: str) -> None:
    """Wait until the store has all fragments except the last, which is still open."""
    pause = threading.Event()
    deadline = monotonic() + STORE_TIMEOUT_S
    while any(not each.fragment.mod_time for each in client.list_fragments(name)[:-1]):
        if monotonic() > deadline:
            raise SystemExit(f"{name}: fragments were not stored in time")
        pause.wait(0.2)


def run_measured(command: list[str]) -> tuple[str, float, int]:
    """Run a command to its end; return its output, its seconds, and its peak memory."""
    peak, began = 0, perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=clean_environment()
    ) as process:
        while True:
            try:
                shown, _ = process.communicate(timeout=SAMPLE_S)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, peak_bytes(process.pid))
        seconds = perf_counter() - began
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed with code {process.returncode}")
    return shown, seconds, peak


def python_job(job: str, /, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Run a job of ``client_jobs.py``."""
    script = Path(__file__).with_name("client_jobs.py")
    shown, _, _ = run_measured([sys.executable, str(script), job, json.dumps(arguments)])
    done: dict[str, Any] = json.loads(shown)
    return done


def go_job(mode: str, endpoint: str, journal: str, *flags: str) -> dict[str, Any]:
    """Run a mode of goclient."""
    command = [str(find_binary("goclient")), mode, f"--broker={endpoint}", f"--journal={journal}", *flags]
    shown, _, peak_bytes = run_measured(command)
    done: dict[str, Any] = json.loads(shown.splitlines()[-1])
    return {**done, "peak_bytes": peak_bytes}


def gazctl_read(endpoint: str, journal: str, output: Path, *flags: str) -> dict[str, Any]:
    """Run ``gazctl journals read`` into a file."""
    command = [str(find_binary("gazctl")), "journals", "read", "-l", f"name={journal}", "-o", str(output)]
    _, seconds, peak_bytes = run_measured([*command, f"--broker.address={endpoint}", *flags])
    return {"bytes": output.stat().st_size, "seconds": seconds, "peak_bytes": peak_bytes}


def check_file(path: Path, filled: Filled) -> None:
    """End the benchmark if a file differs from the appended bytes, and remove it."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha1").hexdigest()
    if found != filled.sha1:
        raise SystemExit(f"{path.name}: {path.stat().st_size} bytes read are not the {filled.size} appended")
    path.unlink()


def check_equal(what: str, found: object, expected: object) -> None:
    """End the benchmark if an answer is wrong, because its time would be meaningless."""
    if found != expected:
        raise SystemExit(f"{what}: {found}, expected {expected}")


@dataclass(frozen=True)
class Bench:
    """One broker, and its jobs."""

    endpoint: str
    root: Path
    folder: Path
    rounds: int
    size: int
    service_size: int

    def pair(self, job: str, ours: Job, theirs: Job, least_ratio: float | None = None) -> Pair:
        """Run both programs alternately."""
        found = Pair(job, Best(), Best(), least_ratio)
        for _ in range(self.rounds):
            found.ours.add(ours())
            found.theirs.add(theirs())
        print(f"  {job:34} {found.ours.rate:7.0f} MB/s ours {found.theirs.rate:7.0f} MB/s Go", flush=True)
        return found

    def reads(self) -> Iterator[Pair]:
        """Read one journal in every way."""
        with Client(self.endpoint, timeout_s=60) as client:
            filled = fill(client, "parity/read", self.size)
        yield self._to_file("read to a file", filled, None, [], 1.5)
        direct = ["--broker.cache.size=16", f"--file-root={self.root}"]
        yield self._to_file("read directly to a file", filled, str(self.root), direct, None)
        yield self._to_nowhere(filled)

    def _to_file(
        self, job: str, filled: Filled, root: str | None, flags: list[str], least_ratio: float | None
    ) -> Pair:
        output = self.folder / "output"

        def ours() -> dict[str, Any]:
            done = python_job(
                "read",
                endpoint=self.endpoint,
                journal=filled.name,
                end=filled.size,
                fragment_root=root,
                output=str(output),
            )
            check_file(output, filled)
            return done

        def theirs() -> dict[str, Any]:
            done = gazctl_read(self.endpoint, filled.name, output, *flags)
            check_file(output, filled)
            return done

        return self.pair(job, ours, theirs, least_ratio)

    def _to_nowhere(self, filled: Filled) -> Pair:
        def ours() -> dict[str, Any]:
            return python_job("read", endpoint=self.endpoint, journal=filled.name, end=filled.size)

        def theirs() -> dict[str, Any]:
            return go_job("bench-read", self.endpoint, filled.name, f"--end-offset={filled.size}")

        found = self.pair("read and discard", ours, theirs)
        for each in (found.ours, found.theirs):
            check_equal("bytes read", each.done["bytes"], filled.size)
        return found

    def appends(self) -> Iterator[Pair]:
        """Append large transactions, each program to a separate journal."""
        names = ["parity/append-ours", "parity/append-theirs"]
        with Client(self.endpoint, timeout_s=60) as client:
            client.create_journals(*(journal_spec(name, length=1 << 30, stores=()) for name in names))

            def ours() -> dict[str, Any]:
                return python_job(
                    "append",
                    endpoint=self.endpoint,
                    journal=names[0],
                    size=self.size,
                    append_size=APPEND_BYTES,
                )

            def theirs() -> dict[str, Any]:
                flags = [f"--size={self.size}", f"--append-size={APPEND_BYTES}"]
                return go_job("bench-append", self.endpoint, names[1], *flags)

            found = self.pair("append 16 MiB at once", ours, theirs, 0.7)
            expected = -(-self.size // APPEND_BYTES) * APPEND_BYTES * self.rounds
            for name in names:
                check_equal(f"write head of {name}", client.write_head(name), expected)
            yield found

    def services(self) -> Iterator[Pair]:
        """Append small records, each program to a separate journal."""
        names = ["parity/service-ours", "parity/service-theirs"]
        with Client(self.endpoint, timeout_s=60) as client:
            client.create_journals(*(journal_spec(name, length=1 << 30, stores=()) for name in names))

            def ours() -> dict[str, Any]:
                return python_job(
                    "service",
                    endpoint=self.endpoint,
                    journal=names[0],
                    size=self.service_size,
                    record_size=RECORD_BYTES,
                )

            def theirs() -> dict[str, Any]:
                flags = [f"--size={self.service_size}", f"--record-size={RECORD_BYTES}"]
                return go_job("bench-service", self.endpoint, names[1], *flags)

            found = self.pair("AppendService, 200 bytes", ours, theirs)
            for name, each in zip(names, (found.ours, found.theirs), strict=True):
                check_equal(f"content of {name}", digest_of(client, name, self.rounds), each.done["sha1"])
            yield found


def digest_of(client: Client, journal: str, repeats: int) -> str:
    """Return the digest of a journal's first part, after checking that all ``repeats`` parts are equal."""
    part_bytes, rest = divmod(client.write_head(journal), repeats)
    check_equal(f"uneven bytes of {journal}", rest, 0)
    found = set()
    for part in range(repeats):
        begin = part * part_bytes
        digest = hashlib.sha1(usedforsecurity=False)
        with client.read(journal, offset=begin, end_offset=begin + part_bytes) as reader:
            for chunk in reader:
                digest.update(chunk.content)
        found.add(digest.hexdigest())
    check_equal(f"different parts of {journal}", len(found), 1)
    return found.pop()


def verdict(met: bool) -> str:  # noqa: FBT001 - a word for it
    """Return whether a goal was met, as text."""
    return "met" if met else "**missed**"


def table(kind: str, pairs: Iterable[Pair]) -> str:
    """Return the results of one broker as a markdown table."""
    rows = ["| job | Python | Go | ratio | goal |", "|---|---|---|---|---|"]
    for each in pairs:
        ratio = each.ours.rate / each.theirs.rate
        goal = ""
        if "records" in each.ours.done:
            ours, theirs = (one.rate * MEGABYTE / RECORD_BYTES for one in (each.ours, each.theirs))
            goal = f"20,000 records/s: {verdict(ours >= 20_000)}" if kind == "deployed" else ""
            rows.append(f"| {each.job} | {ours:,.0f} /s | {theirs:,.0f} /s | {ratio:.2f} | {goal} |")
            continue
        if each.least_ratio is not None and kind == "deployed":
            goal = f"{each.least_ratio} x: {verdict(ratio >= each.least_ratio)}"
        if kind == "embedded" and each.job in EMBEDDED_GOALS:
            least = EMBEDDED_GOALS[each.job]
            goal = f"broker {least} MB/s: {verdict(max(each.ours.rate, each.theirs.rate) >= least)}"
        rows.append(
            f"| {each.job} | {each.ours.rate:.0f} MB/s | {each.theirs.rate:.0f} MB/s | {ratio:.2f} | {goal} |"
        )
        if each.job.startswith("read"):
            memory = [one.peak_bytes / MEGABYTE for one in (each.ours, each.theirs)]
            goal = f"150 MB: {verdict(memory[0] <= 150)}"
            ratio = memory[0] / memory[1]
            rows.append(
                f"| … its peak memory | {memory[0]:.0f} MB | {memory[1]:.0f} MB | {ratio:.2f} | {goal} |"
            )
    return "\n".join(rows)


EMBEDDED_GOALS = {"read and discard": 300, "append 16 MiB at once": 150}
"""Minimum MB/s of the faster client with the embedded broker."""


def run(kind: str, given: argparse.Namespace) -> list[Pair]:
    """Run all jobs with one broker."""
    print(f"{kind} broker", flush=True)
    service_size = 200_000 * RECORD_BYTES if given.timed else 5_000 * RECORD_BYTES
    with tempfile.TemporaryDirectory(prefix="gazette-parity-") as name:
        folder = Path(name)
        with running_broker(kind, folder) as (endpoint, root):
            bench = Bench(endpoint, root, folder, given.rounds, given.size, service_size)
            parts = {"read": bench.reads, "append": bench.appends, "service": bench.services}
            chosen = [job for job in given.only or JOBS if job in parts]
            return [pair for job in chosen for pair in parts[job]()]


def measure_decoding(given: argparse.Namespace) -> None:
    """Decode a fragment of each codec, and write that section."""
    where = machine()
    print("decoding", flush=True)
    size, rounds = (256, 5) if given.timed else (4, 1)
    rows = [
        "| codec | library alone | our decoder | ratio | goal | direct read, SHA-1 compared |",
        "|---|---|---|---|---|---|",
    ]
    for each in fragment_decode.measure(size, rounds):
        goal = f"{fragment_decode.GOAL} x: {verdict(each.ratio >= fragment_decode.GOAL)}"
        rates = f"{each.library:.0f} MB/s | {each.decoder:.0f} MB/s | {each.ratio:.2f}"
        rows.append(f"| {each.codec} | {rates} | {goal} | {each.direct:.0f} MB/s |")
    text = (
        f"{size} MB per fragment, best of {rounds} runs; {datetime.now(UTC):%Y-%m-%d}.\n{where}.\n\n"
        + "\n".join(rows)
    )
    if given.timed:
        write_section(given.report, "Fragments beside their codecs' libraries", text)
    else:
        print(text)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timed", action="store_true", help="large sizes, and a section in the report")
    parser.add_argument("--broker", action="append", choices=["deployed", "embedded"])
    parser.add_argument("--only", action="append", choices=JOBS, help="only these jobs")
    parser.add_argument("--size", type=parse_size, help="bytes to read and to append; timed: 2g")
    parser.add_argument("--rounds", type=int, help="rounds of each program; timed: 2")
    parser.add_argument("--report", type=Path, default=REPORT, help="markdown file to write sections into")
    given = parser.parse_args()
    given.size = given.size or (2000 * MEGABYTE if given.timed else SMALL_BYTES)
    given.rounds = given.rounds or (2 if given.timed else 1)
    if "decode" in (given.only or JOBS):
        measure_decoding(given)
    if given.only == ["decode"]:
        return
    for kind in given.broker or ["deployed", "embedded"]:
        where = machine()
        pairs = run(kind, given)
        text = (
            f"{given.size / MEGABYTE:.0f} MB per job, best of {given.rounds} runs; "
            f"{datetime.now(UTC):%Y-%m-%d}.\n"
            f"{where}.\n\n{table(kind, pairs)}"
        )
        if given.timed:
            only = f", {' and '.join(given.only)}" if given.only else ""
            size = f" of {given.size / MEGABYTE / 1000:g} GB" if given.only else ""
            write_section(given.report, f"Client beside Go's, {kind} broker{only}{size}", text)
        else:
            print(text)


if __name__ == "__main__":
    main()
