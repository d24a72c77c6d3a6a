"""Tests that a stored fragment is read as it was written, or that an error names it."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gazette_spark.client._read.fragment import FragmentReader
from gazette_spark.client._read.fragment_urls import FragmentOpener, open_fragment_url
from gazette_spark.errors import ClosedError, CorruptFragmentError, DirectReadError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.unit.client.reading.test_decoders import COMPRESSED, ENCODED, TEXT

BEGIN = 1_000_000
CONTENT = TEXT[:700_000]
END = BEGIN + len(CONTENT)


def fragment_of(content: bytes = CONTENT, codec: int = pb.NONE) -> Fragment:
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    return Fragment("a/journal", BEGIN, BEGIN + len(content), digest, codec, "file:///", 1_700_000_000)


def store(root: Path, fragment: Fragment, data: bytes) -> str:
    path = root / fragment.content_path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return f"file:///{fragment.content_path}"


def read(root: Path, url: str, fragment: Fragment, offset: int = BEGIN, end_offset: int = 0) -> bytes:
    """Read a fragment directly, and check that its chunks are contiguous."""
    position = offset
    parts = []
    with open_fragment_url(fragment, url, offset, end_offset=end_offset, fragment_root=str(root)) as reader:
        for chunk in reader:
            assert chunk.offset == position
            assert chunk.mod_time == fragment.mod_time
            parts.append(chunk.content)
            position = chunk.end
            assert reader.offset == position
    return b"".join(parts)


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize(
    ("offset", "end_offset"),
    [
        pytest.param(BEGIN, 0, id="whole"),
        pytest.param(BEGIN + 300_001, 0, id="from the middle"),
        pytest.param(BEGIN, BEGIN + 300_001, id="to the middle"),
        pytest.param(BEGIN + 1, END - 1, id="but the ends"),
        pytest.param(BEGIN + 5, BEGIN + 6, id="one byte"),
        pytest.param(END - 1, END + 100, id="past the end"),
    ],
)
def test_any_part_of_any_codec(tmp_path: Path, name: str, offset: int, end_offset: int) -> None:
    codec, encode = ENCODED[name]
    fragment = fragment_of(codec=codec)
    url = store(tmp_path, fragment, encode(CONTENT))
    stop = min(end_offset or END, END)
    expected = CONTENT[offset - BEGIN : stop - BEGIN]
    assert read(tmp_path, url, fragment, offset, end_offset) == expected


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(lambda data: data[:-1], "short|bytes, not|ends", id="one byte short"),
        pytest.param(lambda data: data[:-200_000], "short|bytes, not|ends", id="much too short"),
        pytest.param(lambda data: data + b"x", "past its end|bytes, not", id="one byte too long"),
        pytest.param(lambda data: b"X" + data[1:], "SHA-1", id="another first byte"),
        pytest.param(lambda data: data[:-1] + b"X", "SHA-1", id="another last byte"),
        pytest.param(lambda data: b"", "short|bytes, not", id="empty"),
    ],
)
def test_other_content_under_the_same_name(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], problem: str
) -> None:
    codec, encode = ENCODED[name]
    fragment = fragment_of(codec=codec)
    url = store(tmp_path, fragment, encode(change(CONTENT)))
    with pytest.raises(CorruptFragmentError, match=problem) as caught:
        read(tmp_path, url, fragment)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.journal, error.begin, error.end) == ("a/journal", BEGIN, END)
    assert error.source.endswith(fragment.content_name)
    assert fragment.content_name in str(error)


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_damaged_file(tmp_path: Path, name: str) -> None:
    """The damage is found even by a reader that starts in the middle."""
    codec, encode = ENCODED[name]
    fragment = fragment_of(codec=codec)
    data = encode(CONTENT)
    url = store(tmp_path, fragment, data[: len(data) // 2])
    with pytest.raises(CorruptFragmentError):
        read(tmp_path, url, fragment, BEGIN + 10)


@pytest.mark.parametrize("wrong", COMPRESSED)
def test_bytes_of_another_codec(tmp_path: Path, wrong: str) -> None:
    fragment = fragment_of(codec=ENCODED[wrong][0])
    url = store(tmp_path, fragment, CONTENT)
    with pytest.raises(CorruptFragmentError, match=r"not (GZIP|SNAPPY|ZSTANDARD)"):
        read(tmp_path, url, fragment)


@pytest.mark.parametrize("size", [len(CONTENT), 9_000_000], ids=["small", "large"])
def test_the_end_is_withheld_until_the_sum_is_right(tmp_path: Path, size: int) -> None:
    """The last piece is returned only after the checksum matches."""
    content = (CONTENT * 20)[:size]
    fragment = replace(fragment_of(content), sum=bytes(range(20)))
    url = store(tmp_path, fragment, content)
    with open_fragment_url(fragment, url, fragment_root=str(tmp_path)) as reader:
        with pytest.raises(CorruptFragmentError, match=bytes(range(20)).hex()):
            list(reader)
        assert (reader.offset == BEGIN) is (size == len(CONTENT))
        assert reader.offset < fragment.end
        with pytest.raises(CorruptFragmentError):
            next(reader)


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_bomb_costs_little_memory(tmp_path: Path, name: str) -> None:
    """A file of some KiB decodes to 64 MiB, and the reader stops at the fragment's end."""
    codec, encode = ENCODED[name]
    fragment = fragment_of(codec=codec)
    url = store(tmp_path, fragment, encode(bytes(1 << 26)))
    tracemalloc.start()
    with pytest.raises(CorruptFragmentError, match="past its end"):
        read(tmp_path, url, fragment)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize(
    "path",
    ["/../secret", "/a/../../secret", "relative", "/a\0b", "//../secret", ""],
    ids=["up", "further up", "relative", "NUL", "up after //", "empty"],
)
def test_urls_that_leave_the_root(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_bytes(CONTENT)
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(ProtocolError, match="FragmentUrl"):
        read(root, f"file://{path}", fragment_of())


def test_a_link_out_of_the_root(tmp_path: Path) -> None:
    """Links are resolved before the path is checked."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_bytes(CONTENT)
    (root / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ProtocolError, match="out of the file root"):
        read(root, "file:///link", fragment_of())


def test_percent_signs_are_part_of_the_name(tmp_path: Path) -> None:
    """File URLs are not unescaped."""
    (tmp_path / "a%2e%2e").write_bytes(CONTENT)
    assert read(tmp_path, "file:///a%2e%2e", fragment_of()) == CONTENT


@pytest.mark.parametrize("kind", ["nothing", "fifo", "folder"])
def test_what_is_not_a_file(tmp_path: Path, kind: str) -> None:
    """Opening a FIFO would block."""
    path = tmp_path / "thing"
    if kind == "fifo":
        os.mkfifo(path)
    if kind == "folder":
        path.mkdir()
    with pytest.raises(DirectReadError):
        read(tmp_path, "file:///thing", fragment_of())


def serve(handler: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(transport=httpx.MockTransport(handler))


def answer(content: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    """Return a response whose body is not decoded yet."""
    return httpx.Response(200, headers=headers, stream=httpx.ByteStream(content))


def fetch(client: httpx.Client, fragment: Fragment, url: str = "https://store/x?sig=SECRET") -> bytes:
    with FragmentOpener(http=lambda: client, resolve=lambda *_: []).open(fragment, url) as reader:
        return reader.read()


@pytest.mark.parametrize("name", ENCODED)
def test_http_body_of_each_codec(name: str) -> None:
    """The HTTP library must not decode the body, because the fragment's codec does."""
    codec, encode = ENCODED[name]
    headers = {"Content-Encoding": "gzip"} if codec == pb.GZIP_OFFLOAD_DECOMPRESSION else {}
    with serve(lambda _: answer(encode(CONTENT), headers)) as client:
        assert fetch(client, fragment_of(codec=codec)) == CONTENT


def test_http_store_that_decompresses() -> None:
    """The store may decompress an offloaded fragment, and then sends no Content-Encoding."""
    with serve(lambda _: answer(CONTENT)) as client:
        assert fetch(client, fragment_of(codec=pb.GZIP_OFFLOAD_DECOMPRESSION)) == CONTENT


def test_http_gzip_fragment_stored_with_an_encoding() -> None:
    """The body must be decoded once, even if the store labels it with an encoding."""
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["Accept-Encoding"])
        return answer(gzip.compress(CONTENT), {"Content-Encoding": "gzip"})

    with serve(handler) as client:
        assert fetch(client, fragment_of(codec=pb.GZIP)) == CONTENT
    assert asked == ["gzip"]


