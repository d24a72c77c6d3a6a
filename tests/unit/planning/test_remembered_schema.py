"""The columns of a query's first start are stored, and a file without them is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gazette_spark._options.schema_hints import field
from gazette_spark._options.store import parse_location
from gazette_spark._planning.inference import FILE, Fields, parse_fields, remembered
from gazette_spark.errors import OffsetError, OptionError
from gazette_spark.seal import seal

GOLDEN = Path(__file__).parents[2] / "golden" / "inferred_schema"

COLUMNS = [
    field("id", "long"),
    field("tags", {"type": "array", "elementType": "string", "containsNull": True}),
]


def location_of(path: Path) -> str:
    return parse_location("inferredSchemaLocation", str(path))


def infer_once() -> Fields:
    return COLUMNS


def infer_never() -> Fields:
    """Fail, because a second sample may have other columns."""
    raise AssertionError("a sample was drawn")


def test_the_first_start_counts(tmp_path: Path) -> None:
    location = location_of(tmp_path / "of a query" / "schema")
    assert remembered(location, infer_once) == COLUMNS
    assert remembered(location, infer_never) == COLUMNS
    assert [path.name for path in (tmp_path / "of a query" / "schema").iterdir()] == [FILE]


def test_a_second_start_at_the_same_time_has_the_columns_of_the_first(tmp_path: Path) -> None:
    """If the file appears while a sample is drawn, its columns count for both starts."""
    location = location_of(tmp_path)

    def infer_late() -> Fields:
        assert remembered(location, infer_once) == COLUMNS
        return [field("other", "string")]

    assert remembered(location, infer_late) == COLUMNS
    assert remembered(location, infer_never) == COLUMNS


def test_a_sample_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def infer_nothing() -> Fields:
        raise OffsetError("is past the write head", "log/a", 5)

    with pytest.raises(OffsetError):
        remembered(location_of(tmp_path), infer_nothing)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_every_stored_form_is_read(golden: Path) -> None:
    assert parse_fields(golden.read_bytes(), "here") == COLUMNS


def test_the_form_that_is_written(tmp_path: Path) -> None:
    """A change of the form needs a new version and a new file for it."""
    remembered(location_of(tmp_path), infer_once)
    assert (tmp_path / FILE).read_bytes() == (GOLDEN / "v1.json").read_bytes()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param(b"", "that is damaged: its seal is ''", id="empty"),
        pytest.param(b'{"format_version": 1, "sche', "that is damaged: its seal is", id="cut"),
        pytest.param(seal(b'{"format_version": 1, "sche'), "that is not JSON (Unterminated", id="no JSON"),
        pytest.param([], "in which there is no schema", id="a list"),
        pytest.param({"type": "struct", "fields": []}, "in which there is no schema", id="a schema alone"),
        pytest.param(
            {"format_version": 1, "schema": {"type": "struct", "fields": [field("id", "int96")]}},
            "in which there is no schema",
            id="no type",
        ),
        pytest.param(
            {"format_version": 2}, "of format_version 2, which a later release of gazette_spark", id="later"
        ),
    ],
)
def test_another_file_is_refused(value: Any, problem: str, tmp_path: Path) -> None:
    """The error names the file and the remedies. Inferring again could give other columns."""
    (tmp_path / FILE).write_bytes(value if isinstance(value, bytes) else seal(json.dumps(value).encode()))
    with pytest.raises(OptionError, match="restore it; or delete it to infer the columns again") as caught:
        remembered(location_of(tmp_path), infer_never)
    assert problem in caught.value.got
    assert f"{tmp_path}/{FILE}" in caught.value.got


def test_a_location_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OptionError, match=r"'inferredSchemaLocation': got file://.*/file/below, which cannot be used"
    ):
        remembered(location_of(tmp_path / "file" / "below"), infer_once)


@pytest.mark.parametrize(
    "text", ["", "schemas", "hdfs://a/b", "/a/../b", "s3://key:secret@bucket/a", "file:///"]
)
def test_a_location_is_a_directory(text: str) -> None:
    """A relative path would mean another directory in each process."""
    with pytest.raises(
        OptionError, match=r"'inferredSchemaLocation'.*an absolute path, or file:///directory"
    ):
        parse_location("inferredSchemaLocation", text)
