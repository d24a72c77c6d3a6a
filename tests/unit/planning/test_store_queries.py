"""The journals and gaps of a query on a fragment store, as its listing gives them."""

from __future__ import annotations

import pytest

from gazette_spark._planning.gaps import gaps_of_query
from gazette_spark._planning.stores import StoreJournals, store_selection
from gazette_spark.client import FragmentGap
from tests.oracles.stores import MemoryFiles, plan, read, store_options

ONE = b"x" * 9 + b"\n"


@pytest.fixture
def files() -> MemoryFiles:
    """Two journals of five fragments with ten records each, stored at the seconds 1 to 5."""
    made = MemoryFiles()
    for journal in ("log/a", "log/b"):
        for part in range(5):
            made.put(journal, part * 100, ONE * 10, mod_time=part + 1)
    return made


@pytest.mark.parametrize("pattern", ["log/[bc]", "[a-z]+/b|log/c"])
def test_a_pattern_chooses_journals_of_a_store(files: MemoryFiles, pattern: str) -> None:
    options = store_options(journalsPattern=pattern)
    rows = read(files, options, plan(files, options))
    assert {row[0] for row in rows} == {"log/b"}
    assert len(rows) == 50


def test_gaps_of_a_store(files: MemoryFiles) -> None:
    lost = next(path for path in files.files if path.startswith(f"log/b/{200:016x}-"))
    del files.files[lost]
    options = store_options(readGaps="true")
    journals = StoreJournals.listed(files, store_selection(options))
    assert gaps_of_query(journals, options) == [FragmentGap("log/b", 200, 300)]
