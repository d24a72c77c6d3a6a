"""The Python examples of docs/guides/messages.md, which publish and read a transaction, run as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gazette_spark import Client
from tests.conformance.wire import labels, spec
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "messages.md"


def test_the_examples_run(broker: BrokerHandle, client: Client, fresh_prefix: str) -> None:
    # tests/spark/test_committed.py runs the example in Spark.
    text = PAGE.read_text().partition("## In Python")[2]
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    client.create_journals(
        spec(f"{fresh_prefix}orders", labels=labels(("content-type", "application/x-ndjson")))
    )
    names: dict[str, Any] = {}
    try:
        for block in blocks:
            exec(
                block.replace("http://localhost:8080", broker.endpoint).replace("shop/", fresh_prefix), names
            )
    finally:
        if "client" in names:
            names["client"].close()
    assert names["orders"] == [1, 2, None]
    assert names["later"] == [3, None]
