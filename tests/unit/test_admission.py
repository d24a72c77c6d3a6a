"""A read limit is shared fairly, and no limit stops a query."""

from __future__ import annotations

import pytest

from gazette_spark.admission import Backlog, admit


def test_without_a_limit_a_batch_may_read_to_every_head() -> None:
    """No limit, no sharing."""
    assert admit({"a/b": Backlog(10, 30), "c/d": Backlog(0, 5)}, None) == {"a/b": 30, "c/d": 5}


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    """The limit counts the sum over all journals."""
    assert admit({"a/b": Backlog(10, 30), "c/d": Backlog(0, 5)}, 25) == {"a/b": 30, "c/d": 5}


def test_a_limit_is_shared_in_proportion_to_the_backlog() -> None:
    """A journal with three times the backlog is given three times the bytes."""
    assert admit({"a/b": Backlog(0, 3000), "c/d": Backlog(500, 1500)}, 400) == {"a/b": 300, "c/d": 600}


def test_a_small_journal_is_not_starved_by_large_ones() -> None:
    """A share below one byte is one byte."""
    assert admit({"big": Backlog(0, 10**12), "small": Backlog(7, 8)}, 10)["small"] == 8


def test_a_limit_below_the_number_of_journals_gives_each_a_byte() -> None:
    """The limit is soft: every journal with a backlog moves."""
    backlogs = {f"journal/{n}": Backlog(0, 100) for n in range(5)}
    assert admit(backlogs, 1) == dict.fromkeys(backlogs, 1)


def test_a_journal_without_backlog_stays_where_it_is() -> None:
    """Nothing to read, nothing admitted, and no share taken from others."""
    assert admit({"idle": Backlog(9, 9), "busy": Backlog(0, 50)}, 20) == {"idle": 9, "busy": 20}


def test_no_journals_no_ends() -> None:
    """An empty selection is no division by zero."""
    assert admit({}, 10) == {}


@pytest.mark.parametrize(
    ("begin", "head"), [pytest.param(5, 4, id="head_before_begin"), pytest.param(-1, 4, id="negative")]
)
def test_an_impossible_backlog_is_refused(begin: int, head: int) -> None:
    """A head below the position is an error to be raised before admission."""
    with pytest.raises(ValueError, match="0 <= begin <= head"):
        Backlog(begin, head)
