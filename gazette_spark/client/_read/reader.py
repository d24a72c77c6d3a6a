"""Reads a journal: with one Read call, or through restarts, reassignments and broken connections.

The state of a :class:`RetryReader` is the next offset to read. It makes a Read call there, and yields the
call's bytes: those of its stream, then those of the stored fragment with which the stream may end. After the
call it makes the next one, according to the table of :mod:`gazette_spark.client._transport.retry`. So no byte
is omitted or repeated, wherever the streams are cut.

====================================  ============================================================
read                                  end
====================================  ============================================================
``end_offset`` set                    exactly at ``end_offset``; waits for bytes not yet appended
no end, ``block`` false               at the write head
no end, ``block`` true                when closed
====================================  ============================================================

A :class:`Reader` makes only one call:

====================================  ============================================================
event                                 action
====================================  ============================================================
``end_offset`` is reached             ends
the broker ends the stream            ends: its assignment changed, or it is shutting down
the stream ends with a URL            continues in the fragment's file, and ends with the fragment
no bytes, and ``block`` is false      raises OffsetNotYetAvailableError
any other status or failure           raises it
====================================  ============================================================

Timeouts: a call of ``next`` or ``read`` that gets no byte for ``timeout_s`` raises the last failure. A
blocking reader may wait longer for a broker that still answers. Each stream has a deadline of
``idle_timeout_s``, after which it is opened again: this detects a hung connection. A stored fragment's bytes
may take half of the remaining time, so that a hanging store leaves some time for the broker.
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
"""Number of the consecutive retry that is logged, once per outage. Shorter outages are not logged."""

HURRIED_S = 1.0
"""Seconds of an attempt that is too short to prove anything about a broker that does not answer."""

STORE_TRIES = 3
"""Number of attempts to read a fragment from a busy store before it is requested from the broker."""


class Stream(Protocol):
    """A Read call in progress, such as :class:`~gazette_spark.client._read.stream.ReadStream`."""

    def messages(self) -> Iterator[pb.ReadResponse]:
        """Yield the call's messages, and raise its failure."""

    def cancel(self) -> None:
        """End the call, from any thread."""

    def close(self) -> None:
        """End the call and release its channel."""


OpenStream = Callable[[pb.ReadRequest], Stream]
"""Begins a Read call."""


