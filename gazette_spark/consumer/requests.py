"""Rules of requests to consumers. An error names the field the way consumers do: ``StatRequest.Shard``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gazette_spark.consumer.specs import validate_shard_id, validate_shard_spec
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import recoverylog_pb2 as rl
from gazette_spark.protocol.journal_specs import validate_journal_name
from gazette_spark.protocol.labels import validate_selector
from gazette_spark.protocol.requests import check_upsert_or_delete, validate_header


def validate_stat_request(request: pc.StatRequest) -> None:
    """Raise ProtocolError unless header, shard and offsets are well formed."""
    where = "StatRequest"
    if request.HasField("header"):
        validate_header(request.header, f"{where}.Header")
    validate_shard_id(request.shard, f"{where}.Shard")
    _check_offsets(request.read_through, f"{where}.ReadThrough")


def _check_offsets(offsets: Mapping[str, int], where: str) -> None:
    for journal, offset in offsets.items():
        validate_journal_name(journal, allow_meta=True, where=f"{where}[{journal}]")
        if offset < 0:
            raise ProtocolError(f"{where}[{journal}]", f"invalid Offset ({offset}; expected >= 0)")


def validate_list_request(request: pc.ListRequest) -> None:
    """Raise ProtocolError unless the selector is well formed."""
    validate_selector(request.selector, "ListRequest.Selector")


def validate_apply_request(request: pc.ApplyRequest) -> None:
    """Raise ProtocolError unless all changes of the request are valid."""
    validate_shard_changes(request.changes)


def validate_shard_changes(
    changes: Iterable[pc.ApplyRequest.Change], where: str = "ApplyRequest.Changes", upsert: str = ".upsert"
) -> None:
    """Raise ProtocolError unless each change upserts a valid spec or deletes a shard, not both.

    Args:
        changes: what is checked.
        where: path of the list, for errors.
        upsert: path of a spec in its change; YAML has none.
    """
    for at, change in enumerate(changes):
        _check_change(change, f"{where}[{at}]", upsert)


def _check_change(change: pc.ApplyRequest.Change, where: str, upsert: str) -> None:
    check_upsert_or_delete(change, where)
    if change.delete:
        validate_shard_id(change.delete, f"{where}.Delete")
        if change.HasField("primary_hints"):
            raise ProtocolError(where, "hints may be set only with an upsert, not a delete")
        return
    validate_shard_spec(change.upsert, f"{where}{upsert}")
    if change.HasField("primary_hints"):
        _check_hints(change.primary_hints, f"{where}.PrimaryHints")


def _check_hints(hints: rl.FSMHints, where: str) -> None:
    for node in hints.live_nodes:
        for segment in node.segments:
            if segment.log and segment.log == hints.log:
                raise ProtocolError(where, "contained segment.Log duplicates FSMHints.Log")
            _check_segment(segment, f"{where}.Segment")
            validate_journal_name(segment.log or hints.log, allow_meta=True, where=f"{where}.Segment.Log")


def _check_segment(segment: rl.Segment, where: str) -> None:
    for is_broken, problem in (
        (segment.author == 0, "Author is zero"),
        (segment.first_seq_no <= 0, "FirstSeqNo <= 0"),
        (segment.first_offset < 0, "FirstOffset < 0"),
        (segment.last_seq_no < segment.first_seq_no, "LastSeqNo < segment.FirstSeqNo"),
        (0 != segment.last_offset <= segment.first_offset, "LastOffset <= segment.FirstOffset"),
    ):
        if is_broken:
            raise ProtocolError(where, problem)


def validate_hints_request(request: pc.GetHintsRequest) -> None:
    """Raise ProtocolError unless the shard's id is one."""
    validate_shard_id(request.shard, "GetHintsRequest.Shard")


def validate_unassign_request(request: pc.UnassignRequest) -> None:
    """Raise ProtocolError unless all ids are those of shards."""
    for at, shard_id in enumerate(request.shards):
        validate_shard_id(shard_id, f"UnassignRequest.Shards[{at}]")
