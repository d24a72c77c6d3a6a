"""Runs this process's shards as a member of a cluster, and answers requests for all shards.

:meth:`ClusterHost._be_member` shows the steps of a membership in order. In addition to its thread, there are
those of the mirror, of the lease, of the running shards, and of callers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gazette_spark._server.catalog import MAX_OPERATIONS
from gazette_spark._server.identity import check_proxied
from gazette_spark._server.topology import NO_PRIMARY, Member
from gazette_spark.client.client import Client
from gazette_spark.closing import Closing
from gazette_spark.consumer._cluster import etcd as calls
from gazette_spark.consumer._cluster.allocator import (
    ClusterMember,
    ItemSteps,
    Placement,
    ShardAssignment,
    effective_limits,
    leader,
    next_steps,
    solve,
)
from gazette_spark.consumer._cluster.etcd import EtcdClient
from gazette_spark.consumer._cluster.member import Membership
from gazette_spark.consumer._cluster.mirror import ClusterMirror, ClusterState
from gazette_spark.consumer.application import Application, Resolution, ResolveArgs, ShardListing
from gazette_spark.consumer.assignments import RestartPolicy
from gazette_spark.consumer.local import RESTART, LocalShard, ShardFolders
from gazette_spark.consumer.recoverylog.hints import hints_from_bytes, hints_to_json
from gazette_spark.consumer.resolver import (
    RunningShard,
    RunningShards,
    drain_all,
    hints_of,
    hold_store,
    join_all,
    resolve_status,
)
from gazette_spark.consumer.specs import hint_primary_key, validate_shard_spec
from gazette_spark.errors import ClosedError, GazetteError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import etcd_pb2 as pe
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as pr

log = logging.getLogger(__name__)

LIMIT = 32
"""Default maximum number of shards of a member, as in Gazette."""

LEASE_S = 20
"""Default seconds after which the shards of a lost member are assigned to others, as in Gazette."""

BACKFILL_S = 0.2
"""Seconds between two checks of shards that play their logs, which do not report when they have finished."""

IDLE_S = 2.0
"""Maximum seconds between two rounds."""

RETRY_S = 0.5
"""Seconds before failed calls to Etcd are repeated."""

# Gazette's process ends when its lease is lost, and its supervisor starts it again. This process joins again
# by itself (decision 0043).
REJOIN_S = 1.0
"""Seconds before a process that lost its membership tries to become a member again."""

# After that, the lease ends anyway. A shard that still blocks can no longer commit, because the next
# primary fences off its store.
STOP_S = 30.0
"""Seconds that shards have to end before the membership ends, because a call of the application may block."""

READ_S = 30.0
"""Maximum seconds until a change of a key arrives in the mirror."""


class EtcdHints:
    """Hints in Etcd, where Gazette stores them."""

    def __init__(self, etcd: EtcdClient, guard: Callable[[], pe.Compare]) -> None:
        """Store hints, each time under the condition that ``guard`` returns."""
        self._etcd = etcd
        self._guard = guard

    def get(self, key: str, /) -> pr.FSMHints | None:
        """Return the hints of a key, or None if there are none.

        Raises:
            StoreFormatError: the value is not hints.
        """
        # Read them from Etcd, not from the mirror, because hints have a separate prefix that is not mirrored.
        (kv,) = self._etcd.get(key)
        return None if kv is None else hints_from_bytes(kv.value, f"key {key!r} of Etcd")

    def __setitem__(self, key: str, hints: pr.FSMHints, /) -> None:
        # If two processes consider themselves the primary, only the real one may store hints.
        if not self._etcd.txn([self._guard()], [calls.put(key, hints_to_json(hints))]).succeeded:
            raise ClosedError(f"hints {key!r}", "the shard is no longer assigned to this process")


class ClusterHost(Closing):
    """Runs shards, and implements :class:`~gazette_spark.consumer.application.ShardHost`. Thread-safe."""

    def __init__(
        self,
        app: Application[Any],
        client: Client,
        etcd: EtcdClient,
        prefix: str,
        member: Member,
        *,
        limit: int = LIMIT,
        lease_s: int = LEASE_S,
        work_dir: str | Path | None = None,
        restart: RestartPolicy | None = RESTART,
    ) -> None:
        """Make a host, which joins the cluster when it is started.

        Args:
            app: The application. All members of the cluster must run the same one.
            client: Client of the brokers. The host does not close it.
            etcd: Client of Etcd. The host does not close it.
            prefix: Prefix of the application's keys.
            member: Description of this process, with the address of its service.
            limit: Maximum number of shards that it runs.
            lease_s: Seconds after which others take over if this process does not renew its lease.
            work_dir: Folder for the files of running stores; by default, a temporary one.
            restart: When to start a FAILED shard again; None for never automatically.
        """
        self._app = app
        self._client = client
        self._etcd = etcd
        self._member = member
        self._id = member.zone, member.suffix
        self._limit = limit
        self._lease_s = lease_s
        self._folders = ShardFolders(work_dir)
        self._mirror = ClusterMirror(etcd, prefix.rstrip("/"))
        # The lock is shared with the running shards, so that the timer of a failed shard cannot start it
        # again while this object ends it.
        self._lock = threading.RLock()
        self._shards = RunningShards(self._start_shard, self._lock, restart)
        # This is not always the mirror's newest state, which may name a shard that is not started yet.
        self._assigned: dict[str, ShardAssignment] = {}
        """Assignments of the running shards, by shard."""
        self._specs: list[pc.ShardSpec] = []
        """Specs of the shards that this process creates if they are missing."""
        self._spec_revisions: dict[str, int] = {}
        """Revision of the spec that each assigned shard uses, by shard."""
        self._membership: Membership | None = None
        # A caller of resolve may see a new assignment in the mirror before the membership's thread has
        # started the shard. It waits here for that thread.
        self._followed = threading.Condition(self._lock)
        self._followed_revision = 0
        self._drain_s = 0.0
        self._leaving = threading.Event()
        self._closing = threading.Event()
        self._joined = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster member", daemon=True)

    def __repr__(self) -> str:
        return f"ClusterHost({self._mirror!r}, {self._id}, {len(self._shards)} running)"

    def start(self) -> None:
        """Begin to join."""
        self._folders.open()
        self._mirror.start()
        self._thread.start()

    def wait_joined(self, timeout_s: float | None = None) -> bool:
        """Wait until the process is a member; return False at the timeout or if the host is closed."""
        return self._joined.wait(timeout_s) and not self._closing.is_set()

    def create_missing(self, specs: Iterable[pc.ShardSpec]) -> None:
        """Create the shards that do not exist, and leave existing ones unchanged."""
        self._specs = list(specs)
        for spec in self._specs:
            validate_shard_spec(spec)
            key = self._mirror.item_key(spec.id)
            # The condition is that the key does not exist. So processes that start at the same time with the
            # same specs do no harm, and a spec that an operator has changed is not overwritten.
            self._etcd.txn([calls.unchanged(key, 0)], [calls.put(key, spec.SerializeToString())])

    def leave(self, *, drain_s: float = 0.0) -> None:
        """Begin to hand over all shards to other members. After that, this process stops being a member.

        Args:
            drain_s: Seconds to wait for open transactions of shards that no other member takes, so that they
                commit the messages that they have consumed.
        """
        self._drain_s = drain_s
        self._leaving.set()
        # Wake the thread, because it waits for changes of keys.
        self._mirror.wake()

    def wait_left(self, timeout_s: float) -> bool:
        """Wait until the process is no longer a member; return False at the timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self, *, drain_s: float = 0.0) -> None:
        """Stop all shards, end the membership, and wait for that. Closing again does nothing.

        Args:
            drain_s: See :meth:`leave`.
        """
        self._closing.set()
        # Callers that wait for the process to join must not wait forever. `wait_joined` distinguishes the two
        # cases.
        self._joined.set()
        self.leave(drain_s=drain_s)
        if self._thread.is_alive():
            self._thread.join()
        self._shards.close()
        self._mirror.close()
        self._folders.close()

    # The thread of the membership.

    def _run(self) -> None:
        while not self._leaving.is_set():
            try:
                # A lease may be gone because Etcd lost its data, or was restored from a backup. Other members
                # may then continue what they ran before, until they notice, or until their own lease ends.
                # Each member therefore waits for the time of a lease, so that no shard is run by two.
                number = self._mirror.read_again()
                while not self._mirror.wait_read(number, REJOIN_S):
                    if self._leaving.is_set():
                        return
                state = self._mirror.state
                if state.replaced_s is not None:
                    if self._leaving.wait(max(0.0, state.replaced_s + self._lease_s - time.monotonic())):
                        return
                    # If there is no shard, all data is gone. Otherwise, the shards are those of the backup.
                    if not self._mirror.state.items:
                        self.create_missing(self._specs)
                self._be_member(state)
            except GazetteError as error:
                log.warning("cluster.membership_failed member=%s cause=%s", self._id, error)
            except Exception:
                # A process that is not a member does nothing useful, so try to join again after any error.
                log.exception("cluster.membership_failed member=%s", self._id)
            # The flag ends the pause immediately, and then the loop.
            self._leaving.wait(REJOIN_S)

    def _be_member(self, joined_by: ClusterState) -> None:  # noqa: C901, PLR0912 - told in order
        """Join, follow the keys, and return when the process is no longer a member."""
        process = pb.ProcessSpec(id=self._member.process_id, endpoint=self._member.endpoint)
        spec = pc.ConsumerSpec(process_spec=process, shard_limit=self._limit)
        key = self._mirror.member_key(self._id)
        # The end of this block revokes the lease, and Etcd deletes the key and the assignments with it. So
        # everything that runs here must have ended before that; see finally.
        with Membership(self._etcd, key, spec, self._lease_s, self._stop_at_once) as membership:
            # While it waited for the key, the process had to leave or lost its lease. It was not a member,
            # so it has nothing to hand over.
            if membership.announce(self._leaving) is None:
                return
            log.info("cluster.joined key=%s lease=%x", key, membership.lease)
            self._membership = membership
            # This is for one membership: after the process has lost its lease, what it remembers as the
            # leader is out of date, because another leader may have moved shards.
            leading = _Leading(self._etcd, self._mirror)
            # The first round does not wait, because the keys may already be here.
            state, is_seen, pause_s = self._mirror.state, False, 0.0
            try:
                while not (membership.lost.is_set() or self._closing.is_set()):
                    # Wait for a change of the keys, or of a shard.
                    state = self._mirror.wait_for_change(state, pause_s)
                    pause_s = IDLE_S

                    # These are not the keys with which this member joined. Its shards end here, and then its
                    # lease, which a backup may have brought back.
                    if state.replaced_s != joined_by.replaced_s:
                        break

                    # Etcd may have this member before its own mirror does. If the key disappears after that,
                    # an operator has deleted it, so join again.
                    me = state.members.get(self._id)
                    if me is None or me.lease != membership.lease:
                        if is_seen:
                            log.error("cluster.member_key_is_gone key=%s", key)
                            break
                        continue
                    is_seen = True
                    self._joined.set()

                    # Run exactly the shards that are assigned here.
                    with self._lock:
                        # Use the lock that _stop_at_once also takes: a shard that starts after it would run
                        # without a lease.
                        if not membership.is_live:
                            continue
                        # The state may be older than Etcd's current one. That is harmless: an assignment that
                        # no longer exists has another primary or will get one, and stores fence.
                        self._follow(state)

                    try:
                        # Publish how far each shard has come. The leader waits for that before it removes a
                        # replica.
                        for shard_id, assignment in self._assigned.items():
                            with self._lock:
                                status = self._shards.status(shard_id) if self._shards.get(shard_id) else None
                            if status is not None:
                                # Publish it only if it differs from the stored one, so that an idle member
                                # makes no transactions.
                                self._publish(assignment, status)
                                if status.code == pc.ReplicaStatus.BACKFILL:
                                    # Reading the status makes the step from BACKFILL to STANDBY, for which
                                    # the leader waits, so check again soon.
                                    pause_s = BACKFILL_S

                        # The oldest member decides for all. This needs no election: at one revision, the
                        # oldest key is the same for all. A member that has lost its key may still consider
                        # itself the leader, but its transactions fail, because each has that key as a
                        # condition.
                        if leader(state.members.values()) == self._id:
                            # A leader that exits leads until it has left, because it moves its own shards.
                            leading.converge(state, me)

                        # A process that should end leaves when it has no more shards, or if there is no
                        # member to take its shards.
                        if self._leaving.is_set():
                            # Other exiting members take nothing. If all members leave at the same time, as
                            # when an application is shut down, each would otherwise wait for the others
                            # forever.
                            staying = {member.id for member in state.members.values() if not member.exiting}
                            if not self._assigned or staying <= {self._id}:
                                break
                            if not me.exiting:
                                # The mirror will show the change, so the next round does not repeat this. The
                                # leader then moves this member's shards to the others.
                                membership.set_exiting(me.mod_revision)
                    except (GazetteError, TimeoutError) as error:
                        # Call Etcd again after the pause. Shards continue to run until the lease ends.
                        log.warning("cluster.etcd_call_failed key=%s cause=%s", key, error)
                        # A transaction without an answer may have been made and is not repeated (decision
                        # 0043). The next round does what is still missing. If its keys do not show that
                        # transaction yet, a condition fails.
                        pause_s = RETRY_S
            finally:
                # Shards end before the lease does, and others take over after that.
                log.info("cluster.leaves key=%s", key)
                self._end_shards()

    def _end_shards(self) -> None:
        """End all running shards. If the lease was lost, they have already been stopped."""
        # Drain before taking the lock, because a draining shard needs the lock to report its end.
        drain_all(list(self._shards.by_id().values()), self._drain_s)
        with self._lock:
            # After this, the guard of hints refuses: a shard that ends slowly must not overwrite the hints of
            # its successor.
            self._assigned = {}
            stopped = self._shards.stop()
        join_all(stopped, STOP_S)

    def _stop_at_once(self) -> None:
        """Stop all shards: the lease is lost, and others may soon get them. Called by the lease's thread."""
        self._shards.stop()
        self._mirror.wake()

    def _follow(self, state: ClusterState) -> None:
        """Start, promote and end shards according to the assignments. Called with the lock."""
        assigned = state.of_member(self._id)
        for shard_id in self._assigned.keys() - assigned.keys():
            self._shards.follow(shard_id, None)
        for shard_id, assignment in assigned.items():
            # An assignment that was ended and made again between two states differs only in the revision of
            # its creation. Its shard starts again, which is the purpose of Unassign.
            before = self._assigned.get(shard_id)
            # A move to a lower slot also creates a new key. In all other cases, the assignment was ended and
            # made again.
            again = before is not None and before.create_revision != assignment.create_revision
            if before is not None and again and assignment.slot >= before.slot:
                self._shards.follow(shard_id, None)
        self._assigned = assigned
        before_revisions, self._spec_revisions = self._spec_revisions, {}
        for shard_id, assignment in assigned.items():
            item = state.items[shard_id]
            # The revision distinguishes an Apply of the same bytes from no change.
            self._spec_revisions[shard_id] = item.mod_revision
            shard = self._shards.get(shard_id)
            is_put = before_revisions.get(shard_id, item.mod_revision) != item.mod_revision
            if is_put and shard is not None and shard.status.code == pc.ReplicaStatus.FAILED:
                # An operator has applied the same spec or another one, which starts a failed shard.
                self._shards.restart(shard_id, item.spec)
            else:
                # Start the shard if it does not run, or pass it a changed spec.
                self._shards.follow(shard_id, item.spec)
            shard = self._shards.get(shard_id)
            # Slot 0 is the primary's. Promoting again does nothing, so every state may do it. A primary never
            # becomes a standby: a higher slot is a new assignment.
            if assignment.slot == 0 and isinstance(shard, LocalShard):
                shard.promote()
        # Do this last, because callers that wait for this revision look for the shard next.
        self._followed_revision = state.revision
        self._followed.notify_all()

    def _publish(self, assignment: ShardAssignment, status: pc.ReplicaStatus) -> None:
        # Serialize deterministically, because the stored bytes are compared: two encodings of one status
        # would be written alternately.
        value = status.SerializeToString(deterministic=True)
        if value == assignment.value:
            return
        key = self._mirror.assignment_key(assignment)
        # If the assignment has changed in the meantime, that change will arrive, and the status is then
        # checked again.
        response = self._etcd.txn(
            [calls.unchanged(key, assignment.mod_revision)], [calls.put_under_its_lease(key, value)]
        )
        if response.succeeded:
            # Wait until the mirror has it. Otherwise the next round would see the old value and write again.
            self._mirror.wait_for(response.header.revision, READ_S)

    def _start_shard(self, spec: pc.ShardSpec, after: RunningShard | None) -> LocalShard:
        shard_id = spec.id

        def guard() -> pe.Compare:
            with self._lock:
                # Look up the assignment at each call, because its key changes when the replica is promoted.
                assignment = self._assigned.get(shard_id)
            if assignment is None:
                raise ClosedError(f"shard {shard_id!r}", "it is no longer assigned to this process")
            # Compare the revision of creation, not of the last change: a status that is published in the
            # meantime must not make storing hints fail.
            return calls.created_at(self._mirror.assignment_key(assignment), assignment.create_revision)

        shard = LocalShard(
            self._app,
            self._client,
            spec,
            self._mirror.item_key(shard_id),
            # The full name above is the key of the spec, as in Gazette. Stores use it for a shard's
            # checkpoint, so a shard continues when a member in another language takes it over.
            hints=EtcdHints(self._etcd, guard),
            new_directory=partial(self._folders.new, shard_id),
            after=after,
            is_standby=self._assigned[shard_id].slot > 0,
            # The membership's thread publishes the status, and it waits for the mirror.
            on_status=self._mirror.wake,
        )
        shard.start()
        return shard

    # ShardHost. The service checks requests before it calls these.

    def metrics(self) -> str:
        """Return status, restarts and transactions of running shards in Prometheus' text format."""
        return self._shards.metrics()

    def list_shards(self) -> ShardListing:
        """Return all shards of the cluster; see ``ShardHost``."""
        # Revision 1 means any state, because the keys may not have been read yet.
        state = self._mirror.wait_for(1, READ_S)
        return ShardListing(
            self._header(state),
            [
                pc.ListResponse.Shard(
                    spec=item.spec,
                    mod_revision=item.mod_revision,
                    create_revision=item.create_revision,
                    route=_route(state, item.id),
                    status=[
                        # Return the statuses that members have published, in the order of the route, without
                        # asking the members.
                        pc.ReplicaStatus.FromString(assignment.value)
                        for assignment in state.by_shard.get(item.id, ())
                    ],
                )
                for item in state.items.values()
            ],
        )

    def apply(self, changes: Sequence[pc.ApplyRequest.Change]) -> pc.ApplyResponse:
        """Make valid changes, all or none; see ``ShardHost``."""
        compare, operations = [], []
        for change in changes:
            key = self._mirror.item_key(change.upsert.id or change.delete)
            if change.HasField("upsert"):
                operations.append(calls.put(key, change.upsert.SerializeToString()))
                if change.HasField("primary_hints"):
                    hints = hints_to_json(change.primary_hints)
                    operations.append(calls.put(hint_primary_key(change.upsert), hints))
            else:
                operations.append(calls.delete(key))
            # -1 means no check, and 0 means that the key must not exist.
            if change.expect_mod_revision != -1:
                compare.append(calls.unchanged(key, change.expect_mod_revision))
        made = self._etcd.txn(compare, operations)
        response = pc.ApplyResponse(header=self._header(self._read_through(made)))
        # Gazette's answer contains the revision of the transaction itself. A client that wants to read its
        # own write requests this revision.
        response.header.etcd.revision = made.header.revision
        if not made.succeeded:
            response.status = pc.ETCD_TRANSACTION_FAILED
        return response

    def resolve(self, args: ResolveArgs) -> Resolution:
        """Return where a shard is served; see ``ShardHost``."""
        deadline_s = None if args.timeout_s is None else time.monotonic() + args.timeout_s
        state = self._mirror.wait_for(1, READ_S)
        if args.proxy_header is not None:
            check_proxied(args.proxy_header, state.etcd.cluster_id, self._member.process_id)
            # The process that passed the request on may have a newer assignment. Before that revision is
            # here, this process might answer that it is not the primary.
            patience_s = READ_S if args.timeout_s is None else args.timeout_s
            state = self._mirror.wait_for(args.proxy_header.etcd.revision, patience_s)
        item = state.items.get(args.shard_id)
        # Answer for a shard that the caller may not see as for one that does not exist, so that ids cannot be
        # guessed.
        spec = item.spec if item is not None and args.may_see(item.spec) else None
        route = _route(state, args.shard_id if spec is not None else "")
        local = self._member.process_id
        primary = route.members[route.primary] if route.primary != NO_PRIMARY else None
        # A process that may have lost its lease serves no shard, because another one may be its primary.
        # After it has joined again, the mirror may still show assignments of the previous lease.
        if primary == local:
            membership, me = self._membership, state.members.get(self._id)
            lease = membership.lease if membership is not None and membership.is_live else None
            if me is None or me.lease != lease:
                primary = None
        status = resolve_status(spec, primary, local, may_proxy=args.may_proxy)
        header = self._header(state, route)
        resolution = Resolution(status, header, spec)
        if status != pc.OK or primary is None or spec is None:
            return resolution
        # With the status OK, the header names the process that should serve the shard, which may be another
        # one. The service passes the request on to it.
        header.process_id.CopyFrom(primary)
        if primary == local:
            with self._lock:
                # The membership's thread may be about to start the shard.
                self._followed.wait_for(lambda: self._followed_revision >= state.revision, READ_S)
                shard = self._shards.get(args.shard_id)
            # The assignment has ended since that state, or the shard was stopped with its lease.
            if shard is None:
                resolution.status = pc.SHARD_STOPPED
            else:
                hold_store(resolution, shard, args, spec, deadline_s)
        return resolution

    def hints(self, shard_id: str) -> pc.GetHintsResponse:
        """Return the hints of a shard's recovery log; see ``ShardHost``."""
        state = self._mirror.wait_for(1, READ_S)
        item = state.items.get(shard_id)
        if item is None:
            return pc.GetHintsResponse(status=pc.SHARD_NOT_FOUND, header=self._header(state))
        # The guard is never called, because nothing is written here.
        response = hints_of(item.spec, EtcdHints(self._etcd, pe.Compare))
        response.header.CopyFrom(self._header(state))
        return response

    def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> pc.UnassignResponse:
        """End assignments of primaries and of all failed replicas; see ``ShardHost``."""
        state = self._mirror.wait_for(1, READ_S)
        ended = [
            assignment
            for shard_id in dict.fromkeys(shard_ids)
            for assignment in state.by_shard.get(shard_id, ())
            # Healthy standbys stay, because ending one would only cost a replay.
            if assignment.code == pc.ReplicaStatus.FAILED or (assignment.slot == 0 and not only_failed)
        ]
        response = pc.UnassignResponse(shards=dict.fromkeys(assignment.shard for assignment in ended))
        if ended and not dry_run:
            keys = {self._mirror.assignment_key(assignment): assignment for assignment in ended}
            made = self._etcd.txn(
                # A replica that has recovered since it was listed has another status and thus another
                # revision. Then nothing is ended, and the caller gets an error status.
                [calls.unchanged(key, assignment.mod_revision) for key, assignment in keys.items()],
                [calls.delete(key) for key in keys],
            )
            self._read_through(made)
            if not made.succeeded:
                response.status = pc.ETCD_TRANSACTION_FAILED
        return response

    def _read_through(self, made: pe.TxnResponse) -> ClusterState:
        """Wait until the mirror has the changes of a transaction."""
        # Deleting keys that do not exist changes nothing, so the mirror would never reach that revision.
        # Revision 1 is always reached.
        changed = any(
            response.HasField("response_put") or response.response_delete_range.deleted
            for response in made.responses
        )
        return self._mirror.wait_for(made.header.revision if made.succeeded and changed else 1, READ_S)

    def _header(self, state: ClusterState, route: pb.Route | None = None) -> pb.Header:
        return pb.Header(
            process_id=self._member.process_id,
            route=pb.Route(primary=NO_PRIMARY) if route is None else route,
            etcd=pb.Header.Etcd(
                cluster_id=state.etcd.cluster_id,
                member_id=state.etcd.member_id,
                revision=state.changed,
                raft_term=state.etcd.raft_term,
            ),
        )


