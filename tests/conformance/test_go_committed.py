"""Gazette's own committed reader delivers exactly what our publisher commits: once, in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gazette_spark import Client
from gazette_spark.client import AppendService
from gazette_spark.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    AckIntent,
    Message,
    Publisher,
    write_ack_intents,
)
from gazette_spark.protocol.labels import CONTENT_TYPE_CSV, CONTENT_TYPE_NDJSON, CONTENT_TYPE_PROTO_FIXED
from tests.conformance.goclient import Event, end_of, run_go
from tests.conformance.wire import labels, spec
from tests.rig.brokers import BrokerHandle
from tests.rig.messages import KINDS, Document

pytestmark = pytest.mark.brokers("embedded", "deployed")

RINGS = [pytest.param(8192, id="from_the_ring"), pytest.param(1, id="replayed")]

SHOWN: dict[str, tuple[int, Callable[[int], str]]] = {
    CONTENT_TYPE_NDJSON: (60, lambda number: f'"number": {number}}}'),
    CONTENT_TYPE_CSV: (40, lambda number: f'"{number}" "a \\"quoted\\", text"]'),
    CONTENT_TYPE_PROTO_FIXED: (36, lambda number: f"10{number:02x}"),
}
"""By content type: offset of the text behind the UUID in goclient's output, and that text by number."""


def journal_of(client: Client, name: str, content_type: str) -> Callable[[Message], tuple[str, str]]:
    client.create_journals(spec(name, labels=labels(("content-type", content_type))))
    return lambda _: (name, content_type)


def read_committed(broker: BrokerHandle, journal: str, ring: int = 8192) -> tuple[list[Event], Event]:
    events = run_go(broker.endpoint, "read-committed", f"--journal={journal}", f"--ring-size={ring}")
    return [each for each in events if each["event"] == "message"], end_of(events)


def numbers(messages: Sequence[Event]) -> list[Any]:
    return [json.loads(each["value"]).get("number") for each in messages]


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.parametrize(
    "content_type", [pytest.param(kind, id=kind.rpartition("/")[2].rpartition("-")[2]) for kind in KINDS]
)
def test_go_delivers_what_is_committed(
    broker: BrokerHandle, client: Client, journal_name: str, content_type: str, ring: int
) -> None:
    make: Any = KINDS[content_type]
    to = journal_of(client, journal_name, content_type)
    with AppendService(client) as service:
        alone, pair = Publisher(service), (Publisher(service), Publisher(service))
        for number in range(1, 9):
            pair[number % 2].publish_uncommitted(to, make(number))
        alone.publish_committed(to, make(9))
        committed = pair[0].build_ack_intents()
        service.append(journal_name, committed[0].intent)
        pair[0].publish_uncommitted(to, make(10))
    messages, end = read_committed(broker, journal_name, ring)
    assert [each["flags"] for each in messages] == [OUTSIDE_TXN, *(4 * [CONTINUE_TXN]), ACK_TXN]
    uuid, body = SHOWN[content_type]
    assert [each["value"][uuid:] for each in messages[:5]] == [body(number) for number in (9, 2, 4, 6, 8)]
    clocks = [int(each["clock"]) for each in messages[1:]]
    assert clocks == sorted(set(clocks))
    assert (end["messages"], end["acks"], end["open"]) == (5, 1, 2)


def test_go_drops_what_appends_repeat(broker: BrokerHandle, client: Client, journal_name: str) -> None:
    to = journal_of(client, journal_name, CONTENT_TYPE_NDJSON)
    with AppendService(client) as service:
        publisher, alone = Publisher(service), Publisher(service)
        for number in range(5):
            publisher.publish_uncommitted(to, Document({"number": number}))
        alone.publish_committed(to, Document({"number": 5}))
        service.flush()
        with client.read(journal_name, end_offset=client.write_head(journal_name)) as reader:
            client.append(journal_name, reader.read())
        intents = publisher.build_ack_intents()
        for _ in range(2):
            write_ack_intents(client, intents)
        publisher.publish_uncommitted(to, Document({"number": 6}))
        service.flush()
        write_ack_intents(client, publisher.build_ack_intents())
    messages, end = read_committed(broker, journal_name)
    assert numbers(messages) == [5, 0, 1, 2, 3, 4, None, 6, None]
    assert (end["messages"], end["open"]) == (7, 0)


def test_go_sees_all_of_a_transaction_or_nothing(
    broker: BrokerHandle, client: Client, fresh_prefix: str
) -> None:
    """A publisher that dies before it stores its intents delivers nothing, a later death everything."""
    names = [fresh_prefix + short for short in "ab"]
    mappings = [journal_of(client, name, CONTENT_TYPE_NDJSON) for name in names]
    stored: list[AckIntent] = []
    with AppendService(client) as service:
        lost, kept = Publisher(service), Publisher(service)
        for number in range(4):
            lost.publish_uncommitted(mappings[number % 2], Document({"number": number}))
            kept.publish_uncommitted(mappings[number % 2], Document({"number": 10 + number}))
        lost.build_ack_intents()
        stored += kept.build_ack_intents()
        service.append(stored[0].journal, stored[0].intent)
    write_ack_intents(client, stored)
    for name, expected in zip(names, ([10, 12, None], [11, 13, None]), strict=True):
        messages, end = read_committed(broker, name)
        assert numbers(messages) == expected
        assert end["open"] == 1
