"""Lists journals and their fragments, and requests a store's health, each in one call without a retry.

A listing of journals is a first message with the header, then messages with only journals. Without a watch it
ends with the stream. In a watch it ends with an empty message, and the next listing may follow::

    header + journals, journals, journals, (empty)    header + journals, (empty)    …

It is an error if a stream ends inside a listing, repeats an old revision, or breaks this form in another way.
The unfinished listing is dropped.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Protocol

from gazette_spark.client._transport.channel import Connection, settle
from gazette_spark.client._transport.status import check_status
from gazette_spark.errors import GazetteError, JournalNotFoundError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.durations import MAX_DURATION_S, duration_of
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journal_specs import validate_journal_name
from gazette_spark.protocol.labels import NAME, label_set, parse_selector
from gazette_spark.protocol.requests import (
    TRIED_DIRECTORY,
    validate_list_request,
    validate_store_health_request,
)
from gazette_spark.protocol.tokens import Capability, Claims, journal_claims

MAX_PAGE = 10_000
"""Maximum number of fragments per page."""

MAX_CLAIMED_BYTES = 2048
"""Size of a selector above which a token does not repeat it. A selector may name thousands of journals, and
servers and proxies limit headers, some to 8 KiB."""

NAMES_COMPARED = 1000
"""Number of journals that are listed to find a name similar to a misspelt one: a hint must be cheap."""

_WHERE = "ListResponse"


@dataclass(frozen=True, slots=True)
class Listing:
    """The journals that matched a selector at one revision.

    A recreated journal has a different ``create_revision``.
    """

    header: pb.Header
    """Header of the answering broker, with which a watch resumes."""
    journals: tuple[pb.ListResponse.Journal, ...]
    """Journals ascending by name, each name once."""

    def __repr__(self) -> str:
        return f"Listing(revision={self.revision}, journals={len(self.journals)})"

    @property
    def revision(self) -> int:
        """Etcd revision of the listing; 0 if the broker did not report it."""
        return self.header.etcd.revision

    @property
    def names(self) -> list[str]:
        """Names of the journals."""
        return [journal.spec.name for journal in self.journals]

    def get(self, name: str) -> pb.ListResponse.Journal | None:
        """Return the journal with this name, or None."""
        at = bisect_left(self.journals, name, key=_name)
        is_listed = at < len(self.journals) and self.journals[at].spec.name == name
        return self.journals[at] if is_listed else None

    def to_pb(self) -> pb.ListResponse:
        """Return the listing as one message, as brokers without pages sent it."""
        return pb.ListResponse(header=self.header, journals=self.journals)

    def changes_since(self, older: Listing | None) -> ListingChange:
        """Return the difference from ``older``, where None is an empty listing. Routes are not compared."""
        before = {journal.spec.name: journal for journal in older.journals} if older is not None else {}
        now = {journal.spec.name: journal for journal in self.journals}
        in_both = [(name, before[name], now[name]) for name in now if name in before]
        return ListingChange(
            added=tuple(name for name in now if name not in before),
            removed=tuple(name for name in before if name not in now),
            recreated=tuple(name for name, old, new in in_both if old.create_revision != new.create_revision),
            updated=tuple(
                name
                for name, old, new in in_both
                if old.create_revision == new.create_revision and old.mod_revision != new.mod_revision
            ),
        )


_name = attrgetter("spec.name")


@dataclass(frozen=True, slots=True)
class ListingChange:
    """The difference of a listing from an older one. Each name is in one of the fields, ascending."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    recreated: tuple[str, ...]
    """Journals that were deleted and created again: older offsets belong to other journals."""
    updated: tuple[str, ...]
    """Journals whose specs changed."""


