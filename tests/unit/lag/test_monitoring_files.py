"""The dashboard and the alert rules name metrics and labels that the monitor exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gazette_spark.lag.metrics import METRICS

MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"

LABELS = {metric.name: metric.labels for metric in METRICS if metric.name}

METRIC = re.compile(r"\b((?:gazette|burrow)_[a-z_]+)(?:\{([^}]*)\})?")


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    found = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard."""
    found: list[dict[str, Any]] = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield a name, an expression, and the text that shows its labels."""
    for rule in rules():
        yield rule["alert"], rule["expr"], rule["annotations"]["summary"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"], target["legendFormat"]
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    for variable in dashboard["templating"]["list"][1:]:
        yield variable["name"], variable["definition"], ""


@pytest.mark.parametrize(
    ("expression", "shown"), [pytest.param(*each[1:], id=each[0]) for each in expressions()]
)
def test_each_metric_and_label_is_exported(expression: str, shown: str) -> None:
    """A metric or label that is renamed in the monitor is renamed here."""
    named = METRIC.findall(expression)
    assert named
    for metric, matchers in named:
        assert metric in LABELS
        used = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", matchers))
        assert used <= set(LABELS[metric])
    common = set().union(*(LABELS[metric] for metric, _ in named))
    by = {
        each.strip()
        for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression)
        for each in group.split(",")
    }
    in_text = set(re.findall(r"\{\{ ?(?:\$labels\.)?([a-z_]+)", shown))
    assert by | in_text <= common


def test_each_alert_says_how_bad_it_is() -> None:
    """Each rule has a severity, a name of its own, and a sentence."""
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")


def test_the_panels_do_not_overlap() -> None:
    """Each cell of the grid, which is 24 wide, has at most one panel."""
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
