"""Builds and validates shard specs and requests, and derives values from specs and replica statuses.

Consumers have a default only for the size of buffers: a spec without ``max_txn_duration`` is invalid.
:func:`shard_spec` has defaults that suit most shards.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

from gazette_spark._server.catalog import MAX_OPERATIONS
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.durations import MAX_DURATION_S, duration_of
from gazette_spark.protocol.journal_specs import named_as, validate_journal_name
from gazette_spark.protocol.labels import ID, label_set, union, validate_selector, validate_shard_labels
from gazette_spark.protocol.names import validate_token
from gazette_spark.protocol.requests import check_upsert_or_delete, validate_header

ARGUMENTS = {"id": "shard_id", "max_txn_duration": "max_txn_s", "min_txn_duration": "min_txn_s"}
"""Fields of a spec and the arguments of :func:`shard_spec` that set them, if the names differ."""

SHARD_ID_BYTES = (4, 512)
"""Minimum and maximum length of a shard's id."""

BUFFER_SIZE = 8192
"""Default number of messages in a ring buffer and in a read channel."""

MAX_HOT_STANDBYS = 3
"""Maximum number of standbys of a shard, regardless of its spec; Gazette's default."""

# Gazette reads the primary's hints and all backups in one transaction of Etcd.
MAX_HINT_BACKUPS = MAX_OPERATIONS - 1
"""Maximum number of hints of earlier recoveries."""


def shard_spec(
    shard_id: str,
    sources: Mapping[str, int] | Iterable[str],
    *,
    recovery_log_prefix: str = "",
    hint_prefix: str = "",
    hint_backups: int | None = None,
    max_txn_s: float = 1.0,
    min_txn_s: float = 0.0,
    disable: bool = False,
    hot_standbys: int = 0,
    labels: Mapping[str, str | Iterable[str]] | None = None,
    disable_wait_for_ack: bool = False,
    ring_buffer_size: int = 0,
    read_channel_size: int = 0,
) -> pc.ShardSpec:
    """Return a valid spec.

    Args:
        shard_id: id of the shard.
        sources: journals to read; or, by journal, the minimum offset at which to begin.
        recovery_log_prefix: the recovery log is the journal ``prefix/id``; empty for no recovery log.
        hint_prefix: path below which hints of the recovery log are stored; by default ``/gazette/hints`` if
            there is a recovery log.
        hint_backups: number of hints of earlier recoveries to keep, at most 127; by default 2 if there is a
            recovery log.
        max_txn_s: maximum seconds for which a transaction reads messages.
        min_txn_s: minimum seconds for which it reads, as long as there are messages.
        disable: whether not to run the shard.
        hot_standbys: number of processes that replay the recovery log in addition to the primary.
        labels: values by name.
        disable_wait_for_ack: whether to end a transaction although messages in it are not acknowledged yet.
        ring_buffer_size: number of uncommitted messages to keep in memory; 0 means 8,192.
        read_channel_size: number of messages to read ahead; 0 means 8,192.

    Raises:
        ProtocolError: a value breaks a rule of specs.
    """
    offsets = sources if isinstance(sources, Mapping) else dict.fromkeys(sources, 0)
    spec = pc.ShardSpec(
        id=shard_id,
        sources=[
            pc.ShardSpec.Source(journal=journal, min_offset=offset)
            for journal, offset in sorted(offsets.items())
        ],
        recovery_log_prefix=recovery_log_prefix,
        hint_prefix=hint_prefix or ("/gazette/hints" if recovery_log_prefix else ""),
        hint_backups=(2 if recovery_log_prefix else 0) if hint_backups is None else hint_backups,
        max_txn_duration=duration_of(max_txn_s, "max_txn_s"),
        min_txn_duration=duration_of(min_txn_s, "min_txn_s"),
        disable=disable,
        hot_standbys=hot_standbys,
        labels=label_set(labels or {}),
        disable_wait_for_ack=disable_wait_for_ack,
        ring_buffer_size=ring_buffer_size,
        read_channel_size=read_channel_size,
    )
    with named_as(ARGUMENTS):
        validate_shard_spec(spec, "")
    return spec


def validate_shard_id(shard_id: str, where: str = "Shard") -> None:
    """Raise ProtocolError unless ``shard_id`` is a valid id of a shard."""
    validate_token(where, shard_id, *SHARD_ID_BYTES)


def validate_shard_spec(spec: pc.ShardSpec, where: str = "ShardSpec") -> None:
    """Raise ProtocolError unless consumers would accept the spec.

    An error names a field as in messages and YAML: ``ShardSpec.max_txn_duration``.
    """
    validate_shard_id(spec.id, f"{where}.id")
    hints = spec.hint_prefix
    if spec.recovery_log_prefix:
        validate_journal_name(recovery_log(spec), allow_meta=True, where=f"{where}.recovery_log_prefix")
        # normpath keeps two slashes at the beginning, which Gazette does not accept as clean.
        if not hints.startswith("/") or hints.startswith("//") or posixpath.normpath(hints) != hints:
            problem = f"must be a clean path that begins with '/' and does not end in one, got {hints!r}"
            raise ProtocolError(f"{where}.hint_prefix", problem)
    elif hints:
        raise ProtocolError(f"{where}.hint_prefix", f"must be empty without a recovery log, got {hints!r}")
    if not 0 <= spec.hint_backups <= MAX_HINT_BACKUPS:
        problem = f"must be from 0 to {MAX_HINT_BACKUPS}, got {spec.hint_backups}"
        raise ProtocolError(f"{where}.hint_backups", problem)
    for field, duration, least_ns, least in (
        ("min_txn_duration", spec.min_txn_duration, 0, "at least"),
        ("max_txn_duration", spec.max_txn_duration, 1, "above"),
    ):
        if duration.ToNanoseconds() < least_ns or duration.seconds >= MAX_DURATION_S:
            problem = f"must be {least} 0 s and below 292 years, got {duration.ToNanoseconds() / 1e9:g} s"
            raise ProtocolError(f"{where}.{field}", problem)
    validate_shard_labels(spec.labels, f"{where}.labels")
    previous = ""
    for at, source in enumerate(spec.sources):
        validate_journal_name(source.journal, allow_meta=True, where=f"{where}.sources[{at}].journal")
        if source.min_offset < 0:
            problem = f"must be at least 0, got {source.min_offset}"
            raise ProtocolError(f"{where}.sources[{at}].min_offset", problem)
        if source.journal <= previous:
            problem = f"must be unique and ascend by journal; {previous!r} precedes {source.journal!r}"
            raise ProtocolError(f"{where}.sources[{at}]", problem)
        previous = source.journal


