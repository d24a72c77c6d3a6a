"""Burrow's JSON: names, their order, words and numbers."""

from __future__ import annotations

import doctest
import json

from gazette_spark.lag import burrow_json
from gazette_spark.lag.burrow_json import commit_json, group_json, topics_json
from gazette_spark.lag.rules import OffsetCommit, PartitionWindow, Thresholds, evaluate_group

T0_MS = 1_000_000_000

WINDOWS = [
    PartitionWindow(
        "shop/",
        0,
        30,
        [70],
        [None, OffsetCommit(10, T0_MS, T0_MS, None), OffsetCommit(40, T0_MS + 1500, T0_MS + 1000, 30)],
        "host-1",
        "driver",
    ),
    PartitionWindow("shop/", 1, 0, [5], [None, None, OffsetCommit(5, T0_MS, T0_MS, 0)]),
]

PARTITION = (
    '{"topic": "shop/", "partition": 0, "owner": "host-1", "client_id": "driver", "status": "WARN", '
    '"start": {"offset": 10, "timestamp": 1000000000, "observedAt": 1000000000, "lag": null}, '
    '"end": {"offset": 40, "timestamp": 1000001500, "observedAt": 1000001000, "lag": 30}, '
    '"current_lag": 30, "complete": 0.6666667}'
)

FINE = (
    '{"topic": "shop/", "partition": 1, "owner": "", "client_id": "", "status": "OK", '
    '"start": {"offset": 5, "timestamp": 1000000000, "observedAt": 1000000000, "lag": 0}, '
    '"end": {"offset": 5, "timestamp": 1000000000, "observedAt": 1000000000, "lag": 0}, '
    '"current_lag": 0, "complete": 0.33333334}'
)


def test_a_group_is_shown_as_burrow_shows_it() -> None:
    """The fields are in Burrow's order. Partitions that are OK appear only if all were requested."""
    status = evaluate_group("local", "orders", WINDOWS, T0_MS + 1500, Thresholds())
    begin = '{"cluster": "local", "group": "orders", "status": "WARN", "complete": 0, "partitions": ['
    end = f'], "partition_count": 2, "maxlag": {PARTITION}, "totallag": 30}}'
    assert json.dumps(group_json(status, show_all=False)) == begin + PARTITION + end
    assert json.dumps(group_json(status, show_all=True)) == f"{begin}{PARTITION}, {FINE}{end}"


def test_a_group_that_is_not_known_has_no_partitions() -> None:
    status = evaluate_group("local", "nobody", None, T0_MS, Thresholds())
    assert json.dumps(group_json(status, show_all=False)) == (
        '{"cluster": "local", "group": "nobody", "status": "NOTFOUND", "complete": 1, "partitions": [], '
        '"partition_count": 0, "maxlag": null, "totallag": 0}'
    )


def test_unused_slots_are_null() -> None:
    assert commit_json(None) is None


def test_stored_windows_have_a_hyphen_where_burrow_has_one() -> None:
    """``current-lag`` in answers about storage, ``current_lag`` in verdicts."""
    (first, _) = topics_json({"shop/": WINDOWS})["shop/"]
    assert list(first) == ["offsets", "owner", "client_id", "current-lag"]
    assert first["offsets"][0] is None
    assert list(first["offsets"][1]) == ["offset", "timestamp", "observedAt", "lag"]


def test_the_examples_are_true() -> None:
    results = doctest.testmod(burrow_json)
    assert results.attempted
    assert not results.failed
