"""Counts what a client has read and appended, with the names of Gazette's Go client.

A client counts without a library for metrics; :meth:`ClientMetrics.exposition` writes Prometheus' text
format. ``gazette-spark lag serve`` exposes its own client's counters under ``/metrics``.
"""

from __future__ import annotations

import threading
from collections import Counter

from gazette_spark.protocol import protocol_pb2 as pb

APPEND_BYTES = "gazette_append_bytes_total"
READ_BYTES = "gazette_read_bytes_total"
FRAGMENT_OPEN = "gazette_fragment_open_total"
READ_FRAGMENT_BYTES = "gazette_read_fragment_bytes_total"
DISCARD_FRAGMENT_BYTES = "gazette_discard_fragment_bytes_total"

COUNTERS = {
    APPEND_BYTES: ("Total number of journal bytes appended.", ("journal",)),
    READ_BYTES: ("Total number of journal bytes read.", ("journal",)),
    FRAGMENT_OPEN: ("Total number of journal fragments opened for reading.", ("journal", "codec")),
    READ_FRAGMENT_BYTES: (
        "Total number of uncompressed journal fragment bytes read, excluding discarded bytes.",
        ("journal", "codec"),
    ),
    DISCARD_FRAGMENT_BYTES: (
        "Total number of uncompressed journal fragment bytes discarded while seeking to desired offset.",
        ("journal", "codec"),
    ),
}
"""Help text and labels by name."""


class ClientMetrics:
    """Counters of one client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def add(self, name: str, amount: int, journal: str, codec: int | None = None) -> None:
        """Count an amount for a journal, ignoring its metadata suffix, and for a codec's number."""
        labels: tuple[str, ...] = (journal.partition(";")[0],)
        if codec is not None:
            is_named = codec in pb.CompressionCodec.values()
            labels += (
                pb.CompressionCodec.Name(pb.CompressionCodec.ValueType(codec)) if is_named else str(codec),
            )
        with self._lock:
            self._values[name, labels] += amount

    def values(self) -> dict[tuple[str, tuple[str, ...]], int]:
        """Return all counters, by name and labels."""
        with self._lock:
            return dict(self._values)

    def exposition(self) -> str:
        """Return the counters in Prometheus' text format."""
        values = sorted(self.values().items())
        lines = []
        for name, (text, labels) in COUNTERS.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} counter"]
            for (counter, label_values), value in values:
                if counter == name:
                    # Names of journals and codecs need no escaping, because brokers refuse such characters.
                    pairs = zip(labels, label_values, strict=True)
                    shown = ",".join(f'{label}="{text}"' for label, text in pairs)
                    lines.append(f"{name}{{{shown}}} {value}")
        return "\n".join(lines) + "\n"
