"""The examples of docs/guides/replicated-log.md, in which a copy takes over, run as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "replicated-log.md"


def test_the_examples_run(
    broker: BrokerHandle, fresh_prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, Any] = {}
    try:
        for block in blocks:
            own = block.replace("http://localhost:8080", broker.endpoint).replace("bank/", fresh_prefix)
            exec(own, names)
    finally:
        for each in ("primary", "successor", "replica", "late", "client"):
            if each in names:
                names[each].close()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"journal '{fresh_prefix}log': writer {names['successor'].author} has taken")
    assert second == "become primary"
    assert names["balances_then"] == {"ada": 5, "bob": 7}
