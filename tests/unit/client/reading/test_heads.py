"""A tail is all bytes from an offset to the head, or none: nothing is made of what is left of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.client.reading.heads import Tail, tail_of
from gazette_spark.protocol import protocol_pb2 as pb

END = pb.OFFSET_NOT_YET_AVAILABLE


def metadata(offset: int, head: int, status: pb.Status = pb.OK) -> pb.ReadResponse:
    """Return a message that begins a fragment, or ends a stream."""
    return pb.ReadResponse(status=status, offset=offset, write_head=head)


def chunk(offset: int, content: bytes) -> pb.ReadResponse:
    """Return a message with bytes."""
    return pb.ReadResponse(offset=offset, content=content)


@pytest.mark.parametrize(
    ("messages", "tail"),
    [
        pytest.param([metadata(10, 10, END)], Tail(10, b""), id="nothing new"),
        pytest.param([metadata(10, 13), chunk(10, b"abc")], Tail(13, b"abc"), id="all of it"),
        pytest.param(
            [metadata(10, 13), chunk(10, b"abc"), metadata(13, 13, END)], Tail(13, b"abc"), id="to the end"
        ),
        pytest.param(
            [metadata(10, 12), chunk(10, b"a"), chunk(11, b"b"), metadata(12, 14), chunk(12, b"cd")],
            Tail(14, b"abcd"),
            id="two fragments, and the head moves",
        ),
        pytest.param([metadata(10, 20), chunk(10, b"abc")], Tail(20), id="too many"),
        pytest.param([metadata(10, 11), chunk(10, b"a"), metadata(11, 12, END)], Tail(12), id="one more"),
        pytest.param([metadata(12, 13), chunk(12, b"c")], Tail(13), id="begins behind a hole"),
        pytest.param(
            [metadata(10, 14), chunk(10, b"a"), metadata(13, 14), chunk(13, b"d")], Tail(14), id="a hole"
        ),
        pytest.param([metadata(10, 4, END)], Tail(4), id="head below the offset"),
        pytest.param([metadata(10, 13), chunk(10, b"a"), chunk(10, b"abc")], Tail(13), id="repeated bytes"),
        pytest.param([metadata(10, 13), chunk(10, b"a"), chunk(12, b"c")], Tail(13), id="bytes left out"),
    ],
)
def test_tails(messages: list[pb.ReadResponse], tail: Tail) -> None:
    """A tail has the bytes that join from the offset to the head, and only the head otherwise."""
    assert tail_of(messages, 10) == tail


@given(st.binary(max_size=20), st.lists(st.integers(0, 20)), st.data())
def test_no_tail_is_wrong(journal: bytes, cuts: list[int], data: st.DataObject) -> None:
    """The bytes that come are the journal's, in whatever pieces and however many get lost."""
    at = data.draw(st.integers(0, len(journal)))
    edges = sorted({at, len(journal), *(cut for cut in cuts if at < cut < len(journal))})
    messages = [metadata(at, len(journal))]
    messages += [chunk(low, journal[low:high]) for low, high in pairwise(edges)]
    kept = [messages[0], *(each for each in messages[1:] if data.draw(st.integers(0, 9)))]
    tail = tail_of(kept, at)
    assert tail.write_head == len(journal)
    assert tail.content == (journal[at:] if len(kept) == len(messages) else None)
