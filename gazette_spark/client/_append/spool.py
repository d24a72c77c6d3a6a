"""Buffers an append's bytes in memory or, if there are many, in a temporary file without a name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from gazette_spark.client._append.append import MAX_CONTENT_BYTES, Bytes

OpenFile = Callable[[], BinaryIO]
"""Opens the file for spilled bytes: unbuffered, for writing and reading, and deleted on closing."""


class AppendSpool:
    """Bytes in order, for repeated reading, the first of them perhaps on disk. For one thread at a time.

    ``memory`` is public because ``AppendService`` extends it where every microsecond counts.
    """

    __slots__ = ("_file", "disk_bytes", "memory")

    def __init__(self) -> None:
        self.memory = bytearray()
        self.disk_bytes = 0
        self._file: BinaryIO | None = None

    def __repr__(self) -> str:
        return f"AppendSpool(memory={len(self.memory)}, disk_bytes={self.disk_bytes})"

    def __len__(self) -> int:
        return self.disk_bytes + len(self.memory)

    @property
    def on_disk(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def spill(self, content: Bytes, open_file: OpenFile) -> None:
        """Add bytes, and move all bytes to disk.

        Raises:
            OSError: the disk is full or broken. The earlier bytes are intact.
        """
        if self._file is None:
            self._file = open_file()
        # Write the memory first and then the new bytes, so that the file alone has all bytes in order.
        before = self.disk_bytes
        try:
            for piece in (self.memory, content):
                self._write(piece)
        except OSError:
            # What was written is behind the end of the valid bytes, and the next write replaces it.
            self.disk_bytes = before
            raise
        self.memory = bytearray()

    def truncate(self, size: int) -> None:
        """Forget the bytes from ``size`` on."""
        # The file is not cut: bytes behind `disk_bytes` are never read.
        del self.memory[max(0, size - self.disk_bytes) :]
        self.disk_bytes = min(size, self.disk_bytes)

    def close(self) -> None:
        """Forget all bytes, and the file."""
        self.memory = bytearray()
        self.disk_bytes = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bytes in pieces of at most a message's size."""
        at = 0
        while at < self.disk_bytes:
            assert self._file is not None
            # By position, so that a second attempt begins at the first byte without a seek.
            content = os.pread(self._file.fileno(), min(MAX_CONTENT_BYTES, self.disk_bytes - at), at)
            # Another program has truncated the file. Sending only the rest would lose bytes silently.
            if not content:
                raise OSError(f"spool file ends at {at}, {self.disk_bytes} bytes were written to it")
            at += len(content)
            yield content
        for start in range(0, len(self.memory), MAX_CONTENT_BYTES):
            # A slice of the bytearray would be an additional copy.
            with memoryview(self.memory) as view, view[start : start + MAX_CONTENT_BYTES] as piece:
                content = bytes(piece)
            yield content

    def _write(self, content: Bytes) -> None:
        assert self._file is not None
        view = memoryview(content).cast("B")
        with view:
            written = 0
            # A write to a nearly full disk may take only some of the bytes.
            while written < len(view):
                written += os.pwrite(self._file.fileno(), view[written:], self.disk_bytes + written)
        self.disk_bytes += written
