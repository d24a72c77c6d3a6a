"""Measures the time from the start of a query to its first row, in a session that is already running."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from bench_data import DataSet
from bench_jobs import Peer
from pyspark.sql import DataFrame

FIRST_ROW_TIMEOUT_S = 60.0

REPEAT = 9
"""Number of queries of each kind and peer. The first is not counted, because Spark compiles code for it."""


@dataclass(frozen=True, slots=True)
class FirstRow:
    """Seconds to the first row of consecutive queries."""

    peer: str
    batch_s: tuple[float, ...]
    """Times from the definition of the DataFrame to the row that ``limit(1).collect()`` returns."""
    stream_s: tuple[float, ...]
    """Times from ``start()``, with an empty checkpoint, to the first batch with rows in ``foreachBatch``."""


def measure(peers: Sequence[Peer], data: DataSet, folder: Path) -> list[FirstRow]:
    """Start queries over typed records, alternating between the peers."""
    batch_s: dict[str, list[float]] = {peer.name: [] for peer in peers}
    stream_s: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for turn in range(REPEAT):
        for peer in peers:
            began = monotonic()
            assert peer.frame(data, typed=True, stream=False).limit(1).collect()
            batch_s[peer.name].append(monotonic() - began)
            frame = peer.frame(data, typed=True, stream=True)
            stream_s[peer.name].append(_first_batch_s(frame, folder / f"{peer.name}-{turn}"))
    return [
        FirstRow(peer.name, tuple(batch_s[peer.name][1:]), tuple(stream_s[peer.name][1:])) for peer in peers
    ]


def _first_batch_s(frame: DataFrame, checkpoint: Path) -> float:
    """Return the seconds from the start of a stream to its first rows."""
    arrived = threading.Event()
    rows_at: list[float] = []

    def take(batch: DataFrame, _batch_id: int) -> None:
        if batch.take(1):
            rows_at.append(monotonic())
            arrived.set()

    began = monotonic()
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()
    try:
        if not arrived.wait(FIRST_ROW_TIMEOUT_S):
            raise SystemExit(f"no row arrived within {FIRST_ROW_TIMEOUT_S:g} s")
    finally:
        query.stop()
    return rows_at[0] - began


def table(measured: Sequence[FirstRow]) -> str:
    """Return the times as markdown."""
    rows = [
        "| reader | batch query: median | range | stream: median | range |",
        "|---|---|---|---|---|",
        *(
            f"| {peer.peer} | {statistics.median(peer.batch_s):.2f} s | {_range(peer.batch_s)} "
            f"| {statistics.median(peer.stream_s):.2f} s | {_range(peer.stream_s)} |"
            for peer in measured
        ),
    ]
    return "\n".join(rows)


def _range(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.2f} to {max(seconds):.2f}"
