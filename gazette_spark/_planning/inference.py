"""Infers the columns of a query without a schema from a sample, or reads those that its first start stored.

The sample is bounded and deterministic: in order of names, the first :data:`MAX_JOURNALS` journals with bytes
in the query's range, and of each the records that begin in the first ``samplingBytes``. A query that starts
at the latest offsets, or whose range has no records yet, is sampled from the earliest offset on.

With ``inferredSchemaLocation`` a restart uses the columns of the first start. They are in the file
``schema.json`` in that directory, which is written once, under a temporary name first, and never changed. Its
first line has the length and SHA-256 of the rest; then follow the columns as JSON. Hints are not stored: they
apply at each start.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from gazette_spark._formats import json_infer, metadata
from gazette_spark._formats.framing import Block
from gazette_spark._formats.registry import FORMAT_FRAMINGS, framing_named, json_dialect
from gazette_spark._options.query_range import EARLIEST, LATEST, OffsetChoice
from gazette_spark._options.schema_hints import field, struct, with_hints
from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.cutter import PieceScan
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.plan import Planner
from gazette_spark.client._read.fragment import without_query
from gazette_spark.errors import DamagedFileError, JsonError, OptionError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.seal import seal, unseal
from gazette_spark.strict_json import parse_json

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyarrow.fs import FileSystem

    from gazette_spark._planning.reads import JournalSource


MAX_JOURNALS = 16
"""Maximum number of journals that are sampled."""

SAMPLING_TIMEOUT_S = 60.0
"""Maximum seconds for reading a sample. A part would be a different sample, so a timeout is an error."""

OPTION = "inferredSchemaLocation"

FILE = "schema.json"

FORMAT_VERSION = 1

Fields: TypeAlias = "list[dict[str, Any]]"
"""Columns in Spark's JSON form."""


def query_schema(
    options: SourceOptions, open_journals: Callable[[], AbstractContextManager[JournalSource]]
) -> StructType:
    """Return the columns of a query, stored or inferred, with its hints applied.

    The column for rescued data, if any, comes last and replaces a field of the same name.

    Args:
        options: Options of the query.
        open_journals: Opens the query's journals. It is not called if the location has the columns.

    Raises:
        OptionError: the columns cannot be inferred, or contradict the hints.
    """
    if options.format not in (None, "json"):
        raise OptionError(
            "inferSchema", f"format={options.format}", "format=json, or columns in .schema(...)"
        )

    def infer() -> list[dict[str, Any]]:
        with open_journals() as journals:
            columns = infer_schema(journals, options)
            return from_arrow_schema(columns).jsonValue()["fields"]  # type: ignore[no-any-return]

    columns = (
        remembered(options.inferred_schema_location, infer) if options.inferred_schema_location else infer()
    )
    rescued = options.rescued_data_column
    # Hints are applied after the columns are stored, so that a query may change them at a restart.
    fields = [column for column in with_hints(columns, options.schema_hints) if column["name"] != rescued]
    return StructType.fromJson(struct(fields + ([field(rescued, "string")] if rescued else [])))


def infer_schema(journals: JournalSource, options: SourceOptions) -> pa.Schema:
    """Return the columns of a sample of a query's records.

    Fields with the name of a metadata column, or of the column for rescued data, are omitted. With a column
    for rescued data there is no column for malformed records.

    Raises:
        OptionError: there is no record, no record has a field, or the framing has no fields.
    """
    sample = plan_sample(journals, options)
    if sample.framing != FORMAT_FRAMINGS["json"]:
        got = f"journals of framing {sample.framing}"
        raise OptionError("inferSchema", got, "format=json, or columns in .schema(...)")
    schema = json_infer.infer(
        sampled(journals, options, sample),
        mode="DROPMALFORMED" if options.rescued_data_column else options.mode,
        corrupt_column=options.column_name_of_corrupt_record,
        dialect=json_dialect(options),
    )
    omitted = {*metadata.DDL, options.rescued_data_column}
    if options.reads_committed:
        omitted |= metadata.MESSAGE_DDL.keys()
    columns = [field for field in schema if field.name not in omitted]
    if not columns:
        got = f"{len(sample.pieces)} journals whose first records have no fields"
        raise OptionError("inferSchema", got, "records of JSON objects, more samplingBytes, or a schema")
    return pa.schema(columns)


@dataclass(frozen=True, slots=True)
class Sample:
    """The ranges of a query's sample."""

    framing: str
    """Name of the framing of all its journals."""
    pieces: tuple[Piece, ...]
    """At least one piece, in order of the journals' names."""


