"""No interleaving of appends, rolls, uploads, crashes and reads loses, duplicates or moves a byte."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gazette_spark.broker.api.read import journal_responses
from gazette_spark.broker.journal import JournalSettings, LiveJournal
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from tests.rig.examples import examples

CODECS = ["NONE", "GZIP", "ZSTANDARD", "SNAPPY"]
NAME = "prop/journal"


@dataclass
class Reader:
    offset: int
    stream: Iterator[pb.ReadResponse] | None = None


class JournalMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="journal-machine-"))
        self.now = 1_700_000_000.0
        self.committed = bytearray()
        self.registers: dict[str, str] = {}
        self.readers: list[Reader] = []

    @initialize(codec=st.sampled_from(CODECS), stored=st.booleans())
    def create(self, codec: str, stored: bool) -> None:
        self.spec = journal_spec(NAME, length=1024, codec=codec, stores=("file:///",) if stored else ())
        self.spec.fragment.flush_interval.FromSeconds(60)
        self.journal = self.open()

    def open(self) -> LiveJournal:
        shared = JournalSettings(root=self.root, is_journal=lambda _: False, clock=lambda: self.now)
        return LiveJournal(self.spec, self.root / ".gazette" / "spools", shared)

    @rule(
        chunks=st.lists(st.binary(min_size=1, max_size=700), max_size=4),
        commits=st.booleans(),
        author=st.none() | st.sampled_from("xyz"),
    )
    def append(self, chunks: list[bytes], commits: bool, author: str | None) -> None:
        plan = self.journal.plan(pb.AppendRequest(journal=NAME))
        assert plan.status == pb.OK
        txn = self.journal.start_append(plan)
        for chunk in chunks:
            txn.write(chunk)
        if not commits:
            txn.roll_back()
            return
        registers = txn.registers
        if author is not None and chunks:
            registers = pb.LabelSet(labels=[pb.Label(name="author", value=author)])
            self.registers["author"] = author
        answer = txn.commit_append(registers)
        assert answer.begin == len(self.committed)
        self.committed += b"".join(chunks)
        assert answer.end == len(self.committed)

    @rule(what=st.sampled_from(["roll", "pulse", "persist", "refresh"]))
    def maintain(self, what: str) -> None:
        head = self.journal.head()
        if what != "roll" or head.spool_end > head.spool_begin:
            getattr(self.journal, what)()

    @rule(seconds=st.integers(1, 40), codec=st.sampled_from(CODECS))
    def pass_time(self, seconds: int, codec: str) -> None:
        self.now += seconds
        self.spec.fragment.compression_codec = cast(pb.CompressionCodec, pb.CompressionCodec.Value(codec))
        self.journal.use_spec(self.spec)

    @rule(staged=st.binary(max_size=300), torn=st.sampled_from([b"", b"0", b'deadbeef {"end":']))
    def crash(self, staged: bytes, torn: bytes) -> None:
        """Kill the process in the middle of an append, with part of a log record written."""
        if staged:
            self.journal.start_append(self.journal.plan(pb.AppendRequest(journal=NAME))).write(staged)
        self.journal.close()
        self.journal.release()
        logs = sorted((self.root / ".gazette" / "spools").glob("*.log"))
        if logs:
            with logs[-1].open("ab") as log:
                log.write(torn)
        self.journal = self.open()

    @rule(at=st.floats(0, 1))
    def start_reader(self, at: float) -> None:
        self.readers.append(Reader(int(at * len(self.committed))))

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0), chunk_bytes=st.integers(1, 400), messages=st.integers(1, 12))
    def read_on(self, which: int, chunk_bytes: int, messages: int) -> None:
        reader = self.readers[which % len(self.readers)]
        if reader.stream is None:
            request = pb.ReadRequest(journal=NAME, offset=reader.offset)
            reader.stream = journal_responses(request, self.journal, chunk_bytes, lambda: True)
        for _ in range(messages):
            message = next(reader.stream, None)
            if message is None:
                reader.stream = None
                return
            assert message.offset == reader.offset
            end = reader.offset + len(message.content)
            assert message.content == self.committed[reader.offset : end]
            reader.offset = end

    @invariant()
    def head_is_what_was_committed(self) -> None:
        if hasattr(self, "journal"):
            head = self.journal.head()
            assert max(head.spool_end, head.index_end) == head.spool_end == len(self.committed)
            assert {one.name: one.value for one in head.registers.labels} == self.registers

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            request = pb.ReadRequest(journal=NAME)
            messages = list(journal_responses(request, self.journal, 1 << 16, lambda: True))
            assert b"".join(message.content for message in messages) == self.committed
            self.journal.release()
        self.readers.clear()
        shutil.rmtree(self.root)


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
