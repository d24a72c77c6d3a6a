"""Keeps the shards of one process: their specs and revisions, which of them run, and when they can be used.

:class:`RunningShards` runs the shards that its owner names. A new spec, or a change of fields that a shard
reads only once, starts the shard. Other changes are passed to the running shard. If the host requests that, a
FAILED shard is started again after some time (:mod:`gazette_spark.consumer.assignments`).

A :class:`ShardTable` decides what runs if there is only one process. It replaces Etcd: every change makes a
new catalog with the next revision, and the shards follow it. Applying a spec also starts a FAILED shard. A
disabled spec is listed but does not run.

:meth:`ShardTable.resolve` answers in Gazette's order:

1. SHARD_NOT_FOUND: there is no such shard, or the caller may not see it.
2. NO_SHARD_PRIMARY: no process runs it.
3. NOT_SHARD_PRIMARY: another process runs it, and the request must not be passed on.
4. OK. If this process runs it, the caller waits for its store and then for the offsets. The status is
   SHARD_STOPPED if the shard ends first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

from gazette_spark._server.catalog import Catalog, ItemKind, apply_changes, check_transaction
from gazette_spark._server.identity import BrokerIdentity
from gazette_spark._server.topology import make_route
from gazette_spark.consumer.application import Resolution, ResolveArgs, Shard, ShardListing, Store
from gazette_spark.consumer.assignments import PERMANENT, RestartPolicy, Restarts
from gazette_spark.consumer.recoverylog.hints import Hints
from gazette_spark.consumer.specs import hint_backup_keys, hint_primary_key, labels_with_id, recovery_log
from gazette_spark.consumer.transaction import ACKNOWLEDGING, COMMITTING, TransactionCounts
from gazette_spark.errors import ShardFailedError
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb

log = logging.getLogger(__name__)

SHARD_UP, SHARD_RESTARTS = "gazette_shard_up", "gazette_spark_shard_restarts_total"
SHARD_TRANSACTIONS, SHARD_MESSAGES = "gazette_shard_transactions_total", "gazette_shard_read_messages_total"
SHARD_BYTES, SHARD_HEAD = "gazette_shard_read_bytes_total", "gazette_shard_read_head"
SHARD_PHASE = "gazette_shard_phase_seconds_total"

METRICS = (
    (SHARD_UP, "gauge", ("shard", "status"), "Status of each shard that this process runs."),
    (SHARD_RESTARTS, "counter", ("shard",), "Restarts of a shard after it had failed."),
    (SHARD_TRANSACTIONS, "counter", ("shard",), "Transactions that are committed and acknowledged."),
    (SHARD_MESSAGES, "counter", ("shard",), "Messages that these transactions consumed."),
    (SHARD_BYTES, "counter", ("shard",), "Bytes of these messages."),
    (SHARD_HEAD, "gauge", ("shard", "journal"), "Offset up to which the committed state has read a journal."),
    (
        SHARD_PHASE,
        "counter",
        ("shard", "phase", "type"),
        "Seconds that these transactions took, by phase; phases overlap.",
    ),
)
"""Names, types, labels and texts of metrics. All names except that of restarts are Gazette's."""

BACKGROUND = (COMMITTING, ACKNOWLEDGING)
"""Phases that overlap the next transaction's consumption."""

SHARDS: ItemKind[pc.ShardSpec] = ItemKind(
    plural="shards", new_spec=pc.ShardSpec, name_of=lambda spec: spec.id, labels_of=labels_with_id
)
"""Kind of the items of consumers."""

# The list names fields that may change while the shard runs. A field that Gazette adds is not in it and
# restarts the shard, which is slow but correct.
READ_EACH_TIME = (
    "max_txn_duration",
    "min_txn_duration",
    "disable_wait_for_ack",
    "hot_standbys",
    "hint_backups",
    "labels",
)
"""Fields of a spec that a running shard reads whenever it needs them. It reads all other fields only when it
starts."""


class RunningShard(Shard, Protocol):
    """An assignment of a shard to this process, from its start to its end."""

    @property
    def status(self) -> pc.ReplicaStatus:
        """Status of the assignment."""

    @property
    def store_ready(self) -> Future[Store]:
        """Future that returns the store when it is open and its checkpoint is restored."""

    @property
    def progress_changed(self) -> Future[None]:
        """Future that ends at the next change of the progress. Take it before reading the progress."""

    @property
    def counts(self) -> TransactionCounts:
        """Counts of what the transactions have done."""

    def put_spec(self, spec: pc.ShardSpec) -> None:
        """Use another spec."""

    def hold(self) -> bool:
        """Keep the store from being destroyed until :meth:`release`; return False if it is too late."""

    def release(self) -> None:
        """End one :meth:`hold`."""

    def drain(self) -> None:
        """Begin to commit what was consumed and then to end, without waiting."""

    def stop(self) -> None:
        """Begin to stop, without waiting."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the assignment has ended; return False at the timeout."""


