"""Keeps the list of a query's journals, which is requested from brokers or followed by a watch.

A stream needs its list of journals at every trigger, many times a second. Requesting thousands of journals
each time would cost more than everything else, so :class:`FollowedJournals` lets brokers send changes. A
watch can be late, hang, or belong to a cluster whose Etcd was reset. No such state may last, or look like a
loss of data:

- a list that is at most :data:`FRESH_S` old is reused, so short runs start no watch;
- regardless of the watch, the list is requested every :data:`CHECK_S`, and the one with the larger revision
  counts. If the watch has a later revision than the brokers, Etcd was reset, and the watch is restarted;
- the absence of a journal alone proves nothing: see ``selection``.

So a query sees a new journal at the first trigger after the watch has reported it, some tens of milliseconds
after its creation, and after :data:`CHECK_S` at the latest. Brokers before Gazette 0.100 have no watch, so
their list is requested at the first trigger after :data:`FRESH_S`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.reads import JournalSource
from gazette_spark.errors import GazetteError, WatchUnsupportedError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set, parse_selector

if TYPE_CHECKING:
    from gazette_spark.client import Client, Listing, WatchedList

log = logging.getLogger(__name__)

FRESH_S = 1.0
"""Age in seconds up to which a list is reused."""

CHECK_S = 60.0
"""Age in seconds at which the list is requested although a watch follows it."""


class JournalLister(Protocol):
    """Lists the journals that a query's options select."""

    def latest(self) -> Listing:
        """Return the newest known list, or request one. An unchanged list is the same object."""

    def fresh(self) -> Listing:
        """Request the list."""

    def close(self) -> None:
        """Release the watch, if there is one."""


def selector_of(options: SourceOptions) -> pb.LabelSelector:
    """Return the selector of a query's journals."""
    selection = options.selection
    if selection.names:
        return pb.LabelSelector(include=label_set({"name": list(selection.names)}))
    return parse_selector(selection.selector)


class RequestedJournals:
    """Requests the list each time."""

    def __init__(self, client: JournalSource, selector: pb.LabelSelector) -> None:
        self._client = client
        self._selector = selector

    def __repr__(self) -> str:
        return f"RequestedJournals({self._client!r})"

    def latest(self) -> Listing:
        """Request the list."""
        return self.fresh()

    def fresh(self) -> Listing:
        """Request the list."""
        return self._client.list_all_journals(self._selector)

    def close(self) -> None:
        """Do nothing: there is no watch."""


class FollowedJournals:
    """Follows the list with a watch, and checks it as the module describes. For one thread.

    Args:
        client: Client of the brokers. It must stay open until this object is closed.
        selector: Selector of the journals.
        watch: Makes a watch that is not started yet.
        clock: Seconds from any origin.
    """

    def __init__(
        self,
        client: Client,
        selector: pb.LabelSelector,
        watch: Callable[[], WatchedList],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._selector = selector
        self._new_watch = watch
        self._clock = clock
        self._watch: WatchedList | None = None
        self._watchable = True
        self._requested: Listing | None = None
        self._requested_at_s = 0.0

    def __repr__(self) -> str:
        return f"FollowedJournals({self._watch!r}, requested={self._requested!r})"

    def latest(self) -> Listing:
        """Return the newest known list, or request one."""
        if self._requested is None:
            return self.fresh()
        age_s = self._clock() - self._requested_at_s
        # The list from the start is enough for a short run.
        if self._watch is None and age_s <= FRESH_S:
            return self._requested
        if self._watch is None and self._watchable:
            watch = self._new_watch()
            try:
                watch.start()
            except WatchUnsupportedError as error:
                log.info("brokers do not support watches, the list is requested instead cause=%s", error)
                self._watchable = False
            else:
                self._watch = watch
        # A hanging watch looks like one without changes, so the list is also requested now and then.
        watched = self._watched() if age_s <= CHECK_S else None
        if watched is None:
            return self.fresh()
        # Equal revisions mean equal lists. The requested one stays, so that callers see the same object again
        # and skip their work.
        return watched if watched.revision > self._requested.revision else self._requested

    def fresh(self) -> Listing:
        """Request the list; restart the watch if its revision is later than the brokers'."""
        requested = self._client.list_all_journals(self._selector)
        # An unchanged list stays the same object: see `JournalLister.latest`.
        if self._requested is None or not same(requested, self._requested):
            self._requested = requested
        self._requested_at_s = self._clock()
        watched = self._watched()
        # Etcd's revisions only grow. A watch ahead of the brokers belongs to an Etcd that was replaced, or
        # the broker that answered lags behind. In both cases a new watch shows the current state, and costs
        # one call.
        if watched is not None and requested.revision < watched.revision:
            event = "brokers returned an older revision, watch is restarted"
            log.warning("%s revision=%d watched=%d", event, requested.revision, watched.revision)
            self.close()
        return self._requested

    def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _watched(self) -> Listing | None:
        """Return the watch's list; None without a working watch."""
        if self._watch is None:
            return None
        try:
            return self._watch.list()
        except GazetteError:
            # The watch has ended, for example with its token. The caller requests the list, and a later call
            # starts another watch.
            self.close()
            return None


def same(one: Listing, other: Listing) -> bool:
    """Return whether two lists have the same revision, and so the same journals."""
    return one.revision == other.revision and one.header.etcd.cluster_id == other.header.etcd.cluster_id


def follow(client: Client, options: SourceOptions) -> FollowedJournals:
    """Return a follower of the journals that a query's options select; the caller closes it."""
    # Imported here because batch queries and executors do not need it.
    from gazette_spark.client import WatchedList

    selector = selector_of(options)
    return FollowedJournals(client, selector, lambda: WatchedList(client, selector))
