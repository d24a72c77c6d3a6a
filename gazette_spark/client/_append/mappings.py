"""Chooses the journal of a message at random or by its key, as Gazette's own mappings do.

A mapping is made for a listing of journals, such as a topic's partitions, and called with a message. It
returns the journal's name and its content type, which determines the framing of the message.

=============  =================================  ==================================================
mapping        a key's journal                    when a journal is added or removed
=============  =================================  ==================================================
random         any                                –
modulo         hash modulo number of journals     most keys move
rendezvous     greatest hash of key and journal   keys of that journal move, no others
=============  =================================  ==================================================

Hashes are 32-bit FNV-1a. Programs in other languages that map the same keys to the same journals agree.

Columns of keys are mapped by :func:`fnv1a32_each`, :func:`modulo_picks` and :func:`rendezvous_picks`, with
the same results: keys are the bytes between bounds in one buffer, as in Arrow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from gazette_spark.errors import EmptyListingError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import CONTENT_TYPE, values_of

M = TypeVar("M")

FNV1A32_BASIS = 2166136261
"""Initial value of the hash."""
FNV1A32_PRIME = 16777619
"""Multiplier of the hash for each byte."""

LONG_KEY_BYTES = 256
"""Maximum length, in bytes, of keys that are hashed together. Each byte position costs a pass over the
keys."""

Octets = npt.NDArray[np.uint8]
Bounds = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]
Picks = npt.NDArray[np.int64]
"""Index of a journal for each key."""

Journals: TypeAlias = Sequence[pb.ListResponse.Journal]
Partitions: TypeAlias = Journals | Callable[[], Journals]
"""Journals in the order of their names, or a function that returns them, such as that of a watched list."""


def fnv1a32(key: bytes) -> int:
    """Return the 32-bit FNV-1a hash of any bytes."""
    value = FNV1A32_BASIS
    for byte in key:
        # Python's integers do not overflow, so the hash is cut to 32 bits after each multiplication.
        value = (value ^ byte) * FNV1A32_PRIME & 0xFFFFFFFF
    return value


class RandomMapping:
    """Maps each message to any journal, all equally likely. Thread-safe."""

    def __init__(self, partitions: Partitions, choose: Callable[[int], int] = random.randrange) -> None:
        """Map to ``partitions``. ``choose`` returns a number below its argument."""
        self._partitions = _source(partitions)
        self._choose = choose

    def __call__(self, _message: object = None) -> tuple[str, str]:
        """Return the journal and content type of a message.

        Raises:
            EmptyListingError: there is no journal.
        """
        journals = _present(self._partitions())
        return _target(journals[self._choose(len(journals))])


class ModuloMapping(Generic[M]):
    """Maps messages with equal keys to one journal while the number of journals is constant. Thread-safe."""

    def __init__(self, key: Callable[[M], bytes], partitions: Partitions) -> None:
        """Map to ``partitions`` by what ``key`` returns for a message."""
        self._key = key
        self._partitions = _source(partitions)

    def __call__(self, message: M) -> tuple[str, str]:
        """Return the journal and content type of a message.

        Raises:
            EmptyListingError: there is no journal.
        """
        journals = _present(self._partitions())
        return _target(journals[fnv1a32(self._key(message)) % len(journals)])


class RendezvousMapping(Generic[M]):
    """Maps messages with equal keys to the same journal while that journal exists. Thread-safe.

    Journals are hashed once for each sequence that ``partitions`` returns, so it should return the same
    object until the journals change.
    """

    def __init__(self, key: Callable[[M], bytes], partitions: Partitions) -> None:
        """Map to ``partitions`` by what ``key`` returns for a message."""
        self._key = key
        self._partitions = _source(partitions)
        self._hashed: tuple[Journals, np.ndarray] = ((), np.empty(0, np.uint32))

    def __call__(self, message: M) -> tuple[str, str]:
        """Return the journal and content type of a message.

        Raises:
            EmptyListingError: there is no journal.
        """
        journals = _present(self._partitions())
        hashed, hashes = self._hashed
        if hashed is not journals:
            hashes = np.array([fnv1a32(journal.spec.name.encode()) for journal in journals], np.uint32)
            self._hashed = (journals, hashes)
        # Of equal weights, argmax takes the first.
        return _target(journals[int(np.argmax(hashes ^ np.uint32(fnv1a32(self._key(message)))))])


def _source(partitions: Partitions) -> Callable[[], Journals]:
    if callable(partitions):
        return partitions
    # A copy, so that the caller's later changes do not move keys between journals.
    journals = tuple(partitions)
    return lambda: journals


def _present(journals: Journals) -> Journals:
    if not journals:
        raise EmptyListingError
    return journals


def _target(journal: pb.ListResponse.Journal) -> tuple[str, str]:
    return journal.spec.name, next(iter(values_of(journal.spec.labels, CONTENT_TYPE)), "")


def fnv1a32_each(octets: Octets, bounds: Bounds) -> Hashes:
    """Return the 32-bit FNV-1a hash of each key.

    Args:
        octets: The bytes of all keys.
        bounds: Shape ``(n + 1,)``; key *i* is ``octets[bounds[i]:bounds[i + 1]]``.
    """
    # Keys differ in length, but numpy works on whole columns. Sorted by length, the keys that still have a
    # byte at a position are the first ones, so each position is one operation on a slice.
    lengths = np.diff(bounds)
    order = np.argsort(-lengths, kind="stable")
    starts, ascending = bounds[:-1][order], lengths[order][::-1]
    longest = int(ascending[-1]) if len(ascending) else 0
    values = np.full(len(order), FNV1A32_BASIS, np.uint32)
    prime = np.uint32(FNV1A32_PRIME)
    for at in range(min(longest, LONG_KEY_BYTES)):
        # The keys with a byte at this position come first.
        count = len(order) - int(np.searchsorted(ascending, at, "right"))
        values[:count] = (values[:count] ^ octets[starts[:count] + at]) * prime
    hashes = np.empty_like(values)
    hashes[order] = values
    # Long keys are hashed one by one: each of their bytes would otherwise cost a pass.
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
        # Strictly greater: among equal weights the first journal wins, as in Gazette.
        picks[weights > greatest] = index
        np.maximum(greatest, weights, out=greatest)
    return picks
