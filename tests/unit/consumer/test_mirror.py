"""The mirror of a cluster's keys: whether keys can have come from earlier ones."""

from __future__ import annotations

import pytest

from gazette_spark.consumer._cluster.mirror import follows
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
    """Whatever is not newer than the earlier revision has to be there before, as it is."""
    before = {kv.key: kv for kv in (A3, B5)}
    assert follows(before, 6, {kv.key: kv for kv in keys}, revision) is expected


def test_the_first_keys_follow() -> None:
    """Before the first read there is nothing that could contradict."""
    assert follows({}, 0, {kv.key: kv for kv in (A3, B5)}, 6)
