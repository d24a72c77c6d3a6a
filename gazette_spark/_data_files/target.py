"""Where a task writes its data files, and the rows that report them to the driver.

A target travels as one option of the source. Its name contains ``secret``, so Spark shows its text nowhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from gazette_spark._options.table import TARGET_OPTION
from gazette_spark.errors import OptionError
from gazette_spark.strict_json import parse_json

FILES_SCHEMA = StructType(
    [
        StructField("path", StringType()),
        StructField("size", LongType()),
        StructField("rows", LongType()),
        StructField("stats", StringType()),  # Of Iceberg's files, the footer.
        StructField("partition_values", MapType(StringType(), StringType())),
        StructField("modification_ms", LongType()),
    ]
)
"""Columns of the rows that describe files; ``path`` is relative to the table."""

DEFAULT_FILE_BYTES = 256 << 20
"""Size at which a task finishes a file and begins another, unless the sink sets one."""

DEFAULT_INDEXED_LEAVES = 32
"""Leading leaf columns that get statistics, unless ``delta.dataSkippingNumIndexedCols`` says otherwise."""

_OVERWRITES = "a commit has to be put where there is none, or one of two made at once is lost"

UNSAFE_STORAGE_OPTIONS = {
    "ALLOW_UNSAFE_RENAME": _OVERWRITES,
    "AWS_S3_ALLOW_UNSAFE_RENAME": _OVERWRITES,
    "AWS_S3_LOCKING_PROVIDER": "deltalake takes no locks any more: writers that take them are not held off",
    "MOUNT_ALLOW_UNSAFE_RENAME": _OVERWRITES,
}
"""Options of ``deltalake`` that we refuse, and why."""


@dataclass(frozen=True, slots=True)
class IcebergLayout:
    """How files of an Iceberg table are written."""

    columns: str
    """The columns of the files with Iceberg's ids, as Arrow serializes a schema, in base64."""
    schema: str
    """The table's schema, as JSON of Iceberg."""
    spec: str
    """Its partitions, as JSON of Iceberg."""
    io_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How ``pyiceberg`` enters the table's object store."""


@dataclass(frozen=True, slots=True)
class FileTarget:
    """What tasks need to know about a table."""

    table: str
    """Its name in errors."""
    location: str
    """Local path, or URL as ``deltalake`` or ``pyiceberg`` takes it."""
    read_schema: str
    """Columns that the source reads, as JSON of Spark's."""
    write_schema: str
    """The same columns in the same order, with the table's names and types."""
    partition_by: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    file_bytes: int = DEFAULT_FILE_BYTES
    indexed_leaves: int = DEFAULT_INDEXED_LEAVES
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    iceberg: IcebergLayout | None = None
    """How files of an Iceberg table are written; None for those of a Delta table."""

    def to_json(self) -> str:
        """Return the option's text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> FileTarget:
        """Read the option's text.

        Raises:
            OptionError: the text is not that of a target.
        """
        try:
            value = parse_json(text)
            # JSON has lists in place of tuples.
            value["partition_by"] = tuple(value["partition_by"])
            value["not_null"] = tuple(value["not_null"])
            if value.get("iceberg"):
                value["iceberg"] = IcebergLayout(**value["iceberg"])
            return cls(**value)
        except (ValueError, TypeError, KeyError):
            raise OptionError(TARGET_OPTION, "another text", "unset: ingest() sets it") from None

    @property
    def columns_read(self) -> StructType:
        """Columns that the source reads."""
        return StructType.fromJson(json.loads(self.read_schema))

    @property
    def columns_written(self) -> StructType:
        """Columns of the table, in the order of those read."""
        return StructType.fromJson(json.loads(self.write_schema))

    @property
    def is_local(self) -> bool:
        """Whether the table is in a directory."""
        return "://" not in self.location


def checked_storage_options(
    options: Mapping[str, str], location: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the options by which ``deltalake`` enters a table's object store.

    Args:
        options: Options by the names that ``deltalake`` uses.
        location: The table's place as ``deltalake`` takes it.
        environ: The environment, where ``deltalake`` looks for the same names.

    Raises:
        OptionError: an option is not a string, or lets a commit overwrite a concurrent one.
    """
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise OptionError(f"storage_options[{name!r}]", f"a {type(value).__name__}", "a text")
    # deltalake takes the same names from the environment, where a user may have set one for another program.
    settings = {f"{name} in the environment": value for name, value in environ.items()} | dict(options)
    for name, value in settings.items() if "://" in location else ():
        reason = UNSAFE_STORAGE_OPTIONS.get(name.partition(" ")[0].upper())
        if reason and value.lower() not in ("", "0", "false"):
            raise OptionError("storage_options", name, f"it to be unset: {reason}")
    return dict(options)
