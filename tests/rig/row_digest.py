"""Reference digests of rows, computed from their definitions without Spark; and rows that cancel out."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

LEAF_BYTES, NODE_BYTES = 1 << 20, 1 << 30

Row = tuple[int, bytes | None]


def digest_of(rows: Iterable[Row]) -> str:
    """Return an entry's digest of rows, each an offset and a value."""
    level = [(row[0], hashlib.sha256(row_text(*row)).hexdigest()) for row in rows]
    for width in (LEAF_BYTES, NODE_BYTES, 1 << 63):
        lists: dict[int, list[str]] = defaultdict(list)
        for offset, digest in level:
            lists[offset // width].append(digest)
        level = [
            (at * width, hashlib.sha256("".join(sorted(found)).encode()).hexdigest())
            for at, found in lists.items()
        ]
    [(_, digest)] = level
    return digest


def row_text(offset: int, value: bytes | None) -> bytes:
    return b"%d" % offset if value is None else b"%d:%b" % (offset, value)


def words_of(salt: bytes, offset: int, value: bytes | None) -> list[int]:
    """Return what `verify` adds up for a row: words of its salted hash, which Spark folds in another way.

    The value is None if bytes are not compared.
    """
    digits = hashlib.sha256(salt + row_text(offset, value)).hexdigest()
    return [int(digits[at : at + 8], 16) for at in range(0, 32, 8)]


def that_cancel_out(digests: Sequence[int]) -> list[int]:
    """Return an even number of indexes, at least two, whose digests have an exclusive or of zero.

    Gaussian elimination over GF(2) finds them, as there are more digests than bits in a digest.
    """
    width = max(each.bit_length() for each in digests)
    basis: dict[int, tuple[int, int]] = {}
    for index, digest in enumerate(digests):
        vector, members = digest | 1 << width, 1 << index  # The top bit makes the number of rows even.
        while vector:
            top = vector.bit_length()
            if top not in basis:
                basis[top] = vector, members
                break
            vector, members = vector ^ basis[top][0], members ^ basis[top][1]
        else:
            return [at for at in range(index + 1) if members >> at & 1]
    raise AssertionError("too few digests")
