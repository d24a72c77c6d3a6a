"""Encodes fragments for the store. The client decodes them with ``client._read.codecs``."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import cramjam
import zstandard

from gazette_spark.protocol import protocol_pb2 as pb

GZIP_MEMBER_BYTES = 1 << 20
"""Uncompressed bytes after which a GZIP fragment starts another member, as Gazette's primaries do."""

_GZIP_LEVEL = 4
"""Compression level. Uploads share the cores with appends: this level is twice as fast as zlib's default, for
a little larger files."""

_ZSTD_LEVEL = 3


def encode(blocks: Iterable[bytes], codec: int) -> Iterator[bytes]:
    """Compress a fragment's content.

    Args:
        blocks: the content in order, in blocks of any size.
        codec: a ``CompressionCodec`` other than INVALID.

    Returns:
        The file's bytes in blocks: concatenated members for GZIP, the framing format for SNAPPY, one frame
        without a content size for ZSTANDARD.

    Raises:
        ValueError: the codec is unknown.
    """
    match codec:
        case pb.NONE:
            return iter(blocks)
        case pb.GZIP:
            return _gzip_members(blocks)
        case pb.GZIP_OFFLOAD_DECOMPRESSION:
            return _gzip_member(blocks)
        case pb.SNAPPY:
            return _snappy_frames(blocks)
        case pb.ZSTANDARD:
            return _zstandard_frame(blocks)
    raise ValueError(f"unknown compression codec {codec}")


def _gzip_member(blocks: Iterable[bytes]) -> Iterator[bytes]:
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
    for block in blocks:
        yield compressor.compress(block)
    yield compressor.flush()


def _gzip_members(blocks: Iterable[bytes]) -> Iterator[bytes]:
    pending: list[bytes] = []
    pending_bytes = 0
    for block in blocks:
        pending.append(block)
        pending_bytes += len(block)
        if pending_bytes >= GZIP_MEMBER_BYTES:
            yield from _gzip_member(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield from _gzip_member(pending)


def _snappy_frames(blocks: Iterable[bytes]) -> Iterator[bytes]:
    compressor = cramjam.snappy.Compressor()
    for block in blocks:
        compressor.compress(block)
        # Make each block a frame now. Otherwise the compressor would collect the whole fragment.
        yield bytes(compressor.flush())
    yield bytes(compressor.finish())


def _zstandard_frame(blocks: Iterable[bytes]) -> Iterator[bytes]:
    compressor = zstandard.ZstdCompressor(
        level=_ZSTD_LEVEL, write_content_size=False, write_checksum=False
    ).compressobj()
    for block in blocks:
        yield compressor.compress(block)
    yield compressor.flush()
