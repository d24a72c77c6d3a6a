"""Gives messages UUIDs, acknowledgements and transactions inside journals, as Gazette does.

A producer stamps each message with a UUID that contains its producer id, a clock and flags. Readers use these
to drop repeated messages, and to withhold messages of a transaction until its acknowledgement arrives.

Names are imported on first use: the columns' code, which Spark's workers import, needs no client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_spark._exports import lazy_exports

if TYPE_CHECKING:
    from gazette_spark.message.interfaces import NIL_UUID as NIL_UUID
    from gazette_spark.message.interfaces import Envelope as Envelope
    from gazette_spark.message.interfaces import Framing as Framing
    from gazette_spark.message.interfaces import JournalProducer as JournalProducer
    from gazette_spark.message.interfaces import Message as Message
    from gazette_spark.message.interfaces import NewMessage as NewMessage
    from gazette_spark.message.interfaces import ProducerState as ProducerState
    from gazette_spark.message.interfaces import framing_by_content_type as framing_by_content_type
    from gazette_spark.message.interfaces import framing_of_journal as framing_of_journal
    from gazette_spark.message.iterate import ReadCommitted as ReadCommitted
    from gazette_spark.message.iterate import ReadUncommitted as ReadUncommitted
    from gazette_spark.message.iterate import read_committed as read_committed
    from gazette_spark.message.iterate import read_uncommitted as read_uncommitted
    from gazette_spark.message.locator import Locator as Locator
    from gazette_spark.message.locator import RawMessage as RawMessage
    from gazette_spark.message.locator import locator_for as locator_for
    from gazette_spark.message.locator import raw_messages as raw_messages
    from gazette_spark.message.publisher import AckIntent as AckIntent
    from gazette_spark.message.publisher import Publisher as Publisher
    from gazette_spark.message.publisher import PublisherClock as PublisherClock
    from gazette_spark.message.publisher import write_ack_intents as write_ack_intents
    from gazette_spark.message.sequencer import Outcome as Outcome
    from gazette_spark.message.sequencer import ReplayRange as ReplayRange
    from gazette_spark.message.sequencer import Sequencer as Sequencer
    from gazette_spark.message.sequencer import SequencerCheckpoint as SequencerCheckpoint
    from gazette_spark.message.uuids import ACK_TXN as ACK_TXN
    from gazette_spark.message.uuids import CONTINUE_TXN as CONTINUE_TXN
    from gazette_spark.message.uuids import OUTSIDE_TXN as OUTSIDE_TXN
    from gazette_spark.message.uuids import Clock as Clock
    from gazette_spark.message.uuids import ProducerId as ProducerId
    from gazette_spark.message.uuids import build_uuid as build_uuid
    from gazette_spark.message.uuids import new_producer_id as new_producer_id
    from gazette_spark.message.uuids import split_uuid as split_uuid

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "interfaces": (
            "NIL_UUID",
            "Envelope",
            "Framing",
            "JournalProducer",
            "Message",
            "NewMessage",
            "ProducerState",
            "framing_by_content_type",
            "framing_of_journal",
        ),
        "iterate": ("ReadCommitted", "ReadUncommitted", "read_committed", "read_uncommitted"),
        "locator": ("Locator", "RawMessage", "locator_for", "raw_messages"),
        "publisher": ("AckIntent", "Publisher", "PublisherClock", "write_ack_intents"),
        "sequencer": ("Outcome", "ReplayRange", "Sequencer", "SequencerCheckpoint"),
        "uuids": (
            "ACK_TXN",
            "CONTINUE_TXN",
            "OUTSIDE_TXN",
            "Clock",
            "ProducerId",
            "build_uuid",
            "new_producer_id",
            "split_uuid",
        ),
    },
)
