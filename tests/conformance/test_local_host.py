"""The local host keeps the order of Gazette's transactions on any broker."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.client import AppendService
from gazette_spark.client._read.heads import SettledHead
from gazette_spark.consumer import LocalHost, ResolveArgs, RestartPolicy, shard_spec, sources
from gazette_spark.consumer.checkpoints import build_checkpoint
from gazette_spark.errors import ClosedError, PermanentError, ShardFailedError
from gazette_spark.message import (
    ACK_TXN,
    AckIntent,
    Clock,
    ProducerState,
    Publisher,
    Sequencer,
    SequencerCheckpoint,
    build_uuid,
    new_producer_id,
    read_committed,
)
from gazette_spark.protocol import consumer_pb2 as pc
from tests.rig.consumers import (
    NDJSON,
    Database,
    Row,
    Totals,
    committed_documents,
    create_journals,
    number,
    published_totals,
    wait_through,
)
from tests.rig.interrupts import interrupted
from tests.rig.messages import Document
from tests.waiting import wait_until

SHARD = "shard-one"
Code = pc.ReplicaStatus.Code


class Rig:
    def __init__(self, client: Client, prefix: str) -> None:
        self.client = client
        self.source, self.other = f"{prefix}source", f"{prefix}other"
        self.outputs = [f"{prefix}out/a", f"{prefix}out/b"]
        create_journals(client, self.source, self.other, *self.outputs)
        self.database = Database()
        self.app = Totals(self.database, self.outputs)
        self.service = AppendService(client, timeout_s=30)
        self.publisher = Publisher(self.service)

    def publish(self, *keys: str, journal: str = "") -> None:
        for key in keys:
            self.publisher.publish_committed(
                lambda _: (journal or self.source, NDJSON["content-type"]), number(key)
            )
        self.service.flush()

    def spec(self, shard_id: str = SHARD, *sources: str, **options: object) -> pc.ShardSpec:
        return shard_spec(shard_id, sources or [self.source], **options)  # type: ignore[arg-type]  # Fields by name, of mixed types.

    def host(self, *specs: pc.ShardSpec, restart: RestartPolicy | None = None) -> LocalHost:
        """Return a host of the shards, by default of one; failed shards stay failed without ``restart``."""
        return LocalHost(self.app, self.client, specs or [self.spec()], name="test", restart=restart)

    def wait(self, host: LocalHost, *journals: str) -> None:
        wait_through(host, self.client, SHARD, *(journals or [self.source]))


@pytest.fixture
def rig(client: Client, fresh_prefix: str) -> Iterator[Rig]:
    made = Rig(client, fresh_prefix)
    with made.service:
        yield made


def code_of(host: LocalHost, shard_id: str = SHARD) -> int:
    listed = {shard.spec.id: shard for shard in host.list_shards().shards}
    return listed[shard_id].status[0].code


def resolve(host: LocalHost, **asked: object) -> int:
    with host.resolve(ResolveArgs(SHARD, timeout_s=30, **asked)) as found:  # type: ignore[arg-type]  # Fields by name, of mixed types.
        return found.status


def test_messages_count_once_in_state_and_output(rig: Rig) -> None:
    rig.publish("a", "bb", "a")
    with rig.host() as host:
        rig.wait(host)
        assert rig.database.state() == {SHARD: {"a": 2, "bb": 1}}
        assert published_totals(rig.client, rig.outputs) == {
            (SHARD, "a", 1): 1,
            (SHARD, "a", 2): 1,
            (SHARD, "bb", 1): 1,
        }
        assert code_of(host) == Code.PRIMARY
    assert all(store.destroyed for store in rig.app.stores)


def test_a_write_is_read(rig: Rig) -> None:
    """When a shard has read through an append, its state has it, and its output ends before publish_at."""
    with rig.host() as host:
        for count in (1, 2, 3):
            rig.publish("a")
            rig.wait(host)
            with host.resolve(ResolveArgs(SHARD)) as found:
                assert found.shard is not None
                read, published = found.shard.progress()
            assert rig.database.state()[SHARD] == {"a": count}
            assert read == {rig.source: rig.client.write_head(rig.source)}
            assert published == {rig.outputs[1]: rig.client.write_head(rig.outputs[1])}


def test_a_new_host_goes_on(rig: Rig) -> None:
    rig.publish("a")
    with rig.host() as host:
        rig.wait(host)
    rig.publish("a", "b")
    with rig.host() as host:
        rig.wait(host)
    assert rig.database.state() == {SHARD: {"a": 2, "b": 1}}
    assert max(published_totals(rig.client, rig.outputs).values()) == 1


def test_transactions_of_producers_are_held_back(rig: Rig) -> None:
    mapping = (rig.source, NDJSON["content-type"])
    rig.publisher.publish_uncommitted(lambda _: mapping, number("a"))
    gone = Publisher(rig.service)
    gone.publish_uncommitted(lambda _: mapping, number("gone"))
    rig.publish("b", journal=rig.other)
    with rig.host(rig.spec(SHARD, rig.source, rig.other)) as host:
        rig.wait(host, rig.other)
        assert rig.database.state() == {SHARD: {"b": 1}}
        for intent in rig.publisher.build_ack_intents():
            rig.service.append(intent.journal, intent.intent)
        rig.service.flush()
        rig.wait(host)
    assert rig.database.state() == {SHARD: {"a": 1, "b": 1}}


def test_what_left_the_ring_is_read_again(rig: Rig) -> None:
    mapping = (rig.source, NDJSON["content-type"])
    for _ in range(50):
        rig.publisher.publish_uncommitted(lambda _: mapping, number("a"))
    for intent in rig.publisher.build_ack_intents():
        rig.service.append(intent.journal, intent.intent)
    rig.service.flush()
    with rig.host(rig.spec(ring_buffer_size=3)) as host:
        rig.wait(host)
    assert rig.database.state() == {SHARD: {"a": 50}}


def begun_at_the_beginning(rig: Rig) -> SequencerCheckpoint:
    """Write an acknowledgement at offset 0, and return the checkpoint of a reader that stopped there."""
    producer, clock = new_producer_id(), Clock(1 << 62)
    acknowledgement = Document(stamp=build_uuid(producer, clock, ACK_TXN))
    rig.client.append(rig.source, bytes(acknowledgement) + b"\n")
    rig.publish("a")
    state = ProducerState(rig.source, producer, Clock(clock - 1), 0)
    return SequencerCheckpoint({rig.source: 0}, (state,))


def test_a_journal_may_begin_with_an_acknowledgement(rig: Rig) -> None:
    """A shard that stopped at it continues: it has an empty range to read again, not the whole journal."""
    checkpoint = build_checkpoint(begun_at_the_beginning(rig)).SerializeToString()
    rig.database.rows[f"/gazette-spark/consumers/test/items/{SHARD}"] = Row(checkpoint=checkpoint)
    with rig.host() as host:
        rig.wait(host)
    assert rig.database.state() == {SHARD: {"a": 1}}


def test_a_reader_may_begin_with_an_acknowledgement(rig: Rig) -> None:
    read = begun_at_the_beginning(rig)
    sequencer = Sequencer(read.offsets, read.states)
    with read_committed(rig.client, rig.source, rig.app.new_message, sequencer=sequencer) as messages:
        found = [each.message for each in messages]
    assert [each.fields.get("key") for each in found if isinstance(each, Document)] == [None, "a"]


def test_a_repeated_acknowledgement_is_progress(rig: Rig) -> None:
    """Otherwise a caller that waits for the offset of a repeated message would wait for ever."""
    mapping = (rig.source, NDJSON["content-type"])
    rig.publisher.publish_uncommitted(lambda _: mapping, number("a"))
    intent = rig.publisher.build_ack_intents()[0]
    rig.client.append(intent.journal, intent.intent * 2)
    with rig.host() as host:
        rig.wait(host)
        rig.client.append(intent.journal, intent.intent)
        rig.wait(host)
        assert code_of(host) == Code.PRIMARY


def test_a_minimum_offset_skips(rig: Rig) -> None:
    rig.publish("a")
    begin = rig.client.write_head(rig.source)
    rig.publish("b")
    spec = shard_spec(SHARD, {rig.source: begin})
    with rig.host(spec) as host:
        rig.wait(host)
    assert rig.database.state() == {SHARD: {"b": 1}}


def test_a_deferred_message_begins_a_transaction(rig: Rig) -> None:
    rig.publish("a", "defer", "b")
    with rig.host(rig.spec(min_txn_s=0.05)) as host:
        rig.wait(host)
    first = ["begin", "consume a", "finalize", "finish", "begin", "consume defer"]
    assert rig.app.steps[: len(first)] == first
    assert rig.database.state() == {SHARD: {"a": 1, "defer": 1, "b": 1}}


def test_deferring_the_first_message_fails_the_shard(rig: Rig) -> None:
    rig.publish("defer first")
    with rig.host() as host:
        wait_until("the shard fails", lambda: code_of(host) == Code.FAILED)
        assert rig.app.steps == ["begin", "finish"]


def test_hooks_come_in_pairs(rig: Rig) -> None:
    finished: list[Future[None]] = []
    rig.app.on_finish = finished.append
    rig.app.refuses = "bad"
    rig.publish("a")
    with rig.host() as host:
        rig.wait(host)
        rig.publish("bad")
        wait_until("the shard fails", lambda: code_of(host) == Code.FAILED)
    assert rig.app.steps.count("begin") == rig.app.steps.count("finish") == len(finished)
    assert finished[0].exception(0) is None
    assert isinstance(finished[-1].exception(0), ShardFailedError)


def test_the_first_error_is_shown(rig: Rig) -> None:
    def fail(_: Future[None]) -> None:
        raise ValueError("on finishing")

    rig.app.on_finish = fail
    rig.app.refuses = "bad"
    rig.publish("bad")
    with rig.host() as host:
        wait_until("the shard fails", lambda: code_of(host) == Code.FAILED)
        assert "bad is refused" in host.list_shards().shards[0].status[0].errors[0]


def test_a_failed_shard_stops_alone(rig: Rig) -> None:
    rig.app.refuses = "bad"
    rig.publish("bad")
    rig.publish("good", journal=rig.other)
    with rig.host(rig.spec(), rig.spec("shard-two", rig.other)) as host:
        wait_until("the shard fails", lambda: code_of(host) == Code.FAILED)
        wait_through(host, rig.client, "shard-two", rig.other)
        failed = host.list_shards().shards[0].status[0].errors
        assert "ValueError: bad is refused" in failed[0]
        assert rig.source in failed[0]
        assert resolve(host, read_through={rig.source: 1}) == pc.SHARD_STOPPED
    assert rig.database.state()["shard-two"] == {"good": 1}


def test_a_long_id_names_a_folder(rig: Rig) -> None:
    """An id may have more bytes than the name of a file."""
    rig.publish("a")
    long_id = "ä" * 256
    with rig.host(rig.spec(long_id), rig.spec()) as host:
        for shard_id in (long_id, SHARD):
            wait_through(host, rig.client, shard_id, rig.source)
        assert rig.database.state() == {SHARD: {"a": 1}, long_id: {"a": 1}}


def test_a_shard_without_a_folder_fails_alone(rig: Rig, tmp_path: Path) -> None:
    work_dir = tmp_path / "work"
    with LocalHost(rig.app, rig.client, [rig.spec()], work_dir=work_dir, restart=None) as host:
        rig.wait(host)
        shutil.rmtree(work_dir)
        change = pc.ApplyRequest.Change(upsert=rig.spec("shard-two"))
        assert host.apply([change]).status == pc.OK
        wait_until("shard-two is FAILED", lambda: code_of(host, "shard-two") == Code.FAILED)
        failed = {shard.spec.id: shard for shard in host.list_shards().shards}["shard-two"]
        assert "making a folder for the store" in failed.status[0].errors[0]
        rig.publish("a")
        rig.wait(host)


def test_a_failed_shard_is_started_again(rig: Rig) -> None:
    rig.app.refuses = "bad"
    rig.publish("a", "bad", "b")
    with rig.host(restart=RestartPolicy(0.1, 0.2)) as host:

        def restarts() -> int:
            prefix = f'gazette_spark_shard_restarts_total{{shard="{SHARD}"}} '
            (count,) = (
                line.removeprefix(prefix) for line in host.metrics().splitlines() if line.startswith(prefix)
            )
            return int(count)

        def errors() -> list[str]:
            return list(host.list_shards().shards[0].status[0].errors)

        wait_until("it failed three times", lambda: restarts() >= 2)
        said = "times in a row; the host starts it again after 0.2 s"
        wait_until("it says so", lambda: any(said in error for error in errors()))
        rig.app.refuses = ""
        wait_until("it goes on", lambda: rig.database.state() == {SHARD: {"a": 1, "bad": 1, "b": 1}})
        rig.wait(host)
        assert (code_of(host), errors()) == (Code.PRIMARY, [])
        assert f'gazette_shard_up{{shard="{SHARD}",status="PRIMARY"}} 1' in host.metrics()
    assert rig.database.state() == {SHARD: {"a": 1, "bad": 1, "b": 1}}
    assert max(published_totals(rig.client, rig.outputs).values()) == 1


def test_a_permanent_error(rig: Rig) -> None:
    rig.app.refuses, rig.app.refuses_by = "bad", PermanentError
    rig.publish("a", "bad")
    other = rig.spec("other", rig.other)
    with rig.host(rig.spec(), other, restart=RestartPolicy(0.01, 0.02)) as host:

        def errors() -> list[str]:
            return list(host.list_shards().shards[1].status[0].errors)

        wait_until("it failed, and says so", lambda: len(errors()) == 2)
        rig.publish("b", journal=rig.other)
        wait_through(host, rig.client, "other", rig.other)
        problem, note = errors()
        assert "offset" in problem
        assert "bad is refused" in problem
        assert "calls this error permanent" in note
        assert f'gazette_shard_up{{shard="{SHARD}",status="FAILED"}} 1' in host.metrics()
        assert f'gazette_spark_shard_restarts_total{{shard="{SHARD}"}} 0' in host.metrics()
        assert resolve(host) == pc.SHARD_STOPPED
        rig.app.refuses = ""
        host.unassign([SHARD], only_failed=True)
        rig.wait(host)
        assert (code_of(host), errors()) == (Code.PRIMARY, [])
    assert rig.database.state() == {SHARD: {"a": 1, "bad": 1}, "other": {"b": 1}}


def test_a_fenced_shard_is_started_again(rig: Rig) -> None:
    rig.publish("a")
    with rig.host(restart=RestartPolicy(0.1, 0.2)) as old:
        rig.wait(old)
        with rig.host() as new:
            assert resolve(new) == pc.OK
            rig.publish("a")
            wait_until("one host reads it", lambda: rig.database.state() == {SHARD: {"a": 2}})
        rig.publish("a")
        wait_until("the older one goes on", lambda: rig.database.state() == {SHARD: {"a": 3}})
        assert code_of(old) == Code.PRIMARY
    assert published_totals(rig.client, rig.outputs) == {(SHARD, "a", total): 1 for total in (1, 2, 3)}


@pytest.mark.parametrize("how", ["unassign", "apply"])
def test_a_failed_shard_starts_again(rig: Rig, how: str) -> None:
    rig.app.refuses = "bad"
    rig.publish("a", "bad", "b")
    with rig.host() as host:
        wait_until("the shard fails", lambda: code_of(host) == Code.FAILED)
        rig.app.refuses = ""
        if how == "unassign":
            assert list(host.unassign([SHARD, "no-such-shard"], only_failed=True).shards) == [SHARD]
        else:
            change = pc.ApplyRequest.Change(upsert=rig.spec(), expect_mod_revision=-1)
            assert host.apply([change]).status == pc.OK
        rig.wait(host)
        assert code_of(host) == Code.PRIMARY
    assert rig.database.state() == {SHARD: {"a": 1, "bad": 1, "b": 1}}
    assert max(published_totals(rig.client, rig.outputs).values()) == 1


def test_unassign_chooses(rig: Rig) -> None:
    with rig.host() as host:
        assert resolve(host) == pc.OK
        before = host.list_shards().header.etcd.revision
        assert list(host.unassign([SHARD], only_failed=True).shards) == []
        assert list(host.unassign([SHARD, SHARD], dry_run=True).shards) == [SHARD]
        assert (len(rig.app.stores), host.list_shards().header.etcd.revision) == (1, before)
        assert list(host.unassign([SHARD]).shards) == [SHARD]
        assert resolve(host) == pc.OK
        assert len(rig.app.stores) == 2


def test_shards_come_and_go(rig: Rig) -> None:
    rig.publish("a")
    with LocalHost(rig.app, rig.client, name="test") as host:
        assert resolve(host) == pc.SHARD_NOT_FOUND
        assert host.apply([pc.ApplyRequest.Change(upsert=rig.spec())]).status == pc.OK
        rig.wait(host)
        again = pc.ApplyRequest.Change(upsert=rig.spec())
        assert host.apply([again]).status == pc.ETCD_TRANSACTION_FAILED
        listed = host.list_shards().shards[0]
        assert list(listed.route.members) == [host.list_shards().header.process_id]
        off = rig.spec(disable=True)
        change = pc.ApplyRequest.Change(upsert=off, expect_mod_revision=listed.mod_revision)
        assert host.apply([change]).status == pc.OK
        assert resolve(host) == pc.NO_SHARD_PRIMARY
        assert host.list_shards().shards[0].route.primary == -1
        gone = pc.ApplyRequest.Change(delete=SHARD, expect_mod_revision=-1)
        assert host.apply([gone]).status == pc.OK
        assert resolve(host) == pc.SHARD_NOT_FOUND


def test_new_sources_are_read(rig: Rig) -> None:
    rig.publish("a")
    rig.publish("b", journal=rig.other)
    with rig.host() as host:
        rig.wait(host)
        host.apply([pc.ApplyRequest.Change(upsert=rig.spec(max_txn_s=2), expect_mod_revision=-1)])
        assert len(rig.app.stores) == 1
        more = rig.spec(SHARD, rig.source, rig.other)
        host.apply([pc.ApplyRequest.Change(upsert=more, expect_mod_revision=-1)])
        rig.wait(host, rig.source, rig.other)
    assert rig.database.state() == {SHARD: {"a": 1, "b": 1}}


def test_recovered_acknowledgements_come_first(rig: Rig) -> None:
    foreign = Publisher(rig.service)
    foreign.publish_uncommitted(lambda _: (rig.outputs[0], NDJSON["content-type"]), number("kept"))
    rig.service.flush()
    intents = [*foreign.build_ack_intents(), AckIntent("no/such/journal", b"{}\n")]
    checkpoint = build_checkpoint(SequencerCheckpoint({}, ()), intents).SerializeToString()
    rig.database.rows[f"/gazette-spark/consumers/test/items/{SHARD}"] = Row(checkpoint=checkpoint)
    rig.publish("a")
    with rig.host() as host:
        rig.wait(host)
    assert [each["key"] for each in committed_documents(rig.client, rig.outputs[0])] == ["kept"]


def test_an_older_host_is_fenced_off(rig: Rig) -> None:
    rig.publish("a")
    with rig.host() as old:
        rig.wait(old)
        with rig.host() as new:
            assert resolve(new) == pc.OK
            rig.publish("a")
            wait_until("the old host fails", lambda: code_of(old) == Code.FAILED)
            rig.wait(new)
            assert code_of(new) == Code.PRIMARY
    assert rig.database.state() == {SHARD: {"a": 2}}
    assert published_totals(rig.client, rig.outputs) == {(SHARD, "a", 1): 1, (SHARD, "a", 2): 1}


def test_the_next_transaction_consumes_while_one_commits(rig: Rig) -> None:
    hold, held = threading.Event(), threading.Event()

    def before_commit(_: str) -> None:
        held.set()
        assert hold.wait(30)

    rig.database.before_commit = before_commit
    with rig.host() as host:
        rig.publish("a")
        assert held.wait(30)
        rig.publish("b")
        wait_until("it consumes", lambda: "consume b" in rig.app.steps)
        assert rig.app.steps.count("finalize") == 1
        hold.set()
        rig.wait(host)
    assert rig.app.steps.count("finalize") == 2


def test_a_waiting_request_ends_with_the_shard(rig: Rig) -> None:
    answers: list[int] = []
    with rig.host() as host:
        assert resolve(host) == pc.OK
        far = {rig.source: 1 << 40}
        with pytest.raises(TimeoutError, match="too long"):
            host.resolve(ResolveArgs(SHARD, read_through=far, timeout_s=0.01))
        gone: Future[None] = Future()
        gone.set_result(None)
        with pytest.raises(TimeoutError, match="gone away"):
            host.resolve(ResolveArgs(SHARD, read_through=far, cancelled=gone))
        waiting = threading.Thread(target=lambda: answers.append(resolve(host, read_through=far)))
        waiting.start()
        host.unassign([SHARD])
        waiting.join(30)
    assert answers == [pc.SHARD_STOPPED]


def test_a_drained_host_commits_what_it_consumed(rig: Rig) -> None:
    mapping = (rig.source, NDJSON["content-type"])
    rig.publish("a")
    rig.publisher.publish_uncommitted(lambda _: mapping, number("open"))
    rig.service.flush()
    with rig.host(rig.spec(max_txn_s=600, min_txn_s=0.2)) as host:
        wait_until("it consumes", lambda: "consume a" in rig.app.steps)
        host.close(drain_s=30)
    assert rig.database.state() == {SHARD: {"a": 1}}


def test_a_source_that_is_missing_fails_the_shard(rig: Rig) -> None:
    with rig.host(rig.spec(SHARD, "no/such/journal")) as host:
        wait_until("the shard fails", lambda: code_of(host) == Code.FAILED)
        assert "no/such/journal" in host.list_shards().shards[0].status[0].errors[0]


def test_a_source_that_lost_bytes_fails_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "WATCH_S", 0.1)
    with EmbeddedBroker(tmp_path / "broker") as broker:
        endpoint, port = broker.endpoint, broker.port
        client = Client(endpoint, timeout_s=1, idle_timeout_s=1, connect_timeout_s=1)
        rig = Rig(client, "loss/")
        rig.publish("a")
        left = client.write_head(rig.source)
    shutil.copytree(tmp_path / "broker", tmp_path / "earlier")
    with EmbeddedBroker(tmp_path / "broker", port=port):
        rig.publish("b")
        reached = client.write_head(rig.source)
        host = rig.host().start()
        rig.wait(host)
    with client, rig.service, EmbeddedBroker(tmp_path / "earlier", port=port), closing(host):
        for _ in ("while it runs", "at its next start"):
            wait_until("the shard fails", lambda: code_of(host) == Code.FAILED)
            (error,) = host.list_shards().shards[0].status[0].errors
            assert f"'{SHARD}'" in error
            assert f"journal '{rig.source}': the shard has read up to offset {reached}" in error
            assert f"ends at {left}." in error
            assert "under another id" in error
            host.unassign([SHARD], only_failed=True)
    assert rig.database.state() == {SHARD: {"a": 1, "b": 1}}


def test_a_watch_for_losses_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that can no longer detect a loss must fail instead of running on without the check."""
    monkeypatch.setattr(sources, "WATCH_S", 0.1)
    fails = False

    def token() -> str:
        if fails and threading.current_thread().name.endswith("watches"):
            raise ZeroDivisionError
        return "token"

    with EmbeddedBroker(tmp_path) as broker, Client(broker.endpoint, token=token) as client:
        rig = Rig(client, "watch/")
        with rig.service, rig.host() as host:
            rig.publish("a")
            rig.wait(host)
            fails = True
            wait_until("the shard fails", lambda: code_of(host) == Code.FAILED)
            (error,) = host.list_shards().shards[0].status[0].errors
            assert "ZeroDivisionError" in error