@pytest.mark.parametrize(
    ("status", "expired"), [(403, True), (404, False), (301, False), (206, False), (500, False)]
)
def test_http_statuses(status: int, expired: bool) -> None:
    headers = {"Location": "https://elsewhere/"} if status == 301 else {}
    with (
        serve(lambda _: httpx.Response(status, headers=headers)) as client,
        pytest.raises(DirectReadError, match=str(status)) as caught,
    ):
        fetch(client, fragment_of())
    assert caught.value.expired is expired
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in repr(caught.value)


def test_http_connection_trouble() -> None:
    """An unreachable store is not a corrupt fragment."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with serve(handler) as client, pytest.raises(DirectReadError, match="ConnectError"):
        fetch(client, fragment_of())


@pytest.mark.parametrize(
    "url", ["https://store/" + "x" * 9_000, "https://store/a\r\nHost: b"], ids=["too long", "CRLF"]
)
def test_http_urls_that_are_not_fetched(url: str) -> None:
    with serve(lambda _: httpx.Response(200)) as client, pytest.raises(ProtocolError, match="not a URL"):
        fetch(client, fragment_of(), url)


def test_http_corrupt_fragment_hides_the_signature() -> None:
    with (
        serve(lambda _: answer(b"short")) as client,
        pytest.raises(CorruptFragmentError) as caught,
    ):
        fetch(client, fragment_of())
    assert caught.value.source == "https://store/x"


def test_an_interrupted_read_of_a_fragment_is_not_its_end() -> None:
    """A caller that ignores the interruption must not take it for the end."""

    class Interrupted(io.BytesIO):
        def read(self, _size: int | None = -1, /) -> bytes:
            raise KeyboardInterrupt

    with FragmentReader(Interrupted(), fragment_of()) as reader:
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        with pytest.raises(ClosedError, match="interrupted by KeyboardInterrupt"):
            reader.read()
