"""Tests that an inbox keeps the order of messages and never leaves a reader waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gazette_spark.client import Client
from gazette_spark.consumer import JsonMessage, shard_spec
from gazette_spark.consumer.sources import Inbox, Sources
from gazette_spark.errors import RecordError, SourceLossError
from gazette_spark.message import Envelope
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_NDJSON
from gazette_spark.testing.stub_broker import Act, Hang, StubBroker, not_yet
from tests.rig.histories import messages
from tests.unit.client.listings import message

ENVELOPES = messages("A1O A2O A3O")
WAIT_S = 30.0


def taken(inbox: Inbox) -> list[Envelope]:
    found = []
    while (envelope := inbox.take()) is not None:
        found.append(envelope)
    return found


def test_messages_keep_their_order() -> None:
    inbox = Inbox(10)
    inbox.put(ENVELOPES[0])
    inbox.put(ENVELOPES[1])
    assert inbox.take() is ENVELOPES[0]
    inbox.put(ENVELOPES[2])
    assert taken(inbox) == ENVELOPES[1:]


def test_an_error_comes_behind_the_messages() -> None:
    inbox = Inbox(10)
    inbox.put(ENVELOPES[0])
    inbox.fail(RecordError("a", 10, "first"))
    inbox.fail(RecordError("a", 20, "second"))
    assert inbox.take() is ENVELOPES[0]
    assert not inbox.put(ENVELOPES[1])
    for _ in range(2):
        with pytest.raises(RecordError, match="first"):
            inbox.take()


def test_readers_wait_for_room() -> None:
    inbox = Inbox(1)
    inbox.put(ENVELOPES[0])
    reader = threading.Thread(target=inbox.put, args=(ENVELOPES[1],))
    reader.start()
    assert inbox.take() is ENVELOPES[0]
    reader.join(WAIT_S)
    assert taken(inbox) == [ENVELOPES[1]]


@pytest.mark.parametrize("end", [Inbox.close, lambda inbox: inbox.fail(RecordError("a", 0, "broken"))])
def test_the_end_lets_readers_go(end: Callable[[Inbox], None]) -> None:
    inbox = Inbox(1)
    inbox.put(ENVELOPES[0])
    answers: list[bool] = []
    reader = threading.Thread(target=lambda: answers.append(inbox.put(ENVELOPES[1])), daemon=True)
    reader.start()
    end(inbox)
    reader.join(WAIT_S)
    assert answers == [False]


@pytest.mark.parametrize("event", ["message", "error", "wake", "close"])
def test_events_end_a_wait(event: str) -> None:
    inbox = Inbox(1)
    waiter = threading.Thread(target=inbox.wait, args=(WAIT_S,), kwargs={"for_messages": True})
    waiter.start()
    match event:
        case "message":
            inbox.put(ENVELOPES[0])
        case "error":
            inbox.fail(RecordError("a", 0, "broken"))
        case "wake":
            inbox.wake()
        case "close":
            inbox.close()
    waiter.join(WAIT_S / 2)
    assert not waiter.is_alive()


def test_messages_do_not_end_another_wait() -> None:
    """A wait for the predecessor must not end for each message."""
    inbox = Inbox(1)
    inbox.put(ENVELOPES[0])
    inbox.wake()
    inbox.wait(None, for_messages=False)
    waiter = threading.Thread(target=inbox.wait, args=(None,), kwargs={"for_messages": False}, daemon=True)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    inbox.wake()
    waiter.join(WAIT_S)
    assert not waiter.is_alive()


def test_a_loss_beside_a_source_without_brokers() -> None:
    """A journal whose head cannot be read does not hide the loss of another one."""

    def read(request: pb.ReadRequest) -> list[Act]:
        if request.journal == "a/idle":
            return [pb.ReadResponse(status=pb.INSUFFICIENT_JOURNAL_BROKERS)]
        return [not_yet(4)] if request.metadata_only else [Hang()]

    def list_one(request: pb.ListRequest) -> list[Act]:
        found = message(request.selector.include.labels[0].value, revision=1)
        found.journals[0].spec.labels.labels.add(name=CONTENT_TYPE, value=CONTENT_TYPE_NDJSON)
        return [found]

    spec = shard_spec("shard", ["a/idle", "a/lost"])
    reached = {journal: pc.Checkpoint.Source(read_through=10) for journal in ("a/idle", "a/lost")}
    with StubBroker() as broker, Client(broker.endpoint, timeout_s=1) as client:
        broker.script("Read", read)
        broker.script("List", list_one)
        broker.script("Append", [pb.AppendResponse(status=pb.NOT_ALLOWED)])
        stopping = threading.Event()
        sources = Sources(client, JsonMessage.parse, spec, stopping)
        try:
            sources.start(pc.Checkpoint(sources=reached))
            sources.inbox.wait(WAIT_S, for_messages=True)
            with pytest.raises(SourceLossError, match="a/lost"):
                sources.inbox.take()
        finally:
            stopping.set()
            sources.close()
