"""Errors of a replicated log: its versions, its primaries, entries that are not there."""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark.errors.base import GazetteError
from gazette_spark.errors.broker_errors import AppendWaitError
from gazette_spark.errors.journal_errors import DataLossError, end_explained


@dataclass(eq=False)
class InvalidVersionError(GazetteError):
    """A checkpoint was asked for at another version than the log has. Nothing was appended."""

    journal: str
    asked: int
    """Version that the caller took the log to have."""
    found: int
    """Version that the log has; 0: nobody has made a checkpoint, or its brokers lost the registers."""

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: the log is at version {self.found}, not {self.asked}: no checkpoint "
            "was made. Another checkpoint came before, or the version is of another snapshot: read the log "
            "to its end first. If all brokers of the journal were lost with its registers, "
            f"take_over(version={self.asked}) sets the version again"
        )


@dataclass(eq=False)
class LogFencedError(GazetteError):
    """Another writer has taken the log over; this one must stop.

    The outcome of entries that it has not acknowledged is unknown: the log tells.
    """

    journal: str
    author: str
    """The writer that appends now; empty: nobody, the journal's brokers lost its registers."""

    def __str__(self) -> str:
        if not self.author:
            return (
                f"journal {self.journal!r}: its registers do not name this writer any more: all its brokers "
                "were lost. Entries may be missing, and no writer is fenced. Make sure that one primary is "
                "left, and let it make a new Writer"
            )
        return (
            f"journal {self.journal!r}: writer {self.author} has taken the log over. Stop being primary; to "
            "become primary again, make a new Writer, take the log over, and read it to its end"
        )


@dataclass(eq=False)
class PendingEntryError(AppendWaitError, TimeoutError):
    """An entry is not acknowledged in time; it may be in the log, now or later. Read the log to learn."""


@dataclass(eq=False)
class CheckpointStateError(GazetteError, ValueError):
    """The steps of a checkpoint are called out of their order, or by a thread that would wait for itself."""

    journal: str
    problem: str

    def __str__(self) -> str:
        return (
            f"journal {self.journal!r}: {self.problem}. `with writer.checkpointing(version)` keeps the order"
        )


@dataclass(eq=False)
class NoMoreMessageError(GazetteError):
    """The log ends here: all entries that were acknowledged before the call have been fetched."""

    journal: str
    offset: int
    """The journal's write head."""

    def __str__(self) -> str:
        return f"journal {self.journal!r}: the log ends at offset {self.offset}"


@dataclass(eq=False)
class FetchTimeoutError(GazetteError, TimeoutError):
    """No entry came in time. The next fetch continues at the same offset."""

    journal: str
    offset: int
    waited_s: float

    def __str__(self) -> str:
        return f"journal {self.journal!r}: no entry at offset {self.offset} within {self.waited_s:g} s"


@dataclass(eq=False)
class FetchCancelledError(GazetteError):
    """A fetch was cancelled. The next one continues at the same offset."""

    journal: str
    offset: int

    def __str__(self) -> str:
        return f"journal {self.journal!r}: the fetch at offset {self.offset} was cancelled"


@dataclass(eq=False)
class LogDataLossError(DataLossError):
    """Entries of a replicated log are gone: the journal begins past them, has a hole, or ends before them."""

    doubt: str = ""
    """Why no broker could confirm an end that is too low; empty if the journal's primary did."""

    def __str__(self) -> str:
        if self.available < self.wanted:
            return (
                f"journal {self.journal!r}: the log was read up to offset {self.wanted}, but it ends at "
                f"{self.available}. {end_explained(self.doubt)} Or start this replica from a copy of the "
                "primary's state"
            )
        return (
            f"journal {self.journal!r}: entries at offset {self.wanted} are gone, the next byte left is at "
            f"{self.available}. Restore the fragments, or load a snapshot and continue at its offset with "
            "set_offset"
        )