class Reader(ChunkReader):
    """Reads the bytes of one Read call, as the module describes.

    The call begins with the first read. An error other than OffsetJumpError ends the reader: reading again
    raises the same error. Seeking only goes forward, within the current chunk or a fragment that is read
    directly. Any thread may call :meth:`cancel`.
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
        """Make a reader, without sending a request.

        Args:
            options: Range and mode of the read.
            open_stream: Begins the call.
            opener: Opens the fragment with which the call may end.
            prefers_url: Returns whether to open a fragment that the broker is about to send.
            jumps: List to which jumps are added; by default a new one.
            fetch_timeout_s: Returns the seconds that the next bytes of a fragment may take.
        """
        super().__init__(options.journal)
        self.options = options
        # A retrying reader passes its own list, so that the jumps of all its calls are in one place, in
        # order.
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
        # A generator that has raised looks as if it had ended. Without this, the next read would return "no
        # more bytes" after a failure, and a caller that ignored the first error would lose bytes silently.
        self._failure: GazetteError | None = None
        self._chunks = self.run()

    def __repr__(self) -> str:
        return f"Reader({self.journal!r}, offset={self.offset}, end_offset={self.options.end_offset})"

    @property
    def response(self) -> pb.ReadResponse | None:
        """The broker's last message without content: status, header, fragment, write head."""
        return self._cursor.response

    @property
    def header(self) -> pb.Header | None:
        """The call's header with its broker and the journal's route; None before the first answer."""
        return self._cursor.header

    @property
    def fragment(self) -> Fragment | None:
        """The fragment of the broker's last message with a fragment."""
        return self._cursor.fragment

    @property
    def url(self) -> str:
        """URL of that fragment; empty if the broker sent none. It may contain a signature."""
        return self._cursor.url

    @property
    def request(self) -> pb.ReadRequest:
        """The call's request with the offset of the next byte."""
        return self.options.request(self.offset)

    @property
    def direct(self) -> FragmentReader | None:
        """Reader of the fragment that is currently read directly."""
        return self._direct

    def cancel(self) -> None:
        """End the call, from any thread: current and later reads raise ClosedError."""
        self._stopped.set()
        # Set the event first: a reader that is about to wait or to make a call checks it afterwards. Then end
        # both waits: the one for a fragment's bytes, and the one for the broker's next message.
        self._limit.cancel()
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        """End the reader, from any thread, like :meth:`cancel`, and release its resources."""
        self.cancel()
        # A thread that is reading finds the reader cancelled, and cleans up.
        with suppress(ValueError):
            self._chunks.close()

    def _fetched(self) -> int:
        # A jump may have passed the end. The read is then over, and its offset is its end.
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
            except BaseException as error:
                # KeyboardInterrupt, or an error of the caller's function that returns tokens.
                interrupted = f"its last read was interrupted by {type(error).__name__}"
                self._failure = ClosedError(f"reader of journal {self.journal!r}", interrupted)
                raise
        # A chunk that has arrived is returned even if the reader was cancelled meanwhile.
        if chunk is None and (failure := self._ended() or self._failure):
            raise failure
        return chunk

    def _move(self, offset: int) -> None:
        # A stream sends its bytes in one order. Only a fragment that this reader fetches itself has bytes
        # that it can skip.
        if self._direct is None:
            raise SeekRequiresNewReaderError(self.journal, self.offset, offset)
        self._direct.seek(offset)
        self._at = offset

    def explain(self, error: GazetteError) -> GazetteError:
        """Return a failure of the call with its journal, offset and fragment."""
        return self._cursor.explain(error)

    def run(self) -> Generator[Chunk, None, None]:
        """Yield the call's chunks, once. Failures are raised without the explanation of :meth:`explain`."""
        with closing(self._run()) as chunks:
            for chunk in chunks:
                self._opener.metrics.add(READ_BYTES, len(chunk.content), self.journal)
                yield chunk

    def _run(self) -> Generator[Chunk, None, None]:  # noqa: PLR0912 - one call, told in order
        end_offset = self.options.end_offset
        # A broker with `block` set would wait forever for bytes of an empty range.
        if self._at_end():
            return

        # The stream. The cursor checks that each chunk follows the previous one, and tracks the offset.
        cursor = self._cursor
        stream = self._stream = self._open_stream(self.options.request(self._at))
        if self._stopped.is_set():
            stream.cancel()  # cancel() was called before there was a stream.
        url = ""
        try:
            # A message is metadata, which describes a fragment, or content of the fragment that the last
            # metadata named.
            for message in stream.messages():
                chunk = cursor.feed(message)
                # Metadata may move the offset, too: from -1 to the write head, or over bytes that the journal
                # has lost.
                self._at = cursor.offset
                if chunk is not None:
                    url = ""
                    if end_offset and chunk.end > end_offset:
                        # The last chunk may continue past the end.
                        content = chunk.content[: end_offset - chunk.offset]
                        chunk = Chunk(chunk.offset, content, chunk.mod_time)
                    yield chunk
                else:
                    url = message.fragment_url
                    # The broker is about to send the content. Ending the call here leaves it to the store.
                    if url and self._prefers_url(message):
                        break
                if self._at_end():
                    break
        finally:
            self._at = cursor.offset
            self._stream = None
            stream.close()

        # Read the stored fragment, if the stream ended with its URL instead of content. A jump may have
        # passed the end of the read or of the fragment.
        fragment = cursor.fragment
        if not url or fragment is None or self._at_end() or self._at >= fragment.end:
            return
        with self._opener.open(fragment, url, self._at, end_offset=end_offset, limit=self._limit) as direct:
            # For `seek`, which may skip within the fragment, until it ends.
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
    """Decides how a retrying reader reads stored fragments: by their URLs, or through the broker."""

    def __init__(self, opener: FragmentOpener, *, asks_for_urls: bool) -> None:
        self.asks_for_urls = asks_for_urls
        """Whether to request URLs from the broker instead of the bytes of stored fragments."""
        self._opener = opener
        self._never_by_url = False
        self._proxied_to = -1
        """End of the fragment that must be read through the broker."""
        self._signed_again = -1
        """First offset of the fragment whose URL has been renewed."""

    def by_url(self, offset: int) -> bool:
        """Return whether the next call should request URLs."""
        return self.asks_for_urls and not self._never_by_url and offset >= self._proxied_to

    def prefers_url(self, message: pb.ReadResponse) -> bool:
        """Return whether to open a fragment that the broker is about to send."""
        # An earlier attempt at this fragment's URL has failed, and the broker now sends the requested bytes.
        if self._never_by_url or message.offset < self._proxied_to:
            return False
        if not self._opener.can_open(message.fragment_url):
            return False
        self.asks_for_urls = True  # So that the broker does not begin to send the next fragments.
        return True

    def retries(self, error: DirectReadError, reader: Reader, attempt: int) -> bool:
        """Decide how to read a fragment whose URL failed.

        Returns:
            Whether to wait and try the URL again. Otherwise the next call, which need not wait, requests a
            fresh URL, or reads the fragment through the broker.
        """
        fragment = reader.fragment
        assert fragment is not None
        # A broker signs URLs for one minute. A task that was slow to open its URL gets a fresh one, once: a
        # store that also refuses that one has another reason.
        if error.expired and self._signed_again != fragment.begin:
            self._signed_again = fragment.begin
            return False
        # A busy store usually recovers, and the broker would have to fetch the bytes from the same store.
        if error.passing and attempt + 1 < STORE_TRIES:
            return True
        # The broker reads the same file with its own credentials and network, so it may succeed where this
        # host does not. Later fragments are tried by their URLs again.
        self._proxied_to = fragment.end
        # If a URL is refused because of its host, the next ones will be refused, too.
        self._never_by_url = error.refused and self._opener.can_open(reader.url)
        logger.info("fragment read through the broker instead journal=%s cause=%s", reader.journal, error)
        return False

    def seek(self) -> None:
        """Forget the decisions about the fragment at the last offset."""
        self._proxied_to = -1


