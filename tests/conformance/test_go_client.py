"""Gazette's own Go client and ours interoperate, through either broker."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gazette_spark import Client
from gazette_spark.client import AppendService, Listing, WatchedList, parse_selector
from gazette_spark.errors import (
    JournalNotFoundError,
    NotAllowedError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.goclient import end_of, run_go, running_go
from tests.conformance.wire import Wire, labels, spec, wait_for
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")

APPENDS = [b"first\n" * 30_000, bytes(range(256)) * 5_000, b"last\n"]
"""One append longer than a message, one longer than a fragment, and a short one."""

CONTENT = b"".join(APPENDS)


def sha1(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def filled(client: Client, journal_name: str) -> str:
    client.create_journals(spec(journal_name, length=1 << 18))
    for content in APPENDS:
        client.append(journal_name, content)
    return journal_name


@pytest.mark.parametrize("mode", ["reader", "retry-reader"])
def test_go_reads_what_python_wrote(broker: BrokerHandle, filled: str, mode: str) -> None:
    end = end_of(run_go(broker.endpoint, mode, f"--journal={filled}"))
    assert end["sha1"] == sha1(CONTENT)
    assert (end["bytes"], end["offset"]) == (len(CONTENT), len(CONTENT))
    assert end["reason"] == "OFFSET_NOT_YET_AVAILABLE"


@pytest.mark.parametrize("mode", ["reader", "retry-reader"])
def test_go_reads_a_range(broker: BrokerHandle, filled: str, mode: str) -> None:
    begin, stop = 1_000, len(CONTENT) - 2
    flags = [f"--journal={filled}", f"--offset={begin}", f"--end-offset={stop}"]
    end = end_of(run_go(broker.endpoint, mode, *flags))
    assert (end["sha1"], end["offset"], end["reason"]) == (sha1(CONTENT[begin:stop]), stop, "EOF")


def test_go_reads_fragments_itself(broker: BrokerHandle, filled: str, wire: Wire) -> None:
    wire.wait_persisted(filled, 2)
    flags = [f"--journal={filled}", "--do-not-proxy", f"--file-root={broker.file_root}"]
    end = end_of(run_go(broker.endpoint, "retry-reader", *flags))
    assert (end["sha1"], end["offset"]) == (sha1(CONTENT), len(CONTENT))


def test_go_follows_routes(broker: BrokerHandle, filled: str) -> None:
    flags = [f"--journal={filled}", "--cache-size=16", f"--end-offset={len(CONTENT)}"]
    end = end_of(run_go(broker.endpoint, "retry-reader", *flags))
    assert end["sha1"] == sha1(CONTENT)
    again = end_of(run_go(broker.endpoint, "append", f"--journal={filled}", "--cache-size=16", content=b"x"))
    assert (again["begin"], again["end"]) == (len(CONTENT), len(CONTENT) + 1)


@pytest.mark.parametrize("mode", ["appender", "append"])
def test_python_reads_what_go_wrote(broker: BrokerHandle, client: Client, journal: str, mode: str) -> None:
    at = 0
    for content in APPENDS:
        end = end_of(run_go(broker.endpoint, mode, f"--journal={journal}", content=content))
        assert (end["status"], end["begin"], end["end"]) == ("OK", at, at + len(content))
        assert end["sha1"] == sha1(content)
        at += len(content)
    with client.read(journal, end_offset=at) as reader:
        assert reader.read() == CONTENT
    assert client.write_head(journal) == at


def test_go_append_service(broker: BrokerHandle, client: Client, journal: str, fresh_prefix: str) -> None:
    other = f"{fresh_prefix}other"
    client.create_journals(spec(other))
    orders: list[dict[str, object]] = [
        {"journal": journal, "content": f"record {number}\n"} for number in range(200)
    ]
    orders[50]["abort"] = True
    orders.append({"journal": other, "content": "after all others\n", "after": True})
    given = "".join(json.dumps(order) + "\n" for order in orders)
    events = run_go(broker.endpoint, "append-service", content=given.encode())
    end = end_of(events)
    assert [event["event"] for event in events[:-1]].count("committed") == 200
    assert events[50] == {"event": "aborted", "index": 50}
    assert end["appends"] == 201
    assert end["batches"] < 200
    with client.read(journal, end_offset=client.write_head(journal)) as reader:
        assert reader.read().decode().splitlines() == [
            f"record {number}" for number in range(200) if number != 50
        ]


def test_both_append_services_share_a_journal(broker: BrokerHandle, client: Client, journal: str) -> None:
    theirs = [f"go {number}" for number in range(2_000)]
    ours = [f"python {number}" for number in range(2_000)]
    orders = "".join(json.dumps({"journal": journal, "content": f"{record}\n"}) + "\n" for record in theirs)
    with ThreadPoolExecutor(1) as pool, AppendService(client) as service:
        running = pool.submit(run_go, broker.endpoint, "append-service", content=orders.encode())
        for record in ours:
            service.append(journal, f"{record}\n".encode())
        end_of(running.result())
    with client.read(journal, end_offset=client.write_head(journal)) as reader:
        lines = reader.read().decode().splitlines()
    assert [line for line in lines if line.startswith("go")] == theirs
    assert [line for line in lines if line.startswith("python")] == ours
    assert len(lines) == 4_000


def test_registers_fence_both_ways(broker: BrokerHandle, client: Client, journal: str) -> None:
    mine, theirs = "--check-registers=author=python", "--check-registers=author=go"
    client.append(journal, b"ours ", union_registers=labels(("author", "python")))
    refused = run_go(broker.endpoint, "append", f"--journal={journal}", theirs, content=b"x")[-1]
    assert (refused["status"], refused["registers"]) == ("REGISTER_MISMATCH", {"author": "python"})
    assert "REGISTER_MISMATCH" in refused["error"]

    taken = [f"--journal={journal}", mine, "--union-registers=author=go"]
    end = end_of(run_go(broker.endpoint, "append", *taken, content=b"theirs"))
    assert end["registers"] == {"author": "go"}
    with pytest.raises(RegisterMismatchError, match="go"):
        client.append(journal, b"x", check_registers=parse_selector("author=python"))
    with client.read(journal, end_offset=client.write_head(journal)) as reader:
        assert reader.read() == b"ours theirs"


def test_wrong_offset(broker: BrokerHandle, client: Client, journal: str) -> None:
    client.append(journal, b"abc")
    refused = run_go(broker.endpoint, "append", f"--journal={journal}", "--offset=2", content=b"x")[-1]
    assert refused["error"] == "WRONG_APPEND_OFFSET"
    with pytest.raises(WrongAppendOffsetError):
        client.append(journal, b"x", offset=2)
    end = end_of(run_go(broker.endpoint, "append", f"--journal={journal}", "--offset=3", content=b"def"))
    assert end["begin"] == 3


def test_both_jump_over_what_is_gone(broker: BrokerHandle, client: Client, journal: str, wire: Wire) -> None:
    client.append(journal, b"deleted")
    client.append(journal, b"kept")
    stored = wire.wait_persisted(journal, 1).fragments[0]
    wire.append(journal, suspend=pb.AppendRequest.SUSPEND_NOW)  # Closes the second fragment, too.
    wire.wait_persisted(journal, 2)
    url = stored.signed_url.removeprefix("file://")
    (broker.file_root / url.lstrip("/")).unlink()
    wait_for(lambda: wire.spans(journal)[0][0] == len(b"deleted"), "deletion to be seen")

    for mode in ("reader", "retry-reader"):
        events = run_go(broker.endpoint, mode, f"--journal={journal}")
        assert events[0] == {"event": "jump", "from": 0, "to": len(b"deleted")}
        assert (end_of(events)["sha1"], events[-1]["offset"]) == (sha1(b"kept"), len(b"deletedkept"))
    with client.read(journal, end_offset=len(b"deletedkept")) as reader:
        assert b"".join(chunk.content for chunk in reader) == b"kept"
        assert reader.jumps == [(0, len(b"deleted"))]


def test_blocked_go_reader_sees_appends(broker: BrokerHandle, client: Client, journal: str) -> None:
    client.append(journal, b"one ")
    with running_go(broker.endpoint, "retry-reader", f"--journal={journal}", "--block") as reader:
        assert reader.until("read", offset=4)["sha1"] == sha1(b"one ")
        client.append(journal, b"two ")
        assert reader.until("read", offset=8)["sha1"] == sha1(b"one two ")
        assert reader.end()["reason"] == "context canceled"


def test_blocked_python_reader_sees_go(broker: BrokerHandle, client: Client, journal: str) -> None:
    with client.read(journal, block=True) as reader:
        for content in (b"one ", b"two "):
            end_of(run_go(broker.endpoint, "append", f"--journal={journal}", content=content))
            assert reader.read(4) == content


def test_go_watch(broker: BrokerHandle, client: Client, fresh_prefix: str) -> None:
    first, second = f"{fresh_prefix}first", f"{fresh_prefix}second"
    client.create_journals(spec(first))
    with running_go(broker.endpoint, "watch", f"--selector=prefix={fresh_prefix}") as watch:
        before = watch.until("list", journals=[first])
        client.create_journals(spec(second))
        both = watch.until("list", journals=[first, second])
        assert both["revision"] > before["revision"]
        client.apply([pb.ApplyRequest.Change(expect_mod_revision=-1, delete=first)])
        watch.until("list", journals=[second])
        client.create_journals(spec(first))
        again = watch.until("list", journals=[first, second])
        assert again["created"][first] > before["created"][first]
        assert watch.end()["updates"] >= 4


def test_both_watches_see_the_same(broker: BrokerHandle, client: Client, fresh_prefix: str) -> None:
    name = f"{fresh_prefix}journal"
    with (
        running_go(broker.endpoint, "watch", f"--selector=prefix={fresh_prefix}") as theirs,
        WatchedList(client, f"prefix={fresh_prefix}") as ours,
    ):
        seen: Listing | None = ours.list()
        assert seen is not None
        assert list(seen.journals) == []
        client.create_journals(spec(name))
        told = theirs.until("list", journals=[name])
        while seen is not None and not seen.journals:
            seen = ours.wait_for_update(seen, timeout_s=30)
        assert seen is not None
        assert [each.spec.name for each in seen.journals] == [name]
        assert told["created"] == {name: seen.journals[0].create_revision}


def test_both_name_a_missing_journal(broker: BrokerHandle, client: Client, journal_name: str) -> None:
    for mode in ("reader", "append"):
        assert run_go(broker.endpoint, mode, f"--journal={journal_name}")[-1]["error"] == "JOURNAL_NOT_FOUND"
    with pytest.raises(JournalNotFoundError), client.read(journal_name, timeout_s=10) as reader:
        reader.read(1)
    with pytest.raises(JournalNotFoundError):
        client.append(journal_name, b"x")


def test_both_are_not_allowed(broker: BrokerHandle, client: Client, journal_name: str) -> None:
    client.create_journals(spec(journal_name, flags=pb.JournalSpec.O_WRONLY))
    end = run_go(broker.endpoint, "reader", f"--journal={journal_name}")[-1]
    assert end["error"] == "NOT_ALLOWED"
    with pytest.raises(NotAllowedError), client.read(journal_name) as reader:
        reader.read(1)


def test_unused_root_is_no_matter(broker: BrokerHandle, filled: str, tmp_path: Path) -> None:
    """A Go reader that lets the broker proxy needs no file root, so a wrong one does not matter."""
    flags = [f"--journal={filled}", f"--file-root={tmp_path}"]
    assert end_of(run_go(broker.endpoint, "reader", *flags))["sha1"] == sha1(CONTENT)
