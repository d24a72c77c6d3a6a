"""Burrow's rules and storage, implemented as literally and simply as possible.

A window is a list of ``None`` and :class:`Commit`. A ring is a real ring, walked with a pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

CODES = {"NOTFOUND": 0, "OK": 1, "WARN": 2, "ERR": 3, "STOP": 4, "STALL": 5, "REWIND": 6}


@dataclass(frozen=True)
class Commit:
    """One commit; the rules do not use ``order``."""

    offset: int
    timestamp: int
    observed: int = 0
    lag: int | None = None
    order: int = 0


def partition_verdict(
    window: list[Commit | None],
    broker_offsets: list[int],
    current_lag: int,
    *,
    now_s: int,
    allowed_lag: int,
    minimum_complete: float,
) -> tuple[str, np.float32, Commit | None, Commit | None]:
    if not window:
        return "OK", np.float32(0), None, None
    kept = list(window)
    while len(kept) > 1 and kept[0] is None:
        kept.pop(0)
    complete = np.float32(1.0)
    if len(kept) < len(window):
        complete = np.float32(len(kept)) / np.float32(len(window))
    if kept[0] is None:
        return "OK", complete, None, None
    commits = [commit for commit in kept if commit is not None]
    status = "OK"
    if not complete < np.float32(minimum_complete):
        status = rules(commits, broker_offsets, current_lag, now_s, allowed_lag)
    return status, complete, commits[0], commits[-1]


def rules(
    commits: list[Commit], broker_offsets: list[int], current_lag: int, now_s: int, allowed_lag: int
) -> str:
    tests = [
        ("OK", current_lag <= allowed_lag),
        ("STOP", stopped(commits, now_s) and not recently_level(commits, broker_offsets)),
        ("REWIND", rewound(commits)),
        ("OK", any(commit.lag is not None and commit.lag <= allowed_lag for commit in commits)),
        ("STALL", all(commits[i].offset == commits[i - 1].offset for i in range(1, len(commits)))),
        ("WARN", never_decreases([commit.lag for commit in commits if commit.lag is not None])),
        ("OK", True),
    ]
    return next(verdict for verdict, applies in tests if applies)


def stopped(commits: list[Commit], now_s: int) -> bool:
    return now_s * 1000 - commits[-1].timestamp > commits[-1].timestamp - commits[0].timestamp


def recently_level(commits: list[Commit], broker_offsets: list[int]) -> bool:
    return any(head <= commits[-1].offset for head in broker_offsets)


def rewound(commits: list[Commit]) -> bool:
    """Return whether the first step backwards was never recovered."""
    for i in range(1, len(commits)):
        if commits[i].offset < commits[i - 1].offset:
            return not any(commits[j].offset >= commits[i - 1].offset for j in range(i, len(commits)))
    return False


def never_decreases(lags: list[int]) -> bool:
    """Return whether the values never decrease; fewer than two values never do."""
    previous = None
    for lag in lags:
        if previous is not None and lag < previous:
            return False
        previous = lag
    return True


def group_verdict(partitions: Sequence[tuple[str, np.float32 | float, int]]) -> dict[str, Any]:
    """Return a group's figures from the status, completeness and current lag of each partition."""
    status, total, complete, maxlag = "OK", 0, 0, None
    for at, (partition, share, lag) in enumerate(partitions):
        if CODES[partition] > CODES[status]:
            status = "ERR" if CODES[partition] >= 4 else partition
        total += lag
        complete += bool(share == 1.0)
        if maxlag is None or lag > partitions[maxlag][2]:
            maxlag = at
    count = len(partitions)
    return {
        "status": status,
        "complete": np.float32(complete) / np.float32(count) if count else np.float32(0),
        "maxlag": maxlag,
        "totallag": total,
        "partition_count": count,
    }


