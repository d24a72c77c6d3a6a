"""Changes journal specs in one transaction, or in several if there are more changes than Etcd accepts.

A transaction is applied as a whole or not at all. A series of transactions is not: those before a failed one
stay applied, and :class:`~gazette_spark.errors.PartialApplyError` has their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from gazette_spark.client._transport.channel import Connection
from gazette_spark.client._transport.retry import unknown_changes
from gazette_spark.client._transport.status import check_status
from gazette_spark.errors import BrokerError, GazetteError, PartialApplyError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.tokens import APPLY_LIFETIME_S, Capability, Claims

Change = pb.ApplyRequest.Change

C = TypeVar("C")
"""A change of an item."""

CHANGES_PER_APPLY = 100
"""Default number of changes in a transaction. By default Etcd accepts 128 operations."""

_TOO_MANY = "too many operations in txn"
"""Part of a broker's error if Etcd refuses a transaction because of its size."""


def apply_changes(connection: Connection, changes: Sequence[Change], *, timeout_s: float) -> int:
    """Apply all changes or none in one call without a retry, and return the revision."""
    claims = Claims(Capability.APPLY, pb.LabelSelector())
    try:
        with unknown_changes(), connection.errors():
            response = connection.stub(pb_grpc.JournalStub).Apply(
                pb.ApplyRequest(changes=changes),
                timeout=timeout_s,
                metadata=connection.metadata(claims, APPLY_LIFETIME_S),
            )
    except BrokerError as error:
        # Etcd's limit is a setting of its server, so it cannot be checked here.
        if _TOO_MANY in error.problem:
            problem = f"{len(changes)} changes are too many for one transaction; apply them in batches"
            raise ProtocolError("ApplyRequest.Changes", problem) from error
        raise
    names = ", ".join(change.upsert.name or change.delete for change in changes[:3])
    check_status(response.status, names if len(changes) <= 3 else f"{names}, …")
    return response.header.etcd.revision


class Listed(Protocol):
    """The current state of a journal or a shard."""

    @property
    def mod_revision(self) -> int:
        """Revision of its last change."""


def conflict(expected: int, item: Listed | None, *, delete: bool = False) -> str:
    """Return why brokers refuse a change; "" if they do not.

    Args:
        expected: Revision that the change expects; -1 for any.
        item: The current state of the item; None if it does not exist.
        delete: Whether the change deletes it.
    """
    if item is None:
        if delete:
            return "it does not exist"
        return f"it does not exist, but revision {expected} is expected" if expected > 0 else ""
    if expected in (-1, item.mod_revision):
        return ""
    if expected == 0 and not delete:
        return f"it exists already, at revision {item.mod_revision}; add `revision: -1` to overwrite it"
    return f"it is at revision {item.mod_revision}, but {expected} is expected"


def apply_in_batches(changes: Sequence[C], size: int, apply: Callable[[Sequence[C]], int]) -> int:
    """Apply changes in order, ``size`` at a time, and return the last revision; 0 without changes.

    Args:
        changes: Changes of journals or of shards.
        size: Maximum number of changes per transaction; 0 for a single transaction.
        apply: Applies the changes of one transaction and returns its revision.

    Raises:
        PartialApplyError: a transaction failed after others were applied.
        GazetteError: the first transaction failed, and nothing was applied.
    """
    if size < 0:
        raise ProtocolError("ApplyRequest", f"invalid batch size ({size}; expected 0 or more)")
    size = size or max(1, len(changes))
    revision = 0
    # The batches are separate transactions: after a failure, those before it stay. The error has their
    # number, so that the caller can continue or undo.
    for begin in range(0, len(changes), size):
        try:
            revision = apply(changes[begin : begin + size])
        except GazetteError as cause:
            if begin == 0:
                raise
            raise PartialApplyError(begin // size, begin, len(changes), revision, cause) from cause
    return revision
