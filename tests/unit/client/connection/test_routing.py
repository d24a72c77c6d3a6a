"""Tests that a client follows routes and recovers from wrong, moved or dead brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pytest
import trustme

from gazette_spark.client import Client, PolledList, TlsOptions, WatchedList
from gazette_spark.errors import ProtocolError, UnavailableError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.testing.stub_broker import Fail, Hang, StubBroker, chunk, metadata, not_yet
from tests.rig.brokers import free_ports

JOURNAL = "a/journal"
CONTENT = b"0123456789"


class Cluster:
    """Three scripted brokers; a client is given the address of the first."""

    def __init__(self, *brokers: StubBroker) -> None:
        self.entry, self.primary, self.replica = brokers

    def header(self, *members: StubBroker | str, primary: int = 0) -> pb.Header:
        """Return a header with a route of ``members`` in zones a, b, c; by default primary and replica."""
        chosen = members or (self.primary, self.replica)
        route = pb.Route(primary=primary)
        for index, member in enumerate(chosen):
            route.members.add(zone="abc"[index], suffix=f"broker-{index}")
            route.endpoints.append(member if isinstance(member, str) else member.endpoint)
        etcd = pb.Header.Etcd(cluster_id=7, member_id=1, revision=1, raft_term=1)
        return pb.Header(route=route, etcd=etcd)

    def asked(self, rpc: str) -> tuple[int, int, int]:
        first, second, third = (len(each.requests(rpc)) for each in (self.entry, self.primary, self.replica))
        return first, second, third


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with StubBroker() as one, StubBroker() as two, StubBroker() as three:
        yield Cluster(one, two, three)


@pytest.fixture
def routed(cluster: Cluster) -> Iterator[Client]:
    """A client that follows routes, in zone b like the replica."""
    with Client(
        cluster.entry.endpoint, timeout_s=30, idle_timeout_s=0.5, route_cache_size=10, zone="b"
    ) as opened:
        yield opened


def refusal(status: pb.Status, header: pb.Header) -> pb.ReadResponse:
    return pb.ReadResponse(status=status, header=header)


def content(header: pb.Header, begin: int = 0, end: int = len(CONTENT)) -> list[pb.ReadResponse]:
    first = metadata(JOURNAL, 0, len(CONTENT), offset=begin)
    first.header.CopyFrom(header)
    return [first, chunk(begin, CONTENT[begin:end])]


def committed(header: pb.Header) -> pb.AppendResponse:
    commit = pb.Fragment(journal=JOURNAL, end=len(CONTENT), compression_codec=pb.NONE)
    return pb.AppendResponse(header=header, commit=commit, registers=pb.LabelSet())


def test_a_read_follows_the_route(cluster: Cluster, routed: Client) -> None:
    """The wrong broker answers with the route, so that only the first read needs another hop."""
    header = cluster.header()
    cluster.entry.script("Read", [refusal(pb.NOT_JOURNAL_BROKER, header)])
    cluster.replica.script("Read", [*content(header), not_yet(10)])
    for _ in range(2):
        assert routed.read(JOURNAL).read() == CONTENT
    assert cluster.asked("Read") == (1, 0, 2)
    for request in (*cluster.entry.requests("Read"), *cluster.replica.requests("Read")):
        assert request.do_not_proxy


def test_an_append_follows_the_route(cluster: Cluster, routed: Client) -> None:
    """The wrong broker answers with the route, so that only the first append needs another hop."""
    header = cluster.header()
    refused = pb.AppendResponse(status=pb.NOT_JOURNAL_PRIMARY_BROKER, header=header)
    cluster.entry.script("Append", [refused])
    cluster.primary.script("Append", [committed(header)])
    for _ in range(2):
        assert routed.append(JOURNAL, CONTENT).end == 10
    assert cluster.asked("Append") == (1, 2, 0)
    assert not any(each[0].do_not_proxy for each in cluster.primary.requests("Append"))


def test_answers_of_a_proxy_tell_the_route(cluster: Cluster, routed: Client) -> None:
    header = cluster.header()
    cluster.entry.script("Append", [committed(header)])
    cluster.primary.script("Append", [committed(header)])
    cluster.replica.script("Read", [not_yet(10)])
    cluster.replica.script("ListFragments", [pb.FragmentsResponse(header=header)])
    for _ in range(2):
        routed.append(JOURNAL, CONTENT)
    assert routed.write_head(JOURNAL) == 10
    assert routed.write_heads([JOURNAL]) == {JOURNAL: 10}
    assert routed.list_fragments(JOURNAL) == []
    assert cluster.asked("Append") == (1, 1, 0)
    assert cluster.asked("Read") == (0, 0, 2)
    assert cluster.asked("ListFragments") == (0, 0, 1)


def test_listings_tell_routes(cluster: Cluster, routed: Client) -> None:
    header = cluster.header()
    listed = pb.ListResponse.Journal(spec=journal_spec(JOURNAL), mod_revision=1, route=header.route)
    cluster.entry.script("List", [pb.ListResponse(header=header, journals=[listed])])
    cluster.primary.script("Append", [committed(header)])
    routed.list_journals()
    routed.append(JOURNAL, CONTENT)
    assert cluster.asked("Append") == (0, 1, 0)


def test_a_client_without_a_cache_stays(cluster: Cluster) -> None:
    cluster.entry.script("Read", [*content(cluster.header()), not_yet(10)])
    cluster.entry.script("Append", [committed(cluster.header())])
    with Client(cluster.entry.endpoint) as plain:
        for _ in range(2):
            assert plain.read(JOURNAL).read() == CONTENT
            plain.append(JOURNAL, CONTENT)
    assert cluster.asked("Read") == (2, 0, 0)
    assert cluster.asked("Append") == (2, 0, 0)
    assert not any(request.do_not_proxy for request in cluster.entry.requests("Read"))


def test_a_route_to_a_dead_broker(cluster: Cluster, routed: Client) -> None:
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    gone = cluster.header(cluster.entry, dead)
    alive = cluster.header(cluster.entry)
    cluster.entry.script("Read", [refusal(pb.NOT_JOURNAL_BROKER, gone)], [*content(alive), not_yet(10)])
    for _ in range(2):
        assert routed.read(JOURNAL).read() == CONTENT
    assert cluster.asked("Read") == (3, 0, 0)


def test_a_primary_that_died(cluster: Cluster, routed: Client) -> None:
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    moved = cluster.header(cluster.replica)
    cluster.entry.script("Append", [committed(cluster.header(dead))], [committed(moved)])
    cluster.replica.script("Append", [committed(moved)])
    for _ in range(3):
        routed.append(JOURNAL, CONTENT)
    assert cluster.asked("Append") == (2, 0, 1)


def test_a_member_that_dies_in_mid_stream(cluster: Cluster, routed: Client) -> None:
    header = cluster.header()
    cluster.entry.script("Read", [refusal(pb.NOT_JOURNAL_BROKER, header)])
    cluster.replica.script("Read", [*content(header, 0, 4), Fail()])
    cluster.primary.script("Read", [*content(header, 4), not_yet(10)])
    assert routed.read(JOURNAL).read() == CONTENT
    assert cluster.asked("Read") == (1, 1, 1)
    assert cluster.primary.requests("Read")[0].offset == 4


def test_an_assignment_that_moves_in_mid_stream(cluster: Cluster, routed: Client) -> None:
    """A stream that ends without an error continues at the journal's new broker."""
    before, after = cluster.header(cluster.replica), cluster.header(cluster.primary)
    cluster.entry.script("Read", [refusal(pb.NOT_JOURNAL_BROKER, before)])
    cluster.replica.script("Read", content(before, 0, 4), [refusal(pb.NOT_JOURNAL_BROKER, after)])
    cluster.primary.script("Read", [*content(after, 4), not_yet(10)])
    assert routed.read(JOURNAL).read() == CONTENT
    assert cluster.asked("Read") == (1, 1, 2)


