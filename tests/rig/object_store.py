"""An imitation of S3: a bucket whose objects are files, for what deltalake and pyarrow ask of a store.

A PUT with ``If-None-Match: *`` is answered 412 where the object is there, as by S3. Objects are files named
by their keys, so another program can have the same table as a directory.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, unescape

KEY_ID, SECRET = "AKIAIMITATION", "known-to-nobody-else"

BUCKET = "lake"

ROOT = Path(__file__).parents[2]

PAGE = 3
"""Objects in an answer to a listing: few, so that listings have pages."""


class ObjectStore:
    """A bucket. A process of its own serves it, for deltalake keeps Python's lock while it waits."""

    def __init__(self, root: Path, scratch: Path, endpoint: str = "") -> None:
        """Name the bucket's places.

        Args:
            root: Directory of the objects.
            scratch: Directory on the same device, for objects that are not whole, and the log.
            endpoint: Where it is served.
        """
        self.root, self.scratch, self.endpoint = root, scratch, endpoint
        self._log = scratch / "log"
        self._unanswered = scratch / "unanswered"
        self.uploads: dict[str, dict[int, bytes]] = {}

    def note(self, what: str, key: str = "") -> None:
        """Record what was done."""
        with self._log.open("a") as file:
            file.write(f"{what} {key}\n")

    def noted(self, what: str) -> list[str]:
        """Return the keys with which something was done: ``put``, ``absent``, ``denied``."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [key for word, _, key in (line.partition(" ") for line in lines) if word == what]

    def forget(self) -> None:
        """Forget what was done so far."""
        self._log.unlink(missing_ok=True)

    def lose_answer(self, end: str) -> None:
        """Break the connection after the next PUT of a key that ends so, which is done."""
        self._unanswered.write_text(end)

    def loses_answers(self) -> bool:
        """Tell whether an answer is still to be lost."""
        return self._unanswered.exists()

    def loses_answer(self, key: str) -> bool:
        """Tell, once, whether the answer is the one to be lost."""
        lost = self._unanswered.exists() and key.endswith(self._unanswered.read_text())
        if lost:
            self._unanswered.unlink()
        return lost

    def options(self, **changes: str) -> dict[str, str]:
        """Return what deltalake takes to enter the store."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        } | changes

    def url(self, path: str) -> str:
        """Return the URL of a prefix as pyarrow takes it."""
        host = self.endpoint.removeprefix("http://")
        where = f"endpoint_override={host}&scheme=http&region=us-east-1"
        return f"s3://{KEY_ID}:{SECRET}@{BUCKET}/{path}?{where}"

    def ignore_conditions(self) -> None:
        """Put every object from now on, whether it has to be absent or not."""
        (self.scratch / "careless").touch()

    def put(self, key: str, content: bytes, *, absent: bool) -> bool:
        """Store an object at once; return False if it had to be absent and is not."""
        self.note("absent" if absent else "put", key)
        absent = absent and not (self.scratch / "careless").exists()
        path = self.root / key
        if key.endswith("/"):  # Stands for a directory, as some clients have it.
            path.mkdir(parents=True, exist_ok=True)
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.scratch)
        whole = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if not absent:
            whole.replace(path)
            return True
        try:
            path.hardlink_to(whole)
        except FileExistsError:
            return False
        finally:
            whole.unlink()
        return True

    def delete(self, key: str) -> None:
        """Delete an object; a directory of them stands for nothing."""
        path = self.root / key
        if not path.is_dir():
            path.unlink(missing_ok=True)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin so, in order."""
        found = (path for path in (self.root / prefix.rpartition("/")[0]).rglob("*") if path.is_file())
        return sorted(key for each in found if (key := str(each.relative_to(self.root))).startswith(prefix))


@contextmanager
def running_store(root: Path, scratch: Path) -> Iterator[ObjectStore]:
    """Serve a bucket until the block ends."""
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", __name__, str(root), str(scratch)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield ObjectStore(root, scratch, f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.terminate()


def main() -> None:
    """Serve a bucket on a free port, which is printed."""
    root, scratch = map(Path, sys.argv[1:])
    store = ObjectStore(root, scratch)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Exchange, store))
    server.daemon_threads = True
    print(server.server_port, flush=True)  # noqa: T201 - that is how the test hears of it.
    server.serve_forever()


def dechunked(file: io.BufferedIOBase) -> bytes:
    """Return content that comes in chunks, as HTTP's or as S3's own: a checksum may follow."""
    content = b""
    while size := int(file.readline(), 16):
        content += file.read(size)
        file.readline()
    while file.readline().strip():
        pass
    return content


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, store: ObjectStore, *args: Any) -> None:
        self.store = store
        super().__init__(*args)

    def handle_one_request(self) -> None:
        """Answer a request, unless its client has gone."""
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def parse_request(self) -> bool:
        """Read a request whole, and turn away who has no credentials."""
        if not super().parse_request():
            return False
        where = urllib.parse.urlsplit(self.path)
        _, _, rest = where.path.partition(f"/{BUCKET}")
        self.key = urllib.parse.unquote(rest.lstrip("/"))
        self.query = dict(urllib.parse.parse_qsl(where.query, keep_blank_values=True))
        self.content = self._content()
        if f"Credential={KEY_ID}/" in self.headers.get("Authorization", ""):
            return True
        self.store.note("denied", self.key)
        self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        return False

    def _content(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = dechunked(self.rfile)
        return dechunked(io.BytesIO(content)) if self.headers.get("Content-Encoding") else content

    def do_GET(self) -> None:
        """Answer a listing or an object."""
        if "list-type" in self.query:
            self._list()
            return
        try:
            found = (self.store.root / self.key).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        headers = {"ETag": '"1"', "Last-Modified": formatdate(usegmt=True)}
        if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first, last = asked.groups()
            begin = int(first) if first else max(0, len(found) - int(last))
            end = min(int(last) + 1, len(found)) if first and last else len(found)
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(found)}"
            self._answer(206, found[begin:end], headers)
        else:
            self._answer(200, found, headers)

    do_HEAD = do_GET  # noqa: N815 - the base's name.

    def do_PUT(self) -> None:
        """Store an object, or a part of one."""
        if "partNumber" in self.query:
            self.store.uploads[self.query["uploadId"]][int(self.query["partNumber"])] = self.content
            self._answer(200, headers={"ETag": f'"{self.query["partNumber"]}"'})
        else:
            self._put(self.content)

    def do_POST(self) -> None:
        """Begin an upload, end it, or delete several objects."""
        if "uploads" in self.query:
            upload = uuid.uuid4().hex
            self.store.uploads[upload] = {}
            self._xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        elif "delete" in self.query:
            keys = re.findall("<Key>([^<]*)</Key>", self.content.decode())
            for key in keys:
                self.store.delete(unescape(key))
            self._xml("DeleteResult", "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys))
        else:
            parts = self.store.uploads[self.query["uploadId"]]  # Kept: an upload may be ended again.
            self._put(b"".join(parts[number] for number in sorted(parts)))

    def do_DELETE(self) -> None:
        """Delete an object, or drop an upload."""
        if "uploadId" in self.query:
            self.store.uploads.pop(self.query["uploadId"], None)
        else:
            self.store.delete(self.key)
        self._answer(204)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name.
        """Say nothing."""

    def _put(self, content: bytes) -> None:
        done = self.store.put(self.key, content, absent=self.headers.get("If-None-Match") == "*")
        if self.store.loses_answer(self.key):
            self.close_connection = True
        elif not done:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        elif self.command == "POST":
            self._xml("CompleteMultipartUploadResult", '<ETag>"1"</ETag>')
        else:
            self._answer(200, headers={"ETag": '"1"'})

    def _list(self) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        names: dict[str, bool] = {}
        for key in self.store.keys(prefix):
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            names[prefix + head + cut if cut else key] = bool(cut)
        left = [name for name in sorted(names) if name > after]
        shown = left[:PAGE]
        lines = [f"<IsTruncated>{str(len(left) > PAGE).lower()}</IsTruncated>"]
        if len(left) > PAGE:
            lines.append(f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>")
        for name in shown:
            if names[name]:
                lines.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            else:
                found = (self.store.root / name).stat()
                written = datetime.fromtimestamp(found.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                lines.append(
                    f"<Contents><Key>{escape(name)}</Key><LastModified>{written}</LastModified>"
                    f'<ETag>"1"</ETag><Size>{found.st_size}</Size></Contents>'
                )
        self._xml("ListBucketResult", "".join(lines))

    def _xml(self, name: str, inner: str) -> None:
        self._answer(200, f'<?xml version="1.0"?><{name}>{inner}</{name}>'.encode())

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ((headers or {}) | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


if __name__ == "__main__":
    main()
