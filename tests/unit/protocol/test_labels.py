"""Tests that label sets are built, joined, matched and validated by Gazette's rules."""

from __future__ import annotations

import pytest

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import labels
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set, parse_selector


def raw(*pairs: tuple[str, str], prefix: bool = False) -> pb.LabelSet:
    """Return a set of the pairs, unsorted and unchecked."""
    return pb.LabelSet(labels=[pb.Label(name=name, value=value, prefix=prefix) for name, value in pairs])


def pairs(labels: pb.LabelSet) -> list[tuple[str, str]]:
    return [(label.name, label.value) for label in labels.labels]


def test_label_set_sorts_and_drops_duplicates() -> None:
    built = label_set({"zz": "1", "aa": ["b", "a", "b"], "ab": ()})
    assert pairs(built) == [("aa", "a"), ("aa", "b"), ("zz", "1")]


def test_labels_sort_by_bytes() -> None:
    """UTF-8 bytes sort code points above U+FFFF last; UTF-16 units do not."""
    names = ["zz", "éé", "\uff21\uff21", "\U00010400\U00010400"]
    built = label_set(dict.fromkeys(reversed(names), ""))
    assert [label.name for label in built.labels] == sorted(names, key=str.encode) == names


@pytest.mark.parametrize(
    ("found", "where", "problem"),
    [
        pytest.param(raw(("b", "")), "[0].name", "2 to 64 bytes, got 1", id="one letter"),
        pytest.param(raw(("x" * 65, "")), "[0].name", "got 65", id="long name"),
        pytest.param(raw(("é" * 33, "")), "[0].name", "got 66", id="long name in bytes"),
        pytest.param(raw(("a=b", "")), "[0].name", "'=' in", id="path symbol in a name"),
        pytest.param(raw(("a b", "")), "[0].name", "' ' in", id="space in a name"),
        pytest.param(raw(("aa", "x" * 1025)), "[0].value", "got 1025", id="long value"),
        pytest.param(raw(("aa", "x;y")), "[0].value", "';' in", id="semicolon in a value"),
        pytest.param(raw(("bb", ""), ("aa", "")), "[1]", "sorted", id="names descend"),
        pytest.param(raw(("aa", "2"), ("aa", "1")), "[1]", "sorted", id="values descend"),
        pytest.param(raw(("aa", "1"), ("aa", "1")), "[1]", "unique", id="duplicate"),
        pytest.param(raw(("aa", ""), ("aa", "1")), "[1]", "empty value", id="empty among others"),
        pytest.param(raw(("aa", "1"), prefix=True), "[0].prefix", "selectors only", id="prefix"),
    ],
)
def test_label_set_rules(found: pb.LabelSet, where: str, problem: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        labels.validate_label_set(found)
    assert caught.value.where == f"labels{where}"
    assert problem in caught.value.problem


def test_prefix_is_allowed_in_selectors() -> None:
    selector = pb.LabelSelector(include=raw(("aa", "1"), prefix=True), exclude=raw(("bb", "1"), prefix=True))
    labels.validate_selector(selector)
    assert labels.format_selector(selector) == "aa:prefix=1,bb:prefix!=1"


@pytest.mark.parametrize("part", ["include", "exclude"])
def test_selector_rules(part: str) -> None:
    selector = pb.LabelSelector()
    getattr(selector, part).labels.add(name="b")
    with pytest.raises(ProtocolError, match=rf"LabelSelector\.{part.title()}\[0\]\.name"):
        labels.validate_selector(selector)


@pytest.mark.parametrize("name", sorted(labels.SINGLE_VALUED))
@pytest.mark.parametrize("validate", [labels.validate_journal_labels, labels.validate_shard_labels])
def test_single_valued_labels(validate: object, name: str) -> None:
    assert callable(validate)
    with pytest.raises(ProtocolError, match="takes one value"):
        validate(label_set({name: ["a", "b"]}))


def test_tags_take_many_values() -> None:
    tag = "app.gazette.dev/tag"
    labels.validate_journal_labels(many := label_set({tag: ["a", "b"]}))
    assert labels.values_of(many, tag) == ["a", "b"]


@pytest.mark.parametrize("name", ["name", "prefix"])
def test_journal_labels_hold_no_meta_label(name: str) -> None:
    """Selectors use these labels for the journal's name."""
    with pytest.raises(ProtocolError, match=f"cannot include label '{name}'"):
        labels.validate_journal_labels(label_set({name: "x/"}))
    labels.validate_shard_labels(label_set({name: "x/"}))


def test_shard_labels_hold_no_meta_label() -> None:
    """Selectors use this label for the shard's id."""
    with pytest.raises(ProtocolError, match="cannot include label 'id'"):
        labels.validate_shard_labels(label_set({"id": "x"}))
    labels.validate_journal_labels(label_set({"id": "x"}))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        pytest.param({labels.CONTENT_TYPE: "a/b/c"}, "must be a MIME type", id="content type"),
        pytest.param({labels.CONTENT_TYPE: ""}, "must be a MIME type", id="empty content type"),
        pytest.param({labels.MESSAGE_TYPE: "T"}, "needs label 'content-type'", id="message type"),
        pytest.param(
            {labels.CONTENT_TYPE: "text/csv", labels.MESSAGE_SUBTYPE: "S"},
            "needs label 'app.gazette.dev/message-type'",
            id="message subtype",
        ),
    ],
)
def test_content_labels(values: dict[str, str], problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        labels.validate_journal_labels(label_set(values))


def test_content_labels_together() -> None:
    chain = {
        labels.CONTENT_TYPE: labels.CONTENT_TYPE_NDJSON,
        labels.MESSAGE_TYPE: "T",
        labels.MESSAGE_SUBTYPE: "S",
    }
    built = label_set(chain)
    labels.validate_journal_labels(built)
    assert dict(pairs(built)) == chain


LEFT = label_set({"both": ["1", "2"], "left": "x", "same": ["1", "2"]})
RIGHT = label_set({"both": ["2"], "right": "y", "same": ["1", "2"]})


def test_union_prefers_the_left_name_by_name() -> None:
    expected = label_set({"both": ["1", "2"], "left": "x", "right": "y", "same": ["1", "2"]})
    assert labels.union(LEFT, RIGHT) == expected


def test_subtract_drops_names_of_equal_values() -> None:
    assert labels.subtract(LEFT, RIGHT) == label_set({"both": ["1", "2"], "left": "x"})


def test_labels_with_name_are_in_order() -> None:
    spec = pb.JournalSpec(name="a/journal", labels=label_set({"app": "x", "zone": "y"}))
    found = labels.labels_with_name(spec)
    assert pairs(found) == [("app", "x"), ("name", "a/journal"), ("zone", "y")]
    assert pairs(spec.labels) == [("app", "x"), ("zone", "y")]


def test_values_of_a_name_are_alternatives() -> None:
    selector = labels.expand_prefix(parse_selector("name=x/one,prefix=y/,!prefix"))
    assert labels.format_selector(selector) == "name=x/one,name:prefix=y/,!name:prefix"
    included = labels.expand_prefix(parse_selector("name=x/one,prefix=y/"))
    names = ("x/one", "x/two", "y/one")
    matched = [name for name in names if labels.selector_matches(included, label_set({"name": name}))]
    assert matched == ["x/one", "y/one"]


def test_empty_selector_matches_everything() -> None:
    assert labels.selector_matches(parse_selector(""), label_set({}))
    assert labels.selector_matches(pb.LabelSelector(), label_set({"aa": "b"}))


@pytest.mark.parametrize(
    ("text", "rest"),
    [("aa=b,cc dd", "'cc dd'"), ("aa in (b c)", "list 'b c'"), ("aa=b;c", "'aa=b;c'"), ("b", "'b'")],
    ids=["two names", "two values", "semicolon", "short name"],
)
def test_parse_errors_say_where(text: str, rest: str) -> None:
    with pytest.raises(ProtocolError, match=f"cannot parse .*{rest}"):
        parse_selector(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "name=",
        "name==",
        "name!=",
        "name:prefix=",
        "prefix=",
        "app=shop,name=",
        "name=,app=shop",
        "name= , app=shop",
        "!test,name=",
        "app in (,)",
        "app notin (,)",
    ],
)
def test_a_target_has_no_empty_value(text: str) -> None:
    """An unset shell variable must not make an operation change every journal."""
    with pytest.raises(ProtocolError, match=r"selects .*write 'name'"):
        labels.parse_target_selector(text)


@pytest.mark.parametrize("text", ["name", "name=a/b", "prefix=a/", "app", "!test", "app in (a,b),zone!=x"])
def test_a_target_is_a_selector(text: str) -> None:
    assert labels.parse_target_selector(text) == parse_selector(text)


def test_a_target_breaks_no_rule_of_selectors() -> None:
    with pytest.raises(ProtocolError, match=r"cannot parse '\?\?'"):
        labels.parse_target_selector("name,??")


def test_half_of_a_surrogate_pair_can_be_shown() -> None:
    """The error used to repeat the text as it was, which no terminal or log can encode."""
    with pytest.raises(ProtocolError, match=r"of the list 'a\\ud800,\('") as caught:
        parse_selector("name in (a\ud800,()")
    assert str(caught.value).encode()
