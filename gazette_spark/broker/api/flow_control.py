"""Flow control of appends: the least rate a client has to sustain, and the most a journal takes.

A client starts with the credit of one second at the minimum rate while it owns the journal. Time takes
from it, delivered bytes give back, never beyond that one second; at zero the append is aborted so that
others get their turn.

A journal with a maximum rate earns credit as time goes by, for ten seconds at most. A chunk that costs
more than there is waits until it is paid for, and that wait does not count as the client's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TICK_S = 0.05
"""Seconds between two looks at a silent client."""

MAX_BANK_S = 10.0
"""Seconds' worth of unused maximum rate that a journal keeps for its next appends."""


@dataclass(frozen=True, slots=True)
class MinRate:
    """Credit of a client that has to deliver ``rate`` bytes a second."""

    rate: int
    credit: float
    at: float
    """Clock of the last look, in seconds."""

    @classmethod
    def start(cls, rate: int, now: float) -> MinRate:
        """Begin with a second's worth of credit."""
        return cls(rate, float(rate), now)

    def delivered(self, size: int) -> MinRate:
        """Give back for ``size`` bytes received."""
        return replace(self, credit=min(self.credit + size, float(self.rate)))

    def at_time(self, now: float) -> MinRate:
        """Take for the time gone by."""
        return replace(self, credit=self.credit - (now - self.at) * self.rate, at=now)

    def resumed(self, now: float) -> MinRate:
        """Let the time gone by pass for nothing: it was not the client that waited."""
        return replace(self, at=now)

    @property
    def underflow(self) -> bool:
        """Whether the client has used up its credit. A rate of zero never underflows."""
        return self.rate > 0 and self.credit <= 0


def effective_max_rate(of_journal: int, of_broker: int) -> int:
    """Return the bytes a second a journal may take; 0 is any number.

    The broker's own limit lowers a journal's, but does not give one to a journal without.
    """
    if of_journal and of_broker:
        return min(of_journal, of_broker)
    return of_journal


@dataclass(frozen=True, slots=True)
class MaxRate:
    """Balance of a journal's maximum rate, ``rate`` bytes a second. Outlives its appends."""

    rate: int
    """Bytes a second; 0 is any number."""
    balance: float
    at: float
    """Clock of the last look, in seconds."""

    @classmethod
    def start(cls, rate: int, now: float) -> MaxRate:
        """Begin with a second's worth."""
        return cls(rate, float(rate), now)

    def at_time(self, now: float, rate: int) -> MaxRate:
        """Give for the time gone by, up to the bank; adopt the current rate."""
        if rate != self.rate:
            return MaxRate.start(rate, now)
        earned = self.balance + (now - self.at) * rate
        return MaxRate(rate, min(earned, MAX_BANK_S * rate), now)

    def take(self, size: int) -> tuple[MaxRate, float]:
        """Pay for a chunk.

        Returns:
            The balance after it, and the seconds to delay the chunk until it is paid; 0 lets it pass. A
            delayed chunk is paid by that time, whatever its size.
        """
        if not self.rate or size <= self.balance:
            return replace(self, balance=self.balance - size if self.rate else 0.0), 0.0
        seconds = (size - self.balance) / self.rate
        return MaxRate(self.rate, 0.0, self.at + seconds), seconds
