"""Which columns are inferred from records, and which records contribute nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gazette_spark._formats.framing import Block
from gazette_spark._formats.json_infer import infer
from gazette_spark._formats.values import JsonDialect
from gazette_spark.errors import RecordError
from tests.oracles.framings import line_spans


def inferred(*records: bytes, mode: str = "PERMISSIVE") -> dict[str, pa.DataType]:
    data = b"".join(record + b"\n" for record in records)
    schema = infer([Block("acme/events", 100, data, *line_spans(data))], mode=mode)
    return dict(zip(schema.names, schema.types, strict=True))


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        pytest.param("1", "2", pa.int64(), id="whole"),
        pytest.param("1", "2.5", pa.float64(), id="whole_and_not"),
        pytest.param("1", "12345678901234567890", pa.decimal128(20, 0), id="past_64_bits"),
        pytest.param("1.5", "12345678901234567890", pa.float64(), id="decimal_and_not"),
        pytest.param("1" * 39, "1", pa.float64(), id="past_38_digits"),
        pytest.param("1", '"x"', pa.string(), id="anything_else"),
        pytest.param("1", "true", pa.string(), id="number_and_boolean"),
        pytest.param('""', "true", pa.bool_(), id="empty_text"),
        pytest.param("null", '""', pa.string(), id="only_nulls"),
        pytest.param("[]", "[1,2.5]", pa.list_(pa.field("element", pa.float64())), id="arrays"),
        pytest.param(
            '{"y":1}', '{"x":null}', pa.struct([("x", pa.string()), ("y", pa.int64())]), id="objects"
        ),
        pytest.param('{"y":1}', "[1]", pa.string(), id="array_and_object"),
    ],
)
def test_types_are_merged(one: str, other: str, kind: pa.DataType) -> None:
    records = [f'{{"a":{text}}}'.encode() for text in (one, other)]
    assert inferred(*records) == inferred(*reversed(records)) == {"a": kind}


def test_columns_stand_in_order_of_their_names() -> None:
    """Columns have the order of Java strings. Unnamed fields and empty objects are left out."""
    record = '{"b":1,"B":1,"\U0001f600":1,"\uff5e":1,"":1,"none":{},"nones":[{}]}'
    assert list(inferred(record.encode())) == ["B", "b", "\U0001f600", "\uff5e"]


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_many_names_take_no_quadratic_time() -> None:
    """Objects may use ids as names. Copying all names for each object would take minutes."""
    count = 150_000
    columns = inferred(b'{"a":[' + b",".join(b'{"k%d":1}' % number for number in range(count)) + b"]}")
    assert columns["a"].value_type.num_fields == count


def test_malformed_records_by_mode() -> None:
    records = (b'{"a":1}', b"", b"null", b"oops", b"[1]", b'{"a":1} {}')
    assert inferred(*records) == {"_corrupt_record": pa.string(), "a": pa.int64()}
    assert inferred(*records, mode="DROPMALFORMED") == {"a": pa.int64()}
    with pytest.raises(RecordError, match="record at offset 114: malformed"):
        inferred(*records, mode="FAILFAST")


def test_what_counts_as_json_is_what_the_reader_takes() -> None:
    record = b"{'a':+INF}\n"
    block = Block("j", 0, record, *line_spans(record))
    assert infer([block]).names == ["a"]
    for strict in (JsonDialect(allow_single_quotes=False), JsonDialect(allow_non_numeric_numbers=False)):
        assert infer([block], dialect=strict).names == ["_corrupt_record"]


def test_nothing_has_no_columns() -> None:
    assert inferred() == inferred(b"{}", b"null") == {}
