"""Tests the service ``consumer.Shard`` and its client over gRPC."""

from __future__ import annotations

import base64
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from gazette_spark._server.catalog import MAX_OPERATIONS
from gazette_spark.broker import EmbeddedBroker, ServerTls
from gazette_spark.client import Client, TlsOptions
from gazette_spark.client._transport.channel import NO_ANSWER
from gazette_spark.consumer import Progress, service
from gazette_spark.consumer import client as consumer_client
from gazette_spark.consumer.application import Resolution, ResolveArgs
from gazette_spark.consumer.client import ShardClient, verify_referenced_journals
from gazette_spark.consumer.service import ShardServer
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.errors import (
    AuthError,
    BrokerError,
    GazetteError,
    JournalNotFoundError,
    NoShardPrimaryError,
    OptionError,
    PartialApplyError,
    ProtocolError,
    ShardNotFoundError,
    ShardStoppedError,
    ShardTransactionFailedError,
    TlsError,
    UnavailableError,
)
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import consumer_pb2_grpc as pc_grpc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as rl
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.protocol.labels import parse_selector
from gazette_spark.protocol.tokens import Capability, Claims, KeySet
from tests.rig.certificates import Certificates
from tests.rig.still_host import StillHost

SOON_S = 20.0

Change = pc.ApplyRequest.Change
Stub = pc_grpc.ShardStub


class Served:
    """A host, its server, and a client of it."""

    def __init__(self, **options: object) -> None:
        self.server = ShardServer(**options)  # type: ignore[arg-type]  # Options by name.
        self.host = StillHost(self.server.endpoint)
        self.client = ShardClient(self.server.endpoint, timeout_s=SOON_S)
        self.server.start(self.host)

    def put(self, *ids: str, revision: int = 0, **fields: object) -> None:
        specs = [shard_spec(each, ["shop/orders", "shop/clicks"], **fields) for each in ids]  # type: ignore[arg-type]  # Fields by name, of mixed types.
        self.client.apply([Change(upsert=spec, expect_mod_revision=revision) for spec in specs])

    def close(self) -> None:
        self.client.close()
        self.server.stop()


@pytest.fixture
def served() -> Iterator[Served]:
    consumer = Served()
    yield consumer
    consumer.close()


@pytest.fixture
def stub(served: Served) -> Iterator[pc_grpc.ShardStub]:
    """The generated stub, for requests that the client would refuse to send."""
    with grpc.insecure_channel(served.server.endpoint.removeprefix("http://")) as channel:
        yield pc_grpc.ShardStub(channel)


def test_shards_are_listed_by_selector(served: Served) -> None:
    """A selector can use the id like a label."""
    served.put("shard-2", labels={"app": "x"})
    served.put("shard-1", disable=True)
    first, second = served.client.list_shards()
    assert (first.spec.id, first.mod_revision, first.create_revision) == ("shard-1", 3, 3)
    assert (list(first.route.members), first.route.primary, list(first.status)) == ([], -1, [])
    assert list(second.route.endpoints) == [served.server.endpoint]
    assert [each.code for each in second.status] == [pc.ReplicaStatus.PRIMARY]
    for selector, ids in (("id=shard-1", ["shard-1"]), ("app", ["shard-2"]), ("id=shard-1,app", [])):
        assert [each.spec.id for each in served.client.list_shards(selector)] == ids


def test_shards_change_by_revision(served: Served) -> None:
    served.put("shard-1")
    delete = Change(delete="shard-1", expect_mod_revision=2)
    with pytest.raises(ShardTransactionFailedError, match="shard-2, shard-1"):
        served.client.apply([Change(upsert=shard_spec("shard-2", []), expect_mod_revision=1), delete])
    assert [each.spec.id for each in served.client.list_shards()] == ["shard-1"]
    assert served.client.apply([delete]) == 3
    assert served.client.list_shards() == []


