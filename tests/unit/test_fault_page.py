"""The pages on faults, exactly-once and verify name tests that exist."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.rig.crashes.points import POINTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "faults.md"
EXACTLY_ONCE = [ROOT / "docs" / page for page in ("evidence/exactly-once.md", "guides/verify.md")]


@cache
def sources() -> Mapping[str, list[str]]:
    texts = defaultdict[str, list[str]](list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        texts[path.name].append(path.read_text())
    return texts


def test_every_test_that_is_named_exists() -> None:
    """Each ``file.py::test`` of the page is a test of a file of that name, and each named file exists."""
    text = PAGE.read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert len(named) > 50
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not any(f"def {test}(" in text for text in sources()[file])
    ]
    assert missing == []
    assert all((ROOT / path).is_file() for path in re.findall(r"`(tests/[\w/]+\.py)`", text))


def named_tests(page: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a page, each with the words behind it: ```test_kill.py` *K4 planned*, *K8*``."""
    for line in page.splitlines():
        file = ""
        for found, words in re.findall(r"`(?:[\w/]+/)?(test_\w+\.py)`|(?<!\*)\*([^*|]+)\*(?!\*)", line):
            file = found or file
            if file:
                yield file, words


def plain(name: str) -> str:
    """Normalize a name, or words of a page, to lower case and single blanks."""
    return re.sub(r"[\s_-]+", " ", name.replace("'", "")).lower()


def names_in(file: str) -> str:
    """Return the names of tests and of their cases in all files of this name."""
    names = [name for text in sources()[file] for name in re.findall(r"def (test_\w+)|\"([\w -]+)\"", text)]
    points = [point.name for point in POINTS] if file == "test_crashes.py" else []
    return plain(" | ".join(["".join(name) for name in names] + points))


def test_the_promise_is_held_by_tests_that_exist() -> None:
    """The words after each file on the exactly-once pages must be part of a test's or a case's name."""
    named = {each for page in EXACTLY_ONCE for each in named_tests(page.read_text())}
    assert len(named) > 80
    files = {file: names_in(file) for file, _ in named}
    assert [(file, words) for file, words in sorted(named) if plain(words) not in files[file]] == []
    assert "" not in files.values()
