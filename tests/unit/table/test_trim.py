"""Rows are identified only by the columns that record their origin."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from gazette_spark._delta.trim import missing_columns, origin_columns
from gazette_spark.errors import TrimError

PAIR = StructType().add("journal", StringType()).add("offset", LongType())
RAW = StructType([*PAIR.fields]).add("value", BinaryType())
META = StructType().add("n", LongType()).add("_journal", StringType()).add("_offset", LongType())


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        pytest.param(RAW, ("journal", "offset"), id="raw"),
        pytest.param(META, ("_journal", "_offset"), id="metadata"),
        pytest.param(
            StructType([*RAW.fields, *META.fields]), ("_journal", "_offset"), id="metadata before fields"
        ),
        pytest.param(StructType().add("_journal", StringType()), None, id="no offset"),
        pytest.param(
            StructType().add("journal", StringType()).add("offset", IntegerType()), None, id="other type"
        ),
        pytest.param(
            StructType().add("journal", StringType()).add("_offset", LongType()), None, id="of two kinds"
        ),
        pytest.param(PAIR, None, id="fields of records"),
        pytest.param(StructType([*PAIR.fields]).add("value", StringType()), None, id="fields beside a text"),
        pytest.param(StructType(), None, id="nothing"),
    ],
)
def test_columns_are_found_by_name_and_type(schema: StructType, columns: tuple[str, str] | None) -> None:
    """A pair of journal and offset. Metadata columns come first, because fields may have the other names."""
    assert origin_columns(schema) == columns


def test_what_is_missing_is_said_with_the_way_on() -> None:
    schema = StructType().add("n", LongType()).add("price", StringType())
    text = str(TrimError("t", "app", 7, missing_columns(schema)))
    assert "batch 7: part of it is in the table, but it cannot be trimmed" in text
    assert "columns n, price" in text
    assert "_journal and _offset (or journal, offset and value as BINARY" in text
    assert "DeltaSink.resume(reader)" in text
