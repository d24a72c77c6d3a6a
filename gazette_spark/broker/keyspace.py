"""Replaces Etcd inside the process: specs of items, members and assignments, with one revision for all.

The items of a :class:`Keyspace` are of one kind, which its :class:`ItemKind` describes: here the journals of
brokers, :data:`~gazette_spark.broker.registry.JOURNALS`. Its members are a cluster. A single embedded broker
has a separate keyspace. Every change makes a new :class:`KeyspaceState` with the next revision, which is on
disk before it is in use. Leases expire and assignments move only when a test requests it; nothing here takes
time or fails by itself.

Each member is notified of a change twice: *before* the change is in use, to open the items that it assigns to
the member, and *after*, to close those that it removes from it. A change and its notifications are one step,
during which other changes wait. So a notified member must not wait for an item's turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import Message

from gazette_spark._server.catalog import Catalog, CatalogChange, ItemKind, apply_changes
from gazette_spark._server.topology import Member, Slots, assign, make_route, promote
from gazette_spark.broker.storage.state import StateDirectory
from gazette_spark.protocol import protocol_pb2 as pb

S = TypeVar("S", bound=Message)
"""The spec of an item."""


@dataclass(frozen=True, slots=True)
class KeyspaceState(Generic[S]):
    """Everything at one revision."""

    catalog: Catalog[S]
    members: frozenset[Member] = frozenset()
    slots: Mapping[str, Slots] = field(default_factory=dict)

    def route(self, item: str) -> pb.Route:
        """Return an item's route; without members if it has none."""
        return make_route(self.slots.get(item, ()))

    def items_of(self, member: Member) -> list[str]:
        """Return the items that a member has."""
        return [name for name, slots in self.slots.items() if member in slots]


class Observer(Protocol[S]):
    """A member that is notified of changes."""

    def prepare(self, before: KeyspaceState[S], after: KeyspaceState[S], names: Collection[str]) -> None:
        """Open those of the named items that the change assigns, before any call can request them."""

    def settle(self, before: KeyspaceState[S], after: KeyspaceState[S], names: Collection[str]) -> None:
        """Close those of the named items that the change removed from the member."""


