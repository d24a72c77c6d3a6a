"""Tests that names, selectors, stores, durations and fragment paths are parsed as by Gazette.

``tests/golden/protocol_answers.json`` has inputs with the results of Gazette's Go implementation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol.durations import format_duration, parse_duration
from gazette_spark.protocol.fragments import parse_content_path
from gazette_spark.protocol.journal_specs import journal_spec, validate_journal_name, validate_store
from gazette_spark.protocol.labels import format_selector, label_set, parse_selector, selector_matches

ANSWERS = json.loads(Path(__file__).parents[2].joinpath("golden/protocol_answers.json").read_text("utf-8"))

DIFFERENCES = {
    "journal_names": ["../journal"],  # We refuse it, because names become file paths.
    "selectors": ["aa===bb"],  # We keep it; Gazette formats it as "aa==bb", which is another selector.
}
"""Inputs that we treat differently from Gazette on purpose."""


def accepts(check: Callable[[str], object]) -> Callable[[str], bool]:
    def answer(text: str) -> bool:
        try:
            check(text)
        except ProtocolError:
            return False
        return True

    return answer


def result(convert: Callable[[str], object]) -> Callable[[str], object]:
    def answer(text: str) -> object:
        try:
            return convert(text)
        except ProtocolError:
            return None

    return answer


QUESTIONS: dict[str, Callable[[str], object]] = {
    "journal_names": accepts(lambda text: validate_journal_name(text, allow_meta=True)),
    "label_names": accepts(lambda text: label_set({text: ""})),
    "label_values": accepts(lambda text: label_set({"aa": text})),
    "stores": accepts(validate_store),
    "content_types": accepts(lambda text: journal_spec("a/journal", labels={"content-type": text})),
    "selectors": result(lambda text: format_selector(parse_selector(text))),
    "fragment_paths": result(lambda text: parse_content_path("a/journal", text).content_path),
}


@pytest.mark.parametrize("topic", QUESTIONS)
def test_answers_are_those_of_gazette(topic: str) -> None:
    ask = QUESTIONS[topic]
    differing = [text for text, expected in ANSWERS[topic] if ask(text) != expected]
    assert differing == DIFFERENCES.get(topic, [])


def test_durations() -> None:
    def ask(text: str) -> tuple[Any, Any]:
        try:
            duration = parse_duration(text)
        except ProtocolError:
            return None, None
        return duration.ToNanoseconds(), format_duration(duration)

    differing = [text for text, *expected in ANSWERS["durations"] if ask(text) != tuple(expected)]
    assert differing == []


def test_matches() -> None:
    differing = [
        (selector, labels)
        for selector, labels, expected in ANSWERS["matches"]
        if selector_matches(parse_selector(selector), parse_selector(labels).include) != expected
    ]
    assert differing == []


def test_nothing_is_left_unasked() -> None:
    """Every topic in the file is tested, and has accepted and rejected inputs."""
    assert set(ANSWERS) == {"comment", "durations", "matches", *QUESTIONS}
    for topic in QUESTIONS:
        assert len({bool(expected) for _, expected in ANSWERS[topic]}) == 2, topic