def plan_sample(journals: JournalSource, options: SourceOptions) -> Sample:
    """Choose the journals to sample.

    Raises:
        OptionError: no journal has a record, or their framings differ.
    """
    # A query that starts at the latest offsets has no records yet, so older records are sampled.
    choice = options.starting_offsets
    named = {journal: EARLIEST if offset == LATEST else offset for journal, offset in choice.named.items()}
    early = OffsetChoice(EARLIEST if choice.default == LATEST else choice.default, named)
    from_start = replace(options, starting_offsets=early)
    # A query that continues a table, or an earlier query, may start at the end of all journals. Its columns
    # are those of older records as well.
    from_earliest = replace(
        from_start,
        starting_offsets=OffsetChoice(EARLIEST),
        starting_timestamp=None,
        starting_offsets_by_timestamp={},
        resume_offsets=None,
    )
    for sampling in (from_start, from_earliest):
        planner = Planner(journals, sampling)
        start, end = planner.batch()
        # Take journals in order of names, not of size or age, so that the same journals give the same sample.
        begins, ends = start.read_through, end.read_through
        filled = [journal for journal in sorted(begins) if ends[journal] > begins[journal]][:MAX_JOURNALS]
        if filled:
            break
    pieces = planner.pieces(
        JournalOffsets({journal: begins[journal] for journal in filled}),
        JournalOffsets({journal: ends[journal] for journal in filled}),
    )
    # Make one piece for each journal, of which only the first bytes are read.
    heads = {
        piece.journal: replace(piece, end=piece.limit)
        for piece in pieces
        if piece.begin == begins[piece.journal]
    }
    if not heads:
        got = f"{options.selection}, whose journals have no record yet"
        raise OptionError("inferSchema", got, "journals with records, or the columns in .schema(...)")
    framings = sorted({piece.framing for piece in heads.values()})
    if len(framings) > 1:
        got = f"journals whose framings are {' and '.join(framings)}"
        raise OptionError("inferSchema", got, "one framing, or the columns in .schema(...)")
    return Sample(framings[0], tuple(heads[name] for name in sorted(heads)))


def sampled(
    journals: JournalSource,
    options: SourceOptions,
    sample: Sample,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Block]:
    """Yield the records of a sample.

    Raises:
        OptionError: reading takes longer than :data:`SAMPLING_TIMEOUT_S`.
    """
    until = clock() + SAMPLING_TIMEOUT_S
    for piece in sample.pieces:
        scan = PieceScan(
            journals,
            piece,
            fail_on_data_loss=options.fail_on_data_loss,
            max_record_bytes=options.max_record_bytes,
            framing=framing_named(piece.framing, options.max_record_bytes),
        )
        # Records that begin before the bound count, so that the sample does not depend on the blocks they
        # arrive in.
        stop = piece.begin + options.sampling_bytes
        for block in scan:
            if clock() > until:
                got = f"a sample that was not read within {SAMPLING_TIMEOUT_S:.0f} s"
                raise OptionError("samplingBytes", got, "fewer bytes, or the columns in .schema(...)")
            yield block.rows(0, int(np.searchsorted(block.offsets, stop)))
            if block.offset + len(block.data) >= stop:
                break


def remembered(location: str, infer: Callable[[], Fields]) -> Fields:
    """Return the columns that a location stores; infer and store them if it has none.

    Of two queries that start at the same time, the later one uses the columns that the first one has stored.

    Raises:
        OptionError: the location cannot be used, or its file was not written by this function.
    """
    # Imported here because few queries have a location.
    from pyarrow.fs import FileSystem

    with _trouble(location):
        system, directory = FileSystem.from_uri(location)
        path = f"{directory.rstrip('/')}/{FILE}"
        text = _read(system, path)
    if text is None:
        value = {"format_version": FORMAT_VERSION, "schema": struct(infer())}
        text = seal(json.dumps(value, indent=2).encode() + b"\n")
        with _trouble(location):
            system.create_dir(directory)
            # A reader must never see half a file, because a query's columns would then depend on when it read
            # the file.
            draft = f"{directory.rstrip('/')}/.{FILE}.{os.getpid()}-{uuid4().hex}"
            with system.open_output_stream(draft) as file:
                file.write(text)
            # Another query that started at the same time may have stored its columns first. The file systems
            # of pyarrow cannot create a file only if it does not exist, so two queries that get here at the
            # same moment both continue with their own columns, and from the next start on with those of the
            # later file. This matters only if their samples differ.
            if (first := _read(system, path)) is not None:
                system.delete_file(draft)
                text = first
            else:
                system.move(draft, path)
    return parse_fields(text, f"{location.rstrip('/')}/{FILE}")


@contextmanager
def _trouble(location: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        got = f"{without_query(location)}, which cannot be used: {error}"
        raise OptionError(OPTION, got, "a directory that the driver can read and write") from None


def parse_fields(text: bytes, where: str) -> Fields:
    """Return the columns in a file's content.

    Raises:
        OptionError: the content is invalid. The error names the file, the problem and the remedies.
    """
    value, problem = None, "in which there is no schema"
    try:
        value = parse_json(unseal(text, where))
    except DamagedFileError as error:
        problem = f"that is damaged: {error.problem}"
    except JsonError as error:
        problem = f"that is {error}"
    match value:
        case {"format_version": version, "schema": {"type": "struct", "fields": list(fields)} as schema} if (
            version == FORMAT_VERSION
        ):
            with suppress(Exception):  # Spark has no common error for an invalid type.
                StructType.fromJson(schema)
                return fields
        case {"format_version": int(version)} if version > FORMAT_VERSION:
            problem = f"of format_version {version}, which a later release of gazette_spark wrote"
    ways = (
        "the file that the query's first start wrote: restore it; or delete it to infer the columns again, "
        "which may differ; or give the columns in .schema(...)"
    )
    raise OptionError(OPTION, f"a file {where} {problem}", ways)


def _read(system: FileSystem, path: str) -> bytes | None:
    try:
        with system.open_input_stream(path) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None
