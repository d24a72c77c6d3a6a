"""The demo's events are JSON lines with unique ids, sent at the requested rate."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from gazette_spark.demo.events import MAX_PER_APPEND, count_due, make_events

NOW_MS = 1_780_000_000_123


@pytest.mark.parametrize("writer", range(4), ids=["orders", "payments", "page-views", "telemetry"])
def test_lines_say_what_the_columns_say(writer: int) -> None:
    batch = make_events(Random(7), writer, NOW_MS, 500)
    events = [json.loads(line) for line in batch.content.splitlines()]
    assert [event["id"] for event in events] == batch.ids.tolist()
    assert [round(event["amount"] * 100) for event in events] == batch.cents.tolist()
    assert batch.content.endswith(b"\n")
    assert {event["ts"] for event in events} == {"2026-05-28T20:26:40.123Z"}


def test_ids_are_distinct_across_writers_and_moments() -> None:
    """The bits of the writer and of the millisecond do not overlap."""
    batches = [make_events(Random(1), writer, NOW_MS + ms, 1000) for writer in range(4) for ms in range(3)]
    ids = np.concatenate([batch.ids for batch in batches])
    assert len(np.unique(ids)) == 12_000
    assert (
        make_events(Random(1), 0, NOW_MS, MAX_PER_APPEND).ids[-1]
        < make_events(Random(1), 1, NOW_MS, 1).ids[0]
    )


def test_an_id_does_not_survive_floating_point() -> None:
    """The ids need more than 53 bits, so a reader that goes through floating point cannot pass."""
    ids = make_events(Random(1), 3, NOW_MS, 3).ids
    assert ids.astype(np.float64).astype(np.int64).tolist() != ids.tolist()


@pytest.mark.parametrize("count", [0, MAX_PER_APPEND + 1], ids=["none", "more than the counter holds"])
def test_a_count_that_does_not_fit_is_refused(count: int) -> None:
    """Ids would repeat if a count did not fit."""
    with pytest.raises(ValueError, match="do not fit"):
        make_events(Random(1), 0, NOW_MS, count)


@pytest.mark.parametrize(
    ("elapsed_s", "sent", "expected"),
    [
        pytest.param(1.0, 0, 100, id="on time"),
        pytest.param(1.0, 100, 0, id="nothing due"),
        pytest.param(5.0, 100, 400, id="catches up after a hold-up"),
        pytest.param(1.0, 200, 0, id="ahead"),
        pytest.param(1e9, 0, MAX_PER_APPEND, id="no more than one append holds"),
    ],
)
def test_the_rate_holds_on_average(elapsed_s: float, sent: int, expected: int) -> None:
    """Events that are due make up for those that were late."""
    assert count_due(100.0, elapsed_s, sent) == expected
