"""Defines a group's lag as the monitor reports it: verdict, bytes, ages, forecasts, transactions, alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from gazette_spark.errors import OptionError
from gazette_spark.lag.estimates import Age, TimedFragment
from gazette_spark.lag.rules import GroupStatus, PartitionStatus

UNKNOWN_AGE = Age()


@dataclass(frozen=True, slots=True)
class JournalStore:
    """The stored fragments of a journal, and their retention."""

    fragments: Sequence[TimedFragment] = ()
    retention_ms: int | None = None
    """Age from which fragments may be pruned; None for no limit."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Bytes of a journal that a group has not committed: ``[begin, end)``."""

    journal: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FeedState:
    """The time at which a feed was last read, and the reason why it cannot be read now."""

    name: str
    groups: tuple[str, ...]
    """The groups that it reports; none for a feed of write heads, or for one that was never read."""
    of_heads: bool
    read_ms: int | None = None
    """Start of the last round in which it was read; None if it never was."""
    failure: str | None = None
    """Reason why it could not be read in the last round; None if it was."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reason why a write head could not be read, by journal, although others were."""

    @property
    def unread_groups(self) -> tuple[str, ...]:
        """Groups that cannot be read; the feed's own name if it was never read, none if it can be read."""
        # The groups of a feed that was never read are unknown. Its own name replaces them, so that a table
        # that cannot be read is visible instead of missing.
        return () if self.of_heads or not self.failure else self.groups or (self.name,)


@dataclass(frozen=True, slots=True)
class OpenSince:
    """An open transaction that the progress of a query reported."""

    journal: str
    producer: str
    begin: int
    held_bytes: int
    """Bytes from its first message to the query's position, which must be kept until it ends."""
    since_ms: int
    """Earliest time at which it is known to have been open, from a message or a progress report."""

    def age(self, now_ms: int) -> Age:
        """Return its age, for which only a lower bound is known."""
        return Age(max(0, now_ms - self.since_ms), None)


@dataclass(frozen=True, slots=True)
class OpenTransactionSummary:
    """The open transactions of a journal at the end of a group's commits."""

    count: int | None
    """Number of open transactions; None if unknown."""
    oldest: OpenSince | None = None
    """The transaction that begins first; None if none is open, or if that is unknown."""
    age: Age | None = None
    """Age of the oldest transaction."""


@dataclass(slots=True)
class GroupTotals:
    """The totals of what the observed batches of a group omitted, and its open transactions."""

    gap_bytes: dict[str, int] = field(default_factory=dict)
    """Skipped missing bytes by journal, including those that an operator accepted."""
    accepted_gap_bytes: dict[str, int] = field(default_factory=dict)
    trimmed_bytes: int = 0
    """Bytes of batches whose rows were already in the table."""
    skipped_bytes: int = 0
    """Skipped missing bytes, from the progress of a query."""
    malformed: int | None = None
    """Malformed records; None if the query does not count them."""
    transactions: list[OpenSince] = field(default_factory=list)
    """The oldest open transactions of each journal, by journal and begin."""
    open_counts: dict[str, int] = field(default_factory=dict)
    """The number of open transactions by journal; 0 if a poll found none."""
    open_unknown: frozenset[str] = frozenset()
    """Journals whose open transactions could not be read."""

    def open_transactions(self, now_ms: int) -> dict[str, OpenTransactionSummary]:
        """Return the open transactions of each journal for which they are read."""
        # Transactions are sorted by begin. In reverse, the first transaction of each journal is put last and
        # stays in the dictionary.
        oldest = {transaction.journal: transaction for transaction in reversed(self.transactions)}
        # Unknown is not 0: a journal whose file cannot be read may have an open transaction.
        summaries = dict.fromkeys(self.open_unknown, OpenTransactionSummary(None))
        for journal, count in self.open_counts.items():
            if journal not in summaries:
                first = oldest.get(journal)
                age = None if first is None else first.age(now_ms)
                summaries[journal] = OpenTransactionSummary(count, first, age)
        return summaries


