"""Every row is in exactly one share; examples that the property tests do not reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import value_bounds, value_octets
from gazette_spark._formats.framing import RowRefusal
from gazette_spark._write.task import KeyMapping, Share, shares_at_random, shares_by_name
from gazette_spark.client._append.mappings import LONG_KEY_BYTES, fnv1a32, fnv1a32_each

RNG = np.random.default_rng(5)


def rows_of(shares: Sequence[Share], rows: int) -> dict[str, list[int]]:
    return {each.journal: list(range(rows)) if each.rows is None else each.rows.tolist() for each in shares}


def test_a_long_key_is_hashed_to_its_end() -> None:
    """The lengths are those around which the hash algorithm changes."""
    keys = [bytes(range(256)) * 2] + [b"x" * (LONG_KEY_BYTES + more) for more in (-1, 0, 1)]
    column = pa.array(keys, pa.binary())
    hashes = fnv1a32_each(value_octets(column), value_bounds(column))
    assert hashes.tolist() == [fnv1a32(key) for key in keys]


def test_rows_without_a_key_go_anywhere() -> None:
    keys = pa.array([None, "k"] * 500)
    shares = rows_of(KeyMapping.of(["a", "b", "c"], "modulo").shares(keys, RNG), 1000)
    chosen = next(journal for journal, rows in shares.items() if 1 in rows)
    assert set(range(1, 1000, 2)) <= set(shares[chosen])
    assert all(len(shares[journal]) > 100 for journal in "abc")


def test_a_row_without_a_journal_is_refused() -> None:
    refused = shares_by_name(pa.array(["a", None, "b", None]))
    assert isinstance(refused, RowRefusal)
    assert (refused.index, refused.problem) == (1, "its journal is null")


def test_a_name_that_is_not_utf8_is_shown() -> None:
    """Spark makes such a string by a cast of bytes, but no journal can have that name."""
    raw = pa.array([b"a/journal", b"a/\xff"], pa.binary())
    shares = shares_by_name(pa.Array.from_buffers(pa.string(), len(raw), raw.buffers()))
    assert isinstance(shares, list)
    assert rows_of(shares, 2) == {"a/journal": [0], "a/\ufffd": [1]}


def test_one_journal_gets_all_rows() -> None:
    """Without a choice, no row index is built."""
    (share,) = shares_at_random(10, ["a"], RNG)
    assert (share.journal, share.rows) == ("a", None)
    assert shares_at_random(0, ["a", "b"], RNG) == []
