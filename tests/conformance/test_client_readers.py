"""Readers seek, buffer, jump and end the same on the embedded and on the real broker."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from gazette_spark import Client
from gazette_spark.client import journal_spec
from gazette_spark.errors import (
    ClosedError,
    OffsetJumpError,
    OffsetNotYetAvailableError,
    SeekRequiresNewReaderError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import wait_for
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")

LINES = [b'{"line": %d}\n' % index for index in range(20_000)]
CONTENT = b"".join(LINES)
MORE = b"held by the broker"


@pytest.fixture(scope="module")
def filled() -> dict[str, str]:
    """Journals by the endpoint of their broker: stored once, and read by many tests."""
    return {}


@pytest.fixture
def journal(client: Client, journal_name: str, filled: dict[str, str]) -> str:
    """A journal of CONTENT, in its store, then MORE, which is not; tests only read it."""
    if client.endpoint in filled:
        return filled[client.endpoint]
    client.create_journals(journal_spec(journal_name, codec="GZIP", refresh_interval_s=1))
    client.append(journal_name, CONTENT)
    client.append(journal_name, MORE)
    wait_for(lambda: client.list_fragments(journal_name)[0].fragment.mod_time, "a stored fragment")
    filled[client.endpoint] = journal_name
    return journal_name


@pytest.fixture(params=["through the broker", "directly"])
def reading(request: pytest.FixtureRequest, broker: BrokerHandle, journal: str) -> Iterator[Client]:
    """A client that reads stored fragments one way or the other."""
    root = str(broker.file_root) if request.param == "directly" else None
    with Client(broker.endpoint, timeout_s=30, fragment_root=root) as opened:
        yield opened


def test_lines_of_a_buffered_reader(reading: Client, journal: str) -> None:
    """Lines come as they were appended, and offsets are those of the next line."""
    reader = reading.read(journal, end_offset=len(CONTENT))
    file = reader.buffered()
    position = 0
    for line, expected in zip(file, LINES, strict=True):
        assert line == expected
        position += len(line)
        if position % 97 == 0:
            assert reader.adjusted_offset(file) == position
    assert reader.offset == len(CONTENT)


def test_seeking(reading: Client, journal: str) -> None:
    """A retrying reader gets to every offset, in a stored fragment, at its edge and behind it."""
    whole = CONTENT + MORE
    reader = reading.read(journal)
    for offset in (10, 100_000, 99_999, len(CONTENT) - 2, len(CONTENT), 0, len(CONTENT) + 5):
        reader.seek(offset)
        assert reader.read(7) == whole[offset : offset + 7]
    reader.seek(-3, io.SEEK_CUR)
    assert reader.read() == whole[len(CONTENT) + 9 :]


def test_one_call_and_what_it_tells(broker: BrokerHandle, client: Client, journal: str) -> None:
    """A Reader ends as its call does, and keeps the broker's last metadata."""
    reader = client.reader(journal, end_offset=len(CONTENT))
    assert reader.read() == CONTENT
    assert reader.response is not None
    assert reader.response.fragment.journal == journal
    with pytest.raises(SeekRequiresNewReaderError):
        reader.seek(0)
    with Client(broker.endpoint, timeout_s=30, fragment_root=str(broker.file_root)) as direct:
        one = direct.reader(journal, offset=5, do_not_proxy=True)
        assert one.read(5) == CONTENT[5:10]
        assert one.seek(100_000) == 100_000
        assert one.read() == CONTENT[100_000:], "it ends with its fragment"
        assert one.offset == len(CONTENT)
    at_head = client.reader(journal, offset=len(CONTENT + MORE))
    with pytest.raises(OffsetNotYetAvailableError):
        at_head.read()


def test_cancel_and_restart(client: Client, journal: str) -> None:
    """A cancelled reader reads again once it is told from where."""
    reader = client.read(journal, block=True)
    assert reader.read(10) == CONTENT[:10]
    reader.cancel()
    with pytest.raises(ClosedError):
        reader.read(10)
    reader.restart(pb.ReadRequest(journal=journal, offset=reader.offset, end_offset=30))
    assert reader.read() == CONTENT[10:30]


def test_a_jump_over_what_is_gone(broker: BrokerHandle, client: Client, journal_name: str) -> None:
    """Bytes whose fragment is deleted are jumped over, which is told once, with both offsets."""
    size = len(CONTENT)
    client.create_journals(journal_spec(journal_name, codec="GZIP", refresh_interval_s=1, length=1024))
    for content in (CONTENT, CONTENT, b"!"):
        client.append(journal_name, content)

    def begins_of_stored() -> list[int]:
        listed = client.list_fragments(journal_name)
        return [each.fragment.begin for each in listed if each.fragment.mod_time]

    wait_for(lambda: begins_of_stored() == [0, size], "two stored fragments")
    gone = client.list_fragments(journal_name)[0].fragment
    Path(broker.file_root, gone.content_path).unlink()
    wait_for(lambda: begins_of_stored() == [size], "an index without the deleted fragment")
    reader = client.read(journal_name, offset=5, end_offset=2 * size)
    file = reader.buffered(64)
    with pytest.raises(OffsetJumpError, match=f"no bytes are left at offset 5; the next are at {size}"):
        file.read()
    assert file.tell() == size
    assert file.read() == CONTENT
    assert reader.jumps == [(5, size)]
