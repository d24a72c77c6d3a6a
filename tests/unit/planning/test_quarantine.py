"""A repeated task survives a record that crashes its parser, and that record is malformed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest

from gazette_spark._formats.framing import Block
from gazette_spark._formats.json import JsonFormat, JsonParser
from gazette_spark._planning.quarantine import QuarantiningParser
from gazette_spark.errors import RecordError
from tests.oracles.framings import line_spans

SCHEMA = pa.schema([("_offset", pa.int64()), ("n", pa.int64()), ("_corrupt_record", pa.string())])
RECORDS = [b'{"n":%d}' % number for number in range(4)]
KILLER = b'{"n":1,"kill":%d}'


class Mortal(JsonParser):
    """A parser that a record with a marker kills by the signal it names, as native code might."""

    def _parse(self, block: Block) -> Iterator[pa.RecordBatch]:
        for record in map(block.record, range(len(block))):
            if b"kill" in record:
                os.kill(os.getpid(), int(record[:-1].rpartition(b":")[2]))
        return super()._parse(block)


def mortal(mode: str) -> Mortal:
    return Mortal(JsonFormat(SCHEMA, mode))


def parsed(*records: bytes, mode: str = "PERMISSIVE") -> tuple[QuarantiningParser, list[dict[str, object]]]:
    data = b"".join(record + b"\n" for record in records)
    parser = QuarantiningParser(partial(mortal, mode))
    batches = list(parser.record_batches([Block("shop/orders", 100, data, *line_spans(data))]))
    return parser, pa.Table.from_batches(batches, SCHEMA).to_pylist()


@pytest.mark.slow
def test_a_record_that_kills_is_a_malformed_row(caplog: pytest.LogCaptureFixture) -> None:
    killer = KILLER % signal.SIGSEGV
    parser, rows = parsed(*RECORDS[:3], killer, b"oops", RECORDS[3])
    assert [row["n"] for row in rows] == [0, 1, 2, None, None, 3]
    assert [row["_corrupt_record"] for row in rows] == [None, None, None, killer.decode(), "oops", None]
    assert [row["_offset"] for row in rows[:4]] == [100, 108, 116, 124]
    assert parser.malformed == 2
    assert "record quarantined journal=shop/orders offset=124 parser_ended_with=SIGSEGV" in caplog.text


@pytest.mark.slow
def test_records_that_kill_are_dropped() -> None:
    killers = [KILLER % signal.SIGABRT, KILLER % signal.SIGBUS]
    parser, rows = parsed(*killers, *RECORDS[:2], mode="DROPMALFORMED")
    assert [row["n"] for row in rows] == [0, 1]
    assert parser.malformed == 2


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        pytest.param(KILLER % signal.SIGSEGV, "its parser ended the process with SIGSEGV", id="kills"),
        pytest.param(b"oops", "not a JSON object", id="malformed"),
    ],
)
def test_fail_fast_names_journal_and_offset(record: bytes, problem: str) -> None:
    with pytest.raises(RecordError, match=problem) as caught:
        parsed(RECORDS[0], record, mode="FAILFAST")
    assert (caught.value.journal, caught.value.offset) == ("shop/orders", 108)


def test_a_child_that_is_killed_from_outside_blames_no_record() -> None:
    """The kernel also kills processes when memory runs out. Valid records must not become malformed."""
    with pytest.raises(RecordError, match="or one of the 4 records after it, ended with SIGKILL"):
        parsed(KILLER % signal.SIGKILL, *RECORDS)


def test_a_child_that_does_not_start_blames_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that cannot start, or that lacks the package, exits with a status."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RecordError, match="ended with status 1"):
        parsed(*RECORDS)
