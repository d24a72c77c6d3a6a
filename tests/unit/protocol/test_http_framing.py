"""Tests that requests which a proxy and h11 could split differently are refused before h11 sees them."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.protocol.http_framing import FramingError, RequestFraming

HEAD = b"PUT /a HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: 4\r\n"
CHUNKS = b"4\r\nbody\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        pytest.param(HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS, 400, id="encoding-and-length"),
        pytest.param(HEAD + CHUNKED + LENGTH + b"\r\n" + CHUNKS, 400, id="length-and-encoding"),
        pytest.param(HEAD + LENGTH + LENGTH + b"\r\nbody", 400, id="two-equal-lengths"),
        pytest.param(HEAD + LENGTH + b"content-LENGTH: 5\r\n\r\nbody!", 400, id="two-lengths"),
        pytest.param(HEAD + b"Content-Length: 4, 4\r\n\r\nbody", 400, id="a-list-of-lengths"),
        pytest.param(HEAD + b"Content-Length: +4\r\n\r\nbody", 400, id="a-signed-length"),
        pytest.param(HEAD + b"Content-Length: 0x4\r\n\r\nbody", 400, id="a-hexadecimal-length"),
        pytest.param(HEAD + b"Content-Length:\r\n\r\nbody", 400, id="no-length"),
        pytest.param(HEAD + b"Content-Length: " + b"9" * 19 + b"\r\n\r\n", 400, id="a-long-length"),
        pytest.param(HEAD + b"Content-Length: 0\r\n 4\r\n\r\nbody", 400, id="a-folded-length"),
        pytest.param(HEAD + b"X: a\r\n\tb\r\n\r\n", 400, id="a-folded-header"),
        pytest.param(HEAD.replace(b"\r\n", b"\n") + b"\n", 400, id="bare-line-feeds"),
        pytest.param(HEAD + b"X: a\nContent-Length: 4\r\n\r\nbody", 400, id="a-bare-line-feed"),
        pytest.param(HEAD + b"X: a\rContent-Length: 4\r\n\r\nbody", 400, id="a-bare-carriage-return"),
        pytest.param(HEAD + b"X: a\0b\r\n\r\n", 400, id="nul"),
        pytest.param(b"\r\n" + HEAD + b"\r\n", 400, id="an-empty-first-line"),
        pytest.param(HEAD + CHUNKED + b"\r\n4;a=b\r\nbody\r\n0\r\n\r\n", 400, id="a-chunk-extension"),
        pytest.param(HEAD + CHUNKED + b"\r\n4;" + b"x" * 90_000, 400, id="an-endless-extension"),
        pytest.param(HEAD + CHUNKED + b"\r\n4\nbody\r\n0\r\n\r\n", 400, id="a-size-with-a-bare-line-feed"),
        pytest.param(HEAD + CHUNKED + b"\r\n 4\r\nbody\r\n0\r\n\r\n", 400, id="a-size-after-a-blank"),
        pytest.param(HEAD + CHUNKED + b"\r\n0x4\r\nbody\r\n0\r\n\r\n", 400, id="a-size-with-a-prefix"),
        pytest.param(HEAD + CHUNKED + b"\r\n-4\r\nbody\r\n0\r\n\r\n", 400, id="a-negative-size"),
        pytest.param(HEAD + CHUNKED + b"\r\n" + b"0" * 16 + b"4\r\nbody\r\n", 400, id="an-overlong-size"),
        pytest.param(
            HEAD + CHUNKED + b"\r\n4\r\nbody and more\r\n0\r\n\r\n", 400, id="a-chunk-longer-than-said"
        ),
        pytest.param(HEAD + CHUNKED + b"\r\n0\r\nA: b\r\n c\r\n\r\n", 400, id="a-folded-trailer"),
        pytest.param(HEAD + CHUNKED + CHUNKED + b"\r\n" + CHUNKS, 501, id="two-encodings"),
        pytest.param(HEAD + b"Transfer-Encoding: xchunked\r\n\r\n", 501, id="an-unknown-encoding"),
        pytest.param(HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n", 501, id="a-list-of-encodings"),
        pytest.param(HEAD.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + CHUNKS, 400, id="chunks-in-http-1.0"),
        pytest.param(HEAD + b"X: " + b"x" * 5000, 431, id="a-long-head"),
        pytest.param(HEAD + CHUNKED + b"\r\n0\r\n" + b"A: b\r\n" * 900, 431, id="long-trailers"),
    ],
)
def test_what_is_refused(request_text: bytes, status: int) -> None:
    for before in (b"", HEAD + b"\r\n", HEAD + LENGTH + b"\r\nbody", HEAD + CHUNKED + b"\r\n" + CHUNKS):
        for step in (1, len(before + request_text)):
            framing = RequestFraming(4096)
            with pytest.raises(FramingError) as caught:
                feed(framing, before + request_text, step)
            assert (caught.value.status, framing.is_refused) == (status, True)


def feed(framing: RequestFraming, text: bytes, step: int) -> None:
    for at in range(0, len(text), step):
        framing.feed(text[at : at + step])


def test_chunks_are_refused_where_they_are_not_needed() -> None:
    """A server with small requests requires a Content-Length."""
    with pytest.raises(FramingError, match="needs a Content-Length") as caught:
        RequestFraming(4096, allows_chunks=False).feed(HEAD + CHUNKED + b"\r\n")
    assert caught.value.status == 411


REQUESTS = (
    HEAD + b"\r\n",
    HEAD + LENGTH + b"\r\nbody",
    HEAD + b"Content-Length: 0\r\n\r\n",
    HEAD + CHUNKED + b"\r\n" + CHUNKS,
    HEAD + CHUNKED + b"\r\n4\r\n\r\n\r\n\r\n0\r\nA: b\r\n\r\n",
    HEAD + b"Content-Length: 64\r\n\r\n" + (HEAD + b"\r\n" * 20)[:64],
)
DAMAGE = (
    b"",
    b"\n",
    b"\r",
    b"\r\n",
    b" ",
    b"\t",
    b"0",
    b"4",
    b";",
    b":",
    b",",
    b"\0",
    b"\xff",
    LENGTH,
    CHUNKED,
)


@given(
    st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.sampled_from(DAMAGE)), max_size=3),
)
def test_h11_finds_the_same_requests(requests: list[bytes], damage: list[tuple[int, int, bytes]]) -> None:
    """Every request that passes must end at the same byte as in h11."""
    text = b"".join(requests)
    for at, removed, added in damage:
        text = text[:at] + added + text[at + removed :]
    framing, parser, parsed = RequestFraming(4096), h11.Connection(h11.SERVER), 0
    for at in range(len(text)):
        try:
            framing.feed(text[at : at + 1])
            parser.receive_data(text[at : at + 1])
            while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                parsed += isinstance(event, h11.Request)
                if isinstance(event, h11.EndOfMessage):
                    parser.send(h11.Response(status_code=204, headers=[]))
                    parser.send(h11.EndOfMessage())
                    if parser.our_state is not h11.DONE:
                        return  # The request asked to close the connection.
                    parser.start_next_cycle()
        except (FramingError, h11.RemoteProtocolError):
            return  # Either error ends the connection.
        assert framing.requests == parsed
    assert damage or parsed == len(requests)
