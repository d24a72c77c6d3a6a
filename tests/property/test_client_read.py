"""Whatever a journal consists of and wherever its streams are cut, a reader gets each byte once, in order."""

from __future__ import annotations

import gzip
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import cramjam
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_spark.client._read.fragment_urls import FragmentOpener
from gazette_spark.client._read.reader import RetryReader
from gazette_spark.client._read.stream import ReadOptions
from gazette_spark.client._transport.channel import Connection
from gazette_spark.errors import (
    BrokerError,
    GazetteError,
    NoJournalPrimaryBrokerError,
    NotJournalBrokerError,
    OffsetJumpError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.testing.stub_broker import chunk, not_yet
from tests.rig.examples import examples

JOURNAL = "a/journal"

ENCODERS: dict[int, Callable[[bytes], bytes]] = {
    pb.NONE: bytes,
    pb.GZIP: lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:]),
    pb.SNAPPY: lambda data: bytes(cramjam.snappy.compress(data)),
    pb.ZSTANDARD: lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
}

CUTS: dict[str, GazetteError | None] = {
    "clean end": None,
    "broken connection": UnavailableError("http://b:1", "reset"),
    "stale process": BrokerError("http://b:1", "UNKNOWN", "ProcessId doesn't match"),
    "no brokers": NoJournalPrimaryBrokerError(JOURNAL),
    "not a member": NotJournalBrokerError(JOURNAL),
}


@dataclass(frozen=True)
class Span:
    fragment: Fragment
    content: bytes
    stored: bool
    lost: bool


class Model:
    """A broker of one journal, whose streams end early at each of ``cuts``."""

    def __init__(self, spans: list[Span], sizes: list[int], cuts: list[tuple[int, str]]) -> None:
        self.spans = spans
        self.head = spans[-1].fragment.end
        self._sizes = cycle(sizes)
        self._cuts = iter(cuts)

    def open(self, request: pb.ReadRequest, timeout_s: float) -> ModelStream:
        return ModelStream(self._cut(self._answer(request)))

    def _cut(self, messages: Iterator[pb.ReadResponse]) -> Iterator[pb.ReadResponse]:
        count, how = next(self._cuts, (1 << 30, "clean end"))
        for _ in range(count):
            message = next(messages, None)
            if message is None:
                return
            yield message
        if (failure := CUTS[how]) is not None:
            raise failure

    def _answer(self, request: pb.ReadRequest) -> Iterator[pb.ReadResponse]:
        offset = request.offset
        for span in self.spans:
            if span.fragment.end <= offset or span.lost:
                continue
            offset = max(offset, span.fragment.begin)
            yield pb.ReadResponse(
                offset=offset,
                write_head=self.head,
                fragment=span.fragment.to_pb(),
                fragment_url=f"file:///{span.fragment.content_path}" if span.stored else "",
            )
            if span.stored and request.do_not_proxy:
                return
            while offset < span.fragment.end:
                at = offset - span.fragment.begin
                piece = span.content[at : at + next(self._sizes)]
                yield chunk(offset, piece)
                offset += len(piece)
        yield not_yet(max(offset, self.head))


class ModelStream:
    def __init__(self, messages: Iterator[pb.ReadResponse]) -> None:
        self._messages = messages

    def messages(self) -> Iterator[pb.ReadResponse]:
        return self._messages

    def cancel(self) -> None:
        """Do nothing: nobody waits."""

    def close(self) -> None:
        """Do nothing: there is no resource to release."""


@st.composite
def journals(draw: st.DrawFn) -> list[Span]:
    """Draw a journal of fragments: some stored with a codec, some lost, but never the last."""
    parts = draw(
        st.lists(st.tuples(st.integers(1, 60), st.sampled_from([*ENCODERS]), st.booleans()), min_size=1)
    )
    lost = draw(st.sets(st.integers(0, len(parts) - 1))) - {len(parts) - 1}
    spans = []
    begin = 0
    for index, (size, codec, stored) in enumerate(parts):
        content = bytes((begin + at) * 7 % 251 for at in range(size))
        digest = hashlib.sha1(content, usedforsecurity=False).digest()
        fragment = Fragment(JOURNAL, begin, begin + size, digest, codec, "", int(stored))
        spans.append(Span(fragment, content, stored, index in lost))
        begin += size
    return spans


def store(root: Path, spans: list[Span]) -> None:
    for span in spans:
        if span.stored and not span.lost:
            path = root / span.fragment.content_path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(ENCODERS[span.fragment.codec](span.content))


cuts = st.lists(st.tuples(st.integers(0, 6), st.sampled_from([*CUTS])), max_size=30)
sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def reader_of(model: Model, options: ReadOptions, root: str | None) -> RetryReader:
    return RetryReader(
        Connection("http://127.0.0.1:1", connect_timeout_s=1),
        options,
        timeout_s=60,
        idle_timeout_s=30,
        opener=FragmentOpener(root),
        open_stream=model.open,
        clock=lambda: 0.0,
        sleep=lambda _: None,
    )


@settings(max_examples=examples(100), deadline=None)
@given(spans=journals(), sizes=sizes, cuts=cuts, data=st.data(), with_root=st.booleans())
def test_each_byte_once_and_in_order(
    spans: list[Span], sizes: list[int], cuts: list[tuple[int, str]], data: st.DataObject, with_root: bool
) -> None:
    head = spans[-1].fragment.end
    offset = data.draw(st.integers(0, head), "offset")
    end_offset = data.draw(st.one_of(st.just(0), st.integers(offset, head)), "end")
    end = end_offset or head
    there = {
        span.fragment.begin + at: byte
        for span in spans
        if not span.lost
        for at, byte in enumerate(span.content)
        if offset <= span.fragment.begin + at < end
    }
    with tempfile.TemporaryDirectory() as root:
        store(Path(root), spans)
        options = ReadOptions(JOURNAL, offset, end_offset)
        reader = reader_of(Model(spans, sizes, cuts), options, root if with_root else None)
        got: dict[int, int] = {}
        position = offset
        for each in reader:
            assert each.content
            assert each.offset >= position
            got.update(enumerate(each.content, each.offset))
            position = each.end
    assert got == there
    assert list(got) == sorted(there)
    assert reader.offset == end
    missing = {at for low, high in reader.jumps for at in range(low, min(high, end))}
    assert missing == set(range(offset, end)) - set(there)


@settings(max_examples=examples(100), deadline=None)
@given(spans=journals(), sizes=sizes, cuts=cuts, reads=st.lists(st.integers(0, 50), min_size=1).filter(any))
def test_read_joins_to_the_same_bytes(
    spans: list[Span], sizes: list[int], cuts: list[tuple[int, str]], reads: list[int]
) -> None:
    """A read returns fewer bytes than requested only at the end and at a jump; each jump is reported once."""
    there = b"".join(span.content for span in spans if not span.lost)
    reader = reader_of(Model(spans, sizes, cuts), ReadOptions(JOURNAL), None)
    got = []
    jumps = []
    for size in cycle(reads):
        try:
            part = reader.read(size)
        except OffsetJumpError as jump:
            jumps.append((jump.requested, jump.offset))
            continue
        got.append(part)
        if size and not part:
            break
    assert b"".join(got) == there
    assert jumps == reader.jumps
