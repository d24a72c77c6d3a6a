"""Schema hints are parsed as Spark parses columns, and override what a sample suggests."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from gazette_spark._options.schema_hints import SchemaHint, field, parse_hints, struct, with_hints
from gazette_spark.errors import OptionError

PRICES = struct([field("price", "double")])
SAMPLE = [
    field("id", "long"),
    field("user", struct([field("name", "string"), field("since", "string")])),
    field("lines", {"type": "array", "elementType": PRICES, "containsNull": True}),
]


def hinted(text: str) -> str:
    """Return the columns of the sample with hints, as Spark writes them."""
    fields = with_hints(SAMPLE, parse_hints("schemaHints", text))
    return StructType.fromJson(struct(fields)).simpleString().removeprefix("struct<").removesuffix(">")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param("a BIGINT", "long", id="upper case"),
        pytest.param("a:bigint", "long", id="with a colon"),
        pytest.param(" `a`  Timestamp_Ltz ", "timestamp", id="another name"),
        pytest.param("a dec", "decimal(10,0)", id="a decimal's default"),
        pytest.param("a NUMERIC( 5 )", "decimal(5,0)", id="no scale"),
    ],
)
def test_names_of_types(text: str, kind: str) -> None:
    assert parse_hints("schemaHints", text) == (SchemaHint(("a",), kind),)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        pytest.param("id DECIMAL(20,0)", "id:decimal(20,0)", id="a column"),
        pytest.param("user.since DATE", "user:struct<name:string,since:date>", id="a field"),
        pytest.param("user.tags ARRAY<INT>", "since:string,tags:array<int>>", id="another field"),
        pytest.param("user VARIANT", "user:variant", id="in place of a struct"),
        pytest.param("lines.element.price INT", "array<struct<price:int>>", id="an element"),
        pytest.param("m MAP<STRING, LONG>, n INT", "m:map<string,bigint>,n:int", id="new"),
        pytest.param("new.inner.x INT", "new:struct<inner:struct<x:int>>", id="a new struct"),
        pytest.param("`a.b``c` INT", "a.b`c:int", id="dots in a name"),
    ],
)
def test_hints_change_what_they_name(text: str, columns: str) -> None:
    found = hinted(text)
    assert columns in found
    assert found.startswith("id:")


def test_the_sample_is_left_alone() -> None:
    """The columns that are remembered for the next start must not include the hints."""
    before = StructType.fromJson(struct(SAMPLE)).json()
    hinted("user.since DATE, lines.element.price INT, id INT")
    assert StructType.fromJson(struct(SAMPLE)).json() == before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "expected a name at the end", id="empty"),
        pytest.param("id", "expected a name at the end", id="no type"),
        pytest.param("id BIGINT,", "expected a name at the end", id="comma at the end"),
        pytest.param("id TEXT", "TEXT is not a type of a column", id="another dialect's type"),
        pytest.param("id BIGINT NOT NULL", "expected ',' before \"NOT NULL\"", id="not null"),
        pytest.param("id DECIMAL(39,0)", "DECIMAL(39,0) has too many digits, or none", id="too many digits"),
        pytest.param("id DECIMAL(x)", "x is not a number of digits", id="no number"),
        pytest.param("id ARRAY", "expected '<' at the end", id="no element"),
        pytest.param("id MAP<STRING>", "expected ',' before \">\"", id="no value"),
        pytest.param("a.b INT, a.b STRING", "'a.b' a second time", id="twice"),
        pytest.param("id " + "ARRAY<" * 5000, "nested too deep", id="deep"),
        pytest.param("id 'x'", "expected a name before", id="a text"),
    ],
)
def test_bad_hints_are_refused(text: str, problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_hints("schemaHints", text)
    assert caught.value.option == "schemaHints"
    assert problem in caught.value.got


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("id.x INT", "'id.x', but 'id' is of type long", id="into a number"),
        pytest.param("lines.price INT", "type array, whose values are called 'element'", id="no element"),
    ],
)
def test_a_path_into_no_struct_is_refused(text: str, problem: str) -> None:
    """The sample may suggest another type than the hint expects."""
    with pytest.raises(OptionError, match="or the type of the whole column") as caught:
        hinted(text)
    assert problem in caught.value.got
