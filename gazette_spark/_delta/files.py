"""Reads small files of a query checkpoint and of a table's log, on any file system that Spark can reach.

A Spark job for one line takes a tenth of a second, and a commit of the sink would need five of them.
Therefore a classic session opens the file directly, through Hadoop. Spark Connect cannot do that, so it runs
the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Any, TypeVar

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark._ledger.query_checkpoint import checked_text, is_unfinished, offsets_directory
from gazette_spark.locations import escape_glob
from gazette_spark.spark_versions import QUERY_ID

JVM_ERRORS: tuple[type[Exception], ...] = ()
"""Classes of the errors of JVM calls. Spark Connect's package has no py4j, and makes no such calls."""
with suppress(ModuleNotFoundError):
    from py4j.protocol import Py4JError

    JVM_ERRORS = (Py4JError,)

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, *JVM_ERRORS)
"""Classes of the errors of Spark and of JVM calls: PySpark converts most of Java's exceptions, not all."""

Result = TypeVar("Result")

NOT_FOUND = "java.io.FileNotFoundException"

NO_SPACE = ("No space left on device", "Disk quota exceeded", "not enough space on the disk")
"""Messages of operating systems for a full disk."""

SCARCE_BYTES = 64 << 20
"""A disk with fewer free bytes counts as full, because the file that did not fit may have been deleted
again."""

FIRST_COMMIT = f"{0:020}.json"
"""Name of a table's first commit in its log."""

LINES_LOOKED_AT = 20
"""Maximum number of lines to read one by one. Each is a call to the JVM, so Spark searches the rest of a long
file."""


def read_text(spark: SparkSession, path: str) -> str:
    """Return a small file's text.

    Raises:
        QueryCheckpointError: it is missing or empty.
    """
    text = None
    if is_classic(spark):
        with _opened(spark, path) as reader:
            if reader is not None:
                text = "\n".join(map(str, iter(reader.readLine, None)))
    else:
        rows = _if_exists(lambda: spark.read.text(escape_glob(path), wholetext=True).collect())
        text = None if rows is None else str(rows[0].value) if rows else ""
    return checked_text(text, path)


