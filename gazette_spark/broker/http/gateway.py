"""Serves the HTTP gateway: journals for ``curl``, and List and Read as JSON.

======================================  ==================================================
``GET /{journal}?offset=N&block=bool``  a read; the body is content until the read ends
``HEAD /{journal}?...``                 its headers only
``PUT /{journal}``                      one append of the body
``POST /v1/journals/list``, ``/read``   request as proto-JSON; a line of JSON per answer
======================================  ==================================================

Statuses, headers and the trailer ``X-Close-Error`` are Gazette's. If the broker has keys, every request needs
a bearer token in its ``Authorization`` header. In Gazette GET, HEAD and PUT need none, so anyone who
reaches the port can read; ``GatewaySettings(serves_without_token=True)`` restores that. Unlike Gazette's,
this gateway is on developers' machines: it refuses requests that foreign web pages make their browsers send
(``browser_guard``). An append is committed only if its body arrived complete.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from gazette_spark._server.authorizer import Authorizer, UnauthenticatedError
from gazette_spark._server.http_server import IDLE_TIMEOUT_S, Exchange, HttpPeer, RequestError
from gazette_spark.broker.api.append import append
from gazette_spark.broker.api.call import ServedCall, ServiceContext
from gazette_spark.broker.api.list_apply import list_journals
from gazette_spark.broker.api.message_pump import NoMessage
from gazette_spark.broker.api.read import read
from gazette_spark.errors import GazetteError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.browser_guard import is_cross_site, is_own_host
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journal_specs import MAX_OFFSET
from gazette_spark.protocol.tokens import Capability, Claims

MAX_JSON_BYTES = 1 << 20
"""Maximum size of a request of the JSON gateway."""

BROKER_ENDED = "broker terminated RPC"
OFFSET_JUMP = "offset jump"
UNKNOWN_HOST = "this is not a host name of the gateway; list it in GatewaySettings.names or --gateway-name"
CROSS_SITE = "requests from a web page of another origin are refused"

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
    """The gateway cannot read a request. Never raised outside the broker."""

    problem: str


def read_request(path: str, query: str) -> pb.ReadRequest:
    """Return the read that a URL requests.

    Raises:
        BadRequestError: an argument is unknown or cannot be parsed.
    """
    request = pb.ReadRequest(journal=unquote(path).removeprefix("/"))
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "offset" and re.fullmatch(r"-?\d{1,19}", value) and -1 <= int(value) <= MAX_OFFSET:
            request.offset = int(value)
        elif name == "block" and value in _TRUE | _FALSE:
            request.block = value in _TRUE
        else:
            raise BadRequestError(
                f"{name}={value} is not valid; expected offset=N, block=true or block=false"
            )
    return request


def read_headers(first: pb.ReadResponse, location: str) -> dict[str, str]:
    """Return the headers that describe a read's first message."""
    headers = {
        # A journal has no end, but the header needs one.
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
    """Return the headers with the range of an append."""
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


class Gateway:
    """Answers a gateway's requests. Any thread may call it.

    Args:
        service: the broker.
        base_url: returns the gateway's address.
        names: host names that requests may be for, in addition to addresses and localhost.
        serves_without_token: let GET, HEAD and PUT pass without a token, regardless of the broker's keys.
    """

    def __init__(
        self,
        service: ServiceContext,
        base_url: Callable[[], str],
        names: Collection[str],
        *,
        serves_without_token: bool = False,
    ) -> None:
        self._service = service
        self._base_url = base_url
        self._names = names
        self._authorizer = Authorizer() if serves_without_token else service.authorizer

    def __repr__(self) -> str:
        return f"Gateway({self._base_url()})"

    def __call__(self, exchange: Exchange) -> None:
        """Answer a request.

        Raises:
            RequestError: the request is refused.
            OSError: the client is gone.
        """
        # A web page can make its own name resolve to this machine, and then read what the browser gets from
        # here. The Host header shows the name.
        if not is_own_host(exchange.headers.get("host"), self._names):
            raise RequestError(HTTPStatus.MISDIRECTED_REQUEST, UNKNOWN_HOST)
        # Any page may make a browser send such a request, even though it cannot read the answer.
        if exchange.method not in ("GET", "HEAD") and is_cross_site(exchange.headers):
            raise RequestError(HTTPStatus.FORBIDDEN, CROSS_SITE)
        try:
            match exchange.method:
                case "GET" | "HEAD":
                    self._read(exchange, self._claims(exchange, Capability.READ))
                case "PUT":
                    self._append(exchange, self._claims(exchange, Capability.APPEND))
                case "POST":
                    self._post(exchange)
                case _:
                    exchange.answer(HTTPStatus.BAD_REQUEST, f"{exchange.method} is not served")
        except UnauthenticatedError as error:
            exchange.answer(HTTPStatus.UNAUTHORIZED, str(error), {"WWW-Authenticate": "Bearer"})

    def _claims(self, exchange: Exchange, needed: Capability) -> Claims:
        return self._authorizer.authorize(exchange.headers.get("authorization"), needed)

    # -- Reads.

    def _read(self, exchange: Exchange, claims: Claims) -> None:
        try:
            request = read_request(exchange.path, exchange.query)
        except BadRequestError as error:
            exchange.answer(HTTPStatus.BAD_REQUEST, str(error))
            return
        request.metadata_only = exchange.method == "HEAD"
        with self._call(exchange, claims) as call:
            try:
                responses = read(self._service, request, call)
                # In HTTP, the status and the headers precede the body, so the answer can begin only with the
                # first message.
                first = next(responses, None)
            except ProtocolError as error:
                exchange.answer(HTTPStatus.BAD_REQUEST, str(error))
                return
            except (GazetteError, OSError) as error:
                exchange.answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
                return
            # The broker stopped, or the journal was deleted, before the first message.
            if first is None:
                exchange.answer(HTTPStatus.INTERNAL_SERVER_ERROR, BROKER_ENDED)
                return
            headers = read_headers(first, self._location(request.journal))
            status = _HTTP_STATUS.get(first.status, HTTPStatus.INTERNAL_SERVER_ERROR)
            if status != HTTPStatus.PARTIAL_CONTENT:
                exchange.answer(status, pb.Status.Name(first.status), headers)
                return
            trailer = {} if request.metadata_only else {"Trailer": "X-Close-Error"}
            exchange.begin(status, {**headers, "Content-Type": "application/octet-stream", **trailer})
            # The answer's status was already sent, so a trailer contains the reason why the stream ended.
            problem = "" if request.metadata_only else _send_content(exchange, first.offset, responses)
            exchange.end({"X-Close-Error": re.sub(r"[^ -~]", " ", problem)})

    # -- Appends.

    def _append(self, exchange: Exchange, claims: Claims) -> None:
        journal = unquote(exchange.path).removeprefix("/")
        if exchange.query:
            exchange.answer(HTTPStatus.BAD_REQUEST, "an append takes no arguments")
            return
        messages = _BodyMessages(journal, exchange)
        with self._call(exchange, claims) as call:
            try:
                response = append(self._service, messages, call)
            except (GazetteError, OSError) as error:
                # The append failed because its body did, so the client gets the status of that failure.
                if messages.problem is not None:
                    raise messages.problem from None
                exchange.answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
                return
        if response.status == pb.OK:
            headers = append_headers(response, self._location(journal))
            exchange.answer(HTTPStatus.NO_CONTENT, headers=headers)
        else:
            exchange.answer(HTTPStatus.INTERNAL_SERVER_ERROR, pb.Status.Name(response.status))

    # -- JSON.

    def _post(self, exchange: Exchange) -> None:
        methods: dict[str, tuple[Capability, type[Message], Any]] = {
            "/v1/journals/list": (Capability.LIST, pb.ListRequest, list_journals),
            "/v1/journals/read": (Capability.READ, pb.ReadRequest, read),
        }
        path = exchange.path
        if path not in methods or exchange.query:
            status = HTTPStatus.NOT_IMPLEMENTED if path.startswith("/v1/") else HTTPStatus.BAD_REQUEST
            _json_error(exchange, status, _UNIMPLEMENTED_CODE, f"POST {path} is not served")
            return
        needed, kind, serve = methods[path]
        try:
            claims = self._service.authorizer.authorize(exchange.headers.get("authorization"), needed)
            request = json_format.Parse(exchange.body(MAX_JSON_BYTES), kind(), ignore_unknown_fields=True)
        except UnauthenticatedError as error:
            _json_error(exchange, HTTPStatus.UNAUTHORIZED, _UNAUTHENTICATED_CODE, str(error))
        except RequestError as error:
            _json_error(exchange, error.status, _INVALID_CODE, str(error))
        except (json_format.ParseError, UnicodeDecodeError) as error:
            _json_error(exchange, HTTPStatus.BAD_REQUEST, _INVALID_CODE, str(error))
        else:
            with self._call(exchange, claims) as call:
                _send_json(exchange, serve(self._service, request, call))

    # -- All.

    def _location(self, journal: str) -> str:
        return f"{self._base_url()}/{quote(journal)}"

    @contextmanager
    def _call(self, exchange: Exchange, claims: Claims) -> Iterator[ServedCall]:
        peer = HttpPeer(exchange.connection, self._service.watch)
        try:
            yield ServedCall(peer, claims, self._service.watch)
        finally:
            peer.end()


class _BodyMessages:
    """The messages of an append from a request's body. The marker only follows a complete body.

    The body is read from the connection only when the append takes its messages. So the broker's flow control
    reaches the client, and waiting content does not fill the memory.
    """

    def __init__(self, journal: str, exchange: Exchange) -> None:
        self.problem: Exception | None = None
        """Reason why the body did not arrive complete."""
        self._first: pb.AppendRequest | None = pb.AppendRequest(journal=journal)
        self._exchange = exchange
        self._lock = threading.Lock()
        self._end: NoMessage | None = None
        self._silent_s = 0.0

    def take(self, timeout_s: float) -> pb.AppendRequest | NoMessage:
        """Return the next message, or the reason why none arrived in time."""
        with self._lock:
            if self._first is not None:
                first, self._first = self._first, None
                return first
            if self._end is not None:
                return self._end
            try:
                content = self._exchange.receive(timeout_s)
                self._silent_s = self._silent_s + timeout_s if content is None else 0.0
                if self._silent_s > IDLE_TIMEOUT_S:
                    problem = f"the body paused for {IDLE_TIMEOUT_S:g} s"
                    raise RequestError(HTTPStatus.REQUEST_TIMEOUT, problem)
            except (RequestError, OSError) as error:
                self.problem, self._end = error, NoMessage.BROKEN
                return NoMessage.BROKEN
            if content is None:
                return NoMessage.NOT_YET
            if not content:
                self._end = NoMessage.END
            return pb.AppendRequest(content=content)

    def close(self) -> None:
        """Take no more messages, because the connection is now used for the answer."""
        with self._lock:  # A proxied append takes its messages on a thread that ends later.
            self._end = NoMessage.BROKEN


def _send_content(exchange: Exchange, offset: int, responses: Iterator[pb.ReadResponse]) -> str:
    """Send the content of a read; return why it ended."""
    try:
        for response in responses:
            if response.content:
                exchange.send(response.content)
                offset += len(response.content)
            elif response.status != pb.OK:
                return pb.Status.Name(response.status)
            elif response.offset != offset:
                return OFFSET_JUMP
    except GazetteError as error:
        return str(error)
    return BROKER_ENDED


def _send_json(exchange: Exchange, responses: Iterator[Message]) -> None:
    begun = False
    try:
        for response in responses:
            if not begun:
                begun = True
                exchange.begin(HTTPStatus.OK, {"Content-Type": "application/json"})
            text = json_format.MessageToJson(response, indent=None, always_print_fields_with_no_presence=True)
            exchange.send(b'{"result":%b}\n' % text.encode())
    except GazetteError as error:
        if not begun:
            _json_error(exchange, HTTPStatus.INTERNAL_SERVER_ERROR, _UNKNOWN_CODE, str(error))
            return
        exchange.send(b'{"error":%b}\n' % _json_problem(_UNKNOWN_CODE, str(error)))
    if begun:
        exchange.end()
    else:
        exchange.answer(HTTPStatus.OK)


def _json_error(exchange: Exchange, status: HTTPStatus, code: int, problem: str) -> None:
    exchange.answer(status, _json_problem(code, problem).decode())


def _json_problem(code: int, problem: str) -> bytes:
    return json.dumps({"code": code, "message": problem, "details": []}).encode()
