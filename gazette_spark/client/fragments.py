"""Read a fragment where it is stored, past the broker: by file or by HTTP.

A fragment's name promises its span and the SHA-1 of its content. What is read here is held to it:
the length always, the sum whenever all of the content went by. The last piece is withheld until both
are known to be right, so a reader that got to the end of a fragment has it as it was written.
Gazette's own reader compares the length only.

A ``file://`` URL is the path below the broker's file root, not escaped; a client knows that root only
if it is told.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import httpx

from gazette_spark.client.codecs import BinaryStream, CodecError, decode_fragment
from gazette_spark.errors import CorruptFragmentError, GazetteError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

__all__ = ["Chunk", "DirectReadError", "can_read_directly", "decode_fragment", "read_directly"]

FILE_SCHEME = "file://"
_HTTP_SCHEMES = ("http://", "https://")
_MAX_URL_CHARS = 8192
_BUFFER_BYTES = 1 << 20


@dataclass(slots=True)
class Chunk:
    """Bytes of a journal and the offset of the first."""

    offset: int
    content: bytes

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.offset + len(self.content)


@dataclass(eq=False)
class DirectReadError(GazetteError):
    """A fragment's file or URL cannot be opened or fetched; its broker may still serve it."""

    source: str
    problem: str
    expired: bool = False
    """The URL's signature is no longer taken: a fresh one may do."""

    def __str__(self) -> str:
        return f"fragment {self.source}: {self.problem}"


def can_read_directly(url: str, fragment_root: str | None) -> bool:
    """Return whether :func:`read_directly` knows how to open ``url``."""
    if url.startswith(FILE_SCHEME):
        return fragment_root is not None
    return url.startswith(_HTTP_SCHEMES)


def without_query(url: str) -> str:
    """Return a URL as it may be shown: a signature in its query is a secret."""
    return re.sub(r"//[^/@]*@", "//", url.partition("?")[0])


def read_directly(
    url: str,
    fragment: Fragment,
    *,
    offset: int,
    end_offset: int = 0,
    fragment_root: str | None = None,
    http: httpx.Client | None = None,
) -> Iterator[Chunk]:
    """Yield a fragment's content from ``offset`` to its end or to ``end_offset``, whichever is first.

    Raises:
        CorruptFragmentError: the content is not what the fragment's name says.
        DirectReadError: the file or URL cannot be read.
        ProtocolError: the URL leaves the root, or is none.
    """
    if url.startswith(FILE_SCHEME) and fragment_root is not None:
        path = resolve_file(url, fragment_root)
        with open_regular(path) as file:
            yield from _file_chunks(file, fragment, offset, end_offset, path)
    elif url.startswith(_HTTP_SCHEMES) and http is not None:
        with _open_http(url, fragment.codec, http) as (body, codec):
            pieces = decode_fragment(body, codec)
            source = without_query(url)
            yield from verified(pieces, fragment, offset=offset, end_offset=end_offset, source=source)
    else:
        raise DirectReadError(without_query(url), "no way to open such a URL")


def resolve_file(url: str, root: str) -> str:
    """Return the path of a ``file://`` URL below ``root``, links followed; it may not lead out of it."""
    path = url.removeprefix(FILE_SCHEME)
    if "\0" in path or ".." in path.split("/") or not path.startswith("/"):
        raise ProtocolError("ReadResponse.FragmentUrl", f"{url!r} is not a path below the file root")
    real_root = os.path.realpath(root)
    real = os.path.realpath(real_root + path)
    if os.path.commonpath([real_root, real]) != real_root:
        raise ProtocolError("ReadResponse.FragmentUrl", f"{url!r} leads out of the file root {root!r}")
    return real


def open_regular(path: str) -> BinaryIO:
    """Open a regular file, and nothing else; never waits."""
    try:
        # Without O_NONBLOCK, opening a FIFO would wait for its writer.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DirectReadError(path, error.strerror or str(error)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DirectReadError(path, "not a regular file")
    return os.fdopen(handle, "rb", buffering=_BUFFER_BYTES)


def _file_chunks(
    file: BinaryIO, fragment: Fragment, offset: int, end_offset: int, source: str
) -> Iterator[Chunk]:
    start = fragment.begin
    if fragment.codec == pb.NONE:
        size = os.fstat(file.fileno()).st_size
        if size != fragment.end - fragment.begin:
            raise _corrupt(fragment, source, f"it holds {size} bytes, not {fragment.end - fragment.begin}")
        start = max(offset, fragment.begin)
        file.seek(start - fragment.begin)
    pieces = decode_fragment(file, fragment.codec)
    try:
        yield from verified(
            pieces, fragment, offset=offset, end_offset=end_offset, start=start, source=source
        )
    except OSError as error:
        raise DirectReadError(source, error.strerror or str(error)) from error


