"""Opens a stored fragment directly, without the broker, as a file or over HTTP.

A broker sends a URL. A client opens it only if the table below allows it, and connects to nothing before that
check. The address of the connection is checked again before any byte is sent, because a name may have a new
address. So a broker, or a writer of its fragments, cannot make a client call other hosts or read other files.

===========  ===================================================================================
scheme       opened
===========  ===================================================================================
``file``     below the fragment root, if there is one: a path below the broker's file root, not
             escaped. Links are followed first. Regular files only.
``https``    on any host, but: not on link-local addresses, and not on private or loopback ones
             if the broker's own address is public
``http``     on the broker's own host
both         on listed hosts, at any address
===========  ===================================================================================

Redirects are not followed, only status 200 is accepted, and a body is decoded according to the fragment,
never by the HTTP library.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from gazette_spark.client._read.fragment import URL_FIELD, FetchLimit, FragmentReader, without_query
from gazette_spark.client._read.regular_files import open_regular_file
from gazette_spark.client.metrics import ClientMetrics
from gazette_spark.errors import (
    DirectReadError,
    FragmentTooLongError,
    FragmentTooShortError,
    OptionError,
    ProtocolError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.browser_guard import is_address
from gazette_spark.protocol.fragments import Fragment

if TYPE_CHECKING:
    import httpx

FILE_SCHEME = "file://"

MAX_URL_CHARS = 8192
"""Maximum length of a broker's URL."""

CONNECT_TIMEOUT_S = 10.0
"""Default seconds that connecting to a store may take."""

_HTTP_SCHEMES = ("http", "https")
Resolve = Callable[[str, int], Iterable[str]]
"""Returns the addresses of a host and port; raises OSError."""


