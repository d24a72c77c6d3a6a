"""The number of records in each commit's bytes of a journal, and their digest, against its entry."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gazette_spark.audit.compare_rows import Rows
from gazette_spark.audit.differences import Difference
from gazette_spark.audit.tiling import CoveredRange, Span
from gazette_spark.ledger.row_digest import digest_of, digest_text


class SpanTotals:
    """Adds up the records of a claim, span by span, in any order."""

    def __init__(self, claim: CoveredRange) -> None:
        self._claim = claim
        self._begins = [span.begin for span in claim.spans]
        self.counts = np.zeros(len(self._begins), np.int64)
        self.digests = [0] * len(self._begins)

    @property
    def digested(self) -> bool:
        """Whether records are to come with their bytes: an entry has a digest."""
        return any(span.digest for span in self._claim.spans)

    def add(self, records: Rows) -> None:
        """Count records, and digest them if they have their bytes."""
        if not self._begins or not len(records):
            return
        of = np.searchsorted(self._begins, records.offsets, side="right") - 1
        self.counts += np.bincount(of[of >= 0], minlength=len(self._begins))
        if records.values is None or not self.digested:
            return
        for at in np.unique(of[of >= 0]).tolist():
            low, high = np.searchsorted(of, [at, at + 1])
            self.digests[at] ^= _digest(records.offsets[low:high].tolist(), records.values[low:high])

    def difference(self, at: int, what: str, *, digested: bool) -> Difference | None:
        """Return the difference between the totals and the entry of a span.

        Args:
            at: Number of the span.
            what: Name of the totals, for the text.
            digested: Whether to compare digests.
        """
        span, count = self._claim.spans[at], int(self.counts[at])
        if span.rows not in (None, count):
            return self._differs(span, f"its entry says {span.rows} rows, there are {count} {what}")
        digest = digest_text(self.digests[at])
        if digested and span.digest not in (None, digest):
            return self._differs(span, f"its entry has the digest {span.digest}, the {what} have {digest}")
        return None

    def _differs(self, span: Span, problem: str) -> Difference:
        return Difference(problem, span.table_version, self._claim.journal, span.begin, span.end)


def _digest(offsets: list[int], values: pa.BinaryArray) -> int:
    """Digest rows; one whose value is null counts for nothing, as in Spark."""
    pairs = zip(offsets, values.to_pylist(), strict=True)
    return digest_of((offset, value) for offset, value in pairs if value is not None)
