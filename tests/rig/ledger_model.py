"""A model of tables and of the queries that write them, for the state machine over the ledger.

A Delta table behaves as measured: a transaction number that is not above the app id's highest is skipped
silently, a RESTORE keeps the numbers, neither a RESTORE nor other commits conflict with an append, and old
lines of the history are cleaned up. An Iceberg table accepts a commit only on the snapshot that it was
decided on, a rollback keeps its properties, and snapshots and earlier metadata expire.

A row has an identity: the journal and offset, or other source and number, of its record, and the source of
the query that read it. :func:`obvious_decision` only compares sets of identities. A row of a committed
message belongs to the record that commits it, which is the message itself or a later record.

A journal that is deleted and recreated keeps all, some or none of its bytes, and gets others: each recreation
appends different bytes. A query compares bytes as the source does, and stops, or reports the difference to
the sink.

The records that a query treats as dead letters depend on its rules. Some rules are not deterministic: the
second pass over a batch uses different rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pyspark.sql.types import StructType

from gazette_spark import JournalOffsets, LedgerEntry
from gazette_spark._delta import trim
from gazette_spark._ledger.decision import Allowed, NewRange, Write
from gazette_spark._ledger.entry import Batch, LedgerState, Mode, Positions, SkippedGap, least_offsets
from gazette_spark._ledger.history import REPLACING, HistoryRow, read_state
from gazette_spark._ledger.iceberg_reader import (
    PROPERTY_PREFIX,
    Ancestor,
    EarlierMetadata,
    history_rows,
    property_text,
    state_of,
)
from gazette_spark.offsets import Fingerprint

APP = "app"
JOURNALS = ("x/a", "x/b")
FOREIGN = ("files", "rates")
"""Sources other than Gazette: their positions are texts, which each new checkpoint counts from 0."""

Source = frozenset[str] | str
"""Journals that a source of a query selects, or the name of another source."""
Position = Mapping[str, int] | str | None


class Record(NamedTuple):
    """A record: of one byte at an offset of a journal, or of another source."""

    source: str
    at: int


class Row(NamedTuple):
    """A record as read by one source of one query."""

    record: Record
    query: str
    number: int
    offset: int
    """Offset where the row begins: before ``record``, if that is the acknowledgement of a message."""

    @property
    def place(self) -> Record:
        """Where the row begins: at the message, which may be before the record that commits it."""
        return Record(self.record.source, self.offset)


class Turn(NamedTuple):
    """A batch that has set a fence."""

    query: str
    batch_id: int
    stateful: bool


COLUMNS = StructType()
"""Columns that identify the origin of a row."""
for _name, _type in (trim.METADATA_COLUMNS | trim.COMMITTED_COLUMNS).items():
    COLUMNS.add(_name, _type)


def committed_at(at: int) -> int | None:
    """Return the record that commits the message at an offset: itself, or the end of its group of five.

    Return None for the end of a group, which is an acknowledgement and not a message.
    """
    group, place = divmod(at, 5)
    return {1: at, 4: None}.get(place, group * 5 + 4)


def messages_of(record: Record, start: int) -> list[int]:
    """Return the offsets of the messages that a record commits and that a query knows."""
    return [at for at in range(max(start, record.at - 4), record.at + 1) if committed_at(at) == record.at]


def bytes_of(intervals: Iterable[tuple[str, int, int]]) -> set[Record]:
    return {Record(journal, at) for journal, begin, end in intervals for at in range(begin, end)}


def ranges_of(made: Write, batch: Batch) -> set[Record]:
    if made.new_ranges:
        return bytes_of((each.journal, each.begin, each.end) for each in made.new_ranges)
    begins, ends = (least_offsets(positions) for positions in (batch.begin, batch.end))
    return bytes_of((journal, begins[journal], end) for journal, end in ends.items())


@dataclass(frozen=True)
class Mark:
    """The rows of a version, and the records that are intentionally left out."""

    rows: tuple[Row, ...] = ()
    """Rows in the order in which they were written."""
    holes: frozenset[Record] = frozenset()
    """Records left out because the user accepted the gap."""
    starts: Mapping[str, int] = field(default_factory=dict)
    """Begin offset of the rows of each known journal."""
    planned: int | None = None
    """Planning time of the last written batch, which is unique; None for a table without an entry."""
    query: str = ""
    """Query that has written last."""
    mode: Mode = "append"
    stateful: bool = False
    """Whether that query keeps state."""
    held: frozenset[Record] = frozenset()
    """Records in the state of that query."""
    given_up: frozenset[Record] = frozenset()
    """Records in the state of queries whose checkpoint was abandoned with the user's permission."""
    texts: bool = False
    """Whether sources other than Gazette have had a position."""
    restarted: bool = False
    """Whether a new checkpoint has continued state or other sources with the user's permission."""
    several: bool = False
    """Whether a query of several sources has written."""
    twice: frozenset[str] = frozenset()
    """Journals that two sources of one query have read."""
    committed: bool = False
    """Whether the rows are committed messages."""
    quiet: frozenset[Record] = frozenset()
    """Records that were read and did not commit a message."""
    dead: frozenset[Row] = frozenset()
    """Rows that were among the dead letters when a batch was written without them."""
    fence: Turn | None = None
    """Turn whose fence is the newest entry; None if that entry is a batch."""
    content: Mapping[str, bytes] = field(default_factory=dict)
    """Bytes of each journal up to the table's end, as read by the queries that wrote the rows."""

    def passed(self) -> set[Record]:
        """Records that the table has, or intentionally lacks."""
        return {row.record for row in (*self.rows, *self.dead)} | self.left_out() | self.quiet

    def places(self) -> set[Record]:
        """The begins of the rows."""
        return {row.place for row in self.rows}

    def left_out(self) -> frozenset[Record]:
        """Records whose rows are intentionally not in the table."""
        return self.holes | self.held | self.given_up

    def end_of(self, journal: str) -> int | None:
        """Return the offset after the last record of a journal, None if it is unknown."""
        if (start := self.starts.get(journal)) is None:
            return None
        return max((each.at + 1 for each in self.passed() if each.source == journal), default=start)


