"""Tests of :func:`gazette_spark._formats.arrays.invalid_utf8_at`."""

import itertools

from gazette_spark._formats.arrays import invalid_utf8_at

EDGES = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")
"""Bytes at the boundaries of UTF-8's rules (RFC 3629, section 4)."""


def test_all_short_sequences_of_bytes_at_the_edges_of_the_rules() -> None:
    wrong = 0
    for length in range(4):
        for octets in itertools.product(EDGES, repeat=length):
            data = b"{" + bytes(octets)
            try:
                data.decode()
                expected = -1
            except UnicodeDecodeError as error:
                expected = error.start
                wrong += 1
            assert invalid_utf8_at(data) == expected, data
    assert wrong > 10_000


def test_sequences_of_four_bytes() -> None:
    for octets in ("f0908080", "f48fbfbf"):
        assert invalid_utf8_at(b"ab" + bytes.fromhex(octets)) == -1
        assert invalid_utf8_at(b"ab" + bytes.fromhex(octets)[:-1]) == 2
    for octets in ("f08fbfbf", "f4908080", "f5808080", "f8888080"):
        assert invalid_utf8_at(b"ab" + bytes.fromhex(octets)) == 2
