"""The number of files of a batch, and the time of a compaction, follow from offsets and entry numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gazette_spark._delta.small_files import batch_bytes, compaction_due, files_wanted, in_files
from gazette_spark._ledger.entry import Batch, LedgerEntry, Positions
from gazette_spark.offsets import JournalOffsets

MIB = 1 << 20


def at(**journals: int) -> JournalOffsets:
    return JournalOffsets(journals)


@pytest.mark.parametrize(
    ("begin", "end", "read"),
    [
        pytest.param((at(a=10, b=0),), (at(a=15, b=7),), 12, id="two journals"),
        pytest.param((at(a=10),), (at(a=10, late=500),), 0, id="a journal that is pinned"),
        pytest.param((), (at(a=10),), 0, id="first batch"),
        pytest.param((at(a=1), at(b=1)), (at(a=2), at(b=5)), 5, id="two sources"),
        pytest.param((at(a=1), "7"), (at(a=2), "8"), None, id="another source"),
    ],
)
def test_a_batch_has_read_what_its_offsets_say(begin: Positions, end: Positions, read: int | None) -> None:
    """The size of a batch is unknown if another source takes part."""
    assert batch_bytes(Batch("t", "a", "q", 1, begin, end)) == read


@pytest.mark.parametrize(
    ("read", "target", "files"),
    [
        pytest.param(100 * MIB, None, None, id="not asked"),
        pytest.param(None, MIB, None, id="not known"),
        pytest.param(0, MIB, 1, id="nothing"),
        pytest.param(MIB, MIB, 1, id="one full"),
        pytest.param(MIB + 1, MIB, 2, id="a byte more"),
        pytest.param(10 * MIB - 1, MIB, 10, id="ten"),
    ],
)
def test_files_are_bytes_by_their_target(read: int | None, target: int | None, files: int | None) -> None:
    assert files_wanted(read, target) == files


class Rows:
    columns = ("Day", "a`b", "n")

    def coalesce(self, parts: int) -> str:
        return f"coalesce {parts}"

    def repartition(self, parts: int, *columns: str) -> str:
        return f"repartition {parts} {' '.join(columns)}"


@pytest.mark.parametrize(
    ("files", "partition_by", "done"),
    [
        pytest.param(3, [], "coalesce 3", id="no partitions"),
        pytest.param(1, ["day"], "coalesce 1", id="one file"),
        pytest.param(3, ["day", "a`b"], "repartition 3 `day` `a``b`", id="partitions"),
        pytest.param(3, ["day", "x"], "repartition 3 `day`", id="a column that Delta computes"),
        pytest.param(3, ["x"], "coalesce 3", id="only columns that Delta computes"),
    ],
)
def test_rows_are_shuffled_only_for_partitions(files: int, partition_by: list[str], done: object) -> None:
    """A shuffle is needed only if there are partition columns and several parts."""
    rows: Any = Rows()
    assert in_files(rows, files, partition_by) == done
    assert in_files(rows, None, partition_by) is rows


def test_compaction_is_due_by_the_entries_number() -> None:
    """The entry's number decides, so a restart does not begin to count from zero."""
    entry = LedgerEntry("a", 0, "q", 0, (), (), (), attempt="x", parent=None)
    due = [number for number in range(12) if compaction_due(replace(entry, txn_version=number), 4)]
    assert due == [3, 7, 11]
    assert not compaction_due(replace(entry, txn_version=3), None)
