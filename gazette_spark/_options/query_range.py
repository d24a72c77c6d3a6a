"""Parses the start and end of a query from its options: words, offsets by journal, or a time.

The words and the numbers are those of Spark's Kafka source. A time is the time at which bytes were *stored*:
``_planning.view`` explains the consequences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gazette_spark._options.values import check_journal, shown
from gazette_spark.errors import OffsetError, OptionError
from gazette_spark.offsets import MAX_OFFSET, Fingerprint, JournalOffsets, parse_json_object

EARLIEST = -2
"""Placeholder for a journal's first available offset, as in Spark's Kafka source."""
LATEST = -1
"""Placeholder for a journal's write head, as in Spark's Kafka source."""

MAX_TIMESTAMP_MS = 32_503_680_000_000
"""The year 3000. A larger number is probably in micro- or nanoseconds."""


@dataclass(frozen=True, slots=True)
class OffsetChoice:
    """A start or end: offsets of named journals, and ``default`` for the others.

    Offsets may be :data:`EARLIEST` or :data:`LATEST`.
    """

    default: int
    named: Mapping[str, int] = field(default_factory=dict)
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints of the journals of the offsets, if these come from a table's ledger."""

    def of(self, journal: str) -> int:
        """Return the offset of a journal."""
        return self.named.get(journal, self.default)


def parse_starting_offsets(name: str, text: str) -> OffsetChoice:
    """Parse ``startingOffsets``; journals it does not name start at the earliest."""
    return _parse_offsets(name, text, default=EARLIEST)


def parse_message_starts(name: str, text: str) -> Mapping[str, int]:
    """Parse ``messagesSince``: offsets of at least 0, by journal."""
    return parse_resume_offsets(name, text).named


def parse_resume_offsets(name: str, text: str) -> OffsetChoice:
    """Parse ``resumeOffsets``: offsets of at least 0, by journal; other journals start at the earliest."""
    expected = 'JSON of offsets, as DeltaSink.resume sets them: {"a/journal":1024}'
    if not text.startswith("{"):
        raise OptionError(name, shown(text), expected)
    choice = _parse_offsets(name, text, default=EARLIEST)
    if min(choice.named.values(), default=0) < 0:
        raise OptionError(name, shown(text), expected)
    return choice


def parse_ending_offsets(name: str, text: str) -> OffsetChoice:
    """Parse ``endingOffsets``; journals it does not name end at the latest."""
    return _parse_offsets(name, text, default=LATEST)


def _parse_offsets(name: str, text: str, *, default: int) -> OffsetChoice:
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return OffsetChoice(words[text.lower()])
    try:
        value = parse_json_object(text)
        # The short form has offsets alone, as in Kafka's option. The long one is a position of this package,
        # whose fingerprints distinguish the journals from others of the same names.
        position = JournalOffsets.from_dict(value) if "format_version" in value else JournalOffsets()
        offsets = position.read_through if "format_version" in value else value
    except OffsetError as error:
        problem = f" ({error.problem.split('; expected')[0]})" if text.startswith("{") else ""
        expected = 'earliest, latest, or JSON such as {"a/journal":1024}'
        raise OptionError(name, shown(text) + problem, expected) from None
    for journal, offset in offsets.items():
        check_journal(name, journal)
        # Do not use `isinstance`, because `true` is an int in Python.
        if type(offset) is not int or not EARLIEST <= offset <= MAX_OFFSET:
            got = f"{shown(offset)} for journal {journal!r}"
            raise OptionError(name, got, "an offset from 0 to 2^63-1, -2 for earliest or -1 for latest")
    return OffsetChoice(default, dict(offsets), position.fingerprints)


def parse_timestamp(name: str, text: str) -> int:
    """Parse a time in milliseconds since 1970-01-01 00:00 UTC, as in Spark's Kafka source."""
    if re.fullmatch(r"[0-9]{1,19}", text) and int(text) <= MAX_TIMESTAMP_MS:
        return int(text)
    expected = f"milliseconds since 1970 UTC, from 0 to {MAX_TIMESTAMP_MS} (year 3000): 1700000000000"
    raise OptionError(name, shown(text), expected)


def parse_timestamps(name: str, text: str) -> Mapping[str, int]:
    """Parse times by journal, as milliseconds like :func:`parse_timestamp`."""
    expected = 'JSON of milliseconds since 1970 UTC by journal, such as {"a/journal":1700000000000}'
    try:
        named = parse_json_object(text)
    except OffsetError as error:
        raise OptionError(name, f"{shown(text)} ({error.problem.split('; expected')[0]})", expected) from None
    if not named:
        raise OptionError(name, shown(text), expected)
    for journal, timestamp in named.items():
        check_journal(name, journal)
        if type(timestamp) is not int or not 0 <= timestamp <= MAX_TIMESTAMP_MS:
            got = f"{shown(timestamp)} for journal {journal!r}"
            raise OptionError(name, got, f"milliseconds since 1970 UTC, from 0 to {MAX_TIMESTAMP_MS}")
    return named


def check_offsets(start: OffsetChoice, end: OffsetChoice, *, batch: bool) -> None:
    """Check that a query between a start and an end can have rows.

    Raises:
        OptionError: the query cannot have rows, regardless of the journals' content.
    """
    # As in Spark's Kafka source, a query that can never have a row is a mistake.
    if batch and LATEST in (start.default, *start.named.values()):
        raise OptionError(
            "startingOffsets", "latest", "earliest or offsets: a batch that starts there is empty"
        )
    if EARLIEST in (end.default, *end.named.values()):
        raise OptionError("endingOffsets", "earliest", "latest or offsets: a batch to there is empty")
    for journal, last in end.named.items():
        if 0 <= last < start.of(journal):
            problem = f"{last} for journal {journal!r}, before its startingOffsets"
            raise OptionError("endingOffsets", problem, f"at least {start.of(journal)}")


def check_timestamps(start_ms: int | None, named_ms: Mapping[str, int], end_ms: int | None) -> None:
    """Check that a query's end time is not before its start time in any journal.

    Raises:
        OptionError: the end is before the start.
    """
    starts = {"startingTimestamp": start_ms} if start_ms is not None else {}
    starts |= {f"the time of journal {journal!r}": named for journal, named in named_ms.items()}
    for start, begin_ms in starts.items():
        if end_ms is not None and end_ms < begin_ms:
            raise OptionError("endingTimestamp", f"{end_ms}, before {start}", f"at least {begin_ms}")
