"""Listings of journals, joined from the messages of a List stream. Pure: messages in, listings out.

A listing is a first message with the header, then messages that hold journals only. Where it is asked
for once, it ends with the stream. In a watch it ends with an empty message, and the next one may follow::

    header + journals, journals, journals, (empty)    header + journals, (empty)    …

A stream that is cut before a listing's end, that repeats an old revision, or that breaks the form in another
way gives an error. The unfinished listing is dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from gazette_spark.client._transport.status import check_status
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import validate_journal_name

_WHERE = "ListResponse"


@dataclass(frozen=True, slots=True)
class Listing:
    """The journals that matched a selector at one revision.

    A journal that was deleted and created again has another ``create_revision``.
    """

    header: pb.Header
    """Header of the broker that answered; a watch resumes with it."""
    journals: tuple[pb.ListResponse.Journal, ...]
    """Ascending by name, each name once."""

    def __repr__(self) -> str:
        return f"Listing(revision={self.revision}, journals={len(self.journals)})"

    @property
    def revision(self) -> int:
        """Etcd's revision when the listing was made; 0 if the broker did not say."""
        return self.header.etcd.revision

    @property
    def names(self) -> list[str]:
        """Names of the journals."""
        return [each.spec.name for each in self.journals]

    def get(self, name: str) -> pb.ListResponse.Journal | None:
        """Return the journal of that name, if it is listed."""
        at = bisect_left(self.journals, name, key=_name)
        found = at < len(self.journals) and self.journals[at].spec.name == name
        return self.journals[at] if found else None

    def to_pb(self) -> pb.ListResponse:
        """Return the listing as one message, as brokers that knew no pages sent it."""
        return pb.ListResponse(header=self.header, journals=self.journals)

    def changes_since(self, older: Listing | None) -> ListingChange:
        """Return the difference from ``older``; None counts as an empty listing. Routes are not compared."""
        before = {each.spec.name: each for each in older.journals} if older is not None else {}
        now = {each.spec.name: each for each in self.journals}
        kept = [(name, before[name], now[name]) for name in now if name in before]
        return ListingChange(
            added=tuple(name for name in now if name not in before),
            removed=tuple(name for name in before if name not in now),
            recreated=tuple(name for name, old, new in kept if old.create_revision != new.create_revision),
            updated=tuple(
                name
                for name, old, new in kept
                if old.create_revision == new.create_revision and old.mod_revision != new.mod_revision
            ),
        )


_name = attrgetter("spec.name")


@dataclass(frozen=True, slots=True)
class ListingChange:
    """Difference of a listing from an older one: names, each in one of the four, ascending."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    recreated: tuple[str, ...]
    """Deleted and created again: offsets of old belong to another journal."""
    updated: tuple[str, ...]
    """Journals whose specs changed."""


class SnapshotJoiner:
    """Joins the messages of one List stream to listings. Not thread-safe.

    Args:
        watch: the stream is a watch: an empty message ends each listing.
        least_revision: listings of smaller revisions are refused.
    """

    def __init__(self, *, watch: bool, least_revision: int = 0) -> None:
        self._watch = watch
        self._least_revision = least_revision
        self._header: pb.Header | None = None
        self._journals: list[pb.ListResponse.Journal] = []

    def feed(self, message: pb.ListResponse) -> Listing | None:
        """Take the stream's next message; return the listing it completes, if it does.

        Raises:
            StatusError: the broker answered with a status other than OK.
            ProtocolError: the message may not come here.
        """
        check_status(message.status, "")
        if self._header is None:
            self._begin(message)
            return None
        if message.header.etcd.revision:
            raise ProtocolError(_WHERE, "a listing begins before the one before it has ended")
        if message.journals:
            self._add(message.journals)
            return None
        if not self._watch:
            raise ProtocolError(_WHERE, "an empty message follows the first one of a listing")
        return self._complete()

    def finish(self) -> Listing | None:
        """Return the listing that the stream's clean end completes; None for a watch that may end there.

        Raises:
            ProtocolError: the stream ended within a listing of a watch, or before any.
        """
        if self._watch and self._header is None:
            return None
        if self._watch or self._header is None:
            raise ProtocolError(_WHERE, "the stream ended before a listing was complete")
        return self._complete()

    def _begin(self, message: pb.ListResponse) -> None:
        revision = message.header.etcd.revision
        if self._watch and revision <= 0:
            raise ProtocolError(_WHERE, "a listing begins without a header and its revision")
        if revision < self._least_revision:
            problem = f"revision {revision} is not new; expected {self._least_revision} or more"
            raise ProtocolError(f"{_WHERE}.Header.Etcd", problem)
        self._header = pb.Header()
        self._header.CopyFrom(message.header)
        self._add(message.journals)

    def _add(self, journals: Iterable[pb.ListResponse.Journal]) -> None:
        for journal in journals:
            where = f"{_WHERE}.Journals[{len(self._journals)}]"
            validate_journal_name(journal.spec.name, where=f"{where}.Spec.Name")
            if journal.mod_revision <= 0:
                raise ProtocolError(f"{where}.ModRevision", f"must be above 0, got {journal.mod_revision}")
            self._journals.append(journal)

    def _complete(self) -> Listing:
        assert self._header is not None
        journals = sorted(self._journals, key=_name)
        for before, after in pairwise(journals):
            if before.spec.name == after.spec.name:
                raise ProtocolError(f"{_WHERE}.Journals", f"{after.spec.name!r} is listed twice")
        listing = Listing(self._header, tuple(journals))
        self._least_revision = listing.revision + 1
        self._header, self._journals = None, []
        return listing
