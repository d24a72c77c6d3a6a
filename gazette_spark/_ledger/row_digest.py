"""Counts the rows from each journal in a batch, and digests their bytes.

A digest is the root of a tree of SHA-256 hashes, so it does not depend on the order of the rows or on the
tasks that hash them:

1. The hash of a row is the hash of its offset in decimal, ``:`` and its value. A null value is left out
   together with the colon.
2. A leaf is the set of rows whose offsets, divided by :data:`LEAF_BYTES`, have the same quotient. Its hash is
   the hash of its rows' hashes, sorted and concatenated.
3. A node consists of the leaves within :data:`NODE_BYTES`, and the root of all nodes. Both are hashed like a
   leaf.

Hashes are written and concatenated as 64 hexadecimal digits each.

Two different collections of rows with the same digest would be a collision of SHA-256, because the input of
each hash determines the hashes or the row below it: the text of a row has a colon or is shorter than a hash.

A sum of hashes would be cheaper, but an attacker can solve for its terms. Under exclusive or, a row that
occurs three times looks like one, and Gaussian elimination finds rows that cancel each other out. Under a sum
modulo 2^256, Wagner's generalized birthday attack needs about 2^32 hashes if the attacker chooses the bytes
of 2^16 rows. A salt would not help, because the entry has to contain it. A sum resists these attacks only
from about 16,000 bits (LtHash), which takes more work for each row than the tree.

The digest does not protect against someone who can rewrite Delta's log: they can replace it together with the
rows.

Spark computes the digest in :mod:`gazette_spark._delta.batch_digest`, and :func:`tree_digest` without Spark.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

LEAF_BYTES = 1 << 20
"""Range of offsets of a leaf. The hashes of its rows are in the memory of one task."""

NODE_BYTES = 1 << 30
"""Range of offsets of a node."""

DIGITS = 64
"""Number of hexadecimal digits of a digest."""


@dataclass(frozen=True, slots=True)
class AuditedRows:
    """Number and digest of a batch's rows from one journal."""

    journal: str | None
    """The journal; None for rows without a journal, or if the batch has no column of journals."""
    rows: int
    digest: str | None = None
    """64 hexadecimal digits; None if the batch does not contain the records' bytes."""

    def to_value(self) -> list[Any]:
        """Return the stored form."""
        return [self.journal, self.rows, self.digest]

    @classmethod
    def from_value(cls, value: object) -> AuditedRows:
        """Read the stored form.

        Raises:
            ValueError: the value is not a valid stored form.
        """
        match value:
            case [str() | None as journal, int(rows), None] if rows >= 0:
                return cls(journal, rows)
            case [str() | None as journal, int(rows), str(digest)] if (
                rows >= 0 and len(digest) == DIGITS and set(digest) <= set("0123456789abcdef")
            ):
                return cls(journal, rows, digest)
        raise ValueError(f"expected the number and digest of a journal's rows, got {value!r:.200}")


def row_text(offset: int | None, value: bytes | None) -> bytes:
    """Return the bytes that are hashed for a row."""
    text = b"" if offset is None else b"%d" % offset
    return text if value is None else b"%b:%b" % (text, value)


def tree_digest(rows: Iterable[tuple[int, bytes | None]]) -> str:
    """Return the digest of at least one row; each row is a pair of offset and value."""
    # These are the same three levels as in Spark, where only the hashes of one leaf are ever in one place.
    level = [(offset, hashlib.sha256(row_text(offset, value)).hexdigest()) for offset, value in rows]
    for width in (LEAF_BYTES, NODE_BYTES, 1 << 63):
        groups: dict[int, list[str]] = defaultdict(list)
        for offset, digest in level:
            groups[offset // width].append(digest)
        level = [
            (number * width, hashlib.sha256("".join(sorted(digests)).encode()).hexdigest())
            for number, digests in groups.items()
        ]
    [(_, root)] = level
    return root
