"""Fragment names round trip, and cover sets agree with a slow and obvious version."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import EXTENSIONS, NO_SUM, CoverSet, Fragment, parse_content_path
from tests.rig.examples import examples

Span = tuple[int, int]

OFFSETS = st.one_of(st.integers(0, 100), st.integers(0, 2**63 - 1))
SPANS = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda ends: (min(ends), max(ends)))
POSTFIXES = st.sampled_from(["", "date=2026-11-21", "date=2026-11-21/hour=05", "ü/%41"])


@st.composite
def fragments(draw: st.DrawFn) -> Fragment:
    begin, end = sorted((draw(OFFSETS), draw(OFFSETS)))
    return Fragment(
        journal=draw(st.sampled_from(["a/journal", "ünï/cöde"])),
        begin=begin,
        end=end,
        sum=draw(st.binary(min_size=20, max_size=20)),
        codec=draw(st.sampled_from(sorted(EXTENSIONS))),
        backing_store=draw(st.sampled_from(["", "s3://bucket/"])),
        mod_time=draw(st.integers(0, 2**40)),
        path_postfix=draw(POSTFIXES),
    )


@settings(deadline=None)
@given(fragments())
def test_paths_round_trip(fragment: Fragment) -> None:
    """A path without its journal contains everything of a fragment except the store and the time."""
    parsed = parse_content_path(fragment.journal, fragment.content_path.removeprefix(f"{fragment.journal}/"))
    assert parsed.content_path == fragment.content_path
    assert (parsed.begin, parsed.end, parsed.sum) == (fragment.begin, fragment.end, fragment.sum)
    assert (parsed.codec, parsed.path_postfix) == (fragment.codec, fragment.path_postfix)


@settings(deadline=None)
@given(st.lists(fragments(), min_size=2, max_size=2))
def test_names_sort_by_span(pair: list[Fragment]) -> None:
    one, other = sorted(pair, key=lambda fragment: fragment.content_name)
    assert (one.begin, one.end) <= (other.begin, other.end)


@settings(deadline=None)
@given(fragments())
def test_messages_round_trip(fragment: Fragment) -> None:
    assert Fragment.from_pb(pb.Fragment.FromString(fragment.to_pb().SerializeToString())) == fragment


def maximal(added: list[Span]) -> list[Span]:
    """Return the nonempty spans that lie within no other."""
    distinct = {span for span in added if span[0] < span[1]}
    return sorted(
        (begin, end)
        for begin, end in distinct
        if not any(b <= begin and end <= e and (b, e) != (begin, end) for b, e in distinct)
    )


def cover_set(added: list[Span]) -> CoverSet:
    """Return the cover set of the spans; a fragment's mod time is its index among them."""
    return CoverSet.of(
        Fragment("a/journal", *span, NO_SUM, pb.NONE, mod_time=at) for at, span in enumerate(added)
    )


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(SPANS, max_size=10))
def test_members(added: list[Span]) -> None:
    """Members are the spans that lie within no other, whatever the order; of equals, the last added."""
    members = [(fragment.begin, fragment.end) for fragment in cover_set(added)]
    assert members == maximal(added)
    for fragment in cover_set(added):
        assert added[fragment.mod_time :].count((fragment.begin, fragment.end)) == 1


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(SPANS, max_size=10), st.integers(-1, 13))
def test_lookups(added: list[Span], offset: int) -> None:
    found, members = cover_set(added), maximal(added)
    covering, following = found.covering(offset), found.following(offset)
    holding = [(begin, end) for begin, end in members if begin <= offset < end]
    after = [(begin, end) for begin, end in members if begin > offset]
    assert (covering and (covering.begin, covering.end)) == max(
        holding, default=None, key=lambda span: span[1]
    )
    assert (following and (following.begin, following.end)) == min(after, default=None)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(SPANS, max_size=10), SPANS)
def test_coverage(added: list[Span], span: Span) -> None:
    held = {offset for begin, end in added for offset in range(begin, end)}
    assert cover_set(added).is_covered(*span) == held.issuperset(range(*span))
