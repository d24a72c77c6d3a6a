"""A position has exactly one spelling, and every other text is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from gazette_spark.errors import OffsetError
from gazette_spark.offsets import JournalOffsets, changed, check_forward, parse_json_object

GOLDEN = Path(__file__).parents[1] / "golden" / "offsets"

GOOD = {"format_version": 1, "journals": {"a/b": 10, "c/d": 0}}


def stored(**fields: Any) -> dict[str, Any]:
    return GOOD | fields


def seen(**fields: Any) -> dict[str, Any]:
    return GOOD | {"revision": 4, "heads": {"a/b": 11}} | fields


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(None, "got None", id="null"),
        pytest.param("10", "got '10'", id="text"),
        pytest.param([], "got []", id="list"),
        pytest.param({}, "format_version is None", id="empty"),
        pytest.param({"journals": {}}, "format_version is None", id="no_version"),
        pytest.param(stored(format_version="1"), "format_version is '1'", id="version_as_text"),
        pytest.param(stored(format_version=True), "format_version is True", id="version_as_boolean"),
        pytest.param(stored(format_version=0), "format_version is 0", id="version_zero"),
        pytest.param(stored(journals=None), "journals is None", id="no_journals"),
        pytest.param(stored(journals=[["a/b", 1]]), "journals is", id="journals_as_list"),
        pytest.param(stored(extra=1), "unknown field 'extra'", id="unknown_field"),
        pytest.param(stored(heads={"a/b": 11}), "revision", id="heads_without_a_revision"),
        pytest.param(seen(revision="4"), "revision is '4'", id="revision_as_text"),
        pytest.param(seen(revision=True), "revision is True", id="revision_as_boolean"),
        pytest.param(seen(revision=-4), "revision is -4", id="negative_revision"),
        pytest.param(seen(heads=[]), "heads is []", id="heads_as_list"),
        pytest.param(seen(heads={"a/b": 11.0}), "integer, got 11.0", id="float_head"),
        pytest.param(
            seen(heads={"a/b": 10}),
            "a head must belong to a journal of the position",
            id="head_at_the_offset",
        ),
        pytest.param(seen(gaps=[]), "gaps is []", id="gaps_as_list"),
        pytest.param(seen(gaps={"a/b": {}}), "gaps of journal 'a/b' are {}", id="no_gap"),
        pytest.param(seen(gaps={"a/b": {"03": 5}}), "gaps of journal 'a/b'", id="gap_with_zeros"),
        pytest.param(seen(gaps={"a/b": {"3": True}}), "gaps of journal 'a/b'", id="gap_as_boolean"),
        pytest.param(seen(gaps={"a/b": {"3": 3}}), "[3, 3) is not a gap before 10", id="empty_gap"),
        pytest.param(
            seen(gaps={"a/b": {"3": 11}}), "[3, 11) is not a gap before 10", id="gap_past_the_offset"
        ),
        pytest.param(seen(gaps={"a/b": {"3": 5, "4": 6}}), "[4, 6) is not a gap", id="gaps_that_overlap"),
        pytest.param(seen(gaps={"x/y": {"3": 5}}), "is not a gap before", id="gap_of_another_journal"),
        pytest.param(seen(gone=["a/b"]), "gone is ['a/b']", id="gone_as_list"),
        pytest.param(seen(gone={"a/b": 1}), "gone is {'a/b': 1}", id="gone_as_number"),
        pytest.param(
            seen(gone={"x/y": True}),
            "a journal in 'gone' must belong to the position",
            id="gone_of_another_position",
        ),
        pytest.param(
            seen(heads={"x/y": 11}),
            "a head must belong to a journal of the position",
            id="head_of_another_journal",
        ),
        pytest.param(stored(position=""), "position is ''", id="empty_position"),
        pytest.param(stored(position="last"), "position is 'last'", id="unknown_position"),
        pytest.param(stored(position=["initial"]), "position is", id="position_as_list"),
        pytest.param(stored(journals={"": 1}), "not a journal name", id="empty_name"),
        pytest.param(stored(journals={"a/b": None}), "integer, got None", id="null_offset"),
        pytest.param(stored(journals={"a/b": 1.0}), "integer, got 1.0", id="float_offset"),
        pytest.param(stored(journals={"a/b": "1"}), "integer, got '1'", id="text_offset"),
        pytest.param(stored(journals={"a/b": True}), "integer, got True", id="boolean_offset"),
        pytest.param(stored(journals={"a/b": -1}), "from 0 to 2^63-1", id="negative"),
        pytest.param(stored(journals={"a/b": 2**63}), "from 0 to 2^63-1", id="too_large"),
    ],
)
def test_a_wrong_shape_is_named(value: object, problem: str) -> None:
    """Spark passes whatever the checkpoint contains, so the error says what is wrong with it."""
    with pytest.raises(OffsetError) as caught:
        JournalOffsets.from_dict(value)
    assert problem in str(caught.value)


def test_a_wrong_offset_names_its_journal() -> None:
    with pytest.raises(OffsetError) as caught:
        JournalOffsets({"a/b": 1, "c/d": -7})
    assert (caught.value.journal, caught.value.offset) == ("c/d", -7)


def test_a_later_format_is_refused_with_the_way_out() -> None:
    """The content of a checkpoint that a later release wrote must not be guessed."""
    with pytest.raises(OffsetError, match=r"format_version 2, but this release reads 1.*use that release"):
        JournalOffsets.from_dict(stored(format_version=2))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "not JSON", id="empty"),
        pytest.param("{", "not JSON", id="cut"),
        pytest.param("earliest", "not JSON", id="word"),
        pytest.param("[" * 100_000, "not JSON", id="deep"),
        pytest.param("[1]", "got [1]", id="list"),
        pytest.param('{"a/b":1,"a/b":2}', "the key 'a/b' occurs twice", id="duplicate_key"),
        pytest.param('{"format_version":1,"journals":{"a/b":NaN}}', "NaN is not a number", id="nan"),
        pytest.param('{"format_version":1,"journals":{"a/b":Infinity}}', "Infinity", id="infinity"),
    ],
)
def test_text_that_is_no_position_is_refused(text: str, problem: str) -> None:
    """Python's parser accepts more than JSON, but this one must not."""
    with pytest.raises(OffsetError) as caught:
        JournalOffsets.from_json(text)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 400


