"""The broker's catalog of journals, its revisions, and both on disk.

The catalog stands for Etcd: every change makes a new one with the next revision, or none at all.
:func:`apply_changes` decides, :class:`StateDirectory` stores.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from gazette_spark.broker.storage.durable import sync_directory
from gazette_spark.broker.storage.fragment_store import STATE_DIRECTORY
from gazette_spark.errors import BrokerRootError
from gazette_spark.protocol import protocol_pb2 as pb

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One journal."""

    spec: pb.JournalSpec
    create_revision: int
    mod_revision: int
    stored: str = field(compare=False, repr=False)
    """Stored form, made once: a catalog of thousands is written at every change."""

    @classmethod
    def make(cls, spec: pb.JournalSpec, create_revision: int, mod_revision: int) -> CatalogEntry:
        """Hold a copy of the spec at its revisions."""
        held = pb.JournalSpec()
        held.CopyFrom(spec)
        value = {
            "create_revision": create_revision,
            "mod_revision": mod_revision,
            "spec": json_format.MessageToDict(held, preserving_proto_field_name=True),
        }
        return cls(held, create_revision, mod_revision, json.dumps(value, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every journal at one revision."""

    cluster_id: int
    revision: int = 1
    journals: Mapping[str, CatalogEntry] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()
    """Names of deleted journals. Their fragments stay, and must never be taken for another journal's."""

    def is_journal(self, name: str) -> bool:
        """Whether the name is, or ever was, a journal."""
        return name in self.journals or name in self.retired


def apply_changes(catalog: Catalog, changes: Sequence[pb.ApplyRequest.Change]) -> Catalog | None:
    """Apply changes as one transaction.

    Returns:
        The catalog of the next revision, the same one if there are no changes, or None if any change
        expects another revision than the journal's.
    """
    if not changes:
        return catalog
    if any(not _is_expected(catalog, change) for change in changes):
        return None
    revision = catalog.revision + 1
    journals, retired = dict(catalog.journals), set(catalog.retired)
    for change in changes:
        if change.HasField("upsert"):
            name = change.upsert.name
            created = journals[name].create_revision if name in journals else revision
            journals[name] = CatalogEntry.make(change.upsert, created, revision)
            retired.discard(name)
        elif journals.pop(change.delete, None):
            retired.add(change.delete)
    return replace(catalog, revision=revision, journals=journals, retired=frozenset(retired))


def _is_expected(catalog: Catalog, change: pb.ApplyRequest.Change) -> bool:
    name = change.upsert.name if change.HasField("upsert") else change.delete
    entry = catalog.journals.get(name)
    return change.expect_mod_revision in (-1, entry.mod_revision if entry else 0)


def catalog_to_json(catalog: Catalog) -> str:
    """Return the catalog in its stored form: one JSON object, a line per journal."""
    head = {
        "format_version": FORMAT_VERSION,
        "cluster_id": catalog.cluster_id,
        "revision": catalog.revision,
        "retired": sorted(catalog.retired),
    }
    lines = ",\n".join(entry.stored for entry in catalog.journals.values())
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "journals": [\n{lines}\n]}}\n'


def catalog_from_json(text: str, root: str = "") -> Catalog:
    """Read a stored catalog.

    Raises:
        BrokerRootError: it is not one, or of a version this code does not know.
    """
    try:
        value = json.loads(text)
        if value["format_version"] != FORMAT_VERSION:
            found = value["format_version"]
            problem = f"its state has format_version {found}, this code reads {FORMAT_VERSION}"
            raise BrokerRootError(root, problem)
        journals = dict(_entries(value["journals"]))
        return Catalog(value["cluster_id"], value["revision"], journals, frozenset(value["retired"]))
    except (ValueError, KeyError, TypeError, json_format.ParseError) as error:
        raise BrokerRootError(root, f"{STATE_DIRECTORY}/state.json cannot be read: {error!r}") from error


def _entries(values: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, CatalogEntry]]:
    for value in values:
        spec = json_format.ParseDict(value["spec"], pb.JournalSpec())
        yield spec.name, CatalogEntry.make(spec, value["create_revision"], value["mod_revision"])


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
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
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

    def load(self) -> Catalog:
        """Read the catalog, or make an empty one with a cluster id of its own."""
        path = self.path / "state.json"
        if path.exists():
            return catalog_from_json(path.read_text(encoding="utf-8"), str(self.root))
        return Catalog(cluster_id=secrets.randbits(63) | 1)

    def save(self, catalog: Catalog, *, fsync: bool) -> None:
        """Replace the stored catalog, whole or not at all."""
        partial = self.path / "state.json.partial"
        with partial.open("w", encoding="utf-8") as file:
            file.write(catalog_to_json(catalog))
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
