"""Groups each customer's orders into sessions, and publishes a summary of each session once.

An order is ``{"customer": "c1", "amount": 5, "at": 1700000000}``. A session ends when the customer's next
order comes more than half an hour later. Then its summary is published: ``{"customer": …, "orders": …,
"amount": …, "begin": …, "end": …}``. The open sessions are the state.
"""

from __future__ import annotations

from gazette_spark.consumer import Application, JsonMessage, JsonStore, Shard
from gazette_spark.message import Envelope, Publisher
from gazette_spark.protocol import protocol_pb2 as pb

GAP_S = 1800
"""Seconds without an order after which a session has ended."""


class Sessions(Application[JsonStore]):
    """Keeps each customer's open session, and publishes sessions that have ended."""

    def __init__(self, summaries_journal: str, gap_s: int = GAP_S) -> None:
        self.summaries_journal = summaries_journal
        self.gap_s = gap_s

    def new_store(self, shard: Shard) -> JsonStore:
        """Keep the open session of each customer."""
        return shard.json_store(initial={})

    def new_message(self, spec: pb.JournalSpec, record: bytes) -> JsonMessage:
        """Read an order."""
        return JsonMessage.parse(spec, record)

    def key_of(self, envelope: Envelope) -> str:
        """Return the customer. On Spark, different customers are handled by different tasks."""
        assert isinstance(envelope.message, JsonMessage)
        return str(envelope.message.fields.get("customer", ""))

    def consume_message(
        self, shard: Shard, store: JsonStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Add an order to its session, or begin another session."""
        order = envelope.message
        assert isinstance(order, JsonMessage)
        if order.is_acknowledgement:
            return
        customer, at = order.fields["customer"], order.fields["at"]
        session = store.state.get(customer)
        if session is not None and at > session["end"] + self.gap_s:
            mapping = (self.summaries_journal, "application/x-ndjson")
            summary = JsonMessage({"customer": customer, **session})
            publisher.publish_uncommitted(lambda _: mapping, summary)
            session = None
        if session is None:
            session = {"orders": 0, "amount": 0, "begin": at, "end": at}
        store.state[customer] = {
            "orders": session["orders"] + 1,
            "amount": session["amount"] + order.fields["amount"],
            "begin": min(session["begin"], at),
            "end": max(session["end"], at),
        }

    def finalize_txn(self, shard: Shard, store: JsonStore, publisher: Publisher) -> None:
        """Do nothing, because the sessions are already in the store."""