@dataclass(frozen=True, slots=True)
class SparkFiles:
    """Files of a query checkpoint, read by a session."""

    spark: SparkSession

    def text(self, path: str) -> str:
        """Return a small file's text; see :func:`read_text`."""
        return read_text(self.spark, path)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory."""
        return path_exists(self.spark, path)


def find_line(spark: SparkSession, path: str, pattern: str) -> str | None:
    """Return the first line that matches a regular expression, or "" if no line does.

    Returns:
        None if the file does not exist.
    """
    if is_classic(spark):
        # Read the file line by line: the file of a large commit has a line for each data file, and the
        # requested line comes early.
        with _opened(spark, path) as reader:
            if reader is None:
                return None
            for _ in range(LINES_LOOKED_AT):
                line = reader.readLine()
                if line is None:
                    return ""
                if re.search(pattern, line):
                    return str(line)
    matching = F.col("value").rlike(pattern)
    rows = _if_exists(lambda: spark.read.text(escape_glob(path)).where(matching).limit(1).collect())
    return None if rows is None else str(rows[0].value) if rows else ""


def path_exists(spark: SparkSession, path: str) -> bool:
    """Return whether there is a file or directory."""
    with suppress(*JVM_ERRORS):
        if is_classic(spark):  # Spark's own reader logs a warning of 80 lines about a missing path.
            files, name = _file_system(spark, path)
            return bool(files.exists(name))
    # Spark Connect checks the path only when the columns are requested.
    return _if_exists(lambda: _files_below(spark, path).schema) is not None


def has_files(spark: SparkSession, path: str) -> bool:
    """Return whether a directory exists and contains a file, at any depth."""
    with suppress(*JVM_ERRORS):
        if is_classic(spark):
            files, name = _file_system(spark, path)
            if not files.exists(name):
                return False
            root = str(name.toString())
            # Spark ignores hidden files, such as checksums and logs, so they do not count.
            listed = files.listFiles(name, True)  # noqa: FBT003 - Java's
            while listed.hasNext():
                below = str(listed.next().getPath().toString()).removeprefix(root)
                if not any(part.startswith((".", "_")) for part in below.split("/")):
                    return True
            return False
    return bool(_if_exists(lambda: _files_below(spark, path).select("path").limit(1).collect()))


def unwritable(spark: SparkSession, path: str) -> str:
    """Return why a directory cannot be written, or "" if it can be written or that is unknown.

    Nothing is left behind. Object stores are not tried, because they would keep an object for the directory.
    """
    if not is_classic(spark):
        return ""
    files, directory = _file_system(spark, path)
    scheme = files.getScheme()
    if scheme not in ("file", "hdfs"):
        return ""
    try:
        # Create the directory and delete it again: whether that is possible depends on its ancestors, their
        # permissions and quotas.
        existed = files.exists(directory)
        files.mkdirs(directory)
        local = str(directory.toUri().getPath())
        writable = scheme != "file" or os.access(local, os.W_OK)
        free = free_bytes(spark, path)
        if not existed:
            files.delete(directory, False)  # noqa: FBT003 - Java's: only an empty one
    except JVM_ERRORS as error:
        java = getattr(error, "java_exception", None)
        return str(java.getMessage() if java else error).partition("\n")[0]
    if not writable:
        return f"no permission to write to {local}"
    return f"no space is left on the disk of {local}; free some" if free == 0 else ""


def free_bytes(spark: SparkSession, path: str) -> int | None:
    """Return the free bytes on the disk of a directory of this machine, or None for other paths."""
    with suppress(OSError, *JVM_ERRORS):
        if is_classic(spark):
            files, directory = _file_system(spark, path)
            if files.getScheme() != "file":
                return None
            path = str(directory.toUri().getPath())
        if not path.startswith("/"):
            return None
        return disk_usage(
            next(ancestor for ancestor in (Path(path), *Path(path).parents) if ancestor.exists())
        ).free
    return None


def without_space(spark: SparkSession, text: str, places: Mapping[str, str | None]) -> str:
    """Return which disk is full according to an error, or "" if its text is about something else.

    Java's error names no path. The result names the disk with the least free space, or all places if that is
    unknown.

    Args:
        spark: The session.
        text: The error's text.
        places: The directory of everything that is written, by name; None if it is unknown.
    """
    message = next((message for message in NO_SPACE if message in text), None)
    if message is None:
        return ""
    paths = {name: path for name, path in places.items() if path}
    free = {name: size for name, path in paths.items() if (size := free_bytes(spark, path)) is not None}
    if free and min(free.values()) < SCARCE_BYTES:
        name = min(free, key=lambda name: free[name])
        return f"{message}; the disk of {name} {paths[name]} has {free[name]:,} bytes free"
    listed = ", or of ".join(f"{name} {path}" for name, path in paths.items())
    return f"{message}; the full disk is that of {listed}"


def clear_unfinished(spark: SparkSession, root: str) -> None:
    """Delete the unfinished first file of a query checkpoint, on which Spark would refuse to start.

    This is done only if there is nothing else, so no batch is forgotten. Where it is not possible, as on
    Spark Connect, Spark reports the error.
    """
    if not is_classic(spark):
        return
    with suppress(*JVM_ERRORS):
        files, directory = _file_system(spark, offsets_directory(root))
        statuses = files.listStatus(directory) if files.exists(directory) else []
        paths = [status.getPath() for status in statuses]
        # Spark writes the first offsets to a temporary file and renames it. If it is killed in between, it
        # leaves a directory that is not empty but has no offsets, and refuses to start on that.
        if all(is_unfinished(path.getName()) for path in paths):
            for path in paths:
                files.delete(path, False)  # noqa: FBT003 - Java's


def put_first_commit(source: Path, directory: Path) -> None:
    """Put the first commit of an empty table into a directory, unless the directory has a log.

    The commit exists as a whole or not at all. If two processes create a table, one of them succeeds.
    """
    log = directory / "_delta_log"
    # Temporary files begin with a dot. Any other file is a commit or part of a damaged log.
    if log.is_dir() and any(file.is_file() and not file.name.startswith(".") for file in log.iterdir()):
        return
    log.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        # Hadoop's checksum of a commit that was never finished would contradict this commit.
        (log / f".{FIRST_COMMIT}.crc").unlink(missing_ok=True)
        # A link fails if the name exists, whereas a rename would replace what another process has just
        # committed.
        os.link(source / "_delta_log" / FIRST_COMMIT, log / FIRST_COMMIT)


def names_in(spark: SparkSession, path: str) -> list[str]:
    """Return the names in a directory; none if it does not exist. Requires a classic session."""
    files, directory = _file_system(spark, path)
    statuses = files.listStatus(directory) if files.exists(directory) else []
    return [str(status.getPath().getName()) for status in statuses]


def delete_directory(spark: SparkSession, path: str) -> None:
    """Delete a directory and its contents, if it exists. Requires a classic session."""
    files, directory = _file_system(spark, path)
    files.delete(directory, True)  # noqa: FBT003 - Java's


def _files_below(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(escape_glob(path))


def _if_exists(read: Callable[[], Result]) -> Result | None:
    """Return the result of reading a path, or None if the path does not exist."""
    try:
        return read()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise


def is_classic(spark: SparkSession) -> bool:
    """Return whether the session's JVM can be called. Sessions of Spark Connect have no JVM."""
    return getattr(spark, "_jsparkSession", None) is not None


def running_query_id(spark: SparkSession) -> str | None:
    """Return the id of the query whose batch this thread runs; None without one, and on Spark Connect."""
    return spark.sparkContext.getLocalProperty(QUERY_ID) if is_classic(spark) else None


def is_running(query: Any) -> bool:  # noqa: ANN401 - Java's
    """Return whether a query is still running. None stands for a query that this process cannot ask."""
    # On Spark Connect, the process that runs the batches of a query ends with the query.
    try:
        return query is None or bool(query.isActive())
    except JVM_ERRORS:  # The JVM has ended.
        return False


def java_class(spark: SparkSession, name: str) -> Any:  # noqa: ANN401 - Java's
    """Return a class of the session's JVM by its full name.

    If a class is named step by step, py4j looks for each of its packages in all jars, as if it were a class,
    which takes milliseconds.
    """
    return getattr(spark._jvm, name)


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Hadoop's file system for a path, and Hadoop's absolute form of the path."""
    # A relative path begins at the JVM's working directory. This process may have changed its own since.
    name = java_class(spark, "org.apache.hadoop.fs.Path")(path)
    files = name.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return files, files.makeQualified(name)


@contextmanager
def _opened(spark: SparkSession, path: str) -> Iterator[Any]:
    """Yield a Java reader of a file's lines, or None if the file does not exist."""
    from py4j.protocol import Py4JJavaError

    files, name = _file_system(spark, path)
    if not files.exists(name):  # An exception for a missing file takes 50 ms.
        yield None
        return
    try:
        stream = files.open(name)
    except Py4JJavaError as error:
        # The file may have been deleted since the check, for example by a clean-up of the log.
        if error.java_exception.getClass().getName() != NOT_FOUND:
            raise
        yield None
        return
    characters = java_class(spark, "java.io.InputStreamReader")(stream, "UTF-8")
    reader = java_class(spark, "java.io.BufferedReader")(characters)
    try:
        yield reader
    finally:
        reader.close()
