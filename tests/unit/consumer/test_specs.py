"""Tests that exactly those shard specs are accepted that Gazette's consumers accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gazette_spark.consumer.specs import (
    desired_replicas,
    hint_backup_keys,
    hint_primary_key,
    labels_with_id,
    recovery_log,
    reduce_statuses,
    shard_spec,
    validate_apply_request,
    validate_hints_request,
    validate_list_request,
    validate_shard_spec,
    validate_stat_request,
    validate_unassign_request,
)
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as rl
from gazette_spark.protocol.labels import label_set, parse_selector, selector_matches

Status = pc.ReplicaStatus


def whole_spec(**changed: Any) -> pc.ShardSpec:  # Fields of the message.
    """Return a valid spec with some fields replaced, unchecked."""
    spec = shard_spec(
        "shard-1",
        {"shop/orders": 0, "shop/clicks;word-count": 7},
        recovery_log_prefix="recovery/logs",
        labels={"app": "shop", "tag": ["a", "b"]},
    )
    for name, value in changed.items():
        spec.ClearField(name)
        spec.MergeFrom(pc.ShardSpec(**{name: value}))
    return spec


def test_a_spec_has_defaults_that_are_valid() -> None:
    """Hints are stored only if there is a recovery log."""
    spec = whole_spec()
    assert [(each.journal, each.min_offset) for each in spec.sources] == [
        ("shop/clicks;word-count", 7),
        ("shop/orders", 0),
    ]
    assert recovery_log(spec) == "recovery/logs/shard-1"
    assert hint_primary_key(spec) == "/gazette/hints/shard-1.primary"
    assert hint_backup_keys(spec) == [
        "/gazette/hints/shard-1.backup.0",
        "/gazette/hints/shard-1.backup.1",
    ]
    remote = shard_spec("shard-1", ["shop/orders"])
    assert (recovery_log(remote), remote.hint_prefix, remote.hint_backups) == ("", "", 0)
    assert remote.max_txn_duration.ToSeconds() == 1


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        pytest.param({"id": "abc"}, r"id: must have 4 to 512 bytes", id="short id"),
        pytest.param({"id": "a=bc"}, r"id: '='", id="symbol of a path in the id"),
        pytest.param(
            {"recovery_log_prefix": "a//b"}, r"recovery_log_prefix: must be a clean", id="unclean log"
        ),
        pytest.param({"recovery_log_prefix": ""}, r"hint_prefix: must be empty", id="hints without a log"),
        pytest.param({"hint_prefix": ""}, r"hint_prefix: must be a clean path", id="a log without hints"),
        pytest.param({"hint_prefix": "hints"}, r"hint_prefix: must be a clean path", id="relative hints"),
        pytest.param({"hint_prefix": "/hints/"}, r"hint_prefix: must be a clean path", id="directory"),
        pytest.param({"hint_prefix": "//hints"}, r"hint_prefix: must be a clean path", id="two slashes"),
        pytest.param({"hint_backups": -1}, r"hint_backups: must be from 0 to 127, ", id="backups below 0"),
        pytest.param({"hint_backups": 128}, r"hint_backups: must be .*, got 128", id="many backups"),
        pytest.param(
            {"max_txn_duration": {}},
            r"max_txn_duration: must be above 0 s and below 292 years, got 0 s",
            id="no longest transaction",
        ),
        pytest.param(
            {"min_txn_duration": {"nanos": -1}},
            r"min_txn_duration: must be at least 0 s and below 292 years, got -1e-09 s",
            id="negative time",
        ),
        pytest.param(
            {"max_txn_duration": {"seconds": 9_223_372_036}},
            r"max_txn_duration: must be above 0 s and below 292 years, got 9.22337e\+09 s",
            id="eternal transaction",
        ),
        pytest.param(
            {"labels": label_set({"id": "x"})}, r"labels: cannot include label 'id'", id="meta label"
        ),
        pytest.param(
            {"labels": label_set({"app.gazette.dev/region": ["a", "b"]})},
            r"takes one value",
            id="two regions",
        ),
        pytest.param(
            {"sources": [{"journal": "b/bb"}, {"journal": "a/aa"}]}, r"sources\[1\]", id="descending"
        ),
        pytest.param({"sources": [{"journal": "a/aa"}, {"journal": "a/aa"}]}, r"sources\[1\]", id="twice"),
        pytest.param(
            {"sources": [{"journal": "a/aa", "min_offset": -1}]},
            r"sources\[0\].min_offset",
            id="offset below 0",
        ),
        pytest.param({"sources": [{"journal": "/a/a"}]}, r"sources\[0\].journal", id="no journal"),
    ],
)
def test_broken_specs_are_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        validate_shard_spec(whole_spec(**changed))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param({"max_txn_s": 0}, r"^max_txn_s: must be above 0 s .*, got 0 s$", id="max_txn_s"),
        pytest.param({"min_txn_s": -1}, r"^min_txn_s: must be at least 0 s .*, got -1 s$", id="min_txn_s"),
        pytest.param({"shard_id": "a"}, r"^shard_id: ", id="shard_id"),
        pytest.param({"sources": ["/a"]}, r"^sources\[0\].journal: ", id="sources"),
        pytest.param({"labels": {"x": "y"}}, r"^labels\[0\].name: ", id="labels"),
    ],
)
def test_an_argument_that_breaks_a_rule_is_named(arguments: dict[str, Any], problem: str) -> None:
    """The error names the caller's argument, not the field of a message."""
    with pytest.raises(ProtocolError, match=problem):
        shard_spec(**{"shard_id": "shard-1", "sources": ["a/aa"]} | arguments)


