"""Spark's files of a query checkpoint are parsed strictly, and an error names the path."""

from __future__ import annotations

import pytest

from gazette_spark._ledger.query_checkpoint import (
    check_pinned,
    is_unfinished,
    metadata_path,
    offsets_directory,
    offsets_path,
    parse_offsets,
    parse_query_id,
)
from gazette_spark.errors import QueryCheckpointError
from gazette_spark.offsets import JournalOffsets

OURS = '{"format_version":1,"journals":{"a/b":5},"position":"pinned"}'


def test_each_source_has_a_line() -> None:
    text = f'v1\n{{"batchWatermarkMs":0}}\n{OURS}\n{{"logOffset": 3}}\n-\n17'
    pinned = JournalOffsets({"a/b": 5}, "pinned")
    assert parse_offsets(text, "p") == (pinned, '{"logOffset": 3}', None, "17")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "version is ''", id="empty"),
        pytest.param(f"v2\n{{}}\n{OURS}", "version is 'v2'", id="newer"),
        pytest.param("v1\n{}", "names no source", id="no source"),
        pytest.param('v1\n{}\n{"format_version":1,"journals":{"a/b":-5}}', "from 0 to 2", id="bad offset"),
        pytest.param('v1\n{}\n{"format_version":7,"journals":{}}', "later release", id="newer position"),
    ],
)
def test_a_file_of_another_form_is_refused(text: str, problem: str) -> None:
    with pytest.raises(QueryCheckpointError, match=problem) as caught:
        parse_offsets(text, "/c/offsets/3")
    assert "/c/offsets/3" in str(caught.value)


@pytest.mark.parametrize("size", range(1, len(OURS)))
def test_a_position_that_was_cut_is_no_other_sources_text(size: int) -> None:
    """As text it would go into the ledger and hide the query's journals from the lag monitor."""
    with pytest.raises(QueryCheckpointError, match="a Gazette position is not JSON"):
        parse_offsets(f"v1\n{{}}\n17\n{OURS[:size]}", "p")


def test_a_first_batch_that_is_not_pinned_is_refused() -> None:
    """Its begin would be recorded nowhere."""
    check_pinned((JournalOffsets({"a/b": 5}, "pinned"), "17", None), "p")
    with pytest.raises(QueryCheckpointError, match="source 0 did not pin"):
        check_pinned((JournalOffsets({"a/b": 5}),), "p")


def test_the_query_id_is_in_the_metadata() -> None:
    assert parse_query_id('{"id":"q-1"}\n', "p") == "q-1"
    for text in ("", "{}", '{"id":3}', "nonsense"):
        with pytest.raises(QueryCheckpointError, match="expected"):
            parse_query_id(text, "p")


def test_paths_of_the_files() -> None:
    assert offsets_path("/c/", 7) == offsets_path("/c", 7) == "/c/offsets/7"
    assert metadata_path("file:/c") == "file:/c/metadata"


@pytest.mark.parametrize(
    ("name", "unfinished"),
    [
        (".0.1ea017e3-1b5f-4967-82f2-f81a60cee9d6.tmp", True),
        ("..0.1ea017e3-1b5f-4967-82f2-f81a60cee9d6.tmp.crc", True),
        ("0", False),
        (".0.crc", False),
        (".0.tmp", False),
        ("notes.1ea017e3-1b5f-4967-82f2-f81a60cee9d6.tmp", False),
    ],
)
def test_what_spark_was_writing_is_known_by_its_name(name: str, unfinished: bool) -> None:
    assert is_unfinished(name) is unfinished
    assert offsets_directory("s3://a/b/") == "s3://a/b/offsets"
