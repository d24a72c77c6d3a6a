"""The page on faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"


def test_every_test_that_is_named_exists() -> None:
    """Each ``file.py::test`` of the page is a test of a file of that name, and each file named is there."""
    text = PAGE.read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert len(named) > 50
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not any(f"def {test}(" in path.read_text() for path in (ROOT / "tests").rglob(file))
    ]
    assert missing == []
    assert all((ROOT / path).is_file() for path in re.findall(r"`(tests/[\w/]+\.py)`", text))
