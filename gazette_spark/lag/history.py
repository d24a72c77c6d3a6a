"""Keeps the committed offsets and write heads over time, on which the verdicts are based.

A :class:`History` has a method for each request of Burrow's storage, with the same rules. For
each partition it keeps rings of the last write heads, and of the last commits of each group. A commit counts
only if the partition's write head is known, so heads must be added first.

A group that has been silent for ``expire_group_s`` is forgotten, but only when it is fetched. The groups of a
deleted topic remain, without partitions if it was their only topic.

Not thread-safe: share it only under a lock. Times are arguments, in milliseconds since 1970. If the clock is
set back, commits only appear younger.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gazette_spark.errors import InputError, OptionError
from gazette_spark.lag.columns import MAX_TIME_MS, WindowColumns, evaluate_columns, joined_cells
from gazette_spark.lag.rings import BrokerRing, CommitRing, RingOutcome
from gazette_spark.lag.rules import GroupStatus, OffsetCommit, PartitionWindow, Thresholds, evaluate_group

MAX_INT64 = 2**63 - 1

MAX_PARTITIONS = 1_000_000
"""Maximum number of partitions of a topic. A larger number is a mistake, and would make huge answers."""


MAX_CACHED = 100_000
"""Maximum number of cached verdicts, because a client can request any number of names that do not exist."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Limits of the history, and filters of its groups. The defaults are Burrow's.

    Raises:
        OptionError: an option is invalid. The error has Burrow's name of the option.
    """

    intervals: int = 10
    """Number of slots of each ring."""
    min_distance_s: int = 0
    """Minimum number of seconds between two commits; one that follows sooner replaces the earlier one."""
    expire_group_s: int = 604_800
    """Age in seconds from which commits are refused, and groups without a younger commit are forgotten."""
    group_allowlist: str = ""
    """Regular expression in Python's syntax. Groups whose names do not contain a match are ignored."""
    group_denylist: str = ""
    """Regular expression. Groups whose names contain a match are ignored."""

    def __post_init__(self) -> None:
        _at_least("intervals", self.intervals, 1)
        _at_least("min-distance", self.min_distance_s, 0)
        _at_least("expire-group", self.expire_group_s, 0)
        _compiled("group-allowlist", self.group_allowlist)
        _compiled("group-denylist", self.group_denylist)

    def accepts(self, group: str) -> bool:
        """Return whether the lists accept a group."""
        allowed = not self.group_allowlist or re.search(self.group_allowlist, group)
        denied = self.group_denylist and re.search(self.group_denylist, group)
        return bool(allowed) and not denied


@dataclass(slots=True)
class _Partition:
    """A partition of a group. It has a ring after its first commit or owner."""

    commits: CommitRing | None = None
    owner: str = ""
    client_id: str = ""


@dataclass(slots=True)
class _Group:
    topics: dict[str, list[_Partition]] = field(default_factory=dict)
    last_commit_ms: int = 0
    """Time of the last commit that was the newest of its partition."""


@dataclass(slots=True)
class _Cluster:
    heads: dict[str, list[BrokerRing]] = field(default_factory=dict)
    groups: dict[str, _Group] = field(default_factory=dict)

    def head(self, topic: str, partition: int) -> int | None:
        """Return a partition's newest write head, or None if it is unknown."""
        rings = self.heads.get(topic, [])
        return rings[partition].newest if 0 <= partition < len(rings) else None


