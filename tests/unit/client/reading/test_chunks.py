"""Tests that all ways of reading give the same bytes, report a jump once, and seek where possible."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable

import pytest

from gazette_spark.client._read.chunks import Chunk, ChunkReader
from gazette_spark.errors import (
    AuthError,
    GazetteError,
    OffsetError,
    OffsetJumpError,
    SeekRequiresNewReaderError,
)

JOURNAL = "a/journal"
CONTENT = b"".join(b"line %d\n" % index for index in range(500))
HEAD = len(CONTENT)


class Fake(ChunkReader):
    """A reader of given chunks and errors. A chunk past the end of the last one is a jump."""

    def __init__(self, chunks: list[Chunk | GazetteError]) -> None:
        super().__init__(JOURNAL)
        self._chunks = iter(chunks)
        self._at = next((each.offset for each in chunks if isinstance(each, Chunk)), 0)
        self.closed = False

    def __repr__(self) -> str:
        return "Fake()"

    def _fetched(self) -> int:
        return self._at

    def _fetch(self) -> Chunk | None:
        found = next(self._chunks, None)
        if isinstance(found, GazetteError):
            raise found
        if found is not None:
            if found.offset > self._at:
                self.jumps.append((self._at, found.offset))
            self._at = found.end
        return found

    def _move(self, offset: int) -> None:
        raise SeekRequiresNewReaderError(self.journal, self.offset, offset)

    def close(self) -> None:
        self.closed = True


def split(content: bytes, size: int, begin: int = 0) -> list[Chunk | GazetteError]:
    return [Chunk(begin + at, content[at : at + size]) for at in range(0, len(content), size)]


def with_jump() -> Fake:
    """Return a reader of ``[0, 1000)`` and ``[2000, HEAD)``."""
    return Fake([*split(CONTENT[:1000], 300), *split(CONTENT[2000:], 300, 2000)])


@pytest.mark.parametrize("size", [1, 7, 299, 300, 301, HEAD, HEAD + 1])
def test_readinto_fills_as_far_as_a_chunk_goes(size: int) -> None:
    reader = Fake(split(CONTENT, 300))
    buffer = bytearray(size)
    got = b""
    while count := reader.readinto(buffer):
        got += buffer[:count]
        assert reader.offset == len(got)
    assert got == CONTENT


def test_read_of_nothing_and_of_negative_sizes() -> None:
    """A size below -1 is a mistake of the caller."""
    reader = Fake([AuthError("http://b:1", "no")])
    assert reader.read(0) == b""
    assert reader.readinto(bytearray()) == 0
    with pytest.raises(ValueError, match="-2"):
        reader.read(-2)
    assert Fake(split(CONTENT, 300)).read(-1) == CONTENT
    assert Fake(split(CONTENT, 300)).read(None) == CONTENT


def test_bytes_before_an_error_are_not_lost() -> None:
    """A failed read does not move the reader, and the next read returns the bytes it had."""
    parts = split(CONTENT, 300)
    reader = Fake([*parts[:2], AuthError("http://b:1", "no"), *parts[2:]])
    assert reader.read(100) == CONTENT[:100]
    with pytest.raises(AuthError):
        reader.read(1_000)
    assert reader.offset == 100
    assert next(reader) == Chunk(100, CONTENT[100:600])
    assert reader.read() == CONTENT[600:]


def test_bytes_before_an_error_and_a_jump_come_in_order() -> None:
    """A failed read puts bytes back after the reader has already seen a jump."""
    reader = Fake([Chunk(0, b"ab"), Chunk(10, b"k")])
    reader._chunks = iter([Chunk(0, b"ab")])
    real = reader._fetch

    def jump_then_fail() -> Chunk | None:
        found = real()
        if found is None:
            reader.jumps.append((2, 10))
            reader._at = 10
            raise AuthError("http://b:1", "no")
        return found

    reader._fetch = jump_then_fail  # type: ignore[method-assign]  # A fetch of the test.
    with pytest.raises(AuthError):
        reader.read(5)
    assert reader.offset == 0
    assert reader.read(1) == b"a"
    assert reader.read(5) == b"b"
    with pytest.raises(OffsetJumpError):
        reader.read(5)


@pytest.mark.parametrize("buffer_bytes", [1, 64, 1 << 16])
def test_buffered_reads_stop_at_a_jump_and_tell_it_once(buffer_bytes: int) -> None:
    """File positions are journal offsets."""
    reader = with_jump()
    with reader.buffered(buffer_bytes) as file:
        assert file.read(900) == CONTENT[:900]
        assert reader.adjusted_offset(file) == file.tell() == 900
        assert file.read(500) == CONTENT[900:1000]
        with pytest.raises(OffsetJumpError) as caught:
            file.read(500)
        assert (caught.value.requested, caught.value.offset) == (1000, 2000)
        assert file.tell() == 2000
        assert file.read(10) == CONTENT[2000:2010]
        assert reader.adjusted_offset(file) == 2010
        assert file.read() == CONTENT[2010:]
        assert file.read() == b""
    assert reader.closed


@pytest.mark.parametrize("buffer_bytes", [16, 1 << 16])
def test_lines_are_told_of_a_jump(buffer_bytes: int) -> None:
    """The line before the jump is cut short, and the next call raises."""
    file = with_jump().buffered(buffer_bytes)
    lines = []
    for _ in range(1000):
        try:
            line = file.readline()
        except OffsetJumpError:
            break
        lines.append(line)
    assert b"".join(lines) == CONTENT[:1000]
    assert all(line.endswith(b"\n") for line in lines[:-1])
    assert file.tell() == 2000
    assert file.read() == CONTENT[2000:]


def test_a_jump_at_the_very_beginning_of_a_line_ends_no_loop() -> None:
    """The loop must not end silently if the jump falls between two lines."""
    at = CONTENT.index(b"\n", 500) + 1
    file = Fake([*split(CONTENT[:at], 100), *split(CONTENT[2000:], 100, 2000)]).buffered(64)
    got = bytearray()
    with pytest.raises(OffsetJumpError):
        extend(got, file)
    assert bytes(got) == CONTENT[:at]


def extend(target: bytearray, lines: Iterable[bytes]) -> None:
    for line in lines:
        target += line


def test_a_plain_buffered_reader_loses_nothing_at_a_jump() -> None:
    """The raw reader returns None once, so that Python's buffer first returns the bytes that it has."""
    file = io.BufferedReader(with_jump().raw(), 64)
    got = b""
    jumps = 0
    for _ in range(10_000):
        try:
            part = file.read(70)
        except OffsetJumpError:
            jumps += 1
            continue
        if part == b"":
            break
        got += part or b""
    assert (got, jumps) == (CONTENT[:1000] + CONTENT[2000:], 1)


