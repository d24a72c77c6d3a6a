"""A catalog of items, journals or others, its revisions, and both on disk.

The catalog stands for Etcd: every change makes a new one with the next revision, or none at all.
:func:`apply_changes` decides, :class:`StateDirectory` stores. :class:`ItemKind` says how to handle the specs
of one kind of item.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from gazette_spark.broker.storage.durable import sync_directory
from gazette_spark.broker.storage.fragment_store import STATE_DIRECTORY
from gazette_spark.client.reading.regular_files import open_regular_fd, read_regular
from gazette_spark.errors import BrokerRootError, DamagedFileError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import selector_matches
from gazette_spark.seal import seal, unseal
from gazette_spark.strict_json import parse_json

FORMAT_VERSION = 1

MAX_CHANGES = 128
"""Operations of a transaction that Etcd takes by default."""

S = TypeVar("S", bound=Message)
"""The spec of an item, e.g. a ``JournalSpec``."""


@dataclass(frozen=True, slots=True)
class ItemKind(Generic[S]):
    """What a catalog has to know of its items' specs."""

    plural: str
    """Of the kind, in the stored form."""
    new_spec: Callable[[], S]
    """Makes an empty spec."""
    name_of: Callable[[S], str]
    """Returns the name, or id, that an item is known by."""
    labels_of: Callable[[S], pb.LabelSet]
    """Returns the labels that selectors match, the meta label of the name included."""

    def changed(self, change: Change[S]) -> str:
        """Return the name of the item that a change is about."""
        return self.name_of(change.upsert) if change.HasField("upsert") else change.delete


class Change(Protocol[S]):
    """A change of one item, as the Apply requests of all services have it."""

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
    """Stored form, made once: a catalog of thousands is written at every change."""

    @classmethod
    def make(cls, spec: S, create_revision: int, mod_revision: int) -> CatalogEntry[S]:
        """Hold a copy of the spec at its revisions."""
        held = type(spec)()
        held.CopyFrom(spec)
        value = {
            "create_revision": create_revision,
            "mod_revision": mod_revision,
            "spec": json_format.MessageToDict(held, preserving_proto_field_name=True),
        }
        return cls(held, create_revision, mod_revision, json.dumps(value, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Catalog(Generic[S]):
    """Every item at one revision."""

    kind: ItemKind[S]
    cluster_id: int
    revision: int = 1
    items: Mapping[str, CatalogEntry[S]] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()
    """Names of deleted items. A journal's fragments stay, and must never be taken for another journal's."""

    def ever_had(self, name: str) -> bool:
        """Whether the name is, or ever was, an item's."""
        return name in self.items or name in self.retired

    def select(self, *selectors: pb.LabelSelector) -> list[CatalogEntry[S]]:
        """Return the entries that every selector matches, ascending by name."""

        def is_selected(spec: S) -> bool:
            labels = self.kind.labels_of(spec)
            return all(selector_matches(selector, labels) for selector in selectors)

        return [entry for _, entry in sorted(self.items.items()) if is_selected(entry.spec)]


def check_transaction(kind: ItemKind[S], changes: Collection[Change[S]]) -> None:
    """Refuse, in Etcd's words, what Etcd would.

    Raises:
        ProtocolError: there are too many changes, or two of one item.
    """
    if len(changes) > MAX_CHANGES:
        raise ProtocolError("etcdserver", "too many operations in txn request")
    if len({kind.changed(change) for change in changes}) < len(changes):
        raise ProtocolError("etcdserver", "duplicate key given in txn request")


def apply_changes(catalog: Catalog[S], changes: Sequence[Change[S]]) -> Catalog[S] | None:
    """Apply changes as one transaction.

    Returns:
        The catalog of the next revision, the same one if there are no changes, or None if any change
        expects another revision than the item's.
    """
    if not changes:
        return catalog
    if any(not _is_expected(catalog, change) for change in changes):
        return None
    revision = catalog.revision + 1
    items, retired = dict(catalog.items), set(catalog.retired)
    for change in changes:
        name = catalog.kind.changed(change)
        if change.HasField("upsert"):
            created = items[name].create_revision if name in items else revision
            items[name] = CatalogEntry.make(change.upsert, created, revision)
            retired.discard(name)
        elif items.pop(name, None):
            retired.add(name)
    return replace(catalog, revision=revision, items=items, retired=frozenset(retired))


def _is_expected(catalog: Catalog[S], change: Change[S]) -> bool:
    entry = catalog.items.get(catalog.kind.changed(change))
    return change.expect_mod_revision in (-1, entry.mod_revision if entry else 0)


def catalog_to_json(catalog: Catalog[S]) -> str:
    """Return the catalog in its stored form: one JSON object, a line per item."""
    head = {
        "format_version": FORMAT_VERSION,
        "cluster_id": catalog.cluster_id,
        "revision": catalog.revision,
        "retired": sorted(catalog.retired),
    }
    lines = ",\n".join(entry.stored for entry in catalog.items.values())
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "{catalog.kind.plural}": [\n{lines}\n]}}\n'


def catalog_from_json(kind: ItemKind[S], text: str, root: str = "") -> Catalog[S]:
    """Read a stored catalog.

    Raises:
        BrokerRootError: it is not one, or of a version this code does not know.
    """
    try:
        value = parse_json(text)
        if value["format_version"] != FORMAT_VERSION:
            found = value["format_version"]
            problem = f"its state has format_version {found}, this code reads {FORMAT_VERSION}"
            raise BrokerRootError(root, problem)
        items = dict(_entries(kind, value[kind.plural]))
        return Catalog(kind, value["cluster_id"], value["revision"], items, frozenset(value["retired"]))
    except (ValueError, KeyError, TypeError, AttributeError, json_format.ParseError) as error:
        raise BrokerRootError(root, f"{STATE_DIRECTORY}/state.json cannot be read: {error!r}") from error


def _entries(kind: ItemKind[S], values: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, CatalogEntry[S]]]:
    for value in values:
        spec = json_format.ParseDict(value["spec"], kind.new_spec())
        yield kind.name_of(spec), CatalogEntry.make(spec, value["create_revision"], value["mod_revision"])


class StateDirectory:
    """The ``.gazette`` directory of a root. Holding one keeps every other broker off the root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / STATE_DIRECTORY
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BrokerRootError(str(root), f"cannot be used as a directory: {error}") from error
        self._lock_fd = self._lock()

    def _lock(self) -> int:
        fd = open_regular_fd(self.path / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            problem = f"another broker (process {owner}) is using it; stop it, or give another directory"
            raise BrokerRootError(str(self.root), problem) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def load(self, kind: ItemKind[S]) -> Catalog[S]:
        """Read the catalog, or make an empty one with a new cluster id."""
        path = self.path / "state.json"
        if path.exists():
            try:
                text = unseal(read_regular(path), str(path)).decode()
            except DamagedFileError as error:
                problem = f"{STATE_DIRECTORY}/state.json is damaged: {error.problem}"
                raise BrokerRootError(str(self.root), problem) from error
            return catalog_from_json(kind, text, str(self.root))
        return Catalog(kind, cluster_id=secrets.randbits(63) | 1)

    def save(self, catalog: Catalog[S], *, fsync: bool) -> None:
        """Replace the stored catalog, whole or not at all."""
        partial = self.path / "state.json.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(open_regular_fd(partial, flags), "wb") as file:
            file.write(seal(catalog_to_json(catalog).encode()))
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        partial.rename(self.path / "state.json")
        if fsync:
            sync_directory(self.path)

    def close(self) -> None:
        """Let other brokers have the root. Closing twice does nothing."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)
