"""A scan's errors name journal and offset, its reads stop early, and its batches stay small."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gazette_spark._options.values import LONGEST_RECORD_BYTES
from gazette_spark._planning.cutter import (
    BLOCK_BYTES,
    LOOK_BYTES,
    RAW_SCHEMA,
    Cutter,
    Gap,
    PieceScan,
    raw_record_batches,
)
from gazette_spark._planning.pieces import OffsetRange, Piece, split
from gazette_spark.errors import DataLossError, OffsetNotYetAvailableError, ProtocolError, RecordError
from tests.oracles.lines import FakeJournal

NAME = "acme/logs"
ROOT = Path(__file__).parents[3]


def whole(journal: FakeJournal) -> Piece:
    end = journal.base + len(journal.content)
    return Piece(NAME, journal.base, end, end, starts_on_record=True)


ROWS = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def rows(journal: FakeJournal, piece: Piece, **options: Any) -> list[tuple[int, bytes]]:
    scan = PieceScan(journal, piece, fail_on_data_loss=True, **options)
    batches = list(raw_record_batches(scan, ROWS))
    return [pair for batch in batches for pair in zip(*batch.to_pydict().values(), strict=True)]


def test_raw_batches_have_sparks_schema() -> None:
    journal = FakeJournal(b"a\n\nccc\n", base=10)
    scan = PieceScan(journal, whole(journal), fail_on_data_loss=True)
    batches = list(raw_record_batches(scan, max_rows=2))
    assert [batch.num_rows for batch in batches] == [2, 1]
    assert all(batch.schema.equals(RAW_SCHEMA) for batch in batches)
    assert all(field.nullable for field in RAW_SCHEMA)
    assert pa.Table.from_batches(batches).to_pydict() == {
        "journal": [NAME] * 3,
        "offset": [10, 12, 13],
        "value": [b"a", b"", b"ccc"],
    }


COLD = """
import sys
import pyarrow as pa
from gazette_spark._formats.csv import CSV
from gazette_spark._formats.csv_parser import CsvFormat, CsvParser
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from tests.oracles.lines import FakeJournal
names = pa.schema([("a", pa.int64()), ("_journal", pa.string()), ("_offset", pa.int64())])
for build in (raw_record_batches, JsonParser(JsonFormat(names)).record_batches):
    piece = Piece("a/b", 0, 8, 8, starts_on_record=True)
    scan = PieceScan(FakeJournal(b'{"a":1}\\n'), piece, fail_on_data_loss=True)
    assert [batch.num_rows for batch in build(scan)] == [1]
