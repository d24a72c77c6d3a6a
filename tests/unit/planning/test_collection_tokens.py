"""Tokens of a collection: requests to the control plane, waiting times, and errors."""

from __future__ import annotations

import base64
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gazette_spark._options.security import CollectionAccess
from gazette_spark._options.source import parse_options
from gazette_spark._planning import collection_tokens
from gazette_spark._planning.access import open_client, security_for_tasks
from gazette_spark._planning.collection_tokens import CollectionTokens, authorize
from gazette_spark.errors import CollectionAccessError, OptionError
from gazette_spark.protocol.tokens import KeySet
from tests.rig.control_plane import USER_TOKEN, ControlPlane, running_control_plane

KEYS = "c2VjcmV0LWNhbmFyeQ=="
FAR_END = base64.urlsafe_b64encode(b'{"exp":1%s}' % (b"0" * 399)).decode()
"""Claims with an expiration time that is too large for a float."""


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlPlane]:
    monkeypatch.setattr(collection_tokens, "FIRST_WAIT_S", 0.01)
    with running_control_plane("https://broker.example", KEYS, orders="acmeCo/orders/0f1e/") as running:
        yield running


def access(plane: ControlPlane, **changes: object) -> CollectionAccess:
    return replace(
        CollectionAccess("acmeCo/orders", plane.url, USER_TOKEN, None, timeout_s=2.0),
        **changes,  # type: ignore[arg-type]  # fields, by name
    )


def test_a_user_is_authorized(plane: ControlPlane) -> None:
    """The broker's address gets a port. The user's token is sent only to the control plane."""
    granted = authorize(access(plane))
    assert granted.broker_address == "https://broker.example:443"
    claims = KeySet.parse(KEYS).verify(granted.token, now=time.time())
    assert claims.selector.include.labels[0].value == "acmeCo/orders/0f1e/"
    (request,) = plane.requests
    assert abs(request.pop("startedUnix") - time.time()) < 60
    assert request == {"collection": "acmeCo/orders", "capability": "read"}
    assert plane.users == [f"Bearer {USER_TOKEN}"]
    assert granted.token not in repr(granted)
    assert USER_TOKEN not in repr(access(plane))


def test_it_is_asked_again(plane: ControlPlane) -> None:
    plane.answers = [(200, {"retryMillis": 5}), (503, "busy"), (429, "slow down")]
    assert authorize(access(plane)).broker_address
    assert len({request["startedUnix"] for request in plane.requests}) == 1
    assert len(plane.requests) == 4


@pytest.mark.parametrize(
    ("status", "answer", "problem"),
    [
        (403, f"Bearer {USER_TOKEN} may\nnot", r"HTTP 403: Bearer \*\*\* may not"),
        (401, "", r"HTTP 401: \(empty\)"),
        (200, "<html>", "its answer is not a JSON object; check controlPlane"),
        (200, [], "its answer is not a JSON object"),
        (200, {"brokerAddress": "https://b"}, "no brokerAddress or no brokerToken"),
        (200, {"brokerAddress": "https://b", "brokerToken": "abc"}, "not a JWT that is valid now"),
        (200, {"brokerAddress": "https://b", "brokerToken": "a.e30.c"}, "not a JWT that is valid now"),
        (200, {"brokerAddress": "https://b", "brokerToken": f"a.{FAR_END}.c"}, "not a JWT that is valid now"),
        (200, {"retryMillis": "1"}, "invalid retryMillis"),
        (200, {"retryMillis": 10**350}, "invalid retryMillis"),
        (200, {"retryMillis": 60_000}, "it asks to wait; gave up after 2 seconds, requestTimeoutMs"),
    ],
)
def test_a_refusal_is_one_line(plane: ControlPlane, status: int, answer: object, problem: str) -> None:
    plane.answers = [(status, answer)]
    with pytest.raises(CollectionAccessError, match=rf"'acmeCo/orders' at {plane.url}: .*{problem}") as error:
        authorize(access(plane))
    assert USER_TOKEN not in str(error.value)
    assert str(error.value).isprintable()


def test_an_address_that_is_none_is_refused(plane: ControlPlane) -> None:
    """An invalid address would only fail later, with a less helpful text."""
    plane.broker_address = "broker.example"
    with pytest.raises(CollectionAccessError, match=r"brokerAddress 'broker\.example' is not the URL"):
        authorize(access(plane))


