"""Open Delta tables without a JVM, with ``deltalake``, and raise its errors as errors of this package.

``deltalake`` is loaded when the first table is opened; it comes with ``gazette-spark[lag]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gazette_spark._frames import deltalake_text
from gazette_spark._ledger.history import HistoryRow, history_row
from gazette_spark.errors import InputError, MissingPackageError
from gazette_spark.locations import deltalake_location, local_path, masked_url, misread_by_deltalake

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable


STAGED_COMMITS = "_staged_commits"
"""Folder of the log in which writers of a catalog-managed table stage their commits."""


def is_catalog_managed(location: str) -> bool:
    """Return whether a catalog decides which commits of a table in a directory count.

    The newest commits of such a table are staged in a separate folder. Only the catalog knows which of them
    count, so readers of the directory may see an earlier version.
    """
    directory = local_path(location)
    # Delta creates the folder for every table, but writes files into it only for catalog-managed ones.
    return directory is not None and any(Path(directory, "_delta_log", STAGED_COMMITS).glob("*.json"))


def open_table(location: str) -> DeltaTable:
    """Open the newest version of a table.

    Args:
        location: The table's directory or URL, in Spark's spelling: nothing is percent-encoded.

    Raises:
        InputError: ``deltalake`` is not installed, would open another table or an earlier version, or finds
            no table that it can read.
    """
    # The table is refused instead of read as far as its log goes: an earlier version would show an earlier
    # position, and so a lag that does not exist.
    if is_catalog_managed(location):
        raise InputError(f"table {location} is catalog-managed: only Spark can read it, by its name")
    if other := misread_by_deltalake(location):
        raise InputError(
            f"table {location} cannot be read: deltalake would read {other!r} instead. If that is the table, "
            "give its location without percent-encoding; otherwise rename the directory"
        )
    with named_errors(location):
        from deltalake import DeltaTable

        return DeltaTable(deltalake_location(location))


def column_types(table: DeltaTable) -> dict[str, str]:
    """Return the type of each column by name, as Delta's log spells it; "" for a nested column."""
    return {column.name: str(getattr(column.type, "type", "")) for column in table.schema().fields}


def run_sql(table: DeltaTable, query: str) -> pa.RecordBatchReader:
    """Run a SQL query on a table's rows, which the query calls ``rows``.

    SQL also supports tables with deletion vectors and mapped columns.
    """
    import pyarrow as pa
    from deltalake import QueryBuilder

    return pa.RecordBatchReader.from_stream(QueryBuilder().register("rows", table).execute(query))


class DeltaLog:
    """Reads a table's history, in a directory from the files of the log and elsewhere with ``deltalake``.

    ``deltalake`` is loaded when it is needed.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._table: DeltaTable | None = None

    def __repr__(self) -> str:
        return f"DeltaLog({masked_url(self._location)!r})"

    def rows(self, limit: int | None) -> list[HistoryRow]:
        """Return the newest rows, newest first.

        Raises:
            InputError: ``deltalake`` cannot read the table. The text contains no secret of the location.
            MissingPackageError: ``deltalake`` is not installed.
        """
        try:
            return self._rows(limit)
        except InputError as error:
            shown = str(error).replace(self._location, masked_url(self._location))
            raise InputError(shown) from error

    def _rows(self, limit: int | None) -> list[HistoryRow]:
        # This takes one listing and a few files, where deltalake would load the table's state.
        if (directory := local_path(self._location)) is not None:
            try:
                rows = list(islice(directory_history(Path(directory)), limit))
            except OSError as error:
                raise unreadable(self._location, error) from error
            if not rows:
                missing = "there is no such directory"
                problem = "there is no commit in its _delta_log" if Path(directory).is_dir() else missing
                raise InputError(f"{self._location} is not a Delta table: {problem}")
            return rows
        with named_errors(self._location):
            # The table is set aside while it is updated, so that after a failure the next poll opens it
            # again.
            table, self._table = self._table, None
            if table is None:
                table = open_table(self._location)
            else:
                table.update_incremental()
            rows = list(store_history(table, self._location, limit))
            if not rows:
                raise InputError(f"table {self._location} cannot be read: deltalake returns no history")
            self._table = table
            return rows


def directory_history(table: Path) -> Iterator[HistoryRow]:
    """Yield the commits in the log of a table's directory, newest first, as ``DESCRIBE HISTORY`` would."""
    # This works without deltalake, which may not be installed, and which returns no history for names that
    # contain # or ?.
    log = table / "_delta_log"
    # Only the newest version is taken from the listing. Another writer may delete old files of the log while
    # they are read, and a listing may show one of two new files only. What is before a missing file is
    # unknown, so the history ends there.
    for version in range(max(_versions(log), default=-1), -1, -1):
        try:
            content = (log / f"{version:020}.json").read_bytes()
        except FileNotFoundError:
            return
        yield _commit_row(version, content)


