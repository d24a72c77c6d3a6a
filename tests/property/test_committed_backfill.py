"""A backfill of committed messages and the streams behind it fill one table, whatever dies in between.

They take turns. A writer dies before or after each commit, in its plan, in its tasks, or while it writes a
file of states; attempts at tasks are killed; files of states vanish; transactions are open across each seam,
or rolled back, and messages are repeated. ``backfill``, the source and the ledger's decisions are real; the
table is in memory, and tasks run in this process.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

from gazette_spark._backfill import backfill
from gazette_spark._ledger.decision import Refusal, Skip, decide
from gazette_spark._ledger.entry import Batch, LedgerEntry, LedgerState, unknown_journals
from gazette_spark._planning import committed as scan_committed
from gazette_spark._planning import plan
from gazette_spark._planning import states as states_module
from gazette_spark._planning.states import StateFiles
from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.broker.settings import StorageSettings
from gazette_spark.client import Client
from gazette_spark.errors import OffsetError
from gazette_spark.failpoints import calling
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.sink import DeltaSink
from gazette_spark.source import GazetteDataSource
from gazette_spark.testing.micro_batch import Crash, MicroBatches, TaskFaults
from tests.property.test_committed_source import (
    LABELS,
    SCHEMA,
    Writer,
    expected,
    lose,
    messages,
    plain,
    rows_of,
)
from tests.rig.examples import examples

NUMBERS = iter(range(1 << 20))

COMMITTED = StructType([StructField("journal", StringType()), *SCHEMA.fields])


@dataclass
class Table:
    entry: LedgerEntry | None = None
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    commits: int = 0
    steps_left: int = 0
    """Steps until the writer dies, 0 if it survives; each commit has one step before and one after it."""

    def ledger(self, _session: object) -> LedgerEntry | None:
        return self.entry

    def read_through(self) -> dict[str, int]:
        return self.entry.read_through if self.entry else {}

    def write_batch(self, frame: Frame, begin: JournalOffsets, end: JournalOffsets) -> bool:
        """Write a range in two commits, as ``DeltaSink.write_batch`` does."""
        if new := unknown_journals(self.entry, begin, "t"):
            starts = {journal: end.starts[journal] for journal in new.read_through}
            first = replace(new, position="pinned", starts=starts)
            self.commit(Batch("t", "app", f"backfill {self.commits}", 0, (), (first,)), list)
        return self.commit(Batch("t", "app", f"backfill {self.commits}", 1, (begin,), (end,)), frame.collect)

    def commit(self, batch: Batch, rows: Callable[[], list[tuple[Any, ...]]]) -> bool:
        parent = self.entry.parent if self.entry else None
        state = LedgerState(self.entry, parent, self.commits - 1, self.commits - 1)
        decision = decide(state, batch, attempt=f"attempt {self.commits}")
        if isinstance(decision, Refusal):
            raise decision.error
        if isinstance(decision, Skip):
            return False
        written = rows()
        self._step()
        self.commits += 1
        self.entry = decision.entry
        self.rows += written
        self._step()
        return True

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            raise Crash


@dataclass
class Frame:
    """A batch query whose tasks run in this process, some of them more than once."""

    options: Mapping[str, str]
    killed_after: Sequence[int]
    """Number of record batches from each killed attempt at a task."""
    schema = COMMITTED

    def collect(self) -> list[tuple[Any, ...]]:
        reader = GazetteDataSource(CaseInsensitiveDict(self.options)).reader(COMMITTED)
        parts = reader.partitions()
        for part in parts:
            for count in self.killed_after:
                for _ in islice(reader.read(part), count):
                    pass
        return [row for part in parts for row in rows_of(reader.read(part))]


@dataclass
class Session:
    killed_after: Sequence[int]
    given: dict[str, str] = field(default_factory=dict)

    @property
    def read(self) -> Session:
        return self

    def format(self, name: str) -> Session:
        assert name == "gazette"
        return self

    def options(self, **given: str) -> Session:
        self.given = given
        return self

    def schema(self, _schema: StructType) -> Session:
        return self

    def load(self) -> Frame:
        return Frame(self.given, self.killed_after)


@dataclass
class Stream(MicroBatches):
    into: Table = field(default_factory=Table)
    name: str = ""

    def write(self, batch_id: int, rows: list[tuple[Any, ...]]) -> None:
        super().write(batch_id, rows)
        ends = [self.offset_log[at] for at in (batch_id - 1, batch_id) if at in self.offset_log]
        *begin, end = (JournalOffsets.from_dict(json.loads(text)) for text in ends)
        self.into.commit(Batch("t", "app", self.name, batch_id, tuple(begin), (end,)), lambda: rows)


SOURCE_POINTS = ("source.partitions", "source.read", "scan.before_states", "scan.states_written")


@dataclass(frozen=True)
class Seam:
    messages: list[tuple[str, tuple[int, int, int, int]]]
    backfills: bool
    limit: int
    dies_at: tuple[str, int]
    """Failpoint of tasks or planning and its occurrence, or ``commit`` and a step of the table's commits."""
    lose_states: int
    killed_after: list[int]


