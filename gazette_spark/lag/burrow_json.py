"""Formats verdicts and windows as Burrow's JSON, and parses recorded windows to judge an incident again.

Names, their order and the format of numbers are Burrow's. Recorded input is checked field by field: a field
that is missing, unexpected, of another type or out of range raises an
:class:`~gazette_spark.errors.InputError` with its path, such as ``partitions[2].offsets[0].lag``. Text is not
accepted as a number, and duplicate keys are errors.

>>> shortest(1 / 3)
0.33333334
>>> shortest(1.0)
1
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gazette_spark import strict_json
from gazette_spark.errors import InputError, JsonError
from gazette_spark.lag.columns import PartitionStatuses
from gazette_spark.lag.history import MAX_INT64
from gazette_spark.lag.rules import (
    GroupStatus,
    OffsetCommit,
    PartitionStatus,
    PartitionWindow,
    Status,
    Thresholds,
    float32,
)

MAX_UINT64 = 2**64 - 1

_REQUIRED: Any = object()


def group_json(status: GroupStatus, *, show_all: bool) -> dict[str, Any]:
    """Return the value of ``status`` in Burrow's answers.

    Args:
        status: The verdict with all partitions.
        show_all: Whether to show every partition, or only those that are not OK. Counts and ``maxlag`` always
            include all.
    """
    shown = status.partitions if show_all else bad_partitions(status.partitions)
    return {
        "cluster": status.cluster,
        "group": status.group,
        "status": status.status.name,
        "complete": shortest(status.complete),
        "partitions": [partition_json(partition) for partition in shown],
        "partition_count": status.partition_count,
        "maxlag": partition_json(status.maxlag) if status.maxlag else None,
        "totallag": status.total_lag,
    }


def bad_partitions(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Return the partitions that are not OK."""
    if isinstance(partitions, PartitionStatuses):
        return partitions.above(Status.OK)
    return [partition for partition in partitions if partition.status > Status.OK]


def partition_json(partition: PartitionStatus) -> dict[str, Any]:
    """Return a partition's verdict."""
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "owner": partition.owner,
        "client_id": partition.client_id,
        "status": partition.status.name,
        "start": commit_json(partition.start),
        "end": commit_json(partition.end),
        "current_lag": partition.current_lag,
        "complete": shortest(partition.complete),
    }


def commit_json(commit: OffsetCommit | None) -> dict[str, Any] | None:
    """Return a commit; null for an unused slot."""
    if commit is None:
        return None
    return {
        "offset": commit.offset,
        "timestamp": commit.timestamp_ms,
        "observedAt": commit.observed_ms,
        "lag": commit.lag,
    }


def topics_json(topics: Mapping[str, Sequence[PartitionWindow]]) -> dict[str, Any]:
    """Return the value of ``topics`` in Burrow's answer about a group. One key has a hyphen."""
    return {
        topic: [
            {
                "offsets": [commit_json(commit) for commit in window.offset_commits],
                "owner": window.owner,
                "client_id": window.client_id,
                "current-lag": window.current_lag,
            }
            for window in windows
        ]
        for topic, windows in topics.items()
    }


def shortest(number: float) -> float:
    """Return the shortest decimal with the same 32-bit float; an integer if it is whole."""
    rounded = float32(number)
    if rounded.is_integer():
        return int(rounded)
    # Nine digits distinguish any two 32-bit floats.
    candidates = (float(f"{rounded:.{digits}g}") for digits in range(1, 10))
    return next(candidate for candidate in candidates if float32(candidate) == rounded)


@dataclass(frozen=True, slots=True)
class Recording:
    """The input of ``lag evaluate``: a group's windows, and the time at which they were taken."""

    cluster: str
    group: str
    now_ms: int
    thresholds: Thresholds
    windows: Sequence[PartitionWindow] | None
    """The windows; None if the group was unknown."""


class Fields:
    """The fields of one JSON object."""

    def __init__(self, value: object, path: str, names: Sequence[str]) -> None:
        if not isinstance(value, dict):
            raise InputError(f"{path or 'the input'}: expected a JSON object, got {_shown(value)}")
        self._values: Mapping[str, Any] = value
        self._prefix = f"{path}." if path else ""
        for name in value:
            # An unknown field is an error. Otherwise a typing error in an optional field would silently
            # select its default.
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(names)}"
                raise InputError(f"{self._prefix}{_shown(name)[1:-1]}: unknown field{hint}")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def path(self, name: str) -> str:
        """Return a field's path from the top."""
        return self._prefix + name

    def text(self, name: str, default: str = _REQUIRED) -> str:
        """Return a field that is text."""
        value = self._get(name, default, "text")
        if not isinstance(value, str):
            self._refuse(name, "text", value)
        # JSON may escape half of a surrogate pair, and Python accepts it. Such a text cannot be written as
        # UTF-8.
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            self._refuse(name, "valid Unicode text", value)
        return value

    def integer(self, name: str, default: int = _REQUIRED, *, least: int = 0, most: int = MAX_INT64) -> int:
        """Return a field that is an integer from ``least`` to ``most``."""
        expected = f"an integer from {least} to {most}"
        value = self._get(name, default, expected)
        if not _is_integer(value) or not least <= value <= most:
            self._refuse(name, expected, value)
        return int(value)

    def nullable_integer(self, name: str) -> int | None:
        """Return a required field that is null or an unsigned 64-bit integer."""
        if self._get(name, _REQUIRED, "an integer or null") is None:
            return None
        return self.integer(name, most=MAX_UINT64)

    def number(self, name: str, default: float) -> float:
        """Return a field that is a number."""
        value = self._get(name, default, "a number")
        # Converting a larger integer to a float may raise OverflowError.
        if not isinstance(value, float) and not (_is_integer(value) and abs(value) <= MAX_UINT64):
            self._refuse(name, "a number", value)
        return float(value)

    def array(self, name: str) -> list[Any]:
        """Return a field that is an array."""
        value = self._get(name, _REQUIRED, "an array")
        if not isinstance(value, list):
            self._refuse(name, "an array", value)
        return value

    def is_null(self, name: str) -> bool:
        """Return whether a field is present and null."""
        return name in self._values and self._values[name] is None

    def _get(self, name: str, default: Any, expected: str) -> Any:  # noqa: ANN401 - JSON
        if name in self._values:
            return self._values[name]
        if default is _REQUIRED:
            raise InputError(f"{self.path(name)}: missing; expected {expected}")
        return default

    def _refuse(self, name: str, expected: str, value: object) -> NoReturn:
        raise InputError(f"{self.path(name)}: expected {expected}, got {_shown(value)}")


def parse_recording(text: str) -> Recording:
    """Read the input of ``lag evaluate``.

    Raises:
        InputError: a field is invalid, or the text is not JSON.
        OptionError: a threshold is out of range.
    """
    names = ("now_ms", "allowed_lag", "minimum_complete", "cluster", "group", "partitions")
    fields = Fields(parse_json(text), "", names)
    windows = None
    if not fields.is_null("partitions"):
        partitions = fields.array("partitions")
        windows = [_window(value, f"partitions[{at}]") for at, value in enumerate(partitions)]
    return Recording(
        fields.text("cluster"),
        fields.text("group"),
        fields.integer("now_ms"),
        Thresholds(
            fields.integer("allowed_lag", 0, least=-MAX_INT64), fields.number("minimum_complete", 0.0)
        ),
        windows,
    )


def _window(value: object, path: str) -> PartitionWindow:
    names = ("topic", "partition", "owner", "client_id", "current_lag", "broker_offsets", "offsets")
    fields = Fields(value, path, names)
    heads = fields.array("broker_offsets")
    for at, head in enumerate(heads):
        if not _is_integer(head) or not 0 <= head <= MAX_INT64:
            raise InputError(
                f"{path}.broker_offsets[{at}]: expected an integer from 0 to {MAX_INT64}, got {_shown(head)}"
            )
    slots: list[OffsetCommit | None] = []
    for at, slot in enumerate(fields.array("offsets")):
        if slot is None:
            slots.append(None)
            continue
        commit = Fields(slot, f"{path}.offsets[{at}]", ("offset", "timestamp", "observedAt", "lag"))
        slots.append(
            OffsetCommit(
                commit.integer("offset"),
                commit.integer("timestamp"),
                commit.integer("observedAt", 0),
                commit.nullable_integer("lag"),
            )
        )
    return PartitionWindow(
        fields.text("topic"),
        fields.integer("partition", most=2**31 - 1),
        fields.integer("current_lag", most=MAX_UINT64),
        heads,
        slots,
        fields.text("owner", ""),
        fields.text("client_id", ""),
    )


def parse_json(text: str) -> object:
    """Parse JSON.

    Raises:
        InputError: the text is not JSON.
    """
    try:
        return strict_json.parse_json(text)
    except JsonError as error:
        raise InputError(f"{error}: {strict_json.shown(text)}") from error


def _is_integer(value: object) -> bool:
    # True is an integer in Python, but not in JSON.
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return strict_json.shown(json.dumps(value, ensure_ascii=False))
