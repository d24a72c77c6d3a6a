"""Reads a fragment store instead of brokers: its files, readers, and the interface that a planner needs.

The driver lists the store once per query. The piece of a task has the fragments of its bytes, so tasks list
nothing, and a file that appears later changes no row.

A store is a directory, or a bucket that ``pyarrow.fs`` opens. The code that reads ``file://`` fragments of
brokers also reads directories: only regular files, without following links. Buckets are opened from their
URL with the credentials of the environment, because Spark's plans show the text of options. Every fragment is
read by :class:`~gazette_spark.client.FragmentReader`, which checks codec, length and SHA-1.
"""

from __future__ import annotations

import logging
import os
import posixpath
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import urlsplit

from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.reads import offset_since
from gazette_spark._planning.store_layout import (
    FragmentCoverage,
    Layout,
    Overlaps,
    StoredFragment,
    StoreFile,
    StoreSelection,
    check_fragments,
    check_size,
    layout_of,
)
from gazette_spark.client._list.listing import ListedFragment, Listing
from gazette_spark.client._read.chunks import Chunk
from gazette_spark.client._read.fragment import FragmentReader, without_query
from gazette_spark.client._read.fragment_urls import FragmentOpener
from gazette_spark.client._read.heads import SettledHead, Tail
from gazette_spark.closing import Closing
from gazette_spark.errors import (
    DirectReadError,
    FragmentStoreError,
    JournalNotFoundError,
)
from gazette_spark.locations import path_of_url
from gazette_spark.offsets import MAX_OFFSET
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import (
    PREFIX,
    expand_prefix,
    labels_with_name,
    parse_selector,
    selector_matches,
    values_of,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

FILE = "file://"

GZIP_MAGIC = b"\x1f\x8b"

BUFFER_BYTES = 1 << 20
"""Number of bytes requested from a bucket at a time."""


class StoreFiles(Protocol):
    """A fragment store. Thread-safe."""

    @property
    def url(self) -> str:
        """The store's name in errors. It ends in a slash and contains no secret."""

    def list(self, directories: Sequence[str]) -> Iterator[StoreFile]:
        """Yield all files below directories of the store; a missing directory is empty.

        Raises:
            FragmentStoreError: the store cannot be listed.
        """

    def open(self, stored: StoredFragment, offset: int, end_offset: int) -> FragmentReader:
        """Return a reader of a fragment. The caller closes it.

        Raises:
            DirectReadError: its file is ``missing``, or cannot be opened.
            CorruptFragmentError: its size is not the fragment's.
        """


def open_store(url: str) -> StoreFiles:
    """Return the store of a URL that ``_options.store.parse_store`` has checked.

    Raises:
        FragmentStoreError: pyarrow cannot open it.
    """
    if url.startswith(FILE):
        return Directory(path_of_url(url))
    # Imported here because queries on brokers and directories do not need it.
    from pyarrow.fs import FileSystem

    # A bucket's query may have credentials, which must not reach an error or a log.
    shown = without_query(url)
    try:
        system, path = FileSystem.from_uri(url)
    except (OSError, ValueError) as error:
        query = urlsplit(url).query
        problem = str(error).replace(query, "***") if query else str(error)
        raise FragmentStoreError(shown, f"it cannot be opened: {problem}") from None
    return Bucket(system, path, shown)


def check_bucket(url: str) -> None:
    """Check that a bucket exists and can be listed below the URL's path, with the environment's credentials.

    Raises:
        FragmentStoreError: it does not exist or cannot be listed, or pyarrow does not support its scheme.
    """
    store = open_store(url)
    assert isinstance(store, Bucket)
    store.check()


class Directory:
    """A store in a local or mounted file system."""

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
            raise FragmentStoreError(self.url, "the directory does not exist")
        for directory in directories:
            yield from self._walk(directory.strip("/"))

    def open(self, stored: StoredFragment, offset: int, end_offset: int) -> FragmentReader:
        """Open a fragment; see :class:`StoreFiles`."""
        url = f"{FILE}/{stored.path}"
        try:
            return self._opener.open(stored.fragment, url, offset, end_offset=end_offset)
        except DirectReadError as error:
            # Where the store is not mounted, every file looks deleted, and its bytes would count as lost. The
            # driver has listed files, so the store was not empty.
            if error.missing:
                with suppress(OSError), os.scandir(self._root) as entries:
                    if next(entries, None) is not None:
                        raise
                problem = f"on the machine {socket.gethostname()} it is missing or empty; mount it there"
                raise FragmentStoreError(self.url, problem) from None
            raise

    def _walk(self, directory: str) -> Iterator[StoreFile]:
        try:
            with os.scandir(f"{self._root}/{directory}") as entries:
                # File systems list in any order. Plans, errors and tests must not depend on it.
                in_order = sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise FragmentStoreError(f"{self.url}{directory}", error.strerror or str(error)) from error
        for entry in in_order:
            path = f"{directory}/{entry.name}" if directory else entry.name
            # A link could lead to any file of the machine, whose bytes would become rows. Hidden ones are
            # ignored like all hidden files.
            if entry.is_symlink():
                if not entry.name.startswith("."):
                    problem = "it is a symbolic link, which is not followed because it may leave the store"
                    raise FragmentStoreError(f"{self.url}{path}", problem)
            elif entry.is_dir():
                yield from self._walk(path)
            elif entry.is_file():
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # It was deleted after the directory was read.
                # A time of 0 means that a fragment is not stored yet, so files from 1970 get 1.
                yield StoreFile(path, status.st_size, max(1, int(status.st_mtime)))
            elif not entry.name.startswith("."):
                raise FragmentStoreError(
                    f"{self.url}{path}", "it is neither a regular file nor a directory; remove it"
                )


class Bucket:
    """A store in one of pyarrow's file systems."""

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
            FragmentStoreError: the bucket does not exist, or cannot be listed.
        """
        from pyarrow.fs import FileSelector

        try:
            exists = self._bucket_exists()
            # The listing of a missing bucket would be empty, like that of a path without objects.
            self._system.get_file_info(FileSelector(self._base, allow_not_found=True))
        except (OSError, ValueError) as error:
            raise FragmentStoreError(self.url, f"it cannot be listed: {error}") from None
        if not exists:
            raise FragmentStoreError(self.url, f"bucket {self._bucket!r} does not exist")

    def list(self, directories: Sequence[str]) -> Iterator[StoreFile]:
        """List all objects below each directory at once; see :class:`StoreFiles`."""
        from pyarrow.fs import FileSelector

        is_empty = True
        for directory in directories:
            # On S3, one listing of all objects costs a request per 1000 of them, and walking directories
            # costs at least one per directory.
            selector = FileSelector(self._path(directory), allow_not_found=True, recursive=True)
            try:
                infos: list[FileInfo] = self._system.get_file_info(selector)
            except (OSError, ValueError) as error:
                raise FragmentStoreError(f"{self.url}{directory}", str(error)) from None
            skip = len(self._base) + 1 if self._base else 0
            for info in infos:
                is_empty = False
                if info.is_file:
                    modified = 0 if info.mtime is None else max(1, int(info.mtime.timestamp()))
                    yield StoreFile(info.path.lstrip("/")[skip:], info.size or 0, modified)
        # For a missing bucket, pyarrow returns an empty listing, as for one without such objects. Credentials
        # that may list objects need not permit a request for the bucket; then its existence stays unknown.
        with suppress(OSError):
            if is_empty and not self._bucket_exists():
                raise FragmentStoreError(self.url, f"bucket {self._bucket!r} does not exist")

    def open(self, stored: StoredFragment, offset: int, end_offset: int) -> FragmentReader:
        """Open a fragment; see :class:`StoreFiles`."""
        fragment, path, source = stored.fragment, self._path(stored.path), self.url + stored.path
        # Compressed content can only be read from its start. Uncompressed content is opened at the requested
        # byte.
        start = (
            max(fragment.begin, min(offset, fragment.end)) if fragment.codec == pb.NONE else fragment.begin
        )
        try:
            if start > fragment.begin:
                file = self._system.open_input_file(path)
                # A read from the middle is not compared with the fragment's SHA-1, so at least its length is.
                check_size(stored, file.size(), source)
                file.seek(start - fragment.begin)
            else:
                # By default pyarrow would decompress according to the name, and hide an invalid file.
                file = self._system.open_input_stream(path, compression=None, buffer_size=BUFFER_BYTES)
        except (OSError, ValueError) as error:
            raise _unreadable(source, error) from None
        stream = _Stream(file, source)
        try:
            codec = stream.codec_of_content(fragment.codec)
            return FragmentReader(
                stream, fragment, offset, end_offset=end_offset, start=start, codec=codec, source=source
            )
        except BaseException:
            stream.close()
            raise

    @property
    def _bucket(self) -> str:
        return self._base.partition("/")[0]

    def _bucket_exists(self) -> bool:
        from pyarrow.fs import FileType

        return bool(self._system.get_file_info(self._bucket).type == FileType.Directory)

    def _path(self, path: str) -> str:
        return f"{self._base}/{path.strip('/')}" if self._base else path.strip("/")


class _Stream:
    """A file opened by pyarrow. Its errors are raised as DirectReadError."""

    def __init__(self, file: Any, source: str) -> None:  # noqa: ANN401 - pyarrow's, which has no types
        self._file = file
        self._source = source
        self._peeked = b""
        """Bytes that were examined but not returned yet."""

    def codec_of_content(self, codec: int) -> int:
        """Return the content's actual codec: a store may decompress a file that is labelled as compressed."""
        if codec != pb.GZIP_OFFLOAD_DECOMPRESSION:
            return codec
        # Google's store decompresses such files for a reader, unless the request says otherwise; another
        # store returns them as they are. The name does not show which, but the first bytes do.
        self._peeked = self.read(len(GZIP_MAGIC))
        return pb.GZIP if self._peeked == GZIP_MAGIC else pb.NONE

    def read(self, size: int, /) -> bytes:
        if self._peeked:
            peeked, self._peeked = self._peeked[:size], self._peeked[size:]
            return peeked
        try:
            return bytes(self._file.read(size))
        except (OSError, ValueError) as error:
            raise _unreadable(self._source, error) from None

    def close(self) -> None:
        self._file.close()


def _unreadable(source: str, error: Exception) -> DirectReadError:
    return DirectReadError(source, str(error), missing=isinstance(error, FileNotFoundError))


class StoreReader(Closing):
    """Iterates over the chunks of ``[offset, end_offset)``. For one thread; a context manager.

    It ends at ``end_offset``, and no chunk goes past that. An error ends the reader.
    """

    def __init__(
        self, files: StoreFiles, coverage: FragmentCoverage, offset: int, end_offset: int, *, known_to: int
    ) -> None:
        """Make a reader; nothing is opened yet.

        Args:
            files: The store.
            coverage: Fragments of the journal, at least those up to ``known_to``.
            offset: Offset of the first byte.
            end_offset: Offset after the last byte.
            known_to: Offset from which ``coverage`` may lack fragments; the read ends there.
        """
        self.offset = offset
        """Offset of the next byte."""
        self.jumps: list[tuple[int, int]] = []
        """Offsets that no fragment contains, each with the offset where the journal continues, or the end."""
        self._files = files
        self._coverage = coverage
        self._end = end_offset
        self._known_to = known_to
        self._overlaps = Overlaps(coverage, offset, end_offset, files.url)
        self._chunks = self._run()

    def __repr__(self) -> str:
        return f"StoreReader({self._files!r}, offset={self.offset}, end_offset={self._end})"

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def close(self) -> None:
        """Close the open file. May be called again."""
        self._chunks.close()

    def _run(self) -> Generator[Chunk, None, None]:
        while self.offset < self._end:
            stored = self._coverage.covering(self.offset)
            if stored is not None:
                yield from self._read(stored)
                continue
            # No listed fragment has this byte. If the listing goes that far, the byte is missing, and the
            # journal continues at the next fragment. Otherwise nothing is known, so the read ends without a
            # jump.
            following = self._coverage.following(self.offset)
            if following is None and self.offset >= self._known_to:
                return
            landed = self._end if following is None else following.begin
            self.jumps.append((self.offset, landed))
            self.offset = min(landed, self._end)

    def _read(self, stored: StoredFragment) -> Iterator[Chunk]:
        try:
            reader = self._files.open(stored, self.offset, self._end)
        except DirectReadError as error:
            # The file exists and cannot be read. Reading another one instead would hide this error.
            if not error.missing:
                raise
            # It was deleted after the listing. Another fragment may have the same bytes; if none has, they
            # are gone.
            self._coverage = self._coverage.without(stored)
            return
        with reader:
            for chunk in reader:
                self._overlaps.feed(chunk.offset, chunk.content, stored.path)
                self.offset = chunk.end
                yield chunk


log = logging.getLogger(__name__)

MAX_ROOTS = 16
"""Maximum number of named journals whose directories are listed separately instead of a common parent."""


class StoreJournals(Closing):
    """Journals of a store, with the methods of a client that a planner uses. Thread-safe."""

    def __init__(self, files: StoreFiles, layout: Layout, *, known_to: int = MAX_OFFSET) -> None:
        """Keep a listing.

        Args:
            files: Files of the store.
            layout: Journals of the store.
            known_to: Offset from which the layout may lack fragments, in every journal.
        """
        self._files = files
        self._coverage = {name: FragmentCoverage(fragments) for name, fragments in layout.journals.items()}
        self._known_to = known_to

    @classmethod
    def listed(cls, files: StoreFiles, selection: StoreSelection) -> Self:
        """List a store. A named journal without a fragment does not exist.

        Raises:
            FragmentStoreError: the store cannot be listed.
            OptionError: the listing does not show which directories are journals.
        """
        layout = layout_of(files.list(roots_of(selection)), selection)
        if layout.skipped:
            log.warning(
                "files that are not fragments are skipped store=%s count=%d first=%s",
                files.url,
                len(layout.skipped),
                layout.skipped[0],
            )
        return cls(files, layout)

    @classmethod
    def of_piece(
        cls, files: StoreFiles, journal: str, fragments: Sequence[StoredFragment], known_to: int
    ) -> Self:
        """Return the journal of a task, with the fragments of its piece."""
        return cls(files, Layout({journal: tuple(fragments)}), known_to=known_to)

    def __repr__(self) -> str:
        return f"StoreJournals({self._files!r}, {len(self._coverage)} journals)"

    def close(self) -> None:
        """Do nothing: only readers open files."""

    @property
    def endpoint(self) -> str:
        """The store's URL."""
        return self._files.url

    @property
    def timeout_s(self) -> float:
        """0, because nothing is awaited."""
        return 0.0

    def list_all_journals(self, selector: str | pb.LabelSelector = "") -> Listing:
        """Return the journals whose name matches a selector. Stores have no revisions."""
        return Listing(pb.Header(), tuple(self.list_journals(selector)))

    def list_journals(
        self, selector: str | pb.LabelSelector = "", *, limit: int = 0
    ) -> list[pb.ListResponse.Journal]:
        """Return the journals whose name matches a selector. Their specs have no labels."""
        # A store has no labels, so only the synthetic label of the name can match.
        parsed = expand_prefix(parse_selector(selector) if isinstance(selector, str) else selector)
        specs = [pb.JournalSpec(name=name) for name in sorted(self._coverage)]
        return [
            pb.ListResponse.Journal(spec=spec)
            for spec in specs
            if selector_matches(parsed, labels_with_name(spec))
        ][: limit or None]

    def get_journal(self, name: str) -> pb.ListResponse.Journal:
        """Return one journal.

        Raises:
            JournalNotFoundError: the listing has no fragment of the journal.
        """
        self._of(name)
        return pb.ListResponse.Journal(spec=pb.JournalSpec(name=name))

    def first_offset(self, journal: str) -> int:
        """Return the first offset that is stored."""
        return self._of(journal).begin

    def write_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the end of each journal's stored bytes: brokers may have more."""
        return {journal: self._of(journal).end for journal in journals}

    def highest_heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Return the end of each journal's stored bytes: a store has no members."""
        return self.write_heads(journals)

    def settled_heads(self, reached: Mapping[str, int]) -> dict[str, SettledHead]:
        """Return the end of each journal's stored bytes: the listing is final."""
        return {journal: SettledHead(head) for journal, head in self.write_heads(list(reached)).items()}

    def tails(self, offsets: Mapping[str, int], max_bytes: int) -> dict[str, Tail]:  # noqa: ARG002
        """Return the end of each journal's stored bytes, and no content."""
        return {journal: Tail(head) for journal, head in self.write_heads(list(offsets)).items()}

    def offset_since(self, journal: str, mod_time: int) -> int | None:
        """Return the begin of the first fragment that was stored at a time or later."""
        return offset_since((stored.fragment for stored in self._of(journal).serving), mod_time)

    def list_fragments(self, journal: str, *, page_token: int = 0) -> list[ListedFragment]:
        """Return the fragments that serve bytes, as brokers list them."""
        return [
            ListedFragment(stored.fragment, "")
            for stored in self._of(journal).serving
            if stored.begin >= page_token
        ]

    def read(self, journal: str, *, offset: int = 0, end_offset: int = 0) -> StoreReader:
        """Return a reader of ``[offset, end_offset)``. Errors are those of :meth:`fragments_of`."""
        coverage = FragmentCoverage(self.fragments_of(journal, offset, end_offset))
        return StoreReader(self._files, coverage, offset, end_offset, known_to=self._known_to)

    def fragments_of(self, journal: str, begin: int, end: int) -> tuple[StoredFragment, ...]:
        """Return the fragments with bytes in a range and, if no fragment contains its end, the next one.

        Raises:
            FragmentConflictError: two of the fragments contradict each other.
            CorruptFragmentError: the length of a file is not the length in its name.
        """
        fragments = self._of(journal).of_range(begin, end)
        check_fragments(fragments, self._files.url)
        return fragments

    def _of(self, journal: str) -> FragmentCoverage:
        if journal not in self._coverage:
            raise JournalNotFoundError(journal, f"{self._files.url} has no fragment of it")
        return self._coverage[journal]


def roots_of(selection: StoreSelection) -> list[str]:
    """Return the directories of a store to list for the selected journals; none contains another."""
    if not selection.names:
        return [selection.prefix.rstrip("/")]
    names = sorted(set(selection.names))
    if len(names) <= MAX_ROOTS:
        # A directory inside another one is listed with it.
        return [name for name in names if not any(name.startswith(f"{other}/") for other in names)]
    # Each root costs at least a request, so many names share one listing of what they have in common.
    return [posixpath.commonpath(names)]


SLACK_BYTES = 4 << 20
"""Bytes by which reading may pass a record's maximum length: more than a cutter reads at a time."""


def listed_store(options: SourceOptions) -> StoreJournals:
    """List a query's store, and return its journals.

    Raises:
        FragmentStoreError: the store cannot be listed.
        OptionError: the listing does not show which directories are journals.
    """
    files = open_store(options.fragment_store or "")
    return StoreJournals.listed(files, store_selection(options))


def store_selection(options: SourceOptions) -> StoreSelection:
    """Return the selection of a query's journals in a store."""
    selection = options.selection
    prefixes = values_of(parse_selector(selection.selector).include, PREFIX) if selection.selector else [""]
    return StoreSelection(selection.names, prefixes[0], options.fragment_postfix_levels)


def store_of_piece(options: SourceOptions, piece: Piece) -> StoreJournals:
    """Return the journals from which a task reads its piece."""
    files = open_store(options.fragment_store or "")
    return StoreJournals.of_piece(files, piece.journal, piece.fragments, reach_of(options, piece))


def with_fragments(journals: object, pieces: Sequence[Piece], options: SourceOptions) -> list[Piece]:
    """Return pieces with the fragments of their bytes; unchanged if they are read from brokers.

    Raises:
        FragmentConflictError: two fragments contradict each other.
        CorruptFragmentError: the length of a file is not the one in its name.
    """
    if not isinstance(journals, StoreJournals):
        return list(pieces)
    return [
        replace(
            piece,
            fragments=journals.fragments_of(
                # Messages that are committed in a piece may be anywhere since the query's start.
                piece.journal,
                piece.start if options.reads_committed else piece.read_from,
                reach_of(options, piece),
            ),
        )
        for piece in pieces
    ]


def reach_of(options: SourceOptions, piece: Piece) -> int:
    """Return an offset that reading a piece never passes: its last record ends before it, or is too long."""
    return min(piece.limit, piece.end + 2 * options.max_record_bytes + SLACK_BYTES)
