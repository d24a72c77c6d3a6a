"""Read a journal: by one Read call, or through restarts, re-assignments and broken connections.

A :class:`RetryReader` has one state, the next offset it reads. It makes a Read call there, and yields what
the call brings: its stream, then the stored fragment that the stream may end with. When the call is over it
makes another one, by the table of :mod:`gazette_spark.client._transport.retry`. So no byte is left out and
none comes twice, wherever the streams are cut.

====================================  ============================================================
what is read                          how it ends
====================================  ============================================================
``end_offset`` set                    at exactly ``end_offset``; waits for bytes still to come
no end, ``block`` false               at the write head
no end, ``block`` true                when closed
====================================  ============================================================

A :class:`Reader` is one of these calls alone:

====================================  ============================================================
what happens                          what the reader does
====================================  ============================================================
``end_offset`` is reached             ends
the broker ends the stream            ends: its assignment changed, or it is shutting down
the stream ends with a URL            continues in the fragment's file, and ends with the fragment
nothing left, and ``block`` is false  raises OffsetNotYetAvailableError
any other status or failure           raises it
====================================  ============================================================

Time: a call to ``next`` or ``read`` that gets no byte for ``timeout_s`` raises the last cause. A blocking
reader may wait longer on a broker that still answers. Each stream has a deadline of ``idle_timeout_s``,
after which it is simply opened again: this is how a hung connection is found. A stored fragment's bytes may
take half of the time that is left, so that a store which hangs leaves some to the broker.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from gazette_spark.client._read.chunks import Chunk, ChunkReader
from gazette_spark.client._read.fragment import FetchLimit, FragmentReader
from gazette_spark.client._read.fragment_urls import FragmentOpener
from gazette_spark.client._read.stream import Cursor, ReadOptions, ReadStream
from gazette_spark.client._transport.channel import Connection, is_no_answer
from gazette_spark.client._transport.retry import MARGIN_S, after_read, within
from gazette_spark.client._transport.status import read_status_error
from gazette_spark.client.metrics import READ_BYTES
from gazette_spark.errors import (
    ClosedError,
    DirectReadError,
    GazetteError,
    NotJournalBrokerError,
    OffsetNotYetAvailableError,
    SeekRequiresNewReaderError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

logger = logging.getLogger(__name__)

LOGGED_ATTEMPT = 5
"""Which retry in a row is logged, and the only one: shorter outages are of no interest."""

HURRIED_S = 1.0
"""A try this short that brings no answer says little about the broker."""

STORE_TRIES = 3
"""Times a store that is busy is asked for a fragment, before the broker is."""


class Stream(Protocol):
    """A Read call under way, as :class:`~gazette_spark.client._read.stream.ReadStream` makes it."""

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

    The call begins with the first read. An error other than OffsetJumpError ends the reader: reading again
    raises the same one. Seeking goes forward only, within the current chunk or
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
        """The fragment of the broker's last message about one."""
        return self._cursor.fragment

    @property
    def url(self) -> str:
        """URL of that fragment; empty if the broker gave none. It may hold a signature."""
        return self._cursor.url

    @property
    def request(self) -> pb.ReadRequest:
        """The call's request, its offset moved to the next byte."""
        return self.options.request(self.offset)

    @property
    def direct(self) -> FragmentReader | None:
        """Reader of the fragment that is read directly at the moment."""
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
        """Return a failure of the call with its journal, offset and fragment."""
        return self._cursor.explain(error)

    def run(self) -> Generator[Chunk, None, None]:
        """Yield the call's chunks, once; failures are raised as they came, not yet explained."""
        with closing(self._run()) as chunks:
            for chunk in chunks:
                self._opener.metrics.add(READ_BYTES, len(chunk.content), self.journal)
                yield chunk

    def _run(self) -> Generator[Chunk, None, None]:  # noqa: PLR0912 - one call, told in order
        end_offset = self.options.end_offset
        if self._at_end():
            return

        # The stream. Each chunk follows the one before; the cursor checks that, and keeps the offset.
        cursor = self._cursor
        stream = self._stream = self._open_stream(self.options.request(self._at))
        if self._stopped.is_set():
            stream.cancel()  # cancel() came before, and found no stream.
        url = ""
        try:
            for message in stream.messages():
                chunk = cursor.feed(message)
                self._at = cursor.offset
                if chunk is not None:
                    url = ""
                    if end_offset and chunk.end > end_offset:
                        # The last chunk may go on past the end.
                        content = chunk.content[: end_offset - chunk.offset]
                        chunk = Chunk(chunk.offset, content, chunk.mod_time)
                    yield chunk
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

        # The stored fragment, if the stream ended with its URL in place of content. A jump may have passed
        # the end, or the fragment's.
        fragment = cursor.fragment
        if not url or fragment is None or self._at_end() or self._at >= fragment.end:
            return
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

    def _at_end(self) -> bool:
        end_offset = self.options.end_offset
        return end_offset != 0 and self._at >= end_offset


