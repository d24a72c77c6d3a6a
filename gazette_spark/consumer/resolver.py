"""The shards of one process: their specs and revisions, which of them run, and when they may be used.

:class:`RunningShards` runs the shards that it is told to run. A spec that is new, or that has changed in what
a shard reads once, starts the shard. Other changes reach the running shard. A shard that FAILED is started
again after a while (:mod:`gazette_spark.consumer.assignments`), if the host wants that.

A :class:`ShardTable` decides what runs where there is one process. It replaces Etcd: every change makes a new
catalog with the next revision, and moves the shards after it. A spec that is applied starts a shard that
also FAILED. A disabled spec is listed, but does not run.

:meth:`ShardTable.resolve` answers in Gazette's order:

1. SHARD_NOT_FOUND: there is no such shard, or the caller may not see it.
2. NO_SHARD_PRIMARY: nobody runs it.
3. NOT_SHARD_PRIMARY: another process does, and the request may not be passed on.
4. OK. If this process runs it, the caller waits for its store, then for the offsets; SHARD_STOPPED if the
   shard ends before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any, Protocol

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
"""Names, types, labels and texts of metrics. All names but that of restarts are Gazette's."""

BACKGROUND = (COMMITTING, ACKNOWLEDGING)
"""Phases that overlap the next transaction's consumption."""

SHARDS: ItemKind[pc.ShardSpec] = ItemKind(
    plural="shards", new_spec=pc.ShardSpec, name_of=lambda spec: spec.id, labels_of=labels_with_id
)
"""The items of consumers."""

# The list names what may change under way, and not what may not: a field that Gazette adds restarts the
# shard, which is slow and right.
READ_EACH_TIME = (
    "max_txn_duration",
    "min_txn_duration",
    "disable_wait_for_ack",
    "hot_standbys",
    "hint_backups",
    "labels",
)
"""Fields of a spec that a running shard looks at whenever it needs them; others it reads when it starts."""


class RunningShard(Shard, Protocol):
    """An assignment of a shard to this process, from its start to its end."""

    @property
    def status(self) -> pc.ReplicaStatus:
        """Its state."""

    @property
    def store_ready(self) -> Future[Store]:
        """Ends with the store when that is open and its checkpoint restored."""

    @property
    def progress_changed(self) -> Future[None]:
        """Ends at the next change of its progress; take it before you look at the progress."""

    @property
    def counts(self) -> TransactionCounts:
        """What its transactions have done."""

    def put_spec(self, spec: pc.ShardSpec) -> None:
        """Use another spec."""

    def hold(self) -> bool:
        """Keep the store from being destroyed until :meth:`release`; return False if it is too late."""

    def release(self) -> None:
        """End one :meth:`hold`."""

    def drain(self) -> None:
        """Begin to commit what was consumed, and to end after that, without waiting."""

    def stop(self) -> None:
        """Begin to stop, without waiting."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the assignment has ended; return False at the timeout."""


StartShard = Callable[[pc.ShardSpec, RunningShard | None], RunningShard]
"""Starts a shard, when the assignment before, if any, has ended; does not wait for that."""


def resolve_status(
    spec: pc.ShardSpec | None, primary: pb.ProcessSpec.ID | None, local: pb.ProcessSpec.ID, *, may_proxy: bool
) -> pc.Status:
    """Return the status of a request for a shard.

    Args:
        spec: The shard's, None if the caller cannot see one.
        primary: Process that runs it.
        local: This process.
        may_proxy: Whether another process may answer.
    """
    # The order is Gazette's, and the one of what a caller may know: whether there is a shard before who runs
    # it.
    if spec is None:
        return pc.SHARD_NOT_FOUND
    if primary is None:
        return pc.NO_SHARD_PRIMARY
    # A request that was passed on already must not be passed on again: two processes with different views
    # could send it in circles.
    if primary != local and not may_proxy:
        return pc.NOT_SHARD_PRIMARY
    return pc.OK


def needs_restart(old: pc.ShardSpec, new: pc.ShardSpec) -> bool:
    """Return whether a running shard must restart to follow a new spec."""
    return _read_once(old) != _read_once(new)