def _versions(log: Path) -> list[int]:
    """Return the versions whose commits are in a log, in any order."""
    return [int(path.stem) for path in log.glob("*.json") if re.fullmatch("[0-9]{20}", path.stem)]


def log_damage(location: str) -> str | None:
    """Return what is wrong with the log of a table in a directory, which file it is, and what to do.

    Neither ``deltalake`` nor Spark names the file in each case. All files of the log since the newest
    checkpoint are read, so call this only for a table that could not be read.
    """
    if (directory := local_path(location)) is None:
        return None
    log = Path(directory, "_delta_log")
    advice = "Restore the file from a copy of the table"
    checkpoints = [int(path.name[:20]) for path in log.glob("[0-9]*.checkpoint*")]
    oldest = max(checkpoints, default=0)
    versions = sorted(_versions(log), reverse=True)
    for version in range(versions[0] if versions else -1, oldest - 1, -1):
        path = log / f"{version:020}.json"
        # A file that is missing between others was not deleted by Delta, which deletes the oldest ones.
        if version not in versions:
            return f"{path} is missing. {advice}" if version > versions[-1] or not checkpoints else None
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        for number, line in enumerate(lines, 1):
            try:
                action = _parse_line(line)
            except ValueError as error:
                return f"line {number} of {path} is not valid JSON: {error}. {advice}"
            if not isinstance(action, dict) or not all(isinstance(body, dict) for body in action.values()):
                return f"line {number} of {path} is not an action of Delta. {advice}"
    return None


def unreadable(location: str, error: Exception) -> InputError:
    """Return the error for a table that cannot be read, with the damaged file of its log, if any."""
    return InputError(f"table {location} cannot be read: {log_damage(location) or deltalake_text(error)}")


def store_history(table: DeltaTable, location: str, limit: int | None) -> Iterator[HistoryRow]:
    """Yield the commits left in the log of a table in an object store, newest first.

    ``deltalake`` 1.6.6 returns an empty history for a table whose location contains ``#`` or ``?``, although
    it can read the files of the log. For such tables :func:`log_files` reads these files. Other tables are
    left to ``deltalake``, which reads many files at a time.
    """
    if {"#", "?"} & set(location):
        yield from log_files(table, limit)
    else:
        yield from map(history_row, table.history(limit))


def log_files(table: DeltaTable, limit: int | None) -> Iterator[HistoryRow]:
    """Yield the commits left in a table's log, newest first, with one request for each file.

    ``deltalake`` numbers versions by counting back, so its numbers are wrong for commits older than one that
    has no ``commitInfo``.
    """
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    files = PyFileSystem(DeltaStorageHandler.from_table(table._table))
    newest = table.version()
    oldest = 0 if limit is None else max(0, newest - limit + 1)
    for version in range(newest, oldest - 1, -1):
        try:
            with files.open_input_file(f"_delta_log/{version:020}.json") as file:
                content = file.read()
        except FileNotFoundError:  # Older files of the log are deleted after the retention time.
            return
        yield _commit_row(version, content)


def _commit_row(version: int, content: bytes) -> HistoryRow:
    # The commitInfo is usually the first line, so the lines about thousands of files need not be parsed.
    for number, line in enumerate(content.splitlines(), 1):
        try:
            action = _parse_line(line)
        except ValueError as error:
            raise OSError(
                f"line {number} of _delta_log/{version:020}.json is not valid JSON: {error}"
            ) from error
        match action:
            case {"commitInfo": dict(info)}:
                return history_row({**info, "version": version})
            case dict():
                continue
        # Otherwise the commit's entry would be overlooked, and an older one would pass for the newest.
        raise OSError(f"line {number} of _delta_log/{version:020}.json is not an action of Delta")
    return HistoryRow(version)  # Delta's protocol does not require a commitInfo.


def _parse_line(line: bytes) -> Any:  # noqa: ANN401 - parsed JSON
    """Parse a line of the log.

    Raises:
        ValueError: the line is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextmanager
def named_errors(location: str) -> Iterator[None]:
    """Replace an error of ``deltalake`` by one that names the table.

    Raises:
        InputError: in place of any error of ``deltalake``, of Arrow or of the file system.
        MissingPackageError: ``deltalake`` is not installed.
    """
    try:
        import pyarrow as pa
        from deltalake.exceptions import DeltaError
    except ImportError:
        problem = "reading Delta tables without Spark needs deltalake"
        raise MissingPackageError(problem, "gazette-spark[lag]") from None
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise unreadable(location, error) from error
