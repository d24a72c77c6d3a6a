"""Read a journal by one Read call, and by the fragment file that call may end with.

====================================  ============================================================
what happens                          what the reader does
====================================  ============================================================
``end_offset`` is reached             ends
the broker ends the stream            ends: its assignment changed, or it is shutting down
the stream ends with a URL            goes on in the fragment's file, and ends with the fragment
nothing left, and ``block`` is false  raises OffsetNotYetAvailableError
any other status or failure           raises it
====================================  ============================================================

So an end says only that this call is over: :class:`~gazette_spark.client.RetryReader` asks again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from typing import Protocol

from gazette_spark.client._read.chunks import Chunk, ChunkReader
from gazette_spark.client._read.fetch_limit import FetchLimit
from gazette_spark.client._read.fragment_urls import FragmentOpener
from gazette_spark.client._read.fragments import FragmentReader
from gazette_spark.client._read.read import Cursor, ReadOptions
from gazette_spark.client.metrics import READ_BYTES
from gazette_spark.errors import ClosedError, GazetteError, SeekRequiresNewReaderError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment


class Stream(Protocol):
    """A Read call under way, as :class:`~gazette_spark.client._read.read.ReadStream` makes it."""

    def messages(self) -> Iterator[pb.ReadResponse]:
        """Yield the call's messages; raise its failure."""

    def cancel(self) -> None:
        """End the call, from any thread."""

    def close(self) -> None:
        """End the call and release its channel."""


OpenStream = Callable[[pb.ReadRequest], Stream]
"""Begins a Read call."""


