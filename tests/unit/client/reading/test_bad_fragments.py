"""Tests that a damaged fragment never yields a wrong byte, and that a small file never uses much memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import subprocess
import sys
import tracemalloc

import pytest

from gazette_spark.client import FragmentReader
from gazette_spark.errors import (
    ClosedError,
    CorruptFragmentError,
    FragmentTooLongError,
    FragmentTooShortError,
    OffsetError,
    ProtocolError,
    SeekRequiresNewReaderError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.unit.client.reading.test_decoders import COMPRESSED, ENCODED, SNAPPY_HEAD, snappy, zstd

BEGIN = 1_000
RANDOM = random.Random(10)
CONTENT = b"".join(b"%d %s\n" % (index, RANDOM.randbytes(5).hex().encode()) for index in range(400))[:4_096]
END = BEGIN + len(CONTENT)

BOMB_BYTES = 1 << 30

BOMB_PART_BYTES = 1 << 26
"""Bytes of a bomb's content in one gzip member or zstandard frame."""

SMALL = 16 << 20
"""Upper limit in bytes for the memory that a reader of a bomb needs."""


def fragment_of(content: bytes = CONTENT, codec: int = pb.NONE) -> Fragment:
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    return Fragment("a/journal", BEGIN, BEGIN + len(content), digest, codec, "file:///", 1_700_000_000)


def read(data: bytes, fragment: Fragment, offset: int | None = None) -> bytes:
    """Decode a fragment's content from the bytes of its file."""
    with FragmentReader(io.BytesIO(data), fragment, offset) as reader:
        return reader.read()


def outcome(data: bytes, fragment: Fragment) -> bytes | None:
    """Return the content, or None if the file is corrupt.

    Fail if a byte returned before the error is wrong.
    """
    got = b""
    with FragmentReader(io.BytesIO(data), fragment) as reader:
        try:
            for chunk in reader:
                got += chunk.content
        except CorruptFragmentError:
            assert CONTENT.startswith(got)
            return None
    return got


@pytest.mark.parametrize("name", ENCODED)
def test_a_flipped_byte_gives_no_wrong_one(name: str) -> None:
    """A flipped bit is either detected or without effect on the content."""
    codec, encode = ENCODED[name]
    data = encode(CONTENT)
    fragment = fragment_of(codec=codec)
    found = 0
    for at in range(len(data)):
        bits = 1 << RANDOM.randrange(8)
        got = outcome(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :], fragment)
        assert got in (None, CONTENT)
        found += got is None
    # Some bytes of a gzip header do not affect the content, and not every file has a checksum.
    assert found >= 0.9 * len(data)


@pytest.mark.parametrize("name", ENCODED)
def test_every_length_of_a_cut_file_is_found(name: str) -> None:
    """Only bytes after the last byte of content may be missing."""
    codec, encode = ENCODED[name]
    data = encode(CONTENT)
    fragment = fragment_of(codec=codec)
    for size in range(len(data)):
        got = outcome(data[:size], fragment)
        assert got in (None, CONTENT)
        # An empty last member or frame has no content, so its loss cannot be detected.
        assert got is None or size > len(data) - 30


@pytest.mark.parametrize("name", ENCODED)
def test_lengths_have_errors_of_their_own(name: str) -> None:
    codec, encode = ENCODED[name]
    fragment = fragment_of(codec=codec)
    for content, kind in (
        (CONTENT[:-1], FragmentTooShortError),
        (b"", FragmentTooShortError),
        (CONTENT + b"x", FragmentTooLongError),
        (CONTENT * 3, FragmentTooLongError),
    ):
        with pytest.raises(kind) as caught:
            read(encode(content), fragment)
        assert (caught.value.journal, caught.value.begin, caught.value.end) == ("a/journal", BEGIN, END)
    assert read(encode(CONTENT), fragment) == CONTENT


