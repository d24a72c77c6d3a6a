"""Queries of committed messages give the result of one pass over the whole journal, however they run.

Producers write transactions, repeat messages, roll back, die in the middle and start again. The query's
batches end anywhere, its driver dies, its tasks are repeated, files of states vanish, and its window is
small.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial, partialmethod
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark import source
from gazette_spark._formats.fixed import frame
from gazette_spark._options.source import parse_options
from gazette_spark._planning import committed as scan_committed
from gazette_spark._planning import pieces as pieces_module
from gazette_spark._planning import plan
from gazette_spark._planning.cutter import PieceScan
from gazette_spark._verify.journal_source import AuditReader, plan_reads, plan_text
from gazette_spark._verify.parts import first_difference
from gazette_spark._verify.tiling import CoveredRange
from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.broker.settings import StorageSettings
from gazette_spark.client import Client
from gazette_spark.errors import OptionError
from gazette_spark.message.uuids import Clock, ProducerId, build_uuid
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.source import GazetteDataSource
from gazette_spark.testing.micro_batch import CRASH_POINTS, Crash, MicroBatches, TaskFaults
from tests.oracles.committed import Sent, committed
from tests.rig.examples import examples

JOURNAL = "prop/messages"
LABELS = {
    "lines": "application/x-ndjson",
    "csv": "text/csv",
    "fixed": "application/x-protobuf-fixed",
}
SCHEMA = (
    StructType()
    .add("offset", LongType())
    .add("_ack_offset", LongType())
    .add("_producer", StringType())
    .add("value", BinaryType())
)
AUDITED = (
    StructType()
    .add("journal", StringType())
    .add("offset", LongType())
    .add("place", LongType())
    .add("value", BinaryType())
)
FIRST_CLOCK = 1 << 62


@dataclass
class Writer:
    kind: str
    content: bytearray = field(default_factory=bytearray)
    sent: list[Sent] = field(default_factory=list)
    records: dict[int, bytes] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)

    def write(self, producer: int, flags: int, step: int, shape: int) -> None:
        """Append a message whose clock is ``step`` after its producer's last; a step below 1 repeats."""
        clock = self.clocks.get(producer, FIRST_CLOCK) + step
        self.clocks[producer] = max(clock, self.clocks.get(producer, 0))
        offset = len(self.content)
        uuid = build_uuid(ProducerId(bytes([1, 0, 0, 0, 0, producer])), Clock(clock), flags)
        if shape == 0 and self.kind == "lines":
            clock = 0
            record = b'{"no":"uuid"}'
        else:
            record = self._record(str(uuid), uuid.bytes, shape)
        self.records[offset] = record
        self.content += frame(record) if self.kind == "fixed" else record + b"\n"
        self.sent.append(Sent(producer, clock, flags, offset))

    def _record(self, text: str, octets: bytes, shape: int) -> bytes:
        rest = "x" * (shape * 7)
        if self.kind == "fixed":
            tail = b"\x12" + bytes([len(rest)]) + rest.encode()
            head = b"\x0a\x10" + octets
            return tail + head if shape % 3 == 2 else head + tail
        if self.kind == "csv":
            return f'"{text}",{rest}'.encode() if shape % 3 == 2 else f'{text},"{rest}"'.encode()
        if shape % 3 == 2:
            return json.dumps({"a": rest, "_meta": {"b": 1, "uuid": text}}).encode()
        return f'{{"_meta":{{"uuid":"{text}"}},"a":"{rest}"}}'.encode()


messages = st.tuples(
    st.integers(0, 3),
    st.sampled_from([1, 1, 1, 1, 2, 2, 0, 1, 1, 5]),
    st.sampled_from([1, 1, 1, 1, 1, 2, 0, -1, -3]),
    st.integers(0, 9),
)


@dataclass(frozen=True)
class Turn:
    messages: list[tuple[int, int, int, int]]
    limit: str
    crash: str
    faults: TaskFaults
    lose_states: int
    batches: int


