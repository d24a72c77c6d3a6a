"""Lag in records: counted, where the unread bytes are few enough to be read for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_spark.errors import GazetteError
from gazette_spark.lag.monitor import Monitor, Unread
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_NDJSON, values_of

if TYPE_CHECKING:
    from gazette_spark.client import Client
    from gazette_spark.protocol import protocol_pb2 as pb

LINES = frozenset({"", CONTENT_TYPE_NDJSON, "application/json", "text/plain"})
"""Content types of journals whose records are lines; those without one are read as lines, too."""


class RecordFeed:
    """Counts the unread records of journals whose records are lines.

    Args:
        client: client for the reads; the caller closes it.
        limit_bytes: maximum bytes read in a round; records beyond it are not counted.
    """

    groups: tuple[str, ...] = ()

    def __init__(self, client: Client, limit_bytes: int) -> None:
        self._client = client
        self._limit_bytes = limit_bytes
        self._counted: dict[Unread, int] = {}

    def __repr__(self) -> str:
        return "records"

    def poll(self, monitor: Monitor, now_ms: int) -> None:
        """Count what changed since the last round, the shortest ranges first."""
        left = self._limit_bytes
        counted: dict[Unread, int] = {}
        for unread in sorted(monitor.unread(now_ms), key=lambda each: each.end - each.begin):
            size = unread.end - unread.begin
            if unread in self._counted:
                counted[unread] = self._counted[unread]
            elif size <= left:
                left -= size
                if (count := self._count(unread)) is not None:
                    counted[unread] = count
        self._counted = counted
        monitor.observe_records(counted)

    def _count(self, unread: Unread) -> int | None:
        """Return the lines of a range; None if its records are no lines, or it cannot be read."""
        try:
            if not has_lines(self._client.get_journal(unread.journal).spec):
                return None
            reader = self._client.read(unread.journal, offset=unread.begin, end_offset=unread.end)
            return sum(chunk.content.count(b"\n") for chunk in reader)
        except GazetteError:
            # Why is said where the write heads are asked for; here it is merely not known.
            return None


def has_lines(spec: pb.JournalSpec) -> bool:
    """Tell whether a journal's records are lines."""
    return next(iter(values_of(spec.labels, CONTENT_TYPE)), "") in LINES
