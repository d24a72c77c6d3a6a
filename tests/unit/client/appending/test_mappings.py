"""Tests that messages are mapped to the same journals as by Gazette's own mappings."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.client._append.mappings import ModuloMapping, RandomMapping, RendezvousMapping, fnv1a32
from gazette_spark.errors import EmptyListingError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import CONTENT_TYPE_NDJSON, label_set

KEYS = ["It always", "seems", "impossible", "until", "it is done."]


def listing(count: int) -> list[pb.ListResponse.Journal]:
    labels = label_set({"content-type": CONTENT_TYPE_NDJSON})
    return [
        pb.ListResponse.Journal(spec=pb.JournalSpec(name=f"a/topic/part-{each:03d}", labels=labels))
        for each in range(count)
    ]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        pytest.param(b"", 2166136261, id="nothing"),
        pytest.param(b"It always", 1579115261, id="words"),
        pytest.param(b"a/topic/part-021", 3017956112, id="journal"),
    ],
)
def test_hashes_are_those_of_fnv1a(key: bytes, expected: int) -> None:
    """The vectors are those of the reference implementation."""
    assert fnv1a32(key) == expected


def test_modulo_chooses_as_gazette_does() -> None:
    """The vectors are those of Gazette's own tests."""
    mapping = ModuloMapping(str.encode, listing(443))
    targets = [mapping(key) for key in KEYS]
    assert [name for name, _ in targets] == [f"a/topic/part-{each:03d}" for each in (119, 54, 308, 97, 179)]
    assert {content_type for _, content_type in targets} == {"application/x-ndjson"}


@pytest.mark.parametrize("count", [400, 500], ids=["fewer", "more"])
def test_rendezvous_chooses_as_gazette_does(count: int) -> None:
    """The vectors are those of Gazette's own tests. No added journal takes one of these keys."""
    mapping = RendezvousMapping(str.encode, listing(count))
    names = [mapping(key)[0] for key in KEYS]
    assert names == [f"a/topic/part-{each:03d}" for each in (21, 179, 50, 13, 337)]


def obvious(key: bytes, journals: list[pb.ListResponse.Journal]) -> str:
    """Compute the rendezvous journal directly from its definition."""
    best, best_value = "", -1
    for each in journals:
        value = fnv1a32(key) ^ fnv1a32(each.spec.name.encode())
        if value > best_value:
            best, best_value = each.spec.name, value
    return best


@given(st.binary(max_size=20), st.integers(1, 50), st.randoms(use_true_random=False))
def test_rendezvous_is_its_definition(key: bytes, count: int, shuffle: random.Random) -> None:
    """Of two journals with the same name, the first is chosen."""
    journals = [*listing(count), *listing(count // 3)]
    shuffle.shuffle(journals)
    assert RendezvousMapping(lambda each: each, journals)(key)[0] == obvious(key, journals)


@given(st.binary(max_size=20), st.integers(2, 50), st.data())
def test_rendezvous_moves_few_keys(key: bytes, count: int, data: st.DataObject) -> None:
    journals = listing(count)
    before = RendezvousMapping(lambda each: each, journals)(key)[0]
    removed = data.draw(st.integers(0, count - 1))
    after = RendezvousMapping(lambda each: each, journals[:removed] + journals[removed + 1 :])(key)[0]
    assert before in (after, journals[removed].spec.name)


def test_random_chooses_all_alike() -> None:
    mapping = RandomMapping(listing(10), random.Random(7).randrange)
    chosen = Counter(mapping()[0] for _ in range(5000))
    assert len(chosen) == 10
    assert all(400 < count < 600 for count in chosen.values())
    assert RandomMapping(listing(10))("message")[0] in chosen
    assert RandomMapping(listing(10), lambda count: count - 1)("message")[0] == "a/topic/part-009"


@pytest.mark.parametrize(
    "mapping",
    [
        pytest.param(RandomMapping, id="random"),
        pytest.param(lambda journals: ModuloMapping(str.encode, journals), id="modulo"),
        pytest.param(lambda journals: RendezvousMapping(str.encode, journals), id="rendezvous"),
    ],
)
def test_a_mapping_follows_its_listing(mapping: Callable[[object], Callable[[str], object]]) -> None:
    journals: list[list[pb.ListResponse.Journal]] = [listing(1)]
    mapped = mapping(lambda: journals[-1])
    assert mapped("x") == ("a/topic/part-000", "application/x-ndjson")
    journals.append(listing(2)[1:])
    assert mapped("x") == ("a/topic/part-001", "application/x-ndjson")
    journals.append([])
    with pytest.raises(EmptyListingError, match="empty ListResponse"):
        mapped("x")
    unlabelled = pb.ListResponse.Journal(spec=pb.JournalSpec(name="a/b"))
    journals.append([unlabelled])
    assert mapped("x") == ("a/b", "")
