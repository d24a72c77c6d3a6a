"""When a host starts a failed shard again: soon at first, then after twice as long each time. Pure.

A shard fails by an error of its application, of a store, or because another process has taken its store over.
Some of these pass by themselves, and the host cannot tell which. If two processes keep taking a shard from
each other, the delays grow as with any failure, and no message counts twice meanwhile: stores fence.
"""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark.errors import OptionError


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Delays of restarts.

    Raises:
        OptionError: a value is not positive, or the first delay is longer than the longest.
    """

    first_s: float = 1.0
    """Delay after the first failure; twice as long after each next one in a row."""
    max_s: float = 60.0
    """Longest delay."""
    stable_s: float = 300.0
    """A shard that ran for so long before it failed counts as failed for the first time."""

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.max_s or self.stable_s <= 0:
            raise OptionError("restart", repr(self), "0 < first_s <= max_s and 0 < stable_s")

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after a number of failures in a row, at least one."""
        return min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 32))


@dataclass(slots=True)
class Restarts:
    """The failures of one shard, and its restarts."""

    policy: RestartPolicy
    started_s: float
    """Monotonic clock, of the last start."""
    failures: int = 0
    """In a row."""
    total: int = 0
    """Restarts since the host began."""
    is_due: bool = False
    """Whether the shard has failed, and will be started again."""

    def fail(self, now_s: float) -> float:
        """Note a failure; return the seconds until the restart."""
        stable = now_s - self.started_s >= self.policy.stable_s
        self.failures = 1 if stable else self.failures + 1
        self.is_due = True
        return self.policy.delay_s(self.failures)

    def start(self, now_s: float) -> None:
        """Note the restart."""
        self.started_s, self.is_due = now_s, False
        self.total += 1

    def note(self) -> str:
        """Return what a status says of the next start."""
        delay_s = self.policy.delay_s(self.failures)
        return f"failed {self.failures} times in a row; the host starts it again after {delay_s:g} s"