class SinkTable:
    """A table of one app id: its commits, and a :class:`Mark` for each version. Rows may be dead letters."""

    def __init__(self, name: str = "t", app_id: str = APP) -> None:
        self.name = name
        self.app_id = app_id
        self.delete()

    def delete(self) -> None:
        self.history: list[HistoryRow] = []
        self.highest = -1
        """Highest transaction number so far."""
        self.marks: list[Mark] = []
        self.chains: list[tuple[LedgerEntry, ...]] = []
        """Entries of the rows visible at each version, newest first."""
        self.cleaned = 0
        """First version that the history still shows."""
        self.restored: dict[int, int] = {}
        """Version that each RESTORE restored."""
        self.searched = 0
        """Number of versions whose history was searched."""

    @property
    def mark(self) -> Mark:
        return self.marks[-1] if self.marks else Mark()

    @property
    def changes(self) -> int:
        return len(self.marks)

    def add_version(
        self, operation: str, mark: Mark, chain: tuple[LedgerEntry, ...], **parts: object
    ) -> None:
        self.marks.append(mark)
        self.chains.append(chain)
        self.history.append(HistoryRow(len(self.history), operation, **parts))  # type: ignore[arg-type]  # Fields by name, of mixed types.

    def optimize(self) -> None:
        self.add_version("OPTIMIZE", self.mark, self.standing())

    def write(self, entry: LedgerEntry, mark: Mark, *, on: int) -> bool:
        """Append with a transaction number, or skip silently; return whether it succeeded.

        Args:
            entry: The entry.
            mark: What the table is then.
            on: The version that the entry was decided on.
        """
        landed = entry.txn_version > self.highest
        if landed:
            self.highest = entry.txn_version
            chain = (entry, *self.standing())
            self.add_version("WRITE", mark, chain, user_metadata=entry.to_json())
        return landed

    def replace(self) -> None:
        self.add_version(min(REPLACING), Mark(), ())

    def restore(self, version: int, *, by_time: bool = False) -> None:
        self.restored[len(self.history)] = version
        named = {"version": None if by_time else str(version)}
        moment = {"timestamp": f"moment {version}" if by_time else None}
        chain = self.chains[version]
        self.add_version("RESTORE", self.marks[version], chain, parameters=named | moment)

    def state(self) -> LedgerState:
        """The result of the package's search in the remaining history."""
        shown = self.history[self.cleaned :][::-1]
        return read_state(lambda limit: shown[:limit], self.app_id, table=self.name)

    def standing(self) -> tuple[LedgerEntry, ...]:
        """The entries of the visible rows, newest first, from a replay of the complete history."""
        return self.chains[-1] if self.chains else ()

    def broken(self) -> bool:
        """Whether the newest entry follows an entry other than the one it was decided on."""
        newest, before, *_ = (*self.standing(), None, None)
        return newest is not None and newest.parent != (before.attempt if before else None)