class _Leading:
    """The actions of a leader, and the state that it needs for them."""

    def __init__(self, etcd: EtcdClient, mirror: ClusterMirror) -> None:
        self._etcd = etcd
        self._mirror = mirror
        self._solved: object = None
        """The problem for which the placement was computed."""
        self._desired: Placement = {}
        # Many wake-ups come without a change of a key, and the same keys lead to the same steps. Searching
        # for steps takes a quarter of a second for 10,000 shards.
        self._done_at = 0
        """Revision at which there was nothing to do."""

    def converge(self, state: ClusterState, me: ClusterMember) -> None:
        """Make the changes that are currently allowed."""
        if state.revision == self._done_at:
            return
        items, members = list(state.items.values()), list(state.members.values())
        limits = effective_limits(items, members)
        # Compute a new placement only for other shards or members. On the way to a placement, the assignments
        # match neither the old nor the new one, and a placement based on them could reverse the direction.
        problem = [(item.id, item.replicas) for item in items], limits
        if problem != self._solved:
            self._desired = solve(items, limits, state.assignments)
            self._solved = problem
            placed, desired = sum(map(len, self._desired.values())), sum(item.replicas for item in items)
            log.info(
                "cluster.solved shards=%d members=%d replicas=%d missing=%d",
                len(items),
                len(members),
                placed,
                desired - placed,
            )
        pending = next_steps(items, members, state.assignments, self._desired, limits)
        if not pending:
            self._done_at = state.revision
            return
        # A member that has lost this key is no longer the leader.
        own = calls.unchanged(self._mirror.member_key(me.id), me.mod_revision)
        # Each transaction has the revisions on which its steps are based as conditions, so a step is made on
        # that basis or not at all.
        member_revisions = {member.id: member.mod_revision for member in members}
        compare, operations = [own], list[pe.RequestOp]()
        # Never split the steps of one shard: a removal without the promotion would leave the shard without a
        # primary until the next round.
        for steps in pending:
            conditions, changes = self._transaction(steps, state.revision, member_revisions)
            if (
                len(compare) + len(conditions) > MAX_OPERATIONS
                or len(operations) + len(changes) > MAX_OPERATIONS
            ):
                # A failed condition means that the keys differ from the state. The remaining steps are based
                # on the same state, so stop.
                if not self._write(compare, operations):
                    return
                compare, operations = [own], []
            compare += conditions
            operations += changes
        self._write(compare, operations)

    def _write(self, compare: list[pe.Compare], operations: list[pe.RequestOp]) -> bool:
        response = self._etcd.txn(compare, operations)
        if not response.succeeded:
            # A key has changed. The change will arrive, or this member is no longer the leader.
            log.warning("cluster.changed_meanwhile revision=%d", response.header.revision)
            return False
        self._mirror.wait_for(response.header.revision, READ_S)
        return True

    def _transaction(
        self, steps: ItemSteps, revision: int, member_revisions: dict[tuple[str, str], int]
    ) -> tuple[list[pe.Compare], list[pe.RequestOp]]:
        """Return the conditions and operations of one shard's steps in the keys of a revision."""
        key_of = self._mirror.assignment_key
        # The mirror may be behind a transaction of this leader whose answer was lost, or of another leader.
        # Its assignments are not known here, and a member could get a second one in another slot, which
        # Gazette's members never promote.
        conditions = [calls.none_created_after(self._mirror.assignments_prefix(steps.shard), revision)]
        operations: list[pe.RequestOp] = []
        if steps.item is None:
            # The shard may have been created again in the meantime. Then its assignments are valid.
            conditions.append(calls.created_at(self._mirror.item_key(steps.shard), 0))
        elif steps.remove:
            # The number of replicas may have changed.
            conditions.append(calls.unchanged(self._mirror.item_key(steps.shard), steps.item.mod_revision))
        for added in steps.add:
            # The limit of the member may have changed.
            key = self._mirror.member_key(added.member)
            conditions.append(calls.unchanged(key, member_revisions[added.member]))
            # Use the lease of the member that should run the shard, not the leader's: the assignment has to
            # end with that member. An empty value is the status IDLE.
            operations.append(calls.put(key_of(added), b"", added.lease))
        for removed in steps.remove:
            conditions.append(calls.unchanged(key_of(removed), removed.mod_revision))
            operations.append(calls.delete(key_of(removed)))
        for moved, slot in steps.move:
            conditions.append(calls.unchanged(key_of(moved), moved.mod_revision))
            operations.append(calls.delete(key_of(moved)))
            # The slot is part of the key, so a move creates a new key with the old status and lease. The
            # member treats it as the same assignment, because its slot is lower.
            operations.append(calls.put(key_of(moved, slot), moved.value, moved.lease))
        return conditions, operations


def _route(state: ClusterState, shard_id: str) -> pb.Route:
    """Return the members that run a shard; none if it does not exist."""
    assignments = state.by_shard.get(shard_id, [])
    slots = [assignment.slot for assignment in assignments]
    return pb.Route(
        members=[
            pb.ProcessSpec.ID(zone=zone, suffix=suffix) for zone, suffix in (a.member for a in assignments)
        ],
        primary=slots.index(0) if 0 in slots else NO_PRIMARY,
        endpoints=[
            state.members[a.member].endpoint if a.member in state.members else "" for a in assignments
        ],
    )
