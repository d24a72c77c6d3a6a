"""Lists of shards round trip through YAML, whatever the shards share."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.consumer.shard_yaml import format_shard_yaml, parse_shard_yaml
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.protocol import consumer_pb2 as pc
from tests.rig.examples import examples

LABELS = st.dictionaries(
    st.sampled_from(["app", "tag", "zone"]),
    st.one_of(st.just([""]), st.lists(st.sampled_from(["yes", "1e3", "007", "x/y=z"]), min_size=1)),
)
JOURNALS = st.sampled_from(["shop/orders", "shop/clicks", "ünï/true;meta"])


@st.composite
def changes(draw: st.DrawFn, shard_id: str) -> pc.ApplyRequest.Change:
    """Draw a valid change of a shard, out of few values so that shards share them."""
    if draw(st.integers(0, 9)) == 0:
        return pc.ApplyRequest.Change(delete=shard_id, expect_mod_revision=draw(st.sampled_from([-1, 7])))
    spec = shard_spec(
        shard_id,
        draw(st.dictionaries(JOURNALS, st.sampled_from([0, 1, 2**63 - 1]))),
        recovery_log_prefix=draw(st.sampled_from(["", "recovery/logs"])),
        max_txn_s=draw(st.sampled_from([1, 0.001, 3661])),
        min_txn_s=draw(st.sampled_from([0, 60])),
        disable=draw(st.booleans()),
        hot_standbys=draw(st.sampled_from([0, 1, 2**32 - 1])),
        labels=draw(LABELS),
        disable_wait_for_ack=draw(st.booleans()),
        ring_buffer_size=draw(st.sampled_from([0, 16])),
        read_channel_size=draw(st.sampled_from([0, 16])),
    )
    return pc.ApplyRequest.Change(upsert=spec, expect_mod_revision=draw(st.sampled_from([-1, 0, 12])))


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sets(st.sampled_from(["shard-1", "shard-2", "shard-3", "0070", "true"]), max_size=4))
def test_lists_round_trip(data: st.DataObject, ids: set[str]) -> None:
    """Any shards, written with shared values said once, are read back as the same changes.

    A value that is zero in one shard but not in another is written out with the other, so that no shard
    inherits a value that it did not have.
    """
    asked = [data.draw(changes(shard_id)) for shard_id in sorted(ids)]
    assert parse_shard_yaml(format_shard_yaml(asked)) == asked
