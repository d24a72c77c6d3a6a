"""Selectors round trip and match, and label sets combine, as slow and obvious versions say."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import labels
from gazette_spark.protocol import protocol_pb2 as pb
from tests.rig.examples import examples

ALPHABET = "ab1-_+/.é日Ⅷ"
"""Few characters, so that names and values often match; every kind of the alphabet is included."""

NAMES = st.text(ALPHABET, min_size=2, max_size=3)
VALUES = st.text(ALPHABET + "=%", max_size=3)
VALUE_LISTS = st.one_of(st.just([""]), st.lists(VALUES.filter(bool), min_size=1, max_size=3))

Groups = dict[str, list[str]]
GROUPS = st.dictionaries(NAMES, VALUE_LISTS, max_size=4)
SETS = GROUPS.map(labels.label_set)


@st.composite
def selectors(draw: st.DrawFn) -> pb.LabelSelector:
    parts = draw(SETS), draw(SETS)
    for part in parts:
        for label in part.labels:
            label.prefix = draw(st.booleans())
    # A broker does not distinguish an empty set from none; the parser leaves it out.
    included, excluded = (part if part.labels else None for part in parts)
    return pb.LabelSelector(include=included, exclude=excluded)


def groups(found: pb.LabelSet) -> Groups:
    return {label.name: labels.values_of(found, label.name) for label in found.labels}


@settings(deadline=None)
@given(selectors())
def test_selector_round_trips(selector: pb.LabelSelector) -> None:
    text = labels.format_selector(selector)
    assert labels.parse_selector(text) == selector
    assert labels.format_selector(labels.parse_selector(text)) == text


@settings(deadline=None)
@given(selectors())
def test_spacing_means_nothing(selector: pb.LabelSelector) -> None:
    text = labels.format_selector(selector)
    spaced = text.replace(",", " , ") + ("," if text else "")
    assert labels.parse_selector(spaced) == selector


@settings(max_examples=examples(300), deadline=None)
@given(st.text("ab =!,()in:prefixot", max_size=12))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """A text that parses is a selector whose canonical form means the same."""
    try:
        selector = labels.parse_selector(text)
    except ProtocolError:
        selector = labels.parse_selector("")
    assert labels.parse_selector(labels.format_selector(selector)) == selector


def satisfied(selector: pb.LabelSet, name: str, have: Groups) -> bool:
    for want in selector.labels:
        for value in have.get(name, []):
            if want.name != name:
                continue
            if want.value in ("", value):
                return True
            if want.prefix and value[: len(want.value)] == want.value:
                return True
    return False


@settings(max_examples=examples(300), deadline=None)
@given(selectors(), SETS)
def test_matching(selector: pb.LabelSelector, found: pb.LabelSet) -> None:
    have = groups(found)
    expected = all(satisfied(selector.include, name, have) for name in groups(selector.include))
    expected &= not any(satisfied(selector.exclude, name, have) for name in groups(selector.exclude))
    assert labels.selector_matches(selector, found) == expected


@settings(deadline=None)
@given(SETS)
def test_a_set_matches_itself(found: pb.LabelSet) -> None:
    assert labels.selector_matches(pb.LabelSelector(include=found), found)
    assert labels.selector_matches(pb.LabelSelector(exclude=found), found) == (not found.labels)


@settings(deadline=None)
@given(GROUPS, GROUPS)
def test_set_algebra(left: Groups, right: Groups) -> None:
    """Union and difference treat a name's values as one dictionary value."""
    one, other = labels.label_set(left), labels.label_set(right)
    had, has = groups(one), groups(other)
    assert groups(labels.union(one, other)) == has | had
    assert groups(labels.subtract(one, other)) == {n: v for n, v in had.items() if has.get(n) != v}


@settings(deadline=None)
@given(SETS, SETS)
def test_algebra_keeps_sets_valid(one: pb.LabelSet, other: pb.LabelSet) -> None:
    for combine in (labels.union, labels.subtract):
        labels.validate_label_set(combine(one, other))
