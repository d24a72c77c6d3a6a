"""The journals in Spark's progress of a query: the offset read in each, and its write head.

Spark describes each micro-batch in a JSON document, as ``StreamingQueryProgress.json`` has it. For a Gazette
source it has the end of the batch and, as ``latestOffset``, the write heads the source saw when it planned
the batch. The difference is the query's lag, in bytes, at that moment. Later appends are not in it; bytes
beyond the batch's limits are. Spark 4.0 and 4.1 take no write heads from Python sources and name the end of
the batch twice; there the write heads are those that a position itself has.

The end of a batch also names the missing bytes that the batch skips. Malformed records are known to tasks
alone, and Spark takes no figures from Python sources. A query that observes its rows has Spark count them:
see :func:`gazette_spark.listener.count_malformed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gazette_spark.errors import InputError, JsonError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.strict_json import parse_json

TRANSACTIONS = "transactions"
"""Field that the source adds to the write heads of a progress: open transactions, by journal."""

OBSERVED = "gazette"
"""Begin of the names under which a query observes its rows."""


@dataclass(frozen=True, slots=True)
class ProgressLag:
    """Lag of a query in one journal."""

    journal: str
    reached: int
    """Offset of the next byte to read."""
    head: int | None
    """The write head; None if it was not seen: the journal is new, not selected any more, or gone."""
    source: int = 0
    """Index of the source in the query, from 0, foreign ones counted."""

    @property
    def lag_bytes(self) -> int | None:
        """Bytes left to read; None if the head was not seen."""
        return None if self.head is None else max(0, self.head - self.reached)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that its producer has neither committed nor rolled back."""

    producer: str
    """The producer's id, in hexadecimal digits."""
    begin: int
    """Offset of its first message."""
    newest_ms: int
    """Time of its newest message, in milliseconds since 1970, by the producer's clock."""


@dataclass(frozen=True, slots=True)
class JournalTransactions:
    """The open transactions of a journal."""

    journal: str
    at: int
    """Offset at which they were open: an end of a batch."""
    count: int
    oldest: tuple[OpenTransaction, ...]
    """At most ten of them, the one that begins first at the front."""

    @property
    def held_bytes(self) -> int:
        """Bytes since the first one's begin: it needs them to be there until it ends."""
        return self.at - self.oldest[0].begin


@dataclass(frozen=True, slots=True)
class QueryLag:
    """Lag of a query when a batch was planned."""

    query_id: str
    """Stays the same as long as the query's checkpoint does."""
    run_id: str
    name: str
    """Empty for a query without a name."""
    batch_id: int
    timestamp: str
    """Start of the batch, ISO 8601 in UTC, as Spark has it."""
    journals: tuple[ProgressLag, ...]
    """Lag of each journal, by source, then by name."""
    skipped_bytes: int = 0
    """Missing bytes that the batch skips under ``failOnDataLoss=false``."""
    malformed: int | None = None
    """Malformed records of the batch; None if the query does not count them."""
    transactions: tuple[JournalTransactions, ...] = ()
    """Of a query of committed messages, the transactions that were open where the batch began."""

    @property
    def total_bytes(self) -> int:
        """Bytes left to read in all journals whose heads were seen."""
        return sum(lag.lag_bytes or 0 for lag in self.journals)

    @property
    def unseen(self) -> int:
        """Number of journals whose heads were not seen."""
        return sum(lag.head is None for lag in self.journals)

    @property
    def worst(self) -> ProgressLag | None:
        """The journal with most left to read; None if nothing is."""
        behind = [lag for lag in self.journals if lag.lag_bytes]
        return max(behind, key=lambda lag: lag.lag_bytes or 0, default=None)

    def by_journal(self) -> dict[str, int | None]:
        """Return the bytes left by journal; of one that several sources read, the most."""
        remaining_bytes: dict[str, int | None] = {}
        for lag in self.journals:
            before = remaining_bytes.get(lag.journal)
            # Two sources of a query read a journal twice, each at its own pace. The one that is behind
            # decides when its bytes may go.
            remaining_bytes[lag.journal] = (
                lag.lag_bytes if before is None else max(before, lag.lag_bytes or 0)
            )
        return remaining_bytes


