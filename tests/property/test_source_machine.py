"""Whatever happens to a query and its broker, its batches together contain every record exactly once.

The source's own reader, planner and clients run against an embedded broker, under a plain copy of
Spark's micro-batch loop. Journals of every framing grow, roll and are stored; local spools are lost once
they are stored; connections break; journals appear; the query has any limits and any splitting, its tasks
are killed and repeated, and its driver dies at any point of a batch and continues from its logs with other
options. Its Spark tells the source where a batch begins, or is of a release that does not.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from unittest import mock

import grpc
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark import source
from gazette_spark._formats.fixed import MAGIC, frame
from gazette_spark._planning import pieces as pieces_module
from gazette_spark._planning import plan
from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.broker.faults import Faults
from gazette_spark.broker.settings import ServingSettings, StorageSettings
from gazette_spark.client import Client
from gazette_spark.errors import OtherJournalsError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.source import GazetteDataSource
from gazette_spark.testing.micro_batch import (
    CRASH_POINTS,
    NO_FAULTS,
    Crash,
    CrashPoint,
    MicroBatches,
    Run,
    TaskFaults,
)
from tests.oracles import framings as oracle
from tests.rig.examples import examples

PREFIX = "prop/source/"
ANOTHER = "prop/another/"
"""Prefix of the journals of another source."""
MOST_JOURNALS = 4
TIMEOUT_S = 30.0
STARTS = {
    "earliest": {"startingOffsets": "earliest"},
    "latest": {"startingOffsets": "latest"},
    "by time": {
        "startingOffsetsByTimestamp": f'{{"{PREFIX}0":0}}',
        "startingOffsetsByTimestampStrategy": "latest",
    },
}
"""Options that start the query. No data is older than 1970; unnamed journals start at the earliest offset."""
SELECTIONS = [{"path": PREFIX}, {"journalsPattern": PREFIX + "[0-9]"}, {"journalsPattern": "x|.*/source/.*"}]
"""Options that select the journals of the query."""
LABELS = {
    "lines": "application/x-ndjson",
    "csv": "text/csv",
    "fixed": "application/x-protobuf-fixed",
    "plain": "",
}
SCHEMA = (
    StructType()
    .add("journal", StringType())
    .add("offset", LongType())
    .add("_end_offset", LongType())
    .add("value", BinaryType())
)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def with_few_tasks(given: dict[str, str]) -> dict[str, str]:
    """Use tasks of 100 bytes for small batches."""
    small = given.get("maxBytesPerTrigger") in ("1", "50", "700")
    return (
        given
        if small or given.get("maxBytesPerPartition") != "100"
        else given | {"maxBytesPerPartition": "1000"}
    )


sizes = st.sampled_from([0, 0, 1, 7, 40, 300, 1_500]) | st.integers(0, 100)
huge = st.sampled_from([3_000, 9_000, 70_000])
payloads = (
    st.binary(max_size=30) | st.just(MAGIC + b"\x02\0\0\0xy") | (sizes | sizes | huge).map(lambda n: b"x" * n)
)
texts = st.text(st.sampled_from('ab,"\n\rß中🙂 '), max_size=12)
lines = (
    st.text(max_size=20).map(lambda text: text.replace("\n", "").encode())
    | payloads.map(lambda payload: payload.replace(b"\n", b"\r"))
).map(lambda value: value + b"\n")
csv_fields = texts.map(quoted) | st.text(st.sampled_from("ab7ß "), max_size=5)
csv_records = st.lists(csv_fields, min_size=1, max_size=4).map(
    lambda fields: (",".join(fields) + "\n").encode()
)
RECORDS = {"lines": lines, "plain": lines, "csv": csv_records, "fixed": payloads.map(frame)}

limits = st.fixed_dictionaries(
    {},
    optional={
        "maxBytesPerTrigger": st.sampled_from(["1", "50", "700", "5k", "100k"]),
        "maxFragmentsPerTrigger": st.sampled_from(["1", "2", "5"]),
        "maxRecordsPerTrigger": st.sampled_from(["1", "3", "20"]),
        "minPartitions": st.sampled_from(["2", "7", "20"]),
        "maxBytesPerPartition": st.sampled_from(["100", "1000", "8k"]),
        "fragmentRoot": st.just("the broker's"),
    },
).map(with_few_tasks)
"""Options of one run."""

kinds = st.sampled_from(sorted(LABELS))
codecs = st.sampled_from(["NONE", "GZIP", "ZSTANDARD", "SNAPPY"])
upkeeps = st.sampled_from(["roll", "store", "restart", "lose spools", "break", "end", "403", "404", "503"])


@dataclass(frozen=True)
class Turn:
    """How the query runs for a while; options and trigger take effect when it starts."""

    options: dict[str, str] = field(default_factory=dict)
    available_now: bool = False
    faults: TaskFaults = NO_FAULTS
    events: dict[CrashPoint, str] = field(default_factory=dict)
    """Additional events by step of a batch; each happens once."""


turns = st.builds(
    Turn,
    limits,
    st.booleans(),
    st.builds(
        TaskFaults,
        killed_after=st.lists(st.integers(0, 2), max_size=4),
        attempts_per_task=st.integers(1, 3),
        speculative=st.booleans(),
    ),
    st.dictionaries(st.sampled_from(CRASH_POINTS), st.just("append") | upkeeps, max_size=3),
)

SAMPLES = {
    "lines": b"one\ntwo\n\n",
    "plain": b"one\ntwo\nhal",
    "csv": b'1,"two\nlines"\n',
    "fixed": frame(b"one") + frame(b""),
}


@dataclass
class Journal:
    name: str
    kind: str
    content: bytearray = field(default_factory=bytearray)

    def framing(self, whole: str) -> str:
        return whole or ("lines" if self.kind == "plain" else self.kind)


class SourceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="source-machine-"))
        self.faults = Faults()
        self.patch = pytest.MonkeyPatch()
        self.journals: list[Journal] = []
        self.query = MicroBatches()
        self.running: Run | None = None
        self.options: dict[str, str] = {}
        """Options of the run."""
        self.begins: dict[str, int] | None = None
        """Start offset of the query by journal; None until the offset log fixes it."""

    @initialize(
        chunk_bytes=st.sampled_from([300, 3_000, 1 << 18]),
        urls=st.sampled_from(["file", "http"]),
        whole=st.sampled_from(["", "", "", "none"]),
        kind=kinds,
        query=st.tuples(st.sampled_from(sorted(STARTS)), st.sampled_from(SELECTIONS)),
        spark=st.tuples(st.sampled_from([pieces_module.ENOUGH_PIECES, 1]), st.booleans()),
        planned=st.sampled_from([pieces_module.PLANNED_BYTES, 0, 200]),
    )
    def set_up(
        self,
        *,
        chunk_bytes: int,
        urls: Literal["file", "http"],
        whole: str,
        kind: str,
        query: tuple[str, dict[str, str]],
        spark: tuple[int, bool],
        planned: int,
    ) -> None:
        self.whole = whole
        enough, told = spark
        self.patch.setattr(pieces_module, "ENOUGH_PIECES", enough)  # With 1, a task reads many pieces.
        self.patch.setattr(
            pieces_module, "PLANNED_BYTES", planned
        )  # With 0, tasks read everything themselves.
        self.where, self.selection = query
        self.query = MicroBatches(admission_control=told)
        self.broker = EmbeddedBroker(
            self.root,
            # A busy machine may stall an append for a second.
            serving=ServingSettings(chunk_bytes=chunk_bytes, min_append_rate=0),
            storage=StorageSettings(fragment_urls=urls, fsync=False),
            faults=self.faults,
        )
        self.broker.__enter__()
        self.client = Client(self.broker.endpoint, timeout_s=TIMEOUT_S)
        self.create(kind, "NONE")
        self.client.create_journals(journal_spec(f"{ANOTHER}0", refresh_interval_s=1))

    def create(self, kind: str, codec: str) -> None:
        name = f"{PREFIX}{len(self.journals)}"
        labels = {"content-type": LABELS[kind]} if LABELS[kind] else {}
        self.client.create_journals(
            journal_spec(name, labels=labels, length=1024, codec=codec, refresh_interval_s=1)
        )
        self.journals.append(Journal(name, kind))

    # What happens to the journals.

    @precondition(lambda self: len(self.journals) < MOST_JOURNALS)
    @rule(kind=kinds, codec=codecs)
    def add_a_journal(self, kind: str, codec: str) -> None:
        self.create(kind, codec)

    def append_records(self, data: st.DataObject) -> None:
        for number in data.draw(st.lists(st.integers(0, len(self.journals) - 1), max_size=3)):
            journal = self.journals[number]
            self.append(journal, b"".join(data.draw(st.lists(RECORDS[journal.kind], max_size=6))))
            if journal.framing(self.whole) == "lines":
                # Lines may end anywhere in an append; other framings need whole records.
                self.append(journal, data.draw(st.binary(max_size=20)))

    def append(self, journal: Journal, content: bytes) -> None:
        # With an explicit offset, as after the loss of a spool.
        self.client.append(journal.name, content, offset=len(journal.content))
        journal.content += content

    @rule(upkeep=upkeeps)
    def stop_and_keep_up(self, upkeep: str) -> None:
        self.stop()
        self.do(upkeep)

    def do(self, event: str) -> None:
        match event:
            case "append":
                for journal in self.journals:
                    self.append(journal, SAMPLES[journal.kind])
            case "roll":
                # Fragments are stored a moment later, perhaps between planning and reading.
                for live in self.broker.parts.registry.journals():
                    self.broker.parts.roll(live)
            case "store":
                self.broker.flush()
            case "restart":
                self.broker.stop()
                self.broker.__enter__()
            case "lose spools":
                self.broker.flush()
                self.broker.stop()
                shutil.rmtree(self.root / ".gazette" / "spools", ignore_errors=True)
                self.broker.__enter__()
            case "break":
                self.faults.fail(grpc.StatusCode.UNAVAILABLE, rpc="Read", after_bytes=400)
            case "end":
                self.faults.end(after_bytes=50)
            case "403" | "404" | "503":
                # Like a store with an expired signature, a missing file, or too much load.
                self.faults.refuse_fragment(int(event))

    # What happens to the query.

    @rule(data=st.data(), turn=turns, batches=st.integers(1, 5))
    def append_and_run(self, data: st.DataObject, turn: Turn, batches: int) -> None:
        self.append_records(data)
        run = self.run(turn)
        for _ in range(batches):
            planned = len(self.query.offset_log)
            if not run.batch(faults=turn.faults, meanwhile=lambda step: self.meanwhile(step, turn)):
                break
            if len(self.query.offset_log) > planned:
                self.check_limit(self.query.table[planned])

    @rule(data=st.data(), turn=turns, crash=st.sampled_from(CRASH_POINTS))
    def append_and_crash(self, data: st.DataObject, turn: Turn, crash: CrashPoint) -> None:
        """Kill the driver in the next batch, or between two if there is nothing to read."""
        self.append_records(data)
        run = self.run(turn)
        with contextlib.suppress(Crash):
            run.batch(crash=crash, faults=turn.faults, meanwhile=lambda step: self.meanwhile(step, turn))
        self.stop()

    @precondition(lambda self: self.query.commit_log)
    @rule(available_now=st.booleans())
    def start_with_another_source(self, available_now: bool) -> None:
        self.stop()
        run = self.query.start(lambda: self.reader({}, {"path": ANOTHER}), available_now=available_now)
        with pytest.raises(OtherJournalsError, match=f"'{ANOTHER}0', .* '{PREFIX}0'"):
            run.batch()
        run.stop()

    def run(self, turn: Turn) -> Run:
        if self.running is None:
            self.options = turn.options
            self.running = self.query.start(
                lambda: self.reader(turn.options), available_now=turn.available_now
            )
        return self.running

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.running = None

    def meanwhile(self, step: CrashPoint, turn: Turn) -> None:
        """Apply the event of a step of a batch, once; record where the query begins."""
        if step == "latest_offset" and 0 not in self.query.offset_log:
            # The offset log now fixes the start, so the query must not forget it.
            self.begins = {journal.name: self.start_of(journal) for journal in self.journals}
        self.do(turn.events.pop(step, ""))

    def start_of(self, journal: Journal) -> int:
        return self.last_boundary(journal) if self.where == "latest" else 0

    def check_limit(self, rows: list[tuple[object, ...]]) -> None:
        """Check that a batch stays within the run's limit, apart from one record of each journal."""
        limit = int(self.options.get("maxRecordsPerTrigger", "1000000"))
        assert len(rows) <= max(limit, len({row[0] for row in rows})) or self.whole

    def reader(
        self, options: dict[str, str], selection: dict[str, str] | None = None
    ) -> source.BaseStreamReader:
        made = self.data_source(STARTS[self.where] | options, selection)
        with mock.patch.object(source, "ADMISSION_CONTROL", self.query.admission_control):
            return made.streamReader(SCHEMA)

    def data_source(
        self, options: dict[str, str], selection: dict[str, str] | None = None
    ) -> GazetteDataSource:
        given = {"brokerAddress": self.broker.endpoint, "format": "raw"} | options
        given |= selection or self.selection
        if self.whole:
            given["framing"] = self.whole
            given.pop("maxRecordsPerTrigger", None)  # Chunks are not records.
        if "fragmentRoot" in given:
            given["fragmentRoot"] = str(self.root)
        return GazetteDataSource(CaseInsensitiveDict(given))

    # The invariants.

    @invariant()
    def batches_hold_the_records_of_their_ranges(self) -> None:
        if not self.query.table:
            return
        ends = JournalOffsets.from_json(self.query.offset_log[max(self.query.table)]).read_through
        for journal in self.journals:
            self.check_stream(journal, ends.get(journal.name))

    def check_stream(self, journal: Journal, end: int | None) -> None:
        assert self.begins is not None
        begin = self.begins.get(journal.name, 0)
        self.check(journal, self.rows_of(journal.name), begin, begin if end is None else end)

    def rows_of(self, name: str) -> list[tuple[int, int, bytes]]:
        return [row[1:] for row in self.query.rows() if row[0] == name]

    def check(self, journal: Journal, rows: list[tuple[int, int, bytes]], begin: int, end: int) -> None:
        content = bytes(journal.content[begin:end])
        if self.whole:
            # The ends of such chunks depend on those of the batches.
            assert b"".join(value for _, _, value in rows) == content
            assert [at for at, _, _ in rows] == [begin, *(stop for _, stop, _ in rows)][:-1]
            return
        found = oracle.read(journal.framing(""), content, begin)
        assert rows == [(at, stop, value) for at, value, stop in found.records]
        assert end in found.boundaries, "a batch ends inside a record"

    def teardown(self) -> None:
        try:
            if hasattr(self, "client"):
                self.faults.clear()
                self.stop()
                self.finish()
                self.read_by_a_batch_query()
        finally:
            self.stop()
            self.patch.undo()
            if hasattr(self, "client"):
                self.client.close()
            if hasattr(self, "broker"):
                self.broker.stop()
            shutil.rmtree(self.root)

    def finish(self) -> None:
        """Read the rest; the last position is the last whole record of each journal."""
        turn = Turn()
        while self.run(turn).batch(meanwhile=lambda step: self.meanwhile(step, turn)):
            pass
        for journal in self.journals:
            self.check_stream(journal, self.last_boundary(journal))

    def last_boundary(self, journal: Journal) -> int:
        if self.whole:
            return len(journal.content)
        return oracle.read(journal.framing(""), bytes(journal.content)).boundaries[-1]

    def read_by_a_batch_query(self) -> None:
        reader = self.data_source({"minPartitions": "5", "maxBytesPerPartition": "2k"}).reader(SCHEMA)
        rows = [
            row
            for part in reader.partitions()
            for record_batch in reader.read(part)
            for row in zip(*(column.to_pylist() for column in record_batch.columns), strict=True)
        ]
        for journal in self.journals:
            found = sorted(row[1:] for row in rows if row[0] == journal.name)
            self.check(journal, found, 0, self.last_boundary(journal))


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pause of an idle query."""
    monkeypatch.setattr(plan, "IDLE_POLL_S", 0.0)


TestSource = SourceMachine.TestCase
TestSource.settings = settings(
    max_examples=examples(8),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
