"""Reads the content of a stored fragment and checks it against the fragment's name.

The name has the content's span and SHA-1. The length is always compared, and the sum whenever all of the
content was read, even if the reader only needs its end. A small fragment is withheld until both have been
checked; of a large one, only the last piece is. So a reader that reaches the end of a fragment has exactly
the bytes that were written. Gazette's own reader only compares the length.

:mod:`gazette_spark.client._read.fragment_urls` opens the file.
"""

from __future__ import annotations

import hashlib
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Protocol

from gazette_spark.client._read.chunks import Chunk, ChunkReader
from gazette_spark.client._read.codecs import BinaryStream, CodecError, decode_fragment
from gazette_spark.client.metrics import (
    DISCARD_FRAGMENT_BYTES,
    FRAGMENT_OPEN,
    READ_FRAGMENT_BYTES,
    ClientMetrics,
)
from gazette_spark.errors import (
    ClosedError,
    CorruptFragmentError,
    DirectReadError,
    FragmentTooLongError,
    FragmentTooShortError,
    GazetteError,
    OffsetError,
    SeekRequiresNewReaderError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

HELD_BYTES = 4 << 20
"""Maximum size of a fragment that is withheld until it has been checked."""

HASH_ASIDE_BYTES = 4 << 20
"""Minimum size of a compressed fragment whose sum is computed by a separate thread during decoding."""

HASH_PIECES = 8
"""Maximum number of pieces that wait for the thread that computes the sum."""


URL_FIELD = "ReadResponse.FragmentUrl"
"""Path of the field in protocol errors about a URL."""


def without_query(url: str) -> str:
    """Return a URL without its query, which may have a signature."""
    return url.partition("?")[0]


class Source(BinaryStream, Protocol):
    """The source of a fragment's content."""

    def close(self) -> None:
        """Release the file or connection."""


class FetchLimit:
    """Limits each wait for a fragment's bytes, and ends all waits with :meth:`cancel`.

    One thread waits, with ``changed`` held. Any thread may call :meth:`cancel`.
    """

    def __init__(self, timeout_s: Callable[[], float] = lambda: math.inf) -> None:
        """Make a limit. ``timeout_s`` returns the seconds that the next bytes may take."""
        self.changed = threading.Condition()
        """Notified of bytes, of the end, and of a cancellation."""
        self._timeout_s = timeout_s
        # There is no time limit until the first bytes are requested.
        self._until = math.inf
        self._cancelled = False

    def begin(self) -> None:
        """Start the time limit for the next bytes."""
        self._until = time.monotonic() + self._timeout_s()

    def cancel(self) -> None:
        """End the current wait and all later ones with a ClosedError."""
        with self.changed:
            self._cancelled = True
            self.changed.notify_all()

    def wait(self, source: str) -> None:
        """Wait for a change. The caller holds ``changed``.

        Raises:
            ClosedError: the wait was cancelled.
            DirectReadError: the time limit is over.
        """
        # Check the cancellation first, so that a closed reader does not report a slow store.
        if self._cancelled:
            raise ClosedError(f"read of fragment {source}", "it was cancelled")
        # A store that hangs must not use up the reader's time: the broker, which is called next, needs the
        # rest.
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise DirectReadError(source, "no bytes within the time limit", passing=True)
        self.changed.wait(None if math.isinf(left_s) else left_s)


class FragmentReader(ChunkReader):
    """Reads the decoded content of one fragment, with the checks that the module describes.

    It ends at the fragment's end, or at ``end_offset``. Seeking only goes forward, within the fragment. An
    error ends the reader: reading again raises the same error.
    """

    _errors_last = True

    def __init__(
        self,
        stream: Source,
        fragment: Fragment,
        offset: int | None = None,
        *,
        end_offset: int = 0,
        start: int | None = None,
        codec: int | None = None,
        source: str = "",
        limit: FetchLimit | None = None,
        metrics: ClientMetrics | None = None,
    ) -> None:
        """Take a stream, which is closed with the reader.

        Args:
            stream: The fragment's file.
            fragment: The expected fragment.
            offset: Offset of the first byte to return; by default the fragment's begin.
            end_offset: Offset after the last byte to return; 0, or one past the fragment, means its end.
            start: Offset of the stream's first decoded byte; by default the fragment's begin. The sum of a
                stream that starts elsewhere is not compared.
            codec: Encoding of the stream, by default the fragment's; ``NONE`` for a store that decompresses
                its files.
            source: Name of the stream for errors, without secrets.
            limit: Limits the stream's waits.
            metrics: Counts the fragment and its bytes.

        Raises:
            OffsetError: the offset is outside the fragment, or the end is before it.
            CodecError: the codec is unknown.
        """
        super().__init__(fragment.journal)
        offset = fragment.begin if offset is None else offset
        span = f"fragment [{fragment.begin}, {fragment.end})"
        if not fragment.begin <= offset <= fragment.end:
            raise OffsetError(f"not in {span}", fragment.journal, offset)
        if end_offset and end_offset < offset:
            raise OffsetError(f"the end {end_offset} of a read of {span} is before it", self.journal, offset)
        self.fragment = fragment
        self.source = source
        self._stream: Source | None = stream
        self._limit = limit
        self._metrics = metrics or ClientMetrics()
        self._counted = fragment.begin if start is None else start
        """Offset up to which bytes have been counted, as read or as discarded."""
        self._metrics.add(FRAGMENT_OPEN, 1, fragment.journal, fragment.codec)
        self._at = offset
        # A read may end in a later fragment; this reader ends with its own.
        self._stop = min(end_offset or fragment.end, fragment.end)
        # The stream's codec may differ from the fragment's, because a store may have decompressed it.
        pieces = decode_fragment(stream, fragment.codec if codec is None else codec)
        self._chunks = verified(
            pieces, fragment, offset=offset, end_offset=end_offset, start=start, source=source
        )
        self._failure: GazetteError | None = None

    def __repr__(self) -> str:
        span = f"[{self.fragment.begin}, {self.fragment.end})"
        return f"FragmentReader({self.journal!r}, {span}, offset={self.offset})"

    def close(self) -> None:
        """Close the stream. Reading then raises ClosedError. May be called again."""
        # The generator first: it ends the thread that computes the sum, which uses no stream.
        self._chunks.close()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _ended(self) -> GazetteError | None:
        if self._stream is not None:
            return None
        return ClosedError(f"reader of a fragment of journal {self.journal!r}", "it is closed")

    def _fetched(self) -> int:
        return self._at

    def _fetch(self) -> Chunk | None:
        if self._failure is not None:
            raise self._failure
        # The limit is on each wait for bytes, so a large fragment may take as long as its bytes keep coming.
        if self._limit is not None:
            self._limit.begin()
        try:
            # After a seek, chunks before the new offset are skipped. They are decoded nevertheless: a
            # compressed stream cannot be entered in the middle, and the sum covers all bytes.
            for decoded in self._chunks:
                if decoded.end <= self._at:
                    continue
                chunk = _clip(decoded, self._at, self._stop)
                self._at = chunk.end
                journal, codec = self.fragment.journal, self.fragment.codec
                self._metrics.add(READ_FRAGMENT_BYTES, len(chunk.content), journal, codec)
                # As in Gazette's client: bytes that were fetched only to reach the offset count as discarded.
                if skipped := chunk.offset - self._counted:
                    self._metrics.add(DISCARD_FRAGMENT_BYTES, skipped, journal, codec)
                self._counted = chunk.end
                return chunk
        except GazetteError as error:
            # A generator that has raised looks as if it had ended, so the error is kept and raised again.
            self._failure = error
            raise
        except BaseException as error:
            # KeyboardInterrupt, or an error of the caller's stream.
            what, cause = f"reader of a fragment of journal {self.journal!r}", type(error).__name__
            self._failure = ClosedError(what, f"its last read was interrupted by {cause}")
            raise
        return None

    def _move(self, offset: int) -> None:
        if not self._at <= offset < self._stop:
            raise SeekRequiresNewReaderError(self.journal, self.offset, offset)
        self._at = offset


def verified(
    pieces: Iterator[bytes],
    fragment: Fragment,
    *,
    offset: int,
    end_offset: int = 0,
    start: int | None = None,
    source: str = "",
) -> Generator[Chunk, None, None]:
    """Yield decoded pieces from ``offset`` on as chunks, checked against the fragment's name.

    The first piece begins at ``start``, by default the fragment's begin. Only in that case is the sum
    compared. An ``end_offset`` before the fragment's end stops there, and later bytes are not checked.

    Raises:
        FragmentTooShortError: the pieces end before the fragment.
        FragmentTooLongError: the pieces continue past the fragment.
        CorruptFragmentError: the pieces do not match the codec or the sum.
    """
    # `list` reads all chunks, or raises, if a check fails, before the first one is yielded.
    chunks = _verified(pieces, fragment, offset=offset, end_offset=end_offset, start=start, source=source)
    # If the end is not read, withholding bytes would not reveal anything.
    if fragment.length <= HELD_BYTES and not 0 < end_offset < fragment.end:
        yield from list(chunks)
    else:
        yield from chunks


def _verified(
    pieces: Iterator[bytes],
    fragment: Fragment,
    *,
    offset: int,
    end_offset: int,
    start: int | None,
    source: str,
) -> Generator[Chunk, None, None]:
    # The sum in the name covers the whole content. A read of a part can only be checked for length.
    position = fragment.begin if start is None else start
    stop = min(end_offset or fragment.end, fragment.end)
    whole = position == fragment.begin and stop == fragment.end
    # SHA-1 releases the interpreter's lock, so a second core can compute it while this thread decodes.
    # Without decompression, passing pieces to another thread would cost more than it saves.
    aside = whole and fragment.codec != pb.NONE and fragment.length >= HASH_ASIDE_BYTES
    digest = _DigestAside() if aside else hashlib.sha1(usedforsecurity=False)
    try:
        for piece in pieces:
            behind = position + len(piece)
            # Check before yielding the piece: bytes past the end of the name's range would be taken for the
            # next fragment's, and appear twice.
            if behind > fragment.end:
                problem = f"it continues past its end by at least {behind - fragment.end} bytes"
                raise _corrupt(fragment, source, problem, FragmentTooLongError)
            # This includes pieces before the offset, which the caller does not get.
            if whole:
                digest.update(piece)
            # The last piece is checked before it is returned, so a caller that gets it has the fragment as it
            # was written.
            if behind == fragment.end and stop == fragment.end:
                # Reading further takes the decoder to the end of the file, where its codec's checksum is.
                # This also shows whether the file has more bytes than its name says.
                if next(pieces, b""):
                    raise _corrupt(fragment, source, "it continues past its end", FragmentTooLongError)
                actual = digest.digest() if whole else fragment.sum
                if actual != fragment.sum:
                    problem = f"its SHA-1 is {actual.hex()}, not {fragment.sum.hex()}"
                    raise _corrupt(fragment, source, problem)
            # Pieces before the offset were only needed for the sum and to reach the offset.
            chunk = Chunk(position, piece, fragment.mod_time)
            if behind > offset and (clipped := _clip(chunk, offset, stop)).content:
                yield clipped
            position = behind
            if position >= stop:
                return
    except CodecError as error:
        raise _corrupt(fragment, source, str(error)) from error
    finally:
        # End the thread even if the reader is closed in the middle of a fragment. Otherwise each such reader
        # would leave one behind.
        if isinstance(digest, _DigestAside):
            digest.end()
    # The stream has ended between two frames, which no codec reports.
    if position < fragment.end:
        problem = f"it ends at offset {position}, {fragment.end - position} bytes short"
        raise _corrupt(fragment, source, problem, FragmentTooShortError)


def _clip(chunk: Chunk, offset: int, stop: int) -> Chunk:
    """Return the part of a chunk within ``[offset, stop)``."""
    low = max(offset - chunk.offset, 0)
    high = min(stop - chunk.offset, len(chunk.content))
    # The usual case, without a copy of the bytes.
    if low == 0 and high == len(chunk.content):
        return chunk
    return Chunk(chunk.offset + low, chunk.content[low:high], chunk.mod_time)


class _DigestAside:
    """A SHA-1 that a separate thread computes, so that the caller only waits for the last pieces."""

    def __init__(self) -> None:
        self._digest = hashlib.sha1(usedforsecurity=False)
        # Bounded, so that a decoder that is faster than the hash does not collect the fragment in memory.
        self._pieces: queue.Queue[bytes] = queue.Queue(HASH_PIECES)
        # A reader that is never closed must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="fragment-sum", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        # No piece of a fragment is empty, so an empty one can mean the end.
        while piece := self._pieces.get():
            self._digest.update(piece)

    def update(self, piece: bytes, /) -> None:
        self._pieces.put(piece)

    def digest(self) -> bytes:
        self.end()
        return self._digest.digest()

    def end(self) -> None:
        """End the thread after it has taken all pieces. May be called again."""
        # While the interpreter exits, the thread may be stopped already, and `put` could wait forever.
        if self._thread.is_alive() and not sys.is_finalizing():
            self._pieces.put(b"")
            self._thread.join()


def _corrupt(
    fragment: Fragment, source: str, problem: str, kind: type[CorruptFragmentError] = CorruptFragmentError
) -> CorruptFragmentError:
    return kind(fragment.journal, fragment.begin, fragment.end, problem, source)
