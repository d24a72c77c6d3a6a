"""Tests that an error for an unknown journal names similar ones, at the cost of one small listing."""

from __future__ import annotations

import pytest

from gazette_spark.client._list.listing import NAMES_COMPARED, name_hint
from gazette_spark.errors import AuthError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.oracles.brokers import FakeClient, FakeJournal

NAMES = ("shop/orders", "shop/orders-eu", "shop/returns", "shop/eu/orders", "log/of/shop")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        pytest.param(
            "shop/ordres", "; did you mean 'shop/orders' or 'shop/orders-eu'?", id="two letters swapped"
        ),
        pytest.param("shop/return", "; did you mean 'shop/returns'?", id="a letter left out"),
        pytest.param("shop/eu", "; did you mean the prefix 'shop/eu/' (1 journal)?", id="a prefix below"),
        pytest.param("shop", "; did you mean the prefix 'shop/' (4 journals)?", id="a prefix at the top"),
        pytest.param("shop/weather", "", id="the directory alone is shared"),
        pytest.param("unknown/orders", "", id="no such directory"),
    ],
)
def test_what_is_near_is_named(name: str, hint: str) -> None:
    """The common prefix of all names is ignored in the comparison."""
    client = FakeClient({each: FakeJournal(b"") for each in NAMES})
    assert name_hint(client, name) == hint


class Many:
    """A client that lists more journals than are compared, or refuses to list any."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[tuple[str, int]] = []
        self._error = error

    def list_journals(self, selector: str, *, limit: int) -> list[pb.ListResponse.Journal]:
        self.asked.append((selector, limit))
        if self._error is not None:
            raise self._error
        names = [f"shop/eu/part-{n:04}" for n in range(limit)]
        return [pb.ListResponse.Journal(spec=pb.JournalSpec(name=name)) for name in names]


def test_one_question_is_asked_and_its_answer_is_bounded() -> None:
    """A hint must not list a catalogue of many journals."""
    many = Many()
    assert name_hint(many, "shop/eu") == f"; did you mean the prefix 'shop/eu/' ({NAMES_COMPARED}+ journals)?"
    assert many.asked == [("prefix=shop/", NAMES_COMPARED)]


def test_a_token_without_the_directory_gets_no_hint() -> None:
    """The original error is more useful than the one of the hint."""
    assert name_hint(Many(AuthError("http://broker", "no")), "shop/ordres") == ""
