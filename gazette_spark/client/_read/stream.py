"""Makes one Read call, and checks the messages of its stream.

A stream is metadata, then chunks up to the end of the metadata's fragment, then the next metadata. The
:class:`Cursor` follows it without I/O: it takes one message and returns a chunk or nothing, or raises an
error. It is an error if a broker repeats bytes, omits bytes silently, or sends content in the wrong place, or
if bytes do not match a stored fragment's SHA-1. Such bytes are never returned.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import grpc

from gazette_spark.client._read.chunks import Chunk
from gazette_spark.client._read.fragment import without_query
from gazette_spark.client._transport.channel import Connection, cancel, is_no_answer, settle
from gazette_spark.client._transport.status import read_status_error
from gazette_spark.errors import BrokerError, CorruptFragmentError, GazetteError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import protocol_pb2_grpc as pb_grpc
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journal_specs import MAX_OFFSET, validate_journal_name
from gazette_spark.protocol.tokens import Capability, journal_claims

# A broker reports a fragment that it cannot decode as UNKNOWN, with the text of Go's codec.
_CORRUPT_TEXTS = (
    "eof",
    "corrupt",
    "expected end",
    "checksum",
    "gzip: invalid",
    "magic number",
    "frame descriptor",
)
"""Parts, in lower case, of brokers' errors about a stored fragment with corrupt bytes."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Range and mode of a read. An ``offset`` of -1 is the write head; an ``end_offset`` of 0 is no end."""

    journal: str
    offset: int = 0
    end_offset: int = 0
    block: bool = False
    do_not_proxy: bool = False
    begin_mod_time: int = 0

    def __post_init__(self) -> None:
        # Brokers report an invalid value only as UNKNOWN with a text, which a reader cannot distinguish from
        # a temporary failure.
        validate_journal_name(self.journal, allow_meta=True)
        for name, value in (("Offset", self.offset), ("EndOffset", self.end_offset)):
            if not -1 <= value <= MAX_OFFSET:
                problem = f"invalid {name} ({value}; expected -1 to {MAX_OFFSET})"
                raise ProtocolError(f"ReadRequest.{name}", problem)
        if self.end_offset != 0 and self.end_offset < self.offset:
            raise ProtocolError(
                "ReadRequest.EndOffset",
                f"invalid EndOffset ({self.end_offset}; expected 0 or >= {self.offset})",
            )
        if self.begin_mod_time < 0:
            raise ProtocolError("ReadRequest.BeginModTime", f"invalid BeginModTime ({self.begin_mod_time})")

    @classmethod
    def of(cls, request: pb.ReadRequest) -> ReadOptions:
        """Return the options of a request, without the fields that only brokers set."""
        return cls(
            request.journal,
            request.offset,
            request.end_offset,
            block=request.block,
            do_not_proxy=request.do_not_proxy,
            begin_mod_time=request.begin_mod_time,
        )

    def request(self, offset: int) -> pb.ReadRequest:
        """Return the request with another offset."""
        return pb.ReadRequest(
            journal=self.journal,
            offset=offset,
            end_offset=self.end_offset,
            block=self.block,
            do_not_proxy=self.do_not_proxy,
            begin_mod_time=self.begin_mod_time,
        )


