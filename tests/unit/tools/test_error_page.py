"""docs/reference/errors.md has every error, with its meaning and its remedy."""

from __future__ import annotations

import re

from gazette_spark import errors
from tools.error_page import PAGE, REMEDIES, with_tables

BASES = set(re.findall(r"\[(\w+)\]", errors.__doc__ or ""))
"""Errors that are never raised themselves; the tree shows them in brackets."""


def test_every_error_has_a_remedy() -> None:
    """Every error that can be raised appears exactly once, and no other name does."""
    named = [name for remedies in REMEDIES.values() for name in remedies]
    raised = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.GazetteError)
    }
    assert sorted(named) == sorted(raised - BASES)


def test_the_page_is_current() -> None:
    """``make generated`` would change nothing."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page


def test_the_tree_is_drawn_as_it_is() -> None:
    """The tree at the top of the file of errors has each class below its base."""
    drawn: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if not re.fullmatch(r"    +[\[\w].*Error\]?", line):
            continue
        indent, names = len(line) - len(line.lstrip()), re.findall(r"\w+", line)
        above = [(width, name) for width, name in above if width < indent]
        drawn |= dict.fromkeys(names, above[-1][1] if above else "Exception")
        above.append((indent, names[-1]))
    real = {
        name: member.__bases__[0].__name__
        for name, member in vars(errors).items()
        if isinstance(member, type) and issubclass(member, errors.GazetteError)
    }
    assert drawn == real
