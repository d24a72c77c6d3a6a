"""Errors of consumer applications and their shards."""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark.errors.base import GazetteError, PlainError
from gazette_spark.errors.journal_errors import end_explained


@dataclass(eq=False)
class ShardFailedError(GazetteError):
    """A shard cannot go on; the cause is the error this one was raised from."""

    shard: str
    step: str
    """What failed: a method of the application or store, or a step of the host."""
    cause: str

    def __str__(self) -> str:
        return (
            f"shard {self.shard!r}: {self.step}: {self.cause}. The shard is FAILED and its offsets are kept; "
            "when the cause is removed, unassign the shard or apply its spec again to start it"
        )


@dataclass(eq=False)
class SourceLossError(GazetteError):
    """A source of a shard ends before the offset that the shard has read: it lost bytes, or was made again.

    To wait there would be to leave out what is appended up to that offset.
    """

    journal: str
    read_through: int
    """Next byte that the shard wants."""
    write_head: int
    doubt: str = ""
    """Why no broker could confirm the write head; empty if the journal's primary did."""

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: the shard has read up to offset {self.read_through}, but the journal "
            f"ends at {self.write_head}. {end_explained(self.doubt)} If the journal was created again, apply "
            "the spec under another id, which begins at the sources' min_offset with new state"
        )


class TransactionOrderError(PlainError):
    """A step of a consumer transaction is not allowed where it stands."""