class Cursor:
    """Follows the messages of one Read stream."""

    __slots__ = ("_digest", "_limit", "fragment", "header", "journal", "jumps", "offset", "response")

    def __init__(self, journal: str, offset: int, jumps: list[tuple[int, int]]) -> None:
        self.journal = journal
        self.offset = offset
        """Offset of the next byte; -1 until the broker has sent its write head."""
        self.jumps = jumps
        """Jumps, to which the cursor adds: each as the requested offset and the larger one that followed."""
        self.response: pb.ReadResponse | None = None
        """The last metadata: status, write head, URL, and, in the stream's first message, the header."""
        self.header: pb.Header | None = None
        """The stream's header, with its broker and the journal's route."""
        self.fragment: Fragment | None = None
        """Fragment of the last valid metadata."""
        # End of the fragment that the last metadata named. Content that goes past it belongs to no fragment.
        self._limit = -1
        self._digest: hashlib._Hash | None = None

    @property
    def url(self) -> str:
        """URL of the fragment, if it is stored."""
        return self.response.fragment_url if self.response is not None else ""

    @property
    def write_head(self) -> int:
        """The journal's last reported write head; 0 if none was reported."""
        return self.response.write_head if self.response is not None else 0

    def feed(self, message: pb.ReadResponse) -> Chunk | None:
        """Check the stream's next message, and return its chunk, if any.

        Raises:
            StatusError: the broker ended the stream with a status.
            ProtocolError: the message is not allowed here.
            CorruptFragmentError: the stored fragment just completed does not match its name.
        """
        content = message.content
        if not content:
            self._on_metadata(message)
            return None
        # In protobuf a missing field is a zero, so only the fields that content must not have distinguish it
        # from metadata.
        if message.status or message.write_head or message.fragment_url or message.HasField("fragment"):
            raise self._lie("content comes together with metadata")
        offset = message.offset
        # This makes a read exact: bytes that a broker repeats or leaves out never reach the caller.
        if offset != self.offset:
            raise self._lie(f"a chunk begins at offset {offset}; expected {self.offset}")
        end = offset + len(content)
        if end > self._limit:
            raise self._lie(f"a chunk ends at offset {end}, its fragment at {self._limit}")
        if self._digest is not None:
            self._digest.update(content)
            # The sum is known only at the fragment's last byte, after earlier chunks were returned. The last
            # chunk is withheld, so a reader does not get past the fragment.
            if end == self._limit and self.fragment is not None:
                fragment, digest = self.fragment, self._digest.digest()
                if digest != fragment.sum:
                    problem = f"its SHA-1 is {digest.hex()}, not {fragment.sum.hex()}"
                    span, url = (fragment.begin, fragment.end), without_query(self.url)
                    raise CorruptFragmentError(self.journal, *span, problem, url)
        self.offset = end
        return Chunk(offset, content, self.fragment.mod_time if self.fragment is not None else 0)

    def explain(self, error: GazetteError) -> GazetteError:
        """Return a stream's failure with its journal and offset, which the broker's text lacks.

        If the text is one that brokers use for an unreadable stored fragment, the result is an error about
        that fragment.
        """
        if not isinstance(error, BrokerError):
            return error
        fragment = self.fragment
        # Without a stored fragment, the failure is not the store's.
        if fragment is None or not self.url:
            problem = f"journal {self.journal!r} at offset {self.offset}: {error.problem}"
            return BrokerError(error.endpoint, error.code, problem)
        source = without_query(self.url)
        if any(text in error.problem.lower() for text in _CORRUPT_TEXTS):
            problem = f"the broker could not read it: {error.problem}"
            return CorruptFragmentError(self.journal, fragment.begin, fragment.end, problem, source)
        span = f"journal {self.journal!r}, fragment [{fragment.begin}, {fragment.end}) ({source})"
        return BrokerError(error.endpoint, error.code, f"{span}: {error.problem}")

    def _on_metadata(self, message: pb.ReadResponse) -> None:
        if message.HasField("header"):
            # Only the first message has a header.
            self.header = message.header
        if message.status == pb.OK:
            self._check_offset(message.offset)
            fragment = Fragment.from_pb(message.fragment)
            # A journal's metadata path, behind a semicolon, is not part of its fragments' names.
            if fragment.journal.partition(";")[0] != self.journal.partition(";")[0]:
                raise self._lie(f"a fragment of journal {fragment.journal!r}")
            if not fragment.begin <= message.offset < fragment.end <= message.write_head:
                span = f"fragment [{fragment.begin}, {fragment.end})"
                raise self._lie(f"{span} at offset {message.offset}, write head {message.write_head}")
            self._advance(message)
            self.fragment, self._limit = fragment, fragment.end
            # A stored fragment never changes, so its bytes can be checked against its sum.
            whole = bool(message.fragment_url) and message.offset == fragment.begin
            self._digest = hashlib.sha1(usedforsecurity=False) if whole else None
            return
        if message.status == pb.OFFSET_NOT_YET_AVAILABLE:
            self._check_offset(message.offset)
            self._advance(message)
        # Other statuses have no offset.
        self.response = message
        raise read_status_error(message, self.journal)

    def _check_offset(self, offset: int) -> None:
        if offset < self.offset:
            raise self._lie(f"it went back to offset {offset} from {self.offset}")

    def _advance(self, message: pb.ReadResponse) -> None:
        # This is a jump: the journal has lost the bytes between. At -1, the broker has only reported its
        # write head.
        if message.offset > self.offset and self.offset != -1:
            self.jumps.append((self.offset, message.offset))
        self.offset = message.offset
        self.response = message

    def _lie(self, problem: str) -> ProtocolError:
        return ProtocolError(f"ReadResponse of journal {self.journal!r}", problem)


class ReadStream:
    """A Read call in progress, on a separate channel.

    One thread reads :meth:`messages`; any thread may :meth:`cancel`.
    """

    def __init__(self, connection: Connection, request: pb.ReadRequest, timeout_s: float) -> None:
        self._connection = connection
        self._request = request
        # Whether the call ended without any answer, after which its channel is not used for another call.
        self._silent = False
        # Get the metadata first: the caller's function for tokens may raise, and then no channel must be
        # leased.
        metadata = connection.metadata(journal_claims(Capability.READ, request.journal))
        # Use a separate channel, because the streams of a connection share a window: a slow reader would stop
        # all others.
        self._channel: grpc.Channel | None = connection.lease()
        self._call = pb_grpc.JournalStub(self._channel).Read(request, timeout=timeout_s, metadata=metadata)
        connection.cancel_on_close(self._channel, self.cancel)

    def messages(self) -> Iterator[pb.ReadResponse]:
        """Yield the stream's messages. Its failure is raised as one of the package's errors."""
        try:
            for message in self._call:
                if message.HasField("header"):
                    # Only the first message has a header.
                    self._connection.observe(self._request.journal, message.header)
                self._connection.contacted = True
                yield message
        except grpc.RpcError as error:
            translated = self._connection.rpc_error(error)
            self._connection.report(translated, waits=self._request.block)
            # A read that waits for new bytes is silent on a healthy connection, too. Its own channel is no
            # longer trusted, but those of other calls are.
            self._silent = is_no_answer(translated)
            if self._silent and not self._request.block:
                self._connection.distrust()
            raise translated from None

    def cancel(self) -> None:
        """End the call, from any thread."""
        cancel(self._call)

    def close(self) -> None:
        """End the call and return its channel."""
        settle(self._call)
        if self._channel is not None:
            self._connection.give_back(self._channel, silent=self._silent)
            self._channel = None
