"""Defines the table of lag metrics, and everything derived from it.

Each row of :data:`METRICS` has the metric's name for Prometheus, its key in the JSON of ``/gazette/v1``, its
column on the page and in ``lag show``, its value, and one sentence of help. Burrow's own metrics keep their
names and labels. Other names begin with ``gazette_lag_``. An unknown value is omitted in Prometheus' text, is
null in JSON, and is a dash in a column; it is never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gazette_spark.lag.estimates import Age
from gazette_spark.lag.group_lag import OpenSince, OpenTransactionSummary
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Level(Enum):
    """The subject of a metric. The value has its labels for Prometheus."""

    CLUSTER = ("cluster",)
    FEED = ("cluster", "feed")
    HEAD = ("cluster", "topic", "partition")
    GROUP = ("cluster", "consumer_group")
    JUDGED = ("cluster", "consumer_group", "")
    """A group with a verdict. ``""`` is not a label."""
    PARTITION = ("cluster", "consumer_group", "topic", "partition")
    """A journal of a group, with Burrow's labels."""
    JOURNAL = ("cluster", "consumer_group", "journal")
    TRANSACTIONS = ("cluster", "consumer_group", "journal", "")
    """The open transactions of a journal."""
    GAPS = ("cluster", "consumer_group", "journal", "accepted")


class Kind(Enum):
    """The unit of a value, which determines its form everywhere."""

    COUNT = "count"
    BYTES = "bytes"
    SPEED = "speed"
    """Bytes per second."""
    DURATION = "duration"
    """Milliseconds; seconds for Prometheus."""
    AGE = "age"
    """Bounds of an age: two samples with the label ``bound``."""
    OPEN = "open"
    """Number of open transactions in a summary."""
    OPEN_FOR = "open for"
    """Age of the oldest open transaction in the same summary."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured value.

    Args:
        level: The measured subject.
        kind: The unit.
        name: Name for Prometheus; "" if it is not exported.
        key: Key in JSON; "" if it is not in JSON.
        column: Heading on the page and, in upper case, in ``lag show``; "" if it is not shown.
        value: Returns the value; None if it is unknown. Its argument depends on the level: the monitor, the
            state of a feed, a write head, the lag of a group, the lag of a journal (also for a partition), an
            :class:`OpenTransactionSummary`, or a number of bytes.
        help: One sentence for users.
        is_counter: Whether it never decreases.
        only_behind: Whether a column shows it only while bytes are unread.
    """

    level: Level
    kind: Kind
    name: str
    key: str
    column: str
    value: Callable[[Any], Any]
    help: str
    is_counter: bool = False
    only_behind: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels for Prometheus."""
        labels = tuple(label for label in self.level.value if label)
        return (*labels, "bound") if self.kind is Kind.AGE else labels

    def samples(self, measured: object) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield extra labels and known values for Prometheus."""
        value = self.value(measured)
        match value:
            case None:
                return
            case Age(least_ms, most_ms):
                for bound, milliseconds in (("least", least_ms), ("most", most_ms)):
                    if milliseconds is not None:
                        yield (bound,), milliseconds / 1000
            case _:
                yield (), value / 1000 if self.kind is Kind.DURATION else float(value)

    def to_json(self, measured: object) -> Any:  # noqa: ANN401 - JSON
        """Return the value as JSON; null if it is unknown."""
        value = self.value(measured)
        match value:
            case Age():
                return age_json(value)
            case OpenTransactionSummary(count, oldest, age):
                return {"count": count, "oldest": oldest and transaction_json(oldest, age)}
            case float() if self.kind is Kind.SPEED:
                return round(value, 1)
            case _:
                return value

    def for_page(self) -> dict[str, Any]:
        """Return the page's description of the metric."""
        return {
            "key": self.key,
            "column": self.column,
            "kind": self.kind.value,
            "help": self.help,
            "onlyBehind": self.only_behind,
        }

    def cell(self, row: Mapping[str, Any]) -> str:
        """Return the text of a column's cell from the JSON of a journal."""
        value = row[self.key]
        if value is None or (self.only_behind and not row["lag_bytes"]):
            return "-"
        match self.kind:
            case Kind.DURATION:
                return duration_text(value)
            case Kind.AGE:
                return age_text(**value)
            case Kind.OPEN:
                return "unknown" if value["count"] is None else f"{value['count']:,}"
            case Kind.OPEN_FOR:
                return age_text(**value["oldest"]["age"]) if value["oldest"] else "-"
            case _:
                return f"{value:,}"


# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric(Level.CLUSTER, Kind.COUNT, "gazette_lag_heads_up", "", "",
           lambda monitor: monitor.heads_failure is None,
           "Whether all write heads could be read at the last poll."),
    Metric(Level.CLUSTER, Kind.DURATION, "gazette_lag_heads_read_timestamp_seconds", "", "",
           lambda monitor: monitor.heads_ms, "Time at which all write heads were last read."),
    Metric(Level.FEED, Kind.DURATION, "gazette_lag_feed_read_timestamp_seconds", "", "",
           lambda feed: feed.read_ms, "Time at which a feed was last read."),
    Metric(Level.HEAD, Kind.BYTES, "burrow_kafka_topic_partition_offset", "", "",
           lambda head: head, "Write head of a journal."),
    Metric(Level.GROUP, Kind.COUNT, "gazette_lag_feed_up", "", "",
           lambda lag: lag.failure is None,
           "Whether commits and write heads could be read at the last poll; if not, values are stale."),
    Metric(Level.JUDGED, Kind.COUNT, "burrow_kafka_consumer_status", "", "",
           lambda lag: lag.verdict.status, "Verdict on a group: 0 NOTFOUND, 1 OK, 2 WARN, 3 ERR."),
    Metric(Level.JUDGED, Kind.BYTES, "burrow_kafka_consumer_lag_total", "lag_bytes", "",
           lambda lag: lag.lag_bytes, "Sum of a group's lag in bytes."),
    Metric(Level.JUDGED, Kind.COUNT, "gazette_lag_unlisted_journals", "unlisted_journals", "",
           lambda lag: len(lag.unlisted),
           "Journals that a group has read, but whose write heads are unknown."),
    Metric(Level.JUDGED, Kind.COUNT, "gazette_lag_recreated_journals", "recreated_journals", "",
           lambda lag: len(lag.recreated),
           "Journals that were deleted and created again since a table read them."),
    Metric(Level.JUDGED, Kind.SPEED, "gazette_lag_read_bytes_per_second", "read_bytes_per_s", "read",
           lambda lag: lag.read_bytes_per_s,
           "Reading speed of a group: the sum over its journals, each over the window of its last commits."),
    Metric(Level.JUDGED, Kind.SPEED, "gazette_lag_append_bytes_per_second", "append_bytes_per_s", "appended",
           lambda lag: lag.append_bytes_per_s,
           "Growth of a group's journals: their sum, over the same windows."),
    Metric(Level.JUDGED, Kind.AGE, "gazette_lag_freshness_seconds", "freshness", "oldest unread",
           lambda lag: lag.freshness, "Bounds of the age of the oldest byte that a table lacks."),
    Metric(Level.JUDGED, Kind.DURATION, "", "catch_up_ms", "caught up in",
           lambda lag: lag.catch_up_ms, "Time until a group has caught up in all journals.",
           only_behind=True),
    Metric(Level.JUDGED, Kind.DURATION, "", "loss_in_ms", "loss in",
           lambda lag: lag.loss_in_ms, "Time until unread bytes of any journal may be pruned."),
    Metric(Level.JUDGED, Kind.DURATION, "gazette_lag_last_commit_age_seconds", "last_commit_age_ms",
           "last commit", lambda lag: lag.last_commit_age_ms, "Time since a group's last commit."),
    Metric(Level.GROUP, Kind.COUNT, "gazette_lag_open_transactions_unknown_journals", "", "",
           # Without a feed of states, nothing is known about any journal, so the number is omitted.
           lambda lag: len(lag.totals.open_unknown) if lag.totals.open_counts or lag.totals.open_unknown
           else None,
           "Journals whose open transactions could not be read at the last poll."),
    Metric(Level.GROUP, Kind.BYTES, "gazette_lag_trimmed_bytes_total", "", "",
           lambda lag: lag.totals.trimmed_bytes or None,
           "Bytes of batches whose rows were already in the table and were dropped, according to its ledger.",
           is_counter=True),
    Metric(Level.GROUP, Kind.BYTES, "gazette_lag_skipped_bytes_total", "", "",
           lambda lag: lag.totals.skipped_bytes or None,
           "Missing bytes that batches skipped, according to a query's progress.",
           is_counter=True),
    Metric(Level.GROUP, Kind.COUNT, "gazette_lag_malformed_records_total", "", "",
           lambda lag: lag.totals.malformed,
           "Malformed records of a query that counts them.",
           is_counter=True),
    Metric(Level.PARTITION, Kind.BYTES, "burrow_kafka_consumer_partition_lag", "", "",
           lambda journal: journal.lag_bytes, "Lag of a group in one journal, in bytes."),
    Metric(Level.PARTITION, Kind.BYTES, "burrow_kafka_consumer_current_offset", "", "",
           # As in Burrow, a partition's offset and verdict are shown once its window is full.
           lambda journal: journal.status.end.offset
           if journal.status.complete == 1.0 and journal.status.end else None,
           "Newest offset that a group committed."),
    Metric(Level.PARTITION, Kind.COUNT, "burrow_kafka_topic_partition_status", "", "",
           lambda journal: journal.status.status
           if journal.status.complete == 1.0 and journal.status.end else None,
           "Verdict on a journal: 1 OK, 2 WARN, 4 STOP, 5 STALL, 6 REWIND."),
    Metric(Level.JOURNAL, Kind.BYTES, "gazette_lag_bytes", "lag_bytes", "lag",
           lambda journal: journal.lag_bytes, "Bytes between the last committed offset and the write head."),
    Metric(Level.JOURNAL, Kind.COUNT, "gazette_lag_records", "lag_records", "records",
           lambda journal: journal.records, "Unread records, if they were counted.",
           only_behind=True),
    Metric(Level.JOURNAL, Kind.AGE, "gazette_lag_age_seconds", "lag_age", "oldest unread",
           lambda journal: journal.age,
           "Bounds of the age of the oldest uncommitted byte. Gazette does not store times of bytes."),
    Metric(Level.JOURNAL, Kind.SPEED, "", "read_bytes_per_s", "read",
           lambda journal: journal.read_bytes_per_s,
           "Reading speed of the group in the journal, over the window of its last commits."),
    Metric(Level.JOURNAL, Kind.SPEED, "", "append_bytes_per_s", "appended",
           lambda journal: journal.append_bytes_per_s, "Growth of the journal, over the same window."),
    Metric(Level.JOURNAL, Kind.DURATION, "gazette_lag_catch_up_seconds", "catch_up_ms", "caught up in",
           lambda journal: journal.catch_up_ms,
           "Time until the lag is 0 at the current speeds; unknown if the group has stopped or is slower.",
           only_behind=True),
    Metric(Level.JOURNAL, Kind.DURATION, "gazette_lag_loss_in_seconds", "loss_in_ms", "loss in",
           lambda journal: journal.loss_in_ms,
           "Time until unread bytes may be pruned, by the journal's retention and at the current speed."),
    Metric(Level.JOURNAL, Kind.OPEN, "", "open_transactions", "open",
           lambda journal: journal.opened,
           "Open transactions at the end of the commits, age of the first one, and bytes since its start."),
    Metric(Level.JOURNAL, Kind.OPEN_FOR, "", "open_transactions", "open for",
           lambda journal: journal.opened, "Age of the open transaction that begins first."),
    Metric(Level.TRANSACTIONS, Kind.COUNT, "gazette_lag_open_transactions", "", "",
           lambda opened: opened.count, "Open transactions at the end of a group's commits."),
    Metric(Level.TRANSACTIONS, Kind.DURATION, "gazette_lag_open_transaction_age_seconds", "", "",
           lambda opened: opened.age and opened.age.least_ms,
           "Minimum age of the open transaction that begins first."),
    Metric(Level.TRANSACTIONS, Kind.BYTES, "gazette_lag_open_transaction_bytes", "", "",
           lambda opened: opened.oldest and opened.oldest.held_bytes,
           "Bytes since the start of that transaction, which must be kept until it ends."),
    Metric(Level.GAPS, Kind.BYTES, "gazette_lag_gap_bytes_total", "", "",
           lambda gap_bytes: gap_bytes,
           "Missing bytes that batches skipped, according to a table's ledger, even if accepted.",
           is_counter=True),
)
# fmt: on