class SnapshotJoiner:
    """Joins the messages of one List stream to listings. Not thread-safe.

    Args:
        watch: Whether the stream is a watch, in which an empty message ends each listing.
        least_revision: Minimum revision; listings of smaller revisions are refused.
    """

    def __init__(self, *, watch: bool, least_revision: int = 0) -> None:
        self._watch = watch
        self._least_revision = least_revision
        self._header: pb.Header | None = None
        self._journals: list[pb.ListResponse.Journal] = []

    def feed(self, message: pb.ListResponse) -> Listing | None:
        """Take the stream's next message, and return the listing that it completes, or None.

        Raises:
            StatusError: the broker answered with a status other than OK.
            ProtocolError: the message is not allowed here.
        """
        check_status(message.status, "")
        if self._header is None:
            revision = message.header.etcd.revision
            # A watch resumes after the revision, so it must have one. Plain listings of old brokers may lack
            # it.
            if self._watch and revision <= 0:
                raise ProtocolError(_WHERE, "a listing begins without a header and its revision")
            # A broker that is behind Etcd would otherwise take back journals that an earlier listing had.
            if revision < self._least_revision:
                problem = f"revision {revision} is not new; expected {self._least_revision} or more"
                raise ProtocolError(f"{_WHERE}.Header.Etcd", problem)
            # Copy it, because a part of a message keeps the whole message, with its journals, in memory.
            self._header = pb.Header()
            self._header.CopyFrom(message.header)
            self._add(message.journals)
            return None
        # Only the first message of a listing has a header with a revision.
        if message.header.etcd.revision:
            raise ProtocolError(_WHERE, "a listing begins before the previous one has ended")
        if message.journals:
            self._add(message.journals)
            return None
        # In a watch this message is the end of a listing. In a plain call the end of the stream is.
        if not self._watch:
            raise ProtocolError(_WHERE, "an empty message follows the first message of a listing")
        return self._complete()

    def finish(self) -> Listing | None:
        """Return the listing that the stream's clean end completes; None for a watch between two listings.

        Raises:
            ProtocolError: the stream ended before a listing, or inside a listing of a watch.
        """
        if self._watch and self._header is None:
            return None
        # A stream that breaks off inside a listing looks as if journals had been deleted, so it is not a
        # listing.
        if self._watch or self._header is None:
            raise ProtocolError(_WHERE, "the stream ended before a listing was complete")
        return self._complete()

    def _add(self, journals: Iterable[pb.ListResponse.Journal]) -> None:
        for journal in journals:
            where = f"{_WHERE}.Journals[{len(self._journals)}]"
            validate_journal_name(journal.spec.name, where=f"{where}.Spec.Name")
            if journal.mod_revision <= 0:
                raise ProtocolError(f"{where}.ModRevision", f"must be above 0, got {journal.mod_revision}")
            self._journals.append(journal)

    def _complete(self) -> Listing:
        assert self._header is not None
        # Brokers send them by name, but `get`, a binary search, must not depend on that.
        journals = sorted(self._journals, key=_name)
        for before, after in pairwise(journals):
            if before.spec.name == after.spec.name:
                raise ProtocolError(f"{_WHERE}.Journals", f"{after.spec.name!r} is listed twice")
        listing = Listing(self._header, tuple(journals))
        # The next listing of a watch is sent because something has changed, so its revision is larger.
        self._least_revision = listing.revision + 1
        self._header, self._journals = None, []
        return listing


@dataclass(frozen=True, slots=True)
class ListedFragment:
    """A fragment of a journal, and its signed URL if that was requested and it is stored."""

    fragment: Fragment
    signed_url: str

    def __repr__(self) -> str:
        return f"ListedFragment({self.fragment!r}, signed_url={'***' if self.signed_url else ''!r})"


def make_selector(selector: str | pb.LabelSelector) -> pb.LabelSelector:
    """Return a valid selector, parsed from text or unchanged.

    Raises:
        ProtocolError: the selector is invalid.
    """
    parsed = parse_selector(selector) if isinstance(selector, str) else selector
    validate_list_request(pb.ListRequest(selector=parsed))
    return parsed


class ListsJournals(Protocol):
    """Lists journals: a client of brokers, or its replacement for a store."""

    def list_journals(self, selector: str, *, limit: int) -> Sequence[pb.ListResponse.Journal]:
        """Return the journals that match a selector; about ``limit`` are enough."""