class _Members:
    """The members of a journal's route that had no bytes at the reader's offset, and the one to call next.

    A member may lack bytes that its peers have: a replica that has replaced a dead broker has only stored
    fragments until it lists the store again. So if a member has no bytes at an offset, the journal's primary
    is called as well. If a member has only later bytes, all members are called.
    """

    def __init__(self) -> None:
        self.next: tuple[pb.Header, int] | None = None
        self._asked: set[int] = set()

    def choose_other(self, header: pb.Header | None, answer: OffsetNotYetAvailableError) -> bool:
        """Choose another member for the next call; return False if all relevant members had no bytes."""
        # The broker that answered is not in the route, so the route is older or newer than the answer.
        if header is None or header.process_id not in header.route.members:
            return False
        members = list(header.route.members)
        self._asked.add(members.index(header.process_id))
        candidates = [header.route.primary] if header.route.primary >= 0 else []
        if answer.write_head > answer.offset:
            # This member has later bytes, so this offset was appended: another member or the store has it.
            candidates += range(len(members))
        member = next((candidate for candidate in candidates if candidate not in self._asked), None)
        if member is None:
            # All were called. The next call, after the back-off, begins another round.
            self._asked.clear()
            return False
        self._asked.add(member)
        self.next = (header, member)
        return True

    def take_next(self) -> tuple[pb.Header, int] | None:
        """Return the chosen member, once."""
        member, self.next = self.next, None
        return member

    def clear(self) -> None:
        """Forget which members were called, because the reader has moved on."""
        self._asked.clear()