@pytest.mark.brokers("embedded")
def test_a_minimum_offset_past_the_end_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not a loss, because nothing was read up to there."""
    monkeypatch.setattr(sources, "WATCH_S", 0.01)
    looks: list[Mapping[str, int]] = []

    def look(client: Client, reached: Mapping[str, int]) -> dict[str, SettledHead]:
        looks.append(reached)
        return settled_heads(client, reached)

    settled_heads = Client.settled_heads
    monkeypatch.setattr(Client, "settled_heads", look)
    spec = rig.spec()
    spec.sources[0].min_offset = 1000
    with rig.host(spec) as host:
        wait_until("it looks at the journal again", lambda: len(looks) > 2)
        assert code_of(host) == Code.PRIMARY


def test_shards_wait_for_brokers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        endpoint, port = broker.endpoint, broker.port
        client = Client(endpoint, timeout_s=1, idle_timeout_s=1, connect_timeout_s=1)
        rig = Rig(client, "outage/")
        rig.publish("a")
        host = rig.host().start()
        rig.wait(host)
    with client:
        wait_until("the reader has given up once", lambda: "shard.read_retried" in caplog.text)
        with EmbeddedBroker(tmp_path, port=port):
            rig.publish("a")
            rig.wait(host)
            assert code_of(host) == Code.PRIMARY
            host.close()
            rig.service.close()
    assert rig.database.state() == {SHARD: {"a": 2}}


@pytest.mark.brokers("embedded")
def test_a_start_that_is_interrupted_leaves_no_shard_running(rig: Rig) -> None:
    """Otherwise these shards would run beside those of the next host."""
    specs = [rig.spec(f"shard-{number}") for number in range(3)]
    for moment in count(50, 50):
        host = rig.host(*specs)
        if not interrupted(host.start, moment):
            break
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("shard shard-")]
    host.close()
    assert moment > 200


@pytest.mark.brokers("embedded")
def test_a_host_starts_once(rig: Rig) -> None:
    """A host that was closed would start no shards."""
    with rig.host() as host, pytest.raises(ClosedError, match="make another one"):
        host.start()
    with pytest.raises(ClosedError, match="make another one"), host:
        pass


def test_a_temporary_folder_that_the_system_deleted_is_made_again(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host without shards leaves its folder unused for days, and must still be able to take one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with LocalHost(rig.app, rig.client, name="test", restart=None) as host:
        (folder,) = tmp_path.glob("gazette-spark-shards-*")
        folder.rmdir()
        assert host.apply([pc.ApplyRequest.Change(upsert=rig.spec())]).status == pc.OK
        rig.publish("a")
        rig.wait(host)
