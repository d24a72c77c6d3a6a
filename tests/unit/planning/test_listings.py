"""The list of journals is available without a request and is never older than promised."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gazette_spark._planning.listing import CHECK_S, FRESH_S, FollowedJournals
from gazette_spark.client import Listing
from gazette_spark.errors import AuthError, GazetteError, WatchUnsupportedError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.unit.client.listings import header, journal


@dataclass
class Brokers:
    revision: int = 5
    names: tuple[str, ...] = ("log/a",)
    asked: int = 0

    def list_all_journals(self, _selector: object) -> Listing:
        self.asked += 1
        return self.listing()

    def listing(self) -> Listing:
        return Listing(header(self.revision), tuple(journal(name) for name in self.names))


@dataclass
class Watch:
    told: Listing
    failure: GazetteError | None = None
    closed: bool = False

    def start(self) -> None:
        if isinstance(self.failure, WatchUnsupportedError):
            raise self.failure

    def list(self) -> Listing:
        if self.failure is not None:
            raise self.failure
        return self.told

    def close(self) -> None:
        self.closed = True


@dataclass
class Rig:
    """A followed list with the brokers behind it, its watches, and the time."""

    brokers: Brokers = field(default_factory=Brokers)
    now: float = 0.0
    watches: list[Watch] = field(default_factory=list)
    failure: GazetteError | None = None

    def __post_init__(self) -> None:
        selector = pb.LabelSelector()
        self.journals = FollowedJournals(self.brokers, selector, self.watch, clock=lambda: self.now)  # type: ignore[arg-type]  # Fake brokers, and watches of a test.

    def watch(self) -> Watch:
        self.watches.append(Watch(self.brokers.listing(), self.failure))
        return self.watches[-1]

    def look(self, after_s: float) -> tuple[int, tuple[str, ...]]:
        self.now += after_s
        listing = self.journals.latest()
        return listing.revision, tuple(listing.names)


def test_a_short_run_asks_once_and_starts_no_watch() -> None:
    rig = Rig()
    for _ in range(5):
        assert rig.look(FRESH_S / 5) == (5, ("log/a",))
    assert (rig.brokers.asked, rig.watches) == (1, [])


def test_a_watch_is_believed_without_asking() -> None:
    rig = Rig()
    rig.look(0)
    rig.look(2 * FRESH_S)
    assert rig.journals.latest() is rig.journals.latest()
    rig.brokers.revision, rig.brokers.names = 7, ("log/a", "log/b")
    rig.watches[0].told = rig.brokers.listing()
    assert rig.look(0.1) == (7, ("log/a", "log/b"))
    assert (rig.brokers.asked, len(rig.watches)) == (1, 1)


def test_a_watch_that_hangs_costs_a_minute() -> None:
    rig = Rig()
    rig.look(0)
    rig.look(2 * FRESH_S)
    rig.brokers.revision, rig.brokers.names = 7, ("log/b",)
    assert rig.look(CHECK_S - 3 * FRESH_S) == (5, ("log/a",))
    assert rig.look(4 * FRESH_S) == (7, ("log/b",))
    assert rig.brokers.asked == 2
    rig.brokers.revision, rig.brokers.names = 9, ("log/c",)
    rig.watches[0].told = rig.brokers.listing()
    assert rig.look(0.1) == (9, ("log/c",))


def test_a_list_that_was_asked_for_is_not_undone_by_a_watch_that_is_behind() -> None:
    rig = Rig()
    rig.look(0)
    rig.look(2 * FRESH_S)
    rig.brokers.revision, rig.brokers.names = 6, ()
    assert rig.journals.fresh().names == []
    assert rig.look(0.1) == (6, ())


def test_etcd_made_anew_ends_the_watch() -> None:
    """A watch on a new Etcd must end, or it would wait for a revision that may never come."""
    rig = Rig()
    rig.look(0)
    rig.look(2 * FRESH_S)
    rig.brokers.revision, rig.brokers.names = 2, ("log/n",)
    assert rig.look(CHECK_S) == (2, ("log/n",))
    assert rig.watches[0].closed
    rig.look(2 * FRESH_S)
    assert len(rig.watches) == 2
    rig.brokers.revision = 3
    rig.watches[1].told = rig.brokers.listing()
    assert rig.look(0.1) == (3, ("log/n",))


def test_brokers_without_a_watch_are_asked_each_second() -> None:
    rig = Rig(failure=WatchUnsupportedError("ListResponse", "it ended"))
    rig.look(0)
    for turn in range(1, 4):
        rig.brokers.revision = 5 + turn
        assert rig.look(FRESH_S * 0.6)[0] == 5 + turn - 1
        assert rig.look(FRESH_S * 0.6)[0] == 5 + turn
    assert len(rig.watches) == 1


def test_a_watch_that_has_failed_is_replaced_by_asking() -> None:
    """A request shows whether the failure lasts."""
    rig = Rig()
    rig.look(0)
    rig.look(2 * FRESH_S)
    rig.watches[0].failure = AuthError("http://broker.test:80", "token has expired")
    rig.brokers.revision = 6
    assert rig.look(0.1)[0] == 6
    assert rig.watches[0].closed


@pytest.mark.parametrize("watched", [False, True], ids=["not watched", "watched"])
def test_closing(watched: bool) -> None:
    rig = Rig()
    rig.look(0)
    if watched:
        rig.look(2 * FRESH_S)
    rig.journals.close()
    assert [watch.closed for watch in rig.watches] == [True] * watched
