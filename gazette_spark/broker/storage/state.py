"""Stores the catalog of an embedded broker on disk, in one file, which is replaced as a whole."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path

from google.protobuf import json_format

from gazette_spark._server.catalog import Catalog, CatalogEntry, ItemKind, S
from gazette_spark.broker.storage.durable import sync_directory
from gazette_spark.broker.storage.fragment_store import STATE_DIRECTORY
from gazette_spark.client._read.regular_files import open_regular_fd, read_regular
from gazette_spark.errors import BrokerRootError, DamagedFileError
from gazette_spark.seal import seal, unseal
from gazette_spark.strict_json import parse_json

FORMAT_VERSION = 1


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
        BrokerRootError: the text is not a catalog, or has an unknown version.
    """
    try:
        value = parse_json(text)
        if value["format_version"] != FORMAT_VERSION:
            version = value["format_version"]
            problem = f"its state has format_version {version}, this code reads {FORMAT_VERSION}"
            raise BrokerRootError(root, problem)
        items: dict[str, CatalogEntry[S]] = {}
        for item in value[kind.plural]:
            spec = json_format.ParseDict(item["spec"], kind.new_spec())
            entry = CatalogEntry.make(spec, item["create_revision"], item["mod_revision"])
            items[kind.name_of(spec)] = entry
        return Catalog(kind, value["cluster_id"], value["revision"], items, frozenset(value["retired"]))
    except (ValueError, KeyError, TypeError, AttributeError, json_format.ParseError) as error:
        raise BrokerRootError(root, f"{STATE_DIRECTORY}/state.json cannot be read: {error!r}") from error


class StateDirectory:
    """The ``.gazette`` directory of a root. While it is open, no other broker can use the root."""

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
            problem = (
                f"another broker (process {owner}) is using it; stop that broker or choose another directory"
            )
            raise BrokerRootError(str(self.root), problem) from error
        # The kernel holds the lock, which ends with the process. The number is only for the error message of
        # another broker.
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
        # The id is odd, because 0 means "no cluster" to brokers and clients.
        return Catalog(kind, cluster_id=secrets.randbits(63) | 1)

    def save(self, catalog: Catalog[S], *, fsync: bool) -> None:
        """Replace the stored catalog as a whole."""
        # Write another file and rename it: a crash leaves the old catalog or the new one.
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
        """Release the root for other brokers. Closing twice does nothing."""
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            os.close(fd)
