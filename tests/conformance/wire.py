"""The broker protocol without a client: generated stubs and a deadline.

The conformance tests use this to talk to brokers, not the client, so that a mistake in both our client and
our broker cannot hide itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, Protocol, Self, TypeAlias, TypeVar, cast

import grpc

from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
ReadResponses: TypeAlias = list[pb.ReadResponse]
Spans: TypeAlias = list[tuple[int, int]]
Names: TypeAlias = list[str]

CALL_TIMEOUT_S = 20.0
"""Deadline of each call in seconds."""

WAIT_TIMEOUT_S = 30.0
"""Maximum seconds a test waits for something that a broker does by itself."""

COMMIT = pb.AppendRequest()
"""Empty message that announces a commit."""


class Answers(Iterator[T_co], Protocol[T_co]):
    """A running call and its messages; gRPC's type stubs omit that it is an iterator."""

    def cancel(self) -> bool:
        """End the call."""


def wait_for(probe: Callable[[], T | None], what: str) -> T:
    deadline = monotonic() + WAIT_TIMEOUT_S
    pause = threading.Event()
    while not (found := probe()):
        assert monotonic() < deadline, f"no {what} within {WAIT_TIMEOUT_S:g} s"
        pause.wait(0.02)
    return found


def labels(*pairs: tuple[str, str], prefix: bool = False) -> pb.LabelSet:
    """Return a label set of ``(name, value)`` pairs, sorted as brokers require."""
    return pb.LabelSet(labels=[pb.Label(name=n, value=v, prefix=prefix) for n, v in sorted(pairs)])


def selector(include: pb.LabelSet | None = None, exclude: pb.LabelSet | None = None) -> pb.LabelSelector:
    return pb.LabelSelector(include=include, exclude=exclude)


def spec(name: str, **fields: Any) -> pb.JournalSpec:
    """Return a valid spec: one replica, ``file:///``, SNAPPY, fragments of 16 MiB, refreshed each second.

    ``fields`` replace fields of the spec, or of its fragment if the spec has no field of that name.
    """
    made = pb.JournalSpec(name=name, replication=1)
    made.fragment.CopyFrom(
        pb.JournalSpec.Fragment(length=1 << 24, compression_codec=pb.SNAPPY, stores=["file:///"])
    )
    made.fragment.refresh_interval.FromSeconds(1)
    for field, value in fields.items():
        target: Any = made if field in pb.JournalSpec.DESCRIPTOR.fields_by_name else made.fragment
        if field == "stores":
            target.stores[:] = value
        elif field in ("labels", "suspend"):
            getattr(target, field).CopyFrom(value)
        else:
            setattr(target, field, value)
    return made


def upsert(journal: pb.JournalSpec, revision: int = 0) -> pb.ApplyRequest.Change:
    """Return the change that creates a journal (revision 0), replaces it at a revision, or either (-1)."""
    return pb.ApplyRequest.Change(expect_mod_revision=revision, upsert=journal)


def delete(name: str, revision: int) -> pb.ApplyRequest.Change:
    return pb.ApplyRequest.Change(expect_mod_revision=revision, delete=name)


class _Metadata(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]  # The class itself takes no arguments.
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]  # The class itself takes no arguments.
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]  # The class itself takes no arguments.
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]  # The class itself takes no arguments.
):
    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def _call(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=[*(details.metadata or ()), *self._metadata]), request)

    # One loosely typed function serves all four kinds of call.
    intercept_unary_unary = intercept_unary_stream = _call  # type: ignore[assignment]  # See above.
    intercept_stream_unary = intercept_stream_stream = _call  # type: ignore[assignment]  # See above.


