"""The worked examples of ``docs/guides/size.md`` follow from its formula."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "size.md").read_text()


def formula() -> Callable[..., dict[str, float]]:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    function: Callable[..., dict[str, float]] = names["daily_need"]
    return function


def test_the_examples_follow_from_the_formula() -> None:
    table = PAGE.partition("## Examples")[2]
    header, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert len(rows) >= 4
    for row in rows:
        mb_s, journals, interval_s, lane, *shown = row
        need = formula()(float(mb_s), int(journals.replace(",", "")), float(interval_s), lane)
        assert header[4:] == list(need)
        assert shown == [
            f"{value:,.2f}" if name == "busy cores" else f"{round(value):,}" for name, value in need.items()
        ]