def resolve(host: str, port: int) -> list[str]:
    """Return a host's addresses from the name service."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


@dataclass(frozen=True)
class FragmentOpener:
    """Opens the URLs of fragments that are allowed. Thread-safe.

    Args:
        root: Directory of ``file://`` URLs; None if such URLs are not opened.
        hosts: ``host`` or ``host:port`` whose URLs are opened for any address and scheme.
        broker: Host of the broker that sends the URLs; empty if unknown, which counts as public.
        http: Returns the HTTP client for a fetch; by default each fetch makes a new one.
        resolve: Returns a host's addresses.
        metrics: Counts the bytes read.

    Raises:
        OptionError: the root is not a directory below ``/``, or a host is invalid.
    """

    root: str | None = None
    hosts: frozenset[str] = frozenset()
    broker: str = ""
    http: Callable[[], httpx.Client] | None = field(default=None, repr=False)
    resolve: Resolve = field(default=resolve, repr=False)
    metrics: ClientMetrics = field(default_factory=ClientMetrics, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (root := self.root) is not None:
            expected = "a folder other than /"
            # Spark's driver need not have the workers' directory. A missing one has no files.
            if not root or "\0" in root or (Path(root).exists() and not Path(root).is_dir()):
                raise OptionError("fragmentRoot", f"{root!r}, which is not a folder", expected)
            # With the root of the file system, a broker's URL could name any file of this machine.
            if os.path.realpath(root) == "/":
                raise OptionError("fragmentRoot", repr(root), expected)
        for host in self.hosts:
            if not re.fullmatch(r"[^\s/@?#]+", host):
                raise OptionError("fragmentHosts", repr(host), "names such as store.example or 10.0.0.7:9000")

    def can_open(self, url: str) -> bool:
        """Return whether such a URL is opened, without looking up its host's address."""
        if url.startswith(FILE_SCHEME):
            return self.root is not None
        try:
            parts = urlsplit(url)
            return parts.scheme in _HTTP_SCHEMES and not self._refusal(parts.scheme, *_host_port(url))
        except ValueError:
            return False

    def open(
        self,
        fragment: Fragment,
        url: str,
        offset: int | None = None,
        *,
        end_offset: int = 0,
        limit: FetchLimit | None = None,
    ) -> FragmentReader:
        """Return a reader of a fragment from ``offset`` on. The caller closes it.

        Args:
            fragment: The fragment that is expected at the URL.
            url: URL from a broker.
            offset: Offset of the first byte to return; by default the fragment's begin.
            end_offset: Offset after the last byte to return; 0 for the fragment's end.
            limit: Limits the waits for bytes over HTTP; by default a store may take any time as long as it
                sends bytes.

        Raises:
            ProtocolError: the URL is invalid for a fragment: it leaves the root, is too long, or has control
                characters or a user name.
            DirectReadError: such URLs are not opened, or opening failed.
            CorruptFragmentError: the file's size is not the fragment's.
            ClosedError: the limit was cancelled.
            OffsetError: the offset is outside the fragment.
        """
        # The URL comes from a broker, which makes it from a fragment's name, and anybody who writes to the
        # store can choose that name.
        check_url(url)
        if url.startswith(FILE_SCHEME) and self.root is not None:
            path = resolve_file(url, self.root)
            return _open_file(fragment, path, offset, end_offset, self.metrics)
        if urlsplit(url).scheme not in _HTTP_SCHEMES:
            raise DirectReadError(without_query(url), "no way to open such a URL", refused=True)
        # Imported here because reads through the broker need no HTTP, and Spark starts many workers.
        from gazette_spark.client._read import fragment_http

        def ask(owned: ExitStack) -> httpx.Response:
            # Before any connection, the host's name and its current addresses are checked.
            host, port = _host_port(url)
            trusted = self._is_trusted(host, port)
            refusal = self._refusal(urlsplit(url).scheme, host, port)
            if not (refusal or trusted):
                # A proxy may resolve a name that is unknown here. Otherwise the address of the connection is
                # checked, if there is one. A ValueError means that the name is invalid.
                addresses: list[str] = []
                with suppress(OSError, ValueError):
                    addresses = list(self.resolve(host, port))
                refusal = next(filter(None, map(self._refusal_of, addresses)), "")
            if refusal:
                raise DirectReadError(source, refusal, refused=True)
            http = (
                self.http() if self.http else owned.enter_context(fragment_http.new_http(CONNECT_TIMEOUT_S))
            )
            # The address is checked again on connecting, because the name may have a new one.
            response = fragment_http.fetch(url, fragment.codec, http, None if trusted else self._refusal_of)
            owned.callback(response.close)
            return response

        source = without_query(url)
        limit = limit or FetchLimit()
        # The connection counts too: a store that accepts none must not use up the reader's time.
        limit.begin()
        body = fragment_http.Body(ask, source, limit)
        try:
            codec = fragment_http.left_of_codec(fragment.codec, body.response())
            return FragmentReader(
                body,
                fragment,
                offset,
                end_offset=end_offset,
                codec=codec,
                source=source,
                limit=limit,
                metrics=self.metrics,
            )
        except BaseException:
            body.close()
            raise

    def _refusal(self, scheme: str, host: str, port: int) -> str:
        """Return why a host is refused because of its name; empty if it is not."""
        if self._is_trusted(host, port):
            return ""
        if scheme != "https":
            return f"http is for the broker's own host or those in fragmentHosts, not for {host}"
        return self._refusal_of(host) if is_address(host) else ""

    def _refusal_of(self, text: str) -> str:
        """Return why an address is refused; empty if it is not."""
        address = ip_address(text)
        # `::ffff:10.0.0.1` connects to 10.0.0.1, so that address decides.
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        address = mapped or address
        # The metadata services of clouds, which hand out credentials, have link-local addresses.
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            return f"{address} is not an address of a store"
        # A broker on the Internet could otherwise have a client inside a company's network fetch from its
        # neighbours. Where the broker's address is private, its stores usually are, too.
        if not address.is_global and self._broker_is_public:
            return f"{address} is a private address, but the broker's is not; to allow it, set fragmentHosts"
        return ""

    def _is_trusted(self, host: str, port: int) -> bool:
        """Return whether a host is allowed at any address: it is listed, or the broker's own."""
        listed = {name.lower() for name in self.hosts}
        return host in listed or f"{host}:{port}" in listed or host == self.broker.lower() != ""

    @property
    def _broker_is_public(self) -> bool:
        try:
            addresses = [ip_address(text) for text in self.resolve(self.broker, 0)] if self.broker else []
        except (OSError, ValueError):
            addresses = []
        # An unknown broker counts as public, which is the stricter case.
        return not addresses or any(address.is_global for address in addresses)