def recovery_log(spec: pc.ShardSpec) -> str:
    """Return the journal of a shard's recovery log; empty if it has none."""
    return f"{spec.recovery_log_prefix}/{spec.id}" if spec.recovery_log_prefix else ""


def hint_primary_key(spec: pc.ShardSpec) -> str:
    """Return the key of the hints that a shard's primary writes."""
    return f"{spec.hint_prefix}/{spec.id}.primary"


def hint_backup_keys(spec: pc.ShardSpec) -> list[str]:
    """Return the keys of the hints of earlier recoveries, newest first."""
    return [f"{spec.hint_prefix}/{spec.id}.backup.{at}" for at in range(spec.hint_backups)]


def labels_with_id(spec: pc.ShardSpec) -> pb.LabelSet:
    """Return the labels that selectors of shards match: the spec's labels and its ``id``."""
    return union(pb.LabelSet(labels=[pb.Label(name=ID, value=spec.id)]), spec.labels)


def desired_replicas(spec: pc.ShardSpec) -> int:
    """Return the number of processes for a shard: a primary and its standbys, or 0 if it is disabled."""
    return 0 if spec.disable else 1 + min(spec.hot_standbys, MAX_HOT_STANDBYS)


def reduce_statuses(statuses: Iterable[pc.ReplicaStatus]) -> pc.ReplicaStatus:
    """Return the status of a shard from those of its replicas: the highest code, and all errors."""
    reduced = pc.ReplicaStatus()
    for status in statuses:
        reduced.code = max(reduced.code, status.code)
        reduced.errors.extend(status.errors)
    return reduced


def validate_stat_request(request: pc.StatRequest) -> None:
    """Raise ProtocolError unless header, shard and offsets are well formed."""
    where = "StatRequest"
    if request.HasField("header"):
        validate_header(request.header, f"{where}.Header")
    validate_shard_id(request.shard, f"{where}.Shard")
    for journal, offset in request.read_through.items():
        field = f"{where}.ReadThrough[{journal}]"
        validate_journal_name(journal, allow_meta=True, where=field)
        if offset < 0:
            raise ProtocolError(field, f"invalid Offset ({offset}; expected >= 0)")


def validate_list_request(request: pc.ListRequest) -> None:
    """Raise ProtocolError unless the selector is well formed."""
    validate_selector(request.selector, "ListRequest.Selector")


def validate_apply_request(request: pc.ApplyRequest) -> None:
    """Raise ProtocolError unless all changes of the request are valid."""
    validate_shard_changes(request.changes)


def validate_shard_changes(
    changes: Iterable[pc.ApplyRequest.Change], where: str = "ApplyRequest.Changes", upsert: str = ".upsert"
) -> None:
    """Raise ProtocolError unless each change either upserts a valid spec or deletes a shard.

    Args:
        changes: changes to check.
        where: path of the list, for errors.
        upsert: path of a spec in its change, which is empty for YAML.
    """
    for at, change in enumerate(changes):
        of_change = f"{where}[{at}]"
        check_upsert_or_delete(change, of_change)
        if change.delete:
            validate_shard_id(change.delete, f"{of_change}.Delete")
            if change.HasField("primary_hints"):
                raise ProtocolError(of_change, "hints may be set only with an upsert, not a delete")
            continue
        validate_shard_spec(change.upsert, f"{of_change}{upsert}")
        hints, of_hints = change.primary_hints, f"{of_change}.PrimaryHints"
        of_segment = f"{of_hints}.Segment"
        for segment in (segment for node in hints.live_nodes for segment in node.segments):
            if segment.log and segment.log == hints.log:
                raise ProtocolError(of_hints, "contained segment.Log duplicates FSMHints.Log")
            for is_broken, problem in (
                (segment.author == 0, "Author is zero"),
                (segment.first_seq_no <= 0, "FirstSeqNo <= 0"),
                (segment.first_offset < 0, "FirstOffset < 0"),
                (segment.last_seq_no < segment.first_seq_no, "LastSeqNo < segment.FirstSeqNo"),
                (0 != segment.last_offset <= segment.first_offset, "LastOffset <= segment.FirstOffset"),
            ):
                if is_broken:
                    raise ProtocolError(of_segment, problem)
            validate_journal_name(segment.log or hints.log, allow_meta=True, where=f"{of_segment}.Log")


def validate_hints_request(request: pc.GetHintsRequest) -> None:
    """Raise ProtocolError unless the shard's id is valid."""
    validate_shard_id(request.shard, "GetHintsRequest.Shard")


def validate_unassign_request(request: pc.UnassignRequest) -> None:
    """Raise ProtocolError unless all ids are valid ids of shards."""
    for at, shard_id in enumerate(request.shards):
        validate_shard_id(shard_id, f"UnassignRequest.Shards[{at}]")
