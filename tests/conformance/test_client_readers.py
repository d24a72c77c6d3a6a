"""What readers promise: a Reader is one Read call, a RetryReader as many as necessary; both can seek.

The promises are the same on the embedded and on the real broker, through the broker and from the store's
files.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gazette_spark import Client
from gazette_spark.client import Chunk, FragmentReader, journal_spec, open_fragment_url
from gazette_spark.errors import (
    ClosedError,
    FragmentTooLongError,
    FragmentTooShortError,
    GazetteError,
    OffsetJumpError,
    OffsetNotYetAvailableError,
    SeekRequiresNewReaderError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.conformance.wire import Wire, spec, wait_for
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")

LINES = [f"line {number}\n".encode() for number in range(30_000)]
FIRST, LAST = b"".join(LINES[:20_000]), b"".join(LINES[20_000:])
CONTENT = FIRST + LAST
HEAD = len(CONTENT)


@pytest.fixture(scope="module")
def filled() -> dict[str, str]:
    """Cache the journal that was filled at each broker, by the broker's endpoint."""
    return {}


@pytest.fixture
def stored(broker: BrokerHandle, wire: Wire, journal_name: str, filled: dict[str, str]) -> str:
    """A journal of two fragments, the first of them stored; tests must not change it."""
    if broker.endpoint not in filled:
        wire.create(spec(journal_name, length=1 << 17))
        for content in (FIRST, LAST):
            wire.append(journal_name, content)
        wire.wait_persisted(journal_name, 1)
        filled[broker.endpoint] = journal_name
    return filled[broker.endpoint]


@pytest.fixture
def direct(broker: BrokerHandle) -> Iterator[Client]:
    with Client(broker.endpoint, timeout_s=30, fragment_root=str(broker.file_root)) as opened:
        yield opened


def test_a_reader_ends_at_the_write_head(client: Client, stored: str) -> None:
    """At the end the reader raises an error, because the next byte is not there yet."""
    with client.reader(stored) as reader:
        assert reader.read(HEAD) == CONTENT
        with pytest.raises(OffsetNotYetAvailableError) as caught:
            reader.read(1)
        assert caught.value.write_head == reader.offset == HEAD
        with pytest.raises(OffsetNotYetAvailableError):
            next(reader)


def test_a_reader_ends_with_its_range(client: Client, stored: str) -> None:
    with client.reader(stored, offset=5, end_offset=HEAD - 5) as reader:
        assert reader.read() == CONTENT[5 : HEAD - 5]
        assert reader.read() == b""


def test_a_reader_of_a_stored_fragment_ends_with_it(direct: Client, stored: str) -> None:
    """A call that is answered by a URL ends with that fragment; the next one takes another call."""
    with direct.reader(stored, do_not_proxy=True) as reader:
        assert reader.read() == FIRST
        assert reader.offset == len(FIRST)
        assert reader.fragment is not None
        assert (reader.fragment.begin, reader.fragment.end) == (0, len(FIRST))


def test_a_reader_shows_request_and_response(client: Client, stored: str) -> None:
    with client.reader(stored, offset=7) as reader:
        assert reader.request == pb.ReadRequest(journal=stored, offset=7)
        before = reader.response
        reader.read(3)
        assert before is None
        assert reader.request.offset == 10
        assert reader.response is not None
        assert reader.response.status == pb.OK
        assert reader.response.write_head == HEAD
        assert reader.response.fragment.journal == stored


def test_a_reader_seeks_within_a_fragment_it_reads_itself(direct: Client, stored: str) -> None:
    with direct.reader(stored, do_not_proxy=True) as reader:
        assert reader.read(6) == CONTENT[:6]
        assert reader.seek(100_000) == 100_000
        for offset in (5, HEAD - 1):
            with pytest.raises(SeekRequiresNewReaderError):
                reader.seek(offset)
        assert reader.read(50) == CONTENT[100_000:100_050]
        assert reader.seek(1_000, io.SEEK_CUR) == 101_050
        assert reader.read(9) == CONTENT[101_050:101_059]


@pytest.mark.parametrize("kind", ["proxied", "direct"])
def test_a_retry_reader_seeks_anywhere(client: Client, direct: Client, stored: str, kind: str) -> None:
    chosen = direct if kind == "direct" else client
    with chosen.read(stored) as reader:
        for offset in (0, len(FIRST) - 3, 4, HEAD - 10, len(FIRST), 17):
            assert reader.seek(offset) == reader.offset == offset
            assert reader.read(10) == CONTENT[offset : offset + 10]
        assert reader.seek(-3, io.SEEK_CUR) == 24
        assert reader.read() == CONTENT[24:]
        assert reader.jumps == []


