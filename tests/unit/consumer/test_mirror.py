"""Tests the mirror of a cluster's keys: which states may follow each other, and which keys it ignores."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gazette_spark.consumer._cluster import mirror
from gazette_spark.consumer._cluster.mirror import ClusterMirror, follows
from gazette_spark.protocol import etcd_pb2 as pe

A3, B5 = (pe.KeyValue(key=key, value=b"1", mod_revision=at, lease=7) for key, at in ((b"a", 3), (b"b", 5)))
A8 = pe.KeyValue(key=b"a", value=b"2", mod_revision=8)


@pytest.mark.parametrize(
    ("keys", "revision", "expected"),
    [
        pytest.param([A3, B5], 6, True, id="unchanged"),
        pytest.param([A3], 7, True, id="a key was deleted"),
        pytest.param([A8, B5], 9, True, id="a key was changed"),
        pytest.param([], 1, False, id="all data is gone"),
        pytest.param([A3, B5], 5, False, id="a backup in which nothing differs yet"),
        pytest.param(
            [A3, pe.KeyValue(key=b"b", mod_revision=4)], 9, False, id="a backup before a key's last change"
        ),
        pytest.param(
            [A3, B5, pe.KeyValue(key=b"c", mod_revision=6)], 9, False, id="a backup before a key was deleted"
        ),
        pytest.param(
            [pe.KeyValue(key=b"a", value=b"1", mod_revision=3, lease=9), B5],
            9,
            False,
            id="a key of the same revision that somebody else wrote",
        ),
    ],
)
def test_keys_follow_from_earlier_ones(keys: list[pe.KeyValue], revision: int, expected: bool) -> None:
    """Keys that are older than the last revision must have been there before, unchanged."""
    before = {kv.key: kv for kv in (A3, B5)}
    assert follows(before, 6, {kv.key: kv for kv in keys}, revision) is expected


def test_the_first_keys_follow() -> None:
    assert follows({}, 0, {kv.key: kv for kv in (A3, B5)}, 6)


class _Etcd:
    """An Etcd with fixed keys."""

    def __init__(self, *keys: str) -> None:
        self._kvs = [pe.KeyValue(key=f"/app/{key}".encode(), mod_revision=5) for key in keys]

    def range(self, _prefix: str) -> tuple[pe.ResponseHeader, list[pe.KeyValue]]:
        return pe.ResponseHeader(revision=6), self._kvs

    def watch(self, _prefix: str, _revision: int, ended: threading.Event) -> Iterator[pe.WatchResponse]:
        ended.wait()
        yield from ()


def test_headers_have_the_revision_of_a_change() -> None:
    """Another member waits for the revision, and sees no change of other keys in Etcd."""
    with ClusterMirror(_Etcd("items/shard"), "/app") as following:  # type: ignore[arg-type]  # As much of Etcd as is needed.
        following.start()
        state = following.wait_for(6, 10)
    assert (state.revision, state.changed) == (6, 5)


@pytest.mark.parametrize("slot", ["00", "+1", "-1", " 1", "1_0", "٣", "x", ""])
def test_a_slot_has_one_spelling(slot: str) -> None:
    """A leader could not remove a key that it would spell differently, so the mirror ignores it."""
    etcd = _Etcd(
        "assign/shard#zone#member#0", f"assign/shard#zone#member#{slot}", "assign/shard#zone#other#12"
    )
    with ClusterMirror(etcd, "/app") as following:  # type: ignore[arg-type]  # As much of Etcd as is needed.
        following.start()
        state = following.wait_for(6, 10)
    assert [(assignment.suffix, assignment.slot) for assignment in state.assignments] == [
        ("member", 0),
        ("other", 12),
    ]


def test_a_shard_with_an_invalid_spec_is_left_alone() -> None:
    """A leader would take the shard for deleted, and be stuck while its key exists."""
    etcd = _Etcd("assign/deleted#zone#member#0", "assign/invalid#zone#member#0", "items/invalid")
    with ClusterMirror(etcd, "/app") as following:  # type: ignore[arg-type]  # As much of Etcd as is needed.
        following.start()
        state = following.wait_for(6, 10)
    assert [assignment.shard for assignment in state.assignments] == ["deleted"]


def test_a_mirror_survives_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member keeps its lease, so a dead mirror would miss all changes."""
    monkeypatch.setattr(mirror, "RETRY_S", 0.01)
    errors = iter([RuntimeError("can't start new thread")])

    class Failing(_Etcd):
        def watch(self, prefix: str, revision: int, ended: threading.Event) -> Iterator[pe.WatchResponse]:
            for error in errors:
                raise error
            yield pe.WatchResponse(
                header=pe.ResponseHeader(revision=7),
                events=[pe.Event(kv=pe.KeyValue(key=b"/app/assign/shard#zone#later#0", mod_revision=7))],
            )
            yield from super().watch(prefix, revision, ended)

    with ClusterMirror(Failing(), "/app") as following:  # type: ignore[arg-type]  # As much of Etcd as is needed.
        following.start()
        assert [each.suffix for each in following.wait_for(7, 10).assignments] == ["later"]
