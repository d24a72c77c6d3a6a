"""Commands print tables for people and JSON for programs."""

from __future__ import annotations

import json

import pytest

from gazette_spark.cli.output import show, text_table

ROWS = [
    {"name": "shop/orders", "bytes": 1024, "labels": {"app": "shop"}, "stores": ["file:///a/", "s3://b/"]},
    {"name": "x", "bytes": 7, "labels": {}, "stores": [], "only_in_json": True},
]


def test_columns_are_aligned_numbers_to_the_right() -> None:
    assert text_table(ROWS, ["name", "bytes", "labels"]).splitlines() == [
        "NAME         BYTES  LABELS",
        "shop/orders   1024  app=shop",
        "x                7",
    ]


def test_lists_are_joined() -> None:
    assert text_table(ROWS[:1], ["stores"]).splitlines() == ["STORES", "file:///a/,s3://b/"]


def test_no_rows_leave_the_heading() -> None:
    assert text_table([], ["name", "bytes"]) == "NAME  BYTES"


def test_json_holds_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, ["name"], "json")
    assert json.loads(capsys.readouterr().out) == ROWS
