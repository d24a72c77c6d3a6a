"""The open transactions of a stream's journals, for its progress and for the lag monitor.

Tasks know which transactions are open, and Spark takes no figures from them. They leave the states of
producers in files, by which others tell what was open where a batch ended: the driver for the query's
progress, the lag monitor for what a table has committed. Both read a file for each journal that moved, of so
many journals a look, in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np

from gazette_spark._planning.producer_states import StateFiles
from gazette_spark.message.columns import ProducerStates
from gazette_spark.message.uuids import Clock, producer_of
from gazette_spark.offsets import JournalOffsets

LOOKS = 200
"""Journals of one look."""

UNREAD = -1
"""In place of the offset of a journal whose file was not there."""

SHOWN = 10
"""Transactions of a journal that are shown, the oldest ones; the others are counted."""

Found = dict[str, Any]
"""A journal's open transactions, as JSON: ``at`` an offset, their ``count``, and the ``oldest`` by begin."""


class OpenTransactions:
    """Knows what was open in each journal when it was looked at last. For one thread."""

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._looked: dict[str, int] = {}
        """By journal, the offset that was looked at, or ``UNREAD``; the journals looked at last are at the
        end."""
        self._found: dict[str, Found] = {}

    def look(
        self,
        position: JournalOffsets,
        each: Callable[[Callable[[str], Found | None], Iterable[str]], dict[str, Found | None]],
    ) -> None:
        """Look at journals that moved, and again at those whose file was not there.

        Args:
            position: Where the last batch ended. A journal without a start may be of any query.
            each: Asks about many journals at the same time.
        """
        reached = position.read_through
        moved = [journal for journal in reached if journal not in self._looked]
        moved += [journal for journal, at in self._looked.items() if reached.get(journal, at) != at]

        def found_in(journal: str) -> Found | None:
            at, start = reached[journal], position.starts.get(journal)
            if at in (0, start):
                return {}
            found = self._files.load(journal, at, start)
            return None if found is None else shown(found[0], at) or {}

        for journal, found in each(found_in, list(islice(moved, LOOKS))).items():
            self._looked.pop(journal, None)
            self._looked[journal] = UNREAD if found is None else reached[journal]
            self._found.pop(journal, None)
            if found:
                self._found[journal] = found
        for journal in self._looked.keys() - reached.keys():
            del self._looked[journal]
            self._found.pop(journal, None)

    @property
    def known(self) -> set[str]:
        """Journals of which it is known what was open when they were looked at last."""
        return {journal for journal, at in self._looked.items() if at != UNREAD}

    def to_dict(self) -> dict[str, Found]:
        """Return what is open, by journal."""
        return dict(sorted(self._found.items()))


def shown(states: ProducerStates, at: int) -> Found | None:
    """Return the transactions that are open at an offset; None if there is none.

    Those of producers that are silent for a day are left out: a task that was killed leaves one for good.
    """
    opened = np.flatnonzero(states.awaited(int(Clock.at(time.time_ns()))))
    if not len(opened):
        return None
    oldest = opened[np.argsort(states.begins[opened], kind="stable")][:SHOWN]
    return {
        "at": at,
        "count": len(opened),
        "oldest": {
            str(states.begins[row]): {
                "producer": producer_of(int(states.producers[row])).hex(),
                "newest_ms": max(0, Clock(int(states.last_clocks[row])).unix_ns // 1_000_000),
            }
            for row in oldest
        },
    }