class History:
    """The last write heads and commits of clusters."""

    def __init__(self, options: HistoryOptions, clusters: Iterable[str] = ()) -> None:
        self.options = options
        self._clusters = {name: _Cluster() for name in clusters}

    def __repr__(self) -> str:
        groups = sum(len(cluster.groups) for cluster in self._clusters.values())
        return f"History(clusters={self.fetch_clusters()}, groups={groups})"

    def add_cluster(self, cluster: str) -> None:
        """Add a cluster. Requests about other clusters are ignored."""
        self._clusters.setdefault(cluster, _Cluster())

    def add_broker_offset(
        self,
        cluster: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        partition_count: int,
        timestamp_ms: int = 0,
    ) -> RingOutcome:
        """Store a write head as the newest, without comparing it with the previous one.

        Raises:
            InputError: the partition is beyond ``partition_count`` and the known partitions, or a number is
                out of range.
        """
        cluster_state = self._clusters.get(cluster)
        # As Burrow, which logs a warning, every method drops requests for an unknown cluster.
        if cluster_state is None:
            return RingOutcome.UNKNOWN_CLUSTER
        _check_offset(offset)
        _check_int64("timestamp", timestamp_ms)
        rings = cluster_state.heads.get(topic, [])
        # As in Burrow, deleted partitions keep their rings until the topic is deleted.
        count = max(partition_count, len(rings))
        if not 0 <= partition < count or count > MAX_PARTITIONS:
            raise InputError(
                f"topic {topic!r}: partition {partition} of {count}; expected a number from 0 and below "
                f"the number of partitions, and at most {MAX_PARTITIONS} partitions"
            )
        rings += [BrokerRing(self.options.intervals) for _ in range(count - len(rings))]
        rings[partition].add(offset, timestamp_ms)
        cluster_state.heads[topic] = rings
        return RingOutcome.STORED

    def add_past_head(
        self, cluster: str, topic: str, partition: int, offset: int, timestamp_ms: int
    ) -> RingOutcome:
        """Store an earlier write head of a partition whose newest one is known. Burrow lacks this."""
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None:
            return RingOutcome.UNKNOWN_CLUSTER
        if cluster_state.head(topic, partition) is None:
            return RingOutcome.NO_BROKER_OFFSET
        cluster_state.heads[topic][partition].add_past(offset, timestamp_ms)
        return RingOutcome.STORED

    def add_consumer_offset(
        self,
        cluster: str,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        order: int,
        timestamp_ms: int,
        now_ms: int,
    ) -> RingOutcome:
        """Store a commit in the position of its order.

        Args:
            cluster: Name of the cluster.
            group: Name of the group, which is created if it is new.
            topic: Name of the topic.
            partition: Index in the topic.
            offset: Committed offset.
            order: Number that increases from commit to commit of the partition.
            timestamp_ms: Time of the commit.
            now_ms: The current time, rounded down to seconds.

        Raises:
            InputError: a number is out of range.
        """
        head = self.newest_head(cluster, topic, partition)
        return self.add_past_offset(
            cluster,
            group,
            topic,
            partition,
            offset,
            order=order,
            timestamp_ms=timestamp_ms,
            now_ms=now_ms,
            head=head,
        )

    def add_past_offset(
        self,
        cluster: str,
        group: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        order: int,
        timestamp_ms: int,
        now_ms: int,
        head: int | None,
    ) -> RingOutcome:
        """Store a commit from before the monitor's start; see :meth:`add_consumer_offset`. Burrow lacks this.

        Its lag is the distance to ``head``, the write head that its committer saw; None if unknown.
        """
        _check_offset(offset)
        for name, number in (("order", order), ("timestamp", timestamp_ms), ("now_ms", now_ms)):
            _check_int64(name, number)
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None:
            return RingOutcome.UNKNOWN_CLUSTER
        # The checks are in Burrow's order, because the first failed check determines the outcome.
        if timestamp_ms < self._oldest_ms(now_ms):
            return RingOutcome.EXPIRED
        if not self.options.accepts(group):
            return RingOutcome.GROUP_REFUSED
        if cluster_state.head(topic, partition) is None:
            return RingOutcome.NO_BROKER_OFFSET
        # Only after the checks, because a commit that is dropped must not create its group.
        group_state = cluster_state.groups.setdefault(group, _Group())
        place = self._partition(cluster_state, group_state, topic, partition)
        assert place.commits is not None
        # The newest of this partition. A late commit must not make a group look alive.
        if place.commits.is_newest(order):
            group_state.last_commit_ms = timestamp_ms
        lag = None if head is None else max(0, head - offset)
        commit = OffsetCommit(offset, timestamp_ms, now_ms // 1000 * 1000, lag)
        return place.commits.add(commit, order, self.options.min_distance_s * 1000)

    def renew_group(self, cluster: str, group: str, timestamp_ms: int) -> RingOutcome:
        """Keep a group that commits nothing from expiring. Burrow lacks this."""
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None:
            return RingOutcome.UNKNOWN_CLUSTER
        if (group_state := cluster_state.groups.get(group)) is not None:
            group_state.last_commit_ms = max(group_state.last_commit_ms, timestamp_ms)
        return RingOutcome.STORED

    def add_consumer_owner(
        self, cluster: str, group: str, topic: str, partition: int, *, owner: str, client_id: str = ""
    ) -> RingOutcome:
        """Record the reader of a partition. A new group is created, even if the partition is unknown."""
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None:
            return RingOutcome.UNKNOWN_CLUSTER
        if not self.options.accepts(group):
            return RingOutcome.GROUP_REFUSED
        group_state = cluster_state.groups.setdefault(group, _Group())
        if cluster_state.head(topic, partition) is None:
            return RingOutcome.NO_BROKER_OFFSET
        place = self._partition(cluster_state, group_state, topic, partition)
        place.owner, place.client_id = owner, client_id
        return RingOutcome.STORED

    def delete_topic(self, cluster: str, topic: str) -> RingOutcome:
        """Forget a topic, its write heads and all groups' commits of it. The groups remain."""
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None:
            return RingOutcome.UNKNOWN_CLUSTER
        for group in cluster_state.groups.values():
            group.topics.pop(topic, None)
        cluster_state.heads.pop(topic, None)
        return RingOutcome.STORED

    def delete_topic_of_group(self, cluster: str, group: str, topic: str) -> RingOutcome:
        """Forget a group's commits of a topic. This also succeeds if there are none."""
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None:
            return RingOutcome.UNKNOWN_CLUSTER
        if group in cluster_state.groups:
            cluster_state.groups[group].topics.pop(topic, None)
        return RingOutcome.STORED

    def delete_partition(self, cluster: str, topic: str, partition: int) -> RingOutcome:
        """Forget a partition's write heads and commits, but do not reuse its number. Burrow lacks this."""
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None:
            return RingOutcome.UNKNOWN_CLUSTER
        for group in cluster_state.groups.values():
            if partition < len(partitions := group.topics.get(topic, [])):
                # An empty partition replaces it, because the numbers of later partitions must not change.
                partitions[partition] = _Partition()
        if partition < len(rings := cluster_state.heads.get(topic, [])):
            rings[partition] = BrokerRing(self.options.intervals)
        return RingOutcome.STORED

    def delete_group(self, cluster: str, group: str) -> RingOutcome:
        """Forget a group. This also succeeds if the group does not exist."""
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None:
            return RingOutcome.UNKNOWN_CLUSTER
        cluster_state.groups.pop(group, None)
        return RingOutcome.STORED

    def fetch_clusters(self) -> list[str]:
        """Return the names of the clusters."""
        return list(self._clusters)

    def fetch_consumers(self, cluster: str) -> list[str] | None:
        """Return the names of a cluster's groups, including those that have expired."""
        cluster_state = self._clusters.get(cluster)
        return None if cluster_state is None else list(cluster_state.groups)

    def fetch_topics(self, cluster: str) -> list[str] | None:
        """Return the names of a cluster's topics."""
        cluster_state = self._clusters.get(cluster)
        return None if cluster_state is None else list(cluster_state.heads)

    def fetch_topic(self, cluster: str, topic: str) -> list[int] | None:
        """Return the newest write head of each partition that has one."""
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None or topic not in cluster_state.heads:
            return None
        # As in Burrow, partitions without an offset are omitted, so an index in this list is not the number
        # of the partition.
        return [ring.newest for ring in cluster_state.heads[topic] if ring.newest is not None]

    def newest_head(self, cluster: str, topic: str, partition: int) -> int | None:
        """Return a partition's newest write head; None if it is unknown."""
        cluster_state = self._clusters.get(cluster)
        return cluster_state.head(topic, partition) if cluster_state else None

    def last_commit(self, cluster: str, group: str, topic: str, partition: int) -> OffsetCommit | None:
        """Return a group's newest commit of a partition, or None."""
        cluster_state = self._clusters.get(cluster)
        group_state = cluster_state.groups.get(group) if cluster_state else None
        partitions = group_state.topics.get(topic, []) if group_state else []
        ring = partitions[partition].commits if partition < len(partitions) else None
        return ring.newest if ring is not None else None

    def fetch_consumers_for_topic(self, cluster: str, topic: str) -> list[str] | None:
        """Return the names of the groups that have read a topic; an empty list for an unknown topic."""
        cluster_state = self._clusters.get(cluster)
        if cluster_state is None:
            return None
        return [name for name, group in cluster_state.groups.items() if topic in group.topics]

    def fetch_consumer(
        self, cluster: str, group: str, *, now_ms: int
    ) -> dict[str, list[PartitionWindow]] | None:
        """Return a group's partitions by topic. If it has expired, forget the group and return None."""
        group_state = self._unexpired(cluster, group, now_ms)
        if group_state is None:
            return None
        cluster_state = self._clusters[cluster]
        return {
            topic: [_window(cluster_state, topic, index, state) for index, state in enumerate(partitions)]
            for topic, partitions in group_state.topics.items()
        }

    def fetch_offsets(self, cluster: str, group: str, *, now_ms: int) -> list[tuple[str, int, int]]:
        """Return a group's newest commits as (topic, partition, offset); see :meth:`fetch_consumer`."""
        cluster_state = self._clusters.get(cluster)
        group_state = cluster_state.groups.get(group) if cluster_state else None
        # Does not forget an expired group; only Burrow's requests do.
        if group_state is None or self._oldest_ms(now_ms) > group_state.last_commit_ms:
            return []
        return [
            (topic, index, offset)
            for topic, partitions in group_state.topics.items()
            for index, state in enumerate(partitions)
            if state.commits is not None and (offset := state.commits.newest_offset) is not None
        ]

    def fetch_columns(self, cluster: str, group: str, *, now_ms: int) -> WindowColumns | None:
        """Return a group's partitions as columns; see :meth:`fetch_consumer`."""
        group_state = self._unexpired(cluster, group, now_ms)
        if group_state is None:
            return None
        cluster_heads = self._clusters[cluster].heads
        topics: list[str] = []
        indices: list[int] = []
        partitions: list[_Partition] = []
        heads: list[BrokerRing | None] = []
        for topic, states in group_state.topics.items():
            topics += [topic] * len(states)
            indices += range(len(states))
            partitions += states
            heads += cluster_heads[topic][: len(states)] if topic in cluster_heads else [None] * len(states)
        rings = [partition.commits for partition in partitions]
        newest = [-1 if ring is None or ring.newest is None else ring.newest for ring in heads]
        least = [-1 if ring is None or ring.least is None else ring.least for ring in heads]
        return WindowColumns(
            topics,
            np.array(indices, np.int64),
            [partition.owner for partition in partitions],
            [partition.client_id for partition in partitions],
            self.options.intervals,
            np.array([ring is not None for ring in rings], np.bool_),
            np.array([0 if ring is None else len(ring) for ring in rings], np.int64),
            joined_cells([ring.cells() for ring in rings if ring is not None]),
            np.array(newest, np.int64),
            np.array(least, np.int64),
        )

    def _unexpired(self, cluster: str, group: str, now_ms: int) -> _Group | None:
        """Return a group, or None; forget it if it has expired."""
        cluster_state = self._clusters.get(cluster)
        group_state = cluster_state.groups.get(group) if cluster_state else None
        if (
            cluster_state is None
            or group_state is None
            or self._oldest_ms(now_ms) <= group_state.last_commit_ms
        ):
            return group_state
        # As in Burrow, an expired group is forgotten when it is requested.
        del cluster_state.groups[group]
        return None

    def _oldest_ms(self, now_ms: int) -> int:
        return (now_ms // 1000 - self.options.expire_group_s) * 1000

    def _partition(self, cluster: _Cluster, group: _Group, topic: str, index: int) -> _Partition:
        """Return a group's partition with its ring, and create missing partitions up to it."""
        partitions = group.topics.setdefault(topic, [])
        if index >= len(partitions):
            missing = len(cluster.heads[topic]) - len(partitions)
            # All partitions of the topic, because Burrow lists them without gaps.
            partitions += [_Partition() for _ in range(missing)]
        state = partitions[index]
        if state.commits is None:
            state.commits = CommitRing(self.options.intervals)
        return state


class Evaluator:
    """Judges the groups of a history.

    Args:
        history: The history to judge. It is shared, so hold its lock around each call.
        thresholds: Thresholds of the verdicts.
        expire_cache_s: Seconds for which a verdict is cached; 0 for no cache.

    Raises:
        OptionError: ``expire_cache_s`` is negative.
    """

    def __init__(self, history: History, thresholds: Thresholds, *, expire_cache_s: int = 10) -> None:
        if expire_cache_s < 0:
            raise OptionError("expire-cache", str(expire_cache_s), "0 or more seconds")
        self._history = history
        self._thresholds = thresholds
        self._expire_ms = expire_cache_s * 1000
        self._cached: dict[tuple[str, str], tuple[int, GroupStatus]] = {}

    def __repr__(self) -> str:
        return f"Evaluator({self._history!r}, cached={len(self._cached)})"

    def status(self, cluster: str, group: str, *, now_ms: int) -> GroupStatus:
        """Return a group's verdict with all partitions, cached or new.

        A cached verdict from the future is replaced: the clock was set back, and the verdict might never
        expire.
        """
        cached = self._cached.get((cluster, group))
        # As in Burrow, "not found" is also cached, so a new group may appear up to ten seconds late.
        if cached and 0 <= now_ms - cached[0] < self._expire_ms:
            return cached[1]
        columns = self._history.fetch_columns(cluster, group, now_ms=now_ms)
        # The rules for single partitions are the definition; the columns are faster. Times that would
        # overflow use the definition.
        if columns is not None and columns.fits and abs(now_ms) < MAX_TIME_MS:
            verdict = evaluate_columns(cluster, group, columns, now_ms, self._thresholds)
        else:
            windows = windows_of(self._history.fetch_consumer(cluster, group, now_ms=now_ms))
            verdict = evaluate_group(cluster, group, windows, now_ms, self._thresholds)
        if len(self._cached) >= MAX_CACHED:
            # Clearing everything costs one more evaluation per entry. Tracking the order of use would add a
            # cost to each request.
            self._cached.clear()
        self._cached[cluster, group] = (now_ms, verdict)
        return verdict


def windows_of(topics: dict[str, list[PartitionWindow]] | None) -> list[PartitionWindow] | None:
    """Return a group's partitions in one list for the rules."""
    if topics is None:
        return None
    return [window for windows in topics.values() for window in windows]


def _window(cluster: _Cluster, topic: str, index: int, partition: _Partition) -> PartitionWindow:
    heads = cluster.heads[topic][index].offsets if topic in cluster.heads else []
    ring = partition.commits
    last = ring.newest if ring is not None else None
    # A head that was polled before the commit may be below it. Then the lag is 0.
    behind = max(0, heads[-1] - last.offset) if heads and last else 0
    return PartitionWindow(
        topic,
        index,
        behind,
        heads,
        ring.slots() if ring is not None else (),
        partition.owner,
        partition.client_id,
    )


def _check_offset(offset: int) -> None:
    if not 0 <= offset <= MAX_INT64:
        raise InputError(f"offset {offset} is not valid for a journal: expected 0 to {MAX_INT64}")


def _check_int64(name: str, number: int) -> None:
    if not -MAX_INT64 - 1 <= number <= MAX_INT64:
        raise InputError(f"{name} {number} is not a 64-bit integer")


def _at_least(option: str, number: int, least: int) -> None:
    if number < least:
        raise OptionError(option, str(number), f"{least} or more")


def _compiled(option: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(option, repr(pattern), f"a regular expression ({error})") from error
