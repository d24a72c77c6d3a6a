"""Fetches a fragment over HTTP as it is stored. Imports httpx.

:mod:`gazette_spark.client._read.fragment_urls` decides which URLs are fetched.
"""

from __future__ import annotations

import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from typing import Any

import httpx

from gazette_spark.client._read.fragment import URL_FIELD, FetchLimit, without_query
from gazette_spark.errors import DirectReadError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb

BODY_PIECE_BYTES = 1 << 18
"""Number of bytes requested from an HTTP body at a time."""

WAITING_PIECES = 4
"""Maximum number of pieces of a body that wait for their reader."""

HTTP_TIMEOUT_S = 30.0
"""Seconds that a store may be silent."""

Refusal = Callable[[str], str]
"""Returns why an address is refused; empty if it is not."""


def new_http(connect_timeout_s: float, authorities: bytes | None = None) -> httpx.Client:
    """Return a client that fetches fragments without following redirects, or proxies to this machine.

    ``authorities``, PEM, are trusted in addition to the public ones, because a store's certificate may come
    from either.
    """
    trusted = public_authorities()
    if authorities is not None:
        trusted = httpx.create_ssl_context()
        trusted.load_verify_locations(cadata=authorities.decode("ascii", errors="ignore"))
    # The variables for proxies apply to stores, but a proxy cannot reach this machine under these names.
    direct = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))
    timeout = httpx.Timeout(HTTP_TIMEOUT_S, connect=connect_timeout_s)
    return httpx.Client(verify=trusted, timeout=timeout, follow_redirects=False, mounts=direct)


@cache
def public_authorities() -> ssl.SSLContext:
    """Return a context with the public authorities. Reading them takes 50 ms of CPU, so it is shared."""
    return httpx.create_ssl_context()


