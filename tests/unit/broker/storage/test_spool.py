"""Tests that a spool recovers exactly the bytes committed to it, however its files were cut short."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gazette_spark.broker.storage.commit_log import SpoolHeader
from gazette_spark.broker.storage.spool import Spool
from gazette_spark.protocol import protocol_pb2 as pb

HEADER = SpoolHeader("a/journal", 1000, pb.NONE, ())


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """A closed spool of two commits, ``first`` and ``second``."""
    made = Spool(tmp_path / "00000001", HEADER, fsync=True)
    for number, content in enumerate([b"first", b"second"]):
        made.stage(content)
        made.commit_append((("author", str(number)),), 10.0 + number)
    made.release()
    return made


def content(spool: Spool) -> bytes:
    return b"".join(spool.blocks())


def recover(spool: Spool) -> Spool:
    """Reopen the spool's files, as after a restart."""
    found = Spool.recover(spool.stem, fsync=False)
    assert found is not None
    return found


def test_recovered_spool_is_the_same(spool: Spool) -> None:
    found = recover(spool)
    assert found.fragment == spool.fragment
    assert found.fragment.sum == hashlib.sha1(b"firstsecond").digest()
    assert (found.begin, found.end, found.first_append_time) == (1000, 1011, 10.0)
    assert found.registers == (("author", "1"),)
    assert content(found) == b"firstsecond"


def test_staged_bytes_are_not_recovered(spool: Spool) -> None:
    spool.stage(b"unanswered")
    found = recover(spool)
    assert content(found) == b"firstsecond"
    assert spool.stem.with_suffix(".data").stat().st_size == 11


def test_roll_back_leaves_the_committed(spool: Spool) -> None:
    """The next append starts at the offset of the append that was rolled back."""
    spool.stage(b"a longer thing that is not to stay")
    spool.roll_back()
    spool.stage(b"third")
    spool.commit_append((), 12.0)
    assert content(spool) == b"firstsecondthird"
    assert content(recover(spool)) == b"firstsecondthird"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(11, b"firstsecond", id="whole"),
        pytest.param(10, b"first", id="in-the-second"),
        pytest.param(5, b"first", id="between"),
        pytest.param(4, b"", id="in-the-first"),
        pytest.param(0, b"", id="nothing"),
    ],
)
def test_lost_data_cuts_back_to_a_commit(spool: Spool, size: int, expected: bytes) -> None:
    """After a power cut the log may be complete while the data is not."""
    with spool.stem.with_suffix(".data").open("r+b") as data:
        data.truncate(size)
    assert content(recover(spool)) == expected
    assert content(recover(spool)) == expected


def test_changed_data_cuts_back_to_a_commit(spool: Spool) -> None:
    """Bytes that do not match a commit's checksum are not served."""
    with spool.stem.with_suffix(".data").open("r+b") as data:
        data.seek(7)
        data.write(b"!")
    assert content(recover(spool)) == b"first"


def test_a_spool_goes_on_after_a_torn_record(spool: Spool) -> None:
    """The torn record must be removed, or the next commit could not be read."""
    with spool.stem.with_suffix(".log").open("ab") as log:
        log.write(b"0badc0de {")
    found = recover(spool)
    found.stage(b"third")
    found.commit_append((), 12.0)
    assert content(recover(found)) == b"firstsecondthird"


def test_no_header_is_no_spool(tmp_path: Path) -> None:
    (tmp_path / "00000001.log").write_bytes(b"0badc0de {")
    assert Spool.recover(tmp_path / "00000001", fsync=False) is None
    assert Spool.recover(tmp_path / "00000002", fsync=False) is None


def test_an_empty_spool_has_a_sum_of_zeros(tmp_path: Path) -> None:
    """The sum is zero bytes, not the SHA-1 of no content."""
    spool = Spool(tmp_path / "00000001", HEADER, fsync=False)
    spool.stage(b"staged")
    assert spool.fragment.sum == bytes(20)
    assert spool.fragment.end == 1000


def test_a_reader_keeps_deleted_data(spool: Spool) -> None:
    """A reader with an open file continues after the spool was stored and deleted."""
    data = spool.data()
    spool.delete()
    assert data.read(0, 100) == b"firstsecond"
    assert list(spool.stem.parent.iterdir()) == []


def test_a_failed_log_write_leaves_no_half_record(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk fills up within a record, the append fails and the log stays readable."""
    spool.stage(b"third")
    spool.write_header()
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda fd, line: write(fd, line[:9]))
        with pytest.raises(OSError, match="short write"):
            spool.commit_append((), 12.0)
    spool.roll_back()
    spool.stage(b"fourth")
    spool.commit_append((), 13.0)
    assert content(recover(spool)) == b"firstsecondfourth"
