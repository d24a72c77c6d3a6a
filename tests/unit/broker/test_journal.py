"""Tests that uploads, listings and spec changes do not block each other and lose no data."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gazette_spark.broker import journal as journal_module
from gazette_spark.broker.journal import JournalClosedError, JournalSettings, LiveJournal, OpenSpools
from gazette_spark.broker.storage.encoders import encode
from gazette_spark.broker.storage.persister import Persister
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec

DEADLINE_S = 10.0
NAME = "a/journal"
SPEC = journal_spec(NAME)


class Pause:
    """A point at which the code under test stops until the test releases it."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def here(self) -> None:
        """Block the calling thread until it is released."""
        self._reached.set()
        assert self._released.wait(DEADLINE_S)

    def wait(self) -> None:
        """Wait until a thread has reached this point."""
        assert self._reached.wait(DEADLINE_S)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as opened:
        yield opened


@pytest.fixture
def listing(tmp_path: Path) -> Pause:
    """The pause at which a listing of the store stops, once ``tmp_path/a/journal/inner`` exists."""
    return Pause()


@pytest.fixture
def journal(tmp_path: Path, listing: Pause) -> Iterator[LiveJournal]:
    """A journal whose first five bytes are in a closed spool."""

    def is_journal(_name: str) -> bool:
        listing.here()
        return False

    opened = LiveJournal(SPEC, tmp_path / "spools", JournalSettings(tmp_path, is_journal))
    txn = opened.start_append(opened.plan(pb.AppendRequest(journal=NAME)))
    txn.write(b"first")
    txn.commit_append(pb.LabelSet())
    opened.roll()
    yield opened
    opened.close()
    opened.release()


def stored_spans(journal: LiveJournal) -> list[tuple[int, int]]:
    return [(each.begin, each.end) for each in journal.view.fragments() if each.mod_time]