def gzip_bomb() -> bytes:
    """Return a MiB of gzip that decodes to a GiB."""
    return gzip.compress(bytes(BOMB_PART_BYTES)) * (BOMB_BYTES // BOMB_PART_BYTES)


def zstd_bomb() -> bytes:
    """Return some KiB of zstandard that decode to a GiB."""
    return zstd(bytes(BOMB_PART_BYTES)) * (BOMB_BYTES // BOMB_PART_BYTES)


def snappy_bomb() -> bytes:
    """Return 50 MB of Snappy frames that decode to a GiB, which is the format's best ratio."""
    frames = snappy(bytes(1 << 16))[len(SNAPPY_HEAD) :]
    return SNAPPY_HEAD + frames * (BOMB_BYTES >> 16)


BOMBS = {
    "gzip": (pb.GZIP, gzip_bomb),
    "snappy": (pb.SNAPPY, snappy_bomb),
    "zstandard": (pb.ZSTANDARD, zstd_bomb),
}


class Counting(io.BytesIO):
    """A file that counts the bytes read from it."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_stops_at_the_fragments_end(name: str) -> None:
    """The name promises 4 KiB, but the file decodes to a GiB."""
    codec, make = BOMBS[name]
    file = Counting(make())
    fragment = fragment_of(codec=codec)
    tracemalloc.start()
    try:
        with FragmentReader(file, fragment) as reader, pytest.raises(FragmentTooLongError):
            list(reader)
        assert reader.offset == BEGIN
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()
    assert file.taken <= 1 << 20


RSS = """
import io, resource, sys
from gazette_spark.client import FragmentReader
from gazette_spark.errors import FragmentTooLongError
from gazette_spark.protocol.fragments import Fragment
data = sys.stdin.buffer.read()
fragment = Fragment("a/journal", 0, 1 << 29, bytes(20), int(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read = 0
try:
    for chunk in FragmentReader(io.BytesIO(data), fragment):
        read = chunk.end
except FragmentTooLongError:
    print(read, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


@pytest.mark.parametrize("name", ["gzip", "zstandard"])
def test_half_a_gibibyte_of_a_bomb_is_streamed(name: str) -> None:
    """Measure a whole process, because the decoders allocate memory that Python cannot see."""
    codec, make = BOMBS[name]
    done = subprocess.run(
        [sys.executable, "-c", RSS, str(int(codec))],
        input=make(),
        capture_output=True,
        timeout=100,
        check=True,
    )
    read_to, grown = map(int, done.stdout.split())
    assert (1 << 29) - (1 << 20) <= read_to <= 1 << 29
    assert grown < 64 << 20


def test_a_zstandard_window_of_two_gibibytes_is_refused() -> None:
    """The frame's header requests the memory, which must not be allocated."""
    # No content size, a window of 2 GiB, then a block of five bytes.
    frame = b"\x28\xb5\x2f\xfd" + bytes([0x00, 21 << 3]) + (1 | 5 << 3).to_bytes(3, "little") + b"hello"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFragmentError, match="ZSTANDARD"):
            read(frame, fragment_of(b"hello", pb.ZSTANDARD))
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()


def test_ten_thousand_gzip_members() -> None:
    data = b"".join(gzip.compress(CONTENT[at : at + 1], 1) + gzip.compress(b"", 1) for at in range(4_096))
    data += gzip.compress(b"") * 2_000
    file = io.BytesIO(data)
    tracemalloc.start()
    try:
        with FragmentReader(file, fragment_of(codec=pb.GZIP)) as reader:
            assert reader.read() == CONTENT
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(b"\x00\xff\xff\xff" + bytes(100), id="a chunk of 16 MiB"),
        pytest.param(b"\x00\x09\x00\x00" + bytes(4) + b"\xff\xff\xff\xff\x0f", id="a block of 4 GiB"),
        pytest.param(b"\x00\x08\x00\x00" + bytes(4) + b"\x81\x80\x04\x00", id="a block of a byte too many"),
        pytest.param(b"\x01\xff\xff\x01" + bytes(131_071), id="uncompressed, more than a block"),
        pytest.param(b"\x02\x01\x00\x00x", id="a chunk that must be known"),
    ],
)
def test_snappy_blocks_that_claim_too_much(chunk: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFragmentError, match="SNAPPY"):
            read(SNAPPY_HEAD + chunk, fragment_of(codec=pb.SNAPPY))
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()


def test_snappy_chunks_that_may_be_skipped() -> None:
    """Padding, repeated identifiers and skippable chunks have no content."""
    frames = snappy(CONTENT)
    padding = b"\xfe\x05\x00\x00" + bytes(5) + b"\x80\x03\x00\x00abc"
    data = frames[:10] + padding + SNAPPY_HEAD + frames[10:] + padding
    assert read(data, fragment_of(codec=pb.SNAPPY)) == CONTENT


@pytest.mark.parametrize("codec", [name for name in COMPRESSED if name != "gzip of several members"])
@pytest.mark.parametrize("other", ["gzip", "snappy frames", "zstandard without content size", "none"])
def test_a_file_under_another_codecs_name(codec: str, other: str) -> None:
    expected, data = ENCODED[codec][0], ENCODED[other][1](CONTENT)
    if (ENCODED[other][0] in (expected, pb.GZIP) and "gzip" in codec and other == "gzip") or (
        codec.startswith(other[:6]) and other != "none"
    ):
        assert read(data, fragment_of(codec=expected)) == CONTENT
    else:
        with pytest.raises(CorruptFragmentError, match=r"not (GZIP|SNAPPY|ZSTANDARD)"):
            read(data, fragment_of(codec=expected))


@pytest.mark.parametrize(
    ("offset", "end_offset"),
    [(BEGIN - 1, 0), (END + 1, 0), (-1, 0), (BEGIN + 5, BEGIN + 4)],
    ids=["before", "behind", "the head", "end before offset"],
)
def test_offsets_outside_the_fragment(offset: int, end_offset: int) -> None:
    with pytest.raises(OffsetError):
        FragmentReader(io.BytesIO(CONTENT), fragment_of(), offset, end_offset=end_offset)


@pytest.mark.parametrize("codec", [pb.INVALID, 99])
def test_codecs_that_are_none(codec: int) -> None:
    with pytest.raises(ProtocolError, match="Codec"):
        fragment_of(codec=codec)


def test_the_whole_life_of_a_reader() -> None:
    file = io.BytesIO(gzip.compress(CONTENT))
    reader = FragmentReader(file, fragment_of(codec=pb.GZIP), BEGIN + 10, end_offset=END - 10)
    assert (reader.offset, reader.fragment.begin) == (BEGIN + 10, BEGIN)
    assert reader.read(5) == CONTENT[10:15]
    assert reader.seek(BEGIN + 1_000) == BEGIN + 1_000
    with pytest.raises(SeekRequiresNewReaderError):
        reader.seek(BEGIN + 999)
    assert reader.buffered(64).readline() == CONTENT[1_000:].splitlines(keepends=True)[0]
    reader.close()
    reader.close()
    assert file.closed
    with pytest.raises(ClosedError):
        reader.read(1)
    with pytest.raises(ClosedError):
        reader.seek(END - 11)


def test_a_sum_is_compared_also_behind_a_seek() -> None:
    """A reader that skips most of a fragment still needs a correct end."""
    content = bytes(10_000_000)
    fragment = fragment_of(content, pb.ZSTANDARD)
    damaged = zstd(content[:-500] + b"x" + content[-499:])
    for data, wrong in ((zstd(content), False), (damaged, True)):
        with FragmentReader(io.BytesIO(data), fragment) as reader:
            reader.read(1)
            reader.seek(fragment.end - 100)
            if wrong:
                with pytest.raises(CorruptFragmentError, match="SHA-1"):
                    reader.read()
            else:
                assert reader.read() == bytes(100)


def test_snappy_is_not_checked_by_its_library_alone() -> None:
    frames = bytearray(snappy(CONTENT))
    frames[14] ^= 1
    with pytest.raises(CorruptFragmentError, match="SNAPPY"):
        read(bytes(frames), fragment_of(codec=pb.SNAPPY))
