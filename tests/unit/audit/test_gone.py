"""How an audit plans its reads around bytes that a journal has lost."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gazette_spark._options.source import parse_options
from gazette_spark._planning.access import open_journals
from gazette_spark._verify.journal_source import plan_reads
from gazette_spark._verify.tiling import CommittedSpan, CoveredRange

JOURNAL = "shop/orders"


@pytest.mark.parametrize(
    ("framing", "content", "gone"),
    [
        pytest.param("none", bytes(400), (0, 400), id="chunk"),
        pytest.param(
            "lines", b"x" * 90 + b"\n" + b"y" * 250 + b"\n" + b"z" * 57 + b"\n", (91, 300), id="line"
        ),
    ],
)
def test_a_record_that_two_holes_cut_is_lost_once(
    tmp_path: Path, framing: str, content: bytes, gone: tuple[int, int]
) -> None:
    """In two ranges, its rows would be counted twice and would not match the entry's count."""
    journal = tmp_path / JOURNAL
    journal.mkdir(parents=True)
    for begin, end in ((0, 100), (200, 210), (300, 400)):
        stored = content[begin:end]
        (journal / f"{begin:016x}-{end:016x}-{hashlib.sha1(stored).hexdigest()}.raw").write_bytes(stored)
    claim = CoveredRange("app", 0, JOURNAL, 0, 400, 1, (CommittedSpan(0, 400, 1, rows=10),))
    store = {"fragmentStore": f"file://{tmp_path}", "journals": JOURNAL, "framing": framing}
    options = parse_options({**store, "format": "raw"}, "batch")
    with open_journals(options) as journals:
        assert plan_reads(journals, options, [claim])[JOURNAL].gone == (gone,)