def test_a_spec_changes_during_an_upload(
    journal: LiveJournal, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow upload blocks neither a new spec nor the listing that the new spec starts."""
    upload = Pause()

    def slow(blocks: Iterable[bytes], codec: int) -> Iterator[bytes]:
        upload.here()
        yield from encode(blocks, codec)

    monkeypatch.setattr(journal_module, "encode", slow)
    uploading = pool.submit(journal.persist)
    upload.wait()
    changing = threading.Thread(target=journal.use_spec, args=(journal_spec(NAME, replication=1),))
    changing.start()
    changing.join(DEADLINE_S / 2)
    is_held_back = changing.is_alive()
    upload.release()
    uploading.result(DEADLINE_S)
    changing.join(DEADLINE_S)
    assert not is_held_back
    assert (stored_spans(journal), journal.sealed()) == ([(0, 5)], [])


def test_an_upload_ends_during_a_listing(
    tmp_path: Path, journal: LiveJournal, pool: ThreadPoolExecutor, listing: Pause
) -> None:
    """A listing that began before an upload ended must not drop the new fragment."""
    (tmp_path / NAME / "inner").mkdir(parents=True)
    refreshing = pool.submit(journal.refresh)
    listing.wait()
    uploading = threading.Thread(target=journal.persist)
    uploading.start()
    uploading.join(DEADLINE_S / 2)
    is_held_back = uploading.is_alive()
    listing.release()
    refreshing.result(DEADLINE_S)
    uploading.join(DEADLINE_S)
    assert not is_held_back
    assert (stored_spans(journal), journal.sealed()) == ([(0, 5)], [])


def test_a_spool_that_others_stored_is_not_uploaded(
    tmp_path: Path, journal: LiveJournal, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a listing finds the spool's bytes in the store, the spool is dropped, even during its upload."""
    (fragment,) = [each.fragment for each in journal.sealed()]
    store = journal.first_store
    assert store is not None
    upload = Pause()

    def slow(blocks: Iterable[bytes], codec: int) -> Iterator[bytes]:
        upload.here()
        yield from encode(blocks, codec)

    monkeypatch.setattr(journal_module, "encode", slow)
    uploading = pool.submit(journal.persist)
    upload.wait()
    store.put(fragment, encode([b"first"], fragment.codec), fsync=False)
    journal.refresh()
    assert journal.sealed() == []
    upload.release()
    uploading.result(DEADLINE_S)
    assert stored_spans(journal) == [(0, 5)]
    assert list((tmp_path / "spools").glob("00000001.*")) == []


def test_a_journal_that_is_deleted_during_an_upload_stores_nothing(
    tmp_path: Path, journal: LiveJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes would replace those of a journal that is created again under the same name."""

    def delete_first(blocks: Iterable[bytes], codec: int) -> Iterator[bytes]:
        journal.delete()
        yield from encode(blocks, codec)

    monkeypatch.setattr(journal_module, "encode", delete_first)
    with pytest.raises(JournalClosedError):
        journal.persist()
    journal.persist()  # This upload begins after the deletion.
    assert not journal.directory.exists()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_idle_journals_keep_no_files_open(tmp_path: Path) -> None:
    count, limit = 200, 16
    settings = JournalSettings(tmp_path, lambda _name: False, open_spools=OpenSpools(limit))
    journals = [
        LiveJournal(journal_spec(f"many/{number}", stores=()), tmp_path / str(number), settings)
        for number in range(count)
    ]
    before = open_files()
    for journal in journals:
        txn = journal.start_append(journal.plan(pb.AppendRequest(journal=journal.name)))
        txn.write(b"x")
        assert txn.commit_append(pb.LabelSet()).end == 1
    assert open_files() - before <= 2 * limit
    for journal in journals:
        spool = journal.serve(0, 0).spool
        assert spool is not None
        assert spool.read(0, 9) == b"x"
    assert open_files() - before <= 2 * limit + 1  # The test itself still has one spool open.


def test_files_in_use_stay_open(tmp_path: Path) -> None:
    """A journal in the middle of an append is skipped, and closed the next time."""
    spools = OpenSpools(1)
    settings = JournalSettings(tmp_path, lambda _name: False, open_spools=spools)
    busy, other = (
        LiveJournal(journal_spec(name, stores=()), tmp_path / name, settings) for name in ("busy", "other")
    )
    with busy.fair_lock.turn(lambda: True):
        txn = busy.start_append(busy.plan(pb.AppendRequest(journal="busy")))
        txn.write(b"first")
        spools.use(busy)
        other.serve(0, 0)
        spools.use(other)
        assert txn.commit_append(pb.LabelSet()).end == 5
    assert busy.release_idle()


def test_a_new_first_store_is_known_with_its_spec(tmp_path: Path) -> None:
    """Other threads may ask for the store as soon as the spec has changed."""
    urls: list[str] = []

    class Asked(LiveJournal):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            # Simulates another thread that runs at this moment.
            if name == "spec" and hasattr(self, "_stores") and (store := self.first_store) is not None:
                urls.append(store.url)

    opened = Asked(SPEC, tmp_path / "spools", JournalSettings(tmp_path, lambda _: False))
    opened.use_spec(journal_spec(NAME, stores=["file:///other/"]))
    opened.release()
    assert urls[-1] == "file:///other/"


def test_a_journal_that_fails_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    settings = JournalSettings(tmp_path, lambda _: False)
    journals = [LiveJournal(journal_spec(f"a/{at}ne"), tmp_path / str(at), settings) for at in range(2)]
    pulsed = threading.Semaphore(0)

    def pulse(journal: LiveJournal) -> None:
        if journal is journals[0]:
            raise ZeroDivisionError
        pulsed.release()

    persister = Persister(lambda: journals, 0.02, pulse)
    persister.start()
    try:
        assert all(pulsed.acquire(timeout=DEADLINE_S) for _ in range(2))
    finally:
        persister.stop()
        for journal in journals:
            journal.release()


def test_uploads_are_not_idle_before_a_second_round(
    journal: LiveJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload does not see a spool that is closed in the meantime, so another one follows it."""
    encoding, late = Pause(), Pause()

    def slow(blocks: Iterable[bytes], codec: int) -> Iterator[bytes]:
        encoding.here()
        yield from encode(blocks, codec)

    monkeypatch.setattr(journal_module, "encode", slow)
    persister = Persister(lambda: [journal], 60.0)
    persister.upload(journal)
    encoding.wait()
    txn = journal.start_append(journal.plan(pb.AppendRequest(journal=NAME)))
    txn.write(b"second")
    txn.commit_append(pb.LabelSet())
    journal.roll()
    persister.upload(journal)
    upload = persister.upload

    def upload_late(again: LiveJournal) -> None:
        late.here()
        upload(again)

    monkeypatch.setattr(persister, "upload", upload_late)
    try:
        encoding.release()
        assert persister.wait_idle(DEADLINE_S)
        assert journal.sealed() == []
    finally:
        late.release()
        persister.stop()
