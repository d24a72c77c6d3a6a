"""A fragment store in place of brokers: it answers a planner's questions about journals from one listing.

The listing is made once per query. The piece of a task has the fragments of its bytes, so tasks list nothing,
and a file that appears in between changes no row.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Mapping, Sequence
from typing import Self

from gazette_spark._planning.store_coverage import Coverage, check_fragments
from gazette_spark._planning.store_files import StoreFiles
from gazette_spark._planning.store_layout import Layout, StoredFragment, Wanted, layout_of
from gazette_spark._planning.store_reader import StoreReader
from gazette_spark.client._list.listings import ListedFragment
from gazette_spark.client._list.snapshots import Listing
from gazette_spark.client._read.heads import Tail
from gazette_spark.client._read.settled_heads import SettledHead
from gazette_spark.closing import Closing
from gazette_spark.errors import JournalNotFoundError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import (
    expand_prefix,
    labels_with_name,
    parse_selector,
    selector_matches,
)

log = logging.getLogger(__name__)

MAX_ROOTS = 16
"""Journals named up to which each one's directory is listed; of more, the one they have in common."""

MAX_OFFSET = 2**63 - 1


class StoreJournals(Closing):
    """Journals of a store, with the methods of a client that a planner uses. Thread-safe."""

    def __init__(self, files: StoreFiles, layout: Layout, *, known_to: int = MAX_OFFSET) -> None:
        """Keep a listing.

        Args:
            files: files of the store.
            layout: journals of the store.
            known_to: offset from which on the layout may lack fragments, of each journal.
        """
        self._files = files
        self._coverage = {name: Coverage(fragments) for name, fragments in layout.journals.items()}
        self._known_to = known_to

    @classmethod
    def listed(cls, files: StoreFiles, wanted: Wanted) -> Self:
        """List a store; the journals named that have no fragment are not there.

        Raises:
            FragmentStoreError: it cannot be listed.
            OptionError: the listing does not tell which directories are journals.
        """
        layout = layout_of(files.list(roots_of(wanted)), wanted)
        if layout.skipped:
            log.warning(
                "files that are no fragments are left out store=%s count=%d first=%s",
                files.url,
                len(layout.skipped),
                layout.skipped[0],
            )
        return cls(files, layout)

    @classmethod
    def of_piece(
        cls, files: StoreFiles, journal: str, fragments: Sequence[StoredFragment], known_to: int
    ) -> Self:
        """Return the one journal of a task, with the fragments its piece came with."""
        return cls(files, Layout({journal: tuple(fragments)}), known_to=known_to)

    def __repr__(self) -> str:
        return f"StoreJournals({self._files!r}, {len(self._coverage)} journals)"

    def close(self) -> None:
        """Do nothing: only readers hold files."""

    @property
    def endpoint(self) -> str:
        """The store's URL."""
        return self._files.url

    @property
    def timeout_s(self) -> float:
        """No time: nothing is waited for."""
        return 0.0

    def list_all_journals(self, selector: str | pb.LabelSelector = "") -> Listing:
        """Return the journals whose name matches a selector, without a revision: stores have no revisions."""
        return Listing(pb.Header(), tuple(self.list_journals(selector)))

    def list_journals(
        self, selector: str | pb.LabelSelector = "", *, limit: int = 0
    ) -> list[pb.ListResponse.Journal]:
        """Return the journals whose name a selector matches. Their specs have no labels."""
        parsed = expand_prefix(parse_selector(selector) if isinstance(selector, str) else selector)
        specs = [pb.JournalSpec(name=name) for name in sorted(self._coverage)]
        return [
            pb.ListResponse.Journal(spec=spec)
            for spec in specs
            if selector_matches(parsed, labels_with_name(spec))
        ][: limit or None]

    def get_journal(self, name: str) -> pb.ListResponse.Journal:
        """Return one journal.

        Raises:
            JournalNotFoundError: the listing has no fragment of it.
        """
        self._of(name)
        return pb.ListResponse.Journal(spec=pb.JournalSpec(name=name))

    def first_offset(self, journal: str) -> int:
        """Return the first offset that is stored."""
        return self._of(journal).begin

    def write_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the end of each journal's stored bytes: brokers may have more."""
        return {journal: self._of(journal).end for journal in journals}

    def highest_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the end of each journal's stored bytes: a store has no members."""
        return self.write_heads(journals)

    def settled_heads(self, reached: Mapping[str, int]) -> dict[str, SettledHead]:
        """Return the end of each journal's stored bytes: the listing is final."""
        return {journal: SettledHead(head) for journal, head in self.write_heads(list(reached)).items()}

    def tails(self, offsets: Mapping[str, int], max_bytes: int) -> dict[str, Tail]:  # noqa: ARG002
        """Return the end of each journal's stored bytes, and no content."""
        return {journal: Tail(head) for journal, head in self.write_heads(list(offsets)).items()}

    def list_fragments(
        self, journal: str, *, begin_mod_time: int = 0, page_token: int = 0
    ) -> list[ListedFragment]:
        """Return the fragments that serve, as brokers list them."""
        return [
            ListedFragment(each.fragment, "")
            for each in self._of(journal).serving
            if each.begin >= page_token
            and (each.fragment.mod_time == 0 or each.fragment.mod_time >= begin_mod_time)
        ]

    def read(self, journal: str, *, offset: int = 0, end_offset: int = 0) -> StoreReader:
        """Return a reader of ``[offset, end_offset)``; raises as :meth:`fragments_of`."""
        coverage = Coverage(self.fragments_of(journal, offset, end_offset))
        return StoreReader(self._files, coverage, offset, end_offset, known_to=self._known_to)

    def fragments_of(self, journal: str, begin: int, end: int) -> tuple[StoredFragment, ...]:
        """Return the fragments with bytes in a range and, if its end is in no fragment, the next one.

        Raises:
            FragmentConflictError: two of the fragments contradict each other.
            CorruptFragmentError: the length of a file is not the length in its name.
        """
        found = self._of(journal).of_range(begin, end)
        check_fragments(found, self._files.url)
        return found

    def _of(self, journal: str) -> Coverage:
        if journal not in self._coverage:
            raise JournalNotFoundError(journal, f"no fragment of it is in {self._files.url}")
        return self._coverage[journal]


def roots_of(wanted: Wanted) -> list[str]:
    """Return the directories of a store to list for the wanted journals; no directory contains another."""
    if not wanted.names:
        return [wanted.prefix.rstrip("/")]
    names = sorted(set(wanted.names))
    if len(names) <= MAX_ROOTS:
        return [name for name in names if not any(name.startswith(f"{other}/") for other in names)]
    return [posixpath.commonpath(names)]
