"""Tests that requests are validated by the brokers' rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import requests
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journal_specs import journal_spec

ID = pb.ProcessSpec.ID(zone="local", suffix="broker")
HEADER = pb.Header(
    process_id=ID,
    route=pb.Route(members=[ID], primary=0, endpoints=["http://127.0.0.1:8080"]),
    etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=3, raft_term=1),
)
FRAGMENT = Fragment("a/journal", 10, 20, bytes(range(20)), pb.SNAPPY).to_pb()
REGISTERS = pb.LabelSet(labels=[pb.Label(name="author", value="x")])
BAD_LABELS = pb.LabelSet(labels=[pb.Label(name="x")])
BAD_HEADER = pb.Header()

Case = tuple[Callable[..., None], Any, str]


def refused(check: Callable[..., None], message: Any, **options: Any) -> str:
    """Return the path of the field that breaks a rule."""
    with pytest.raises(ProtocolError) as caught:
        check(message, **options)
    return caught.value.where


@pytest.mark.parametrize("field", ["cluster_id", "member_id", "revision", "raft_term"])
def test_header_etcd(field: str) -> None:
    header = pb.Header()
    header.CopyFrom(HEADER)
    header.etcd.ClearField(field)
    assert refused(requests.validate_header, header) == "Header.Etcd"


def test_header_of_nobody() -> None:
    header = pb.Header(route=pb.Route(primary=-1), etcd=HEADER.etcd)
    requests.validate_header(header)


@pytest.mark.parametrize(
    ("zone", "suffix", "where"),
    [
        ("", "broker", "Zone"),
        ("z" * 33, "broker", "Zone"),
        ("a b", "broker", "Zone"),
        ("a", "abc", "Suffix"),
        ("a", "s" * 129, "Suffix"),
        ("a", "a=bc", "Suffix"),
    ],
)
def test_process_id(zone: str, suffix: str, where: str) -> None:
    header = pb.Header(process_id=pb.ProcessSpec.ID(zone=zone, suffix=suffix), route=HEADER.route)
    header.etcd.CopyFrom(HEADER.etcd)
    assert refused(requests.validate_header, header) == f"Header.ProcessId.{where}"


OTHER = pb.ProcessSpec.ID(zone="local", suffix="another")


@pytest.mark.parametrize(
    ("route", "where"),
    [
        pytest.param(pb.Route(members=[ID, OTHER]), "Members[1]", id="descending"),
        pytest.param(pb.Route(members=[ID, ID]), "Members[1]", id="twice"),
        pytest.param(pb.Route(members=[pb.ProcessSpec.ID()]), "Members[0].Zone", id="no zone"),
        pytest.param(pb.Route(), "Primary", id="primary of nobody"),
        pytest.param(pb.Route(members=[ID], primary=1), "Primary", id="primary past the end"),
        pytest.param(pb.Route(primary=-2), "Primary", id="primary below -1"),
        pytest.param(pb.Route(members=[OTHER, ID], endpoints=["http://h:1"]), "Endpoints", id="too few"),
        pytest.param(pb.Route(members=[ID], endpoints=["h:1"]), "Endpoints[0]", id="no URL"),
        pytest.param(pb.Route(members=[ID], endpoints=["/path"]), "Endpoints[0]", id="no host"),
        pytest.param(pb.Route(members=[ID], endpoints=["http://[::1/"]), "Endpoints[0]", id="bad host"),
    ],
)
def test_route(route: pb.Route, where: str) -> None:
    """Members are sorted, the primary is one of them or -1, and there is one endpoint per member or none."""
    assert refused(requests.validate_route, route) == f"Route.{where}"


def test_route_with_unknown_endpoints() -> None:
    requests.validate_route(pb.Route(members=[OTHER, ID], endpoints=["", "unix://host/path"]))
    requests.validate_route(pb.Route(members=[OTHER, ID]))


ACCEPTED: dict[str, tuple[Callable[..., None], Any]] = {
    "read at the head": (requests.validate_read_request, pb.ReadRequest(journal="a/journal", offset=-1)),
    "read a range": (
        requests.validate_read_request,
        pb.ReadRequest(journal="a/journal", offset=5, end_offset=5),
    ),
    "read with meta": (
        requests.validate_read_request,
        pb.ReadRequest(journal="a/journal;meta", header=HEADER),
    ),
    "append": (
        requests.validate_append_request,
        pb.AppendRequest(
            journal="a/journal",
            check_registers=pb.LabelSelector(include=REGISTERS),
            union_registers=REGISTERS,
            subtract_registers=REGISTERS,
            suspend="SUSPEND_KEEP",
        ),
    ),
    "list": (
        requests.validate_list_request,
        pb.ListRequest(selector={"include": {"labels": [{"name": "prefix", "value": "a/"}]}}),
    ),
    "apply": (
        requests.validate_apply_request,
        pb.ApplyRequest(
            changes=[
                {"upsert": journal_spec("a/bc")},
                {"upsert": journal_spec("a/bc"), "expect_mod_revision": -1},
                {"delete": "a/bc", "expect_mod_revision": 1},
                {"delete": "a/bc", "expect_mod_revision": -1},
            ]
        ),
    ),
    "fragments": (
        requests.validate_fragments_request,
        pb.FragmentsRequest(
            journal="a/journal",
            begin_mod_time=5,
            end_mod_time=5,
            page_limit=10_000,
            signatureTTL=Duration(nanos=1),
        ),
    ),
    "store health": (
        requests.validate_store_health_request,
        pb.FragmentStoreHealthRequest(fragment_store="file:///", check_delete=True, check_delete_prefix="x/"),
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case: str) -> None:
    check, message = ACCEPTED[case]
    assert check(message) is None


def read(**fields: Any) -> Case:
    """Return a ReadRequest, its validator, and its name in errors."""
    return requests.validate_read_request, pb.ReadRequest(**{"journal": "a/journal"} | fields), "ReadRequest"


def append(**fields: Any) -> Case:
    """Return the first AppendRequest of a call, its validator, and its name in errors."""
    message = pb.AppendRequest(**{"journal": "a/journal"} | fields)
    return requests.validate_append_request, message, "AppendRequest"


def listing(name: str, value: str, part: str = "include") -> Case:
    """Return a ListRequest with one label, its validator, and its name in errors."""
    selector = {part: {"labels": [{"name": name, "value": value}]}}
    return requests.validate_list_request, pb.ListRequest(selector=selector), "ListRequest.Selector"


def apply(**fields: Any) -> Case:
    """Return an ApplyRequest whose second change has the fields, its validator, and its name in errors."""
    message = pb.ApplyRequest(changes=[{"delete": "a/bc", "expect_mod_revision": -1}, fields])
    return requests.validate_apply_request, message, "ApplyRequest.Changes[1]"


def fragments(**fields: Any) -> Case:
    """Return a FragmentsRequest, its validator, and its name in errors."""
    message = pb.FragmentsRequest(**{"journal": "a/journal"} | fields)
    return requests.validate_fragments_request, message, "FragmentsRequest"


def health(**fields: Any) -> Case:
    """Return a FragmentStoreHealthRequest, its validator, and its name in errors."""
    message = pb.FragmentStoreHealthRequest(**{"fragment_store": "file:///"} | fields)
    return requests.validate_store_health_request, message, "FragmentStoreHealthRequest"


UPSERT = journal_spec("a/bc")

REFUSED: dict[str, tuple[Case, str]] = {
    "read nothing": (read(journal=""), ".Journal"),
    "read bad meta": (read(journal="a/journal;"), ".Journal.Meta"),
    "read before the head": (read(offset=-2), ".Offset"),
    "read backwards": (read(offset=5, end_offset=4), ".EndOffset"),
    "read to before 0": (read(offset=-1, end_offset=-1), ".EndOffset"),
    "read proxied by nobody": (read(header=BAD_HEADER), ".Header.Route.Primary"),
    "append nowhere": (append(journal=""), ".Journal"),
    "append before 0": (append(offset=-1), ""),
    "append early content": (append(content=b"x"), ""),
    "append check": (
        append(check_registers={"include": BAD_LABELS}),
        ".CheckRegisters.Include[0].name",
    ),
    "append union": (append(union_registers=BAD_LABELS), ".UnionRegisters[0].name"),
    "append subtract": (append(subtract_registers=BAD_LABELS), ".SubtractRegisters[0].name"),
    "append suspend": (append(suspend=9), ".Suspend"),
    "append proxied by nobody": (append(header=BAD_HEADER), ".Header.Route.Primary"),
    "list short name": (listing("x", ""), ".Include[0].name"),
    "list prefix": (listing("prefix", "a/b"), ""),
    "list empty prefix": (listing("prefix", ""), ""),
    "list excluded prefix": (listing("prefix", "a/b", "exclude"), ""),
    "apply nothing": (apply(), ""),
    "apply both": (apply(upsert=UPSERT, delete="a/bc"), ""),
    "apply bad spec": (apply(upsert=pb.JournalSpec()), ".upsert.name"),
    "apply revision": (apply(upsert=UPSERT, expect_mod_revision=-2), ".ExpectModRevision"),
    "delete bad name": (apply(delete="abc", expect_mod_revision=1), ".Delete"),
    "delete any": (apply(delete="a/bc"), ".ExpectModRevision"),
    "delete revision": (apply(delete="a/bc", expect_mod_revision=-2), ".ExpectModRevision"),
    "fragments of nothing": (fragments(journal=""), ".Journal"),
    "fragments backwards": (fragments(begin_mod_time=5, end_mod_time=4), ".EndModTime"),
    "fragments token": (fragments(next_page_token=-1), ".NextPageToken"),
    "fragments page": (fragments(page_limit=-1), ".PageLimit"),
    "fragments large page": (fragments(page_limit=10_001), ".PageLimit"),
    "fragments no time": (fragments(signatureTTL=Duration()), ".SignatureTTL"),
    "health of no store": (health(fragment_store="x"), ".FragmentStore"),
    "health prefix": (health(check_delete=True, check_delete_prefix="x"), ".CheckDeletePrefix"),
    "health prefix alone": (health(check_delete_prefix="x/"), ".CheckDeletePrefix"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    (check, message, where), field = REFUSED[case]
    assert refused(check, message) == where + field


@pytest.mark.parametrize(
    "fields",
    [
        {"journal": "a/journal"},
        {"header": HEADER},
        {"do_not_proxy": True},
        {"offset": 1},
        {"check_registers": pb.LabelSelector()},
        {"union_registers": pb.LabelSet()},
        {"subtract_registers": pb.LabelSet()},
        {"suspend": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_later_messages_of_an_append(fields: dict[str, Any]) -> None:
    """An empty message announces the end of the content."""
    requests.validate_append_request(pb.AppendRequest(content=b"x"), first=False)
    requests.validate_append_request(pb.AppendRequest(), first=False)
    message = pb.AppendRequest(**fields)
    assert refused(requests.validate_append_request, message, first=False) == "AppendRequest"
