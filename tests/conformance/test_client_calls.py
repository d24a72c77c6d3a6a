"""The client's calls behave the same on the embedded and on the real broker."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from gazette_spark import Client
from gazette_spark.client import journal_spec
from gazette_spark.client._read import heads
from gazette_spark.client._read.heads import SettledHead
from gazette_spark.errors import (
    EtcdTransactionFailedError,
    FlowControlError,
    JournalNotFoundError,
    NotAllowedError,
    OffsetNotYetAvailableError,
    RegisterMismatchError,
    SuspendedError,
    UnavailableError,
    WrongAppendOffsetError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set
from tests.conformance.wire import wait_for
from tests.rig.brokers import BrokerHandle
from tests.rig.upkeep import suspend_journal

pytestmark = pytest.mark.brokers("embedded", "deployed")

LINES = [b'{"line": %d}\n' % index for index in range(1000)]


@pytest.fixture
def journal(client: Client, journal_name: str) -> str:
    client.create_journals(journal_spec(journal_name, codec="GZIP"))
    return journal_name


def selector(**labels: str) -> pb.LabelSelector:
    return pb.LabelSelector(include=label_set(labels))


def test_a_created_journal_takes_appends_at_once(client: Client, journal: str) -> None:
    assert client.write_head(journal) == 0
    assert client.first_offset(journal) == 0
    listed = client.get_journal(journal)
    assert listed.spec.name == journal
    assert listed.mod_revision > 0
    assert client.append(journal, b"x").begin == 0


@pytest.mark.parametrize("suspended", [False, True])
def test_the_first_offset_of_a_journal_that_gets_its_first_bytes(
    client: Client, journal: str, monkeypatch: pytest.MonkeyPatch, *, suspended: bool
) -> None:
    """A query that takes up a new journal must not begin after bytes that are appended at this moment."""
    head_request = heads.head_request
    if suspended:
        with pytest.raises(SuspendedError):
            client.append(journal, b"", suspend=pb.AppendRequest.SUSPEND_NOW)

    def append_first(name: str) -> pb.ReadRequest:
        client.append(name, LINES[0])
        return head_request(name)

    monkeypatch.setattr(heads, "head_request", append_first)
    assert client.first_offset(journal) == 0
    assert client.write_head(journal) == 2 * len(LINES[0])


def test_list_by_prefix_and_label(client: Client, fresh_prefix: str) -> None:
    specs = [
        journal_spec(f"{fresh_prefix}part-{index}", labels={"app.gazette.dev/tag": f"tag-{index % 2}"})
        for index in range(60)
    ]
    client.create_journals(*specs)
    names = sorted(spec.name for spec in specs)
    assert [each.spec.name for each in client.list_journals(f"prefix={fresh_prefix}")] == names
    tagged = client.list_journals(f"name:prefix={fresh_prefix},app.gazette.dev/tag=tag-1")
    assert [each.spec.name for each in tagged] == [name for name in names if int(name[-2:].strip("-")) % 2]
    heads = client.write_heads(names)
    assert heads == dict.fromkeys(names, 0)


def test_unknown_journals_are_named(client: Client, journal_name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: client.get_journal(journal_name),
        lambda: client.write_head(journal_name),
        lambda: client.first_offset(journal_name),
        lambda: client.append(journal_name, b"x"),
        lambda: client.read(journal_name).read(),
        lambda: client.list_fragments(journal_name),
    ]
    for call in calls:
        with pytest.raises(JournalNotFoundError, match=journal_name):
            call()


def test_creating_twice_is_refused(client: Client, journal: str) -> None:
    before = client.get_journal(journal)
    with pytest.raises(EtcdTransactionFailedError, match=journal):
        client.create_journals(journal_spec(journal, codec="SNAPPY"))
    assert client.get_journal(journal).mod_revision == before.mod_revision


def test_specs_are_changed_and_deleted_by_revision(client: Client, journal: str) -> None:
    listed = client.get_journal(journal)
    spec = pb.JournalSpec()
    spec.CopyFrom(listed.spec)
    spec.fragment.length = 1 << 20
    old = listed.mod_revision
    revision = client.apply([pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=old)])
    assert revision > old
    assert client.get_journal(journal).spec.fragment.length == 1 << 20
    with pytest.raises(EtcdTransactionFailedError):
        client.apply([pb.ApplyRequest.Change(delete=journal, expect_mod_revision=old)])
    client.apply([pb.ApplyRequest.Change(delete=journal, expect_mod_revision=-1)])
    assert client.list_journals(selector(name=journal)) == []


def test_appends_are_contiguous(client: Client, journal: str) -> None:
    position = 0
    for line in LINES[:20]:
        result = client.append(journal, line)
        assert (result.begin, result.end) == (position, position + len(line))
        assert result.sum == hashlib.sha1(line, usedforsecurity=False).digest()
        position = result.end
    assert client.write_head(journal) == position
    assert client.read(journal, end_offset=position).read() == b"".join(LINES[:20])


def test_a_large_append_is_one(client: Client, journal: str) -> None:
    block = bytes(range(256)) * 4096
    result = client.append(journal, [block] * 10)
    assert (result.begin, result.end) == (0, 10 * len(block))
    assert client.read(journal, end_offset=result.end).read() == block * 10


def test_an_aborted_append_leaves_nothing(client: Client, journal: str) -> None:
    with client.appender(journal) as appender:
        appender.write(b"rolled back\n")
    appender = client.appender(journal)
    appender.write(b"rolled back too\n")
    appender.abort()
    result = client.append(journal, b"committed\n")
    assert result.begin == 0
    assert client.read(journal, end_offset=result.end).read() == b"committed\n"


def test_an_empty_append_is_a_barrier(client: Client, journal: str) -> None:
    client.append(journal, b"12345")
    result = client.append(journal, b"")
    assert (result.begin, result.end) == (5, 5)
    assert result.sum.hex() == "da39a3ee5e6b4b0d3255bfef95601890afd80709"


def test_a_head_that_is_too_low_is_confirmed(client: Client, journal: str) -> None:
    """The replicas confirm their end immediately, and a suspended journal stays suspended."""
    end = client.append(journal, b"12345").end
    asked = {journal: end + 1}
    assert client.settled_heads(asked) == {journal: SettledHead(end)}
    wait_for(lambda: suspend_journal(client, journal), "suspension")
    suspension = client.get_journal(journal).spec.suspend
    assert client.settled_heads(asked) == {journal: SettledHead(end)}
    assert client.get_journal(journal).spec.suspend == suspension
    assert suspension.level == pb.JournalSpec.Suspend.PARTIAL


def test_an_append_at_an_offset(client: Client, journal: str) -> None:
    client.append(journal, b"12345")
    assert client.append(journal, b"6", offset=5).end == 6
    for wrong in (5, 7):
        with pytest.raises(WrongAppendOffsetError, match=journal):
            client.append(journal, b"7", offset=wrong)
    assert client.write_head(journal) == 6


def test_registers_fence_a_writer(client: Client, journal: str) -> None:
    mine, theirs = label_set({"author": "mine"}), label_set({"author": "theirs"})
    held = client.append(journal, b"a", check_registers=selector(author="mine"), union_registers=mine)
    assert held.registers == mine
    client.append(journal, b"b", check_registers=selector(author="mine"))
    assert client.append(journal, b"c", union_registers=theirs).registers == theirs
    with pytest.raises(RegisterMismatchError, match="author=theirs"):
        client.append(journal, b"d", check_registers=selector(author="mine"))
    assert client.append(journal, b"e", subtract_registers=theirs).registers == pb.LabelSet()
    assert client.read(journal, end_offset=4).read() == b"abce"


@pytest.mark.parametrize(("flags", "writes"), [(1, False), (2, True)], ids=["read-only", "write-only"])
def test_flags_forbid(client: Client, journal_name: str, flags: int, writes: bool) -> None:
    spec = journal_spec(journal_name)
    spec.flags = flags
    client.create_journals(spec)
    if writes:
        client.append(journal_name, b"x")
        with pytest.raises(NotAllowedError, match=journal_name):
            client.read(journal_name).read()
    else:
        assert client.append(journal_name, b"").end == 0
        with pytest.raises(NotAllowedError, match=journal_name):
            client.append(journal_name, b"x")


def test_ranges_and_heads(client: Client, journal: str) -> None:
    content = b"".join(LINES)
    client.append(journal, content[:5000])
    client.append(journal, content[5000:])
    head = len(content)
    for begin, end in [(0, 1), (17, 4000), (4990, 5010), (head - 1, head), (9, 9)]:
        assert client.read(journal, offset=begin, end_offset=end).read() == content[begin:end]
    with client.read(journal, offset=4000) as reader:
        assert reader.read() == content[4000:]
        assert (reader.offset, reader.jumps) == (head, [])
    assert client.read(journal, offset=head).read() == b""
    tail = client.read(journal, offset=-1)
    assert (tail.read(), tail.offset) == (b"", head)
    with pytest.raises(OffsetNotYetAvailableError, match=journal) as caught:
        client.read(journal, offset=head + 1).read()
    assert caught.value.write_head == head
    with pytest.raises(OffsetNotYetAvailableError):
        client.read(journal, offset=head, end_offset=head + 1, timeout_s=0.5).read()


@pytest.mark.parametrize("offset", [0, -1], ids=["from the beginning", "from the head"])
def test_a_tail_follows_appends(client: Client, journal: str, offset: int) -> None:
    client.append(journal, b"before\n")
    expected = (b"" if offset else b"before\n") + b"".join(LINES)
    got = bytearray()
    done = threading.Event()

    def tail() -> None:
        for each in reader:
            got.extend(each.content)
            if len(got) >= len(expected):
                done.set()

    # Read the head before the writer begins, so that no line is missed.
    start = client.write_head(journal) if offset else 0
    reader = client.read(journal, offset=start, block=True)
    thread = threading.Thread(target=tail)
    thread.start()
    for at in range(0, len(LINES), 100):
        client.append(journal, b"".join(LINES[at : at + 100]))
    assert done.wait(20)
    reader.close()
    thread.join(10)
    assert not thread.is_alive()
    assert bytes(got) == expected


def test_concurrent_appends_do_not_mix(client: Client, journal: str) -> None:
    def write(letter: bytes) -> None:
        for _ in range(20):
            client.append(journal, letter * 50 + b"\n")

    threads = [threading.Thread(target=write, args=(bytes([65 + index]),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lines = client.read(journal).read().splitlines()
    assert sorted(lines) == sorted(bytes([65 + index]) * 50 for index in range(4) for _ in range(20))


def test_fragments_cover_the_journal(client: Client, journal: str) -> None:
    for _ in range(3):
        client.append(journal, b"".join(LINES))
    fragments = [each.fragment for each in client.list_fragments(journal)]
    assert fragments[0].begin == 0
    assert fragments[-1].end == client.write_head(journal)
    assert all(left.end >= right.begin for left, right in pairwise(fragments))
    assert {each.journal for each in fragments} == {journal}


def test_an_append_that_stalls(client: Client, journal: str) -> None:
    appender = client.appender(journal, timeout_s=20)

    def trickle() -> None:
        pause = threading.Event()
        while not pause.wait(0.05):
            appender.write(b"x")

    with appender, pytest.raises(FlowControlError):
        trickle()
    assert client.write_head(journal) == 0


def test_a_wrong_port_is_told_soon(broker: BrokerHandle) -> None:
    """No server listens on port 1."""
    with (
        Client("http://127.0.0.1:1", connect_timeout_s=0.5) as lost,
        pytest.raises(UnavailableError, match="brokerAddress"),
    ):
        lost.list_journals()
