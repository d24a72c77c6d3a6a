"""Serves stored fragments at signed URLs, as an object store does.

A file is sent as it is stored. Those of GZIP_OFFLOAD_DECOMPRESSION carry ``Content-Encoding: gzip``; for a
client that does not take gzip they are decompressed on the way, as some stores do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from gazette_spark.broker.faults import Fault, Faults
from gazette_spark.broker.faulty_service import corrupt, hold
from gazette_spark.broker.http.server import BODY_CHUNK_BYTES, RequestHandler, is_connected
from gazette_spark.broker.http.signed_urls import SignatureError, UrlSigner
from gazette_spark.broker.storage.fragment_store import STATE_DIRECTORY
from gazette_spark.client.reading.decoders import decode_fragment
from gazette_spark.client.reading.fragment_urls import open_regular
from gazette_spark.errors import DirectReadError
from gazette_spark.protocol import protocol_pb2 as pb


def find_file(root: Path, path: str) -> Path | None:
    """Return the file of a fragment's path; None if it leads out of the root or to the broker's state."""
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts) or parts[0] == STATE_DIRECTORY:
        return None
    found = Path(os.path.realpath(root / path))
    inside = found.is_relative_to(os.path.realpath(root))
    return (
        found if inside and STATE_DIRECTORY not in found.relative_to(os.path.realpath(root)).parts else None
    )


def takes_gzip(accept_encoding: str) -> bool:
    """Return whether a client that says so takes gzip."""
    for part in accept_encoding.lower().split(","):
        coding, _, parameters = part.strip().partition(";")
        if coding.strip() in ("gzip", "*"):
            return not re.fullmatch(r"q=0(\.0*)?", parameters.strip())
    return False


class FragmentHandler(RequestHandler):
    """Serves one connection. Made by :func:`fragment_handler`, which gives it root and key."""

    root: Path
    signer: UrlSigner
    faults: Faults | None

    def do_GET(self) -> None:  # noqa: N802 - the base's way
        """Send a fragment."""
        target, _, query = self.path.partition("?")
        path = unquote(target).removeprefix("/")
        try:
            self.signer.check(path, query)
        except (SignatureError, ValueError) as error:
            self.answer(HTTPStatus.FORBIDDEN, str(error))
            return
        found = find_file(self.root, path)
        try:
            file = open_regular(str(found)) if found is not None else None
        except DirectReadError:
            file = None
        if file is None:
            self.answer(HTTPStatus.NOT_FOUND, "no such fragment")
            return
        with file:
            faults = self.faults.take_path(path) if self.faults is not None else []
            if faults:
                self._send_spoiled(file, faults)
                return
            self._send(file, offloaded="." not in path.rpartition("/")[2] or path.endswith(".gzod"))

    do_HEAD = do_GET  # noqa: N815 - the base's way

    def _send(self, file: BinaryIO, *, offloaded: bool) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Cache-Control", "private, no-store")
        if offloaded and not takes_gzip(self.headers.get("Accept-Encoding", "")):
            self.begin_chunks()
            if self.command != "HEAD":
                self._send_chunks(decode_fragment(file, pb.GZIP))
            return
        if offloaded:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.flush()
            self.connection.sendfile(file)

    def _send_spoiled(self, file: BinaryIO, faults: list[Fault]) -> None:
        hold(faults, lambda: is_connected(self.connection))
        content = file.read()
        for fault in faults:
            if fault.http_status:
                self.answer(HTTPStatus(fault.http_status), fault.text)
                return
            content = content[: len(content) - fault.missing_bytes]
            content = corrupt(content) if fault.corrupts else content
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_chunks(self, pieces: Iterator[bytes]) -> None:
        for piece in pieces:
            for start in range(0, len(piece), BODY_CHUNK_BYTES):
                self.send_chunk(bytes(piece[start : start + BODY_CHUNK_BYTES]))
        self.end_chunks()


def fragment_handler(root: Path, signer: UrlSigner, faults: Faults | None = None) -> type[FragmentHandler]:
    """Return the handler of a broker's fragments."""
    return type("_Fragments", (FragmentHandler,), {"root": root, "signer": signer, "faults": faults})
