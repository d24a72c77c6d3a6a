"""Tests that the messages of a List stream become complete listings or errors."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gazette_spark.client._list.listing import Listing, ListingChange, SnapshotJoiner
from gazette_spark.errors import JournalNotFoundError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.unit.client.listings import EMPTY, header, journal, message, pages


def listings(messages: Iterable[pb.ListResponse], **options: int) -> list[Listing]:
    """Return the listings of a watch that ends cleanly after the messages."""
    joiner = SnapshotJoiner(watch=True, **options)
    found = [listing for each in messages if (listing := joiner.feed(each)) is not None]
    assert joiner.finish() is None
    return found


def test_pages_are_joined_at_the_empty_message() -> None:
    (listing,) = listings(pages(7, ["a/one", "a/two", "b/one"]))
    assert (listing.revision, listing.names) == (7, ["a/one", "a/two", "b/one"])
    assert repr(listing) == "Listing(revision=7, journals=3)"


def test_listings_follow_each_other() -> None:
    found = listings([*pages(7, ["a/one"]), *pages(8, []), *pages(12, ["a/one", "a/two"])])
    assert [(each.revision, each.names) for each in found] == [
        (7, ["a/one"]),
        (8, []),
        (12, ["a/one", "a/two"]),
    ]


def test_a_page_of_any_size_is_taken() -> None:
    """Gazette's brokers send 25 journals a message."""
    names = [f"many/{index:04}" for index in range(1000)]
    (listing,) = listings(pages(7, names, size=1000))
    assert listing.names == names


def test_a_listing_without_watch_ends_with_its_stream() -> None:
    joiner = SnapshotJoiner(watch=False)
    assert joiner.feed(message("b/one", revision=7)) is None
    assert joiner.feed(message("a/one")) is None
    listing = joiner.finish()
    assert listing is not None
    assert listing.names == ["a/one", "b/one"]
    assert list(listing.to_pb().journals) == [journal("a/one"), journal("b/one")]


def test_no_journals_are_a_listing() -> None:
    joiner = SnapshotJoiner(watch=False)
    joiner.feed(message(revision=7))
    assert joiner.finish() == Listing(header(7), ())


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        pytest.param([EMPTY], "without a header", id="end before a beginning"),
        pytest.param([message("a/one")], "without a header", id="no header"),
        pytest.param(pages(4, ["a/one"]), "revision 4 is not new", id="old revision"),
        pytest.param([*pages(9, []), *pages(9, ["a/one"])], "revision 9 is not new", id="revision repeated"),
        pytest.param([*pages(9, []), *pages(8, ["a/one"])], "revision 8 is not new", id="revision back"),
        pytest.param(
            [message("a/one", revision=7), message("a/two", revision=8)],
            "before the previous one",
            id="no end",
        ),
        pytest.param([message("a/one", revision=7)], "before a listing was complete", id="cut"),
        pytest.param([*pages(7, ["a/one", "a/one"])], "listed twice", id="name twice"),
        pytest.param([*pages(7, ["a/one", "b/one", "a/one"])], "listed twice", id="name on two pages"),
        pytest.param(
            [
                pb.ListResponse(
                    header=header(7), journals=[pb.ListResponse.Journal(spec=journal("a/one").spec)]
                )
            ],
            "must be above 0",
            id="no mod revision",
        ),
        pytest.param(
            [
                pb.ListResponse(
                    header=header(7),
                    journals=[
                        pb.ListResponse.Journal(spec=pb.JournalSpec(name="../etc/passwd"), mod_revision=1)
                    ],
                )
            ],
            "../etc/passwd",
            id="name leads out",
        ),
    ],
)
def test_violations(messages: list[pb.ListResponse], problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        listings(messages, least_revision=5)


def test_an_empty_message_in_a_plain_listing_is_a_violation() -> None:
    """As in Gazette's client."""
    joiner = SnapshotJoiner(watch=False)
    joiner.feed(message("a/one", revision=7))
    with pytest.raises(ProtocolError, match="an empty message"):
        joiner.feed(EMPTY)


def test_a_plain_listing_of_no_messages_is_cut() -> None:
    """A broker always sends at least one message."""
    with pytest.raises(ProtocolError, match="ended before"):
        SnapshotJoiner(watch=False).finish()


def test_a_status_is_raised() -> None:
    with pytest.raises(JournalNotFoundError):
        SnapshotJoiner(watch=True).feed(pb.ListResponse(status=pb.JOURNAL_NOT_FOUND, header=header(3)))


def test_get_finds_by_name() -> None:
    listing = Listing(header(7), (journal("a/one"), journal("a/two", 5)))
    assert listing.get("a/two") == journal("a/two", 5)
    assert listing.get("a/onf") is None
    assert listing.get("z/zz") is None


def test_changes_tell_a_recreated_journal_from_an_updated_one() -> None:
    """A changed create revision means another journal with the same name."""
    older = Listing(
        header(7), (journal("a/gone"), journal("a/kept"), journal("a/new", 3, 3), journal("a/spec", 2))
    )
    newer = Listing(
        header(9), (journal("a/come", 8, 8), journal("a/kept"), journal("a/new", 9, 9), journal("a/spec", 8))
    )
    assert newer.changes_since(older) == ListingChange(("a/come",), ("a/gone",), ("a/new",), ("a/spec",))
    assert newer.changes_since(None).added == tuple(newer.names)
