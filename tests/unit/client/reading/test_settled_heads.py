"""Tests that a write head below an offset already read counts only once the primary confirms it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gazette_spark.client import Client
from gazette_spark.client._read.heads import SettledHead, settle_head
from gazette_spark.errors import (
    AuthError,
    GazetteError,
    IndexHasGreaterOffsetError,
    JournalNotFoundError,
    OffsetNotYetAvailableError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.testing.stub_broker import StubBroker, chunk, metadata, not_yet
from tests.rig.brokers import free_ports

JOURNAL = "a/journal"
REACHED = 10


class Primary:
    """A journal's primary, with a clock that moves only when code sleeps."""

    def __init__(self, heads: list[int], appends: list[int | GazetteError]) -> None:
        self.heads, self.appends = heads, appends
        """Responses in order; the last one is repeated."""
        self.reads = self.tried = 0
        self.now_s = 0.0

    def ask(self) -> int:
        self.reads += 1
        return self.heads.pop(0) if len(self.heads) > 1 else self.heads[0]

    def append(self, left_s: float) -> int:
        assert 0 < left_s <= 60
        self.tried += 1
        answer = self.appends.pop(0) if len(self.appends) > 1 else self.appends[0]
        if isinstance(answer, GazetteError):
            raise answer
        return answer

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s


FORBIDDEN = AuthError("http://broker", "no")
AWAY = UnavailableError("http://broker", "gone")

TABLE = {
    # Heads of reads, answers to appends, then expected: head, doubt, whether time passed, number of appends.
    "the primary has all": ([10], [], (10, "", False, 0)),
    "it joined late, and its replicas have all": ([4], [10], (10, "", False, 1)),
    "bytes are lost": ([4], [4], (4, "", False, 1)),
    "a read-only client, soon": ([4, 4, 12], [FORBIDDEN], (12, "", True, 1)),
    "a read-only client, in vain": ([4], [FORBIDDEN], (4, "may not append.*within 60 s", True, 1)),
    "a token for other journals": ([4], [JournalNotFoundError(JOURNAL)], (4, "may not append", True, 1)),
    "no replicas for a while": ([4], [AWAY, AWAY, 10], (10, "", True, 3)),
    "no replicas at all": ([4], [AWAY], (4, "have not agreed on its end: .*gone", True, None)),
    "an operator is waited for": (
        [4, 4, 10],
        [IndexHasGreaterOffsetError(JOURNAL)],
        (10, "", True, 2),
    ),
    "an operator does not come": (
        [4],
        [IndexHasGreaterOffsetError(JOURNAL)],
        (4, "until an operator confirms", True, None),
    ),
}


@pytest.mark.parametrize(("heads", "appends", "expected"), TABLE.values(), ids=list(TABLE))
def test_a_head_that_is_too_low(
    heads: list[int], appends: list[int | GazetteError], expected: tuple[int, str, bool, int | None]
) -> None:
    head, doubt, waits, tried = expected
    primary = Primary(list(heads), list(appends))
    found = settle_head(
        REACHED,
        primary.ask,
        primary.append,
        timeout_s=60,
        clock=lambda: primary.now_s,
        sleep=primary.sleep,
    )
    assert found.write_head == head
    assert re.search(doubt, found.doubt) if doubt else found.doubt == ""
    assert (primary.now_s > 0) == waits
    assert primary.now_s <= 60
    if tried is not None:
        assert primary.tried == tried


def test_a_journal_that_is_gone_is_an_error() -> None:
    def ask() -> int:
        raise JournalNotFoundError(JOURNAL)

    with pytest.raises(JournalNotFoundError):
        settle_head(REACHED, ask, lambda _left_s: 0, timeout_s=60)


class Cluster:
    """A primary and a replica that has just joined. The client is given the replica."""

    def __init__(self, primary: StubBroker, joined: StubBroker) -> None:
        self.primary, self.joined = primary, joined

    def header(self, served_by: int, primary: str = "") -> pb.Header:
        """Return a header served by the primary (0) or the replica (1), at Etcd's revision 7."""
        route = pb.Route(primary=0, endpoints=[primary or self.primary.endpoint, self.joined.endpoint])
        for index in range(2):
            route.members.add(zone="a", suffix=f"broker-{index}")
        etcd = pb.Header.Etcd(cluster_id=7, member_id=1, revision=7, raft_term=1)
        return pb.Header(process_id=route.members[served_by], route=route, etcd=etcd)

    def ends_at(self, served_by: int, offset: int, primary: str = "", head: int = -1) -> pb.ReadResponse:
        """Return the answer of a member without bytes at an offset, which is its head by default."""
        answer = not_yet(offset, offset if head < 0 else head)
        answer.header.CopyFrom(self.header(served_by, primary))
        return answer

    def content(self, begin: int) -> list[pb.ReadResponse]:
        """Return the primary's answer to a read of ten bytes from an offset on."""
        first = metadata(JOURNAL, 0, REACHED, offset=begin)
        first.header.CopyFrom(self.header(0))
        return [first, chunk(begin, b"0123456789"[begin:]), not_yet(REACHED)]


def spool(begin: int) -> pb.Fragment:
    return pb.Fragment(journal=JOURNAL, begin=begin, end=REACHED, compression_codec=pb.NONE)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with StubBroker() as primary, StubBroker() as joined:
        yield Cluster(primary, joined)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the replica that has just joined."""
    with Client(cluster.joined.endpoint, timeout_s=2) as opened:
        yield opened


def test_the_primary_is_asked(cluster: Cluster, client: Client) -> None:
    """The request requires the route's Etcd revision or a later one."""
    cluster.joined.script("Read", [cluster.ends_at(1, 4)])
    cluster.primary.script("Read", [cluster.ends_at(0, REACHED)])
    assert client.write_heads([JOURNAL]) == {JOURNAL: 4}
    assert client.highest_heads([JOURNAL]) == {JOURNAL: REACHED}
    assert client.settled_heads({JOURNAL: REACHED}) == {JOURNAL: SettledHead(REACHED)}
    for request in cluster.primary.requests("Read"):
        assert (request.do_not_proxy, request.min_etcd_revision) == (True, 7)


