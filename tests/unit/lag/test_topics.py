"""The monitor numbers journals and never changes a number."""

from __future__ import annotations

from gazette_spark.lag.monitor import Topics, prefix_of


def test_journals_seen_together_are_numbered_by_name() -> None:
    topics = Topics()
    topics.add(["shop/b", "shop/a", "other/x"])
    topics.add(["shop/0", "shop/b"])
    assert [topics.place(f"shop/{name}") for name in "ab0"] == [("shop", 0), ("shop", 1), ("shop", 2)]
    assert topics.place("other/x") == ("other", 0)
    assert topics.journal("shop", 2) == "shop/0"
    assert topics.count("shop") == 3
    assert topics.names() == ["other", "shop"]


def test_a_journal_that_was_not_seen_gets_the_next_number() -> None:
    """A table may name journals that no longer exist on the broker."""
    topics = Topics()
    topics.add(["shop/a"])
    assert topics.place("shop/gone") == ("shop", 1)
    assert topics.place("shop/gone") == ("shop", 1)


def test_a_topic_may_have_a_name_of_its_own() -> None:
    topics = Topics()
    topics.add(["b/2", "a/1"], "app=shop")
    assert [topics.place("a/1"), topics.place("b/2")] == [("app=shop", 0), ("app=shop", 1)]
    assert topics.count("unknown") == 0


def test_a_journal_at_the_top_is_a_topic_of_its_own() -> None:
    assert prefix_of("orders") == "orders"
