"""Tests that shard YAML is read and written as by gazctl.

``tests/golden/shards/listed.yaml`` is gazctl's listing of the shards that it applied from ``applied.yaml``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gazette_spark.consumer.shard_yaml import changes_of_shards, format_shard_yaml, parse_shard_yaml
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import consumer_pb2 as pc

GOLDEN = Path(__file__).parents[2] / "golden" / "shards"

COMMON = "common: {max_txn_duration: 1s}\n"


def test_it_is_written_as_gazctl_writes_it() -> None:
    """Only the kind of quotes differs."""
    listed = (GOLDEN / "listed.yaml").read_text("utf-8")
    assert format_shard_yaml(parse_shard_yaml(listed)).replace("'", '"') == listed


def test_it_is_read_as_gazctl_reads_it() -> None:
    """Shards inherit missing fields from the common part, and labels name by name."""
    applied = parse_shard_yaml((GOLDEN / "applied.yaml").read_text("utf-8"))
    listed = parse_shard_yaml((GOLDEN / "listed.yaml").read_text("utf-8"))
    assert [change.upsert for change in applied] == [change.upsert for change in listed]


def test_revisions_and_deletions() -> None:
    text = (
        COMMON
        + "shards: [{id: shard-1}, {id: shard-2, revision: -1}, {id: shard-3, delete: yes, revision: 7}]"
    )
    create, overwrite, delete = parse_shard_yaml(text)
    assert (create.upsert.id, create.expect_mod_revision) == ("shard-1", 0)
    assert (overwrite.upsert.id, overwrite.expect_mod_revision) == ("shard-2", -1)
    assert delete == pc.ApplyRequest.Change(delete="shard-3", expect_mod_revision=7)
    assert parse_shard_yaml(format_shard_yaml([create, overwrite, delete])) == [create, overwrite, delete]


def test_no_shards() -> None:
    assert format_shard_yaml([]) == "common: {}\nshards: []\n"
    assert parse_shard_yaml("common: {}\nshards: []\n") == []
    with pytest.raises(ProtocolError, match="shards: the YAML is empty"):
        parse_shard_yaml("")


def test_listed_shards_are_left_as_they_are() -> None:
    """The changes expect the current revisions."""
    listed = [pc.ListResponse.Shard(spec=shard_spec("shard-1", ["shop/orders"]), mod_revision=12)]
    (change,) = parse_shard_yaml(format_shard_yaml(changes_of_shards(listed)))
    assert (change.expect_mod_revision, change.upsert) == (12, listed[0].spec)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("[]", "shards: must be a mapping with keys of common, shards; got", id="list"),
        pytest.param("shards: [{idd: x}]", r"shards\[0\]: unknown key 'idd'", id="unknown key"),
        pytest.param("common: {revision: 1}", "common: unknown key 'revision'", id="common revision"),
        pytest.param(
            COMMON + "shards: [{id: shard-1}, {id: shard-1}]", "occur twice: .'shard-1'", id="twice"
        ),
        pytest.param("shards: [{id: shard-1}]", r"shards\[0\].max_txn_duration: must", id="invalid spec"),
        pytest.param(
            COMMON + "shards: [{id: shard-1, hot_standbys: -1}]", "hot_standbys: must", id="unsigned"
        ),
        pytest.param(
            COMMON + "shards: [{id: shard-1, sources: [{offset: 1}]}]", r"sources\[0\]", id="source"
        ),
        pytest.param(COMMON + "shards: [{id: shard-1, delete: true}]", "ExpectModRevision", id="delete"),
    ],
)
def test_broken_yaml_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        parse_shard_yaml(text)