def test_large_offsets_keep_every_digit() -> None:
    """Integers past 2^53 must not be converted to floats."""
    offset = 2**53 + 1
    assert parse_json_object(f'{{"a/b":{offset}}}') == {"a/b": offset}


def test_the_text_is_canonical() -> None:
    position = JournalOffsets({"c/d": 2, "a/b": 1})
    assert position.to_json() == '{"format_version":1,"journals":{"a/b":1,"c/d":2}}'
    assert position.at("pinned").to_json().endswith('"position":"pinned"}')


def test_spark_writes_the_dict_as_the_same_text() -> None:
    """Spark dumps the dict with its own settings, and equal positions must still give equal text."""
    one, other = JournalOffsets({"c/d": 2, "a/b": 1}), JournalOffsets({"a/b": 1, "c/d": 2})
    assert json.dumps(one.to_dict()) == json.dumps(other.to_dict())


def test_equality_and_hash_ignore_the_order() -> None:
    one, other = JournalOffsets({"c/d": 2, "a/b": 1}), JournalOffsets({"a/b": 1, "c/d": 2})
    assert one == other
    assert hash(one) == hash(other)
    assert one != one.at("pinned")


def test_a_position_does_not_follow_the_dict_it_was_made_from() -> None:
    source = {"a/b": 1}
    position = JournalOffsets(source)
    source["a/b"] = 5
    assert position.read_through == {"a/b": 1}


def test_a_position_survives_pickling() -> None:
    """Positions travel between Spark's processes."""
    position = JournalOffsets({"a/b": 1}, "initial")
    assert pickle.loads(pickle.dumps(position)) == position


def test_ten_thousand_journals_stay_below_a_mebibyte() -> None:
    """The text is written for every batch."""
    position = JournalOffsets({f"events/part-{n:05}": 2**40 + n for n in range(10_000)})
    assert JournalOffsets.from_json(position.to_json()) == position
    assert len(position.to_json()) < 1 << 20


def test_changed_lists_the_ranges_of_a_batch() -> None:
    start = JournalOffsets({"a/b": 1, "c/d": 5, "e/f": 7})
    end = JournalOffsets({"a/b": 4, "c/d": 5, "e/f": 9, "new/one": 100})
    assert list(changed(start, end)) == [("a/b", 1, 4), ("e/f", 7, 9)]


def test_a_pinned_end_reads_nothing_whatever_its_start() -> None:
    """The start may be past a pinned end when batch 0 runs again after a crash."""
    start, end = JournalOffsets({"a/b": 90, "x/y": 3}, "initial"), JournalOffsets({"a/b": 10}, "pinned")
    check_forward(start, end)
    assert list(changed(start, end)) == []


@pytest.mark.parametrize(
    ("start", "end", "problem"),
    [
        pytest.param(JournalOffsets({"a/b": 5}), JournalOffsets({"a/b": 4}), "goes back", id="regress"),
        pytest.param(JournalOffsets({"a/b": 5}), JournalOffsets({}), "lacks a journal", id="dropped"),
        pytest.param(JournalOffsets(), JournalOffsets({}, "initial"), "marked 'initial'", id="initial_end"),
    ],
)
def test_a_batch_goes_forward(start: JournalOffsets, end: JournalOffsets, problem: str) -> None:
    """Spark would plan a batch that goes back."""
    with pytest.raises(OffsetError, match=problem):
        check_forward(start, end)


def test_an_end_may_have_new_journals() -> None:
    """A new journal is recorded by the batch in which it appears."""
    check_forward(JournalOffsets({"a/b": 5}), end := JournalOffsets({"a/b": 5, "c/d": 1}))
    assert end.read_through["c/d"] == 1


def test_what_was_seen_is_remembered() -> None:
    """A journal without a recorded head was read to its head. Without a revision the head is unknown."""
    position = JournalOffsets({"a/b": 10, "c/d": 0}, revision=4, heads={"a/b": 11})
    assert [position.head_seen(name) for name in ("a/b", "c/d", "x/y")] == [11, 0, None]
    assert [position.plain().head_seen(name) for name in ("a/b", "c/d")] == [None, None]
    assert position.at("pinned").head_seen("a/b") == 11


def test_positions_at_the_same_offsets_are_equal() -> None:
    """A table records only offsets, so heads and revisions do not count."""
    position = JournalOffsets({"a/b": 10}, revision=4, heads={"a/b": 11})
    assert position == position.plain() == JournalOffsets({"a/b": 10}, revision=9)
    assert position.plain().to_json() == '{"format_version":1,"journals":{"a/b":10}}'


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("v1-*.json")), ids=lambda path: path.stem)
def test_every_stored_form_reads_and_writes_as_it_was(path: Path) -> None:
    """Positions outlive releases: each stored form stays readable, and its text is still the one we write."""
    text = path.read_text().strip()
    assert JournalOffsets.from_json(text).to_json() == text


def test_a_stored_form_of_the_future_fails_well() -> None:
    """The error names the format instead of the shape that a later release gave it."""
    with pytest.raises(OffsetError, match="a later release of gazette_spark wrote it"):
        JournalOffsets.from_json((GOLDEN / "future.json").read_text())
