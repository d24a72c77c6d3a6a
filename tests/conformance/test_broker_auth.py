"""Whom a broker with keys serves: tokens, capabilities, selectors, key rotation and expiry."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest

from gazette_spark import EmbeddedBroker
from gazette_spark.client import Capability, Claims, KeySet, parse_selector
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import CALL_TIMEOUT_S, COMMIT, Wire, delete, labels, spec, upsert
from tests.rig.brokers import BrokerHandle, DeployedBroker, ProcessError

OLD_KEY, NEW_KEY = (base64.b64encode(text.encode() * 16).decode() for text in ("old!", "new!"))
OLD, NEW = KeySet.parse(OLD_KEY), KeySet.parse(NEW_KEY)
EVERYTHING = Claims(Capability.ALL, pb.LabelSelector())
KNOWN = "auth/known"
SCOPED = ["auth/red/one", "auth/red/two", "auth/blue/one"]

Metadata = tuple[tuple[str, str], ...]


def bearer(keys: KeySet, claims: Claims = EVERYTHING, lifetime_s: float = 600) -> Metadata:
    return (("authorization", "Bearer " + keys.sign(claims, now=time.time(), lifetime_s=lifetime_s)),)


class _Deployed(DeployedBroker):
    def gazctl_bytes(self, *args: str, input: bytes | str | None = None) -> bytes:  # noqa: A002 - as its base
        return super().gazctl_bytes(*args, f"--broker.auth-keys={OLD_KEY}", input=input)


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)],
)
def keyed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    directory = tmp_path_factory.mktemp("keyed")
    keys = f"{OLD_KEY},{NEW_KEY}"
    if request.param == "embedded":
        with EmbeddedBroker(directory, auth_keys=keys) as embedded:
            handle = BrokerHandle(embedded.endpoint, directory)
            _make_journals(handle)
            yield handle
        return
    with _Deployed(directory, broker_args=[f"--broker.auth-keys={keys}"]) as deployed:
        _make_journals(deployed)
        yield deployed


def _make_journals(broker: BrokerHandle) -> None:
    with Wire(broker.endpoint, bearer(OLD)) as wire:
        color = {name: labels(("color", name.split("/")[1])) for name in SCOPED}
        wire.create(spec(KNOWN), *(spec(name, labels=color[name]) for name in SCOPED))
        for name in [KNOWN, *SCOPED]:
            assert wire.append(name, b"content").status == pb.OK


@pytest.fixture
def wire(keyed: BrokerHandle) -> Iterator[Wire]:
    with Wire(keyed.endpoint) as opened:
        yield opened


def _apply_nothing(wire: Wire, metadata: Metadata) -> object:
    return wire.stub.Apply(pb.ApplyRequest(), timeout=CALL_TIMEOUT_S, metadata=metadata)


def _replicate(wire: Wire, metadata: Metadata) -> object:
    return list(wire.stub.Replicate(iter([pb.ReplicateRequest()]), timeout=CALL_TIMEOUT_S, metadata=metadata))


def _list(wire: Wire, metadata: Metadata, **fields: Any) -> list[pb.ListResponse]:
    return list(wire.stub.List(pb.ListRequest(**fields), timeout=CALL_TIMEOUT_S, metadata=metadata))


def _read(wire: Wire, metadata: Metadata, journal: str = KNOWN) -> list[pb.ReadResponse]:
    request = pb.ReadRequest(journal=journal, metadata_only=True)
    return list(wire.stub.Read(request, timeout=CALL_TIMEOUT_S, metadata=metadata))


def _append(wire: Wire, metadata: Metadata, journal: str = KNOWN) -> pb.AppendResponse:
    messages = iter([pb.AppendRequest(journal=journal), COMMIT])
    return wire.stub.Append(messages, timeout=CALL_TIMEOUT_S, metadata=metadata)


def _fragments(wire: Wire, metadata: Metadata, journal: str = KNOWN) -> pb.FragmentsResponse:
    request = pb.FragmentsRequest(journal=journal)
    return wire.stub.ListFragments(request, timeout=CALL_TIMEOUT_S, metadata=metadata)


def _health(wire: Wire, metadata: Metadata) -> object:
    request = pb.FragmentStoreHealthRequest(fragment_store="file:///")
    return wire.stub.FragmentStoreHealth(request, timeout=CALL_TIMEOUT_S, metadata=metadata)


CALLS: dict[str, tuple[Callable[[Wire, Metadata], object], Capability]] = {
    "List": (_list, Capability.LIST),
    "Apply": (_apply_nothing, Capability.APPLY),
    "Read": (_read, Capability.READ),
    "Append": (_append, Capability.APPEND),
    "Replicate": (_replicate, Capability.REPLICATE),
    "ListFragments": (_fragments, Capability.READ),
    "FragmentStoreHealth": (_health, Capability.READ),
}
CAPABILITIES = [one for one in Capability if one is not Capability.ALL]


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            return str(error.details())
    return ""


@pytest.mark.parametrize("rpc", CALLS)
def test_only_the_needed_capability_lets_a_call_in(wire: Wire, rpc: str) -> None:
    """Every other capability is refused, alone and together with the rest."""
    call, needed = CALLS[rpc]
    allowed = []
    for capability in CAPABILITIES:
        token = bearer(OLD, Claims(capability, pb.LabelSelector()))
        if not refusal(lambda token=token: call(wire, token)):  # type: ignore[misc]  # mypy does not infer the default.
            allowed.append(capability)
    assert allowed == [needed]
    others = bearer(OLD, Claims(Capability.ALL & ~needed, pb.LabelSelector()))
    assert str(needed.name) in refusal(lambda: call(wire, others))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="empty"),
        pytest.param("Bearer", id="scheme-only"),
        pytest.param("Bearer ", id="no-token"),
        pytest.param("bearer {}", id="lower-case"),
        pytest.param("Basic {}", id="other-scheme"),
        pytest.param("{}", id="no-scheme"),
        pytest.param("Bearer  {}", id="two-blanks"),
    ],
)
@pytest.mark.parametrize("rpc", CALLS)
def test_a_missing_or_malformed_header_is_refused(wire: Wire, rpc: str, header: str | None) -> None:
    token = OLD.sign(EVERYTHING, now=time.time())
    metadata = () if header is None else (("authorization", header.format(token)),)
    text = refusal(lambda: CALLS[rpc][0](wire, metadata))
    assert text
    assert token not in text


def _tampered() -> dict[str, str]:
    good = OLD.sign(EVERYTHING, now=time.time())
    head, _, signature = good.split(".")
    other = OLD.sign(Claims(Capability.LIST, pb.LabelSelector()), now=time.time()).split(".")[1]
    payload = {"cap": 0xFFFFFFFF, "sel": {}, "exp": int(time.time()) + 600}
    return {
        "algorithm none": jwt.encode(payload, None, algorithm="none"),  # type: ignore[arg-type]  # it has no key
        "HS512": jwt.encode(payload, OLD.keys[0], algorithm="HS512"),
        "another key": KeySet.parse(base64.b64encode(b"else" * 16).decode()).sign(
            EVERYTHING, now=time.time()
        ),
        "swapped payload": f"{head}.{other}.{signature}",
        "truncated signature": good[:-4],
        "no expiry": jwt.encode({"cap": 0xFFFFFFFF}, OLD.keys[0], algorithm="HS256"),
        "expired": OLD.sign(EVERYTHING, now=time.time() - 100, lifetime_s=60),
        "not yet": OLD.sign(EVERYTHING, now=time.time() + 100),
        "garbage": "x.y.z",
    }


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
@pytest.mark.parametrize("kind", _tampered())
def test_a_bad_token_is_refused(wire: Wire, kind: str) -> None:
    token = _tampered()[kind]
    text = refusal(lambda: _list(wire, (("authorization", f"Bearer {token}"),)))
    assert text
    assert token not in text


def test_a_huge_token_is_refused(wire: Wire) -> None:
    with pytest.raises(grpc.RpcError):
        _list(wire, (("authorization", "Bearer " + "x" * 100_000),))
    assert _list(wire, bearer(OLD))


def test_keys_can_change(wire: Wire) -> None:
    for keys in (OLD, NEW):
        assert _append(wire, bearer(keys)).status == pb.OK


@pytest.mark.parametrize(
    ("selector", "seen"),
    [
        pytest.param("", [KNOWN, *SCOPED], id="empty"),
        pytest.param("name=auth/red/one", SCOPED[:1], id="name"),
        pytest.param("prefix=auth/red/", SCOPED[:2], id="old-prefix"),
        pytest.param("name:prefix=auth/red/", SCOPED[:2], id="name-prefix"),
        pytest.param("color=blue", SCOPED[2:], id="label"),
        pytest.param("color", SCOPED, id="any-value"),
        pytest.param("!color", [KNOWN], id="exclude"),
        pytest.param("color in (red,blue), name!=auth/red/two", [SCOPED[0], SCOPED[2]], id="both"),
    ],
)
def test_a_selector_hides_journals(wire: Wire, selector: str, seen: list[str]) -> None:
    token = bearer(OLD, Claims(Capability.ALL, parse_selector(selector)))
    listed = [each.spec.name for message in _list(wire, token) for each in message.journals]
    assert listed == sorted(seen)
    if "prefix=" in selector and "name:" not in selector:
        seen = []  # Only List understands the label "prefix".
    for name in [KNOWN, *SCOPED]:
        expected = pb.OK if name in seen else pb.JOURNAL_NOT_FOUND
        assert _append(wire, token, name).status == expected
        assert _fragments(wire, token, name).status == expected
        assert _read(wire, token, name)[0].status == expected
        assert _read(wire, token, f"{name};meta")[0].status == expected


def test_a_request_and_a_token_select_together(wire: Wire) -> None:
    token = bearer(OLD, Claims(Capability.LIST, parse_selector("color=red")))
    messages = _list(wire, token, selector=parse_selector("name:prefix=auth/red/o, color in (red,blue)"))
    assert [each.spec.name for message in messages for each in message.journals] == [SCOPED[0]]


def test_apply_is_held_to_the_selector(wire: Wire, fresh_prefix: str) -> None:
    inside, outside = f"{fresh_prefix}inside", "elsewhere/journal"

    def change(*changes: pb.ApplyRequest.Change, by: str) -> pb.ApplyResponse:
        token = bearer(OLD, Claims(Capability.APPLY, parse_selector(by)))
        request = pb.ApplyRequest(changes=changes)
        return wire.stub.Apply(request, timeout=CALL_TIMEOUT_S, metadata=token)

    mine = f"name:prefix={fresh_prefix}"
    assert outside in refusal(lambda: change(upsert(spec(inside)), upsert(spec(outside)), by=mine))
    assert not [each for each in _list(wire, bearer(OLD), selector=parse_selector(mine)) if each.journals]
    assert change(upsert(spec(inside, labels=labels(("color", "red")))), by="color=red").status == pb.OK
    # Only the name of a journal to be deleted is checked.
    assert inside in refusal(lambda: change(delete(inside, -1), by="color=red"))
    assert change(delete(inside, -1), by=mine).status == pb.OK


MINE = "team=mine"
STORES = {
    "the same directory": ("theirs", "file:///auth/"),
    "find and replace": ("mine/one", "file:///?find=mine/one&replace=auth/theirs"),
    "a directory above": ("mine/one", "file:///?find=mine/one&replace=auth"),
    "a directory below": ("mine/one", "file:///?find=mine/one&replace=auth/theirs/below"),
}


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Wire]:
    """An embedded broker with a journal of another owner, stored at auth/theirs."""
    with EmbeddedBroker(tmp_path, auth_keys=OLD_KEY) as broker, Wire(broker.endpoint) as wire:
        changes = [upsert(spec("auth/theirs", labels=labels(("team", "theirs"))))]
        wire.stub.Apply(pb.ApplyRequest(changes=changes), metadata=bearer(OLD), timeout=CALL_TIMEOUT_S)
        yield wire


def change_as(wire: Wire, change: pb.ApplyRequest.Change, selector: str = MINE) -> pb.ApplyResponse:
    token = bearer(OLD, Claims(Capability.APPLY, parse_selector(selector)))
    return wire.stub.Apply(pb.ApplyRequest(changes=[change]), timeout=CALL_TIMEOUT_S, metadata=token)


def test_labels_do_not_take_a_journal(shared: Wire) -> None:
    """Claims must cover a journal's current labels to change or delete it."""
    mine = labels(("team", "mine"))
    taken = spec("auth/theirs", labels=mine)
    assert "auth/theirs" in refusal(lambda: change_as(shared, upsert(taken, -1)))
    assert "auth/theirs" in refusal(lambda: change_as(shared, delete("auth/theirs", -1), "team!=theirs"))
    assert change_as(shared, upsert(spec("mine/one", labels=mine))).status == pb.OK
    assert "mine/one" in refusal(lambda: change_as(shared, upsert(spec("mine/one"), -1)))


