"""The monitor as Prometheus metrics: Burrow's names and labels, and ``gazette_lag_`` metrics.

As in Burrow, verdicts are their numbers, and a partition's verdict and offset are shown once its window is
full. Metrics beyond Burrow's begin with ``gazette_lag_``. An unknown value is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gazette_spark.lag.estimates import Age
from gazette_spark.lag.monitor import GroupLag, Monitor

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
    "gazette_lag_last_commit_age_seconds": (GROUP, "Since a group last committed"),
    "gazette_lag_feed_up": (GROUP, "Whether what a group left could be read at the last look"),
}
"""Name → labels and help."""


class _Gauges:
    def __init__(self) -> None:
        self._families = {
            name: GaugeMetricFamily(name, text, labels=labels) for name, (labels, text) in GAUGES.items()
        }

    def set(self, name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            self._families[name].add_metric(labels, value)

    def __iter__(self) -> Iterator[GaugeMetricFamily]:
        return iter(self._families.values())


class _MonitorCollector(Collector):
    def __init__(self, monitor: Monitor, now_ms: int) -> None:
        self._monitor = monitor
        self._now_ms = now_ms

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauges = _Gauges()
        monitor = self._monitor
        with monitor.lock:
            for topic in monitor.history.fetch_topics(monitor.cluster) or ():
                for at in range(monitor.topics.count(topic)):
                    head = monitor.history.newest_head(monitor.cluster, topic, at)
                    gauges.set("burrow_kafka_topic_partition_offset", head, monitor.cluster, topic, str(at))
        for group in monitor.groups():
            _add_group(gauges, monitor.cluster, group, monitor.lag(group, self._now_ms), self._now_ms)
        yield from gauges


def exposition(monitor: Monitor, now_ms: int) -> bytes:
    """Return everything in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MonitorCollector(monitor, now_ms))
    return generate_latest(registry)


def _add_group(gauges: _Gauges, cluster: str, group: str, lag: GroupLag, now_ms: int) -> None:
    whose = (cluster, group)
    gauges.set("gazette_lag_feed_up", float(lag.failure is None), *whose)
    if lag.verdict.status == 0:
        return
    gauges.set("burrow_kafka_consumer_lag_total", lag.verdict.total_lag, *whose)
    gauges.set("burrow_kafka_consumer_status", lag.verdict.status, *whose)
    if lag.last_commit_ms is not None:
        age_s = max(0, now_ms - lag.last_commit_ms) / 1000
        gauges.set("gazette_lag_last_commit_age_seconds", age_s, *whose)
    _add_age(gauges, "gazette_lag_freshness_seconds", lag.freshness, whose)
    for journal in lag.journals:
        status = journal.status
        place = (*whose, status.topic, str(status.partition))
        name = (*whose, journal.journal)
        gauges.set("burrow_kafka_consumer_partition_lag", status.current_lag, *place)
        gauges.set("gazette_lag_bytes", status.current_lag, *name)
        gauges.set("gazette_lag_records", journal.records, *name)
        _add_age(gauges, "gazette_lag_age_seconds", journal.age, name)
        gauges.set("gazette_lag_catch_up_seconds", _seconds(journal.catch_up_ms), *name)
        gauges.set("gazette_lag_loss_in_seconds", _seconds(journal.loss_in_ms), *name)
        if status.complete == 1.0 and status.end is not None:
            gauges.set("burrow_kafka_topic_partition_status", status.status, *place)
            gauges.set("burrow_kafka_consumer_current_offset", status.end.offset, *place)


def _add_age(gauges: _Gauges, name: str, age: Age, labels: tuple[str, ...]) -> None:
    gauges.set(name, _seconds(age.least_ms), *labels, "least")
    gauges.set(name, _seconds(age.most_ms), *labels, "most")


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
