"""The sink's formats under other names, with commit processes that can be made to fail.

A file configures the crash, as for the source's processes: :mod:`tests.rig.crashing_source`.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.types import StructType

from gazette_spark._delta_format import DeltaFormat
from gazette_spark._file_format import FileFormat, FileStreamWriter
from gazette_spark._iceberg_format import IcebergFormat
from tests.rig.crashing_source import arm


class CrashingFormat(FileFormat):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._crash_file = options.pop("crashFile", "")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name: ``crashing_delta`` or ``crashing_iceberg``."""
        return cls.kind.name.replace("gazette", "crashing")

    def streamWriter(self, schema: StructType, overwrite: bool) -> FileStreamWriter:  # noqa: N802
        arm(self._crash_file)
        return super().streamWriter(schema, overwrite)


class CrashingDelta(CrashingFormat, DeltaFormat):
    """Writes Delta tables."""


class CrashingIceberg(CrashingFormat, IcebergFormat):
    """Writes Iceberg tables."""


CRASHING_FORMATS = (CrashingDelta, CrashingIceberg)