turns = st.builds(
    Turn,
    st.lists(messages, min_size=1, max_size=12),
    st.sampled_from(["1", "200", "1k", "1m"]),
    st.sampled_from(["", "", *CRASH_POINTS]),
    st.builds(TaskFaults, killed_after=st.lists(st.integers(0, 2), max_size=2), speculative=st.booleans()),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.integers(1, 6),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), storage=StorageSettings(fsync=False)) as one:
        yield one


NUMBERS = iter(range(1 << 20))


@settings(max_examples=examples(25))
@given(
    kind=st.sampled_from(sorted(LABELS)),
    turns=st.lists(turns, min_size=1, max_size=5),
    memory=st.tuples(
        st.sampled_from([0, 300, 1 << 20]),
        st.sampled_from([100, 1000, 1 << 20]),
        st.sampled_from([0, 1 << 20]),
    ),
    acks=st.booleans(),
    gone=st.integers(0, 40),
)
def test_batches_give_the_committed_messages_once(
    broker: EmbeddedBroker,
    *,
    kind: str,
    turns: list[Turn],
    memory: tuple[int, int, int],
    acks: bool,
    gone: int,
) -> None:
    name = f"{JOURNAL}/{next(NUMBERS)}"
    states = Path(tempfile.mkdtemp(prefix="states-"))
    writer, query = Writer(kind), MicroBatches()
    options = {
        "brokerAddress": broker.endpoint,
        "journals": name,
        "format": "raw",
        "isolationLevel": "read_committed",
        "includeAcks": str(acks).lower(),
    }
    with Client(broker.endpoint) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "IDLE_POLL_S", 0.0)
        patch.setattr(scan_committed, "WINDOW_BYTES", memory[0])
        patch.setattr(PieceScan, "__init__", partialmethod(PieceScan.__init__, block_bytes=memory[1]))
        patch.setattr(pieces_module, "PLANNED_BYTES", memory[2])
        client.create_journals(journal_spec(name, labels={"content-type": LABELS[kind]}))
        for turn in [*turns, Turn([], "1m", "", TaskFaults(), 0, 99)]:
            before = len(writer.content)
            for message in turn.messages:
                writer.write(*message)
            if turn.messages:
                client.append(name, bytes(writer.content[before:]))
            lose(states / name, turn.lose_states)
            given = options | {
                "startingOffsets": "earliest",
                "stateLocation": str(states),
                "maxBytesPerTrigger": turn.limit,
            }
            reader = GazetteDataSource(CaseInsensitiveDict(given)).streamReader(SCHEMA)
            run = query.start(partial(same, reader))
            with contextlib.suppress(Crash):
                for number in range(turn.batches):
                    crash = turn.crash if number == turn.batches - 1 and turn.crash else None
                    if not run.batch(crash=crash, faults=turn.faults):  # type: ignore[arg-type] # Drawn.
                        break
            run.stop()
        audited = audit(client, options, name, 0, len(writer.content))
        begin = writer.sent[gone % len(writer.sent)].offset
        behind = audit(client, options, name, begin, len(writer.content))
    want = expected(writer, acks=acks)
    assert plain(query.rows()) == want
    batch = GazetteDataSource(CaseInsensitiveDict(options)).reader(SCHEMA)
    assert plain(read_all(batch)) == want
    assert audited == [(at, ack, value) for at, ack, _, value in want]
    left = [row for row in audited if row[0] >= begin]
    sent = [[one for one in writer.sent if one.producer == each and one.clock] for each in range(4)]
    if not any({0, 5} & {one.flags for one in some} and 1 in {one.flags for one in some} for some in sent):
        assert set(left) <= set(behind), "what is gone takes no message away that begins behind it"
    if all(low.clock < high.clock for some in sent for low, high in pairwise(some)):
        assert left == behind, "nor does it where no message is repeated"
    told_apart(writer, audited, gone)
    shutil.rmtree(states)


