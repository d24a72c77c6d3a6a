"""A batch query's pushed conditions on its rows' origin, and the bytes that can meet them.

A :class:`Condition` is one filter on one metadata column, with SQL's meaning: a comparison with null is
unknown, and a row with an unknown condition does not belong to the query. :class:`RowFilter` has all
conditions of a query, joined by *and*, and answers before anything is read

- for a journal, exactly: its name and labels are the same for all of its records;
- for offsets, exactly too, where the bytes of a record are distinct from the bytes around it;
- for times, with bytes to spare: bytes that are not stored yet may be stored when they are read.

So conditions on journals and labels are fully applied here. The others only save reading: Spark checks each
row again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Protocol

from gazette_spark.framing.label_columns import Labels, label_value
from gazette_spark.offsets import MAX_OFFSET

Value = str | int | None
"""Value of a journal's name or a label, of an offset, or of a time in microseconds since 1970."""

Spans = list[tuple[int, int]]
"""Offsets ``[begin, end)``, ascending, apart from each other."""

EVERYWHERE: Spans = [(0, MAX_OFFSET + 1)]

MICROSECONDS = 1_000_000


class Subject(Enum):
    """Subject of a condition."""

    JOURNAL = "journal"
    LABEL = "label"
    OFFSET = "offset"
    MOD_TIME = "mod_time"


class Comparison(Enum):
    """Comparison of a value; the names of Spark's filters."""

    EQUAL = "="
    SAME = "<=>"
    """As equal, but null is the same as null and nothing else."""
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="
    IN = "in"
    IS_NULL = "is null"
    STARTS = "starts with"
    ENDS = "ends with"
    CONTAINS = "contains"


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter, or its negation."""

    subject: Subject
    test: Comparison
    values: tuple[Value, ...] = ()
    """Values to compare with: one value, or those of ``in``."""
    negated: bool = False
    label: str = ""
    """Name of the label it is about."""

    def holds(self, value: Value) -> bool:
        """Tell whether a value meets the condition; false if that is unknown."""
        found = self._truth(value)
        return found is not None and found != self.negated

    def _truth(self, value: Value) -> bool | None:
        if self.test is Comparison.IS_NULL:
            return value is None
        if self.test is Comparison.SAME:
            return value == self.values[0]
        if value is None:
            return None
        found = [None if other is None else _compare(self.test, value, other) for other in self.values]
        return True if True in found else None if None in found else False

    def spans(self) -> Spans:
        """Return the integers, from 0 to the largest offset, that meet the condition."""
        edges = {0, MAX_OFFSET + 1}
        for value in self.values:
            if isinstance(value, int):
                edges |= {min(max(edge, 0), MAX_OFFSET + 1) for edge in (value, value + 1)}
        ordered = sorted(edges)
        # Between two edges all integers compare alike.
        return joined((low, high) for low, high in pairwise(ordered) if self.holds(low))


def _compare(test: Comparison, value: str | int, other: str | int) -> bool:
    if isinstance(value, int) or isinstance(other, int):
        return _ordered(test, value, other)
    match test:
        case Comparison.STARTS:
            return value.startswith(other)
        case Comparison.ENDS:
            return value.endswith(other)
        case Comparison.CONTAINS:
            return other in value
    # Spark orders texts by their UTF-8 bytes, which is the order of their code points.
    return _ordered(test, value, other)


def _ordered(test: Comparison, value: str | int, other: str | int) -> bool:
    order = 0 if value == other else -1 if value < other else 1  # type: ignore[operator]
    match test:
        case Comparison.EQUAL | Comparison.IN:
            return order == 0
        case Comparison.LESS:
            return order < 0
        case Comparison.AT_MOST:
            return order <= 0
        case Comparison.MORE:
            return order > 0
        case Comparison.AT_LEAST:
            return order >= 0
    msg = f"{test} does not compare {value!r} with {other!r}"
    raise ValueError(msg)


class HasModTime(Protocol):
    """A fragment, as far as its span and time are concerned."""

    @property
    def begin(self) -> int:
        """Offset of its first byte."""

    @property
    def end(self) -> int:
        """Offset behind its last byte."""

    @property
    def mod_time(self) -> int:
        """When it was stored, in Unix seconds; 0 if it is not stored yet."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The conditions that each row of a query meets; without any, all that there is."""

    conditions: tuple[Condition, ...] = ()

    def has_journal(self, journal: str, labels: Callable[[str], Labels]) -> bool:
        """Tell whether the query has rows of a journal.

        Args:
            journal: Its name.
            labels: Returns its labels; asked only if a condition is about them.

        Raises:
            OptionError: a condition is about a label of which the journal has several values.
        """
        return all(each.holds(journal) for each in self._about(Subject.JOURNAL)) and all(
            each.holds(label_value(labels(journal), each.label, journal))
            for each in self._about(Subject.LABEL)
        )

    def needs_times(self) -> bool:
        """Tell whether :meth:`spans` needs a journal's fragments."""
        return bool(self._about(Subject.MOD_TIME))

    def spans(self, fragments: Iterable[HasModTime] = ()) -> Spans:
        """Return the offsets at which records of a journal may begin that are wanted.

        Args:
            fragments: All of the journal, in any order. Bytes of which the stored times are all
                unwanted are left out; those in no fragment are not.
        """
        wanted = EVERYWHERE
        for condition in self._about(Subject.OFFSET):
            wanted = both(wanted, condition.spans())
        timely = self._about(Subject.MOD_TIME)
        if timely:
            listed = list(fragments)
            kept = [
                (each.begin, each.end)
                for each in listed
                if each.mod_time == 0 or all(c.holds(each.mod_time * MICROSECONDS) for c in timely)
            ]
            free = outside(joined((each.begin, each.end) for each in listed))
            wanted = both(wanted, joined([*kept, *free]))
        return wanted

    def _about(self, subject: Subject) -> list[Condition]:
        return [each for each in self.conditions if each.subject is subject]


EVERYTHING = RowFilter()


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the union of spans, given in any order."""
    found: Spans = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif begin < end:
            found.append((begin, end))
    return found


def both(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> Spans:
    """Return the intersection of two unions of spans, each ascending and disjoint."""
    found, at = [], 0
    for begin, end in some:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        then = at
        while then < len(others) and others[then][0] < end:
            found.append((max(begin, others[then][0]), min(end, others[then][1])))
            then += 1
    return found


def outside(spans: Sequence[tuple[int, int]], begin: int = 0, end: int = MAX_OFFSET + 1) -> Spans:
    """Return ``[begin, end)`` without some spans, which are ascending and disjoint."""
    found, at = [], begin
    for low, high in spans:
        if low >= end:
            break
        if low > at:
            found.append((at, low))
        at = max(at, high)
    if at < end:
        found.append((at, end))
    return found
