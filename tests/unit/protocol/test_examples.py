"""Tests the examples in the docstrings of the protocol package."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from gazette_spark.protocol import durations, labels


@pytest.mark.parametrize("module", [durations, labels], ids=lambda module: module.__name__)
def test_examples(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed
