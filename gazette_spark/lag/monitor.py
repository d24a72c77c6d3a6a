"""The state of a running monitor: Burrow's history of one cluster, with estimates and lag over time.

Feeds report write heads and commits to a :class:`Monitor`, and callers ask it for verdicts, estimates and the
lag over time. Burrow's requests go to its ``history`` and ``evaluator``.

Any thread may call any method of a :class:`Monitor`; it holds its lock, ``lock``, which a caller that goes
to ``history`` or ``evaluator`` has to hold as well.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

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
from gazette_spark.lag.rules import GroupStatus, PartitionStatus, Status, is_silent
from gazette_spark.lag.series import HOUR_MS, LagSeries, Speed, past_lags
from gazette_spark.lag.topics import Topics
from gazette_spark.ledger.positions import GroupCommit
from gazette_spark.offsets import Fingerprint
from gazette_spark.query_progress import JournalTransactions

GROUP_STEP_MS, GROUP_SPAN_MS = 60_000, 24 * HOUR_MS
"""Resolution and length of a group's chart; those of a journal's are an hour in steps of 20 seconds."""

LEVEL_MS = 600_000
"""Silence before the monitor looks, up to which a query is level if it was at its last batch.

A running monitor knows when bytes came, by the heads it saw. One that has just started does not.
"""

NO_HEADS = "no write head was asked for yet"


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
    opened: OpenInJournal | None = None
    """Its open transactions; None if nobody looks for them."""

    @property
    def lag_bytes(self) -> int | None:
        """Bytes left to read; None if the group has no commit of the journal, or its head is not known."""
        return None if self.status.end is None or self.head is None else self.status.current_lag


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Lag of a group, with Burrow's verdict."""

    verdict: GroupStatus
    journals: Sequence[JournalLag]
    last_commit_ms: int | None
    """Time of the group's last commit, by the committer's clock."""
    failure: str | None
    """Reason why commits or write heads cannot be read; reported values are the last known ones."""
    unlisted: Sequence[str] = ()
    """Journals that the group has read, and whose write heads are not known: they were deleted, no selector
    matches them, or nothing could be listed yet."""
    read_bytes_per_s: float | None = None
    """Speed of the last minutes, as the monitor saw it."""
    append_bytes_per_s: float | None = None
    """Growth of its journals in the last minutes."""
    recreated: Sequence[str] = ()
    """Journals that were deleted and created again since the group's table read them. Unless they have the
    same bytes, which its next batch finds out, their lag is the difference of two journals' offsets."""

    @property
    def lag_bytes(self) -> int | None:
        """Bytes left to read, in the journals whose heads are known; None if there is no such journal."""
        known = [journal.lag_bytes for journal in self.journals if journal.lag_bytes is not None]
        return sum(known) if known else None

    @property
    def freshness(self) -> Age:
        """Age of the oldest byte that the table does not have: over all journals."""
        ages = [journal.age for journal in self.journals if journal.status.end is not None]
        least = [age.least_ms for age in ages if age.least_ms is not None]
        most = [age.most_ms for age in ages]
        known = [each for each in most if each is not None]
        return Age(max(least, default=None), max(known) if known and len(known) == len(most) else None)


@dataclass(frozen=True, slots=True)
class FeedState:
    """When a feed was read last, and why it cannot be read now."""

    name: str
    groups: tuple[str, ...]
    """The groups it is of; none of one of write heads, and of one that was never read."""
    of_heads: bool
    read_ms: int | None = None
    """Start of the last round in which it was read; None if that never was."""
    failure: str | None = None
    """Reason why it could not be read in the last round."""


@dataclass(frozen=True, slots=True)
class OpenSince:
    """An open transaction, as the progress of a query tells."""

    journal: str
    producer: str
    begin: int
    held_bytes: int
    """Bytes from its begin to where the query was: they have to stay until it ends."""
    since_ms: int
    """A time at which it was open, the earliest that is known: of a message, or of a progress."""


@dataclass(frozen=True, slots=True)
class OpenInJournal:
    """The open transactions of a journal where a group's commits end."""

    count: int | None
    """None: it is not known."""
    oldest: OpenSince | None = None
    """The one that begins first; None if none is open, or it is not known."""


