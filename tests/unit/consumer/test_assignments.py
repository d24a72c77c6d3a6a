"""Tests the order of an assignment's states, and when a failed shard is restarted."""

from __future__ import annotations

import pytest

from gazette_spark.consumer.assignments import MAX_ERROR_CHARS, Lifecycle, RestartPolicy, Restarts, error_text
from gazette_spark.errors import OptionError, TransactionOrderError
from gazette_spark.protocol import consumer_pb2 as pc

Code = pc.ReplicaStatus.Code


def test_a_shard_with_a_log_plays_it_first() -> None:
    life = Lifecycle()
    for code in (Code.BACKFILL, Code.STANDBY, Code.PRIMARY):
        life.become(code)
        assert life.status == pc.ReplicaStatus(code=code)


def test_a_shard_without_a_log_is_a_standby_at_once() -> None:
    """There is no log to play, so BACKFILL is skipped."""
    life = Lifecycle()
    with pytest.raises(TransactionOrderError, match="from IDLE to PRIMARY"):
        life.become(Code.PRIMARY)
    life.become(Code.STANDBY)
    with pytest.raises(TransactionOrderError, match="from STANDBY to BACKFILL"):
        life.become(Code.BACKFILL)


def test_failed_is_final() -> None:
    life = Lifecycle()
    life.fail(ValueError("first"))
    life.fail(ValueError("second"))
    assert life.status == pc.ReplicaStatus(code=Code.FAILED, errors=["first"])
    with pytest.raises(TransactionOrderError, match="from FAILED to STANDBY"):
        life.become(Code.STANDBY)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("short"), "short"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("x" * MAX_ERROR_CHARS), "x" * MAX_ERROR_CHARS),
        (ValueError("\ud800"), "?"),
    ],
    ids=["short", "without-text", "longest", "surrogate"],
)
def test_error_texts(error: BaseException, text: str) -> None:
    assert error_text(error) == text


def test_long_errors_are_cut() -> None:
    text = error_text(ValueError("é" * 5000))
    assert (len(text), text[:3], text[-15:]) == (MAX_ERROR_CHARS, "ééé", " ...[truncated]")


def test_delays_double_up_to_the_longest() -> None:
    policy = RestartPolicy()
    assert [policy.delay_s(failures) for failures in (1, 2, 3, 6, 7, 10_000)] == [1, 2, 4, 32, 60, 60]


def test_a_shard_that_ran_long_begins_again() -> None:
    """Only consecutive failures lengthen the delay; restarts are counted forever."""
    restarts = Restarts(RestartPolicy(), started_s=0)
    for at, delay_s in ((1, 1), (3, 2), (310, 1), (320, 2)):
        assert restarts.fail(at) == delay_s
        assert restarts.is_due
        assert f"again after {delay_s} s" in restarts.note()
        restarts.start(at + delay_s)
        assert not restarts.is_due
    assert (restarts.failures, restarts.total) == (2, 4)


@pytest.mark.parametrize(("first_s", "max_s", "stable_s"), [(0, 1, 1), (2, 1, 1), (1, 1, 0)])
def test_delays_that_make_no_sense(first_s: float, max_s: float, stable_s: float) -> None:
    """A delay of 0 would restart without a pause."""
    with pytest.raises(OptionError, match="first_s <= max_s"):
        RestartPolicy(first_s, max_s, stable_s)
