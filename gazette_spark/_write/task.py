"""Does the work of one task: converts rows to bytes, appends them, and waits until the appends are done.

A record batch is checked completely before any of its rows is appended. Each append has whole records, so the
records of other writers never split one. The appends of a task to a journal keep their order. The queue of
appends is bounded: a task reads rows no faster than brokers accept their bytes.

The appends of a failed task stay in the journals, and so do those of a task that Spark runs again: rows are
written at least once. With a :class:`TaskProducer` they are written as messages of a transaction, and count
once that is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gazette_spark._formats.arrays import int64_array, null_rows, valid_texts, value_bounds, value_octets
from gazette_spark._formats.encode import CHUNK_BYTES, check_values, encoded
from gazette_spark._formats.framing import RowRefusal
from gazette_spark._formats.registry import framing_name, framing_named
from gazette_spark._options.write import WriteOptions
from gazette_spark._write.columns import WriteColumns
from gazette_spark._write.producer import TaskProducer
from gazette_spark.client import AppendService, AsyncAppend, Client
from gazette_spark.client._append.mappings import (
    Hashes,
    fnv1a32,
    fnv1a32_each,
    modulo_picks,
    rendezvous_picks,
)
from gazette_spark.errors import JournalNotFoundError, OptionError, ProtocolError, RowError
from gazette_spark.message.interfaces import CONTENT_TYPES
from gazette_spark.message.locator import locator_for
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import validate_journal_name
from gazette_spark.protocol.labels import label_set

T = TypeVar("T")

Rows = npt.NDArray[np.int64]

PENDING_BYTES = 16 << 20
"""Bytes of a task that may wait to be appended, beside one record."""


@dataclass(frozen=True, slots=True)
class TaskAppends:
    """A task's appends to a journal."""

    rows: int
    bytes: int
    end: int
    """Offset just past its last byte."""


def open_service(client: Client, options: WriteOptions) -> AppendService:
    """Return the append service of one task. The caller closes it."""
    # The service never waits for room: a TaskWriter waits for its oldest append, which has its own deadline.
    pending = PENDING_BYTES + CHUNK_BYTES + 2 * options.max_record_bytes
    return AppendService(
        client, timeout_s=client.timeout_s, max_pending_bytes=pending, max_memory_bytes=PENDING_BYTES
    )


class Targets:
    """The journals that rows go to, and the framing of each. For one thread."""

    def __init__(self, client: Client, options: WriteOptions) -> None:
        """Look up the journals that the options name or select, if any.

        Raises:
            JournalNotFoundError: a named journal does not exist.
            OptionError: no journal matches, or a journal's content type contradicts the option ``framing``.
        """
        self._client = client
        self._options = options
        self._framings: dict[str, str] = {}
        target = options.target
        if target is None:
            return
        if target.selector:
            self._add(client.list_journals(target.selector))
            if not self._framings:
                got = f"{target.selector!r}, which matches no journal"
                raise OptionError(target.option, got, "a selector of journals that exist")
        else:
            self.learn(target.names, f"option {target.option!r}")

    @property
    def journals(self) -> list[str]:
        """Names of the journals that were looked up, sorted."""
        return sorted(self._framings)

    def framing(self, journal: str) -> str:
        """Return the framing of a journal that was looked up."""
        return self._framings[journal]

    def learn(self, journals: Iterable[str], who: str) -> None:
        """Look up the journals that are new.

        Raises:
            JournalNotFoundError: a journal does not exist.
        """
        unknown = sorted(set(journals) - self._framings.keys())
        if not unknown:
            return
        selector = pb.LabelSelector(include=label_set({"name": unknown}))
        self._add(self._client.list_journals(selector))
        for name in unknown:
            if name not in self._framings:
                raise JournalNotFoundError(name, f"{who} names it")

    def _add(self, listed: Iterable[pb.ListResponse.Journal]) -> None:
        for journal in listed:
            name, options = journal.spec.name, self._options
            if name == options.transaction_journal:
                expected = "a journal that gets no rows"
                raise OptionError("transactionJournal", f"{name!r}, which rows are written to", expected)
            framing = framing_name(journal.spec, options.framing, None)
            if options.exactly_once:
                # The records need a place for a UUID.
                if framing not in CONTENT_TYPES:
                    got = f"{framing} for journal {name!r}, and deliveryGuarantee=exactly_once"
                    expected = "lines, csv or fixed, whose records have a place for a UUID"
                    raise OptionError("framing", got, expected)
                locator_for(CONTENT_TYPES[framing], options.uuid_path or "")
            self._framings[name] = framing


