"""The HTTP gateway: journals by ``curl``, and List and Read as JSON.

======================================  ==================================================
``GET /{journal}?offset=N&block=bool``  a read; the body is content until the read ends
``HEAD /{journal}?...``                 its headers only
``PUT /{journal}``                      one append of the body
``POST /v1/journals/list``, ``/read``   the request as proto-JSON; a line of JSON an answer
======================================  ==================================================

Statuses, headers and the trailer ``X-Close-Error`` are Gazette's. As there, GET, HEAD and PUT are not
subject to the broker's keys: who must not read may not reach this port. ``/v1/`` checks the
``Authorization`` header.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from gazette_spark.broker.api.append import append
from gazette_spark.broker.api.authorizer import Authorizer, UnauthenticatedError
from gazette_spark.broker.api.call import Call, ServiceContext
from gazette_spark.broker.api.list_apply import list_journals
from gazette_spark.broker.api.read import read
from gazette_spark.broker.http.server import BODY_CHUNK_BYTES, HttpPeer, RequestHandler
from gazette_spark.errors import GazetteError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.tokens import Capability, Claims

MAX_OFFSET = (1 << 63) - 1
"""Placeholder for the end that a journal does not have."""

MAX_JSON_BYTES = 1 << 20
"""Longest request of the JSON gateway."""

BROKER_ENDED = "broker terminated RPC"
OFFSET_JUMP = "offset jump"

_HTTP_STATUS = {
    pb.OK: HTTPStatus.PARTIAL_CONTENT,
    pb.JOURNAL_NOT_FOUND: HTTPStatus.NOT_FOUND,
    pb.INSUFFICIENT_JOURNAL_BROKERS: HTTPStatus.SERVICE_UNAVAILABLE,
    pb.OFFSET_NOT_YET_AVAILABLE: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
}
_TRUE = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_FALSE = frozenset({"0", "f", "F", "false", "False", "FALSE"})
_UNKNOWN_CODE, _INVALID_CODE, _UNIMPLEMENTED_CODE, _UNAUTHENTICATED_CODE = 2, 3, 12, 16


class BadRequestError(GazetteError):
    """A request the gateway cannot read. Stays inside the broker."""


def read_request(path: str, query: str) -> pb.ReadRequest:
    """Return the read that a URL asks for.

    Raises:
        BadRequestError: an unknown argument, or one that does not parse.
    """
    request = pb.ReadRequest(journal=unquote(path).removeprefix("/"))
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "offset" and re.fullmatch(r"-?\d{1,19}", value) and -1 <= int(value) <= MAX_OFFSET:
            request.offset = int(value)
        elif name == "block" and value in _TRUE | _FALSE:
            request.block = value in _TRUE
        else:
            raise BadRequestError(f"cannot take {name}={value}; known are offset=N and block=true or false")
    return request


def read_headers(first: pb.ReadResponse, location: str) -> dict[str, str]:
    """Return the headers that tell a read's first message."""
    headers = {
        "Content-Range": f"bytes {first.offset}-{MAX_OFFSET}/{MAX_OFFSET}",
        **_route_headers(first.header, location),
    }
    if first.write_head:
        headers["X-Write-Head"] = str(first.write_head)
    if first.HasField("fragment"):
        fragment = Fragment.from_pb(first.fragment)
        headers["X-Fragment-Name"] = fragment.content_name
        if fragment.mod_time:
            headers["X-Fragment-Last-Modified"] = formatdate(fragment.mod_time, usegmt=True)
    if first.fragment_url:
        headers["X-Fragment-Location"] = first.fragment_url
    return headers


def append_headers(response: pb.AppendResponse, location: str) -> dict[str, str]:
    """Return the headers with the place of an append."""
    commit = Fragment.from_pb(response.commit)
    return {
        "X-Commit-Begin": str(commit.begin),
        "X-Commit-End": str(commit.end),
        "X-Commit-SHA1-Sum": commit.sum.hex(),
        "X-Write-Head": str(commit.end),
        **_route_headers(response.header, location),
    }


def _route_headers(header: pb.Header, location: str) -> dict[str, str]:
    if not header.route.members:
        return {}
    token = text_format.MessageToString(header.route, as_one_line=True)
    return {"X-Route-Token": token, "Location": location}


