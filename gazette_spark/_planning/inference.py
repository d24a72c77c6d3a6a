"""The columns of a query that gives none: from a sample of its records, or from an earlier start's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from gazette_spark._formats import json_infer, metadata
from gazette_spark._formats.registry import json_dialect
from gazette_spark._planning.remembered_schema import remembered
from gazette_spark._planning.sampling import plan_sample, sampled
from gazette_spark.errors import OptionError
from gazette_spark.options.schema_hints import field, struct, with_hints
from gazette_spark.options.source import FORMAT_FRAMINGS, SourceOptions

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gazette_spark._planning.reads import JournalSource


def query_schema(
    options: SourceOptions, open_journals: Callable[[], AbstractContextManager[JournalSource]]
) -> StructType:
    """Return the columns of a query: those of its location or of a sample, with its hints.

    With the option for rescued data, its column comes last, and no field has its name.

    Args:
        options: Options of the query.
        open_journals: Opens its journals; not called where the location has the columns.

    Raises:
        OptionError: the columns cannot be known, or not with these hints.
    """
    if options.format not in (None, "json"):
        raise OptionError(
            "inferSchema", f"format={options.format}", "format=json, or columns in .schema(...)"
        )

    def infer() -> list[dict[str, Any]]:
        with open_journals() as journals:
            return from_arrow_schema(infer_schema(journals, options)).jsonValue()["fields"]  # type: ignore[no-any-return]

    columns = (
        remembered(options.inferred_schema_location, infer) if options.inferred_schema_location else infer()
    )
    rescued = options.rescued_data_column
    fields = [each for each in with_hints(columns, options.schema_hints) if each["name"] != rescued]
    return StructType.fromJson(struct(fields + ([field(rescued, "string")] if rescued else [])))


def infer_schema(journals: JournalSource, options: SourceOptions) -> pa.Schema:
    """Return the columns of a sample of a query's records.

    Fields with the name of a metadata column, or of the one for rescued data, give no column. With the option
    for rescued data there is no column for malformed records.

    Raises:
        OptionError: there is no record, no record has a field, or the records have none.
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
    found = [field for field in schema if field.name not in {*metadata.DDL, options.rescued_data_column}]
    if not found:
        got = f"{len(sample.pieces)} journals in whose first records no field is seen"
        raise OptionError("inferSchema", got, "records of JSON objects, more samplingBytes, or a schema")
    return pa.schema(found)
