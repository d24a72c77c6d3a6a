"""Cuts the offsets that a table covers into bins, whose records and rows are summed.

The functions here are pure. A *part* is a range of one journal whose rows are compared, or have a reason why
they cannot be. A *bin* is a piece of a part that is short enough to be compared row by row. Both sides of a
bin have a number of records and the sums of their digests; the first difference of the table is in the first
bin in which these differ.

A row's digest is the SHA-256 of a salt and the row, folded into four words of 32 bits. Each word is summed
separately, without an overflow. The salt is random, and is drawn after the compared versions of table and
journals exist. So the words of different rows are independent random numbers. If a row occurs more or less
often than it should, the sums of one word agree with a probability of about 2^-32, and those of all four with
2^-128, regardless of what was done to the table, and by whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import Positions
from gazette_spark._verify.tiling import CommittedSpan, CoveredRange
from gazette_spark.protocol.spans import outside

RECORDS, ROWS, DEAD = range(3)
"""The sides of a comparison. Dead letters replace rows."""

STRAY = -1
"""Number of the bin of rows whose journal and offset are in no range of the ledger."""

FOREIGN = -2
"""Number of the bin of rows without a journal."""

UPSERT = "the writer keeps one row of each key by upsert, so its rows are not the journal's records"
SHARED = "several app ids or sources write this journal's records, and their rows cannot be distinguished"
RECREATED = (
    "the journal was created again, and its rows cannot be distinguished from those of the old journal"
)
GONE = "the journal no longer has these bytes"
ADOPTED = "rows from before the ledger was adopted"

BIN_BYTES = 1 << 20
"""Minimum number of a journal's bytes in a bin."""

WORDS = 4
"""Number of words of a row's digest."""

MAX_BINS = 50_000
"""Maximum number of bins in addition to one for each part: every executor has the list."""


@dataclass(frozen=True, slots=True)
class Part:
    """A range ``[begin, end)`` of offsets in a covered range."""

    claim: CoveredRange
    begin: int
    end: int
    span: CommittedSpan | None = None
    """The commit that added the rows, if the rows of each commit are counted."""
    reason: str | None = None
    """Reason why the rows cannot be compared with records; None if they can."""


