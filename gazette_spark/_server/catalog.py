"""Keeps a catalog of items, which are journals or shards, at a revision.

The catalog replaces Etcd: a change makes a new catalog with the next revision, or is rejected as a whole.
:class:`ItemKind` defines how the specs of one kind of item are handled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import selector_matches

# This is the default of Etcd's --max-txn-ops. A larger transaction is refused as a whole.
MAX_OPERATIONS = 128
"""Maximum number of comparisons, and of operations, that Etcd accepts in a transaction by default."""

S = TypeVar("S", bound=Message)
"""The spec of an item, e.g. a ``JournalSpec``."""


@dataclass(frozen=True, slots=True)
class ItemKind(Generic[S]):
    """How a catalog handles the specs of its items."""

    plural: str
    """Name of the list of items in the stored form."""
    new_spec: Callable[[], S]
    """Function that makes an empty spec."""
    name_of: Callable[[S], str]
    """Function that returns the name or id of an item."""
    labels_of: Callable[[S], pb.LabelSet]
    """Function that returns the labels that selectors match, including the name."""

    def changed(self, change: CatalogChange[S]) -> str:
        """Return the name of the item that a change creates, changes or deletes."""
        return self.name_of(change.upsert) if change.HasField("upsert") else change.delete


class CatalogChange(Protocol[S]):
    """A change of one item, as in the Apply requests of all services."""

    expect_mod_revision: int
    upsert: S
    delete: str

    def HasField(self, field_name: str) -> bool:  # noqa: N802 - protobuf's
        """Whether a field is set."""


@dataclass(frozen=True, slots=True)
class CatalogEntry(Generic[S]):
    """One item."""

    spec: S
    create_revision: int
    mod_revision: int
    stored: str = field(compare=False, repr=False)
    """Stored form, made only once, because every change writes the whole catalog."""

    @classmethod
    def make(cls, spec: S, create_revision: int, mod_revision: int) -> CatalogEntry[S]:
        """Return an entry with a copy of the spec, which the caller may change afterwards."""
        copy = type(spec)()
        copy.CopyFrom(spec)
        value = {
            "create_revision": create_revision,
            "mod_revision": mod_revision,
            "spec": json_format.MessageToDict(copy, preserving_proto_field_name=True),
        }
        return cls(copy, create_revision, mod_revision, json.dumps(value, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Catalog(Generic[S]):
    """All items at one revision."""

    kind: ItemKind[S]
    cluster_id: int
    revision: int = 1
    items: Mapping[str, CatalogEntry[S]] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()
    """Names of deleted items. The fragments of a deleted journal remain, and must never be mistaken for
    another journal's."""

    def ever_had(self, name: str) -> bool:
        """Whether an item has, or ever had, this name."""
        return name in self.items or name in self.retired

    def select(self, *selectors: pb.LabelSelector) -> list[CatalogEntry[S]]:
        """Return the entries that every selector matches, ascending by name."""

        def is_selected(spec: S) -> bool:
            labels = self.kind.labels_of(spec)
            return all(selector_matches(selector, labels) for selector in selectors)

        return [entry for _, entry in sorted(self.items.items()) if is_selected(entry.spec)]


def check_transaction(kind: ItemKind[S], changes: Collection[CatalogChange[S]]) -> None:
    """Refuse a transaction that Etcd would refuse, with Etcd's text.

    Raises:
        ProtocolError: there are too many changes, or two for one item.
    """
    if len(changes) > MAX_OPERATIONS:
        raise ProtocolError("etcdserver", "too many operations in txn request")
    if len({kind.changed(change) for change in changes}) < len(changes):
        raise ProtocolError("etcdserver", "duplicate key given in txn request")


def apply_changes(catalog: Catalog[S], changes: Sequence[CatalogChange[S]]) -> Catalog[S] | None:
    """Apply changes as one transaction.

    Returns:
        The catalog of the next revision, the same catalog if there are no changes, or None if a change
        expects another revision than its item has.
    """
    if not changes:
        return catalog
    # Compare all changes before making the first one: a transaction is applied as a whole or not at all.
    for change in changes:
        entry = catalog.items.get(catalog.kind.changed(change))
        if change.expect_mod_revision not in (-1, entry.mod_revision if entry else 0):
            return None
    revision = catalog.revision + 1
    # Make a new catalog with the next revision. Other threads can continue to use the old one.
    items, retired = dict(catalog.items), set(catalog.retired)
    for change in changes:
        name = catalog.kind.changed(change)
        if change.HasField("upsert"):
            # A changed item keeps its creation revision. One that was deleted and created again gets a new
            # one, which shows readers that its offsets refer to other bytes.
            created = items[name].create_revision if name in items else revision
            items[name] = CatalogEntry.make(change.upsert, created, revision)
            retired.discard(name)
        elif items.pop(name, None):
            retired.add(name)
    return replace(catalog, revision=revision, items=items, retired=frozenset(retired))