@dataclass(frozen=True, slots=True)
class JournalLag:
    """The lag of a group in one journal."""

    journal: str
    status: PartitionStatus
    head: int | None
    age: Age = UNKNOWN_AGE
    """Age of the oldest unread byte."""
    read_bytes_per_s: float | None = None
    """Reading speed over the window of its commits; 0 if the group has been silent for longer."""
    append_bytes_per_s: float | None = None
    """Growth of the journal over the same window."""
    catch_up_ms: int | None = None
    loss_in_ms: int | None = None
    records: int | None = None
    """Unread records, if they were counted."""
    opened: OpenTransactionSummary | None = None
    """Its open transactions; None if they are not read."""

    @property
    def lag_bytes(self) -> int | None:
        """Unread bytes; None if the group has no commit of the journal, or the head is unknown."""
        return None if self.status.end is None or self.head is None else self.status.current_lag


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group, with Burrow's verdict."""

    verdict: GroupStatus
    journals: Sequence[JournalLag]
    totals: GroupTotals
    now_ms: int
    """Time at which all ages are measured."""
    last_commit_ms: int | None = None
    """Time of the group's last commit, by the committer's clock."""
    failure: str | None = None
    """Reason why commits or write heads cannot be read, so that values are the last known ones."""
    unlisted: Sequence[str] = ()
    """Journals that the group has read, but whose write heads are unknown: they were deleted, no selector
    matches them, or the listing has failed so far."""
    recreated: Sequence[str] = ()
    """Journals that were deleted and created again since the group's table read them. Unless they have the
    same bytes, which the next batch checks, their lag is a difference of two journals' offsets."""

    @property
    def lag_bytes(self) -> int | None:
        """Unread bytes in the journals whose heads are known; None if there is no such journal."""
        # Journals without a head are omitted here and named in unlisted. If no journal has one, the lag is
        # unknown, not 0.
        lags = [journal.lag_bytes for journal in self.journals if journal.lag_bytes is not None]
        return sum(lags) if lags else None

    @property
    def read_bytes_per_s(self) -> float | None:
        """Sum of the reading speeds of its journals; None if none is known."""
        return _sum([journal.read_bytes_per_s for journal in self.journals])

    @property
    def append_bytes_per_s(self) -> float | None:
        """Sum of the growth of its journals; None if none is known."""
        return _sum([journal.append_bytes_per_s for journal in self.journals])

    @property
    def freshness(self) -> Age:
        """Age of the oldest byte of all journals that the table lacks."""
        # The worst journal decides. The lower bound of any journal is a lower bound for the group, but an
        # upper bound needs the upper bounds of all.
        ages = [journal.age for journal in self.journals if journal.status.end is not None]
        least = [age.least_ms for age in ages if age.least_ms is not None]
        return Age(max(least, default=None), _largest([age.most_ms for age in ages]))

    @property
    def last_commit_age_ms(self) -> int | None:
        """Time since the group's last commit."""
        return None if self.last_commit_ms is None else max(0, self.now_ms - self.last_commit_ms)

    @property
    def catch_up_ms(self) -> int | None:
        """Time until the group has caught up in all journals; None if that is unknown for any."""
        return _largest([journal.catch_up_ms for journal in self.journals])

    @property
    def loss_in_ms(self) -> int | None:
        """Time until unread bytes of any journal may be pruned."""
        # None means that the journal loses nothing, so the others decide.
        losses = [journal.loss_in_ms for journal in self.journals]
        return min((loss_ms for loss_ms in losses if loss_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class Alarms:
    """Thresholds for service levels, in addition to the verdicts; None for no threshold.

    Burrow's verdicts need no threshold and suffice for most users. An alarm is raised only if a number is
    certainly beyond its threshold, so the lower bound of an age counts.

    Raises:
        OptionError: a threshold is negative.
    """

    max_lag_bytes: int | None = None
    """Maximum total lag of all journals, in bytes."""
    max_age_ms: int | None = None
    """Maximum age of the oldest byte that the table lacks, in milliseconds."""
    min_loss_in_ms: int | None = None
    """Minimum time until unread bytes may be pruned, in milliseconds."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None and value < 0:
                raise OptionError(option.name, str(value), "0 or more")

    def raised(self, lag: GroupLag) -> list[str]:
        """Return one line for each number beyond its threshold: name, value, threshold."""
        lines = []
        lag_bytes, age_ms = lag.lag_bytes, lag.freshness.least_ms
        if self.max_lag_bytes is not None and lag_bytes is not None and lag_bytes > self.max_lag_bytes:
            lines.append(f"lag_bytes={lag_bytes} above {self.max_lag_bytes}")
        # The lower bound, because a false alarm wakes somebody up for nothing.
        if self.max_age_ms is not None and age_ms is not None and age_ms > self.max_age_ms:
            lines.append(f"age_ms={age_ms} above {self.max_age_ms}")
        if self.min_loss_in_ms is not None:
            lines += [
                f"loss_in_ms={journal.loss_in_ms} below {self.min_loss_in_ms} journal={journal.journal}"
                for journal in lag.journals
                if journal.loss_in_ms is not None and journal.loss_in_ms < self.min_loss_in_ms
            ]
        return lines


NO_ALARMS = Alarms()
"""No thresholds."""


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum of the known values; None if no value is known."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _largest(values: Sequence[int | None]) -> int | None:
    """Return the largest value; None if a value is unknown or there are no values."""
    numbers = [value for value in values if value is not None]
    return max(numbers) if numbers and len(numbers) == len(values) else None
