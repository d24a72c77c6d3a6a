"""Listings that stay up to date: :class:`WatchedList` by the broker's watch, :class:`PolledList` by polling.

A watch is a List call that does not end: the broker sends a listing whenever the number of matching
journals or their greatest revision has changed. When the stream ends or breaks, it is opened again with the
last listing's header, so that no change is missed or repeated:

=========================================  =====================================================
how a stream ends                          what follows
=========================================  =====================================================
clean end, after a listing                 opened again after the first back-off
clean end, no listing; broken transport    back-off, growing until a listing arrives
within a listing, against the protocol,    the current listing is discarded; back-off
with a revision that is not new
clean end within the very first listing    three times in a row: the watch fails as unsupported
UNKNOWN, INTERNAL                          back-off, six times in a row, then the watch fails
its age                                    immediately; every few minutes without the last header
everything else: token, unsupported call   the watch fails, and its callers get the error
=========================================  =====================================================

**Changes of routes do not cause a listing**: a new journal is listed without brokers, and remains so until
another change. The complete listing that is requested every ``renew_s`` also has new routes, and detects a
hung connection. Do not use a watch to wait for an assignment.

A watch needs Gazette 0.100. Older brokers end the stream after one message, which raises a
WatchUnsupportedError; use :class:`PolledList` with them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NoReturn, Protocol, Self

import grpc

from gazette_spark.client._list.listing import (
    Listing,
    SnapshotJoiner,
    list_metadata,
    make_selector,
    observe_routes,
)
from gazette_spark.client._transport import retry
from gazette_spark.client._transport.channel import Connection, cancel, is_no_answer, settle
from gazette_spark.client.client import Client
from gazette_spark.closing import Closing
from gazette_spark.errors import (
    ClosedError,
    GazetteError,
    ProtocolError,
    UnavailableError,
    WatchUnsupportedError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc

logger = logging.getLogger(__name__)

RENEW_S = 300.0
"""Seconds of silence after which a watch requests the complete listing again."""

LOGGED_ATTEMPT = 5
"""Number of the consecutive retry that is logged, once per outage. Shorter outages are not logged."""

START_MARGIN_S = 1.0
"""Seconds after its deadline in which a first listing may still report that it has reached it."""

WATCHLESS_STREAMS = 3
"""Number of consecutive first listings that end without a watch: the broker does not support watches."""

CLOSE_TIMEOUT_S = 10.0
"""Maximum seconds to wait for the thread of a closed list, which may be in a callback."""

OnUpdate = Callable[[Listing], object]


class LiveList(Closing, ABC):
    """A listing that a separate thread keeps up to date.

    Thread-safe. As a context manager it is started and closed. It belongs to the process that made it: it
    cannot be pickled, and does not survive a fork.

    Args:
        client: Client of the brokers, which must stay open.
        selector: Selector of the journals; ``""`` for all.
        on_update: Called with each new listing, including the first, on the list's thread, which waits for
            it. Its exceptions are logged.
    """

    def __init__(
        self, client: Client, selector: str | pb.LabelSelector, on_update: OnUpdate | None = None
    ) -> None:
        self.selector = make_selector(selector)
        self._client = client
        self._on_update = on_update
        self._changed = threading.Condition()
        self._latest: Listing | None = None
        self._failure: Exception | None = None
        self._closed = threading.Event()
        self._pid = os.getpid()
        # Started by `start`, not here: a thread in the constructor would run before a subclass is complete.
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "failed" if self._failure else repr(self._latest)
        return f"{type(self).__name__}({self._client.endpoint!r}, {state})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: make one in each process")

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> Listing:
        """Start the thread once, and wait for the first listing as long as a client's call may take.

        Raises:
            GazetteError: there is no listing. The list is closed.
        """
        with self._changed:
            self._check_usable()
            # Two threads may start the list at the same time. One begins, and both wait for the first
            # listing.
            begins = self._thread is None
            if begins:
                name = f"{type(self).__name__} of {self._client.endpoint}"
                self._thread = threading.Thread(target=self._run_to_end, name=name, daemon=True)
        if begins and self._thread is not None:
            self._thread.start()
        connection = self._client.default_connection
        started = time.monotonic()
        try:
            while not self._closed.is_set():
                # Computed again in each round, because the patience grows when the broker has answered for
                # the first time.
                left_s = connection.patience_s(self._client.timeout_s) - (time.monotonic() - started)
                if left_s + START_MARGIN_S <= 0:
                    break
                if (first := self.wait_for_update(timeout_s=left_s + START_MARGIN_S)) is not None:
                    return first
            raise self._without_listing()
        except BaseException:
            # Stop the thread: its caller gets an error instead of a listing, or was interrupted, and would
            # never close it.
            self.close()
            raise

    def list(self) -> Listing:
        """Return the latest listing without a request.

        Raises:
            GazetteError: the updates have failed permanently, or were never started.
            Exception: the client's function for tokens has failed.
        """
        with self._changed:
            self._check_usable()
            if self._failure is not None:
                raise self._failure
            if self._latest is None:
                raise ClosedError(repr(self), "it has no listing yet; start it")
            return self._latest

    def wait_for_update(self, after: Listing | None = None, *, timeout_s: float) -> Listing | None:
        """Return the latest listing as soon as it differs from ``after``.

        Returns:
            None if there is no other listing within ``timeout_s``, or the list is closed.

        Raises:
            GazetteError: the updates have failed permanently.
            Exception: the client's function for tokens has failed.
        """
        with self._changed:
            self._check_usable()
            self._changed.wait_for(
                lambda: self._closed.is_set() or self._failure is not None or self._latest is not after,
                timeout_s,
            )
            if self._latest is not after and self._latest is not None and not self._closed.is_set():
                return self._latest
            if self._failure is not None:
                raise self._failure
            return None

    def updates(self) -> Iterator[Listing]:
        """Yield the latest listing and then each new one, until the list is closed.

        While the caller is busy, all new listings except the last are skipped.
        """
        seen: Listing | None = None
        while not self._closed.is_set():
            if (listing := self.wait_for_update(seen, timeout_s=RENEW_S)) is not None:
                seen = listing
                yield listing

    def close(self) -> None:
        """End the thread and all waits. May be called again, and from a callback."""
        self._closed.set()
        # Interrupt after setting the event: a thread that then makes a call sees the event and cancels it.
        self._interrupt()
        with self._changed:
            self._changed.notify_all()
        thread = self._thread
        # A callback may close the list, on the thread itself. In a forked child the thread does not exist.
        if thread is not None and thread is not threading.current_thread() and os.getpid() == self._pid:
            thread.join(CLOSE_TIMEOUT_S)

    def _publish(self, listing: Listing) -> None:
        with self._changed:
            # A listing that arrives during the close is no longer published.
            if self._closed.is_set():
                return
            self._latest = listing
            self._changed.notify_all()
        # The lock is not held here or for the callback below, which may call this list.
        observe_routes(self._client.default_connection, listing)
        if self._on_update is not None:
            try:
                self._on_update(listing)
            except Exception:  # The thread must survive the caller's code.
                logger.exception("on_update failed list=%r", self)

    def _run_to_end(self) -> None:
        try:
            self._run()
        # This includes errors of the client's function for tokens. If they were not recorded, callers would
        # take the last listing for the current one, and wait for the next one forever.
        except Exception as error:  # noqa: BLE001
            if not self._closed.is_set():
                logger.warning("listing has failed list=%r cause=%s", self, str(error) or repr(error))
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    @abstractmethod
    def _run(self) -> None:
        """Publish listings until closed, and raise permanent failures."""

    def _interrupt(self) -> None:
        """End the current call."""

    def _without_listing(self) -> GazetteError:
        problem = f"no complete listing within {self._client.timeout_s:g} s"
        return UnavailableError(self._client.endpoint, problem)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            problem = f"it belongs to process {self._pid}; make one in each process"
            raise ClosedError(type(self).__name__, problem)


class PolledList(LiveList):
    """A listing that is requested every ``interval_s`` seconds.

    :meth:`start` raises a failure of the first request. Later ones are logged once per outage, and the last
    listing stays. A listing without a greater revision than the previous one is not an update.
    """

    def __init__(
        self,
        client: Client,
        selector: str | pb.LabelSelector = "",
        *,
        interval_s: float = 60.0,
        on_update: OnUpdate | None = None,
    ) -> None:
        super().__init__(client, selector, on_update)
        retry.check_seconds("interval_s", interval_s)
        self._interval_s = interval_s

    def _run(self) -> None:
        # The first failure is raised, and reaches `start`: it is more likely a wrong address or token than an
        # outage.
        latest = self._client.list_all_journals(self.selector)
        self._publish(latest)
        outage = False
        while not self._closed.wait(self._interval_s):
            try:
                listing = self._client.list_all_journals(self.selector)
            except ClosedError:
                raise
            except GazetteError as error:
                if not outage:
                    logger.warning("listing is out of date list=%r cause=%s", self, error)
                outage = True
                continue
            outage = False
            # A smaller revision is of a broker that is behind Etcd, and may lack journals that exist.
            if listing.revision > latest.revision:
                latest = listing
                self._publish(latest)


class WatchStream(Protocol):
    """A List call in progress."""

    def messages(self) -> Iterator[pb.ListResponse]:
        """Yield the call's messages, and raise its failure."""

    def close(self) -> None:
        """End the call and release its connection."""


