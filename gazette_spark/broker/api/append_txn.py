"""One append's bytes between its preconditions and its answer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from gazette_spark.broker.replication.pipeline import Pipeline
from gazette_spark.broker.replication.rules import Extent
from gazette_spark.broker.storage.commit_log import Registers, label_set_of, registers_of
from gazette_spark.protocol import protocol_pb2 as pb

HOLD_BYTES = 1 << 18
"""Content that is gathered and staged at once: clients send it in pieces of 32 KiB, and each write costs."""


class StagingJournal(Protocol):
    """Interface of the journal that an append writes to in its turn."""

    pipeline: Pipeline | None

    def held(self) -> tuple[Extent, Registers]:
        """Return extent and registers of the current spool."""

    def stage(self, content: bytes) -> None:
        """Write content behind the committed and staged bytes."""

    def commit_staged(self, registers: Registers) -> None:
        """Make the staged bytes durable, then readable."""

    def roll_back(self) -> None:
        """Drop the staged bytes."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Place of an append's bytes."""

    begin: int
    end: int
    sum: bytes
    """SHA-1 of the appended bytes alone."""
    codec: int
    registers: pb.LabelSet


class AppendTxn:
    """An append in progress. The thread that has the journal's turn owns it, and ends it either way."""

    def __init__(self, journal: StagingJournal) -> None:
        extent, self._registers = journal.held()
        self.begin = extent.end
        self.size = 0
        self._codec = extent.codec
        self._journal = journal
        self._pipeline = journal.pipeline
        self._sum = hashlib.sha1(usedforsecurity=False)
        self._held: list[bytes] = []
        self._held_bytes = 0

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
        if self._held_bytes + len(content) > HOLD_BYTES:
            self.flush()
        self._held.append(content)
        self._held_bytes += len(content)
        self.size += len(content)

    def flush(self) -> None:
        """Stage the gathered bytes."""
        held = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held, self._held_bytes = [], 0
        if held:
            (self._pipeline.write if self._pipeline is not None else self._journal.stage)(held)
            self._sum.update(held)

    def commit_append(self, registers: pb.LabelSet) -> Committed:
        """Make the content durable, then readable, at every replica. Without content nothing changes.

        Raises:
            ReplicationError: a replica is lost, and may have committed or not; roll back.
            OSError: the disk refused; roll back.
        """
        self.flush()
        after = self._registers
        if self.size:
            after = registers_of(registers)
            log = self._pipeline
            (log.commit_append if log is not None else self._journal.commit_staged)(after)
        elif self._pipeline is not None:
            self._pipeline.barrier()
        end = self.begin + self.size
        return Committed(self.begin, end, self._sum.digest(), self._codec, label_set_of(after))

    def roll_back(self) -> None:
        """Forget the content, at every replica."""
        (self._pipeline.roll_back if self._pipeline is not None else self._journal.roll_back)()
