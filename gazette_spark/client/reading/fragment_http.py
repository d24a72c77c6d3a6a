"""Fetch a fragment by HTTP, as it is stored. Loads httpx.

:mod:`gazette_spark.client.reading.fragment_urls` decides which URLs are fetched.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from typing import Any

import httpx

from gazette_spark.client.reading.fragments import URL_FIELD, without_query
from gazette_spark.errors import DirectReadError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb

BODY_PIECE_BYTES = 1 << 18
"""Bytes asked of an HTTP body at a time."""

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
    """An HTTP body as a stream, undecoded."""

    def __init__(self, response: httpx.Response, source: str) -> None:
        self._pieces = response.iter_raw(BODY_PIECE_BYTES)
        self._rest = b""
        self._source = source
        self._owned = ExitStack()

    def take_over(self, owned: ExitStack) -> None:
        """Own resources that are closed with the body."""
        self._owned = owned

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        try:
            while len(self._rest) < size and (piece := next(self._pieces, b"")):
                self._rest = self._rest + piece if self._rest else piece
        except httpx.HTTPError as error:
            raise DirectReadError(self._source, type(error).__name__, passing=True) from error
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def close(self) -> None:
        """Close the body and the resources it owns."""
        self._owned.close()


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