def parts_of(
    claim: CoveredRange, gone: Sequence[tuple[int, int]], *, refused: str | None, by_commit: bool
) -> Iterator[Part]:
    """Yield the parts of a covered range, ascending.

    Args:
        claim: The range.
        gone: Bytes that the journal no longer has, ascending.
        refused: Reason why none of the rows can be compared; None if they can.
        by_commit: Whether a part may only have rows of one commit.
    """
    if claim.adopted and claim.start:
        yield Part(claim, 0, claim.start, reason=ADOPTED)
    if refused:
        if claim.start < claim.end:
            yield Part(claim, claim.start, claim.end, reason=refused)
        return
    commits: list[tuple[int, int, CommittedSpan | None]] = [(claim.start, claim.end, None)]
    if by_commit:
        commits = [(span.begin, span.end, span) for span in claim.spans]
        # The bytes of cleaned-up entries come before the bytes of the remaining commits.
        first = claim.spans[0].begin if claim.spans else claim.end
        commits[:0] = [(claim.start, first, None)] if claim.start < first else []
    for begin, end, span in commits:
        lost = [(max(low, begin), min(high, end)) for low, high in gone if low < end and begin < high]
        pieces: list[tuple[int, int, str | None]] = [(*piece, None) for piece in outside(lost, begin, end)]
        pieces += [(*piece, GONE) for piece in lost]
        for low, high, reason in sorted(pieces):
            yield Part(claim, low, high, span, reason)


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Bins of parts, in the parts' order. A bound of a bin is a multiple of ``width`` or its part's bound."""

    parts: Sequence[Part]
    part: Positions
    """Index of each bin's part."""
    begins: Positions
    ends: Positions
    width: int

    @classmethod
    def of(cls, parts: Sequence[Part], *, least: int = BIN_BYTES, most: int = MAX_BINS) -> Bins:
        """Cut parts into bins."""
        # Every executor has the list of bins, so a large table gets wider ones.
        width = max(least, sum(part.end - part.begin for part in parts) // most)
        edges = [
            # Bounds are multiples of the width, except at a part's ends. So a row's offset, divided by the
            # width, gives its bin by an equality join: a join on ranges alone would compare each row with
            # each bin.
            np.array([part.begin, *range(part.begin // width * width + width, part.end, width), part.end])
            for part in parts
        ]
        return cls(
            parts,
            np.repeat(np.arange(len(parts)), [len(edge) - 1 for edge in edges]),
            np.concatenate([np.empty(0, np.int64), *(edge[:-1] for edge in edges)]),
            np.concatenate([np.empty(0, np.int64), *(edge[1:] for edge in edges)]),
            width,
        )

    def __len__(self) -> int:
        return len(self.part)

    def one(self, index: int) -> Part:
        """Return one bin as a part."""
        part = self.parts[int(self.part[index])]
        return Part(part.claim, int(self.begins[index]), int(self.ends[index]), part.span, part.reason)

    def table(self) -> pa.Table:
        """Return the bins as rows."""
        claims = [self.parts[at].claim for at in self.part.tolist()]
        return pa.table(
            {
                "bin": pa.array(np.arange(len(self)), pa.int64()),
                "app_id_": pa.array([claim.app_id for claim in claims], pa.string()),
                "journal_": pa.array([claim.journal for claim in claims], pa.string()),
                "part_": pa.array(self.part, pa.int64()),
                "slot_": pa.array(self.begins // self.width, pa.int64()),
                "begin_": pa.array(self.begins, pa.int64()),
                "end_": pa.array(self.ends, pa.int64()),
            }
        )

    def by_part(self, counts: Positions) -> Positions:
        """Sum numbers of bins by part."""
        return np.bincount(self.part, counts, len(self.parts)).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """The sums of one side (records, rows or dead letters) by bin."""

    counts: Positions
    digests: Positions
    """Sums of the words of the rows' digests: :data:`WORDS` numbers for each bin."""
    committed: Positions
    """Number of rows that were committed in the bytes of a bin. For messages this differs from the number of
    rows with offsets in the bin, because a message begins before the bytes that commit it."""
    outside: Mapping[int, int] = field(default_factory=dict)
    """Number of rows in no bin, by the negative number of the reason."""

    def __add__(self, other: Totals) -> Totals:
        """Return the sums of the rows of both, by the same bins."""
        outside = {at: self.outside.get(at, 0) + other.outside.get(at, 0) for at in (STRAY, FOREIGN)}
        return Totals(
            self.counts + other.counts,
            self.digests + other.digests,
            self.committed + other.committed,
            {at: count for at, count in outside.items() if count},
        )

    @classmethod
    def gathered(cls, size: int, sums: Iterable[Sequence[int | None]]) -> Totals:
        """Collect sums of rows with their offset's bin, their commit's bin, their number and words."""
        counts, committed = np.zeros(size, np.int64), np.zeros(size, np.int64)
        digests = np.zeros((size, WORDS), np.int64)
        outside: dict[int, int] = {}
        for at, commit_at, count, *words in sums:
            assert at is not None
            assert count is not None
            # A message counts where it was committed, and is compared where it begins.
            if commit_at is not None:
                committed[commit_at] += count
            if at < 0:
                outside[at] = outside.get(at, 0) + count
            else:
                counts[at] += count
                digests[at] += words
        return cls(counts, digests, committed, outside)


def unequal(bins: Bins, records: Totals, rows: Totals, dead: Totals) -> list[int]:
    """Return the bins whose records differ from the rows and dead letters, ascending."""
    # A part with a reason has rows that are expected to differ.
    compared = np.array([part.reason is None for part in bins.parts], bool)[bins.part]
    differ = records.counts != rows.counts + dead.counts
    # Sums of sides can be added, because dead letters replace rows.
    differ |= (records.digests != rows.digests + dead.digests).any(axis=1)
    different: list[int] = np.flatnonzero(differ & compared).tolist()
    return different


Counted = Mapping[tuple[int, bytes | None], int]
"""The number of times that a side has an offset with its bytes or their digest."""


def first_difference(records: Counted, rows: Counted, what: str = "record") -> tuple[int, str] | None:
    """Return the smallest offset at which rows differ from records, and the problem; None without one.

    ``what`` is the name of a record in the text.
    """
    by_offset: dict[int, list[tuple[bytes | None, int]]] = {}
    for (offset, value), count in rows.items():
        by_offset.setdefault(offset, []).append((value, count))
    # A journal has one record at an offset, so its bytes are a value, not a count.
    expected = dict(records.keys())
    for offset in sorted(expected.keys() | by_offset.keys()):
        values = by_offset.get(offset, [])
        if offset not in expected:
            return offset, f"the table has a row here, but no {what} begins here"
        if not values:
            return offset, f"the {what} has no row in the table"
        if sum(count for _, count in values) > 1:
            return offset, f"the {what} is in the table more than once"
        if values[0][0] != expected[offset]:
            return offset, f"the row's bytes differ from the {what}'s"
    return None
