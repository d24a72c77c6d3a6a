"""Validates requests as a broker does, and the headers of proxied ones.

Errors name fields as brokers do, such as ``ReadRequest.Offset``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from google.protobuf.message import Message

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journal_specs import validate_journal_name, validate_journal_spec, validate_store
from gazette_spark.protocol.labels import PREFIX, validate_label_set, validate_selector, values_of
from gazette_spark.protocol.names import validate_token

if TYPE_CHECKING:  # Most processes do not use consumers.
    from gazette_spark.protocol import consumer_pb2

ZONE_BYTES = (1, 32)
"""Minimum and maximum length of a process's zone."""
SUFFIX_BYTES = (4, 128)
"""Minimum and maximum length of a process's suffix."""
MAX_PAGE_LIMIT = 10_000
"""Maximum number of fragments in a page."""
TRIED_DIRECTORY = "gazette-spark-tried-directory-bin"
"""Trailing metadata of an embedded broker's FragmentStoreHealth: the directory used in place of a bucket."""


def validate_header(header: pb.Header, where: str = "Header") -> None:
    """Raise ProtocolError unless the header is well formed. Its process id is optional."""
    if header.process_id.ByteSize():
        validate_process_id(header.process_id, f"{where}.ProcessId")
    validate_route(header.route, f"{where}.Route")
    for name in ("cluster_id", "member_id", "revision", "raft_term"):
        if (number := getattr(header.etcd, name)) <= 0:
            raise ProtocolError(f"{where}.Etcd", f"{name} must be above 0, got {number}")


def validate_process_id(process_id: pb.ProcessSpec.ID, where: str = "ProcessSpec.ID") -> None:
    """Raise ProtocolError unless zone and suffix are tokens of valid lengths."""
    validate_token(f"{where}.Zone", process_id.zone, *ZONE_BYTES)
    validate_token(f"{where}.Suffix", process_id.suffix, *SUFFIX_BYTES)


def validate_route(route: pb.Route, where: str = "Route") -> None:
    """Raise ProtocolError unless members ascend, the primary is a member or -1, and endpoints fit members."""
    # Less than any member, because zones have at least one character.
    previous = ("", "")
    for at, member in enumerate(route.members):
        validate_process_id(member, f"{where}.Members[{at}]")
        if (member.zone, member.suffix) <= previous:
            raise ProtocolError(f"{where}.Members[{at}]", f"must be unique and ascend, follows {previous}")
        previous = (member.zone, member.suffix)
    if not -1 <= route.primary < len(route.members):
        problem = (
            f"must be from -1 to the number of members, {len(route.members)}, less 1, got {route.primary}"
        )
        raise ProtocolError(f"{where}.Primary", problem)
    if route.endpoints and len(route.endpoints) != len(route.members):
        problem = f"must be none or one per member, got {len(route.endpoints)} for {len(route.members)}"
        raise ProtocolError(f"{where}.Endpoints", problem)
    for at, endpoint in enumerate(route.endpoints):
        if endpoint:
            validate_endpoint(endpoint, f"{where}.Endpoints[{at}]")


def validate_endpoint(endpoint: str, where: str = "Endpoint") -> None:
    """Raise ProtocolError unless the endpoint is an absolute URL with a host."""
    try:
        parts = urlsplit(endpoint)
        # urlsplit checks the port only when it is accessed.
        _ = parts.port
    except ValueError as error:
        raise ProtocolError(where, f"{endpoint!r} is not a URL: {error}") from None
    if not parts.scheme or not parts.netloc:
        raise ProtocolError(where, f"must be an absolute URL with a host, got {endpoint!r}")


def validate_read_request(request: pb.ReadRequest) -> None:
    """Raise ProtocolError unless the request is well formed."""
    where = "ReadRequest"
    _check_request(request, where)
    _at_least(f"{where}.Offset", request.offset, -1)
    # 0 means no end, so a range up to offset 0 cannot be requested.
    if request.end_offset != 0:
        _at_least(f"{where}.EndOffset", request.end_offset, max(request.offset, 0))


def validate_append_request(request: pb.AppendRequest, *, first: bool = True) -> None:
    """Raise ProtocolError unless the request may be the first message of an append, or a later one."""
    where = "AppendRequest"
    if not first:
        # A broker would ignore a field that is set later, and the caller would rely on it.
        _only(request, {"content"}, where, "after the first message")
        return
    _check_request(request, where)
    # Both texts are the brokers' own, which users of Gazette know.
    if request.offset < 0:
        raise ProtocolError(where, f"invalid Offset ({request.offset}; expected >= 0)")
    if request.content:
        raise ProtocolError(where, "unexpected Content")
    if request.HasField("check_registers"):
        validate_selector(request.check_registers, f"{where}.CheckRegisters")
    validate_label_set(request.union_registers, f"{where}.UnionRegisters")
    validate_label_set(request.subtract_registers, f"{where}.SubtractRegisters")
    if request.suspend not in pb.AppendRequest.Suspend.values():
        raise ProtocolError(f"{where}.Suspend", f"{request.suspend} is unknown")


