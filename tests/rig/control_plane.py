"""A stand-in for Estuary's control plane, which authorizes users to read collections.

The messages have the shapes of Estuary's published models ``UserCollectionAuthorizationRequest`` and
``UserCollectionAuthorization``. Tests cannot reach the real control plane.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gazette_spark.client import Capability, Claims, KeySet
from gazette_spark.protocol import protocol_pb2 as pb

USER_TOKEN = "user-canary-7d1e"


@dataclass
class ControlPlane:
    """The collections, the responses to give, and the requests received."""

    broker_address: str
    keys: KeySet
    prefixes: dict[str, str]
    """Journal prefix of each collection."""
    lifetime_s: float = 3600.0
    """Lifetime of a broker token in seconds."""
    answers: list[tuple[int, Any]] = field(default_factory=list)
    """Status and body of each of the next answers; later requests are authorized."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    """``Authorization`` header of each request."""
    tokens: list[str] = field(default_factory=list)
    """Broker tokens that were issued."""
    url: str = ""

    def answer(self, path: str, user: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.requests.append(body)
        self.users.append(user)
        if self.answers:
            return self.answers.pop(0)
        prefix = self.prefixes.get(body["collection"])
        if path != "/authorize/user/collection" or user != f"Bearer {USER_TOKEN}" or prefix is None:
            return 403, f"{user} is not authorized to {body['collection']}"
        labels = pb.LabelSet(labels=[pb.Label(name="name", value=prefix, prefix=True)])
        claims = Claims(Capability.LIST | Capability.READ, pb.LabelSelector(include=labels))
        token = self.keys.sign(claims, now=time.time(), lifetime_s=self.lifetime_s)
        self.tokens.append(token)
        return 200, {
            "brokerAddress": self.broker_address,
            "brokerToken": token,
            "journalNamePrefix": prefix,
            "retryMillis": 0,
        }


@contextmanager
def running_control_plane(broker_address: str, keys: str, **prefixes: str) -> Iterator[ControlPlane]:
    """Run a control plane for collections ``acmeCo/NAME`` and the prefixes of their journals."""
    collections = {f"acmeCo/{name}": prefix for name, prefix in prefixes.items()}
    plane = ControlPlane(broker_address, KeySet.parse(keys), collections)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = plane.answer(self.path, self.headers["Authorization"], body)
            content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name.
            """Write no line for each request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    plane.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield plane
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
