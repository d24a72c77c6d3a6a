"""Which columns an audit compares, for tables of the sink and for other tables."""

from __future__ import annotations

import pytest

from gazette_spark._verify.data_ends import OriginColumns, origin_columns


@pytest.mark.parametrize("value", ["binary", "string"])
@pytest.mark.parametrize("offset", ["bigint", "long", "int"])
def test_raw_rows_have_their_bytes(value: str, offset: str) -> None:
    found = origin_columns({"journal": "string", "offset": offset, "value": value})
    assert found == OriginColumns("journal", "offset", "value")


def test_columns_of_the_source_come_first() -> None:
    """A record's own fields may have the same names as the metadata columns."""
    raw = {"journal": "string", "offset": "bigint", "value": "binary"}
    assert origin_columns({**raw, "_journal": "string", "_offset": "bigint"}) == OriginColumns(
        "_journal", "_offset", None
    )


@pytest.mark.parametrize(
    "types",
    [
        pytest.param({"_journal": "string", "offset": "bigint"}, id="half"),
        pytest.param({"_journal": "string", "_offset": "string"}, id="origin is a text"),
        pytest.param({"journal": "string", "offset": "bigint"}, id="no value"),
        pytest.param({"journal": "string", "offset": "bigint", "value": "double"}, id="value is a number"),
        pytest.param({"journal": "string", "offset": "string", "value": "binary"}, id="offset is a text"),
    ],
)
def test_other_columns_say_nothing(types: dict[str, str]) -> None:
    assert origin_columns(types) is None
