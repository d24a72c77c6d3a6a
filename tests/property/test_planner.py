"""Under any limits and appends, batches contain every whole record once, keep the limits, and end."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark._planning.admission import ReadLimits
from gazette_spark.client._read.heads import MANY
from gazette_spark.offsets import JournalOffsets
from tests.oracles.brokers import FakeClient, FakeJournal, planner_of

LONGEST, HALF = 40, 9

records = st.lists(st.integers(1, LONGEST), max_size=12).map(
    lambda sizes: b"".join(b"x" * (size - 1) + b"\n" for size in sizes)
)
limits = st.builds(
    ReadLimits,
    max_bytes=st.none() | st.integers(1, 200),
    max_fragments=st.none() | st.integers(1, 6),
    max_records=st.none() | st.integers(1, 20),
    min_bytes=st.integers(0, 100),
    max_delay_s=st.sampled_from([0, 3, 1e9]),
)


@dataclass
class Run:
    names: list[str]
    client: FakeClient
    limits: ReadLimits
    many: int

    def boundaries(self, name: str) -> list[int]:
        found = self.client.journals[name]
        ends = [found.begin + at + 1 for at, octet in enumerate(found.content) if octet == 10]
        return [found.begin, *ends]

    def check(self, start: JournalOffsets, end: JournalOffsets) -> None:
        moved = [name for name in self.names if end.read_through[name] > start.read_through[name]]
        assert all(end.read_through[name] in self.boundaries(name) for name in moved)
        size = sum(end.read_through[name] - start.read_through[name] for name in moved)
        if self.limits.max_bytes is not None:
            assert size <= self.limits.max_bytes + (LONGEST + HALF) * len(moved)
        if self.limits.max_records is not None:
            assert self.records(start, end, moved) <= max(self.limits.max_records, len(moved))
        if self.limits.max_fragments is not None:
            # A record that ends in the next fragment is taken whole only if it is the batch's only one there.
            ended = sum(self.fragments_ended(start, end, name) for name in moved)
            assert ended <= max(self.limits.max_fragments, len(moved)) + self.spanned(start, end, moved)

    def records(self, start: JournalOffsets, end: JournalOffsets, moved: list[str]) -> int:
        bounds = {name: self.boundaries(name) for name in moved}
        return sum(
            bounds[name].index(end.read_through[name]) - bounds[name].index(start.read_through[name])
            for name in moved
        )

    def fragments_ended(self, start: JournalOffsets, end: JournalOffsets, name: str) -> int:
        edges = self.client.journals[name].fragments
        begin, reached = start.read_through[name], end.read_through[name]
        return bisect_right(edges, reached - 1) - bisect_right(edges, begin) + 1

    def spanned(self, start: JournalOffsets, end: JournalOffsets, moved: list[str]) -> int:
        """Return how many extra fragments a batch has because it is a single record in some journal."""
        more = 0
        for name in moved:
            bounds = self.boundaries(name)
            if bounds.index(end.read_through[name]) == bounds.index(start.read_through[name]) + 1:
                more += self.fragments_ended(start, end, name)
        return more


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Draw journals with whole records, perhaps half of one more, in fragments that are cut anywhere."""
    journals = {}
    for name in ("log/a", "log/b", "log/c")[: draw(st.integers(1, 3))]:
        content, begin = draw(records) + b"y" * draw(st.integers(0, HALF)), draw(st.sampled_from([0, 1000]))
        edges = draw(st.lists(st.integers(0, len(content)), max_size=6))
        journals[name] = FakeJournal(content, begin, fragments=sorted({begin, *(begin + at for at in edges)}))
    client = planner_of(journals)[1]
    # The same batches follow, whether the bytes come with the head or are read separately.
    client.has_tails = draw(st.booleans())
    # With a threshold of 1, heads are read first; with MANY, together with new bytes.
    return Run(sorted(journals), client, draw(limits), draw(st.sampled_from([1, MANY])))


def start_of(run: Run) -> JournalOffsets:
    return JournalOffsets({name: run.client.journals[name].begin for name in run.names})


@settings(deadline=None)
@given(runs(), st.lists(records, max_size=5))
def test_an_available_now_run_reads_what_is_there_and_ends(run: Run, later: list[bytes]) -> None:
    """Bytes appended during a run wait for the next one, and only the last batch may be empty."""
    planner, client = planner_of(run.client.journals, "stream", lambda: 0.0, run.many)
    client.has_tails = run.client.has_tails
    position = start_of(run)
    planner.freeze()
    goal = {name: run.boundaries(name)[-1] for name in run.names}
    sizes = sum(goal[name] - position.read_through[name] for name in run.names)
    for turn in range(sizes + 1):
        end = planner.next(position, run.limits)
        if end == position:
            break
        run.check(position, end)
        position = end
        for name in run.names if turn < len(later) else []:
            run.client.journals[name].content += b"\n" + later[turn]
    assert position.read_through == goal


@settings(deadline=None)
@given(runs(), st.lists(st.tuples(st.sampled_from("abc"), records), max_size=6), st.booleans())
def test_a_stream_reads_every_record_in_the_end(
    run: Run, appends: list[tuple[str, bytes]], restarts: bool
) -> None:
    now = [0.0]
    planner, client = planner_of(run.client.journals, "stream", lambda: now[0], run.many)
    client.has_tails = run.client.has_tails
    position = start_of(run)
    left = list(appends)
    for _ in range(400):
        short, content = left.pop() if left else ("a", b"")
        if f"log/{short}" in run.client.journals:
            run.client.journals[f"log/{short}"].content += content
        if restarts:
            planner, _ = planner_of(run.client.journals, "stream", lambda: now[0], run.many)
        end = planner.next(position, run.limits)
        run.check(position, end)
        assert all(end.read_through[name] >= position.read_through[name] for name in run.names)
        if end == position and not left:
            break
        position = end
        now[0] += 1e9
    assert position.read_through == {name: run.boundaries(name)[-1] for name in run.names}