class RetryReader(ChunkReader):
    """Iterator over a journal's chunks, in order, without gaps or repetitions, as the module describes.

    If the journal has lost bytes, there is a jump: the next chunk's offset is larger than the end of the
    previous one, and ``jumps`` has an entry. Only :meth:`read` and :meth:`readinto` raise for it. A jump to
    or past ``end_offset`` yields no chunk, and only adds an entry to ``jumps``.

    For one thread, but any thread may call :meth:`cancel` and :meth:`close`. After an error the reader's
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
        """Number of calls since the last byte arrived."""
        self._since = self._clock()
        """Time at which the wait for the next byte began."""
        self._try_s = 0.0
        """Seconds that the current call may take."""
        self._earlier: GazetteError | None = None
        """Why the previous call ended, if no byte has arrived since."""
        self._members = _Members()
        # With a fragment root, the files are nearer than the broker. HTTP is tried after the broker has sent
        # a URL.
        asks_for_urls = options.do_not_proxy or self._opener.root is not None
        self._access = _FragmentAccess(self._opener, asks_for_urls=asks_for_urls)
        # Not used for a call. It makes `reader` and `cancel` work before the first read.
        self._reader = self._new_reader(by_url=False)
        # A generator has the state of a read in progress: the open stream, and the place in it.
        self._chunks_left: Generator[Chunk, None, None] = self._chunks()

    def __repr__(self) -> str:
        return f"RetryReader({self.journal!r}, offset={self.offset}, end_offset={self._options.end_offset})"

    @property
    def reader(self) -> Reader:
        """The reader of the current or last Read call. It may be inspected, but not read."""
        return self._reader

    @property
    def request(self) -> pb.ReadRequest:
        """The request for the rest of the read, from the next byte on."""
        return self._options.request(self.offset)

    def cancel(self) -> None:
        """Make the current read and all later ones raise ClosedError, until :meth:`restart`.

        Any thread may call it, any number of times.
        """
        self._stopped.set()
        self._reader.cancel()

    def restart(self, request: pb.ReadRequest | ReadOptions) -> None:
        """Read another range, as if the reader were new, also after :meth:`cancel`. ``jumps`` is emptied."""
        if self._closed:
            raise ClosedError(f"reader of journal {self.journal!r}", "it is closed")
        options = request if isinstance(request, ReadOptions) else ReadOptions.of(request)
        self._reader.cancel()
        # A cancelled reader refuses all calls but this one.
        with self._alone(even_if_ended=True):
            self._chunks_left.close()
            self._stopped.clear()
            self.journal = options.journal
            self.jumps.clear()
            self._forget()
            self._begin(options)

    def close(self) -> None:
        """End the reader, from any thread. May be called again.

        A current iteration stops; ``read`` and ``readinto`` raise ClosedError.
        """
        # Set this before the cancellation, so that a reading thread finds the reader closed for good.
        self._closed = True
        self.cancel()
        # A thread that is reading finds the reader closed, and cleans up.
        with suppress(ValueError):
            self._chunks_left.close()

    def __next__(self) -> Chunk:
        """Return the next chunk, which is not empty. A closed reader has no chunks."""
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
        except BaseException as error:
            # The old generator has ended with its error. A new one lets the next call of `next` try again at
            # the offset. Otherwise a reader that was interrupted, by KeyboardInterrupt or the caller's
            # function for tokens, would appear to be at its end.
            self._chunks_left = self._chunks()
            if not isinstance(error, GazetteError):
                raise
            failure = error
        # ClosedError is more useful than the error of a cancelled call. A chunk that has arrived is not lost.
        if chunk is None and (failure := self._ended() or failure):
            raise failure
        return chunk

    def _move(self, offset: int) -> None:
        try:
            # Within a fragment that is being fetched, seeking skips bytes. Otherwise the next call begins at
            # the offset.
            self._reader.seek(offset)
        except GazetteError:
            self._chunks_left.close()
            self._chunks_left = self._chunks()
        self._offset = offset
        self._access.seek()
        self._attempt, self._earlier = 0, None

    def _chunks(self) -> Generator[Chunk, None, None]:  # noqa: C901, PLR0912, PLR0915 - told in order
        """Yield chunks from the next offset on, call after call, until the end or a permanent failure."""
        options = self._options
        # A reader with an end expects that the bytes up to it exist or will exist, so it waits for them.
        # Without an end and without `block`, the end of the journal is the end of the read.
        waits = options.block or options.end_offset != 0
        # The wait begins with the caller's first read, not when the reader was made.
        self._since = self._clock()
        while not self._stopped.is_set() and not self._at_end():
            # One Read call, and the stored fragment with which it may end.
            self._reader = reader = self._new_reader(by_url=self._access.by_url(self._offset))
            if self._stopped.is_set():
                # cancel() was called after the loop's check, and cancelled the previous reader.
                reader.cancel()
            cause: GazetteError | None = None
            try:
                with closing(reader.run()) as chunks:
                    for chunk in chunks:
                        # Progress: earlier failures, members without bytes and the wait no longer count.
                        self._offset = chunk.end
                        self._attempt, self._earlier = 0, None
                        self._members.clear()
                        yield chunk
                        # The caller's time between two chunks does not count.
                        self._since = self._clock()
                        if self._stopped.is_set():
                            return
            except DirectReadError as error:
                # The store has failed, not the broker. Unless the same URL is worth another attempt, the
                # broker is called without a wait, as after a stream that ended without an error.
                cause = error if self._access.retries(error, reader, self._attempt) else None
            except GazetteError as error:
                cause = error
            finally:
                # After a failure, too, the offset may have moved: that of an OFFSET_NOT_YET_AVAILABLE may be
                # past the requested one, behind bytes that the journal has lost.
                self._offset = reader.offset
            # A clean end is not the end of the read. Brokers also end a stream when they stop, when the
            # journal moves to others, when a token expires, and at a fragment's end; then the loop continues
            # at the next offset.
            if self._stopped.is_set() or self._at_end():
                return

            # No bytes at this offset: another member may have them. If not, a reader without an end that does
            # not block is at its end, unless this is a hole instead of the write head.
            if isinstance(cause, OffsetNotYetAvailableError):
                if self._open_member is not None and self._members.choose_other(reader.header, cause):
                    continue
                if not waits and cause.write_head == self._offset:
                    return

            # Find out why the call ended, for the caller. If a deadline left no time for the call, the
            # broker's previous answer is more useful.
            if self._earlier and self._try_s < HURRIED_S and is_no_answer(cause):
                cause = self._earlier
            self._earlier = cause
            if isinstance(cause, NotJournalBrokerError) and self._access.asks_for_urls and self._attempt > 0:
                # Neither the called broker nor the one that it named is a member, and they may not proxy. The
                # next call may be proxied.
                self._access.asks_for_urls = False
                cause = None
            failure = cause or UnavailableError(
                self._connection.endpoint.text,
                f"journal {self.journal!r}, offset {self._offset}: "
                f"{self._attempt + 1} streams in a row ended without a byte",
            )

            # Retry or raise. The kind of failure decides first, by the retry module's table, and then the
            # remaining time.
            wait_s = after_read(cause, self._attempt, waits=waits)
            if wait_s is None:
                raise reader.explain(failure)
            self._attempt += 1
            if self._attempt == LOGGED_ATTEMPT and not isinstance(cause, OffsetNotYetAvailableError):
                logger.warning(
                    "read is retried journal=%s offset=%d cause=%s", self.journal, self._offset, failure
                )
            # The limit is on the time without a byte, not on the whole read, which may last for days. It is
            # shorter as long as no broker has ever answered: then the address is probably wrong.
            patience_s = self._connection.patience_s(self._timeout_s)
            wait_s = within(wait_s, patience_s - (self._clock() - self._since))
            if wait_s is None:
                # The time is over. But for a blocking reader a quiet journal looks like a hung broker.
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
            # Half of the time is left for another attempt, or for the broker.
            fetch_timeout_s=lambda: self._left_s() / 2,
        )

    def _open(self, request: pb.ReadRequest) -> Stream:
        # A call on a half-open connection does not notice it. The deadline ends the call, and the next one,
        # on a new connection, costs a millisecond (decision 0003).
        self._try_s = timeout_s = min(self._idle_timeout_s, max(self._left_s(), MARGIN_S))
        stream = None
        # The chosen member is called once. If this client cannot call it, the call goes to the usual broker.
        if (member := self._members.take_next()) is not None and self._open_member is not None:
            stream = self._open_member(*member, request, timeout_s)
        return self._open_stream(request, timeout_s) if stream is None else stream

    def _left_s(self) -> float:
        return self._timeout_s - (self._clock() - self._since)

    def _at_end(self) -> bool:
        end_offset = self._options.end_offset
        return end_offset != 0 and self._offset >= end_offset

    def _broker_answers(self) -> bool:
        """Return whether the broker still reports the write head."""
        # This request is the cheapest, and every member answers it immediately, from its index.
        request = pb.ReadRequest(journal=self.journal, offset=-1, metadata_only=True)
        timeout_s = min(self._idle_timeout_s, self._connection.connect_timeout_s)
        stream = self._open_stream(request, timeout_s)
        try:
            for message in stream.messages():
                # The broker answers, but not with a head: the journal was deleted or suspended, so waiting is
                # useless.
                if message.status not in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE):
                    raise read_status_error(message, self.journal)
                if message.HasField("header") and message.header.route.primary >= 0:
                    # The silent member may lack bytes that the primary has.
                    self._members.next = (message.header, message.header.route.primary)
                return True
        except UnavailableError:
            return False
        finally:
            stream.close()
        return False
