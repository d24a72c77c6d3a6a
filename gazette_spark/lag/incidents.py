"""Keeps the incidents of the last days: when a group was in trouble, how badly, and for how long.

They are only in memory and do not survive the monitor. :mod:`gazette_spark.lag.notifier` sends notices, which
a receiver can store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gazette_spark.lag.group_lag import Alarms, GroupLag
from gazette_spark.lag.rules import Status

SPAN_MS = 7 * 24 * 3_600_000
"""Age from which ended incidents are forgotten."""

MAX_INCIDENTS = 500
"""Maximum number of incidents; the oldest ended ones are forgotten first."""


@dataclass(slots=True)
class PastIncident:
    """A period in which a group was WARN or ERR, or had an alarm."""

    group: str
    begin_ms: int
    end_ms: int | None
    """Time at which it ended; None while it lasts."""
    status: Status
    """Worst verdict of the period; OK if there were only alarms."""
    alarms: tuple[str, ...]
    """The first alarms that were raised."""


class IncidentLog:
    """Keeps the incidents of all groups. Not thread-safe.

    Args:
        alarms: Thresholds that start an incident, in addition to the verdicts.
    """

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._open: dict[str, PastIncident] = {}
        self._ended: list[PastIncident] = []

    def __repr__(self) -> str:
        return f"IncidentLog(open={sorted(self._open)}, ended={len(self._ended)})"

    def observe(self, lags: Mapping[str, GroupLag], now_ms: int) -> None:
        """Update the incidents with the lag of all groups. A group without a verdict is left unchanged."""
        for group, lag in lags.items():
            status, alarms = lag.verdict.status, tuple(self._alarms.raised(lag))
            incident = self._open.get(group)
            # A missing verdict is not a recovery: an incident continues while a feed cannot be read.
            if status == Status.NOTFOUND:
                continue
            if status < Status.WARN and not alarms:
                self._end(group, now_ms)
            elif incident is None:
                self._open[group] = PastIncident(group, now_ms, None, status, alarms)
            else:
                # The worst verdict of the whole period, because that matters afterwards.
                incident.status = max(incident.status, status)
                incident.alarms = incident.alarms or alarms
        # These groups were forgotten, so nothing else would end their incidents.
        for group in self._open.keys() - lags.keys():
            self._end(group, now_ms)
        oldest_ms = now_ms - SPAN_MS
        self._ended = [incident for incident in self._ended if (incident.end_ms or 0) > oldest_ms]
        del self._ended[:-MAX_INCIDENTS]

    def newest_first(self) -> Iterable[PastIncident]:
        """Return the open incidents, then the ended ones, each with the newest first."""
        lasting = sorted(self._open.values(), key=lambda incident: -incident.begin_ms)
        return [*lasting, *reversed(self._ended)]

    def _end(self, group: str, now_ms: int) -> None:
        if (incident := self._open.pop(group, None)) is not None:
            incident.end_ms = now_ms
            self._ended.append(incident)
