"""The results of many schedules in numbers: by kind of sink, kind of crash, and point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Record = Mapping[str, Any]
"""One schedule, as in its line of the log."""

KINDS_OF_CRASH = {
    "cycles": "queries ended by an exception",
    "sigkills": "drivers ended by SIGKILL",
    "retries": "sinks alone, within a batch",
}
"""Fields of a record that count crashes."""

STEPS_OF = {
    "cycles": ("crash", "backfill"),
    "sigkills": ("kill", "random kill", "kill backfill"),
    "retries": ("sink crashes",),
}
"""Kinds of the steps that cause each kind of crash."""

COLUMNS = (
    "cycles",
    "sigkills",
    "retries",
    "zombies",
    "rows",
    "versions",
    "lost",
    "duplicated",
    "altered",
)


def rule_of_three(trials: int) -> float:
    """Return the 95 % upper limit of the failure rate after this many trials without a failure."""
    return min(1.0, 3 / trials) if trials else 1.0


def crashes(record: Record) -> int:
    return sum(record[kind] for kind in KINDS_OF_CRASH)


def summary(records: Iterable[Record]) -> str:
    records = list(records)
    failed = [record for record in records if record["failure"]]
    total = sum(crashes(record) for record in records)
    lines = [f"schedules {len(records)}, failed {len(failed)}", *_by_sink(records), *_by_crash(records)]
    points: Counter[str] = Counter()
    for record in records:
        points.update(record["points"])
    lines += [f"  {count:5d}  {point}" for point, count in sorted(points.items())]
    if total and not failed:
        lines.append(f"no failure in {total} crashes: with 95 % confidence below {rule_of_three(total):.2%}")
    lines += [
        f"seed {record['seed']}: {record['failure']}\n  run it again: {record['replay']}" for record in failed
    ]
    return "\n".join(lines)


def _by_sink(records: list[Record]) -> list[str]:
    head = ("queries", "SIGKILLs", "sink alone", "overtaken", *COLUMNS[4:])
    lines = ["| sink | schedules | " + " | ".join(head) + " |", "|---" * (len(head) + 2) + "|"]
    kinds = sorted({record["sink"] for record in records})
    groups = {kind: [record for record in records if record["sink"] == kind] for kind in kinds}
    for kind, group in (groups | {"all": records}).items():
        sums = (str(sum(record[name] for record in group)) for name in COLUMNS)
        lines.append(f"| {kind} | {len(group)} | " + " | ".join(sums) + " |")
    return lines


def _by_crash(records: list[Record]) -> list[str]:
    """Return a table with a line for each kind of crash: number, share, seconds per crash."""
    total = sum(crashes(record) for record in records)
    lines = ["| crashes | number | share | seconds each |", "|---|---|---|---|"]
    for kind, name in KINDS_OF_CRASH.items():
        count = sum(record[kind] for record in records)
        steps = STEPS_OF[kind]
        seconds = sum(record["seconds_by_step"].get(step, 0) for record in records for step in steps)
        share, each = (f"{count / total:.0%}", f"{seconds / count:.1f}") if count else ("0%", "-")
        lines.append(f"| {name} | {count} | {share} | {each} |")
    return lines
