r"""Refuses HTTP/1 requests that two programs could split differently: request smuggling.

A proxy and the server behind it must agree where each request ends. They may disagree if a request breaks the
rules of RFC 9112 and one of them repairs it silently. h11, the parser of all our HTTP servers, repairs some:
it accepts ``\n`` as ``\r\n``, joins folded headers, ignores chunk extensions and prefers
``Transfer-Encoding`` to ``Content-Length``. It has no settings to prevent that. So a server passes each byte
to a :class:`RequestFraming` before it passes it to h11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from gazette_spark.errors import GazetteError

MAX_SIZE_LINE_BYTES = 18
"""Maximum length of the line with a chunk's size: sixteen hex digits and the line ending."""

_BAD_SIZE = "a chunk's size must be at most 16 hex digits; chunk extensions are not served"
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
_LENGTH = re.compile(rb"[0-9]{1,18}")


@dataclass(eq=False)
class FramingError(GazetteError):
    """A request is ambiguous or too large. The error does not leave the server."""

    status: int
    """HTTP status of the answer."""
    problem: str

    def __str__(self) -> str:
        return self.problem


class _Section(Enum):
    """Part of a request that the next line belongs to."""

    HEAD = auto()
    CHUNK_SIZE = auto()
    CHUNK_END = auto()
    TRAILER = auto()


class RequestFraming:
    """Tracks the framing of one connection's requests. Not thread-safe.

    Args:
        max_head_bytes: maximum size of a request's line and headers together, and of trailers.
        allows_chunks: whether a body may be chunked.
    """

    def __init__(self, max_head_bytes: int, *, allows_chunks: bool = True) -> None:
        self._max_head_bytes = max_head_bytes
        self._allows_chunks = allows_chunks
        self._section = _Section.HEAD
        self._section_bytes = 0
        self._line = b""
        self._head: list[bytes] = []
        self._body_left = 0
        """Remaining bytes of a body or chunk, which are not inspected."""
        self.requests = 0
        """Number of requests whose head is complete."""
        self.method = b""
        """Method of the last of these requests."""
        self.is_refused = False
        """Whether a request was refused; further bytes are then meaningless."""

    def __repr__(self) -> str:
        return f"RequestFraming({self._section.name}, body_left={self._body_left})"

    def feed(self, data: bytes) -> None:
        """Track the next bytes.

        Raises:
            FramingError: the request is refused. The caller must close the connection after the answer.
        """
        try:
            self._follow(data)
        except FramingError:
            self.is_refused = True
            raise

    def _follow(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            if self._body_left:
                consumed = min(self._body_left, len(data) - position)
                self._body_left -= consumed
                position += consumed
                continue
            newline = data.find(b"\n", position)
            end = newline + 1 if newline >= 0 else len(data)
            # A line may arrive in several parts. The limit of the section bounds its length.
            self._line += data[position:end]
            self._section_bytes += end - position
            # Checked before the line is complete, because an attacker may send a line that never ends.
            if self._section is _Section.CHUNK_SIZE and len(self._line) > MAX_SIZE_LINE_BYTES:
                raise FramingError(400, _BAD_SIZE)
            if self._section_bytes > self._max_head_bytes:
                raise FramingError(431, f"the request's head has more than {self._max_head_bytes} bytes")
            position = end
            if newline >= 0:
                line, self._line = self._line, b""
                # A proxy that accepts a bare LF or CR as the end of a line sees different headers than one
                # that does not.
                if not line.endswith(b"\r\n") or b"\r" in line[:-2] or b"\0" in line:
                    raise FramingError(400, "a line must end with CR LF and hold no other CR, LF or NUL")
                self._take_line(line[:-2])

    def _take_line(self, line: bytes) -> None:
        match self._section:
            case _Section.HEAD if line:
                _check_unfolded(line)
                self._head.append(line)
            case _Section.HEAD:
                head, self._head = self._head, []
                self._begin_body(head)
            case _Section.CHUNK_SIZE:
                if not _CHUNK_SIZE.fullmatch(line):
                    raise FramingError(400, _BAD_SIZE)
                self._body_left = int(line, 16)
                self._enter(_Section.CHUNK_END if self._body_left else _Section.TRAILER)
            case _Section.CHUNK_END:
                if line:
                    raise FramingError(400, "a chunk is longer than its size says")
                self._enter(_Section.CHUNK_SIZE)
            case _Section.TRAILER if line:
                _check_unfolded(line)
            case _Section.TRAILER:
                self._enter(_Section.HEAD)

    def _enter(self, section: _Section) -> None:
        self._section = section
        self._section_bytes = 0

    def _begin_body(self, head: list[bytes]) -> None:
        """Determine the framing of the body from a complete head. h11 checks everything else."""
        if not head:
            raise FramingError(400, "a request must begin with its request line")
        self.requests += 1
        self.method = head[0].partition(b" ")[0]
        lengths, encodings = _values(head, b"content-length"), _values(head, b"transfer-encoding")
        # RFC 9112, 6.3. In the classic smuggling attack, one program counts bytes and the other chunks.
        if encodings and lengths:
            raise FramingError(400, "Transfer-Encoding and Content-Length exclude each other")
        # The RFC allows two equal values. We refuse them too, because no client that we know sends them.
        if len(lengths) > 1 or any(not _LENGTH.fullmatch(length) for length in lengths):
            raise FramingError(400, "Content-Length must be one number of at most 18 digits")
        if encodings and not self._allows_chunks:
            raise FramingError(411, "a body needs a Content-Length; chunked bodies are not served")
        # An HTTP/1.0 proxy does not know the header, and would forward the chunks as the body.
        if encodings and head[0].endswith(b"HTTP/1.0"):
            raise FramingError(400, "HTTP/1.0 has no Transfer-Encoding")
        if encodings and [encoding.lower() for encoding in encodings] != [b"chunked"]:
            raise FramingError(501, "the only Transfer-Encoding served is chunked")
        self._body_left = int(lengths[0]) if lengths else 0
        self._enter(_Section.CHUNK_SIZE if encodings else _Section.HEAD)


def _check_unfolded(line: bytes) -> None:
    if line[:1] in (b" ", b"\t"):
        raise FramingError(400, "a header must be on one line")


def _values(head: list[bytes], name: bytes) -> list[bytes]:
    """Return the values of a header. h11 refuses names that only resemble it."""
    pairs = (line.partition(b":") for line in head[1:])
    return [value.strip(b" \t") for header, _, value in pairs if header.strip().lower() == name]
