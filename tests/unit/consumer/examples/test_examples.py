"""Tests what the examples compute, without a host."""

from __future__ import annotations

import doctest
import uuid

import pytest

from gazette_spark.consumer.examples import stream_sum
from gazette_spark.consumer.examples.word_count import ngrams
from gazette_spark.errors import MessageError
from gazette_spark.protocol import protocol_pb2 as pb

STAMP = uuid.UUID("04c29687-833b-11ee-8001-010203040506")
SPEC = pb.JournalSpec(name="a/journal")
IDS = ",".join(map(str, range(16)))


def test_ngrams_begin_and_end_with_marks() -> None:
    assert list(ngrams("The fox, the DOG.", 2)) == ["START the", "the fox", "fox the", "the dog", "dog END"]
    assert list(ngrams("a b", 1)) == ["a", "b", "END"]


def test_examples_in_docstrings() -> None:
    """The check value of CRC-64 is that of the standard."""
    assert doctest.testmod(stream_sum).failed == 0


def test_sums_go_on() -> None:
    assert stream_sum.crc64(b"6789", stream_sum.crc64(b"12345")) == stream_sum.crc64(b"123456789")


@pytest.mark.parametrize(("text", "data"), [('"AQI="', b"\1\2"), ("null", b"")], ids=["data", "end"])
def test_chunks_are_gos(text: str, data: bytes) -> None:
    """Go writes bytes as base64, and no bytes as null."""
    record = f'{{"UUID":"{STAMP}","ID":[{IDS}],"SeqNo":3,"Data":{text}}}'.encode()
    chunk = stream_sum.StreamChunk.parse(SPEC, record)
    assert chunk == stream_sum.StreamChunk(bytes(range(16)), 3, data, STAMP)
    assert bytes(chunk) == record
    with pytest.raises(MessageError, match="is not a chunk"):
        stream_sum.StreamChunk.parse(SPEC, record.replace(b"SeqNo", b"Seq"))


def test_sums_are_gos() -> None:
    record = f'{{"UUID":"{STAMP}","ID":[{IDS}],"SeqNo":3,"Value":18446744073709551615}}'.encode()
    found = stream_sum.Sum.parse(SPEC, record)
    assert (found.value, bytes(found)) == ((1 << 64) - 1, record)
