"""The broker's journals: their specs and revisions, and the running journal of each."""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gazette_spark.broker.fragment_store import STATE_DIRECTORY, open_store
from gazette_spark.broker.journal import JournalSettings, LiveJournal
from gazette_spark.broker.postfix import check_template
from gazette_spark.broker.state import Catalog, CatalogEntry, StateDirectory, apply_changes
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb

_log = logging.getLogger(__name__)


class JournalRegistry:
    """Every journal of one broker. Any thread may call anything.

    The catalog is replaced as a whole under ``changed``; whoever read it before keeps the old one. It is
    on disk before it is in use.
    """

    def __init__(self, root: Path, settings: JournalSettings) -> None:
        self.root = root
        self.changed = threading.Condition()
        self.stopped = False
        self._directory = StateDirectory(root)
        self.catalog: Catalog = self._directory.load()
        self._settings = replace(settings, is_journal=self._is_journal)
        self._live: dict[str, LiveJournal] = {}
        self._apply_lock = threading.Lock()
        try:
            self._directory.save(self.catalog, fsync=settings.fsync)
            self._live = {name: self._open(entry) for name, entry in self.catalog.journals.items()}
            self._remove_orphans()
        except BaseException:
            self._directory.close()  # Another broker may have the root: this one never started.
            raise

    def __repr__(self) -> str:
        return f"JournalRegistry({str(self.root)!r}, {len(self._live)} journals)"

    def get(self, name: str) -> LiveJournal | None:
        """Return a journal by name."""
        return self._live.get(name)

    def journals(self) -> list[LiveJournal]:
        """Return every journal."""
        return list(self._live.values())

    def apply(self, changes: Sequence[pb.ApplyRequest.Change]) -> int | None:
        """Apply valid changes, all or none.

        Returns:
            The catalog's revision after it, or None if a journal is not at its expected revision.

        Raises:
            ProtocolError: a spec asks for what this broker cannot do.
        """
        for change in changes:
            if change.HasField("upsert"):
                self._check(change.upsert)
        with self._apply_lock:
            before = self.catalog
            after = apply_changes(before, changes)
            if after is None:
                return None
            self._take_up(before, after)
            return after.revision

    def set_suspension(self, name: str, level: int, offset: int) -> None:
        """Change a journal's suspension, as its next revision."""
        with self._apply_lock:
            entry = self.catalog.journals.get(name)
            if entry is None:
                return
            change = pb.ApplyRequest.Change(expect_mod_revision=-1, upsert=entry.spec)
            change.upsert.suspend.level = level  # type: ignore[assignment]  # An enum's value, from our own table.
            change.upsert.suspend.offset = offset
            after = apply_changes(self.catalog, [change])
            assert after is not None
            self._take_up(self.catalog, after)

    def wait_for(self, is_reached: Callable[[Catalog], bool], still_wanted: Callable[[], bool]) -> bool:
        """Wait until the catalog satisfies the caller; False if it gave up or the broker stops."""
        with self.changed:
            while not is_reached(self.catalog):
                if self.stopped or not still_wanted():
                    return False
                self.changed.wait()
            return not self.stopped

    def wake(self) -> None:
        """Have every waiter ask whether it is still wanted."""
        with self.changed:
            self.changed.notify_all()

    def stop(self) -> None:
        """End every wait, read and queued append."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
        for journal in self.journals():
            journal.close(delete=False)

    def close(self) -> None:
        """Close all files, and let other brokers have the root."""
        for journal in self.journals():
            journal.release()
        self._directory.close()

    def _is_journal(self, name: str) -> bool:
        return self.catalog.is_journal(name)

    def _check(self, spec: pb.JournalSpec) -> None:
        check_template(spec.fragment.path_postfix_template)
        for url in spec.fragment.stores:
            store = open_store(self.root, url)
            inside = self.root / store.prefix / spec.name
            if inside.is_relative_to(self.root / STATE_DIRECTORY):
                problem = f"{spec.name} is inside the broker's own {STATE_DIRECTORY}"
                raise ProtocolError("JournalSpec.Name", problem)

    def _take_up(self, before: Catalog, after: Catalog) -> None:
        self._directory.save(after, fsync=self._settings.fsync)
        live = dict(self._live)
        with self.changed:
            self.catalog = after
        for name in before.journals.keys() | after.journals.keys():
            old, new = before.journals.get(name), after.journals.get(name)
            if old is new:
                continue
            if old is not None and (new is None or new.create_revision != old.create_revision):
                live.pop(name).close(delete=True)
            if new is not None:
                known = live.get(name)
                if known is None:
                    live[name] = self._open(new)
                else:
                    known.use_spec(new.spec)
        self._live = live
        self.wake()

    def _open(self, entry: CatalogEntry) -> LiveJournal:
        return LiveJournal(entry.spec, self._spool_directory(entry), self._settings)

    def _spool_directory(self, entry: CatalogEntry) -> Path:
        # A name may hold more than a file name can; a name created again must not find the old spools.
        digest = hashlib.sha256(entry.spec.name.encode()).hexdigest()[:32]
        return self.root / STATE_DIRECTORY / "spools" / f"{digest}-{entry.create_revision}"

    def _remove_orphans(self) -> None:
        wanted = {self._spool_directory(entry) for entry in self.catalog.journals.values()}
        for path in (self.root / STATE_DIRECTORY / "spools").glob("*"):
            if path not in wanted:
                _log.warning("orphaned_spools_removed path=%s", path)
                shutil.rmtree(path, ignore_errors=True)
