"""Controls the flow of appends: the minimum rate of a client, and the maximum rate of a journal.

While a client has the journal's turn, it has a credit, which begins at one second's worth of the minimum
rate. The credit falls as time passes and rises with delivered bytes, but never above that one second's worth.
At zero the append is aborted so that others get their turn.

A journal with a maximum rate earns credit as time passes, up to ten seconds' worth. A chunk that costs more
than the credit waits until the credit suffices, and this wait does not reduce the client's credit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TICK_S = 0.05
"""Seconds between checks of a silent client."""

MAX_BANK_S = 10.0
"""Seconds' worth of unused maximum rate that a journal keeps for its next appends."""


@dataclass(frozen=True, slots=True)
class MinRate:
    """Credit of a client that has to deliver ``rate`` bytes a second."""

    rate: int
    credit: float
    at: float
    """Clock at the last update, in seconds."""

    @classmethod
    def start(cls, rate: int, now: float) -> MinRate:
        """Begin with a second's worth of credit."""
        return cls(rate, float(rate), now)

    def delivered(self, size: int) -> MinRate:
        """Add credit for ``size`` received bytes."""
        # The credit is limited: a client that sent a lot at first must not be able to stop for long
        # afterwards.
        return replace(self, credit=min(self.credit + size, float(self.rate)))

    def at_time(self, now: float) -> MinRate:
        """Subtract credit for the time since the last update."""
        return replace(self, credit=self.credit - (now - self.at) * self.rate, at=now)

    def resumed(self, now: float) -> MinRate:
        """Ignore the time since the last update, in which the client did not cause the wait."""
        return replace(self, at=now)

    @property
    def underflow(self) -> bool:
        """Whether the client has used up its credit. A rate of zero never underflows."""
        return self.rate > 0 and self.credit <= 0


def effective_max_rate(of_journal: int, of_broker: int) -> int:
    """Return a journal's maximum rate in bytes per second; 0 means unlimited.

    The broker's limit lowers a journal's limit, but does not apply to a journal without one.
    """
    # As in Gazette, the broker's flag only lowers limits, and is not a limit itself.
    if of_journal and of_broker:
        return min(of_journal, of_broker)
    return of_journal


@dataclass(frozen=True, slots=True)
class MaxRate:
    """Credit of a journal with the maximum rate ``rate``, in bytes per second. It outlives appends."""

    rate: int
    """Bytes per second; 0 means unlimited."""
    balance: float
    at: float
    """Clock at the last update, in seconds."""

    @classmethod
    def start(cls, rate: int, now: float) -> MaxRate:
        """Begin with a second's worth of credit."""
        return cls(rate, float(rate), now)

    def at_time(self, now: float, rate: int) -> MaxRate:
        """Add credit for the time since the last update, up to the maximum; adopt the current rate."""
        # After a change of the spec, begin again: credit that was earned at another rate is not valid for
        # this one.
        if rate != self.rate:
            return MaxRate.start(rate, now)
        earned = self.balance + (now - self.at) * rate
        return MaxRate(rate, min(earned, MAX_BANK_S * rate), now)

    def take(self, size: int) -> tuple[MaxRate, float]:
        """Pay for a chunk.

        Returns:
            The balance after it, and the seconds to delay the chunk until it is paid; 0 for no delay. A
            delayed chunk is paid by that time, regardless of its size.
        """
        if not self.rate or size <= self.balance:
            return replace(self, balance=self.balance - size if self.rate else 0.0), 0.0
        # The time of payment becomes the time of the update, so that the seconds of waiting are not earned
        # twice.
        seconds = (size - self.balance) / self.rate
        return MaxRate(self.rate, 0.0, self.at + seconds), seconds
