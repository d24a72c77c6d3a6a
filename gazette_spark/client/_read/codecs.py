"""Decodes the content of fragment files, piece by piece.

A fragment file contains journal bytes, encoded with one codec. Gazette's GZIP is one or more members, SNAPPY
is the framing format, and ZSTANDARD is frames without a content size. Every decoder reads a bounded amount,
yields a bounded piece and keeps nothing. So a small file that expands to a huge one costs its reader only one
piece, until the caller's length check stops it.

Nothing here imports gRPC.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import cramjam
import zstandard

from gazette_spark.errors import GazetteError
from gazette_spark.protocol import protocol_pb2 as pb

try:
    from isal import isal_zlib

    _decompressobj: Callable[..., Any] = isal_zlib.decompressobj
    # isal's stubs take its error for an instance.
    _GZIP_ERRORS = cast(tuple[type[Exception], ...], (isal_zlib.error, zlib.error))
except ImportError:
    _decompressobj = zlib.decompressobj
    _GZIP_ERRORS = (zlib.error,)

READ_BYTES = 1 << 16
"""Number of compressed bytes requested at a time. Unused bytes are copied for the next call."""

PIECE_BYTES = 1 << 18
"""Maximum uncompressed bytes of a piece, except for SNAPPY and NONE, so that it fits a core's cache."""

SNAPPY_GROUP = 8
"""Number of Snappy blocks of at most 64 KiB that are decoded in one call."""

ZSTD_MAX_WINDOW_BYTES = 1 << 26
"""Largest window that a zstd frame may require. Gazette's writers use 2 MiB."""

_GZIP_WBITS = 31
_SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_BODY_BYTES = 76_490 + 4
"""Largest body of a data chunk: 64 KiB that grew when compressed, and a checksum."""


class BinaryStream(Protocol):
    """The input of a decoder: a file, or an HTTP body."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; an empty result means the end."""


class CodecError(GazetteError, ValueError):
    """Bytes are invalid for their codec."""

    codec: str
    problem: str

    def _text(self) -> str:
        return f"not {self.codec}: {self.problem}"


def decode_fragment(stream: BinaryStream, codec: int) -> Iterator[bytes]:
    """Yield the content of a fragment file in non-empty pieces of at most 1 MiB.

    A stream that ends inside a codec's frame raises. One that ends between frames does not, so the caller
    must compare the length with the fragment's.

    Args:
        stream: The file from its first byte.
        codec: A ``CompressionCodec``. GZIP_OFFLOAD_DECOMPRESSION means that the bytes are still compressed;
            pass NONE if the store has decompressed them.

    Raises:
        CodecError: the bytes are invalid for the codec, or the codec is unknown.
    """
    match codec:
        case pb.NONE:
            return _plain(stream)
        case pb.GZIP | pb.GZIP_OFFLOAD_DECOMPRESSION:
            return _gzip(stream)
        case pb.SNAPPY:
            return _snappy(stream)
        case pb.ZSTANDARD:
            return _zstandard(stream)
    name = pb.CompressionCodec.Name(codec) if codec in pb.CompressionCodec.values() else codec
    raise CodecError(codec="a fragment", problem=f"unknown compression codec {name}")


def _plain(stream: BinaryStream) -> Iterator[bytes]:
    while piece := stream.read(1 << 20):
        yield piece


def _gzip(stream: BinaryStream) -> Iterator[bytes]:
    # One decompressor for each member: Gazette's brokers compress as bytes are committed, one member at a
    # time, and a decompressor of the standard library ends with its member.
    data = stream.read(READ_BYTES)
    while data:
        member = _decompressobj(_GZIP_WBITS)
        while not member.eof:
            if not data:
                raise CodecError("GZIP", "the file ends inside a member")
            try:
                # The limit bounds what a few compressed bytes can become: a file that expands a thousandfold
                # is decoded piece by piece. The rest of the input is in `unconsumed_tail`.
                piece = member.decompress(data, PIECE_BYTES)
            except _GZIP_ERRORS as error:
                raise CodecError("GZIP", str(error)) from error
            if piece:
                yield piece
            data = member.unconsumed_tail or (b"" if member.eof else stream.read(READ_BYTES))
        data = member.unused_data or stream.read(READ_BYTES)


def _zstandard(stream: BinaryStream) -> Iterator[bytes]:
    # A frame contains the size of the window that it needs, and the decoder allocates it. A damaged or
    # malicious frame must not take gigabytes.
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW_BYTES)
    # The decompressor only calls the stream's read().
    reader = decompressor.stream_reader(
        cast(Any, stream), read_size=READ_BYTES, read_across_frames=True, closefd=False
    )
    try:
        while piece := reader.read(PIECE_BYTES):
            yield piece
    except zstandard.ZstdError as error:
        raise CodecError("ZSTANDARD", str(error)) from error


def _snappy(stream: BinaryStream) -> Iterator[bytes]:
    # Each call of the decoder has a cost, and a chunk is small, so several are decoded at once.
    group: list[bytes] = []
    first = True
    while header := stream.read(4):
        size = int.from_bytes(header[1:], "little")
        kind = header[0]
        if len(header) < 4:
            raise CodecError("SNAPPY", "the file ends inside a chunk header")
        if first and header != _SNAPPY_IDENTIFIER[:4]:
            raise CodecError("SNAPPY", "the stream identifier is missing")
        # Check before the body is read: three bytes of size can claim 16 MiB.
        if kind < 0x02 and size > _SNAPPY_BODY_BYTES:
            raise CodecError("SNAPPY", f"a chunk of {size} bytes is larger than any block")
        # The format reserves these types for data that a decoder must not skip. Those from 0x80 on may be
        # skipped.
        if 0x02 <= kind < 0x80:
            raise CodecError("SNAPPY", f"unknown chunk type {kind:#04x}")
        body = stream.read(size)
        if len(body) < size:
            raise CodecError("SNAPPY", "the file ends inside a chunk")
        if kind == 0xFF and header + body != _SNAPPY_IDENTIFIER:
            raise CodecError("SNAPPY", "the stream identifier is malformed")
        first = False
        if kind < 0x02:
            group.append(header + body)
        if len(group) == SNAPPY_GROUP:
            yield _snappy_blocks(group)
            group = []
    if group:
        yield _snappy_blocks(group)


def _snappy_blocks(chunks: list[bytes]) -> bytes:
    """Decode data chunks with their headers; their checksums are verified."""
    try:
        return bytes(cramjam.snappy.decompress(b"".join([_SNAPPY_IDENTIFIER, *chunks])))
    except cramjam.DecompressionError as error:
        raise CodecError("SNAPPY", str(error)) from error
