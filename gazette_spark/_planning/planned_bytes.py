"""Bytes that the planner has read to find the end of a batch, kept for the tasks that are to read them.

A task that is given its bytes asks no broker. Spark carries them through the driver's JVM, so they are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gazette_spark._planning.ranges import Piece

PLANNED_BYTES = 8 << 20
"""Most bytes of a batch."""


class PlannedBytes:
    """The bytes of the ranges of one batch, by journal, as far as they are few."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, bytes]] = {}

    def __repr__(self) -> str:
        return f"PlannedBytes({len(self._kept)} journals)"

    def __contains__(self, journal: object) -> bool:
        """Tell whether all bytes of a journal's range are kept."""
        return journal in self._kept

    def keep(self, begins: Mapping[str, int], ends: Mapping[str, int], contents: Mapping[str, bytes]) -> None:
        """Keep the bytes of a new batch, the smallest ranges first, and forget those of the last one.

        Args:
            begins: Where the batch begins.
            ends: Where it ends.
            contents: Bytes from the begin on; those of the range may not be all there, or not alone.
        """
        self._kept = {}
        left = PLANNED_BYTES
        for size, name in sorted((ends[name] - begins[name], name) for name in contents):
            if size > left:
                return
            if 0 < size <= len(contents[name]):
                self._kept[name] = (begins[name], contents[name][:size])
                left -= size

    def given_to(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Return pieces with their bytes, if these are kept; they stay kept, as Spark may plan again."""
        return [
            replace(piece, content=self._kept[piece.journal][1]) if self._are(piece) else piece
            for piece in pieces
        ]

    def _are(self, piece: Piece) -> bool:
        """Tell whether the bytes that are kept are those of a piece."""
        begin, content = self._kept.get(piece.journal, (0, b""))
        return piece.is_whole and bool(content) and (piece.begin, piece.end) == (begin, begin + len(content))