def test_files_know_what_they_are() -> None:
    reader = Fake(split(CONTENT, 300))
    raw = reader.raw()
    assert (raw.readable(), raw.seekable(), raw.writable(), raw.tell()) == (True, True, False, 0)
    file = io.BufferedReader(raw)
    assert file.read(10) == CONTENT[:10]
    assert (raw.tell(), file.tell()) == (300, 10)
    file.close()
    assert reader.closed
    assert raw.closed


def test_seeking_needs_a_reader_that_can() -> None:
    reader = Fake(split(CONTENT, 300))
    reader.read(10)
    assert reader.seek(50) == 50
    assert reader.seek(20, io.SEEK_CUR) == 70
    assert reader.read(5) == CONTENT[70:75]
    for offset in (0, 74, 301, 5_000):
        with pytest.raises(SeekRequiresNewReaderError) as caught:
            reader.seek(offset)
        assert (caught.value.offset, caught.value.requested) == (75, offset)
    assert reader.read(5) == CONTENT[75:80]


@pytest.mark.parametrize(
    ("offset", "whence"),
    [
        pytest.param(0, io.SEEK_END, id="from the end"),
        pytest.param(-1, io.SEEK_SET, id="negative"),
        pytest.param(-11, io.SEEK_CUR, id="before the beginning"),
        pytest.param(0, 7, id="from nowhere"),
    ],
)
def test_seeks_that_mean_nothing(offset: int, whence: int) -> None:
    reader = Fake(split(CONTENT, 300))
    reader.read(10)
    with pytest.raises(OffsetError):
        reader.seek(offset, whence)
    assert reader.offset == 10


def test_a_write_head_that_is_not_known_is_no_place_to_seek_from() -> None:
    """The offset of a reader at the write head is -1 until the first answer."""
    reader = Fake([])
    reader._at = -1
    with pytest.raises(OffsetError):
        reader.seek(5, io.SEEK_CUR)


def test_adjusted_seek_uses_the_buffer() -> None:
    reader = Fake(split(CONTENT, 300))
    file = reader.buffered(256)
    file.read(10)
    assert reader.adjusted_seek(200, io.SEEK_SET, file) == 200
    assert file.read(5) == CONTENT[200:205]
    assert reader.adjusted_seek(-100, io.SEEK_CUR, file) == 105
    assert file.read(5) == CONTENT[105:110]
    assert reader.adjusted_offset(file) == 110
    with pytest.raises(SeekRequiresNewReaderError):
        reader.adjusted_seek(4_000, io.SEEK_SET, file)
    with pytest.raises(OffsetError):
        reader.adjusted_seek(0, io.SEEK_END, file)


def test_another_readers_file_is_refused() -> None:
    file = Fake([]).buffered()
    with pytest.raises(ValueError, match="does not read from"):
        Fake([]).adjusted_offset(file)


def test_two_threads_at_once_are_refused() -> None:
    inside, go_on = threading.Event(), threading.Event()
    reader = Fake(split(CONTENT, 300))
    real = reader._fetch

    def slow() -> Chunk | None:
        inside.set()
        assert go_on.wait(10)
        return real()

    reader._fetch = slow  # type: ignore[method-assign]  # A fetch of the test.
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(reader.read()))
    thread.start()
    assert inside.wait(10)
    for call in (reader.read, reader.__next__, lambda: reader.seek(0), lambda: reader.readinto(bytearray(1))):
        with pytest.raises(ValueError, match="another thread"):
            call()
    go_on.set()
    thread.join(10)
    assert got == [CONTENT]
