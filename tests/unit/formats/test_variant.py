"""How values are encoded as variants, including those that PySpark's encoder accepts but Spark does not."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType, VariantType, VariantVal

from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._formats.json_reference import encode_variant
from gazette_spark._formats.values import is_variant
from tests.oracles.framings import line_spans


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("null", "00", id="null"),
        pytest.param("true", "04", id="true"),
        pytest.param("-1", "0cff", id="one_byte"),
        pytest.param("128", "108000", id="two_bytes"),
        pytest.param("1.50", "20029600 0000", id="decimal"),
        pytest.param("1e0", "1c000000000000f03f", id="double"),
        pytest.param('"hi"', "096869", id="short_text"),
        pytest.param("[]", "030000", id="no_items"),
        pytest.param("[true]", "0301000104", id="items"),
        pytest.param('{"b":null,"a":true}', "02020100010002" + "0004", id="fields"),
    ],
)
def test_values(text: str, value: str) -> None:
    """The expected bytes follow the description of the format. Fields are sorted by name."""
    assert encode_variant(text)["value"].hex() == value.replace(" ", "")


def test_names_stand_once() -> None:
    assert encode_variant('{"b":{"a":1,"b":2}}')["metadata"] == b"\x01\x02\x00\x01\x02ba"


@pytest.mark.timeout(60)
def test_a_repeated_name_among_many_takes_no_quadratic_time() -> None:
    """An object may have a million names. Searching all names for each would take minutes."""
    count = 300_000
    text = "{" + ",".join(f'"k{number}":1' for number in range(count)) + ',"k7":1}'
    with pytest.raises(ValueError, match="repeats the name 'k7'"):
        encode_variant(text)


@pytest.mark.parametrize("text", ['{"a":[1,{"b":"x"}],"c":-2.5}', "12345678901234567890", f'["{"x" * 100}"]'])
def test_spark_reads_them(text: str) -> None:
    """PySpark's own reader is the reference."""
    parts = encode_variant(text)
    assert VariantVal(parts["value"], parts["metadata"]).toJson() == text


def test_columns_of_variants() -> None:
    kind = to_arrow_type(VariantType())
    assert is_variant(kind)
    assert not is_variant(pa.struct([("value", pa.binary()), ("metadata", pa.binary())]))
    assert StructType().add("v", VariantType()).simpleString() == "struct<v:variant>"
    data = b'{"v":1}\n{}\n{"v":null}\n{"v":{"a":1,"a":2},"w":7}\n'
    schema = pa.schema([("v", kind), ("w", pa.int64()), ("_corrupt_record", pa.string())])
    (batch,) = JsonParser(JsonFormat(schema)).record_batches([Block("j", 0, data, *line_spans(data))])
    one, absent, null, bad = batch.to_pylist()
    assert (one["v"]["value"], absent["v"], null["v"]["value"]) == (b"\x0c\x01", None, b"\x00")
    assert (bad["v"], bad["w"], bad["_corrupt_record"]) == (None, 7, '{"v":{"a":1,"a":2},"w":7}')


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        pytest.param('"\\ud800"', '"?"', id="no partner"),
        pytest.param('["\\ude00\\ud83d","\\ud83d\\ude00"]', '["??","\U0001f600"]', id="wrong order"),
        pytest.param('"\\\\ud800"', '"\\\\ud800"', id="an escaped backslash"),
        pytest.param('{"\\udfff":1}', '{"?":1}', id="a name"),
    ],
)
def test_a_surrogate_without_its_partner_is_a_question_mark(text: str, spelled: str) -> None:
    """Java writes a question mark, while PySpark's encoder raises an error."""
    assert encode_variant(text) == encode_variant(spelled)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param('{"a":1,"a":2}', "repeats the name 'a'", id="repeated"),
        pytest.param('{"\\ud800":1,"?":2}', "repeats the name", id="repeated once it is written"),
        pytest.param('{"\uffff":1,"\U0001f600":2}', "different orders", id="names past U+FFFF"),
        pytest.param("[" * 501 + "]" * 501, "nested too deep", id="deep"),
    ],
)
def test_what_spark_would_not_read_back_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        encode_variant(text)
