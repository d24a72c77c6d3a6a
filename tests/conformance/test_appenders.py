"""What appending promises, whoever appends: a call of a client, an appender, or an append service.

Each test runs on every kind of broker, and each way of appending has to give the same result or the same
error. What is special about one way follows below; what a broker cannot be made to do (a hung stream, a
false answer) is tested on scripted brokers, in ``tests/unit/client/appending``.
"""

from __future__ import annotations

import hashlib
import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Unpack

import pytest

from gazette_spark import Client
from gazette_spark.client import AppendResult, AppendService, journal_spec
from gazette_spark.client._append.append import AppendKeywords
from gazette_spark.errors import (
    ClosedError,
    JournalNotFoundError,
    NoJournalPrimaryBrokerError,
    NotAllowedError,
    ProtocolError,
    RegisterMismatchError,
    SuspendedError,
    UnavailableError,
    WrongAppendOffsetError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set
from tests.rig.brokers import BrokerHandle

SOON_S = 60
"""Time after which something that has to happen has not happened."""

MIB = 1 << 20

Append = Callable[..., AppendResult]
"""A way of appending: ``append(journal, *pieces, **options)`` returns the result, or raises the error."""


def by_client(
    client: Client, journal: str, *pieces: bytes, **options: Unpack[AppendKeywords]
) -> AppendResult:
    """Append by one call that is given everything."""
    return client.append(journal, pieces, **options)


def by_appender(
    client: Client, journal: str, *pieces: bytes, **options: Unpack[AppendKeywords]
) -> AppendResult:
    """Append by writing one piece after the other, and committing."""
    deadline = time.monotonic() + SOON_S
    with client.appender(journal, **options) as appender:
        while True:
            for piece in pieces:
                appender.write(piece)
            try:
                return appender.commit_append()
            except NoJournalPrimaryBrokerError:
                # An appender is one call, which nobody repeats for it: a journal that is just being resumed
                # has no primary for a moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
                appender.reset()


def by_service(
    client: Client, journal: str, *pieces: bytes, **options: Unpack[AppendKeywords]
) -> AppendResult:
    """Append in the background, and wait for it."""
    service = AppendService(client, timeout_s=client.timeout_s)
    try:
        with service.start_append(journal, **options) as started:
            for piece in pieces:
                started.write(piece)
        return started.result(SOON_S)
    finally:
        # Closing a service raises a failure that nobody asked for; the caller has asked for this one.
        service.close(abort=True)


WAYS = {"client": by_client, "appender": by_appender, "service": by_service}


@pytest.fixture(params=WAYS)
def append(client: Client, request: pytest.FixtureRequest) -> Append:
    """One way of appending."""
    way = WAYS[request.param]
    return lambda journal, *pieces, **options: way(client, journal, *pieces, **options)


def content_of(client: Client, journal: str) -> bytes:
    """Return all bytes of a journal."""
    return client.read(journal, end_offset=client.write_head(journal)).read() or b""


def held_by(author: str) -> pb.LabelSelector:
    """Return what the registers of a journal have to match if ``author`` holds it."""
    return pb.LabelSelector(include=label_set({"author": author}))


def test_an_append_tells_where_its_bytes_are(append: Append, client: Client, journal: str) -> None:
    """The result has the bytes' offsets and digest; empty pieces add nothing and end nothing."""
    append(journal, b"before;")
    result = append(journal, b"", b"one;", b"", b"two;", b"")
    assert (result.begin, result.end) == (7, 15)
    assert result.sum == hashlib.sha1(b"one;two;").digest()
    assert content_of(client, journal) == b"before;one;two;"


def test_an_append_may_be_larger_than_a_message(append: Append, client: Client, journal: str) -> None:
    """Nine MiB, more than a broker takes in one message, are one append."""
    content = bytes(range(256)) * (9 * MIB // 256) + b"!"
    result = append(journal, content)
    assert (result.begin, result.end) == (0, len(content))
    assert content_of(client, journal) == content


def test_an_append_of_nothing_is_a_barrier(append: Append, journal: str) -> None:
    """It tells the write head, and changes nothing."""
    append(journal, b"four")
    for pieces in ((), (b"",)):
        result = append(journal, *pieces)
        assert (result.begin, result.end) == (4, 4)


def test_registers_fence_a_writer_off(append: Append, client: Client, journal: str) -> None:
    """A writer appends while it holds the register; afterwards it is refused, and told who holds it."""
    claimed = append(journal, b"mine;", union_registers=label_set({"author": "me"}))
    assert claimed.registers == label_set({"author": "me"})
    assert append(journal, b"still;", check_registers=held_by("me")).end == 11
    append(journal, b"theirs;", union_registers=label_set({"author": "them"}))
    with pytest.raises(RegisterMismatchError, match="author=them"):
        append(journal, b"late;", check_registers=held_by("me"))
    assert (
        append(journal, b"free;", subtract_registers=label_set({"author": "them"})).registers == pb.LabelSet()
    )
    assert content_of(client, journal) == b"mine;still;theirs;free;"


def test_a_change_of_registers_needs_bytes(append: Append, client: Client, journal: str) -> None:
    """Brokers store registers with the bytes that changed them, so there have to be some."""
    with pytest.raises(ProtocolError, match="non-empty Append"):
        append(journal, union_registers=label_set({"author": "me"}))
    assert append(journal, b"x").registers == pb.LabelSet()


def test_an_offset_has_to_be_the_write_head(append: Append, client: Client, journal: str) -> None:
    """An append at a named offset happens there or not at all."""
    append(journal, b"first;")
    assert append(journal, b"second;", offset=6).begin == 6
    with pytest.raises(WrongAppendOffsetError):
        append(journal, b"third;", offset=6)
    assert content_of(client, journal) == b"first;second;"


def test_no_append_to_a_journal_that_takes_none(append: Append, client: Client, fresh_prefix: str) -> None:
    """A journal that is missing, or read-only, is named by the error."""
    closed = journal_spec(f"{fresh_prefix}closed")
    closed.flags = pb.JournalSpec.O_RDONLY
    client.create_journals(closed)
    with pytest.raises(JournalNotFoundError, match=f"{fresh_prefix}missing"):
        append(f"{fresh_prefix}missing", b"x")
    with pytest.raises(NotAllowedError, match=f"{fresh_prefix}closed"):
        append(closed.name, b"x")


def test_a_journal_is_suspended_and_resumed(append: Append, client: Client, journal: str) -> None:
    """An append that suspends says so; bytes resume the journal, unless they are told not to."""
    with pytest.raises(SuspendedError):
        append(journal, suspend=pb.AppendRequest.SUSPEND_NOW)
    assert client.get_journal(journal).spec.suspend.level == pb.JournalSpec.Suspend.FULL
    with pytest.raises(SuspendedError):
        append(journal, b"left out;", suspend=pb.AppendRequest.SUSPEND_NO_RESUME)
    assert append(journal, b"resumed;").end == 8
    assert client.get_journal(journal).spec.suspend.level == pb.JournalSpec.Suspend.NONE
    assert content_of(client, journal) == b"resumed;"


def test_an_append_waits_for_a_revision(
    append: Append, client: Client, journal: str, fresh_prefix: str
) -> None:
    """A broker appends once it knows the revision of Etcd that was asked for."""
    revision = client.list_all_journals(f"prefix={fresh_prefix}").revision
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(append, journal, b"then;", min_etcd_revision=revision + 1)
        client.create_journals(journal_spec(f"{fresh_prefix}late"))
        assert waiting.result(SOON_S).end == 5


@pytest.mark.parametrize("broker", ["embedded", "cluster"], indirect=True)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_append_waits_in_vain_for_a_revision(broker: BrokerHandle, journal: str, way: Append) -> None:
    """Nothing is appended before the broker knows it. Gazette v0.103.0 does not know the field."""
    with Client(broker.endpoint, timeout_s=1) as hasty:
        with pytest.raises(UnavailableError):
            way(hasty, journal, b"never;", min_etcd_revision=1_000_000)
        assert hasty.write_head(journal) == 0


# What only a call of a client does.


def test_an_error_of_the_callers_iterator_rolls_back(client: Client, journal: str) -> None:
    """The iterator's error is raised as it is, and nothing is committed."""

    def pieces() -> Iterator[bytes]:
        yield b"taken back;"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.append(journal, pieces())
    client.append(journal, b"later;")
    assert content_of(client, journal) == b"later;"


def test_a_file_is_appended_from_its_first_byte(client: Client, journal: str, tmp_path: Path) -> None:
    """Wherever the file stands; and files can be pieces among others."""
    path = tmp_path / "content"
    path.write_bytes(b"file" * MIB)
    with path.open("rb") as file:
        file.seek(17)
        client.append(journal, [b"before", file, io.BytesIO(b"after")])
    assert content_of(client, journal) == b"before" + path.read_bytes() + b"after"


# What only an appender does.


def test_an_appender_left_open_aborts(client: Client, journal: str) -> None:
    """Leaving the block without a commit takes the bytes back."""
    with client.appender(journal) as appender:
        appender.write(b"taken back;")
    client.append(journal, b"later;")
    assert content_of(client, journal) == b"later;"


@pytest.mark.parametrize("end", ["commit_append", "abort"])
def test_a_finished_appender_takes_no_more(client: Client, journal: str, end: str) -> None:
    """Writing or committing after the end raises; aborting does nothing."""
    appender = client.appender(journal)
    appender.write(b"one;")
    getattr(appender, end)()
    appender.abort()
    with pytest.raises(ClosedError, match="committed or aborted"):
        appender.write(b"two;")
    with pytest.raises(ClosedError, match="committed or aborted"):
        appender.commit_append()
    assert content_of(client, journal) == (b"one;" if end == "commit_append" else b"")


@pytest.mark.parametrize("end", ["commit_append", "abort", "nothing"])
def test_a_reset_appender_is_as_new(client: Client, journal: str, end: str) -> None:
    """A reset drops what was written and not committed; then all begins again."""
    appender = client.appender(journal)
    appender.write(b"before;")
    if end != "nothing":
        getattr(appender, end)()
    appender.reset()
    assert appender.sent_bytes == 0
    appender.write(b"after;")
    appender.commit_append()
    assert content_of(client, journal) == b"before;" * (end == "commit_append") + b"after;"


# What only an append service does.


def test_an_abort_takes_back_one_writers_bytes(client: Client, journal: str) -> None:
    """Others of the same journal are appended, in the order of their starts."""
    with AppendService(client) as service:
        service.append(journal, b"kept;")
        with suppress(ZeroDivisionError), service.start_append(journal) as failing:
            failing.write(b"taken back;")
            raise ZeroDivisionError
        aborted = service.start_append(journal)
        aborted.write(b"so is this;")
        aborted.abort()
        last = service.append(journal, b"kept, too;")
    assert content_of(client, journal) == b"kept;kept, too;"
    assert last.span == (5, 15)
    assert isinstance(failing.exception(), ZeroDivisionError)
    assert isinstance(aborted.exception(), ClosedError)


def test_a_writer_has_the_journal_to_itself(client: Client, journal: str) -> None:
    """Whoever starts while another writes waits until that one has released; both land whole."""
    with AppendService(client) as service, ThreadPoolExecutor() as pool:
        first = service.start_append(journal)
        first.write(b"one ")
        begun = threading.Event()

        def append_other() -> None:
            begun.set()
            service.append(journal, b"other;").result(SOON_S)

        second = pool.submit(append_other)
        assert begun.wait(SOON_S)
        first.write(b"two;")
        first.release()
        second.result(SOON_S)
    assert content_of(client, journal) == b"one two;other;"
