"""Flow control of one append: the minimum rate a client has to sustain while it owns the journal.

A client starts with the credit of one second at the minimum rate. Time takes from it, delivered bytes
give back, never beyond that one second; at zero the append is aborted so that others get their turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TICK_S = 0.05
"""Seconds between two looks at a silent client."""


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

    @property
    def underflow(self) -> bool:
        """Whether the client has used up its credit. A rate of zero never underflows."""
        return self.rate > 0 and self.credit <= 0