class _Body:
    """An HTTP body as a stream, undecoded."""

    def __init__(self, response: httpx.Response, source: str) -> None:
        self._pieces = response.iter_raw(1 << 18)
        self._rest = b""
        self._source = source

    def read(self, size: int, /) -> bytes:
        try:
            while len(self._rest) < size and (piece := next(self._pieces, b"")):
                self._rest = self._rest + piece if self._rest else piece
        except httpx.HTTPError as error:
            raise DirectReadError(self._source, type(error).__name__) from error
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


@contextmanager
def _open_http(url: str, codec: int, http: httpx.Client) -> Iterator[tuple[BinaryStream, int]]:
    """Open a URL; give its body and the codec the body still has.

    The codec is asked for as stored: only GZIP_OFFLOAD_DECOMPRESSION may arrive decompressed, and the
    answer's ``Content-Encoding`` tells.
    """
    source = without_query(url)
    if len(url) > _MAX_URL_CHARS or re.search(r"[\x00-\x20\x7f]", url):
        raise ProtocolError("ReadResponse.FragmentUrl", f"{source[:200]!r} is not a URL to fetch")
    accept = "gzip" if codec == pb.GZIP else "identity"
    try:
        with http.stream("GET", url, headers={"Accept-Encoding": accept}) as response:
            if response.status_code != httpx.codes.OK:
                problem = f"HTTP status {response.status_code}"
                raise DirectReadError(source, problem, expired=response.status_code in (401, 403))
            if codec == pb.GZIP_OFFLOAD_DECOMPRESSION and "Content-Encoding" not in response.headers:
                codec = pb.NONE
            yield _Body(response, source), codec
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DirectReadError(source, type(error).__name__) from error


def verified(
    pieces: Iterator[bytes],
    fragment: Fragment,
    *,
    offset: int,
    end_offset: int = 0,
    start: int | None = None,
    source: str = "",
) -> Iterator[Chunk]:
    """Yield decoded pieces from ``offset`` on as chunks, holding them to the fragment's name.

    The first piece begins at ``start``, by default the fragment's begin; only then is the sum compared.
    An ``end_offset`` before the fragment's end stops there: what follows is not looked at.
    """
    position = fragment.begin if start is None else start
    stop = min(end_offset or fragment.end, fragment.end)
    digest = hashlib.sha1(usedforsecurity=False)
    sums = position == fragment.begin
    try:
        for piece in pieces:
            behind = position + len(piece)
            if behind > fragment.end:
                raise _corrupt(
                    fragment, source, f"it goes on past its end, by {behind - fragment.end} bytes or more"
                )
            if stop == fragment.end and sums:
                digest.update(piece)
            if behind == fragment.end and stop == fragment.end:
                _check_end(pieces, fragment, digest.digest() if sums else fragment.sum, source)
            if behind > offset:
                chunk = _clip(position, piece, offset, stop)
                if chunk.content:
                    yield chunk
            position = behind
            if position >= stop:
                return
    except CodecError as error:
        raise _corrupt(fragment, source, str(error)) from error
    if position < fragment.end:
        raise _corrupt(
            fragment, source, f"it ends at offset {position}, {fragment.end - position} bytes short"
        )


def _clip(position: int, piece: bytes, offset: int, stop: int) -> Chunk:
    """Return the part of a piece at ``position`` that lies in ``[offset, stop)``."""
    low = max(offset - position, 0)
    high = min(stop - position, len(piece))
    if low == 0 and high == len(piece):
        return Chunk(position, piece)
    return Chunk(position + low, piece[low:high])


def _check_end(pieces: Iterator[bytes], fragment: Fragment, found: bytes, source: str) -> None:
    if next(pieces, b""):
        raise _corrupt(fragment, source, "it goes on past its end")
    if found != fragment.sum:
        raise _corrupt(fragment, source, f"its SHA-1 is {found.hex()}, not {fragment.sum.hex()}")


def _corrupt(fragment: Fragment, source: str, problem: str) -> CorruptFragmentError:
    return CorruptFragmentError(fragment.journal, fragment.begin, fragment.end, problem, source)
