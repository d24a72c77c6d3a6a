"""JSON from outside becomes a value that is safe to handle, or one error that says what is wrong."""

from __future__ import annotations

import pytest

from gazette_spark.errors import JsonError
from gazette_spark.strict_json import MAX_DEPTH, MAX_DIGITS, parse_json


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "Expecting value", id="empty"),
        pytest.param('{"a":1} x', "Extra data", id="more"),
        pytest.param("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested more than 100 deep", id="deep"),
        pytest.param('{"a":' * 500 + "1" + "}" * 500, "nested more than 100 deep", id="deep objects"),
        pytest.param("[" * 100_000, "nested more than 100 deep", id="deeper than Python's stack"),
        pytest.param('{"a":1,"b":2,"a":3}', "the key 'a' occurs twice", id="a key twice"),
        pytest.param('[{"a":NaN}]', "NaN is not a number", id="NaN"),
        pytest.param("-Infinity", "-Infinity is not a number", id="infinity"),
        pytest.param("1e999", "the number 1e999 is too large", id="a float past the largest"),
        pytest.param("1" * (MAX_DIGITS + 1), "a number has 401 digits", id="many digits"),
        pytest.param("0." + "1" * MAX_DIGITS, "a number has 402 digits", id="many decimals"),
        pytest.param('["\\uD800"]', "not Unicode", id="half a pair"),
        pytest.param('{"\\udc00\\ud800":1}', "not Unicode", id="halves the wrong way round"),
        pytest.param('"\ud800"', "not Unicode", id="half a pair, unescaped"),
        pytest.param(b'"\xff"', "not Unicode", id="not UTF-8"),
        pytest.param('{"a":1}'.encode("utf-16"), "not Unicode", id="UTF-16"),
        pytest.param("[1, 2, 3, 4, 5]", "15 bytes, more than 12", id="long"),
    ],
)
def test_what_is_refused(text: str | bytes, problem: str) -> None:
    limit = {"max_bytes": 12} if problem.endswith("12") else {}
    with pytest.raises(JsonError, match=problem):
        parse_json(text, **limit)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": [1, -2.5, true, null]} ', {"a": [1, -2.5, True, None]}),
        ('"\\ud83d\\ude00 \\\\ud800"', "😀 \\ud800"),
        ('"ü"'.encode(), "ü"),
        ("9" * MAX_DIGITS, 10**MAX_DIGITS - 1),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, nested(MAX_DEPTH)),
        ("[" + "[]," * 500 + "[]]", [[]] * 501),
    ],
    ids=["values", "a pair", "bytes", "digits", "depth", "many lists"],
)
def test_what_is_read(text: str | bytes, value: object) -> None:
    """Everything within the bounds equals the result of Python's parser."""
    assert parse_json(text) == value
