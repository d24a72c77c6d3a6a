"""Admission under random backlogs: bounded, fair, and always moving."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.admission import Backlog, admit

offsets = st.integers(0, 2**62)
backlogs = st.dictionaries(
    st.text("abc/", min_size=1, max_size=4),
    st.tuples(offsets, st.one_of(st.integers(0, 300), offsets)).map(lambda p: Backlog(p[0], p[0] + p[1])),
    max_size=8,
)
limits = st.one_of(st.none(), st.integers(1, 1000), st.integers(1, 2**62))


@given(backlogs, limits)
def test_ends_stay_inside_the_backlog_and_move(left: dict[str, Backlog], limit: int | None) -> None:
    """An end is never before its begin nor past the head, and past the begin if anything is left."""
    ends = admit(left, limit)
    assert ends.keys() == left.keys()
    for journal, backlog in left.items():
        assert backlog.begin <= ends[journal] <= backlog.head
        assert (ends[journal] > backlog.begin) == (backlog.size_bytes > 0)


@given(backlogs, st.integers(1, 2**62))
def test_the_limit_is_kept_but_for_one_byte_a_journal(left: dict[str, Backlog], limit: int) -> None:
    """What is admitted is at most the limit, plus the byte that keeps a small journal moving."""
    admitted = sum(end - left[journal].begin for journal, end in admit(left, limit).items())
    assert admitted <= limit + sum(backlog.size_bytes > 0 for backlog in left.values())


@given(backlogs, st.integers(1, 2**62))
def test_a_larger_backlog_is_never_given_less(left: dict[str, Backlog], limit: int) -> None:
    """Shares grow with the backlog."""
    ends = admit(left, limit)
    shares = sorted((backlog.size_bytes, ends[journal] - backlog.begin) for journal, backlog in left.items())
    assert [share for _, share in shares] == sorted(share for _, share in shares)


@given(backlogs, limits, st.randoms())
def test_the_order_of_journals_is_irrelevant(
    left: dict[str, Backlog], limit: int | None, order: Random
) -> None:
    """The same backlogs give the same ends, in whatever order they come."""
    names = list(left)
    order.shuffle(names)
    assert admit({name: left[name] for name in names}, limit) == admit(left, limit)


@given(backlogs.filter(lambda left: any(b.size_bytes for b in left.values())), st.integers(1, 1000))
def test_a_fixed_backlog_is_drained(left: dict[str, Backlog], limit: int) -> None:
    """Batch after batch, the backlog shrinks by the limit or by a byte a journal, whichever is more."""
    before = sum(backlog.size_bytes for backlog in left.values())
    ends = admit(left, limit)
    after = sum(left[journal].head - end for journal, end in ends.items())
    assert before - after >= min(before, max(1, limit - len(left)))
