"""Keeps the state of a running monitor: Burrow's history of one cluster, estimates, and lag over time.

Feeds report write heads and commits to a :class:`Monitor`, and callers request verdicts, estimates and the
lag over time. Burrow's requests go to its ``history`` and ``evaluator``.

A :class:`Monitor` is thread-safe: its methods hold its ``lock``. A caller that uses ``history`` or
``evaluator`` directly must also hold it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gazette_spark._ledger.positions import CommitEvent, GroupCommit
from gazette_spark.errors import InputError
from gazette_spark.lag.estimates import (
    HOUR_MS,
    HeadTimeline,
    LagSeries,
    catch_up_ms,
    lag_age,
    loss_in_ms,
    past_lags,
    read_bytes_per_s,
)
from gazette_spark.lag.group_lag import (
    NO_ALARMS,
    Alarms,
    FeedState,
    GroupLag,
    GroupTotals,
    JournalLag,
    JournalStore,
    OpenSince,
    Unread,
)
from gazette_spark.lag.history import Evaluator, History
from gazette_spark.lag.incidents import IncidentLog, PastIncident
from gazette_spark.lag.rules import Status, is_silent
from gazette_spark.offsets import Fingerprint
from gazette_spark.query_progress import JournalTransactions

GROUP_STEP_MS, GROUP_SPAN_MS = 60_000, 24 * HOUR_MS
"""Resolution and length of a group's chart. A journal's chart has an hour in steps of 20 seconds."""

MAX_MARKS = 1500
"""Maximum number of commits that a group's charts mark, enough for a day with one per minute."""

LEVEL_MS = 600_000
"""Maximum age of the last batch at the monitor's first round, in milliseconds, for a query that had caught up
with that batch to count as caught up.

A running monitor knows from the write heads when bytes arrived. A monitor that has just started does not.
"""

NO_HEADS = "no write head has been read yet"


class Topics:
    """Journals as Burrow's topics and partitions. Not thread-safe.

    A topic is a prefix of journals, or a named selector; a partition is one of its journals. Burrow numbers
    partitions, but journals have names. So journals are numbered when they are first seen. Journals that are
    seen together are numbered by name. While the monitor runs, no number is reused.
    """

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, int]] = {}
        self._journals: dict[str, list[str]] = {}

    def __repr__(self) -> str:
        return f"Topics(topics={len(self._journals)}, journals={len(self._places)})"

    def add(self, journals: Iterable[str], topic: str | None = None) -> None:
        """Number journals that have no number yet.

        Args:
            journals: Names of journals, in any order.
            topic: Topic of the journals; if None, each belongs to the topic of its prefix.
        """
        # Sorted, so that a restarted monitor assigns the same numbers to the same listing.
        for journal in sorted(set(journals) - self._places.keys()):
            where = prefix_of(journal) if topic is None else topic
            numbered = self._journals.setdefault(where, [])
            self._places[journal] = (where, len(numbered))
            numbered.append(journal)

    def place(self, journal: str) -> tuple[str, int]:
        """Return the topic and the number of a journal, and assign them to a new journal."""
        if journal not in self._places:
            self.add([journal])
        return self._places[journal]

    def journal(self, topic: str, partition: int) -> str:
        """Return the journal with a number."""
        return self._journals[topic][partition]

    def count(self, topic: str) -> int:
        """Return the number of journals that a topic has had."""
        return len(self._journals.get(topic, ()))

    def names(self) -> list[str]:
        """Return the topics, in the order in which they were first seen."""
        return list(self._journals)


def prefix_of(journal: str) -> str:
    """Return a journal's prefix as the name of a topic, or the name of a journal without a prefix.

    Dots replace slashes, because clients of Burrow put a topic's name into a URL, and few of them escape it.
    Prefixes that differ only in dots and slashes are one topic.

    >>> prefix_of("shop/orders/part-000")
    'shop.orders'
    >>> prefix_of("orders")
    'orders'
    """
    directory, slash, _ = journal.rpartition("/")
    return directory.replace("/", ".") if slash else journal


class _Step(NamedTuple):
    """A commit of one journal."""

    order: int
    timestamp_ms: int
    offset: int
    head: int | None
    """Write head that the committer saw."""
    planned_ms: int | None
    """Time at which the committer saw the head."""


def _group_series() -> LagSeries:
    return LagSeries(GROUP_STEP_MS, GROUP_SPAN_MS)


