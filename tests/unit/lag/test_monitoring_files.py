"""The dashboard and the alert rules use only metrics and labels that the monitor and consumers export."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gazette_spark.consumer import resolver
from gazette_spark.lag.metrics import METRICS
from tests.rig.gazctl import find_binary

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
RUNBOOK = ROOT / "docs" / "guides" / "alerts.md"

LABELS = {metric.name: metric.labels for metric in METRICS if metric.name}
LABELS |= {name: labels for name, _, labels, _ in resolver.METRICS}

METRIC = re.compile(r"\b((?:gazette|burrow)_[a-z_]+)(?:\{([^}]*)\})?")


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def expressions() -> Iterator[tuple[str, str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"], rule["annotations"]["summary"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"], target["legendFormat"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"], ""


@pytest.mark.parametrize(
    ("expression", "shown"), [pytest.param(*each[1:], id=each[0]) for each in expressions()]
)
def test_each_metric_and_label_is_exported(expression: str, shown: str) -> None:
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


def test_each_alert_says_how_bad_it_is_and_what_to_do() -> None:
    found = rules()
    names = [rule["alert"] for rule in found]
    assert len(set(names)) == len(names)
    assert re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE) == names
    for rule in found:
        assert rule["labels"]["severity"] in ("warning", "critical")
        annotations = rule["annotations"]
        assert annotations["summary"].endswith(".")
        assert annotations["description"].endswith(".")
        assert annotations["runbook_url"] == f"docs/guides/alerts.md#{rule['alert'].lower()}"
        assert annotations["description"] in RUNBOOK.read_text(), "the page begins as the alert does"


UP = {"gazette_lag_heads_up": "1", 'gazette_lag_feed_up{consumer_group="orders"}': "1"}
"""Metric values of a monitor that works without failures."""


@dataclass(frozen=True, slots=True)
class Case:
    """Values scraped once a minute, with the minutes after which an alert fires and does not yet fire."""

    series: dict[str, str]
    """Values in promtool's notation by metric and labels; those of :data:`UP` are added."""
    fires_at: str
    quiet_at: str
    value: str = ""
    """Value as the text formats it."""


CASES: dict[str, Case] = {
    "LagMonitorMissing": Case({"gazette_lag_heads_up": "1 1 stale"}, "10m", "1m"),
    "LagMonitorBlind": Case({"gazette_lag_heads_up": "1 1 1 0x30"}, "9m", "7m"),
    "LagMonitorHangs": Case({"gazette_lag_heads_read_timestamp_seconds": "0x60"}, "10m", "5m", "10m 0s"),
    "LagFeedDown": Case({'gazette_lag_feed_up{consumer_group="orders"}': "1 0x30"}, "12m", "10m"),
    "QueryStopped": Case({'burrow_kafka_consumer_status{consumer_group="orders"}': "1 3x30"}, "7m", "5m"),
    "QueryFallsBehind": Case(
        {'burrow_kafka_consumer_status{consumer_group="orders"}': "1 2x30"}, "17m", "15m"
    ),
    "TableOutOfDate": Case(
        {'gazette_lag_freshness_seconds{consumer_group="orders",bound="least"}': "60 7200x30"},
        "7m",
        "5m",
        "2h 0m 0s",
    ),
    "UnreadBytesExpire": Case(
        {
            'gazette_lag_loss_in_seconds{consumer_group="orders",journal="a"}': "100000 3600x30",
            'gazette_lag_loss_in_seconds{consumer_group="orders",journal="b"}': "100000x30",
        },
        "12m",
        "10m",
        "1h 0m 0s",
    ),
    "MissingBytesSkipped": Case(
        {
            'gazette_lag_gap_bytes_total{consumer_group="orders",accepted="no"}': "0x5 100x30",
            'gazette_lag_gap_bytes_total{consumer_group="late",accepted="yes"}': "0x5 100x30",
        },
        "8m",
        "4m",
    ),
    "MalformedRecords": Case(
        {'gazette_lag_malformed_records_total{consumer_group="orders"}': "0x5 3x30"}, "8m", "4m"
    ),
    "TransactionStaysOpen": Case(
        {'gazette_lag_open_transaction_age_seconds{consumer_group="orders",journal="a"}': "60x5 4000x30"},
        "8m",
        "4m",
    ),
    "ShardWithoutPrimary": Case(
        {
            'gazette_shard_up{shard="one",status="FAILED"}': "1x30",
            'gazette_shard_up{shard="two",status="STANDBY"}': "1x30",
            'gazette_shard_up{shard="two",status="PRIMARY"}': "1x30",
        },
        "6m",
        "4m",
    ),
    "ShardRestartsOften": Case(
        {
            'gazette_spark_shard_restarts_total{shard="one"}': "0x5 1 2 3 4 5x30",
            'gazette_spark_shard_restarts_total{shard="two"}': "7x40",
        },
        "10m",
        "6m",
    ),
}


def promtool_case(rule: dict[str, Any], case: Case) -> dict[str, Any]:
    """Return a test of a rule as promtool takes it: its alert at one time, and none at the other."""
    scraped = {name: f"{value}x60" for name, value in UP.items()} | case.series
    series = {
        name.replace("}", ',cluster="c"}') if "}" in name else f'{name}{{cluster="c"}}': values
        for name, values in scraped.items()
    }
    group = {} if rule["alert"].startswith("LagMonitor") else {"consumer_group": "orders"}
    labels = {} if rule["alert"] == "LagMonitorMissing" else {"cluster": "c", **group}
    if rule["alert"].startswith("Shard"):
        labels = {"shard": "one"}
    if rule["alert"] == "TableOutOfDate":
        labels["bound"] = "least"
    annotations = dict(rule["annotations"])
    shown = {f"$labels.{label}": text for label, text in labels.items()}
    for name, text in {**shown, "$value | humanizeDuration": case.value}.items():
        annotations["summary"] = annotations["summary"].replace(f"{{{{ {name} }}}}", text)
    alert = {"exp_labels": labels | rule["labels"], "exp_annotations": annotations}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": case.quiet_at, "alertname": rule["alert"], "exp_alerts": []},
            {"eval_time": case.fires_at, "alertname": rule["alert"], "exp_alerts": [alert]},
        ],
    }


def test_each_alert_has_a_case() -> None:
    """A new alert needs a case."""
    assert [rule["alert"] for rule in rules()] == list(CASES)


@pytest.mark.soak
def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    """Prometheus's own tool runs the rules over synthetic scrapes: quiet before, firing after."""
    file = tmp_path / "test.yml"
    tests = [promtool_case(rule, CASES[rule["alert"]]) for rule in rules()]
    file.write_text(yaml.safe_dump({"rule_files": [str(MONITORING / "alerts.yml")], "tests": tests}))
    command = [str(find_binary("promtool")), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_panel_explains_itself() -> None:
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        labels = {name for target in panel["targets"] for name in re.findall(r"\w+", target["legendFormat"])}
        links = panel["fieldConfig"]["defaults"].get("links", [])
        if panel["type"] != "stat" and "consumer_group" in labels:
            (link,) = links
            assert "#group=${__field.labels.consumer_group" in link["url"]
    urls = re.findall(r'"url": "([^"]*)"', json.dumps(dashboard()))
    named = {name for url in urls for name in re.findall(r"\$\{(\w+)", url)} - {"__field"}
    assert named == {"lag_page"} <= variables


def test_the_panels_do_not_overlap() -> None:
    """The grid is 24 columns wide."""
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
