"""Tests that every codec returns the stored content in bounded pieces, or names the problem."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable

import cramjam
import pytest
import zstandard

from gazette_spark.client._read.codecs import CodecError, decode_fragment
from gazette_spark.protocol import protocol_pb2 as pb

TEXT = b"".join(b'{"id": %d, "event": "click"}\n' % i for i in range(40_000))
NOISE = os.urandom(300_000)
SNAPPY_HEAD = b"\xff\x06\x00\x00sNaPpY"
LARGEST_PIECE = 1 << 20


def zstd(content: bytes) -> bytes:
    """Compress as Gazette does, without the content size."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(content) + compressor.flush()


def snappy(content: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(content))


def gzip_members(content: bytes) -> bytes:
    third = len(content) // 3
    return b"".join(gzip.compress(part) for part in (content[:third], content[third:], b""))


ENCODED: dict[str, tuple[pb.CompressionCodec, Callable[[bytes], bytes]]] = {
    "none": (pb.NONE, bytes),
    "gzip": (pb.GZIP, gzip.compress),
    "gzip of several members": (pb.GZIP, gzip_members),
    "gzip, offloaded": (pb.GZIP_OFFLOAD_DECOMPRESSION, gzip.compress),
    "snappy frames": (pb.SNAPPY, snappy),
    "zstandard without content size": (pb.ZSTANDARD, zstd),
    "zstandard of two frames": (pb.ZSTANDARD, lambda content: zstd(content[:99]) + zstd(content[99:])),
}
COMPRESSED = [name for name in ENCODED if name != "none"]


def decode(data: bytes, codec: int) -> bytes:
    return b"".join(decode_fragment(io.BytesIO(data), codec))


@pytest.mark.parametrize("content", [b"", b"x", TEXT, NOISE], ids=["empty", "one byte", "text", "noise"])
@pytest.mark.parametrize("name", ENCODED)
def test_round_trip(name: str, content: bytes) -> None:
    codec, encode = ENCODED[name]
    pieces = list(decode_fragment(io.BytesIO(encode(content)), codec))
    assert b"".join(pieces) == content
    assert all(0 < len(piece) <= LARGEST_PIECE for piece in pieces)


@pytest.mark.parametrize("name", ["gzip", "gzip of several members", "gzip, offloaded", "snappy frames"])
def test_a_cut_inside_a_frame_is_told(name: str) -> None:
    """The missing byte is found even after many complete pieces."""
    codec, encode = ENCODED[name]
    with pytest.raises(CodecError):
        decode(encode(NOISE)[:-1], codec)


@pytest.mark.parametrize("name", COMPRESSED)
def test_other_bytes_are_refused(name: str) -> None:
    with pytest.raises(CodecError):
        decode(b"just some text, not compressed at all", ENCODED[name][0])


@pytest.mark.parametrize("name", COMPRESSED)
def test_garbage_behind_the_content_is_refused(name: str) -> None:
    codec, encode = ENCODED[name]
    with pytest.raises(CodecError):
        decode(encode(TEXT) + b"garbage behind the end", codec)


def test_a_flipped_bit_is_found_by_snappys_checksum() -> None:
    """The framing format has a CRC-32C per chunk."""
    data = bytearray(snappy(NOISE))
    data[5_000] ^= 1
    with pytest.raises(CodecError, match="SNAPPY"):
        decode(bytes(data), pb.SNAPPY)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"\x00\x04\x00\x00abcd", "identifier is missing", id="no identifier"),
        pytest.param(SNAPPY_HEAD + b"\x00\xff\xff\xff", "larger than any block", id="a block of 16 MiB"),
        pytest.param(SNAPPY_HEAD + b"\x02\x01\x00\x00x", "unknown chunk type", id="reserved chunk"),
        pytest.param(SNAPPY_HEAD + b"\x00\x04", "inside a chunk header", id="half a header"),
        pytest.param(b"\xff\x06\x00\x00sNaPpX", "malformed", id="wrong identifier"),
    ],
)
def test_snappy_frames_that_break_the_rules(data: bytes, problem: str) -> None:
    with pytest.raises(CodecError, match=problem):
        decode(data, pb.SNAPPY)


def test_snappy_padding_and_a_second_identifier_are_skipped() -> None:
    padding = b"\xfe\x03\x00\x00abc"
    body = snappy(TEXT)[10:]
    assert decode(SNAPPY_HEAD + padding + SNAPPY_HEAD + body, pb.SNAPPY) == TEXT


def test_a_huge_zstandard_window_is_refused() -> None:
    window = (31 - 10) << 3
    block = (len(b"text") << 3 | 1).to_bytes(3, "little") + b"text"
    data = b"\x28\xb5\x2f\xfd\x00" + bytes([window]) + block
    with pytest.raises(CodecError, match="ZSTANDARD"):
        decode(data, pb.ZSTANDARD)


@pytest.mark.parametrize("codec", [pb.INVALID, 6, 99], ids=["INVALID", "the next number", "any number"])
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(CodecError, match="unknown compression codec"):
        decode(b"", codec)
