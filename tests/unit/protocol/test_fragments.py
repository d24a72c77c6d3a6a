"""Tests that fragment names, and how fragments cover a journal, follow the brokers' rules."""

from __future__ import annotations

import hashlib
import pickle

import pytest

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import (
    NO_SUM,
    CoverSet,
    Fragment,
    parse_content_path,
    sum_from_pb,
    sum_to_pb,
)

DIGEST = bytes.fromhex("0102030405060708090a0b0c0d0e0f1011121314")
NAME = "00000000499602d2-7fffffffffffffff-0102030405060708090a0b0c0d0e0f1011121314"
FRAGMENT = Fragment("a/journal", 1234567890, 2**63 - 1, DIGEST, pb.GZIP)


def span(begin: int, end: int, mod_time: int = 0) -> Fragment:
    return Fragment("a/journal", begin, end, NO_SUM, pb.NONE, mod_time=mod_time)


def spans(fragments: CoverSet) -> list[tuple[int, int]]:
    return [(fragment.begin, fragment.end) for fragment in fragments]


def test_sum_is_big_endian() -> None:
    """The parts are bytes 0 to 7, 8 to 15 and 16 to 19 of the digest."""
    message = sum_to_pb(DIGEST)
    assert (message.part1, message.part2, message.part3) == (
        0x0102030405060708,
        0x090A0B0C0D0E0F10,
        0x11121314,
    )
    assert sum_from_pb(message) == DIGEST


def test_sum_keeps_leading_zeros() -> None:
    assert sum_from_pb(pb.SHA1Sum()) == NO_SUM == bytes(20)


@pytest.mark.parametrize(
    ("codec", "extension"),
    [
        (pb.NONE, ".raw"),
        (pb.GZIP, ".gz"),
        (pb.ZSTANDARD, ".zst"),
        (pb.SNAPPY, ".sz"),
        (pb.GZIP_OFFLOAD_DECOMPRESSION, ""),
    ],
    ids=["none", "gzip", "zstandard", "snappy", "offload"],
)
def test_content_name(codec: int, extension: str) -> None:
    fragment = Fragment("a/journal", FRAGMENT.begin, FRAGMENT.end, DIGEST, codec)
    assert fragment.content_name == NAME + extension
    assert parse_content_path("a/journal", fragment.content_name) == fragment


@pytest.mark.parametrize(
    ("extension", "codec"),
    [
        (".RAW", pb.NONE),
        (".gzip", pb.GZIP),
        (".GZ", pb.GZIP),
        (".zstandard", pb.ZSTANDARD),
        (".snappy", pb.SNAPPY),
        (".gzod", pb.GZIP_OFFLOAD_DECOMPRESSION),
    ],
)
def test_other_extensions(extension: str, codec: int) -> None:
    assert parse_content_path("a/journal", NAME + extension).codec == codec


def test_content_path() -> None:
    fragment = parse_content_path("a/journal", f"date=2026-11-21/hour=05/{NAME}.gz")
    assert fragment.path_postfix == "date=2026-11-21/hour=05"
    assert fragment.content_path == f"a/journal/date=2026-11-21/hour=05/{NAME}.gz"
    assert FRAGMENT.content_path == f"a/journal/{NAME}.gz"


def test_files_of_a_longer_name_look_like_a_postfix() -> None:
    """A listing of ``app/a`` cannot tell files of ``app/a/b`` apart, so journal names must not nest."""
    other = Fragment("app/a/b", 0, 4, DIGEST, pb.SNAPPY)
    mistaken = parse_content_path("app/a", other.content_path.removeprefix("app/a/"))
    assert (mistaken.journal, mistaken.path_postfix) == ("app/a", "b")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("", id="empty"),
        pytest.param(".partial-" + NAME + "123", id="upload under way"),
        pytest.param(NAME + ".bin", id="unknown extension"),
        pytest.param(NAME + ".gz.gz", id="two extensions"),
        pytest.param(NAME[:-1], id="short digest"),
        pytest.param(NAME + "00", id="long digest"),
        pytest.param("1-2", id="no digest"),
        pytest.param("0-" + NAME, id="four parts"),
        pytest.param("2-1-" + DIGEST.hex(), id="ends before it begins"),
        pytest.param("8000000000000000-9000000000000000-" + DIGEST.hex(), id="past the greatest offset"),
        pytest.param("-1-2-" + DIGEST.hex(), id="negative"),
        pytest.param("x-2-" + DIGEST.hex(), id="not hex"),
        pytest.param("/" + NAME, id="rooted"),
        pytest.param("../" + NAME, id="parent"),
        pytest.param("a//" + NAME, id="empty part"),
        pytest.param("a b/" + NAME, id="space"),
        pytest.param("p" * 513 + "/" + NAME, id="long postfix"),
    ],
)
def test_other_objects(path: str) -> None:
    with pytest.raises(ProtocolError):
        parse_content_path("a/journal", path)


