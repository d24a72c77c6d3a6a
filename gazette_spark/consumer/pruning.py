"""Which stored fragments of recovery logs no hints refer to, as ``gazctl shards prune`` has it.

A recovery log holds every write to a shard's files ever made. Hints name the segments that the present files
are made of; from the last of these on, a player reads to the log's end. What lies outside of them can go.

Hints may refer to any log: a log that was forked goes on in another one. So a log is only pruned if *all*
hints of each shard that writes to it were seen, its backups included, and every shard that refers to it has
to be among those looked at. That is the caller's to see to; a fragment that is not stored yet and to which no
hints refer shows that it is not so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gazette_spark.client.client import Client
from gazette_spark.client.listing.upkeep import URL_TTL_S, Pruned, pruned_of
from gazette_spark.consumer.client import ShardClient
from gazette_spark.consumer.recoverylog.fsm import live_log_segments
from gazette_spark.consumer.recoverylog.segments import Segment
from gazette_spark.consumer.specs import recovery_log
from gazette_spark.errors import GazetteError, ProtocolError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol.fragments import Fragment


@dataclass(slots=True)
class LiveSegments:
    """What hints refer to, by log, and which logs are not to be pruned."""

    segments: dict[str, list[Segment]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """By log, why."""

    def add(self, log: str, hints: pc.GetHintsResponse) -> None:
        """Take up all hints of the shard that writes to a log."""
        for each in (*hints.backup_hints, hints.primary_hints):
            if not each.HasField("hints"):
                self.skipped[log] = "its shard has not written all its hints"
            elif not each.hints.live_nodes:
                self.skipped[log] = "hints of its shard have no live files"
            else:
                for segment in live_segments(each.hints):
                    self.segments.setdefault(segment.log, []).append(segment)

    def prunable(self) -> list[str]:
        """Return the logs that may be pruned."""
        return sorted(self.segments.keys() - self.skipped.keys())


def live_segments(hints: pr.FSMHints) -> list[Segment]:
    """Return the segments of hints; the last of them has no end, as a player reads on behind it.

    Raises:
        ProtocolError: they contradict each other.
    """
    _, segments = live_log_segments(hints)
    if segments:
        segments[-1] = replace(segments[-1], last_offset=0)
    return segments


def is_live(fragment: Fragment, segments: Iterable[Segment]) -> bool:
    """Return whether any of the segments may have bytes in a fragment."""
    return any(
        each.first_offset < fragment.end and (each.last_offset == 0 or each.last_offset > fragment.begin)
        for each in segments
    )


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """The fragments to be deleted, and the logs that were left alone."""

    fragments: Sequence[Pruned]
    skipped: dict[str, str]
    """By log, why."""


def find_unreferenced(client: Client, shards: ShardClient, selector: str) -> Unreferenced:
    """Return the stored fragments that no hints of the selected shards refer to.

    Args:
        client: of the brokers.
        shards: of the consumer.
        selector: has to match every shard that refers to the logs of any of them.

    Raises:
        ProtocolError: hints contradict each other, or are not those of all shards of a log.
    """
    live = LiveSegments()
    healthy: dict[str, str] = {}
    for each in shards.list_shards(selector):
        if not (log := recovery_log(each.spec)):
            continue
        # Also of a log that is left alone: they may refer to another one.
        live.add(log, shards.get_hints(each.spec.id))
        # A store that does not answer would have the rest wait for it, one fragment after the other.
        if problem := _problem_of_stores(client, log, healthy):
            live.skipped[log] = problem
    found = [pruned for log in live.prunable() for pruned in _dead(client, log, live.segments[log])]
    return Unreferenced(found, live.skipped)


def _problem_of_stores(client: Client, log: str, known: dict[str, str]) -> str:
    try:
        for store in client.get_journal(log).spec.fragment.stores:
            if store not in known:
                known[store] = client.store_health(store).problem
            if known[store]:
                return f"its store {store} is unhealthy: {known[store]}"
    except GazetteError as error:
        return str(error)
    return ""


def _dead(client: Client, log: str, segments: Sequence[Segment]) -> Iterable[Pruned]:
    for listed in client.list_fragments(log, signature_ttl_s=URL_TTL_S):
        fragment = listed.fragment
        if is_live(fragment, segments):
            continue
        if not fragment.mod_time:
            problem = (
                f"fragment {fragment.content_name} is not stored yet, and no hints refer to it: the selector "
                "leaves out shards that use this log"
            )
            raise ProtocolError(f"recovery log {log}", problem)
        yield pruned_of(listed)
