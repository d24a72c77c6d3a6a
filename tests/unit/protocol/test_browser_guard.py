"""Tests that requests which a foreign web page makes a browser send are recognized."""

from __future__ import annotations

import pytest

from gazette_spark.protocol.browser_guard import is_cross_site, is_own_host


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("localhost", True),
        ("LocalHost:8000", True),
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("[::1]", True),
        ("10.0.0.1:80", True),
        ("Named:80", True),
        (None, True),
        ("", False),
        ("[", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:80", False),
    ],
)
def test_own_names_are_told_apart(host: str | None, own: bool) -> None:
    """Every IP address is accepted, because DNS rebinding needs a host name."""
    assert is_own_host(host, ["named"]) is own


@pytest.mark.parametrize(
    ("headers", "cross"),
    [
        ({}, False),
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "cross-site", "origin": "http://here:1", "host": "here:1"}, True),
        ({"origin": "http://here:1", "host": "Here:1"}, False),
        ({"origin": "http://here:2", "host": "here:1"}, True),
        ({"origin": "null", "host": "here:1"}, True),
    ],
)
def test_other_sites_are_told_apart(headers: dict[str, str], cross: bool) -> None:
    """Only browsers send these headers, so requests without them are accepted."""
    assert is_cross_site(headers) is cross
