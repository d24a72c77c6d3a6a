"""The formats of the sink under other names, whose process of a commit can be made to fail.

The crash is ordered through a file, as that of the source's processes is: :mod:`tests.rig.crashing_source`.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.types import StructType

from gazette_spark._delta_format import DeltaFormat
from gazette_spark._file_format import FileFormat, FileStreamWriter
from gazette_spark._iceberg_format import IcebergFormat
from tests.rig.crashing_source import arm


class CrashingFormat(FileFormat):
    """Dies where the option ``crashFile`` says."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._crash_file = options.pop("crashFile", "")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name: ``crashing_delta`` or ``crashing_iceberg``."""
        return cls.kind.name.replace("gazette", "crashing")

    def streamWriter(self, schema: StructType, overwrite: bool) -> FileStreamWriter:  # noqa: N802
        """Return the writer of ``df.writeStream``, for the tasks or for the commit."""
        arm(self._crash_file)
        return super().streamWriter(schema, overwrite)


class CrashingDelta(CrashingFormat, DeltaFormat):
    """Writes Delta tables."""


class CrashingIceberg(CrashingFormat, IcebergFormat):
    """Writes Iceberg tables."""


CRASHING_FORMATS = (CrashingDelta, CrashingIceberg)
