"""Reads and writes shards as YAML, in gazctl's form: values that shards share, and a list of shards.

If a value of a shard is missing or zero, it is taken from ``common``; labels are combined by name::

    common:
      recovery_log_prefix: recovery
      hint_prefix: /gazette/hints
      hint_backups: 2
      max_txn_duration: 1s
    shards:
      - id: shard-000
        sources: [{journal: shop/orders/000}]
      - id: shard-001
        sources: [{journal: shop/orders/001, min_offset: 4096}]
        revision: -1

``revision`` is the expected revision: without one, the shard is created, and -1 overwrites any. ``delete:
true`` deletes a shard and needs a revision. Scalars are read as text, so ``value: 007`` is ``007``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gazette_spark.consumer.specs import validate_shard_changes
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import spec_values as sv
from gazette_spark.protocol.yaml_text import dump_yaml, load_yaml


def _read_sources(value: object, where: str) -> tuple[pc.ShardSpec.Source, ...]:
    sources = []
    for at, item in enumerate(sv.as_list(value, where)):
        source = sv.as_mapping(item, f"{where}[{at}]", ("journal", "min_offset"))
        journal = sv.read_text(source.get("journal"), f"{where}[{at}].journal")
        min_offset = sv.read_int(source.get("min_offset"), f"{where}[{at}].min_offset")
        sources.append(pc.ShardSpec.Source(journal=journal, min_offset=min_offset))
    return tuple(sources)


def _write_sources(sources: tuple[pc.ShardSpec.Source, ...]) -> list[dict[str, Any]]:
    return [
        {"journal": source.journal} | ({"min_offset": source.min_offset} if source.min_offset else {})
        for source in sources
    ]


_FORM = sv.SpecForm(
    {
        ("sources",): sv.Field(_read_sources, _write_sources),
        ("recovery_log_prefix",): sv.TEXT,
        ("hint_prefix",): sv.TEXT,
        ("hint_backups",): sv.INT32,
        ("max_txn_duration",): sv.DURATION,
        ("min_txn_duration",): sv.DURATION,
        ("disable",): sv.BOOL,
        ("hot_standbys",): sv.UINT32,
        ("disable_wait_for_ack",): sv.BOOL,
        ("ring_buffer_size",): sv.UINT32,
        ("read_channel_size",): sv.UINT32,
    },
    labels_after=("hot_standbys",),
)

_KEYS = ("comment", "delete", "id", *_FORM.keys, "revision")


def parse_shard_yaml(text: str) -> list[pc.ApplyRequest.Change]:
    """Return the change for each shard of the list, in the list's order.

    Raises:
        ProtocolError: the text is not YAML or not a list of shards, or a shard's spec is invalid.
    """
    top = sv.as_mapping(load_yaml(text, "shards"), "shards", ("common", "shards"))
    common = _FORM.read(sv.as_mapping(top.get("common"), "common", _KEYS[2:-1]), "common")
    changes = [
        _change(sv.as_mapping(shard, f"shards[{at}]", _KEYS), f"shards[{at}]", common)
        for at, shard in enumerate(sv.as_list(top.get("shards"), "shards"))
    ]
    ids = [change.delete or change.upsert.id for change in changes]
    if repeated := sorted({shard_id for shard_id in ids if ids.count(shard_id) > 1}):
        raise ProtocolError("shards", f"shards occur twice: {sv.shown(repeated)}")
    validate_shard_changes(changes, "shards", upsert="")
    return changes


def _change(node: dict[str, Any], where: str, common: sv.Values) -> pc.ApplyRequest.Change:
    shard_id = sv.read_text(node.get("id"), f"{where}.id")
    revision = sv.read_int(node.get("revision"), f"{where}.revision")
    values = common | _FORM.read(node, where)
    if sv.read_bool(node.get("delete"), f"{where}.delete"):
        return pc.ApplyRequest.Change(expect_mod_revision=revision, delete=shard_id)
    spec = pc.ShardSpec(id=shard_id)
    for duration in (spec.max_txn_duration, spec.min_txn_duration):
        duration.SetInParent()
    _FORM.put(spec, values)
    return pc.ApplyRequest.Change(expect_mod_revision=revision, upsert=spec)


def format_shard_yaml(changes: Iterable[pc.ApplyRequest.Change]) -> str:
    """Return the list of changes; values that all shards share, except deleted ones, occur once.

    :func:`parse_shard_yaml` reads it back as the same changes.
    """
    changes = list(changes)
    values = [_FORM.values_of(change.upsert) for change in changes if not change.delete]
    common = sv.shared_values(values) if values else {}
    return dump_yaml(
        {
            "common": _FORM.write(common),
            "shards": [_written(change, common) for change in changes],
        }
    )


def _written(change: pc.ApplyRequest.Change, common: sv.Values) -> dict[str, Any]:
    revision = {"revision": change.expect_mod_revision} if change.expect_mod_revision else {}
    if change.delete:
        return {"delete": True, "id": change.delete} | revision
    own = _FORM.values_of(change.upsert)
    own_values = {path: value for path, value in own.items() if path not in common}
    return {"id": change.upsert.id} | _FORM.write(own_values) | revision


def changes_of_shards(shards: Iterable[pc.ListResponse.Shard]) -> list[pc.ApplyRequest.Change]:
    """Return changes that leave listed shards unchanged, for the initial text of an editor."""
    return [
        pc.ApplyRequest.Change(expect_mod_revision=shard.mod_revision, upsert=shard.spec) for shard in shards
    ]
