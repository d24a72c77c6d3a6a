"""Filters and gaps of a query on a fragment store: the listing tells which files need not be opened."""

from __future__ import annotations

import pytest

from gazette_spark.client import FragmentGap
from gazette_spark.scan.conditions import EVERYTHING, Comparison, Condition, RowFilter, Subject
from gazette_spark.scan.gaps import gaps_of_query
from gazette_spark.scan.stores import wanted_of
from gazette_spark.store.stored_journals import StoreJournals
from tests.oracles.stores import MemoryFiles, plan, read, store_options

ONE = b"x" * 9 + b"\n"
SECOND = 1_000_000


@pytest.fixture
def files() -> MemoryFiles:
    """Two journals of five fragments each, of ten records, stored at the seconds 1 to 5."""
    made = MemoryFiles()
    for journal in ("log/a", "log/b"):
        for part in range(5):
            made.put(journal, part * 100, ONE * 10, mod_time=part + 1)
    return made


FILTERS = {
    "journal": (Condition(Subject.JOURNAL, Comparison.EQUAL, ("log/b",)), 5),
    "offsets": (Condition(Subject.OFFSET, Comparison.LESS, (150,)), 6),
    "an offset": (Condition(Subject.OFFSET, Comparison.IN, (220, 415)), 4),
    "times": (Condition(Subject.MOD_TIME, Comparison.AT_LEAST, (4 * SECOND,)), 6),
    "nothing": (Condition(Subject.MOD_TIME, Comparison.IS_NULL), 2),
}
"""A filter, and how many files are opened: a piece may need the one before, and the last one of a journal
is looked at for the end of the last record."""


@pytest.mark.parametrize("case", FILTERS)
def test_filters_leave_files_unopened(files: MemoryFiles, case: str) -> None:
    """The rows are those of the whole store that meet the filter."""
    condition, at_most = FILTERS[case]
    options = store_options(maxRecordBytes="10")
    every = read(files, options, plan(files, options, EVERYTHING))
    assert len(every) == 100
    files.opened.clear()
    pieces = plan(files, options, RowFilter((condition,)))
    value = {Subject.JOURNAL: lambda row: row[0], Subject.OFFSET: lambda row: row[1]}
    value[Subject.MOD_TIME] = lambda row: (row[1] // 100 + 1) * SECOND
    assert read(files, options, pieces) == [
        row for row in every if condition.holds(value[condition.subject](row))
    ]
    assert len(set(files.opened)) <= at_most


@pytest.mark.parametrize("pattern", ["log/[bc]", "[a-z]+/b|log/c"])
def test_a_pattern_chooses_journals_of_a_store(files: MemoryFiles, pattern: str) -> None:
    """Stores have names, so patterns choose among them, with a directory in common or without."""
    options = store_options(journalsPattern=pattern)
    rows = read(files, options, plan(files, options))
    assert {row[0] for row in rows} == {"log/b"}
    assert len(rows) == 50


def test_gaps_of_a_store(files: MemoryFiles) -> None:
    """A gap is a range that no file holds, before the end of the last one."""
    lost = next(path for path in files.files if path.startswith(f"log/b/{200:016x}-"))
    del files.files[lost]
    options = store_options(readGaps="true")
    journals = StoreJournals.listed(files, wanted_of(options))
    assert gaps_of_query(journals, options) == [FragmentGap("log/b", 200, 300)]
