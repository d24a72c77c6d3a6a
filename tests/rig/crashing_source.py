"""The format ``gazette`` under another name, with processes that can be made to fail.

The source's part of a query runs in separate processes, so a file configures the crash: ``crashFile``, which
may contain ``source.latest_offset:2``, or any other failpoint of these processes, a number, and optionally an
action of :mod:`gazette_spark.failpoints`. A process counts from the time the file appears.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from gazette_spark._data_files.target import FileTarget
from gazette_spark._options.source import SourceOptions, parse_options
from gazette_spark.failpoints import FAILPOINT_VARIABLE, failpoint
from gazette_spark.source import BatchReader, GazetteDataSource, StreamReader, file_target

_followed: dict[str, tuple[str, int]] = {}
"""Failpoint and modification time in nanoseconds that this process last read, by file."""


def arm(crash_file: str) -> None:
    """Arm the failpoint that a file names in this process, or disarm it; without a file, change nothing."""
    if not crash_file:
        return
    path = Path(crash_file)
    try:
        order = path.read_text(), path.stat().st_mtime_ns
    except FileNotFoundError:
        order = "", 0
    if order == _followed.get(crash_file):
        return
    _followed[crash_file] = order
    os.environ.pop(FAILPOINT_VARIABLE, None)
    failpoint("source.counting_begins")  # Without an argument: counting starts again.
    if text := order[0]:
        os.environ[FAILPOINT_VARIABLE] = text if text.count(":") == 2 else f"{text}:raise"


class CrashingGazette(GazetteDataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._crash_file = options.pop("crashFile", "")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "crashing_gazette"

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name.
        options = parse_options(self.options, "stream")
        return CrashingReader(options, schema, self._crash_file, file_target(self.options))


def crashing_gazette(crash_file: str) -> type[GazetteDataSource]:
    """Return a crashing ``gazette`` source, for batches whose code cannot pass ``crashFile``."""

    class Gazette(GazetteDataSource):
        """Journals of a Gazette cluster."""

        def reader(self, schema: StructType) -> BatchReader:
            options = parse_options(self.options, "batch")
            return CrashingBatchReader(options, schema, crash_file, file_target(self.options))

    return Gazette


class CrashingBatchReader(BatchReader):
    """Checks the file before each step."""

    def __init__(
        self, options: SourceOptions, schema: StructType, crash_file: str, files: FileTarget | None
    ) -> None:
        super().__init__(options, schema, files)
        self._crash_file = crash_file

    def partitions(self) -> list[InputPartition]:
        arm(self._crash_file)
        return super().partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        arm(self._crash_file)
        yield from super().read(partition)
        failpoint("source.rows")


class CrashingReader(StreamReader):
    """Checks the file before each step."""

    def __init__(
        self, options: SourceOptions, schema: StructType, crash_file: str, files: FileTarget | None
    ) -> None:
        super().__init__(options, schema, files)
        self._crash_file = crash_file

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        arm(self._crash_file)
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any] | None, end: dict[str, Any]) -> list[InputPartition]:
        arm(self._crash_file)
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        arm(self._crash_file)
        yield from super().read(partition)
        failpoint("source.rows")