seams = st.builds(
    Seam,
    st.lists(st.tuples(st.sampled_from("ab"), messages), min_size=1, max_size=10),
    st.booleans(),
    st.sampled_from([100, 400, 1 << 20]),
    st.tuples(
        st.sampled_from(["", *["commit"] * 2, *SOURCE_POINTS]),
        st.integers(1, 4),
    ),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.lists(st.integers(0, 2), max_size=2),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), storage=StorageSettings(fsync=False)) as one:
        yield one


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(
    turns=st.lists(seams, min_size=1, max_size=6),
    window=st.sampled_from([0, 1 << 20]),
    kept=st.sampled_from([2, 8]),
)
def test_a_backfill_that_dies_anywhere_leaves_no_seam(
    broker: EmbeddedBroker, turns: list[Seam], window: int, kept: int
) -> None:
    """Backfills and streams take turns and die; the table has each committed message once, and no other.

    A stream continues behind a backfill if the files of states exist, and is refused otherwise.
    """
    prefix = f"prop/backfills/{next(NUMBERS)}/"
    writers = {"a": Writer("lines"), "b": Writer("fixed")}
    states = Path(tempfile.mkdtemp(prefix="states-"))
    table, lost = Table(), False
    stream: Stream | None = None
    options = {
        "brokerAddress": broker.endpoint,
        "path": prefix,
        "format": "raw",
        "isolationLevel": "read_committed",
        "stateLocation": str(states),
    }
    last = [("a", (9, 0, 1, 1)), ("b", (9, 0, 1, 1))]
    ending = (Seam(last, True, 1 << 20, ("", 1), 0, []), Seam(last, False, 1 << 20, ("", 1), 0, []))
    with Client(broker.endpoint) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "IDLE_POLL_S", 0.0)
        patch.setattr(scan_committed, "WINDOW_BYTES", window)
        patch.setattr(states_module, "KEPT_FILES", kept)
        for turn in (*turns, *ending):
            for short, message in turn.messages:
                writer = writers[short]
                if not writer.content:
                    labels = {"content-type": LABELS[writer.kind]}
                    client.create_journals(journal_spec(prefix + short, labels=labels))
                before = len(writer.content)
                writer.write(*message)
                client.append(prefix + short, bytes(writer.content[before:]))
            if turn.backfills:
                for short in writers:
                    lose(states / prefix / short, turn.lose_states)
                lost = lost or turn.lose_states > 0
            knows = knows_what_is_open(table, states)
            assert knows or lost, "nobody but the test removes what a stream needs"
            lost = lost and not knows
            before_entry = table.entry
            with dying(table, *turn.dies_at):
                if turn.backfills:
                    session: Any = Session(turn.killed_after)
                    backfill(cast("DeltaSink", table), options, bytes_per_commit=turn.limit, spark=session)
                else:
                    stream = stream or Stream(into=table, name=f"stream {table.commits}")
                    go_on(stream, options, turn, knows=knows)
            if turn.backfills and table.entry is not before_entry:
                stream = None  # The table has moved past the stream.
    for short, writer in writers.items():
        found = [row[1:] for row in table.rows if row[0] == prefix + short]
        assert plain(found) == expected(writer, acks=False)
    shutil.rmtree(states)


def go_on(stream: Stream, options: dict[str, str], turn: Seam, *, knows: bool) -> None:
    """Run a stream to the journals' ends; a new one starts at its table's end.

    Args:
        stream: Its checkpoint, and the table.
        options: Of the source.
        turn: Limits the batches.
        knows: Whether the transactions that are open at the table's end are known.
    """
    given = {**options, "startingOffsets": "earliest", "maxBytesPerTrigger": str(turn.limit)}
    is_new = not stream.offset_log
    if is_new and (ends := stream.into.read_through()):
        given["resumeOffsets"] = JournalOffsets(ends).to_json()
    reader = GazetteDataSource(CaseInsensitiveDict(given)).streamReader(COMMITTED)
    run = stream.start(lambda: reader)
    try:
        if is_new and not knows:
            with pytest.raises(OffsetError, match="stateLocation does not have the states"):
                run.batch()
            return
        while run.batch(faults=TaskFaults(killed_after=turn.killed_after)):
            pass
    finally:
        run.stop()


def knows_what_is_open(table: Table, states: Path) -> bool:
    """Return whether there is a file of states for the table's end."""
    files, ends = StateFiles(str(states)), table.read_through()
    return all(files.load(journal, at, None) for journal, at in ends.items() if at)


@contextmanager
def dying(table: Table, point: str, nth: int) -> Iterator[None]:
    """Make the code of this block die when it reaches a point for the given time."""

    def die() -> None:
        raise Crash

    table.steps_left = nth if point == "commit" else 0
    with contextlib.suppress(Crash), calling(point, die, nth):
        yield
    table.steps_left = 0
