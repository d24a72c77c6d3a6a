"""List and apply journal specs, list fragments: each call once, with no retry of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from gazette_spark.client.channel import Connection
from gazette_spark.client.status import check_status
from gazette_spark.errors import JournalNotFoundError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journals import validate_journal_name, validate_journal_spec
from gazette_spark.protocol.labels import NAME, label_set, parse_selector, validate_selector
from gazette_spark.protocol.tokens import APPLY_LIFETIME_S, Capability, Claims, journal_claims

MAX_PAGE = 10_000
"""Fragments a broker gives at once, at most."""


@dataclass(frozen=True, slots=True)
class ListedFragment:
    """A fragment of a journal, and where to fetch it if that was asked for and it is stored."""

    fragment: Fragment
    signed_url: str

    def __repr__(self) -> str:
        return f"ListedFragment({self.fragment!r}, signed_url={'***' if self.signed_url else ''!r})"


def list_journals(
    connection: Connection, selector: str | pb.LabelSelector, *, timeout_s: float
) -> list[pb.ListResponse.Journal]:
    """Return the journals a selector matches, ascending by name."""
    wanted = parse_selector(selector) if isinstance(selector, str) else selector
    validate_selector(wanted)
    journals: list[pb.ListResponse.Journal] = []
    metadata = connection.metadata(Claims(Capability.LIST, wanted))
    with connection.errors():
        for page in connection.stub().List(
            pb.ListRequest(selector=wanted), timeout=timeout_s, metadata=metadata
        ):
            check_status(page.status, "")
            journals.extend(page.journals)
    return sorted(journals, key=lambda journal: journal.spec.name)


def get_journal(connection: Connection, name: str, *, timeout_s: float) -> pb.ListResponse.Journal:
    """Return one journal."""
    validate_journal_name(name)
    selector = pb.LabelSelector(include=label_set({NAME: name}))
    found = list_journals(connection, selector, timeout_s=timeout_s)
    if not found:
        raise JournalNotFoundError(name)
    return found[0]


def validate_changes(changes: Sequence[pb.ApplyRequest.Change]) -> None:
    """Raise unless all changes are such as a broker takes."""
    for index, change in enumerate(changes):
        where = f"ApplyRequest.Changes[{index}]"
        if change.HasField("upsert") == bool(change.delete):
            raise ProtocolError(where, "expected one of Upsert and Delete")
        least = 0 if change.HasField("upsert") else 1
        if change.expect_mod_revision < least and change.expect_mod_revision != -1:
            problem = f"invalid ExpectModRevision ({change.expect_mod_revision}; expected -1 or >= {least})"
            raise ProtocolError(where, problem)
        if change.HasField("upsert"):
            validate_journal_spec(change.upsert)
        else:
            validate_journal_name(change.delete)


def apply_changes(
    connection: Connection, changes: Sequence[pb.ApplyRequest.Change], *, timeout_s: float
) -> int:
    """Apply all changes or none; return the revision."""
    metadata = connection.metadata(Claims(Capability.APPLY, pb.LabelSelector()), APPLY_LIFETIME_S)
    with connection.errors():
        response = connection.stub().Apply(
            pb.ApplyRequest(changes=changes), timeout=timeout_s, metadata=metadata
        )
    names = ", ".join(change.upsert.name or change.delete for change in changes[:3])
    check_status(response.status, names if len(changes) <= 3 else f"{names}, …")
    return response.header.etcd.revision


@dataclass(frozen=True, slots=True)
class FragmentsOptions:
    """Which fragments to list: stored no earlier than ``begin_mod_time``, and by ``end_mod_time``."""

    journal: str
    begin_mod_time: int = 0
    end_mod_time: int = 0
    signature_ttl_s: float | None = None

    def __post_init__(self) -> None:
        validate_journal_name(self.journal, allow_meta=True)
        if self.end_mod_time != 0 and self.end_mod_time < self.begin_mod_time:
            raise ProtocolError(
                "FragmentsRequest.EndModTime",
                f"invalid EndModTime ({self.end_mod_time} must be after {self.begin_mod_time})",
            )
        if self.signature_ttl_s is not None and self.signature_ttl_s <= 0:
            raise ProtocolError(
                "FragmentsRequest.SignatureTTL",
                f"invalid SignatureTTL ({self.signature_ttl_s}; expected > 0)",
            )


def list_fragments(
    connection: Connection, options: FragmentsOptions, *, timeout_s: float, limit: int = 0
) -> list[ListedFragment]:
    """Return the fragments of a journal, pages joined, ascending by begin; neighbours may overlap.

    A ``limit`` other than 0 stops at that many.
    """
    request = pb.FragmentsRequest(
        journal=options.journal,
        begin_mod_time=options.begin_mod_time,
        end_mod_time=options.end_mod_time,
        page_limit=min(limit, MAX_PAGE),
        signatureTTL=_duration(options.signature_ttl_s),
    )
    claims = journal_claims(Capability.READ, options.journal)
    listed: list[ListedFragment] = []
    while True:
        metadata = connection.metadata(claims)
        with connection.errors():
            page = connection.stub().ListFragments(request, timeout=timeout_s, metadata=metadata)
        check_status(page.status, options.journal)
        listed.extend(ListedFragment(Fragment.from_pb(each.spec), each.signed_url) for each in page.fragments)
        if page.next_page_token == 0 or (limit and len(listed) >= limit):
            return listed
        if page.next_page_token <= request.next_page_token:
            raise ProtocolError("FragmentsResponse.NextPageToken", "it does not grow from page to page")
        request.next_page_token = page.next_page_token


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    value = Duration()
    value.FromNanoseconds(int(seconds * 1e9))
    return value