def open_fragment_url(
    fragment: Fragment,
    url: str,
    offset: int | None = None,
    *,
    end_offset: int = 0,
    fragment_root: str | None = None,
    fragment_hosts: Iterable[str] = (),
) -> FragmentReader:
    """Open a fragment at a URL, and return a reader of it. The caller closes it.

    ``Client.open_fragment`` also allows the broker's own host.

    Args:
        fragment: The fragment that is expected at the URL.
        url: URL from a broker.
        offset: Offset of the first byte to return; by default the fragment's begin.
        end_offset: Offset after the last byte to return; 0 for the fragment's end.
        fragment_root: Directory of ``file://`` URLs.
        fragment_hosts: ``host`` or ``host:port`` that are allowed for any address and scheme.

    Raises:
        ProtocolError: the URL is invalid for a fragment.
        DirectReadError: such URLs are not opened, or opening failed.
        OffsetError: the offset is outside the fragment.
        OptionError: the root is missing or is not a directory, or a host is invalid.
    """
    if fragment_root is not None and not Path(fragment_root).is_dir():
        raise OptionError("fragment_root", f"{fragment_root!r}, which is not a folder", "an existing folder")
    opener = FragmentOpener(fragment_root, frozenset(fragment_hosts))
    return opener.open(fragment, url, offset, end_offset=end_offset)


def check_url(url: str) -> None:
    """Raise if a URL is invalid for a fragment, regardless of whether it would be opened."""
    source = without_query(url)[:200]
    if not url or len(url) > MAX_URL_CHARS or re.search(r"[\x00-\x1f\x7f]", url):
        raise ProtocolError(
            URL_FIELD, f"{source!r} is not a URL to open: empty, too long, or with control characters"
        )
    if url.startswith(FILE_SCHEME):
        return
    try:
        parts = urlsplit(url)
        usable = not (parts.username or parts.password or " " in url)
        usable = usable and (parts.scheme not in _HTTP_SCHEMES or bool(_host_port(url)[0]))
    except ValueError:
        usable = False
    if not usable:
        raise ProtocolError(URL_FIELD, f"{re.sub('//[^/]*@', '//***@', source)!r} is not a URL to open")


def _host_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)


def resolve_file(url: str, root: str) -> str:
    """Return the path of a ``file://`` URL below ``root``, with links resolved, which must not leave it."""
    path = url.removeprefix(FILE_SCHEME)
    if "\0" in path or ".." in path.split("/") or not path.startswith("/"):
        raise ProtocolError(URL_FIELD, f"{url!r} is not a path below the file root")
    real_root = os.path.realpath(root)
    real = os.path.realpath(real_root + path)
    if os.path.commonpath([real_root, real]) != real_root:
        raise ProtocolError(URL_FIELD, f"{url!r} leads out of the file root {root!r}")
    return real


def open_regular(path: str) -> BinaryIO:
    """Open a regular file. Never waits."""
    try:
        return open_regular_file(path)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise DirectReadError(path, error.strerror or str(error), missing=missing) from error


class _File:
    """A file whose errors are raised as DirectReadError."""

    def __init__(self, path: str) -> None:
        self.file = open_regular(path)
        self._path = path

    def read(self, size: int, /) -> bytes:
        try:
            return self.file.read(size)
        except OSError as error:
            raise DirectReadError(self._path, error.strerror or str(error)) from error

    def close(self) -> None:
        self.file.close()


def _open_file(
    fragment: Fragment, path: str, offset: int | None, end_offset: int, metrics: ClientMetrics
) -> FragmentReader:
    file = _File(path)
    try:
        start = fragment.begin
        if fragment.codec == pb.NONE:
            # Without compression the size is known immediately, and bytes before the offset need not be read.
            size = os.fstat(file.file.fileno()).st_size
            if size != fragment.length:
                problem = f"it has {size} bytes, not {fragment.length}"
                kind = FragmentTooLongError if size > fragment.length else FragmentTooShortError
                raise kind(fragment.journal, fragment.begin, fragment.end, problem, path)
            start = max(start, min(offset or start, fragment.end))
            file.file.seek(start - fragment.begin)
        return FragmentReader(
            file, fragment, offset, end_offset=end_offset, start=start, source=path, metrics=metrics
        )
    except BaseException:
        file.close()
        raise
