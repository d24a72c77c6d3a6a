"""Creates events of a small web shop, and appends them to journals in threads, as a service would.

An event's id is a "snowflake": milliseconds, writer, counter. It needs all 63 bits, so the proof detects a
reader that converts it to floating point.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Self

import numpy as np
import numpy.typing as npt

from gazette_spark.client import Client
from gazette_spark.errors import GazetteError, WrongAppendOffsetError

Int64s = npt.NDArray[np.int64]

JOURNALS = ("orders", "payments", "page-views", "telemetry")
"""Last parts of the journals' names. Each journal has one writer and separate kinds of events."""

SCHEMA = (
    "id BIGINT, ts TIMESTAMP, user STRING, kind STRING, amount DOUBLE, country STRING, "
    "device STRUCT<os: STRING, version: INT>, tags ARRAY<STRING>, _journal STRING, _offset BIGINT"
)
"""Schema of the query for ``format=json``; the last two columns are the source's metadata columns."""

EPOCH_MS = 1_577_836_800_000
"""2020-01-01 UTC, from which an id counts milliseconds."""

WRITER_SHIFT, TIME_SHIFT = 17, 22
"""Number of low bits of an id: 17 bits of counter, then 5 bits of writer, then the time."""

MAX_PER_APPEND = 1 << WRITER_SHIFT

APPEND_INTERVAL_S = 0.1
APPEND_TIMEOUT_S = 60.0

_KINDS: tuple[Sequence[str], ...] = (
    ("order_placed", "order_changed", "order_cancelled", "order_shipped"),
    ("authorized", "captured", "refunded", "declined"),
    ("home", "search", "product", "basket", "checkout"),
    ("heartbeat", "slow_request", "cache_miss"),
)
_COUNTRIES = ("DE", "US", "FR", "BR", "JP", "IN", "SE", "ZA")
_SYSTEMS = ("Android", "iOS", "Windows", "macOS", "Linux")
_TAGS = ('"mobile"', '"returning"', '"campaign-äöü"', '"quote \\" and \\\\ slash"', '"日本"')


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Content of one append, and the columns that the proof compares."""

    content: bytes
    """JSON lines."""
    ids: Int64s
    cents: Int64s
    """Each event's amount in hundredths."""


def make_events(random: Random, writer: int, unix_ms: int, count: int) -> EventBatch:
    """Make ``count`` events of one writer for one millisecond. A writer must not use a millisecond twice."""
    if not 0 < count <= MAX_PER_APPEND:
        raise ValueError(f"{count} events do not fit one append; at most {MAX_PER_APPEND} do")
    # The time comes first, so that ids ascend within a journal. The writer's bits distinguish two writers in
    # the same millisecond.
    first = (unix_ms - EPOCH_MS) << TIME_SHIFT | writer << WRITER_SHIFT
    ids = first + np.arange(count, dtype=np.int64)
    cents = np.array(random.choices(range(1, 50_000), k=count), np.int64)
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds")
    ts = moment.replace("+00:00", "Z")
    lines = (
        f'{{"id":{event_id},"ts":"{ts}","user":"u-{user:06d}","kind":"{kind}","amount":{cent / 100},'
        f'"country":"{country}","device":{{"os":"{system}","version":{user % 9 + 8}}},"tags":[{tag}]}}\n'
        for event_id, cent, user, kind, country, system, tag in zip(
            ids.tolist(),
            cents.tolist(),
            random.choices(range(1_000_000), k=count),
            random.choices(_KINDS[writer % len(_KINDS)], k=count),
            random.choices(_COUNTRIES, k=count),
            random.choices(_SYSTEMS, k=count),
            random.choices(_TAGS, k=count),
            strict=True,
        )
    )
    return EventBatch("".join(lines).encode(), ids, cents)


def count_due(rate: float, elapsed_s: float, sent: int) -> int:
    """Return how many events to append now, so that the mean rate is kept even after a delay."""
    # Count from the beginning, not from the last append, so that the writer catches up after a pause of the
    # broker.
    return min(max(int(rate * elapsed_s) - sent, 0), MAX_PER_APPEND)


@dataclass(slots=True)
class Appended:
    """Acknowledged events of one writer. Only its thread changes them."""

    journal: str
    rows: int = 0
    write_head: int = 0
    """Write head after the last acknowledged append."""
    batches: list[EventBatch] = field(default_factory=list)
    """Appended batches, without their content."""


class Writers:
    """Appends to ``journals`` a total of ``rate`` events per second, from ``start`` until ``stop``.

    Leaving its ``with`` block stops the threads. ``error`` is the first failure of any of them.
    """

    def __init__(self, client: Client, journals: list[str], rate: float) -> None:
        self.appended = [Appended(journal) for journal in journals]
        self.error: GazetteError | None = None
        self._client = client
        self._rate_per_journal = rate / len(journals)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, appended), name=f"writer-{number}", daemon=True)
            for number, appended in enumerate(self.appended)
        ]

    @property
    def rows(self) -> int:
        """Number of events acknowledged so far."""
        return sum(appended.rows for appended in self.appended)

    @property
    def heads(self) -> dict[str, int]:
        """Write head of each journal after its last acknowledged append."""
        return {appended.journal: appended.write_head for appended in self.appended}

    def columns(self) -> tuple[Int64s, Int64s]:
        """Return ids and cents of all acknowledged events. Call it after ``stop``."""
        batches = [batch for appended in self.appended for batch in appended.batches]
        none = np.empty(0, np.int64)
        ids = np.concatenate([none, *(batch.ids for batch in batches)])
        return ids, np.concatenate([none, *(batch.cents for batch in batches)])

    def start(self) -> None:
        """Start appending."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait until each writer has finished its current append, and stop it."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(APPEND_TIMEOUT_S + 10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _run(self, number: int, appended: Appended) -> None:
        # Each run has the same events, except for their times and ids.
        random = Random(number)  # noqa: S311 - made-up shop events
        began, last_ms = time.monotonic(), 0
        try:
            while not self._stopping.wait(APPEND_INTERVAL_S):
                count = count_due(self._rate_per_journal, time.monotonic() - began, appended.rows)
                if count == 0:
                    continue
                # Otherwise a clock that is set back would produce the same ids again.
                last_ms = max(time.time_ns() // 1_000_000, last_ms + 1)
                batch = make_events(random, number, last_ms, count)
                appended.write_head = self._append_once(appended.journal, batch.content, appended.write_head)
                # Only acknowledged events are expected in the table. Their bytes are not kept, because a long
                # run would fill the memory.
                appended.batches.append(EventBatch(b"", batch.ids, batch.cents))
                appended.rows += count
        except GazetteError as error:
            self.error = self.error or error
            self._stopping.set()

    def _append_once(self, journal: str, content: bytes, head: int) -> int:
        """Append ``content`` exactly at ``head``, and return the new write head.

        The client repeats an append whose response was lost. With an explicit offset, the repetition fails
        instead of duplicating the events. If the write head is then where the first attempt would have left
        it, that attempt succeeded. (Offset 0 means "anywhere" in the protocol, which is safe for the first
        append because the journals are new and have one writer each.)
        """
        end = head + len(content)
        try:
            return self._client.append(journal, content, offset=head, timeout_s=APPEND_TIMEOUT_S).end
        except WrongAppendOffsetError:
            # Each journal has one writer, so no other writer can have moved the head to exactly this offset.
            if self._client.write_head(journal) == end:
                return end
            raise
