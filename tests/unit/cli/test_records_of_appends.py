"""A stream is cut into records with their frames, and a truncated stream is an error."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.cli.journal_appends import FRAME, MAGIC, read_keyed
from gazette_spark.errors import InputError

RECORDS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=8)


def frame(content: bytes) -> bytes:
    return MAGIC + struct.pack("<I", len(content)) + content


def line(content: bytes) -> bytes:
    return content.replace(b"\n", b" ").rstrip(b"\r") + b"\n"


WRITERS = {"fixed": frame, "lines": line}


@given(records=RECORDS, framing=st.sampled_from(["fixed", "lines"]), keyed=st.booleans())
def test_round_trip(records: list[tuple[bytes, bytes]], framing: str, keyed: bool) -> None:
    write = WRITERS[framing]
    source = b"".join((write(key) if keyed else b"") + write(record) for key, record in records)
    bare = len(MAGIC) + 4 if framing == "fixed" else 0
    expected = [
        ((write(key)[bare:].rstrip(b"\r\n") if framing == "lines" else key) if keyed else b"", write(record))
        for key, record in records
    ]
    assert list(read_keyed(io.BytesIO(source), framing, keyed=keyed)) == expected


@given(records=RECORDS.filter(bool), framing=st.sampled_from(["fixed", "lines"]), data=st.data())
def test_any_cut_is_seen(records: list[tuple[bytes, bytes]], framing: str, data: st.DataObject) -> None:
    pairs = [WRITERS[framing](key) + WRITERS[framing](record) for key, record in records]
    source = b"".join(pairs)
    cut = data.draw(st.integers(0, len(source)))
    ends = [sum(map(len, pairs[:count])) for count in range(len(pairs) + 1)]
    read = read_keyed(io.BytesIO(source[:cut]), framing, keyed=True)
    for _ in range(sum(end <= cut for end in ends) - 1):
        next(read)
    if cut in ends:
        assert next(read, None) is None
    else:
        with pytest.raises(InputError):
            next(read)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(b"12345678", id="no magic word"),
        pytest.param(FRAME.pack(MAGIC, 1 << 30), id="too long"),
        pytest.param(frame(b"x") + b"\n", id="a newline behind"),
    ],
)
def test_noise_is_no_frame(source: bytes) -> None:
    with pytest.raises(InputError, match="frame"):
        list(read_keyed(io.BytesIO(source), "fixed", keyed=False))
