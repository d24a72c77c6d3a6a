"""A changed byte or a missing end of any stored file is always detected when the file is read.

A new kind of stored file is a line in ``FILES``. ``read`` returns the content, or ``DAMAGED`` where the
reader treats the file as missing; other readers raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from gazette_spark._options.schema_hints import field
from gazette_spark._planning.inference import FILE, remembered
from gazette_spark._planning.states import StateFiles
from gazette_spark._server.catalog import Catalog, CatalogEntry
from gazette_spark.broker.registry import JOURNALS
from gazette_spark.broker.storage.state import StateDirectory
from gazette_spark.consumer.recoverylog.hints import FileHints
from gazette_spark.consumer.stores.json_file import build_state_file, parse_state_file
from gazette_spark.consumer.stores.sqlite import SqliteStore
from gazette_spark.errors import (
    BrokerRootError,
    DamagedFileError,
    GazetteError,
    OptionError,
    StoreFormatError,
)
from gazette_spark.message.bulk_sequencer import NO_TRANSACTION, ProducerStates
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.seal import seal, unseal
from tests.rig.recovery_log import closed_databases

pytestmark = pytest.mark.slow

DAMAGED = object()
"""Result of a reader that treats the file as missing."""

CHECKPOINT = pc.Checkpoint(sources={"a/source": pc.Checkpoint.Source(read_through=1 << 40)})
CHECKPOINT.sources["a/source"].producers.add(id=b"\0\1\2\3\4\5", state={"last_ack": 77, "begin": -1})
CHECKPOINT.ack_intents["b"] = b"\xff\0"


class Stored(NamedTuple):
    path: Path
    content: bytes
    read: Callable[[bytes], Any]
    """Function that reads the file after its content is replaced by the given bytes."""
    error: type[GazetteError] | None
    """Exception for damage, or None for a cache, where a damaged file counts as missing."""


@pytest.fixture(autouse=True)
def _databases_are_closed() -> Iterator[None]:
    with closed_databases():
        yield


def _states(root: Path) -> Stored:
    states = ProducerStates(
        np.array([1, 2], np.int64),
        np.array([5, 6], np.uint64),
        np.array([9, 6], np.uint64),
        np.array([1234, NO_TRANSACTION], np.int64),
        np.array([1300, 7], np.int64),
        newest=9,
    )
    path, files = root / "log/a/2000", StateFiles(str(root))
    files.save("log/a", 2000, 100, states)

    def read(content: bytes) -> Any:
        path.write_bytes(content)
        found = files.load("log/a", 2000, 100)
        return DAMAGED if found is None else found

    return Stored(path, path.read_bytes(), read, None)


def _hints(root: Path) -> Stored:
    hints, key = FileHints(root), "/gazette/hints/shard.primary"
    hints[key] = pr.FSMHints(log="recovery/log", properties=[pr.Property(path="/IDENTITY", content="one")])
    path = root / key.lstrip("/")

    def read(content: bytes) -> Any:
        path.write_bytes(content)
        return hints.get(key, DAMAGED)

    return Stored(path, path.read_bytes(), read, None)


def _schema(root: Path) -> Stored:
    remembered(f"file://{root}", lambda: [field("id", "long")])

    def read(content: bytes) -> Any:
        (root / FILE).write_bytes(content)
        return remembered(f"file://{root}", lambda: [field("other", "string")])

    return Stored(root / FILE, (root / FILE).read_bytes(), read, OptionError)


def _catalog(root: Path) -> Stored:
    directory = StateDirectory(root)
    entry = CatalogEntry.make(pb.JournalSpec(name="a/journal", replication=1), 2, 3)
    directory.save(Catalog(JOURNALS, 5, 3, {"a/journal": entry}), fsync=False)
    path = directory.path / "state.json"

    def read(content: bytes) -> Any:
        path.write_bytes(content)
        return directory.load(JOURNALS)

    return Stored(path, path.read_bytes(), read, BrokerRootError)


def _json_store(root: Path) -> Stored:
    content = build_state_file({"n": [1, "ä", " "]}, CHECKPOINT)
    return Stored(root, content, lambda changed: parse_state_file(changed, "state.json"), StoreFormatError)


def _sqlite_row(root: Path) -> Stored:
    path = root / "shared.sqlite"
    store = SqliteStore(path, "a/shard")
    store.restore_checkpoint()
    store.start_commit(CHECKPOINT, ()).result(30)
    connection = store.transaction()
    (content,) = connection.execute("SELECT checkpoint FROM gazette_checkpoints").fetchone()

    def read(changed: bytes) -> Any:
        store.transaction().execute("UPDATE gazette_checkpoints SET checkpoint = ?", (changed,))
        return store.restore_checkpoint()

    return Stored(path, content, read, StoreFormatError)


FILES = (_states, _hints, _schema, _catalog, _json_store, _sqlite_row)


def _is_noticed(stored: Stored, content: bytes) -> bool:
    try:
        return stored.read(content) is DAMAGED
    except GazetteError as error:
        return stored.error is not None and isinstance(error, stored.error)


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__.strip("_"))
def test_damage_is_noticed(
    make: Callable[[Path], Stored], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each byte is changed to a similar value and to its complement, and the end is cut anywhere."""
    caplog.set_level("CRITICAL")
    stored = make(tmp_path)
    before = stored.read(stored.content)
    assert before is not DAMAGED
    missed = []
    for at, byte in enumerate(stored.content):
        for other in (byte ^ 1, byte ^ 0xFF):
            changed = stored.content[:at] + bytes([other]) + stored.content[at + 1 :]
            if not _is_noticed(stored, changed):
                missed.append(f"byte {at}: {byte:#x} to {other:#x}")
    missed += [
        f"cut at {n}" for n in range(len(stored.content)) if not _is_noticed(stored, stored.content[:n])
    ]
    missed += [f"longer by {n}" for n in (1, 9) if not _is_noticed(stored, stored.content + b" " * n)]
    assert missed == []


def test_every_value_of_every_byte_is_noticed() -> None:
    """No other byte anywhere in a sealed file, and no other content, has the same seal."""
    content = b"offset 17\n"
    stored = seal(content)
    assert unseal(stored, "a/file") == content
    for at, byte in enumerate(stored):
        for other in range(256):
            if other != byte:
                with pytest.raises(DamagedFileError, match="a/file is damaged"):
                    unseal(stored[:at] + bytes([other]) + stored[at + 1 :], "a/file")
