"""No record ends a PERMISSIVE query: whatever its bytes, it gives rows, nulls or a malformed record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.poison import Case, Child

CORPUS = Path(__file__).parents[1] / "golden" / "poison" / "records.jsonl"
"""Records that once stopped a reader, or killed it."""


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """A process for all cases."""
    with Child() as started:
        yield started


def test_what_was_found_once_stays_fixed(child: Child) -> None:
    """Each record of the corpus is read, or is malformed."""
    lines = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    cases = [
        Case(
            line["form"],
            b"".join(text.encode("latin-1") * times for text, times in line["parts"]),
            line.get("type", "string"),
        )
        for line in lines
    ]
    assert cases
    assert child.problems(cases) == []


def test_a_crash_and_a_mistake_are_both_noticed(child: Child) -> None:
    """The rig itself: the record that kills the process is named, and the cases behind it are run."""
    cases = [Case("raw", b"x"), Case("kill", b"y"), Case("json", b"{}", "no type"), Case("raw", b"z")]
    killed, wrong = child.problems(cases)
    assert "kill string b'y' (1 bytes): the process ended with SIGSEGV" in killed
    assert "json no type b'{}' (2 bytes): Traceback" in wrong
