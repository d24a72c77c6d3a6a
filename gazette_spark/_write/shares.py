"""Distributes the rows of a record batch among journals, in whole columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gazette_spark._formats.arrays import null_rows, valid_texts, value_bounds, value_octets
from gazette_spark._formats.framing import RowRefusal
from gazette_spark.client._append.mappings import (
    Hashes,
    fnv1a32,
    fnv1a32_each,
    modulo_picks,
    rendezvous_picks,
)

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The rows of one journal, in their order."""

    journal: str
    rows: Rows | None = None
    """Indices of the rows; None for all rows."""


def shares_by_name(journals: pa.Array) -> list[Share] | RowRefusal:
    """Distribute rows by a column of journals' names; refuse the first row without a name."""
    if journals.null_count:
        index = int(null_rows(journals)[0])
        return RowRefusal(index, "its journal is null", "Name one, or set option 'journal' for all rows")
    if not len(journals):
        return []
    encoded = journals.dictionary_encode()
    # Spark's strings may have bytes that are not UTF-8. No journal has such a name, so it is refused later,
    # in an error that names the row.
    names = valid_texts(encoded.dictionary).to_pylist()
    picks = np.frombuffer(encoded.indices.buffers()[1], np.int32)[: len(journals)].astype(np.int64)
    return shares_of(picks, names)


@dataclass(frozen=True, slots=True, eq=False)
class KeyMapping:
    """The journal of each key, as in :mod:`gazette_spark.client._append.mappings`."""

    journals: tuple[str, ...]
    """At least one, sorted by name."""
    weights: Hashes | None = None
    """Hashes of the names for the mapping ``rendezvous``; None for ``modulo``."""

    @classmethod
    def of(cls, journals: Sequence[str], mapping: str) -> KeyMapping:
        """Return the mapping ``modulo`` or ``rendezvous``."""
        weights = np.array([fnv1a32(name.encode()) for name in journals], np.uint32)
        return cls(tuple(journals), weights if mapping == "rendezvous" else None)

    def shares(self, keys: pa.Array, rng: np.random.Generator) -> list[Share]:
        """Distribute rows by a binary or string column, and rows without a key at random, as Kafka does."""
        # Use the hash of Gazette's own clients, so that programs in Go and Spark put a key into the same
        # journal.
        hashes = fnv1a32_each(value_octets(keys), value_bounds(keys))
        if self.weights is None:
            picks = modulo_picks(hashes, len(self.journals))
        else:
            picks = rendezvous_picks(hashes, self.weights)
        if keys.null_count:
            without = null_rows(keys)
            picks[without] = rng.integers(len(self.journals), size=len(without))
        return shares_of(picks, self.journals)


def shares_at_random(rows: int, journals: Sequence[str], rng: np.random.Generator) -> list[Share]:
    """Distribute rows at random. All journals are equally likely."""
    return shares_of(rng.integers(len(journals), size=rows), journals)


def shares_of(picks: Rows, journals: Sequence[str]) -> list[Share]:
    """Return the share of each journal. ``picks`` has the index of each row's journal."""
    order = np.argsort(picks, kind="stable")
    counts = np.bincount(picks, minlength=len(journals))
    # All rows go to one journal, so no copy by index is needed.
    if len(picks) and counts.max() == len(picks):
        return [Share(journals[int(picks[0])])]
    stops = np.cumsum(counts)
    chosen = np.flatnonzero(counts)
    return [
        Share(journals[int(index)], order[stops[index] - counts[index] : stops[index]]) for index in chosen
    ]
