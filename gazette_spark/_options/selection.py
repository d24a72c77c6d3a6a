"""Selects the journals that a query reads or writes, by names, a pattern, a selector or a path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gazette_spark._options.values import check_journal, shown
from gazette_spark.errors import OptionError, ProtocolError
from gazette_spark.protocol.labels import PREFIX, format_selector, parse_selector, values_of


@dataclass(frozen=True, slots=True)
class JournalSelection:
    """A selection of journals: those with these names, or all that match now or later."""

    option: str
    """Name of the option that made the selection."""
    names: tuple[str, ...] = ()
    """Names of journals, which must exist."""
    selector: str = ""
    """Canonical text of a label selector; an empty one matches all."""
    pattern: str = ""
    """Regular expression that must match the whole name as well; an empty one matches all."""

    def __str__(self) -> str:
        # Show the selection as the user wrote it: load("a/prefix/") selects by the label prefix.
        selector = self.selector.removeprefix("prefix=") if self.option == "path" else self.selector
        return ", ".join(self.names) or self.pattern or selector

    def matches(self, journal: str) -> bool:
        """Return whether a journal that the names or the selector match is selected."""
        return not self.pattern or re.fullmatch(self.pattern, journal) is not None


def only_selection(parsed: Sequence[JournalSelection | None]) -> JournalSelection:
    """Return the only selection among the parsed options.

    Raises:
        OptionError: there are several selections, or none.
    """
    selections = [selection for selection in parsed if selection is not None]
    if len(selections) == 1:
        return selections[0]
    ways = (
        "exactly one of option 'journals', option 'journalsPattern', option 'selector', load('a/journal') "
        "and load('a/prefix/')"
    )
    names = " and ".join(selection.option for selection in selections)
    raise OptionError(names or "journals", "more than one" if selections else "nothing", ways)


def parse_journals(name: str, text: str) -> JournalSelection:
    """Parse names of journals, separated by commas."""
    names = tuple(part.strip() for part in text.split(","))
    for index, journal in enumerate(names, start=1):
        check_journal(name, journal, f"element {index}: ")
        if journal in names[: index - 1]:
            raise OptionError(name, f"element {index}: {shown(journal)} a second time", "each journal once")
    return JournalSelection(name, names=names)


def parse_pattern(name: str, text: str) -> JournalSelection:
    """Parse a regular expression of whole names."""
    expected = "a regular expression of whole names, in Python's syntax, such as shop/orders-[0-9]+"
    if not text or text != text.strip():
        raise OptionError(name, shown(text), expected)
    try:
        # Compiled on the driver, so that a mistake is not an error of the first batch.
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionError(name, f"{shown(text)} ({error})", expected) from None
    prefix = literal_prefix(text)
    return JournalSelection(name, selector=f"prefix={prefix}" if prefix else "", pattern=text)


def literal_prefix(pattern: str) -> str:
    """Return a directory, with its slash, that contains all journals a pattern matches; empty if unknown.

    Brokers list only this directory.
    """
    # A quantifier may make the previous character optional, and alternatives may begin differently.
    directory = re.match(r"((?:[\w%=-]+/)+)(?![?*{])", pattern, re.ASCII)
    return directory[1] if directory and "|" not in pattern else ""


def parse_selector_option(name: str, text: str) -> JournalSelection:
    """Parse a label selector."""
    if not text.strip():
        raise OptionError(name, shown(text), "a label selector such as app=clicks,region in (eu,us)")
    try:
        selector = parse_selector(text)
    except ProtocolError as error:
        raise OptionError(name, f"{shown(text)} ({error.problem})", "a label selector") from None
    for value in values_of(selector.include, PREFIX) + values_of(selector.exclude, PREFIX):
        if not value.endswith("/"):
            raise OptionError(name, shown(text), f"a prefix that ends in '/': prefix={value}/")
    return JournalSelection(name, selector=format_selector(selector))


def parse_path(name: str, text: str) -> JournalSelection:
    """Parse a journal's name, or a prefix that ends in a slash."""
    if not text.endswith("/"):
        check_journal(name, text)
        return JournalSelection(name, names=(text,))
    # A prefix may be shorter than a journal's name. The other rules are the same.
    check_journal(name, f"{text}some-journal")
    return parse_selector_option(name, f"prefix={text}")