class Follower:
    """Follows a watch from stream to stream: decides the next request, the listing to publish and the wait.

    It has neither a thread nor a clock; :class:`WatchedList` has both. For one thread.
    """

    def __init__(
        self,
        selector: pb.LabelSelector,
        open_stream: Callable[[pb.ListRequest, float], WatchStream],
        publish: Callable[[Listing], None],
        *,
        answer_s: float,
        renew_s: float = RENEW_S,
    ) -> None:
        self.attempt = 0
        """Number of consecutive streams without a listing."""
        self.cause: GazetteError | None = None
        """The error of the last stream; None if it ended cleanly or because of its age."""
        self._selector = selector
        self._open_stream = open_stream
        self._publish = publish
        self._answer_s = answer_s
        self._renew_s = renew_s
        self._latest: Listing | None = None
        self._asks_whole = True
        self._watchless = 0

    def step(self) -> float:
        """Follow one stream to its end, and return the seconds to wait before the next.

        Raises:
            GazetteError: the watch has failed permanently.
        """
        # A resumed stream sends nothing until something changes. Only a request without the last header
        # returns the current routes, and shows that the connection is alive.
        whole = self._asks_whole or self._latest is None
        request, least = pb.ListRequest(selector=self._selector, watch=True), 0
        if self._latest is not None:
            # A complete listing may repeat the revision. A resumed stream begins with a later one, by the
            # protocol.
            least = self._latest.revision + (0 if whole else 1)
            if not whole:
                request.watch_resume.CopyFrom(self._latest.header)
        joiner = SnapshotJoiner(watch=True, least_revision=least)
        progressed = False
        self.cause = None
        try:
            with closing(self._open_stream(request, self._answer_s if whole else self._renew_s)) as stream:
                for message in stream.messages():
                    if (listing := joiner.feed(message)) is None:
                        continue
                    progressed = True
                    self._asks_whole = False
                    # Another listing of the same revision has nothing new, not even routes.
                    if self._latest is None or listing.revision != self._latest.revision:
                        self._latest = listing
                        self._publish(listing)
                try:
                    joiner.finish()
                except ProtocolError as error:
                    raise WatchUnsupportedError(error.where, error.problem) from None
        except GazetteError as error:
            self.cause = error
        if is_no_answer(self.cause) and (progressed or not whole):
            # The stream is old, not broken. A resumed stream that has been silent is not trusted forever.
            self.cause = None
            self._asks_whole = not whole
            self.attempt = 0
            return 0.0
        # The back-off counts consecutive streams without a listing.
        if progressed:
            self.attempt = 0
        # Give up on a broker whose streams end cleanly within the first listing.
        # A broker before 0.100 answers a watch with one message and ends. A single such end may also be a
        # broker that stops, so it has to happen several times in a row.
        watchless = isinstance(self.cause, WatchUnsupportedError) and self._latest is None
        self._watchless = self._watchless + 1 if watchless else 0
        if self._watchless == WATCHLESS_STREAMS and self.cause is not None:
            raise self.cause
        wait_s = after_watch(self.cause, self.attempt)
        if wait_s is None and self.cause is not None:
            raise self.cause
        self.attempt += 1
        return wait_s or 0.0


