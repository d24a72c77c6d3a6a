"""A failed shard is started again after ever longer delays."""

from __future__ import annotations

import pytest

from gazette_spark.consumer.assignments import RestartPolicy, Restarts
from gazette_spark.errors import OptionError


def test_delays_double_up_to_the_longest() -> None:
    """From a second to a minute."""
    policy = RestartPolicy()
    assert [policy.delay_s(failures) for failures in (1, 2, 3, 6, 7, 10_000)] == [1, 2, 4, 32, 60, 60]


def test_a_shard_that_ran_long_begins_again() -> None:
    """Failures count in a row only; restarts are counted for good."""
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
    """A delay of nothing would restart without pause."""
    with pytest.raises(OptionError, match="first_s <= max_s"):
        RestartPolicy(first_s, max_s, stable_s)
