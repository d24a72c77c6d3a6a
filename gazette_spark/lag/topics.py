"""Journals as Burrow's topics and partitions.

A topic is a prefix of journals, or a selector that was given a name; a partition is one journal of it. Burrow
numbers partitions and journals have names, so journals are numbered as they are first seen: those seen
together by name, later ones after them. A number is never given to another journal while the monitor runs.
Names are kept, so that people see names and not numbers.
"""

from __future__ import annotations

from collections.abc import Iterable


class Topics:
    """The number of each journal. Not safe for threads."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, int]] = {}
        self._journals: dict[str, list[str]] = {}

    def __repr__(self) -> str:
        return f"Topics(topics={len(self._journals)}, journals={len(self._places)})"

    def add(self, journals: Iterable[str], topic: str | None = None) -> None:
        """Number journals that have no number yet.

        Args:
            journals: in any order.
            topic: topic of the journals; if None, each belongs to the topic of its prefix.
        """
        for journal in sorted(set(journals) - self._places.keys()):
            where = prefix_of(journal) if topic is None else topic
            numbered = self._journals.setdefault(where, [])
            self._places[journal] = (where, len(numbered))
            numbered.append(journal)

    def place(self, journal: str) -> tuple[str, int]:
        """Return the topic and the number of a journal; a new one gets both."""
        if journal not in self._places:
            self.add([journal])
        return self._places[journal]

    def journal(self, topic: str, partition: int) -> str:
        """Return the journal of a number."""
        return self._journals[topic][partition]

    def count(self, topic: str) -> int:
        """Return how many journals a topic has had."""
        return len(self._journals.get(topic, ()))

    def names(self) -> list[str]:
        """Return the topics, in the order they were first seen."""
        return list(self._journals)


def prefix_of(journal: str) -> str:
    """Return a journal's prefix, or the whole name of a journal without a prefix.

    >>> prefix_of("shop/orders/part-000")
    'shop/orders/'
    >>> prefix_of("orders")
    'orders'
    """
    directory, slash, _ = journal.rpartition("/")
    return directory + slash or journal