StartShard = Callable[[pc.ShardSpec, RunningShard | None], RunningShard]
"""Starts a shard once the previous assignment, if any, has ended, without waiting for that."""


def resolve_status(
    spec: pc.ShardSpec | None, primary: pb.ProcessSpec.ID | None, local: pb.ProcessSpec.ID, *, may_proxy: bool
) -> pc.Status:
    """Return the status of a request for a shard.

    Args:
        spec: Spec of the shard; None if the caller cannot see it.
        primary: Process that runs the shard.
        local: This process.
        may_proxy: Whether another process may answer.
    """
    # The order is Gazette's: first whether the shard exists, then who runs it. A caller may not know the
    # second without the first.
    if spec is None:
        return pc.SHARD_NOT_FOUND
    if primary is None:
        return pc.NO_SHARD_PRIMARY
    # A request that has been passed on must not be passed on again: two processes with different views could
    # send it in circles.
    if primary != local and not may_proxy:
        return pc.NOT_SHARD_PRIMARY
    return pc.OK


def needs_restart(old: pc.ShardSpec, new: pc.ShardSpec) -> bool:
    """Return whether a running shard must restart to follow a new spec."""
    return _read_once(old) != _read_once(new)


def _read_once(spec: pc.ShardSpec) -> pc.ShardSpec:
    # Make a copy, because specs are shared with other threads and never change.
    copied = pc.ShardSpec()
    copied.CopyFrom(spec)
    for name in READ_EACH_TIME:
        copied.ClearField(name)
    return copied


def unmet(read_through: dict[str, int], args: ResolveArgs, spec: pc.ShardSpec) -> dict[str, int]:
    """Return the requested offsets through which their sources have not been read yet."""
    # A journal that the shard does not read would never be read through. As in Gazette, it is ignored, so a
    # caller may pass the offsets of all its appends to several shards.
    sources = {source.journal for source in spec.sources}
    return {
        journal: offset
        for journal, offset in args.read_through.items()
        if journal in sources and offset > read_through.get(journal, 0)
    }


def drain_all(shards: Sequence[RunningShard], timeout_s: float) -> None:
    """Let shards commit what they have consumed, and wait for that. With a timeout of 0, do nothing."""
    # Request this of all first and then wait, so that they drain concurrently.
    if timeout_s > 0:
        for shard in shards:
            shard.drain()
        join_all(shards, timeout_s)


def join_all(shards: Iterable[RunningShard], timeout_s: float) -> None:
    """Wait until the shards have ended, or until the timeout."""
    # All shards have one deadline, so the time does not grow with their number.
    until_s = time.monotonic() + timeout_s
    for shard in shards:
        shard.join(max(0.0, until_s - time.monotonic()))


