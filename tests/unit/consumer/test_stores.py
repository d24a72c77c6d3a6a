"""Tests that stores commit state and checkpoint together, restore them, and fence earlier hosts."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gazette_spark.client._append.futures import AsyncOperation, finished_operation
from gazette_spark.consumer.recoverylog import Player, Recorder, new_author
from gazette_spark.consumer.stores import sqlite
from gazette_spark.consumer.stores.json_file import JsonFileStore, build_state_file, parse_state_file
from gazette_spark.consumer.stores.sqlite import RecordedSqliteStore, SqliteStore
from gazette_spark.errors import DependencyError, RecorderFencedError, StoreFencedError, StoreFormatError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.seal import seal_line, seal_message
from tests.rig.recovery_log import MemoryJournals, MemoryService, closed_databases, files_below

LOG = "recovery/log"
SOON = 30.0


def through(offset: int) -> pc.Checkpoint:
    return pc.Checkpoint(sources={"a/source": pc.Checkpoint.Source(read_through=offset)})


class Hosts:
    """Makes hosts that take over a log, on journals in memory."""

    def __init__(self, root: Path) -> None:
        self.journals = MemoryJournals(max_piece=5000)
        self._root = root
        self._made = 0

    def _player(self, hints: pr.FSMHints | None) -> Player:
        self._made += 1
        return Player(self.journals.client(), hints or pr.FSMHints(log=LOG), self._root / str(self._made))

    def recover(self, hints: pr.FSMHints | None = None) -> Recorder:
        player, author = self._player(hints), new_author()
        player.inject_handoff(author)
        recovered = player.play()
        service = MemoryService(self.journals).as_client()
        return Recorder(LOG, recovered.fsm, author, recovered.directory, service)

    def replay(self) -> Path:
        """Return a directory with the files that the log rebuilds."""
        player = self._player(None)
        player.finish_at_write_head()
        return player.play().directory


@pytest.fixture(autouse=True)
def _databases_are_closed() -> Iterator[None]:
    with closed_databases():
        yield


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def test_a_state_file_is_three_documents_and_a_seal() -> None:
    """Go reads only the first three lines."""
    checkpoint = through(1 << 60)
    producer = checkpoint.sources["a/source"].producers.add(id=b"\0\1\2\3\4\5")
    producer.state.last_ack, producer.state.begin = (1 << 63) + 1, -1
    checkpoint.ack_intents["b"] = b"\xff\0"
    content = build_state_file({"n": [1, "ä"]}, checkpoint)
    documents, seal = content[: content.rindex(b"{")], content[content.rindex(b"{") :]
    assert seal == seal_line(documents)
    assert documents.decode() == (
        ' {"a/source":1152921504606846976}\n'
        '{"n":[1,"\\u00e4"]}\n'
        '{"sources":{"a/source":{"read_through":1152921504606846976,"producers":[{"id":"AAECAwQF",'
        '"state":{"last_ack":9223372036854775809,"begin":-1}}]}},"ack_intents":{"b":"/wA="}}\n'
    )
    assert parse_state_file(content, "file") == ({"n": [1, "ä"]}, checkpoint)


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ('{"a/source":5} "state"', {"a/source": 5}),
        ('{"a/source":5}\n"state"\n{"sources":{"a/source":{"read_through":3}}}\n', {"a/source": 5}),
        ('null "s" {"sources":{"b":{"read_through":3,"producers":null}},"ack_intents":null}', {"b": 3}),
        ('{} "state" null', {}),
    ],
    ids=["legacy", "first-wins", "go-nulls", "empty"],
)
def test_state_files_of_older_gazette(text: str, offsets: dict[str, int]) -> None:
    """The checkpoint may be missing, and the offsets of the first document win."""
    state, checkpoint = parse_state_file(text.encode(), "file")
    assert state in ("state", "s")
    assert {name: each.read_through for name, each in checkpoint.sources.items()} == offsets


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "{} {",
        ' {} "s" {}',
        '{} "s" {} {}',
        '[1] "s"',
        '{"a":"x"} "s"',
        '{} "s" 5',
        '{} "s" {"sources":1}',
    ],
    ids=repr,
)
def test_what_is_no_state_file_is_refused(text: str) -> None:
    with pytest.raises(StoreFormatError, match=r"some/state\.json"):
        parse_state_file(text.encode(), "some/state.json")


def test_a_json_store_gives_its_last_commit(hosts: Hosts) -> None:
    initial: dict[str, Any] = {"list": []}
    store = JsonFileStore(hosts.recover(), initial)
    assert store.restore_checkpoint() == pc.Checkpoint()
    for number in range(3):
        store.state["list"].append(number)
        store.start_commit(through(number), ()).result(SOON)
    store.state["list"].append("not committed")
    assert initial == {"list": []}
    successor = JsonFileStore(hosts.recover(), initial)
    assert successor.state == {"list": [0, 1, 2]}
    assert successor.restore_checkpoint() == through(2)
    with pytest.raises(RecorderFencedError):
        store.start_commit(through(9), ()).result(SOON)
    assert list(files_below(hosts.replay())) == ["state.json"]
    directory = successor._recorder.directory
    successor.destroy()
    assert not directory.exists()


def test_a_json_store_recovers_from_a_commit_that_was_cut_off(hosts: Hosts) -> None:
    """A next.json that was not renamed is not committed."""
    recorder = hosts.recover()
    store = JsonFileStore(recorder, 1)
    store.start_commit(through(1), ()).result(SOON)
    with store._files.create("next.json") as file:
        file.write(b'{"half')
    successor = JsonFileStore(hosts.recover(), 0)
    assert successor.state == 1
    successor.state = 2
    successor.start_commit(through(2), ()).result(SOON)
    assert JsonFileStore(hosts.recover(), 0).state == 2


def deep() -> object:
    """Return lists nested deeper than an encoder can follow."""
    state: list[Any] = []
    for _ in range(100_000):
        state = [state]
    return state


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({1, 2}, id="set"),
        pytest.param(float("nan"), id="nan"),
        pytest.param({"x": b""}, id="bytes"),
        pytest.param({1: "a", "1": "b"}, id="number as key"),
        pytest.param([{"a": ({None: 1},)}], id="null as key, inside"),
        pytest.param(deep(), id="deep"),
    ],
)
def test_what_is_no_json_fails_the_commit(hosts: Hosts, state: object) -> None:
    """The last commit stays in force."""
    store = JsonFileStore(hosts.recover(), "good")
    store.start_commit(through(1), ()).result(SOON)
    store.state = state
    failure = store.start_commit(through(2), ()).exception(SOON)
    assert isinstance(failure, TypeError | ValueError | RecursionError)
    assert JsonFileStore(hosts.recover()).state == "good"


def open_shared(path: Path) -> SqliteStore:
    store = SqliteStore(path / "shared.sqlite", "a/shard")
    store.transaction().execute("CREATE TABLE IF NOT EXISTS t (n INTEGER)")
    return store


def numbers(store: SqliteStore | RecordedSqliteStore) -> list[int]:
    return [n for (n,) in store.transaction().execute("SELECT n FROM t ORDER BY n")]


def test_a_shared_store_is_fenced_by_its_row(tmp_path: Path) -> None:
    """Restoring the checkpoint fences earlier stores, whose transactions are rolled back."""
    first = open_shared(tmp_path)
    assert first.restore_checkpoint() == pc.Checkpoint()
    first.transaction().execute("INSERT INTO t VALUES (1)")
    first.start_commit(through(1), ()).result(SOON)
    second = open_shared(tmp_path)
    assert second.restore_checkpoint() == through(1)
    first.transaction().execute("INSERT INTO t VALUES (2)")
    with pytest.raises(StoreFencedError, match="another host restored the shard"):
        first.start_commit(through(2), ()).result(SOON)
    second.transaction().execute("INSERT INTO t VALUES (3)")
    second.start_commit(through(3), ()).result(SOON)
    assert numbers(second) == [1, 3]
    first.destroy()
    second.destroy()
    with closing(sqlite3.connect(tmp_path / "shared.sqlite")) as connection:
        found = connection.execute("SELECT shard_fqn, fence, checkpoint FROM gazette_checkpoints").fetchall()
    assert found == [("a/shard", 2, seal_message(through(3).SerializeToString(), "a/shard"))]
    assert pc.Checkpoint.FromString(found[0][2]).sources == through(3).sources, "Gazette reads it"


def test_a_shared_store_waits_for_what_it_relies_on(tmp_path: Path) -> None:
    """A commit needs all its dependencies to succeed."""
    store = open_shared(tmp_path)
    store.restore_checkpoint()
    store.transaction().execute("INSERT INTO t VALUES (1)")
    awaited: AsyncOperation[None] = AsyncOperation()
    commit = store.start_commit(through(1), [finished_operation(), awaited])
    assert not commit.done()
    awaited.resolve()
    commit.result(SOON)
    store.transaction().execute("INSERT INTO t VALUES (2)")
    failed = finished_operation(ValueError("no append"))
    with pytest.raises(DependencyError, match="no append"):
        store.start_commit(through(2), [failed]).result(SOON)
    assert numbers(store) == [1]
    store.destroy()
    reopened = open_shared(tmp_path)
    assert reopened.restore_checkpoint() == through(1)
    reopened.destroy()


def test_a_row_that_holds_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """The fence must not be raised."""
    store = open_shared(tmp_path)
    store.transaction().execute("INSERT INTO gazette_checkpoints VALUES ('a/shard', 7, ?)", (b"\xff",))
    store.transaction().execute("COMMIT")
    with pytest.raises(StoreFormatError, match="row 'a/shard' of gazette_checkpoints"):
        store.restore_checkpoint()
    assert store.transaction().execute("SELECT fence FROM gazette_checkpoints").fetchone() == (7,)
    store.destroy()


def open_recorded(hosts: Hosts, hints: pr.FSMHints | None = None) -> RecordedSqliteStore:
    store = RecordedSqliteStore(hosts.recover(hints), "a/shard")
    store.transaction().execute("CREATE TABLE IF NOT EXISTS t (n INTEGER, content BLOB)")
    return store


def commit(store: RecordedSqliteStore, offset: int) -> Future[None]:
    return store.start_commit(through(offset), ())


def dump(connection: sqlite3.Connection) -> list[str]:
    """Check a database's integrity and return it as SQL."""
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return list(connection.iterdump())


