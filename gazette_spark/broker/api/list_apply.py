"""Serves the List and Apply RPCs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from gazette_spark._server.authorizer import UnauthenticatedError, check_change, covers, is_confined
from gazette_spark._server.catalog import CatalogEntry, check_transaction
from gazette_spark._server.topology import Slots, make_route
from gazette_spark.broker.api.call import ServedCall, ServiceContext
from gazette_spark.broker.registry import JOURNALS, JournalCatalog, JournalState
from gazette_spark.broker.storage.fragment_store import open_store
from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import labels
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.requests import validate_apply_request, validate_list_request
from gazette_spark.protocol.tokens import Claims

JOURNALS_PER_MESSAGE = 25
"""Number of journals in a message, as in Gazette. More would be allowed."""


def list_journals(
    context: ServiceContext, request: pb.ListRequest, call: ServedCall
) -> Iterator[pb.ListResponse]:
    """Serve a snapshot, or with ``watch`` one after each change until the client or the broker ends it."""
    validate_list_request(request)
    # Journals have to match both the request and the caller's claims.
    selectors = [labels.expand_prefix(selector) for selector in (request.selector, call.claims.selector)]
    if not request.watch:
        state = context.registry.keyspace.state
        yield from _snapshot(context, state, state.catalog.select(*selectors))
        return
    yield from _watch(context, request, selectors, call)


def _watch(
    context: ServiceContext, request: pb.ListRequest, selectors: list[pb.LabelSelector], call: ServedCall
) -> Iterator[pb.ListResponse]:
    registry = context.registry
    call.wake_when_over(registry.wake)
    resume = request.watch_resume.etcd.revision if request.HasField("watch_resume") else 0
    # A resumed watch already has the listing of that revision, so it waits for a later one.
    if not registry.wait_for(lambda catalog: catalog.revision > resume, call.is_awaited):
        return
    sent: tuple[int, int] | None = None
    while call.is_awaited():
        state = registry.keyspace.state
        entries = state.catalog.select(*selectors)
        # As in Gazette, a change of routes alone sends nothing.
        mark = (len(entries), max((entry.mod_revision for entry in entries), default=0))
        if mark != sent:
            sent = mark
            yield from _snapshot(context, state, entries)
            yield pb.ListResponse()  # An empty message ends the snapshot.
        # Use the revision of the state that was sent, not the current one. Otherwise a change during the
        # sending would be missed.
        seen = state.catalog.revision
        if not registry.wait_for(lambda now, seen=seen: now.revision > seen, call.is_awaited):  # type: ignore[misc]
            return


def _snapshot(
    context: ServiceContext, state: JournalState, entries: list[CatalogEntry[pb.JournalSpec]]
) -> Iterator[pb.ListResponse]:
    routes: dict[Slots, pb.Route] = {}
    for start in range(0, len(entries) or 1, JOURNALS_PER_MESSAGE):
        page = entries[start : start + JOURNALS_PER_MESSAGE]
        response = pb.ListResponse(
            journals=[
                pb.ListResponse.Journal(
                    spec=entry.spec,
                    mod_revision=entry.mod_revision,
                    create_revision=entry.create_revision,
                    route=_route(routes, state.slots.get(entry.spec.name, ())),
                )
                for entry in page
            ]
        )
        if start == 0:
            response.header.CopyFrom(context.identity.header(state.catalog.revision))
        yield response


def _route(routes: dict[Slots, pb.Route], slots: Slots) -> pb.Route:
    """Return the route of the slots, made once: there are many journals but few sets of members."""
    if slots not in routes:
        routes[slots] = make_route(slots)
    return routes[slots]


def apply_changes(context: ServiceContext, request: pb.ApplyRequest, call: ServedCall) -> pb.ApplyResponse:
    """Serve one transaction: all changes, or no change."""
    validate_apply_request(request)

    # The keyspace calls this with the catalog to which the changes apply, so that nothing changes between
    # check and change.
    def check(catalog: JournalCatalog) -> None:
        for change in request.changes:
            entry = catalog.items.get(JOURNALS.changed(change))
            check_change(call.claims, change, None if entry is None else entry.spec)
        if is_confined(call.claims):
            _check_stores(context.registry.root, call.claims, catalog, request.changes)
        check_transaction(JOURNALS, request.changes)

    revision = context.registry.apply(request.changes, check)
    if revision is None:
        header = context.header()
        return pb.ApplyResponse(status=pb.ETCD_TRANSACTION_FAILED, header=header)
    return pb.ApplyResponse(header=context.identity.header(revision))


def _check_stores(
    root: Path, claims: Claims, catalog: JournalCatalog, changes: Iterable[pb.ApplyRequest.Change]
) -> None:
    """Refuse a store with which a journal would contain fragments of another journal.

    A store's path and its ``find`` and ``replace`` can name any directory. A journal reads all fragments in
    its directory as its content. The caller's claims may not cover the other journal.

    Raises:
        UnauthenticatedError: a store is refused. The error names the journal and the store.
    """
    store_of = cache(lambda url: open_store(root, url))
    journal_of_directory: dict[str, str] = {}
    for entry in catalog.items.values():
        if not covers(claims, entry.spec):
            for url in entry.spec.fragment.stores:
                with suppress(ProtocolError):  # The spec is older than this check, so it has no fragments.
                    journal_of_directory[store_of(url).directory(entry.spec.name)] = entry.spec.name
    for change in changes:
        for url in change.upsert.fragment.stores:
            name, directory = change.upsert.name, store_of(url).directory(change.upsert.name)
            for other_directory, other in journal_of_directory.items():
                # If the directories are nested like the names, the stores do not conflict, because listings
                # leave out other journals.
                if len(directory) < len(other_directory):
                    is_nested = other == name + other_directory.removeprefix(directory)
                else:
                    is_nested = name != other and name == other + directory.removeprefix(other_directory)
                path, other_path = f"{directory}/", f"{other_directory}/"
                if (path.startswith(other_path) or other_path.startswith(path)) and not is_nested:
                    text = f"not authorized to store {name} in {url}: fragments of another journal are there"
                    raise UnauthenticatedError(text)