class RunningShards:
    """The assignments of shards to this process: starts and ends them, and restarts those that fail.

    Any thread may call anything. The owner decides what runs, and both share one lock.
    """

    def __init__(self, start: StartShard, lock: threading.RLock, restart: RestartPolicy | None) -> None:
        """Begin without shards.

        Args:
            start: Starts a shard.
            lock: The owner's lock.
            restart: When to start a FAILED shard again; None for never automatically.
        """
        self._start = start
        # They share one lock, because a restart reads what the owner has decided. The lock is reentrant,
        # because the owner calls this object while holding it.
        self._lock = lock
        self._restart_policy = restart
        self._running: dict[str, RunningShard] = {}
        # An assignment's thread refers to it, so it stays here until it has ended. It may hold a large state,
        # and thousands of messages that were read ahead.
        self._ended = WeakValueDictionary[str, RunningShard]()
        """Assignments of shards that no longer run, which may not have ended yet."""
        # This is kept when a shard ends, so that its counter of restarts never goes back while the process
        # runs.
        self._restarts: dict[str, Restarts] = {}
        self._due: dict[str, tuple[float, RunningShard]] = {}
        """Failed assignments that will be replaced, with the monotonic time of that, by shard."""
        self._due_changed = threading.Condition(lock)
        self._restarter: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    def get(self, shard_id: str) -> RunningShard | None:
        """Return the shard, if it runs or has failed in this process."""
        # One look-up in a dictionary is atomic, so a caller without the lock gets the current assignment or
        # the next one.
        return self._running.get(shard_id)

    def by_id(self) -> dict[str, RunningShard]:
        """Return the current assignments, ascending by id."""
        with self._lock:
            return dict(sorted(self._running.items()))

    def status(self, shard_id: str) -> pc.ReplicaStatus:
        """Return the status of a running shard, and if it has failed, whether it will be started again."""
        shard, restarts = self._running[shard_id], self._restarts.get(shard_id)
        status = shard.status
        if status.code == pc.ReplicaStatus.FAILED:
            # A status has a list of errors for people. The note shows whether to wait or to act.
            if restarts is not None and restarts.is_due:
                status.errors.append(restarts.note())
            elif shard.primary_loop.done() and _is_permanent(shard.primary_loop.exception()):
                status.errors.append(PERMANENT)
        return status

    def follow(self, shard_id: str, spec: pc.ShardSpec | None) -> None:
        """Start, change or end a shard according to its spec, which is None if it must not run."""
        with self._lock:
            shard = self._running.get(shard_id)
            if spec is None or self._closed:
                # The spec was deleted or disabled, or the assignment has ended.
                if shard is not None:
                    self._end(shard_id)
            elif shard is None:
                # The previous assignment may still be ending. The new one waits for the end of its thread,
                # because two of them in one process would fence each other.
                self._begin(spec, self._ended.pop(shard_id, None))
            # A change that a running shard could follow restarts a failed one, because an operator who
            # changes a spec expects the shard to try again.
            elif needs_restart(shard.spec, spec) or (
                shard.spec != spec and shard.status.code == pc.ReplicaStatus.FAILED
            ):
                self.restart(shard_id, spec)
            else:
                shard.put_spec(spec)

    def restart(self, shard_id: str, spec: pc.ShardSpec) -> None:
        """End a shard, and start it again immediately."""
        with self._lock:
            # While the host closes, a request must not start a shard that would never be stopped.
            if self._closed:
                return
            self._end(shard_id)
            self._begin(spec, self._ended.pop(shard_id, None))

    def stop(self) -> list[RunningShard]:
        """Begin to stop all shards, and return those that may not have ended."""
        with self._lock:
            # Stop all of them before waiting for any. The list is a copy, because _end changes the
            # dictionary.
            for shard_id in list(self._running):
                self._end(shard_id)
            return list(self._ended.values())

    def close(self) -> list[RunningShard]:
        """Stop all shards as :meth:`stop` does, and start none after that."""
        with self._lock:
            # Set the flag under the same lock as the stop: a restart that is due now sees the flag, or its
            # shard is among those that are stopped.
            self._closed = True
            self._due_changed.notify()
            return self.stop()

    def metrics(self) -> str:
        """Return status, restarts and transactions of each shard, in Prometheus' text format.

        As in Gazette, the metric of the status has the shard's id, and those of its transactions have its
        full name.
        """
        with self._lock:
            running = sorted(self._running.items())
            # Copy the counts under the lock, and write the text without it: a scrape must not delay the start
            # of a shard.
            totals = {shard_id: self._restarts[shard_id].total for shard_id in sorted(self._restarts)}
        # Each sample has the values of the labels and its own value.
        samples: dict[str, list[tuple[tuple[str, ...], object]]] = {name: [] for name, _, _, _ in METRICS}
        samples[SHARD_RESTARTS] = [((shard_id,), total) for shard_id, total in totals.items()]
        for shard_id, shard in running:
            counts, fqn = shard.counts, shard.fqn
            # As in Gazette, the value is always 1, and the label contains the status.
            samples[SHARD_UP].append(((shard_id, pc.ReplicaStatus.Code.Name(shard.status.code)), 1))
            samples[SHARD_TRANSACTIONS].append(((fqn,), counts.transactions))
            samples[SHARD_MESSAGES].append(((fqn,), counts.messages))
            samples[SHARD_BYTES].append(((fqn,), counts.read_bytes))
            for journal, offset in sorted(shard.progress().read_through.items()):
                samples[SHARD_HEAD].append(((fqn, journal), offset))
            for phase, seconds in counts.phase_s.items():
                kind = "async" if phase in BACKGROUND else "sync"
                samples[SHARD_PHASE].append(((fqn, phase, kind), f"{seconds:.6f}"))
        lines = []
        for name, kind, labels, text in METRICS:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for values, value in samples[name]:
                # Neither ids of shards nor names of journals contain characters to escape.
                pairs = ",".join(f'{label}="{text}"' for label, text in zip(labels, values, strict=True))
                lines.append(f"{name}{{{pairs}}} {value}")
        return "\n".join(lines) + "\n"

    def _begin(self, spec: pc.ShardSpec, after: RunningShard | None) -> None:
        if self._restart_policy is not None and self._restarter is None:
            # Start it before a shard can fail, because shards also fail if a machine starts no more threads.
            restarter = threading.Thread(target=self._restart_due, name="shard restarts", daemon=True)
            restarter.start()
            self._restarter = restarter
        self._running[spec.id] = shard = self._start(spec, after)
        if self._restart_policy is not None:
            # Consecutive failures outlive the assignment. Otherwise the delay would never grow.
            self._restarts.setdefault(spec.id, Restarts(self._restart_policy, time.monotonic()))
            # If a shard has already ended, the callback runs immediately in this thread. The lock is
            # reentrant.
            shard.primary_loop.add_done_callback(lambda loop: self._note_end(spec.id, shard, loop))

    def _end(self, shard_id: str) -> None:
        # Keep it until it has ended, because a successor waits for it, and close waits for all.
        self._ended[shard_id] = shard = self._running.pop(shard_id)
        # The next failure gets the first delay again, because an operator has acted.
        self._due.pop(shard_id, None)
        if (restarts := self._restarts.get(shard_id)) is not None:
            restarts.failures, restarts.is_due, restarts.started_s = 0, False, time.monotonic()
        # Do not wait: this thread holds the lock, which the shard needs to report its end.
        shard.stop()

    def _note_end(self, shard_id: str, shard: RunningShard, loop: Future[None]) -> None:
        """Schedule the restart of a failed shard, unless it is useless. Called by the shard's thread."""
        error = loop.exception()
        with self._lock:
            # A shard that was stopped or replaced has not failed. Compare the object, not the id: the
            # callback may come when another assignment of the shard already runs.
            if error is None or self._closed or self._running.get(shard_id) is not shard:
                return
            # According to the application, the shard would fail again. It stays FAILED until an operator
            # unassigns it or applies its spec.
            if _is_permanent(error):
                log.error("shard.failed_permanently shard=%s", shard_id)
                return
            # If another process has taken over the store, that is a failure like any other. Two processes
            # that keep taking a shard from each other thus slow down, and nothing counts twice in the
            # meantime.
            restarts = self._restarts[shard_id]
            delay_s = restarts.fail(time.monotonic())
            log.warning(
                "shard.will_restart shard=%s failures=%d delay_s=%g", shard_id, restarts.failures, delay_s
            )
            # Do not sleep here: this is the shard's thread, and its successor waits for its end.
            self._due[shard_id] = time.monotonic() + delay_s, shard
            self._due_changed.notify()

    def _restart_due(self) -> None:
        """Start failed shards again when it is time, until the host closes. A thread runs this."""
        with self._lock:
            while not self._closed:
                now_s = time.monotonic()
                for shard_id in [shard_id for shard_id, (due_s, _) in self._due.items() if due_s <= now_s]:
                    _, shard = self._due.pop(shard_id)
                    restarts = self._restarts[shard_id]
                    restarts.start(now_s)
                    try:
                        # Use the shard's current spec, which may have changed since it failed. An assignment
                        # that cannot be started leaves the failed one in its place.
                        self._begin(shard.spec, shard)
                    except Exception:
                        log.exception("shard.not_restarted shard=%s", shard_id)
                        self._due[shard_id] = now_s + restarts.fail(now_s), shard
                next_s = min((due_s for due_s, _ in self._due.values()), default=None)
                self._due_changed.wait(None if next_s is None else max(0.0, next_s - time.monotonic()))


