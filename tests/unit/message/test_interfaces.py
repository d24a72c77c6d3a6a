"""Tests envelopes, producer states and message framings."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass

import pytest

from gazette_spark.errors import MessageError
from gazette_spark.message import (
    framing_by_content_type,
    framing_of_journal,
)
from gazette_spark.message.interfaces import FRAMINGS
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set

JSON, TABLE, FIXED = "application/x-ndjson", "text/csv", "application/x-protobuf-fixed"


@dataclass
class Plain:
    """The part of a message that a framing uses."""

    record: bytes

    def __bytes__(self) -> bytes:
        return self.record


@pytest.mark.parametrize(
    ("content_type", "record", "framed"),
    [
        (JSON, b'{"a":1}', b'{"a":1}\n'),
        (TABLE, b'a,"b\nc"', b'a,"b\nc"\n'),
        (FIXED, b"foo", b"\x66\x33\x93\x36\x03\x00\x00\x00foo"),
        (FIXED, b"", b"\x66\x33\x93\x36\x00\x00\x00\x00"),
    ],
    ids=["json", "csv", "fixed", "fixed-empty"],
)
def test_frames_are_gazettes(content_type: str, record: bytes, framed: bytes) -> None:
    framing = framing_by_content_type(content_type)
    assert framing.marshal(Plain(record)) == framed  # type: ignore[arg-type]  # It has no UUID, which a framing does not read.
    data = framed * 3 + framed[:-1]
    found = framing.unmarshal(data, 1_000)
    assert [data[a:b] for a, b in zip(found.starts, found.ends, strict=True)] == [record] * 3
    assert found.size == 3 * len(framed)


@pytest.mark.parametrize(
    ("content_type", "record"),
    [(JSON, b'{"a":\n1}'), (JSON, b""), (TABLE, b"a\nb"), (TABLE, b'"a'), (TABLE, b"\r"), (TABLE, b"")],
    ids=["two-lines", "no-line", "two-records", "open-quote", "blank", "nothing"],
)
def test_what_is_not_one_record_is_refused(content_type: str, record: bytes) -> None:
    """Readers would find several records in these bytes, none, or a part of one."""
    with pytest.raises(MessageError, match=f"not exactly one record of {content_type}"):
        framing_by_content_type(content_type).frame(record)


@pytest.mark.parametrize(
    ("content_type", "says"),
    [
        ("application/x-gazette-recoverylog", "is a recovery log"),
        ("application/x-ndjson; charset=utf-8", "has no framing of messages"),
        ("Text/CSV", "has no framing of messages"),
        ("", "it lacks the label content-type"),
    ],
)
def test_other_content_types_are_errors(content_type: str, says: str) -> None:
    with pytest.raises(MessageError, match=says) as caught:
        framing_by_content_type(content_type, "a/journal")
    assert "'a/journal'" in str(caught.value)
    assert all(known in str(caught.value) for known in FRAMINGS)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_journals_framing_is_its_labels() -> None:
    spec = pb.JournalSpec(name="a/journal", labels=label_set({"content-type": TABLE}))
    assert framing_of_journal(spec) is FRAMINGS[TABLE]
    with pytest.raises(MessageError, match="'b/journal': it lacks the label"):
        framing_of_journal(pb.JournalSpec(name="b/journal"))


def test_columns_load_without_a_client() -> None:
    """Spark workers need no gRPC for this part of the package."""
    modules = "gazette_spark.message.uuids, gazette_spark.message.interfaces"
    code = f"import sys, {modules}; print('grpc' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
