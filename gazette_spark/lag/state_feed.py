"""The open transactions of a query of committed messages, from the files that its tasks leave.

A task writes the states of a journal's producers where its range ends, before the batch is committed. So the
file of a committed offset tells which transactions were open there. A look reads a file for each journal that
has moved, and none of the journal itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from gazette_spark.errors import InputError
from gazette_spark.lag.feeds import masked_url
from gazette_spark.lag.monitor import Monitor
from gazette_spark.offsets import JournalOffsets
from gazette_spark.query_progress import journal_transactions

READERS = 8
"""Files that are read at the same time: one in a bucket takes 20 ms."""

Ask = Callable[[str], Any]


class OpenStates(Protocol):
    """What is open in each journal of a query, as far as its files were read."""

    def refresh(self, position: JournalOffsets, each: Callable[[Ask, Iterable[str]], dict[str, Any]]) -> None:
        """Read the files of journals that moved."""

    def to_dict(self) -> Mapping[str, Any]:
        """Return what is open, by journal."""

    @property
    def known(self) -> set[str]:
        """Journals whose file was there."""


class StateFeed:
    """Reports the open transactions of a group where its commits end.

    A journal without a readable file is unknown until one is there; the group's other figures do not depend
    on it.

    Args:
        group: the group, which another feed reports.
        location: the query's ``stateLocation``, to be shown.
        states: reads it.
    """

    groups: tuple[str, ...] = ()

    def __init__(self, group: str, location: str, states: OpenStates) -> None:
        self._group = group
        self._location = location
        self._states = states

    def __repr__(self) -> str:
        return f"open transactions of {self._group} in {masked_url(self._location)}"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Read the files of the offsets that were committed since the last look.

        Raises:
            InputError: no commit of the group is known.
        """
        if monitor.last_order(self._group) < 0:
            names = ", ".join(monitor.groups()) or "none"
            raise InputError(f"no commit of a group {self._group!r} is known; known groups: {names}")
        committed = monitor.committed(self._group, now_ms)
        self._states.refresh(JournalOffsets(committed), _many)
        known = self._states.known
        opened = journal_transactions(self._states.to_dict())
        monitor.observe_transactions(self._group, opened, known, committed.keys() - known, now_ms)


def _many(ask: Ask, journals: Iterable[str]) -> dict[str, Any]:
    names = list(journals)
    if len(names) < 2:
        return {name: ask(name) for name in names}
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))
