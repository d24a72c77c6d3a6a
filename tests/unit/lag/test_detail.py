"""A single look gives a verdict only if its commits, or the unread bytes, are sufficient evidence."""

from __future__ import annotations

import pytest

from gazette_spark.lag.detail import is_decided, mark_unknown
from gazette_spark.lag.rules import OffsetCommit, PartitionWindow, Status

NOW_MS = 1_700_000_000_000


def window(*lags: int | None, ago_s: int, lag: int = 50) -> PartitionWindow:
    """Return a window of commits ten seconds apart, the last of which was some time ago."""
    last_ms = NOW_MS - ago_s * 1000
    commits = [
        OffsetCommit(100 * at, last_ms - 10_000 * (len(lags) - at), NOW_MS, each)
        for at, each in enumerate(lags, start=1)
    ]
    return PartitionWindow("t", 0, lag, [], [None, *commits])


@pytest.mark.parametrize(
    ("found", "verdict", "least_age_s", "decided"),
    [
        pytest.param(window(None, ago_s=9, lag=0), "OK", None, True, id="level"),
        pytest.param(window(ago_s=9, lag=0), "OK", None, False, id="no commit"),
        pytest.param(window(0, ago_s=0), "OK", None, False, id="one commit, as of a shard"),
        pytest.param(window(0, 0, 0, ago_s=9), "OK", None, True, id="goes on"),
        pytest.param(window(0, 0, 0, ago_s=900), "STOP", 1, False, id="level, and bytes just came"),
        pytest.param(window(0, 0, 0, ago_s=900), "STOP", 21, True, id="level, and bytes wait"),
        pytest.param(window(0, 0, 0, ago_s=300), "OK", 21, False, id="bytes wait, and OK by assumption"),
        pytest.param(window(0, 9, 9, ago_s=900), "STOP", None, True, id="stopped while behind"),
        pytest.param(window(9, 19, 29, ago_s=9), "WARN", None, True, id="falls behind"),
        pytest.param(window(None, None, 9, ago_s=9), "WARN", None, False, id="no head recorded"),
        pytest.param(window(None, None, 9, ago_s=900), "STOP", None, False, id="silent, no head recorded"),
    ],
)
def test_a_verdict_is_given_where_it_is_known(
    found: PartitionWindow, verdict: str, least_age_s: int | None, decided: bool
) -> None:
    """A query that waits for its trigger and one that stopped look alike until their history differs."""
    least_age_ms = None if least_age_s is None else least_age_s * 1000
    assert is_decided(found, Status[verdict], least_age_ms, NOW_MS) is decided


@pytest.mark.parametrize(
    ("statuses", "of_group"),
    [
        (["OK", "OK"], "OK"),
        (["OK", "STOP?"], "UNKNOWN"),
        (["WARN", "STOP?"], "WARN"),
        (["STALL", "OK?"], "ERR"),
    ],
)
def test_a_group_is_as_bad_as_what_is_known(statuses: list[str], of_group: str) -> None:
    journals = [{"journal": str(at), "status": each.strip("?")} for at, each in enumerate(statuses)]
    worst = min(max(Status[each.strip("?")] for each in statuses), Status.ERR).name
    ambiguous = {str(at) for at, each in enumerate(statuses) if each.endswith("?")}
    detail = mark_unknown({"status": worst, "journals": journals}, ambiguous)
    assert detail["status"] == of_group
    assert [each["status"] for each in detail["journals"]] == [
        "UNKNOWN" if each.endswith("?") else each for each in statuses
    ]
