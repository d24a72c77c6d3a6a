"""Gazette's messages: UUIDs, acknowledgements and transactions inside journals.

A producer stamps each message with a UUID that holds its producer id, a clock and flags. Readers use these to
drop repeated messages and to hold back messages of a transaction until its acknowledgement arrives.

Names are loaded when they are asked for: the columns' code, which Spark's workers load, needs no client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_spark.message.interfaces import (
        Envelope,
        Framing,
        JournalProducer,
        Message,
        NewMessage,
        ProducerState,
        framing_by_content_type,
        framing_of_journal,
    )
    from gazette_spark.message.iterate import (
        ReadCommitted,
        ReadUncommitted,
        read_committed,
        read_uncommitted,
    )
    from gazette_spark.message.locator import Locator, RawMessage, locator_for, raw_messages
    from gazette_spark.message.publisher import AckIntent, Publisher, PublisherClock, write_ack_intents
    from gazette_spark.message.sequencer import Outcome, ReplayRange, Sequencer, SequencerCheckpoint
    from gazette_spark.message.uuids import Clock, ProducerId, build_uuid, new_producer_id, split_uuid

__all__ = [
    "AckIntent",
    "Clock",
    "Envelope",
    "Framing",
    "JournalProducer",
    "Locator",
    "Message",
    "NewMessage",
    "Outcome",
    "ProducerId",
    "ProducerState",
    "Publisher",
    "PublisherClock",
    "RawMessage",
    "ReadCommitted",
    "ReadUncommitted",
    "ReplayRange",
    "Sequencer",
    "SequencerCheckpoint",
    "build_uuid",
    "framing_by_content_type",
    "framing_of_journal",
    "locator_for",
    "new_producer_id",
    "raw_messages",
    "read_committed",
    "read_uncommitted",
    "split_uuid",
    "write_ack_intents",
]

_MODULES = {
    "interfaces": (
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
    "uuids": ("Clock", "ProducerId", "build_uuid", "new_producer_id", "split_uuid"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
