"""The parts of the journals that a table covers, cut into bins whose records and rows are added up.

Everything here is a function of values. A *part* is offsets of one journal to which one rule applies: their
rows are compared with records, or are not, with the reason. A *bin* is a piece of a part that is short enough
to be looked at alone. Both sides of a bin have a number of records and the sums of their digests; where those
differ, the first difference of the table is.

A row's digest is the SHA-256 of a salt and the row, folded into four words of 32 bits. Each word is added up
on its own, without an overflow. The salt is random, and drawn when the versions of table and journals that
are compared exist already. So the words of rows that differ are independent random numbers. If any row is
there more or less often than it should be, the sums of a word agree with a probability of about 2^-32, and
those of all four with 2^-128, whatever was done to the table, and by whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import Positions
from gazette_spark.audit.tiling import CoveredRange, Span
from gazette_spark.protocol.spans import outside

State = Literal["compared", "gone", "adopted", "refused"]
"""Whether the rows of a part are compared; if not: the journal lost their bytes, they are older than the
ledger, or they are not the journal's records."""

BIN_BYTES = 1 << 20
"""Least bytes of a journal in a bin: their records and rows fit into memory."""

WORDS = 4
"""Words of a row's digest."""

MAX_BINS = 50_000
"""Bins of all parts together, but for one of each part: every executor has the list of them."""


@dataclass(frozen=True, slots=True)
class Part:
    """Offsets ``[begin, end)`` of a covered range."""

    claim: CoveredRange
    begin: int
    end: int
    state: State = "compared"
    span: Span | None = None
    """Commit that added them, where its rows are counted one by one."""


def parts_of(
    claim: CoveredRange, gone: Sequence[tuple[int, int]], *, refused: bool, by_commit: bool
) -> Iterator[Part]:
    """Yield the parts of a covered range, ascending.

    Args:
        claim: The range.
        gone: Bytes that the journal no longer has, ascending.
        refused: The rows are not the journal's records.
        by_commit: No part has rows of two commits.
    """
    if claim.adopted and claim.start:
        yield Part(claim, 0, claim.start, "adopted")
    if refused:
        if claim.start < claim.end:
            yield Part(claim, claim.start, claim.end, "refused")
        return
    for begin, end, span in _commits(claim) if by_commit else [(claim.start, claim.end, None)]:
        lost = [(max(low, begin), min(high, end)) for low, high in gone if low < end and begin < high]
        pieces: list[tuple[int, int, State]] = [(*each, "compared") for each in outside(lost, begin, end)]
        pieces += [(*each, "gone") for each in lost]
        for low, high, state in sorted(pieces):
            yield Part(claim, low, high, state, span)


def _commits(claim: CoveredRange) -> Iterator[tuple[int, int, Span | None]]:
    """Yield the bytes of each commit, and before them those whose entries were cleaned up."""
    first = claim.spans[0].begin if claim.spans else claim.end
    if claim.start < first:
        yield claim.start, first, None
    for span in claim.spans:
        yield span.begin, span.end, span


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Parts in bins, in the parts' order. A bin's edges are multiples of ``width``, or its part's edges."""

    parts: Sequence[Part]
    part: Positions
    """Index of each bin's part."""
    begins: Positions
    ends: Positions
    width: int

    @classmethod
    def of(cls, parts: Sequence[Part], *, least: int = BIN_BYTES, most: int = MAX_BINS) -> Bins:
        """Cut parts into bins."""
        width = max(least, sum(each.end - each.begin for each in parts) // most)
        edges = [
            np.array([each.begin, *range(each.begin // width * width + width, each.end, width), each.end])
            for each in parts
        ]
        return cls(
            parts,
            np.repeat(np.arange(len(parts)), [len(each) - 1 for each in edges]),
            np.concatenate([np.empty(0, np.int64), *(each[:-1] for each in edges)]),
            np.concatenate([np.empty(0, np.int64), *(each[1:] for each in edges)]),
            width,
        )

    def __len__(self) -> int:
        return len(self.part)

    def one(self, index: int) -> Part:
        """Return one bin as a part."""
        part = self.parts[int(self.part[index])]
        return Part(part.claim, int(self.begins[index]), int(self.ends[index]), part.state, part.span)

    def table(self, ranges: Sequence[int | None]) -> pa.Table:
        """Return the bins as rows; each part has the number of the range that is read for it, if one is."""
        claims = [self.parts[at].claim for at in self.part.tolist()]
        return pa.table(
            {
                "bin": pa.array(np.arange(len(self)), pa.int64()),
                "app_id_": pa.array([each.app_id for each in claims], pa.string()),
                "journal_": pa.array([each.journal for each in claims], pa.string()),
                "part_": pa.array(self.part, pa.int64()),
                "range_": pa.array([ranges[at] for at in self.part.tolist()], pa.int64()),
                "slot_": pa.array(self.begins // self.width, pa.int64()),
                "begin_": pa.array(self.begins, pa.int64()),
                "end_": pa.array(self.ends, pa.int64()),
            }
        )


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Sums of one side: records, rows or dead letters; by bin."""

    counts: Positions
    digests: Positions
    """Sums of each word of the rows' digests, a line of :data:`WORDS` numbers for each bin."""
    outside: Mapping[int, int] = field(default_factory=dict)
    """Rows in no bin, by the negative number that stands for the reason."""

    @classmethod
    def gathered(cls, size: int, found: Iterable[Sequence[int]]) -> Totals:
        """Gather the sums of bins, each its number, its rows and its words; other bins have no rows."""
        counts, digests = np.zeros(size, np.int64), np.zeros((size, WORDS), np.int64)
        outside: dict[int, int] = {}
        for number, count, *words in found:
            if number < 0:
                outside[number] = count
            else:
                counts[number], digests[number] = count, words
        return cls(counts, digests, outside)

    def by_part(self, bins: Bins) -> Positions:
        """Return the number of rows of each part."""
        firsts = np.searchsorted(bins.part, np.arange(len(bins.parts)))
        return np.add.reduceat(self.counts, firsts) if len(firsts) else self.counts


def unequal(bins: Bins, records: Totals, rows: Totals, dead: Totals) -> list[int]:
    """Return the bins whose records are not the rows and dead letters, ascending."""
    compared = np.array([each.state == "compared" for each in bins.parts], bool)[bins.part]
    differ = records.counts != rows.counts + dead.counts
    differ |= (records.digests != rows.digests + dead.digests).any(axis=1)
    found: list[int] = np.flatnonzero(differ & compared).tolist()
    return found


Counted = Mapping[tuple[int, bytes | None], int]
"""How often a side has an offset and its bytes, which are all null if they are not compared."""


def first_difference(records: Counted, rows: Counted, what: str = "record") -> tuple[int, str] | None:
    """Return the least offset at which rows are not the records, and what is wrong; None if they are.

    ``what`` is the name of a record in the text.
    """
    here: dict[int, list[tuple[bytes | None, int]]] = {}
    for (offset, value), count in rows.items():
        here.setdefault(offset, []).append((value, count))
    expected = dict(records.keys())
    for offset in sorted(expected.keys() | here.keys()):
        found = here.get(offset, [])
        if offset not in expected:
            return offset, f"the table has a row here, where no {what} begins"
        if not found:
            return offset, f"the {what} has no row in the table"
        if sum(count for _, count in found) > 1:
            return offset, f"the {what} is in the table more than once"
        if found[0][0] != expected[offset]:
            return offset, f"the row's bytes are not the {what}'s"
    return None
