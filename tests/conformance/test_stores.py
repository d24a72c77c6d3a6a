"""What brokers have stored is read with and without them: overlaps come once, and times are the store's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from gazette_spark import Client
from gazette_spark._options.source import SourceOptions, parse_options
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from gazette_spark._planning.plan import Planner
from gazette_spark._planning.stores import listed_store, open_store
from gazette_spark.client import journal_spec
from gazette_spark.errors import DataLossError, FragmentConflictError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.oracles.stores import Row, encoded, fragment_of, plan, read, rows_of
from tests.rig.brokers import BrokerHandle
from tests.waiting import wait_until

pytestmark = pytest.mark.brokers("embedded")

PARTS = 3
CODECS = ["NONE", "GZIP", "SNAPPY", "ZSTANDARD"]
TIMES = pa.schema([("offset", pa.int64()), ("_fragment_mod_time", pa.timestamp("us", "UTC"))])


@dataclass
class Stored:
    client: Client
    root: Path
    name: str
    content: bytes

    def persisted(self) -> list[Fragment]:
        listed = [each.fragment for each in self.client.list_fragments(self.name)]
        return [each for each in listed if each.mod_time]

    def store(self, **options: str) -> SourceOptions:
        given = {"fragmentStore": f"file://{self.root}", "framing": "lines", "path": self.name} | options
        return parse_options(given, "batch", environ={})

    def put(self, begin: int, end: int) -> None:
        content = self.content[begin:end]
        fragment = fragment_of(self.name, begin, content, pb.GZIP)
        (self.root / fragment.content_path).write_bytes(encoded(content, pb.GZIP))

    def records(self, end: int | None = None) -> list[Row]:
        """Return the whole records up to an offset, the slow and obvious way."""
        found, at = [], 0
        for line in self.content[:end].splitlines(keepends=True):
            found.append((self.name, at, line[:-1]))
            at += len(line)
        return found

    def rows(self, **options: str) -> list[tuple[object, ...]]:
        given = {"brokerAddress": self.client.endpoint, "path": self.name} | options
        parsed = parse_options(given, "batch", environ={})
        planner = Planner(self.client, parsed)
        found: list[tuple[object, ...]] = []
        for piece in planner.pieces(*planner.batch()):
            scan = PieceScan(self.client, piece, fail_on_data_loss=parsed.fail_on_data_loss)
            for record_batch in raw_record_batches(scan, TIMES):
                found += zip(*record_batch.to_pydict().values(), strict=True)
        return found


def filled(client: Client, broker: BrokerHandle, name: str, codec: str, postfix: str = "") -> Stored:
    spec = journal_spec(name, length=1024, codec=codec, refresh_interval_s=1, path_postfix_template=postfix)
    client.create_journals(spec)
    content = b""
    for n in range(PARTS + 1):
        part = b"".join(b"record %d of part %d, of some length\n" % (i, n) for i in range(32))
        client.append(name, part)
        content += part
    made = Stored(client, broker.file_root, name, content)
    wait_until("fragments to be stored", lambda: len(made.persisted()) >= PARTS)
    return made


@pytest.fixture(params=["broker", "directly"])
def reading(request: pytest.FixtureRequest, broker: BrokerHandle) -> Iterator[Client]:
    root = str(broker.file_root) if request.param == "directly" else None
    with Client(broker.endpoint, timeout_s=30, fragment_root=root) as client:
        yield client


@pytest.mark.parametrize("codec", CODECS)
def test_a_store_holds_what_the_broker_had(
    client: Client, broker: BrokerHandle, journal_name: str, codec: str
) -> None:
    stored = filled(client, broker, journal_name, codec)
    for cut in ({}, {"maxBytesPerPartition": "500"}):
        options = stored.store(**cut)
        files = open_store(options.fragment_store or "")
        assert read(files, options, plan(files, options)) == stored.records(stored.persisted()[-1].end)


@pytest.mark.brokers("embedded", "deployed")
def test_a_postfix_is_no_part_of_the_name(client: Client, broker: BrokerHandle, fresh_prefix: str) -> None:
    """A template's directories lie between journal and fragment; an option has to say how many there are."""
    template = 'deep/date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
    stored = filled(client, broker, f"{fresh_prefix}a", "GZIP", template)
    files = open_store(f"file://{broker.file_root}")
    rows = rows_of(files, path=fresh_prefix, fragmentPostfixLevels="2")
    assert rows == stored.records(stored.persisted()[-1].end)
    assert rows_of(files, journals=stored.name, fragmentPostfixLevels="2") == rows
    with pytest.raises(ValueError, match="fragmentPostfixLevels"):
        plan(files, stored.store(path=fresh_prefix))


def test_overlapping_fragments_come_once(reading: Client, broker: BrokerHandle, journal_name: str) -> None:
    stored = filled(reading, broker, journal_name, "SNAPPY")
    one, two, three, *_ = stored.persisted()
    middle = (one.begin + 30, two.end - 10)
    stored.put(*middle)
    stored.put(three.begin + 1, three.end - 1)
    wait_until(
        "the broker to list the store again",
        lambda: middle in [(each.begin, each.end) for each in stored.persisted()],
    )
    files = open_store(f"file://{broker.file_root}")
    for cut in ({}, {"maxBytesPerPartition": "700"}):
        assert [row[0] for row in stored.rows(**cut)] == [row[1] for row in stored.records()]
        expected = stored.records(stored.persisted()[-1].end)
        assert rows_of(files, path=journal_name, **cut) == expected


def test_records_know_when_they_were_stored(reading: Client, broker: BrokerHandle, journal_name: str) -> None:
    stored = filled(reading, broker, journal_name, "GZIP")
    times = {(each.begin, each.end): each.mod_time for each in stored.persisted()}
    end = max(end for _, end in times)
    found = stored.rows()
    assert [offset for offset, _ in found] == [row[1] for row in stored.records()]
    for offset, time in found:
        assert isinstance(offset, int)
        known = [stored_at for (low, high), stored_at in times.items() if low <= offset < high]
        assert [int(time.timestamp())] == known if offset < end else time is None  # type: ignore[attr-defined]  # Rows hold any values.


def test_a_gap_and_a_lie_are_found(client: Client, broker: BrokerHandle, journal_name: str) -> None:
    """Missing offsets reveal the gap, and two files with different bytes at the same offset the lie."""
    stored = filled(client, broker, journal_name, "NONE")
    one, two, three, *_ = stored.persisted()
    path = broker.file_root / two.content_path
    kept = path.read_bytes()
    path.unlink()
    files = open_store(f"file://{broker.file_root}")
    with pytest.raises(DataLossError, match=f"{two.begin}: the next available byte is at {three.begin}"):
        rows_of(files, path=journal_name)
    left = rows_of(files, path=journal_name, failOnDataLoss="false")
    rows = stored.records(three.end)
    # A reader must assume that the first line after missing bytes is half a record.
    behind = [row for row in rows if row[1] >= two.end][1:]
    assert left == [row for row in rows if row[1] < two.begin] + behind
    path.write_bytes(kept)
    other = stored.content[one.begin : one.end - 37].swapcase()
    lie = fragment_of(journal_name, one.begin, other, pb.GZIP)
    (broker.file_root / lie.content_path).write_bytes(encoded(other, pb.GZIP))
    with pytest.raises(FragmentConflictError, match=lie.content_name):
        rows_of(files, path=journal_name)
    assert listed_store(stored.store()).first_offset(journal_name) == 0
