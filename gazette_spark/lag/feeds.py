"""The sources of a monitor's observations: brokers, Delta tables, query checkpoints.

A feed reads, and reports to its :class:`~gazette_spark.lag.monitor.Monitor`. A feed that cannot read reports
its failure there. Earlier observations stay, marked stale, and the next round tries again. No JVM is needed,
and nothing is written.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gazette_spark.errors import GazetteError, InputError
from gazette_spark.lag.estimates import StoredFragment
from gazette_spark.lag.monitor import JournalStore, Monitor
from gazette_spark.ledger.delta_reader import directory_history, named_errors, open_table
from gazette_spark.ledger.history import HistoryRow, app_ids, history_row
from gazette_spark.ledger.positions import (
    GroupCommit,
    checkpoint_commit,
    finished_batches,
    reaches_back,
    table_commits,
)
from gazette_spark.ledger.query_checkpoint import parse_offsets
from gazette_spark.locations import local_path

if TYPE_CHECKING:
    from gazette_spark.client import Client
    from gazette_spark.protocol import protocol_pb2 as pb

log = logging.getLogger("gazette_spark.lag")

BEFORE_KNOWN = 16
"""Versions read again below those known: a RESTORE mostly leads to one of them."""

STORES_EVERY_MS = 60_000
"""Interval of listing the stored fragments of journals that are not read to the end."""

_USER = re.compile(r"(?<!abfs:)(?<!abfss:)(?<!wasb:)(?<!wasbs:)//[^/?#]*@")
"""What stands before a host; in Azure's schemes that is the container's name."""


class Feed(Protocol):
    """Reads something once a round."""

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Report new observations to the monitor.

        Raises:
            GazetteError: the source cannot be read.
        """

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups this feed is of; none if it is that of the write heads."""


class HeadFeed:
    """Write heads and stored fragments of the journals that a selector matches. The caller closes the client.

    The journals make up a topic if one is named; else each belongs to the topic of its prefix.
    """

    groups: tuple[str, ...] = ()

    def __init__(self, client: Client, selector: str = "", topic: str | None = None) -> None:
        self._client = client
        self._selector = selector
        self._topic = topic
        self._heads: Mapping[str, int] = {}
        self._stores_at_ms = 0

    def __repr__(self) -> str:
        named = self._topic or self._selector
        return f"write heads of {named}" if named else "write heads"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Ask for all write heads; for stored fragments where a group is behind."""
        listed = {each.spec.name: each for each in self._client.list_journals(self._selector)}
        heads = self._client.write_heads(sorted(listed))
        # A head that went back is most often that of a replica that has just joined the journal. Taken as it
        # is, it would hide a lag. Other members know better; if they do not, the journal was created again.
        if fallen := sorted(name for name, head in heads.items() if head < self._heads.get(name, 0)):
            heads |= self._client.highest_heads(fallen)
        known, self._heads = self._heads.keys(), heads
        created = {name: each.create_revision for name, each in listed.items()}
        monitor.observe_heads(heads, now_ms, self._topic, created)
        monitor.forget_journals(known - listed.keys())
        if not 0 <= now_ms - self._stores_at_ms < STORES_EVERY_MS:
            behind = sorted({each.journal for each in monitor.unread(now_ms)} & listed.keys())
            monitor.observe_stores({name: self._store(listed[name]) for name in behind})
            self._stores_at_ms = now_ms
        if not listed and self._selector.startswith("name="):
            from gazette_spark.client._list.listings import journal_not_found

            raise journal_not_found(self._client, self._selector)

    def _store(self, listed: pb.ListResponse.Journal) -> JournalStore:
        retention = listed.spec.fragment.retention.ToMilliseconds()
        fragments = (each.fragment for each in self._client.list_fragments(listed.spec.name))
        stored = [
            StoredFragment(each.begin, each.end, each.mod_time * 1000) for each in fragments if each.mod_time
        ]
        return JournalStore(stored, retention or None)