def test_brokers_that_point_at_each_other(cluster: Cluster, routed: Client) -> None:
    """The reader breaks the loop by asking the second broker to proxy."""

    def answer(request: pb.ReadRequest) -> list[pb.ReadResponse]:
        other = cluster.header(cluster.replica)
        if request.do_not_proxy:
            return [refusal(pb.NOT_JOURNAL_BROKER, other)]
        return [*content(other), not_yet(10)]

    for each in (cluster.entry, cluster.replica):
        each.script("Read", answer)
    assert routed.read(JOURNAL).read() == CONTENT
    assert cluster.asked("Read") == (1, 0, 2)


def test_a_quiet_journal_is_no_dead_broker(cluster: Cluster, routed: Client) -> None:
    """A blocking read without data reopens its stream at the same member."""
    header = cluster.header(cluster.replica)
    cluster.entry.script("Read", [refusal(pb.NOT_JOURNAL_BROKER, header)])
    cluster.replica.script("Read", [Hang()], [Hang()], content(header))
    with routed.read(JOURNAL, block=True) as reader:
        assert reader.read(10) == CONTENT
    assert cluster.asked("Read") == (1, 0, 3)


def test_a_hung_member(cluster: Cluster, routed: Client) -> None:
    """A read that does not block expects an answer, so it moves to another member."""
    header = cluster.header()
    cluster.entry.script("Read", [refusal(pb.NOT_JOURNAL_BROKER, header)])
    cluster.replica.script("Read", [Hang()])
    cluster.primary.script("Read", [*content(header), not_yet(10)])
    assert routed.read(JOURNAL).read() == CONTENT
    assert cluster.asked("Read") == (1, 1, 1)


