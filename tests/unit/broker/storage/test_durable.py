"""Tests what is synced to disk, and in which order, before an append is answered."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gazette_spark.broker.storage.commit_log import SpoolHeader
from gazette_spark.broker.storage.durable import make_directories
from gazette_spark.broker.storage.fragment_store import open_store
from gazette_spark.broker.storage.spool import Spool
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were synced, in order."""
    names: list[str] = []

    def recorded(force: Callable[[int], None]) -> Callable[[int], None]:
        def call(fd: int) -> None:
            names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
            force(fd)

        return call

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, recorded(getattr(os, name)))
    return names


def commit(spool: Spool, content: bytes) -> None:
    spool.stage(content)
    spool.commit_append((), 1.0)


def test_a_commit_is_forced_out_in_order(tmp_path: Path, synced: list[str]) -> None:
    """Sync the log's header, the directory entries, the data, then the record; later only data and record."""
    spool = Spool(tmp_path / "spools" / "00000001", SpoolHeader("a/b", 0, pb.SNAPPY, ()), fsync=True)
    commit(spool, b"one")
    made, last = synced[:-2], synced[-2:]
    assert last == ["00000001.data", "00000001.log"]
    assert made == [tmp_path.name, "00000001.log.partial", "spools"]
    synced.clear()
    commit(spool, b"two")
    assert synced == ["00000001.data", "00000001.log"]


def test_data_that_is_younger_than_its_log(tmp_path: Path, synced: list[str]) -> None:
    """If the header was written earlier, the new data file's directory entry must be synced, too."""
    spool = Spool(tmp_path / "00000002", SpoolHeader("a/b", 5, pb.SNAPPY, ()), fsync=True)
    spool.write_header()
    assert synced == ["00000002.log.partial", tmp_path.name]
    synced.clear()
    commit(spool, b"one")
    assert synced == ["00000002.data", tmp_path.name, "00000002.log"]


def test_without_fsync_nothing_is_forced_out(tmp_path: Path, synced: list[str]) -> None:
    commit(Spool(tmp_path / "00000001", SpoolHeader("a/b", 0, pb.SNAPPY, ()), fsync=False), b"one")
    assert synced == []


def test_a_fragment_is_on_the_disk_before_its_spool_goes(tmp_path: Path, synced: list[str]) -> None:
    """Sync new directories, then the file, then the directory that contains it."""
    store = open_store(tmp_path, "file:///")
    store.put(Fragment("a/bc", 0, 4, bytes(20), pb.NONE), [b"abcd"], fsync=True)
    assert synced[:2] == [tmp_path.name, "a"]
    assert synced[2].startswith(".partial-")
    assert synced[3] == "bc"


def test_directories_are_made_once(tmp_path: Path, synced: list[str]) -> None:
    """Sync the parent of each new directory, or a power cut could lose the directory."""
    for _ in range(2):
        make_directories(tmp_path / "x" / "y", fsync=True)
    assert synced == [tmp_path.name, "x"]
    assert (tmp_path / "x" / "y").is_dir()