def _is_permanent(error: BaseException | None) -> bool:
    return isinstance(error, ShardFailedError) and error.is_permanent


class ShardTable:
    """The shards of one process. Any thread may call anything; it implements ``ShardHost``."""

    def __init__(
        self,
        identity: BrokerIdentity,
        start: StartShard,
        hints: Hints,
        *,
        restart: RestartPolicy | None = None,
    ) -> None:
        """Begin without shards.

        Args:
            identity: Identity of this process, which :meth:`serve_at` completes.
            start: Starts a shard.
            hints: Storage for hints of recovery logs.
            restart: When to start a FAILED shard again; None for never automatically.
        """
        self._identity = identity
        self._hints = hints
        self._lock = threading.RLock()
        # The catalog is immutable: a change makes another one, so a reader without the lock sees one complete
        # revision or the next.
        self._catalog: Catalog[pc.ShardSpec] = Catalog(SHARDS, identity.cluster_id)
        self._shards = RunningShards(start, self._lock, restart)

    def __repr__(self) -> str:
        return f"ShardTable(revision={self._catalog.revision}, {len(self._shards)} running)"

    def serve_at(self, endpoint: str) -> None:
        """Name this process in routes by the address of its service."""
        with self._lock:
            # The port is known only after the service listens, and shards may run before that.
            self._identity = replace(self._identity, member=replace(self._identity.member, endpoint=endpoint))

    def running(self) -> list[RunningShard]:
        """Return the current assignments, by id."""
        return list(self._shards.by_id().values())

    def specs(self) -> list[pc.ShardSpec]:
        """Return all specs, by id. They must not be changed."""
        return [entry.spec for entry in self._catalog.select()]

    def header(self) -> pb.Header:
        """Return a header without a route."""
        return self._identity.header(self._catalog.revision)

    def list_shards(self) -> ShardListing:
        """Return all shards, see ``ShardHost``."""
        with self._lock:
            return ShardListing(
                self.header(),
                [
                    pc.ListResponse.Shard(
                        spec=entry.spec,
                        mod_revision=entry.mod_revision,
                        create_revision=entry.create_revision,
                        route=self._route(shard_id),
                        # There is one status for each member of the route, and none for a shard that does not
                        # run, because clients pair the two lists.
                        status=[self._shards.status(shard_id)] if self._shards.get(shard_id) else [],
                    )
                    for shard_id, entry in sorted(self._catalog.items.items())
                ],
            )

    def metrics(self) -> str:
        """Return status, restarts and transactions of each shard, in Prometheus' text format."""
        return self._shards.metrics()

    def _route(self, shard_id: str) -> pb.Route:
        # Only this process runs shards, so a route has one member or none.
        return make_route((self._identity.member,) if self._shards.get(shard_id) is not None else ())

    def apply(self, changes: Sequence[pc.ApplyRequest.Change]) -> pc.ApplyResponse:
        """Make valid changes, all or none, see ``ShardHost``."""
        # Errors of the request itself come first, and change nothing.
        check_transaction(SHARDS, changes)
        with self._lock:
            catalog = apply_changes(self._catalog, changes)
            # A revision is not the expected one, because another client was faster. The name of Gazette's
            # status refers to the transaction in Etcd that fails there.
            if catalog is None:
                return pc.ApplyResponse(status=pc.ETCD_TRANSACTION_FAILED, header=self.header())
            # Store hints before a shard starts, because it recovers from them, and before anything changes: a
            # full disk must not leave specs in the catalog whose shards never start.
            for change in changes:
                if change.HasField("primary_hints"):
                    self._hints[hint_primary_key(change.upsert)] = change.primary_hints
            self._catalog = catalog
            for change in changes:
                shard_id = SHARDS.changed(change)
                entry = catalog.items.get(shard_id)
                # A disabled shard stays in the listing, so that it can be enabled again.
                spec = None if entry is None or entry.spec.disable else entry.spec
                shard = self._shards.get(shard_id)
                # Do this even if the spec is the same: applying it again is how an operator starts a failed
                # shard.
                if spec is not None and shard is not None and shard.status.code == pc.ReplicaStatus.FAILED:
                    self._shards.restart(shard_id, spec)
                else:
                    self._shards.follow(shard_id, spec)
            return pc.ApplyResponse(header=self.header())

    def resolve(self, args: ResolveArgs) -> Resolution:
        """Return where a shard is served, see ``ShardHost``."""
        # The store and the offsets share one deadline.
        deadline_s = None if args.timeout_s is None else time.monotonic() + args.timeout_s
        with self._lock:
            if args.proxy_header is not None:
                # Refuse a request that was meant for another process or another cluster: this process would
                # answer for other shards with the same ids.
                self._identity.check_proxied(args.proxy_header)
            entry = self._catalog.items.get(args.shard_id)
            # Give the same answer for a missing shard and for one that the claims do not cover, so that ids
            # are not revealed.
            spec = entry.spec if entry is not None and args.may_see(entry.spec) else None
            shard = self._shards.get(args.shard_id) if spec is not None else None
            local = self._identity.process_id
            status = resolve_status(
                spec, local if shard is not None else None, local, may_proxy=args.may_proxy
            )
            route = self._route(args.shard_id) if shard is not None else None
            resolution = Resolution(status, self._identity.header(self._catalog.revision, route), spec)
        # Wait outside the lock: the wait may be long, and the shard needs the lock to continue.
        if shard is not None and spec is not None and status == pc.OK:
            hold_store(resolution, shard, args, spec, deadline_s)
        return resolution

    def hints(self, shard_id: str) -> pc.GetHintsResponse:
        """Return the hints of a shard's recovery log, see ``ShardHost``."""
        with self._lock:
            entry = self._catalog.items.get(shard_id)
            if entry is None:
                return pc.GetHintsResponse(status=pc.SHARD_NOT_FOUND, header=self.header())
            response = hints_of(entry.spec, self._hints)
            response.header.CopyFrom(self.header())
            return response

    def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> pc.UnassignResponse:
        """End assignments, see ``ShardHost``. This process starts the shards again."""
        with self._lock:
            chosen = [
                shard_id
                # An id that occurs twice must not restart its shard twice.
                for shard_id in dict.fromkeys(shard_ids)
                if (shard := self._shards.get(shard_id)) is not None
                and (not only_failed or shard.status.code == pc.ReplicaStatus.FAILED)
            ]
            if chosen and not dry_run:
                # Make a new revision, like the deletion of an assignment in Etcd, so that a client that lists
                # can distinguish before and after.
                self._catalog = replace(self._catalog, revision=self._catalog.revision + 1)
                for shard_id in chosen:
                    self._shards.restart(shard_id, self._catalog.items[shard_id].spec)
            return pc.UnassignResponse(shards=chosen)

    def close(self) -> list[RunningShard]:
        """Begin to stop all shards, start none after that, and return those that may not have ended."""
        return self._shards.close()


