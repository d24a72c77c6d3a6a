"""The inferred columns of a query, kept in a file, so that a restart has the columns of the first start.

The file is ``schema.json`` in the directory that the option ``inferredSchemaLocation`` names. It is written
once, under another name first, and never changed. Hints are no part of it: they count at each start. Below a
first line with its length and SHA-256 it has the columns as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from pyspark.sql.types import StructType

from gazette_spark.client._read.fragments import without_query
from gazette_spark.errors import DamagedFileError, JsonError, OptionError
from gazette_spark.options.schema_hints import struct
from gazette_spark.seal import seal, unseal
from gazette_spark.strict_json import parse_json

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

OPTION = "inferredSchemaLocation"

FILE = "schema.json"

FORMAT_VERSION = 1


Fields: TypeAlias = "list[dict[str, Any]]"
"""Columns in the form of Spark's JSON."""


def remembered(location: str, infer: Callable[[], Fields]) -> Fields:
    """Return the columns that a location has; infer and write them if it has none.

    Where two queries start at once, the one whose file is there first counts for both.

    Raises:
        OptionError: the location cannot be used, or its file is none that this wrote.
    """
    # Loaded here: few queries have a location.
    from pyarrow.fs import FileSystem

    with _trouble(location):
        system, directory = FileSystem.from_uri(location)
        path = f"{directory.rstrip('/')}/{FILE}"
        found = _read(system, path)
    if found is None:
        fields = infer()
        with _trouble(location):
            found = _written(system, directory, path, fields)
    return parse_fields(found, f"{location.rstrip('/')}/{FILE}")


@contextmanager
def _trouble(location: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        got = f"{without_query(location)}, which cannot be used: {error}"
        raise OptionError(OPTION, got, "a directory that the driver can read and write") from None


def parse_fields(text: bytes, where: str) -> Fields:
    """Return the columns of a file.

    Raises:
        OptionError: naming the file, its problem and the ways out.
    """
    value, problem = None, "in which there is no schema"
    try:
        value = parse_json(unseal(text, where))
    except DamagedFileError as error:
        problem = f"that is damaged: {error.problem}"
    except JsonError as error:
        problem = f"that is {error}"
    match value:
        case {"format_version": found, "schema": {"type": "struct", "fields": list(fields)} as schema} if (
            found == FORMAT_VERSION and _is_schema(schema)
        ):
            return fields
        case {"format_version": int(version)} if version > FORMAT_VERSION:
            problem = f"of format_version {version}, which a later gazette_spark wrote"
    ways = (
        "the file that the query's first start wrote: restore it; or delete it, and the columns are inferred "
        "again, maybe others; or give the columns in .schema(...)"
    )
    raise OptionError(OPTION, f"a file {where} {problem}", ways)


def _is_schema(schema: dict[str, Any]) -> bool:
    try:
        StructType.fromJson(schema)
    except Exception:  # noqa: BLE001 - Spark has no one error for what is no type
        return False
    return True


def _read(system: FileSystem, path: str) -> bytes | None:
    try:
        with system.open_input_stream(path) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None


def _written(system: FileSystem, directory: str, path: str, fields: Fields) -> bytes:
    value = {"format_version": FORMAT_VERSION, "schema": struct(fields)}
    text = seal(json.dumps(value, indent=2).encode() + b"\n")
    system.create_dir(directory)
    draft = f"{directory.rstrip('/')}/.{FILE}.{os.getpid()}-{uuid4().hex}"
    with system.open_output_stream(draft) as file:
        file.write(text)
    if (first := _read(system, path)) is not None:
        system.delete_file(draft)
        return first
    system.move(draft, path)
    return text
