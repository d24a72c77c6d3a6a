"""The state of a running monitor: Burrow's history of one cluster, with estimates and lag over time.

Feeds report write heads and commits to a :class:`Monitor`, and callers ask it for verdicts, estimates and the
lag over time. Burrow's requests go to its ``history`` and ``evaluator``.

Any thread may call any method of a :class:`Monitor`; it holds its lock, ``lock``, which a caller that goes
to ``history`` or ``evaluator`` has to hold as well.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gazette_spark.errors import InputError
from gazette_spark.lag.estimates import (
    Age,
    HeadTimeline,
    StoredFragment,
    catch_up_ms,
    lag_age,
    loss_in_ms,
    read_bytes_per_s,
)
from gazette_spark.lag.evaluate import Evaluator
from gazette_spark.lag.history import History
from gazette_spark.lag.positions import GroupCommit
from gazette_spark.lag.rules import GroupStatus, PartitionStatus, PartitionWindow
from gazette_spark.lag.topics import Topics

LAG_POINTS = 360
"""Points of a journal's chart: an hour, at one in ten seconds."""


@dataclass(frozen=True, slots=True)
class JournalStore:
    """Stored fragments of a journal, and their retention."""

    fragments: Sequence[StoredFragment] = ()
    retention_ms: int | None = None
    """Fragments older than this may be pruned; None: no retention limit."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Bytes of a journal that a group has not committed: ``[begin, end)``."""

    journal: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class JournalLag:
    """Lag of a group in one journal."""

    journal: str
    status: PartitionStatus
    head: int | None
    age: Age
    """Age of the oldest unread byte."""
    read_bytes_per_s: float | None
    append_bytes_per_s: float | None
    catch_up_ms: int | None
    loss_in_ms: int | None
    records: int | None
    """Unread records, if they were counted."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Lag of a group, with Burrow's verdict."""

    verdict: GroupStatus
    journals: Sequence[JournalLag]
    last_commit_ms: int | None
    """Time of the group's last commit, by the committer's clock."""
    failure: str | None
    """Reason why the feed cannot be read at the moment; reported values are the last known ones."""

    @property
    def freshness(self) -> Age:
        """Age of the oldest byte that the table does not have: over all journals."""
        ages = [journal.age for journal in self.journals if journal.status.end is not None]
        least = [age.least_ms for age in ages if age.least_ms is not None]
        most = [age.most_ms for age in ages]
        known = [each for each in most if each is not None]
        return Age(max(least, default=None), max(known) if known and len(known) == len(most) else None)


class LagSeries:
    """Lag over time: the last points of a chart, as (milliseconds since 1970, bytes)."""

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells = array("q")

    def add(self, time_ms: int, lag: int) -> None:
        """Add a point. It is in order, or the clock was set back and the chart shows that."""
        self._cells.extend((time_ms, lag))
        del self._cells[: -2 * LAG_POINTS]

    def points(self) -> list[tuple[int, int]]:
        """Return the points, oldest first."""
        return list(zip(self._cells[::2].tolist(), self._cells[1::2].tolist(), strict=True))


@dataclass(slots=True)
class _Group:
    source: str = ""
    order: int = -1
    last_commit_ms: int | None = None
    series: dict[str, LagSeries] = field(default_factory=dict)


