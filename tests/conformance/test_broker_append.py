"""Both brokers accept, refuse and roll back appends alike: stream grammar, checks, registers."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import CALL_TIMEOUT_S, COMMIT, Wire, labels, selector, spec, upsert


def sha1(content: bytes) -> pb.SHA1Sum:
    digest = hashlib.sha1(content).digest()
    part1, part2, part3 = (int.from_bytes(digest[a:b], "big") for a, b in ((0, 8), (8, 16), (16, 20)))
    return pb.SHA1Sum(part1=part1, part2=part2, part3=part3)


def author(name: str) -> pb.LabelSet:
    return labels(("author", name))


@pytest.mark.parametrize(
    ("contents", "committed"),
    [
        pytest.param([b"one\n"], b"one\n", id="one-chunk"),
        pytest.param([b"on", b"e\n", b"two\n"], b"one\ntwo\n", id="several-chunks"),
        pytest.param([b"x" * 1_000_000] * 3, b"x" * 3_000_000, id="megabytes"),
    ],
)
def test_append_commits_all_its_chunks(
    wire: Wire, journal: str, contents: list[bytes], committed: bytes
) -> None:
    response = wire.append(journal, *contents)
    assert response.status == pb.OK
    assert (response.commit.begin, response.commit.end) == (0, len(committed))
    assert response.commit.journal == journal
    assert response.commit.sum == sha1(committed)
    assert response.HasField("registers")
    assert wire.content(journal) == committed


def test_response_names_the_primary(wire: Wire, journal: str) -> None:
    header = wire.append(journal, b"x\n").header
    assert header.route.primary >= 0
    assert len(header.route.members) == len(header.route.endpoints)
    assert header.process_id == header.route.members[header.route.primary]
    assert header.etcd.cluster_id
    assert header.etcd.member_id
    assert header.etcd.revision > 0
    assert header.etcd.raft_term > 0


def test_appends_are_contiguous(wire: Wire, journal: str) -> None:
    ends = [wire.append(journal, b"x" * size).commit for size in (5, 1, 100)]
    assert [(each.begin, each.end) for each in ends] == [(0, 5), (5, 6), (6, 106)]


def test_empty_append_is_a_barrier(wire: Wire, journal: str) -> None:
    wire.append(journal, b"12345")
    commit = wire.append(journal).commit
    assert (commit.begin, commit.end) == (5, 5)
    assert commit.sum == sha1(b"")


def test_end_of_stream_without_marker_rolls_back(wire: Wire, journal: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.send([pb.AppendRequest(journal=journal), pb.AppendRequest(content=b"lost")])
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert "unexpected EOF" in (caught.value.details() or "")
    assert wire.head(journal) == 0


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(COMMIT, id="second-marker"),
        pytest.param(pb.AppendRequest(content=b"late"), id="content"),
    ],
)
def test_anything_after_the_marker_rolls_back(wire: Wire, journal: str, after: pb.AppendRequest) -> None:
    messages = [pb.AppendRequest(journal=journal), pb.AppendRequest(content=b"lost"), COMMIT, after]
    with pytest.raises(grpc.RpcError) as caught:
        wire.send(messages)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert "expected EOF after empty Content chunk" in (caught.value.details() or "")
    assert wire.head(journal) == 0


def test_cancel_rolls_back(wire: Wire, journal: str) -> None:
    cancelled = threading.Event()
    sent = threading.Event()

    def messages() -> Iterator[pb.AppendRequest]:
        yield pb.AppendRequest(journal=journal)
        yield pb.AppendRequest(content=b"lost")
        sent.set()
        cancelled.wait(CALL_TIMEOUT_S)

    call = wire.stub.Append.future(messages(), timeout=CALL_TIMEOUT_S)
    assert sent.wait(CALL_TIMEOUT_S)
    call.cancel()  # type: ignore[no-untyped-call]  # its stub has no types
    cancelled.set()
    assert wire.head(journal) == 0
    assert wire.append(journal, b"kept").commit.begin == 0


def test_append_in_flight_is_invisible(wire: Wire, journal: str) -> None:
    go_on = threading.Event()
    sent = threading.Event()
    chunks: list[bytes] = []

    def messages() -> Iterator[pb.AppendRequest]:
        yield pb.AppendRequest(journal=journal)
        # Keep sending, because a broker ends an append that stalls for a second.
        while not chunks or not go_on.wait(0.05):
            chunks.append(b"soon" * 5_000)
            yield pb.AppendRequest(content=chunks[-1])
            sent.set()
        yield COMMIT

    call = wire.stub.Append.future(messages(), timeout=CALL_TIMEOUT_S)
    assert sent.wait(CALL_TIMEOUT_S)
    assert wire.content(journal) == b""
    go_on.set()
    assert call.result(CALL_TIMEOUT_S).status == pb.OK
    assert wire.content(journal) == b"".join(chunks)


def test_concurrent_appends_do_not_mix(wire: Wire, journal: str) -> None:
    letters = [bytes([letter]) for letter in b"abcdefgh"]
    calls = [
        wire.stub.Append.future(
            iter([pb.AppendRequest(journal=journal), *[pb.AppendRequest(content=each * 1000)] * 5, COMMIT]),
            timeout=CALL_TIMEOUT_S,
        )
        for each in letters
    ]
    spans = sorted((call.result().commit.begin, call.result().commit.end) for call in calls)
    assert spans == [(5000 * i, 5000 * (i + 1)) for i in range(len(letters))]
    content = wire.content(journal)
    pieces = {content[begin:end] for begin, end in spans}
    assert pieces == {letter * 5000 for letter in letters}


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        pytest.param(
            [pb.AppendRequest(journal="JOURNAL", content=b"x")], "unexpected Content", id="content-in-first"
        ),
        pytest.param(
            [pb.AppendRequest(journal="JOURNAL", offset=-1)], "invalid Offset", id="negative-offset"
        ),
        pytest.param([pb.AppendRequest(journal="/bad/name")], "Journal", id="bad-name"),
        pytest.param(
            [pb.AppendRequest(journal="JOURNAL"), pb.AppendRequest(journal="JOURNAL"), COMMIT],
            "expected Content chunk",
            id="parameters-twice",
        ),
        pytest.param(
            [pb.AppendRequest(journal="JOURNAL"), pb.AppendRequest(journal="JOURNAL", content=b"x"), COMMIT],
            "unexpected Content",
            id="parameters-twice-with-content",
        ),
    ],
)
def test_malformed_append_is_refused(
    wire: Wire, journal: str, messages: list[pb.AppendRequest], text: str
) -> None:
    sent = []
    for message in messages:
        copy = pb.AppendRequest()
        copy.CopyFrom(message)
        if copy.journal == "JOURNAL":
            copy.journal = journal
        sent.append(copy)
    with pytest.raises(grpc.RpcError) as caught:
        wire.send(sent)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert text in (caught.value.details() or "")
    assert wire.head(journal) == 0


def test_unknown_journal(wire: Wire, journal_name: str) -> None:
    assert wire.append(journal_name, b"x").status == pb.JOURNAL_NOT_FOUND


def test_offset_must_be_the_write_head(wire: Wire, journal: str) -> None:
    wire.append(journal, b"12345")
    assert wire.append(journal, b"x", offset=4).status == pb.WRONG_APPEND_OFFSET
    assert wire.append(journal, b"x", offset=6).status == pb.WRONG_APPEND_OFFSET
    taken = wire.append(journal, b"x", offset=5)
    assert taken.status == pb.OK
    assert (taken.commit.begin, taken.commit.end) == (5, 6)


def test_read_only_journal_takes_barriers_only(wire: Wire, journal_name: str) -> None:
    wire.create(spec(journal_name, flags=pb.JournalSpec.O_RDONLY))
    assert wire.append(journal_name, b"x").status == pb.NOT_ALLOWED
    assert wire.append(journal_name).status == pb.OK


def test_message_over_four_mebibytes_is_refused(wire: Wire, journal: str) -> None:
    """Gazette answers RESOURCE_EXHAUSTED to a content chunk of 4 MiB."""
    with pytest.raises(grpc.RpcError) as caught:
        wire.append(journal, b"x" * (4 << 20))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert wire.head(journal) == 0


def test_empty_registers_match_every_check(wire: Wire, journal: str) -> None:
    response = wire.append(journal, b"x", check_registers=selector(author("nobody")))
    assert response.status == pb.OK
    assert not response.registers.labels


def test_registers_fence_off_a_writer(wire: Wire, journal: str) -> None:
    mine, other = author("mine"), author("other")
    assert wire.append(journal, b"1", union_registers=mine).registers == mine
    assert wire.append(journal, b"2", check_registers=selector(mine)).status == pb.OK
    assert wire.append(journal, b"3", union_registers=other).registers == other
    fenced = wire.append(journal, b"4", check_registers=selector(mine))
    assert fenced.status == pb.REGISTER_MISMATCH
    assert fenced.registers == other
    assert wire.content(journal) == b"123"


def test_union_replaces_and_subtract_needs_equal_values(wire: Wire, journal: str) -> None:
    both = labels(("author", "a"), ("color", "red"), ("color", "blue"))
    assert wire.append(journal, b"1", union_registers=both).registers == both
    kept = wire.append(journal, b"2", subtract_registers=labels(("color", "red"))).registers
    assert kept == both
    gone = wire.append(
        journal, b"3", subtract_registers=labels(("color", "red"), ("color", "blue"))
    ).registers
    assert gone == author("a")
    assert wire.append(journal, b"4", union_registers=author("b")).registers == author("b")


def test_registers_need_content(wire: Wire, journal: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.append(journal, union_registers=author("me"))
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert "register modification requires non-empty Append" in (caught.value.details() or "")
    assert not wire.append(journal).registers.labels


def test_excluding_check(wire: Wire, journal: str) -> None:
    wire.append(journal, b"1", union_registers=author("me"))
    check = selector(exclude=author("me"))
    assert wire.append(journal, b"2", check_registers=check).status == pb.REGISTER_MISMATCH
    assert wire.append(journal, b"2", check_registers=selector(exclude=author("you"))).status == pb.OK


def test_stalled_append_is_ended(wire: Wire, journal: str) -> None:
    """The broker aborts a client that is silent for over a second, and rolls its bytes back."""
    stalled = threading.Event()

    def messages() -> Iterator[pb.AppendRequest]:
        yield pb.AppendRequest(journal=journal)
        yield pb.AppendRequest(content=b"slow")
        stalled.wait(CALL_TIMEOUT_S)

    with pytest.raises(grpc.RpcError) as caught:
        wire.send(messages())
    stalled.set()
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert "didn't sustain the minimum append data rate" in (caught.value.details() or "")
    assert wire.head(journal) == 0


def test_dripping_append_is_ended(wire: Wire, journal: str) -> None:
    over = threading.Event()

    def messages() -> Iterator[pb.AppendRequest]:
        yield pb.AppendRequest(journal=journal)
        for _ in range(250):
            yield pb.AppendRequest(content=b"x")
            if over.wait(0.02):
                return

    with pytest.raises(grpc.RpcError) as caught:
        wire.send(messages())
    over.set()
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert "didn't sustain the minimum append data rate" in (caught.value.details() or "")
    assert wire.head(journal) == 0


def test_a_journal_deleted_takes_no_appends(wire: Wire, journal: str) -> None:
    wire.append(journal, b"x")
    revision = wire.list(selector(labels(("name", journal))))[0].mod_revision
    assert wire.apply(pb.ApplyRequest.Change(expect_mod_revision=revision, delete=journal)).status == pb.OK
    assert wire.append(journal, b"x").status == pb.JOURNAL_NOT_FOUND
    assert wire.read(journal)[0].status == pb.JOURNAL_NOT_FOUND


def test_spec_without_suspend_keeps_offsets(wire: Wire, journal: str) -> None:
    wire.append(journal, b"12345")
    changed = spec(journal, length=1 << 20)
    assert wire.apply(upsert(changed, -1)).status == pb.OK
    assert wire.append(journal, b"6").commit.begin == 5


def suspension(wire: Wire, name: str) -> tuple[int, int]:
    """Return the suspension level of a journal, and the offset in its spec."""
    found = wire.list(selector(labels(("name", name))))[0].spec.suspend
    return found.level, found.offset


Suspend = pb.JournalSpec.Suspend


@pytest.fixture
def suspended(wire: Wire, journal: str) -> str:
    wire.append(journal, b"12345", union_registers=author("me"))
    assert wire.append(journal, suspend=pb.AppendRequest.SUSPEND_NOW).status == pb.SUSPENDED
    assert suspension(wire, journal) == (Suspend.PARTIAL, 5)
    return journal


@pytest.mark.parametrize(
    ("request_fields", "status"),
    [
        pytest.param({"check_registers": selector(author("you"))}, pb.REGISTER_MISMATCH, id="registers"),
        pytest.param({"offset": 3}, pb.WRONG_APPEND_OFFSET, id="offset"),
        pytest.param(
            {"check_registers": selector(author("you")), "suspend": pb.AppendRequest.SUSPEND_NO_RESUME},
            pb.REGISTER_MISMATCH,
            id="registers-before-suspension",
        ),
        pytest.param(
            {"offset": 3, "suspend": pb.AppendRequest.SUSPEND_NO_RESUME},
            pb.WRONG_APPEND_OFFSET,
            id="offset-before-suspension",
        ),
        pytest.param({"suspend": pb.AppendRequest.SUSPEND_NO_RESUME}, pb.SUSPENDED, id="suspension"),
    ],
)
def test_a_refused_append_leaves_the_suspension(
    wire: Wire, suspended: str, request_fields: dict[str, Any], status: int
) -> None:
    """Registers are checked first, then the offset, then the suspension. A refused append resumes nothing."""
    assert wire.append(suspended, b"x", **request_fields).status == status
    assert suspension(wire, suspended) == (Suspend.PARTIAL, 5)
    assert wire.append(suspended, b"6", check_registers=selector(author("me"))).commit.begin == 5
    assert suspension(wire, suspended) == (Suspend.NONE, 5)


@pytest.mark.parametrize(
    ("recorded", "begin"), [pytest.param(2, 5, id="below-the-head"), pytest.param(99, 99, id="past-the-head")]
)
def test_a_resume_records_the_write_head(wire: Wire, journal: str, recorded: int, begin: int) -> None:
    """A resumed journal continues at the recorded offset or its write head, and records which."""
    wire.append(journal, b"12345")
    changed = spec(journal, suspend=Suspend(level=Suspend.PARTIAL, offset=recorded))
    assert wire.apply(upsert(changed, -1)).status == pb.OK
    wire.wait_assigned(journal)
    assert wire.append(journal, b"6").commit.begin == begin
    assert suspension(wire, journal) == (Suspend.NONE, begin)


def test_chunks_over_the_maximum_rate_are_delayed(wire: Wire, journal_name: str) -> None:
    wire.create(spec(journal_name, max_append_rate=400_000))
    contents = [bytes([65 + number]) * 100_000 for number in range(6)]
    response = wire.append(journal_name, *contents)
    assert (response.status, response.commit.begin, response.commit.end) == (pb.OK, 0, 600_000)
    assert response.total_chunks == 7
    assert 0 < response.delayed_chunks < 6
    assert wire.content(journal_name) == b"".join(contents)


def test_a_maximum_below_the_minimum_rate_does_not_abort(wire: Wire, journal_name: str) -> None:
    """The broker must not take its own delay for a client that is too slow."""
    wire.create(spec(journal_name, max_append_rate=10_000))
    response = wire.append(journal_name, b"x" * 22_000)
    assert (response.status, response.delayed_chunks) == (pb.OK, 1)
