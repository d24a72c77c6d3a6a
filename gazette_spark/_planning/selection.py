"""Finds the journals that a query reads: which of them exist, appeared, disappeared, or were created again.

:func:`classify` decides the status of a journal that the list lacks, from the query's position and from the
brokers' answer to a request for that journal by name, never from its absence alone:

==============  ==========================================================  =============================
status          condition                                                   consequence
==============  ==========================================================  =============================
``PAUSED``      it exists, but is no longer selected                        its offset is kept
``READ``        it is gone, and this run has read it to its write head      its offset is kept
``GONE``        it is gone, and the position says so                        its offset is kept
``LOST``        it is gone with unread bytes, or that is unknown            an error, unless loss is allowed
``RECREATED``   it was created after the position was made                  its bytes are compared
``NOT_LISTED``  a broker at an older revision says that it is gone          retried, then an error
==============  ==========================================================  =============================

The bytes of a recreated journal show whether it is another journal: see ``identities``.

``READ`` requires a write head that this run has seen. The head in the position is not enough, because bytes
that were appended while no query ran would be lost silently. The next position records that a journal is
gone, so that this is decided only once.

Brokers may answer at different revisions of Etcd. The larger revision of the list and of the query's position
counts: a journal that the list lacks is looked up until the answer is at least that new. So every journal of
a position was seen at the position's revision, and that revision never goes back.

Spark matches the positions of a checkpoint and the sources of a query by their order. :func:`check_continued`
refuses the position of another source.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from gazette_spark._planning.identities import JournalIdentities
from gazette_spark._planning.listing import JournalLister
from gazette_spark._planning.pieces import OffsetRange
from gazette_spark._planning.view import JournalView
from gazette_spark.client._list.listing import name_hint
from gazette_spark.errors import (
    JournalNotFoundError,
    OptionError,
    OtherJournalsError,
)
from gazette_spark.offsets import JournalOffsets

if TYPE_CHECKING:
    from gazette_spark.client import Listing

log = logging.getLogger(__name__)

NOWHERE = JournalOffsets()
"""The position of a query that has read nothing."""


class JournalStatus(Enum):
    """Status of a journal that is no longer selected or was created again, as the module describes it."""

    PAUSED = "journal is no longer selected, its offset is kept"
    READ = "journal is gone and was read to its last known end, its offset is kept"
    GONE = "journal has been gone since an earlier batch, its offset is kept"
    LOST = "journal is gone, its offset is kept"
    RECREATED = "journal was created again"
    NOT_LISTED = "journal is not known yet"


@dataclass(frozen=True, slots=True)
class LastSeen:
    """What a query knows about a journal that is no longer selected."""

    reached: int
    """Offset up to which it was read."""
    head: int | None
    """Last known write head of the journal; None if unknown."""
    revision: int
    """Etcd revision at which it existed; 0 if unknown."""
    is_current: bool = False
    """Whether this run has seen the write head."""
    is_gone: bool = False
    """Whether the position says that it is gone."""

    @property
    def unread_bytes(self) -> int | None:
        """Number of bytes not read; None if unknown."""
        return None if self.head is None else max(0, self.head - self.reached)


def classify(last_seen: LastSeen, create_revision: int | None, listed_revision: int) -> JournalStatus:
    """Return a journal's status.

    Args:
        last_seen: What the query knows about the journal.
        create_revision: Revision of its creation; None if brokers say that it does not exist.
        listed_revision: Etcd revision of the brokers' answer.
    """
    # The journal exists, or did a moment ago: a later list would show its deletion.
    if create_revision is not None:
        recreated = is_recreated(create_revision, last_seen.revision)
        return JournalStatus.RECREATED if recreated else JournalStatus.PAUSED
    # An older answer may come from before the journal was created, so its absence proves nothing.
    if listed_revision < last_seen.revision:
        return JournalStatus.NOT_LISTED
    if last_seen.is_gone:
        return JournalStatus.GONE
    # A position's head is not enough, because bytes may have been appended after the query stopped.
    is_read = last_seen.is_current and last_seen.unread_bytes == 0
    return JournalStatus.READ if is_read else JournalStatus.LOST


def is_recreated(create_revision: int, seen_revision: int) -> bool:
    """Return whether a journal was created after the query saw it. Brokers before 0.100 report revision 0."""
    return 0 < seen_revision < create_revision


def check_continued(
    option: str, position: Collection[str], selected: Collection[str], existing: Collection[str]
) -> None:
    """Check that a position does not belong to another source.

    Deleted journals prove nothing, because others may have replaced them. A position belongs to another
    source if one of its journals exists but is no longer selected, while all selected journals are new.

    Args:
        option: Option that selects the journals.
        position: Journals of the position.
        selected: Journals that the option selects.
        existing: Journals of the position that exist.

    Raises:
        OtherJournalsError: the option selects journals, and none of the position's, some of which exist.
    """
    unselected = set(existing) & set(position)
    if selected and unselected and not set(position) & set(selected):
        raise OtherJournalsError(option, tuple(sorted(unselected)), tuple(sorted(selected)))


class QueryJournals:
    """The journals that a query's options select. For one thread."""

    def __init__(self, view: JournalView, journals: JournalLister, identities: JournalIdentities) -> None:
        self._view = view
        self._journals = journals
        self._identities = identities
        self.created: Mapping[str, int] = {}
        """Create revisions of the listed journals by name; 0 if brokers do not report them."""
        self.heads: Mapping[str, int] = {}
        """Latest write heads by journal."""
        self._heads_of_run: dict[str, int] = {}
        """Last write heads that this run has seen, including those of journals that are gone."""
        self.revision = 0
        """Largest Etcd revision at which all current journals were seen; 0 if brokers do not report it."""
        self.paused: frozenset[str] = frozenset()
        """Journals of the position that exist but are no longer selected."""
        self.gone: tuple[str, ...] = ()
        """Journals of the position that no longer exist."""
        self._listing: Listing | None = None
        self.names: frozenset[str] = frozenset()
        """The journals of the list that the options select."""
        self._youngest = 0
        """Largest create revision of the list."""
        self._looked_up: frozenset[str] = frozenset()
        """Journals that were looked up by name because the list lacks them."""
        self._warned: set[str] = set()
        self._is_continued = False
        """Whether the run's first position was found to belong to these journals."""

    def __repr__(self) -> str:
        return f"QueryJournals({self._view.options.selection}, {self._listing})"

    def listed(self) -> frozenset[str]:
        """Request the list and return the selected journals, without checking any others."""
        # The write heads of a run are frozen before its first position is known, so there is none to compare
        # with.
        self._take(self._journals.fresh(), NOWHERE)
        return self.names

    def chosen(self) -> list[str]:
        """Return the journals of a new query, by name.

        Raises:
            JournalNotFoundError: an option names a journal that does not exist.
            OptionError: no journal is selected, or an option names a journal that is not selected.
        """
        options = self._view.options
        journals = sorted(self.selected(fresh=True))
        if not journals:
            got = f"{str(options.selection)!r}, which matches no journal"
            raise OptionError(options.selection.option, got, "at least one journal when a query starts")
        for option, named in (
            ("startingOffsets", options.starting_offsets.named),
            ("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp),
            ("endingOffsets", options.ending_offsets.named),
        ):
            for journal in sorted(named.keys() - set(journals)):
                try:
                    # This distinguishes a misspelt journal from one that the query's own selection omits.
                    self._view.client.get_journal(journal)
                except JournalNotFoundError as error:
                    raise JournalNotFoundError(journal, f"option {option!r} names it") from error
                got = f"journal {journal!r}, which option {options.selection.option!r} leaves out"
                raise OptionError(option, got, "journals of the query only")
        return journals

    def selected(self, start: JournalOffsets = NOWHERE, *, fresh: bool = False) -> frozenset[str]:
        """Return the journals that the options select, after checking the other journals of the position.

        Args:
            start: The query's position.
            fresh: Request the list even if one is known.

        Raises:
            JournalNotFoundError: a journal that an option names is missing; or a journal of the position is
                gone with unread bytes, under ``failOnDataLoss=true``.
            JournalRecreatedError: a journal is not the one that the query has read, or may not be.
            UnavailableError: brokers stayed at an older revision than the query's.
        """
        self._take(self._journals.fresh() if fresh else self._journals.latest(), start)
        reached = start.read_through

        # A journal that an option names must exist until the query has read it. After that it may be deleted
        # like any other.
        selection = self._view.options.selection
        for name in selection.names:
            if name not in self.names and name not in reached:
                who = "load()" if selection.option == "path" else f"option {selection.option!r}"
                hint = name_hint(self._view.client, name)
                raise JournalNotFoundError(name, f"{who} names it{hint}")

        # A journal that was created after the position may be another one of the same name. The list may
        # have thousands, so its largest create revision shows first whether there is any.
        if is_recreated(self._youngest, start.revision):
            for journal, create_revision in self.created.items():
                if is_recreated(create_revision, start.revision) and journal in reached:
                    self._identities.compare_recreated(
                        journal, reached[journal], create_revision, start.revision
                    )

        # Journals that the list lacks are looked up once for each list, which is unchanged at most triggers.
        absent = frozenset(reached.keys() - self.names)
        if not absent - self._looked_up:
            return self.names
        listed_revision = self._listing.revision if self._listing else 0
        answer = self._view.describe_journals(sorted(absent), start.revision, listed_revision)
        paused, gone = set(), []
        for journal in sorted(absent):
            entry = answer.get(journal)
            last_seen = LastSeen(
                reached[journal],
                self._heads_of_run.get(journal, start.head_seen(journal)),
                start.revision,
                is_current=journal in self._heads_of_run,
                is_gone=journal in start.gone,
            )
            # `describe_journals` has waited until the answer is at least as new as the position, or raised an
            # error. So the status is never NOT_LISTED here.
            status = classify(last_seen, entry.create_revision if entry else None, answer.revision)
            if status is JournalStatus.RECREATED and entry:
                self._identities.compare_recreated(
                    journal, reached[journal], entry.create_revision, start.revision
                )
                status = JournalStatus.PAUSED  # It has the same bytes; otherwise an error was raised.
            if status is JournalStatus.LOST and self._view.options.fail_on_data_loss:
                raise _lost(journal, last_seen)
            if status is JournalStatus.PAUSED:
                paused.add(journal)
            else:
                gone.append(journal)
            # Absent journals are looked up again for each list. One log line per journal is enough.
            if journal not in self._warned:
                self._warned.add(journal)
                log.warning("%s journal=%s", status.value, journal)
        self._looked_up, self.paused, self.gone = absent, frozenset(paused), tuple(gone)
        return self.names

    def check_continued(self, start: JournalOffsets) -> None:
        """Check, once, that the run's first position belongs to these journals.

        Later positions have all journals that were selected since, so labels may move between journals.

        Raises:
            OtherJournalsError: the position belongs to another source.
            UnavailableError: brokers stayed at an older revision than the query's.
        """
        if self._is_continued or not start.read_through:
            return
        listing = self._journals.latest()
        self._take(listing, start)
        position = start.read_through.keys()
        # A list that is older than the position may lack journals of the position.
        if self.names and not position & self.names and listing.revision >= start.revision:
            answer = self._view.describe_journals(sorted(position), start.revision, listing.revision)
            option = self._view.options.selection.option
            check_continued(option, position, self.names, answer.names)
        self._is_continued = True

    def existing(self, planned: list[OffsetRange], revision: int) -> list[OffsetRange]:
        """Return the ranges of a batch that an earlier run planned, without those of deleted journals.

        Raises:
            JournalNotFoundError: a journal is gone, under ``failOnDataLoss=true``.
        """
        if not planned:
            return planned
        answer = self._view.describe_journals([span.journal for span in planned], revision, 0)
        for entry in answer.journals:
            self._view.cache_spec(entry.spec)
        existing = set(answer.names)
        for span in planned:
            if span.journal not in existing:
                if self._view.options.fail_on_data_loss:
                    raise _lost(span.journal, LastSeen(span.begin, span.end, revision))
                # The offsets of the batch are final. An error would stop a query that may lose data forever.
                log.warning("%s journal=%s", JournalStatus.LOST.value, span.journal)
        return [span for span in planned if span.journal in existing]

    def see(self, heads: Mapping[str, int]) -> None:
        """Remember the latest write heads."""
        self.heads = heads
        self._heads_of_run |= heads

    def _take(self, listing: Listing, start: JournalOffsets) -> None:
        # Brokers may answer at an older revision than an earlier one did. With a revision that went back,
        # journals that the query has already seen would look as if they had been created again.
        self.revision = max(listing.revision, start.revision) if listing.revision else 0
        # Most triggers get the same list, which may have thousands of journals.
        if listing is self._listing:
            return
        matching = [
            entry.spec for entry in listing.journals if self._view.options.selection.matches(entry.spec.name)
        ]
        for spec in matching:
            self._view.cache_spec(spec)
        self._listing, self.names = listing, frozenset(spec.name for spec in matching)
        self.created = {entry.spec.name: entry.create_revision for entry in listing.journals}
        self._youngest = max(self.created.values(), default=0)
        # What was found out about absent journals applied to the previous list.
        self._looked_up = self.paused = frozenset()
        self.gone = ()


def _lost(journal: str, last_seen: LastSeen) -> JournalNotFoundError:
    unread = f"with {last_seen.unread_bytes} unread bytes"
    if not last_seen.unread_bytes:
        unread = "perhaps with unread bytes"
    if last_seen.unread_bytes == 0:
        unread += ": it was deleted while the query did not run, and its last bytes are unknown"
    detail = (
        f"the query has read it up to offset {last_seen.reached}, and it is gone, {unread}; "
        "set failOnDataLoss=false for one run to omit it"
    )
    return JournalNotFoundError(journal, detail)
