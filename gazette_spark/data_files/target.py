"""Where a task's data files go, and the rows that tell the driver of them.

A target travels as one option of the source. Its name contains ``secret``, so Spark shows its text nowhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from gazette_spark.errors import OptionError
from gazette_spark.options.table import TARGET_OPTION
from gazette_spark.strict_json import parse_json

FILES_SCHEMA = StructType(
    [
        StructField("path", StringType()),
        StructField("size", LongType()),
        StructField("rows", LongType()),
        StructField("stats", StringType()),
        StructField("partition_values", MapType(StringType(), StringType())),
        StructField("modification_ms", LongType()),
    ]
)
"""Columns of the rows that tell of files; ``path`` is relative to the table."""

DEFAULT_FILE_BYTES = 256 << 20
"""Size at which a file is ended and another begun, if the sink does not say."""

DEFAULT_INDEXED_LEAVES = 32
"""Leading leaf columns that get statistics, unless ``delta.dataSkippingNumIndexedCols`` says otherwise."""

_OVERWRITES = "a commit has to be put where there is none, or one of two made at once is lost"

UNSAFE_STORAGE_OPTIONS = {
    "ALLOW_UNSAFE_RENAME": _OVERWRITES,
    "AWS_S3_ALLOW_UNSAFE_RENAME": _OVERWRITES,
    "AWS_S3_LOCKING_PROVIDER": "deltalake takes no locks any more: writers that take them are not held off",
    "MOUNT_ALLOW_UNSAFE_RENAME": _OVERWRITES,
}
"""Options of ``deltalake``, and why a store is not entered by them."""


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A table as the tasks need to know it."""

    table: str
    """Its name in errors."""
    location: str
    """Local path, or URL as ``deltalake`` takes it."""
    read_schema: str
    """Columns that the source reads, as JSON of Spark's."""
    write_schema: str
    """The same columns in the same order, with the table's names and types."""
    partition_by: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    file_bytes: int = DEFAULT_FILE_BYTES
    indexed_leaves: int = DEFAULT_INDEXED_LEAVES
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_json(self) -> str:
        """Return the option's text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> FileTarget:
        """Read the option's text.

        Raises:
            OptionError: it is none.
        """
        try:
            value = parse_json(text)
            value["partition_by"] = tuple(value["partition_by"])
            value["not_null"] = tuple(value["not_null"])
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
    given: Mapping[str, str], location: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the options by which ``deltalake`` enters a table's object store.

    Args:
        given: Its options, by its names.
        location: The table's place as ``deltalake`` takes it.
        environ: Where it looks for the same names.

    Raises:
        OptionError: an option is no text, or would have commits made without a look for another's.
    """
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise OptionError(f"storage_options[{name!r}]", f"a {type(value).__name__}", "a text")
    found = {f"{name} in the environment": value for name, value in environ.items()} | dict(given)
    for name, value in found.items() if "://" in location else ():
        reason = UNSAFE_STORAGE_OPTIONS.get(name.partition(" ")[0].upper())
        if reason and value.lower() not in ("", "0", "false"):
            raise OptionError("storage_options", name, f"it to be unset: {reason}")
    return dict(given)