def hints_of(spec: pc.ShardSpec, hints: Hints) -> pc.GetHintsResponse:
    """Return the hints that are stored for a spec, or none if it names no recovery log."""
    response = pc.GetHintsResponse()
    if not recovery_log(spec):
        return response
    primary = hints.get(hint_primary_key(spec))
    # Set the field only if there are hints: hints without content would be mistaken for hints of another log.
    if primary is not None:
        response.primary_hints.hints.CopyFrom(primary)
    for key in hint_backup_keys(spec):
        # Add an entry for each key, even without hints, because its position is the number of the backup.
        backup = response.backup_hints.add()
        if (stored := hints.get(key)) is not None:
            backup.hints.CopyFrom(stored)
    return response


def hold_store(
    resolution: Resolution,
    shard: RunningShard,
    args: ResolveArgs,
    spec: pc.ShardSpec,
    deadline_s: float | None,
) -> None:
    """Wait until a local primary is as far as requested, and set the resolution's store.

    Raises:
        TimeoutError: the primary was not ready in time, or the caller has gone away.
    """
    is_ready = _await(shard.store_ready, shard, args, deadline_s)
    while is_ready:
        # Take the future first and then read the progress: a change in between ends this future.
        changed = shard.progress_changed
        if not unmet(shard.progress().read_through, args, spec):
            break
        is_ready = _await(changed, shard, args, deadline_s)
    # The hold comes after the wait, so that a caller that waits for long does not prevent a shard from
    # ending. The hold fails if the shard has ended in between.
    if not is_ready or not shard.hold():
        resolution.status = pc.SHARD_STOPPED
        return
    resolution.shard, resolution.store, resolution.release = (
        shard,
        shard.store_ready.result(),
        shard.release,
    )


def _await(event: Future[Any], shard: RunningShard, args: ResolveArgs, deadline_s: float | None) -> bool:
    """Wait for an event of a shard; return False if the shard has ended.

    Raises:
        TimeoutError: neither happened in time, or the caller has gone away.
    """
    # A failed shard makes no more progress. If this did not also wait for its end, a caller without a
    # deadline would wait forever.
    events: list[Future[Any]] = [event, shard.primary_loop]
    if args.cancelled is not None:
        events.append(args.cancelled)
    timeout_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
    ended = wait(events, timeout_s, FIRST_COMPLETED).done
    # Check the event before the end of the shard: if both have happened, the offset was reached.
    if event in ended and event.exception() is None:
        return True
    if shard.primary_loop in ended or event in ended:
        return False
    why = "the caller has gone away" if ended else "it took too long"
    raise TimeoutError(f"shard {args.shard_id!r} has not read as far as requested: {why}")
