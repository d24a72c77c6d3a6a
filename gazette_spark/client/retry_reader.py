"""Read a journal through restarts, re-assignments and broken connections.

A :class:`RetryReader` knows one thing, the next offset it wants. It asks the broker for it, follows
the stream (:mod:`gazette_spark.client.read`) or the stored fragment the stream points at
(:mod:`gazette_spark.client.fragments`), and when either ends it asks again, as the table of
:mod:`gazette_spark.client.retry` says. So no byte is left out and none comes twice, wherever the
streams are cut.

====================================  ============================================================
what is read                          how it ends
====================================  ============================================================
``end_offset`` set                    at exactly ``end_offset``; what is not there yet is waited for
no end, ``block`` false               at the write head
no end, ``block`` true                when closed
====================================  ============================================================

Time: a call to ``next`` or ``read`` that gets no byte for ``timeout_s`` raises the last cause. A blocking
reader may wait longer on a broker that still answers. Each stream has a deadline of ``idle_timeout_s``,
after which it is simply opened again: this is how a hung connection is found.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from gazette_spark.client.channel import Connection, is_no_answer
from gazette_spark.client.fragments import (
    FILE_SCHEME,
    Chunk,
    DirectReadError,
    can_read_directly,
    read_directly,
)
from gazette_spark.client.read import Cursor, ReadOptions, ReadStream
from gazette_spark.client.retry import MARGIN_S, after_read, within
from gazette_spark.client.status import read_status_error
from gazette_spark.errors import (
    GazetteError,
    NotJournalBrokerError,
    OffsetJumpError,
    OffsetNotYetAvailableError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

logger = logging.getLogger(__name__)

LOGGED_ATTEMPT = 5
"""Which retry in a row is logged, and the only one: shorter outages are of no interest."""

HURRIED_S = 1.0
"""A try this short that brings no answer says little about the broker."""


class Stream(Protocol):
    """A Read call under way, as :class:`ReadStream` makes it."""

    def messages(self) -> Iterator[pb.ReadResponse]:
        """Yield the call's messages; raise its failure."""

    def cancel(self) -> None:
        """End the call, from any thread."""

    def close(self) -> None:
        """End the call and let go of what it holds."""


