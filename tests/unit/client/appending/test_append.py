"""Tests that an append is one transaction, which commits at its end and otherwise rolls back."""

from __future__ import annotations

import io
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from gazette_spark.client import Client
from gazette_spark.client._append.append import MAX_CONTENT_BYTES, AppendResult
from gazette_spark.errors import (
    AuthError,
    BrokerError,
    ClosedError,
    FragmentStoreUnhealthyError,
    GazetteError,
    NotAllowedError,
    ProtocolError,
    UnavailableError,
    WrongAppendOffsetError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import sum_to_pb
from gazette_spark.protocol.labels import label_set
from gazette_spark.testing.stub_broker import Act, Fail, Hang, StubBroker

JOURNAL = "a/journal"
SUM = bytes(range(20))


def committed(size: int, begin: int = 100, registers: pb.LabelSet | None = None) -> pb.AppendResponse:
    commit = pb.Fragment(
        journal=JOURNAL, begin=begin, end=begin + size, sum=sum_to_pb(SUM), compression_codec=pb.NONE
    )
    return pb.AppendResponse(commit=commit, registers=registers or pb.LabelSet())


def take(messages: list[pb.AppendRequest]) -> list[Act]:
    """Answer as a broker that follows the protocol."""
    if len(messages) < 2 or messages[-1] != pb.AppendRequest():
        return [Fail(grpc.StatusCode.UNKNOWN, "append stream: unexpected EOF")]
    return [committed(sum(len(message.content) for message in messages))]


def contents(stub: StubBroker, call: int = 0) -> list[bytes]:
    """Return the contents of a call's messages between the parameters and the empty end marker."""
    first, *middle, last = stub.requests("Append")[call]
    assert first.journal == JOURNAL
    assert not first.content
    assert last == pb.AppendRequest()
    assert all(message == pb.AppendRequest(content=message.content) for message in middle)
    return [message.content for message in middle]


def test_an_append_is_parameters_content_marker(stub: StubBroker, client: Client) -> None:
    stub.script("Append", take)
    result = client.append(JOURNAL, b"hello", offset=100)
    assert (result.begin, result.end, result.sum, result.registers) == (100, 105, SUM, pb.LabelSet())
    assert contents(stub) == [b"hello"]
    assert stub.requests("Append")[0][0].offset == 100


@pytest.mark.parametrize(
    "size", [MAX_CONTENT_BYTES - 1, MAX_CONTENT_BYTES, MAX_CONTENT_BYTES + 1, 5 * MAX_CONTENT_BYTES + 7]
)
def test_large_content_is_split(stub: StubBroker, client: Client, size: int) -> None:
    stub.script("Append", take)
    content = bytes(range(256)) * (size // 256 + 1)
    assert client.append(JOURNAL, content[:size]).end == 100 + size
    sent = contents(stub)
    assert b"".join(sent) == content[:size]
    assert all(0 < len(piece) <= MAX_CONTENT_BYTES for piece in sent)


def test_empty_pieces_are_left_out(stub: StubBroker, client: Client) -> None:
    """An empty message would end the append early."""
    stub.script("Append", take)
    client.append(JOURNAL, [b"", b"a", b"", b"b", b""])
    assert contents(stub) == [b"a", b"b"]


def test_registers_go_out_and_come_back(stub: StubBroker, client: Client) -> None:
    after = label_set({"author": "me"})
    stub.script("Append", [committed(1, registers=after)])
    check = pb.LabelSelector(include=label_set({"author": "you"}))
    result = client.append(
        JOURNAL,
        b"x",
        check_registers=check,
        union_registers=after,
        subtract_registers=label_set({"author": "you"}),
    )
    assert result.registers == after
    first = stub.requests("Append")[0][0]
    assert (first.check_registers, first.union_registers) == (check, after)
    assert first.subtract_registers == label_set({"author": "you"})


def test_absent_registers_stay_absent(stub: StubBroker, client: Client) -> None:
    stub.script("Append", take)
    client.append(JOURNAL, b"x")
    first = stub.requests("Append")[0][0]
    assert not any(first.HasField(f"{kind}_registers") for kind in ("check", "union", "subtract"))


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(Fail(), id="broken connection"),
        pytest.param(pb.AppendResponse(status=pb.NO_JOURNAL_PRIMARY_BROKER), id="no primary"),
        pytest.param(pb.AppendResponse(status=pb.NOT_JOURNAL_PRIMARY_BROKER), id="not the primary"),
        pytest.param(pb.AppendResponse(status=pb.INSUFFICIENT_JOURNAL_BROKERS), id="too few brokers"),
        pytest.param(Fail(grpc.StatusCode.UNKNOWN, "ProcessId doesn't match"), id="stale process"),
    ],
)
def test_what_may_pass_is_tried_again(stub: StubBroker, client: Client, failure: Act, attempts: int) -> None:
    stub.script("Append", *[[failure]] * attempts, take)
    assert client.append(JOURNAL, [b"ab", b"c"]).end == 103
    assert len(stub.requests("Append")) == attempts + 1
    assert contents(stub, attempts) == [b"ab", b"c"]