class IcebergSinkTable(SinkTable):
    """An Iceberg table: versions are the sequence numbers of its snapshots, which start at 1."""

    highest = -1
    """Transaction number below all others, so that it prevents no commit."""

    def delete(self) -> None:
        self.history = []
        self.marks, self.chains = [Mark()], [()]
        self.cleaned, self.restored, self.searched = 0, {}, 0
        self.current = 0
        """Number of the current snapshot."""
        self.ancestors: dict[int, Ancestor] = {}
        """Unexpired snapshots, by number."""
        self.properties: dict[str, str] = {}
        self.earlier: list[EarlierMetadata] = []
        """Earlier versions of the metadata whose files still exist, newest first."""
        self._changes = 1

    @property
    def mark(self) -> Mark:
        return self.marks[self.current]

    @property
    def changes(self) -> int:
        return self._changes

    def standing(self) -> tuple[LedgerEntry, ...]:
        return self.chains[self.current]

    def add_version(
        self, operation: str, mark: Mark, chain: tuple[LedgerEntry, ...], **parts: object
    ) -> None:
        """Add a snapshot after the current one."""
        self._change()
        super().add_version(operation, mark, chain, **parts)
        number, parent = len(self.marks) - 1, self.current or None
        ledger = self.history[-1].user_metadata
        self.ancestors[number] = Ancestor(number, parent, number, operation=operation, ledger=ledger)
        self.current = number

    def write(self, entry: LedgerEntry, mark: Mark, *, on: int) -> bool:
        """Append if the current snapshot is the one that the entry was decided on."""
        if on != self.current:
            return False
        chain = (entry, *self.standing())
        self.add_version("append", mark, chain, user_metadata=entry.to_json())
        self.properties[PROPERTY_PREFIX + self.app_id] = property_text(entry, self.current, self.current)
        return True

    def restore(self, version: int, *, by_time: bool = False) -> None:
        self._change()
        self.current = version

    def expire(self, numbers: Collection[int], *, names_parents: bool) -> None:
        """Remove snapshots; programs differ in whether the children of removed snapshots still name them."""
        self._change()
        self.cleaned = 1
        for number in numbers:
            del self.ancestors[number]
        if not names_parents:
            self.ancestors = {
                number: replace(each, parent_id=None) if each.parent_id in numbers else each
                for number, each in self.ancestors.items()
            }

    def clean_metadata(self, versions: int) -> None:
        """Delete earlier metadata files, except for the newest ones."""
        del self.earlier[versions:]

    def state(self) -> LedgerState:
        """The result of the package's search in the remaining metadata."""
        rows = history_rows(self.current or None, self.ancestors, self.properties, lambda: self.earlier)
        return state_of(rows, self.properties, self.app_id, self.name)

    def _change(self) -> None:
        """Save the current metadata as an earlier version."""
        self._changes += 1
        parents = {number: (each.parent_id, number) for number, each in self.ancestors.items()}
        self.earlier.insert(0, EarlierMetadata(len(self.marks) - 1, parents))