def test_a_control_plane_that_is_away_is_named(plane: ControlPlane) -> None:
    with pytest.raises(CollectionAccessError, match=r"no answer: .*refused.*; gave up after 0\.1 seconds"):
        authorize(access(plane, control_plane="http://127.0.0.1:1", timeout_s=0.1))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(b"SSH-2.0\r\n\r\n", "no answer: SSH-2.0", id="not_http"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{", "no answer: Incomplete", id="cut"
        ),
        pytest.param(
            b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nb", "HTTP 503: ", id="error_cut"
        ),
    ],
)
def test_an_answer_that_breaks_off_is_as_good_as_none(
    plane: ControlPlane, answer: bytes, problem: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as request:
                while request.read(1) != b"}":
                    pass  # Closing a connection with unread bytes would reset it.
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(CollectionAccessError, match=problem):
            authorize(access(plane, control_plane=url, timeout_s=0.0))
        thread.join()


def test_a_redirection_gets_no_token(plane: ControlPlane) -> None:
    """It may lead to another host."""
    headers: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            for answer in (f"302 Found\r\nLocation: {url}/elsewhere", "200 OK\r\nContent-Length: 2"):
                connection, _ = server.accept()
                with connection, connection.makefile("rb") as request:
                    headers.append(b"".join(iter(request.readline, b"\r\n")))
                    if headers[-1].startswith(b"POST"):
                        request.read(int(headers[-1].lower().partition(b"content-length: ")[2].split()[0]))
                    connection.sendall(f"HTTP/1.1 {answer}\r\nConnection: close\r\n\r\n{{}}".encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(CollectionAccessError, match="no brokerAddress"):
            authorize(access(plane, control_plane=url))
        thread.join()
    assert [USER_TOKEN.encode() in sent for sent in headers] == [True, False]


def test_a_token_is_renewed_at_half_of_its_life(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the control plane is unreachable, the last token stays in use until it expires."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    tokens = CollectionTokens(access(plane, timeout_s=0.1))
    first = tokens.current()
    now += 1790
    assert tokens.current() == first
    now += 20
    second = tokens.current()
    assert second.expires_at == int(now) + 3600
    plane.answers = [(503, "busy")] * 99
    now += 1810
    assert tokens.token() == second.token
    now += 1800
    with pytest.raises(CollectionAccessError, match="HTTP 503"):
        tokens.current()


def test_the_users_token_may_be_in_a_file(plane: ControlPlane, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")
    from_file = access(plane, token=None, token_file=str(path))
    with pytest.raises(CollectionAccessError, match="HTTP 403"):
        authorize(from_file)
    path.write_text(f"{USER_TOKEN}\n")
    assert authorize(from_file).token
    path.unlink()
    with pytest.raises(OptionError, match=r"auth\.tokenFile"):
        authorize(from_file)


def query(plane: ControlPlane, **more: str) -> dict[str, str]:
    return {"collection": "acmeCo/orders", "controlPlane": plane.url, "auth.token": USER_TOKEN} | more


def test_tasks_get_a_token_for_brokers(plane: ControlPlane) -> None:
    """The user's token stays on the driver, and a task's client never requests a token."""
    options = parse_options(query(plane), "batch", environ={"BROKER_ADDRESS": "http://other:1"})
    assert options.isolation_level == "read_committed"
    assert options.selection.selector == "prefix=acmeCo/orders/"
    assert options.origin == plane.url
    for_tasks = security_for_tasks(options.security)
    assert USER_TOKEN.encode() not in pickle.dumps(for_tasks)
    asked = len(plane.requests)
    with open_client(replace(options, security=for_tasks)) as client:
        assert client.endpoint == "https://broker.example:443"
    with open_client(options) as client:
        assert client.endpoint == "https://broker.example:443"
    assert len(plane.requests) == asked, "one token serves all clients of a process"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"brokerAddress": "http://b:1"}, "'collection and brokerAddress': got both"),
        ({"path": "acmeCo/orders/"}, "'collection and path': got both"),
        ({"collection": "orders"}, "a tenant and a name, such as acmeCo/orders"),
        ({"controlPlane": "estuary"}, "'controlPlane': got \"estuary\"; expected https://host"),
        ({"auth.token": "", "auth.tokenFile": ""}, "auth.token"),
    ],
)
def test_what_contradicts_a_collection_is_refused(
    plane: ControlPlane, more: dict[str, str], problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        parse_options(query(plane, **more), "batch")
    assert not plane.requests


def test_a_collection_needs_a_user_and_a_control_plane_a_collection() -> None:
    with pytest.raises(OptionError, match=r"'auth.token': got nothing, but collection"):
        parse_options({"collection": "acmeCo/orders"}, "batch")
    with pytest.raises(OptionError, match="'controlPlane': got no collection"):
        parse_options({"controlPlane": "https://a", "path": "a/b/", "brokerAddress": "http://b:1"}, "batch")
