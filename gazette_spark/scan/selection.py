"""Which journals a query reads: those selected, and what it means that one is not any more."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gazette_spark.errors import JournalNotFoundError, OptionError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set
from gazette_spark.scan.view import JournalView

log = logging.getLogger(__name__)


class Selection:
    """The journals that a query's options select. To be used by one thread."""

    def __init__(self, view: JournalView) -> None:
        self._view = view
        self.heads: Mapping[str, int] = {}
        """Write heads as they were seen last, by journal."""
        self._read_to_the_end: set[str] = set()
        """Journals that are gone, and of which nothing was left to read."""
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"Selection({self._view.options.selection})"

    def selected(self, known: Mapping[str, int] | None = None) -> set[str]:
        """Return the journals that match; what is ``known`` but does not match any more is checked."""
        selection = self._view.options.selection
        selector: str | pb.LabelSelector = selection.selector
        if selection.names:
            selector = pb.LabelSelector(include=label_set({"name": list(selection.names)}))
        listed = [entry.spec for entry in self._view.client.list_journals(selector)]
        for spec in listed:
            self._view.take(spec)
        found, known = {spec.name for spec in listed}, known or {}
        for name in selection.names:
            if name not in found | known.keys():
                raise JournalNotFoundError(name, f"option {selection.option!r} names it")
        self._view.each(lambda name: self._check_absent(name, known[name]), sorted(known.keys() - found))
        return found

    def _check_absent(self, journal: str, reached: int) -> None:
        """Say why a journal the query has read is not selected any more, or raise that it is gone.

        Only bytes that were not read are a loss. What was appended after this planner last saw the head
        cannot be known, nor, in a planner that never saw it, whether there was anything left.
        """
        try:
            self._view.client.get_journal(journal)
            self._warn(journal, "journal not selected any more, its offset is kept")
        except JournalNotFoundError as error:
            head = self.heads.get(journal)
            if head == reached:
                self._read_to_the_end.add(journal)
            if self._view.options.fail_on_data_loss and journal not in self._read_to_the_end:
                left = "maybe with bytes" if head is None else f"with {head - reached} bytes"
                detail = (
                    f"the query has read it up to offset {reached} and it is gone, {left} not read; "
                    "set failOnDataLoss=false to leave it out"
                )
                raise JournalNotFoundError(journal, detail) from error
            self._warn(journal, "journal is gone, its offset is kept")

    def _warn(self, journal: str, event: str) -> None:
        if journal not in self._warned:
            self._warned.add(journal)
            log.warning("%s journal=%s", event, journal)

    def chosen(self) -> list[str]:
        """Return the journals of a new query, by name."""
        options = self._view.options
        journals = sorted(self.selected())
        if not journals:
            got = f"{options.selection.selector!r}, which matches no journal"
            raise OptionError(options.selection.option, got, "at least one journal when a query starts")
        edges = (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets))
        for option, choice in edges:
            for journal in sorted(choice.named.keys() - set(journals)):
                self._check_named(option, journal)
                got = f"journal {journal!r}, which option {options.selection.option!r} leaves out"
                raise OptionError(option, got, "journals of the query only")
        return journals

    def _check_named(self, option: str, journal: str) -> None:
        try:
            self._view.client.get_journal(journal)
        except JournalNotFoundError as error:
            raise JournalNotFoundError(journal, f"option {option!r} names it") from error