def _read_once(spec: pc.ShardSpec) -> pc.ShardSpec:
    # A copy, because specs are shared with other threads and are never changed.
    copied = pc.ShardSpec()
    copied.CopyFrom(spec)
    for name in READ_EACH_TIME:
        copied.ClearField(name)
    return copied


def unmet(read_through: dict[str, int], args: ResolveArgs, spec: pc.ShardSpec) -> dict[str, int]:
    """Return the offsets that a caller waits for, of sources that are not read through them."""
    # A journal that the shard does not read will never be read through. As in Gazette, it is ignored: a
    # caller may pass the offsets of all its appends to each of several shards.
    sources = {source.journal for source in spec.sources}
    return {
        journal: offset
        for journal, offset in args.read_through.items()
        if journal in sources and offset > read_through.get(journal, 0)
    }


def drain_all(shards: Sequence[RunningShard], timeout_s: float) -> None:
    """Let shards commit what they have consumed, and wait for that; with a timeout of 0, do neither."""
    # All are asked first, and then waited for, so that they drain side by side.
    if timeout_s > 0:
        for shard in shards:
            shard.drain()
        join_all(shards, timeout_s)


def join_all(shards: Iterable[RunningShard], timeout_s: float) -> None:
    """Wait until the shards have ended, or the timeout is over."""
    # One deadline for all: the time does not grow with the number of shards.
    until_s = time.monotonic() + timeout_s
    for shard in shards:
        shard.join(max(0.0, until_s - time.monotonic()))


