"""What ``gazctl journals suspend`` and ``reset-head`` do, by a client's calls."""

from __future__ import annotations

from gazette_spark import Client
from gazette_spark.errors import SuspendedError, WrongAppendOffsetError
from gazette_spark.protocol import protocol_pb2 as pb


def suspend_journal(client: Client, journal: str) -> bool:
    """Store what a journal has and ask for its suspension; return whether it is suspended now."""
    try:
        client.append(journal, b"", suspend=pb.AppendRequest.SUSPEND_NOW)
    except SuspendedError:
        return True
    return False


def reset_head(client: Client, journal: str) -> int | None:
    """Move a write head to the end of the stored fragments; return it, None if an append came first."""
    head = client.write_head(journal)
    try:
        client.append(journal, b"", offset=head)
    except WrongAppendOffsetError:
        return None
    return head
