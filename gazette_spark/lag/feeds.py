"""Feeds a monitor with observations of brokers, tables, query checkpoints, consumers and a query's progress.

A feed reads its source and reports to a :class:`~gazette_spark.lag.monitor.Monitor`. If it cannot read, it
reports the failure: earlier observations are kept, marked as stale, and the next round tries again. Feeds
need no JVM and write nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gazette_spark._ledger.delta_reader import is_catalog_managed
from gazette_spark._ledger.history import HistoryRow, app_ids
from gazette_spark._ledger.positions import (
    GroupCommit,
    checkpoint_commit,
    finished_batches,
    now_ms,
    reaches_back,
    table_commits,
)
from gazette_spark._ledger.query_checkpoint import parse_offsets
from gazette_spark._ledger.table_log import table_log
from gazette_spark.errors import (
    GazetteError,
    InputError,
    JournalNotFoundError,
    NotAllowedError,
    StatusError,
)
from gazette_spark.lag.estimates import TimedFragment
from gazette_spark.lag.group_lag import JournalStore, Unread
from gazette_spark.lag.monitor import Monitor
from gazette_spark.locations import local_path, masked_url
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_NDJSON, values_of
from gazette_spark.query_progress import QueryLag, journal_transactions

if TYPE_CHECKING:
    from gazette_spark.client import Client
    from gazette_spark.protocol import consumer_pb2 as pc

log = logging.getLogger("gazette_spark.lag")

BEFORE_KNOWN = 16
"""Number of known versions to read again. A RESTORE usually returns to one of them."""

STORES_EVERY_MS = 60_000
"""Interval between listings of the stored fragments of journals with unread bytes."""

LINES = frozenset({"", CONTENT_TYPE_NDJSON, "application/json", "text/plain"})
"""Content types of journals whose records are lines. Journals without one are also read as lines."""

STATE_READERS = 8
"""Number of files to read concurrently. Reading one from a bucket takes 20 ms."""

SHARD_GROUP = "shard"
"""Prefix of the names of a consumer's groups, if the consumer has no name."""


class Feed(Protocol):
    """Reads a source once per round."""

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Report new observations to the monitor.

        Raises:
            GazetteError: the source cannot be read.
        """

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that this feed reports; none for a feed of write heads."""


