"""A query without Spark: calls the driver's reader as Spark does, and keeps the position as Spark does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark import Client
from gazette_spark._planning import listing
from gazette_spark.errors import GazetteError
from gazette_spark.source import GazetteDataSource, StreamReader
from tests.conformance.wire import delete, spec

RAW = StructType().add("journal", StringType()).add("offset", LongType()).add("value", BinaryType())

WAIT_S = 30.0
"""Maximum seconds for brokers to report a change."""

PAUSE_S = 0.05


@dataclass
class Query:
    endpoint: str
    prefix: str
    client: Client
    position: dict[str, Any] = field(default_factory=dict)
    reader: StreamReader | None = None

    def start(self, **options: str) -> Query:
        """Start, or restart at the stored position with a new reader, which has an empty cache."""
        self.stop()
        given = {"brokerAddress": self.endpoint, "startingOffsets": "earliest"}
        if not options.keys() & {"journals", "selector"}:
            given["path"] = self.prefix
        reader = GazetteDataSource(given | options).streamReader(RAW)
        assert isinstance(reader, StreamReader)
        self.reader = reader
        self.position = self.position or reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        return self

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()
            self.reader = None

    def batch(self) -> dict[str, int]:
        """Plan a batch, move to its end, and return the number of bytes it reads by journal."""
        assert self.reader is not None
        end = self.reader.latestOffset(self.position, ReadAllAvailable())
        tasks = self.reader.partitions(self.position, end)
        pieces = [piece for task in tasks for piece in task.pieces]  # type: ignore[attr-defined]  # Partitions of this source.
        self.position = end
        return {self.short(piece.journal): piece.end - piece.begin for piece in pieces}

    def until(self, what: str, reached: Callable[[], bool]) -> None:
        deadline = monotonic() + WAIT_S
        while not reached():
            assert monotonic() < deadline, f"waited in vain: {what}; {self.position}"
            self.batch()
            Event().wait(PAUSE_S)

    def fails(self, expected: type[GazetteError]) -> str:
        with pytest.raises(expected) as caught:
            self.until(expected.__name__, lambda: False)
        return str(caught.value)

    @property
    def offsets(self) -> dict[str, int]:
        return {self.short(name): offset for name, offset in self.position["journals"].items()}

    def short(self, journal: str) -> str:
        return journal.removeprefix(self.prefix)

    def create(self, *shorts: str) -> None:
        self.client.create_journals(*(spec(self.prefix + short) for short in shorts))

    def append(self, short: str, content: bytes) -> None:
        self.client.append(self.prefix + short, content)

    def delete(self, short: str) -> None:
        self.client.apply([delete(self.prefix + short, -1)])

    def settle(self) -> None:
        """Read everything, and wait until the reader switches to its watch."""
        self.until("all is read", lambda: not self.batch())
        Event().wait(listing.FRESH_S + PAUSE_S)
        assert self.batch() == {}
