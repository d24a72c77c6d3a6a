"""Change journal specs: one transaction, or one after the other where there are more than Etcd takes.

A transaction is applied wholly or not at all. A series of them is not: the transactions before a failed one
stay applied, and :class:`~gazette_spark.errors.PartialApplyError` has their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from gazette_spark.client._transport.channel import Connection
from gazette_spark.client._transport.status import check_status
from gazette_spark.errors import BrokerError, GazetteError, PartialApplyError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.tokens import APPLY_LIFETIME_S, Capability, Claims

Change = pb.ApplyRequest.Change

C = TypeVar("C")
"""A change of an item."""

CHANGES_PER_APPLY = 100
"""Default size of a transaction. Etcd takes 128 operations by default."""

_TOO_MANY = "too many operations in txn"
"""Text in a broker's error when Etcd refuses a transaction for its size."""


def apply_changes(connection: Connection, changes: Sequence[Change], *, timeout_s: float) -> int:
    """Apply all changes or none, in one call without a retry; return the revision."""
    claims = Claims(Capability.APPLY, pb.LabelSelector())
    try:
        with connection.errors():
            response = connection.stub(pb_grpc.JournalStub).Apply(
                pb.ApplyRequest(changes=changes),
                timeout=timeout_s,
                metadata=connection.metadata(claims, APPLY_LIFETIME_S),
            )
    except BrokerError as error:
        if _TOO_MANY in error.problem:
            problem = f"{len(changes)} are more than one transaction takes; apply them in batches"
            raise ProtocolError("ApplyRequest.Changes", problem) from error
        raise
    names = ", ".join(change.upsert.name or change.delete for change in changes[:3])
    check_status(response.status, names if len(changes) <= 3 else f"{names}, …")
    return response.header.etcd.revision


class Listed(Protocol):
    """An item as it is now: of journals, or of shards."""

    @property
    def mod_revision(self) -> int:
        """Revision of its last change."""


def conflict(expected: int, item: Listed | None, *, delete: bool = False) -> str:
    """Say why brokers refuse a change; "" if they do not.

    Args:
        expected: revision that the change expects; -1: any.
        item: the item as it is now; None if there is none.
        delete: the change deletes it.
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
    """Apply changes ``size`` at a time, in their order; return the last revision, 0 of no changes.

    Args:
        changes: of journals, or of shards.
        size: most changes of a transaction; 0: all in one.
        apply: applies the changes of one transaction and returns its revision.

    Raises:
        PartialApplyError: a transaction failed after another was done.
        GazetteError: the first one failed: nothing was done.
    """
    if size < 0:
        raise ProtocolError("ApplyRequest", f"invalid batch size ({size}; expected 0 or more)")
    size = size or max(1, len(changes))
    revision = 0
    for begin in range(0, len(changes), size):
        try:
            revision = apply(changes[begin : begin + size])
        except GazetteError as cause:
            if begin == 0:
                raise
            raise PartialApplyError(begin // size, begin, len(changes), revision, cause) from cause
    return revision
