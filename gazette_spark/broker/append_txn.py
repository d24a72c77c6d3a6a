"""One append's bytes between its preconditions and its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from gazette_spark.broker.commit_log import label_set_of, registers_of
from gazette_spark.broker.spool import Spool
from gazette_spark.protocol import protocol_pb2 as pb


@dataclass(frozen=True, slots=True)
class Committed:
    """Where an append's bytes landed."""

    begin: int
    end: int
    sum: bytes
    """SHA-1 of the appended bytes alone."""
    codec: int
    registers: pb.LabelSet


class AppendTxn:
    """An append in progress. The thread that has the journal's turn owns it, and ends it either way."""

    def __init__(self, spool: Spool, clock: Callable[[], float], publish: Callable[[], None]) -> None:
        self.begin = spool.end
        self.size = 0
        self._spool = spool
        self._clock = clock
        self._publish = publish
        self._sum = hashlib.sha1(usedforsecurity=False)

    def __repr__(self) -> str:
        return f"AppendTxn(begin={self.begin}, size={self.size})"

    @property
    def registers(self) -> pb.LabelSet:
        """The journal's registers before this append."""
        return label_set_of(self._spool.registers)

    def write(self, content: bytes) -> None:
        """Stage content."""
        self._spool.stage(content)
        self._sum.update(content)
        self.size += len(content)

    def commit_append(self, registers: pb.LabelSet) -> Committed:
        """Make the content durable, then readable. Without content nothing changes.

        Raises:
            OSError: the disk refused; roll back.
        """
        if self.size:
            self._spool.commit_append(registers_of(registers), self._clock())
            self._publish()
        end = self.begin + self.size
        return Committed(self.begin, end, self._sum.digest(), self._spool.header.codec, self.registers)

    def roll_back(self) -> None:
        """Forget the content."""
        self._spool.roll_back()
