"""Both brokers select, create, change and delete journals alike."""

from __future__ import annotations

import json

import grpc
import pytest

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import CALL_TIMEOUT_S, Wire, delete, labels, selector, spec, upsert
from tests.rig.brokers import BrokerHandle


@pytest.fixture
def catalog(wire: Wire, fresh_prefix: str) -> str:
    made = {
        "one": labels(("color", "red"), ("size", "big"), ("tag", fresh_prefix)),
        "two": labels(("color", "blue"), ("size", "big"), ("tag", fresh_prefix)),
        "three": labels(("color", "red"), ("color", "green"), ("tag", fresh_prefix)),
        "sub/four": labels(("tag", fresh_prefix)),
    }
    wire.create(*(spec(fresh_prefix + name, labels=each) for name, each in made.items()))
    return fresh_prefix


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        pytest.param([], [], ["one", "sub/four", "three", "two"], id="tag-only"),
        pytest.param([("color", "red")], [], ["one", "three"], id="value"),
        pytest.param([("color", "red"), ("color", "blue")], [], ["one", "three", "two"], id="values-are-or"),
        pytest.param([("color", "red"), ("size", "big")], [], ["one"], id="names-are-and"),
        pytest.param([("color", "")], [], ["one", "three", "two"], id="any-value"),
        pytest.param([], [("color", "")], ["sub/four"], id="without-label"),
        pytest.param([], [("color", "green"), ("size", "big")], ["sub/four"], id="any-excluded-rejects"),
        pytest.param([("color", "red")], [("color", "green")], ["one"], id="include-and-exclude"),
        pytest.param([("color", "re")], [], [], id="value-is-not-a-prefix"),
    ],
)
def test_selector(
    wire: Wire,
    catalog: str,
    include: list[tuple[str, str]],
    exclude: list[tuple[str, str]],
    expected: list[str],
) -> None:
    chosen = selector(labels(("tag", catalog), *include), labels(*exclude))
    assert wire.names(chosen) == [catalog + name for name in expected]


def test_selector_prefix_bit(wire: Wire, catalog: str) -> None:
    chosen = selector(labels(("tag", catalog)))
    chosen.include.labels.insert(0, pb.Label(name="color", value="r", prefix=True))
    assert wire.names(chosen) == [catalog + "one", catalog + "three"]


def test_name_and_prefix_are_or(wire: Wire, catalog: str) -> None:
    chosen = selector(labels(("name", catalog + "one"), ("prefix", catalog + "sub/")))
    assert wire.names(chosen) == [catalog + "one", catalog + "sub/four"]


