"""Admission under random backlogs stays within its limits, is fair, and always makes progress."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._planning.admission import (
    FLOOR_PARTS,
    Backlog,
    ReadLimits,
    admit,
    admit_fragments,
    allocate_limit,
    fragment_ends,
    is_due,
)

offsets = st.integers(0, 2**62)
backlogs = st.dictionaries(
    st.text("abc/", min_size=1, max_size=4),
    st.tuples(offsets, st.one_of(st.integers(0, 300), offsets)).map(lambda p: Backlog(p[0], p[0] + p[1])),
    max_size=8,
)
limits = st.one_of(st.none(), st.integers(1, 1000), st.integers(1, 2**62))


@given(backlogs, limits)
def test_ends_stay_inside_the_backlog_and_move(left: dict[str, Backlog], limit: int | None) -> None:
    ends = admit(left, limit)
    assert ends.keys() == left.keys()
    for journal, backlog in left.items():
        assert backlog.begin <= ends[journal] <= backlog.head
        assert (ends[journal] > backlog.begin) == (backlog.size_bytes > 0)


sizes = backlogs.map(lambda left: {journal: backlog.size_bytes for journal, backlog in left.items()})


@given(sizes, st.integers(1, 2**62))
def test_a_limit_is_given_out_to_the_last_byte(left: dict[str, int], limit: int) -> None:
    """The shares add up to the limit, to the backlog if that is smaller, or to a byte a journal."""
    waiting = sum(size > 0 for size in left.values())
    assert sum(allocate_limit(left, limit).values()) == min(sum(left.values()), max(limit, waiting))


@given(sizes, st.integers(1, 2**62))
def test_nobody_starves(left: dict[str, int], limit: int) -> None:
    """Each journal gets its part of an equal share, or its whole backlog if that is less."""
    floor = limit // (FLOOR_PARTS * max(1, sum(size > 0 for size in left.values())))
    assert all(allocate_limit(left, limit)[name] >= min(size, max(1, floor)) for name, size in left.items())


@given(sizes, st.integers(1, 2**62))
def test_the_floor_costs_the_others_a_quarter_at_most(left: dict[str, int], limit: int) -> None:
    total = sum(left.values())
    for name, size in left.items():
        fair = size * min(limit, total) // max(total, 1)
        assert allocate_limit(left, limit)[name] >= min(
            size, fair * (FLOOR_PARTS - 1) // FLOOR_PARTS - len(left)
        )


@given(backlogs, st.integers(1, 2**62))
def test_a_larger_backlog_is_never_given_less(left: dict[str, Backlog], limit: int) -> None:
    ends = admit(left, limit)
    shares = sorted((backlog.size_bytes, ends[journal] - backlog.begin) for journal, backlog in left.items())
    assert [share for _, share in shares] == sorted(share for _, share in shares)


@given(backlogs, limits, st.randoms())
def test_the_order_of_journals_is_irrelevant(
    left: dict[str, Backlog], limit: int | None, order: Random
) -> None:
    names = list(left)
    order.shuffle(names)
    assert admit({name: left[name] for name in names}, limit) == admit(left, limit)


@given(backlogs.filter(lambda left: any(b.size_bytes for b in left.values())), st.integers(1, 1000))
def test_a_fixed_backlog_is_drained(left: dict[str, Backlog], limit: int) -> None:
    """Each batch shrinks the backlog by the limit, less a byte a journal for rounding, or empties it."""
    before = sum(backlog.size_bytes for backlog in left.values())
    ends = admit(left, limit)
    after = sum(left[journal].head - end for journal, end in ends.items())
    assert before - after >= min(before, max(1, limit - len(left)))


spans = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 80)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


@given(spans, st.integers(0, 150), st.integers(1, 150))
def test_fragment_ends_are_those_of_a_minimal_cover(
    fragments: list[tuple[int, int]], begin: int, size: int
) -> None:
    """Each step takes the fragment that reaches furthest. Only the last bytes without a fragment count."""
    head = begin + size
    expected, at = [], begin
    while at < head:
        covering = [end for low, end in fragments if low <= at < end]
        later = [low for low, _ in fragments if at < low < head]
        if covering:
            at = max(covering)
            expected.append(min(at, head))
        elif later:
            at = min(later)
        else:
            at = head
            expected.append(head)
    got = fragment_ends(fragments, Backlog(begin, head))
    assert got == expected
    assert got == sorted(set(got))
    assert got[-1] == head


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.lists(st.integers(1, 1000), min_size=1, max_size=9, unique=True).map(sorted),
        max_size=6,
    ),
    st.integers(1, 30),
)
def test_fragments_are_counted_over_all_journals(ends: dict[str, list[int]], limit: int) -> None:
    """The limit counts fragments over all journals, and each journal gets at least one."""
    admitted = admit_fragments(ends, limit)
    taken = {journal: each.index(admitted[journal]) + 1 for journal, each in ends.items()}
    assert sum(taken.values()) == min(sum(map(len, ends.values())), max(limit, len(ends)))
    assert admit_fragments(ends, None) == {journal: each[-1] for journal, each in ends.items()}


amounts = st.integers(0, 2**62)
seconds = st.floats(0, 1e9)


@given(amounts, seconds, amounts, seconds)
def test_a_batch_waits_for_enough_bytes_or_long_enough(
    backlog: int, waited_s: float, min_bytes: int, max_delay_s: float
) -> None:
    due = is_due(backlog, waited_s, ReadLimits(min_bytes=min_bytes, max_delay_s=max_delay_s))
    assert due == (backlog > 0 and not (backlog < min_bytes and waited_s < max_delay_s))
    assert is_due(backlog, waited_s, ReadLimits()) == (backlog > 0)


@given(amounts, seconds, st.builds(ReadLimits, min_bytes=amounts, max_delay_s=seconds), amounts, seconds)
def test_a_batch_that_is_due_stays_due(
    backlog: int, waited_s: float, limits: ReadLimits, more: int, longer_s: float
) -> None:
    if is_due(backlog, waited_s, limits):
        assert is_due(backlog + more, waited_s + longer_s, limits)
