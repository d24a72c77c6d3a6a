"""The monitor as Prometheus metrics: Burrow's names and labels, and ``gazette_lag_`` metrics.

As in Burrow, verdicts are their numbers, and a partition's verdict and offset are shown once its window is
full. Metrics beyond Burrow's begin with ``gazette_lag_``. An unknown value is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gazette_spark.lag.estimates import Age
from gazette_spark.lag.monitor import Figures, GroupLag, Monitor

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

GROUP = ("cluster", "consumer_group")
PARTITION = (*GROUP, "topic", "partition")
JOURNAL = (*GROUP, "journal")
TOPIC = ("cluster", "topic", "partition")

GAUGES = {
    "burrow_kafka_consumer_lag_total": (GROUP, "Sum of a group's lag in bytes"),
    "burrow_kafka_consumer_status": (GROUP, "Verdict on a group: 0 NOTFOUND, 1 OK, 2 WARN, 3 ERR"),
    "burrow_kafka_consumer_partition_lag": (PARTITION, "Lag of a group in one journal, in bytes"),
    "burrow_kafka_consumer_current_offset": (PARTITION, "Newest offset a group committed"),
    "burrow_kafka_topic_partition_status": (
        PARTITION,
        "Verdict on a journal: 1 OK, 2 WARN, 4 STOP, 5 STALL, 6 REWIND",
    ),
    "burrow_kafka_topic_partition_offset": (TOPIC, "Write head of a journal"),
    "gazette_lag_bytes": (JOURNAL, "Lag of a group in one journal"),
    "gazette_lag_records": (JOURNAL, "Unread records of a group in one journal, where they were counted"),
    "gazette_lag_age_seconds": ((*JOURNAL, "bound"), "Age of the oldest byte not read: at least, at most"),
    "gazette_lag_catch_up_seconds": (JOURNAL, "Until a group is level, at the present speeds"),
    "gazette_lag_loss_in_seconds": (JOURNAL, "Until unread bytes may be pruned, at the present speed"),
    "gazette_lag_freshness_seconds": (
        (*GROUP, "bound"),
        "Age of the oldest byte a table lacks: at least, at most",
    ),
    "gazette_lag_read_bytes_per_second": (GROUP, "How fast a group reads, over the last minutes"),
    "gazette_lag_append_bytes_per_second": (GROUP, "How fast a group's journals grow, over the last minutes"),
    "gazette_lag_open_transactions": (JOURNAL, "Transactions that were open where a group's commits end"),
    "gazette_lag_open_transactions_unknown_journals": (
        GROUP,
        "Journals whose open transactions could not be read at the last look",
    ),
    "gazette_lag_open_transaction_age_seconds": (JOURNAL, "Age of the oldest of them, at least"),
    "gazette_lag_open_transaction_bytes": (JOURNAL, "Bytes since its begin, which it needs until it ends"),
    "gazette_lag_last_commit_age_seconds": (GROUP, "Since a group last committed"),
    "gazette_lag_feed_up": (
        GROUP,
        "Whether a group's commits, and write heads, could be read at the last look; else values are old",
    ),
    "gazette_lag_unlisted_journals": (GROUP, "Journals a group has read whose write heads are not known"),
    "gazette_lag_recreated_journals": (
        GROUP,
        "Journals that were deleted and created again since a table read them",
    ),
    "gazette_lag_heads_up": (("cluster",), "Whether all write heads could be read at the last look"),
    "gazette_lag_heads_read_timestamp_seconds": (("cluster",), "When all write heads were read last"),
    "gazette_lag_feed_read_timestamp_seconds": (("cluster", "feed"), "When a feed was read last"),
}
"""Name → labels and help."""

COUNTERS = {
    "gazette_lag_gap_bytes": (
        (*JOURNAL, "accepted"),
        "Missing bytes that batches skipped, as a table's ledger says; accepted by an operator or not",
    ),
    "gazette_lag_trimmed_bytes": (
        GROUP,
        "Bytes of batches whose rows were in the table before, and were dropped, as its ledger says",
    ),
    "gazette_lag_skipped_bytes": (GROUP, "Missing bytes that batches skipped, as a query's progress says"),
    "gazette_lag_malformed_records": (GROUP, "Malformed records, of a query that counts them"),
}
"""Name, without its end ``_total``, → labels and help."""

Family = GaugeMetricFamily | CounterMetricFamily


class _Families:
    def __init__(self) -> None:
        self._families: dict[str, Family] = {
            name: GaugeMetricFamily(name, text, labels=labels) for name, (labels, text) in GAUGES.items()
        }
        for name, (labels, text) in COUNTERS.items():
            self._families[name] = CounterMetricFamily(name, text, labels=labels)

    def set(self, name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            self._families[name].add_metric(labels, value)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())


class _MonitorCollector(Collector):
    def __init__(self, monitor: Monitor, now_ms: int) -> None:
        self._monitor = monitor
        self._now_ms = now_ms

    def collect(self) -> Iterator[Family]:
        gauges = _Families()
        monitor = self._monitor
        gauges.set("gazette_lag_heads_up", float(monitor.heads_failure is None), monitor.cluster)
        read_s = _seconds(monitor.heads_ms)
        gauges.set("gazette_lag_heads_read_timestamp_seconds", read_s, monitor.cluster)
        for feed in monitor.feeds():
            read_s = _seconds(feed.read_ms)
            gauges.set("gazette_lag_feed_read_timestamp_seconds", read_s, monitor.cluster, feed.name)
        with monitor.lock:
            for topic in monitor.history.fetch_topics(monitor.cluster) or ():
                for at in range(monitor.topics.count(topic)):
                    head = monitor.history.newest_head(monitor.cluster, topic, at)
                    gauges.set("burrow_kafka_topic_partition_offset", head, monitor.cluster, topic, str(at))
        for group in monitor.groups():
            _add_group(gauges, monitor.cluster, group, monitor.lag(group, self._now_ms), self._now_ms)
            _add_figures(gauges, (monitor.cluster, group), monitor.figures(group), self._now_ms)
        yield from gauges


def exposition(monitor: Monitor, now_ms: int) -> bytes:
    """Return everything in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MonitorCollector(monitor, now_ms))
    return generate_latest(registry)


