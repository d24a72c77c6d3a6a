"""Reads the files of a query checkpoint in processes without a Spark session."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.fs as pa_fs

from gazette_spark._frames import deltalake_text
from gazette_spark._ledger.query_checkpoint import checked_text, missing_table
from gazette_spark.errors import QueryCheckpointError
from gazette_spark.locations import absolute, local_path, split_scheme

HADOOP_SCHEMES = ("hdfs", "viewfs")
"""Schemes of file systems that pyarrow accesses through Hadoop's library."""


class CheckpointReader:
    """Reads the files of a query checkpoint, in a directory or in a store."""

    def __init__(self, root: str, open_store: Callable[[str], tuple[pa_fs.FileSystem, str]]) -> None:
        """Name the checkpoint.

        Args:
            root: The checkpoint's directory or prefix, in Spark's spelling.
            open_store: Returns the file system of an object store, and the path of a location in it.
        """
        self._root = root.rstrip("/")
        directory = local_path(root)
        if directory is not None:
            self._files, self._below = pa_fs.LocalFileSystem(), absolute(directory)
        elif split_scheme(root)[0] in HADOOP_SCHEMES:
            self._files, self._below = pa_fs.FileSystem.from_uri(root)
        else:
            self._files, self._below = open_store(self._root)

    def text(self, path: str) -> str:
        """Return a small file's text.

        Raises:
            QueryCheckpointError: the file is missing, empty or cannot be read.
        """
        try:
            with self._files.open_input_file(self._place(path)) as file:
                return checked_text(file.read().decode(), path)
        except FileNotFoundError:
            return checked_text(None, path)
        except (OSError, UnicodeDecodeError) as error:
            raise QueryCheckpointError(path, f"the file cannot be read: {deltalake_text(error)}") from error

    def exists(self, path: str) -> bool:
        """Return whether there is a directory, or an object below a prefix."""
        place = self._place(path)
        # In an object store, a directory exists only as the prefix of an object.
        if self._files.get_file_info(place).type != pa_fs.FileType.NotFound:
            return True
        return bool(self._files.get_file_info(pa_fs.FileSelector(place, allow_not_found=True)))

    def check_new(self, table: str) -> None:
        """Refuse to create a table for a query that has written batches, because it could not continue it.

        Raises:
            TableRefusedError: the checkpoint has a batch that was committed.
        """
        place = self._place(f"{self._root}/commits")
        listed = self._files.get_file_info(pa_fs.FileSelector(place, allow_not_found=True))
        if any(file.base_name.isdecimal() for file in listed):
            raise missing_table(table, self._root)

    def _place(self, path: str) -> str:
        below = path.removeprefix(self._root)
        return self._below + below if self._below else below.lstrip("/")
