"""Thresholds beside the verdicts, for a service level with a number.

Burrow's verdicts need no threshold and are enough for most users. An alarm is raised where a number is known
to be beyond its threshold: an age counts by its lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from gazette_spark.errors import OptionError
from gazette_spark.lag.monitor import GroupLag


@dataclass(frozen=True, slots=True)
class Alarms:
    """Bounds on a group; None for a missing threshold.

    Raises:
        OptionError: one is negative.
    """

    max_lag_bytes: int | None = None
    """Over all journals."""
    max_age_ms: int | None = None
    """Maximum age of the oldest byte that the table lacks."""
    min_loss_in_ms: int | None = None
    """Until unread bytes may be pruned."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and value < 0:
                raise OptionError(each.name, str(value), "0 or more")

    def raised(self, lag: GroupLag) -> list[str]:
        """Return the numbers beyond their thresholds, a line each: name, value, threshold."""
        found = []
        total = lag.lag_bytes
        if self.max_lag_bytes is not None and total is not None and total > self.max_lag_bytes:
            found.append(f"lag_bytes={total} above {self.max_lag_bytes}")
        age_ms = lag.freshness.least_ms
        if self.max_age_ms is not None and age_ms is not None and age_ms > self.max_age_ms:
            found.append(f"age_ms={age_ms} above {self.max_age_ms}")
        if self.min_loss_in_ms is not None:
            found += [
                f"loss_in_ms={each.loss_in_ms} below {self.min_loss_in_ms} journal={each.journal}"
                for each in lag.journals
                if each.loss_in_ms is not None and each.loss_in_ms < self.min_loss_in_ms
            ]
        return found


NO_ALARMS = Alarms()
"""No thresholds."""