class RetryReader:
    """Iterator over a journal's chunks, in order, without gap or repeat; see the module.

    A jump, where the journal has lost bytes, shows as a chunk whose offset is larger than the end of
    the one before, and in ``jumps``; only :meth:`read` raises for it. A jump to or past ``end_offset``
    brings no chunk: it shows in ``jumps`` only.

    For one thread, but :meth:`close` may be called from any and ends a waiting reader. After an error
    the reader stands where it stood: ``next`` tries again from there.
    """

    def __init__(
        self,
        connection: Connection,
        options: ReadOptions,
        *,
        timeout_s: float,
        idle_timeout_s: float,
        fragment_root: str | None = None,
        open_stream: Callable[[pb.ReadRequest, float], Stream] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.journal = options.journal
        self.jumps: list[tuple[int, int]] = []
        """Each offset that was wanted, with the next one the journal still had."""
        self._connection = connection
        self._options = options
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._fragment_root = fragment_root
        self._closed = threading.Event()
        self._open_stream = open_stream or partial(ReadStream, connection)
        self._clock = clock
        self._sleep = sleep or self._closed.wait
        self._stream: Stream | None = None
        self._cursor = Cursor(options.journal, options.offset, self.jumps)
        self._offset = options.offset
        self._rest = b""
        self._rest_at = 0
        self._jumps_raised = 0
        # What the retries turn on.
        self._attempt = 0
        self._since = clock()
        self._try_s = 0.0
        self._told: GazetteError | None = None
        # How to get at stored fragments.
        self._ask_for_urls = options.do_not_proxy or fragment_root is not None
        self._proxied_to = -1
        self._signed_again = -1
        self._chunks_left: Generator[Chunk, None, None] = self._chunks()

    @property
    def offset(self) -> int:
        """Next byte to be returned; -1 as long as the write head asked for is not known."""
        end_offset = self._options.end_offset
        iterated = min(self._offset, end_offset) if end_offset else self._offset
        return iterated - (len(self._rest) - self._rest_at)

    def __repr__(self) -> str:
        return f"RetryReader({self.journal!r}, offset={self.offset}, end_offset={self._options.end_offset})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        """Return the next chunk; it is not empty."""
        if self._rest_at < len(self._rest):
            chunk = Chunk(self.offset, self._rest[self._rest_at :])
            self._rest, self._rest_at = b"", 0
            return chunk
        try:
            return next(self._chunks_left)
        except GazetteError:
            self._chunks_left = self._chunks()
            raise

    def read(self, n: int = -1) -> bytes:
        """Return the next ``n`` bytes, fewer only at the end or before a jump; -1: all that is left.

        Raises:
            OffsetJumpError: the next byte is at a larger offset. Once per jump; read on to go on.
        """
        parts: list[bytes] = []
        missing = n
        while missing != 0:
            if self._jumps_raised < len(self.jumps):
                if parts:
                    break
                wanted, landed = self.jumps[self._jumps_raised]
                self._jumps_raised += 1
                raise OffsetJumpError(self.journal, wanted, landed)
            if self._rest_at < len(self._rest):
                part = self._take(missing)
                parts.append(part)
                missing -= len(part) if missing > 0 else 0
            elif not self._refill():
                break
        return b"".join(parts)

    def _take(self, n: int) -> bytes:
        low = self._rest_at
        high = len(self._rest) if n < 0 else min(low + n, len(self._rest))
        self._rest_at = high
        return self._rest[low:high]

    def _refill(self) -> bool:
        """Get what comes next, a chunk or a jump; return False at the end."""
        jumps = len(self.jumps)
        chunk = next(self, None)
        self._rest, self._rest_at = (chunk.content if chunk else b""), 0
        return chunk is not None or len(self.jumps) > jumps

    def close(self) -> None:
        """End the reader; a ``next`` under way in another thread ends too. May be called again."""
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.cancel()
        try:
            self._chunks_left.close()
        except ValueError:
            # Another thread is inside: it finds the reader closed, and cleans up.
            return

    def _chunks(self) -> Generator[Chunk, None, None]:
        self._since = self._clock()
        while not self._closed.is_set() and not self._at_end():
            cause: GazetteError | None = None
            try:
                for chunk in self._one_stream():
                    self._attempt, self._told = 0, None
                    yield chunk
                    self._since = self._clock()
            except GazetteError as error:
                cause = error
            if self._closed.is_set() or self._at_end() or self._is_caught_up(cause):
                return
            self._wait_after(cause)

    def _one_stream(self) -> Iterator[Chunk]:
        """Yield what one Read call brings, or the stored fragment it points at."""
        by_url = self._ask_for_urls and self._offset >= self._proxied_to
        self._cursor = cursor = Cursor(self.journal, self._offset, self.jumps)
        stream = self._open_stream(self._request(do_not_proxy=by_url), self._stream_timeout_s())
        self._stream = stream
        if self._closed.is_set():
            # close() came between the loop's look at it and now, and found no stream to cancel.
            stream.cancel()
        try:
            for message in stream.messages():
                chunk = cursor.feed(message)
                self._offset = cursor.offset
                if chunk is not None:
                    yield self._clip(chunk)
                elif not by_url and self._prefers_url(cursor):
                    by_url = True
                    break
                if self._at_end():
                    return
        finally:
            self._offset = cursor.offset
            self._stream = None
            stream.close()
        if by_url and cursor.fragment is not None and cursor.url and self._offset < cursor.fragment.end:
            yield from self._stored(cursor.url, cursor.fragment)

    def _stored(self, url: str, fragment: Fragment) -> Iterator[Chunk]:
        """Yield what is left of a stored fragment, or see to it that the broker is asked for it."""
        if not can_read_directly(url, self._fragment_root):
            self._proxied_to = fragment.end
            return
        is_file = url.startswith(FILE_SCHEME)
        self._ask_for_urls = True
        chunks = read_directly(
            url,
            fragment,
            offset=self._offset,
            end_offset=self._options.end_offset,
            fragment_root=self._fragment_root,
            http=None if is_file else self._connection.http(),
        )
        try:
            for chunk in chunks:
                self._offset = chunk.end
                yield chunk
                if self._closed.is_set():
                    return
        except DirectReadError as error:
            if error.expired and self._signed_again != fragment.begin:
                self._signed_again = fragment.begin
                return
            self._proxied_to = fragment.end
            logger.info("fragment read through the broker instead journal=%s cause=%s", self.journal, error)

    def _request(self, *, do_not_proxy: bool) -> pb.ReadRequest:
        options = self._options
        return pb.ReadRequest(
            journal=options.journal,
            offset=self._offset,
            end_offset=options.end_offset,
            block=options.block,
            do_not_proxy=do_not_proxy,
            begin_mod_time=options.begin_mod_time,
        )

    def _stream_timeout_s(self) -> float:
        left_s = self._timeout_s - (self._clock() - self._since)
        self._try_s = min(self._idle_timeout_s, max(left_s, MARGIN_S))
        return self._try_s

    def _prefers_url(self, cursor: Cursor) -> bool:
        return self._offset >= self._proxied_to and can_read_directly(cursor.url, self._fragment_root)

    def _clip(self, chunk: Chunk) -> Chunk:
        end_offset = self._options.end_offset
        if end_offset and chunk.end > end_offset:
            return Chunk(chunk.offset, chunk.content[: end_offset - chunk.offset])
        return chunk

    def _at_end(self) -> bool:
        end_offset = self._options.end_offset
        return end_offset != 0 and self._offset >= end_offset

    def _is_caught_up(self, cause: GazetteError | None) -> bool:
        """Whether a reader that neither waits nor has an end has got to the write head."""
        options = self._options
        return (
            isinstance(cause, OffsetNotYetAvailableError)
            and not (options.block or options.end_offset)
            and cause.write_head == self._offset
        )

    def _wait_after(self, cause: GazetteError | None) -> None:
        """Wait before the next try, or raise why there is none."""
        if self._told and self._try_s < HURRIED_S and is_no_answer(cause):
            # The deadline left it no time: what the broker said before tells more.
            cause = self._told
        self._told = cause
        if isinstance(cause, NotJournalBrokerError) and self._ask_for_urls:
            # Not a member of the journal's route, and told not to proxy: let it proxy.
            self._ask_for_urls = False
            cause = None
        waits = self._options.block or self._options.end_offset != 0
        wait_s = after_read(cause, self._attempt, waits=waits)
        failure = cause or self._without_content()
        if wait_s is None:
            raise self._cursor.explain(failure)
        self._attempt += 1
        if self._attempt == LOGGED_ATTEMPT and not isinstance(cause, OffsetNotYetAvailableError):
            logger.warning(
                "read is retried journal=%s offset=%d cause=%s", self.journal, self._offset, failure
            )
        left_s = self._connection.patience_s(self._timeout_s) - (self._clock() - self._since)
        wait_s = within(wait_s, left_s)
        if wait_s is None:
            if not (self._options.block and self._broker_answers()):
                raise self._cursor.explain(failure)
            self._since = self._clock()
            wait_s = 0.0
        self._sleep(wait_s)

    def _without_content(self) -> UnavailableError:
        where = f"journal {self.journal!r}, offset {self._offset}"
        problem = f"{where}: {self._attempt + 1} streams in a row ended without a byte"
        return UnavailableError(self._connection.endpoint.text, problem)

    def _broker_answers(self) -> bool:
        """Ask for the write head: a quiet journal and a hung broker look the same to a waiting reader."""
        request = pb.ReadRequest(journal=self.journal, offset=-1, metadata_only=True)
        timeout_s = min(self._idle_timeout_s, self._connection.connect_timeout_s)
        stream = self._open_stream(request, timeout_s)
        try:
            for message in stream.messages():
                if message.status not in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE):
                    raise read_status_error(message, self.journal)
                return True
        except UnavailableError:
            return False
        finally:
            stream.close()
        return False