def replayed(hosts: Hosts) -> list[str]:
    with closing(sqlite3.connect(hosts.replay() / sqlite.DATABASE)) as connection:
        return dump(connection)


def insert(store: RecordedSqliteStore, draw: random.Random) -> None:
    rows = [
        (draw.randrange(1000), draw.randbytes(draw.choice([10, 9000]))) for _ in range(draw.randrange(20))
    ]
    store.transaction().executemany("INSERT INTO t VALUES (?, ?)", rows)


def roll_back(store: RecordedSqliteStore, draw: random.Random) -> None:
    """Write more than the page cache can hold, then roll back."""
    connection = store.transaction()
    connection.execute("SAVEPOINT s")
    connection.execute("PRAGMA cache_size = 5")
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, draw.randbytes(5000)) for _ in range(30)])
    connection.execute("ROLLBACK TO s")


def delete(store: RecordedSqliteStore, draw: random.Random) -> None:
    store.transaction().execute("DELETE FROM t WHERE n % 3 = ?", (draw.randrange(3),))


def vacuum(store: RecordedSqliteStore, draw: random.Random) -> None:
    """Shrink the file, which commits the open transaction."""
    store.transaction().execute("COMMIT")
    store._connection.execute("VACUUM")


def alter(store: RecordedSqliteStore, draw: random.Random) -> None:
    store.transaction().execute(f"CREATE TABLE IF NOT EXISTS t{draw.randrange(5)} (a, b UNIQUE)")