def after_watch(cause: GazetteError | None, attempt: int) -> float | None:
    """Return the seconds to wait after ``attempt`` consecutive streams without a listing; None to give up."""
    # A broken listing is dropped, and the stream is opened again: a proxy or a stopping broker may cut it.
    if cause is None or isinstance(cause, ProtocolError):
        return retry.backoff_s(attempt)
    return retry.after_read(cause, attempt, waits=False)


class WatchedList(LiveList):
    """A listing that the broker's watch keeps up to date, as the module describes.

    During an outage, which is logged once, the last listing stays.
    """

    def __init__(
        self,
        client: Client,
        selector: str | pb.LabelSelector = "",
        *,
        on_update: OnUpdate | None = None,
        renew_s: float = RENEW_S,
    ) -> None:
        super().__init__(client, selector, on_update)
        retry.check_seconds("renew_s", renew_s)
        self._stream: _ListStream | None = None
        self._follower = Follower(
            self.selector,
            self._open,
            self._publish,
            answer_s=client.idle_timeout_s,
            renew_s=renew_s,
        )

    def _run(self) -> None:
        follower = self._follower
        while not self._closed.is_set():
            wait_s = follower.step()
            if follower.attempt == LOGGED_ATTEMPT and not self._closed.is_set():
                logger.warning("watch is retried list=%r cause=%s", self, follower.cause)
            self._closed.wait(wait_s)

    def _open(self, request: pb.ListRequest, timeout_s: float) -> WatchStream:
        self._stream = stream = _ListStream(self._client.default_connection, request, timeout_s)
        if self._closed.is_set():
            # close() was called after the loop's check, and found no call to cancel.
            stream.cancel()
        return stream

    def _interrupt(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _without_listing(self) -> GazetteError:
        return self._follower.cause or super()._without_listing()


class _ListStream:
    """A List call on a separate connection, because it is open for long and mostly silent."""

    def __init__(self, connection: Connection, request: pb.ListRequest, timeout_s: float) -> None:
        self._connection = connection
        # Get the metadata first: the caller's function for tokens may raise, and then no channel must be
        # leased.
        metadata = list_metadata(connection, request.selector)
        self._channel = connection.lease()
        self._call = pb_grpc.JournalStub(self._channel).List(request, timeout=timeout_s, metadata=metadata)
        connection.cancel_on_close(self._channel, self.cancel)

    def messages(self) -> Iterator[pb.ListResponse]:
        """Yield the stream's messages. Its failure is raised as one of the package's errors."""
        try:
            for message in self._call:
                self._connection.contacted = True
                yield message
        except grpc.RpcError as error:
            translated = self._connection.rpc_error(error)
            self._connection.report(translated, waits=True)
            raise translated from None

    def cancel(self) -> None:
        """End the call, from any thread."""
        cancel(self._call)

    def close(self) -> None:
        """End the call and its connection. A new one shows whether the broker can still be reached."""
        settle(self._call)
        self._connection.give_back(self._channel, silent=True)