@pytest.mark.parametrize(("name", "store"), STORES.values(), ids=STORES)
def test_stores_do_not_take_a_journal(shared: Wire, name: str, store: str) -> None:
    """A new journal's store must not give a caller the fragments of a journal that is hidden from it."""
    change = upsert(spec(name, stores=[store], labels=labels(("team", "mine"))))
    assert "another journal" in refusal(lambda: change_as(shared, change))
    assert change_as(shared, change, "team in (mine,theirs)").status == pb.OK


def test_names_below_each_other_share_a_store(shared: Wire) -> None:
    """Listings separate the fragments of the two, so a token may cover only one of them."""
    below = spec("auth/theirs/below", labels=labels(("team", "mine")))
    assert change_as(shared, upsert(below)).status == pb.OK


def test_streams_end_with_their_token(wire: Wire) -> None:
    token = bearer(OLD, lifetime_s=2)
    reader = wire.stub.Read(pb.ReadRequest(journal=KNOWN, block=True), timeout=CALL_TIMEOUT_S, metadata=token)
    watcher = wire.stub.List(pb.ListRequest(watch=True), timeout=CALL_TIMEOUT_S, metadata=token)
    assert b"".join(message.content for message in reader) == b"content"
    assert [each.spec.name for message in watcher for each in message.journals][:1] == [SCOPED[2]]


