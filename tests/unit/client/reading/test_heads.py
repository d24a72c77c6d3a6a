"""Tests that a tail has all bytes from an offset to the head, or only the head."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.client import Client
from gazette_spark.client._read.heads import MANY, Tail, tail_of
from gazette_spark.errors import CorruptFragmentError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.testing.stub_broker import Hang, StubBroker, chunk, metadata, not_yet

JOURNAL = "a/journal"
ABC = sha1(b"abc", usedforsecurity=False).digest()


def span(begin: int, end: int, **stored: Any) -> pb.ReadResponse:
    return metadata(JOURNAL, begin, end, **stored)


@pytest.mark.parametrize(
    ("messages", "tail"),
    [
        pytest.param([not_yet(10, 10)], Tail(10, b""), id="nothing new"),
        pytest.param([span(10, 13), chunk(10, b"abc")], Tail(13, b"abc"), id="all of it"),
        pytest.param([span(10, 13), chunk(10, b"abc"), not_yet(13, 13)], Tail(13, b"abc"), id="to the end"),
        pytest.param(
            [span(10, 12), chunk(10, b"a"), chunk(11, b"b"), span(12, 14), chunk(12, b"cd")],
            Tail(14, b"abcd"),
            id="two fragments, and the head moves",
        ),
        pytest.param([span(10, 20), chunk(10, b"abc")], Tail(20), id="too many"),
        pytest.param([span(10, 11), chunk(10, b"a"), not_yet(11, 12)], Tail(12), id="one more"),
        pytest.param([span(12, 13), chunk(12, b"c")], Tail(13), id="begins behind a hole"),
        pytest.param([span(10, 14), chunk(10, b"a"), span(13, 14), chunk(13, b"d")], Tail(14), id="a hole"),
        pytest.param([not_yet(10, 4)], Tail(4), id="head below the offset"),
        pytest.param([span(10, 13), chunk(10, b"a"), chunk(10, b"abc")], Tail(13), id="repeated bytes"),
        pytest.param([span(10, 13), chunk(10, b"a"), chunk(12, b"c")], Tail(13), id="bytes left out"),
        pytest.param(
            [span(10, 13, sha1=ABC, url="file:///f"), chunk(10, b"abc")], Tail(13, b"abc"), id="stored"
        ),
    ],
)
def test_tails(messages: list[pb.ReadResponse], tail: Tail) -> None:
    assert tail_of(JOURNAL, messages, 10) == tail


def test_a_stored_fragment_with_other_bytes() -> None:
    """Tasks may use these bytes, so the fragment's checksum is verified."""
    messages = [span(10, 13, sha1=ABC, url="file:///f"), chunk(10, b"abd"), not_yet(13)]
    with pytest.raises(CorruptFragmentError, match="its SHA-1 is"):
        tail_of(JOURNAL, messages, 10)


@given(st.binary(max_size=20), st.lists(st.integers(0, 20)), st.data())
def test_no_tail_is_wrong(journal: bytes, cuts: list[int], data: st.DataObject) -> None:
    """Messages are cut and lost at random."""
    at = data.draw(st.integers(0, len(journal)))
    edges = sorted({at, len(journal), *(cut for cut in cuts if at < cut < len(journal))})
    messages = [span(at, len(journal))] if at < len(journal) else []
    messages += [chunk(low, journal[low:high]) for low, high in pairwise(edges)]
    messages.append(not_yet(len(journal)))
    kept = [each for number, each in enumerate(messages) if number == 0 or data.draw(st.integers(0, 9))]
    tail = tail_of(JOURNAL, kept, at)
    assert tail.write_head == len(journal)
    assert tail.content in (journal[at:], None)
    assert tail.content is not None or len(kept) < len(messages)


@pytest.mark.parametrize("count", [1, MANY])
def test_a_broker_that_stops_in_the_middle_of_a_question(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that ends without an answer or an error is retried, and nothing is logged."""
    names = [f"{JOURNAL}-{number}" for number in range(count)]
    asked: set[str] = set()

    def answer(request: pb.ReadRequest) -> list[pb.ReadResponse]:
        is_first = request.journal not in asked
        asked.add(request.journal)
        return [] if is_first else [not_yet(7)]

    with StubBroker() as broker, Client(broker.endpoint, timeout_s=30) as client:
        broker.script("Read", answer)
        assert client.write_heads(names) == dict.fromkeys(names, 7)
    assert caplog.records == []


@pytest.mark.parametrize("ask", ["write_heads", "highest_heads", "tails"])
def test_a_broker_that_hangs_is_left_in_time(ask: str) -> None:
    """The idle timeout leaves time to ask another broker."""
    with (
        StubBroker() as broker,
        Client(broker.endpoint, timeout_s=30, idle_timeout_s=0.3) as client,
    ):
        broker.script("Read", [Hang()], [not_yet(7)])
        calls: dict[str, Callable[[], object]] = {
            "write_heads": lambda: client.write_heads([JOURNAL]),
            "highest_heads": lambda: client.highest_heads([JOURNAL]),
            "tails": lambda: client.tails({JOURNAL: 0}, 10),
        }
        began = monotonic()
        expected = Tail(7) if ask == "tails" else 7
        assert calls[ask]() == {JOURNAL: expected}
        assert monotonic() - began < 10
