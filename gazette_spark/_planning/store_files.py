"""The files of a fragment store: a directory, or a bucket that ``pyarrow.fs`` knows.

Both list once and open fragments through the same reader, which holds them to codec, length and SHA-1.
Directories are read by the code that reads ``file://`` fragments of brokers: regular files only, and links
lead nowhere. Buckets are opened from their URL by pyarrow, with the credentials of the environment: Spark's
plans show the text of options.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from gazette_spark._planning.store_layout import StoredFragment, StoreFile
from gazette_spark.client._read.fragment_urls import FragmentOpener
from gazette_spark.client._read.fragments import FragmentReader, without_query
from gazette_spark.errors import (
    DirectReadError,
    FragmentStoreError,
    FragmentTooLongError,
    FragmentTooShortError,
)
from gazette_spark.locations import path_of_url
from gazette_spark.protocol import protocol_pb2 as pb

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

FILE = "file://"

GZIP_MAGIC = b"\x1f\x8b"

BUFFER_BYTES = 1 << 20
"""Bytes asked of a bucket at a time."""


class StoreFiles(Protocol):
    """A fragment store. Thread-safe."""

    @property
    def url(self) -> str:
        """The store as errors name it; ends in a slash and holds nothing secret."""

    def list(self, directories: Sequence[str]) -> Iterator[StoreFile]:
        """Yield all files below some directories of the store; a missing directory is empty.

        Raises:
            FragmentStoreError: the store cannot be listed.
        """

    def open(self, stored: StoredFragment, offset: int, end_offset: int) -> FragmentReader:
        """Return a reader of a fragment; the caller closes it.

        Raises:
            DirectReadError: its file is ``missing``, or cannot be opened.
            CorruptFragmentError: its size is not the fragment's.
        """


def open_store(url: str) -> StoreFiles:
    """Return the store of a URL that ``options.store.parse_store`` has checked.

    Raises:
        FragmentStoreError: pyarrow cannot open it.
    """
    if url.startswith(FILE):
        return Directory(path_of_url(url))
    # Loaded here: queries on brokers and directories do without.
    from pyarrow.fs import FileSystem

    shown = without_query(url)
    try:
        system, path = FileSystem.from_uri(url)
    except (OSError, ValueError) as error:
        raise FragmentStoreError(shown, f"it cannot be opened: {_text(error, url)}") from None
    return Bucket(system, path, shown)


def check_bucket(url: str) -> None:
    """Check that a bucket exists and can be listed below the URL's path, with the environment's credentials.

    Raises:
        FragmentStoreError: it does not exist, it cannot be listed, or pyarrow does not know its scheme.
    """
    found = open_store(url)
    assert isinstance(found, Bucket)
    found.check()


class Directory:
    """A store in a local, or mounted, file system."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._opener = FragmentOpener(self._root)

    def __repr__(self) -> str:
        return f"Directory({self._root!r})"

    @property
    def url(self) -> str:
        """The store's path."""
        return f"{FILE}{self._root}/"

    def list(self, directories: Sequence[str]) -> Iterator[StoreFile]:
        """Walk the directories; see :class:`StoreFiles`."""
        if not Path(self._root).is_dir():
            raise FragmentStoreError(self.url, "no such directory")
        for directory in directories:
            yield from self._walk(directory.strip("/"))

    def open(self, stored: StoredFragment, offset: int, end_offset: int) -> FragmentReader:
        """Open a fragment; see :class:`StoreFiles`."""
        return self._opener.open(stored.fragment, f"{FILE}/{stored.path}", offset, end_offset=end_offset)

    def _walk(self, directory: str) -> Iterator[StoreFile]:
        try:
            with os.scandir(f"{self._root}/{directory}") as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise FragmentStoreError(f"{self.url}{directory}", error.strerror or str(error)) from error
        for entry in found:
            path = f"{directory}/{entry.name}" if directory else entry.name
            if entry.is_symlink():
                if not entry.name.startswith("."):
                    problem = "a symbolic link, which is not followed: it may lead out of the store"
                    raise FragmentStoreError(f"{self.url}{path}", problem)
            elif entry.is_dir():
                yield from self._walk(path)
            elif entry.is_file():
                yield from _stated(entry, path)
            elif not entry.name.startswith("."):
                raise FragmentStoreError(
                    f"{self.url}{path}", "neither a regular file nor a directory; remove it"
                )


def _stated(entry: os.DirEntry[str], path: str) -> Iterator[StoreFile]:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # Deleted since the directory was read.
    yield StoreFile(path, status.st_size, max(1, int(status.st_mtime)))


