"""The table of metrics: unique names, and the page that is generated from it."""

from __future__ import annotations

import doctest

from gazette_spark.lag import metrics
from gazette_spark.lag.metrics import METRICS
from tools.lag_metrics_page import PAGE, with_table


def test_the_page_has_the_table() -> None:
    """``docs/reference/burrow.md`` is what ``make generated`` writes."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_names_occur_once_and_say_whose_they_are() -> None:
    names = [metric.name for metric in METRICS if metric.name]
    assert len(set(names)) == len(names)
    assert all(name.startswith(("burrow_kafka_", "gazette_lag_")) for name in names)
    assert all(metric.name.endswith("_total") for metric in METRICS if metric.is_counter)
    assert all(metric.help.endswith(".") for metric in METRICS)


def test_examples_are_true() -> None:
    results = doctest.testmod(metrics)
    assert results.attempted
    assert not results.failed
