"""Each fault of an embedded broker, and the client's recovery from those that pass."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import grpc
import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.broker import Faults, ServingSettings, StorageSettings
from gazette_spark.errors import CorruptFragmentError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import Wire, spec, wait_for

NAME = "faults/journal"
CONTENT = bytes(range(256)) * 400
DEADLINE_S = 20.0


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def faulty(tmp_path: Path, faults: Faults) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(
        tmp_path,
        faults=faults,
        storage=StorageSettings(fragment_urls="http"),
        serving=ServingSettings(chunk_bytes=1000),
    ) as running:
        with Wire(running.endpoint) as wire:
            wire.create(spec(NAME), spec("faults/other"))
            wire.append(NAME, CONTENT)
        yield running


@pytest.fixture
def wire(faulty: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(faulty.endpoint) as opened:
        yield opened


@pytest.fixture
def client(faulty: EmbeddedBroker) -> Iterator[Client]:
    with Client(faulty.endpoint, timeout_s=DEADLINE_S) as opened:
        yield opened


def read_all(client: Client, *, direct: bool = False) -> bytes:
    with client.read(NAME, end_offset=len(CONTENT), do_not_proxy=direct) as reader:
        return b"".join(chunk.content for chunk in reader)


CALLS = {
    "List": lambda wire: wire.list(pb.LabelSelector()),
    "Apply": lambda wire: wire.apply(),
    "Read": lambda wire: wire.read(NAME, metadata_only=True),
    "Append": lambda wire: wire.append(NAME),
    "ListFragments": lambda wire: wire.fragments(NAME),
    "FragmentStoreHealth": lambda wire: wire.stub.FragmentStoreHealth(
        pb.FragmentStoreHealthRequest(fragment_store="file:///"), timeout=DEADLINE_S
    ),
}


@pytest.mark.parametrize("rpc", CALLS)
def test_a_call_fails_once(wire: Wire, faults: Faults, rpc: str) -> None:
    fault = faults.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "as ordered", rpc=rpc)
    for other in CALLS.keys() - {rpc}:
        CALLS[other](wire)
    with pytest.raises(grpc.RpcError) as caught:
        CALLS[rpc](wire)
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "as ordered",
    )
    CALLS[rpc](wire)
    assert fault.hits == 1


def test_a_lasting_fault_is_there_until_cleared(wire: Wire, faults: Faults) -> None:
    faults.fail(grpc.StatusCode.UNAVAILABLE, journal=NAME, times=None)
    for _ in range(3):
        with pytest.raises(grpc.RpcError):
            wire.append(NAME)
    assert wire.append("faults/other").status == pb.OK
    faults.clear()
    assert wire.append(NAME).status == pb.OK


@pytest.mark.parametrize("rpc", ["Read", "Append", "ListFragments"])
def test_a_status_in_place_of_the_answer(wire: Wire, faults: Faults, rpc: str) -> None:
    faults.answer("NO_JOURNAL_PRIMARY_BROKER", rpc=rpc)
    answer = CALLS[rpc](wire)
    answer = answer[0] if isinstance(answer, list) else answer
    assert answer.status == pb.NO_JOURNAL_PRIMARY_BROKER
    assert answer.header.etcd.revision > 0
    assert answer.header.route.members


def test_a_delay(wire: Wire, faults: Faults) -> None:
    faults.delay(0.2, rpc="Append")
    begin = monotonic()
    assert wire.append(NAME).status == pb.OK
    assert monotonic() - begin >= 0.2


def test_a_stall_lasts_until_released(wire: Wire, faults: Faults) -> None:
    fault = faults.stall(rpc="Append", journal=NAME)
    answers: list[pb.AppendResponse] = []
    thread = threading.Thread(target=lambda: answers.append(wire.append(NAME, b"x")))
    thread.start()
    assert faults.wait_hit(fault, DEADLINE_S)
    assert wire.append("faults/other").status == pb.OK
    assert answers == []
    fault.release()
    thread.join(DEADLINE_S)
    assert answers[0].status == pb.OK


def test_a_stalled_call_ends_with_its_broker(wire: Wire, faulty: EmbeddedBroker, faults: Faults) -> None:
    fault = faults.stall(rpc="Read")
    reader = wire.open_read(NAME)
    assert faults.wait_hit(fault, DEADLINE_S)
    reader.cancel()
    faulty.stop()


@pytest.mark.parametrize("after_bytes", [1, 999, 1000, 1001, len(CONTENT) - 1])
def test_a_read_breaks_at_a_byte(wire: Wire, faults: Faults, after_bytes: int) -> None:
    faults.fail(grpc.StatusCode.UNAVAILABLE, rpc="Read", after_bytes=after_bytes)
    got: list[bytes] = []
    with pytest.raises(grpc.RpcError):
        got.extend(message.content for message in wire.open_read(NAME))
    assert b"".join(got) == CONTENT[:after_bytes]


def test_an_append_breaks_at_a_byte(wire: Wire, faults: Faults) -> None:
    faults.fail(grpc.StatusCode.UNAVAILABLE, rpc="Append", after_bytes=15)
    with pytest.raises(grpc.RpcError) as caught:
        wire.append(NAME, b"0123456789", b"0123456789")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert wire.head(NAME) == len(CONTENT)


def test_a_lost_answer(wire: Wire, faults: Faults) -> None:
    faults.lose_answer()
    with pytest.raises(grpc.RpcError):
        wire.append(NAME, b"x")
    assert wire.head(NAME) == len(CONTENT) + 1


def test_a_jump(wire: Wire, faults: Faults) -> None:
    faults.jump(100)
    messages = wire.read(NAME, offset=10)
    assert messages[0].offset == 110
    assert b"".join(message.content for message in messages) == CONTENT[110:]


def test_corrupt_content(wire: Wire, faults: Faults) -> None:
    faults.corrupt(rpc="Read")
    differing = [a for a, b in zip(wire.content(NAME), CONTENT, strict=True) if a != b]
    assert len(differing) == 1
    assert wire.content(NAME) == CONTENT


def test_the_client_gets_over_a_bad_hour(client: Client, faults: Faults) -> None:
    for after_bytes in (1, 5000, 12_345):
        faults.fail(grpc.StatusCode.UNAVAILABLE, rpc="Read", after_bytes=after_bytes)
        faults.end(after_bytes=after_bytes + 777)
    faults.delay(0.05, rpc="Read", times=3)
    assert read_all(client) == CONTENT


def test_the_client_gets_over_missing_primaries(client: Client, faults: Faults) -> None:
    fault = faults.answer("NO_JOURNAL_PRIMARY_BROKER", rpc="Append", times=3)
    assert client.append(NAME, b"x").begin == len(CONTENT)
    assert fault.hits == 3


@pytest.mark.parametrize("kind", ["short", "corrupt"])
def test_the_client_refuses_a_bad_fragment(
    client: Client, faulty: EmbeddedBroker, faults: Faults, kind: str
) -> None:
    faulty.flush()
    fault = faults.shorten(10, times=None) if kind == "short" else faults.corrupt(times=None)
    with pytest.raises(CorruptFragmentError):
        read_all(client, direct=True)
    assert fault.hits


@pytest.mark.parametrize("status", [403, 503])
def test_the_client_gets_over_a_store_that_refuses(
    client: Client, faulty: EmbeddedBroker, faults: Faults, status: int
) -> None:
    faulty.flush()
    fault = faults.refuse_fragment(status, journal=NAME)
    assert read_all(client, direct=True) == CONTENT
    assert fault.hits == 1


def test_a_stalled_store_ends_with_its_broker(faulty: EmbeddedBroker, client: Client, faults: Faults) -> None:
    faulty.flush()
    fault = faults.stall(rpc="Fragment")
    thread = threading.Thread(target=lambda: suppressing_read(client))
    thread.start()
    assert faults.wait_hit(fault, DEADLINE_S)
    faulty.stop()
    client.close()
    thread.join(DEADLINE_S)
    assert wait_for(lambda: not thread.is_alive(), "the end of the read")


def suppressing_read(client: Client) -> None:
    with contextlib.suppress(Exception):  # The client is closed during the read.
        read_all(client, direct=True)
