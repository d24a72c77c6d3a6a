"""Journals of every framing are planned and read through a broker, in pieces, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gazette_spark import Client, JournalOffsets
from gazette_spark._formats.fixed import frame
from gazette_spark._formats.registry import framing_named
from gazette_spark._options.source import parse_options
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.plan import Planner
from gazette_spark.client import journal_spec
from gazette_spark.errors import RecordError
from tests.oracles import framings

pytestmark = pytest.mark.brokers("embedded", "deployed")

FRAGMENT_BYTES = 4096
RECORDS = {
    "application/x-ndjson": [b'{"id": %d}\n' % at for at in range(1500)],
    "text/csv": [b'%d,"a ""b"",\n"\r\n' % at for at in range(1500)],
    "application/x-protobuf-fixed": [frame(frame(b"%d" % at) * 2) for at in range(800)],
}
NAMES = {"application/x-ndjson": "lines", "text/csv": "csv", "application/x-protobuf-fixed": "fixed"}


def create(client: Client, journal: str, content_type: str) -> None:
    labels = {"content-type": content_type}
    client.create_journals(journal_spec(journal, labels=labels, length=FRAGMENT_BYTES))


def planner_of(client: Client, journal: str, **options: str) -> Planner:
    given = {"brokerAddress": client.endpoint, "path": journal, "maxBytesPerPartition": "6k"} | options
    return Planner(client, parse_options(given, "batch", environ={}))


ROWS = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def rows_of(client: Client, piece: Piece) -> list[tuple[int, bytes]]:
    framing = framing_named(piece.framing, 1 << 20)
    scan = PieceScan(client, piece, fail_on_data_loss=True, framing=framing)
    found = raw_record_batches(scan, ROWS, framing=framing)
    return [row for batch in found for row in zip(*batch.to_pydict().values(), strict=True)]


@pytest.mark.parametrize("content_type", list(RECORDS), ids=list(NAMES.values()))
def test_every_record_is_read_once(client: Client, journal_name: str, content_type: str) -> None:
    records = RECORDS[content_type]
    create(client, journal_name, content_type)
    for low in range(0, len(records), 100):
        client.append(journal_name, b"".join(records[low : low + 100]))
    client.append(journal_name, records[0][:-1])
    content = b"".join(records)
    planner = planner_of(client, journal_name)
    start, end = planner.batch()
    assert end == JournalOffsets({journal_name: len(content)})
    pieces = planner.pieces(start, end)
    assert len(pieces) > 2
    assert {piece.framing for piece in pieces} == {NAMES[content_type]}
    found = [row for piece in pieces for row in rows_of(client, piece)]
    expected = framings.read(NAMES[content_type], content).records
    assert found == [(offset, value) for offset, value, _ in expected]


def test_appends_that_cut_records_are_found_out(client: Client, journal_name: str) -> None:
    """A fragment may then begin inside a record: several pieces are an error, and a single piece is exact."""
    content = frame(b"x" * 1500) * 20
    create(client, journal_name, "application/x-protobuf-fixed")
    for low in range(0, len(content), 1000):
        client.append(journal_name, content[low : low + 1000])
    planner = planner_of(client, journal_name)
    pieces = planner.pieces(*planner.batch())
    with pytest.raises(RecordError, match="each append must contain whole records"):
        [rows_of(client, piece) for piece in pieces]
    planner = planner_of(client, journal_name, maxBytesPerPartition="1m")
    (piece,) = planner.pieces(*planner.batch())
    assert [value for _, value in rows_of(client, piece)] == [b"x" * 1500] * 20
