"""The digest of rows as its definition says, without Spark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def digest_of(rows: Iterable[tuple[int, bytes]]) -> int:
    """Return the digest of rows, each an offset and a value, as a number.

    The digest of two sets of rows is the exclusive or of their digests.
    """
    found = 0
    for offset, value in rows:
        found ^= int.from_bytes(hashlib.sha256(b"%d:%b" % (offset, value)).digest()[:8]) >> 4
    return found
