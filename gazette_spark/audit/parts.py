"""The parts of the journals that a table covers, cut into bins whose records and rows are added up.

Everything here is a function of values. A *part* is offsets of one journal to which one rule applies: their
rows are compared with records, or are not, with the reason. A *bin* is a piece of a part that is short enough
to be looked at alone. Both sides of a bin have a number of records and a digest; where those differ, the
first difference of the table is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa

from gazette_spark.audit.tiling import CoveredRange, Span
from gazette_spark.framing.base import Positions
from gazette_spark.protocol.spans import outside

State = Literal["compared", "gone", "adopted", "refused"]
"""Whether the rows of a part are compared; if not: the journal lost their bytes, they are older than the
ledger, or they are not the journal's records."""

BIN_BYTES = 1 << 20
"""Least bytes of a journal in a bin: their records and rows fit into memory."""

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
    """Exclusive or of a digest of each offset, and of its bytes if both sides have them."""
    audits: Positions
    """Exclusive or of the digests that entries record, see :mod:`gazette_spark.ledger.row_digest`."""
    outside: Mapping[int, int] = field(default_factory=dict)
    """Rows in no bin, by the negative number that stands for the reason."""

    @classmethod
    def gathered(cls, size: int, found: Iterable[tuple[int, int, int | None, int | None]]) -> Totals:
        """Gather the sums of bins; those that are not named have no rows."""
        counts, digests, audits = (np.zeros(size, np.int64) for _ in range(3))
        outside: dict[int, int] = {}
        for number, count, digest, audit in found:
            if number < 0:
                outside[number] = count
            else:
                counts[number], digests[number], audits[number] = count, digest or 0, audit or 0
        return cls(counts, digests, audits, outside)

    def by_part(self, bins: Bins) -> Totals:
        """Return the sums of parts."""
        firsts = np.searchsorted(bins.part, np.arange(len(bins.parts)))
        if not len(firsts):
            return self
        return Totals(
            np.add.reduceat(self.counts, firsts),
            np.bitwise_xor.reduceat(self.digests, firsts),
            np.bitwise_xor.reduceat(self.audits, firsts),
            self.outside,
        )

    def of(self, parts: Sequence[int]) -> tuple[int, int]:
        """Return the number of rows of some parts, and the digest that an entry would record."""
        return int(self.counts[parts].sum()), int(np.bitwise_xor.reduce(self.audits[parts], initial=0))


def unequal(bins: Bins, records: Totals, rows: Totals, dead: Totals) -> list[int]:
    """Return the bins whose records are not the rows and dead letters, ascending."""
    compared = np.array([each.state == "compared" for each in bins.parts], bool)[bins.part]
    differ = records.counts != rows.counts + dead.counts
    differ |= records.digests != rows.digests ^ dead.digests
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
