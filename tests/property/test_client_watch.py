"""However a watch's streams are cut, the published listings are true, in order, and complete in the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gazette_spark.client._list.listing import Listing
from gazette_spark.client._list.watch import WATCHLESS_STREAMS, Follower
from gazette_spark.client._transport.channel import NO_ANSWER
from gazette_spark.client._transport.retry import BACKOFF_S
from gazette_spark.errors import UnavailableError, WatchUnsupportedError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.rig.examples import examples
from tests.unit.client.listings import EMPTY, header, message, pages

State = tuple[int, tuple[str, ...]]
"""Revision, and the names listed from that revision on."""

NAMES = st.sets(st.sampled_from([f"many/{index}" for index in range(9)])).map(sorted).map(tuple)


@st.composite
def histories(draw: st.DrawFn) -> list[State]:
    steps = draw(st.lists(st.tuples(st.integers(1, 3), NAMES), min_size=1, max_size=6))
    revisions = [sum(step for step, _ in steps[: index + 1]) for index in range(len(steps))]
    return [(revision, names) for revision, (_, names) in zip(revisions, steps, strict=True)]


@dataclass
class Cut:
    after: int
    """Maximum number of messages before the cut."""
    kind: str
    """How the stream ends: cleanly, broken, at its deadline, or with an invalid message."""
    skips: int
    """Number of states that pass before the stream begins."""


CUTS = st.lists(
    st.builds(
        Cut,
        after=st.integers(0, 12),
        kind=st.sampled_from(["clean", "broken", "deadline", "old revision", "stray empty message"]),
        skips=st.integers(0, 2),
    ),
    max_size=12,
)


@dataclass
class Broker:
    """A broker that serves watches of a history; it cuts the first streams as drawn, and no later ones."""

    history: list[State]
    cuts: Iterator[Cut]
    now: int = 0
    asked: list[pb.ListRequest] = field(default_factory=list)

    def open_stream(self, request: pb.ListRequest, timeout_s: float) -> Stream:
        self.asked.append(request)
        return Stream(self._messages(request, next(self.cuts, None)))

    def _messages(self, request: pb.ListRequest, cut: Cut | None) -> Iterator[pb.ListResponse]:
        self.now = min(self.now + (cut.skips if cut else 0), len(self.history) - 1)
        last = pb.ListResponse()
        for left, each in enumerate(self._true_messages(request.watch_resume.etcd.revision)):
            if cut is not None and left == cut.after:
                break
            yield each
            last = each
        kind = cut.kind if cut else "deadline"
        if kind == "stray empty message" and last != EMPTY:
            kind = "broken"  # Here it would end the listing, and no client could tell the difference.
        match kind:
            case "broken":
                raise UnavailableError("stub", "Socket closed")
            case "deadline":
                raise UnavailableError("stub", NO_ANSWER)
            case "old revision":
                yield message("not/true", revision=1)
            case "stray empty message":
                yield pb.ListResponse()

    def _true_messages(self, resume: int) -> Iterator[pb.ListResponse]:
        if self.history[self.now][0] > resume:
            yield from self._state()
        while self.now < len(self.history) - 1:
            self.now += 1
            if self.history[self.now][0] > resume:
                yield from self._state()

    def _state(self) -> Iterator[pb.ListResponse]:
        revision, names = self.history[self.now]
        yield from pages(revision, names)


class Stream:
    def __init__(self, messages: Iterator[pb.ListResponse]) -> None:
        self._messages = messages

    def messages(self) -> Iterator[pb.ListResponse]:
        return self._messages

    def close(self) -> None:
        """Do nothing: there is no connection."""


@settings(deadline=None, max_examples=examples(100))
@given(histories(), CUTS)
@example([(1, ())], [Cut(0, "old revision", 0), Cut(1, "clean", 0), Cut(1, "clean", 0)])
def test_any_cut_resumes_to_the_same_listing(history: list[State], cuts: list[Cut]) -> None:
    """Each published listing was true, none repeats or comes late, and the last one is the final state.

    If the first streams all end cleanly within the first listing, the client concludes that the brokers have
    no watch.
    """
    broker = Broker(history, iter(cuts))
    published: list[Listing] = []
    follower = Follower(pb.LabelSelector(), broker.open_stream, published.append, answer_s=1.0)
    for _ in range(len(cuts) + 2):
        before = len(published)
        try:
            wait_s = follower.step()
        except WatchUnsupportedError:
            kinds = [cut.kind for cut in cuts[: len(broker.asked)]]
            assert published == []
            # Nothing is older than a first listing, so the client reads an old revision as the start of one.
            assert {*kinds[-WATCHLESS_STREAMS:]} <= {"clean", "old revision"}
            assert len(kinds) >= WATCHLESS_STREAMS
            return
        brought = len(published) > before
        assert wait_s >= BACKOFF_S[0] or brought or follower.cause is None
    truth = dict(history)
    assert all(truth[each.revision] == tuple(each.names) for each in published)
    revisions = [each.revision for each in published]
    assert revisions == sorted(set(revisions))
    assert revisions[-1] == history[-1][0]
    for request in broker.asked:
        assert request.watch
        if request.HasField("watch_resume"):
            assert request.watch_resume == header(request.watch_resume.etcd.revision)
