"""Threads that append events to the journals, one writer a journal, and record acknowledged events."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from random import Random
from typing import Self

import numpy as np

from gazette_spark.client import Client
from gazette_spark.demo.events import EventBatch, Int64s, due, make_events
from gazette_spark.errors import GazetteError, WrongAppendOffsetError

INTERVAL_S = 0.1
"""Time between two appends of a writer."""

APPEND_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Appended:
    """Acknowledged events of one writer. Written by its thread only; ``ids`` and ``cents`` grow together."""

    journal: str
    rows: int = 0
    end: int = 0
    """Write head after the last acknowledged append."""
    ids: list[Int64s] = field(default_factory=list)
    cents: list[Int64s] = field(default_factory=list)

    def add(self, batch: EventBatch, end: int) -> None:
        """Record an acknowledged append."""
        self.ids.append(batch.ids)
        self.cents.append(batch.cents)
        self.rows += len(batch.ids)
        self.end = end


def append_once(client: Client, journal: str, content: bytes, head: int) -> int:
    """Append ``content`` at ``head`` exactly, and return the new write head.

    An append whose answer was lost is sent again by the client. Naming the offset makes the second try
    fail instead of doubling the events; if the head then is where the first try left it, it had landed.
    (An offset of 0 means "anywhere" on the wire; the journals are new and have one writer.)
    """
    try:
        return client.append(journal, content, offset=head, timeout_s=APPEND_TIMEOUT_S).end
    except WrongAppendOffsetError:
        if client.write_head(journal) == head + len(content):
            return head + len(content)
        raise


class Writers:
    """Appends to ``journals`` at ``rate`` events a second in all, from ``start`` until ``stop``.

    A context manager; leaving it stops the threads. ``error`` is the first failure of any of them.
    """

    def __init__(self, client: Client, journals: list[str], rate: float, seed: int = 0) -> None:
        self.appended = [Appended(journal) for journal in journals]
        self.error: GazetteError | None = None
        self._client = client
        self._rate_each = rate / len(journals)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, seed), name=f"writer-{number}", daemon=True)
            for number in range(len(journals))
        ]

    @property
    def rows(self) -> int:
        """Events acknowledged so far."""
        return sum(each.rows for each in self.appended)

    @property
    def size_bytes(self) -> int:
        """Bytes acknowledged so far; the journals began empty."""
        return sum(each.end for each in self.appended)

    @property
    def heads(self) -> dict[str, int]:
        """Write head of each journal as of its last acknowledged append."""
        return {each.journal: each.end for each in self.appended}

    def columns(self) -> tuple[Int64s, Int64s]:
        """Return ids and cents of all acknowledged events. Call it after ``stop``."""
        ids = [part for each in self.appended for part in each.ids]
        cents = [part for each in self.appended for part in each.cents]
        return np.concatenate([np.empty(0, np.int64), *ids]), np.concatenate([np.empty(0, np.int64), *cents])

    def start(self) -> None:
        """Start appending."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each writer finish the append it is in, and wait for that."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(APPEND_TIMEOUT_S + 10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _run(self, number: int, seed: int) -> None:
        try:
            self._append_until_stopped(number, Random(f"{seed}/{number}"))  # noqa: S311 - made-up shop events
        except GazetteError as error:
            self.error = self.error or error
            self._stopping.set()

    def _append_until_stopped(self, number: int, random: Random) -> None:
        mine = self.appended[number]
        began, last_ms = time.monotonic(), 0
        while not self._stopping.wait(INTERVAL_S):
            count = due(self._rate_each, time.monotonic() - began, mine.rows)
            if count:
                last_ms = max(time.time_ns() // 1_000_000, last_ms + 1)
                batch = make_events(random, number, last_ms, count)
                mine.add(batch, append_once(self._client, mine.journal, batch.content, mine.end))