@pytest.mark.parametrize("listed", [[], [{"spec": spool(7)}]], ids=["nothing", "an append since"])
def test_the_first_offset_in_the_spools_of_the_primary(
    cluster: Cluster, client: Client, listed: list[dict[str, pb.Fragment]]
) -> None:
    """A replica that has just joined has no bytes before its first append until it lists the stores again."""
    answer = pb.FragmentsResponse(header=cluster.header(1), fragments=listed)
    cluster.joined.script("ListFragments", [answer])
    cluster.joined.script("Read", [cluster.ends_at(1, REACHED)])
    cluster.primary.script("ListFragments", [pb.FragmentsResponse(fragments=[{"spec": spool(4)}])])
    assert client.first_offset(JOURNAL) == client.offset_since(JOURNAL, mod_time=60) == 4
    assert cluster.primary.requests("ListFragments")[-1].begin_mod_time == 60


def test_many_primaries_are_asked(cluster: Cluster, client: Client) -> None:
    """Many heads are fetched by another code path, with the same result."""
    names = [f"{JOURNAL}-{number}" for number in range(100)]
    cluster.joined.script("Read", [cluster.ends_at(1, 4)])
    cluster.primary.script("Read", [cluster.ends_at(0, REACHED)])
    assert client.highest_heads(names) == dict.fromkeys(names, REACHED)


@pytest.mark.parametrize("primary_joined_late", [True, False], ids=["joined late", "is dead"])
@pytest.mark.parametrize("journals", [1, 100])
def test_the_primary_knows_no_better(
    cluster: Cluster, client: Client, *, primary_joined_late: bool, journals: int
) -> None:
    """If the primary also joined late or is dead, the other members have the bytes."""
    names = [f"{JOURNAL}-{number}" for number in range(journals)]
    dead = "" if primary_joined_late else f"http://127.0.0.1:{free_ports(1)[0]}"
    with StubBroker() as third:
        answers = [cluster.ends_at(served_by, 4, dead) for served_by in (0, 1)]
        for answer in answers:
            answer.header.route.members.add(zone="a", suffix="broker-2")
            answer.header.route.endpoints.append(third.endpoint)
        cluster.primary.script("Read", [answers[0]])
        cluster.joined.script("Read", [answers[1]])
        third.script("Read", [not_yet(REACHED)])
        assert client.highest_heads(names) == dict.fromkeys(names, REACHED)


def test_a_primary_that_cannot_be_reached(cluster: Cluster, client: Client) -> None:
    """A head lower than an offset already read needs an append to confirm it."""
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    cluster.joined.script("Read", [cluster.ends_at(1, 4, dead)])
    assert client.highest_heads([JOURNAL]) == {JOURNAL: 4}
    commit = pb.Fragment(journal=JOURNAL, begin=12, end=12, compression_codec=pb.NONE)
    answer = pb.AppendResponse(header=cluster.header(0, dead), commit=commit, registers=pb.LabelSet())
    cluster.joined.script("Append", [answer])
    assert client.settled_heads({JOURNAL: REACHED}) == {JOURNAL: SettledHead(12)}
    ((first, *rest),) = cluster.joined.requests("Append")
    assert first.suspend == pb.AppendRequest.SUSPEND_NO_RESUME
    assert not any(message.content for message in rest)


def test_a_read_asks_the_primary_for_what_a_member_lacks(cluster: Cluster, client: Client) -> None:
    cluster.joined.script("Read", [cluster.ends_at(1, 4)])
    cluster.primary.script("Read", cluster.content(4))
    assert client.read(JOURNAL, offset=4, end_offset=REACHED).read() == b"456789"
    assert client.read(JOURNAL, offset=4).read() == b"456789"


def test_a_read_past_the_head_that_a_member_knows(cluster: Cluster, client: Client) -> None:
    """A replica may not have the bytes that the primary has."""
    cluster.joined.script("Read", [cluster.ends_at(1, 7, head=4)])
    cluster.primary.script("Read", cluster.content(7))
    assert client.read(JOURNAL, offset=7).read() == b"789"
    cluster.primary.script("Read", [cluster.ends_at(0, 7, head=4)])
    with pytest.raises(OffsetNotYetAvailableError, match="write head is 4"):
        client.read(JOURNAL, offset=7).read()


def test_a_read_asks_each_member_for_what_the_primary_lacks(cluster: Cluster) -> None:
    """A primary that joined late has only later bytes."""
    cluster.primary.script("Read", [cluster.ends_at(0, 4, head=20)])
    cluster.joined.script("Read", cluster.content(4))
    with Client(cluster.primary.endpoint, timeout_s=2) as client:
        assert client.read(JOURNAL, offset=4, end_offset=REACHED).read() == b"456789"


def test_bytes_that_nobody_has_yet_are_waited_for(cluster: Cluster, client: Client) -> None:
    """Both members are asked again, with pauses, until time is up."""
    cluster.joined.script("Read", [cluster.ends_at(1, 4)])
    cluster.primary.script("Read", [cluster.ends_at(0, 4)])
    with pytest.raises(OffsetNotYetAvailableError):
        client.read(JOURNAL, offset=4, end_offset=REACHED, timeout_s=1).read()
    assert 3 <= len(cluster.primary.requests("Read")) <= 8
