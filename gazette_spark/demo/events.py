"""Events of a small web shop, as the lines a service would append to a journal.

An event's id is a "snowflake": milliseconds, writer, counter. It needs all 63 bits, so a reader that
takes a detour through floating point is caught by the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

JOURNALS = ("orders", "payments", "page-views", "telemetry")
"""Last parts of the journals' names; each has its writer and its kinds of events."""

SCHEMA = (
    "id BIGINT, ts TIMESTAMP, user STRING, kind STRING, amount DOUBLE, country STRING, "
    "device STRUCT<os: STRING, version: INT>, tags ARRAY<STRING>, _journal STRING, _offset BIGINT"
)
"""Schema of the query for ``format=json``; the last two columns are the source's metadata columns."""

EPOCH_MS = 1_577_836_800_000
"""2020-01-01 UTC, where the milliseconds of an id begin."""

WRITER_SHIFT, TIME_SHIFT = 17, 22
"""Low bits of an id: 17 of counter, then 5 of writer, then time."""

MAX_PER_APPEND = 1 << WRITER_SHIFT

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
    """Content of one append, and the columns the proof compares."""

    content: bytes
    """JSON lines."""
    ids: Int64s
    cents: Int64s
    """Each event's amount in hundredths."""


def make_events(random: Random, writer: int, unix_ms: int, count: int) -> EventBatch:
    """Make ``count`` events of one writer at one millisecond, which it must not use twice."""
    if not 0 < count <= MAX_PER_APPEND:
        raise ValueError(f"{count} events do not fit one append; at most {MAX_PER_APPEND} do")
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


def due(rate: float, elapsed_s: float, sent: int) -> int:
    """Return how many events are due now, so that the mean rate holds even after a hold-up."""
    return min(max(int(rate * elapsed_s) - sent, 0), MAX_PER_APPEND)
