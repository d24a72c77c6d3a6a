"""What a query makes of journals that come, go and pause, asked of the driver's reader as Spark does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from gazette_spark.client import Client
from gazette_spark.errors import (
    GazetteError,
    JournalNotFoundError,
    JournalRecreatedError,
    OffsetBeyondHeadError,
    SuspendedError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.scan import listings
from gazette_spark.source import GazetteDataSource, StreamReader
from gazette_spark.testing.brokers import BrokerHandle
from tests.conformance.wire import delete, spec, upsert

RAW = StructType().add("journal", StringType()).add("offset", LongType()).add("value", BinaryType())

WAIT_S = 30.0
"""Longest that brokers may take to tell of a change."""

PAUSE_S = 0.05


@dataclass
class Query:
    """A query over a prefix, of which there is the reader and the position that Spark would write down."""

    endpoint: str
    prefix: str
    client: Client
    position: dict[str, Any] = field(default_factory=dict)
    reader: StreamReader | None = None

    def start(self, **options: str) -> Query:
        """Start, or start again where it stands; the reader is a new one, with nothing in its memory."""
        self.stop()
        given = {"brokerAddress": self.endpoint, "startingOffsets": "earliest"}
        if not options.keys() & {"journals", "selector"}:
            given["path"] = self.prefix
        self.reader = GazetteDataSource(given | options).streamReader(RAW)
        self.position = self.position or self.reader.latestOffset(
            self.reader.initialOffset(), ReadAllAvailable()
        )
        return self

    def stop(self) -> None:
        """End the reader."""
        if self.reader is not None:
            self.reader.stop()
            self.reader = None

    def batch(self) -> dict[str, int]:
        """Plan a batch if there is news, go on at its end, and return the bytes it reads by journal."""
        assert self.reader is not None
        end = self.reader.latestOffset(self.position, ReadAllAvailable())
        pieces = [each.piece for each in self.reader.partitions(self.position, end)]  # type: ignore[attr-defined]
        self.position = end
        return {self.short(piece.journal): piece.end - piece.begin for piece in pieces}

    def until(self, what: str, reached: Callable[[], bool]) -> None:
        """Plan batches until they have brought something about."""
        deadline = monotonic() + WAIT_S
        while not reached():
            assert monotonic() < deadline, f"waited in vain: {what}; {self.position}"
            self.batch()
            Event().wait(PAUSE_S)

    def fails(self, expected: type[GazetteError]) -> str:
        """Plan batches until one fails, and return why."""
        with pytest.raises(expected) as caught:
            self.until(expected.__name__, lambda: False)
        return str(caught.value)

    @property
    def offsets(self) -> dict[str, int]:
        """Where it stands, by short name."""
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
        """Read what there is, and let the reader go over to its watch."""
        self.until("all is read", lambda: not self.batch())
        Event().wait(listings.FRESH_S + PAUSE_S)
        assert self.batch() == {}


@pytest.fixture
def query(broker: BrokerHandle, client: Client, fresh_prefix: str) -> Iterator[Query]:
    """A query that has read journal ``a`` of two records, and is neither new nor behind."""
    made = Query(broker.endpoint, fresh_prefix, client)
    made.create("a")
    made.append("a", b"one\ntwo\n")
    made.start().settle()
    yield made
    made.stop()


def test_a_new_journal_is_read_from_its_first_byte(query: Query) -> None:
    """Though the query started at the latest offset of the others; it is recorded before it is read."""
    query.start(startingOffsets="latest").settle()
    query.create("b")
    query.append("b", b"first\n")
    query.until("b is found", lambda: "b" in query.offsets)
    assert query.offsets == {"a": 8, "b": 0}
    assert query.batch() == {"b": 6}


def test_many_new_journals_at_once(query: Query) -> None:
    """All are found in one look."""
    query.create(*(f"n{number:03}" for number in range(40)))
    query.until("they are found", lambda: len(query.offsets) > 1)
    query.until("all are", lambda: len(query.offsets) == 41)


def test_an_empty_journal_has_nothing_to_read(query: Query) -> None:
    """It is recorded once, and read when it is appended to."""
    query.create("b")
    query.until("b is found", lambda: query.offsets.get("b") == 0)
    assert query.batch() == {}
    query.append("b", b"first\n")
    assert query.batch() == {"b": 6}


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_deleted_journal_that_was_read_is_no_loss(query: Query, restarted: bool) -> None:
    """Its offset stays in the position, and the others go on."""
    query.create("b")
    query.append("b", b"all of it\n")
    query.until("b is read", lambda: query.offsets.get("b") == 10)
    query.settle()
    if restarted:
        query.stop()
    query.delete("b")
    if restarted:
        query.start()
    query.append("a", b"three\n")
    query.until("a is read", lambda: query.offsets["a"] == 14)
    assert query.offsets == {"a": 14, "b": 10}


@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_deleted_journal_that_was_not_read_is_a_loss(query: Query, restarted: bool, allowed: bool) -> None:
    """Half a record was left of it, which the query saw; so it says how much, unless losses are allowed."""
    query.start(failOnDataLoss=str(not allowed).lower())
    query.create("b")
    query.append("b", b"whole\nhalf")
    query.until("b is read", lambda: query.offsets.get("b") == 6)
    query.settle()
    if restarted:
        query.stop()
    query.delete("b")
    if restarted:
        query.start(failOnDataLoss=str(not allowed).lower())
    query.append("a", b"three\n")
    if allowed:
        query.until("a is read", lambda: query.offsets["a"] == 14)
        assert query.offsets == {"a": 14, "b": 6}
    else:
        assert "gone, with 4 bytes not read; set failOnDataLoss=false" in query.fails(JournalNotFoundError)


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_journal_made_again_is_an_error(query: Query, restarted: bool) -> None:
    """Even if it has the same bytes, as its stored fragments come back."""
    query.create("b")
    query.append("b", b"all of it\n")
    query.until("b is read", lambda: query.offsets.get("b") == 10)
    query.settle()
    if restarted:
        query.stop()
    query.delete("b")
    query.client.apply([upsert(spec(query.prefix + "b"))])
    if restarted:
        query.start(failOnDataLoss="false")
    assert f"{query.prefix}b': it was deleted and created again" in query.fails(JournalRecreatedError)


def test_a_journal_that_is_not_selected_pauses(query: Query) -> None:
    """It goes on where it was when it is selected again, and is not taken for another one."""
    query.create("b")
    query.append("b", b"first\n")
    query.until("b is read", lambda: query.offsets.get("b") == 6)
    query.start(journals=query.prefix + "a")
    query.append("b", b"second\n")
    query.append("a", b"three\n")
    query.until("a is read", lambda: query.offsets["a"] == 14)
    assert query.offsets["b"] == 6
    query.start()
    assert query.batch() == {"b": 7}


def test_a_suspended_journal_has_nothing_to_read(query: Query) -> None:
    """It keeps its offset, is no loss, and is read on when an append wakes it."""
    query.create("b")
    query.append("b", b"first\n")
    query.until("b is read", lambda: query.offsets.get("b") == 6)
    with pytest.raises(SuspendedError):
        query.client.append(query.prefix + "b", b"", suspend=pb.AppendRequest.SUSPEND_NOW)
    query.settle()
    query.start().settle()
    assert query.offsets == {"a": 8, "b": 6}
    query.append("b", b"second\n")
    query.until("b is read", lambda: query.offsets["b"] == 13)


def test_a_head_below_the_offset_is_an_error(query: Query) -> None:
    """Offsets would be used again for other bytes."""
    query.position["journals"][query.prefix + "a"] = 999
    query.position.pop("heads", None)
    assert "offset 999 was already read, but the journal now ends at 8" in query.fails(OffsetBeyondHeadError)


def test_a_position_of_an_older_release_goes_on(query: Query) -> None:
    """Idle it stays as it is; the next batch is recorded in today's form."""
    query.position = old = {"format_version": 1, "journals": query.position["journals"]}
    query.start()
    assert query.batch() == {}
    assert query.position == old
    query.append("a", b"three\n")
    assert query.batch() == {"a": 6}
    assert query.position["format_version"] == 2