class GatewayHandler(RequestHandler):
    """Serves one connection. Made by :func:`gateway_handler`, which gives it the broker."""

    service: ServiceContext
    base_url: Callable[[], str]
    unknown_method = HTTPStatus.BAD_REQUEST
    _body_is_read = False

    def do_GET(self) -> None:  # noqa: N802 - the base's way
        """Serve a read."""
        self._read(metadata_only=False)

    def do_HEAD(self) -> None:  # noqa: N802 - the base's way
        """Serve the metadata of a read."""
        self._read(metadata_only=True)

    def do_PUT(self) -> None:  # noqa: N802 - the base's way
        """Serve an append."""
        path, _, query = self.path.partition("?")
        journal = unquote(path).removeprefix("/")
        if query:
            self.answer(HTTPStatus.BAD_REQUEST, "an append takes no arguments")
            return
        with self._call(_everything(Capability.APPEND)) as call:
            try:
                response = append(self.service, self._append_messages(journal), call)
            except (GazetteError, OSError) as error:
                self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
            else:
                self._answer_append(journal, response)
        if not self._body_is_read:
            # The append ended early; the thread that takes the body off the wire has to end, too.
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RD)

    def _answer_append(self, journal: str, response: pb.AppendResponse) -> None:
        if response.status == pb.OK:
            self.answer(HTTPStatus.NO_CONTENT, headers=append_headers(response, self._location(journal)))
        else:
            self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, pb.Status.Name(response.status))

    def do_POST(self) -> None:  # noqa: N802 - the base's way
        """Serve the JSON gateway."""
        known: dict[str, tuple[Capability, type[Message], Any]] = {
            "/v1/journals/list": (Capability.LIST, pb.ListRequest, list_journals),
            "/v1/journals/read": (Capability.READ, pb.ReadRequest, read),
        }
        if self.path not in known:
            status = HTTPStatus.NOT_IMPLEMENTED if self.path.startswith("/v1/") else HTTPStatus.BAD_REQUEST
            self._json_error(status, _UNIMPLEMENTED_CODE, f"POST {self.path} is not served")
            return
        needed, kind, serve = known[self.path]
        try:
            claims = self.service.authorizer.authorize(self.headers.get("Authorization"), needed)
            request = json_format.Parse(self._body(MAX_JSON_BYTES), kind(), ignore_unknown_fields=True)
        except UnauthenticatedError as error:
            self._json_error(HTTPStatus.UNAUTHORIZED, _UNAUTHENTICATED_CODE, str(error))
        except (json_format.ParseError, BadRequestError, UnicodeDecodeError) as error:
            self._json_error(HTTPStatus.BAD_REQUEST, _INVALID_CODE, str(error))
        else:
            with self._call(claims) as call:
                self._json_stream(serve(self.service, request, call))

    # -- Reads.

    def _read(self, *, metadata_only: bool) -> None:
        path, _, query = self.path.partition("?")
        try:
            request = read_request(path, query)
            request.metadata_only = metadata_only
        except (BadRequestError, UnicodeDecodeError) as error:
            self.answer(HTTPStatus.BAD_REQUEST, str(error))
            return
        with self._call(_everything(Capability.READ)) as call:
            try:
                responses = read(self.service, request, call)
                first = next(responses, None)
            except ProtocolError as error:
                self.answer(HTTPStatus.BAD_REQUEST, str(error))
            except (GazetteError, OSError) as error:
                self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
            else:
                self._answer_read(request, first, responses)

    def _answer_read(
        self, request: pb.ReadRequest, first: pb.ReadResponse | None, responses: Iterator[pb.ReadResponse]
    ) -> None:
        if first is None:
            self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, BROKER_ENDED)
            return
        headers = read_headers(first, self._location(request.journal))
        status = _HTTP_STATUS.get(first.status, HTTPStatus.INTERNAL_SERVER_ERROR)
        if status != HTTPStatus.PARTIAL_CONTENT:
            self.answer(status, pb.Status.Name(first.status), headers)
            return
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/octet-stream"}.items():
            self.send_header(name, value)
        if request.metadata_only:
            self.end_headers()
            return
        self.send_header("Trailer", "X-Close-Error")
        self.begin_chunks()
        problem = self._send_content(first.offset, responses)
        self.end_chunks({"X-Close-Error": re.sub(r"[^ -~]", " ", problem)})

    def _send_content(self, offset: int, responses: Iterator[pb.ReadResponse]) -> str:
        """Send the content of a read; return why it ended."""
        try:
            for response in responses:
                if response.content:
                    self.send_chunk(response.content)
                    offset += len(response.content)
                elif response.status != pb.OK:
                    return pb.Status.Name(response.status)
                elif response.offset != offset:
                    return OFFSET_JUMP
        except GazetteError as error:
            return str(error)
        return BROKER_ENDED

    # -- Appends.

    def _append_messages(self, journal: str) -> Iterator[pb.AppendRequest]:
        self._body_is_read = False
        yield pb.AppendRequest(journal=journal)
        for content in self._body_pieces():
            yield pb.AppendRequest(content=content)
        self._body_is_read = True
        yield pb.AppendRequest()

    def _body_pieces(self) -> Iterator[bytes]:
        """Yield the request's body; raise ConnectionError if it ends early."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            yield from self._chunked_pieces()
            return
        left = self._content_length()
        while left:
            piece = self._take(min(left, BODY_CHUNK_BYTES))
            left -= len(piece)
            yield piece

    def _chunked_pieces(self) -> Iterator[bytes]:
        while left := int(self.rfile.readline(1024).partition(b";")[0].strip() or b"0", 16):
            while left:
                piece = self._take(min(left, BODY_CHUNK_BYTES))
                left -= len(piece)
                yield piece
            self.rfile.readline(8)
        while self.rfile.readline(8192).strip():
            pass  # Trailers.

    def _take(self, size: int) -> bytes:
        piece = self.rfile.read(size)
        if len(piece) < size:
            raise ConnectionError("the body ended early")
        return piece

    def _content_length(self) -> int:
        value = self.headers.get("Content-Length", "0")
        return int(value) if re.fullmatch(r"\d{1,18}", value) else 0

    # -- JSON.

    def _body(self, limit: int) -> bytes:
        pieces, size = [], 0
        for piece in self._body_pieces():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise BadRequestError(f"the request has more than {limit} bytes")
        return b"".join(pieces)

    def _json_stream(self, responses: Iterator[Message]) -> None:
        begun = False
        try:
            for response in responses:
                if not begun:
                    begun = True
                    self.send_response(HTTPStatus.OK)
                    self.send_header("Content-Type", "application/json")
                    self.begin_chunks()
                self.send_chunk(b'{"result":%b}\n' % _json_line(response))
        except GazetteError as error:
            if not begun:
                self._json_error(HTTPStatus.INTERNAL_SERVER_ERROR, _UNKNOWN_CODE, str(error))
                return
            self.send_chunk(b'{"error":%b}\n' % _json_problem(_UNKNOWN_CODE, str(error)))
        if not begun:
            self.answer(HTTPStatus.OK)
        else:
            self.end_chunks()

    def _json_error(self, status: HTTPStatus, code: int, problem: str) -> None:
        self.answer(status, _json_problem(code, problem).decode(), {"X-Content-Type-Options": "nosniff"})

    # -- Both.

    def _location(self, journal: str) -> str:
        return f"{type(self).base_url()}/{quote(journal)}"

    @contextmanager
    def _call(self, claims: Claims) -> Iterator[Call]:
        peer = HttpPeer(self.connection, self.service.watch)
        try:
            yield Call(peer, claims, self.service.watch)
        finally:
            peer.end()


def _everything(capability: Capability) -> Claims:
    return Authorizer().authorize(None, capability)


def _json_line(message: Message) -> bytes:
    return json_format.MessageToJson(message, indent=None, always_print_fields_with_no_presence=True).encode()


def _json_problem(code: int, problem: str) -> bytes:
    return json.dumps({"code": code, "message": problem, "details": []}).encode()


def gateway_handler(service: ServiceContext, base_url: Callable[[], str]) -> type[GatewayHandler]:
    """Return the handler of a broker's gateway; ``base_url`` returns the gateway's address."""
    return type("_Gateway", (GatewayHandler,), {"service": service, "base_url": staticmethod(base_url)})
