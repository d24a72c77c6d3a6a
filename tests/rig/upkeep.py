"""Operators' actions on journals through a client: suspend, delete, recreate, reset the head."""

from __future__ import annotations

from gazette_spark import Client
from gazette_spark.errors import SuspendedError, WrongAppendOffsetError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.waiting import wait_until


def suspend_journal(client: Client, journal: str) -> bool:
    """Store a journal's bytes and request its suspension; return whether it is suspended now."""
    try:
        client.append(journal, b"", suspend=pb.AppendRequest.SUSPEND_NOW)
    except SuspendedError:
        return True
    return False


def reset_head(client: Client, journal: str) -> int | None:
    """Move a write head to the end of the stored fragments; return it, or None if an append came first."""
    head = client.write_head(journal)
    try:
        client.append(journal, b"", offset=head)
    except WrongAppendOffsetError:
        return None
    return head


def delete_journal(client: Client, journal: str) -> None:
    """Delete a journal; its stored fragments stay."""
    client.apply([pb.ApplyRequest.Change(delete=journal, expect_mod_revision=-1)])


def create_over_fragments(client: Client, spec: pb.JournalSpec, end: int) -> None:
    """Create a journal whose stored fragments end at an offset, and make it writable there."""
    client.apply([pb.ApplyRequest.Change(upsert=spec)])
    wait_until("the stored fragments to be listed", lambda: client.write_head(spec.name) == end)
    wait_until("the head to be reset", lambda: reset_head(client, spec.name) == end)