class TableFeed:
    """The ledger of a Delta table, read from its log with ``deltalake``: a group for each app id in it.

    Args:
        location: the table's directory or URL, in Spark's spelling: nothing is quoted.
        name: name of the group in place of the app id; if there are several, ``name/app id``.
        fetch: in place of ``deltalake``, for tests: newest rows first; None requests all of them.
    """

    def __init__(
        self,
        location: str,
        name: str | None = None,
        *,
        fetch: Callable[[int | None], Sequence[HistoryRow]] | None = None,
    ) -> None:
        self.groups: tuple[str, ...] = (name,) if name else ()
        self._name = name
        self._location = location
        self._fetch = fetch or DeltaLog(location).rows
        self._app_ids: list[str] = []
        self._version = -1

    def __repr__(self) -> str:
        return f"table {masked_url(self._location)}"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Read the commits since the last look; the whole history the first time."""
        rows = self._new_rows()
        known = self._version
        self._app_ids = sorted({*self._app_ids, *app_ids(rows)})
        self.groups = tuple(self._group(app_id) for app_id in self._app_ids) or self.groups
        for app_id in self._app_ids:
            steps = table_commits(rows, app_id, known)
            monitor.observe_commits(self._group(app_id), steps, now_ms, source=repr(self))
        self._version = rows[0].version if rows else known

    def _group(self, app_id: str) -> str:
        if self._name is None:
            return app_id
        return self._name if len(self._app_ids) == 1 else f"{self._name}/{app_id}"

    def _new_rows(self) -> Sequence[HistoryRow]:
        """Return the rows since the last poll, and as many older ones as they depend on."""
        if self._version < 0:
            return self._fetch(None)
        newest = self._fetch(1)
        if not newest or newest[0].version <= self._version:
            return []
        rows = self._fetch(newest[0].version - self._version + BEFORE_KNOWN)
        return self._fetch(None) if reaches_back(rows, app_ids(rows)) else rows


class DeltaLog:
    """Reads a table's history: in a directory from the log's files, elsewhere with ``deltalake``.

    ``deltalake`` is loaded when it is needed.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._table: Any = None

    def __repr__(self) -> str:
        return f"DeltaLog({masked_url(self._location)!r})"

    def rows(self, limit: int | None) -> list[HistoryRow]:
        """Return the newest rows, newest first.

        Raises:
            InputError: ``deltalake`` is not installed, or cannot read the table. No secret of the location is
                in it.
        """
        try:
            return self._rows(limit)
        except InputError as error:
            shown = str(error).replace(self._location, masked_url(self._location))
            raise InputError(shown) from error

    def _rows(self, limit: int | None) -> list[HistoryRow]:
        if (directory := local_path(self._location)) is not None:
            return self._directory_rows(Path(directory), limit)
        with named_errors(self._location):
            # Dropped while it is updated: after a failure half-way it is opened again at the next poll.
            table, self._table = self._table, None
            if table is None:
                table = open_table(self._location)
            else:
                table.update_incremental()
            found = [history_row(info) for info in table.history(limit)]
            if not found:
                raise InputError(f"table {self._location} cannot be read: deltalake gives no history of it")
            self._table = table
            return found

    def _directory_rows(self, directory: Path, limit: int | None) -> list[HistoryRow]:
        try:
            found = list(islice(directory_history(directory), limit))
        except (OSError, ValueError) as error:
            raise InputError(f"table {self._location} cannot be read: {error}") from error
        if not found:
            raise InputError(f"table {self._location} cannot be read: there is no commit in its _delta_log")
        return found


class CheckpointFeed:
    """A query checkpoint, for queries whose sink has no ledger. The time of a batch is that of its file.

    Args:
        directory: the query checkpoint, in a file system of this machine; ``file:`` may precede it.
        group: name of the group.
        batches: number of the last batches that the first poll reads.
    """

    def __init__(self, directory: str, group: str, batches: int = 10) -> None:
        self.groups = (group,)
        self._group = group
        self._directory = Path(local_path(directory) or directory)
        self._batches = batches

    def __repr__(self) -> str:
        return f"query checkpoint {self._directory}"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Read the batches that were finished since the last one known."""
        steps = self.commits(monitor.last_order(self._group))
        monitor.observe_commits(self._group, steps, now_ms, source=repr(self))

    def commits(self, known: int) -> list[GroupCommit]:
        """Return the steps after batch ``known``, oldest first.

        Raises:
            InputError: there is no query checkpoint.
            QueryCheckpointError: a file is of a form this release does not know.
        """
        try:
            finished = list(finished_batches(self._names("offsets"), self._names("commits")))
            new = [batch_id for batch_id in finished[: self._batches] if batch_id > known]
            return [step for batch_id in reversed(new) if (step := self._step(batch_id))]
        except OSError as error:
            problem = f"query checkpoint {self._directory} cannot be read: {error.strerror}"
            raise InputError(problem) from error

    def _names(self, log: str) -> list[str]:
        return [path.name for path in (self._directory / log).iterdir()]

    def _step(self, batch_id: int) -> GroupCommit | None:
        ends = self._directory / "offsets" / str(batch_id)
        committed_ms = (self._directory / "commits" / str(batch_id)).stat().st_mtime_ns // 1_000_000
        return checkpoint_commit(batch_id, parse_offsets(ends.read_text(), str(ends)), committed_ms)


def masked_url(text: str) -> str:
    """Return a location without user, password and query of its URL, which may be secrets.

    >>> masked_url("orders=s3://key:secret@lake/orders?sig=x"), masked_url("abfss://lake@acc/day=1")
    ('orders=s3://***@lake/orders?***', 'abfss://lake@acc/day=1')
    """
    shown, query, _ = _USER.sub("//***@", text).partition("?") if "://" in text else (text, "", "")
    return f"{shown}?***" if query else shown


def poll_all(feeds: Sequence[Feed], monitor: Monitor, now_ms: int) -> list[str]:
    """Poll each feed; return the failures, a line each. Failures do not touch other feeds."""
    failures = []
    for feed in feeds:
        failure = None
        try:
            feed.poll(monitor, now_ms)
        except GazetteError as error:
            failure = " ".join(str(error).split())
        except Exception as error:
            # A defect, or a broken file. Unnoticed, it would leave what was known looking up to date.
            log.exception("%r cannot be read", feed)
            failure = " ".join(f"{type(error).__name__}: {error}".split())
        monitor.observe_feed(repr(feed), feed.groups, now_ms, failure, of_heads=isinstance(feed, HeadFeed))
        if failure is not None:
            failures.append(f"{feed!r}: {failure}")
    monitor.observe_round(now_ms)
    return failures
