"""Shards of the local host move between hosts by their recovery logs: state, checkpoint and hints."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gazette_spark import Client
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.consumer import Application, LocalHost, ResolveArgs, Shard, ShardServer, Store, shard_spec
from gazette_spark.consumer import local as shards
from gazette_spark.consumer.client import ShardClient
from gazette_spark.consumer.recoverylog.hints import FileHints, Hints
from gazette_spark.consumer.shard_yaml import format_shard_yaml
from gazette_spark.consumer.specs import hint_backup_keys, hint_primary_key, recovery_log
from gazette_spark.consumer.stores.json_file import JsonFileStore, parse_state_file
from gazette_spark.consumer.stores.sqlite import RecordedSqliteStore, SqliteStore
from gazette_spark.errors import ClosedError
from gazette_spark.message import Envelope, Message, Publisher
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG
from tests.rig.brokers import BrokerHandle
from tests.rig.consumers import (
    NDJSON,
    Database,
    Totals,
    create_journals,
    number,
    published_totals,
    wait_through,
)
from tests.rig.gazctl import clean_environment, find_binary
from tests.rig.messages import Document
from tests.waiting import wait_until

pytestmark = pytest.mark.brokers("embedded")

SHARD = "shard-one"

ROOT = Path(__file__).parents[2]


class StoredTotals(Application[Store]):
    def __init__(self, kind: str, output: str, database: Path) -> None:
        self._kind = kind
        self._output = output
        self._database = database
        self._parser = Totals(Database())

    def new_store(self, shard: Shard) -> Store:
        if self._kind == "json":
            return shard.json_store(initial={})
        store: RecordedSqliteStore | SqliteStore
        if self._kind == "recorded":
            assert shard.recorder is not None
            store = RecordedSqliteStore(shard.recorder, shard.fqn)
        else:
            store = SqliteStore(self._database, shard.fqn)
        store.transaction().execute("CREATE TABLE IF NOT EXISTS totals (key TEXT PRIMARY KEY, total INTEGER)")
        return store

    def new_message(self, spec: pb.JournalSpec, record: bytes) -> Message:
        return self._parser.new_message(spec, record)

    def consume_message(self, shard: Shard, store: Store, envelope: Envelope, publisher: Publisher) -> None:
        document = envelope.message
        assert isinstance(document, Document)
        if "key" not in document.fields:
            return
        key = str(document.fields["key"])
        if isinstance(store, JsonFileStore):
            total = store.state[key] = store.state.get(key, 0) + 1
        else:
            assert isinstance(store, RecordedSqliteStore | SqliteStore)
            query = (
                "INSERT INTO totals VALUES (?, 1) ON CONFLICT DO UPDATE SET total = total + 1 RETURNING total"
            )
            (total,) = store.transaction().execute(query, (key,)).fetchone()
        out = Document({"shard": shard.spec.id, "key": key, "total": total})
        publisher.publish_uncommitted(lambda _: (self._output, NDJSON["content-type"]), out)

    def finalize_txn(self, shard: Shard, store: Store, publisher: Publisher) -> None:
        """Do nothing, because the store has all state."""


class Rig:
    def __init__(self, client: Client, prefix: str, root: Path) -> None:
        self.client, self.root = client, root
        self.source, self.output = f"{prefix}source", f"{prefix}output"
        self.hints = FileHints(root / "hints")
        create_journals(client, self.source, self.output)
        self.spec = shard_spec(SHARD, [self.source], recovery_log_prefix=f"{prefix}logs")
        labels = {CONTENT_TYPE: CONTENT_TYPE_RECOVERY_LOG}
        client.create_journals(journal_spec(recovery_log(self.spec), labels=labels))
        self.service = AppendService(client, timeout_s=30)
        self.publisher = Publisher(self.service)

    def host(self, kind: str, hints: Hints | None = None) -> LocalHost:
        app = StoredTotals(kind, self.output, self.root / "shared.sqlite")
        # Hosts may share a folder, because they leave no files in it.
        work_dir = self.root / "work"
        return LocalHost(app, self.client, [self.spec], name="test", hints=hints, work_dir=work_dir)

    @contextmanager
    def standby(self, kind: str) -> Iterator[shards.LocalShard]:
        """Run the shard as a cluster member does that is not its primary."""
        app = StoredTotals(kind, self.output, self.root / "shared.sqlite")
        fqn, directory = f"{shards.NAME_ROOT}/test/items/{SHARD}", self.root / "work" / "standby"
        shard = shards.LocalShard(
            app, self.client, self.spec, fqn, hints={}, new_directory=lambda: directory, is_standby=True
        )
        shard.start()
        try:
            yield shard
        finally:
            shard.stop()
            assert shard.join(30)

    def publish(self, *keys: str) -> None:
        for key in keys:
            self.publisher.publish_committed(lambda _: (self.source, NDJSON["content-type"]), number(key))
        self.service.flush()

    def totals(self, host: LocalHost) -> dict[str, int]:
        wait_through(host, self.client, SHARD, self.source)
        with host.resolve(ResolveArgs(SHARD, timeout_s=30)) as found:
            if isinstance(found.store, JsonFileStore):
                return dict(found.store.state)
            with sqlite3.connect(f"file:{found.store.path}?mode=ro", uri=True) as reader:
                return dict(reader.execute("SELECT key, total FROM totals"))


@pytest.fixture
def rig(client: Client, fresh_prefix: str, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(client, fresh_prefix, tmp_path)
    with made.service:
        yield made


def failure_of(host: LocalHost) -> str:
    return "".join(host.list_shards().shards[0].status[0].errors)


@pytest.mark.parametrize("kind", ["json", "recorded", "shared"])
def test_a_shard_moves_between_hosts(rig: Rig, kind: str) -> None:
    rig.publish("a", "b")
    with rig.host(kind) as first:
        assert rig.totals(first) == {"a": 1, "b": 1}
        rig.publish("a")
        with rig.host(kind) as second:
            assert rig.totals(second) == {"a": 2, "b": 1}
            rig.publish("b", "c")
            assert rig.totals(second) == {"a": 2, "b": 2, "c": 1}
            # The first host notices at its next commit.
            wait_until("the first host fails", lambda: failure_of(first) != "")
            assert "is elsewhere now" in failure_of(first)
    with rig.host(kind) as third:
        assert rig.totals(third) == {"a": 2, "b": 2, "c": 1}
    totals = published_totals(rig.client, [rig.output])
    expected = {("a", 1), ("b", 1), ("a", 2), ("b", 2), ("c", 1)}
    assert totals == {(SHARD, *each): 1 for each in expected}
    assert list((rig.root / "work").iterdir()) == []


def code_of(host: LocalHost) -> int:
    return host.list_shards().shards[0].status[0].code


def followed(shard: shards.LocalShard) -> int:
    player = shard._player
    reader = None if player is None else player._reader
    return 0 if reader is None else reader.offset


def totals_of(rig: Rig, shard: shards.LocalShard) -> dict[str, int]:
    head = rig.client.write_head(rig.source)
    wait_until("it has read all", lambda: shard.progress().read_through[rig.source] >= head)
    store: Any = shard.store_ready.result(30)
    if isinstance(store, JsonFileStore):
        return dict(store.state)
    with sqlite3.connect(f"file:{store.path}?mode=ro", uri=True) as reader:
        return dict(reader.execute("SELECT key, total FROM totals"))


@pytest.mark.parametrize("kind", ["json", "recorded"])
def test_a_standby_follows_and_takes_over(rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with rig.host(kind) as first, rig.standby(kind) as second:
        rig.publish("a", "b")
        assert rig.totals(first) == {"a": 1, "b": 1}
        wait_until("it follows", lambda: second.status.code == pc.ReplicaStatus.STANDBY)
        rig.publish("a")
        assert rig.totals(first) == {"a": 2, "b": 1}
        assert code_of(first) == pc.ReplicaStatus.PRIMARY
        log = recovery_log(rig.spec)
        head = rig.client.write_head(log)
        wait_until("it has read the log", lambda: followed(second) >= head)
        reads: list[int] = []
        read = Client.read

        def noted(client: Client, journal: str, **how: Any) -> Any:
            if journal == log:
                reads.append(how["offset"])
            return read(client, journal, **how)

        monkeypatch.setattr(Client, "read", noted)
        second.promote()
        assert totals_of(rig, second) == {"a": 2, "b": 1}
        assert second.status.code == pc.ReplicaStatus.PRIMARY
        assert min(reads) > 0
        rig.publish("b")
        assert totals_of(rig, second) == {"a": 2, "b": 2}
        wait_until("the first host fails", lambda: failure_of(first) != "")
    totals = published_totals(rig.client, [rig.output])
    assert totals == {(SHARD, *each): 1 for each in (("a", 1), ("b", 1), ("a", 2), ("b", 2))}


def test_a_standby_that_ends_takes_nothing_over(rig: Rig) -> None:
    with rig.host("json") as first:
        with rig.standby("json") as second:
            wait_until("it follows", lambda: second.status.code == pc.ReplicaStatus.STANDBY)
        rig.publish("a")
        rig.totals(first)
        assert code_of(first) == pc.ReplicaStatus.PRIMARY
    assert list((rig.root / "work").iterdir()) == []


def test_hints_are_kept_and_used(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery moves earlier hints to the backups, and reports which hints it was played from."""
    monkeypatch.setattr(shards, "HINTS_S", 0.0)
    primary, backups = hint_primary_key(rig.spec), hint_backup_keys(rig.spec)
    with rig.host("json", rig.hints) as first:
        rig.publish("a")
        assert rig.totals(first) == {"a": 1}
        rig.publish("a")
        assert rig.totals(first) == {"a": 2}
        wait_until("primary hints", lambda: primary in rig.hints and len(rig.hints[primary].live_nodes) > 0)
        kept = rig.hints[primary]
        assert first.hints(SHARD).primary_hints.hints.log == recovery_log(rig.spec)
    assert len(rig.hints[backups[0]].live_nodes) == 0
    with rig.host("json", rig.hints) as second:
        assert rig.totals(second) == {"a": 2}
        with second.resolve(ResolveArgs(SHARD, timeout_s=30)) as found:
            assert found.shard is not None
            assert found.shard.recovered_hints is not None
            used = found.shard.recovered_hints.primary_hints.hints
            assert used.live_nodes[0].fnode >= kept.live_nodes[0].fnode
        assert len(rig.hints[backups[0]].live_nodes) == 1
        assert len(rig.hints[backups[1]].live_nodes) == 0


