"""Keeps a broker's journals: those that the keyspace assigns to it, each with its running replica.

The keyspace has the specs and assignments, and a registry follows it. The spools that it opens are in a
directory that no other broker uses.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gazette_spark._server.catalog import Catalog, CatalogEntry, ItemKind
from gazette_spark._server.topology import Member
from gazette_spark.broker.journal import JournalSettings, LiveJournal
from gazette_spark.broker.keyspace import Keyspace, KeyspaceState
from gazette_spark.broker.storage.fragment_store import STATE_DIRECTORY, open_store
from gazette_spark.broker.storage.postfix import render_postfix
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import NO_SUM, Fragment
from gazette_spark.protocol.labels import labels_with_name

_log = logging.getLogger(__name__)

LONE_MEMBER = Member("local", "embedded")
"""The broker of a cluster of one, unless it has another name."""

JOURNALS = ItemKind(
    plural="journals",
    new_spec=pb.JournalSpec,
    name_of=lambda spec: spec.name,
    labels_of=labels_with_name,
)
"""Kind of the items of a cluster of brokers."""

JournalCatalog = Catalog[pb.JournalSpec]
JournalKeyspace = Keyspace[pb.JournalSpec]
JournalState = KeyspaceState[pb.JournalSpec]

_Suspend = pb.JournalSpec.Suspend


def replica_count(spec: pb.JournalSpec, replication: int | None = None) -> int:
    """Return how many replicas a journal should have: none if suspended, one if partially suspended."""
    if spec.suspend.level == _Suspend.FULL:
        return 0
    if spec.suspend.level == _Suspend.PARTIAL:
        return 1
    return replication or spec.replication


class JournalRegistry:
    """All journals of one broker. Any thread may call anything.

    Like the keyspace's state, the map of journals is replaced as a whole. Threads that have read it before
    keep the old one.
    """

    def __init__(
        self,
        root: Path,
        settings: JournalSettings,
        *,
        member: Member = LONE_MEMBER,
        keyspace: JournalKeyspace | None = None,
        spools: Path | None = None,
    ) -> None:
        """Join the keyspace and open the journals that it assigns.

        Args:
            root: directory of the fragment stores.
            settings: settings that the journals share.
            member: member that this broker is.
            keyspace: keyspace of the cluster; a lone broker has a separate one, under ``root``.
            spools: directory of this broker's spools. A lone broker finds its earlier spools there.

        Raises:
            BrokerRootError: another broker has the root.
        """
        self.root = root
        self.member = member
        self.stopped = False
        self.is_alone = keyspace is None
        """Whether this is the broker of a cluster of one, and always will be."""
        self.keyspace = keyspace or Keyspace(
            root, JOURNALS, fsync=settings.fsync, replica_count=lambda _spec: 1
        )
        self._spools = spools or root / STATE_DIRECTORY / "spools"
        # Use a lambda, because the catalog in _names is replaced.
        self._settings = replace(settings, is_journal=lambda name: self._names.ever_had(name))  # noqa: PLW0108
        self._live: dict[str, LiveJournal] = {}
        self._dropped: list[LiveJournal] = []
        self._names = self.catalog
        """Catalog by which a listing recognizes other journals' files: the catalog of a pending change."""
        try:
            self.keyspace.join(member, self)
            directories = {journal.directory for journal in self._live.values()}
            # Remove spools of journals that were deleted or assigned to others while this broker was not
            # running.
            for path in self._spools.glob("*"):
                if path not in directories:
                    _log.warning("orphaned_spools_removed path=%s", path)
                    shutil.rmtree(path, ignore_errors=True)
        except BaseException:
            if self.is_alone:
                self.keyspace.close()  # Another broker may use the root, because this one has not started.
            raise

    def __repr__(self) -> str:
        return f"JournalRegistry({str(self.root)!r}, {len(self._live)} journals)"

    @property
    def catalog(self) -> JournalCatalog:
        """Specs of all journals, including those that this broker does not have."""
        return self.keyspace.state.catalog

    def get(self, name: str) -> LiveJournal | None:
        """Return this broker's replica of a journal."""
        return self._live.get(name)

    def journals(self) -> list[LiveJournal]:
        """Return all journals that this broker replicates."""
        return list(self._live.values())

    def is_primary(self, name: str) -> bool:
        """Return whether this broker is the primary of a journal."""
        slots = self.keyspace.state.slots.get(name, ())
        return bool(slots) and slots[0] == self.member

    def apply(
        self,
        changes: Sequence[pb.ApplyRequest.Change],
        check: Callable[[JournalCatalog], None] = lambda _catalog: None,
    ) -> int | None:
        """Apply valid changes, all or none.

        Args:
            changes: to be made.
            check: refuses them by raising; called with the catalog that they change, which stays until then.

        Returns:
            The catalog's revision after the change, or None if a journal is not at its expected revision.

        Raises:
            ProtocolError: a spec needs something that this broker does not support.
        """
        for change in changes:
            if change.HasField("upsert"):
                self._check(change.upsert)
        return self.keyspace.apply(changes, check)

    def set_suspension(
        self, name: str, level: int, offset: int, check: Callable[[JournalCatalog], None]
    ) -> None:
        """Change a journal's suspension, as its next revision. A journal that was deleted stays deleted.

        As in :meth:`apply`, ``check`` refuses by raising.
        """
        while (entry := self.catalog.items.get(name)) is not None:
            # Use the revision that was read, as any client would. If the spec has changed in between, read it
            # again.
            change = pb.ApplyRequest.Change(expect_mod_revision=entry.mod_revision, upsert=entry.spec)
            change.upsert.suspend.level = level  # type: ignore[assignment]  # An enum's value, from our own table.
            change.upsert.suspend.offset = offset
            if self.keyspace.apply([change], check) is not None:
                return

    def wait_for(
        self, is_reached: Callable[[JournalCatalog], bool], keep_waiting: Callable[[], bool]
    ) -> bool:
        """Wait until the catalog satisfies the caller; return False if that gave up or the broker stops."""

        def goes_on() -> bool:
            return not self.stopped and keep_waiting()

        return self.keyspace.wait_for(is_reached, goes_on) and not self.stopped

    def wake(self) -> None:
        """Make every waiting thread check whether it should continue to wait."""
        self.keyspace.wake()

    def stop(self) -> None:
        """End every wait, read and queued append."""
        # Set the flag before the wake-up, which makes waiting threads check it.
        self.stopped = True
        self.wake()
        for journal in self.journals():
            journal.close()

    def abandon(self) -> None:
        """End everything as :meth:`stop` does, and commit nothing more, as if the process had been killed."""
        self.stopped = True
        # A killed broker is no longer notified of changes, but remains a member until its lease expires.
        self.keyspace.forget(self.member)
        self.wake()
        for journal in self.journals():
            journal.abandon()

    def close(self) -> None:
        """Close all files, and let other brokers have the root."""
        self.keyspace.forget(self.member)
        for journal in (*self.journals(), *self._dropped):
            journal.release()
        if self.is_alone:
            self.keyspace.close()

    # -- Called by the keyspace.

    def prepare(self, before: JournalState, after: JournalState, names: Collection[str]) -> None:
        """Open the journals that are assigned to this broker."""
        live = dict(self._live)
        # Set this before the journals open: their listings must already leave out the files of journals that
        # this change creates.
        self._names = after.catalog
        for name in names:
            if self.member not in after.slots.get(name, ()):
                continue
            entry = after.catalog.items[name]
            old = before.catalog.items.get(name)
            replica = live.get(name)
            # A journal that was created again must not find the bytes of its predecessor.
            if replica is not None and old is not None and old.create_revision != entry.create_revision:
                live.pop(name).delete()
                replica = None
            if replica is None:
                live[name] = self._open(entry, after.catalog.revision)
        # Replace the map in one assignment, so that a thread sees all journals of a change or none.
        self._live = live

    def settle(self, before: JournalState, after: JournalState, names: Collection[str]) -> None:
        """Close the journals that this broker lost, and pass new specs and routes to the others."""
        live = dict(self._live)
        is_expelled = self.member not in after.members
        for name in names:
            if name in live and self.member not in after.slots.get(name, ()):
                # A broker that lost its membership has been replaced, so its bytes may no longer belong to
                # the journal. A broker that gave the journal up in an orderly way stores its closed spools,
                # and keeps them until it ends, because no other broker may have their bytes.
                deleted = is_expelled or name not in after.catalog.items
                journal = live.pop(name)
                if deleted:
                    journal.delete()
                else:
                    journal.close()
                    self._dropped.append(journal)
                    self._settings.on_sealed(journal)
        self._live = live
        for name in names:
            if name not in live:
                continue
            journal = live[name]
            entry, old = after.catalog.items[name], before.catalog.items.get(name)
            if old is not None and entry is not old and old.create_revision == entry.create_revision:
                journal.use_spec(entry.spec)
            if before.slots.get(name, ()) != after.slots.get(name, ()):
                journal.route_changed()

    def _check(self, spec: pb.JournalSpec) -> None:
        # Check everything that decides where a fragment is stored. Otherwise an append could be acknowledged
        # that no store can accept.
        postfix = render_postfix(spec.fragment.path_postfix_template, time.time())
        codec = spec.fragment.compression_codec
        trial = Fragment(spec.name, 0, 1, NO_SUM, codec=codec, path_postfix=postfix)
        for url in spec.fragment.stores:
            open_store(self.root, url).check(trial)

    def _open(self, entry: CatalogEntry[pb.JournalSpec], revision: int) -> LiveJournal:
        # The directory's name is a digest, because a journal's name may be longer than a file's. The revision
        # keeps a journal that is created again from finding the spools of its predecessor. A lone broker
        # finds its own spools after a restart. A replica that is assigned again must start empty, because the
        # journal has continued without it.
        serial = entry.create_revision if self.is_alone else revision
        digest = hashlib.sha256(entry.spec.name.encode()).hexdigest()[:32]
        return LiveJournal(entry.spec, self._spools / f"{digest}-{serial}", self._settings)
