"""Compares the UUIDs of blocks with those of the locator, which reads one record at a time."""

from __future__ import annotations

import json
import tracemalloc
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark._formats.fixed import frame
from gazette_spark._formats.framing import Block
from gazette_spark._formats.registry import framing_named
from gazette_spark.errors import MessageError
from gazette_spark.message.locator import locator_for
from gazette_spark.message.uuid_columns import uuid_reader
from gazette_spark.message.uuids import producer_of, split_uuid
from gazette_spark.protocol.labels import CONTENT_TYPE_CSV, CONTENT_TYPE_NDJSON, CONTENT_TYPE_PROTO_FIXED
from tests.rig.examples import examples

UUID = uuid.UUID("04c29687-833b-11ee-8001-010203040506")


def block_of(kind: str, records: list[bytes]) -> Block:
    """Return records as one block, as a scan cuts it."""
    framed = [frame(each) if kind == "fixed" else each + b"\n" for each in records]
    data = b"".join(framed)
    framing = framing_named(kind, 1 << 20)
    cut = framing.cut(data, 100, last=True)
    assert len(cut.starts) == len(records)
    return Block("some/journal", 100, data, cut.starts, cut.ends, framing.header_bytes, framing.trailer_bytes)


uuids = st.uuids().map(str)
json_records = st.one_of(
    uuids.map(lambda text: f'{{"_meta":{{"uuid":"{text}"}},"a":1}}'),
    uuids.map(lambda text: f'{{ "_meta" : {{ "uuid": "{text}"}}}}'),
    uuids.map(lambda text: json.dumps({"a": {"uuid": "no"}, "_meta": {"x": [1], "uuid": text.upper()}})),
    st.sampled_from(
        ["{}", '{"_meta":null}', '{"_meta":{"uuid":null}}', '{"_meta":{"uuid":"short"}}', "no json"]
    ),
    uuids.map(lambda text: f'{{"_meta":{{"uuid":"{text}x"}}}}'),
    uuids.map(lambda text: f'{{"a":1,"_meta":{{"uuid":"{text}"}}}}'),
    uuids.map(lambda text: f'{{"a":"é", "_meta" : {{"uuid" :"{text}"}} }} '),
    uuids.map(lambda text: f'{{"a":{{"b":1,"_meta":{{"uuid":"{text}"}}}}}}'),
    uuids.map(lambda text: json.dumps({"a": f',"_meta":{{"uuid":"{text}"}}}}'})),
)
csv_records = st.one_of(
    uuids.map(lambda text: f"{text},a,b"),
    uuids.map(lambda text: f'"{text}","a\n",b'),
    uuids.map(lambda text: f"{text}x,a,b"),
    uuids,
    st.sampled_from(["a,b", ",b", "uuid,name"]),
)
protobuf_records = st.one_of(
    st.uuids().map(lambda each: b"\x0a\x10" + each.bytes + b"\x12\x01a"),
    st.uuids().map(lambda each: b"\x12\x01a\x0a\x10" + each.bytes),
    st.sampled_from([b"", b"\x12\x01a", b"\x0a\x03abc", b"\xff"]),
)


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from(["lines", "csv", "fixed"]))
def test_blocks_give_each_record_its_uuid(data: st.DataObject, kind: str) -> None:
    content_type, texts = {
        "lines": (CONTENT_TYPE_NDJSON, json_records.map(str.encode)),
        "csv": (CONTENT_TYPE_CSV, csv_records.map(str.encode)),
        "fixed": (CONTENT_TYPE_PROTO_FIXED, protobuf_records),
    }[kind]
    records = data.draw(st.lists(texts, max_size=12))
    locator = locator_for(content_type)
    reader = uuid_reader(locator)
    for part in (records, records[1:]):
        found = reader.uuids(block_of(kind, part))
        for row, record in enumerate(part):
            try:
                want = locator.get(record)
            except MessageError:
                want = None
            got = (producer_of(int(found.producers[row])), int(found.clocks[row]), int(found.flags[row]))
            assert found.valid[row] == (want is not None), record
            assert want is None or got == split_uuid(want)


@pytest.mark.parametrize(
    ("content_type", "kind", "path", "record"),
    [
        (CONTENT_TYPE_NDJSON, "lines", "/UUID", f'{{"UUID":"{UUID}","a":1}}'.encode()),
        (CONTENT_TYPE_NDJSON, "lines", "/a~1b/ü", f'{{"x":1,"a/b":{{"ü":"{UUID}"}}}}'.encode()),
        (CONTENT_TYPE_CSV, "csv", "2", f'a,"b,c",{UUID}'.encode()),
        (CONTENT_TYPE_CSV, "csv", "1", f"a,{UUID},c".encode()),
        (CONTENT_TYPE_PROTO_FIXED, "fixed", "17", b"\x8a\x01\x10" + UUID.bytes),
    ],
)
def test_other_places_are_read(content_type: str, kind: str, path: str, record: bytes) -> None:
    found = uuid_reader(locator_for(content_type, path)).uuids(block_of(kind, [record, record]))
    assert found.valid.all()
    assert int(found.clocks[1]) == split_uuid(UUID)[1]


def test_a_long_way_to_one_uuid_costs_the_other_records_nothing() -> None:
    """One record with much white space before its UUID must not multiply the memory for all others."""
    first = b"{" + b" " * 100_000 + f'"_meta":{{"uuid":"{UUID}"}}}}'.encode()
    block = block_of("lines", [first, *[b"{}"] * 5_000])
    reader = uuid_reader(locator_for(CONTENT_TYPE_NDJSON))
    tracemalloc.start()
    try:
        valid = reader.uuids(block).valid
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert valid[0]
    assert not valid[1:].any()
    assert peak < 100 * len(block.data)
