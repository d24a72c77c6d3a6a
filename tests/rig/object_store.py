"""A bucket on a real S3 server, behind a proxy that records requests and can make them fail.

The server is S3Proxy, which ``make s3-server`` fetches. It stores objects as files that are named by their
keys, so another program can read a table in the bucket as a directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.rig.brokers import free_ports
from tests.rig.gazctl import CACHE_VARIABLE, BinaryNotFoundError
from tests.waiting import accepts_connections, wait_until

KEY_ID, SECRET = "AKIAOFTHETESTS", "known-to-nobody-else"

BUCKET = "lake"

ROOT = Path(__file__).parents[2]

LOGBACK = """<configuration>
  <appender name="stdout" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%msg%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="stdout"/></root>
</configuration>"""
"""Logging configuration; without it, the server logs every step of each connection."""


class ObjectStore:
    """The bucket, and the faults and the recorded requests of the proxy in front of it."""

    def __init__(self, directory: Path, endpoint: str) -> None:
        """Set the bucket's addresses.

        Args:
            directory: Directory of the server; the proxy finds its orders there.
            endpoint: URL of the proxy.
        """
        self.root, self.endpoint = directory / "buckets" / BUCKET, endpoint
        self._faults = Faults(directory)

    def empty(self) -> None:
        """Delete all objects, and any configuration of an earlier test."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        self._faults.clear()

    def requests(self, kind: str) -> list[str]:
        """Return the keys of requests in order.

        Args:
            kind: ``put``, ``put if absent``, or ``denied``.
        """
        return [key for recorded, key in self._faults.requests() if recorded == kind]

    def forget_requests(self) -> None:
        self._faults.log.unlink(missing_ok=True)

    def lose_answer(self, suffix: str) -> None:
        """Break the connection once, after the server has stored an object whose key has this ending."""
        self._faults.lost_answer.write_text(suffix)

    def loses_answer(self) -> bool:
        return self._faults.lost_answer.exists()

    def ignore_conditions(self) -> None:
        """From now on, store every object even if its conditions fail."""
        self._faults.careless.touch()

    def slow_down(self, requests: int) -> None:
        """Respond to the next requests with 503 SlowDown, as S3 does under load."""
        self._faults.refusals.write_text("s" * requests)

    def break_connections(self, requests: int) -> None:
        """Close the connections of the next requests without a response."""
        self._faults.refusals.write_text("b" * requests)

    def recover(self) -> None:
        self._faults.refusals.unlink(missing_ok=True)

    def options(self, **changes: str) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        } | changes

    def url(self, path: str) -> str:
        host = self.endpoint.removeprefix("http://")
        where = f"endpoint_override={host}&scheme=http&region=us-east-1"
        return f"s3://{KEY_ID}:{SECRET}@{BUCKET}/{path}?{where}"

    def keys(self, prefix: str) -> list[str]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(key for path in files if (key := str(path.relative_to(self.root))).startswith(prefix))


class Faults:
    """State that the tests and the proxy share as files, because they are two processes."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "requests"
        self.lost_answer = directory / "lost_answer"
        self.careless = directory / "careless"
        self.refusals = directory / "refusals"

    def clear(self) -> None:
        for file in (self.log, self.lost_answer, self.careless, self.refusals):
            file.unlink(missing_ok=True)

    def record(self, kind: str, key: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{kind}\t{key}\n")

    def requests(self) -> list[tuple[str, str]]:
        """Return the requests so far: kind and key."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(kind, key) for kind, _, key in (line.partition("\t") for line in lines)]

    def takes_lost_answer(self, key: str) -> bool:
        """Return whether the response to a put of this key is to be lost; true only once."""
        lost = self.lost_answer.exists() and key.endswith(self.lost_answer.read_text())
        if lost:
            self.lost_answer.unlink()
        return lost

    def takes_refusal(self) -> str:
        """Return how to refuse this request: "s" slow down, "b" break the connection, "" not at all."""
        refusals = self.refusals.read_text() if self.refusals.exists() else ""
        if refusals:
            self.refusals.write_text(refusals[1:])
        return refusals[:1]