@pytest.mark.parametrize("call", ["read", "append", "list"])
def test_an_answer_of_another_cluster(cluster: Cluster, routed: Client, call: str) -> None:
    """Offsets of another cluster have another meaning."""
    cluster.entry.script("List", [pb.ListResponse(header=cluster.header())])
    routed.list_journals()
    strange = cluster.header()
    strange.etcd.cluster_id = 8
    cluster.entry.script("Read", content(strange))
    cluster.entry.script("Append", [committed(strange)])
    cluster.entry.script("List", [pb.ListResponse(header=strange)])
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: routed.read(JOURNAL).read(),
        "append": lambda: routed.append(JOURNAL, CONTENT),
        "list": routed.list_journals,
    }
    with pytest.raises(ProtocolError, match="ClusterId 8"):
        calls[call]()
    assert cluster.asked("Read")[0] + cluster.asked("Append")[0] <= 1


def test_the_first_broker_of_several_is_down(cluster: Cluster) -> None:
    cluster.entry.script("List", [pb.ListResponse()])
    cluster.entry.script("Read", [*content(pb.Header()), not_yet(10)])
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    with Client(f"{dead},{cluster.entry.endpoint}", timeout_s=30) as either:
        assert either.list_journals() == []
        assert either.read(JOURNAL).read() == CONTENT
    with Client(f"{dead},{dead}", connect_timeout_s=0.5) as neither, pytest.raises(UnavailableError):
        neither.list_journals()


def test_lists_of_several_brokers(cluster: Cluster) -> None:
    cluster.entry.script("List", [pb.ListResponse(header=cluster.header()), pb.ListResponse(), Hang()])
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    with (
        Client(f"{dead},{cluster.entry.endpoint}", timeout_s=30) as either,
        WatchedList(either, "") as watched,
    ):
        assert watched.list().revision == 1
    cluster.entry.script("List", [pb.ListResponse(header=cluster.header())])
    with (
        Client(f"{dead},{cluster.entry.endpoint}", timeout_s=30) as either,
        PolledList(either, "") as polled,
    ):
        assert polled.list().revision == 1


def test_a_name_that_does_not_resolve() -> None:
    with (
        Client("http://no-such-broker.invalid:1", connect_timeout_s=0.5) as lost,
        pytest.raises(UnavailableError, match=r"no-such-broker\.invalid"),
    ):
        lost.list_journals()


def test_tokens_do_not_leave_tls(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A client with TLS does not follow a route to a broker without it."""
    authority = trustme.CA()
    ca_file = str(tmp_path_factory.mktemp("tls") / "ca.pem")
    authority.cert_pem.write_to_path(ca_file)
    issued = authority.issue_cert("127.0.0.1")
    pair = (issued.private_key_pem.bytes(), b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    with StubBroker(grpc.ssl_server_credentials([pair])) as secure:
        secure.script("Append", [committed(cluster.header())])
        with Client(secure.endpoint, token="SECRET", tls=TlsOptions(ca_file), route_cache_size=10) as client:
            for _ in range(3):
                client.append(JOURNAL, CONTENT)
        assert len(secure.requests("Append")) == 3
    assert cluster.asked("Append") == (0, 0, 0)
