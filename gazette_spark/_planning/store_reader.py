"""Read a range of a journal from its stored fragments, one after the other.

Each byte comes from the fragment that serves it (:mod:`gazette_spark._planning.store_coverage`), decoded and
checked by :class:`~gazette_spark.client.FragmentReader`. A fragment whose file was deleted after the listing
is skipped, as if it had not been listed. Bytes that are in no fragment show as a jump, as with brokers'
readers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from gazette_spark._planning.store_coverage import Coverage, Overlaps
from gazette_spark._planning.store_files import StoreFiles
from gazette_spark._planning.store_layout import StoredFragment
from gazette_spark.client._read.chunks import Chunk
from gazette_spark.closing import Closing
from gazette_spark.errors import DirectReadError


class StoreReader(Closing):
    """Iterates over the chunks of ``[offset, end_offset)``. For one thread; a context manager.

    It ends at ``end_offset``, which no chunk passes. Errors are raised where they are met and end it.
    """

    def __init__(
        self, files: StoreFiles, coverage: Coverage, offset: int, end_offset: int, *, known_to: int
    ) -> None:
        """Make a reader; nothing is opened yet.

        Args:
            files: the store.
            coverage: fragments of the journal, at least those up to ``known_to``.
            offset: of the first byte.
            end_offset: behind the last one.
            known_to: where fragments may be missing that exist; there the read ends early.
        """
        self.offset = offset
        """Next byte that comes."""
        self.jumps: list[tuple[int, int]] = []
        """Each offset that no fragment held, with the one the journal goes on at, or the end."""
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
        """Close the open file; may be called again."""
        self._chunks.close()

    def _run(self) -> Generator[Chunk, None, None]:
        while self.offset < self._end:
            stored = self._coverage.covering(self.offset)
            if stored is not None:
                yield from self._read(stored)
                continue
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
            if not error.missing:
                raise
            self._coverage = self._coverage.without(stored)
            return
        with reader:
            for chunk in reader:
                self._overlaps.feed(chunk.offset, chunk.content, stored.path)
                self.offset = chunk.end
                yield chunk
