"""Journals that are files: a source for tests of the sink.

Each file of a directory is a journal of newline-ended records. Offsets, positions, the pinned first batch and
the rows (``journal, offset, value``) are those of the format ``gazette``. There is no broker, so tests of the
sink do not depend on one. A journal grows when its file is appended to.

The source's part of a query runs in separate processes, so a file configures a crash there: ``crashFile``,
which may contain ``source.latest_offset:2``, or any other failpoint of this module and a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from gazette_spark import JournalOffsets
from gazette_spark._data_files.target import FileTarget
from gazette_spark._data_files.writer import write_files
from gazette_spark._planning.columns import RAW_SCHEMA
from gazette_spark.failpoints import FailpointError, failpoint
from gazette_spark.source import file_target


def whole_records(file: Path) -> int:
    """Return the offset after the last newline."""
    return file.read_bytes().rfind(b"\n") + 1


class FileJournals(DataSource):
    """The format ``file_journals``.

    Options: ``root``, ``startingOffsets``, ``resumeOffsets``, ``maxBytesPerTrigger``, ``crashFile``.
    """

    @classmethod
    def name(cls) -> str:
        return "file_journals"

    def schema(self) -> StructType:
        return RAW_SCHEMA

    def streamReader(self, schema: StructType) -> FileJournalsReader:  # noqa: N802 - Spark's name.
        return FileJournalsReader(
            Path(self.options["root"]),
            self.options.get("resumeOffsets") or self.options.get("startingOffsets", "earliest"),
            int(self.options.get("maxBytesPerTrigger", 1 << 30)),
            self.options.get("crashFile"),
            file_target(self.options),
        )


class RecordsPartition(InputPartition):
    """Records of one journal in ``[begin, end)``."""

    def __init__(self, journal: str, begin: int, end: int) -> None:
        self.journal = journal
        self.begin = begin
        self.end = end
        self.last = False


class FileJournalsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self,
        root: Path,
        starting_offsets: str,
        max_bytes: int,
        crash_file: str | None = None,
        files: FileTarget | None = None,
    ) -> None:
        self._root = root
        self._starting_offsets = starting_offsets
        self._max_bytes = max_bytes
        self._crash_file = crash_file
        self._files = files
        self._reached: dict[str, int] = {}
        self._frozen: dict[str, int] | None = None

    def _reach(self, name: str) -> None:
        """Pass a failpoint, unless the file says to skip it this time."""
        failpoint(name)
        self._reached[name] = self._reached.get(name, 0) + 1
        ordered = Path(self._crash_file) if self._crash_file else None
        if ordered and ordered.exists() and ordered.read_text() == f"{name}:{self._reached[name]}":
            raise FailpointError(name)

    def _heads(self) -> dict[str, int]:
        return {file.name: whole_records(file) for file in sorted(self._root.iterdir())}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are those below.
        first = dict.fromkeys(self._heads(), 0)
        if self._starting_offsets != "earliest":
            named = JournalOffsets.from_json(self._starting_offsets).read_through
            first = {journal: named.get(journal, at) for journal, at in first.items()}
        return JournalOffsets(first, "initial").to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit, because the reader applies its own."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._frozen = self._heads()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._reach("source.latest_offset")
        position = JournalOffsets.from_dict(start)
        if position.position == "initial":
            return position.at("pinned").to_dict()
        heads = self._heads() if self._frozen is None else self._frozen
        reached = dict(position.read_through)
        for journal, head in heads.items():
            begin = reached.get(journal)
            reached[journal] = 0 if begin is None else self._limited(journal, begin, head)
        return start if reached == position.read_through else JournalOffsets(reached).to_dict()

    def _limited(self, journal: str, begin: int, head: int) -> int:
        if head - begin <= self._max_bytes:
            return max(begin, head)
        window = (self._root / journal).read_bytes()[begin:head]
        fits = window.rfind(b"\n", 0, self._max_bytes) + 1
        return begin + (fits or window.index(b"\n") + 1)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._reach("source.partitions")
        begins, reached = JournalOffsets.from_dict(start).read_through, JournalOffsets.from_dict(end)
        if reached.position == "pinned":
            return []
        found = [
            RecordsPartition(journal, begins[journal], until)
            for journal, until in reached.read_through.items()
            if until > begins.get(journal, until)
        ]
        for each in found[-1:]:
            each.last = True
        return list[InputPartition](found)

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, bytes] | pa.RecordBatch]:
        """Yield the records of a partition, or a description of the files that they are written to."""
        self._reach("source.read")
        if not isinstance(partition, RecordsPartition):  # Spark's own empty partition.
            return
        if self._files is None:
            yield from self._records(partition)
            return
        journals, offsets, values = zip(*self._records(partition), strict=True)
        schema = to_arrow_schema(self._files.columns_read)
        columns = [
            pa.array(each, field.type)
            for each, field in zip((journals, offsets, values), schema, strict=True)
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        yield from write_files([(f"journal={partition.journal}", [rows])], self._files)

    def _records(self, partition: RecordsPartition) -> Iterator[tuple[str, int, bytes]]:
        content = (self._root / partition.journal).read_bytes()[partition.begin : partition.end]
        offset = partition.begin
        for line in content.splitlines(keepends=True):
            yield partition.journal, offset, line.removesuffix(b"\n")
            offset += len(line)
        if partition.last:
            self._reach("source.rows")
