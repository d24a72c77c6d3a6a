"""Runs the shards of an application in this process, with one thread for each shard.

Transactions overlap as in Gazette. This host is for development, tests and small jobs, and for consumers that
need a low latency: a transaction takes as long as its appends. Hosts are independent of each other. If two
processes run the same shard, that does no harm: the store of the one that started first is fenced off.
Processes that share the shards of an application are members of a cluster
(:mod:`gazette_spark.consumer._cluster`), and run their shards by the same :class:`LocalShard`.

Each assignment of a shard has a thread, which ends with the assignment; see :meth:`LocalShard._serve`.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from gazette_spark._server.identity import BrokerIdentity
from gazette_spark._server.topology import Member
from gazette_spark.client._append.futures import AsyncOperation
from gazette_spark.client._append.service import AppendService
from gazette_spark.client.client import Client
from gazette_spark.closing import Closing
from gazette_spark.consumer.application import (
    Application,
    JsonStore,
    Progress,
    Resolution,
    ResolveArgs,
    ShardListing,
    Store,
)
from gazette_spark.consumer.assignments import Lifecycle, RestartPolicy
from gazette_spark.consumer.checkpoints import ack_intents, read_through
from gazette_spark.consumer.recoverylog.hints import Hints, keep_recovered_hints, pick_hints
from gazette_spark.consumer.recoverylog.operations import new_author
from gazette_spark.consumer.recoverylog.player import Player, Recovered
from gazette_spark.consumer.recoverylog.recorder import Recorder, check_recovery_log
from gazette_spark.consumer.resolver import RunningShard, ShardTable, drain_all, hints_of, join_all
from gazette_spark.consumer.sources import Sources
from gazette_spark.consumer.specs import hint_backup_keys, hint_primary_key, recovery_log, validate_shard_spec
from gazette_spark.consumer.stores.json_file import JsonFileStore
from gazette_spark.consumer.transaction import TransactionCounts, TransactionLoop, failed
from gazette_spark.errors import ClosedError, GazetteError, OptionError
from gazette_spark.failpoints import failpoint
from gazette_spark.message.publisher import write_ack_intents
from gazette_spark.protocol import consumer_pb2 as pc

logger = logging.getLogger(__name__)

# This is Gazette's interval. Hints only shorten a later replay, so more of them would cost writes and save
# only seconds.
HINTS_S = 300.0
"""Seconds between two hints that a primary stores for its recovery log."""


class LocalShard:
    """A shard that runs in a thread of this process. Thread-safe; :meth:`start` is called once."""

    def __init__(
        self,
        app: Application[Any],
        client: Client,
        spec: pc.ShardSpec,
        fqn: str,
        *,
        hints: Hints,
        new_directory: Callable[[], Path],
        after: RunningShard | None = None,
        is_standby: bool = False,
        on_status: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare a shard.

        Args:
            app: Application that consumes the shard's messages.
            client: Client of the brokers.
            spec: Spec of the shard.
            fqn: Name that no shard of another application has.
            hints: Storage for hints of recovery logs.
            new_directory: Makes an empty folder for the files of the store, which is removed at the end.
            after: The previous assignment, which has to end first.
            is_standby: Whether to wait for :meth:`promote` before taking over.
            on_status: Called after each change of the status, in any thread.
        """
        self._app = app
        self.client = client
        self.spec = spec
        self.fqn = fqn
        self._hints = hints
        self._new_directory = new_directory
        self._directory: Path | None = None
        self._after = after
        # One service makes all appends of the assignment, so closing it ends everything that the assignment
        # writes. A service whose recorder was fenced off can no longer append to that log, so the next
        # assignment makes a new one.
        self.append_service = AppendService(client)
        self._lock = threading.Lock()
        self._unused = threading.Condition(self._lock)
        self._lifecycle = Lifecycle()
        # Stat returns all sources, with 0 for those that were never read.
        self._read: dict[str, int] = {source.journal: 0 for source in spec.sources}
        self._published: dict[str, int] = {}
        self._changed: AsyncOperation[None] = AsyncOperation()
        self._store: Store | None = None
        # It never ends if the shard fails first, so callers that wait for it also wait for primary_loop.
        self.store_ready: AsyncOperation[Store] = AsyncOperation()
        self.primary_loop: AsyncOperation[None] = AsyncOperation()
        self.stopping = threading.Event()
        self._sources = Sources(client, app.new_message, spec, self.stopping)
        self._player: Player | None = None
        self._author = 0
        """Author to whom the player hands over the recovery log."""
        self._is_standby = is_standby
        self._on_status = on_status
        self._moved = threading.Event()
        """Set when a standby is promoted or stopped."""
        self.counts = TransactionCounts()
        self.recorder: Recorder | None = None
        self.recovered_hints: pc.GetHintsResponse | None = None
        self._hints_due_s = 0.0
        self._users = 0
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"shard {spec.id}", daemon=True)

    def __repr__(self) -> str:
        return f"LocalShard({self.spec.id!r}, {self._lifecycle!r})"

    def json_store(self, initial: object = None) -> JsonStore:
        """Return a store of one JSON document, recorded in the shard's recovery log.

        Raises:
            OptionError: the shard's spec names no recovery log.
        """
        if self.recorder is None:
            got = f"shard {self.spec.id!r} without a recovery log"
            expected = "the prefix of a journal's name: a JSON store is kept in a recovery log"
            raise OptionError("recovery_log_prefix", got, expected)
        return JsonFileStore(self.recorder, initial)

    def progress(self) -> Progress:
        """Return the progress of the shard."""
        with self._lock:
            return Progress(dict(self._read), dict(self._published))

    @property
    def progress_changed(self) -> Future[None]:
        """Ends at the next change of the progress."""
        with self._lock:
            return self._changed

    @property
    def status(self) -> pc.ReplicaStatus:
        """State of the assignment."""
        with self._lock:
            status = self._lifecycle.status
            # A player reports only by an event that it has reached the head, because its thread is busy
            # playing. So the step to STANDBY is made here, when the status is read; a member of a cluster
            # reads the status of shards in BACKFILL repeatedly.
            if (
                status.code == pc.ReplicaStatus.BACKFILL
                and self._player is not None
                and self._player.tailing.is_set()
            ):
                self._lifecycle.become(pc.ReplicaStatus.STANDBY)
                return self._lifecycle.status
            return status

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def promote(self) -> None:
        """Let a standby take over, without waiting for that. Further calls do nothing."""
        with self._lock:
            if self._is_standby:
                self._is_standby = False
                # A promotion may come at any time. Before there is a player, _play checks the flag under this
                # lock; a shard without a log checks it in _serve. So exactly one of the three
                # reacts.
                if self._player is not None:
                    self._player.inject_handoff(self._author)
        self._moved.set()

    def put_spec(self, spec: pc.ShardSpec) -> None:
        """Use another spec from the next transaction on."""
        # The reference is replaced in one step, and a spec object never changes, so readers in other threads
        # need no lock. A change of fields that are read only once, such as sources, restarts the shard
        # instead; see resolver.needs_restart.
        self.spec = spec

    def hold(self) -> bool:
        """Keep the store from being destroyed; return False if it is too late."""
        with self._lock:
            if self._ended:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """End one :meth:`hold`."""
        with self._lock:
            self._users -= 1
            self._unused.notify_all()

    def drain(self) -> None:
        """Begin to end without waiting: stop reading, and commit what was consumed."""
        self._sources.inbox.close()

    def stop(self) -> None:
        """End without waiting, and without committing what was consumed last."""
        # Set the flag first: threads that the next lines wake check it.
        self.stopping.set()
        with self._lock:
            if self._player is not None:
                self._player.cancel()
        self._moved.set()
        self._sources.inbox.close()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended; return False at the timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def report(self, read: dict[str, int], published: dict[str, int]) -> None:
        """Add to the progress, and wake threads that wait for it."""
        with self._lock:
            self._read.update(read)
            self._published.update(published)
            # Each change has a separate future: a caller takes the future, then reads the progress, and then
            # waits for the future. A change in between has already ended the future, so no change is missed.
            changed, self._changed = self._changed, AsyncOperation()
        # Do this outside the lock, because callbacks run here and may read the progress.
        changed.resolve()

    def transaction_began(self) -> None:
        """Store hints of the recovery log occasionally, between transactions."""
        if self.recorder is None or time.monotonic() < self._hints_due_s:
            return
        # Set this before the hints are durable, so that a slow broker does not get a request in each
        # transaction.
        self._hints_due_s = time.monotonic() + HINTS_S
        hints, durable = self.recorder.begin_hints()

        def keep(_: Future[None]) -> None:
            if durable.exception() is None:
                with self._hints_are_optional():
                    self._hints[hint_primary_key(self.spec)] = hints

        # If hints name operations that the log does not have yet, a player reports that the log has lost
        # bytes. So hints are stored only when those operations are durable.
        durable.add_done_callback(keep)

    @contextmanager
    def _hints_are_optional(self) -> Iterator[None]:
        """Log an error in the block instead of ending the shard: without hints, a recovery reads more."""
        try:
            yield
        except GazetteError as error:
            # For example, the shard has just moved to another member.
            logger.warning("shard.hints_not_kept shard=%s cause=%s", self.spec.id, error)
        except Exception:
            logger.exception("shard.hints_not_kept shard=%s", self.spec.id)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._serve()
        except BaseException as problem:  # noqa: BLE001  # Any error ends the shard.
            error = problem
        # A shard that is told to stop may fail in many ways, because its readers and appends are cancelled.
        # None of these is a failure to report or a reason for a restart.
        if error is not None and not self.stopping.is_set():
            logger.error("shard.failed shard=%s cause=%s", self.spec.id, error, exc_info=error)
            with self._lock:
                self._lifecycle.fail(error)
            self._on_status()
        # End the appends first, because nothing may reach a journal after the next assignment has begun.
        self._sources.close()
        # An append in flight may still arrive, but does no harm: messages are not acknowledged, operations of
        # the recovery log depend on the author, and an acknowledgement that arrives twice commits nothing.
        self.append_service.close(abort=True)
        with self._lock:
            # After this, no caller gets the store. Wait for callers that have it, but tell them first that
            # the shard has ended, because they may be waiting for that.
            self._ended = True
        # This runs the future's callbacks, one of which schedules the restart.
        self.primary_loop.resolve(None if self.stopping.is_set() else error)
        # A callback may have set when the shard starts again.
        self._on_status()
        with self._lock:
            # A caller of resolve reads the store outside transactions. Destroying the store now would close a
            # database during a query.
            self._unused.wait_for(lambda: self._users == 0)
        if self._store is not None:
            try:
                # Committed state is in the recovery log or in the database, so a failure here loses nothing.
                self._store.destroy()
            except Exception:
                logger.exception("shard.store_not_destroyed shard=%s", self.spec.id)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _serve(self) -> None:
        """Take over the shard, restore its state, and run its transactions."""
        # Two assignments in one process would fence each other, so the previous one has to end first.
        if self._after is not None:
            # The previous assignment has failed or was told to stop, so the wait is short. If it still
            # appended, the hand-off to this assignment would have to catch up with its operations.
            self._after.join()
            # Otherwise the chain of assignments would keep all their stores in memory.
            self._after = None
        # Make the folder here and not before the thread runs: a full disk ends this shard, not its host.
        directory = self._directory = self._step("making a folder for the store", self._new_directory)
        # Recover the files of the store. In this step, a standby follows the primary's log until it is
        # promoted. Then it takes over the log, and after this no other host can record.
        recovered: Recovered | None = None
        # A store that is not recorded, such as a remote database, has nothing to recover.
        if log := recovery_log(self.spec):
            self._become(pc.ReplicaStatus.BACKFILL)
            recovered = self._step("recovery of the store", lambda: self._play(log, directory))
        # Reading the status may already have made this step; see status.
        if self.status.code != pc.ReplicaStatus.STANDBY:
            self._become(pc.ReplicaStatus.STANDBY)
        # A standby without a log waits here until it is promoted, so that it does not open a store, which
        # would fence off the primary.
        while self._is_standby:
            if self.stopping.is_set():
                raise ClosedError(f"shard {self.spec.id!r}", "it was told to stop")
            # promote clears the flag of a standby before it sets the event, so the loop ends with the first
            # promotion or stop.
            self._moved.wait()

        # Open the store. Restoring the checkpoint fences off older stores anywhere: if two hosts run the
        # shard, the later one wins, and the other fails with its next commit.
        store = self._step("new_store", lambda: self._app.new_store(self))
        self._store = store
        checkpoint: pc.Checkpoint = self._step("restore_checkpoint of the store", store.restore_checkpoint)
        if recovered is not None:
            # The store has opened, so these hints are at least as good as those that they replace, which was
            # not certain before.
            with self._hints_are_optional():
                keep_recovered_hints(self._hints, hint_backup_keys(self.spec), recovered.hints)
            self._hints_due_s = time.monotonic() + HINTS_S
        # Report the progress before the store becomes available: a caller that gets the store may rely on
        # offsets that are read through. Acknowledgements of earlier assignments are not included, because
        # their ends were lost with their process.
        self.report(read_through(checkpoint), {})
        self.store_ready.resolve(result=store)
        # PRIMARY means that the store is open. Acknowledgements and messages are still to come. Gazette sets
        # the status at the same point.
        self._become(pc.ReplicaStatus.PRIMARY)

        # Append the acknowledgements of the last transaction, possibly a second time, however long that
        # takes. Its checkpoint has committed its messages, and readers wait for them. The acknowledgements
        # come before anything that this assignment publishes, which would otherwise overtake them. They have
        # the same bytes as those of the last assignment, with its producer and its clocks. If that one has
        # already appended them, readers see the same clocks again and drop them.
        intents, attempt = ack_intents(checkpoint), 0
        while intents and not self.stopping.is_set():
            try:
                # Do not use the append service, whose failures are final: a broker that is temporarily
                # unavailable is waited for here. A journal that was deleted has no waiting readers, so the
                # shard continues.
                for journal in write_ack_intents(self.client, intents):
                    logger.warning(
                        "shard.no_journal_to_acknowledge shard=%s journal=%s", self.spec.id, journal
                    )
                break
            except GazetteError as error:
                # Intents that were appended before the error are appended again with the others, which is
                # harmless.
                if not self._sources.wait_after(error, attempt):
                    raise failed(self.spec.id, "acknowledging recovered messages", error) from error
                attempt += 1
        failpoint("consumer.acknowledged_again")

        # Only now begin to read, from the checkpoint on. Readers fill the inbox ahead of the transactions, so
        # they start after everything else has succeeded.
        self._sources.start(checkpoint)
        if not self.stopping.is_set():
            TransactionLoop(self, self._app, store, checkpoint, self._sources).run()

    def _play(self, log: str, directory: Path) -> Recovered:
        """Play the recovery log, take it over, and begin to record, however long the brokers take.

        A standby takes it over only when it is promoted.
        """
        attempt = 0
        while True:
            try:
                # This is inside the loop, because a broker that has just started may not have the journal
                # yet. Another content type is an immediate error: a player would mistake messages for damage.
                check_recovery_log(self.client.get_journal(log).spec)
                # Read hints again at each attempt, because another primary may have stored newer ones.
                self.recovered_hints = hints_of(self.spec, self._hints)
                player = Player(self.client, pick_hints(self.recovered_hints, log), directory)
                # Use a new author for each attempt: the hand-off of a failed attempt may still be in the log,
                # and must not look like this one's.
                author = new_author()
                with self._lock:
                    self._player, self._author = player, author
                    if not self._is_standby:
                        player.inject_handoff(author)
                # If the shard was promoted or stopped before there was a player, tell the player now.
                if self.stopping.is_set():
                    player.cancel()
                # A failed replay removes its directory, so the next attempt begins with an empty one.
                recovered = player.play()
                break
            except GazetteError as error:
                if not self._sources.wait_after(error, attempt):
                    raise
                attempt += 1
            finally:
                # After this, there is no replay that stop or promote would have to interrupt.
                with self._lock:
                    self._player = None
        # Record under the author of the hand-off. If another host has taken over the log since then, the
        # first append of this recorder fails, and the shard with it.
        self.recorder = Recorder(
            log,
            recovered.fsm,
            author,
            recovered.directory,
            self.append_service,
            timeout_s=self.client.timeout_s,
        )
        return recovered

    def _step(self, step: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401  # As the call's.
        try:
            return call()
        except Exception as error:
            raise failed(self.spec.id, step, error) from error

    def _become(self, code: pc.ReplicaStatus.Code) -> None:
        with self._lock:
            self._lifecycle.become(code)
        self._on_status()


NAME_ROOT = "/gazette-spark/consumers"
"""Prefix of the full names of shards, like the root of a consumer's keys in Etcd."""


RESTART = RestartPolicy()
"""Default policy for starting failed shards again."""


FOLDER_ID_CHARS = 40
"""Number of characters of a shard's id in the name of its folder, which serve its reader only."""


class ShardFolders:
    """The folder for the files of running stores. Each assignment has a subfolder."""

    def __init__(self, work_dir: str | Path | None) -> None:
        """Use a folder, or with None a temporary one, which :meth:`close` removes."""
        self._named = Path(work_dir) if work_dir is not None else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Make the folder."""
        if self._named is not None:
            self._named.mkdir(parents=True, exist_ok=True)
        else:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="gazette-spark-shards-", ignore_cleanup_errors=True
            )

    def new(self, shard_id: str) -> Path:
        """Return an empty folder for an assignment of a shard."""
        with self._lock:
            # Systems delete what nobody has used in /tmp for days, such as the folder of a host without
            # shards. A folder that the user names is not made again: its disk may not be mounted.
            if self._temporary is not None and not Path(self._temporary.name).is_dir():
                self._temporary.cleanup()
                self.open()
            parent = self._temporary.name if self._temporary is not None else self._named
        assert parent is not None
        # Use a new name each time, because a killed process may have left files behind. An id may have more
        # bytes than the name of a folder.
        prefix = shard_id.replace("/", "_")[:FOLDER_ID_CHARS]
        return Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=parent))

    def close(self) -> None:
        """Remove the folder if it is temporary."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


class LocalHost(Closing):
    """Runs shards, and implements :class:`~gazette_spark.consumer.application.ShardHost`. Thread-safe.

    As a context manager, it starts the shards at the beginning of the block and stops them at its end.
    """

    def __init__(
        self,
        app: Application[Any],
        client: Client,
        shards: Iterable[pc.ShardSpec] = (),
        *,
        name: str = "",
        zone: str = "local",
        hints: Hints | None = None,
        work_dir: str | Path | None = None,
        restart: RestartPolicy | None = RESTART,
    ) -> None:
        """Make a host. Nothing runs before :meth:`start`.

        Args:
            app: The application.
            client: Client of the brokers. The host does not close it.
            shards: Specs of the first shards. Others can be added by :meth:`apply`.
            name: Name of the application, which is part of the names of shards in stores, so it must not
                change. By default, the name of the application's class.
            zone: Zone of this process, for routes.
            hints: Storage for hints of recovery logs, such as ``FileHints``. By default they are in memory,
                so each process plays logs from their beginning.
            work_dir: Folder for the files of running stores; by default, a temporary one.
            restart: When to start a FAILED shard again; None for never automatically.

        Raises:
            ProtocolError: a spec is invalid.
            OptionError: two specs have the same id.
        """
        self._app = app
        self._client = client
        self.name = name or type(app).__name__
        self._hints: Hints = {} if hints is None else hints
        self._folders = ShardFolders(work_dir)
        # The suffix is random, because two processes may run the same application in one zone.
        member = Member(zone, f"{self.name}-{secrets.token_hex(4)}")
        # Without Etcd there is no cluster id, and Gazette's clients refuse 0.
        identity = BrokerIdentity(secrets.randbits(63) | 1, member)
        self._table = ShardTable(identity, self._start_shard, self._hints, restart=restart)
        self._specs = list(shards)
        self._started = False
        for spec in self._specs:
            # Check specs here, not in start, so that an invalid one fails where it is passed.
            validate_shard_spec(spec)
        ids = [spec.id for spec in self._specs]
        if len(set(ids)) < len(ids):
            raise OptionError("shards", repr(sorted(ids)), "specs with different ids")

    def __repr__(self) -> str:
        return f"LocalHost({self.name!r}, {self._table!r})"

    def start(self) -> Self:
        """Start the shards. Call this once.

        Raises:
            ClosedError: the host has already been started.
        """
        if self._started:
            raise ClosedError("the host", "it has already been started: make another one")
        self._started = True
        try:
            self._folders.open()
            for spec in self._specs:
                # Apply them one by one: apply makes all changes or none, but these are independent of each
                # other.
                self._table.apply([pc.ApplyRequest.Change(upsert=spec)])
        except BaseException:
            # No caller gets the host. Its shards would run beside those of the next one.
            self.close()
            raise
        return self

    def close(self, *, drain_s: float = 0.0, timeout_s: float = 30.0) -> None:
        """Stop all shards, and wait for that. Closing again does nothing.

        Args:
            drain_s: Seconds to wait for open transactions to commit what they have consumed. Messages that
                are not committed are consumed again at the next start.
            timeout_s: Seconds to wait for the shards after that.
        """
        # Drain before stopping: a stop drops what the open transaction has consumed, which is correct but
        # makes the next start slower.
        drain_all(self._table.running(), drain_s)
        join_all(self._table.close(), timeout_s)
        self._folders.close()

    def __enter__(self) -> Self:
        return self.start()

    def serve_at(self, endpoint: str) -> None:
        """Set the address of this process's service, for routes."""
        self._table.serve_at(endpoint)

    def metrics(self) -> str:
        """Return status, restarts and transactions of each shard in Prometheus' text format."""
        return self._table.metrics()

    def list_shards(self) -> ShardListing:
        """Return all shards, see ``ShardHost``."""
        return self._table.list_shards()

    def apply(self, changes: Sequence[pc.ApplyRequest.Change]) -> pc.ApplyResponse:
        """Make valid changes, all or none, see ``ShardHost``."""
        return self._table.apply(changes)

    def resolve(self, args: ResolveArgs) -> Resolution:
        """Return where a shard is served, see ``ShardHost``."""
        return self._table.resolve(args)

    def hints(self, shard_id: str) -> pc.GetHintsResponse:
        """Return the hints of a shard's recovery log, see ``ShardHost``."""
        return self._table.hints(shard_id)

    def unassign(
        self, shard_ids: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> pc.UnassignResponse:
        """End assignments, see ``ShardHost``."""
        return self._table.unassign(shard_ids, only_failed=only_failed, dry_run=dry_run)

    def _start_shard(self, spec: pc.ShardSpec, after: RunningShard | None) -> LocalShard:
        shard = LocalShard(
            self._app,
            self._client,
            spec,
            f"{NAME_ROOT}/{self.name}/items/{spec.id}",
            hints=self._hints,
            new_directory=partial(self._folders.new, spec.id),
            after=after,
        )
        shard.start()
        return shard