class Body:
    """An HTTP body as a stream, undecoded.

    A thread looks up the host, connects and receives, because none of that can be interrupted, and a store
    that sends a byte now and then causes no timeout. The reader waits here within its limit, and then
    abandons the thread, which ends at the next byte, or after HTTP_TIMEOUT_S without a byte.
    """

    def __init__(self, ask: Callable[[ExitStack], httpx.Response], source: str, limit: FetchLimit) -> None:
        """Begin the request.

        Args:
            ask: Returns the response, and registers what to close after its body.
            source: Name of the body for errors, without secrets.
            limit: Limits the waits.
        """
        self._ask = ask
        self._source = source
        self._limit = limit
        self._changed = limit.changed
        self._response: httpx.Response | None = None
        self._pieces: deque[bytes] = deque()
        self._failure: BaseException | None = None
        self._ended = False
        self._closed = False
        self._rest = b""
        # A hanging store must not keep the process alive.
        threading.Thread(target=self._run, name="fragment-fetch", daemon=True).start()

    def response(self) -> httpx.Response:
        """Wait for the response and return it, before its body has arrived.

        Raises:
            DirectReadError: there is no response in time.
            ClosedError: the wait was cancelled.
        """
        with self._changed:
            while self._response is None:
                self._check()
                self._limit.wait(self._source)
            return self._response

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end. Errors are those of :meth:`response`."""
        # A decoder requests a number of bytes, and takes fewer as the end of the file. HTTP delivers pieces
        # of any size.
        while len(self._rest) < size and (piece := self._next()):
            self._rest = self._rest + piece if self._rest else piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def close(self) -> None:
        """Let the thread close the body and everything that belongs to it."""
        with self._changed:
            # The thread closes the response itself, because a response is for one thread, and closing may
            # block.
            self._closed = True
            self._pieces.clear()
            self._changed.notify_all()

    def _next(self) -> bytes:
        with self._changed:
            while not self._pieces:
                self._check()
                if self._ended:
                    return b""
                self._limit.wait(self._source)
            self._changed.notify_all()
            return self._pieces.popleft()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            with ExitStack() as owned:
                response = self._ask(owned)
                with self._changed:
                    self._response = response
                    self._changed.notify_all()
                # Read the raw bytes, because httpx would decode a Content-Encoding, and a fragment of the
                # codec GZIP is stored compressed on purpose.
                for piece in response.iter_raw(BODY_PIECE_BYTES):
                    with self._changed:
                        # Bounded, so that a fast store does not fill the memory of a slow reader.
                        while len(self._pieces) >= WAITING_PIECES and not self._closed:
                            self._changed.wait()
                        if self._closed:
                            break
                        self._pieces.append(piece)
                        self._changed.notify_all()
        except httpx.HTTPError as error:
            failure = DirectReadError(self._source, type(error).__name__, passing=True)
            failure.__cause__ = error
        except BaseException as error:  # noqa: BLE001  # The reader must get any error.
            failure = error
        with self._changed:
            self._failure, self._ended = failure, True
            self._changed.notify_all()


def left_of_codec(codec: int, response: httpx.Response) -> int:
    """Return the encoding of a body: a store may have decompressed one whose decompression is offloaded."""
    encoding = response.headers.get("Content-Encoding", "").lower()
    return pb.NONE if codec == pb.GZIP_OFFLOAD_DECOMPRESSION and encoding != "gzip" else codec


class _AddressCheck:
    """Refuses a connection because of its address, before any byte is sent: a trace function of httpcore.

    The name service may now answer differently from when the URL was checked, or for the first time. A
    connection to a proxy is not one to the host, and is allowed.
    """

    def __init__(self, url: httpx.URL, source: str, refusal_of: Refusal) -> None:
        self._host = url.raw_host.decode("ascii")
        self._source = source
        self._refusal_of = refusal_of
        self._is_direct = True

    def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.started":
            self._is_direct = info["host"] == self._host
        elif event == "connection.connect_tcp.complete" and self._is_direct:
            stream = info["return_value"]
            if refusal := self._refusal_of(stream.get_extra_info("server_addr")[0]):
                stream.close()
                raise DirectReadError(self._source, refusal, refused=True)


class _LoggedUrl(httpx.URL):
    """A URL whose text lacks the query, which may be a signature: httpx logs the text of each URL at INFO."""

    def __str__(self) -> str:
        return without_query(super().__str__())


def fetch(url: str, codec: int, http: httpx.Client, refusal_of: Refusal | None = None) -> httpx.Response:
    """Request a URL, and return the response before its body has arrived.

    The fragment is requested as it is stored. Only GZIP_OFFLOAD_DECOMPRESSION may arrive decompressed.

    Args:
        url: URL of the fragment.
        codec: Codec of the fragment.
        http: HTTP client.
        refusal_of: Returns why the host's address is refused; None allows any address.
    """
    source = without_query(url)
    # Set explicitly: otherwise httpx would offer its own encodings, and a store might not send the stored
    # bytes. The two values are those of Gazette's client. The body is decoded as a fragment, never as HTTP.
    accept = "gzip" if codec == pb.GZIP else "identity"
    try:
        request = http.build_request("GET", url, headers={"Accept-Encoding": accept})
        if refusal_of is not None:
            request.extensions["trace"] = _AddressCheck(request.url, source, refusal_of)
        request.url = _LoggedUrl(request.url)
        response = http.send(request, stream=True)
    except (httpx.InvalidURL, UnicodeError):  # UnicodeError: the host cannot be encoded as a name.
        raise ProtocolError(URL_FIELD, f"{source[:200]!r} is not a URL to open") from None
    except httpx.HTTPError as error:
        raise DirectReadError(source, type(error).__name__, passing=True) from error
    # Also 206 and redirects are refused: a body must be the whole fragment, from the host that was checked.
    if response.status_code != httpx.codes.OK:
        response.close()
        # A signed URL that has expired is answered 401 or 403, and a fresh one may succeed. 429 and 5xx are
        # temporary. Others are permanent.
        status = response.status_code
        raise DirectReadError(
            source,
            f"HTTP status {status}",
            expired=status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN),
            passing=status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR,
        )
    return response
