"""A location leads to the same directory in each spelling, whatever its name is."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.locations import (
    absolute,
    deltalake_location,
    escape_glob,
    is_inside,
    is_same,
    local_path,
    misread_by_deltalake,
    path_of_url,
    url_of_path,
)

NAMES = st.text(
    st.sampled_from("ab1 %20#?+'\"`é日\\{}[]*@=&;,~|<>^:!$()\U0001f600"), min_size=1, max_size=12
).filter(lambda name: name.strip(".") == name)
"""Directory names without slashes, except names that denote another directory."""


@given(NAMES, NAMES)
def test_a_name_stands_for_itself(parent: str, name: str) -> None:
    """In Spark's spelling of a location, no character starts a query or fragment or is an escape."""
    path = f"/{parent}/{name}"
    for location in (path, f"file:{path}", f"file://{path}", f"file://localhost{path}"):
        assert local_path(location) == path
        assert is_same(location, path)
        assert is_inside(f"{location}/below", path)
        assert not is_inside(f"{location}below", path)
    assert path_of_url(url_of_path(path)) == path


@given(NAMES, NAMES)
def test_a_url_for_deltalake_is_quoted(parent: str, name: str) -> None:
    """A URL parser finds the bucket and the key of Spark's location, without query and fragment."""
    key = f"/{parent}/{name}"
    parts = urlsplit(deltalake_location(f"s3a://lake{key}"))
    assert (parts.scheme, parts.netloc, unquote(parts.path)) == ("s3", "lake", key)
    assert (parts.query, parts.fragment) == ("", "")


@pytest.mark.parametrize(
    ("location", "taken"),
    [
        ("/lake/t", "/lake/t"),
        ("lake/t", "lake/t"),
        ("file:/lake/a b", "/lake/a b"),
        ("file:///lake/100%", "/lake/100%"),
        ("s3a://bucket/t", "s3://bucket/t"),
        ("s3://bucket/a b/day=1", "s3://bucket/a%20b/day=1"),
        ("gs://bucket/what?#", "gs://bucket/what%3F%23"),
        ("abfss://box@account.dfs.core.windows.net/a b", "abfss://box@account.dfs.core.windows.net/a%20b"),
        ("wasbs://box@account/t", "abfss://box@account/t"),
        ("/lake/odd:/name", "/lake/odd:/name"),
    ],
)
def test_what_deltalake_takes(location: str, taken: str) -> None:
    assert deltalake_location(location) == taken
    assert misread_by_deltalake(location) is None


def test_a_table_that_deltalake_would_misread_is_seen(tmp_path: Path) -> None:
    """The library reads the neighbour's log under this name. Once that is fixed, the refusal can go."""
    import pyarrow as pa

    schema = pa.schema([("id", pa.int64())])
    for name in ("day 1", "day%201"):
        (tmp_path / name).mkdir()
        table = DeltaTable.create(str(tmp_path / name), schema, name=name)
    assert (table.metadata().name, misread_by_deltalake(str(tmp_path / name))) == (
        "day 1",
        str(tmp_path / "day 1"),
    )
    assert misread_by_deltalake("s3a://lake/day%201") == "s3a://lake/day 1"
    assert misread_by_deltalake("/lake/back\\slash") == "/lake/back/slash"
    assert misread_by_deltalake("s3a://lake/back\\slash") is None


@pytest.mark.parametrize(
    ("path", "directory", "inside"),
    [
        pytest.param("/t", "/t", True, id="the same"),
        pytest.param("/t/_checkpoint", "file:/t", True, id="below, one with scheme"),
        pytest.param("file:///t/c/", "/t/", True, id="three slashes"),
        pytest.param("/t/../t/c", "/t", True, id="dots"),
        pytest.param("/t", "/", True, id="root"),
        pytest.param("/table", "/t", False, id="same beginning"),
        pytest.param("/day 1/c", "/day%201", False, id="quoted and plain"),
        pytest.param("s3://b/t/c", "s3://b/t", True, id="object store"),
        pytest.param("s3a://b/t/c", "s3://b/t/", True, id="two schemes of one store"),
        pytest.param("s3://b/t/c", "/t", False, id="another store"),
        pytest.param("s3://b/t", "s3://c/t", False, id="another bucket"),
    ],
)
def test_a_checkpoint_inside_the_table_is_seen(path: str, directory: str, *, inside: bool) -> None:
    """Different schemes and slashes must not hide it."""
    assert is_inside(path, directory) is inside


def test_a_relative_path_is_below_the_working_directory() -> None:
    """Spark resolves it the same way on a local file system."""
    assert is_inside("t/c", "t")
    assert not is_inside("t", "/t")
    assert absolute("t") == f"{os.getcwd()}/t"  # noqa: PTH109 - as a text.
    assert absolute("lake/odd:/name") == f"{os.getcwd()}/lake/odd:/name"  # noqa: PTH109
    assert absolute("s3a://b/t") == "s3a://b/t"


def test_glob_letters_are_escaped() -> None:
    """Otherwise Spark would treat the letters as a pattern."""
    assert escape_glob("/a{b}[c]*?\\") == "/a\\{b\\}\\[c\\]\\*\\?\\\\"