class TaskWriter:
    """Writes the rows of one task. For one thread."""

    def __init__(
        self,
        service: AppendService,
        targets: Targets,
        options: WriteOptions,
        columns: WriteColumns,
        *,
        partition: int,
        rng: np.random.Generator,
        producer: TaskProducer | None = None,
    ) -> None:
        """Create a writer. With a ``producer``, its rows are messages of a transaction."""
        self._service = service
        self._targets = targets
        self._options = options
        self._columns = columns
        self._partition = partition
        self._rng = rng
        self._producer = producer
        self._mapping = KeyMapping.of(targets.journals, options.mapping or "modulo")
        self._taken = 0
        self._rows: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._last: dict[str, AsyncAppend] = {}
        self._pending: deque[tuple[AsyncAppend, int]] = deque()
        self._pending_bytes = 0

    def write(self, record_batch: pa.RecordBatch) -> None:
        """Append rows in the background; may wait for room.

        Raises:
            RowError: a row cannot be written. No row of the record batch was.
            GazetteError: an append of this or an earlier record batch failed.
        """
        values = record_batch.column(self._columns.value)
        # Make all checks before all appends. If a row is refused, no other row may have been appended,
        # because the task's retry would append it again.
        self._accepted(check_values(values, self._options.max_record_bytes))
        if self._columns.journal is not None:
            shares = self._accepted(shares_by_name(record_batch.column(self._columns.journal)))
            for share in shares:
                try:
                    validate_journal_name(share.journal)
                except ProtocolError as error:
                    index = 0 if share.rows is None else int(share.rows[0])
                    problem = f"its journal is {share.journal!r} ({error.problem})"
                    self._accepted(RowRefusal(index, problem, "Name a journal that exists"))
            self._targets.learn((share.journal for share in shares), "the column journal")
        elif self._columns.key is not None:
            shares = self._mapping.shares(record_batch.column(self._columns.key), self._rng)
        else:
            shares = shares_at_random(record_batch.num_rows, self._mapping.journals, self._rng)
        options, made = self._options, []
        for share in shares:
            framing = self._targets.framing(share.journal)
            chosen = values if share.rows is None else values.take(int64_array(share.rows))
            result: pa.Array | RowRefusal | Iterator[bytes] = chosen
            if self._producer is not None:
                result = self._producer.stamped(chosen, share.journal, framing)
                # A UUID makes the value longer, and readers have the same limit.
                if not isinstance(result, RowRefusal):
                    result = check_values(result, options.max_record_bytes) or result
            if not isinstance(result, RowRefusal):
                result = encoded(
                    result, framing_named(framing, options.max_record_bytes, options.sep, options.quote)
                )
            if isinstance(result, RowRefusal) and share.rows is not None:
                result = RowRefusal(int(share.rows[result.index]), result.problem, result.advice)
            made.append((share, list(self._accepted(result))))
        for share, pieces in made:
            rows = len(values) if share.rows is None else len(share.rows)
            self._rows[share.journal] = self._rows.get(share.journal, 0) + rows
            for piece in pieces:
                self._append(share.journal, piece)
        self._taken += len(values)

    def finish(self) -> Mapping[str, TaskAppends]:
        """Wait until all rows are appended, and return the appends by journal.

        Each append has its own deadline, so this wait needs no other.

        Raises:
            GazetteError: an append failed.
        """
        # Spark counts the task as done when it returns, and never runs it again.
        self._service.flush(None)
        return {
            journal: TaskAppends(self._rows[journal], self._bytes[journal], last.span[1])
            for journal, last in self._last.items()
        }

    def _append(self, journal: str, piece: bytes) -> None:
        if not piece:  # An empty value under framing none.
            return
        # Back-pressure: Spark's task reads rows only as fast as brokers accept their bytes.
        while self._pending and self._pending_bytes + len(piece) > PENDING_BYTES:
            oldest, size = self._pending.popleft()
            oldest.result()
            self._pending_bytes -= size
        appended = self._service.append(journal, piece)
        # An append fails immediately if an earlier one of its journal has failed. Checking this here stops
        # the task early.
        if appended.done():
            appended.result()  # Raises if this append or an earlier one has failed.
        self._pending.append((appended, len(piece)))
        self._pending_bytes += len(piece)
        self._last[journal] = appended
        self._bytes[journal] = self._bytes.get(journal, 0) + len(piece)

    def _accepted(self, result: T | RowRefusal) -> T:
        if isinstance(result, RowRefusal):
            raise RowError(self._partition, self._taken + result.index, result.problem, result.advice)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The rows of one journal, in their order."""

    journal: str
    rows: Rows | None = None
    """Indices of the rows; None for all rows."""


def shares_by_name(journals: pa.Array) -> list[Share] | RowRefusal:
    """Distribute rows by a column of journals' names; refuse the first row without a name."""
    if journals.null_count:
        index = int(null_rows(journals)[0])
        return RowRefusal(index, "its journal is null", "Name one, or set option 'journal' for all rows")
    if not len(journals):
        return []
    encoded = journals.dictionary_encode()
    # Spark's strings may have bytes that are not UTF-8. No journal has such a name, so it is refused later,
    # in an error that names the row.
    names = valid_texts(encoded.dictionary).to_pylist()
    picks = np.frombuffer(encoded.indices.buffers()[1], np.int32)[: len(journals)].astype(np.int64)
    return shares_of(picks, names)


