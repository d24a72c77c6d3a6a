"""The list of a query's journals: requested from brokers, or followed by a watch.

A stream looks at its journals at every trigger, many times a second. To ask for a list of thousands each time
costs more than all the rest, so :class:`FollowedJournals` has brokers send changes. A watch can be late,
hang, or belong to a cluster whose Etcd was reset. No such state may last, or pass for a loss of data:

- a list that was requested within :data:`FRESH_S` is used as it is, so short runs start no watch;
- whatever the watch says, the list is requested every :data:`CHECK_S`; the newer of the two counts, by its
  revision. If the watch has a later revision than the brokers, Etcd was reset: the watch is restarted;
- nothing is concluded from a journal's absence alone: see ``selection``.

So a query finds a new journal at the first trigger after the watch reported it, some tens of milliseconds
after its creation, and after :data:`CHECK_S` at the latest. Brokers before Gazette 0.100 have no watch: there
the list is requested at the first trigger after :data:`FRESH_S`.
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
"""Age up to which a requested list is not requested again."""

CHECK_S = 60.0
"""Age at which the list is requested although a watch follows it."""


class JournalLister(Protocol):
    """Lists the journals that a query's options select."""

    def latest(self) -> Listing:
        """Return the newest known list, or request one. The same object as long as it is the same list."""

    def fresh(self) -> Listing:
        """Ask for the list."""

    def close(self) -> None:
        """Release the watch, if there is one."""


def selector_of(options: SourceOptions) -> pb.LabelSelector:
    """Return the selector of a query's journals."""
    selection = options.selection
    if selection.names:
        return pb.LabelSelector(include=label_set({"name": list(selection.names)}))
    return parse_selector(selection.selector)


class RequestedJournals:
    """Asks for the list each time."""

    def __init__(self, client: JournalSource, selector: pb.LabelSelector) -> None:
        self._client = client
        self._selector = selector

    def __repr__(self) -> str:
        return f"RequestedJournals({self._client!r})"

    def latest(self) -> Listing:
        """Ask for the list."""
        return self.fresh()

    def fresh(self) -> Listing:
        """Ask for the list."""
        return self._client.list_all_journals(self._selector)

    def close(self) -> None:
        """Hold nothing."""


class FollowedJournals:
    """Follows the list by a watch, and checks it; see the module. To be used by one thread.

    Args:
        client: whose brokers to ask; stays open until this is closed.
        selector: which journals.
        watch: makes a watch that is not started yet.
        clock: seconds, from anywhere.
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
        # A short run gets by with the list of its start.
        if self._watch is None and age_s <= FRESH_S:
            return self._requested
        if self._watch is None and self._watchable:
            watch = self._new_watch()
            try:
                watch.start()
            except WatchUnsupportedError as error:
                log.info("brokers know no watch, list is requested cause=%s", error)
                self._watchable = False
            else:
                self._watch = watch
        # A watch that hangs looks like one without news, so the list is requested now and then all the same.
        watched = self._watched() if age_s <= CHECK_S else None
        if watched is None:
            return self.fresh()
        return watched if watched.revision > self._requested.revision else self._requested

    def fresh(self) -> Listing:
        """Request the list; restart the watch if its revision is later than the brokers'."""
        requested = self._client.list_all_journals(self._selector)
        if self._requested is None or not same(requested, self._requested):
            self._requested = requested
        self._requested_at_s = self._clock()
        watched = self._watched()
        if watched is not None and requested.revision < watched.revision:
            event = "brokers went back, watch begins again"
            log.warning("%s revision=%d watched=%d", event, requested.revision, watched.revision)
            self.close()
        return self._requested

    def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _watched(self) -> Listing | None:
        """Return the watch's list; None without a working watch. A request gives the reason."""
        if self._watch is None:
            return None
        try:
            return self._watch.list()
        except GazetteError:
            self.close()
            return None


def same(one: Listing, other: Listing) -> bool:
    """Say whether two lists are of the same revision, and so the same."""
    return one.revision == other.revision and one.header.etcd.cluster_id == other.header.etcd.cluster_id


def follow(client: Client, options: SourceOptions) -> FollowedJournals:
    """Return a follower of the journals that a query's options select; the caller closes it."""
    # Loaded here: batch queries and executors do without.
    from gazette_spark.client import WatchedList

    selector = selector_of(options)
    return FollowedJournals(client, selector, lambda: WatchedList(client, selector))
