"""The source's log lines, and their destination.

The driver's reader and the tasks run in Python processes of Spark's, whose standard error is the driver's and
the executors' log. Nobody sets up logging there: Python shows warnings, and drops everything below. With the
option ``logLevel`` the source shows its own from that level on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence

from gazette_spark._planning.ranges import OffsetRange

PACKAGE = "gazette_spark"

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

SHOWN_RANGES = 3
"""Journals of a batch whose ranges are shown, the largest ones."""


def show_logs(level: str | None) -> None:
    """Show the package's log from a level on; None leaves all as it is.

    An existing configuration of logging in this process stays: then only the level is set.
    """
    if level is None:
        return
    logger = logging.getLogger(PACKAGE)
    logger.setLevel(level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(handler)


def batch_line(
    ranges: Sequence[OffsetRange], pieces: int, behind: Mapping[str, int], heads: Mapping[str, int]
) -> str:
    """Return the line about a planned batch.

    Args:
        ranges: ranges that the batch reads.
        pieces: number of its tasks.
        behind: end of the batch in each journal of the query.
        heads: write heads as far as they were seen; empty for a batch that is run again.
    """
    lag = sum(max(0, heads[journal] - end) for journal, end in behind.items() if journal in heads)
    unseen = len(behind.keys() - heads.keys()) if heads else 0
    largest = sorted(ranges, key=lambda each: (-each.size_bytes, each.journal))
    shown = [f"{each.journal}[{each.begin},{each.end})" for each in largest[:SHOWN_RANGES]]
    shown += [f"+{len(largest) - SHOWN_RANGES}"] if len(largest) > SHOWN_RANGES else []
    parts = [
        f"batch planned journals={len(ranges)} bytes={sum(each.size_bytes for each in ranges)}",
        f"pieces={pieces} ranges={','.join(shown)}",
        *([f"lag_bytes={lag}"] if heads else []),
        *([f"unseen={unseen}"] if unseen else []),
    ]
    return " ".join(parts)


def gaps_line(gaps: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    """Return the line about missing bytes that a batch skips."""
    sizes = {journal: sum(end - begin for begin, end in spans) for journal, spans in gaps.items()}
    largest = sorted(sizes, key=lambda journal: (-sizes[journal], journal))
    shown = [f"{journal}:{sizes[journal]}" for journal in largest[:SHOWN_RANGES]]
    shown += [f"+{len(largest) - SHOWN_RANGES}"] if len(largest) > SHOWN_RANGES else []
    figures = f"journals={len(sizes)} bytes={sum(sizes.values())} largest={','.join(shown)}"
    return f"batch skips missing bytes {figures}"


def start_line(starts: Mapping[str, int], heads: Mapping[str, int]) -> str:
    """Return the line about a query that starts, ``heads`` being of the journals that have more to read."""
    left = sum(head - starts[journal] for journal, head in heads.items())
    return f"query starts journals={len(starts)} lag_bytes={left}"