def name_hint(client: ListsJournals, name: str) -> str:
    """Return a hint for a misspelt journal's name, or for a prefix without its slash.

    This lists journals once. The hint is "" if no journal in the same directory has a similar name.
    """
    parent = name[: name.rfind("/") + 1]
    try:
        listed = client.list_journals(f"prefix={parent or f'{name}/'}", limit=NAMES_COMPARED)
    except GazetteError:
        return ""  # The original error is more useful than this one.
    names = [journal.spec.name for journal in listed]
    if below := sum(other.startswith(f"{name}/") for other in names):
        many = "+ journals" if len(names) >= NAMES_COMPARED else f" journal{'s'[: below > 1]}"
        return f"; did you mean the prefix '{name}/' ({below}{many})?"
    # Imported here because such failures are rare, and each of Spark's workers imports this module.
    from difflib import get_close_matches

    # Names are compared without the common prefix, which would make all of them similar.
    ends = [other.removeprefix(parent) for other in names]
    near = [repr(parent + end) for end in get_close_matches(name.removeprefix(parent), ends, n=2)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def journal_not_found(client: ListsJournals, selector: str) -> JournalNotFoundError:
    """Return the error for a selector that matches no journal, with a hint if it is a name."""
    name = selector.removeprefix("name=")
    hint = name_hint(client, name) if name != selector else ""
    return JournalNotFoundError(name, hint.removeprefix("; "))


def list_metadata(connection: Connection, selector: pb.LabelSelector) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a List call, which only claims the call's selector, unless that is long."""
    # A broker applies the selectors of both the request and the token, so the answer is the same.
    claimed = selector if selector.ByteSize() <= MAX_CLAIMED_BYTES else pb.LabelSelector()
    return connection.metadata(Claims(Capability.LIST, claimed))


def list_journals(
    connection: Connection, selector: str | pb.LabelSelector, *, timeout_s: float, limit: int = 0
) -> Listing:
    """Return the journals that match a selector from all pages, ascending by name.

    A ``limit`` other than 0 ends the listing with the page that reaches this number of journals.
    """
    request = pb.ListRequest(selector=make_selector(selector))
    joiner, listed = SnapshotJoiner(watch=False), 0
    call = connection.stub(pb_grpc.JournalStub).List(
        request, timeout=timeout_s, metadata=list_metadata(connection, request.selector)
    )
    try:
        with connection.errors():
            for message in call:
                joiner.feed(message)
                listed += len(message.journals)
                # The rest is cut off: the caller wants some journals, for example to suggest a name.
                if 0 < limit <= listed:
                    break
    finally:
        # Settle the call after the limit, too. Otherwise gRPC would keep it, with its unread pages.
        settle(call)
    listing = joiner.finish()
    assert listing is not None
    connection.observe("", listing.header)
    observe_routes(connection, listing)
    return listing


def observe_routes(connection: Connection, listing: Listing) -> None:
    """Pass the routes of a listing to the connection's listener."""
    for journal in listing.journals:
        connection.observe(journal.spec.name, journal.route)


def get_journal(connection: Connection, name: str, *, timeout_s: float) -> pb.ListResponse.Journal:
    """Return one journal. A ``;meta`` suffix of its name is ignored."""
    validate_journal_name(name, allow_meta=True)
    name = name.partition(";")[0]
    selector = pb.LabelSelector(include=label_set({NAME: name}))
    journal = list_journals(connection, selector, timeout_s=timeout_s).get(name)
    if journal is None:
        raise JournalNotFoundError(name)
    return journal


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The result of a broker's check of a fragment store."""

    store: str
    problem: str
    """The store's problem; empty for a healthy store."""
    tried_directory: str = ""
    """Directory that an embedded broker tested instead, because it serves the store from there; empty if the
    broker tested the store itself."""

    @property
    def is_healthy(self) -> bool:
        """Whether everything worked."""
        return not self.problem


def check_store(
    connection: Connection, store: str, delete_prefix: str | None, *, timeout_s: float
) -> StoreHealth:
    """Let a broker test a fragment store."""
    request = pb.FragmentStoreHealthRequest(fragment_store=store)
    if delete_prefix is not None:
        request.check_delete, request.check_delete_prefix = True, delete_prefix
    validate_store_health_request(request)
    with connection.errors():
        response, call = connection.stub(pb_grpc.JournalStub).FragmentStoreHealth.with_call(
            request,
            timeout=timeout_s,
            metadata=connection.metadata(Claims(Capability.READ, pb.LabelSelector())),
        )
    if response.status == pb.FRAGMENT_STORE_UNHEALTHY:
        return StoreHealth(store, response.store_health_error or "the broker did not report the reason")
    check_status(response.status, "", f"store {store!r}")
    trailing = dict(call.trailing_metadata() or ())
    return StoreHealth(store, "", os.fsdecode(trailing.get(TRIED_DIRECTORY, b"")))


@dataclass(frozen=True, slots=True)
class FragmentsOptions:
    """The fragments to list: those stored from ``begin_mod_time`` to ``end_mod_time``."""

    journal: str
    begin_mod_time: int = 0
    end_mod_time: int = 0
    signature_ttl_s: float | None = None
    page_token: int = 0
    """Offset before whose fragments are omitted."""
    page_limit: int = 0
    """Number of fragments per page; 0 for the default of 1,000."""

    def __post_init__(self) -> None:
        validate_journal_name(self.journal, allow_meta=True)
        if self.end_mod_time != 0 and self.end_mod_time < self.begin_mod_time:
            raise ProtocolError(
                "FragmentsRequest.EndModTime",
                f"invalid EndModTime ({self.end_mod_time} must be after {self.begin_mod_time})",
            )
        if self.signature_ttl_s is not None and not 0 < self.signature_ttl_s < MAX_DURATION_S:
            problem = f"invalid SignatureTTL ({self.signature_ttl_s}; expected > 0 and < {MAX_DURATION_S})"
            raise ProtocolError("FragmentsRequest.SignatureTTL", problem)
        if self.page_token < 0:
            problem = f"invalid NextPageToken ({self.page_token}; expected >= 0)"
            raise ProtocolError("FragmentsRequest.NextPageToken", problem)
        if not 0 <= self.page_limit <= MAX_PAGE:
            problem = f"invalid PageLimit ({self.page_limit}; expected 0 to {MAX_PAGE})"
            raise ProtocolError("FragmentsRequest.PageLimit", problem)


def list_fragments(
    connection: Connection,
    options: FragmentsOptions,
    *,
    timeout_s: float,
    limit: int = 0,
    headers: dict[str, pb.Header] | None = None,
) -> list[ListedFragment]:
    """Return the fragments of a journal from all pages, ascending by begin. Neighbours may overlap.

    A ``limit`` other than 0 is the maximum number of fragments. The header is added to ``headers``, by
    journal.
    """
    ttl_s = options.signature_ttl_s
    request = pb.FragmentsRequest(
        journal=options.journal,
        begin_mod_time=options.begin_mod_time,
        end_mod_time=options.end_mod_time,
        next_page_token=options.page_token,
        page_limit=min(limit, MAX_PAGE) or options.page_limit,
        signatureTTL=None if ttl_s is None else duration_of(ttl_s, "FragmentsRequest.SignatureTTL"),
    )
    listed: list[ListedFragment] = []
    while True:
        with connection.errors():
            page = connection.stub(pb_grpc.JournalStub).ListFragments(
                request,
                timeout=timeout_s,
                metadata=connection.metadata(journal_claims(Capability.READ, options.journal)),
            )
        connection.observe(options.journal, page.header)
        check_status(page.status, options.journal)
        if headers is not None:
            headers[options.journal] = page.header
        for message in page.fragments:
            fragment = Fragment.from_pb(message.spec)
            if fragment.journal.partition(";")[0] != options.journal.partition(";")[0]:
                problem = f"a fragment of {fragment.journal!r}, not of {options.journal!r}"
                raise ProtocolError("FragmentsResponse", problem)
            listed.append(ListedFragment(fragment, message.signed_url))
        if page.next_page_token == 0 or (limit and len(listed) >= limit):
            return listed
        # If a broker repeated a token, the listing would never end.
        if page.next_page_token <= request.next_page_token:
            raise ProtocolError("FragmentsResponse.NextPageToken", "it does not grow from page to page")
        request.next_page_token = page.next_page_token