@pytest.mark.parametrize(
    ("kind", "default", "other"), [("lines", "/_meta/uuid", "/id"), ("csv", "0", "1"), ("fixed", "1", "2")]
)
def test_a_query_checkpoint_keeps_its_place_of_uuids(
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    kind: str,
    default: str,
    other: str,
) -> None:
    """Messages that wait would be lost by another place, and messages that are rows could be rows again."""
    monkeypatch.setattr(plan, "IDLE_POLL_S", 0.0)
    name, writer, query = f"{JOURNAL}/place/{kind}", Writer(kind), MicroBatches()
    options = {"brokerAddress": broker.endpoint, "journals": name, "format": "raw"}
    options |= {"isolationLevel": "read_committed", "stateLocation": str(tmp_path)}
    options |= {"startingOffsets": "earliest"}

    def run(**place: str) -> None:
        reader = GazetteDataSource(CaseInsensitiveDict(options | place)).streamReader(SCHEMA)
        batches = query.start(partial(same, reader))
        try:
            while batches.batch():
                pass
        finally:
            batches.stop()

    def append(flags: int) -> None:
        before = len(writer.content)
        writer.write(1, flags, 1, 1)
        client.append(name, bytes(writer.content[before:]))

    with Client(broker.endpoint) as client:
        client.create_journals(journal_spec(name, labels={"content-type": LABELS[kind]}))
        places: list[dict[str, str]] = [{}, {"uuidPath": default}, {}]
        for place in places:
            append(1)
            run(**place)
        append(2)
    with pytest.raises(OptionError, match=f"'uuidPath': got '{other}', .* the default"):
        run(uuidPath=other)
    assert query.rows() == []
    run()
    assert plain(query.rows()) == expected(writer, acks=False)


def same(reader: source.BaseStreamReader) -> source.BaseStreamReader:
    return reader


def read_all(reader: Any) -> list[tuple[Any, ...]]:
    return [row for part in reader.partitions() for row in rows_of(reader.read(part))]


def rows_of(record_batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for each in record_batches:
        yield from zip(*(column.to_pylist() for column in each.columns), strict=True)


def told_apart(writer: Writer, audited: list[tuple[int, int, bytes]], number: int) -> None:
    """Check that an audit finds a row too many, and a row too few, at the right place."""
    records: Counter[tuple[int, bytes | None]] = Counter((at, value) for at, _, value in audited)
    offset = writer.sent[number % len(writer.sent)].offset
    row: tuple[int, bytes | None] = (offset, writer.records[offset])
    more = first_difference(records, records + Counter([row]), "committed message")
    assert more is not None
    assert (more[0], "more than once" in more[1]) == (offset, row in records)
    less = first_difference(records, records - Counter([row]), "committed message")
    assert less == ((offset, "the committed message has no row in the table") if row in records else None)


def audit(
    client: Client, options: dict[str, str], journal: str, begin: int, end: int
) -> list[tuple[int, int, bytes]]:
    """Return what an audit reads of a table's range: offset, place and value of each message, in order."""
    claim = CoveredRange("app", 0, journal, begin, end, 1, (), committed=True)
    parsed = parse_options({**options, "format": "raw"}, "batch")
    plan = plan_reads(client, parsed, [claim])
    reader = AuditReader(parsed, AUDITED, plan_text(plan))
    return sorted(row[1:] for row in read_all(reader))


def plain(rows: list[tuple[Any, ...]]) -> list[tuple[int, int, int, bytes]]:
    return sorted((at, ack, int(producer or "0", 16) & 0xFF, value) for at, ack, producer, value in rows)


def expected(writer: Writer, *, acks: bool) -> list[tuple[int, int, int, bytes]]:
    found = committed(writer.sent)
    return [
        (each.offset, found[each.offset], each.producer * bool(each.clock), writer.records[each.offset])
        for each in writer.sent
        if each.offset in found and (acks or each.flags != 2 or each.clock == 0)
    ]


def lose(directory: Path, how: int) -> None:
    found = [path for path in directory.glob("*") if path.name.isdigit()]  # Other files are incomplete.
    files = sorted(found, key=lambda path: int(path.name)) if how else []
    for path in files[-1:] if how == 1 else files:
        path.unlink()
