"""Recovery logs on brokers fence writers, report losses, and are shared with Gazette's Go library."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gazette_spark import Client
from gazette_spark.client import AppendService
from gazette_spark.consumer.recoverylog import Player, RecordedFiles, Recorder, Recovered, new_author
from gazette_spark.consumer.recoverylog.hints import hints_from_bytes, hints_to_json
from gazette_spark.consumer.stores.json_file import JsonFileStore
from gazette_spark.consumer.stores.sqlite import RecordedSqliteStore
from gazette_spark.errors import ClosedError, OptionError, RecorderFencedError, RecoveryLogLossError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from tests.conformance.goclient import end_of, run_go
from tests.conformance.wire import spec
from tests.rig.brokers import BrokerHandle
from tests.rig.recovery_log import files_below

pytestmark = pytest.mark.brokers("embedded", "deployed")

SOON = 30.0
"""Maximum seconds until an expected event."""


class Hosts:
    def __init__(self, client: Client, log: str, root: Path, stack: ExitStack) -> None:
        self.client, self.log = client, log
        self._root, self._stack, self._made = root, stack, 0

    def directory(self) -> Path:
        self._made += 1
        return self._root / f"host-{self._made}"

    def recover(self, hints: pr.FSMHints | None = None) -> tuple[Recovered, Recorder]:
        player = Player(self.client, hints or pr.FSMHints(log=self.log), self.directory())
        author = new_author()
        player.inject_handoff(author)
        recovered = player.play()
        service = AppendService(self.client)
        # A fenced recorder fails its service on purpose.
        self._stack.callback(service.close, abort=True)
        recorder = Recorder(self.log, recovered.fsm, author, recovered.directory, service, timeout_s=SOON)
        return recovered, recorder

    def replay(self, hints: pr.FSMHints | None = None) -> Recovered:
        player = Player(self.client, hints or pr.FSMHints(log=self.log), self.directory())
        player.finish_at_write_head()
        return player.play()


@pytest.fixture
def hosts(client: Client, journal_name: str, tmp_path: Path) -> Iterator[Hosts]:
    client.create_journals(
        spec(journal_name, labels=label_set({CONTENT_TYPE: CONTENT_TYPE_RECOVERY_LOG}), length=1 << 20)
    )
    with ExitStack() as stack:
        yield Hosts(client, journal_name, tmp_path, stack)


def write_some(recorder: Recorder) -> dict[str, bytes]:
    files = RecordedFiles(recorder)
    with files.create("removed") as file:
        file.write(b"gone")
    with files.create("folder/old") as file:
        file.write(b"0123456789")
        file.seek(3)
        file.write(b"abc")
        file.sync(SOON)
    files.rename("folder/old", "folder/new")
    files.link("folder/new", "linked")
    files.remove("removed")
    with files.create("large") as file:
        file.write(bytes(range(256)) * 20_000)
    with files.create("truncated") as file:
        file.write(b"long content")
    with files.create("truncated") as file:
        file.write(b"short")
    recorder.barrier().result(SOON)
    found = files_below(recorder.directory)
    assert found["linked"] == b"012abc6789"
    return found


def test_a_log_gives_the_files_again(hosts: Hosts) -> None:
    _, recorder = hosts.recover()
    expected = write_some(recorder)
    hints = recorder.build_hints(SOON)
    for given in (None, hints, hosts.replay(hints).hints):
        assert files_below(hosts.replay(given).directory) == expected


def test_only_the_newest_recorder_writes(hosts: Hosts) -> None:
    _, old = hosts.recover()
    write_some(old)
    recovered, new = hosts.recover(old.build_hints(SOON))
    expected = files_below(recovered.directory)
    with RecordedFiles(old).create("zombie") as file:
        file.write(b"late")
    for _ in range(2):
        with pytest.raises(RecorderFencedError, match="another recorder has taken it over"):
            old.barrier().result(SOON)
    with pytest.raises(RecorderFencedError):
        old.build_hints(SOON)
    with RecordedFiles(new).create("mine") as file:
        file.write(b"kept")
    new.barrier().result(SOON)
    assert files_below(hosts.replay().directory) == expected | {"mine": b"kept"}


def test_a_zombie_without_checks_changes_nothing(hosts: Hosts) -> None:
    """Operations that the broker accepts from a replaced recorder do not fit the checksum chain."""
    _, old = hosts.recover()
    write_some(old)
    _, new = hosts.recover(old.build_hints(SOON))
    old.disable_register_checks()
    with RecordedFiles(old).create("zombie") as file:
        file.write(b"late")
    old.barrier().result(SOON)
    with RecordedFiles(new).create("mine") as file:
        file.write(b"kept")
    hints = new.build_hints(SOON)
    for given in (None, hints):
        found = files_below(hosts.replay(given).directory)
        assert "zombie" not in found
        assert found["mine"] == b"kept"


def test_a_player_follows_until_it_is_told(hosts: Hosts) -> None:
    _, recorder = hosts.recover()
    standby = Player(hosts.client, pr.FSMHints(log=hosts.log), hosts.directory())
    found: list[Recovered] = []
    thread = threading.Thread(target=lambda: found.append(standby.play()))
    thread.start()
    assert standby.tailing.wait(SOON)
    expected = write_some(recorder)
    author = new_author()
    standby.inject_handoff(author)
    thread.join(SOON)
    assert files_below(found[0].directory) == expected
    with pytest.raises(RecorderFencedError):
        recorder.barrier().result(SOON)
    with pytest.raises(ClosedError, match="its ending was already set"):
        standby.finish_at_write_head()


def test_a_cancelled_player_leaves_nothing(hosts: Hosts) -> None:
    hosts.recover()
    directory = hosts.directory()
    standby = Player(hosts.client, pr.FSMHints(log=hosts.log), directory)
    problems: list[BaseException] = []

    def play() -> None:
        try:
            standby.play()
        except ClosedError as error:
            problems.append(error)

    thread = threading.Thread(target=play)
    thread.start()
    assert standby.tailing.wait(SOON)
    standby.cancel()
    thread.join(SOON)
    assert "it was cancelled" in str(problems[0])
    assert not directory.exists()


def test_hints_past_the_head_are_a_loss(hosts: Hosts) -> None:
    _, recorder = hosts.recover()
    write_some(recorder)
    hints = hosts.replay().hints
    hints.live_nodes[-1].segments[-1].last_offset += 10_000_000
    with pytest.raises(RecoveryLogLossError, match="but the log ends at"):
        hosts.replay(hints)


def test_a_directory_with_files_is_refused(hosts: Hosts) -> None:
    """A player never removes files that it did not create."""
    directory = hosts.directory()
    directory.mkdir()
    (directory / "precious").write_text("data")
    player = Player(hosts.client, pr.FSMHints(log=hosts.log), directory)
    player.finish_at_write_head()
    with pytest.raises(OptionError, match="missing or empty"):
        player.play()
    assert (directory / "precious").exists()


def test_a_failed_dependency_ends_the_commit(hosts: Hosts) -> None:
    from gazette_spark.client._append.futures import finished_operation
    from gazette_spark.errors import DependencyError

    _, recorder = hosts.recover()
    store = JsonFileStore(recorder, {"n": 0})
    store.start_commit(pc.Checkpoint(), ()).result(SOON)
    store.state["n"] = 1
    failure = finished_operation(RuntimeError("no append"))
    with pytest.raises(DependencyError, match="no append"):
        store.start_commit(pc.Checkpoint(), [failure]).result(SOON)
    _, successor = hosts.recover()
    assert JsonFileStore(successor).state == {"n": 0}


CHECKPOINT = pc.Checkpoint(
    sources={
        "a/source": pc.Checkpoint.Source(
            read_through=1 << 60,
            producers=[
                pc.Checkpoint.Source.ProducerEntry(
                    id=b"\x01\x02\x03\x04\x05\xff",
                    state=pc.Checkpoint.ProducerState(last_ack=(1 << 63) + 1, begin=1 << 55),
                )
            ],
        ),
        "b/source": pc.Checkpoint.Source(read_through=7),
    },
    ack_intents={"c/journal": b"\xff\x00intent"},
)

STATE = {"words": {"<ä&": 3, "b": [1, 2.5, None, True]}, "large": "x" * 100_000}


def checkpoint_of(document: Any) -> pc.Checkpoint:
    from google.protobuf.json_format import ParseDict

    return ParseDict(document, pc.Checkpoint())


def orders(hints: pr.FSMHints, *following: dict[str, Any]) -> bytes:
    """Return standard input for Go: hints, then orders."""
    return b"\n".join([hints_to_json(hints), *(json.dumps(each).encode() for each in following)])


def go_files(event: dict[str, Any]) -> dict[str, bytes]:
    return {name: base64.b64decode(content or "") for name, content in event["files"].items()}


def go_hints(event: dict[str, Any]) -> pr.FSMHints:
    return hints_from_bytes(json.dumps(event["hints"]).encode(), "goclient")


def test_go_replays_our_log(broker: BrokerHandle, hosts: Hosts) -> None:
    _, recorder = hosts.recover()
    expected = write_some(recorder)
    ours = hosts.replay()
    for hints in (pr.FSMHints(log=hosts.log), recorder.build_hints(SOON), ours.hints):
        end = end_of(run_go(broker.endpoint, "replay", content=orders(hints)))
        assert go_files(end) == expected
        assert end["next_seq_no"] == ours.fsm.next_seq_no
        assert end["next_checksum"] == ours.fsm.next_checksum
        assert go_hints(end) == ours.hints


def test_we_replay_gos_log(broker: BrokerHandle, hosts: Hosts) -> None:
    _, recorder = hosts.recover()
    write_some(recorder)
    content = orders(
        recorder.build_hints(SOON),
        {"Do": "write", "Path": "large", "Offset": 5, "Content": base64.b64encode(b"by go").decode()},
        {"Do": "create", "Path": "made", "Content": base64.b64encode(b"m" * 70_000).decode()},
        {"Do": "create", "Path": "truncated"},
        {"Do": "rename", "Path": "made", "Target": "folder/made"},
        {"Do": "link", "Path": "folder/made", "Target": "again"},
        {"Do": "remove", "Path": "linked"},
    )
    end = end_of(run_go(broker.endpoint, "record", content=content))
    with pytest.raises(RecorderFencedError):
        recorder.barrier().result(SOON)
    expected = go_files(end)
    assert expected["large"][5:10] == b"by go"
    for hints in (None, go_hints(end)):
        recovered = hosts.replay(hints)
        assert files_below(recovered.directory) == expected
        assert (recovered.fsm.next_seq_no, recovered.fsm.next_checksum) == (
            end["next_seq_no"],
            end["next_checksum"],
        )
    hosts.recover(go_hints(end))
    late = orders(go_hints(end), {"Do": "remove", "Path": "again"})
    assert "again" not in go_files(end_of(run_go(broker.endpoint, "record", content=late)))


def test_a_path_of_a_deleted_file_is_free(broker: BrokerHandle, hosts: Hosts) -> None:
    """Our player plays hints that skip a file's deletion; Go's (v0.103.0) refuses them and needs none."""
    _, first = hosts.recover()
    RecordedFiles(first).create("moved").close()
    _, recorder = hosts.recover(first.build_hints(SOON))
    files = RecordedFiles(recorder)
    with files.create("kept") as kept:
        files.create("taken").close()
        kept.write(b"kept")
    files.rename("moved", "taken")
    hints = recorder.build_hints(SOON)
    expected = {"kept": b"kept", "taken": b""}
    recovered = hosts.replay(hints)
    assert files_below(recovered.directory) == expected
    assert files_below(hosts.replay(recovered.hints).directory) == expected
    [refused] = run_go(broker.endpoint, "replay", content=orders(hints))
    assert "FSM has unused hints" in refused["error"]
    whole = run_go(broker.endpoint, "replay", content=orders(pr.FSMHints(log=hosts.log)))
    assert go_files(end_of(whole)) == expected


def test_go_opens_our_json_store_and_we_open_gos(broker: BrokerHandle, hosts: Hosts) -> None:
    _, recorder = hosts.recover()
    store = JsonFileStore(recorder, {"words": {}})
    assert store.restore_checkpoint() == pc.Checkpoint()
    store.state = STATE
    store.start_commit(CHECKPOINT, ()).result(SOON)

    later = {"sources": {"a/source": {"read_through": (1 << 60) + 1, "producers": None}}, "ack_intents": None}
    events = run_go(
        broker.endpoint,
        "json-store",
        content=orders(recorder.build_hints(SOON), {"State": {"from": ["Go", "<&>"]}, "Checkpoint": later}),
    )
    assert events[0]["state"] == STATE
    assert checkpoint_of(events[0]["checkpoint"]) == CHECKPOINT

    _, successor = hosts.recover(go_hints(end_of(events)))
    reopened = JsonFileStore(successor, {"not": "used"})
    assert reopened.state == {"from": ["Go", "<&>"]}
    restored = reopened.restore_checkpoint()
    assert {name: each.read_through for name, each in restored.sources.items()} == {"a/source": (1 << 60) + 1}
    with pytest.raises(RecorderFencedError):
        store.start_commit(CHECKPOINT, ()).result(SOON)


def test_a_sqlite_store_moves(broker: BrokerHandle, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    from gazette_spark.consumer.stores import sqlite

    monkeypatch.setattr(sqlite, "REWRITE_BYTES", 200_000)
    expected: list[tuple[int, str]] = []
    hints: pr.FSMHints | None = None
    for host in range(3):
        _, recorder = hosts.recover(hints)
        store = RecordedSqliteStore(recorder, "shard")
        found = store.restore_checkpoint()
        assert found.sources["a"].read_through == len(expected)
        store.transaction().execute("CREATE TABLE IF NOT EXISTS words (id INTEGER PRIMARY KEY, word TEXT)")
        rows = store.transaction().execute("SELECT id, word FROM words ORDER BY id").fetchall()
        assert rows == expected
        for number in range(10):
            expected.append((len(expected), f"{host}-{number}-" + "x" * 5000))
            store.transaction().execute("INSERT INTO words VALUES (?, ?)", expected[-1])
            checkpoint = pc.Checkpoint(sources={"a": pc.Checkpoint.Source(read_through=len(expected))})
            commit = store.start_commit(checkpoint, ())
        commit.result(SOON)
        store.transaction().execute("DELETE FROM words")
        hints = recorder.build_hints(SOON)
    assert hints is not None
    end = end_of(run_go(broker.endpoint, "replay", content=orders(hints)))
    assert sorted(go_files(end)) == [sqlite.DATABASE]
