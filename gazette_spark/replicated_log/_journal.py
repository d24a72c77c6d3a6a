"""The journal of a log: made where it is missing, and read back in short ranges."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gazette_spark.client import Client
from gazette_spark.client._transport import retry
from gazette_spark.errors import EtcdTransactionFailedError, JournalNotFoundError, OptionError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_PROTO_FIXED, label_set, union, values_of
from gazette_spark.replicated_log._entries import FrameBuffer, Record


def ensure_journal(client: Client, journal: str, spec: pb.JournalSpec | None, refused: int) -> None:
    """Make a log's journal if it is missing, else check that it is one.

    Args:
        client: makes it.
        journal: its name.
        spec: of a journal to be made: stores, replication and the like; None: the client's defaults.
        refused: the flag under which the caller could do nothing.

    Raises:
        OptionError: the journal is of another content type, or its flags forbid the caller's work.
    """
    try:
        current_spec = client.get_journal(journal).spec
    except JournalNotFoundError:
        new_spec = _spec(journal, spec)
        try:
            client.create_journals(new_spec)
        except EtcdTransactionFailedError:
            # Another node was faster, and this one's broker may learn of it a moment later.
            new_spec = _get_soon(client, journal)
        current_spec = new_spec
    content_types = values_of(current_spec.labels, CONTENT_TYPE)
    if content_types != [CONTENT_TYPE_PROTO_FIXED]:
        got = f"journal {journal!r} of content type {', '.join(content_types) or 'none'}"
        raise OptionError(
            "journal", got, f"one of {CONTENT_TYPE_PROTO_FIXED}, or one that does not exist yet"
        )
    if current_spec.flags == refused:
        flag = pb.JournalSpec.Flag.Name(pb.JournalSpec.Flag.ValueType(refused))
        raise OptionError(
            "journal", f"journal {journal!r} with the flag {flag}", "a journal without that flag"
        )


def _get_soon(client: Client, journal: str) -> pb.JournalSpec:
    for attempt in range(retry.NOT_FOUND_TRIES):
        try:
            return client.get_journal(journal).spec
        except JournalNotFoundError:
            time.sleep(retry.backoff_s(attempt))
    return client.get_journal(journal).spec


def _spec(journal: str, spec: pb.JournalSpec | None) -> pb.JournalSpec:
    made = pb.JournalSpec()
    made.CopyFrom(spec if spec is not None else journal_spec(journal))
    if made.name != journal:
        raise ProtocolError("JournalSpec.Name", f"{made.name!r} is not the log's journal {journal!r}")
    content_type = label_set({CONTENT_TYPE: CONTENT_TYPE_PROTO_FIXED})
    made.labels.CopyFrom(union(content_type, made.labels))
    return made


def read_records(client: Client, journal: str, begin: int, end: int) -> Iterator[Record]:
    """Yield the records of ``[begin, end)``, both of which are bounds of records.

    Bytes that are gone are left out; a record that they cut is, too.
    """
    if begin >= end:
        return
    with client.read(journal, offset=begin, end_offset=end) as reader:
        frames = FrameBuffer(journal, begin)
        for chunk in reader:
            if chunk.offset != frames.end:
                frames = FrameBuffer(journal, chunk.offset)
            frames.feed(chunk.content)
            yield from frames