def validate_list_request(request: pb.ListRequest) -> None:
    """Raise ProtocolError unless the selector is well formed and values of ``prefix`` end in a slash."""
    where = "ListRequest.Selector"
    validate_selector(request.selector, where)
    for labels in (request.selector.include, request.selector.exclude):
        for value in values_of(labels, PREFIX):
            if not value.endswith("/"):
                raise ProtocolError(where, f"values of label 'prefix' must end in '/', got {value!r}")


def validate_apply_request(request: pb.ApplyRequest) -> None:
    """Raise ProtocolError unless all changes of the request are valid."""
    validate_changes(request.changes)


def validate_changes(changes: Iterable[pb.ApplyRequest.Change]) -> None:
    """Raise ProtocolError unless each change upserts a valid spec or deletes a journal, not both."""
    for at, change in enumerate(changes):
        where = f"ApplyRequest.Changes[{at}]"
        check_upsert_or_delete(change, where)
        if change.delete:
            validate_journal_name(change.delete, where=f"{where}.Delete")
        else:
            validate_journal_spec(change.upsert, f"{where}.upsert")


def check_upsert_or_delete(
    change: pb.ApplyRequest.Change | consumer_pb2.ApplyRequest.Change, where: str
) -> None:
    """Raise ProtocolError unless a change is an upsert or a deletion and its expected revision is valid."""
    if change.HasField("upsert") == bool(change.delete):
        raise ProtocolError(where, "expected one of Upsert and Delete")
    # 0 means that the item must not exist, which makes no sense for a deletion. -1 disables the check.
    least = 1 if change.delete else 0
    if change.expect_mod_revision < least and change.expect_mod_revision != -1:
        problem = f"invalid ExpectModRevision ({change.expect_mod_revision}; expected -1 or >= {least})"
        raise ProtocolError(f"{where}.ExpectModRevision", problem)


def validate_fragments_request(request: pb.FragmentsRequest) -> None:
    """Raise ProtocolError unless the request is well formed."""
    where = "FragmentsRequest"
    _check_request(request, where)
    if request.end_mod_time != 0:
        _at_least(f"{where}.EndModTime", request.end_mod_time, request.begin_mod_time)
    _at_least(f"{where}.NextPageToken", request.next_page_token, 0)
    if not 0 <= request.page_limit <= MAX_PAGE_LIMIT:
        raise ProtocolError(
            f"{where}.PageLimit", f"must be from 0 to {MAX_PAGE_LIMIT}, got {request.page_limit}"
        )
    if request.HasField("signatureTTL") and request.signatureTTL.ToNanoseconds() <= 0:
        raise ProtocolError(f"{where}.SignatureTTL", "must be above 0 if present")


def validate_store_health_request(request: pb.FragmentStoreHealthRequest) -> None:
    """Raise ProtocolError unless the store is valid and any deletion prefix has ``check_delete``."""
    where = "FragmentStoreHealthRequest"
    validate_store(request.fragment_store, f"{where}.FragmentStore")
    prefix = request.check_delete_prefix
    if prefix and not (request.check_delete and prefix.endswith("/")):
        raise ProtocolError(
            f"{where}.CheckDeletePrefix", f"needs check_delete and a '/' at its end, got {prefix!r}"
        )


def validate_replicate_request(request: pb.ReplicateRequest, where: str = "ReplicateRequest") -> None:
    """Raise ProtocolError unless the message is a proposal with registers, or content."""
    if not request.HasField("proposal"):
        if not request.content:
            raise ProtocolError(where, "expected Content or Proposal")
        _at_least(f"{where}.ContentDelta", request.content_delta, 0)
        _only(request, ("content", "content_delta"), where, "with Content")
        return
    if request.HasField("header"):
        validate_header(request.header, f"{where}.Header")
        if not request.acknowledge:
            raise ProtocolError(where, "expected Acknowledge with Header")
    try:
        proposal = Fragment.from_pb(request.proposal)
    except ProtocolError as error:
        # The fragment's error, prefixed with the path of the request.
        raise ProtocolError(f"{where}.{error.where}", error.problem) from None
    validate_label_set(request.registers, f"{where}.Registers")
    if request.content or request.content_delta:
        raise ProtocolError(where, "unexpected Content with Proposal")
    if request.deprecated_journal not in ("", proposal.journal):
        raise ProtocolError(where, "DeprecatedJournal and Proposal.Journal mismatch")


def _check_request(request: pb.ReadRequest | pb.AppendRequest | pb.FragmentsRequest, where: str) -> None:
    if request.HasField("header"):
        validate_header(request.header, f"{where}.Header")
    validate_journal_name(request.journal, allow_meta=True, where=f"{where}.Journal")


def _at_least(where: str, value: int, least: int) -> None:
    if value < least:
        raise ProtocolError(where, f"must be at least {least}, got {value}")


def _only(message: Message, allowed: Iterable[str], where: str, when: str) -> None:
    for field, _ in message.ListFields():
        if field.name not in allowed:
            raise ProtocolError(where, f"{field.name} is not allowed {when}")
