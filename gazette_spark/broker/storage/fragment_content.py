"""Reads a range of a fragment's content, from its spool or from its file in a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gazette_spark.broker.storage.spool import SpoolData
from gazette_spark.client._read.codecs import CodecError, decode_fragment
from gazette_spark.client._read.regular_files import open_regular_file
from gazette_spark.errors import CorruptFragmentError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment


def spool_content(
    data: SpoolData, fragment: Fragment, begin: int, end: int, chunk_bytes: int
) -> Iterator[bytes]:
    """Yield bytes [begin, end) of a local fragment."""
    while begin < end:
        content = data.read(begin - fragment.begin, min(chunk_bytes, end - begin))
        # A commit is recorded after its bytes, so the disk has lost some of them.
        if not content:
            raise _corrupt(fragment, f"the spool ends at {begin}", None)
        yield content
        begin += len(content)


def stored_content(path: Path, fragment: Fragment, begin: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
    """Yield bytes [begin, end) of a stored fragment.

    Raises:
        OSError: the file cannot be opened, or is not a regular one.
        CorruptFragmentError: the file has more or fewer bytes than its name says, or is invalid for its
            codec. A file that is too long is noticed when it is read to its end.
    """
    with open_regular_file(path) as file:
        try:
            for piece in _clip(_pieces(file, path, fragment, begin, chunk_bytes), path, fragment, begin, end):
                for start in range(0, len(piece), chunk_bytes):
                    yield bytes(piece[start : start + chunk_bytes])
        except CodecError as error:
            raise _corrupt(fragment, str(error), path) from error


def _pieces(file: BinaryIO, path: Path, fragment: Fragment, begin: int, chunk_bytes: int) -> Iterator[bytes]:
    skipped = begin - fragment.begin
    if fragment.codec != pb.NONE:
        return _skip(decode_fragment(file, fragment.codec), skipped)
    # Without compression the length is known before a byte is sent.
    size = os.fstat(file.fileno()).st_size
    if size != fragment.end - fragment.begin:
        raise _corrupt(fragment, f"the file has {size} bytes", path)
    file.seek(skipped)
    return iter(lambda: file.read(chunk_bytes), b"")


def _skip(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    for piece in pieces:
        if count < len(piece):
            yield piece[count:] if count else piece
        count = max(0, count - len(piece))


def _clip(
    pieces: Iterator[bytes], path: Path, fragment: Fragment, begin: int, end: int
) -> Iterator[memoryview]:
    """Cut bytes past ``end``; raise if content is missing, or continues past the fragment's end."""
    for piece in pieces:
        clipped = memoryview(piece)[: end - begin]
        begin += len(clipped)
        if begin == end == fragment.end and (len(clipped) < len(piece) or next(pieces, b"")):
            raise _corrupt(fragment, "it has more bytes than its name says", path)
        yield clipped
        if begin == end:
            return
    raise _corrupt(fragment, f"it ends at offset {begin}", path)


def _corrupt(fragment: Fragment, problem: str, path: Path | None) -> CorruptFragmentError:
    source = str(path) if path is not None else ""
    return CorruptFragmentError(fragment.journal, fragment.begin, fragment.end, problem, source)