def test_a_spec_needs_no_source() -> None:
    """A shard may produce its messages itself."""
    validate_shard_spec(whole_spec(sources=[]))


def test_selectors_see_the_id() -> None:
    labels = labels_with_id(whole_spec())
    for text, matches in (("id=shard-1", True), ("id:prefix=shard-,tag=b", True), ("id=shard-2", False)):
        assert selector_matches(parse_selector(text), labels) == matches


def test_standbys_are_limited() -> None:
    wanted = [desired_replicas(whole_spec(hot_standbys=count)) for count in (0, 3, 9)]
    assert wanted == [1, 4, 4]
    assert desired_replicas(whole_spec(disable=True)) == 0


def test_statuses_reduce_to_the_highest() -> None:
    idle, failed = Status(), Status(code=Status.FAILED, errors=["a"])
    assert reduce_statuses([]) == idle
    assert reduce_statuses([idle, Status(code=Status.PRIMARY), Status(code=Status.STANDBY)]).code == 300
    both = reduce_statuses([failed, Status(code=Status.PRIMARY), Status(code=Status.FAILED, errors=["b"])])
    assert both == Status(code=Status.FAILED, errors=["a", "b"])


SEGMENT = {"author": 1, "first_seq_no": 3, "last_seq_no": 3, "first_offset": 5}


def hinted(**segment: Any) -> pc.ApplyRequest:  # Fields of the message.
    """Return an apply of hints with one segment, with some fields replaced."""
    node = rl.FnodeSegments(fnode=3, segments=[rl.Segment(**{**SEGMENT, **segment})])
    hints = rl.FSMHints(log="recovery/logs/shard-1", live_nodes=[node])
    return pc.ApplyRequest(changes=[{"upsert": whole_spec(), "primary_hints": hints}])


def test_hints_are_stored_with_a_spec() -> None:
    validate_apply_request(hinted(last_offset=6))
    for broken in (
        {"author": 0},
        {"first_seq_no": 0},
        {"first_offset": -1},
        {"last_seq_no": 2},
        {"last_offset": 5},
        {"log": "recovery/logs/shard-1"},
        {"log": "/x"},
    ):
        with pytest.raises(ProtocolError, match="PrimaryHints"):
            validate_apply_request(hinted(**broken))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({}, "expected one of Upsert and Delete", id="neither"),
        pytest.param({"upsert": whole_spec(), "delete": "shard-1"}, "expected one of", id="both"),
        pytest.param({"delete": "shard-1"}, "ExpectModRevision", id="delete without a revision"),
        pytest.param({"upsert": whole_spec(), "expect_mod_revision": -2}, "ExpectModRevision", id="below -1"),
        pytest.param({"upsert": whole_spec(id="abc")}, r"Changes\[0\].upsert.id", id="broken spec"),
        pytest.param(
            {"delete": "shard-1", "expect_mod_revision": 1, "primary_hints": {}},
            "only with an upsert",
            id="hints",
        ),
    ],
)
def test_broken_changes_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        validate_apply_request(pc.ApplyRequest(changes=[change]))


def test_other_requests_are_checked() -> None:
    validate_stat_request(pc.StatRequest(shard="shard-1", read_through={"shop/orders": 0}))
    validate_hints_request(pc.GetHintsRequest(shard="shard-1"))
    validate_unassign_request(pc.UnassignRequest(shards=["shard-1"]))
    validate_list_request(pc.ListRequest())
    selector = pb.LabelSelector(include=pb.LabelSet(labels=[pb.Label(name="x")]))
    refusals: list[Callable[[], None]] = [
        lambda: validate_stat_request(pc.StatRequest(shard="no")),
        lambda: validate_stat_request(pc.StatRequest(shard="shard-1", read_through={"shop/orders": -1})),
        lambda: validate_stat_request(pc.StatRequest(shard="shard-1", read_through={"": 1})),
        lambda: validate_stat_request(pc.StatRequest(shard="shard-1", header={})),
        lambda: validate_hints_request(pc.GetHintsRequest()),
        lambda: validate_unassign_request(pc.UnassignRequest(shards=["shard-1", ""])),
        lambda: validate_list_request(pc.ListRequest(selector=selector)),
    ]
    for refuse in refusals:
        with pytest.raises(ProtocolError, match="Request"):
            refuse()
