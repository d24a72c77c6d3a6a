"""The README's Python examples run as they stand, one after the other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gazette_spark.broker import EmbeddedBroker
from gazette_spark.client import Client
from gazette_spark.protocol.journals import journal_spec

README = Path(__file__).parents[2] / "README.md"
EVENTS = [{"id": n, "user": f"user-{n % 3}", "amount": n / 4} for n in range(20)]


def examples(endpoint: str, directory: Path) -> list[str]:
    """Return the code blocks, with this test's broker and directory in place of the page's."""
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return [
        block.replace("http://localhost:8080", endpoint).replace('"/data/', f'"{directory}/')
        for block in blocks
    ]


def test_examples_do_what_they_say(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stream fills the table, the batch shows records, the ledger is printed, the client reads back."""
    with EmbeddedBroker(tmp_path / "shop-broker") as broker, Client(broker.endpoint) as client:
        client.create_journals(journal_spec("shop/orders"))
        content = b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS)
        client.append("shop/orders", content)
        stream, batch, ledger, embedded = examples(broker.endpoint, tmp_path)
        names: dict[str, Any] = {"spark": spark}
        exec(stream, names)
        try:
            names["query"].processAllAvailable()
        finally:
            names["query"].stop()
        rows = spark.read.format("delta").load(str(tmp_path / "orders")).orderBy("id").collect()
        assert [row.asDict() for row in rows] == EVENTS
        for block in (batch, ledger, embedded):
            exec(block, names)
    printed = capsys.readouterr().out
    assert '{"id": 4, "user": "user-1", "amount": 1.0}' in printed
    assert f"'shop/orders': {len(content)}" in printed
    assert '{"id": 1, "user": "ada", "amount": 9.5}' in printed