FAILURES: dict[str, tuple[Act, type[GazetteError]]] = {
    "refused token": (Fail(grpc.StatusCode.UNAUTHENTICATED, "no"), AuthError),
    "unknown failure": (Fail(grpc.StatusCode.UNKNOWN, "append stream: too slow"), BrokerError),
    "wrong offset": (pb.AppendResponse(status=pb.WRONG_APPEND_OFFSET), WrongAppendOffsetError),
    "read-only": (pb.AppendResponse(status=pb.NOT_ALLOWED), NotAllowedError),
    "sick store": (
        pb.AppendResponse(status=pb.FRAGMENT_STORE_UNHEALTHY, store_health_error="disk full"),
        FragmentStoreUnhealthyError,
    ),
    "no commit": (pb.AppendResponse(registers=pb.LabelSet()), ProtocolError),
    "no registers": (pb.AppendResponse(commit=committed(1).commit), ProtocolError),
    "a commit of another size": (committed(2), ProtocolError),
    "an unknown status": (pb.AppendResponse(status=99), ProtocolError),  # type: ignore[arg-type]  # No known status.
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_does_not_heal_fails_at_once(stub: StubBroker, client: Client, name: str) -> None:
    act, error = FAILURES[name]
    stub.script("Append", [act])
    with pytest.raises(error):
        client.append(JOURNAL, b"x")
    assert len(stub.requests("Append")) == 1


def test_an_early_answer_counts(stub: StubBroker, client: Client) -> None:
    """If a broker answers before all content is sent, raise its status, not the failed send."""
    stub.answer_early("Append")
    stub.script("Append", [pb.AppendResponse(status=pb.NOT_ALLOWED)])
    with pytest.raises(NotAllowedError):
        client.append(JOURNAL, [bytes(MAX_CONTENT_BYTES)] * 64)


def test_an_early_commit_is_a_lie(stub: StubBroker, client: Client) -> None:
    """A broker cannot have committed an append that was not finished."""
    stub.answer_early("Append")
    stub.script("Append", [committed(0)])
    with pytest.raises(ProtocolError):
        client.append(JOURNAL, [bytes(MAX_CONTENT_BYTES)] * 64)


def test_a_hung_broker_is_unavailable_within_the_deadline(stub: StubBroker, client: Client) -> None:
    stub.script("Append", [Hang()])
    started = time.monotonic()
    with pytest.raises(UnavailableError):
        client.append(JOURNAL, b"x", timeout_s=0.4)
    assert time.monotonic() - started < 10


def test_a_hung_broker_does_not_hold_up_a_large_append(stub: StubBroker, client: Client) -> None:
    stub.answer_early("Append")
    stub.script("Append", [Hang()])
    started = time.monotonic()
    with pytest.raises(UnavailableError):
        client.append(JOURNAL, [bytes(MAX_CONTENT_BYTES)] * 64, timeout_s=0.4)
    assert time.monotonic() - started < 10


def test_an_iterator_is_sent_once(stub: StubBroker, client: Client) -> None:
    """An iterator cannot be restarted, so the append is not retried."""
    stub.script("Append", [Fail()], take)
    with pytest.raises(UnavailableError):
        client.append(JOURNAL, iter([b"a", b"b"]))
    assert len(stub.requests("Append")) == 1


def test_an_appender_shows_request_and_response(stub: StubBroker, client: Client) -> None:
    answer = committed(3)
    answer.total_chunks = 2
    stub.script("Append", [answer], [pb.AppendResponse(status=pb.NOT_ALLOWED)])
    appender = client.appender(JOURNAL, offset=100)
    assert appender.request == pb.AppendRequest(journal=JOURNAL, offset=100)
    assert appender.response is None
    appender.write(b"one")
    appender.commit_append()
    assert appender.response == answer
    appender.reset()
    assert appender.response is None
    appender.write(b"two")
    with pytest.raises(NotAllowedError):
        appender.commit_append()
    assert appender.response == pb.AppendResponse(status=pb.NOT_ALLOWED)


def test_an_appender_splits_a_large_write(stub: StubBroker, client: Client) -> None:
    """A broker accepts at most 4 MiB per message."""
    stub.script("Append", take)
    content = bytes(range(256)) * (4 * MAX_CONTENT_BYTES // 256) + b"!"
    with client.appender(JOURNAL) as appender:
        assert appender.write(content) == len(content)
        appender.commit_append()
    sent = contents(stub)
    assert [len(piece) for piece in sent] == [MAX_CONTENT_BYTES] * 4 + [1]
    assert b"".join(sent) == content


def test_suspension_revision_and_proxying_are_passed_on(stub: StubBroker, client: Client) -> None:
    stub.script("Append", take)
    client.append(JOURNAL, b"", suspend=pb.AppendRequest.SUSPEND_KEEP, min_etcd_revision=7, do_not_proxy=True)
    client.append(JOURNAL, b"")
    asked, plain = (call[0] for call in stub.requests("Append"))
    assert asked == pb.AppendRequest(
        journal=JOURNAL, suspend=pb.AppendRequest.SUSPEND_KEEP, min_etcd_revision=7, do_not_proxy=True
    )
    assert plain == pb.AppendRequest(journal=JOURNAL)


@pytest.mark.parametrize("as_list", [False, True], ids=["alone", "among others"])
def test_files_are_read_from_their_first_byte_each_time(
    stub: StubBroker, client: Client, tmp_path: Path, as_list: bool
) -> None:
    """A retry sends the whole file, regardless of its current position."""
    path = tmp_path / "content"
    path.write_bytes(b"file" * MAX_CONTENT_BYTES)
    stub.script("Append", [Fail()], take)
    with path.open("rb") as file:
        file.seek(17)
        client.append(JOURNAL, [b"before", file, io.BytesIO(b"after")] if as_list else file)
    expected = path.read_bytes()
    assert b"".join(contents(stub, 1)) == (b"before" + expected + b"after" if as_list else expected)


def test_a_pipe_is_sent_once(stub: StubBroker, client: Client) -> None:
    """A pipe cannot be read again, so the append is not retried."""
    stub.script("Append", [Fail()], take)
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as end:
        end.write(b"once")
    with os.fdopen(reader, "rb") as pipe, pytest.raises(UnavailableError):
        client.append(JOURNAL, pipe)
    assert len(stub.requests("Append")) == 1


def test_an_abort_from_another_thread_ends_an_append(stub: StubBroker, client: Client) -> None:
    stub.answer_early("Append")
    stub.script("Append", [Hang()])
    appender = client.appender(JOURNAL)
    appender.write(b"x")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(appender.commit_append)
        appender.abort()
        with pytest.raises((UnavailableError, ClosedError)):
            waiting.result(10)


def test_an_appender_is_not_started_by_its_making(stub: StubBroker, client: Client) -> None:
    """The broker enforces its minimum rate from the start of the call."""
    client.appender(JOURNAL).abort()
    assert stub.requests("Append") == []


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"journal": "../x"}, id="journal that goes up"),
        pytest.param({"offset": -1}, id="negative offset"),
        pytest.param({"min_etcd_revision": -1}, id="negative revision"),
        pytest.param({"suspend": 99}, id="unknown suspension"),
        pytest.param({"union_registers": pb.LabelSet(labels=[pb.Label(name="x")])}, id="bad register"),
    ],
)
def test_bad_appends_are_refused_before_sending(
    stub: StubBroker, client: Client, keys: dict[str, object]
) -> None:
    with pytest.raises(ProtocolError):
        client.append(**({"journal": JOURNAL, "content": b"x"} | keys))  # type: ignore[arg-type]  # Fields by name, of mixed types.
    assert stub.requests("Append") == []


def test_a_result_shows_its_digest_as_people_write_it() -> None:
    bare = AppendResult(0, 3, SUM, pb.LabelSet())
    assert repr(bare) == f"AppendResult(begin=0, end=3, sha1={SUM.hex()})"
    assert repr(AppendResult(0, 3, SUM, label_set({"author": "a"}))).endswith(", registers={author=a})")