class _FragmentAccess:
    """How a retrying reader gets at stored fragments: by their URLs, or through the broker."""

    def __init__(self, opener: FragmentOpener, *, asks_for_urls: bool) -> None:
        self.asks_for_urls = asks_for_urls
        """The broker is told not to send stored fragments, but their URLs."""
        self._opener = opener
        self._never_by_url = False
        self._proxied_to = -1
        """End of the fragment that has to come through the broker."""
        self._signed_again = -1
        """Begin of the fragment whose URL was renewed."""

    def by_url(self, offset: int) -> bool:
        """Return whether the next call should ask for URLs."""
        return self.asks_for_urls and not self._never_by_url and offset >= self._proxied_to

    def prefers_url(self, message: pb.ReadResponse) -> bool:
        """Return whether a fragment that the broker is about to send is to be opened instead."""
        if self._never_by_url or message.offset < self._proxied_to:
            return False
        if not self._opener.can_open(message.fragment_url):
            return False
        self.asks_for_urls = True  # The next fragments need not begin to stream.
        return True

    def retries(self, error: DirectReadError, reader: Reader, attempt: int) -> bool:
        """Choose how to get at a fragment whose URL failed.

        Returns:
            Whether to wait and try the URL again. Otherwise the next call gets a fresh URL, or the fragment
            through the broker, and need not wait.
        """
        fragment = reader.fragment
        assert fragment is not None
        if error.expired and self._signed_again != fragment.begin:
            self._signed_again = fragment.begin
            return False
        if error.passing and attempt + 1 < STORE_TRIES:
            return True
        self._proxied_to = fragment.end
        # A URL that is refused because of its host is followed by others of that host.
        self._never_by_url = error.refused and self._opener.can_open(reader.url)
        logger.info("fragment read through the broker instead journal=%s cause=%s", reader.journal, error)
        return False

    def seek(self) -> None:
        """Forget what was decided about the fragment at the last offset."""
        self._proxied_to = -1


class _Members:
    """The members of a journal's route that had nothing at the reader's offset, and the one to ask next.

    A member may lack bytes that its peers have: a replica that has replaced a dead broker knows of stored
    fragments only, until it lists the store again. So where a member says that there is nothing at an offset,
    the journal's primary is asked before that counts. Where a member has only later bytes, all are asked.
    """

    def __init__(self) -> None:
        self.next: tuple[pb.Header, int] | None = None
        self._asked: set[int] = set()

    def choose_other(self, header: pb.Header | None, answer: OffsetNotYetAvailableError) -> bool:
        """Have the next call go to another member; return False if all that matter had nothing."""
        if header is None or header.process_id not in header.route.members:
            return False
        members = list(header.route.members)
        self._asked.add(members.index(header.process_id))
        candidates = [header.route.primary] if header.route.primary >= 0 else []
        if answer.write_head > answer.offset:
            # Bytes behind this offset are here, so it was appended: somebody has it, or the store.
            candidates += range(len(members))
        member = next((candidate for candidate in candidates if candidate not in self._asked), None)
        if member is None:
            self._asked.clear()
            return False
        self._asked.add(member)
        self.next = (header, member)
        return True

    def take_next(self) -> tuple[pb.Header, int] | None:
        """Return the member to ask now, once."""
        member, self.next = self.next, None
        return member

    def clear(self) -> None:
        """Forget who was asked: the reader has moved on."""
        self._asked.clear()