@dataclass(frozen=True, slots=True, eq=False)
class KeyMapping:
    """The journal of each key, as in :mod:`gazette_spark.client._append.mappings`."""

    journals: tuple[str, ...]
    """At least one, sorted by name."""
    weights: Hashes | None = None
    """Hashes of the names for the mapping ``rendezvous``; None for ``modulo``."""

    @classmethod
    def of(cls, journals: Sequence[str], mapping: str) -> KeyMapping:
        """Return the mapping ``modulo`` or ``rendezvous``."""
        weights = np.array([fnv1a32(name.encode()) for name in journals], np.uint32)
        return cls(tuple(journals), weights if mapping == "rendezvous" else None)

    def shares(self, keys: pa.Array, rng: np.random.Generator) -> list[Share]:
        """Distribute rows by a binary or string column, and rows without a key at random, as Kafka does."""
        # Use the hash of Gazette's own clients, so that programs in Go and Spark put a key into the same
        # journal.
        hashes = fnv1a32_each(value_octets(keys), value_bounds(keys))
        if self.weights is None:
            picks = modulo_picks(hashes, len(self.journals))
        else:
            picks = rendezvous_picks(hashes, self.weights)
        if keys.null_count:
            without = null_rows(keys)
            picks[without] = rng.integers(len(self.journals), size=len(without))
        return shares_of(picks, self.journals)


def shares_at_random(rows: int, journals: Sequence[str], rng: np.random.Generator) -> list[Share]:
    """Distribute rows at random. All journals are equally likely."""
    return shares_of(rng.integers(len(journals), size=rows), journals)


def shares_of(picks: Rows, journals: Sequence[str]) -> list[Share]:
    """Return the share of each journal. ``picks`` has the index of each row's journal."""
    order = np.argsort(picks, kind="stable")
    counts = np.bincount(picks, minlength=len(journals))
    # All rows go to one journal, so no copy by index is needed.
    if len(picks) and counts.max() == len(picks):
        return [Share(journals[int(picks[0])])]
    stops = np.cumsum(counts)
    chosen = np.flatnonzero(counts)
    return [
        Share(journals[int(index)], order[stops[index] - counts[index] : stops[index]]) for index in chosen
    ]