def test_hints_that_cannot_be_kept_end_no_shard(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If a shard has moved to another member, the log says so in one line, without a traceback."""
    monkeypatch.setattr(shards, "HINTS_S", 0.0)

    class Moved(dict[str, pr.FSMHints]):
        def __setitem__(self, key: str, hints: pr.FSMHints) -> None:
            raise ClosedError(f"hints {key!r}", "the shard is no longer assigned to this process")

    def lines() -> list[logging.LogRecord]:
        return [line for line in caplog.records if line.getMessage().startswith("shard.hints_not_kept")]

    with rig.host("json", Moved()) as host:
        rig.publish("a")
        assert rig.totals(host) == {"a": 1}
        wait_until("both attempts are logged", lambda: len(lines()) > 1)
        assert code_of(host) == pc.ReplicaStatus.PRIMARY
    assert {line.exc_info for line in lines()} == {None}
    assert "no longer assigned to this process" in lines()[0].getMessage()


def test_gazctl_recovers_the_files(rig: Rig, broker: BrokerHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """``gazctl shards recover`` gets hints from our service, and plays our log with Gazette's own player."""
    monkeypatch.setattr(shards, "HINTS_S", 0.0)
    rig.publish("a", "b")
    with ShardServer() as server, rig.host("json", rig.hints) as host:
        host.serve_at(server.endpoint)
        server.start(host)
        assert rig.totals(host) == {"a": 1, "b": 1}
        directory = rig.root / "recovered"
        endpoints = [f"--consumer.address={server.endpoint}", f"--broker.address={broker.endpoint}"]
        done = subprocess.run(
            [
                str(find_binary("gazctl")),
                "shards",
                "recover",
                f"--id={SHARD}",
                f"--dir={directory}",
                *endpoints,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=clean_environment(),
        )
        assert done.returncode == 0, done.stderr
    state, checkpoint = parse_state_file((directory / "state.json").read_bytes(), "state.json")
    assert state == {"a": 1, "b": 1}
    assert checkpoint.sources[rig.source].read_through == rig.client.write_head(rig.source)


APPLICATION = """
import json
import uuid

from gazette_spark.consumer import Application
from tests.rig.messages import Document


class Counting(Application):
    def new_store(self, shard):
        return shard.json_store(initial={})

    def new_message(self, spec, record):
        fields = json.loads(record)
        return Document(fields, stamp=uuid.UUID(fields.pop("_meta")["uuid"]))

    def consume_message(self, shard, store, envelope, publisher):
        if "key" in envelope.message.fields:
            key = envelope.message.fields["key"]
            store.state[key] = store.state.get(key, 0) + 1

    def finalize_txn(self, shard, store, publisher):
        pass
"""


def test_a_killed_process_loses_nothing(rig: Rig, broker: BrokerHandle) -> None:
    (rig.root / "counting.py").write_text(APPLICATION)
    (rig.root / "shards.yaml").write_text(
        format_shard_yaml([pc.ApplyRequest.Change(upsert=rig.spec, expect_mod_revision=-1)])
    )
    command = ["consumer", "serve", "counting:Counting", "--specs", "shards.yaml", "--port", "0"]
    options = ["--hints", "hints", "--work-dir", "work"]
    environment = {**clean_environment(), "BROKER_ADDRESS": broker.endpoint, "PYTHONPATH": str(ROOT)}
    for keys in (["a", "b"], ["c", "a"]):
        process = subprocess.Popen(
            [sys.executable, "-m", "gazette_spark.cli", *command, *options],
            cwd=rig.root,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            with ShardClient(process.stdout.readline().strip()) as client:
                rig.publish(*keys)
                head = rig.client.write_head(rig.source)
                assert client.stat(SHARD, {rig.source: head}).read_through == {rig.source: head}
        finally:
            process.kill()
            process.communicate(timeout=60)
    assert len(rig.hints[hint_backup_keys(rig.spec)[0]].live_nodes) == 1
    with rig.host("json", rig.hints) as host:
        assert rig.totals(host) == {"a": 2, "b": 1, "c": 1}


def test_a_journal_that_is_no_recovery_log_is_refused(rig: Rig) -> None:
    wrong = pc.ShardSpec.FromString(rig.spec.SerializeToString())
    wrong.recovery_log_prefix, wrong.id = rig.source, "wrong"
    create_journals(rig.client, recovery_log(wrong))
    rig.spec = wrong
    with rig.host("json") as host:
        wait_until("the shard fails", lambda: failure_of(host) != "")
        assert "application/x-gazette-recoverylog" in failure_of(host)
    assert rig.client.write_head(recovery_log(wrong)) == 0