class Monitor:
    """Knows the groups and journals of one cluster.

    Args:
        cluster: its name.
        history: made for that cluster; the monitor adds to it.
        evaluator: of that history.
    """

    def __init__(self, cluster: str, history: History, evaluator: Evaluator) -> None:
        self.cluster = cluster
        self.history = history
        self.evaluator = evaluator
        self.topics = Topics()
        self.lock = threading.Lock()
        self._timelines: dict[str, HeadTimeline] = {}
        self._heads: dict[str, int] = {}
        self._stores: dict[str, JournalStore] = {}
        self._records: Mapping[Unread, int] = {}
        self._groups: dict[str, _Group] = {}
        self._failures: dict[str, str] = {}
        self._failure: str | None = "no write head was asked for yet"
        self._looked = False
        history.add_cluster(cluster)

    def __repr__(self) -> str:
        return f"Monitor({self.cluster!r}, {self.topics!r}, groups={sorted(self._groups)})"

    @property
    def heads_failure(self) -> str | None:
        """Reason why write heads cannot be read at the moment; None if they can."""
        return self._failure

    @property
    def ready(self) -> bool:
        """Whether heads are known and each feed was looked at: before, a group that exists may be missing."""
        return self._looked and self._failure is None

    def observe_round(self) -> None:
        """Note that every feed was looked at once more."""
        with self.lock:
            self._looked = True

    def observe_heads(self, heads: Mapping[str, int], now_ms: int, topic: str | None = None) -> None:
        """Record the current write heads, and update each group's lag.

        Args:
            heads: by journal.
            now_ms: the time.
            topic: topic of new journals; if None, each belongs to the topic of its prefix.
        """
        with self.lock:
            self._failure = None
            self.topics.add(heads, topic)
            for journal, head in heads.items():
                place, partition = self.topics.place(journal)
                count = self.topics.count(place)
                self.history.add_broker_offset(
                    self.cluster, place, partition, head, partition_count=count, timestamp_ms=now_ms
                )
                self._timelines.setdefault(journal, HeadTimeline()).add(head, now_ms)
            self._heads.update(heads)
            for name in self._groups:
                self._follow(name, now_ms)

    def observe_stores(self, stores: Mapping[str, JournalStore]) -> None:
        """Record the stored fragments of some journals."""
        with self.lock:
            self._stores.update(stores)

    def observe_records(self, counted: Mapping[Unread, int]) -> None:
        """Replace all known counts of unread records."""
        with self.lock:
            self._records = counted

    def forget_journals(self, gone: Iterable[str]) -> None:
        """Note that journals do not exist any more. A topic without any is deleted, as in Burrow."""
        with self.lock:
            for journal in gone:
                for known in (self._heads, self._timelines, self._stores):
                    known.pop(journal, None)
            for topic in self.topics.names():
                journals = (self.topics.journal(topic, at) for at in range(self.topics.count(topic)))
                if not any(journal in self._heads for journal in journals):
                    self.history.delete_topic(self.cluster, topic)

    def observe_commits(
        self, group: str, commits: Sequence[GroupCommit], now_ms: int, *, source: str = ""
    ) -> None:
        """Record steps of a group, oldest first, that follow the earlier recorded ones.

        They are stored newest first. The write heads at the older steps are unknown, and Burrow's history
        gives a lag to the newest commit only. So a history that is read back after a week fills the ring
        without made-up lags.

        Args:
            group: group of the steps.
            commits: empty if there is no new step.
            now_ms: the time.
            source: source of the steps.

        Raises:
            InputError: the group is known from another source, so two groups of one name would be mixed up.
        """
        with self.lock:
            known = self._groups.setdefault(group, _Group(source))
            if known.source != source:
                raise InputError(
                    f"group {group!r} is both that of {known.source} and of {source}; "
                    "give one of them another name, as in NAME=LOCATION"
                )
            self._failures.pop(group, None)
            for commit in reversed(commits):
                for journal, offset in commit.read_through.items():
                    topic, partition = self.topics.place(journal)
                    self.history.add_consumer_offset(
                        self.cluster,
                        group,
                        topic,
                        partition,
                        offset,
                        order=commit.order,
                        timestamp_ms=commit.timestamp_ms,
                        now_ms=now_ms,
                    )
                    self.history.add_consumer_owner(
                        self.cluster, group, topic, partition, owner=group, client_id=journal
                    )
            if commits:
                known.order = max(known.order, commits[-1].order)
                known.last_commit_ms = commits[-1].timestamp_ms
            self._follow(group, now_ms)

    def observe_failure(self, failure: str, group: str | None = None) -> None:
        """Record that a group's feed, or the write heads', cannot be read: known values become stale."""
        with self.lock:
            if group is None:
                self._failure = failure
            else:
                self._failures[group] = failure

    def last_order(self, group: str) -> int:
        """Return the order of a group's newest step, -1 without a step."""
        with self.lock:
            return self._groups[group].order if group in self._groups else -1

    def unread(self, now_ms: int) -> set[Unread]:
        """Return the uncommitted ranges of all groups and journals."""
        with self.lock:
            return {
                Unread(window.client_id, last.offset, head)
                for name in self._groups
                for windows in self._windows(name, now_ms).values()
                for window in windows
                if (last := window.offset_commits[-1] if window.offset_commits else None) is not None
                and (head := self._heads.get(window.client_id, 0)) > last.offset
            }

    def groups(self) -> list[str]:
        """Return the names of the groups, those included of which nothing could be read yet."""
        with self.lock:
            return list(dict.fromkeys([*self._groups, *self._failures]))

    def course(self, group: str) -> dict[str, list[tuple[int, int]]]:
        """Return how the lag went, by journal: points as (milliseconds since 1970, bytes)."""
        with self.lock:
            known = self._groups.get(group)
            return {journal: course.points() for journal, course in known.series.items()} if known else {}

    def lag(self, group: str, now_ms: int) -> GroupLag:
        """Return a group's verdict with this package's additions."""
        with self.lock:
            verdict = self.evaluator.status(self.cluster, group, now_ms=now_ms)
            journals = [self._journal_lag(status, now_ms) for status in verdict.partitions]
            known = self._groups.get(group, _Group())
            return GroupLag(verdict, journals, known.last_commit_ms, self._failures.get(group))

    def _journal_lag(self, status: PartitionStatus, now_ms: int) -> JournalLag:
        journal = self.topics.journal(status.topic, status.partition)
        speed = read_bytes_per_s((status.start, status.end))
        head = self._heads.get(journal)
        if status.end is None or status.start is None or head is None:
            return JournalLag(journal, status, head, Age(), speed, None, None, None, None)
        offset = status.end.offset
        timeline = self._timelines.get(journal, HeadTimeline())
        store = self._stores.get(journal, JournalStore())
        growth = timeline.bytes_per_s(status.start.timestamp_ms)
        lost = None
        if store.retention_ms is not None:
            lost = loss_in_ms(offset, store.fragments, store.retention_ms, speed, now_ms)
        return JournalLag(
            journal,
            status,
            head,
            lag_age(offset, head, timeline, store.fragments, now_ms),
            speed,
            growth,
            catch_up_ms(status.current_lag, speed, growth),
            lost,
            0 if offset >= head else self._records.get(Unread(journal, offset, head)),
        )

    def _follow(self, name: str, now_ms: int) -> None:
        series = self._groups[name].series
        for windows in self._windows(name, now_ms).values():
            for window in windows:
                if any(window.offset_commits):
                    journal = self.topics.journal(window.topic, window.partition)
                    series.setdefault(journal, LagSeries()).add(now_ms, window.current_lag)

    def _windows(self, group: str, now_ms: int) -> dict[str, list[PartitionWindow]]:
        return self.history.fetch_consumer(self.cluster, group, now_ms=now_ms) or {}
