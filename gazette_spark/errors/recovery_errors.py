"""Errors of recovery logs: lost operations, and hosts that were replaced."""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark.errors.base import GazetteError


@dataclass(eq=False)
class RecoveryLogLossError(GazetteError):
    """Operations that are needed to rebuild a shard's files are not in its recovery log."""

    journal: str
    offset: int
    """Offset at which they should be, or behind which they are gone."""
    problem: str

    def __str__(self) -> str:
        return (
            f"recovery log {self.journal!r}, offset {self.offset}: {self.problem}. Data is lost: restore the "
            "journal's fragments, or start from hints of a backup. To begin again without state, delete the "
            "journal and the shard's hints, and create the journal again"
        )


@dataclass(eq=False)
class RecorderFencedError(GazetteError):
    """Another host has taken the recovery log over; this one must stop. Nothing of the call is recorded."""

    journal: str

    def __str__(self) -> str:
        return (
            f"recovery log {self.journal!r}: another recorder has taken it over, so the shard's primary is "
            "elsewhere now. This host's files are out of date: stop the shard here, and play the log again "
            "to become primary"
        )


@dataclass(eq=False)
class StoreFencedError(GazetteError):
    """Another store of the same shard has restored its checkpoint; this one cannot commit any more."""

    store: str
    shard: str

    def __str__(self) -> str:
        return (
            f"store {self.store}: shard {self.shard!r} was restored by another host since this store was "
            "opened, so the shard's primary is elsewhere now. The transaction was rolled back"
        )


@dataclass(eq=False)
class StoreFormatError(GazetteError, ValueError):
    """A store's file does not hold what the store writes."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"store file {self.path}: {self.problem}. Restore the file, or begin with an empty store"