class RetryReader(ChunkReader):
    """Iterator over a journal's chunks, in order, without gap or repeat; see the module.

    A jump, where the journal has lost bytes, shows as a chunk whose offset is larger than the end of
    the one before, and in ``jumps``; only :meth:`read` and :meth:`readinto` raise for it. A jump to or
    past ``end_offset`` brings no chunk: it shows in ``jumps`` only.

    For one thread, but :meth:`cancel` and :meth:`close` may be called from any. After an error the reader's
    offset is unchanged: ``next`` tries again from there.
    """

    def __init__(
        self,
        connection: Connection,
        options: ReadOptions,
        *,
        timeout_s: float,
        idle_timeout_s: float,
        opener: FragmentOpener | None = None,
        open_stream: Callable[[pb.ReadRequest, float], Stream] | None = None,
        open_member: Callable[[pb.Header, int, pb.ReadRequest, float], Stream | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(options.journal)
        self._connection = connection
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._opener = opener or FragmentOpener()
        self._stopped = threading.Event()
        self._closed = False
        self._open_stream = open_stream or partial(ReadStream, connection)
        self._open_member = open_member
        self._clock = clock
        self._sleep = sleep or self._stopped.wait
        self._begin(options)

    def _begin(self, options: ReadOptions) -> None:
        self._options = options
        self._offset = options.offset
        self._attempt = 0
        """Calls since a byte last arrived."""
        self._since = self._clock()
        """When the wait for the next byte began."""
        self._try_s = 0.0
        """Seconds that the present call may take."""
        self._earlier: GazetteError | None = None
        """Why the call before ended, if no byte has arrived since."""
        self._members = _Members()
        asks_for_urls = options.do_not_proxy or self._opener.root is not None
        self._access = _FragmentAccess(self._opener, asks_for_urls=asks_for_urls)
        self._reader = self._new_reader(by_url=False)
        self._chunks_left: Generator[Chunk, None, None] = self._chunks()

    def __repr__(self) -> str:
        return f"RetryReader({self.journal!r}, offset={self.offset}, end_offset={self._options.end_offset})"

    @property
    def reader(self) -> Reader:
        """The reader of the present or last Read call. Look at it, but do not read from it."""
        return self._reader

    @property
    def request(self) -> pb.ReadRequest:
        """Request for the rest of the read, from the next byte on."""
        return self._options.request(self.offset)

    def cancel(self) -> None:
        """Make a read under way, and all later ones, raise ClosedError; :meth:`restart` ends that.

        From any thread, any number of times.
        """
        self._stopped.set()
        self._reader.cancel()

    def restart(self, request: pb.ReadRequest | ReadOptions) -> None:
        """Read something else, as if the reader were new; also after :meth:`cancel`. ``jumps`` is emptied."""
        if self._closed:
            raise ClosedError(f"reader of journal {self.journal!r}", "it is closed")
        options = request if isinstance(request, ReadOptions) else ReadOptions.of(request)
        self._reader.cancel()
        with self._alone(even_if_ended=True):
            self._chunks_left.close()
            self._stopped.clear()
            self.journal = options.journal
            self.jumps.clear()
            self._forget()
            self._begin(options)

    def close(self) -> None:
        """End the reader, from any thread; may be called again.

        Iteration that is under way stops; ``read`` and ``readinto`` raise ClosedError.
        """
        self._closed = True
        self.cancel()
        # If another thread is inside, it finds the reader closed, and cleans up.
        with suppress(ValueError):
            self._chunks_left.close()

    def __next__(self) -> Chunk:
        """Return the next chunk; it is not empty. A closed reader has no chunks."""
        try:
            return super().__next__()
        except ClosedError:
            if self._closed:
                raise StopIteration from None
            raise

    def _fetched(self) -> int:
        end_offset = self._options.end_offset
        return min(self._offset, end_offset) if end_offset else self._offset

    def _ended(self) -> GazetteError | None:
        if not self._stopped.is_set():
            return None
        how = "it is closed" if self._closed else "it was cancelled; restart() makes it read again"
        return ClosedError(f"reader of journal {self.journal!r}", how)

    def _fetch(self) -> Chunk | None:
        chunk, failure = None, None
        try:
            chunk = next(self._chunks_left, None)
        except GazetteError as error:
            failure = error
            self._chunks_left = self._chunks()
        # The error of a cancelled call says less. A chunk that came all the same is not lost.
        if chunk is None and (failure := self._ended() or failure):
            raise failure
        return chunk

    def _move(self, offset: int) -> None:
        try:
            self._reader.seek(offset)
        except GazetteError:
            self._chunks_left.close()
            self._chunks_left = self._chunks()
        self._offset = offset
        self._access.seek()
        self._attempt, self._earlier = 0, None

    def _chunks(self) -> Generator[Chunk, None, None]:  # noqa: C901, PLR0912, PLR0915 - told in order
        """Yield chunks from the next offset on, call after call, until the end or a lasting failure."""
        options = self._options
        waits = options.block or options.end_offset != 0
        self._since = self._clock()
        while not self._stopped.is_set() and not self._at_end():
            # One Read call, and the stored fragment that it may end with.
            self._reader = reader = self._new_reader(by_url=self._access.by_url(self._offset))
            if self._stopped.is_set():
                # cancel() came between the loop's look at it and now, and met the reader before.
                reader.cancel()
            cause: GazetteError | None = None
            try:
                with closing(reader.run()) as chunks:
                    for chunk in chunks:
                        # Progress: what has counted against the broker, its members and the time is over.
                        self._offset = chunk.end
                        self._attempt, self._earlier = 0, None
                        self._members.clear()
                        yield chunk
                        # The caller's own time between two chunks does not count.
                        self._since = self._clock()
                        if self._stopped.is_set():
                            return
            except DirectReadError as error:
                cause = error if self._access.retries(error, reader, self._attempt) else None
            except GazetteError as error:
                cause = error
            finally:
                self._offset = reader.offset
            if self._stopped.is_set() or self._at_end():
                return

            # Nothing at this offset: another member may have it. If not, a reader that neither waits nor has
            # an end is at its end, provided that this is the write head and not a hole.
            if isinstance(cause, OffsetNotYetAvailableError):
                if self._open_member is not None and self._members.choose_other(reader.header, cause):
                    continue
                if not waits and cause.write_head == self._offset:
                    return

            # Why the call ended, as the caller should read it. A deadline that left no time for the call says
            # less than the broker's answer before.
            if self._earlier and self._try_s < HURRIED_S and is_no_answer(cause):
                cause = self._earlier
            self._earlier = cause
            if isinstance(cause, NotJournalBrokerError) and self._access.asks_for_urls and self._attempt > 0:
                # The called broker, and then the one it named, is not a member and was told not to proxy: let
                # it proxy.
                self._access.asks_for_urls = False
                cause = None
            failure = cause or UnavailableError(
                self._connection.endpoint.text,
                f"journal {self.journal!r}, offset {self._offset}: "
                f"{self._attempt + 1} streams in a row ended without a byte",
            )

            # Retry or raise.
            wait_s = after_read(cause, self._attempt, waits=waits)
            if wait_s is None:
                raise reader.explain(failure)
            self._attempt += 1
            if self._attempt == LOGGED_ATTEMPT and not isinstance(cause, OffsetNotYetAvailableError):
                logger.warning(
                    "read is retried journal=%s offset=%d cause=%s", self.journal, self._offset, failure
                )
            patience_s = self._connection.patience_s(self._timeout_s)
            wait_s = within(wait_s, patience_s - (self._clock() - self._since))
            if wait_s is None:
                # The time is over. But a quiet journal and a hung broker look the same to a blocking reader.
                if not (options.block and self._broker_answers()):
                    raise reader.explain(failure)
                self._since = self._clock()
                wait_s = 0.0
            self._sleep(wait_s)

    def _new_reader(self, *, by_url: bool) -> Reader:
        return Reader(
            replace(self._options, offset=self._offset, do_not_proxy=by_url),
            self._open,
            self._opener,
            prefers_url=self._access.prefers_url,
            jumps=self.jumps,
            # Half of the time is left to another try, or to the broker.
            fetch_timeout_s=lambda: self._left_s() / 2,
        )

    def _open(self, request: pb.ReadRequest) -> Stream:
        self._try_s = timeout_s = min(self._idle_timeout_s, max(self._left_s(), MARGIN_S))
        stream = None
        if (member := self._members.take_next()) is not None and self._open_member is not None:
            stream = self._open_member(*member, request, timeout_s)
        return self._open_stream(request, timeout_s) if stream is None else stream

    def _left_s(self) -> float:
        return self._timeout_s - (self._clock() - self._since)

    def _at_end(self) -> bool:
        end_offset = self._options.end_offset
        return end_offset != 0 and self._offset >= end_offset

    def _broker_answers(self) -> bool:
        """Return whether the broker still tells the write head."""
        request = pb.ReadRequest(journal=self.journal, offset=-1, metadata_only=True)
        timeout_s = min(self._idle_timeout_s, self._connection.connect_timeout_s)
        stream = self._open_stream(request, timeout_s)
        try:
            for message in stream.messages():
                if message.status not in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE):
                    raise read_status_error(message, self.journal)
                if message.HasField("header") and message.header.route.primary >= 0:
                    # The member that was silent may lack bytes that the primary has.
                    self._members.next = (message.header, message.header.route.primary)
                return True
        except UnavailableError:
            return False
        finally:
            stream.close()
        return False
