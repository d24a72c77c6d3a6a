"""Serves the Read RPC: metadata, then content, for one fragment after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gazette_spark.broker.api.append_fsm import is_readable
from gazette_spark.broker.api.call import ServedCall, ServiceContext, await_request, resolve
from gazette_spark.broker.http.signed_urls import READ_TTL_S, UrlOf, file_url
from gazette_spark.broker.journal import JournalClosedError, LiveJournal
from gazette_spark.broker.replication.proxy import proxy_read
from gazette_spark.broker.storage.fragment_content import spool_content, stored_content
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.requests import validate_read_request


def read(context: ServiceContext, request: pb.ReadRequest, call: ServedCall) -> Iterator[pb.ReadResponse]:
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
    responses = journal_responses(request, journal, context.chunk_bytes, call.is_awaited, context.url_of)
    # Only the first message may have the header. Gazette's clients refuse it in later ones.
    for first in responses:
        first.header.CopyFrom(header)
        yield first
        yield from responses


def journal_responses(
    request: pb.ReadRequest,
    journal: LiveJournal,
    chunk_bytes: int,
    is_awaited: Callable[[], bool],
    url_of: UrlOf = file_url,
) -> Iterator[pb.ReadResponse]:
    """Yield the metadata and chunks of a read of a journal, without header.

    ``is_awaited`` tells whether the client still reads and may do so. It is called for each fragment, and
    while waiting for one.
    """
    offset = request.offset
    while is_awaited():
        # Find the next fragment, waiting for it if requested.
        try:
            source = journal.serve(offset, request.begin_mod_time)
            while request.block and source.position.fragment is None:
                journal.wait_for_change(source.version, is_awaited)
                if not is_awaited():
                    return
                # Continue at the resolved offset. A request for -1 means the write head at the time of
                # the request; resolving it again would skip bytes that were appended meanwhile.
                source = journal.serve(source.position.offset, request.begin_mod_time)
        except JournalClosedError:
            # A stream that ends cleanly makes the client continue at another broker.
            return
        offset, fragment = source.position.offset, source.position.fragment
        metadata = pb.ReadResponse(offset=offset, write_head=source.position.write_head)
        # The read has caught up, or is at a hole that may still be filled. The write head in the metadata
        # shows which.
        if fragment is None:
            metadata.status = pb.OFFSET_NOT_YET_AVAILABLE
            yield metadata
            return
        metadata.fragment.CopyFrom(fragment.to_pb())
        if source.store is not None:
            metadata.fragment_url = url_of(source.store, fragment, READ_TTL_S)
        yield metadata
        if request.metadata_only or 0 != request.end_offset <= offset:
            return
        if request.do_not_proxy and source.store is not None:
            return  # The client reads the stored fragment by its URL.

        # Send the fragment as it was when its metadata was sent: bytes that are appended in the meantime
        # come after the next metadata.
        end = min(fragment.end, request.end_offset) if request.end_offset else fragment.end
        if source.spool is not None:
            chunks = spool_content(source.spool, fragment, offset, end, chunk_bytes)
        else:
            assert source.store is not None
            path = source.store.path(fragment)
            chunks = stored_content(path, fragment, offset, end, chunk_bytes)
        for content in chunks:
            yield pb.ReadResponse(offset=offset, content=content)
            offset += len(content)
        if offset == request.end_offset:
            return
