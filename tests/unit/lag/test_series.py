"""Charts keep the highest lags, have a bounded size, and have gaps where the lag is unknown."""

from __future__ import annotations

import pytest

from gazette_spark.lag.estimates import HOLE_MS, LagSeries


@pytest.mark.parametrize("step_s", [0.2, 1, 10, 60])
def test_a_series_is_an_hour_however_often_is_looked(step_s: float) -> None:
    busy, level = LagSeries(), LagSeries()
    for at in range(round(4000 / step_s)):
        busy.add(round(at * step_s * 1000), at)
        level.add(round(at * step_s * 1000), 0)
    points = busy.points()
    assert 3_600_000 <= points[-1][0] - points[0][0] <= 3_660_000
    assert len(points) <= 182
    assert len(level.points()) == 2


def test_a_lag_that_stayed_for_long_does_not_rise_before_its_time() -> None:
    series = LagSeries(60_000)
    for at in (0, 60_000, 300_000, 301_000):
        series.add(at, 5)
    series.add(302_000, 9)
    series.add(303_000, 7)
    assert series.points() == [(0, 5), (301_000, 5), (303_000, 9)]


def test_a_pause_is_a_hole_and_a_clock_set_back_a_new_start() -> None:
    """The lag between two points that are far apart is unknown."""
    series = LagSeries(60_000)
    series.add(0, 5)
    series.add(HOLE_MS, 5)
    series.add(2 * HOLE_MS + 1, 6)
    assert series.points() == [(0, 5), (HOLE_MS, 5), (HOLE_MS + 1, None), (2 * HOLE_MS + 1, 6)]
    series.add(7, 1)
    assert series.points() == [(7, 1)]
