"""The two CSV parsers give the same rows, and each row depends on its own record only."""

from __future__ import annotations

import csv
import io
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gazette_spark._formats.csv import CSV, CsvFraming
from gazette_spark._formats.csv_parser import SPARK_STYLE, CsvFormat, CsvParser, CsvStyle, split
from gazette_spark._formats.framing import Block
from tests.rig.examples import examples

SCHEMA = pa.schema(
    [
        ("_offset", pa.int64()),
        ("flag", pa.bool_()),
        ("whole", pa.int32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("_corrupt_record", pa.string()),
    ]
)
WIDTH = 9

numbers = st.one_of(
    st.integers(-(2**33), 2**33).map(str),
    st.floats().map(str),
    st.sampled_from(["", "0x1F", "-0XA", "+5", "007", " 5", "1e3", "1.005", "1.", ".5", "1_0", "NaN", "inf"]),
)
moments = st.from_regex(
    r"(2024|0000|1969|9999)-(0[0-9]|1[0-3]|7)-([0-2][0-9]|31|5)"
    r"([ T]([01][0-9]|2[3-5])(:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,9})?)?)?(Z|[+-][0-2][0-9](:?[0-6][0-9])?)?)?",
    fullmatch=True,
)
texts = st.one_of(
    st.text(max_size=6), st.text('a",\n\r', max_size=8), st.sampled_from(["true", "FALSE", "1"])
)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


cells = st.one_of(
    numbers, numbers, moments, moments, texts.map(quoted), st.sampled_from(["", "true", '"a"b'])
)
records = st.one_of(
    st.lists(cells, min_size=WIDTH, max_size=WIDTH).map(",".join).map(str.encode),
    st.lists(cells, max_size=WIDTH + 2).map(",".join).map(str.encode),
    st.sampled_from([b"\xff,1", b"\xef\xbb\xbftrue", b"a\rb", b"a\r\r", b'5" nail', b"\0"]),
)


def block_of(found: list[bytes], end: bytes = b"\n") -> Block:
    data = b"\n\r\n".join(record + end for record in found)
    cut = CSV.cut(data, 1000)
    return Block("a/journal", 1000, data, cut.starts, cut.ends)


def parsed(block: Block, *, fast: bool = True, mode: str = "PERMISSIVE") -> list[dict[str, Any]]:
    """Return rows with instants as numbers, because Python has no year 0."""
    batches = list(CsvParser(CsvFormat(SCHEMA, mode), fast=fast).record_batches([block]))
    table = pa.Table.from_batches(batches, SCHEMA)
    table.validate(full=True)
    for name, kind in (("at", pa.int64()), ("local", pa.int64()), ("day", pa.int32())):
        table = table.set_column(table.column_names.index(name), name, table.column(name).cast(kind))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@given(records, st.sampled_from([b"\n", b"\r\n"]))
@example(b",".join([b"0x1F"] * WIDTH), b"\n")
@example(b",".join([b"2024-01-01 00:00:00"] * WIDTH), b"\r\n")
@settings(max_examples=examples(100), deadline=None)
def test_halves_agree(record: bytes, end: bytes) -> None:
    block = block_of([record], end)
    assert repr(parsed(block)) == repr(parsed(block, fast=False))


@given(st.lists(records, min_size=1, max_size=60), st.integers(0, 60))
@settings(max_examples=examples(50), deadline=None)
def test_a_row_depends_on_its_record_alone(found: list[bytes], at: int) -> None:
    block = block_of(found)
    at = min(at, len(block))
    whole = parsed(block)
    assert repr(whole) == repr(parsed(block.rows(0, at)) + parsed(block.rows(at, len(block))))
    assert [row["_offset"] for row in whole] == block.offsets.tolist()
    kept = [row for row in whole if row["_corrupt_record"] is None]
    assert repr(parsed(block, mode="DROPMALFORMED")) == repr(kept)


@given(st.lists(st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=8), min_size=2))
@example(["", "\r"])
def test_what_pythons_writer_writes_is_read(fields: list[str]) -> None:
    out = io.StringIO()
    # A field with a character of the line terminator is quoted.
    csv.writer(out, lineterminator="\r\n").writerow(fields)
    found, count = split(out.getvalue().removesuffix("\r\n"), SPARK_STYLE, len(fields))
    assert ([text for text, _ in found], count) == (fields, len(fields))


@given(
    st.lists(st.lists(st.text("ab;|'\n\t", max_size=4), min_size=2, max_size=3), min_size=1, max_size=8),
    st.sampled_from([(";", "'"), ("\t", '"'), ("|", "'"), ("'", ";")]),
)
@settings(deadline=None)
def test_other_separators_and_quotes(rows: list[list[str]], style: tuple[str, str]) -> None:
    separator, quote = style
    out = io.StringIO()
    csv.writer(out, delimiter=separator, quotechar=quote, lineterminator="\n").writerows(rows)
    data = out.getvalue().encode()
    cut = CsvFraming(separator, quote).cut(data, 0)
    assert cut.size == len(data)
    found = [data[start:end].decode() for start, end in zip(cut.starts, cut.ends, strict=True)]
    read = [[text for text, _ in split(record, CsvStyle(separator, quote), 99)[0]] for record in found]
    assert read == rows