class Keyspace(Generic[S]):
    """Shared state of a cluster. Any thread may call anything. Call ``close`` when all members have left."""

    def __init__(
        self, root: Path, kind: ItemKind[S], *, fsync: bool, replica_count: Callable[[S], int]
    ) -> None:
        """Open the state under a root.

        Args:
            root: directory of the cluster; locked until :meth:`close`.
            kind: kind of the items.
            fsync: force each change to the disk.
            replica_count: returns how many members an item should have, from its spec.

        Raises:
            BrokerRootError: another keyspace has the root, or its state cannot be read.
        """
        self.replica_count = replica_count
        self.changed = threading.Condition()
        self.fills_slots = True
        """Whether free slots are filled. Otherwise dead members lose their items, but no member gets new
        ones."""
        self._directory = StateDirectory(root)
        self._fsync = fsync
        self._lock = threading.RLock()
        self._observers: dict[Member, Observer[S]] = {}
        self._synced: dict[str, Slots] = {}
        try:
            self.state = KeyspaceState(self._directory.load(kind))
            # Store a new cluster id immediately: clients remember it, and refuse another one later.
            self._directory.save(self.state.catalog, fsync=fsync)
        except BaseException:
            self._directory.close()  # Another broker may use the root, because this one has not started.
            raise

    def __repr__(self) -> str:
        return f"Keyspace(revision={self.state.catalog.revision}, {len(self.state.members)} members)"

    def join(self, member: Member, observer: Observer[S]) -> None:
        """Add a member. The first one finds the state at the last revision."""
        with self._lock:
            self._observers[member] = observer
            members = self.state.members | {member}
            revision = self.state.catalog.revision + bool(self.state.members)
            catalog = replace(self.state.catalog, revision=revision)
            self._reassign(KeyspaceState(catalog, members, self.state.slots))

    def leave(self, member: Member) -> None:
        """Remove a member and its assignments, because its lease expired or it left in an orderly way."""
        with self._lock:
            if member in self.state.members:
                before = self.state
                catalog = replace(before.catalog, revision=before.catalog.revision + 1)
                after = KeyspaceState(catalog, before.members - {member}, before.slots)
                self._reassign(after)
            self._observers.pop(member, None)

    def forget(self, member: Member) -> None:
        """Stop notifying a member, which stays a member until its lease expires."""
        with self._lock:
            self._observers.pop(member, None)

    def apply(
        self,
        changes: Sequence[CatalogChange[S]],
        check: Callable[[Catalog[S]], None] = lambda _catalog: None,
    ) -> int | None:
        """Apply valid changes, all or none.

        Args:
            changes: to be made.
            check: refuses them by raising; called with the catalog that they change, which stays until then.

        Returns:
            The revision after it, or None if an item is not at its expected revision.
        """
        with self._lock:
            # Check under the lock, so that the check is about the catalog to which the changes are made.
            check(self.state.catalog)
            catalog = apply_changes(self.state.catalog, changes)
            if catalog is None:
                return None
            if catalog is not self.state.catalog:
                names = {catalog.kind.changed(change) for change in changes}
                self._reassign(replace(self.state, catalog=catalog), names)
            return catalog.revision

    def wait_for(self, is_reached: Callable[[Catalog[S]], bool], keep_waiting: Callable[[], bool]) -> bool:
        """Wait until ``is_reached``; return False if ``keep_waiting`` is false after a :meth:`wake`."""
        with self.changed:
            while not is_reached(self.state.catalog):
                if not keep_waiting():
                    return False
                self.changed.wait()
            return True

    def put_slots(self, slots: Mapping[str, Slots]) -> None:
        """Assign items by hand; the next change of members or specs starts from these assignments.

        Deleted items and members that have left are omitted.
        """
        with self._lock:
            before = self.state
            slots = {
                name: tuple(member for member in members if member is None or member in before.members)
                for name, members in slots.items()
                if name in before.catalog.items
            }
            catalog = replace(before.catalog, revision=before.catalog.revision + 1)
            self._take_up(replace(before, catalog=catalog, slots={**before.slots, **slots}), slots.keys())

    def move_primary(self, name: str, member: Member) -> None:
        """Make a member the primary of an item; the previous primary stays a replica."""
        with self._lock:
            self.put_slots({name: promote(self.state.slots.get(name, ()), member)})

    def hold_slots(self) -> None:
        """Assign nothing until :meth:`fill_slots`: a member that leaves creates a free slot."""
        with self._lock:
            self.fills_slots = False

    def fill_slots(self) -> None:
        """Fill free slots, now and after each change."""
        with self._lock:
            self.fills_slots = True
            catalog = replace(self.state.catalog, revision=self.state.catalog.revision + 1)
            self._reassign(replace(self.state, catalog=catalog))

    def note_synced(self, name: str, slots: Slots) -> None:
        """Record that an item's members agree, as its primary reports."""
        self._synced[name] = slots

    def is_synced(self, name: str) -> bool:
        """Whether the current members of an item have agreed."""
        return self._synced.get(name) == self.state.slots.get(name)

    def was_synced(self, name: str) -> bool:
        """Whether members of an item have ever agreed; otherwise there is nothing to hand over."""
        return name in self._synced

    def wake(self) -> None:
        """Make every waiting thread check whether it should continue to wait."""
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        """Release the root. Closing twice does nothing."""
        self._directory.close()

    def _reassign(self, state: KeyspaceState[S], names: Collection[str] | None = None) -> None:
        """Adopt a state after assigning the named items, or all, again."""
        before, items = self.state.catalog.items, state.catalog.items
        chosen = items.keys() | state.slots.keys() if names is None else names
        replica_counts = {name: self.replica_count(items[name].spec) for name in chosen if name in items}
        current = {
            name: state.slots.get(name, ())
            for name in replica_counts
            # An item that is created again under the same name inherits nothing from the old item.
            if name in before and before[name].create_revision == items[name].create_revision
        }
        slots = {name: members for name, members in state.slots.items() if name not in chosen}
        fill = self.fills_slots
        slots |= assign(replica_counts, state.members, current, fill=fill, others=list(slots.values()))
        self._take_up(replace(state, slots=slots), chosen)

    def _take_up(self, after: KeyspaceState[S], names: Collection[str]) -> None:
        before = self.state
        if after.catalog.revision != before.catalog.revision:
            # The state is on disk before any thread can see it, as in Etcd.
            self._directory.save(after.catalog, fsync=self._fsync)
        observers = list(self._observers.values())
        for observer in observers:
            # Notify before the state is in use: a call that finds this member in the new state also finds its
            # journal open.
            observer.prepare(before, after, names)
        with self.changed:
            self.state = after
            self.changed.notify_all()
        for observer in observers:
            # Close items after the state is in use: no later call finds the member or requests them.
            observer.settle(before, after, names)
        self.wake()
