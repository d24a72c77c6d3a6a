"""A planner on a broker finds times among stored fragments, and ends limited batches with fragments."""

from __future__ import annotations

import os

import pytest

from gazette_spark import Client, JournalOffsets
from gazette_spark._options.source import parse_options
from gazette_spark._options.table import Use
from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.plan import Planner
from gazette_spark.client import journal_spec
from gazette_spark.errors import OffsetError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.conformance.wire import wait_for
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")

RECORD = b"%063d\n"
STORED_S = (1_600_000_000, 1_600_000_100, 1_600_000_200)
"""Storage times given to the first three fragments, in seconds since 1970; the last one is not stored."""


def planner_of(client: Client, journal: str, use: Use = "batch", **options: str) -> Planner:
    given = {"brokerAddress": client.endpoint, "path": journal} | options
    return Planner(client, parse_options(given, use, environ={}))


def fragments(client: Client, journal: str) -> list[Fragment]:
    return [each.fragment for each in client.list_fragments(journal)]


def times(client: Client, journal: str) -> tuple[int, ...]:
    """Return the time at which each fragment was stored, or 0 if it is not stored."""
    return tuple(fragment.mod_time for fragment in fragments(client, journal))


@pytest.fixture
def begins(broker: BrokerHandle, client: Client, journal_name: str) -> list[int]:
    """Fill a journal with four fragments of 20 records, and return their begins."""
    client.create_journals(journal_spec(journal_name, length=1024, codec="GZIP", refresh_interval_s=1))
    for low in range(0, 80, 20):
        client.append(journal_name, b"".join(RECORD % n for n in range(low, low + 20)))
    count = len(STORED_S)
    wait_for(lambda: all(times(client, journal_name)[:count]), "fragments to be stored")
    for fragment, seconds in zip(fragments(client, journal_name), STORED_S, strict=False):
        os.utime(broker.file_root / fragment.content_path, (seconds, seconds))
    wait_for(lambda: times(client, journal_name)[:count] == STORED_S, "the broker to list the store again")
    return [fragment.begin for fragment in fragments(client, journal_name)]


@pytest.mark.brokers("embedded", "deployed")
def test_times_are_found_among_fragments(client: Client, journal_name: str, begins: list[int]) -> None:
    assert begins == [0, 1280, 2560, 3840]
    places = {"0": 0, "1600000000999": 0, "1600000001000": 1280, "1600000200000": 2560, "1600000201000": 3840}
    for timestamp, place in places.items():
        start, end = planner_of(client, journal_name, startingTimestamp=timestamp).batch()
        assert (start, end) == tuple(JournalOffsets({journal_name: at}) for at in (place, 5120))
        ended = planner_of(client, journal_name, endingTimestamp=timestamp).batch()
        assert ended == tuple(JournalOffsets({journal_name: at}) for at in (0, place))


def test_a_time_after_all_bytes_is_an_error_or_the_latest(client: Client, journal_name: str) -> None:
    """It is an error, or by option the latest offset, as in Spark's Kafka source."""
    client.create_journals(journal_spec(journal_name))
    options = {"startingTimestamp": "1600000000000"}
    with pytest.raises(OffsetError, match="nothing was stored at startingTimestamp 1600000000000 or later"):
        planner_of(client, journal_name, "stream", **options).initial()
    options["startingOffsetsByTimestampStrategy"] = "latest"
    start = planner_of(client, journal_name, "stream", **options).initial()
    assert start == JournalOffsets({journal_name: 0}, "initial")


def test_batches_end_with_fragments(client: Client, journal_name: str, begins: list[int]) -> None:
    planner = planner_of(client, journal_name, "stream")
    position, ends = JournalOffsets({journal_name: 0}), []
    planner.freeze()
    while (end := planner.next(position, ReadLimits(max_fragments=2))) != position:
        ends.append(end.read_through[journal_name])
        position = end
    assert ends == [2560, 5120]


def test_pieces_are_whole_fragments(client: Client, journal_name: str, begins: list[int]) -> None:
    """A compressed journal's pieces are whole fragments, unless that leaves too few for the cores."""
    planner = planner_of(client, journal_name, minPartitions="4")
    pieces = planner.pieces(*planner.batch())
    assert [piece.begin for piece in pieces] == [0, 1281, 2561, 3841]
    planner = planner_of(client, journal_name, minPartitions="9")
    assert len(planner.pieces(*planner.batch())) >= 9


def test_a_deleted_journal_that_was_read_is_no_loss(client: Client, journal_name: str) -> None:
    client.create_journals(journal_spec(journal_name))
    client.append(journal_name, b"whole\n")
    planner = planner_of(client, journal_name, "stream")
    position = planner.next(JournalOffsets({journal_name: 0}))
    client.apply([pb.ApplyRequest.Change(delete=journal_name, expect_mod_revision=-1)])
    assert planner.next(position) == position
