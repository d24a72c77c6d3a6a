"""The number of rows that a batch has of each journal, and a digest of their bytes.

A digest is the exclusive or, over all rows, of the first 60 bits of

    SHA-256( offset in decimal, ":", value )

Rows come in no order, so the digest does not depend on one; 60 bits fit a BIGINT of Spark without its sign. A
row that is present twice cancels itself out, which the number of rows shows. The digest finds rows that were
lost or changed by accident. An attacker who forges rows can forge the digest too.

Spark computes it in :mod:`gazette_spark.table.batch_digest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DIGITS = 15
"""Hexadecimal digits of a digest, four bits each."""


@dataclass(frozen=True, slots=True)
class AuditedRows:
    """Number and digest of the rows that a batch has of one journal."""

    journal: str | None
    """None: rows of no journal, or of a batch without a column that says which."""
    rows: int
    digest: str | None = None
    """Fifteen hexadecimal digits; None where the batch does not have the records' bytes."""

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
            case [str() | None as journal, int(rows), str(digest)] if rows >= 0 and is_digest(digest):
                return cls(journal, rows, digest)
        raise ValueError(f"no audit of rows: {value!r:.200}")


def is_digest(text: str) -> bool:
    """Tell whether a text is a digest as :func:`digest_text` writes it."""
    return len(text) == DIGITS and set(text) <= set("0123456789abcdef")


def digest_text(digest: int) -> str:
    """Return a digest as it is stored."""
    return f"{digest:0{DIGITS}x}"
