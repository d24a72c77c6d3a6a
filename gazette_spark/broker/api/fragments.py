"""Serves the ListFragments and FragmentStoreHealth RPCs."""

from __future__ import annotations

import os
from collections.abc import Iterable

import grpc

from gazette_spark.broker.api.append_fsm import is_readable
from gazette_spark.broker.api.call import ServedCall, ServiceContext, await_revision, resolve
from gazette_spark.broker.journal import JournalClosedError, LiveJournal
from gazette_spark.broker.replication.proxy import proxy_fragments
from gazette_spark.broker.storage.fragment_store import open_store
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.requests import (
    TRIED_DIRECTORY,
    validate_fragments_request,
    validate_store_health_request,
)

DEFAULT_PAGE = 1000
"""Default number of fragments in a page."""


def list_fragments(
    context: ServiceContext, request: pb.FragmentsRequest, call: ServedCall
) -> pb.FragmentsResponse:
    """Serve one page of a journal's fragments."""
    validate_fragments_request(request)
    if request.HasField("header"):
        context.identity.check_proxied(request.header)
        if not await_revision(context, request.header.etcd.revision, call):
            raise JournalClosedError
    resolved = resolve(context, request.journal, call.claims, may_proxy=not request.do_not_proxy)
    status, journal = resolved.status, resolved.journal
    if status == pb.OK and resolved.spec is not None and not is_readable(resolved.spec):
        status = pb.NOT_ALLOWED
    if status == pb.OK and resolved.target is not None:
        return proxy_fragments(context, request, resolved, call)
    response = pb.FragmentsResponse(status=pb.Status.Name(status), header=resolved.header)
    if status == pb.OK and journal is not None:
        page, response.next_page_token = page_of(journal.view.fragments(), request)
        response.fragments.extend(_entry(context, journal, fragment, request) for fragment in page)
    return response


def page_of(fragments: Iterable[Fragment], request: pb.FragmentsRequest) -> tuple[list[Fragment], int]:
    """Return the requested page, and the token of the next one (0 after the last)."""
    limit = request.page_limit or DEFAULT_PAGE
    page: list[Fragment] = []
    for fragment in fragments:
        mod_time = fragment.mod_time  # 0: not stored yet, so newer than any time.
        if (
            fragment.begin < request.next_page_token
            or 0 != mod_time < request.begin_mod_time
            or (request.end_mod_time and not 0 < mod_time <= request.end_mod_time)
        ):
            continue
        # The token is where the next page begins, so fragments that are added in between are neither repeated
        # nor left out.
        if len(page) == limit:
            return page, fragment.begin
        page.append(fragment)
    return page, 0


def _entry(
    context: ServiceContext, journal: LiveJournal, fragment: Fragment, request: pb.FragmentsRequest
) -> pb.FragmentsResponse._Fragment:
    entry = pb.FragmentsResponse._Fragment(spec=fragment.to_pb())
    # Bytes that are not stored yet have no URL.
    if request.HasField("signatureTTL") and fragment.mod_time:
        ttl_s = request.signatureTTL.ToNanoseconds() / 1e9
        entry.signed_url = context.url_of(journal.store_of(fragment), fragment, ttl_s)
    return entry


def store_health(
    context: ServiceContext, request: pb.FragmentStoreHealthRequest, call: grpc.ServicerContext
) -> pb.FragmentStoreHealthResponse:
    """Check that a store can store and return fragments and, with ``check_delete``, delete them.

    This broker serves a bucket from a directory, so it cannot check the bucket itself. Metadata of its answer
    names the directory, for which the message has no field.
    """
    validate_store_health_request(request)
    try:
        store = open_store(context.registry.root, request.fragment_store)
        problem = store.probe(request.check_delete_prefix if request.check_delete else None)
        if not request.fragment_store.startswith("file:"):
            call.set_trailing_metadata(((TRIED_DIRECTORY, os.fsencode(store.root / store.prefix)),))
    except ProtocolError as error:
        problem = str(error)
    status = pb.FRAGMENT_STORE_UNHEALTHY if problem else pb.OK
    return pb.FragmentStoreHealthResponse(status=status, header=context.header(), store_health_error=problem)
