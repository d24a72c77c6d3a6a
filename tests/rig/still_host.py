"""A host of shards that do nothing by themselves: a test says how far they have come, and which fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gazette_spark.broker.identity import BrokerIdentity
from gazette_spark.broker.replication.topology import Member, make_route
from gazette_spark.broker.storage.state import Catalog, ItemKind, apply_changes
from gazette_spark.consumer.application import Progress, Resolution, ResolveArgs, ShardListing
from gazette_spark.consumer.specs import hint_backup_keys, hint_primary_key, labels_with_id, replicas_wanted
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as rl

SHARDS = ItemKind(
    plural="shards", new_spec=pc.ShardSpec, name_of=lambda spec: spec.id, labels_of=labels_with_id
)

_Code = pc.ReplicaStatus


@dataclass(eq=False)
class StillShard:
    """One assignment."""

    spec: pc.ShardSpec
    status: pc.ReplicaStatus = field(default_factory=lambda: pc.ReplicaStatus(code=_Code.PRIMARY))
    read_through: dict[str, int] = field(default_factory=dict)
    publish_at: dict[str, int] = field(default_factory=dict)

    def progress(self) -> Progress:
        """Return what the test said."""
        return Progress({each.journal: 0 for each in self.spec.sources} | self.read_through, self.publish_at)


class StillHost:
    """The host; thread-safe."""

    def __init__(self, endpoint: str) -> None:
        self._member = Member("local", "consumer", endpoint)
        self._identity = BrokerIdentity(17, self._member)
        self._catalog: Catalog[pc.ShardSpec] = Catalog(SHARDS, 17)
        self._changed = threading.Condition()
        self.shards: dict[str, StillShard] = {}
        self.stored_hints: dict[str, rl.FSMHints] = {}
        """By key."""

    def move(self, shard_id: str, read_through: Mapping[str, int]) -> None:
        """Let a shard read through offsets."""
        with self._changed:
            self.shards[shard_id].read_through.update(read_through)
            self._changed.notify_all()

    def fail(self, shard_id: str, error: str) -> None:
        """Let a shard fail."""
        with self._changed:
            self.shards[shard_id].status = pc.ReplicaStatus(code=_Code.FAILED, errors=[error])
            self._changed.notify_all()

    def _route(self, shard_id: str) -> pb.Route:
        return make_route((self._member,) if shard_id in self.shards else ())

    def list_shards(self) -> ShardListing:
        """Return all shards."""
        with self._changed:
            listed = [
                pc.ListResponse.Shard(
                    spec=entry.spec,
                    mod_revision=entry.mod_revision,
                    create_revision=entry.create_revision,
                    route=self._route(entry.spec.id),
                    status=[self.shards[entry.spec.id].status] if entry.spec.id in self.shards else [],
                )
                for entry in self._catalog.select()
            ]
            return ShardListing(self._identity.header(self._catalog.revision), listed)

    def apply(self, changes: Sequence[pc.ApplyRequest.Change]) -> pc.ApplyResponse:
        """Make all changes, or none."""
        with self._changed:
            catalog = apply_changes(self._catalog, list(changes))
            header = self._identity.header((catalog or self._catalog).revision)
            if catalog is None:
                return pc.ApplyResponse(status=pc.ETCD_TRANSACTION_FAILED, header=header)
            self._catalog = catalog
            for change in changes:
                if change.HasField("primary_hints"):
                    self.stored_hints[hint_primary_key(change.upsert)] = change.primary_hints
            wanted = {name: each.spec for name, each in catalog.items.items() if replicas_wanted(each.spec)}
            kept = {name: each for name, each in self.shards.items() if name in wanted}
            self.shards = {name: kept.get(name) or StillShard(spec) for name, spec in wanted.items()}
            self._changed.notify_all()
            return pc.ApplyResponse(header=header)

    def resolve(self, args: ResolveArgs) -> Resolution:
        """Wait until the shard has read through the offsets."""
        with self._changed:
            route = self._route(args.shard_id)
            header = self._identity.header(self._catalog.revision, route)
            if args.proxy_header is not None:
                self._identity.check_proxied(args.proxy_header)
            entry = self._catalog.items.get(args.shard_id)
            if entry is None or not args.may_see(entry.spec):
                return Resolution(pc.SHARD_NOT_FOUND, self._identity.header(self._catalog.revision))
            shard = self.shards.get(args.shard_id)
            if shard is None:
                return Resolution(pc.NO_SHARD_PRIMARY, header)
            return self._wait(args, shard, header)

    def _wait(self, args: ResolveArgs, shard: StillShard, header: pb.Header) -> Resolution:
        sources = {each.journal for each in shard.spec.sources}
        wanted = {name: offset for name, offset in args.read_through.items() if name in sources and offset}
        deadline = None if args.timeout_s is None else time.monotonic() + args.timeout_s
        while shard.status.code != _Code.FAILED and self.shards.get(shard.spec.id) is shard:
            if all(shard.progress().read_through[name] >= offset for name, offset in wanted.items()):
                found: Any = shard
                return Resolution(pc.OK, header, shard.spec, found)
            left_s = 1.0 if deadline is None else deadline - time.monotonic()
            if left_s <= 0 or (args.cancelled is not None and args.cancelled.done()):
                raise TimeoutError("the offsets were not read through in time")
            self._changed.wait(min(0.05, left_s))
        return Resolution(pc.SHARD_STOPPED, header)

    def hints(self, shard_id: str) -> pc.GetHintsResponse:
        """Return the hints of a shard's keys."""
        with self._changed:
            header = self._identity.header(self._catalog.revision)
            spec = self._catalog.items[shard_id].spec

            def stored(key: str) -> pc.GetHintsResponse.ResponseHints:
                return pc.GetHintsResponse.ResponseHints(hints=self.stored_hints.get(key))

            return pc.GetHintsResponse(
                header=header,
                primary_hints=stored(hint_primary_key(spec)),
                backup_hints=[stored(key) for key in hint_backup_keys(spec)],
            )

    def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> pc.UnassignResponse:
        """Assign shards anew."""
        with self._changed:
            found = [
                name
                for name in shard_ids
                if name in self.shards and (not only_failed or self.shards[name].status.code == _Code.FAILED)
            ]
            for name in [] if dry_run else found:
                self.shards[name] = StillShard(self._catalog.items[name].spec)
            self._changed.notify_all()
            return pc.UnassignResponse(shards=found)