@contextmanager
def running_object_store(directory: Path) -> Iterator[ObjectStore]:
    """Run the server and the proxy until the block ends.

    Both are processes, because deltalake does not release the GIL while it waits for a response.

    Raises:
        BinaryNotFoundError: the server was not fetched.
    """
    cache = os.environ.get(CACHE_VARIABLE) or ROOT / ".cache" / "gazette"
    jars = Path(cache, "s3proxy", "jars")
    if not jars.is_dir():
        raise BinaryNotFoundError("s3proxy", (str(jars),))
    (directory / "buckets" / BUCKET).mkdir(parents=True)
    server_port, proxy_port = free_ports(2)
    properties = directory / "s3proxy.properties"
    properties.write_text(
        f"s3proxy.endpoint=http://127.0.0.1:{server_port}\n"
        f"s3proxy.authorization=aws-v2-or-v4\ns3proxy.identity={KEY_ID}\ns3proxy.credential={SECRET}\n"
        f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={directory / 'buckets'}\n"
    )
    logback = directory / "logback.xml"
    logback.write_text(LOGBACK)
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    server = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlogback.configurationFile={logback}"]
    server += ["-cp", jars / "*", "org.gaul.s3proxy.Main", "--properties", properties]
    proxy = [sys.executable, "-m", __name__, str(server_port), str(proxy_port), str(directory)]
    with (directory / "log").open("wb") as log:
        processes = [
            subprocess.Popen(server, stdout=log, stderr=log),
            subprocess.Popen(proxy, cwd=ROOT, stdout=log, stderr=log),
        ]
    try:
        for port in (server_port, proxy_port):
            wait_until("the S3 server to take connections", partial(accepts_connections, port))
        yield ObjectStore(directory, f"http://127.0.0.1:{proxy_port}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    server_port, proxy_port, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    handler = partial(_Proxy, server_port, directory)
    server = ThreadingHTTPServer(("127.0.0.1", proxy_port), handler)
    server.daemon_threads = True
    server.serve_forever()


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, server_port: int, directory: Path, *args: Any) -> None:
        self._server_port = server_port
        self._faults = Faults(directory)
        self._bucket = directory / "buckets" / BUCKET
        super().__init__(*args)

    def handle_one_request(self) -> None:
        """Respond to a request, unless its client has disconnected."""
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def pass_on(self) -> None:
        """Forward the signed request to the server unchanged, and the response to the client."""
        content = self._content()
        key = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")
        refusal = self._faults.takes_refusal()
        if refusal == "b":
            self.close_connection = True
            return
        if refusal == "s":
            answer = (
                b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            )
            self._answer(503, {"Content-Type": "application/xml"}, answer)
            return
        # An object exists after a PUT, or after the POST that completes its parts.
        query = urllib.parse.urlsplit(self.path).query
        completes = self.command == "POST" and "uploadId=" in query
        is_object = completes or (self.command == "PUT" and "uploadId=" not in query)
        if is_object:
            absent = "If-None-Match" in self.headers
            self._faults.record("put if absent" if absent else "put", key)
            if absent and self._faults.careless.exists():
                # The signature covers the header, so the proxy cannot drop it and stores the object itself.
                self._overwrite(key, content)
                self._answer(
                    200, {"ETag": f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'}, b""
                )
                return

        server = HTTPConnection("127.0.0.1", self._server_port)
        server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection", "transfer-encoding", "content-length"):
                server.putheader(name, value)
        if content or self.command in ("PUT", "POST"):
            server.putheader("Content-Length", str(len(content)))
        server.endheaders(content)
        response = server.getresponse()
        body = response.read()
        server.close()

        if response.status == 403:
            self._faults.record("denied", key)
        if is_object and self._faults.takes_lost_answer(key):
            self.close_connection = True
            return
        self._answer(response.status, _headers(response), body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815 - the library's names.

    def _overwrite(self, key: str, content: bytes) -> None:
        path = self._bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        new = self._bucket.parent.parent / uuid.uuid4().hex
        new.write_bytes(content)
        new.replace(path)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        length = headers.pop("Content-Length", None)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", (length or "0") if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _content(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return content

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name.
        """Write no line for each request."""


def _headers(response: HTTPResponse) -> dict[str, str]:
    names = ("Connection", "Transfer-Encoding", "Keep-Alive")
    headers = {name: value for name, value in response.getheaders() if name not in names}
    with suppress(StopIteration):
        length = next(name for name in headers if name.lower() == "content-length")
        headers["Content-Length"] = headers.pop(length)
    return headers


if __name__ == "__main__":
    main()
