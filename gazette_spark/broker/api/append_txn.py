"""Stages and commits one append's bytes, after the check of its preconditions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from gazette_spark.broker.replication.pipeline import Pipeline
from gazette_spark.broker.replication.rules import Extent
from gazette_spark.broker.storage.commit_log import Registers, label_set_of, registers_of
from gazette_spark.protocol import protocol_pb2 as pb

GATHER_BYTES = 1 << 18
"""Number of bytes to gather before staging them. Clients send pieces of 32 KiB, and one
write for each would be slow."""


class StagingJournal(Protocol):
    """Interface of the journal that an append writes to in its turn."""

    pipeline: Pipeline | None

    def committed(self) -> tuple[Extent, Registers]:
        """Return extent and registers of the current spool."""

    def stage(self, content: bytes) -> None:
        """Write content behind the committed and staged bytes."""

    def commit_staged(self, registers: Registers) -> None:
        """Make the staged bytes durable, then readable."""

    def roll_back(self) -> None:
        """Drop the staged bytes."""


@dataclass(frozen=True, slots=True)
class CommittedAppend:
    """Range and sum of an append's bytes."""

    begin: int
    end: int
    sum: bytes
    """SHA-1 of the appended bytes alone."""
    codec: int
    registers: pb.LabelSet


class AppendTxn:
    """An append in progress. The thread that has the journal's turn owns it, and commits or rolls back."""

    def __init__(self, journal: StagingJournal) -> None:
        # The state on which the replicas agreed before the append. A roll-back returns to it.
        extent, self._registers = journal.committed()
        self.begin = extent.end
        self.size = 0
        self._codec = extent.codec
        self._journal = journal
        self._pipeline = journal.pipeline
        self._sum = hashlib.sha1(usedforsecurity=False)
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def __repr__(self) -> str:
        return f"AppendTxn(begin={self.begin}, size={self.size})"

    @property
    def registers(self) -> pb.LabelSet:
        """The journal's registers before this append."""
        return label_set_of(self._registers)

    def write(self, content: bytes) -> None:
        """Stage content, at every replica.

        Raises:
            ReplicationError: a replica is lost; roll back.
            OSError: the disk refused; roll back.
        """
        if self._gathered_bytes + len(content) > GATHER_BYTES:
            self.flush()
        self._gathered.append(content)
        self._gathered_bytes += len(content)
        self.size += len(content)

    def flush(self) -> None:
        """Stage the gathered bytes."""
        # A single piece, as in most small appends, needs no copy.
        content = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        if content:
            # A primary with other replicas sends the bytes to them and also stages them here.
            (self._pipeline.write if self._pipeline is not None else self._journal.stage)(content)
            self._sum.update(content)

    def commit_append(self, registers: pb.LabelSet) -> CommittedAppend:
        """Make the content durable, then readable, at every replica. Without content nothing changes.

        Raises:
            ReplicationError: a replica is lost, and may or may not have committed; roll back.
            OSError: the disk refused; roll back.
        """
        self.flush()
        after = self._registers
        if self.size:
            after = registers_of(registers)
            # With other replicas, the pipeline commits at them before it commits in this broker's spool.
            log = self._pipeline
            (log.commit_append if log is not None else self._journal.commit_staged)(after)
        elif self._pipeline is not None:
            # An empty append is a barrier: its answer promises that all replicas have everything before it.
            self._pipeline.barrier()
        end = self.begin + self.size
        return CommittedAppend(self.begin, end, self._sum.digest(), self._codec, label_set_of(after))

    def roll_back(self) -> None:
        """Discard the content at every replica."""
        (self._pipeline.roll_back if self._pipeline is not None else self._journal.roll_back)()