def metrics_json(level: Level, measured: object) -> dict[str, Any]:
    """Return the JSON fields of a group or a journal."""
    return {
        metric.key: metric.to_json(measured) for metric in METRICS if metric.key and metric.level is level
    }


def columns(level: Level) -> list[Metric]:
    """Return the metrics of a group or a journal that have a column."""
    return [metric for metric in METRICS if metric.column and metric.level is level]


def exposition(monitor: Monitor, now_ms: int) -> bytes:
    """Return everything in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    exported = [metric for metric in METRICS if metric.name]
    by_level = {level: [metric for metric in exported if metric.level is level] for level in Level}
    families = {
        metric.name: (CounterMetricFamily if metric.is_counter else GaugeMetricFamily)(
            metric.name, metric.help, labels=metric.labels
        )
        for metric in exported
    }
    for level, measured, labels in _everything(monitor, now_ms):
        for metric in by_level[level]:
            for more_labels, value in metric.samples(measured):
                families[metric.name].add_metric((monitor.cluster, *labels, *more_labels), value)

    class Families(Collector):
        def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
            yield from families.values()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families())
    return generate_latest(registry)


def _everything(monitor: Monitor, now_ms: int) -> Iterator[tuple[Level, object, tuple[str, ...]]]:
    """Yield every measured subject, with its labels except the cluster."""
    yield Level.CLUSTER, monitor, ()
    for feed in monitor.feeds():
        yield Level.FEED, feed, (feed.name,)
    with monitor.lock:
        heads = [
            (topic, at, monitor.history.newest_head(monitor.cluster, topic, at))
            for topic in monitor.history.fetch_topics(monitor.cluster) or ()
            for at in range(monitor.topics.count(topic))
        ]
    for topic, at, head in heads:
        yield Level.HEAD, head, (topic, str(at))
    for group in monitor.groups():
        lag = monitor.lag(group, now_ms)
        yield Level.GROUP, lag, (group,)
        if lag.verdict.status != Status.NOTFOUND:
            yield Level.JUDGED, lag, (group,)
        for journal in lag.journals:
            yield Level.PARTITION, journal, (group, journal.status.topic, str(journal.status.partition))
            yield Level.JOURNAL, journal, (group, journal.journal)
        for name, opened in lag.totals.open_transactions(now_ms).items():
            yield Level.TRANSACTIONS, opened, (group, name)
        for name, gap_bytes in lag.totals.gap_bytes.items():
            accepted = lag.totals.accepted_gap_bytes.get(name, 0)
            yield Level.GAPS, gap_bytes - accepted, (group, name, "no")
            yield Level.GAPS, accepted, (group, name, "yes")


def age_json(age: Age) -> dict[str, int | None]:
    """Return the bounds of an age."""
    return {"least_ms": age.least_ms, "most_ms": age.most_ms}


def transaction_json(opened: OpenSince, age: Age | None) -> dict[str, Any]:
    """Return an open transaction."""
    return {
        "journal": opened.journal,
        "producer": opened.producer,
        "begin": opened.begin,
        "held_bytes": opened.held_bytes,
        "age": age_json(age or Age()),
    }


def age_text(least_ms: int | None, most_ms: int | None) -> str:
    """Return the bounds of an age as text. A bound of 0 is ignored.

    >>> age_text(0, 0), age_text(0, None), age_text(65_000, None), age_text(65_000, 90_000), age_text(0, 9000)
    ('-', '-', '>65s', '65s-90s', '<9s')
    """
    least, most = duration_text(least_ms or None), duration_text(most_ms or None)
    if most in (least, "-"):
        return least if least == most else f">{least}"
    return f"<{most}" if least == "-" else f"{least}-{most}"


def duration_text(milliseconds: int | None) -> str:
    """Return a duration in its largest fitting unit.

    >>> duration_text(1500), duration_text(600_000), duration_text(7_300_000), duration_text(None)
    ('2s', '10m', '2.0h', '-')
    """
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.0f}s"
    if seconds < 7200:
        return f"{seconds / 60:.0f}m"
    return f"{seconds / 3600:.1f}h"