@pytest.mark.parametrize("kind", ["reader", "retry", "direct"])
def test_lines_know_their_offsets(client: Client, direct: Client, stored: str, kind: str) -> None:
    make = {"reader": client.reader, "retry": client.read, "direct": direct.read}[kind]
    with make(stored, end_offset=HEAD) as reader, reader.buffered() as lines:
        at = 0
        for line in LINES[:2_000]:
            assert reader.adjusted_offset(lines) == at
            assert lines.readline() == line
            at += len(line)
        assert reader.offset > at


def test_lines_can_be_sought(client: Client, stored: str) -> None:
    starts = [0]
    for line in LINES:
        starts.append(starts[-1] + len(line))
    with client.read(stored, end_offset=HEAD) as reader, reader.buffered() as lines:
        for number in (3, 4, 29_000, 10, 25_000):
            assert reader.adjusted_seek(starts[number], io.SEEK_SET, lines) == starts[number]
            assert lines.readline() == LINES[number]
            assert reader.adjusted_offset(lines) == starts[number + 1]


def test_cancel_and_restart(client: Client, stored: str) -> None:
    with client.read(stored, offset=HEAD, block=True) as reader:
        ended: list[BaseException] = []

        def wait() -> None:
            try:
                reader.read(1)
            except ClosedError as error:
                ended.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        reader.cancel()
        waiting.join(30)
        assert not waiting.is_alive()
        assert len(ended) == 1
        with pytest.raises(ClosedError):
            reader.read(1)
        reader.restart(pb.ReadRequest(journal=stored, offset=10, end_offset=20))
        assert reader.journal == stored
        assert reader.read() == CONTENT[10:20]


def test_a_retry_reader_shows_its_reader(client: Client, stored: str) -> None:
    with client.read(stored, end_offset=HEAD) as reader:
        reader.read(10)
        assert reader.reader.response is not None
        assert reader.reader.response.fragment.journal == stored
        assert reader.request == pb.ReadRequest(journal=stored, offset=10, end_offset=HEAD)


def test_a_fragment_is_opened_by_its_url(broker: BrokerHandle, direct: Client, stored: str) -> None:
    listed = direct.list_fragments(stored, signature_ttl_s=60)[0]
    with direct.open_fragment(listed) as whole:
        assert whole.read() == FIRST
    root = str(broker.file_root)
    with open_fragment_url(listed.fragment, listed.signed_url, 100, fragment_root=root) as part:
        assert (part.fragment, part.offset) == (listed.fragment, 100)
        assert part.read(20) == FIRST[100:120]
        assert part.offset == 120
    with pytest.raises(ClosedError):
        part.read()


def at_hand(reader: FragmentReader) -> Iterator[Chunk]:
    with suppress(GazetteError):
        yield from reader


@pytest.mark.parametrize("kind", ["right", "short", "long"])
def test_a_fragment_has_to_end_where_it_says(kind: str) -> None:
    digest = hashlib.sha1(CONTENT, usedforsecurity=False).digest()
    fragment = Fragment("a/journal", 0, HEAD, digest, pb.GZIP)
    given = {"right": CONTENT, "short": CONTENT[:-1], "long": CONTENT + b"!"}[kind]
    errors: dict[str, type[GazetteError]] = {"short": FragmentTooShortError, "long": FragmentTooLongError}
    with FragmentReader(io.BytesIO(gzip.compress(given)), fragment, 3) as reader:
        if kind == "right":
            assert reader.read() == CONTENT[3:]
            return
        with pytest.raises(errors[kind]):
            reader.read()
        assert CONTENT[3:].startswith(b"".join(chunk.content for chunk in at_hand(reader)))


def test_a_jump_over_what_is_gone(broker: BrokerHandle, client: Client, journal_name: str) -> None:
    size = len(CONTENT)
    client.create_journals(journal_spec(journal_name, codec="GZIP", refresh_interval_s=1, length=1024))
    for content in (CONTENT, CONTENT, b"!"):
        client.append(journal_name, content)

    def begins_of_stored() -> list[int]:
        fragments = [listed.fragment for listed in client.list_fragments(journal_name)]
        return [fragment.begin for fragment in fragments if fragment.mod_time]

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
