"""Which blocks are read by their shape, and which are left to the parser."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gazette_spark.framing.base import Block
from gazette_spark.framing.json_shape import ShapeReader
from gazette_spark.framing.lines import cut

STORAGE = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("ok", pa.bool_()), ("user", pa.string())])


def read(*records: bytes, extra_fields: bool = True) -> list[dict[str, object]] | None:
    """Return the rows of a block, None if it is not taken."""
    data = b"".join(record + b"\n" for record in records)
    found = ShapeReader(STORAGE, extra_fields=extra_fields).columns(Block("a/b", 0, data, *cut(data)))
    if found is None:
        return None
    assert all(column.type == STORAGE.field(name).type for name, column in found.items())
    table = pa.table({name: found[name] for name in STORAGE.names})
    result: list[dict[str, object]] = table.to_pylist()
    return result


def test_values_are_cut_out() -> None:
    """Records with the same bytes between values of any length are read, fields in any order."""
    found = read(
        b'{"user": "ann", "id": 1, "ok": true, "price": 0.5}',
        b'{"user": "", "id": -12345678901, "ok": false, "price": -10}',
        '{"user": "ü{:,}", "id": 0, "ok": true, "price": 123.456}'.encode(),
    )
    assert found == [
        {"id": 1, "price": 0.5, "ok": True, "user": "ann"},
        {"id": -12345678901, "price": -10.0, "ok": False, "user": ""},
        {"id": 0, "price": 123.456, "ok": True, "user": "ü{:,}"},
    ]


def test_absent_columns_are_null() -> None:
    """A column that the shape has not is null in all rows."""
    assert read(b'{"id":7}') == [{"id": 7, "price": None, "ok": None, "user": None}]


def test_extra_fields_are_skipped_where_they_are_allowed() -> None:
    """Fields without a column are looked at and left out, or make the block another's."""
    record = b'{"x":"y","id":7,"z":1.5,"w":false}'
    assert read(record) == [{"id": 7, "price": None, "ok": None, "user": None}]
    assert read(record, extra_fields=False) is None


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(b'{"id": 2}', id="a-blank-more"),
        pytest.param(b'{"id":2,"ok":true}', id="a-field-more"),
        pytest.param(b'{"ID":2}', id="another-name"),
        pytest.param(b'{"id":02}', id="leading-zero"),
        pytest.param(b'{"id":2.}', id="no-digit-after-the-point"),
        pytest.param(b'{"id":1e2}', id="exponent"),
        pytest.param(b'{"id":2.5}', id="fraction-for-a-whole-number"),
        pytest.param(b'{"id":9223372036854775808}', id="too-large"),
        pytest.param(b'{"id":null}', id="null"),
        pytest.param(b'{"id":"2"}', id="text-for-a-number"),
        pytest.param(b'{"id":}', id="nothing"),
        pytest.param(b'{"id":2\t}', id="control-character"),
        pytest.param(b'{"id":2}\r', id="carriage-return"),
        pytest.param(b"", id="empty-record"),
    ],
)
def test_another_shape_is_not_taken(other: bytes) -> None:
    """One record that is not like the first one leaves the block to the parser, wherever it stands."""
    first = b'{"id":1}'
    assert read(first, first) is not None
    for records in ([first, other, first], [first, first, other], [other, first]):
        assert read(*records) is None


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(rb'{"user":"a\"b"}', id="escape"),
        pytest.param(b'{"user":{"x":1}}', id="nested"),
        pytest.param(b'{"user":["x"]}', id="array"),
        pytest.param(b'{"user":"a","user":"b"}', id="name-twice"),
        pytest.param(b'{"user":"a",}', id="trailing-comma"),
        pytest.param(b'{"user":"a"}x', id="more-after-the-end"),
        pytest.param(b'x{"user":"a"}', id="more-before-the-begin"),
        pytest.param(b'{"user":1}', id="number-for-text"),
        pytest.param(b'{"x":1.2.3}', id="stranger-that-is-no-number"),
        pytest.param(b"{}", id="no-fields"),
    ],
)
def test_what_is_not_flat_and_plain_is_not_taken(record: bytes) -> None:
    """A block of the same record again and again is left to the parser where the record is not plain."""
    assert read(record, record) is None


def test_only_plain_columns_can_be_read() -> None:
    """A schema with a nested column, a timestamp or a decimal is the parser's."""
    for kind in (pa.timestamp("us"), pa.decimal128(10, 2), pa.list_(pa.int64())):
        assert not ShapeReader(pa.schema([("x", kind)]), extra_fields=True).usable
    assert ShapeReader(STORAGE, extra_fields=True).usable
