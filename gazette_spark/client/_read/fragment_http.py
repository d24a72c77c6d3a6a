"""Fetch a fragment by HTTP, as it is stored. Loads httpx.

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
"""Bytes asked of an HTTP body at a time."""

WAITING_PIECES = 4
"""Pieces of a body that may wait for their reader."""

HTTP_TIMEOUT_S = 30.0
"""Longest a store may say nothing."""

Refusal = Callable[[str], str]
"""Takes an address, returns why it is not asked; empty if it is."""


def new_http(connect_timeout_s: float, authorities: bytes | None = None) -> httpx.Client:
    """Return a client that fetches fragments: it follows no redirect, and no proxy to this machine.

    ``authorities``, PEM, are trusted beside the public ones: a store's certificate may come from
    either.
    """
    trusted = public_authorities()
    if authorities is not None:
        trusted = httpx.create_ssl_context()
        trusted.load_verify_locations(cadata=authorities.decode("ascii", errors="ignore"))
    direct = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))
    timeout = httpx.Timeout(HTTP_TIMEOUT_S, connect=connect_timeout_s)
    return httpx.Client(verify=trusted, timeout=timeout, follow_redirects=False, mounts=direct)


@cache
def public_authorities() -> ssl.SSLContext:
    """Return trust in the public authorities. To read them takes 50 ms of CPU, and each task has a client."""
    return httpx.create_ssl_context()


class Body:
    """An HTTP body as a stream, undecoded.

    A thread looks the host up, connects and receives: none of that can be interrupted, and a store that
    sends a byte now and then trips no timeout. So the reader waits here, within its limit, and leaves the
    thread behind. The thread ends at the next byte, or when the store has been silent for HTTP_TIMEOUT_S.
    """

    def __init__(self, ask: Callable[[ExitStack], httpx.Response], source: str, limit: FetchLimit) -> None:
        """Begin to ask.

        Args:
            ask: returns the answer, and leaves what is to be closed after its body.
            source: a name of the body for errors; nothing secret.
            limit: bounds the waits.
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
        # A store that hangs must not keep the process alive.
        threading.Thread(target=self._run, name="fragment-fetch", daemon=True).start()

    def response(self) -> httpx.Response:
        """Wait for the answer, whose body need not be there yet; return it.

        Raises:
            DirectReadError: there is none, or none in time.
            ClosedError: the wait was cancelled.
        """
        with self._changed:
            while self._response is None:
                self._check()
                self._limit.wait(self._source)
            return self._response

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end. Errors are those of :meth:`response`."""
        while len(self._rest) < size and (piece := self._next()):
            self._rest = self._rest + piece if self._rest else piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def close(self) -> None:
        """Let the thread close the body and what belongs to it."""
        with self._changed:
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
                for piece in response.iter_raw(BODY_PIECE_BYTES):
                    with self._changed:
                        while len(self._pieces) >= WAITING_PIECES and not self._closed:
                            self._changed.wait()
                        if self._closed:
                            break
                        self._pieces.append(piece)
                        self._changed.notify_all()
        except httpx.HTTPError as error:
            failure = DirectReadError(self._source, type(error).__name__, passing=True)
            failure.__cause__ = error
        except BaseException as error:  # noqa: BLE001  # Whatever it is, the reader has to hear of it.
            failure = error
        with self._changed:
            self._failure, self._ended = failure, True
            self._changed.notify_all()


def left_of_codec(codec: int, response: httpx.Response) -> int:
    """Return how a body is still encoded: a store may have decompressed an offloaded one."""
    encoding = response.headers.get("Content-Encoding", "").lower()
    return pb.NONE if codec == pb.GZIP_OFFLOAD_DECOMPRESSION and encoding != "gzip" else codec


class _AddressCheck:
    """Refuses a connection by its address, before a byte is sent on it: httpcore's trace of a request.

    The name service may answer otherwise than it did when the URL was checked, or for the first time. The
    connection to a proxy is not the host's, and passes.
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


def fetch(url: str, codec: int, http: httpx.Client, refusal_of: Refusal | None = None) -> httpx.Response:
    """Ask for a URL; return the answer, whose body is still to come.

    The fragment is asked for as stored. Only GZIP_OFFLOAD_DECOMPRESSION may arrive decompressed.

    Args:
        url: URL of the fragment.
        codec: codec of the fragment.
        http: client to ask with.
        refusal_of: says of the host's address why it is not asked; None asks at any address.
    """
    source = without_query(url)
    accept = "gzip" if codec == pb.GZIP else "identity"
    try:
        request = http.build_request("GET", url, headers={"Accept-Encoding": accept})
        if refusal_of is not None:
            request.extensions["trace"] = _AddressCheck(request.url, source, refusal_of)
        response = http.send(request, stream=True)
    except (httpx.InvalidURL, UnicodeError):  # The latter: a name that the name service cannot be asked for.
        raise ProtocolError(URL_FIELD, f"{source[:200]!r} is not a URL to open") from None
    except httpx.HTTPError as error:
        raise DirectReadError(source, type(error).__name__, passing=True) from error
    if response.status_code != httpx.codes.OK:
        response.close()
        status = response.status_code
        raise DirectReadError(
            source,
            f"HTTP status {status}",
            expired=status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN),
            passing=status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR,
        )
    return response
