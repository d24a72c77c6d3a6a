"""The format ``gazette_delta`` under another name, whose process of a commit can be made to fail.

The crash is ordered through a file, as that of the source's processes is: :mod:`tests.rig.crashing_source`.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.types import StructType

from gazette_spark._delta_format import DeltaFormat
from gazette_spark._file_format import FileStreamWriter
from tests.rig.crashing_source import arm


class CrashingDelta(DeltaFormat):
    """Writes Delta tables."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._crash_file = options.pop("crashFile", "")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "crashing_delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FileStreamWriter:  # noqa: N802
        """Return the writer of ``df.writeStream``, for the tasks or for the commit."""
        arm(self._crash_file)
        return super().streamWriter(schema, overwrite)
