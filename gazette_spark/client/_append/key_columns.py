"""Columns of keys to journals: :mod:`gazette_spark.client._append.mappings` in numpy, same answers.

Keys are the bytes between bounds in one buffer, as Arrow holds them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gazette_spark.client._append.mappings import FNV1A32_BASIS, FNV1A32_PRIME, fnv1a32

LONG_KEY_BYTES = 256
"""Keys longer than that are hashed one by one: each byte position costs a step over all keys that have it."""

Octets = npt.NDArray[np.uint8]
Bounds = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]
Picks = npt.NDArray[np.int64]
"""Index of a journal for each key."""


def fnv1a32_each(octets: Octets, bounds: Bounds) -> Hashes:
    """Return the 32-bit FNV-1a hash of each key.

    Args:
        octets: the bytes of all keys.
        bounds: ``(n + 1,)``; key *i* is ``octets[bounds[i]:bounds[i + 1]]``.
    """
    lengths = np.diff(bounds)
    order = np.argsort(-lengths, kind="stable")
    starts, ascending = bounds[:-1][order], lengths[order][::-1]
    longest = int(ascending[-1]) if len(ascending) else 0
    found = np.full(len(order), FNV1A32_BASIS, np.uint32)
    prime = np.uint32(FNV1A32_PRIME)
    for at in range(min(longest, LONG_KEY_BYTES)):
        # The keys that have a byte there come first.
        having = len(order) - int(np.searchsorted(ascending, at, "right"))
        found[:having] = (found[:having] ^ octets[starts[:having] + at]) * prime
    hashes = np.empty_like(found)
    hashes[order] = found
    for index in np.flatnonzero(lengths > LONG_KEY_BYTES):
        hashes[index] = fnv1a32(octets[bounds[index] : bounds[index + 1]].tobytes())
    return hashes


def modulo_picks(hashes: Hashes, journals: int) -> Picks:
    """Return each key's journal, as an index into ``journals`` journals in the order of their names."""
    return (hashes % np.uint32(journals)).astype(np.int64)


def rendezvous_picks(hashes: Hashes, journals: Hashes) -> Picks:
    """Return each key's journal, as an index into the hashes of the journals' names."""
    picks = np.zeros(len(hashes), np.int64)
    greatest = hashes ^ journals[0]
    for index in range(1, len(journals)):
        weights = hashes ^ journals[index]
        picks[weights > greatest] = index
        np.maximum(greatest, weights, out=greatest)
    return picks
