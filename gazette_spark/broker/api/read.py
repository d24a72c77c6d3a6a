"""The Read RPC: metadata, then content, fragment after fragment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gazette_spark.broker.api.append_fsm import is_readable
from gazette_spark.broker.api.call import Call, ServiceContext, await_request, resolve
from gazette_spark.broker.http.signed_urls import READ_TTL_S, UrlOf, file_url
from gazette_spark.broker.journal import JournalClosedError, LiveJournal, Served
from gazette_spark.broker.replication.proxy import proxy_read
from gazette_spark.broker.storage.fragment_content import spool_content, stored_content
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.requests import validate_read_request


def read(context: ServiceContext, request: pb.ReadRequest, call: Call) -> Iterator[pb.ReadResponse]:
    """Serve one read. The stream ends cleanly when the journal is deleted or the broker stops.

    Raises:
        ProtocolError: the request breaks a rule.
        CorruptFragmentError: the content of a stored fragment does not match its name.
        OSError: a store failed.
    """
    validate_read_request(request)
    if not await_request(context, request, call):
        return
    resolved = resolve(context, request.journal, call.claims, may_proxy=not request.do_not_proxy)
    status, journal, header = resolved.status, resolved.journal, resolved.header
    if status == pb.OK and resolved.spec is not None and not is_readable(resolved.spec):
        status = pb.NOT_ALLOWED
    if status == pb.OK and resolved.target is not None:
        yield from proxy_read(context, request, resolved, call)
        return
    if status != pb.OK or journal is None:
        yield pb.ReadResponse(status=pb.Status.Name(status), header=header)
        return
    call.wake_when_over(journal.wake)
    responses = ReadStream(request, journal, context.chunk_bytes, call.is_wanted, context.url_of).responses()
    for first in responses:
        first.header.CopyFrom(header)
        yield first
        yield from responses


@dataclass(slots=True)
class ReadStream:
    """The messages of one read of a journal."""

    request: pb.ReadRequest
    journal: LiveJournal
    chunk_bytes: int
    is_wanted: Callable[[], bool]
    """Whether the client still reads, and still may; asked at each fragment, and while waiting for one."""
    url_of: UrlOf = file_url

    def responses(self) -> Iterator[pb.ReadResponse]:
        """Yield metadata and chunks, without header."""
        request = self.request
        offset = request.offset
        while self.is_wanted() and (served := self._next_fragment(offset)) is not None:
            offset, fragment = served.resolution.offset, served.resolution.fragment
            yield self._metadata(served)
            if fragment is None or self._stops_after_metadata(served):
                return
            end = min(fragment.end, request.end_offset) if request.end_offset else fragment.end
            for content in self._content(served, fragment, end):
                yield pb.ReadResponse(offset=offset, content=content)
                offset += len(content)
            if offset == request.end_offset:
                return

    def _next_fragment(self, offset: int) -> Served | None:
        """Find the next fragment, waiting for it if requested; None ends the stream."""
        try:
            served = self.journal.serve(offset, self.request.begin_mod_time)
            while self.request.block and served.resolution.fragment is None:
                self.journal.wait_for_change(served.version, self.is_wanted)
                if not self.is_wanted():
                    return None
                # From where it resolved to: the write head asked for as -1 must not move with appends.
                served = self.journal.serve(served.resolution.offset, self.request.begin_mod_time)
        except JournalClosedError:
            return None
        return served

    def _metadata(self, served: Served) -> pb.ReadResponse:
        resolution = served.resolution
        response = pb.ReadResponse(offset=resolution.offset, write_head=resolution.write_head)
        if resolution.fragment is None:
            response.status = pb.OFFSET_NOT_YET_AVAILABLE
            return response
        response.fragment.CopyFrom(resolution.fragment.to_pb())
        if served.store is not None:
            response.fragment_url = self.url_of(served.store, resolution.fragment, READ_TTL_S)
        return response

    def _stops_after_metadata(self, served: Served) -> bool:
        request = self.request
        return (
            request.metadata_only
            or (request.do_not_proxy and served.store is not None)
            or 0 != request.end_offset <= served.resolution.offset
        )

    def _content(self, served: Served, fragment: Fragment, end: int) -> Iterator[bytes]:
        begin, chunk_bytes = served.resolution.offset, self.chunk_bytes
        if served.spool is not None:
            return spool_content(served.spool, fragment, begin, end, chunk_bytes)
        assert served.store is not None
        return stored_content(served.store.path(fragment), fragment, begin, end, chunk_bytes)