class Ring:
    """Slots in a circle, with a pointer at the oldest commit or at the next free slot."""

    def __init__(self, slots: int) -> None:
        self.slots: list[Commit | None] = [None] * slots
        self.pointer = 0

    def before(self, at: int) -> int:
        return (at - 1) % len(self.slots)

    def after(self, at: int) -> int:
        return (at + 1) % len(self.slots)

    def walk(self) -> list[Commit | None]:
        """Return all slots, starting at the pointer."""
        return self.slots[self.pointer :] + self.slots[: self.pointer]

    def find(self, order: int) -> tuple[str, int]:
        """Return what to do with a commit of that order, and the slot that it concerns."""
        oldest, newest = self.slots[self.pointer], self.slots[self.before(self.pointer)]
        if newest is None:
            return "append", self.pointer
        if oldest is not None and oldest.order >= order:
            return "drop", 0
        if newest.order < order:
            return "append", self.pointer
        slot = self.pointer
        while True:
            earlier = self.before(slot)
            found = self.slots[earlier]
            if found is None or earlier == self.pointer:
                return "overwrite", earlier
            if found.order == order:
                return "drop", 0
            if found.order < order:
                return "insert", slot
            slot = earlier

    def add(self, commit: Commit, min_distance_s: int) -> bool:
        """Add a commit with the lag of an append; return whether it was one."""
        action, slot = self.find(commit.order)
        if action == "drop":
            return False
        if action != "append":
            commit = replace(commit, lag=None)
        previous = self.slots[self.before(slot)]
        if (
            previous is not None
            and previous.order < commit.order
            and commit.timestamp - previous.timestamp < min_distance_s * 1000
        ):
            self.slots[self.before(slot)] = replace(commit, timestamp=previous.timestamp)
            return action == "append"
        if action == "insert":
            to = self.pointer
            while to != slot:
                self.slots[to] = self.slots[self.before(to)]
                to = self.before(to)
        self.slots[slot] = commit
        if action in {"append", "insert"}:
            self.pointer = self.after(self.pointer)
        return action == "append"


class Storage:
    """The storage of one cluster and one topic: write heads and commits of its partitions."""

    def __init__(self, slots: int, min_distance_s: int, expire_s: int) -> None:
        self.slots, self.min_distance_s, self.expire_s = slots, min_distance_s, expire_s
        self.heads: list[list[int]] = []
        self.groups: dict[str, list[Ring | None]] = {}
        self.last_commit: dict[str, int] = {}

    def add_head(self, partition: int, count: int, offset: int) -> None:
        while len(self.heads) < count:
            self.heads.append([])
        self.heads[partition] = [*self.heads[partition], offset][-self.slots :]

    def add_commit(self, group: str, partition: int, commit: Commit, now_s: int) -> None:
        """Add a commit, in the order of the page: age, write head, ring, place, lag, merge."""
        if commit.timestamp < (now_s - self.expire_s) * 1000:
            return
        if not 0 <= partition < len(self.heads) or not self.heads[partition]:
            return
        rings = self.groups.setdefault(group, [])
        if partition >= len(rings):
            rings += [None] * (len(self.heads) - len(rings))
        ring = rings[partition] or Ring(self.slots)
        rings[partition] = ring
        lag = max(0, self.heads[partition][-1] - commit.offset)
        if ring.add(replace(commit, lag=lag, observed=now_s * 1000), self.min_distance_s):
            self.last_commit[group] = commit.timestamp

    def fetch(self, group: str, now_s: int) -> list[tuple[list[Commit | None], list[int], int]] | None:
        """Return window, write heads and current lag of each partition; None without a live group."""
        if group not in self.groups:
            return None
        if (now_s - self.expire_s) * 1000 > self.last_commit.get(group, 0):
            del self.groups[group]
            self.last_commit.pop(group, None)
            return None
        found = []
        for partition, ring in enumerate(self.groups[group]):
            window = ring.walk() if ring else []
            last = window[-1] if window else None
            heads = self.heads[partition]
            found.append((window, heads, max(0, heads[-1] - last.offset) if last and heads else 0))
        return found