class Bucket:
    """A store in a file system of pyarrow's."""

    def __init__(self, system: FileSystem, base: str, url: str) -> None:
        self._system = system
        self._base = base.strip("/")
        self.url = url.rstrip("/") + "/"
        """The bucket and path, without the URL's query."""

    def __repr__(self) -> str:
        return f"Bucket({self.url!r})"

    def check(self) -> None:
        """Check that the bucket exists and that one level of the path can be listed.

        Raises:
            FragmentStoreError: it does not, or cannot.
        """
        from pyarrow.fs import FileSelector, FileType

        bucket = self._base.partition("/")[0]
        try:
            exists = self._system.get_file_info(bucket).type == FileType.Directory
            # Of a missing bucket this would list nothing, as of a path without an object.
            self._system.get_file_info(FileSelector(self._base, allow_not_found=True))
        except (OSError, ValueError) as error:
            raise FragmentStoreError(self.url, f"it cannot be listed: {error}") from None
        if not exists:
            raise FragmentStoreError(self.url, f"bucket {bucket!r} does not exist")

    def list(self, directories: Sequence[str]) -> Iterator[StoreFile]:
        """List all objects below each directory at once; see :class:`StoreFiles`."""
        from pyarrow.fs import FileSelector

        for directory in directories:
            selector = FileSelector(self._path(directory), allow_not_found=True, recursive=True)
            try:
                found: list[FileInfo] = self._system.get_file_info(selector)
            except (OSError, ValueError) as error:
                raise FragmentStoreError(f"{self.url}{directory}", str(error)) from None
            skip = len(self._base) + 1 if self._base else 0
            for each in found:
                if each.is_file:
                    modified = 0 if each.mtime is None else max(1, int(each.mtime.timestamp()))
                    yield StoreFile(each.path.lstrip("/")[skip:], each.size or 0, modified)

    def open(self, stored: StoredFragment, offset: int, end_offset: int) -> FragmentReader:
        """Open a fragment; see :class:`StoreFiles`."""
        fragment, path, source = stored.fragment, self._path(stored.path), self.url + stored.path
        start = (
            max(fragment.begin, min(offset, fragment.end)) if fragment.codec == pb.NONE else fragment.begin
        )
        try:
            if start > fragment.begin:
                file = self._system.open_input_file(path)
                _check_size(file.size(), stored, source)
                file.seek(start - fragment.begin)
            else:
                # By default pyarrow would decompress by the name, and hide an invalid file.
                file = self._system.open_input_stream(path, compression=None, buffer_size=BUFFER_BYTES)
        except (OSError, ValueError) as error:
            raise _unreadable(source, error) from None
        stream = _Stream(file, source)
        try:
            codec = stream.left_of(fragment.codec)
            return FragmentReader(
                stream, fragment, offset, end_offset=end_offset, start=start, codec=codec, source=source
            )
        except BaseException:
            stream.close()
            raise

    def _path(self, path: str) -> str:
        return f"{self._base}/{path.strip('/')}" if self._base else path.strip("/")


class _Stream:
    """A file of pyarrow's whose trouble is a DirectReadError."""

    def __init__(self, file: Any, source: str) -> None:  # noqa: ANN401 - pyarrow's, which has no types
        self._file = file
        self._source = source
        self._head = b""
        """Looked at, and not returned yet."""

    def left_of(self, codec: int) -> int:
        """Return the codec of the content: a store may decompress a file that is labelled compressed."""
        if codec != pb.GZIP_OFFLOAD_DECOMPRESSION:
            return codec
        self._head = self.read(len(GZIP_MAGIC))
        return pb.GZIP if self._head == GZIP_MAGIC else pb.NONE

    def read(self, size: int, /) -> bytes:
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        try:
            return bytes(self._file.read(size))
        except (OSError, ValueError) as error:
            raise _unreadable(self._source, error) from None

    def close(self) -> None:
        self._file.close()


def _unreadable(source: str, error: Exception) -> DirectReadError:
    return DirectReadError(source, str(error), missing=isinstance(error, FileNotFoundError))


def _check_size(size: int, stored: StoredFragment, source: str) -> None:
    fragment = stored.fragment
    if size != fragment.length:
        problem = f"it holds {size} bytes, not {fragment.length}"
        kind = FragmentTooLongError if size > fragment.length else FragmentTooShortError
        raise kind(fragment.journal, fragment.begin, fragment.end, problem, source)


def _text(error: Exception, url: str) -> str:
    """Return an error's text without the parts of the URL after its path."""
    query = urlsplit(url).query
    text = str(error)
    return text.replace(query, "***") if query else text
