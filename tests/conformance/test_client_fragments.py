"""Stored fragments read the same from their files as through a broker, and damage to them is detected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from gazette_spark import Client
from gazette_spark.client import journal_spec
from gazette_spark.errors import (
    BrokerError,
    CorruptFragmentError,
    OffsetJumpError,
    OffsetNotYetAvailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.conformance.wire import wait_for
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")

CONTENT = b"".join(b'{"id": %d, "event": "view"}\n' % index for index in range(60_000))
CODECS = ["NONE", "GZIP", "SNAPPY", "ZSTANDARD"]


@dataclass(frozen=True)
class Stored:
    """A journal of CONTENT and one more byte; its first fragment is stored."""

    journal: str
    fragment: Fragment
    path: Path


def fill(client: Client, broker: BrokerHandle, codecs: dict[str, str]) -> list[Stored]:
    """Append CONTENT and a byte to new journals, and wait until CONTENT is stored.

    Args:
        client: Of the broker.
        broker: Whose store it is.
        codecs: By journal.
    """
    client.create_journals(
        *(journal_spec(name, codec=codec, refresh_interval_s=1) for name, codec in codecs.items())
    )
    for name in codecs:
        client.append(name, CONTENT)
        client.append(name, b"!")

    def stored(name: str) -> Stored | None:
        first = client.list_fragments(name)[0].fragment
        return Stored(name, first, broker.file_root / first.content_path) if first.mod_time else None

    found = [wait_for(partial(stored, name), "a stored fragment") for name in codecs]
    filled = [each for each in found if each is not None]
    assert [(each.fragment.begin, each.fragment.end) for each in filled] == [(0, len(CONTENT))] * len(codecs)
    return filled


@pytest.fixture
def stored(client: Client, broker: BrokerHandle, fresh_prefix: str) -> list[Stored]:
    return fill(client, broker, {f"{fresh_prefix}{codec}": codec for codec in CODECS})


@pytest.fixture
def plain(client: Client, broker: BrokerHandle, journal_name: str) -> Stored:
    return fill(client, broker, {journal_name: "NONE"})[0]


def test_a_stored_fragment_reads_the_same(broker: BrokerHandle, stored: list[Stored]) -> None:
    everything = CONTENT + b"!"
    for root, each in product((str(broker.file_root), None), stored):
        assert each.path.is_file()
        with Client(broker.endpoint, timeout_s=20, fragment_root=root) as client:
            assert client.read(each.journal).read() == everything
            for begin, end in [(0, 1), (12_345, 999_999), (len(CONTENT) - 1, len(CONTENT) + 1)]:
                got = client.read(each.journal, offset=begin, end_offset=end).read()
                assert got == everything[begin:end]


def truncate(data: bytes) -> bytes:
    return data[:-100]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [truncate, flip, empty])
def test_a_damaged_file_is_named(
    broker: BrokerHandle, plain: Stored, damage: Callable[[bytes], bytes]
) -> None:
    plain.path.write_bytes(damage(plain.path.read_bytes()))
    with (
        Client(broker.endpoint, timeout_s=20, fragment_root=str(broker.file_root)) as client,
        pytest.raises(CorruptFragmentError, match=plain.path.name) as caught,
    ):
        client.read(plain.journal).read()
    assert (caught.value.journal, caught.value.begin, caught.value.end) == (plain.journal, 0, len(CONTENT))


def test_a_bit_flipped_in_a_plain_file_is_found_through_the_broker(
    broker: BrokerHandle, plain: Stored
) -> None:
    """Brokers pass such bytes on, so the reader checks them against the fragment's SHA-1."""
    plain.path.write_bytes(flip(plain.path.read_bytes()))
    with Client(broker.endpoint, timeout_s=20) as client, pytest.raises(CorruptFragmentError) as caught:
        client.read(plain.journal).read()
    assert (caught.value.begin, caught.value.end) == (0, len(CONTENT))


@pytest.mark.usefixtures("short_pauses")
def test_a_short_file_read_through_the_broker(broker: BrokerHandle, stored: list[Stored]) -> None:
    for each, damage in product(stored, (truncate, empty)):
        each.path.write_bytes(damage(each.path.read_bytes()))
        with Client(broker.endpoint, timeout_s=20) as client:
            reader = client.read(each.journal)
            with pytest.raises(CorruptFragmentError) as caught:
                reader.read()
            assert reader.offset < len(CONTENT)
        error = caught.value
        assert (error.journal, error.begin, error.end) == (each.journal, 0, len(CONTENT))


def test_a_missing_file_is_an_error(broker: BrokerHandle, plain: Stored) -> None:
    plain.path.unlink()
    with (
        Client(broker.endpoint, timeout_s=3, fragment_root=str(broker.file_root)) as client,
        pytest.raises((BrokerError, OffsetNotYetAvailableError, OffsetJumpError), match=plain.journal),
    ):
        client.read(plain.journal, end_offset=len(CONTENT)).read()


def test_codec_names() -> None:
    """CODECS has every codec that file stores support."""
    assert {"INVALID", "GZIP_OFFLOAD_DECOMPRESSION", *CODECS} == set(pb.CompressionCodec.keys())