def test_an_apply_without_an_answer_may_be_applied(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = StillHost.apply

    def lose(host: StillHost, changes: Sequence[Change]) -> pc.ApplyResponse:
        apply(host, changes)
        raise UnavailableError("etcd", "Socket closed")

    monkeypatch.setattr(StillHost, "apply", lose)
    with pytest.raises(UnavailableError, match="; the changes may have been applied"):
        served.put("shard-one")
    assert [shard.spec.id for shard in served.client.list_shards()] == ["shard-one"]


def test_more_changes_than_etcd_takes(served: Served) -> None:
    changes = [Change(upsert=shard_spec(f"shard-{at:03}", [])) for at in range(130)]
    with pytest.raises(BrokerError, match="too many operations"):
        served.client.apply(changes)
    assert served.client.apply_in_batches(changes, 65) == 3
    with pytest.raises(PartialApplyError, match="first 1 of 2"):
        served.client.apply_in_batches([Change(upsert=shard_spec("shard-xyz", [])), changes[0]], 1)
    with pytest.raises(BrokerError, match="duplicate key"):
        served.client.apply([changes[0], changes[0]])


def test_many_are_applied_in_several_calls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change with hints is two operations of Etcd, which limits the size of a transaction."""
    apply, sizes = served.host.apply, list[int]()

    def note(changes: Sequence[Change]) -> pc.ApplyResponse:
        sizes.append(len(changes))
        return apply(changes)

    monkeypatch.setattr(served.host, "apply", note)
    served.client.apply_in_batches(
        [Change(upsert=shard_spec(f"shard-{at:03}", [])) for at in range(MAX_OPERATIONS)]
    )
    assert sum(sizes) == MAX_OPERATIONS
    assert 2 * max(sizes) <= MAX_OPERATIONS


def test_stat_waits_until_offsets_are_read_through(served: Served) -> None:
    served.put("shard-1")
    assert served.client.stat("shard-1", {"other/journal": 9}).read_through == {
        "shop/orders": 0,
        "shop/clicks": 0,
    }
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.client.stat, "shard-1", {"shop/orders": 10})
        served.host.move("shard-1", {"shop/clicks": 99})
        assert not waiting.done()
        served.host.move("shard-1", {"shop/orders": 11}, {"shop/totals": 7})
        assert waiting.result(SOON_S) == ({"shop/orders": 11, "shop/clicks": 99}, {"shop/totals": 7})


def test_stat_ends_with_the_shard(served: Served) -> None:
    served.put("shard-1")
    for end in (
        lambda: served.host.fail("shard-1", "boom"),
        lambda: served.client.unassign(["shard-1"]),
    ):
        served.client.unassign(["shard-1"])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(served.client.stat, "shard-1", {"shop/orders": 10})
            while not waiting.done():
                end()
                threading.Event().wait(0.01)
            with pytest.raises(ShardStoppedError, match="after `unassign` it starts again"):
                waiting.result(SOON_S)


def test_stat_of_a_shard_without_a_primary(served: Served) -> None:
    """A missing shard fails at once, while an unassigned one may get a primary soon."""
    served.put("shard-1", disable=True)
    with pytest.raises(ShardNotFoundError, match="'shard-2': SHARD_NOT_FOUND"):
        served.client.stat("shard-2")
    with pytest.raises(NoShardPrimaryError):
        served.client.stat("shard-1", timeout_s=0.3)


def test_stat_follows_the_route() -> None:
    """Only a client with a route cache calls the primary directly."""
    primary = Served()
    elsewhere = StillHost(primary.server.endpoint)
    front = ShardServer()
    front.start(elsewhere)
    change = Change(upsert=shard_spec("shard-1", ["shop/orders"]))
    for host in (elsewhere, primary.host):
        host.apply([change])
    primary.host.move("shard-1", {"shop/orders": 7})
    with ShardClient(front.endpoint) as plain, ShardClient(front.endpoint, route_cache_size=9) as routed:
        for client, reached in ((plain, 0), (routed, 7)):
            client.list_shards()
            assert client.stat("shard-1").read_through == {"shop/orders": reached}
    front.stop()
    primary.close()


def test_stat_has_a_deadline(served: Served, stub: Stub) -> None:
    served.put("shard-1")
    with pytest.raises(UnavailableError, match="no answer within the deadline"):
        served.client.stat("shard-1", {"shop/orders": 10}, timeout_s=0.2)
    call = stub.Stat.future(pc.StatRequest(shard="shard-1", read_through={"shop/orders": 10}))
    call.cancel()  # type: ignore[no-untyped-call]  # grpc's stubs leave it out
    served.server.stop()  # It must not wait for the threads that serve calls.


class Elsewhere(StillHost):
    """A host whose shards have their primary in another process."""

    def resolve(self, args: ResolveArgs) -> Resolution:
        found = super().resolve(replace(args, read_through={}))
        return Resolution(pc.OK, found.header, found.spec)


def test_stat_that_is_passed_on_ends_with_its_caller(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary must stop waiting when the original caller hangs up."""
    elsewhere, front = Elsewhere(served.server.endpoint), ShardServer()
    front.start(elsewhere)
    change = Change(upsert=shard_spec("shard-1", ["shop/orders"]))
    for host in (elsewhere, served.host):
        host.apply([change])
    resolve, asked = served.host.resolve, queue.SimpleQueue[ResolveArgs]()

    def note(args: ResolveArgs) -> Resolution:
        asked.put(args)
        return resolve(args)

    monkeypatch.setattr(served.host, "resolve", note)
    with grpc.insecure_channel(front.endpoint.removeprefix("http://")) as channel:
        call = Stub(channel).Stat.future(pc.StatRequest(shard="shard-1", read_through={"shop/orders": 10}))
        args = asked.get(timeout=SOON_S)
        assert args.cancelled is not None
        call.cancel()  # type: ignore[no-untyped-call]  # grpc's stubs leave it out
        args.cancelled.result(SOON_S)
    front.stop()


def test_connections_to_former_members_are_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members come and go, so a member must not keep a channel to each address that it ever called."""
    monkeypatch.setattr(service, "IDLE_S", 0.0)
    front, second = ShardServer(), Served()
    elsewhere, client = Elsewhere(served.server.endpoint), ShardClient(front.endpoint, timeout_s=SOON_S)
    front.start(elsewhere)
    change = Change(upsert=shard_spec("shard-1", ["shop/orders"]))
    for host in (elsewhere, served.host, second.host):
        host.apply([change])
    client.stat("shard-1")
    elsewhere.serve_at(second.server.endpoint)
    client.stat("shard-1")
    assert front._service is not None
    assert {endpoint: peer.is_open for endpoint, peer in front._service._peers.items()} == {
        served.server.endpoint: False,
        second.server.endpoint: True,
    }
    client.close()
    front.stop()
    second.close()


def test_a_member_that_does_not_answer_hides_only_its_own_progress(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked about one shard only, or a caller would wait as often as it has shards."""
    monkeypatch.setattr(consumer_client, "STATS_AT_ONCE", 1)
    served.put("shard-1", "shard-2", "shard-3", "shard-4")
    shards = served.client.list_shards()
    for shard in (shards[0], shards[2]):
        shard.route.members[0].suffix = "silent"
    calls = []

    def stat(shard_id: str) -> Progress:
        calls.append(shard_id)
        if shard_id in ("shard-1", "shard-3"):
            raise UnavailableError("silent", NO_ANSWER)
        return ShardClient.stat(served.client, shard_id)

    monkeypatch.setattr(served.client, "stat", stat)
    assert served.client.progress_of(shards).keys() == {"shard-2", "shard-4"}
    assert calls == ["shard-1", "shard-2", "shard-4"]
    assert [message.partition(" cause=")[0] for message in caplog.messages] == [
        "shards.no_answer member=local/silent"
    ]


def test_stat_that_was_passed_on(served: Served, stub: Stub) -> None:
    """A header of another cluster or process means that the request was misrouted."""
    served.put("shard-1")
    header = served.client.list_all_shards().header
    assert stub.Stat(pc.StatRequest(shard="shard-1", header=header)).status == pc.OK
    header.process_id.suffix = "elsewhere"
    with pytest.raises(grpc.RpcError, match="ProcessId doesn't match our own"):
        stub.Stat(pc.StatRequest(shard="shard-1", header=header))
    header.etcd.cluster_id += 1
    with pytest.raises(grpc.RpcError, match="ClusterId doesn't match our own"):
        stub.Stat(pc.StatRequest(shard="shard-1", header=header))


def test_failed_shards_are_unassigned(served: Served) -> None:
    served.put("shard-1", "shard-2")
    served.host.fail("shard-1", "boom")
    everyone = ["shard-1", "shard-2", "shard-1", "shard-3"]
    assert served.client.unassign(everyone, dry_run=True) == ["shard-1", "shard-2"]
    assert served.client.unassign(everyone, only_failed=True, dry_run=True) == ["shard-1"]
    assert served.client.list_shards("id=shard-1")[0].status[0].errors == ["boom"]
    assert served.client.unassign(everyone, only_failed=True) == ["shard-1"]
    assert served.client.list_shards("id=shard-1")[0].status[0].code == pc.ReplicaStatus.PRIMARY


def test_many_are_unassigned_in_several_calls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard has up to four replicas, and Etcd limits the size of a transaction."""
    ids = [f"shard-{at:03}" for at in range(101)]
    served.put(*ids)
    unassign, sizes = served.host.unassign, list[int]()

    def note(shard_ids: Sequence[str], **how: bool) -> pc.UnassignResponse:
        sizes.append(len(shard_ids))
        return unassign(shard_ids, **how)

    monkeypatch.setattr(served.host, "unassign", note)
    assert served.client.unassign(ids) == ids
    assert 4 * max(sizes) <= MAX_OPERATIONS


def test_hints_are_put_and_got(served: Served) -> None:
    spec = shard_spec("shard-1", [], recovery_log_prefix="recovery/logs")
    hints = rl.FSMHints(log="recovery/logs/shard-1")
    served.client.apply([Change(upsert=spec, primary_hints=hints)])
    found = served.client.get_hints("shard-1")
    assert found.primary_hints.hints == hints
    assert [each.HasField("hints") for each in found.backup_hints] == [False, False]
    with pytest.raises(ShardNotFoundError):
        served.client.get_hints("shard-2")


def test_broken_requests_get_a_text(served: Served, stub: Stub) -> None:
    selector = pb.LabelSelector(include=pb.LabelSet(labels=[pb.Label(name="x")]))
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: stub.List(pc.ListRequest(selector=selector)), "ListRequest.Selector"),
        (lambda: stub.Apply(pc.ApplyRequest(changes=[Change()])), "expected one of Upsert and Delete"),
        (lambda: stub.Unassign(pc.UnassignRequest(shards=["no"])), r"UnassignRequest.Shards\[0\]"),
    ]
    for call, problem in calls:
        with pytest.raises(grpc.RpcError, match=problem) as caught:
            call()
        assert caught.value.code() == grpc.StatusCode.UNKNOWN
    with pytest.raises(ProtocolError, match=r"StatRequest\.Shard"):
        served.client.stat("no")


KEYS = base64.b64encode(b"a key of the test").decode()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_tokens_and_certificates(certificates: Certificates) -> None:
    made = certificates
    secured = Served(auth_keys=KEYS, tls=ServerTls(made.server.cert, made.server.key, made.ca))
    tls = TlsOptions(str(made.ca), str(made.client.cert), str(made.client.key))
    everything = ShardClient(secured.server.endpoint, auth_keys=KEYS, tls=tls, timeout_s=SOON_S)

    def restricted(capability: int, selector: str = "") -> ShardClient:
        claims = Claims(capability, parse_selector(selector))
        signed = KeySet.parse(KEYS).sign(claims, now=time.time())
        return ShardClient(secured.server.endpoint, token=signed, tls=tls, timeout_s=SOON_S)

    assert secured.server.endpoint.startswith("https://")
    everything.apply([Change(upsert=shard_spec(each, [])) for each in ("shard-1", "shard-2")])
    assert everything.stat("shard-1") == ({}, {})
    assert everything.unassign(["shard-1"], dry_run=True) == ["shard-1"]
    assert everything.get_hints("shard-2").status == pc.OK
    # Shards that a token does not cover can be neither seen nor changed.
    one = restricted(Capability.ALL, "id=shard-1")
    assert [each.spec.id for each in one.list_shards()] == ["shard-1"]
    assert one.stat("shard-1") == ({}, {})
    for lookup in (one.stat, one.get_hints):
        with pytest.raises(ShardNotFoundError):
            lookup("shard-2")
    for change in (Change(upsert=shard_spec("shard-2", [])), Change(delete="shard-2", expect_mod_revision=2)):
        with pytest.raises(AuthError, match="not authorized to shard-2"):
            one.apply([change])
    with pytest.raises(AuthError, match="not authorized to shard-2"):
        one.unassign(["shard-1", "shard-2"])
    # A token for a label allows putting a spec with that label, but no delete and no unassign.
    labelled = restricted(Capability.APPLY, "app=x")
    labelled.apply([Change(upsert=shard_spec("shard-3", [], labels={"app": "x"}))])
    with pytest.raises(AuthError):
        labelled.apply([Change(delete="shard-3", expect_mod_revision=-1)])
    # The current labels count, too: neither new labels nor an exclusion can take over a shard.
    taken = Change(upsert=shard_spec("shard-1", [], labels={"app": "x"}), expect_mod_revision=-1)
    with pytest.raises(AuthError, match="not authorized to shard-1"):
        labelled.apply([taken])
    but_x = restricted(Capability.APPLY, "app!=x")
    for refused in (
        lambda: but_x.apply([Change(delete="shard-3", expect_mod_revision=-1)]),
        lambda: but_x.unassign(["shard-3"]),
    ):
        with pytest.raises(AuthError, match="not authorized to shard-3"):
            refused()
    # Each call requires its own capability.
    change = Change(upsert=shard_spec("shard-1", []), expect_mod_revision=-1)
    needs: dict[int, list[Callable[[ShardClient], object]]] = {
        Capability.LIST: [lambda client: client.list_shards()],
        Capability.READ: [lambda client: client.stat("shard-1"), lambda client: client.get_hints("shard-1")],
        Capability.APPLY: [
            lambda client: client.apply([change]),
            lambda client: client.unassign(["shard-1"]),
        ],
    }
    for capability, calls in needs.items():
        for call in calls:
            call(restricted(capability))
            with pytest.raises(AuthError, match=f"lacks the required {Capability(capability).name}"):
                call(restricted(Capability.ALL & ~capability))
    everything.close()
    secured.close()


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf")])
def test_a_call_of_no_time_or_without_an_end_is_refused(timeout_s: float) -> None:
    """A timeout of 0 must not mean the client's default."""
    with pytest.raises(OptionError, match="timeout_s"):
        ShardClient("http://127.0.0.1:1", timeout_s=timeout_s)
    with ShardClient("http://127.0.0.1:1") as client, pytest.raises(OptionError, match="timeout_s"):
        client.stat("shard-1", timeout_s=timeout_s)


def test_errors_name_the_consumer(certificates: Certificates) -> None:
    """The error names the consumer and its variables, not the brokers or a query's options."""
    secured = Served(auth_keys=KEYS, tls=ServerTls(certificates.server.cert, certificates.server.key))
    stranger = ShardClient(secured.server.endpoint)
    without_token = ShardClient(secured.server.endpoint, tls=TlsOptions(str(certificates.ca)))
    nobody = ShardClient("http://127.0.0.1:1", timeout_s=0.3)
    with pytest.raises(TlsError, match=r"^consumer https://.* Check .*: CONSUMER_TRUSTED_CA_FILE, "):
        stranger.list_shards()
    with pytest.raises(AuthError, match=r"^consumer https://.* it: CONSUMER_AUTH_TOKEN, ") as caught:
        without_token.list_shards()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(UnavailableError, match="Check CONSUMER_ADDRESS and the consumer"):
        nobody.list_shards()
    for client in (stranger, without_token, nobody):
        client.close()
    secured.close()


def test_a_wait_ends_with_its_token(certificates: Certificates) -> None:
    secured = Served(auth_keys=KEYS)
    everything = ShardClient(secured.server.endpoint, auth_keys=KEYS)
    everything.apply([Change(upsert=shard_spec("shard-1", ["shop/orders"]))])
    claims = Claims(Capability.READ, pb.LabelSelector())
    # The leeway is 5 seconds, so a token that expired 3 seconds ago is still valid.
    short = KeySet.parse(KEYS).sign(claims, now=time.time() - 8, lifetime_s=5)
    target = secured.server.endpoint.removeprefix("http://")
    with grpc.insecure_channel(target) as channel, pytest.raises(grpc.RpcError) as caught:
        pc_grpc.ShardStub(channel).Stat(
            pc.StatRequest(shard="shard-1", read_through={"shop/orders": 1}),
            metadata=(("authorization", f"Bearer {short}"),),
        )
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    everything.close()
    secured.close()


def test_referenced_journals_are_verified(tmp_path: Path) -> None:
    ndjson, log = (
        {"content-type": kind} for kind in ("application/x-ndjson", "application/x-gazette-recoverylog")
    )
    with EmbeddedBroker(tmp_path) as broker, Client(broker.endpoint) as client:
        client.create_journals(
            journal_spec("shop/orders", labels=ndjson),
            journal_spec("shop/bytes"),
            journal_spec("logs/shard-1", labels=log),
            journal_spec("other/shard-1", labels=ndjson),
        )

        def verify(*sources: str, logs: str = "") -> None:
            spec = shard_spec("shard-1", sources, recovery_log_prefix=logs)
            delete = Change(delete="gone", expect_mod_revision=1)
            verify_referenced_journals(client, [delete, Change(upsert=spec)])

        verify("shop/orders", "shop/orders;word-count", logs="logs")
        with pytest.raises(JournalNotFoundError, match="shop/clicks"):
            verify("shop/clicks")
        with pytest.raises(
            ProtocolError, match=r"Shard\[shard-1\].Sources\[shop/bytes\]: .* lacks the label"
        ):
            verify("shop/bytes")
        with pytest.raises(ProtocolError, match="is a recovery log, which has no messages"):
            verify("logs/shard-1")
        with pytest.raises(ProtocolError, match="expected other/shard-1 to have content-type"):
            verify(logs="other")


def test_lags_without_sources_that_were_just_deleted(served: Served, tmp_path: Path) -> None:
    """Until their shards fail, the lags of all others are known."""
    served.put("shard-1")
    with EmbeddedBroker(tmp_path) as broker, Client(broker.endpoint) as client:
        client.create_journals(journal_spec("shop/clicks"))
        client.append("shop/clicks", b"four")
        assert served.client.lags(client, served.client.list_shards()) == {"shard-1": {"shop/clicks": 4}}


def test_a_refusal_says_more_than_the_end_of_the_deadline() -> None:
    """The last attempt is short, so its timeout must not hide the reason of the one before."""
    late = UnavailableError("http://127.0.0.1:1", NO_ANSWER)
    answers: list[GazetteError] = []

    def call(_connection: object, _left_s: float) -> int:
        raise answers.pop(0) if answers else late

    with ShardClient("http://127.0.0.1:1") as client:
        answers.append(NoShardPrimaryError("shard-1"))
        with pytest.raises(NoShardPrimaryError):
            client._retrying(call, timeout_s=0.3)
        # A call that changes something may have succeeded, so its timeout is raised.
        answers.append(NoShardPrimaryError("shard-1"))
        with pytest.raises(UnavailableError):
            client._retrying(call, decide=lambda _cause, tried: 0.01 if not tried else None, timeout_s=0.3)
    assert not answers
