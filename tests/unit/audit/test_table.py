"""An audit finds the columns and the counts it can rely on, and takes no others for them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gazette_spark.audit.table import PlaceColumns, appended_rows, place_columns


@pytest.mark.parametrize("value", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_raw_rows_have_their_bytes(value: pa.DataType) -> None:
    """A raw row's value is bytes, or a text that Spark made of them without a change."""
    schema = pa.schema([("journal", pa.string()), ("offset", pa.int64()), ("value", value)])
    assert place_columns(schema) == PlaceColumns("journal", "offset", "value")


def test_columns_of_the_source_come_first() -> None:
    """A record's own fields may be called anything."""
    names = ["journal", "offset", "value", "_journal", "_offset"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    assert place_columns(schema) == PlaceColumns("_journal", "_offset", None)


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"_journal": pa.string(), "offset": pa.int64()}, id="half"),
        pytest.param({"journal": pa.string(), "offset": pa.int64()}, id="no value"),
        pytest.param(
            {"journal": pa.string(), "offset": pa.int64(), "value": pa.float64()}, id="value is a number"
        ),
        pytest.param(
            {"journal": pa.string(), "offset": pa.string(), "value": pa.binary()}, id="offset is a text"
        ),
    ],
)
def test_other_columns_say_nothing(columns: dict[str, pa.DataType]) -> None:
    """Such a table's rows are counted."""
    assert place_columns(pa.schema(columns)) is None


@pytest.mark.parametrize(
    ("info", "rows"),
    [
        pytest.param({"operation": "WRITE", "operationMetrics": {"numOutputRows": "7"}}, 7, id="Spark"),
        pytest.param({"operation": "WRITE", "operationMetrics": {"num_added_rows": 7}}, 7, id="deltalake"),
        pytest.param({"operation": "WRITE", "operationMetrics": {"numFiles": "7"}}, None, id="other metrics"),
        pytest.param({"operation": "WRITE"}, None, id="no metrics"),
        pytest.param({"operation": "MERGE", "operationMetrics": {"numOutputRows": "7"}}, None, id="merge"),
    ],
)
def test_rows_are_known_of_appends(info: dict[str, object], rows: int | None) -> None:
    """Rows are known of appends only: a MERGE writes more than its batch's rows."""
    assert appended_rows(info) == rows
