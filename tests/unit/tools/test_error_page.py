"""docs/reference/errors.md has every error, with its meaning and its way out."""

from __future__ import annotations

from gazette_spark import errors
from tools.error_page import PAGE, WAYS_OUT, with_tables

BASES = {"GazetteError", "SinkError", "BatchMismatchError", "StatusError", "ShardStatusError"}
"""Errors that are never raised themselves."""


def test_every_error_has_a_way_out() -> None:
    """No error that can be raised is left out, none is named twice, and none is made up."""
    named = [name for ways in WAYS_OUT.values() for name in ways]
    raised = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.GazetteError)
    }
    assert sorted(named) == sorted(raised - BASES)


def test_the_page_is_current() -> None:
    """`make generated` would change nothing."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page