@dataclass(slots=True)
class Figures:
    """What a group's batches left out, in all steps the monitor was told of, and what is open."""

    gap_bytes: dict[str, int] = field(default_factory=dict)
    """Missing bytes that were skipped, by journal; those that an operator accepted included."""
    accepted_gap_bytes: dict[str, int] = field(default_factory=dict)
    trimmed_bytes: int = 0
    """Bytes of batches whose rows a table had already."""
    skipped_bytes: int = 0
    """Missing bytes in the progress of a query."""
    malformed: int | None = None
    """Malformed records; None if the query does not count them."""
    transactions: list[OpenSince] = field(default_factory=list)
    """The oldest open transactions of each journal, by journal and begin."""
    open_counts: dict[str, int] = field(default_factory=dict)
    """The number of open transactions, by journal; 0 where a look found none."""
    open_unknown: frozenset[str] = frozenset()
    """Journals whose open transactions somebody looks for, and could not find out."""

    def opened(self) -> dict[str, OpenInJournal]:
        """Return the open transactions of each journal in which somebody looks for them."""
        oldest = {each.journal: each for each in reversed(self.transactions)}
        found = {name: OpenInJournal(count, oldest.get(name)) for name, count in self.open_counts.items()}
        return found | dict.fromkeys(self.open_unknown, OpenInJournal(None))


def _open_since(
    transactions: Iterable[JournalTransactions], before: Iterable[OpenSince], now_ms: int
) -> list[OpenSince]:
    """Return open transactions by journal and begin, with the earliest time known of each."""
    since = {(each.journal, each.producer, each.begin): each.since_ms for each in before}
    found: dict[tuple[str, str, int], OpenSince] = {}
    for each in transactions:
        for one in each.oldest:
            key = (each.journal, one.producer, one.begin)
            since_ms = min(now_ms, one.newest_ms, since.get(key, now_ms))
            found[key] = OpenSince(*key, held_bytes=each.at - one.begin, since_ms=since_ms)
    return sorted(found.values(), key=lambda each: (each.journal, each.begin))


def _observe_open(figures: Figures, transactions: Iterable[JournalTransactions], now_ms: int) -> None:
    transactions = list(transactions)
    figures.transactions = _open_since(transactions, figures.transactions, now_ms)
    figures.open_counts = {each.journal: each.count for each in transactions}


class _Step(NamedTuple):
    """A commit of one journal."""

    order: int
    timestamp_ms: int
    offset: int
    head: int | None
    """Write head that the committer saw."""
    planned_ms: int | None
    """When it did."""


@dataclass(slots=True)
class _Group:
    source: str = ""
    order: int = -1
    last_commit_ms: int | None = None
    total: LagSeries = field(default_factory=lambda: LagSeries(GROUP_STEP_MS, GROUP_SPAN_MS))
    series: dict[str, LagSeries] = field(default_factory=dict)
    speed: Speed = field(default_factory=Speed)
    waiting: dict[str, list[_Step]] = field(default_factory=dict)
    """The last steps in journals without a known write head: history takes none of those."""
    figures: Figures = field(default_factory=Figures)
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)


class Monitor:
    """Knows the groups and journals of one cluster.

    Args:
        cluster: its name.
        history: made for that cluster; the monitor adds to it.
        evaluator: of that history.
        stale_after_ms: what is known is stale if the last round of all feeds is longer ago; None: never.
    """

    def __init__(
        self, cluster: str, history: History, evaluator: Evaluator, *, stale_after_ms: int | None = None
    ) -> None:
        self.cluster = cluster
        self.stale_after_ms = stale_after_ms
        self.history = history
        self.evaluator = evaluator
        self.topics = Topics()
        self.lock = threading.Lock()
        self._timelines: dict[str, HeadTimeline] = {}
        self._heads: dict[str, int] = {}
        self._created: dict[str, int] = {}
        self._stores: dict[str, JournalStore] = {}
        self._records: Mapping[Unread, int] = {}
        self._groups: dict[str, _Group] = {}
        self._feeds: dict[str, FeedState] = {}
        self._heads_ms: int | None = None
        self._looked_ms: int | None = None
        history.add_cluster(cluster)

    def __repr__(self) -> str:
        return f"Monitor({self.cluster!r}, {self.topics!r}, groups={sorted(self._groups)})"

    @property
    def heads_failure(self) -> str | None:
        """Reason why write heads cannot be read at the moment; None if they can."""
        failures = [each.failure for each in self._feeds.values() if each.of_heads and each.failure]
        if failures:
            return "; ".join(dict.fromkeys(failures))
        return NO_HEADS if self._heads_ms is None else None

    @property
    def heads_ms(self) -> int | None:
        """When all write heads were read last; None if they never were."""
        feeds = [each.read_ms for each in self._feeds.values() if each.of_heads]
        known = [each for each in feeds if each is not None]
        return self._heads_ms if not feeds else min(known) if len(known) == len(feeds) else None

    @property
    def looked_ms(self) -> int | None:
        """When the last round of all feeds began; None before the first."""
        return self._looked_ms

    @property
    def ready(self) -> bool:
        """Whether heads are known and each feed was looked at: before, a group that exists may be missing."""
        return self._looked_ms is not None and self.heads_failure is None

    def feeds(self) -> list[FeedState]:
        """Return the state of each feed, in the order they were first read."""
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
    ) -> None:
        """Record that a feed was read, or why it cannot be: what is known from it becomes stale."""
        with self.lock:
            before = self._feeds.get(name)
            read_ms = now_ms if failure is None else before.read_ms if before else None
            self._feeds[name] = FeedState(name, tuple(groups), of_heads, read_ms, failure)

    def observe_round(self, now_ms: int) -> None:
        """Note that every feed was looked at once more, and follow each group's lag."""
        with self.lock:
            self._looked_ms = now_ms
            for name in self._groups:
                self._follow(name, now_ms)

    def observe_heads(
        self,
        heads: Mapping[str, int],
        now_ms: int,
        topic: str | None = None,
        created: Mapping[str, int] | None = None,
    ) -> None:
        """Record the current write heads.

        Args:
            heads: by journal.
            now_ms: the time.
            topic: topic of new journals; if None, each belongs to the topic of its prefix.
            created: Etcd's revision of their creation, where it is known.
        """
        with self.lock:
            self._heads_ms = now_ms
            self._created.update(created or {})
            self.topics.add(heads, topic)
            for journal, head in heads.items():
                place, partition = self.topics.place(journal)
                count = self.topics.count(place)
                self.history.add_broker_offset(
                    self.cluster, place, partition, head, partition_count=count, timestamp_ms=now_ms
                )
                self._timelines.setdefault(journal, HeadTimeline()).add(head, now_ms)
            self._heads.update(heads)
            for name, known in self._groups.items():
                for journal in known.waiting.keys() & heads.keys():
                    steps = known.waiting.pop(journal)
                    for step in steps:
                        self._record(name, journal, step, now_ms, newest=step is steps[-1], watched=False)

    def observe_stores(self, stores: Mapping[str, JournalStore]) -> None:
        """Record the stored fragments of some journals."""
        with self.lock:
            self._stores.update(stores)

    def observe_records(self, counted: Mapping[Unread, int]) -> None:
        """Replace all known counts of unread records."""
        with self.lock:
            self._records = counted

    def forget_journals(self, gone: Iterable[str]) -> None:
        """Note that journals do not exist any more. A topic without any is deleted, as in Burrow.

        Groups keep no verdict on a journal that is gone: they could only ever be stopped in it.
        """
        with self.lock:
            for journal in gone:
                for known in (self._heads, self._created, self._timelines, self._stores):
                    known.pop(journal, None)
                place = self.topics.place(journal)
                for name, group in self._groups.items():
                    group.series.pop(journal, None)
                    if (last := self._last_step(name, *place)) is not None:
                        group.waiting[journal] = [last]
                self.history.delete_partition(self.cluster, *place)
            for topic in self.topics.names():
                journals = (self.topics.journal(topic, at) for at in range(self.topics.count(topic)))
                if not any(journal in self._heads for journal in journals):
                    self.history.delete_topic(self.cluster, topic)

    def forget_group(self, group: str) -> None:
        """Note that a group does not exist any more."""
        with self.lock:
            self._groups.pop(group, None)
            self.history.delete_group(self.cluster, group)

    def observe_commits(
        self, group: str, commits: Sequence[GroupCommit], now_ms: int, *, source: str = ""
    ) -> None:
        """Record steps of a group, oldest first, that follow the earlier recorded ones.

        Nobody watched while the older ones were made, nor while any was in the first call for a group. Their
        lags are those the query saw when it planned them. Where it left none, only the newest has a lag: that
        to the newest write head. So a history that is read back fills the ring without made-up lags.

        Raises:
            InputError: the group is known from another ``source``: two of one name would be mixed up.
        """
        # The charts of many journals take seconds to fill, and requests wait for the lock.
        new = _rebuilt(source, commits, now_ms) if self.last_order(group) < 0 else _Group()
        with self.lock:
            known = self._groups.setdefault(group, new)
            if known.source != source:
                raise InputError(
                    f"group {group!r} is both that of {known.source} and of {source}; "
                    "give one of them another name, as in NAME=LOCATION"
                )
            watched = known.order >= 0
            slots = self.history.options.intervals
            # Without merging of near commits, earlier ones would only pass through the ring.
            kept = commits if self.history.options.min_distance_s else commits[-slots:]
            for commit in kept:
                newest = commit is commits[-1]
                for journal, offset in commit.read_through.items():
                    head = commit.heads.get(journal)
                    step = _Step(commit.order, commit.timestamp_ms, offset, head, commit.planned_ms)
                    if journal in self._heads:
                        self._record(group, journal, step, now_ms, newest=newest, watched=watched)
                    else:
                        waiting = known.waiting.setdefault(journal, [])
                        waiting.append(step)
                        del waiting[:-slots]
            if commits:
                known.order = max(known.order, commits[-1].order)
                known.last_commit_ms = commits[-1].timestamp_ms
                known.fingerprints = commits[-1].fingerprints or known.fingerprints
            for commit in commits:
                known.figures.trimmed_bytes += commit.trimmed_bytes
                for gaps, total in (
                    (commit.gaps, known.figures.gap_bytes),
                    (commit.accepted_gaps, known.figures.accepted_gap_bytes),
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
        """Add the figures of a batch to those of a known group; open transactions replace those of before."""
        with self.lock:
            figures = self._groups[group].figures
            figures.skipped_bytes += skipped_bytes
            if malformed is not None:
                figures.malformed = (figures.malformed or 0) + malformed
            _observe_open(figures, transactions, now_ms)

    def observe_transactions(
        self,
        group: str,
        transactions: Iterable[JournalTransactions],
        known: Collection[str],
        unknown: Collection[str],
        now_ms: int,
    ) -> None:
        """Replace the open transactions of a known group.

        Args:
            group: the group.
            transactions: of the journals that have any.
            known: journals of which it is known what is open; those without a transaction have none.
            unknown: journals of which it is not.
            now_ms: the time.
        """
        with self.lock:
            figures = self._groups[group].figures
            _observe_open(figures, transactions, now_ms)
            figures.open_counts = dict.fromkeys(known, 0) | figures.open_counts
            figures.open_unknown = frozenset(unknown)

    def _record(
        self, group: str, journal: str, step: _Step, now_ms: int, *, newest: bool, watched: bool
    ) -> None:
        topic, partition = self.topics.place(journal)
        place = (self.cluster, group, topic, partition)
        offset, order, timestamp_ms = step.offset, step.order, step.timestamp_ms
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
            if newest and step.head is not None and now_ms - timestamp_ms <= LEVEL_MS:
                self.history.add_past_head(self.cluster, topic, partition, step.head, timestamp_ms)
        self.history.add_consumer_owner(*place, owner=group, client_id=journal)

    def _last_step(self, group: str, topic: str, partition: int) -> _Step | None:
        last = self.history.last_commit(self.cluster, group, topic, partition)
        return None if last is None else _Step(-1, last.timestamp_ms, last.offset, None, None)

    def _failure(self, group: str, now_ms: int) -> str | None:
        """Return why a group's values are not up to date; None if they are."""
        feeds = self._feeds.values()
        found = [each.failure for each in feeds if each.failure and group in (each.groups or (each.name,))]
        if (heads := self.heads_failure) is not None:
            found.append(f"write heads: {heads}")
        if (late := self.round_failure(now_ms)) is not None:
            found.append(late)
        return "; ".join(dict.fromkeys(found)) or None

    def failure(self, group: str, now_ms: int) -> str | None:
        """Return why a group's values are not up to date; None if they are."""
        with self.lock:
            return self._failure(group, now_ms)

    def round_failure(self, now_ms: int) -> str | None:
        """Return that the last round of all feeds was long ago, None if it was not."""
        looked, limit = self._looked_ms, self.stale_after_ms
        if limit is None or looked is None or now_ms - looked <= limit:
            return None
        return f"the last look was {(now_ms - looked) // 1000} s ago"

    def last_order(self, group: str) -> int:
        """Return the order of a group's newest step, -1 without a step."""
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
        """Return the names of the groups, those included of which nothing could be read yet."""
        with self.lock:
            unread = (
                group
                for feed in self._feeds.values()
                if feed.failure and not feed.of_heads
                for group in feed.groups or (feed.name,)
            )
            return list(dict.fromkeys([*self._groups, *unread]))

    def figures(self, group: str) -> Figures:
        """Return what a group's batches left out."""
        with self.lock:
            known = self._groups.get(group, _Group()).figures
            return replace(
                known,
                gap_bytes=dict(known.gap_bytes),
                accepted_gap_bytes=dict(known.accepted_gap_bytes),
            )

    def course(self, group: str) -> list[tuple[int, int | None]]:
        """Return a group's lag over the last day: points as (milliseconds since 1970, bytes)."""
        with self.lock:
            known = self._groups.get(group)
            return known.total.points() if known else []

    def journal_courses(self, group: str, journals: Iterable[str]) -> dict[str, list[tuple[int, int | None]]]:
        """Return the lag of some journals over the last hour."""
        with self.lock:
            series = self._groups[group].series if group in self._groups else {}
            return {journal: series[journal].points() for journal in journals if journal in series}

    def lag(self, group: str, now_ms: int) -> GroupLag:
        """Return a group's verdict with this package's additions."""
        with self.lock:
            verdict = self.evaluator.status(self.cluster, group, now_ms=now_ms)
            failure = self._failure(group, now_ms)
            known = self._groups.get(group, _Group())
            opened = known.figures.opened()
            journals = [
                self._journal_lag(status, now_ms, opened, stale=failure is not None)
                for status in verdict.partitions
                if status.client_id
            ]
            speeds = known.speed.bytes_per_s() if failure is None else (None, None)
            recreated = [
                name
                for name, each in sorted(known.fingerprints.items())
                if each.end
                and 0 not in (self._created.get(name, 0), each.create_revision)
                and self._created[name] != each.create_revision
            ]
            return GroupLag(
                verdict,
                journals,
                known.last_commit_ms,
                failure,
                sorted(known.waiting),
                *speeds,
                recreated=recreated,
            )

    def _journal_lag(
        self, status: PartitionStatus, now_ms: int, opened: Mapping[str, OpenInJournal], *, stale: bool
    ) -> JournalLag:
        journal = self.topics.journal(status.topic, status.partition)
        head = self._heads.get(journal)
        if status.end is None or status.start is None or head is None:
            return JournalLag(journal, status, head, Age(), None, None, None, None, None, opened.get(journal))
        speed = read_bytes_per_s((status.start, status.end))
        if stale or status.status > Status.ERR or is_silent((status.start, status.end), now_ms):
            # It is the speed of a query that went on, and no word on one that may have stopped.
            speed = None
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
            opened.get(journal),
        )

    def _follow(self, name: str, now_ms: int) -> None:
        """Add a point to a group's charts; an unknown one if its values are not up to date."""
        known = self._groups[name]
        positions = list(self._positions(name, now_ms))
        if not positions or self._failure(name, now_ms) is not None:
            for series in (known.total, *known.series.values()):
                series.add(now_ms, None)
            return
        for journal, offset, head in positions:
            known.series.setdefault(journal, LagSeries()).add(now_ms, max(0, head - offset))
        known.total.add(now_ms, sum(max(0, head - offset) for _, offset, head in positions))
        read, head = sum(each[1] for each in positions), sum(each[2] for each in positions)
        known.speed.add(now_ms, len(positions), read, head)

    def _positions(self, group: str, now_ms: int) -> Iterator[tuple[str, int, int]]:
        """Yield the journals of a group whose write heads are known: name, newest commit, write head."""
        for topic, partition, offset in self.history.fetch_offsets(self.cluster, group, now_ms=now_ms):
            journal = self.topics.journal(topic, partition)
            if (head := self._heads.get(journal)) is not None:
                yield journal, offset, head


def _rebuilt(source: str, commits: Sequence[GroupCommit], now_ms: int) -> _Group:
    """Return a group that has just been found; its charts are filled from what its commits recorded."""
    group = _Group(source)
    for time_ms, before, heads in past_lags(commits, now_ms - GROUP_SPAN_MS, now_ms, GROUP_STEP_MS):
        group.total.add(time_ms, max(0, sum(heads.values()) - sum(map(before.__getitem__, heads))))
        if time_ms > now_ms - HOUR_MS:
            for journal, head in heads.items():
                group.series.setdefault(journal, LagSeries()).add(time_ms, max(0, head - before[journal]))
    return group
