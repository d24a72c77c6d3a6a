"""The results of many schedules, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Record = Mapping[str, Any]
"""One schedule as in its line of the log."""


def rule_of_three(trials: int) -> float:
    """Return the upper limit of the failure rate, with 95 % confidence, after trials without a failure."""
    return min(1.0, 3 / trials) if trials else 1.0


def summary(records: Iterable[Record]) -> str:
    """Return totals, and for each schedule that failed the command that runs it again."""
    records = list(records)
    total: Counter[str] = Counter()
    points: Counter[str] = Counter()
    for record in records:
        for name in (
            "cycles",
            "retries",
            "sigkills",
            "zombies",
            "rows",
            "versions",
            "lost",
            "duplicated",
            "altered",
        ):
            total[name] += record[name]
        points.update(record["points"])
    failed = [record for record in records if record["failure"]]
    crashes = total["cycles"] + total["retries"] + total["sigkills"]
    lines = [
        f"schedules {len(records)}, failed {len(failed)}",
        f"crash cycles {total['cycles']}, of the sink alone {total['retries']}",
        f"SIGKILLs {total['sigkills']}, overtaken writers {total['zombies']}",
        (
            f"rows {total['rows']} in {total['versions']} table versions: lost {total['lost']}, "
            f"duplicated {total['duplicated']}, altered {total['altered']}"
        ),
    ]
    lines += [f"  {count:5d}  {point}" for point, count in sorted(points.items())]
    if crashes and not failed:
        lines.append(
            f"no failure in {crashes} crashes: with 95 % confidence below {rule_of_three(crashes):.2%}"
        )
    lines += [
        f"seed {record['seed']}: {record['failure']}\n  run it again: {record['replay']}" for record in failed
    ]
    return "\n".join(lines)
