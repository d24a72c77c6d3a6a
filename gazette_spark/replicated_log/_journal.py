"""Creates the journal of a log if it is missing, and reads short ranges of it."""

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
    """Create a log's journal if it is missing, or check that the existing one is a log.

    Args:
        client: Client of the brokers.
        journal: Name of the journal.
        spec: Spec of a new journal, such as stores and replication; None for the client's defaults.
        refused: The flag with which the journal would be useless to the caller.

    Raises:
        OptionError: the journal has another content type, or its flags forbid the caller's work.
    """
    try:
        current_spec = client.get_journal(journal).spec
    except JournalNotFoundError:
        new_spec = pb.JournalSpec()
        new_spec.CopyFrom(spec if spec is not None else journal_spec(journal))
        if new_spec.name != journal:
            problem = f"{new_spec.name!r} is not the log's journal {journal!r}"
            raise ProtocolError("JournalSpec.Name", problem) from None
        content_type = label_set({CONTENT_TYPE: CONTENT_TYPE_PROTO_FIXED})
        new_spec.labels.CopyFrom(union(content_type, new_spec.labels))
        try:
            # Several nodes start at the same time, and each finds no journal. Etcd lets one of them create
            # it.
            client.create_journals(new_spec)
        except EtcdTransactionFailedError:
            # Another node was faster, and this node's broker may receive the journal's spec a moment later.
            new_spec = _get_soon(client, journal)
        current_spec = new_spec
    # An entry that was appended to a journal of another content type would damage it for its readers.
    content_types = values_of(current_spec.labels, CONTENT_TYPE)
    if content_types != [CONTENT_TYPE_PROTO_FIXED]:
        got = f"journal {journal!r} of content type {', '.join(content_types) or 'none'}"
        raise OptionError(
            "journal", got, f"a journal of {CONTENT_TYPE_PROTO_FIXED}, or one that does not exist yet"
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


def read_records(client: Client, journal: str, begin: int, end: int) -> Iterator[Record]:
    """Yield the records of ``[begin, end)``, both of which must be record boundaries.

    Missing bytes are skipped, together with records that they cut.
    """
    if begin >= end:
        return
    with client.read(journal, offset=begin, end_offset=end) as reader:
        frames = FrameBuffer(journal, begin)
        for chunk in reader:
            # A record that a gap cuts cannot be read. The next fragment begins with a whole one.
            if chunk.offset != frames.end:
                frames = FrameBuffer(journal, chunk.offset)
            frames.feed(chunk.content)
            yield from frames
