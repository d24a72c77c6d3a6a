"""Tests that calls of other services are routed and authenticated like those of journals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self

import grpc
import pytest

from gazette_spark.client._transport import retry
from gazette_spark.client._transport.channel import Connection
from gazette_spark.client._transport.credentials import Credentials
from gazette_spark.client._transport.routes import Dialer, RouteCache, open_dialer
from gazette_spark.errors import AuthError, ProtocolError, TokenError, UnavailableError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import consumer_pb2_grpc as pc_grpc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.labels import ID, label_set, selector_matches
from gazette_spark.protocol.tokens import Capability, Claims, KeySet, item_claims, journal_claims

KEYS = KeySet((b"shared",))
SHARD, OTHER = "app/shard-1", "app/shard-2"
TIMEOUT_S = 20
STAT_LIFETIME_S = 60.0


class Consumer(pc_grpc.ShardServicer):
    """A consumer that returns its shards' route to callers whose token is for the shard."""

    def __init__(self, zone: str, cluster_id: int = 7) -> None:
        self.zone = zone
        self.cluster_id = cluster_id
        self.homes: list[Consumer] = [self]
        """Consumers that serve all shards, primary first."""
        self.claims: list[Claims] = []
        self._server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        pc_grpc.add_ShardServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(grace=None).wait(10)

    def Stat(self, request: pc.StatRequest, context: grpc.ServicerContext) -> pc.StatResponse:  # noqa: N802
        """Return this consumer's zone as a journal name, with the shard's route."""
        sent = dict(context.invocation_metadata())
        try:
            claims = KEYS.verify(str(sent.get("authorization", "")).removeprefix("Bearer "), now=time.time())
        except TokenError as error:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        if not claims.allows(Capability.READ) or not selector_matches(
            claims.selector, label_set({ID: request.shard})
        ):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, f"not authorized to read shard {request.shard}")
        self.claims.append(claims)
        homes = sorted(self.homes, key=lambda each: each.zone)
        route = pb.Route(
            members=[pb.ProcessSpec.ID(zone=each.zone, suffix="consumer") for each in homes],
            primary=homes.index(self.homes[0]),
            endpoints=[each.endpoint for each in homes],
        )
        etcd = pb.Header.Etcd(cluster_id=self.cluster_id, member_id=1, revision=1, raft_term=1)
        return pc.StatResponse(header=pb.Header(route=route, etcd=etcd), read_through={self.zone: 1})


@pytest.fixture
def consumers() -> Iterator[tuple[Consumer, Consumer, Consumer]]:
    """Three consumers in three zones: ``door`` without shards, the primary ``far``, the replica ``near``."""
    with Consumer("door") as door, Consumer("far") as far, Consumer("near") as near:
        door.homes = far.homes = near.homes = [far, near]
        yield door, far, near


@pytest.fixture
def dialer(consumers: tuple[Consumer, ...]) -> Iterator[Dialer]:
    """A dialer that starts at ``door`` and is in the zone of ``near``."""
    opened = open_dialer(
        consumers[0].endpoint,
        connect_timeout_s=5,
        credentials=Credentials(auth_keys=KEYS),
        cache=RouteCache(10, 60),
        zone="near",
    )
    yield opened
    opened.close()


def stat(connection: Connection, shard: str, claims: Claims | None = None) -> str:
    """Ask for a shard as a client of shards would, and return the zone that answered."""
    needed = claims or item_claims(Capability.READ, ID, shard)
    with connection.errors():
        response = connection.stub(pc_grpc.ShardStub).Stat(
            pc.StatRequest(shard=shard),
            timeout=TIMEOUT_S,
            metadata=connection.metadata(needed, STAT_LIFETIME_S),
        )
    connection.observe(shard, response.header)
    return next(iter(response.read_through))


def test_a_shard_is_called_where_it_is(dialer: Dialer) -> None:
    """The first answer contains the route."""
    assert stat(dialer.for_primary(SHARD), SHARD) == "door"
    assert stat(dialer.for_primary(SHARD), SHARD) == "far"
    assert stat(dialer.for_member(SHARD), SHARD) == "near"
    assert stat(dialer.for_member(OTHER), OTHER) == "door", "each shard has a route of its own"


def test_a_call_claims_its_shard_alone(dialer: Dialer, consumers: tuple[Consumer, ...]) -> None:
    stat(dialer.default, SHARD)
    [claims] = consumers[0].claims
    assert claims.capability == Capability.READ
    assert claims.selector == pb.LabelSelector(include=label_set({ID: SHARD}))
    assert time.time() < claims.expires_at <= time.time() + STAT_LIFETIME_S


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param(item_claims(Capability.READ, ID, OTHER), id="another shard"),
        pytest.param(journal_claims(Capability.READ, SHARD), id="a journal of that name"),
        pytest.param(item_claims(Capability.LIST, ID, SHARD), id="another capability"),
    ],
)
def test_other_claims_are_refused(dialer: Dialer, claims: Claims) -> None:
    with pytest.raises(AuthError, match="not authorized to read shard"):
        stat(dialer.default, SHARD, claims)


def test_a_dead_primary_is_passed_over(dialer: Dialer, consumers: tuple[Consumer, ...]) -> None:
    """The failed call drops the route; the next attempt asks the default broker for a new one."""
    door, far, near = consumers
    for _ in range(2):
        stat(dialer.for_primary(SHARD), SHARD)
    far.__exit__(None, None, None)
    door.homes = near.homes = [near]

    def ask(_left_s: float) -> str:
        return stat(dialer.for_primary(SHARD), SHARD)

    tried: list[Exception] = []
    found = retry.retrying(
        ask,
        lambda cause, attempt: tried.append(cause) or retry.after_call(cause, attempt),  # type: ignore[func-returns-value]  # `append` returns None, so `or` goes on.
        timeout_s=TIMEOUT_S,
        patience_s=partial(dialer.default.patience_s, TIMEOUT_S),
    )
    assert [type(each) for each in tried] == [UnavailableError]
    assert found == "door"
    assert ask(TIMEOUT_S) == "near"


def test_headers_of_another_cluster_are_refused(dialer: Dialer, consumers: tuple[Consumer, ...]) -> None:
    stat(dialer.default, SHARD)
    consumers[0].cluster_id = 8
    with pytest.raises(ProtocolError, match="ClusterId 8"):
        stat(dialer.default, SHARD)


def test_services_share_a_channel() -> None:
    connection = Connection("http://127.0.0.1:1", connect_timeout_s=1)
    shards = connection.stub(pc_grpc.ShardStub)
    journals = connection.stub(pb_grpc.JournalStub)
    assert isinstance(shards, pc_grpc.ShardStub)
    assert isinstance(journals, pb_grpc.JournalStub)
    assert connection.stub(pc_grpc.ShardStub) is shards
    connection.distrust()
    assert connection.stub(pc_grpc.ShardStub) is not shards
    connection.close()


def test_claims_are_made_only_to_be_signed() -> None:
    """A ready-made token needs no claims."""
    made: list[Claims] = []

    def claims() -> Claims:
        made.append(item_claims(Capability.READ, ID, SHARD))
        return made[-1]

    assert Credentials("ready-made").metadata(claims) == (("authorization", "Bearer ready-made"),)
    assert not made
    [(_, sent)] = Credentials(auth_keys=KEYS).metadata(claims)
    assert KEYS.verify(sent.removeprefix("Bearer "), now=time.time()).selector == made[0].selector