class Reader(ChunkReader):
    """Reads the bytes one Read call brings; see the module and :class:`ChunkReader`.

    The call begins with the first byte that is asked for. An error ends the reader, but for
    OffsetJumpError: reading again raises the same one. Seeking goes forward only, within the current chunk or
    within a fragment that is read directly. :meth:`cancel` may be called from any thread.
    """

    _errors_last = True

    def __init__(
        self,
        options: ReadOptions,
        open_stream: OpenStream,
        opener: FragmentOpener,
        *,
        prefers_url: Callable[[pb.ReadResponse], bool] = lambda _: False,
        jumps: list[tuple[int, int]] | None = None,
        fetch_timeout_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Make a reader; it sends no request yet.

        Args:
            options: range and mode of the read.
            open_stream: begins the call.
            opener: opens the fragment the call may end with.
            prefers_url: whether a fragment the broker is about to send is to be opened instead.
            jumps: list to which jumps are added; by default, a new one.
            fetch_timeout_s: returns the seconds that the next bytes of a fragment may take from now on.
        """
        super().__init__(options.journal)
        self.options = options
        self.jumps = self.jumps if jumps is None else jumps
        self._cursor = Cursor(options.journal, options.offset, self.jumps)
        self._open_stream = open_stream
        self._opener = opener
        self._prefers_url = prefers_url
        self._at = options.offset
        self._stopped = threading.Event()
        self._limit = FetchLimit(fetch_timeout_s)
        self._stream: Stream | None = None
        self._direct: FragmentReader | None = None
        self._failure: GazetteError | None = None
        self._chunks = self.run()

    def __repr__(self) -> str:
        return f"Reader({self.journal!r}, offset={self.offset}, end_offset={self.options.end_offset})"

    @property
    def response(self) -> pb.ReadResponse | None:
        """The broker's last message but for content: status, header, fragment, write head."""
        return self._cursor.response

    @property
    def header(self) -> pb.Header | None:
        """The call's header, which names its broker and the journal's route; None before its first answer."""
        return self._cursor.header

    @property
    def fragment(self) -> Fragment | None:
        """The fragment the broker last spoke of, if it did."""
        return self._cursor.fragment

    @property
    def url(self) -> str:
        """URL of that fragment; empty if it is not. It may hold a signature."""
        return self._cursor.url

    @property
    def request(self) -> pb.ReadRequest:
        """The call's request, its offset moved to the next byte."""
        return self.options.request(self.offset)

    @property
    def direct(self) -> FragmentReader | None:
        """The fragment that is read directly at the moment, if one is."""
        return self._direct

    def cancel(self) -> None:
        """End the call, from any thread: reads under way and later ones raise ClosedError."""
        self._stopped.set()
        self._limit.cancel()
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        """End the reader, from any thread; like :meth:`cancel`, and releases its resources."""
        self.cancel()
        # If another thread is inside, it finds the reader cancelled, and cleans up.
        with suppress(ValueError):
            self._chunks.close()

    def _fetched(self) -> int:
        end_offset = self.options.end_offset
        return min(self._at, end_offset) if end_offset else self._at

    def _ended(self) -> GazetteError | None:
        if not self._stopped.is_set():
            return None
        return ClosedError(f"reader of journal {self.journal!r}", "it was cancelled or closed")

    def _fetch(self) -> Chunk | None:
        chunk = None
        if self._failure is None:
            try:
                chunk = next(self._chunks, None)
            except GazetteError as error:
                self._failure = self.explain(error)
        if chunk is None and (failure := self._ended() or self._failure):
            raise failure
        return chunk

    def _move(self, offset: int) -> None:
        if self._direct is None:
            raise SeekRequiresNewReaderError(self.journal, self.offset, offset)
        self._direct.seek(offset)
        self._at = offset

    def explain(self, error: GazetteError) -> GazetteError:
        """Return a failure of the call with its subject: journal, offset, fragment."""
        return self._cursor.explain(error)

    def run(self) -> Generator[Chunk, None, None]:
        """Yield the call's chunks, once; failures are raised as they came, not yet explained."""
        with closing(self._run()) as chunks:
            for chunk in chunks:
                self._opener.metrics.add(READ_BYTES, len(chunk.content), self.journal)
                yield chunk

    def _run(self) -> Generator[Chunk, None, None]:
        if self._at_end():
            return
        url = yield from self._stream_chunks()
        fragment = self._cursor.fragment
        # A jump may have passed the end, or the fragment's.
        if url and fragment is not None and not self._at_end() and self._at < fragment.end:
            yield from self._fragment_chunks(url)

    def _stream_chunks(self) -> Generator[Chunk, None, str]:
        """Yield the call's chunks; return the URL at which to continue, or an empty text."""
        cursor = self._cursor
        stream = self._stream = self._open_stream(self.options.request(self._at))
        if self._stopped.is_set():
            # cancel() found no stream to cancel.
            stream.cancel()
        url = ""
        try:
            for message in stream.messages():
                chunk = cursor.feed(message)
                self._at = cursor.offset
                if chunk is not None:
                    url = ""
                    yield self._clip(chunk)
                else:
                    url = message.fragment_url
                    if url and self._prefers_url(message):
                        break
                if self._at_end():
                    break
        finally:
            self._at = cursor.offset
            self._stream = None
            stream.close()
        return url

    def _fragment_chunks(self, url: str) -> Iterator[Chunk]:
        fragment = self._cursor.fragment
        assert fragment is not None
        end_offset = self.options.end_offset
        with self._opener.open(fragment, url, self._at, end_offset=end_offset, limit=self._limit) as direct:
            self._direct = direct
            try:
                for chunk in direct:
                    self._at = chunk.end
                    yield chunk
                    if self._stopped.is_set():
                        return
            finally:
                self._direct = None

    def _clip(self, chunk: Chunk) -> Chunk:
        end_offset = self.options.end_offset
        if end_offset and chunk.end > end_offset:
            return Chunk(chunk.offset, chunk.content[: end_offset - chunk.offset], chunk.mod_time)
        return chunk

    def _at_end(self) -> bool:
        end_offset = self.options.end_offset
        return end_offset != 0 and self._at >= end_offset
