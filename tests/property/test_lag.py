"""Verdicts and storage follow Burrow's documented rules, on random windows and requests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.lag.burrow_json import group_json, parse_recording, shortest
from gazette_spark.lag.columns import WindowColumns, evaluate_columns
from gazette_spark.lag.history import History, HistoryOptions, windows_of
from gazette_spark.lag.rules import (
    OffsetCommit,
    PartitionWindow,
    Thresholds,
    evaluate_group,
    evaluate_partition,
    float32,
)
from tests.oracles import burrow
from tests.rig.examples import examples

NOW_S = 1_000

small = st.integers(0, 6)
commits = st.builds(
    OffsetCommit,
    offset=small,
    timestamp_ms=st.integers(-6, 1).map(lambda halves: NOW_S * 1000 + 500 * halves),
    lag=st.none() | small,
)
slots = st.tuples(st.integers(0, 3), st.lists(commits, max_size=7)).map(
    lambda pair: (None,) * pair[0] + tuple(pair[1])
)
windows = st.builds(
    PartitionWindow,
    topic=st.sampled_from(["a", "b"]),
    partition=small,
    current_lag=small,
    broker_offsets=st.lists(small, max_size=4),
    offset_commits=slots,
)
thresholds = st.tuples(
    st.integers(0, 3), st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 0.6, 2 / 3, 0.7, 0.75, 0.8, 0.9, 1.0])
)
"""Allowed lag and minimum completeness, before rounding to 32 bits."""
times_ms = st.integers(-2, 16).map(lambda quarters: NOW_S * 1000 + 250 * quarters)
"""Times in milliseconds, in large steps here and below so that two spans are often equal."""


def plain(commit: OffsetCommit | None) -> burrow.Commit | None:
    if commit is None:
        return None
    return burrow.Commit(commit.offset, commit.timestamp_ms, commit.observed_ms, commit.lag)


def expected(
    window: PartitionWindow, now_ms: int, wanted: tuple[int, float]
) -> tuple[str, float, burrow.Commit | None, burrow.Commit | None]:
    status, complete, start, end = burrow.partition_verdict(
        [plain(slot) for slot in window.offset_commits],
        list(window.broker_offsets),
        window.current_lag,
        now_s=now_ms // 1000,
        allowed_lag=wanted[0],
        minimum_complete=wanted[1],
    )
    return status, float(complete), start, end


@settings(max_examples=examples(150))
@given(windows, times_ms, thresholds)
def test_partitions_are_judged_as_the_words_say(
    window: PartitionWindow, now_ms: int, wanted: tuple[int, float]
) -> None:
    got = evaluate_partition(window, now_ms, Thresholds(*wanted))
    assert (got.status.name, got.complete, plain(got.start), plain(got.end)) == expected(
        window, now_ms, wanted
    )


@given(st.lists(windows, max_size=6), times_ms, thresholds)
def test_groups_are_judged_as_the_words_say(
    parts: list[PartitionWindow], now_ms: int, wanted: tuple[int, float]
) -> None:
    got = evaluate_group("c", "g", parts, now_ms, Thresholds(*wanted))
    verdicts = [expected(part, now_ms, wanted) for part in parts]
    figures = burrow.group_verdict(
        [(status, share, part.current_lag) for (status, share, *_), part in zip(verdicts, parts, strict=True)]
    )
    assert {
        "status": got.status.name,
        "complete": got.complete,
        "maxlag": None if got.maxlag is None else [each is got.maxlag for each in got.partitions].index(True),
        "totallag": got.total_lag,
        "partition_count": got.partition_count,
    } == figures


@given(st.lists(windows, max_size=4), times_ms, thresholds)
def test_a_recording_has_the_verdict_of_what_was_recorded(
    parts: list[PartitionWindow], now_ms: int, wanted: tuple[int, float]
) -> None:
    recording = {
        "now_ms": now_ms,
        "allowed_lag": wanted[0],
        "minimum_complete": wanted[1],
        "cluster": "c",
        "group": "g",
        "partitions": [
            {
                "topic": part.topic,
                "partition": part.partition,
                "current_lag": part.current_lag,
                "broker_offsets": list(part.broker_offsets),
                "offsets": [
                    slot
                    and {
                        "offset": slot.offset,
                        "timestamp": slot.timestamp_ms,
                        "observedAt": slot.observed_ms,
                        "lag": slot.lag,
                    }
                    for slot in part.offset_commits
                ],
            }
            for part in parts
        ],
    }
    read = parse_recording(json.dumps(recording))
    assert evaluate_group(read.cluster, read.group, read.windows, read.now_ms, read.thresholds) == (
        evaluate_group("c", "g", parts, now_ms, Thresholds(*wanted))
    )


SLOTS = 10


def padded(window: PartitionWindow) -> PartitionWindow:
    """Return a window of a ring of ``SLOTS``, whose lag follows from its commits and heads."""
    unused = (None,) * (SLOTS - len(window.offset_commits))
    lag = window.current_lag if any(window.offset_commits) else 0
    return replace(window, offset_commits=unused + tuple(window.offset_commits), current_lag=lag)


def columns_of(parts: list[PartitionWindow]) -> WindowColumns:
    kept = [[slot for slot in part.offset_commits if slot is not None] for part in parts]
    rows = [
        (0, each.offset, each.timestamp_ms, each.observed_ms, -1 if each.lag is None else each.lag)
        for ring in kept
        for each in ring
    ]
    newest = [
        ring[-1].offset + part.current_lag if ring else 0 for ring, part in zip(kept, parts, strict=True)
    ]
    return WindowColumns(
        [part.topic for part in parts],
        np.array([part.partition for part in parts], np.int64),
        [part.owner for part in parts],
        [part.client_id for part in parts],
        SLOTS,
        np.ones(len(parts), np.bool_),
        np.array([len(ring) for ring in kept], np.int64),
        np.array(rows, np.int64).reshape(-1, 5),
        np.array(newest, np.int64),
        np.array([min(part.broker_offsets, default=-1) for part in parts], np.int64),
    )


@settings(max_examples=examples(150))
@given(st.lists(windows.map(padded), max_size=6), times_ms, thresholds)
def test_columns_are_judged_as_windows_are(
    parts: list[PartitionWindow], now_ms: int, wanted: tuple[int, float]
) -> None:
    got = evaluate_columns("c", "g", columns_of(parts), now_ms, Thresholds(*wanted))
    one_by_one = evaluate_group("c", "g", parts, now_ms, Thresholds(*wanted))
    assert replace(got, partitions=tuple(got.partitions)) == one_by_one
    for show_all in (False, True):
        assert group_json(got, show_all=show_all) == group_json(one_by_one, show_all=show_all)


@given(st.integers(1, 5_000), st.integers(1, 5_000))
def test_shares_are_printed_short_and_lose_nothing(part: int, whole: int) -> None:
    """The printed text parses to the same 32-bit float, and has no more digits than NumPy needs."""
    share = np.float32(min(part, whole)) / np.float32(whole)
    assert float32(shortest(float(share))) == float(share)
    assert shortest(float(share)) == float(str(share))


heads = st.tuples(st.just("head"), st.integers(0, 2), st.integers(3, 4), st.integers(0, 40))
added = st.tuples(
    st.just("commit"),
    st.sampled_from(["g", "g", "h"]),
    st.sampled_from([0, 0, 0, 0, 1, 2, -1, 4]),
    st.integers(0, 40),
    st.integers(0, 8),
    st.integers(0, 8).map(lambda halves: 500 * halves),
)
fetches = st.tuples(st.just("fetch"), st.sampled_from(["g", "h"]))
steps = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 500, 500, 1_000, 2_000, -500]),
        st.one_of(heads, added, added, added, fetches),
    ),
    min_size=8,
    max_size=40,
)


@settings(max_examples=examples(80))
@given(st.integers(1, 4), st.integers(0, 2), st.sampled_from([2, 3, 1_000]), steps)
def test_storage_keeps_what_the_words_say(
    slots: int, min_distance_s: int, expire_s: int, requests: list[tuple[int, tuple[Any, ...]]]
) -> None:
    history = History(HistoryOptions(slots, min_distance_s, expire_s), ["c"])
    storage = burrow.Storage(slots, min_distance_s, expire_s)
    now_ms = NOW_S * 1000
    known = [(0, ("head", at, 3, 20)) for at in range(2)]
    for step_ms, request in [*known, *requests, (0, ("fetch", "g")), (0, ("fetch", "h"))]:
        now_ms += step_ms
        match request:
            case ("head", partition, count, offset):
                history.add_broker_offset("c", "t", partition, offset, partition_count=count)
                storage.add_head(partition, count, offset)
            case ("commit", group, partition, offset, order, age_ms):
                timestamp_ms = now_ms - age_ms
                history.add_consumer_offset(
                    "c", group, "t", partition, offset, order=order, timestamp_ms=timestamp_ms, now_ms=now_ms
                )
                commit = burrow.Commit(offset, timestamp_ms, order=order)
                storage.add_commit(group, partition, commit, now_ms // 1000)
            case ("fetch", group):
                got = history.fetch_consumer("c", group, now_ms=now_ms)
                wanted = storage.fetch(group, now_ms // 1000)
                assert stored(got) == shown(wanted)
                columns = history.fetch_columns("c", group, now_ms=now_ms)
                assert (columns is None) == (got is None)
                if columns is not None:
                    judged = evaluate_columns("c", group, columns, now_ms, Thresholds())
                    one_by_one = evaluate_group("c", group, windows_of(got), now_ms, Thresholds())
                    assert replace(judged, partitions=tuple(judged.partitions)) == one_by_one


def stored(topics: dict[str, list[PartitionWindow]] | None) -> list[Any] | None:
    if topics is None:
        return None
    return [
        ([plain(slot) for slot in part.offset_commits], list(part.broker_offsets), part.current_lag)
        for part in topics["t"]
    ]


def shown(parts: list[Any] | None) -> list[Any] | None:
    """Return the oracle's commits without their orders, which responses never show."""
    if parts is None:
        return None
    return [([slot and unordered(slot) for slot in window], heads, lag) for window, heads, lag in parts]