def test_a_token_in_its_leeway_dies_at_once(wire: Wire) -> None:
    """A token that expired seconds ago still verifies, but a read with it does not wait for content."""
    token = bearer(OLD, lifetime_s=-1)
    request = pb.ReadRequest(journal=KNOWN, block=True)
    messages = list(wire.stub.Read(request, timeout=CALL_TIMEOUT_S, metadata=token))
    # The real broker still sends the existing content.
    assert b"".join(message.content for message in messages) in (b"", b"content")


def test_a_missing_token_is_let_through_by_choice(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With the key AA== the broker serves a call without a token, but still refuses a bad token."""
    root = tmp_path_factory.mktemp("lenient")
    with EmbeddedBroker(root, auth_keys=f"{OLD_KEY} AA==") as broker, Wire(broker.endpoint) as wire:
        wire.create(spec(KNOWN))
        assert _append(wire, ()).status == pb.OK
        assert refusal(lambda: _append(wire, (("authorization", "Bearer x.y.z"),)))


def test_no_secret_is_shown(tmp_path_factory: pytest.TempPathFactory) -> None:
    broker = EmbeddedBroker(tmp_path_factory.mktemp("secret"), auth_keys=OLD_KEY)
    assert not re.search(re.escape(OLD_KEY), repr(broker) + repr(vars(broker)))


def test_gazctl_with_keys(keyed: BrokerHandle) -> None:
    plain = BrokerHandle(keyed.endpoint, keyed.file_root)
    for key in (OLD_KEY, NEW_KEY):
        listed = plain.gazctl("journals", "list", "-l", f"name={KNOWN}", f"--broker.auth-keys={key}")
        assert KNOWN in listed
    with pytest.raises(ProcessError):
        plain.gazctl("journals", "list")
