"""In-memory brokers that implement what a planner calls, and a planner over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from types import TracebackType
from typing import Self

from gazette_spark import JournalOffsets
from gazette_spark._options.source import parse_options
from gazette_spark._options.table import Use
from gazette_spark._planning.plan import Planner
from gazette_spark.client import Listing, parse_selector
from gazette_spark.client._read.heads import MANY, SettledHead, Tail
from gazette_spark.errors import GazetteError, JournalNotFoundError, SuspendedError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import expand_prefix, labels_with_name, selector_matches

FIXED = "application/x-protobuf-fixed"


@dataclass
class FakeChunk:
    offset: int
    content: bytes
    mod_time: int = 0


@dataclass
class FakeReader:
    chunks: list[FakeChunk]
    offset: int
    jumps: list[tuple[int, int]]
    error: GazetteError | None = None

    def __iter__(self) -> Iterator[FakeChunk]:
        if self.error is not None:
            raise self.error
        return iter(self.chunks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


@dataclass
class FakeFragment:
    begin: int
    end: int
    mod_time: int = 0
    codec: int = pb.GZIP

    @property
    def is_compressed(self) -> bool:
        return self.mod_time != 0 and self.codec != pb.NONE


@dataclass
class FakeListed:
    fragment: FakeFragment


@dataclass
class FakeJournal:
    content: bytes = b""
    begin: int = 0
    """Offset of the first byte; earlier bytes are deleted."""
    content_type: str = "application/x-ndjson"
    fragments: Sequence[int] = (0,)
    """Begin offset of each fragment; it ends where the next one begins, and the last one at the head."""
    mod_times: Sequence[int] = ()
    """Storage times of the fragments, in order; fragments beyond the end of the list are not stored."""
    suspended: bool = False
    """Whether the journal is fully suspended, so that its fragments cannot be listed."""
    create_revision: int = 1
    stale_head: int | None = None
    """Head that the broker reports until the fragments are listed."""

    @property
    def head(self) -> int:
        return self.begin + len(self.content)


@dataclass
class FakeClient:
    """In-memory brokers that implement what a planner calls."""

    journals: dict[str, FakeJournal]
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    listed: list[str | pb.LabelSelector] = field(default_factory=list)
    deleted_once_listed: str = ""
    revision: int = 1
    """Revision of Etcd."""
    tailed: list[list[str]] = field(default_factory=list)
    """Journals in each request for tails."""
    has_tails: bool = True
    """Whether tails contain bytes."""
    lags: list[int] = field(default_factory=list)
    """Revisions by which each of the next listings lags behind; later listings do not lag."""
    past: dict[int, dict[str, FakeJournal]] = field(default_factory=dict)
    """Journals at each revision; the current journals for a revision that is missing here."""
    endpoint: str = "http://broker.test:80"
    timeout_s: float = 0.1

    def list_all_journals(self, selector: str | pb.LabelSelector = "") -> Listing:
        self.listed.append(selector)
        revision = max(1, self.revision - (self.lags.pop(0) if self.lags else 0))
        header = pb.Header(etcd=pb.Header.Etcd(revision=revision))
        today, self.journals = self.journals, self.past.get(revision, self.journals)
        try:
            return Listing(header, tuple(self.list_journals(selector)))
        finally:
            self.journals = today

    def change(self, name: str, journal: FakeJournal | None) -> None:
        """Create or delete a journal at a new revision; earlier listings are kept by revision."""
        self.past[self.revision] = dict(self.journals)
        self.revision += 1
        if journal is None:
            del self.journals[name]
        else:
            journal.create_revision = self.revision
            self.journals[name] = journal

    def list_journals(
        self, selector: str | pb.LabelSelector = "", *, limit: int = 0
    ) -> list[pb.ListResponse.Journal]:
        parsed = parse_selector(selector) if isinstance(selector, str) else selector
        listed = [self._entry(name) for name in sorted(self.journals)]
        self.journals.pop(self.deleted_once_listed, None)
        expanded = expand_prefix(parsed)
        found = [each for each in listed if selector_matches(expanded, labels_with_name(each.spec))]
        return found[: limit or None]

    def spec(self, name: str) -> pb.JournalSpec:
        labels = [pb.Label(name="content-type", value=self.journals[name].content_type)]
        spec = pb.JournalSpec(name=name, labels=pb.LabelSet(labels=labels))
        if self.journals[name].suspended:
            spec.suspend.level = pb.JournalSpec.Suspend.FULL
            spec.suspend.offset = self.journals[name].head
        return spec

    def get_journal(self, name: str) -> pb.ListResponse.Journal:
        if name not in self.journals:
            raise JournalNotFoundError(name)
        return self._entry(name)

    def _entry(self, name: str) -> pb.ListResponse.Journal:
        created = self.journals[name].create_revision
        return pb.ListResponse.Journal(spec=self.spec(name), mod_revision=created, create_revision=created)

    def first_offset(self, journal: str) -> int:
        found = self._found(journal)
        found.stale_head = None
        return found.begin

    def _found(self, journal: str) -> FakeJournal:
        if journal not in self.journals:
            raise JournalNotFoundError(journal)
        return self.journals[journal]

    def write_head(self, journal: str) -> int:
        found = self._found(journal)
        return found.head if found.stale_head is None else found.stale_head

    def write_heads(self, journals: Sequence[str], *, refusals: object = None) -> dict[str, int]:
        return {journal: self.write_head(journal) for journal in journals}

    def highest_heads(self, journals: Sequence[str]) -> dict[str, int]:
        return {journal: self._found(journal).head for journal in journals}

    def settled_heads(self, reached: Mapping[str, int]) -> dict[str, SettledHead]:
        return {journal: SettledHead(head) for journal, head in self.highest_heads(list(reached)).items()}

    def tails(self, offsets: Mapping[str, int], max_bytes: int) -> dict[str, Tail]:
        self.tailed.append(sorted(offsets))
        return {name: self._tail(name, offset, max_bytes) for name, offset in offsets.items()}

    def _tail(self, journal: str, offset: int, max_bytes: int) -> Tail:
        head, found = self.write_head(journal), self.journals[journal]
        if not self.has_tails or not found.begin <= offset <= head <= offset + max_bytes:
            return Tail(head)
        return Tail(head, found.content[offset - found.begin : head - found.begin])

    def offset_since(self, journal: str, mod_time: int) -> int | None:
        if self._found(journal).suspended:
            return None
        listed = (each.fragment for each in self.list_fragments(journal))
        return next((each.begin for each in listed if not 0 < each.mod_time < mod_time), None)

    def list_fragments(self, journal: str, *, page_token: int = 0) -> list[FakeListed]:
        self.lists.append(journal)
        found = self.journals[journal]
        if found.suspended:
            raise SuspendedError(journal)
        ends = [*found.fragments[1:], found.head]
        listed = zip_longest(found.fragments, ends, found.mod_times, fillvalue=0)
        fragments = [FakeFragment(*each) for each in listed if each[0] >= page_token]
        return [FakeListed(each) for each in fragments]

    def read(self, journal: str, *, offset: int = 0, end_offset: int = 0) -> FakeReader:
        self.reads.append((journal, offset, end_offset))
        found = self.journals[journal]
        begin = max(offset, found.begin)
        content = found.content[begin - found.begin : max(0, end_offset - found.begin)]
        if found.suspended and not content:
            return FakeReader([], offset, [], SuspendedError(journal))
        jumps = [(offset, begin)] if begin > offset else []
        return FakeReader([FakeChunk(begin, content)] if content else [], end_offset, jumps)


def planner_of(
    journals: dict[str, FakeJournal],
    use: Use = "stream",
    clock: Callable[[], float] = lambda: 0.0,
    many: int = MANY,
    /,
    **options: str,
) -> tuple[Planner, FakeClient]:
    """Return a planner over fake journals; it reads the prefix ``log/`` by default."""
    given = {"brokerAddress": "http://broker.test:80"} | options
    if not given.keys() & {"journals", "journalsPattern", "selector", "path"}:
        given["path"] = "log/"
    client = FakeClient(journals)
    parsed = parse_options(given, use, environ={})
    return Planner(client, parsed, clock=clock, many=many), client  # type: ignore[arg-type]  # A fake client.


def at(**offsets: int) -> JournalOffsets:
    """Return a position: ``at(a=5)`` is offset 5 of ``log/a``."""
    return JournalOffsets({f"log/{name}": offset for name, offset in offsets.items()})


def lines(count: int, length: int = 10) -> bytes:
    """Return ``count`` records of ``length`` bytes each, newline included."""
    return (b"x" * (length - 1) + b"\n") * count