class HeadFeed:
    """Write heads and stored fragments of the journals that a selector matches. The caller closes the client.

    The journals form a topic if one is named; otherwise each belongs to the topic of its prefix.
    """

    groups: tuple[str, ...] = ()

    def __init__(self, client: Client, selector: str = "", topic: str | None = None) -> None:
        self._client = client
        self._selector = selector
        self._topic = topic
        self.refused: dict[str, str] = {}
        """Why the heads of some journals could not be read in the last poll, by journal."""
        self._heads: Mapping[str, int] = {}
        self._stores_at_ms = 0

    def __repr__(self) -> str:
        named = self._topic or self._selector
        return f"write heads of {named}" if named else "write heads"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Read all write heads, and the stored fragments of journals in which a group is behind."""
        listed = {journal.spec.name: journal for journal in self._client.list_journals(self._selector)}
        refusals: dict[str, StatusError] = {}
        heads = self._client.write_heads(sorted(listed), refusals=refusals)
        # A head that went back usually comes from a replica that has just joined the journal, and would hide
        # a lag. Other members report the right one. If they report the same, the journal was created again.
        if fallen := sorted(name for name, head in heads.items() if head < self._heads.get(name, 0)):
            highest = self._client.highest_heads(fallen, refusals=refusals)
            heads = {name: head for name, head in {**heads, **highest}.items() if name not in refusals}
        # The next listing lacks a journal that was deleted after this one. No query reads a write-only
        # journal; if there are no others, the refusal is the answer.
        expected = (JournalNotFoundError, NotAllowedError) if heads else JournalNotFoundError
        self.refused = {
            name: " ".join(str(refusal).split())
            for name, refusal in refusals.items()
            if not isinstance(refusal, expected)
        }
        before = self._heads.keys()
        self._heads = {name: head for name, head in {**self._heads, **heads}.items() if name in listed}
        created = {name: journal.create_revision for name, journal in listed.items()}
        monitor.observe_heads(heads, now_ms, self._topic, created)
        # By the listing, not the heads, because a journal whose head could not be read still exists.
        monitor.forget_journals(before - listed.keys())
        # Listings are long, and only needed for journals with unread bytes. The difference is negative if the
        # clock was set back.
        if not 0 <= now_ms - self._stores_at_ms < STORES_EVERY_MS:
            behind = sorted({unread.journal for unread in monitor.unread(now_ms)} & heads.keys())
            stores = {}
            for name in behind:
                try:
                    stored = [entry.fragment for entry in self._client.list_fragments(name)]
                except StatusError:  # It was just deleted, or the next poll reports why.
                    continue
                # A fragment without a time is only on brokers, so retention does not apply yet.
                fragments = [
                    TimedFragment(fragment.begin, fragment.end, fragment.mod_time * 1000)
                    for fragment in stored
                    if fragment.mod_time
                ]
                retention_ms = listed[name].spec.fragment.retention.ToMilliseconds()
                stores[name] = JournalStore(fragments, retention_ms or None)
            monitor.observe_stores(stores)
            self._stores_at_ms = now_ms
        # A selector by labels may match nothing yet, but a name that matches nothing is probably a typing
        # error.
        if not listed and self._selector.startswith("name="):
            from gazette_spark.client._list.listing import journal_not_found

            raise journal_not_found(self._client, self._selector)


class TableFeed:
    """The ledger of a table, read with ``deltalake`` or ``pyiceberg``: a group for each app id in it.

    Args:
        location: A Delta table's directory or URL in Spark's spelling, without quoting, or
            "iceberg:catalog/namespace.table" for an Iceberg table of ``pyiceberg``'s configuration.
        name: Name of the group, which replaces the app id; with several app ids, ``name/app id``.
        fetch: Replaces the table's log in tests. Returns rows, the newest first; None requests all of them.
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
        self._fetch = fetch or table_log(location).rows
        self._app_ids: list[str] = []
        self._newest: tuple[int, str] | None = None
        """Version and time of the newest commit that was read."""
        self._warned = False

    def __repr__(self) -> str:
        return f"table {masked_url(self._location)}"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Read the commits since the last poll, or the whole history at the first poll."""
        # This needs no JVM, so a monitor of many tables is a small process.
        # One row is enough to see whether there are new rows.
        newest = self._newest
        rows = self._fetch(None if newest is None else 1)
        if newest is not None:
            if (new := rows[0].version - newest[0] if rows else 0) > 0:
                # New rows may depend on earlier ones, so some of these are read again.
                rows = self._fetch(new + BEFORE_KNOWN)
            if newest not in [(row.version, row.time) for row in rows]:
                # The table was created again, or rolled back if it is an Iceberg table. Its commits do not
                # follow the known ones, whatever their number.
                for app_id in self._app_ids:
                    monitor.forget_group(self._group(app_id))
                self._app_ids, self._newest, newest = [], None, None
                rows = self._fetch(None)
            elif new == 0:
                rows = ()
            # If a RESTORE or an entry refers to a version before these rows, its position is unknown. Then
            # the whole history is read, which is slow but rare.
            elif reaches_back(rows, app_ids(rows)):
                rows = self._fetch(None)
        if rows and not self._warned and is_catalog_managed(self._location):
            self._warned = True
            log.warning("newest commits may be missing, the table is catalog-managed table=%s", self)
        # An app id without an entry in the new rows is still a group, because its query may have stopped.
        known = {*self._app_ids, *app_ids(rows)}
        if self._name is not None and len(self._app_ids) == 1 < len(known):
            # From now on, the name is only the beginning of the groups' names. The group that had it would
            # get no more commits, so it is forgotten, and the history is read again for the new names.
            monitor.forget_group(self._name)
            self._newest, newest = None, None
            rows = self._fetch(None)
            known |= {*app_ids(rows)}
        self._app_ids = sorted(known)
        self.groups = tuple(self._group(app_id) for app_id in self._app_ids) or self.groups
        for app_id in self._app_ids:
            steps = table_commits(rows, app_id, -1 if newest is None else newest[0])
            monitor.observe_commits(self._group(app_id), steps, now_ms, source=repr(self))
        # After the reports, so that rows are read again if the monitor refused a group.
        self._newest = (rows[0].version, rows[0].time) if rows else newest

    def _group(self, app_id: str) -> str:
        if self._name is None:
            return app_id
        return self._name if len(self._app_ids) == 1 else f"{self._name}/{app_id}"


class CheckpointFeed:
    """A query checkpoint, for queries whose sink has no ledger. A batch has the time of its file.

    Args:
        directory: The query checkpoint in a file system of this machine, optionally with ``file:``.
        group: Name of the group.
        batches: Number of the newest batches that the first poll reads.

    Raises:
        InputError: the checkpoint is in an object store.
    """

    def __init__(self, directory: str, group: str, batches: int = 10) -> None:
        self.groups = (group,)
        self._group = group
        path = local_path(directory)
        if path is None:
            problem = (
                f"query checkpoint {masked_url(directory)} is in an object store and cannot be read there"
            )
            raise InputError(f"{problem}. If the query has a DeltaSink, name its table instead")
        self._directory = Path(path)
        self._batches = batches

    def __repr__(self) -> str:
        return f"query checkpoint {self._directory}"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Read the batches that were finished since the last poll."""
        newest = monitor.last_order(self._group)
        steps = self.commits(newest)
        if steps and steps[-1].order < newest:
            monitor.forget_group(self._group)
        monitor.observe_commits(self._group, steps, now_ms, source=repr(self))

    def commits(self, newest_batch_id: int) -> list[GroupCommit]:
        """Return the steps after batch ``newest_batch_id``, oldest first.

        If there is no such batch any more, the query checkpoint was created again, and all steps are new.

        Raises:
            InputError: there is no query checkpoint.
            QueryCheckpointError: this release does not support the format of a file.
        """
        try:
            # A batch is finished when it is in the commit log. The newest file of offsets is a plan, which
            # may still fail.
            finished = list(finished_batches(self._names("offsets"), self._names("commits")))
            if finished and finished[0] < newest_batch_id:
                newest_batch_id = -1
            new = [batch_id for batch_id in finished[: self._batches] if batch_id > newest_batch_id]
            steps = []
            for batch_id in reversed(new):
                ends = self._directory / "offsets" / str(batch_id)
                # Spark writes no time into the file, so its modification time is used.
                committed = (self._directory / "commits" / str(batch_id)).stat()
                position = parse_offsets(ends.read_text(), str(ends))
                if step := checkpoint_commit(batch_id, position, committed.st_mtime_ns // 1_000_000):
                    steps.append(step)
            return steps
        except OSError as error:
            missing = error.filename or self._directory
            problem = f"query checkpoint {self._directory} cannot be read: {missing}: {error.strerror}"
            raise InputError(problem) from error

    def _names(self, log: str) -> list[str]:
        return [path.name for path in (self._directory / log).iterdir()]


class RecordFeed:
    """Counts the unread records of journals whose records are lines.

    Args:
        client: Client for the reads. The caller closes it.
        limit_bytes: Maximum number of bytes read per round; records beyond that are not counted.
    """

    groups: tuple[str, ...] = ()

    def __init__(self, client: Client, limit_bytes: int) -> None:
        self._client = client
        self._limit_bytes = limit_bytes
        self._counted: dict[Unread, int] = {}

    def __repr__(self) -> str:
        return "records"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Count the records of ranges that changed since the last round, the shortest ranges first."""
        # Counting reads the bytes. The limit keeps a monitor from reading as much as the queries that it
        # watches.
        remaining_bytes = self._limit_bytes
        counted: dict[Unread, int] = {}
        # The shortest first, so that most ranges are counted and one long backlog cannot use the whole limit.
        for unread in sorted(monitor.unread(now_ms), key=lambda unread: unread.end - unread.begin):
            # The bytes of a range never change, so its number is still valid.
            if unread in self._counted:
                counted[unread] = self._counted[unread]
                continue
            size = unread.end - unread.begin
            if size > remaining_bytes:
                continue
            remaining_bytes -= size
            # If the range cannot be read, its number is unknown. The feed of the write heads reports why.
            with suppress(GazetteError):
                if has_lines(self._client.get_journal(unread.journal).spec):
                    reader = self._client.read(unread.journal, offset=unread.begin, end_offset=unread.end)
                    counted[unread] = sum(chunk.content.count(b"\n") for chunk in reader)
        self._counted = counted
        monitor.observe_records(counted)


def has_lines(spec: pb.JournalSpec) -> bool:
    """Return whether a journal's records are lines."""
    return next(iter(values_of(spec.labels, CONTENT_TYPE)), "") in LINES


class OpenStates(Protocol):
    """The open transactions of a query's journals, read from files."""

    def refresh(
        self,
        position: JournalOffsets,
        map_journals: Callable[[Callable[[str], Any], Iterable[str]], dict[str, Any]],
    ) -> None:
        """Read the files of journals whose offset has changed."""

    def to_dict(self) -> Mapping[str, Any]:
        """Return the open transactions by journal."""

    @property
    def journals(self) -> set[str]:
        """Journals whose file could be read."""


class StateFeed:
    """Reports the open transactions at the end of a group's commits, from the files that its tasks write.

    A task writes the states of a journal's producers at the end of its range, before the batch is committed.
    So the file of a committed offset shows which transactions were open there. A poll reads one file for each
    journal whose offset has changed, and no bytes of the journal.

    A journal without a readable file is unknown until there is one. The group's other figures do not depend
    on it.

    Args:
        group: Name of the group, which another feed reports.
        location: The query's ``stateLocation``, for messages.
        states: Reads the files.
    """

    groups: tuple[str, ...] = ()

    def __init__(self, group: str, location: str, states: OpenStates) -> None:
        self._group = group
        self._location = location
        self._states = states

    def __repr__(self) -> str:
        return f"open transactions of {self._group} in {masked_url(self._location)}"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Read the files of the offsets that were committed since the last poll.

        Raises:
            InputError: no commit of the group is known.
        """
        # Another feed reports the group. If no feed does, this one would otherwise wait silently forever.
        if monitor.last_order(self._group) < 0:
            names = ", ".join(monitor.groups()) or "none"
            raise InputError(f"no commit of a group {self._group!r} is known; known groups: {names}")
        # Files are named by the offset at which a task ended, which is the committed one.
        committed = monitor.committed(self._group, now_ms)
        self._states.refresh(JournalOffsets(committed), _many)
        journals = self._states.journals
        opened = journal_transactions(self._states.to_dict())
        monitor.observe_transactions(self._group, opened, journals, committed.keys() - journals, now_ms)


def _many(ask: Callable[[str], Any], journals: Iterable[str]) -> dict[str, Any]:
    names = list(journals)
    if len(names) < 2:
        return {name: ask(name) for name in names}
    # One pool per poll, so that no threads run between polls.
    with ThreadPoolExecutor(STATE_READERS) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


class ShardProgress(Protocol):
    """The progress of a shard."""

    @property
    def read_through(self) -> Mapping[str, int]:
        """Offset by source journal."""


class Shards(Protocol):
    """A consumer's client."""

    endpoint: str

    def list_shards(self) -> Sequence[pc.ListResponse.Shard]:
        """Return all shards."""

    def progress_of(self, shards: Iterable[pc.ListResponse.Shard]) -> Mapping[str, ShardProgress]:
        """Return the progress of each running shard."""


class ShardFeed:
    """A group for each shard, ``shard:ID``, with a step whenever its progress has changed.

    A shard that has FAILED, is not running, or makes no progress has no more steps, so with unread bytes it
    becomes STOP. The log has the error of a FAILED shard. The time of a step is that of the poll that saw it.
    The caller closes the client.

    Args:
        client: Client of the consumer.
        name: Prefix of the groups' names, instead of ``shard``.
    """

    def __init__(self, client: Shards, name: str | None = None) -> None:
        self.groups: tuple[str, ...] = ()
        self._client = client
        self._name = name or SHARD_GROUP
        self._seen: dict[str, dict[str, int]] = {}
        self._errors: dict[str, str] = {}
        """Errors of shards that have FAILED."""

    def __repr__(self) -> str:
        return f"shards of {masked_url(self._client.endpoint)}"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Read all shards, and the progress of running ones."""
        listed = {shard.spec.id: shard for shard in self._client.list_shards()}
        progress = self._client.progress_of(listed.values())
        for shard_id in self._seen.keys() - listed.keys():
            del self._seen[shard_id]
            monitor.forget_group(self._group(shard_id))
        self.groups = tuple(map(self._group, listed))
        errors = {
            shard_id: " ".join("; ".join(failed).split())
            for shard_id, shard in listed.items()
            if (failed := [error for status in shard.status for error in status.errors])
        }
        for shard_id, error in errors.items() - self._errors.items():
            log.warning("lag.shard_failed group=%s error=%s", self._group(shard_id), error)
        self._errors = errors
        for shard_id, shard in listed.items():
            steps: list[GroupCommit] = []
            group, seen = self._group(shard_id), self._seen.setdefault(shard_id, {})
            at = seen
            if (shard_progress := progress.get(shard_id)) is not None:
                at = reached(shard.spec, shard_progress.read_through)
            if at != seen:
                self._seen[shard_id] = at
                order = monitor.last_order(group) + 1
                if seen:
                    steps.append(GroupCommit(order, now_ms, at))
                else:
                    # Its past is unknown, so it counts as caught up now and is judged from now on.
                    steps.append(GroupCommit(order, now_ms - 1, at, heads=at))
            monitor.observe_commits(group, steps, now_ms, source=repr(self))

    def _group(self, shard_id: str) -> str:
        return f"{self._name}:{shard_id}"


def reached(spec: pc.ShardSpec, read_through: Mapping[str, int]) -> dict[str, int]:
    """Return the next offset that a shard reads in each journal.

    A shard begins at the minimum offset of its spec. Of several sources of one journal with different
    ``;meta``, the slowest one counts.
    """
    offsets: dict[str, int] = {}
    for source in spec.sources:
        journal = source.journal.partition(";")[0]
        offset = max(read_through.get(source.journal, 0), source.min_offset)
        offsets[journal] = min(offset, offsets.get(journal, offset))
    return offsets


class ProgressFeed:
    """Reports a query's progress to a monitor in the query's own program.

    ::

        listener = LagListener(ProgressFeed(monitor))
        spark.streams.addListener(listener)

    Each batch reports the write heads that the query saw, and its position. The group is the query's name, or
    the id of a query without a name. Between batches the monitor gets no news, so a hanging query appears as
    silent, with a constant lag. Poll the brokers as well if that is not enough.

    Args:
        monitor: The monitor to report to.
        clock: Returns the milliseconds since 1970. A batch counts as committed when its progress arrives.
    """

    def __init__(self, monitor: Monitor, clock: Callable[[], int] = now_ms) -> None:
        self._monitor = monitor
        self._clock = clock

    def __repr__(self) -> str:
        return f"ProgressFeed({self._monitor!r})"

    def __call__(self, lag: QueryLag) -> None:
        """Report the progress of a batch. For a journal with several sources, the smallest offset counts.

        Raises:
            InputError: another query, or a table, has the same name.
        """
        now = self._clock()
        heads = {journal.journal: journal.head for journal in lag.journals if journal.head is not None}
        reached: dict[str, int] = {}
        for journal in lag.journals:
            reached[journal.journal] = min(journal.reached, reached.get(journal.journal, journal.reached))
        if heads:
            self._monitor.observe_heads(heads, now)
        step = GroupCommit(lag.batch_id, now, reached)
        group = lag.name or lag.query_id
        self._monitor.observe_commits(group, [step], now, source=f"the progress of query {lag.query_id}")
        self._monitor.observe_progress(group, lag.skipped_bytes, lag.malformed, lag.transactions, now)
        self._monitor.observe_round(now)


def poll_all(feeds: Sequence[Feed], monitor: Monitor, now_ms: int) -> list[str]:
    """Poll each feed, and return the failures, one line each. A failure does not affect other feeds."""
    failures = []
    for feed in feeds:
        failure = None
        try:
            feed.poll(monitor, now_ms)
        except GazetteError as error:
            failure = " ".join(str(error).split())
        except Exception as error:
            # A bug, or a broken file. Without a report, stale values would look current.
            log.exception("%r cannot be read", feed)
            failure = " ".join(f"{type(error).__name__}: {error}".split())
        refused = feed.refused if isinstance(feed, HeadFeed) and failure is None else {}
        failures += [f"{feed!r}: {refusal}" for refusal in refused.values()]
        monitor.observe_feed(
            repr(feed), feed.groups, now_ms, failure, of_heads=isinstance(feed, HeadFeed), refused=refused
        )
        if failure is not None:
            # Errors of tables begin with the table, as the feed's name does.
            failures.append(failure if failure.startswith(repr(feed)) else f"{feed!r}: {failure}")
    monitor.observe_round(now_ms)
    return failures
