"""Serves stored fragments at signed URLs, as an object store does.

A file is sent as it is stored. Those of GZIP_OFFLOAD_DECOMPRESSION have ``Content-Encoding: gzip``; for a
client that does not accept gzip they are decompressed, as some stores do.
"""

from __future__ import annotations

import os
import re
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from gazette_spark._server.http_server import BODY_CHUNK_BYTES, Exchange, is_connected
from gazette_spark.broker.faults import Faults
from gazette_spark.broker.faulty_service import corrupt, hold
from gazette_spark.broker.http.signed_urls import SignatureError, UrlSigner
from gazette_spark.broker.storage.fragment_store import STATE_DIRECTORY
from gazette_spark.client._read.codecs import decode_fragment
from gazette_spark.client._read.fragment_urls import open_regular
from gazette_spark.errors import DirectReadError
from gazette_spark.protocol import protocol_pb2 as pb


def find_file(root: Path, path: str) -> Path | None:
    """Return the file of a fragment's path, or None if it is outside the root or in the broker's state."""
    # The signature already covers the path. These checks protect against a broker that has signed a wrong
    # path.
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts) or parts[0] == STATE_DIRECTORY:
        return None
    # Follow links before the comparison, as everywhere below the root.
    real_root, file = os.path.realpath(root), Path(os.path.realpath(root / path))
    if not file.is_relative_to(real_root) or STATE_DIRECTORY in file.relative_to(real_root).parts:
        return None
    return file


def takes_gzip(accept_encoding: str) -> bool:
    """Return whether a client with this ``Accept-Encoding`` accepts gzip."""
    for part in accept_encoding.lower().split(","):
        coding, _, parameters = part.strip().partition(";")
        # A quality of 0, in any spelling, is a refusal.
        if coding.strip() in ("gzip", "*"):
            return not re.fullmatch(r"q=0(\.0*)?", parameters.strip())
    return False


class FragmentServer:
    """Answers requests for fragments. Any thread may call it."""

    def __init__(self, root: Path, signer: UrlSigner, faults: Faults | None = None) -> None:
        self._root = root
        self._signer = signer
        self._faults = faults

    def __repr__(self) -> str:
        return f"FragmentServer({str(self._root)!r})"

    def __call__(self, exchange: Exchange) -> None:
        """Send a fragment."""
        if exchange.method not in ("GET", "HEAD"):
            exchange.answer(HTTPStatus.METHOD_NOT_ALLOWED, f"{exchange.method} is not served")
            return
        path = unquote(exchange.path).removeprefix("/")
        try:
            # Check this before looking at the file, so that a client without a signature does not learn which
            # files exist.
            self._signer.check(path, exchange.query)
        except (SignatureError, ValueError) as error:
            exchange.answer(HTTPStatus.FORBIDDEN, str(error))
            return
        file_path = find_file(self._root, path)
        try:
            file = open_regular(str(file_path)) if file_path is not None else None
        except DirectReadError:
            file = None
        if file is None:
            exchange.answer(HTTPStatus.NOT_FOUND, "no such fragment")
            return
        with file:
            faults = self._faults.take_path(path) if self._faults is not None else []
            if faults:
                hold(faults, lambda: is_connected(exchange.connection))
                content = file.read()
                for fault in faults:
                    if fault.http_status:
                        exchange.answer(HTTPStatus(fault.http_status), fault.text)
                        return
                    content = content[: len(content) - fault.missing_bytes]
                    content = corrupt(content) if fault.corrupts else content
                exchange.begin(HTTPStatus.OK, {"Content-Length": str(len(content))})
                if exchange.method != "HEAD":
                    exchange.send(content)
                exchange.end()
            else:
                _send(exchange, file, offloaded="." not in path.rpartition("/")[2] or path.endswith(".gzod"))


def _send(exchange: Exchange, file: BinaryIO, *, offloaded: bool) -> None:
    # A signed URL expires, so no cache may keep its content.
    headers = {"Content-Type": "application/octet-stream", "Cache-Control": "private, no-store"}
    has_body = exchange.method != "HEAD"
    # Some object stores decompress for such clients. A client must be able to read both forms.
    if offloaded and not takes_gzip(exchange.headers.get("accept-encoding", "")):
        exchange.begin(HTTPStatus.OK, headers)
        for piece in decode_fragment(file, pb.GZIP) if has_body else ():
            for start in range(0, len(piece), BODY_CHUNK_BYTES):
                exchange.send(bytes(piece[start : start + BODY_CHUNK_BYTES]))
    else:
        if offloaded:
            headers["Content-Encoding"] = "gzip"
        size = os.fstat(file.fileno()).st_size
        exchange.begin(HTTPStatus.OK, {**headers, "Content-Length": str(size)})
        if has_body:
            exchange.send_file(file, size)
    exchange.end()
