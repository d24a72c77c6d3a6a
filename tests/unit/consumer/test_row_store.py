"""Tests how a document is stored as rows, and which rows a transaction changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.consumer.stores.delta import RowStore, document_of, rows_of
from gazette_spark.errors import InputError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(values, values)
def test_a_document_comes_back(document: Any, initial: Any) -> None:
    assert document_of(rows_of(document), initial) == document


@given(values, values)
def test_the_changes_lead_to_the_new_document(before: Any, after: Any) -> None:
    stored = rows_of(before)
    store = RowStore(stored)
    store.state = after
    changes = store.changes()
    rows = {at: text for at, text in {**stored, **changes}.items() if text is not None}
    assert rows == rows_of(after)
    assert all(stored.get(at) != text for at, text in changes.items())


def test_a_new_shard_begins_with_a_copy_of_the_initial_document() -> None:
    """The application's own object must not change."""
    initial = {"seen": [1]}
    store = RowStore({}, initial)
    store.state["seen"].append(2)
    assert store.changes() == {("state", "seen"): "[1,2]"}
    assert initial == {"seen": [1]}


def test_a_key_has_its_entry_alone() -> None:
    store = RowStore({("state", "a"): "1"}, {}, only_key="a")
    assert store.state == {"a": 1}
    assert store.changes() == {}
    del store.state["a"]
    assert store.changes() == {("state", "a"): None}
    store.state["b"] = 2
    with pytest.raises(InputError, match="'b' for a message of the key 'a'"):
        store.changes()


def test_a_state_that_is_no_json_is_named() -> None:
    store = RowStore({}, {})
    store.state["when"] = object()
    with pytest.raises(InputError, match="the state of key 'when' cannot be written as JSON"):
        store.changes()


@pytest.mark.parametrize("document", [{1: "a"}, {"by_id": {1: "a"}}, {"a": [{"b": {None: 0}}]}, [{2.5: 0}]])
def test_keys_that_are_not_texts_are_refused_at_all_levels(document: object) -> None:
    """JSON would turn them into strings, and the next task would find another state."""
    store = RowStore({}, {})
    store.state = document
    with pytest.raises(InputError, match="keys of a JSON object must be strings"):
        store.changes()


def test_an_application_with_keys_begins_empty() -> None:
    """No task is responsible for the entries of another initial document."""
    with pytest.raises(InputError, match="begins as an empty dictionary"):
        RowStore({}, {"a": 1}, only_key="b")
