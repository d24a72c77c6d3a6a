"""Defines where a task writes its data files, and the rows that report them to the driver.

A target is passed as one option of the source. The option's name contains ``secret``, so Spark redacts its
value.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from gazette_spark._options.table import TARGET_OPTION
from gazette_spark.errors import OptionError, TableRefusedError
from gazette_spark.locations import local_path
from gazette_spark.strict_json import parse_json

FILES_SCHEMA = StructType(
    [
        StructField("path", StringType()),
        StructField("size", LongType()),
        StructField("rows", LongType()),
        StructField("stats", StringType()),  # For files of Iceberg tables: the footer.
        StructField("partition_values", MapType(StringType(), StringType())),
        StructField("modification_ms", LongType()),
    ]
)
"""Columns of the rows that describe files; ``path`` is relative to the table."""

DEFAULT_FILE_BYTES = 256 << 20
"""Default size at which a task finishes a file and starts another one."""

DEFAULT_INDEXED_LEAVES = 32
"""Number of leading leaf columns with statistics, unless ``delta.dataSkippingNumIndexedCols`` is set."""

_OVERWRITES = "a commit must not overwrite another one, or one of two concurrent commits is lost"

UNSAFE_STORAGE_OPTIONS = {
    "ALLOW_UNSAFE_RENAME": _OVERWRITES,
    "AWS_S3_ALLOW_UNSAFE_RENAME": _OVERWRITES,
    "AWS_S3_LOCKING_PROVIDER": "deltalake no longer takes locks, so it does not wait for writers that do",
    "MOUNT_ALLOW_UNSAFE_RENAME": _OVERWRITES,
}
"""Options of ``deltalake`` that are refused, and why."""


@dataclass(frozen=True, slots=True)
class CredentialIssuer:
    """A table whose catalog issues credentials for its store. Only the driver requests them, never a task."""

    catalog: str
    """Name of the catalog in the configuration of ``pyiceberg``."""
    identifier: str
    """Namespace and name of the table."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the catalog that replace configured ones."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How ``pyiceberg`` accesses a table's object store."""

    properties: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class IcebergLayout:
    """How files of an Iceberg table are written."""

    columns: str
    """The columns of the files with Iceberg's ids, as a serialized Arrow schema in base64."""
    schema: str
    """The table's schema, as Iceberg's JSON."""
    spec: str
    """The table's partitions, as Iceberg's JSON."""
    store: StoreAccess = StoreAccess()
    """How tasks access the table's object store, unless the driver has newer credentials."""
    issuer: CredentialIssuer | None = None
    """Issuer of newer credentials, which the driver requests before each batch; None if ``store`` has lasting
    ones."""


@dataclass(frozen=True, slots=True)
class FileTarget:
    """What tasks need to know about a table."""

    table: str
    """Name of the table in errors."""
    location: str
    """Local path, or URL in the form of ``deltalake`` or ``pyiceberg``."""
    read_schema: str
    """Columns that the source reads, as Spark's JSON."""
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
            if layout := value.get("iceberg"):
                layout["store"] = StoreAccess(**layout["store"])
                layout["issuer"] = layout["issuer"] and CredentialIssuer(**layout["issuer"])
                value["iceberg"] = IcebergLayout(**layout)
            return cls(**value)
        except (ValueError, TypeError, KeyError):
            raise OptionError(TARGET_OPTION, "another text", "to be unset: ingest() sets it") from None

    def for_tasks(self) -> FileTarget:
        """Return the target without the fields that only the driver may use."""
        if self.iceberg is None or self.iceberg.issuer is None:
            return self
        return replace(self, iceberg=replace(self.iceberg, issuer=None))

    def entered_by(self, store: StoreAccess | None) -> FileTarget:
        """Return the target with newer credentials for its store; None changes nothing."""
        if store is None or self.iceberg is None:
            return self
        return replace(self, iceberg=replace(self.iceberg, store=store))

    @property
    def columns_read(self) -> StructType:
        """Columns that the source reads."""
        return StructType.fromJson(json.loads(self.read_schema))

    @property
    def columns_written(self) -> StructType:
        """Columns of the table, in the order of :attr:`columns_read`."""
        return StructType.fromJson(json.loads(self.write_schema))

    @property
    def is_local(self) -> bool:
        """Whether the table is in a directory."""
        return "://" not in self.location


def check_files(table: str, location: str, files: Iterable[Any]) -> None:
    """Refuse data files that are not in a table's directory on this machine, before it commits their names.

    Files in an object store are not checked.

    Args:
        table: Name of the table in errors.
        location: Where the table's files are, in Spark's spelling.
        files: Rows of ``FILES_SCHEMA``.

    Raises:
        TableRefusedError: a task on another machine has written a file to that machine's own disk.
    """
    if (directory := local_path(location)) is None:
        return
    # A path without a scheme is a directory of each machine, even if Spark's default file system is another
    # one. Unless the machines share the directory, no reader would find rows that the ledger counts.
    for file in files:
        if not Path(directory, file.path).is_file():
            problem = (
                f"a task has written {file.path}, which is not in {directory} on the driver's machine "
                f"({socket.gethostname()}). Nothing was committed. Put the table into a directory that all "
                "machines share, or into an object store, and name it with its scheme"
            )
            raise TableRefusedError(table, problem)


def checked_storage_options(
    options: Mapping[str, str], location: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the options with which ``deltalake`` accesses a table's object store.

    Args:
        options: Options with the names that ``deltalake`` uses.
        location: The table's location in ``deltalake``'s form.
        environ: The environment, where ``deltalake`` looks for the same names.

    Raises:
        OptionError: an option is not a string, or lets a commit overwrite a concurrent one.
    """
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise OptionError(f"storage_options[{name!r}]", f"a {type(value).__name__}", "a string")
    # deltalake also reads these names from the environment, where a user may have set one for another
    # program.
    settings = {f"{name} in the environment": value for name, value in environ.items()} | dict(options)
    for name, value in settings.items() if "://" in location else ():
        reason = UNSAFE_STORAGE_OPTIONS.get(name.partition(" ")[0].upper())
        if reason and value.lower() not in ("", "0", "false"):
            raise OptionError("storage_options", name, f"it to be unset: {reason}")
    return dict(options)
