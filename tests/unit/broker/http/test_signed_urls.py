"""Tests that a signed URL opens one fragment for a limited time, and that no path leaves the root."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.broker.http.fragment_server import find_file, takes_gzip
from gazette_spark.broker.http.signed_urls import SignatureError, UrlSigner

KEY = b"k" * 32
NOW = 1_700_000_000.0


def signer(now: float = NOW, key: bytes = KEY) -> UrlSigner:
    return UrlSigner(key, lambda: now)


def test_a_url_opens_its_path_until_it_ends() -> None:
    query = signer().query("a/b", 60)
    signer().check("a/b", query)
    signer(NOW + 59.9).check("a/b", query)
    with pytest.raises(SignatureError, match="expired"):
        signer(NOW + 60).check("a/b", query)


@pytest.mark.parametrize(
    ("path", "query", "problem"),
    [
        pytest.param("a/c", "{}", "invalid", id="other-path"),
        pytest.param("a/b", "", "not signed", id="no-query"),
        pytest.param("a/b", "expires=9999999999", "invalid", id="no-signature"),
        pytest.param("a/b", "expires=-1&signature=x", "not signed", id="negative"),
        pytest.param("a/b", "expires=9999999999&{}", "invalid", id="later-end"),
        pytest.param("a/b", "{}0", "invalid", id="longer-signature"),
        pytest.param("a/b", "expires=²&signature=é", "not signed", id="odd-digits"),
    ],
)
def test_anything_else_is_refused(path: str, query: str, problem: str) -> None:
    good = signer().query("a/b", 60)
    with pytest.raises(SignatureError, match=problem):
        signer().check(path, query.format(good))


def test_another_key_opens_nothing() -> None:
    with pytest.raises(SignatureError, match="invalid"):
        signer(key=b"other").check("a/b", signer().query("a/b", 60))
    assert KEY.decode() not in repr(signer())


@given(st.text(max_size=20), st.text(max_size=60))
def test_no_text_opens_a_path(path: str, query: str) -> None:
    with pytest.raises((SignatureError, ValueError)):
        signer().check(path, query)


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "a/../../secret",
        "/etc/passwd",
        "a//b",
        "",
        ".",
        ".gazette/state.json",
        "a\0b",
        "link/x",
        "in/x",
    ],
)
def test_paths_stay_below_the_root(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    (root / ".gazette").mkdir(parents=True)
    (root / ".gazette" / "x").touch()
    (tmp_path / "secret").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").touch()
    (root / "link").symlink_to(tmp_path / "out")
    (root / "in").symlink_to(root / ".gazette")
    assert find_file(root, path) is None


def test_a_fragments_path_is_found(tmp_path: Path) -> None:
    (tmp_path / "real" / "a").mkdir(parents=True)
    (tmp_path / "root").symlink_to(tmp_path / "real")
    assert find_file(tmp_path / "root", "a/b%25c") == tmp_path / "real" / "a" / "b%25c"


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        ("gzip", True),
        ("GZIP, identity", True),
        ("identity", False),
        ("", False),
        ("gzip;q=0", False),
        ("gzip; q=0.5", True),
        ("br, *", True),
        ("identity, gzip;q=0.0", False),
    ],
    ids=["gzip", "upper-case", "identity", "none", "refused", "weighted", "any", "refused-last"],
)
def test_what_a_client_takes(header: str, taken: bool) -> None:
    """Parse Accept-Encoding as HTTP defines it, but do not assume gzip if the header is missing."""
    assert takes_gzip(header) == taken