def test_prefix_without_slash_is_refused(wire: Wire, catalog: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.list(selector(labels(("prefix", catalog.removesuffix("/")))))
    assert caught.value.code() == grpc.StatusCode.UNKNOWN


def test_unsorted_selector_is_refused(wire: Wire, catalog: str) -> None:
    unsorted = pb.LabelSet(labels=[pb.Label(name="size", value="x"), pb.Label(name="color", value="y")])
    with pytest.raises(grpc.RpcError) as caught:
        wire.list(selector(unsorted))
    assert caught.value.code() == grpc.StatusCode.UNKNOWN


def test_no_match_is_one_empty_message(wire: Wire, fresh_prefix: str) -> None:
    request = pb.ListRequest(selector=selector(labels(("prefix", fresh_prefix))))
    (message,) = wire.stub.List(request, timeout=CALL_TIMEOUT_S)
    assert (message.status, len(message.journals)) == (pb.OK, 0)
    assert message.header.etcd.revision > 0
    assert message.header.route.primary == -1


def test_long_list_is_complete(wire: Wire, fresh_prefix: str) -> None:
    names = [f"{fresh_prefix}journal-{i:02}" for i in range(60)]
    assert wire.apply(*(upsert(spec(name)) for name in names)).status == pb.OK
    assert wire.names(selector(labels(("prefix", fresh_prefix)))) == names


def test_listed_spec_is_the_applied_one(wire: Wire, journal_name: str) -> None:
    given = spec(
        journal_name, labels=labels(("color", "red")), path_postfix_template="", max_append_rate=1 << 20
    )
    response = wire.apply(upsert(given))
    assert response.status == pb.OK
    (listed,) = wire.list(selector(labels(("name", journal_name))))
    assert listed.spec.fragment.refresh_interval == given.fragment.refresh_interval
    assert list(listed.spec.labels.labels) == list(given.labels.labels)
    assert listed.spec.max_append_rate == 1 << 20
    assert listed.mod_revision == listed.create_revision > 0
    assert response.header.etcd.revision >= listed.mod_revision


def test_create_only_once(wire: Wire, journal: str) -> None:
    assert wire.apply(upsert(spec(journal))).status == pb.ETCD_TRANSACTION_FAILED


def test_update_needs_the_present_revision(wire: Wire, journal: str) -> None:
    chosen = selector(labels(("name", journal)))
    before = wire.list(chosen)[0]
    changed = spec(journal, length=1 << 20)
    assert wire.apply(upsert(changed, before.mod_revision)).status == pb.OK
    assert wire.apply(upsert(changed, before.mod_revision)).status == pb.ETCD_TRANSACTION_FAILED
    after = wire.list(chosen)[0]
    assert after.spec.fragment.length == 1 << 20
    assert after.mod_revision > before.mod_revision
    assert after.create_revision == before.create_revision


def test_update_of_a_missing_journal_fails(wire: Wire, journal_name: str) -> None:
    assert wire.apply(upsert(spec(journal_name), 1)).status == pb.ETCD_TRANSACTION_FAILED


def test_minus_one_overwrites(wire: Wire, journal_name: str) -> None:
    assert wire.apply(upsert(spec(journal_name), -1)).status == pb.OK
    assert wire.apply(upsert(spec(journal_name, length=2048), -1)).status == pb.OK
    assert wire.list(selector(labels(("name", journal_name))))[0].spec.fragment.length == 2048


def test_one_failure_fails_all(wire: Wire, journal: str, fresh_prefix: str) -> None:
    other = fresh_prefix + "other"
    response = wire.apply(upsert(spec(other)), upsert(spec(journal)))
    assert response.status == pb.ETCD_TRANSACTION_FAILED
    assert wire.names(selector(labels(("prefix", fresh_prefix)))) == [journal]


def test_delete(wire: Wire, journal: str) -> None:
    chosen = selector(labels(("name", journal)))
    revision = wire.list(chosen)[0].mod_revision
    assert wire.apply(delete(journal, revision + 1000)).status == pb.ETCD_TRANSACTION_FAILED
    assert wire.apply(delete(journal, revision)).status == pb.OK
    assert wire.names(chosen) == []
    assert wire.apply(delete(journal, -1)).status == pb.OK


def test_recreated_journal_has_a_new_create_revision(wire: Wire, journal: str) -> None:
    chosen = selector(labels(("name", journal)))
    before = wire.list(chosen)[0].create_revision
    wire.apply(delete(journal, -1))
    wire.create(spec(journal))
    assert wire.list(chosen)[0].create_revision > before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(pb.ApplyRequest.Change(), id="neither"),
        pytest.param(upsert(spec("/leading/slash")), id="leading-slash"),
        pytest.param(upsert(spec("double//slash")), id="double-slash"),
        pytest.param(upsert(spec("trailing/slash/")), id="trailing-slash"),
        pytest.param(upsert(spec("inner/../dots")), id="dots"),
        pytest.param(upsert(spec("with space")), id="space"),
        pytest.param(upsert(spec("abc")), id="short-name"),
        pytest.param(upsert(spec("with/meta;suffix")), id="meta"),
        pytest.param(upsert(spec("some/name"), -2), id="revision-below-minus-one"),
        pytest.param(upsert(spec("some/name", replication=0)), id="no-replication"),
        pytest.param(upsert(spec("some/name", replication=6)), id="much-replication"),
        pytest.param(upsert(spec("some/name", length=1023)), id="short-fragments"),
        pytest.param(upsert(spec("some/name", length=(1 << 34) + 1)), id="long-fragments"),
        pytest.param(upsert(spec("some/name", compression_codec=pb.INVALID)), id="no-codec"),
        pytest.param(upsert(spec("some/name", compression_codec=5)), id="offload-codec-in-files"),
        pytest.param(upsert(spec("some/name", stores=["file:///x"])), id="store-without-slash"),
        pytest.param(upsert(spec("some/name", stores=["file://host/"])), id="file-store-with-host"),
        pytest.param(upsert(spec("some/name", stores=["ftp://host/"])), id="unknown-store"),
        pytest.param(upsert(spec("some/name", flags=3)), id="combined-flags"),
        pytest.param(upsert(spec("some/name", max_append_rate=-1)), id="negative-rate"),
        pytest.param(upsert(spec("some/name", labels=labels(("x", "y")))), id="short-label"),
        pytest.param(upsert(spec("some/name", labels=labels(("name", "y")))), id="reserved-label"),
        pytest.param(
            upsert(spec("some/name", labels=labels(("some", "x"), prefix=True))), id="prefix-label-in-spec"
        ),
        pytest.param(
            upsert(spec("some/name", labels=labels(("content-type", "a/b"), ("content-type", "a/c")))),
            id="two-content-types",
        ),
        pytest.param(delete("some/name", 0), id="delete-at-zero"),
    ],
)
def test_invalid_change_is_refused(wire: Wire, change: pb.ApplyRequest.Change) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        wire.apply(change)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert caught.value.details()


def test_watch_sends_a_snapshot_for_each_change(wire: Wire, journal: str, fresh_prefix: str) -> None:
    request = pb.ListRequest(selector=selector(labels(("prefix", fresh_prefix))), watch=True)
    call = wire.open_list(request)

    def snapshot() -> tuple[list[str], int]:
        first = next(call)
        names = [each.spec.name for each in first.journals]
        while message := next(call):
            if not message.journals:
                return names, first.header.etcd.revision
            names += [each.spec.name for each in message.journals]
        raise AssertionError("unreachable")

    names, revision = snapshot()
    assert names == [journal]
    wire.apply(upsert(spec(fresh_prefix + "later")))
    later_names, later_revision = snapshot()
    call.cancel()
    assert later_names == [journal, fresh_prefix + "later"]
    assert later_revision > revision


def test_gazctl_sees_the_same(wire: Wire, catalog: str, broker: BrokerHandle) -> None:
    printed = broker.gazctl("journals", "list", "-l", f"prefix={catalog},color=red", "-o", "json")
    assert [each["spec"]["name"] for each in json.loads(printed)["journals"]] == [
        catalog + "one",
        catalog + "three",
    ]