def test_message_round_trip() -> None:
    fragment = Fragment("a/journal", 3, 7, DIGEST, pb.SNAPPY, "s3://bucket/", 1700000000, "x=1")
    message = fragment.to_pb()
    assert (message.begin, message.end, message.compression_codec) == (3, 7, pb.SNAPPY)
    assert (message.backing_store, message.mod_time, message.path_postfix) == (
        "s3://bucket/",
        1700000000,
        "x=1",
    )
    assert Fragment.from_pb(pb.Fragment.FromString(message.SerializeToString())) == fragment
    assert fragment.length == 4


def test_fragment_survives_pickling() -> None:
    """Spark may send fragments to executors."""
    assert pickle.loads(pickle.dumps(FRAGMENT)) == FRAGMENT


@pytest.mark.parametrize(
    ("values", "where"),
    [
        pytest.param({"journal": "abc"}, "Fragment.Journal", id="journal"),
        pytest.param({"begin": -1}, "Fragment", id="negative begin"),
        pytest.param({"begin": 9}, "Fragment", id="ends before it begins"),
        pytest.param({"end": 2**63}, "Fragment", id="past the greatest offset"),
        pytest.param({"sum": DIGEST[1:]}, "Fragment.Sum", id="short sum"),
        pytest.param({"codec": pb.INVALID}, "Fragment.CompressionCodec", id="no codec"),
        pytest.param({"codec": 6}, "Fragment.CompressionCodec", id="unknown codec"),
        pytest.param({"path_postfix": "../x"}, "Fragment.PathPostfix", id="postfix"),
    ],
)
def test_fragment_rules(values: dict[str, object], where: str) -> None:
    valid: dict[str, object] = {"journal": "a/journal", "begin": 1, "end": 2, "sum": DIGEST, "codec": pb.NONE}
    with pytest.raises(ProtocolError) as caught:
        Fragment(**(valid | values))  # type: ignore[arg-type]  # of mixed types
    assert caught.value.where == where


def test_message_of_the_content() -> None:
    digest = hashlib.sha1(b"content", usedforsecurity=False).digest()
    assert Fragment.from_pb(Fragment("a/journal", 0, 7, digest, pb.NONE).to_pb()).sum == digest


COVERS = [(100, 200), (149, 201), (200, 300), (299, 351), (300, 400), (500, 600)]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (99, None),
        (100, (100, 200)),
        (149, (149, 201)),
        (200, (200, 300)),
        (299, (299, 351)),
        (350, (300, 400)),
        (400, None),
        (499, None),
        (599, (500, 600)),
        (600, None),
    ],
)
def test_covering(offset: int, expected: tuple[int, int] | None) -> None:
    found = CoverSet.of(span(*each) for each in COVERS).covering(offset)
    assert (found and (found.begin, found.end)) == expected


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, (100, 200)), (100, (149, 201)), (400, (500, 600)), (500, None)]
)
def test_following(offset: int, expected: tuple[int, int] | None) -> None:
    found = CoverSet.of(span(*each) for each in COVERS).following(offset)
    assert (found and (found.begin, found.end)) == expected


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        pytest.param([(0, 0)], [], id="empty"),
        pytest.param([(5, 9), (0, 5)], [(0, 5), (5, 9)], id="in order"),
        pytest.param([(0, 9), (2, 5)], [(0, 9)], id="within a member"),
        pytest.param([(0, 9), (0, 5), (5, 9)], [(0, 9)], id="shares an edge with a member"),
        pytest.param([(0, 3), (3, 6), (6, 9), (0, 9)], [(0, 9)], id="holds all members"),
        pytest.param([(0, 3), (3, 6), (6, 9), (9, 12), (2, 9)], [(0, 3), (2, 9), (9, 12)], id="holds a run"),
        pytest.param([(0, 5), (4, 9)], [(0, 5), (4, 9)], id="overlaps"),
        pytest.param([(0, 3), (8, 9), (2, 6), (0, 9)], [(0, 9)], id="holds members before the last"),
    ],
)
def test_add(added: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    assert spans(CoverSet.of(span(*each) for each in added)) == expected


def test_equal_span_replaces() -> None:
    """The later fragment has the store, which the earlier one may lack."""
    covers = CoverSet.of([span(0, 5), span(5, 9)])
    assert covers.add(span(0, 5, mod_time=1700000000))
    assert [fragment.mod_time for fragment in covers] == [1700000000, 0]
    assert not covers.add(span(6, 9))
    assert len(covers) == 2


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (100, 400, True),
        (99, 400, False),
        (100, 401, False),
        (500, 600, True),
        (450, 450, True),
        (100, 550, False),
    ],
)
def test_is_covered(begin: int, end: int, expected: bool) -> None:
    assert CoverSet.of(span(*each) for each in COVERS).is_covered(begin, end) is expected


def test_summary() -> None:
    assert CoverSet().summary() == (0, 0, 0)
    assert CoverSet.of([span(3, 5, 1), span(7, 9, 2)]).summary() == (3, 9, 2)
