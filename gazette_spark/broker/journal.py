"""Implements one journal: its spools, its index, and the threads that append to it, read it and persist it.

There are two locks. The *fair_lock* orders the writers: the thread that has the turn, of an append or the
pulse, may write to the current spool and roll it. The *condition* guards what readers see: the spec, the list
of spools and the index view. It is locked only briefly, never while bytes are written, so that readers do not
wait for appends. A thread with the turn may take the condition, but not the other way round.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gazette_spark.broker.api.append_fsm import AppendPlan, JournalHead, plan_append
from gazette_spark.broker.api.append_txn import AppendTxn
from gazette_spark.broker.api.flow_control import MaxRate
from gazette_spark.broker.fair_lock import FairLock
from gazette_spark.broker.replication.pipeline import Pipeline
from gazette_spark.broker.replication.rules import Extent
from gazette_spark.broker.storage.commit_log import Registers, SpoolHeader, label_set_of
from gazette_spark.broker.storage.encoders import encode
from gazette_spark.broker.storage.fragment_store import FragmentStore, open_store
from gazette_spark.broker.storage.index import IndexView, ReadPosition, resolve_read
from gazette_spark.broker.storage.postfix import render_postfix
from gazette_spark.broker.storage.spool import Spool, SpoolData
from gazette_spark.errors import GazetteError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import CoverSet, Fragment

_log = logging.getLogger(__name__)

MAX_OPEN_SPOOLS = 256
"""Maximum number of journals with open files, two each. A process may usually have 1,024 files open, of which
this is half."""


class OpenSpools:
    """The journals whose current spool may have open files, by their last use. Any thread may use it.

    A broker may have more journals than it may have files open, and most are idle.
    """

    def __init__(self, limit: int = MAX_OPEN_SPOOLS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._used: dict[LiveJournal, None] = {}
        """Ordered by last use, the latest at the end."""

    def __repr__(self) -> str:
        return f"OpenSpools({len(self._used)} of {self._limit})"

    def use(self, journal: LiveJournal) -> None:
        """Note a use, and close the files of the least recently used journals beyond the limit."""
        with self._lock:
            self._used.pop(journal, None)
            self._used[journal] = None
            excess = list(self._used)[: max(0, len(self._used) - self._limit)]
            for idle in excess:
                del self._used[idle]
        for idle in excess:
            if not idle.release_idle():
                # Its files are in use, so they stay open. At the front of the queue, it is the first to be
                # tried again.
                with self._lock:
                    self._used = {idle: None, **self._used}

    def forget(self, journal: LiveJournal) -> None:
        """Forget a journal whose files are closed for good."""
        with self._lock:
            self._used.pop(journal, None)


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Settings that all journals of a broker share."""

    root: Path
    is_journal: Callable[[str], bool]
    """Whether a name is, or was, another journal's, whose files a listing omits."""
    fsync: bool = False
    clock: Callable[[], float] = time.time
    on_sealed: Callable[[LiveJournal], None] = lambda _journal: None
    """Called after a spool was closed, or the journal was given up. It must not wait."""
    open_spools: OpenSpools = field(default_factory=OpenSpools)
    """Limits the number of journals with open files."""


@dataclass(frozen=True, slots=True)
class ReadSource:
    """Where a read continues, and the spool or store that has its bytes."""

    position: ReadPosition
    version: int
    """Version of the index that this comes from, for :meth:`LiveJournal.wait_for_change`."""
    spool: SpoolData | None = None
    """The data of a local fragment."""
    store: FragmentStore | None = None
    """The store of a stored fragment."""


class JournalClosedError(GazetteError):
    """The journal was deleted, or the broker stops. Never raised outside the broker."""


