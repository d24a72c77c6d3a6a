"""Derives how a query's run ended from the text of Spark's error."""

from __future__ import annotations

import re

from gazette_spark.errors import GazetteError

RECREATED = "JournalRecreatedError"

REFUSALS = ("FencedError", "OverlapError", "GapError", "RestoredError", "LedgerLostError", RECREATED)
"""Errors with which the sink ends a query that must not continue."""

_REFUSED = re.compile(r"\b(" + "|".join(REFUSALS) + r"):")
_CRASHED = re.compile(r"failpoint '[\w.]+' was reached")

ENDED = "ended"
CRASHED = "crashed"


class UnexpectedEndError(GazetteError):
    """A query ended in a way that no step of the schedule explains."""

    problem: str


def refusal(error: str) -> str | None:
    """Return the name of the sink's error in a text, None without such an error."""
    found = _REFUSED.search(error)
    return found[1] if found else None


def outcome(error: str) -> str:
    """Return how the query ended: :data:`CRASHED`, or the name of the sink's error.

    Raises:
        UnexpectedEndError: it ended in any other way.
    """
    if _CRASHED.search(error):
        return CRASHED
    name = refusal(error)
    if name is None:
        raise UnexpectedEndError(error[:4000])
    return name