def query_lag(progress: str | Mapping[str, Any]) -> QueryLag:
    """Return the lag in a progress.

    Args:
        progress: the JSON document, or the parsed one. Sources other than Gazette's are left out.

    Raises:
        InputError: the document is not a progress of Spark.
        OffsetError: a Gazette position in it was written by a later release.
    """
    value: object = progress
    if not isinstance(progress, Mapping):
        try:
            value = parse_json(progress)
        except JsonError as error:
            raise InputError(f"a progress is a JSON object, and this is {error}") from None
    if not isinstance(value, Mapping):
        raise InputError("a progress is a JSON object")
    sources = value.get("sources")
    if (
        # Only what is used is checked: later releases of Spark may add fields.
        not isinstance(value.get("batchId"), int)
        or not isinstance(sources, list)
        or not all(isinstance(source, Mapping) for source in sources)
    ):
        raise InputError(
            "a progress is a JSON object with batchId and sources, as StreamingQueryProgress.json"
        )
    # Numbered before Gazette's are picked out, so that the numbers are those of Spark's own plan.
    lags = tuple(lag for number, source in enumerate(sources) for lag in _lags(number, source))
    skipped_bytes = 0
    for source in sources:
        # A position keeps its gaps until it moves on, so those before the batch's start do not count.
        start, end = _position(source.get("startOffset")), _position(source.get("endOffset"))
        begins = start.read_through if start else {}
        for journal, gaps in (end.gaps if end else {}).items():
            skipped_bytes += sum(max(0, high - max(low, begins.get(journal, 0))) for low, high in gaps)
    metrics = value.get("observedMetrics")
    rows = [
        row
        for name, row in (metrics if isinstance(metrics, Mapping) else {}).items()
        # A query may observe other things, under names of its own.
        if str(name).startswith(OBSERVED)
    ]
    malformed = [row["malformed"] for row in rows if isinstance(row, Mapping) and "malformed" in row]
    if not all(isinstance(count, int | None) for count in malformed):
        raise InputError(
            f"the observed metric {OBSERVED!r} has counts of malformed records, got {malformed!r:.80}"
        )
    texts = {key: str(value.get(key) or "") for key in ("id", "runId", "name", "timestamp")}
    return QueryLag(
        texts["id"],
        texts["runId"],
        texts["name"],
        value["batchId"],
        texts["timestamp"],
        lags,
        skipped_bytes=skipped_bytes,
        # None is not 0: without an observed column, nobody has counted.
        malformed=sum(count or 0 for count in malformed) if malformed else None,
        transactions=tuple(opened for source in sources for opened in _transactions(source)),
    )


def _lags(number: int, source: Mapping[str, Any]) -> Iterator[ProgressLag]:
    end = _position(source.get("endOffset"))
    if end is None:
        return
    latest = _position(source.get("latestOffset"))
    heads = latest.read_through if latest else {}
    for journal, reached in end.read_through.items():
        seen = latest.head_seen(journal) if latest else None
        # Where the position has the head that was seen, latestOffset may be the end of the batch: Spark 4.0
        # and 4.1 put that there.
        yield ProgressLag(journal, reached, heads.get(journal) if seen is None else seen, number)


def _transactions(source: Mapping[str, Any]) -> Iterator[JournalTransactions]:
    if _position(source.get("endOffset")) is None:
        return
    yield from journal_transactions(_json_object(source.get("latestOffset")).get(TRANSACTIONS, {}))


def journal_transactions(progress_form: Mapping[str, Any]) -> Iterator[JournalTransactions]:
    """Yield the open transactions of each journal, from their form in a progress.

    Raises:
        InputError: they have another form.
    """
    for journal, opened in progress_form.items() if isinstance(progress_form, Mapping) else ():
        match opened:
            case {"at": int(at), "count": int(count), "oldest": Mapping() as named}:
                oldest = [_transaction(journal, begin, transaction) for begin, transaction in named.items()]
                # JSON objects have no order to rely on.
                oldest.sort(key=lambda transaction: transaction.begin)
                yield JournalTransactions(journal, at, count, tuple(oldest))
            case _:
                raise InputError(f"open transactions of journal {journal!r}: got {opened!r:.80}")


def _transaction(journal: str, begin: str, value: object) -> OpenTransaction:
    match value:
        case {"producer": str(producer), "newest_ms": int(newest_ms)} if re.fullmatch("[0-9]{1,19}", begin):
            return OpenTransaction(producer, int(begin), newest_ms)
    raise InputError(f"an open transaction of journal {journal!r} at {begin!r:.30}: got {value!r:.80}")


def _position(value: object) -> JournalOffsets | None:
    """Return a Gazette position; None for another source's position, or a missing one."""
    fields = _json_object(value)
    # A query may have other sources, whose positions have any form.
    if not fields.keys() >= {"format_version", "journals"}:
        return None
    # Transactions are added for people only, and are no part of a position that Spark stores.
    return JournalOffsets.from_dict({key: field for key, field in fields.items() if key != TRANSACTIONS})


def _json_object(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        # Spark embeds what is JSON, and gives the rest as text; what was printed from Java says "null".
        try:
            value = parse_json(value)
        except JsonError:
            return {}
    return value if isinstance(value, Mapping) else {}
