"""A task's producer puts UUIDs into rows, in place and in order, and makes their acknowledgements."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark._formats.framing import RowRefusal
from gazette_spark._write.producer import TaskProducer, with_uuids
from gazette_spark.message.locator import locator_for
from gazette_spark.message.uuids import ACK_TXN, CONTINUE_TXN, TICK, Clock, split_uuid
from gazette_spark.protocol.labels import CONTENT_TYPE_CSV, CONTENT_TYPE_NDJSON, CONTENT_TYPE_PROTO_FIXED

NOW_NS = 1_700_000_000_000_000_000
STAMP = uuid.UUID("04c29687-833b-11ee-8001-010203040506")
OTHER = uuid.UUID("04c29691-833b-11ee-8002-010203040506")


def set_in(rows: Sequence[bytes], content_type: str, path: str = "") -> list[bytes] | RowRefusal:
    stamps = pa.array([str(STAMP)] * len(rows), pa.string())
    made = with_uuids(pa.array(rows, pa.binary()), stamps, locator_for(content_type, path))
    return made if isinstance(made, RowRefusal) else made.to_pylist()


JSON_ROWS = st.lists(
    st.one_of(
        st.dictionaries(st.sampled_from(["a", "_meta", "_metal", "ü", "b\\u"]), st.none(), max_size=3),
        st.fixed_dictionaries(
            {"_meta": st.fixed_dictionaries({"uuid": st.sampled_from([str(OTHER), None])})}
        ),
        st.fixed_dictionaries({"x": st.sampled_from(["_meta", "{}", "\\u005fmeta"])}),
        st.fixed_dictionaries(
            {"_meta": st.fixed_dictionaries({"uuid": st.just(str(OTHER)), "x": st.just(1)})},
            optional={"y": st.sampled_from(["_meta", "ü", 1])},
        ),
    ),
    max_size=9,
)


@given(
    JSON_ROWS, st.booleans(), st.sampled_from(["", "/_meta/uuid", "/a~1b/_meta/u", "/id"]), st.integers(0, 2)
)
def test_rows_in_columns_are_as_one_by_one(
    documents: list[dict[str, object]], spaces: bool, path: str, skip: int
) -> None:
    separators = (", ", ": ") if spaces else (",", ":")
    rows = [json.dumps(each, separators=separators).encode() for each in documents]
    locator = locator_for(CONTENT_TYPE_NDJSON, path)
    stamps = pa.array([str(STAMP)] * len(rows), pa.string())[skip:]
    made = with_uuids(pa.array(rows, pa.binary())[skip:], stamps, locator)
    assert not isinstance(made, RowRefusal)
    assert [locator.get(row) for row in made.to_pylist()] == [STAMP] * len(rows[skip:])
    assert made.to_pylist() == [locator.set(row, STAMP) for row in rows[skip:]]


@given(
    st.lists(st.lists(st.text('ab",\n', max_size=3), min_size=1, max_size=3), max_size=6), st.integers(0, 1)
)
def test_records_of_csv_are_as_one_by_one(fields: list[list[str]], index: int) -> None:
    rows = []
    for position, each in enumerate(fields):
        cells = ['"' + cell.replace('"', '""') + '"' for cell in each]
        place = str(OTHER) if position % 2 else ""
        cells.insert(min(index, len(cells)), place)
        rows.append(",".join(cells).encode())
    locator = locator_for(CONTENT_TYPE_CSV, str(index))
    assert set_in(rows, CONTENT_TYPE_CSV, str(index)) == [locator.set(row, STAMP) for row in rows]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param('{"_meta":{"uuid":"%s","uuid":"%s"}}', id="uuid_twice"),
        pytest.param('{"_meta":{"uuid":"%s"},"_meta":{"uuid":"%s"}}', id="object_twice"),
        pytest.param('{"_meta":{"uuid":"%s"},"\\u005fmeta":{"uuid":"%s"}}', id="escaped"),
        pytest.param('{"_meta":{"uuid":"%s","x":{"uuid":"%s"}}}', id="deeper"),
        pytest.param('{ "_meta":{"uuid":"%s"},"x":"%s"}', id="blank"),
    ],
)
def test_of_repeated_names_the_last_one_is_set(row: str) -> None:
    """Readers use the last occurrence of a repeated name, after decoding escapes."""
    record = (row % (OTHER, OTHER)).encode()
    locator = locator_for(CONTENT_TYPE_NDJSON)
    expected = [locator.set(each, STAMP) for each in (record, b"{}")]
    assert set_in([record, b"{}"], CONTENT_TYPE_NDJSON) == expected
    assert locator.get(expected[0]) == STAMP


def test_a_protobuf_message_gets_its_field() -> None:
    field = b"\x0a\x10" + STAMP.bytes
    rows = [b"", b"\x10\x07", b"\x0a\x10" + OTHER.bytes + b"\x10\x08"]
    assert set_in(rows, CONTENT_TYPE_PROTO_FIXED) == [field, field + b"\x10\x07", field + b"\x10\x08"]


def test_a_name_with_a_slash_may_be_escaped() -> None:
    """Readers find the UUID under both spellings of the name."""
    locator = locator_for(CONTENT_TYPE_NDJSON, "/a~1b/uuid")
    rows = [b'{"x":1}', b'{"a\\/b":{"y":1}}', b'{"a/b":{}}']
    made = with_uuids(pa.array(rows, pa.binary()), pa.array([str(STAMP)] * 3), locator)
    assert not isinstance(made, RowRefusal)
    assert [locator.get(row) for row in made.to_pylist()] == [STAMP] * 3


@pytest.mark.parametrize(
    ("content_type", "rows", "problem"),
    [
        pytest.param(CONTENT_TYPE_NDJSON, [b"{}", b"[1]"], "not a JSON object", id="no_object"),
        pytest.param(CONTENT_TYPE_NDJSON, [b"{}", b'{"_meta":{"uuid":7}}'], "not a string", id="number"),
        pytest.param(CONTENT_TYPE_NDJSON, [b"{}", b'{"_meta":"x"}'], "is not an object", id="text"),
        pytest.param(CONTENT_TYPE_CSV, [b",a", b"a,b"], "'a' is not a UUID", id="taken_column"),
        pytest.param(CONTENT_TYPE_PROTO_FIXED, [b"", b"\x08\x07"], "field 1 is not a UUID", id="taken_field"),
    ],
)
def test_a_row_without_a_place_is_refused(content_type: str, rows: list[bytes], problem: str) -> None:
    refused = set_in(rows, content_type)
    assert isinstance(refused, RowRefusal)
    assert refused.index == 1
    assert problem in refused.problem
    assert "uuidPath" in refused.advice


def split(records: Sequence[bytes]) -> list[tuple[bytes, int, int]]:
    """Return producer, clock and flags of documents."""
    return [split_uuid(uuid.UUID(json.loads(each)["_meta"]["uuid"])) for each in records]


def test_clocks_ascend_and_acknowledgements_enclose_them() -> None:
    """Each row ticks the clock. The commit follows all rows, and the rollback precedes the first row."""
    producer = TaskProducer(None, NOW_NS)
    rows = pa.array([b'{"n":1}', b'{"n":2}'], pa.binary())
    made: dict[str, list[bytes]] = {"log/a": [], "log/b": []}
    for journal in ("log/a", "log/b", "log/a"):
        stamped = producer.stamped(rows, journal, "lines")
        assert not isinstance(stamped, RowRefusal)
        made[journal] += stamped.to_pylist()
    start = Clock.at(NOW_NS)
    clocks = {journal: [clock for _, clock, _ in split(rows)] for journal, rows in made.items()}
    assert clocks == {
        "log/a": [start + n * TICK for n in (1, 2, 5, 6)],
        "log/b": [start + n * TICK for n in (3, 4)],
    }
    producers = {who for rows in made.values() for who, _, _ in split(rows)}
    assert {flags for rows in made.values() for *_, flags in split(rows)} == {CONTINUE_TXN}
    intents = producer.intents()
    assert [each.journal for each in intents] == ["log/a", "log/b"]
    assert split([each.commit for each in intents]) == [(*producers, start + 7 * TICK, ACK_TXN)] * 2
    assert [clock for _, clock, _ in split([each.rollback for each in intents])] == [
        clocks["log/a"][0] - 1,
        clocks["log/b"][0] - 1,
    ]


def test_acknowledgements_are_records_of_their_journals() -> None:
    producer = TaskProducer(None, NOW_NS)
    assert producer.intents() == ()
    producer.stamped(pa.array([], pa.binary()), "log/none", "lines")
    producer.stamped(pa.array([',a,"b,c"'], pa.string()), "log/csv", "csv")
    producer.stamped(pa.array([b"\x10\x07"], pa.binary()), "log/fixed", "fixed")
    csv, fixed = producer.intents()
    assert (csv.journal, len(csv.commit), csv.commit[36:]) == ("log/csv", 39, b",,\n")
    assert (fixed.journal, fixed.commit[:10]) == ("log/fixed", b"\x66\x33\x93\x36\x12\x00\x00\x00\x0a\x10")
    assert len(fixed.commit) == len(fixed.rollback) == 26
