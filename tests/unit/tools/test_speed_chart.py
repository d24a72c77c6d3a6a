"""The chart on the front page shows the numbers of the performance page."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tools.speed_chart import CHART, PAGE, Speed, draw, speeds


def test_the_chart_is_up_to_date() -> None:
    """If the chart changes when it is drawn, run ``make generated``."""
    assert draw(speeds(PAGE.read_text(encoding="utf-8"))) == CHART.read_text(encoding="utf-8")


def test_bars_are_as_long_as_their_numbers() -> None:
    chart = ElementTree.fromstring(draw([Speed("a → b", "Kafka", 50, 100)]))
    widths = [int(bar.attrib["width"]) for bar in chart.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[1] == 2 * widths[0]


def test_a_page_without_the_table_is_refused() -> None:
    """An empty chart would look like a result."""
    with pytest.raises(ValueError, match="must begin with a table"):
        speeds("# Performance\n\n## Elsewhere\n\n| a | Kafka | 1 MB/s | 2 MB/s |\n")