names = pa.schema([("a", pa.bool_()), ("b", pa.int64()), ("c", pa.timestamp("us", "UTC"))])
parser = CsvParser(CsvFormat(names), header=True)
rows = b"true,7,2024-01-01T00:00:00Z\\nfalse,1,2024-01-01T00:00:00Z\\n"
piece = Piece("a/b", 9, 9 + len(rows), 9 + len(rows), starts_on_record=True)
scan = PieceScan(FakeJournal(rows, 9), piece, fail_on_data_loss=True, framing=CSV)
assert [batch.num_rows for batch in parser.record_batches(scan)] == [2]
print([name for name in ("pandas", "pyspark", "grpc") if name in sys.modules])
"""


def test_a_new_worker_loads_no_pandas() -> None:
    """Loading pandas costs a new worker half a second."""
    ran = subprocess.run([sys.executable, "-c", COLD], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_a_hole_is_an_error_that_names_it() -> None:
    journal = FakeJournal(b"aa\nbb\ncc\n", base=100, holes=[(104, 106)])
    with pytest.raises(DataLossError) as caught:
        rows(journal, whole(journal))
    assert (caught.value.journal, caught.value.requested, caught.value.available) == (NAME, 104, 106)
    assert journal.open_reads == 0


def test_a_hole_over_a_ranges_end_is_an_error_that_names_it() -> None:
    journal = FakeJournal(b"aa\nbb\ncc\ndd\n", base=100, holes=[(104, 109)])
    with pytest.raises(DataLossError) as caught:
        rows(journal, Piece(NAME, 100, 106, 106, starts_on_record=True))
    assert (caught.value.requested, caught.value.available) == (104, 109)
    scan = PieceScan(journal, Piece(NAME, 100, 106, 106, starts_on_record=True), fail_on_data_loss=False)
    assert [len(block) for block in scan] == [1]
    assert scan.gaps == (Gap(NAME, 104, 106, cut_offset=103, cut_bytes=1),)


def test_a_skipped_hole_is_recorded() -> None:
    journal = FakeJournal(b"aa\nbb\ncc\ndd\n", base=100, holes=[(104, 107)])
    scan = PieceScan(journal, whole(journal), fail_on_data_loss=False)
    values = [value for batch in raw_record_batches(scan) for value in batch["value"].to_pylist()]
    assert values == [b"aa", b"dd"]
    assert scan.gaps == (
        Gap(NAME, 104, 107, cut_offset=103, cut_bytes=1),
        Gap(NAME, 107, 109, cut_offset=107, cut_bytes=0, kind="rest"),
    )


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("block", [4, 1 << 20])
def test_an_oversized_record_is_named(chunk: int, block: int) -> None:
    journal = FakeJournal(b"ok\n" + b"x" * 11 + b"\nok\n", base=50, chunk_sizes=[chunk])
    assert len(rows(journal, whole(journal), max_record_bytes=11, block_bytes=block)) == 3
    with pytest.raises(RecordError, match=r"oversized record.*maxRecordBytes=10") as caught:
        rows(journal, whole(journal), max_record_bytes=10, block_bytes=block)
    assert (caught.value.journal, caught.value.offset) == (NAME, 53)


def test_an_endless_record_is_not_read_to_its_end() -> None:
    journal = FakeJournal(b"x" * 100_000, chunk_sizes=[100])
    piece = Piece(NAME, 0, 100_000, 100_000, starts_on_record=True)
    reader = journal.read(NAME, offset=0, end_offset=100_000)
    cutter = Cutter(piece, fail_on_data_loss=True, max_record_bytes=1000)
    blocks = (block for chunk in reader for block in cutter.feed(chunk.offset, chunk.content))
    with pytest.raises(RecordError):
        list(blocks)
    assert reader.offset <= 1000 + 100 + LOOK_BYTES


def test_a_range_must_end_with_a_record() -> None:
    journal = FakeJournal(b"aa\nbb", base=5)
    with pytest.raises(RecordError, match="has no end before") as caught:
        rows(journal, whole(journal))
    assert (caught.value.journal, caught.value.offset) == (NAME, 8)


def test_a_reader_that_breaks_its_word_is_an_error() -> None:
    """A read that ends early or goes back must not look like the end of the data."""
    piece = Piece(NAME, 0, 10, 10, starts_on_record=True)
    early = Cutter(piece, fail_on_data_loss=True)
    assert list(early.feed(0, b"ab\n")) == []
    with pytest.raises(OffsetNotYetAvailableError):
        list(early.finish(3))
    back = Cutter(piece, fail_on_data_loss=True)
    list(back.feed(0, b"ab\n"))
    with pytest.raises(ProtocolError):
        list(back.feed(2, b"\n"))


def test_a_piece_reads_no_further_than_it_has_to() -> None:
    journal = FakeJournal(b"aaaa\nbbbb\ncccc\n", chunk_sizes=[1])
    assert rows(journal, Piece(NAME, 0, 3, 15, starts_on_record=True)) == [(0, b"aaaa")]
    assert rows(journal, Piece(NAME, 1, 5, 15, starts_on_record=False)) == []
    assert rows(journal, Piece(NAME, 5, 6, 15, starts_on_record=False)) == [(5, b"bbbb")]
    assert rows(journal, Piece(NAME, 5, 5, 15, starts_on_record=True)) == []
    assert journal.reads == [(0, 15), (0, 15), (4, 15)]


def test_leaving_early_closes_the_read() -> None:
    journal = FakeJournal(b"aaaa\n" * 10)
    blocks = iter(PieceScan(journal, whole(journal), fail_on_data_loss=True, block_bytes=10))
    next(blocks)
    assert journal.open_reads == 1
    del blocks
    assert journal.open_reads == 0


def test_cuts_prefer_the_byte_after_a_fragments_edge() -> None:
    """Such a piece reads only its own fragment and nothing of the one before."""
    fragments = [OffsetRange(NAME, begin, begin + 100) for begin in (300, 0, 100, 200)]
    pieces = split([OffsetRange(NAME, 0, 400)], {NAME: fragments}, max_bytes=120)
    assert [(piece.begin, piece.end) for piece in pieces] == [(0, 101), (101, 201), (201, 301), (301, 400)]
    assert [piece.read_from for piece in pieces] == [0, 100, 200, 300]
    assert pickle.loads(pickle.dumps(pieces)) == pieces


def test_without_fragments_cuts_are_even() -> None:
    pieces = split([OffsetRange(NAME, 10, 110), OffsetRange("acme/none", 5, 5)], max_bytes=30)
    assert [(piece.begin, piece.end) for piece in pieces] == [(10, 35), (35, 60), (60, 85), (85, 110)]
    assert [len(split([OffsetRange(NAME, 0, 10)], min_partitions=n)) for n in (1, 3, 10, 50)] == [
        1,
        4,
        10,
        10,
    ]


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (6, 5)])
def test_an_impossible_range_is_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match="invalid range"):
        OffsetRange(NAME, begin, end)


@pytest.mark.parametrize("longest", [1, 1000, 200_000])
@pytest.mark.parametrize("begin", [0, 1])
def test_a_block_has_at_most_two_records_more_than_its_size(longest: int, begin: int) -> None:
    """The bound keeps the bytes of a block within 32 bits, whatever records come."""
    content = b"".join((b"x" * n + b"\n") * 3 for n in (longest, 0, longest // 2, 1, longest, longest))
    edge = len(content) // 2
    for piece in (
        Piece(NAME, 0, len(content), len(content), starts_on_record=True),
        Piece(NAME, begin, edge, len(content), starts_on_record=begin == 0),
    ):
        cutter = Cutter(piece, fail_on_data_loss=True, max_record_bytes=longest, block_bytes=100)
        blocks = list(cutter.feed(piece.read_from, content[piece.read_from :]))
        blocks += cutter.finish(len(content))
        assert max(len(block.data) for block in blocks) <= 2 * (longest + LOOK_BYTES) + 2 * 100
    assert 2 * (LONGEST_RECORD_BYTES + LOOK_BYTES) + 2 * BLOCK_BYTES < 2**31