class RunningShards:
    """The assignments of shards to this process: starts and ends them, and restarts those that fail.

    Any thread may call anything. The owner decides what runs; both share one lock.
    """

    def __init__(self, start: StartShard, lock: threading.RLock, restart: RestartPolicy | None) -> None:
        """Begin without shards.

        Args:
            start: Starts a shard.
            lock: The owner's lock.
            restart: When a shard that FAILED is started again; None: when somebody asks for it.
        """
        self._start = start
        # One lock, because a restart reads what the owner has decided. It is reentrant: the owner calls this
        # object with the lock held.
        self._lock = lock
        self._restart_policy = restart
        self._running: dict[str, RunningShard] = {}
        self._ended: dict[str, RunningShard] = {}
        """Assignments that may not have ended yet, of shards that do not run any more."""
        # Kept when a shard ends, so that its counter of restarts never goes back while the process lives.
        self._restarts: dict[str, Restarts] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    def get(self, shard_id: str) -> RunningShard | None:
        """Return the shard, if it runs or has failed here."""
        # One look-up in a dictionary is atomic, so a caller without the lock gets this assignment or the next
        # one.
        return self._running.get(shard_id)

    def by_id(self) -> dict[str, RunningShard]:
        """Return the present assignments, ascending by id."""
        with self._lock:
            return dict(sorted(self._running.items()))

    def status(self, shard_id: str) -> pc.ReplicaStatus:
        """Return the status of a shard that runs, and whether it is started again if it has failed."""
        shard, restarts = self._running[shard_id], self._restarts.get(shard_id)
        status = shard.status
        if status.code == pc.ReplicaStatus.FAILED:
            # A status has one list of errors for people to read. The note says whether to wait or to act.
            if restarts is not None and restarts.is_due:
                status.errors.append(restarts.note())
            elif shard.primary_loop.done() and _is_permanent(shard.primary_loop.exception()):
                status.errors.append(PERMANENT)
        return status

    def follow(self, shard_id: str, spec: pc.ShardSpec | None) -> None:
        """Start, change or end a shard after its spec, which is None if it is not to run."""
        with self._lock:
            shard = self._running.get(shard_id)
            if spec is None or self._closed:
                # The spec was deleted or disabled, or the assignment has gone.
                if shard is not None:
                    self._end(shard_id)
            elif shard is None:
                # The assignment before may still be ending. The new one gets it, and waits for its thread to
                # end: two of them in one process would fence each other.
                self._begin(spec, self._ended.pop(shard_id, None))
            # A change that a running shard could take restarts one that has failed: whoever changes a spec
            # wants the shard to try again.
            elif needs_restart(shard.spec, spec) or (
                shard.spec != spec and shard.status.code == pc.ReplicaStatus.FAILED
            ):
                self.restart(shard_id, spec)
            else:
                shard.put_spec(spec)

    def restart(self, shard_id: str, spec: pc.ShardSpec) -> None:
        """End a shard, and start it again at once."""
        with self._lock:
            # A request that comes while the host closes must not start what nobody would stop.
            if self._closed:
                return
            self._end(shard_id)
            self._begin(spec, self._ended.pop(shard_id))

    def stop(self) -> list[RunningShard]:
        """Begin to stop all shards, and return those that may not have ended."""
        with self._lock:
            # All are told before any is waited for. The list is a copy, because _end changes the dictionary.
            for shard_id in list(self._running):
                self._end(shard_id)
            return list(self._ended.values())

    def close(self) -> list[RunningShard]:
        """Stop all shards as :meth:`stop` does; none is started any more."""
        with self._lock:
            # Under the same lock as the stop: a restart that is due now finds the flag, or its shard is among
            # those that are stopped.
            self._closed = True
            return self.stop()

    def metrics(self) -> str:
        """Return status, restarts and transactions of each shard, in Prometheus' text format.

        As in Gazette, the status names the shard by its id, and what its transactions did by its full name.
        """
        with self._lock:
            running = sorted(self._running.items())
            # Counted here under the lock, and written without it: a scrape must not hold up the start of a
            # shard.
            totals = {shard_id: self._restarts[shard_id].total for shard_id in sorted(self._restarts)}
        # Values of the labels, and the sample's.
        samples: dict[str, list[tuple[tuple[str, ...], object]]] = {name: [] for name, _, _, _ in METRICS}
        samples[SHARD_RESTARTS] = [((shard_id,), total) for shard_id, total in totals.items()]
        for shard_id, shard in running:
            counts, fqn = shard.counts, shard.fqn
            # Gazette's form: the value is always 1, and the label says the status.
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
                # Neither ids of shards nor names of journals have characters to escape.
                pairs = ",".join(f'{label}="{text}"' for label, text in zip(labels, values, strict=True))
                lines.append(f"{name}{{{pairs}}} {value}")
        return "\n".join(lines) + "\n"

    def _begin(self, spec: pc.ShardSpec, after: RunningShard | None) -> None:
        self._running[spec.id] = shard = self._start(spec, after)
        if self._restart_policy is not None:
            # The failures in a row outlive the assignment, or the delay would never grow.
            self._restarts.setdefault(spec.id, Restarts(self._restart_policy, time.monotonic()))
            # A shard that ends before this line calls back at once, in this thread; the lock is reentrant.
            shard.primary_loop.add_done_callback(lambda loop: self._note_end(spec.id, shard, loop))

    def _end(self, shard_id: str) -> None:
        # Kept until it has ended, because a successor waits for it, and close waits for all.
        self._ended[shard_id] = shard = self._running.pop(shard_id)
        # The next failure gets the first delay again: somebody has looked after the shard.
        if (timer := self._timers.pop(shard_id, None)) is not None:
            timer.cancel()
        if (restarts := self._restarts.get(shard_id)) is not None:
            restarts.failures, restarts.is_due, restarts.started_s = 0, False, time.monotonic()
        # Without waiting: the lock is held, and the shard needs it to report its end.
        shard.stop()

    def _note_end(self, shard_id: str, shard: RunningShard, loop: Future[None]) -> None:
        """Schedule the restart of a failed shard, unless it is pointless. Called by the shard's thread."""
        error = loop.exception()
        with self._lock:
            # A shard that was stopped or replaced has not failed. Identity and not the id: the callback may
            # come late, when another assignment of the shard runs already.
            if error is None or self._closed or self._running.get(shard_id) is not shard:
                return
            # The application says that it would fail again. The shard stays FAILED until somebody unassigns
            # it or applies its spec.
            if _is_permanent(error):
                log.error("shard.failed_permanently shard=%s", shard_id)
                return
            # A store that was taken over by another process is a failure like any other. Two processes that
            # keep taking a shard from each other slow down that way, and nothing counts twice meanwhile.
            restarts = self._restarts[shard_id]
            delay_s = restarts.fail(time.monotonic())
            log.warning(
                "shard.will_restart shard=%s failures=%d delay_s=%g", shard_id, restarts.failures, delay_s
            )
            # A timer and not a sleep: this is the shard's thread, whose successor waits for it to end.
            timer = threading.Timer(delay_s, self._start_again, [shard_id, shard])
            timer.daemon = True
            self._timers[shard_id] = timer
            timer.start()

    def _start_again(self, shard_id: str, shard: RunningShard) -> None:
        with self._lock:
            if self._closed or self._running.get(shard_id) is not shard:
                return
            self._timers.pop(shard_id, None)
            restarts = self._restarts[shard_id]
            restarts.start(time.monotonic())
            self._ended[shard_id] = self._running.pop(shard_id)
            # With the spec that the shard has by now, which may have changed since it failed.
            self._begin(shard.spec, self._ended.pop(shard_id))


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
            identity: Identity of this process; :meth:`serve_at` completes it.
            start: Starts a shard.
            hints: Where hints of recovery logs are kept.
            restart: When a shard that FAILED is started again; None: when somebody asks for it.
        """
        self._identity = identity
        self._hints = hints
        self._lock = threading.RLock()
        # Immutable: a change makes another catalog, so a reader without the lock sees one revision or the
        # next, and never a part of one.
        self._catalog: Catalog[pc.ShardSpec] = Catalog(SHARDS, identity.cluster_id)
        self._shards = RunningShards(start, self._lock, restart)

    def __repr__(self) -> str:
        return f"ShardTable(revision={self._catalog.revision}, {len(self._shards)} running)"

    def serve_at(self, endpoint: str) -> None:
        """Name this process in routes by the address of its service."""
        with self._lock:
            # The port is known only after the service listens, and shards may run before.
            self._identity = replace(self._identity, member=replace(self._identity.member, endpoint=endpoint))

    def running(self) -> list[RunningShard]:
        """Return the present assignments, by id."""
        return list(self._shards.by_id().values())

    def specs(self) -> list[pc.ShardSpec]:
        """Return all specs, by id; they are not to be changed."""
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
                        # One status for each member of the route, and none of a shard that does not run:
                        # clients pair the two lists.
                        status=[self._shards.status(shard_id)] if self._shards.get(shard_id) else [],
                    )
                    for shard_id, entry in sorted(self._catalog.items.items())
                ],
            )

    def metrics(self) -> str:
        """Return status, restarts and transactions of each shard, in Prometheus' text format."""
        return self._shards.metrics()

    def _route(self, shard_id: str) -> pb.Route:
        # This process runs whatever runs at all, so a route has one member or none.
        return make_route((self._identity.member,) if self._shards.get(shard_id) is not None else ())

    def apply(self, changes: Sequence[pc.ApplyRequest.Change]) -> pc.ApplyResponse:
        """Make valid changes, all or none, see ``ShardHost``."""
        # Errors of the request itself come first, and change nothing.
        check_transaction(SHARDS, changes)
        with self._lock:
            catalog = apply_changes(self._catalog, changes)
            # A revision is not as the caller expects: somebody was faster. Gazette's status has the name of
            # the transaction in Etcd that fails there.
            if catalog is None:
                return pc.ApplyResponse(status=pc.ETCD_TRANSACTION_FAILED, header=self.header())
            self._catalog = catalog
            for change in changes:
                if change.HasField("primary_hints"):
                    # Before the shard starts, because it recovers from them.
                    self._hints[hint_primary_key(change.upsert)] = change.primary_hints
                shard_id = SHARDS.changed(change)
                entry = catalog.items.get(shard_id)
                # A disabled shard stays in the listing, so that it can be enabled again.
                spec = None if entry is None or entry.spec.disable else entry.spec
                shard = self._shards.get(shard_id)
                # Also where the spec is the same: to apply it again is how an operator starts a failed shard.
                if spec is not None and shard is not None and shard.status.code == pc.ReplicaStatus.FAILED:
                    self._shards.restart(shard_id, spec)
                else:
                    self._shards.follow(shard_id, spec)
            return pc.ApplyResponse(header=self.header())

    def resolve(self, args: ResolveArgs) -> Resolution:
        """Return where a shard is served, see ``ShardHost``."""
        # One deadline for the store and the offsets together.
        deadline_s = None if args.timeout_s is None else time.monotonic() + args.timeout_s
        with self._lock:
            if args.proxy_header is not None:
                # A request that was meant for another process or another cluster is refused: this one would
                # answer for shards with the same ids that are not the same shards.
                self._identity.check_proxied(args.proxy_header)
            entry = self._catalog.items.get(args.shard_id)
            # One answer for "not there" and "not yours", so that claims do not reveal ids.
            spec = entry.spec if entry is not None and args.may_see(entry.spec) else None
            shard = self._shards.get(args.shard_id) if spec is not None else None
            local = self._identity.process_id
            status = resolve_status(
                spec, local if shard is not None else None, local, may_proxy=args.may_proxy
            )
            route = self._route(args.shard_id) if shard is not None else None
            resolution = Resolution(status, self._identity.header(self._catalog.revision, route), spec)
        # Outside the lock: the wait may be long, and the shard needs the lock to go on.
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
        """End assignments, see ``ShardHost``; this process takes them up again."""
        with self._lock:
            chosen = [
                shard_id
                # An id that is given twice must not restart its shard twice.
                for shard_id in dict.fromkeys(shard_ids)
                if (shard := self._shards.get(shard_id)) is not None
                and (not only_failed or shard.status.code == pc.ReplicaStatus.FAILED)
            ]
            if chosen and not dry_run:
                # A new revision, as the deletion of an assignment in Etcd would make: a client that lists can
                # tell before from after.
                self._catalog = replace(self._catalog, revision=self._catalog.revision + 1)
                for shard_id in chosen:
                    self._shards.restart(shard_id, self._catalog.items[shard_id].spec)
            return pc.UnassignResponse(shards=chosen)

    def close(self) -> list[RunningShard]:
        """Begin to stop all shards, and return those that may not have ended; none is started any more."""
        return self._shards.close()