ACTS: list[Callable[[RecordedSqliteStore, random.Random], None]]
ACTS = [insert, insert, delete, roll_back, vacuum, alter]


@pytest.mark.parametrize("seed", range(4))
def test_a_recorded_database_is_the_same_after_each_commit(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The database is replayed on one host after another."""
    monkeypatch.setattr(sqlite, "REWRITE_BYTES", 300_000)
    monkeypatch.setattr(sqlite, "MAX_CHANGE_BYTES", 150_000)
    monkeypatch.setattr(sqlite, "CHECKPOINT_FRAMES", 20)
    draw = random.Random(seed)
    hints: pr.FSMHints | None = None
    expected: list[str] | None = None
    for host in range(3):
        store = open_recorded(hosts, hints)
        assert store.restore_checkpoint() == (through(host * 100 - 95) if host else pc.Checkpoint())
        if expected is not None:
            assert dump(store._connection) == expected
        for number in range(6):
            for act in draw.choices(ACTS, k=2):
                act(store, draw)
            commit(store, host * 100 + number).result(SOON)
            expected = dump(store._connection)
            if number % 3 == 2:
                assert replayed(hosts) == expected
        insert(store, draw)
        if host == 1:
            hints = store._recorder.build_hints(0)


def test_a_recorded_store_gives_its_checkpoint(hosts: Hosts) -> None:
    first = open_recorded(hosts)
    assert first.restore_checkpoint() == pc.Checkpoint()
    first.transaction().execute("INSERT INTO t VALUES (1, NULL)")
    commit(first, 1).result(SOON)
    first.transaction().execute("INSERT INTO t VALUES (2, NULL)")
    second = open_recorded(hosts)
    assert second.restore_checkpoint() == through(1)
    assert numbers(second) == [1]
    with pytest.raises(RecorderFencedError):
        commit(first, 2).result(SOON)
    assert isinstance(commit(first, 3).exception(SOON), RecorderFencedError)
    first.destroy()
    assert not first.path.parent.exists()


def test_readers_do_not_keep_a_database_from_being_recorded(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a rewrite of the file waits for readers."""
    monkeypatch.setattr(sqlite, "CHECKPOINT_FRAMES", 2)
    monkeypatch.setattr(sqlite, "REWRITE_BYTES", 100)
    monkeypatch.setattr(sqlite, "REWRITE_FACTOR", 0)
    store = open_recorded(hosts)
    store.restore_checkpoint()
    commit(store, 0).result(SOON)
    rewritten = store._fnode
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
        for number in range(4):
            store.transaction().execute("INSERT INTO t VALUES (?, zeroblob(20000))", (number,))
            commit(store, number).result(SOON)
            assert replayed(hosts) == dump(store._connection)
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert store._fnode == rewritten
    commit(store, 9).result(SOON)
    assert store._fnode != rewritten
    assert replayed(hosts) == dump(store._connection)


def test_a_rewrite_that_was_cut_off_is_forgotten(hosts: Hosts) -> None:
    store = open_recorded(hosts)
    store.restore_checkpoint()
    commit(store, 1).result(SOON)
    with store._recorder.begin() as operations:
        operations.write(operations.create(sqlite.NEXT_DATABASE), 0, b"half")
    successor = open_recorded(hosts)
    assert successor.restore_checkpoint() == through(1)
    commit(successor, 2).result(SOON)
    assert list(files_below(hosts.replay())) == [sqlite.DATABASE]


def test_a_database_of_another_kind_is_recorded_as_a_whole(hosts: Hosts) -> None:
    """Opening a database without a write-ahead log changes its file in place."""
    recorder = hosts.recover()
    with closing(sqlite3.connect(recorder.directory / "plain")) as connection:
        connection.execute("CREATE TABLE t (n INTEGER, content BLOB)")
        connection.commit()
    content = (recorder.directory / "plain").read_bytes()
    with recorder.begin() as operations:
        operations.write(operations.create(sqlite.DATABASE), 0, content)
    store = open_recorded(hosts)
    store.restore_checkpoint()
    store.transaction().execute("INSERT INTO t VALUES (1, NULL)")
    commit(store, 1).result(SOON)
    assert replayed(hosts) == dump(store._connection)