class LiveJournal:
    """A journal that a running broker serves. Each section says which threads may call its methods."""

    def __init__(self, spec: pb.JournalSpec, directory: Path, settings: JournalSettings) -> None:
        self.name = spec.name
        self.spec = spec
        self.fair_lock = FairLock()
        self.changed = threading.Condition()
        self.closed = False
        """Whether no read or append may begin or continue to wait."""
        self.abandoned = False
        """Whether, in addition, no append may be committed."""
        self.max_rate = MaxRate.start(0, 0.0)
        """Credit of the maximum rate of appends, used by the append that has the turn."""
        self.directory = directory
        self.pipeline: Pipeline | None = None
        """The primary's streams to the other replicas. Only the thread with the turn uses or replaces it."""
        self._watchers: dict[object, Callable[[], object]] = {}
        self._settings = settings
        self._upload_lock = threading.Lock()
        self._listing_lock = threading.Lock()
        """This is not the lock of uploads: a new spec lists its stores and must not wait for an upload."""
        self._uploaded: list[Fragment] = []
        """Fragments stored since the last listing began, which may have missed them."""
        self._stores: dict[str, FragmentStore] = {}
        self._stored = CoverSet()
        self._version = 0
        self._view = IndexView()
        # Take over the spools that an earlier broker left. The numbers of their files are in the order in
        # which they were begun.
        stems = sorted({path.with_suffix("") for path in directory.glob("*.log")})
        recovered = [Spool.recover(stem, fsync=settings.fsync) for stem in stems]
        self._serial = int(stems[-1].name) if stems else 0
        spools = [spool for spool in recovered if spool is not None]
        codec = spec.fragment.compression_codec
        self._spool = spools.pop() if spools else self._make_spool(SpoolHeader(self.name, 0, codec, ()))
        # An older spool is closed and waits for its upload. An empty one only has the header of the next
        # spool.
        for spool in spools:
            if not spool.length:
                spool.delete()
            spool.release()
        self._sealed = [spool for spool in spools if spool.length]
        # These bytes are readable even if the stores cannot be listed now.
        with self.changed:
            self._update_view()
        self.use_spec(spec)

    def __repr__(self) -> str:
        return f"LiveJournal({self.name!r}, {self._spool!r}, sealed={len(self._sealed)})"

    # -- Appends. The caller has the turn.

    def head(self) -> JournalHead:
        """Return the state against which the preconditions of an append are checked."""
        spool, view = self._spool, self._view
        return JournalHead(
            spool_begin=spool.begin,
            spool_end=spool.end,
            spool_codec=spool.header.codec,
            first_append_time=spool.first_append_time,
            index_begin=view.begin,
            index_end=view.end,
            registers=label_set_of(spool.registers),
        )

    def plan(self, request: pb.AppendRequest) -> AppendPlan:
        """Check the preconditions of an append."""
        return plan_append(self.head(), self.spec, request, self._settings.clock())

    def start_append(self, plan: AppendPlan) -> AppendTxn:
        """Roll as planned and begin an append at the write head."""
        if plan.roll_to is not None:
            self.roll(plan.roll_to)
        return AppendTxn(self)

    def roll(self, begin: int | None = None) -> None:
        """Close the current spool, unless it is empty, and begin the next one, at every replica."""
        # With other replicas, all have to begin the same spool, so the pipeline does it, and calls `begin_at`
        # here.
        offset = self._spool.end if begin is None else begin
        codec = self.spec.fragment.compression_codec
        if self.pipeline is not None:
            self.pipeline.roll(offset, codec)
        else:
            self.begin_at(offset, codec, self._spool.registers)

    def begin_at(self, offset: int, codec: int, registers: Registers) -> None:
        """Close this broker's current spool, unless it is empty, and begin the next one."""
        old = self._spool
        # A crash at any point leaves the old spool, the new one, or both. `_recover` takes the last one as
        # the current and the others as closed.
        header = SpoolHeader(self.name, offset, codec, registers)
        spool = self._make_spool(header)
        # While the spool is empty, the header preserves write head and registers across a restart. A journal
        # without either needs no file.
        if header.begin or header.registers:
            spool.write_header()
            spool.release()
        # Close its files before it enters the list, because after that an upload may finish and delete it at
        # any time.
        old.release()
        with self.changed:
            if old.length:
                self._sealed.append(old)
            self._spool = spool
            self._update_view()
        if old.length:
            self._settings.on_sealed(self)
        else:
            old.delete()

    def committed(self) -> tuple[Extent, Registers]:
        """Return the committed extent and the registers of the current spool."""
        spool = self._spool.fragment
        return Extent(spool.begin, spool.end, spool.codec, spool.sum), self._spool.registers

    def staged(self) -> Extent:
        """Return the extent the current spool would have if the staged content were committed."""
        staged = self._spool.staged_fragment
        return Extent(staged.begin, staged.end, staged.codec, staged.sum)

    def stage(self, content: bytes) -> None:
        """Write content behind the committed and staged bytes. Readers do not see it."""
        self._spool.stage(content)

    def roll_back(self) -> None:
        """Drop the staged bytes."""
        self._spool.roll_back()

    def commit_staged(self, registers: Registers) -> None:
        """Make the staged bytes durable, then readable.

        Raises:
            JournalClosedError: the broker lost the journal meanwhile; nothing was committed.
            OSError: the disk failed.
        """
        # The broker may have lost the journal while content arrived. A journal that is created again must not
        # contain this append, and the cluster has already replaced a broker that it considers dead.
        if self.abandoned:
            raise JournalClosedError
        # Make the commit durable before it is readable: a reader must not see bytes that a power cut removes.
        self._spool.commit_append(registers, self._settings.clock())
        with self.changed:
            self._update_view(same_closed=True)
        self._settings.open_spools.use(self)

    def pulse(self) -> None:
        """Roll the spool if an empty append would."""
        offset = self.due_roll()
        if offset is not None:
            self.roll(offset)

    def due_roll(self) -> int | None:
        """Return the offset at which an empty append would roll a spool that has content, or None."""
        plan = self.plan(pb.AppendRequest(journal=self.name))
        return plan.roll_to if plan.status == pb.OK and self._spool.length else None

    # -- Routes. Any thread.

    @contextmanager
    def watch_route(self, act: Callable[[], object]) -> Iterator[None]:
        """Call ``act`` if the route changes or the journal closes inside the block. It must not wait."""
        key = object()
        with self.changed:
            self._watchers[key] = act
        try:
            yield
        finally:
            with self.changed:
                self._watchers.pop(key, None)

    def route_changed(self) -> None:
        """Cancel the streams that were opened under the old route."""
        with self.changed:
            # Call them outside the lock, because they end calls whose threads may need it.
            watchers = list(self._watchers.values())
            pipeline = self.pipeline
        if pipeline is not None:
            pipeline.cancel()
        for act in watchers:
            act()
        self.wake()

    # -- Reads. Any thread.

    @property
    def view(self) -> IndexView:
        """The current index."""
        return self._view

    def serve(self, offset: int, begin_mod_time: int) -> ReadSource:
        """Find the bytes for a read at the offset, and keep them available while they are read."""
        with self.changed:
            if self.closed:
                raise JournalClosedError
            now = self._settings.clock()
            position = resolve_read(self._view, offset, begin_mod_time, now)
            fragment = position.fragment
            # The version lets the reader wait for a change of exactly this index, so none is missed.
            if fragment is None:
                return ReadSource(position, self._version)
            # A fragment with a time is in a store. A spool that it covers is deleted soon, or already is.
            if fragment.mod_time:
                return ReadSource(position, self._version, store=self.store_of(fragment))
            # Open it under the lock, because an upload may delete the spool at any time after that.
            spools = (self._spool, *reversed(self._sealed))
            spool = next(spool for spool in spools if spool.begin == fragment.begin)
            source = ReadSource(position, self._version, spool=spool.data())
        self._settings.open_spools.use(self)
        return source

    def wait_for_change(self, version: int, keep_waiting: Callable[[], bool]) -> None:
        """Wait until the index is no longer at ``version``, the journal closes, or the wait is cancelled."""
        with self.changed:
            while self._version == version and not self.closed and keep_waiting():
                self.changed.wait()

    def wake(self) -> None:
        """Make every waiting thread check whether it should continue to wait."""
        with self.changed:
            self.changed.notify_all()
        self.fair_lock.wake()

    def store_of(self, fragment: Fragment) -> FragmentStore:
        """Return the store of a stored fragment."""
        return self._stores[fragment.backing_store]

    # -- Stores and spec. Any thread.

    @property
    def first_store(self) -> FragmentStore | None:
        """The store for new fragments."""
        urls = self.spec.fragment.stores
        return self._stores[urls[0]] if urls else None

    def use_spec(self, spec: pb.JournalSpec) -> None:
        """Adopt a spec, new or changed, and list its stores."""
        # This comes before the lock, because a store that cannot be opened must leave the old spec in place.
        stores = {url: open_store(self._settings.root, url) for url in spec.fragment.stores}
        with self.changed:
            # A store left out of the spec may still serve fragments found before the next listing. The stores
            # come first, because other threads look up those of the spec without the lock.
            self._stores = self._stores | stores
            self.spec = spec
        self.refresh()

    def refresh(self) -> None:
        """List the stores and index their current fragments."""
        with self._listing_lock:
            with self.changed:
                # After this, remember uploads: the listing may pass their directory before they are in it.
                self._uploaded = []
            listed: list[Fragment] = []
            for url in self.spec.fragment.stores:
                try:
                    listed.extend(self._stores[url].list(self.name, self._settings.is_journal))
                except (OSError, ProtocolError) as error:
                    # Keep the old index. An incomplete listing would hide fragments, and readers would skip
                    # their bytes.
                    _log.warning("store_listing_failed journal=%s store=%s error=%s", self.name, url, error)
                    return
            # In this order, each fragment is added at the end of the set, and the longest of those with the
            # same begin comes first.
            stored = CoverSet.of(sorted(listed, key=lambda fragment: (fragment.begin, -fragment.end)))
            with self.changed:
                # The listing may have missed fragments that were stored while it ran.
                for uploaded in self._uploaded:
                    stored.add(uploaded)
                self._stored = stored
                self._drop_covered()
                self._update_view()

    def sealed(self) -> list[Spool]:
        """Return the closed spools that are not stored yet, oldest first."""
        with self.changed:
            return list(self._sealed)

    def persist(self) -> None:
        """Write every closed spool to the first store, oldest first.

        Raises:
            OSError: the store refused one; it and later ones stay where they are.
            JournalClosedError: the journal was deleted, or given up.
        """
        with self._upload_lock:
            store = self.first_store
            if store is None:
                return
            for spool in self.sealed():
                with self.changed:
                    if self.abandoned or spool not in self._sealed:
                        continue  # The journal is gone, or a listing found its bytes in a store.
                    content = spool.blocks()
                # Use the template of the current spec, as Gazette does. It may have changed since the append.
                template = self.spec.fragment.path_postfix_template
                fragment = replace(
                    spool.fragment, path_postfix=render_postfix(template, spool.first_append_time)
                )
                try:
                    # The lock is not held: an upload takes long, and reads and appends continue meanwhile.
                    blocks = encode(content, fragment.codec)
                    stored = store.put(fragment, blocks, fsync=self._settings.fsync, guard=self._storing())
                finally:
                    # Do this even after a failure: otherwise every spool that waits for a broken store keeps
                    # its files open.
                    with self.changed:
                        spool.release()
                with self.changed:
                    # The view changes once, from the spool to the stored fragment, so no reader finds a hole.
                    self._stored.add(stored)
                    self._uploaded.append(stored)
                    self._drop_covered()
                    self._update_view()

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Hold the lock while a fragment gets its name, unless the journal was deleted or given up."""
        # A journal that was created again in the meantime would take the fragment for its own, and drop its
        # spools with bytes at the same offsets.
        with self.changed:
            if self.abandoned:
                raise JournalClosedError
            yield

    def close(self) -> None:
        """End reads and waiting appends. The append that has the turn may still be committed."""
        self._end(abandon=False)

    def abandon(self) -> None:
        """End reads and appends, and commit nothing more; the spools stay on disk."""
        self._end(abandon=True)

    def delete(self) -> None:
        """End reads and appends, and drop the spools."""
        self._end(abandon=True)
        self._settings.open_spools.forget(self)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, *, abandon: bool) -> None:
        with self.changed:
            self.closed = True
            self.abandoned = abandon
            self.changed.notify_all()
        self.route_changed()

    def release_idle(self) -> bool:
        """Close the files until they are needed; return False if another thread has the turn."""
        with self.fair_lock.turn_if_free() as granted:
            if granted:
                with self.changed:
                    for spool in (*self._sealed, self._spool):
                        spool.release()
        return granted

    def release(self) -> None:
        """Close the files and streams. The caller ensures that no further append begins."""
        self._settings.open_spools.forget(self)
        if self.pipeline is not None:
            self.pipeline.cancel()
        for spool in (*self._sealed, self._spool):
            spool.release()

    # -- With the condition held.

    def _update_view(self, *, same_closed: bool = False) -> None:
        if same_closed:  # A commit must not take time for each of thousands of closed fragments.
            closed = self._view.closed
        else:
            # If a spool and a stored fragment have the same span, the set keeps the later one.
            local = (spool.fragment for spool in self._sealed)
            closed = tuple(CoverSet.of((*local, *self._stored)) if self._sealed else self._stored)
        current = self._spool.fragment if self._spool.length else None
        self._view = IndexView(closed, current)
        self._version += 1
        self.changed.notify_all()

    def _drop_covered(self) -> None:
        # A closed spool may be deleted when stored fragments contain its bytes, regardless of who stored
        # them.
        for spool in [spool for spool in self._sealed if self._stored.is_covered(spool.begin, spool.end)]:
            self._sealed.remove(spool)
            spool.delete()

    def _make_spool(self, header: SpoolHeader) -> Spool:
        self._serial += 1
        return Spool(self.directory / f"{self._serial:08d}", header, fsync=self._settings.fsync)
