"""A progress report shows how far each journal was read and its head, whatever else it contains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gazette_spark.errors import InputError, OffsetError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.query_progress import JournalTransactions, OpenTransaction, ProgressLag, query_lag

A, B = "shop/orders", "shop/returns"


def source(end: object, latest: object = None) -> dict[str, Any]:
    return {
        "description": "PythonMicroBatchStreamWithAdmissionControl@1b2c",
        "startOffset": None,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": 3,
        "metrics": {},
    }


def progress(*sources: dict[str, Any], **fields: Any) -> dict[str, Any]:
    made = {"id": "4fa", "runId": "9c1", "name": None, "timestamp": "2026-11-21T10:00:00.000Z", "batchId": 7}
    return made | {"sources": list(sources)} | fields


def at(**kept: Any) -> dict[str, Any]:
    return JournalOffsets({A: 100, B: 20}, **kept).to_dict()


HEADS = JournalOffsets({A: 160, B: 20}).to_dict()


def test_spark_4_0_names_the_end_twice_and_the_heads_are_in_it() -> None:
    """The position includes the heads. A journal without a recorded head has no lag."""
    end = at(revision=5, heads={A: 160})
    assert query_lag(progress(source(end, end))).by_journal() == {A: 60, B: 0}


@pytest.mark.parametrize("as_text", [False, True], ids=["parsed", "text"])
def test_lag_is_what_lies_between_end_and_head(as_text: bool) -> None:
    value = progress(source(at(), HEADS), name="orders")
    lag = query_lag(json.dumps(value) if as_text else value)
    assert (lag.query_id, lag.run_id, lag.name, lag.batch_id) == ("4fa", "9c1", "orders", 7)
    assert lag.timestamp == "2026-11-21T10:00:00.000Z"
    assert lag.journals == (ProgressLag(A, 100, 160), ProgressLag(B, 20, 20))
    assert lag.by_journal() == {A: 60, B: 0}
    assert (lag.total_bytes, lag.unseen) == (60, 0)
    assert lag.worst == ProgressLag(A, 100, 160)


@pytest.mark.parametrize(
    ("latest", "lags"),
    [
        pytest.param(None, {A: None, B: None}, id="no_heads"),
        pytest.param("null", {A: None, B: None}, id="null_as_text"),
        pytest.param(JournalOffsets({A: 100}).to_dict(), {A: 0, B: None}, id="one_head"),
        pytest.param(JournalOffsets({A: 90, B: 21}).to_dict(), {A: 0, B: 1}, id="head_below_the_end"),
        pytest.param(JournalOffsets({A: 101, "x/y": 9}).to_dict(), {A: 1, B: None}, id="another_journal"),
    ],
)
def test_a_head_that_was_not_seen_is_no_zero(latest: object, lags: dict[str, int | None]) -> None:
    lag = query_lag(progress(source(at(), latest)))
    assert lag.by_journal() == lags
    assert lag.total_bytes == sum(each or 0 for each in lags.values())
    assert lag.unseen == list(lags.values()).count(None)


def test_all_forms_of_positions_count() -> None:
    seen = at(revision=9, heads={A: 160})
    for end in (at(), seen, json.dumps(seen), at(position="pinned")):
        assert query_lag(progress(source(end, HEADS))).by_journal() == {A: 60, B: 0}


def test_other_sources_are_left_out() -> None:
    kafka, rate, file = {"topic": {"0": 5}}, 17, "not json {"
    nearer = JournalOffsets({A: 150}).to_dict()
    lag = query_lag(
        progress(source(kafka), source(at(), HEADS), source(rate), source(file), source(nearer, HEADS))
    )
    assert [(each.source, each.journal, each.lag_bytes) for each in lag.journals] == [
        (1, A, 60),
        (1, B, 0),
        (4, A, 10),
    ]
    assert lag.by_journal() == {A: 60, B: 0}
    assert query_lag(progress(source(kafka), source(None))).journals == ()
    assert query_lag(progress()).worst is None


@pytest.mark.parametrize(
    "value",
    ["", "[]", "7", "{}", '{"batchId":1}', '{"batchId":"1","sources":[]}', '{"batchId":1,"sources":{}}'],
)
def test_what_is_no_progress_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="a progress is a JSON object"):
        query_lag(value)


def test_a_position_of_the_future_is_refused() -> None:
    """A lag that is silently missing would look like no lag."""
    with pytest.raises(OffsetError, match="later release"):
        query_lag(progress(source({"format_version": 9, "journals": {}})))


def test_bytes_that_a_batch_skips_are_counted_once() -> None:
    """A position keeps its gaps until it moves, so those at the batch's start do not count again."""
    end = JournalOffsets({A: 100, B: 20}, gaps={A: ((10, 20), (90, 95)), B: ((0, 3),)}).to_dict()
    first = source(end, HEADS)
    assert query_lag(progress(first)).skipped_bytes == 18
    later = first | {"startOffset": JournalOffsets({A: 15, B: 20}).to_dict()}
    assert query_lag(progress(later)).skipped_bytes == 10
    assert query_lag(progress(later, first)).skipped_bytes == 28
    assert query_lag(progress(source(at(), HEADS))).skipped_bytes == 0


def test_open_transactions_are_those_the_source_names() -> None:
    opened = {
        A: {
            "at": 100,
            "count": 12,
            "oldest": {
                "90": {"producer": "0102030405ff", "newest_ms": 7000},
                "9": {"producer": "010203040506", "newest_ms": 5000},
            },
        }
    }
    latest = HEADS | {"transactions": opened}
    lag = query_lag(progress(source({"topic": {"0": 5}}, latest), source(at(), latest)))
    assert lag.by_journal() == {A: 60, B: 0}
    older, newer = OpenTransaction("010203040506", 9, 5000), OpenTransaction("0102030405ff", 90, 7000)
    assert lag.transactions == (JournalTransactions(A, 100, 12, (older, newer)),)
    assert lag.transactions[0].held_bytes == 91
    assert query_lag(progress(source(at(), HEADS))).transactions == ()


@pytest.mark.parametrize(
    ("observed", "malformed"),
    [
        pytest.param(None, None, id="nothing"),
        pytest.param({}, None, id="none"),
        pytest.param({"gazette": {"records": 5, "malformed": 2}}, 2, id="one"),
        pytest.param({"gazette": {"malformed": 2}, "gazette b": {"malformed": 1}}, 3, id="two_sources"),
        pytest.param({"gazette": {"records": None, "malformed": None}}, 0, id="of_no_rows"),
        pytest.param({"mine": {"malformed": 9}}, None, id="of_the_user"),
        pytest.param({"gazette": {"rows": 9}}, None, id="of_another_kind"),
    ],
)
def test_malformed_records_are_counted_if_the_query_observes_them(
    observed: object, malformed: int | None
) -> None:
    """None differs from 0: a query that does not count them may have any number."""
    assert query_lag(progress(source(at(), HEADS), observedMetrics=observed)).malformed == malformed
