"""Backfills and stream batches, in any order and with crashes anywhere, tile each journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark._backfill import continued
from gazette_spark._ledger.decision import Refusal, Skip, decide
from gazette_spark._ledger.entry import Batch, LedgerEntry, LedgerState, unknown_journals
from gazette_spark.errors import SinkError
from gazette_spark.offsets import JournalOffsets

NAMES = ("log/a", "log/b", "log/c")


class CrashError(Exception):
    """The process dies."""


@dataclass
class Table:
    entry: LedgerEntry | None = None
    commits: int = 0
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    crash_at: int = -1
    """Number of steps until the crash; each commit has one step before and one after it."""

    def state(self) -> LedgerState:
        parent = self.entry.parent if self.entry else None
        return LedgerState(self.entry, parent, self.commits - 1, self.commits - 1)

    def step(self) -> None:
        self.crash_at -= 1
        if self.crash_at == 0:
            raise CrashError

    def commit(self, batch: Batch) -> str:
        decision = decide(self.state(), batch, attempt=f"attempt {self.commits}")
        if isinstance(decision, Refusal):
            raise decision.error
        if isinstance(decision, Skip):
            return "skipped"
        self.step()
        self.commits += 1
        (begin,), (end,) = batch.begin, batch.end
        assert isinstance(begin, JournalOffsets)
        assert isinstance(end, JournalOffsets)
        for journal, until in end.read_through.items():
            if until > begin.read_through[journal]:
                self.rows.append((journal, begin.read_through[journal], until))
        self.entry = decision.entry
        self.step()
        return "written"

    def write(self, begin: JournalOffsets, end: JournalOffsets) -> str:
        """Write a range, as ``DeltaSink.write_batch`` does."""
        if new := unknown_journals(self.entry, begin, "t"):
            self.commit(Batch("t", "orders", "q", 0, (), (new.at("pinned"),)))
        return self.commit(Batch("t", "orders", "q", 1, (begin,), (end,)))

    def read_through(self) -> dict[str, int]:
        return self.entry.read_through if self.entry else {}


def no_question(beyond: Mapping[str, int]) -> None:
    """Stand in for the brokers' check: no write head is below the table's position."""
    raise AssertionError(f"asked about {beyond}")


operations = st.tuples(
    st.sampled_from(["append", "append", "backfill", "stale", "stream"]),
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 50)), min_size=1, max_size=3),
    st.integers(0, 5),
    st.booleans(),
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 20)), st.lists(operations, max_size=15))
def test_every_byte_is_written_once(
    firsts: dict[str, int], todo: list[tuple[str, list[tuple[str, int]], int, bool]]
) -> None:
    heads, table = dict(firsts), Table()
    stored: dict[str, int] = {}
    for what, sizes, crash_at, whole in todo:
        table.crash_at = crash_at
        for journal, size in sizes if what == "append" else ():
            firsts.setdefault(journal, 0)
            stored[journal] = heads.setdefault(journal, firsts[journal])
            heads[journal] += size
        if what == "append" or not heads:
            continue
        ends = heads if whole else {journal: stored.get(journal, at) for journal, at in heads.items()}
        begin, end = JournalOffsets({name: firsts[name] for name in ends}), JournalOffsets(ends)
        known = {} if what == "stale" else table.read_through()
        begin, end = continued(begin, end, known, open_end=False, check_heads=no_question)
        try:
            outcome = table.write(begin, end)
            table.crash_at = -1
            assert table.write(begin, end) == "skipped"
            assert (outcome == "skipped") == (begin == end) or what == "stale"
        except CrashError:
            pass
        except SinkError:
            assert what == "stale"
    begin, end = JournalOffsets(firsts), JournalOffsets(heads)
    begin, end = continued(begin, end, table.read_through(), open_end=True, check_heads=no_question)
    table.crash_at = -1
    if heads:
        table.write(begin, end)
    for journal, first in firsts.items():
        spans = sorted(span[1:] for span in table.rows if span[0] == journal)
        assert [low for low, _ in spans] == [first, *(high for _, high in spans)][: len(spans)]
        assert (spans[-1][1] if spans else first) == heads[journal]