def _add_figures(families: _Families, whose: tuple[str, str], figures: Figures, now_ms: int) -> None:
    for journal, opened in figures.opened().items():
        families.set("gazette_lag_open_transactions", opened.count, *whose, journal)
        if (oldest := opened.oldest) is None:
            continue
        age_s = max(0, now_ms - oldest.since_ms) / 1000
        families.set("gazette_lag_open_transaction_age_seconds", age_s, *whose, journal)
        families.set("gazette_lag_open_transaction_bytes", oldest.held_bytes, *whose, journal)
    if figures.open_counts or figures.open_unknown:
        unknown = len(figures.open_unknown)
        families.set("gazette_lag_open_transactions_unknown_journals", unknown, *whose)
    for journal, total in figures.gap_bytes.items():
        accepted = figures.accepted_gap_bytes.get(journal, 0)
        families.set("gazette_lag_gap_bytes", total - accepted, *whose, journal, "no")
        families.set("gazette_lag_gap_bytes", accepted, *whose, journal, "yes")
    if figures.trimmed_bytes:
        families.set("gazette_lag_trimmed_bytes", figures.trimmed_bytes, *whose)
    if figures.skipped_bytes:
        families.set("gazette_lag_skipped_bytes", figures.skipped_bytes, *whose)
    families.set("gazette_lag_malformed_records", figures.malformed, *whose)


def _add_group(gauges: _Families, cluster: str, group: str, lag: GroupLag, now_ms: int) -> None:
    whose = (cluster, group)
    gauges.set("gazette_lag_feed_up", float(lag.failure is None), *whose)
    if lag.verdict.status == 0:
        return
    gauges.set("gazette_lag_unlisted_journals", len(lag.unlisted), *whose)
    gauges.set("gazette_lag_recreated_journals", len(lag.recreated), *whose)
    gauges.set("burrow_kafka_consumer_lag_total", lag.lag_bytes, *whose)
    gauges.set("burrow_kafka_consumer_status", lag.verdict.status, *whose)
    gauges.set("gazette_lag_read_bytes_per_second", lag.read_bytes_per_s, *whose)
    gauges.set("gazette_lag_append_bytes_per_second", lag.append_bytes_per_s, *whose)
    if lag.last_commit_ms is not None:
        age_s = max(0, now_ms - lag.last_commit_ms) / 1000
        gauges.set("gazette_lag_last_commit_age_seconds", age_s, *whose)
    _add_age(gauges, "gazette_lag_freshness_seconds", lag.freshness, whose)
    for journal in lag.journals:
        status = journal.status
        place = (*whose, status.topic, str(status.partition))
        name = (*whose, journal.journal)
        gauges.set("burrow_kafka_consumer_partition_lag", journal.lag_bytes, *place)
        gauges.set("gazette_lag_bytes", journal.lag_bytes, *name)
        gauges.set("gazette_lag_records", journal.records, *name)
        _add_age(gauges, "gazette_lag_age_seconds", journal.age, name)
        gauges.set("gazette_lag_catch_up_seconds", _seconds(journal.catch_up_ms), *name)
        gauges.set("gazette_lag_loss_in_seconds", _seconds(journal.loss_in_ms), *name)
        if status.complete == 1.0 and status.end is not None:
            gauges.set("burrow_kafka_topic_partition_status", status.status, *place)
            gauges.set("burrow_kafka_consumer_current_offset", status.end.offset, *place)


def _add_age(gauges: _Families, name: str, age: Age, labels: tuple[str, ...]) -> None:
    gauges.set(name, _seconds(age.least_ms), *labels, "least")
    gauges.set(name, _seconds(age.most_ms), *labels, "most")


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
