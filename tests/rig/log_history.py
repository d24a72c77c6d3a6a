"""Checks a recorded run of a replicated log against the log's promises. Pure.

A history records what was acknowledged, what each replica applied in order, and who took the log over when.
It is valid if the replicas agree, nothing was applied twice, nothing acknowledged is missing or in another
order, versions went up by one, and each new primary had applied everything that its predecessors ever had
acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Step: TypeAlias = str | int
"""Step of a replica: the name of an entry, or the version that a checkpoint created."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An entry whose writer got an acknowledgement."""

    entry: str
    writer: str
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class Promotion:
    writer: str
    took_over_at: int
    """Offset in the log from which the writer is the only one."""
    applied: tuple[Step, ...]
    """Steps that the node had applied when it began to serve."""


@dataclass(slots=True)
class History:
    acknowledged: list[Acknowledged] = field(default_factory=list)
    promotions: list[Promotion] = field(default_factory=list)
    replicas: dict[str, list[Step]] = field(default_factory=dict)
    """Steps that each replica applied, up to the end of the log."""


def problems(history: History) -> list[str]:
    """Return every broken promise; an empty list for a valid history."""
    return [
        *_twice(history),
        *_versions(history),
        *_disagreement(history),
        *_lost(history),
        *_order(history),
        *_primaries(history),
    ]


def _twice(history: History) -> Iterator[str]:
    for name, steps in history.replicas.items():
        for entry, count in Counter(step for step in steps if isinstance(step, str)).items():
            if count > 1:
                yield f"{name} applied {entry} {count} times"


def _versions(history: History) -> Iterator[str]:
    for name, steps in history.replicas.items():
        before = 0
        for version in (step for step in steps if isinstance(step, int)):
            if version != before + 1:
                yield f"{name} went from version {before} to {version}"
            before = version


def _disagreement(history: History) -> Iterator[str]:
    replicas = list(history.replicas.items())
    for name, steps in replicas[1:]:
        first, expected = replicas[0]
        if steps != expected:
            at = next((n for n, (a, b) in enumerate(zip(steps, expected, strict=False)) if a != b), None)
            where = f"at step {at}" if at is not None else f"in length, {len(steps)} and {len(expected)}"
            yield f"{name} and {first} differ {where}"


def _lost(history: History) -> Iterator[str]:
    for name, steps in history.replicas.items():
        applied = set(steps)
        for each in history.acknowledged:
            if each.entry not in applied:
                yield f"{name} lacks {each.entry}, which {each.writer} had acknowledged"


def _order(history: History) -> Iterator[str]:
    """Yield entries that were begun after another one was acknowledged, but precede it in the log."""
    steps = next(iter(history.replicas.values()), [])
    place = {step: at for at, step in reversed(list(enumerate(steps)))}
    known = [each for each in history.acknowledged if each.entry in place]
    by_end = sorted(known, key=lambda each: each.ended)
    latest, done = Acknowledged("", "", 0, 0), 0
    for each in sorted(known, key=lambda each: each.begun):
        while done < len(by_end) and by_end[done].ended < each.begun:
            if place[by_end[done].entry] >= place.get(latest.entry, -1):
                latest = by_end[done]
            done += 1
        if place[each.entry] < place.get(latest.entry, -1):
            yield f"{each.entry} was begun after {latest.entry} was acknowledged, and is before it"


def _primaries(history: History) -> Iterator[str]:
    since = {each.writer: each.took_over_at for each in history.promotions}
    for promotion in history.promotions:
        applied = set(promotion.applied)
        for each in history.acknowledged:
            if since[each.writer] < promotion.took_over_at and each.entry not in applied:
                yield f"{promotion.writer} became primary without {each.entry} of {each.writer}"