@dataclass(repr=False)
class Writer:
    """A query: its sources, its checkpoint, and its state within its batch."""

    name: str
    sources: tuple[Source, ...]
    ends: list[tuple[Position, ...]]
    """Contents of ``offsets/<n>``. The last batch is complete if there are as many ``commits``."""
    read: list[tuple[Row, ...]]
    """Rows that each batch reads."""
    planned: list[int]
    """Planning time of each batch in milliseconds."""
    stateful: bool = False
    """Whether a batch emits what the previous batch read."""
    mode: Mode = "append"
    committed: bool = False
    """Whether the query reads committed messages."""
    known: Mapping[str, int] = field(default_factory=dict)
    """Begin offsets of messages that the query knows from the states of another query, by journal."""
    commits: int = 0
    prints: dict[int, Mapping[str, Fingerprint]] = field(default_factory=dict)
    """Fingerprints in the position of each batch; absent for a batch that a test plans by hand."""
    content: dict[int, Mapping[str, bytes]] = field(default_factory=dict)
    """Bytes of each batch's journals up to its end."""
    revisions: dict[int, int] = field(default_factory=dict)
    """Revision at which the journals of each batch were listed."""
    memory: dict[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints that the writer's process remembers."""
    resumes: bool = False
    """Whether each start loads the fingerprints of the ledger."""
    letters: str | None = None
    """Table of dead letters, if any."""
    rules: int = 0
    second: int | None = None
    """Rules for the second pass over a batch; None: the same rules."""
    seen: str | None = None
    steps: Iterator[None] | None = None
    """Remaining steps of the current batch, if any."""
    between: bool = False
    """Whether the writer has committed to a table of dead letters, but not yet to the main table."""
    alive: bool = True
    allowed: Allowed = Allowed()  # noqa: RUF009 - immutable
    obeys: bool = False
    """Whether a user accepts a gap that stopped the writer, and starts it again."""

    def __repr__(self) -> str:
        return f"Writer({self.name}, {self.planned}, commits={self.commits}, {self.ends[-2:]})"

    def forget(self) -> None:
        """Discard everything that a killed process loses."""
        self.seen, self.steps, self.between = None, None, False

    def start(self, ledger: Mapping[str, Fingerprint]) -> None:
        """Load what a process knows at its start: fingerprints from its position, but first the ledger's."""
        position = self.prints.get(len(self.ends) - 1, {})
        self.memory = dict(position) | (dict(ledger) if self.resumes else {})

    def copied(self, batches: int) -> Writer:
        """Return another process on a copy of the query checkpoint, as it was after some batches."""
        copy = self._copied(batches)
        copy.prints, copy.content, copy.revisions = (
            dict(self.prints),
            dict(self.content),
            dict(self.revisions),
        )
        copy.resumes = self.resumes
        return copy

    def _copied(self, batches: int) -> Writer:
        return Writer(
            self.name,
            self.sources,
            self.ends[:batches],
            self.read[:batches],
            self.planned[:batches],
            self.stateful,
            self.mode,
            self.committed,
            self.known,
            min(self.commits, batches),
            letters=self.letters,
            rules=self.rules,
            second=self.second,
            allowed=self.allowed,
        )

    @property
    def first(self) -> bool:
        """Whether its batch is the one that pins the start."""
        return len(self.ends) == 1

    @property
    def bound(self) -> bool:
        """Whether its rows depend on its own checkpoint only."""
        return self.stateful or any(isinstance(source, str) for source in self.sources)

    @property
    def trims(self) -> bool:
        """Whether it may trim rows that the table has; rows in its state would only come later."""
        return self.allowed.trim and not self.stateful

    @property
    def splits(self) -> bool:
        """Whether it can divide its rows into dead letters and others."""
        return len(self.sources) == 1 and not isinstance(self.sources[0], str)

    def misfits(self, rows: Iterable[Row], *, again: bool = False) -> tuple[Row, ...]:
        """The dead letters by its rules, in the first or the second pass over a batch."""
        rules = self.second if again and self.second is not None else self.rules
        return tuple(row for row in rows if (row.offset + rules) % 3 == 0)

    def start_of(self, number: int, journal: str, first: int) -> int:
        """Return where the messages of a journal begin that a source knows.

        Args:
            number: Number of the source.
            journal: The journal.
            first: Where the source begins to read it, if it has no position yet.
        """
        known = [end[number] for end in self.ends]
        with_it = itertools.takewhile(lambda at: isinstance(at, Mapping) and journal in at, reversed(known))
        *_, begun = ({journal: first}, *with_it)
        assert isinstance(begun, Mapping)
        return self.known.get(journal, begun[journal])

    def rows_between(self, number: int, begin: Mapping[str, int], end: Mapping[str, int]) -> Iterator[Row]:
        """Yield the rows of a source between two positions, where the second is not yet planned."""
        for journal, until in sorted(end.items()):
            for at in range(since := begin.get(journal, until), until):
                record, messages = Record(journal, at), [at]
                if self.committed:
                    messages = messages_of(record, self.start_of(number, journal, since))
                yield from (Row(record, self.name, number, message) for message in messages)

    def starts(self) -> dict[str, int]:
        """Return where the messages of each journal begin, for a query that reads messages."""
        ends = enumerate(self.ends[-1] if self.committed else ())
        return {
            journal: self.start_of(number, journal, at)
            for number, end in ends
            if isinstance(end, Mapping)
            for journal, at in end.items()
        }

    def batch(self) -> Batch:
        """The batch to run: the last one planned."""
        begin = () if self.first else _positions(self.ends[-2])
        return Batch(
            "t",
            APP,
            self.name,
            len(self.ends) - 1,
            begin,
            _positions(self.ends[-1]),
            mode=self.mode,
            planned_ms=self.planned[-1],
            after_ms=None if self.first else self.planned[-2],
            stateful=self.stateful,
            starts=self.starts(),
            fingerprints=self.prints.get(len(self.ends) - 1, {}),
            earlier_fingerprints=self.prints.get(len(self.ends) - 2, {}),
        )

    def is_of_another_journal(self, mark: Mark) -> bool:
        """Whether a journal of its batch has other bytes than those that the table's rows were read from.

        A journal that has not moved for two batches is detected when it moves, before any row of it is
        written.
        """
        batch = len(self.ends) - 1
        named = self.prints.get(batch, {}).keys() | self.prints.get(batch - 1, {}).keys()
        found = {name: each for name, each in self.content.get(batch, {}).items() if name in named}
        common = {name: min(len(each), len(mark.content.get(name, b""))) for name, each in found.items()}
        return any(
            mark.content[name][start:end] != found[name][start:end]
            for name, end in common.items()
            if (start := mark.starts.get(name, 0)) < end and name not in mark.twice | self.read_twice()
        )

    def moves(self) -> Iterator[tuple[str, int, int]]:
        """Yield the range of each journal; without a begin the journal is being pinned, and has no rows."""
        for number, end in enumerate(self.ends[-1]):
            if isinstance(end, Mapping):
                begin = {} if self.first else self.ends[-2][number]
                for journal, until in end.items():
                    yield journal, begin.get(journal, until) if isinstance(begin, Mapping) else until, until

    def emitted(self) -> tuple[Row, ...]:
        if not self.stateful:
            return self.read[-1]
        return () if self.first else self.read[-2]

    def emits(self, kept: tuple[NewRange, ...]) -> tuple[Row, ...]:
        """The rows of the batch that a decision keeps."""
        if not kept:
            return self.emitted()
        ranges = {each.journal: range(each.since, each.end) for each in kept}
        column = trim.range_origin(COLUMNS, self.batch().isolation)
        by_offset = column == ("_journal", "_offset")
        return tuple(
            row
            for row in self.emitted()
            if (row.offset if by_offset else row.record.at) in ranges.get(row.record.source, ())
        )

    def quiet(self) -> set[Record]:
        """The records in the batch that commit no message."""
        moves = self.moves() if self.committed else ()
        read = {Record(journal, at) for journal, since, until in moves for at in range(since, until)}
        return read - {row.record for row in self.read[-1]}

    def read_twice(self) -> frozenset[str]:
        """Journals that two of its sources have positions of."""
        journals = [journal for journal, _, _ in self.moves()]
        return frozenset(each for each in journals if journals.count(each) > 1)

    def mark_after(
        self, before: Mark, entry: LedgerEntry, rows: tuple[Row, ...], dead: Iterable[Row] = ()
    ) -> Mark:
        """Return the table's mark after some rows of the batch are written, with others as dead letters."""
        continues = not self.first and self.planned[-2] == before.planned
        content = dict(before.content)
        for journal, found in self.content.get(len(self.ends) - 1, {}).items():
            content[journal] = max(content.get(journal, b""), found, key=len)
        texts = any(isinstance(end, str) for end in self.ends[-1])
        holes = bytes_of((gap.journal, gap.begin, gap.end) for gap in entry.accepted_gaps)
        return Mark(
            rows=before.rows + rows,
            holes=before.holes | holes,
            starts={journal: since for journal, since, _ in self.moves()} | dict(before.starts),
            planned=self.planned[-1],
            query=self.name,
            mode=self.mode,
            stateful=self.stateful,
            held=frozenset(row.record for row in self.read[-1]) if self.stateful else frozenset(),
            given_up=before.given_up if continues else before.given_up | before.held,
            texts=before.texts or texts,
            restarted=before.restarted
            or ((self.bound or before.stateful) and self.first and before.texts)
            or (self.first and before.stateful),
            several=before.several or len(self.sources) > 1,
            twice=before.twice | self.read_twice(),
            committed=self.committed,
            quiet=before.quiet | self.quiet(),
            dead=before.dead.union(dead),
            content=content,
        )


def _positions(ends: tuple[Position, ...]) -> Positions:
    return tuple(JournalOffsets(end) if isinstance(end, Mapping) else end for end in ends)


@dataclass(frozen=True)
class Expected:
    rows: frozenset[Row] | None = None
    """Rows that are added to the table; None if the batch is refused."""
    may_be_refused: bool = False
    anything: bool = False
    """Whether the identities of the rows are inconclusive, so that the table's rows are checked instead."""
    entry: bool = False
    """Whether the batch must leave an entry, with or without rows."""


REFUSED = Expected()


def obvious_decision(mark: Mark, newest: str | None, writer: Writer) -> Expected:
    """Return the outcome of a batch, for a table whose newest entry follows the one it was decided on.

    Args:
        mark: The table.
        newest: Attempt of its newest entry.
        writer: Has the batch.
    """
    if mark.planned is None:
        return Expected(frozenset(writer.emitted()), entry=True) if writer.first else REFUSED
    if writer.seen not in (None, newest) or (mark.mode == "upsert" != writer.mode):
        return REFUSED
    if mark.committed != writer.committed or _knows_too_little(mark, writer):
        return REFUSED
    # A new fence invalidates the other copies of a checkpoint.
    fence = mark.fence
    refused = fence is not None and (writer.bound or mark.stateful or fence.stateful)
    if mark.planned == writer.planned[-1]:
        return Expected(frozenset(), may_be_refused=refused)
    # The ledger may have dropped another source's position when a new checkpoint was accepted.
    perhaps = writer.first and writer.bound and mark.restarted and not mark.stateful
    if not _follows(mark, writer) and not (perhaps and writer.name != mark.query):
        return REFUSED
    expected = _by_journal(mark, writer)
    refused = refused or not _follows(mark, writer)
    return replace(expected, may_be_refused=True, entry=False) if refused else expected


def _knows_too_little(mark: Mark, writer: Writer) -> bool:
    """Return whether the table needs messages from before those that a query knows."""
    several = mark.twice | writer.read_twice()
    starts = [each for each in writer.starts().items() if each[0] not in several]
    return any(start > mark.starts.get(journal, start) for journal, start in starts)


def _follows(mark: Mark, writer: Writer) -> bool:
    """Return whether state and other sources of a query continue, or start with the user's permission."""
    if not (writer.bound or mark.stateful):
        return True
    if not writer.first:
        return mark.planned == writer.planned[-2]
    another = writer.name != mark.query  # Otherwise it is an older copy of the checkpoint.
    taken = mark.fence is not None and mark.fence[:2] == (writer.name, 0)
    return another and (writer.allowed.restart or taken or not (mark.stateful or mark.texts))


def _by_journal(mark: Mark, writer: Writer) -> Expected:
    """Return the outcome of a batch for a query that may continue the table."""
    behind, moved = False, any(isinstance(end, str) for end in writer.ends[-1]) and writer.first
    for journal, since, until in writer.moves():
        at = mark.end_of(journal)
        if at is None:
            if since < until:
                return REFUSED
            moved = True
            continue
        if journal in mark.twice | writer.read_twice():
            return Expected(frozenset(), may_be_refused=True, anything=True)
        if since > at and SkippedGap(journal, at, since) not in writer.allowed.gaps:
            return REFUSED
        if since < mark.starts[journal] or (writer.first and since < at and not writer.trims):
            return REFUSED
        behind, moved = behind or since < at, moved or until > at
    if behind and moved and (not writer.trims or len(writer.sources) > 1):
        return REFUSED
    passed = mark.passed() if behind else set()
    rows = frozenset(row for row in writer.emitted() if row.record not in passed)
    # A source's part of the table cannot be distinguished from that of another source with the same number.
    several = mark.several or len(writer.sources) > 1
    return Expected(rows, behind and several, entry=not behind and (writer.bound or mark.stateful))
