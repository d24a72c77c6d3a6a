"""Gets the brokers of an Estuary Flow collection, and a token for them, from Estuary's control plane.

The user's own token is for the control plane only. ``POST /authorize/user/collection`` returns the address of
the data plane's brokers and a token that is valid for about an hour, only for the journals of this
collection. Brokers end a read when its token expires, so the token is renewed in time.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from gazette_spark._options.security import CollectionAccess
from gazette_spark.client._transport.credentials import read_token
from gazette_spark.errors import CollectionAccessError, JsonError
from gazette_spark.strict_json import parse_json

log = logging.getLogger(__name__)

PATH = "/authorize/user/collection"

REQUEST_TIMEOUT_S = 15.0
"""Maximum number of seconds for one request."""

MAX_ANSWER_BYTES = 1 << 20

MAX_NUMBER = 1e12
"""Bound of times in an answer. An integer of hundreds of digits would not fit a float."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 5.0
"""Seconds between two requests while the control plane does not answer or is busy, at first and at most."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """What the control plane has granted."""

    broker_address: str
    """URL of the brokers, with a port."""
    token: str = field(repr=False)
    expires_at: float
    """Unix seconds."""
    renew_at: float
    """Unix seconds: half of the token's life. A task that is planned just before has the other half."""


class CollectionTokens:
    """The tokens of one collection. Thread-safe."""

    def __init__(self, access: CollectionAccess) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._current: Authorization | None = None

    def __repr__(self) -> str:
        return f"CollectionTokens({self._access.collection})"

    def current(self) -> Authorization:
        """Return an authorization that is valid now, a new one if the last has passed half of its life.

        Raises:
            CollectionAccessError: the control plane refuses, or has not answered in time.
            OptionError: the file of the user's token cannot be read.
        """
        with self._lock:
            last, now = self._current, time.time()
            if last is not None and now < last.renew_at:
                return last
            try:
                self._current = authorize(self._access)
            except CollectionAccessError as error:
                # An outage of the control plane must not end a query while it has a valid token.
                if last is None or now >= last.expires_at:
                    raise
                log.warning("the last token stays in use: %s", error)
                retry_at = min(now + LONGEST_WAIT_S, last.expires_at)
                self._current = Authorization(last.broker_address, last.token, last.expires_at, retry_at)
            return self._current

    def token(self) -> str:
        """Return the token of :meth:`current`."""
        return self.current().token


@lru_cache(maxsize=64)
def tokens_of(access: CollectionAccess) -> CollectionTokens:
    """Return the tokens of a collection, the same for each client of this process."""
    return CollectionTokens(access)


def authorize(access: CollectionAccess) -> Authorization:  # noqa: C901, PLR0912, PLR0915 - the exchange, in order
    """Ask the control plane for access.

    A control plane whose data is older than the start of the request does not refuse. It returns a delay
    after which to ask again, until its data is newer.

    Raises:
        CollectionAccessError: it refuses, or has not answered in time, or its answer is malformed.
        OptionError: the file of the user's token cannot be read.
    """
    deadline = time.monotonic() + access.timeout_s
    body = {"collection": access.collection, "capability": "read", "startedUnix": int(time.time())}
    wait_s = FIRST_WAIT_S
    while True:
        # Read the file each time, because it may be renewed while we wait.
        user_token = access.token or read_token(access.token_file or "")
        problem, pause_s = "", wait_s
        try:
            answer = _post(access, user_token, body)
        except urllib.error.HTTPError as error:
            content = b""
            # It is the response: its connection stays open until it is closed, and may break before its end.
            with error, suppress(OSError, HTTPException):
                content = error.read(500)
            problem = f"HTTP {error.code}: {_excerpt(content, user_token)}"
            if error.code not in (408, 429) and error.code < 500:
                raise _refused(access, problem) from None
        except (OSError, ValueError, HTTPException) as error:
            problem = f"no answer: {_excerpt(str(error).encode(), user_token)}"
        else:
            retry_ms = answer.get("retryMillis", 0)
            is_number = isinstance(retry_ms, int | float) and not isinstance(retry_ms, bool)
            if not is_number or not 0 <= retry_ms < MAX_NUMBER:
                raise _refused(access, "its answer has an invalid retryMillis")
            if not retry_ms:
                break
            problem, pause_s = "it asks to wait", retry_ms / 1000
        if time.monotonic() + pause_s > deadline:
            raise _refused(access, f"{problem}; gave up after {access.timeout_s:g} seconds, requestTimeoutMs")
        log.info("collection=%s control_plane=%s: %s", access.collection, access.control_plane, problem)
        time.sleep(pause_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    address, token = answer.get("brokerAddress"), answer.get("brokerToken")
    if not (isinstance(address, str) and isinstance(token, str) and token):
        raise _refused(access, "its answer has no brokerAddress or no brokerToken")
    # Only the token's expiry is needed here. Only brokers can verify the other claims.
    try:
        encoded = token.split(".")[1]
        claims = parse_json(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (IndexError, binascii.Error, JsonError, ValueError):
        claims = None
    now, expires_at = time.time(), claims.get("exp") if isinstance(claims, dict) else None
    if (
        isinstance(expires_at, bool)
        or not isinstance(expires_at, int | float)
        or not now < expires_at < MAX_NUMBER
    ):
        raise _refused(access, "its brokerToken is not a JWT that is valid now; check this machine's clock")
    # The client requires a URL with a port, which the address may lack.
    try:
        parts = urlsplit(address)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    if port is None or not parts.hostname:
        raise _refused(access, f"its brokerAddress {address[:100]!r} is not the URL of a broker")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    renew_at = now + (expires_at - now) / 2
    return Authorization(f"{parts.scheme}://{host}:{port}", token, float(expires_at), renew_at)


def _post(access: CollectionAccess, user_token: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310 - the option is an http or https URL.
        access.control_plane + PATH,
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    # A redirection may lead to another host, which must not get the token.
    request.add_unredirected_header("Authorization", f"Bearer {user_token}")
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:  # noqa: S310
        content = response.read(MAX_ANSWER_BYTES + 1)
    try:
        answer = parse_json(content) if len(content) <= MAX_ANSWER_BYTES else None
    except JsonError:
        answer = None
    if not isinstance(answer, dict):
        raise _refused(access, "its answer is not a JSON object; check controlPlane")
    return answer


def _refused(access: CollectionAccess, problem: str) -> CollectionAccessError:
    return CollectionAccessError(access.collection, access.control_plane, problem)


def _excerpt(content: bytes, secret: str) -> str:
    """Return the beginning of a text in one line, without the user's token."""
    text = " ".join(content.decode("utf-8", errors="replace").replace(secret, "***").split())
    return "".join(char if char.isprintable() else "?" for char in text)[:200] or "(empty)"
