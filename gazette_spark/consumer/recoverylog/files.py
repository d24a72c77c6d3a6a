"""Files whose operations are done on disk, and then recorded.

Reading is not recorded: open the file by its path. Files are changed through one handle at a time.
"""

from __future__ import annotations

from pathlib import Path

from gazette_spark.client._append.append import Bytes
from gazette_spark.closing import Closing
from gazette_spark.consumer.recoverylog.operations import recorded_path
from gazette_spark.consumer.recoverylog.recorder import Recorder


class RecordedFile(Closing):
    """A file open for writing. As a context manager it is closed at the end."""

    def __init__(self, recorder: Recorder, path: Path, fnode: int) -> None:
        self._recorder = recorder
        self._fnode = fnode
        self._file = path.open("r+b", buffering=0)

    def write(self, data: Bytes) -> int:
        """Write bytes at the file's position, which is its beginning at first; return how many."""
        offset = self._file.tell()
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            done += self._file.write(view[done:])
        with self._recorder.begin() as operations:
            operations.write(self._fnode, offset, view)
        return done

    def seek(self, offset: int) -> None:
        """Write next at an offset."""
        self._file.seek(offset)

    def sync(self, timeout_s: float | None = None) -> None:
        """Wait until all that was written is in the recovery log."""
        self._recorder.barrier().result(timeout_s)

    def close(self) -> None:
        """Close the file; may be called again."""
        self._file.close()


class RecordedFiles:
    """The files of a recorder's directory."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def path(self, name: str) -> Path:
        """Return a file's path on disk."""
        return self.recorder.directory / recorded_path(name).removeprefix("/")

    def create(self, name: str) -> RecordedFile:
        """Create a file, or truncate an old one."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file with other links is another file from now on, as in the log.
        path.unlink(missing_ok=True)
        path.touch(0o600)
        with self.recorder.begin() as operations:
            fnode = operations.create(name)
        return RecordedFile(self.recorder, path, fnode)

    def open(self, name: str) -> RecordedFile:
        """Open a file that exists."""
        with self.recorder.begin() as operations:
            fnode = operations.open(name)
        return RecordedFile(self.recorder, self.path(name), fnode)

    def rename(self, name: str, target: str) -> None:
        """Rename a file, in place of another one if there is one."""
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).replace(self.path(target))
        with self.recorder.begin() as operations:
            operations.rename(name, target)

    def link(self, name: str, target: str) -> None:
        """Give a file another path."""
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        self.path(target).hardlink_to(self.path(name))
        with self.recorder.begin() as operations:
            operations.link(name, target)

    def remove(self, name: str) -> None:
        """Remove a path; its file, with its last path."""
        self.path(name).unlink()
        with self.recorder.begin() as operations:
            operations.remove(name)