def hints_of(spec: pc.ShardSpec, hints: Hints) -> pc.GetHintsResponse:
    """Return the hints that are stored for a spec; without any if it names no recovery log."""
    response = pc.GetHintsResponse()
    if not recovery_log(spec):
        return response
    primary = hints.get(hint_primary_key(spec))
    # Presence matters: hints without content would be taken for hints of another log.
    if primary is not None:
        response.primary_hints.hints.CopyFrom(primary)
    for key in hint_backup_keys(spec):
        # An entry for each key, also without hints, because its position is the number of the backup.
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
    """Wait until a local primary is as far as the caller asks for, and give the resolution its store.

    Raises:
        TimeoutError: it was not so in time, or the caller has gone.
    """
    # The hold comes after the wait, so a caller that waits for long does not keep a shard from ending. It
    # fails if the shard has ended in between.
    if not _is_ready(shard, args, spec, deadline_s) or not shard.hold():
        resolution.status = pc.SHARD_STOPPED
        return
    resolution.shard, resolution.store, resolution.release = (
        shard,
        shard.store_ready.result(),
        shard.release,
    )


def _is_ready(shard: RunningShard, args: ResolveArgs, spec: pc.ShardSpec, deadline_s: float | None) -> bool:
    """Wait for the store, then for the offsets; False if the shard ended before."""
    if not _await(shard.store_ready, shard, args, deadline_s):
        return False
    while True:
        # First the future, then the look: a change in between ends the future that is waited for.
        changed = shard.progress_changed
        if not unmet(shard.progress().read_through, args, spec):
            return True
        if not _await(changed, shard, args, deadline_s):
            return False


def _await(event: Future[Any], shard: RunningShard, args: ResolveArgs, deadline_s: float | None) -> bool:
    """Wait for an event of a shard; False if the shard has ended.

    Raises:
        TimeoutError: neither came in time, or the caller has gone.
    """
    # A shard that has failed makes no progress any more. Without its end, a caller without a deadline would
    # wait for ever.
    events: list[Future[Any]] = [event, shard.primary_loop]
    if args.cancelled is not None:
        events.append(args.cancelled)
    timeout_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
    ended = wait(events, timeout_s, FIRST_COMPLETED).done
    # Before the end of the shard: if both came at once, the offset was reached.
    if event in ended and event.exception() is None:
        return True
    if shard.primary_loop in ended or event in ended:
        return False
    why = "the caller has gone away" if ended else "it took too long"
    raise TimeoutError(f"shard {args.shard_id!r} is not as far as the caller asked for: {why}")
