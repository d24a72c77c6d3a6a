"""Reads the lag of a query from Spark's progress: the offset read in each journal, and its write head.

Spark describes each micro-batch in a JSON document, ``StreamingQueryProgress.json``. For a Gazette source, it
has the end of the batch and, as ``latestOffset``, the write heads that the source saw when it planned the
batch. The difference is the query's lag at that moment, in bytes. It includes bytes beyond the batch's
limits, but not later appends. Spark 4.0 and 4.1 accept no write heads from Python sources and report the end
of the batch twice. With these releases, the write heads come from the position itself.

The end of a batch also contains the missing bytes that the batch skips. Only tasks see malformed records, and
Spark accepts no metrics from Python sources. But a query can let Spark count them by observing its rows; see
:func:`gazette_spark.listener.count_malformed`.
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
"""Prefix of the metrics' names with which a query observes its rows."""


@dataclass(frozen=True, slots=True)
class ProgressLag:
    """Lag of a query in one journal."""

    journal: str
    reached: int
    """Offset of the next byte to read."""
    head: int | None
    """The write head; None if it was not seen, because the journal is new, no longer selected, or gone."""
    source: int = 0
    """Index of the source in the query, from 0, including other kinds of sources."""

    @property
    def lag_bytes(self) -> int | None:
        """Number of unread bytes; None if the head was not seen."""
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
    """Offset at which they were open, which is the end of a batch."""
    count: int
    oldest: tuple[OpenTransaction, ...]
    """At most ten of them, the earliest first."""

    @property
    def held_bytes(self) -> int:
        """Number of bytes since the first one began, which must be kept until it ends."""
        return self.at - self.oldest[0].begin


@dataclass(frozen=True, slots=True)
class QueryLag:
    """Lag of a query when a batch was planned."""

    query_id: str
    """Id of the query, which stays the same as long as its checkpoint."""
    run_id: str
    name: str
    """Name of the query; empty if it has none."""
    batch_id: int
    timestamp: str
    """Start of the batch, in ISO 8601 and UTC, as Spark reports it."""
    journals: tuple[ProgressLag, ...]
    """Lag of each journal, by source, then by name."""
    skipped_bytes: int = 0
    """Number of missing bytes that the batch skips under ``failOnDataLoss=false``."""
    malformed: int | None = None
    """Number of malformed records of the batch; None if the query does not count them."""
    transactions: tuple[JournalTransactions, ...] = ()
    """Transactions that were open at the start of the batch, if the query reads committed messages."""

    @property
    def total_bytes(self) -> int:
        """Number of unread bytes in all journals whose heads were seen."""
        return sum(lag.lag_bytes or 0 for lag in self.journals)

    @property
    def unseen(self) -> int:
        """Number of journals whose heads were not seen."""
        return sum(lag.head is None for lag in self.journals)

    @property
    def worst(self) -> ProgressLag | None:
        """The journal with the most unread bytes; None if there are none."""
        behind = [lag for lag in self.journals if lag.lag_bytes]
        return max(behind, key=lambda lag: lag.lag_bytes or 0, default=None)

    def by_journal(self) -> dict[str, int | None]:
        """Return the unread bytes by journal; if several sources read a journal, the largest number."""
        remaining_bytes: dict[str, int | None] = {}
        for lag in self.journals:
            before = remaining_bytes.get(lag.journal)
            # Two sources of a query may read the same journal, each at its own pace. The slower one decides
            # when bytes may be deleted.
            remaining_bytes[lag.journal] = (
                lag.lag_bytes if before is None else max(before, lag.lag_bytes or 0)
            )
        return remaining_bytes


def query_lag(progress: str | Mapping[str, Any]) -> QueryLag:
    """Return the lag in a progress.

    Args:
        progress: the JSON document, or its parsed form. Sources other than Gazette's are ignored.

    Raises:
        InputError: the document is not Spark's progress of a query.
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
        # Only the fields in use are checked, because later releases of Spark may add others.
        not isinstance(value.get("batchId"), int)
        or not isinstance(sources, list)
        or not all(isinstance(source, Mapping) for source in sources)
    ):
        raise InputError(
            "a progress is a JSON object with batchId and sources, as StreamingQueryProgress.json"
        )
    # Numbered before other sources are skipped, so that the numbers are the same as in Spark's plan.
    lags = tuple(lag for number, source in enumerate(sources) for lag in _lags(number, source))
    skipped_bytes = 0
    for source in sources:
        # A position keeps its gaps until it advances, so gaps before the batch's start do not count.
        start, end = _position(source.get("startOffset")), _position(source.get("endOffset"))
        begins = start.read_through if start else {}
        for journal, gaps in (end.gaps if end else {}).items():
            skipped_bytes += sum(max(0, high - max(low, begins.get(journal, 0))) for low, high in gaps)
    metrics = value.get("observedMetrics")
    rows = [
        row
        for name, row in (metrics if isinstance(metrics, Mapping) else {}).items()
        # A query may also observe other metrics.
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
        # None is not 0: without an observed column, nothing was counted.
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
        # If the position has the head that was seen, use it: with Spark 4.0 and 4.1, latestOffset is the end
        # of the batch.
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
                # The order of JSON objects is not reliable.
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
    # Transactions are only added for users, and are not part of a position that Spark stores.
    return JournalOffsets.from_dict({key: field for key, field in fields.items() if key != TRANSACTIONS})


def _json_object(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        # Spark embeds offsets that are JSON, and others as text, which may be "null" from Java.
        try:
            value = parse_json(value)
        except JsonError:
            return {}
    return value if isinstance(value, Mapping) else {}