def unordered(commit: burrow.Commit) -> burrow.Commit:
    return burrow.Commit(commit.offset, commit.timestamp, commit.observed, commit.lag)


@given(st.lists(windows, max_size=5), times_ms, thresholds)
def test_bad_only_drops_nothing_but_what_is_fine(
    parts: list[PartitionWindow], now_ms: int, wanted: tuple[int, float]
) -> None:
    status = evaluate_group("c", "g", parts, now_ms, Thresholds(*wanted))
    everything, bad = group_json(status, show_all=True), group_json(status, show_all=False)
    assert bad.pop("partitions") == [each for each in everything.pop("partitions") if each["status"] != "OK"]
    assert bad == everything


@given(
    st.lists(st.tuples(small, small, st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(0, 2),
)
@settings(max_examples=examples(200))
def test_a_history_read_back_is_that_of_who_watched(
    course: list[tuple[int, int, int]], intervals: int, min_distance_s: int
) -> None:
    """A window that is read back from commits equals that of a monitor which saw the same heads live."""
    options = HistoryOptions(intervals=intervals, min_distance_s=min_distance_s)
    watched, read_back = History(options, ["c"]), History(options, ["c"])
    read_back.add_broker_offset("c", "t", 0, 99, partition_count=1, timestamp_ms=NOW_S * 1000)
    at_s = NOW_S - 100
    for order, (offset, head, passed_s) in enumerate(course):
        at_s += passed_s
        watched.add_broker_offset("c", "t", 0, head, partition_count=1, timestamp_ms=at_s * 1000)
        watched.add_consumer_offset(
            "c", "g", "t", 0, offset, order=order, timestamp_ms=at_s * 1000, now_ms=NOW_S * 1000
        )
        read_back.add_past_offset(
            "c", "g", "t", 0, offset, order=order, timestamp_ms=at_s * 1000, now_ms=NOW_S * 1000, head=head
        )
    windows = [
        (each.fetch_consumer("c", "g", now_ms=NOW_S * 1000) or {})["t"][0] for each in (watched, read_back)
    ]
    assert windows[0].offset_commits == windows[1].offset_commits