class Wire:
    """Calls to one broker, as a context manager; thread-safe.

    Args:
        endpoint: Of the broker.
        metadata: Sent with every call.
    """

    def __init__(self, endpoint: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._channel = grpc.insecure_channel(endpoint.removeprefix("http://"))
        with_metadata = grpc.intercept_channel(self._channel, _Metadata(metadata))
        self.stub = pb_grpc.JournalStub(with_metadata if metadata else self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def apply(self, *changes: pb.ApplyRequest.Change) -> pb.ApplyResponse:
        return self.stub.Apply(pb.ApplyRequest(changes=changes), timeout=CALL_TIMEOUT_S)

    def create(self, *specs: pb.JournalSpec) -> None:
        """Create journals and wait until each takes appends."""
        response = self.apply(*map(upsert, specs))
        assert response.status == pb.OK
        for each in specs:
            self.wait_assigned(each.name)

    def wait_assigned(self, name: str) -> None:
        wait_for(lambda: self._has_primary(name), f"primary of {name}")

    def _has_primary(self, name: str) -> bool:
        return [each.route.primary >= 0 for each in self.list(selector(labels(("name", name))))] == [True]

    def list(self, chosen: pb.LabelSelector) -> list[pb.ListResponse.Journal]:
        """List journals: return the messages of one snapshot, joined."""
        messages = list(self.stub.List(pb.ListRequest(selector=chosen), timeout=CALL_TIMEOUT_S))
        assert messages[0].status == pb.OK
        return [journal for message in messages for journal in message.journals]

    def names(self, chosen: pb.LabelSelector) -> Names:
        return [each.spec.name for each in self.list(chosen)]

    def append(self, journal: str, *contents: bytes, **fields: Any) -> pb.AppendResponse:
        """Append in the regular form: parameters, contents, marker, half-close."""
        first = pb.AppendRequest(journal=journal, **fields)
        return self.send([first, *(pb.AppendRequest(content=each) for each in contents), COMMIT])

    def send(self, requests: Iterable[pb.AppendRequest]) -> pb.AppendResponse:
        """Send the messages of one append unchanged, then half-close."""
        return self.stub.Append(iter(requests), timeout=CALL_TIMEOUT_S)

    def read(self, journal: str, **fields: Any) -> ReadResponses:
        """Return every message of a read that ends by itself."""
        request = pb.ReadRequest(journal=journal, **fields)
        return list(self.stub.Read(request, timeout=CALL_TIMEOUT_S))

    def open_read(self, journal: str, **fields: Any) -> Answers[pb.ReadResponse]:
        """Return a running read, which the caller must cancel."""
        call = self.stub.Read(pb.ReadRequest(journal=journal, **fields), timeout=CALL_TIMEOUT_S)
        return cast(Answers[pb.ReadResponse], call)

    def open_list(self, request: pb.ListRequest) -> Answers[pb.ListResponse]:
        """Return a running list call, which the caller must cancel."""
        return cast(Answers[pb.ListResponse], self.stub.List(request, timeout=CALL_TIMEOUT_S))

    def content(self, journal: str, **fields: Any) -> bytes:
        return b"".join(each.content for each in self.read(journal, **fields))

    def head(self, journal: str) -> int:
        """Return the write head from an empty append."""
        return self.append(journal).commit.end

    def fragments(self, journal: str, *, signed: bool = True, **fields: Any) -> pb.FragmentsResponse:
        """List one page of fragments, with URLs that are valid for a minute if ``signed``."""
        request = pb.FragmentsRequest(journal=journal, **fields)
        if signed:
            request.signatureTTL.FromSeconds(60)
        return self.stub.ListFragments(request, timeout=CALL_TIMEOUT_S)

    def spans(self, journal: str) -> Spans:
        """Return ``(begin, end)`` of each fragment."""
        return [(each.spec.begin, each.spec.end) for each in self.fragments(journal).fragments]

    def wait_persisted(self, journal: str, count: int) -> pb.FragmentsResponse:
        """Wait until the broker's index has ``count`` stored fragments."""

        def listed() -> pb.FragmentsResponse | None:
            response = self.fragments(journal)
            stored = [each for each in response.fragments if each.spec.mod_time]
            return response if len(stored) >= count else None

        found = wait_for(listed, f"{count} persisted fragments of {journal}")
        assert found is not None
        return found
