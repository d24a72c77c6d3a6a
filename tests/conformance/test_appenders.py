"""What appending promises, whether by a call of a client, an appender, or an append service.

Each test runs on every kind of broker, and each way of appending has to give the same result or the same
error. Tests of only one way follow below. What a broker cannot be made to do (a hung stream, a false answer)
is tested on scripted brokers, in ``tests/unit/client/appending``.
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
"""Maximum seconds until an expected event."""

MIB = 1 << 20

Append = Callable[..., AppendResult]
"""Function ``append(journal, *pieces, **options)`` that returns the result or raises the error."""


def by_client(
    client: Client, journal: str, *pieces: bytes, **options: Unpack[AppendKeywords]
) -> AppendResult:
    return client.append(journal, pieces, **options)


def by_appender(
    client: Client, journal: str, *pieces: bytes, **options: Unpack[AppendKeywords]
) -> AppendResult:
    deadline = time.monotonic() + SOON_S
    with client.appender(journal, **options) as appender:
        while True:
            for piece in pieces:
                appender.write(piece)
            try:
                return appender.commit_append()
            except NoJournalPrimaryBrokerError:
                # An appender makes a single call without a retry, and a journal that is being resumed has
                # no primary for a moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
                appender.reset()


def by_service(
    client: Client, journal: str, *pieces: bytes, **options: Unpack[AppendKeywords]
) -> AppendResult:
    service = AppendService(client, timeout_s=client.timeout_s)
    try:
        with service.start_append(journal, **options) as started:
            for piece in pieces:
                started.write(piece)
        return started.result(SOON_S)
    finally:
        # A plain close would raise again a failure that this caller has already received.
        service.close(abort=True)


WAYS = {"client": by_client, "appender": by_appender, "service": by_service}


@pytest.fixture(params=WAYS)
def append(client: Client, request: pytest.FixtureRequest) -> Append:
    way = WAYS[request.param]
    return lambda journal, *pieces, **options: way(client, journal, *pieces, **options)


def content_of(client: Client, journal: str) -> bytes:
    return client.read(journal, end_offset=client.write_head(journal)).read() or b""


def held_by(author: str) -> pb.LabelSelector:
    return pb.LabelSelector(include=label_set({"author": author}))


def test_an_append_tells_where_its_bytes_are(append: Append, client: Client, journal: str) -> None:
    append(journal, b"before;")
    result = append(journal, b"", b"one;", b"", b"two;", b"")
    assert (result.begin, result.end) == (7, 15)
    assert result.sum == hashlib.sha1(b"one;two;").digest()
    assert content_of(client, journal) == b"before;one;two;"


def test_an_append_may_be_larger_than_a_message(append: Append, client: Client, journal: str) -> None:
    """Nine MiB are more than a broker accepts in one message."""
    content = bytes(range(256)) * (9 * MIB // 256) + b"!"
    result = append(journal, content)
    assert (result.begin, result.end) == (0, len(content))
    assert content_of(client, journal) == content


def test_an_append_of_nothing_is_a_barrier(append: Append, journal: str) -> None:
    append(journal, b"four")
    for pieces in ((), (b"",)):
        result = append(journal, *pieces)
        assert (result.begin, result.end) == (4, 4)


def test_registers_fence_a_writer_off(append: Append, client: Client, journal: str) -> None:
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
    """Brokers store registers together with content, so Gazette refuses a change without any."""
    with pytest.raises(ProtocolError, match="non-empty Append"):
        append(journal, union_registers=label_set({"author": "me"}))
    assert append(journal, b"x").registers == pb.LabelSet()


def test_an_offset_has_to_be_the_write_head(append: Append, client: Client, journal: str) -> None:
    append(journal, b"first;")
    assert append(journal, b"second;", offset=6).begin == 6
    with pytest.raises(WrongAppendOffsetError):
        append(journal, b"third;", offset=6)
    assert content_of(client, journal) == b"first;second;"


def test_no_append_to_a_journal_that_takes_none(append: Append, client: Client, fresh_prefix: str) -> None:
    closed = journal_spec(f"{fresh_prefix}closed")
    closed.flags = pb.JournalSpec.O_RDONLY
    client.create_journals(closed)
    with pytest.raises(JournalNotFoundError, match=f"{fresh_prefix}missing"):
        append(f"{fresh_prefix}missing", b"x")
    with pytest.raises(NotAllowedError, match=f"{fresh_prefix}closed"):
        append(closed.name, b"x")


def test_a_journal_is_suspended_and_resumed(append: Append, client: Client, journal: str) -> None:
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
    revision = client.list_all_journals(f"prefix={fresh_prefix}").revision
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(append, journal, b"then;", min_etcd_revision=revision + 1)
        client.create_journals(journal_spec(f"{fresh_prefix}late"))
        assert waiting.result(SOON_S).end == 5


@pytest.mark.parametrize("broker", ["embedded", "cluster"], indirect=True)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_append_waits_in_vain_for_a_revision(broker: BrokerHandle, journal: str, way: Append) -> None:
    """Gazette v0.103.0 does not know the field, so it would append immediately."""
    with Client(broker.endpoint, timeout_s=1) as hasty:
        with pytest.raises(UnavailableError):
            way(hasty, journal, b"never;", min_etcd_revision=1_000_000)
        assert hasty.write_head(journal) == 0


# Calls of a client only.


def test_an_error_of_the_callers_iterator_rolls_back(client: Client, journal: str) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"taken back;"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.append(journal, pieces())
    client.append(journal, b"later;")
    assert content_of(client, journal) == b"later;"


def test_a_file_is_appended_from_its_first_byte(client: Client, journal: str, tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"file" * MIB)
    with path.open("rb") as file:
        file.seek(17)
        client.append(journal, [b"before", file, io.BytesIO(b"after")])
    assert content_of(client, journal) == b"before" + path.read_bytes() + b"after"


# Appenders only.


def test_an_appender_left_open_aborts(client: Client, journal: str) -> None:
    with client.appender(journal) as appender:
        appender.write(b"taken back;")
    client.append(journal, b"later;")
    assert content_of(client, journal) == b"later;"


@pytest.mark.parametrize("end", ["commit_append", "abort"])
def test_a_finished_appender_takes_no_more(client: Client, journal: str, end: str) -> None:
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
    appender = client.appender(journal)
    appender.write(b"before;")
    if end != "nothing":
        getattr(appender, end)()
    appender.reset()
    assert appender.sent_bytes == 0
    appender.write(b"after;")
    appender.commit_append()
    assert content_of(client, journal) == b"before;" * (end == "commit_append") + b"after;"


# Append services only.


def test_an_abort_takes_back_one_writers_bytes(client: Client, journal: str) -> None:
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