@dataclass(slots=True)
class GroupCharts:
    """Charts of a group over the last day."""

    lag: LagSeries = field(default_factory=_group_series)
    """Lag in bytes."""
    age: LagSeries = field(default_factory=_group_series)
    """Minimum age of the oldest unread byte in milliseconds."""
    read: LagSeries = field(default_factory=_group_series)
    """Reading speed in bytes per second."""
    append: LagSeries = field(default_factory=_group_series)
    """Growth of the journals in bytes per second."""
    marks: deque[tuple[int, CommitEvent]] = field(default_factory=lambda: deque(maxlen=MAX_MARKS))
    """Time and kind of the last commits, starts and RESTOREs."""

    def add(self, now_ms: int, lag_bytes: int | None, lag: GroupLag) -> None:
        """Add a point to each chart."""
        is_current = lag.failure is None
        self.lag.add(now_ms, lag_bytes)
        self.age.add(now_ms, lag.freshness.least_ms if is_current else None)
        for series, speed in ((self.read, lag.read_bytes_per_s), (self.append, lag.append_bytes_per_s)):
            series.add(now_ms, None if speed is None or not is_current else round(speed))


@dataclass(slots=True)
class _GroupState:
    source: str = ""
    order: int = -1
    newest_step: GroupCommit | None = None
    """Its newest step, which a heartbeat repeats."""
    charts: GroupCharts = field(default_factory=GroupCharts)
    series: dict[str, LagSeries] = field(default_factory=dict)
    """The lag of each journal over the last hour."""
    timelines: dict[str, HeadTimeline] = field(default_factory=dict)
    """Write heads from its commits, until the monitor has taken them."""
    waiting: dict[str, list[_Step]] = field(default_factory=dict)
    """Last steps in journals without a known write head, which the history does not accept yet."""
    totals: GroupTotals = field(default_factory=GroupTotals)
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)


