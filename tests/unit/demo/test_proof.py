"""The proof detects every kind of difference between the appended events and the table."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.demo.proof import InexactError, Proof, compare

IDS = np.arange(10, 20, dtype=np.int64)
CENTS = IDS * 7


def is_exact(proof: Proof) -> bool:
    try:
        proof.check()
    except InexactError:
        return False
    return True


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(range(10, 20), (0, 0, 0), id="exact"),
        pytest.param(range(19, 9, -1), (0, 0, 0), id="another order"),
        pytest.param(range(11, 20), (1, 0, 0), id="first lost"),
        pytest.param(range(10, 17), (3, 0, 0), id="tail lost"),
        pytest.param([*range(10, 20), 12, 12, 15], (0, 3, 0), id="three doubled"),
        pytest.param([*range(10, 19), 18], (1, 1, 0), id="one lost and one doubled"),
        pytest.param([*range(10, 20), -1, -1], (0, 0, 2), id="rows without an id"),
        pytest.param([*range(10, 20), 99], (0, 0, 1), id="a row nobody appended"),
        pytest.param([], (10, 0, 0), id="empty table"),
    ],
)
def test_differences_are_counted(rows: range | list[int], expected: tuple[int, int, int]) -> None:
    table = np.array(rows, np.int64)
    proof = compare(IDS, CENTS, table, table * 7)
    assert (proof.lost, proof.duplicated, proof.foreign) == expected
    assert proof.altered == 0
    assert is_exact(proof) == (expected == (0, 0, 0))


def test_an_altered_amount_is_seen() -> None:
    cents = CENTS.copy()
    cents[3] += 1
    proof = compare(IDS, CENTS, IDS, cents)
    assert proof.altered == 1
    assert not is_exact(proof)


def test_nothing_appended_and_nothing_there_is_exact() -> None:
    none = np.empty(0, np.int64)
    assert compare(none, none, none, none) == Proof(0, 0, 0, 0, 0, 0)


@given(st.lists(st.integers(0, 30), unique=True), st.lists(st.integers(-1, 35)))
def test_counts_match_the_slow_way(appended: list[int], rows: list[int]) -> None:
    ids, table = np.array(appended, np.int64), np.array(rows, np.int64)
    proof = compare(ids, ids, table, table)
    assert proof.lost == sum(each not in rows for each in appended)
    assert proof.duplicated == sum(max(rows.count(each) - 1, 0) for each in appended)
    assert proof.foreign == sum(each not in appended for each in rows)


def test_an_inexact_table_is_an_error_with_its_counts() -> None:
    with pytest.raises(
        InexactError, match="2 events lost, 1 duplicated, 0 never appended, 3 altered"
    ) as caught:
        Proof(10, 9, 2, 1, 0, 3).check()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
