"""Read a journal through restarts, re-assignments and broken connections.

A :class:`RetryReader` has one state, the next offset it wants. It asks the broker for it, follows
the stream (:mod:`gazette_spark.client._read.read`) or the stored fragment the stream points at
(:mod:`gazette_spark.client._read.fragments`). When either ends it asks again, by the table of
:mod:`gazette_spark.client._transport.retry`. So no byte is left out and none comes twice, wherever the
streams are cut.

====================================  ============================================================
what is read                          how it ends
====================================  ============================================================
``end_offset`` set                    at exactly ``end_offset``; waits for bytes still to come
no end, ``block`` false               at the write head
no end, ``block`` true                when closed
====================================  ============================================================

A member of a journal may lack bytes that its peers have: a replica that has replaced a dead broker knows of
stored fragments only, until it lists the store again. So where a member says that there is nothing at an
offset, the journal's primary is asked before that counts. Where a member has only later bytes, all are asked.

Time: a call to ``next`` or ``read`` that gets no byte for ``timeout_s`` raises the last cause. A blocking
reader may wait longer on a broker that still answers. Each stream has a deadline of ``idle_timeout_s``,
after which it is simply opened again: this is how a hung connection is found. A stored fragment's bytes may
take half of the time that is left, so that a store which hangs leaves some to the broker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from gazette_spark.client._read.chunks import Chunk, ChunkReader
from gazette_spark.client._read.fragment_urls import FragmentOpener
from gazette_spark.client._read.read import ReadOptions, ReadStream
from gazette_spark.client._read.reader import Reader, Stream
from gazette_spark.client._transport.channel import Connection, is_no_answer
from gazette_spark.client._transport.retry import MARGIN_S, after_read, within
from gazette_spark.client._transport.status import read_status_error
from gazette_spark.errors import (
    ClosedError,
    DirectReadError,
    GazetteError,
    NotJournalBrokerError,
    OffsetNotYetAvailableError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb

logger = logging.getLogger(__name__)

LOGGED_ATTEMPT = 5
"""Which retry in a row is logged, and the only one: shorter outages are of no interest."""

HURRIED_S = 1.0
"""A try this short that brings no answer says little about the broker."""


STORE_TRIES = 3
"""Times a store that is busy is asked for a fragment, before the broker is."""


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
        self._reader = self._new_reader(by_url=False)
        # Values that the retries depend on.
        self._attempt = 0
        self._since = self._clock()
        self._try_s = 0.0
        self._told: GazetteError | None = None
        # Members of the journal's route that had nothing at this offset, and the one to ask next.
        self._members_asked: set[int] = set()
        self._next_member: tuple[pb.Header, int] | None = None
        # State of the access to stored fragments.
        self._ask_for_urls = options.do_not_proxy or self._opener.root is not None
        self._never_by_url = False
        self._proxied_to = -1
        self._signed_again = -1
        self._chunks_left: Generator[Chunk, None, None] = self._chunks()

    def __repr__(self) -> str:
        return f"RetryReader({self.journal!r}, offset={self.offset}, end_offset={self._options.end_offset})"

    @property
    def reader(self) -> Reader:
        """The reader of the present Read call, or of the last one: look, but do not read from it."""
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
        self._proxied_to = -1
        self._attempt, self._told = 0, None

    def _chunks(self) -> Generator[Chunk, None, None]:
        self._since = self._clock()
        while not self._stopped.is_set() and not self._at_end():
            cause: GazetteError | None = None
            try:
                for chunk in self._one_reader():
                    self._attempt, self._told = 0, None
                    self._members_asked.clear()
                    yield chunk
                    self._since = self._clock()
            except GazetteError as error:
                cause = error
            if self._stopped.is_set() or self._at_end():
                return
            if isinstance(cause, OffsetNotYetAvailableError) and self._ask_other_member(cause):
                continue
            if self._is_caught_up(cause):
                return
            self._wait_after(cause)

    def _one_reader(self) -> Iterator[Chunk]:
        """Yield the chunks of one Read call, or of the stored fragment it points at."""
        by_url = self._ask_for_urls and not self._never_by_url and self._offset >= self._proxied_to
        self._reader = reader = self._new_reader(by_url=by_url)
        if self._stopped.is_set():
            # cancel() came between the loop's look at it and now, and met the reader before.
            reader.cancel()
        try:
            for chunk in reader.run():
                self._offset = chunk.end
                yield chunk
                if self._stopped.is_set():
                    return
        except DirectReadError as error:
            self._after_direct_read(error)
        finally:
            self._offset = reader.offset

    def _after_direct_read(self, error: DirectReadError) -> None:
        """Choose how to get at a fragment whose URL failed: by a fresh one, by the same, or by the broker."""
        fragment = self._reader.fragment
        assert fragment is not None
        if error.expired and self._signed_again != fragment.begin:
            self._signed_again = fragment.begin
            return
        if error.passing and self._attempt + 1 < STORE_TRIES:
            raise error
        self._proxied_to = fragment.end
        # Where one URL is refused for where its host is, so are the next ones.
        self._never_by_url = error.refused and self._opener.can_open(self._reader.url)
        logger.info("fragment read through the broker instead journal=%s cause=%s", self.journal, error)

    def _new_reader(self, *, by_url: bool) -> Reader:
        return Reader(
            replace(self._options, offset=self._offset, do_not_proxy=by_url),
            self._open,
            self._opener,
            prefers_url=self._prefers_url,
            jumps=self.jumps,
            fetch_timeout_s=self._fetch_timeout_s,
        )

    def _open(self, request: pb.ReadRequest) -> Stream:
        timeout_s = self._stream_timeout_s()
        member, self._next_member = self._next_member, None
        stream = None
        if member is not None and self._open_member is not None:
            stream = self._open_member(*member, request, timeout_s)
        return self._open_stream(request, timeout_s) if stream is None else stream

    def _ask_other_member(self, cause: OffsetNotYetAvailableError) -> bool:
        """Have the next try go to another member of the journal; False if there is none left to ask."""
        header, asked = self._reader.header, self._members_asked
        if self._open_member is None or header is None or header.process_id not in header.route.members:
            return False
        members = list(header.route.members)
        asked.add(members.index(header.process_id))
        candidates = [header.route.primary] if header.route.primary >= 0 else []
        if cause.write_head > cause.offset:
            # Bytes behind this offset are here, so it was appended: somebody has it, or the store.
            candidates += range(len(members))
        member = next((at for at in candidates if at not in asked), None)
        if member is None:
            asked.clear()
            return False
        asked.add(member)
        self._next_member = (header, member)
        return True

    def _fetch_timeout_s(self) -> float:
        """Leave half of the time to another try, or to the broker."""
        return (self._timeout_s - (self._clock() - self._since)) / 2

    def _prefers_url(self, message: pb.ReadResponse) -> bool:
        if self._never_by_url or message.offset < self._proxied_to:
            return False
        if not self._opener.can_open(message.fragment_url):
            return False
        # The next fragments need not begin to stream.
        self._ask_for_urls = True
        return True

    def _stream_timeout_s(self) -> float:
        left_s = self._timeout_s - (self._clock() - self._since)
        self._try_s = min(self._idle_timeout_s, max(left_s, MARGIN_S))
        return self._try_s

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
        """Wait before the next try, or raise the reason not to retry."""
        if self._told and self._try_s < HURRIED_S and is_no_answer(cause):
            # The deadline left no time for the try: the broker's earlier answer says more.
            cause = self._told
        self._told = cause
        if isinstance(cause, NotJournalBrokerError) and self._ask_for_urls and self._attempt > 0:
            # The called broker, and then the one it named, is not a member and was told not to proxy: let it
            # proxy.
            self._ask_for_urls = False
            cause = None
        waits = self._options.block or self._options.end_offset != 0
        wait_s = after_read(cause, self._attempt, waits=waits)
        failure = cause or self._without_content()
        if wait_s is None:
            raise self._reader.explain(failure)
        self._attempt += 1
        if self._attempt == LOGGED_ATTEMPT and not isinstance(cause, OffsetNotYetAvailableError):
            logger.warning(
                "read is retried journal=%s offset=%d cause=%s", self.journal, self._offset, failure
            )
        left_s = self._connection.patience_s(self._timeout_s) - (self._clock() - self._since)
        wait_s = within(wait_s, left_s)
        if wait_s is None:
            if not (self._options.block and self._broker_answers()):
                raise self._reader.explain(failure)
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
                if message.HasField("header") and message.header.route.primary >= 0:
                    # The member that was silent may lack bytes that the primary has.
                    self._next_member = (message.header, message.header.route.primary)
                return True
        except UnavailableError:
            return False
        finally:
            stream.close()
        return False