class Monitor:
    """The groups and journals of one cluster.

    Args:
        cluster: Name of the cluster.
        history: History of that cluster, to which the monitor adds.
        evaluator: Evaluator of that history.
        stale_after_ms: Age of the last round of all feeds above which values are stale; None for never.
        alarms: Thresholds in addition to the verdicts.
    """

    def __init__(
        self,
        cluster: str,
        history: History,
        evaluator: Evaluator,
        *,
        stale_after_ms: int | None = None,
        alarms: Alarms = NO_ALARMS,
    ) -> None:
        self.cluster = cluster
        self.alarms = alarms
        self.stale_after_ms = stale_after_ms
        self.history = history
        self.evaluator = evaluator
        self.topics = Topics()
        # One lock for everything. Otherwise a request could combine a new head with an old commit.
        self.lock = threading.Lock()
        # By journal, not by group, because several groups may read one journal.
        self._timelines: dict[str, HeadTimeline] = {}
        self._heads: dict[str, int] = {}
        self._created: dict[str, int] = {}
        self._stores: dict[str, JournalStore] = {}
        self._records: Mapping[Unread, int] = {}
        self._groups: dict[str, _GroupState] = {}
        self._incidents = IncidentLog(alarms)
        self._feeds: dict[str, FeedState] = {}
        self._heads_ms: int | None = None
        self._looked_ms: int | None = None
        history.add_cluster(cluster)

    def __repr__(self) -> str:
        return f"Monitor({self.cluster!r}, {self.topics!r}, groups={sorted(self._groups)})"

    @property
    def heads_failure(self) -> str | None:
        """Reason why write heads cannot be read at present; None if they can."""
        # Without heads, the lags of all groups are out of date.
        failures = [feed.failure for feed in self._feeds.values() if feed.of_heads and feed.failure]
        if failures:
            return "; ".join(dict.fromkeys(failures))
        return NO_HEADS if self._heads_ms is None else None

    @property
    def heads_ms(self) -> int | None:
        """Time at which all write heads were last read; None if they never were."""
        feeds = [feed.read_ms for feed in self._feeds.values() if feed.of_heads]
        times = [read_ms for read_ms in feeds if read_ms is not None]
        # The oldest time, so that a feed that is read cannot hide one that is not.
        return self._heads_ms if not feeds else min(times) if len(times) == len(feeds) else None

    @property
    def looked_ms(self) -> int | None:
        """Start of the last round of all feeds; None before the first."""
        return self._looked_ms

    @property
    def ready(self) -> bool:
        """Whether heads are known and each feed has been polled. Before that, groups may be missing."""
        return self._looked_ms is not None and self.heads_failure is None

    def feeds(self) -> list[FeedState]:
        """Return the state of each feed, in the order in which they were first polled."""
        with self.lock:
            return list(self._feeds.values())

    def observe_feed(
        self,
        name: str,
        groups: Sequence[str],
        now_ms: int,
        failure: str | None = None,
        *,
        of_heads: bool = False,
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """Record that a feed was read, or why it could not be read, which makes its values stale.

        ``refused`` has the reasons for which single write heads could not be read, by journal.
        """
        with self.lock:
            before = self._feeds.get(name)
            # A failure keeps the time of the last success, which shows how old the values are.
            is_read = failure is None and not refused
            read_ms = now_ms if is_read else before.read_ms if before else None
            self._feeds[name] = FeedState(name, tuple(groups), of_heads, read_ms, failure, refused or {})

    def observe_round(self, now_ms: int) -> None:
        """Record that every feed was polled again, and add to each group's charts and to the incidents."""
        with self.lock:
            self._looked_ms = now_ms
            # The same time for all groups, so that their charts have points at the same times.
            lags = {name: self._lag(name, now_ms) for name in self._groups}
            for name, lag in lags.items():
                self._follow(name, lag, now_ms)
            self._incidents.observe(lags, now_ms)

    def incidents(self) -> list[PastIncident]:
        """Return the incidents of the last days: the open ones, then the ended ones, each newest first."""
        with self.lock:
            return [replace(incident) for incident in self._incidents.newest_first()]

    def observe_heads(
        self,
        heads: Mapping[str, int],
        now_ms: int,
        topic: str | None = None,
        created: Mapping[str, int] | None = None,
    ) -> None:
        """Record the current write heads.

        Args:
            heads: Write heads by journal.
            now_ms: The current time.
            topic: Topic of new journals; if None, each belongs to the topic of its prefix.
            created: Etcd revisions at which the journals were created, if known.
        """
        with self.lock:
            self._heads_ms = now_ms
            self._created.update(created or {})
            # Before the first call of place, so that the journals of one listing are numbered by name.
            self.topics.add(heads, topic)
            for journal, head in heads.items():
                place, partition = self.topics.place(journal)
                count = self.topics.count(place)
                self.history.add_broker_offset(
                    self.cluster, place, partition, head, partition_count=count, timestamp_ms=now_ms
                )
                self._timelines.setdefault(journal, HeadTimeline()).add(head, now_ms)
            self._heads.update(heads)
            for name, state in self._groups.items():
                # Add commits that had to wait for the head of their journal. As in Burrow, the history
                # accepts no commit without a head.
                for journal in state.waiting.keys() & heads.keys():
                    steps = state.waiting.pop(journal)
                    for step in steps:
                        self._record(name, journal, step, now_ms, newest=step is steps[-1], watched=False)

    def observe_stores(self, stores: Mapping[str, JournalStore]) -> None:
        """Record the stored fragments of journals."""
        with self.lock:
            self._stores.update(stores)

    def observe_records(self, counted: Mapping[Unread, int]) -> None:
        """Replace all known counts of unread records."""
        with self.lock:
            self._records = counted

    def forget_journals(self, gone: Iterable[str]) -> None:
        """Record that journals no longer exist. A topic without journals is deleted, as in Burrow.

        Groups get no verdict on such a journal, because it could only be STOP.
        """
        with self.lock:
            for journal in gone:
                for by_journal in (self._heads, self._created, self._timelines, self._stores):
                    by_journal.pop(journal, None)
                place = self.topics.place(journal)
                for name, group in self._groups.items():
                    group.series.pop(journal, None)
                    if (last := self.history.last_commit(self.cluster, name, *place)) is not None:
                        # Kept as a waiting commit, so that the journal is reported as unlisted, and the
                        # group's offset is still known if it comes back.
                        group.waiting[journal] = [_Step(-1, last.timestamp_ms, last.offset, None, None)]
                self.history.delete_partition(self.cluster, *place)
            for topic in self.topics.names():
                journals = (self.topics.journal(topic, at) for at in range(self.topics.count(topic)))
                # Burrow deletes whole topics, but journals are deleted one by one.
                if not any(journal in self._heads for journal in journals):
                    self.history.delete_topic(self.cluster, topic)

    def forget_group(self, group: str) -> None:
        """Record that a group no longer exists."""
        with self.lock:
            self._groups.pop(group, None)
            self.history.delete_group(self.cluster, group)

    def observe_commits(
        self, group: str, commits: Sequence[GroupCommit], now_ms: int, *, source: str = ""
    ) -> None:
        """Record steps of a group, oldest first, that follow the earlier recorded ones.

        The monitor was not watching when the older steps were made, nor when any step of a group's first call
        was made. Their lags are those that the query recorded when it planned them. Without such records,
        only the newest step has a lag, which is measured to the newest write head. So a history that is read
        later adds no false lags.

        Raises:
            InputError: a group with this name is known from another ``source``.
        """
        with self.lock:
            known = self._groups.get(group, _GroupState())
        kept_since_ms = now_ms - self.history.options.expire_group_s * 1000
        moved = _without_heartbeats(commits, known, kept_since_ms)
        # Built without the lock, because the charts of many journals take seconds, and requests would wait.
        new = _rebuilt(source, moved, now_ms) if known.order < 0 else _GroupState()
        with self.lock:
            state = self._groups.setdefault(group, new)
            if state.source != source:
                raise InputError(
                    f"group {group!r} is both that of {state.source} and of {source}; "
                    "give one of them another name, as in NAME=LOCATION"
                )
            # Insert the heads that the group's commits recorded before the heads that this monitor has seen.
            for journal, past in state.timelines.items():
                seen = self._timelines.get(journal, HeadTimeline())
                # Another group's commits may already have provided earlier heads.
                if seen.begin_ms is None or (past.end_ms is not None and past.end_ms < seen.begin_ms):
                    past.extend(seen)
                    self._timelines[journal] = past
            state.timelines = {}
            # Steps of the first call were made before this monitor was watching. The current head is not the
            # head at that time, so they get no lag from it.
            watched = state.order >= 0
            slots = self.history.options.intervals
            # Without a minimum distance, commits are not merged, so earlier ones would drop out of the ring.
            recorded = moved if self.history.options.min_distance_s else moved[-slots:]
            for commit in recorded:
                newest = commit is moved[-1]
                for journal, offset in commit.read_through.items():
                    head = commit.heads.get(journal)
                    step = _Step(commit.order, commit.timestamp_ms, offset, head, commit.planned_ms)
                    if journal in self._heads:
                        self._record(group, journal, step, now_ms, newest=newest, watched=watched)
                    else:
                        waiting = state.waiting.setdefault(journal, [])
                        waiting.append(step)
                        del waiting[:-slots]
            if commits:
                # Feeds read only what follows this order, so it must never decrease.
                state.order = max(state.order, commits[-1].order)
                state.newest_step = commits[-1]
                if not moved:
                    self.history.renew_group(self.cluster, group, commits[-1].timestamp_ms)
                # An entry may omit fingerprints that have not changed.
                state.fingerprints = commits[-1].fingerprints or state.fingerprints
            state.charts.marks.extend((commit.timestamp_ms, commit.event) for commit in moved)
            for commit in commits:
                state.totals.trimmed_bytes += commit.trimmed_bytes
                for gaps, total in (
                    (commit.gaps, state.totals.gap_bytes),
                    (commit.accepted_gaps, state.totals.accepted_gap_bytes),
                ):
                    for gap in gaps:
                        total[gap.journal] = total.get(gap.journal, 0) + gap.end - gap.begin

    def observe_progress(
        self,
        group: str,
        skipped_bytes: int,
        malformed: int | None,
        transactions: Iterable[JournalTransactions] = (),
        now_ms: int = 0,
    ) -> None:
        """Add what a batch omitted to the totals of a known group, and replace its open transactions."""
        with self.lock:
            totals = self._groups[group].totals
            totals.skipped_bytes += skipped_bytes
            if malformed is not None:
                totals.malformed = (totals.malformed or 0) + malformed
            _replace_open_transactions(totals, transactions, now_ms)

    def observe_transactions(
        self,
        group: str,
        transactions: Iterable[JournalTransactions],
        readable: Collection[str],
        unreadable: Collection[str],
        now_ms: int,
    ) -> None:
        """Replace the open transactions of a known group.

        Args:
            group: Name of the group.
            transactions: Open transactions of the journals that have any.
            readable: Journals whose open transactions could be read, including those without any.
            unreadable: Journals whose open transactions could not be read.
            now_ms: The current time.
        """
        with self.lock:
            totals = self._groups[group].totals
            _replace_open_transactions(totals, transactions, now_ms)
            # 0 and unknown differ: a journal that could be read and has no open transaction has 0.
            totals.open_counts = dict.fromkeys(readable, 0) | totals.open_counts
            totals.open_unknown = frozenset(unreadable)

    def _record(
        self, group: str, journal: str, step: _Step, now_ms: int, *, newest: bool, watched: bool
    ) -> None:
        topic, partition = self.topics.place(journal)
        place = (self.cluster, group, topic, partition)
        offset, order, timestamp_ms = step.offset, step.order, step.timestamp_ms
        # The current head is right for a commit that was made since the last round, and is the only known one
        # for a commit that recorded none.
        if newest and (watched or step.head is None):
            self.history.add_consumer_offset(
                *place, offset, order=order, timestamp_ms=timestamp_ms, now_ms=now_ms
            )
        else:
            self.history.add_past_offset(
                *place, offset, order=order, timestamp_ms=timestamp_ms, now_ms=now_ms, head=step.head
            )
            if step.head is not None and step.planned_ms is not None:
                self._timelines[journal].add_past(step.head, step.planned_ms)
            # A monitor that has just started has only the current head, so the rule STOP would find no head
            # at the committed offset, even for a query that had caught up at its last batch. The head that
            # the query saw is added instead, if it is recent.
            if newest and step.head is not None and now_ms - timestamp_ms <= LEVEL_MS:
                self.history.add_past_head(self.cluster, topic, partition, step.head, timestamp_ms)
        self.history.add_consumer_owner(*place, owner=group, client_id=journal)

    def _failure(self, group: str, now_ms: int) -> str | None:
        """Return why a group's values are stale; None if they are not."""
        feeds = self._feeds.values()
        failures = [feed.failure for feed in feeds if feed.failure and group in (feed.groups or (feed.name,))]
        if (heads := self.heads_failure) is not None:
            failures.append(f"write heads: {heads}")
        failures += [
            refusal
            for feed in feeds
            for journal, refusal in feed.refused.items()
            if self._has_read(group, journal)
        ]
        if (late := self.round_failure(now_ms)) is not None:
            failures.append(late)
        return "; ".join(dict.fromkeys(failures)) or None

    def _has_read(self, group: str, journal: str) -> bool:
        """Return whether a group has a commit of a listed journal."""
        if journal not in self._heads:
            return group in self._groups and journal in self._groups[group].waiting
        return self.history.last_commit(self.cluster, group, *self.topics.place(journal)) is not None

    def failure(self, group: str, now_ms: int) -> str | None:
        """Return why a group's values are stale; None if they are not."""
        with self.lock:
            return self._failure(group, now_ms)

    def round_failure(self, now_ms: int) -> str | None:
        """Return a reason if the last round of all feeds was too long ago, or None."""
        looked, limit = self._looked_ms, self.stale_after_ms
        if limit is None or looked is None or now_ms - looked <= limit:
            return None
        return f"the last poll was {(now_ms - looked) // 1000} s ago"

    def last_order(self, group: str) -> int:
        """Return the order of a group's newest step; -1 if it has none."""
        with self.lock:
            return self._groups[group].order if group in self._groups else -1

    def committed(self, group: str, now_ms: int) -> dict[str, int]:
        """Return the newest committed offset of a group in each journal whose write head is known."""
        with self.lock:
            return {journal: offset for journal, offset, _ in self._positions(group, now_ms)}

    def unread(self, now_ms: int) -> set[Unread]:
        """Return the uncommitted ranges of all groups and journals."""
        with self.lock:
            return {
                Unread(journal, offset, head)
                for name in self._groups
                for journal, offset, head in self._positions(name, now_ms)
                if head > offset
            }

    def groups(self) -> list[str]:
        """Return the names of the groups, including those that could not be read yet."""
        with self.lock:
            unread = (group for feed in self._feeds.values() for group in feed.unread_groups)
            return list(dict.fromkeys([*self._groups, *unread]))

    def lag_history(self, group: str) -> list[tuple[int, int | None]]:
        """Return a group's lag over the last day: points as (milliseconds since 1970, bytes)."""
        with self.lock:
            return self._groups[group].charts.lag.points() if group in self._groups else []

    def histories(self, group: str) -> dict[str, list[tuple[int, Any]]]:
        """Return a group's charts over the last day, as points (milliseconds since 1970, value).

        The values are bytes in ``lag_history``, milliseconds in ``age_history``, bytes per second in
        ``read_history`` and ``append_history``, and kinds of events in ``marks``.
        """
        with self.lock:
            charts = self._groups[group].charts if group in self._groups else GroupCharts()
            return {
                "lag_history": charts.lag.points(),
                "age_history": charts.age.points(),
                "read_history": charts.read.points(),
                "append_history": charts.append.points(),
                "marks": list(charts.marks),
            }

    def journal_lag_histories(
        self, group: str, journals: Iterable[str]
    ) -> dict[str, list[tuple[int, int | None]]]:
        """Return the lag of journals over the last hour."""
        with self.lock:
            series = self._groups[group].series if group in self._groups else {}
            return {journal: series[journal].points() for journal in journals if journal in series}

    def lag(self, group: str, now_ms: int) -> GroupLag:
        """Return a group's verdict with this package's additions."""
        with self.lock:
            return self._lag(group, now_ms)

    def _lag(self, group: str, now_ms: int) -> GroupLag:
        # From the evaluator's cache, so that the page and Burrow's clients see one verdict.
        verdict = self.evaluator.status(self.cluster, group, now_ms=now_ms)
        failure = self._failure(group, now_ms)
        state = self._groups.get(group, _GroupState())
        # A copy, because the lock is released before the caller reads it.
        totals = replace(
            state.totals,
            gap_bytes=dict(state.totals.gap_bytes),
            accepted_gap_bytes=dict(state.totals.accepted_gap_bytes),
        )
        opened = totals.open_transactions(now_ms)
        journals: list[JournalLag] = []
        for status in verdict.partitions:
            # Burrow numbers partitions without gaps. Partitions that the group has never read have no client,
            # and are omitted.
            if not status.client_id:
                continue
            journal = self.topics.journal(status.topic, status.partition)
            head = self._heads.get(journal)
            if status.end is None or status.start is None or head is None:
                journals.append(JournalLag(journal, status, head, opened=opened.get(journal)))
                continue
            # The speed of the window only applies while the query still runs.
            speed = read_bytes_per_s((status.start, status.end))
            # No forecast from values that are old, or from a position that went back.
            if failure is not None or status.status == Status.REWIND:
                speed = None
            elif is_silent((status.start, status.end), now_ms):
                speed = 0.0
            offset = status.end.offset
            timeline = self._timelines.get(journal, HeadTimeline())
            store = self._stores.get(journal, JournalStore())
            growth = None if failure is not None else timeline.bytes_per_s(status.start.timestamp_ms)
            loss_ms = None
            if store.retention_ms is not None:
                loss_ms = loss_in_ms(offset, store.fragments, store.retention_ms, speed, now_ms)
            journals.append(
                JournalLag(
                    journal,
                    status,
                    head,
                    lag_age(offset, head, timeline, store.fragments, now_ms),
                    speed,
                    growth,
                    catch_up_ms(status.current_lag, speed, growth),
                    loss_ms,
                    # A count is only valid for exactly this range, not for a shorter one of a moment ago.
                    0 if offset >= head else self._records.get(Unread(journal, offset, head)),
                    opened.get(journal),
                )
            )
        return GroupLag(
            verdict,
            journals,
            totals,
            now_ms,
            None if state.newest_step is None else state.newest_step.timestamp_ms,
            failure,
            sorted(state.waiting),
            recreated=[
                journal
                for journal, fingerprint in sorted(state.fingerprints.items())
                if fingerprint.end
                and 0 not in (self._created.get(journal, 0), fingerprint.create_revision)
                # Etcd's revision of creation differs, so the journal was deleted and created again under the
                # same name. A revision of 0 is unknown and proves nothing.
                and self._created[journal] != fingerprint.create_revision
            ],
        )

    def _follow(self, name: str, lag: GroupLag, now_ms: int) -> None:
        """Add a point to a group's charts, which is unknown if the values are stale."""
        state = self._groups[name]
        # Unlike the verdict, which may be some seconds old, the positions are current.
        positions = list(self._positions(name, now_ms))
        if not positions or lag.failure is not None:
            state.charts.add(now_ms, None, lag)
            for series in state.series.values():
                series.add(now_ms, None)
            return
        for journal, offset, head in positions:
            state.series.setdefault(journal, LagSeries()).add(now_ms, max(0, head - offset))
        state.charts.add(now_ms, sum(max(0, head - offset) for _, offset, head in positions), lag)

    def _positions(self, group: str, now_ms: int) -> Iterator[tuple[str, int, int]]:
        """Yield the journals of a group whose write heads are known: name, newest commit, write head."""
        for topic, partition, offset in self.history.fetch_offsets(self.cluster, group, now_ms=now_ms):
            journal = self.topics.journal(topic, partition)
            if (head := self._heads.get(journal)) is not None:
                yield journal, offset, head


def _without_heartbeats(
    commits: Sequence[GroupCommit], known: _GroupState, kept_since_ms: int
) -> list[GroupCommit]:
    """Return the steps that are not heartbeats.

    Args:
        commits: Steps, oldest first.
        known: What is known of the group from earlier steps.
        kept_since_ms: Time before which a group's last commit makes the group expire.
    """
    # An idle query writes its newest entry again once a day, with the same planning time. As a commit, it
    # would stretch the window of a group to days, and a query that ends later would be OK for as long.
    steps, before = [], known.newest_step
    for commit in commits:
        is_heartbeat = (
            before is not None
            and commit.planned_ms is not None
            and (commit.planned_ms, commit.read_through) == (before.planned_ms, before.read_through)
        )
        if not is_heartbeat:
            steps.append(commit)
        before = commit
    # Of a query that has been idle for longer than groups are kept, only a heartbeat keeps the group.
    if known.order < 0 and all(step.timestamp_ms < kept_since_ms for step in steps):
        return list(commits[-1:])
    return steps


def _rebuilt(source: str, commits: Sequence[GroupCommit], now_ms: int) -> _GroupState:
    """Return the state of a new group, with charts from the records of its commits."""
    group = _GroupState(source)
    for commit in commits:
        for journal, head in commit.heads.items():
            if commit.planned_ms is not None:
                group.timelines.setdefault(journal, HeadTimeline()).add(head, commit.planned_ms)
    earlier: tuple[int, AbstractSet[str], int, int] | None = None
    for time_ms, before, heads in past_lags(commits, now_ms - GROUP_SPAN_MS, now_ms, GROUP_STEP_MS):
        read, appended = sum(map(before.__getitem__, heads)), sum(heads.values())
        group.charts.lag.add(time_ms, max(0, appended - read))
        ages_ms = [0]
        for journal, head in heads.items():
            if head > before[journal] and (timeline := group.timelines.get(journal)):
                ages_ms.append(lag_age(before[journal], head, timeline, (), time_ms).least_ms or 0)
        group.charts.age.add(time_ms, max(ages_ms))
        if earlier and earlier[1] == heads.keys() and time_ms > earlier[0]:
            passed_s = (time_ms - earlier[0]) / 1000
            group.charts.read.add(time_ms, max(0, round((read - earlier[2]) / passed_s)))
            group.charts.append.add(time_ms, max(0, round((appended - earlier[3]) / passed_s)))
        earlier = (time_ms, heads.keys(), read, appended)
        if time_ms > now_ms - HOUR_MS:
            for journal, head in heads.items():
                group.series.setdefault(journal, LagSeries()).add(time_ms, max(0, head - before[journal]))
    return group


def _replace_open_transactions(
    totals: GroupTotals, transactions: Iterable[JournalTransactions], now_ms: int
) -> None:
    """Replace the open transactions. A transaction that was already open keeps its earliest known time."""
    before = {(opened.journal, opened.producer, opened.begin): opened for opened in totals.transactions}
    after: dict[tuple[str, str, int], OpenSince] = {}
    totals.open_counts = {}
    for journal in transactions:
        totals.open_counts[journal.journal] = journal.count
        for opened in journal.oldest:
            key = (journal.journal, opened.producer, opened.begin)
            earliest_ms = min(now_ms, opened.newest_ms, before[key].since_ms if key in before else now_ms)
            after[key] = OpenSince(*key, held_bytes=journal.at - opened.begin, since_ms=earliest_ms)
    totals.transactions = sorted(after.values(), key=lambda opened: (opened.journal, opened.begin))
