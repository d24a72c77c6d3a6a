"""The columns of a query that gives none, from a sample of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from gazette_spark.errors import OptionError
from gazette_spark.framing import json_infer, metadata
from gazette_spark.options.source import FORMAT_FRAMINGS, SourceOptions
from gazette_spark.scan.formats import json_dialect
from gazette_spark.scan.sampling import plan_sample, sampled

if TYPE_CHECKING:
    from gazette_spark.scan.reads import JournalSource


def infer_schema(journals: JournalSource, options: SourceOptions) -> pa.Schema:
    """Return the columns of a sample of a query's records.

    Fields with the name of a metadata column give no column. With the option for rescued data, its column
    takes the place of the one for malformed records.

    Raises:
        OptionError: there is no record, no record has a field, or the format is one without fields.
    """
    if options.format not in (None, "json"):
        raise OptionError(
            "inferSchema", f"format={options.format}", "format=json, or columns in .schema(...)"
        )
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
    rescued = options.rescued_data_column
    return pa.schema(found + ([pa.field(rescued, pa.string())] if rescued else []))
