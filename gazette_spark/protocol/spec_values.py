"""Reads and writes the values of specs in YAML, as a flat table.

A flat table makes inheritance plain set algebra: a spec inherits missing values from the nodes above it
(``above | own``), and values that all specs share move up (:func:`shared_values`). :class:`SpecForm` is the
table of one kind of spec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from reprlib import Repr
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.durations import format_duration, parse_duration
from gazette_spark.protocol.labels import validate_label_set

Path = tuple[str, ...]
"""Keys that lead to a value, such as ``("fragment", "length")``."""

Values = dict[Path, Any]
"""Values that a spec sets. A label's values are a tuple at ``("labels", name)``. Zeros are omitted."""

_BOOLEANS = dict.fromkeys(("true", "yes", "on", "y"), True) | dict.fromkeys(
    ("false", "no", "off", "n"), False
)
"""Booleans of YAML 1.1, in lower case."""


_shortener = Repr()
_shortener.maxlevel = 3
_shortener.maxstring = _shortener.maxother = 100


def shown(value: object) -> str:
    """Return a value's short form for errors."""
    return _shortener.repr(value)


def as_mapping(value: object, where: str, keys: Iterable[str]) -> dict[str, Any]:
    """Return ``value`` if it is a mapping with only ``keys``; an empty one for null."""
    expected = list(keys)
    if not isinstance(value, dict | None):
        raise ProtocolError(
            where, f"must be a mapping with keys of {', '.join(expected)}; got {shown(value)}"
        )
    for key in value or ():
        if key not in expected:
            raise ProtocolError(where, f"unknown key {shown(key)}; known are {', '.join(expected)}")
    return value or {}


def as_list(value: object, where: str) -> list[Any]:
    """Return ``value`` if it is a list; an empty one for null."""
    if not isinstance(value, list | None):
        raise ProtocolError(where, f"must be a list, got {shown(value)}")
    return value or []


def read_text(value: object, where: str) -> str:
    """Return ``value`` if it is text; an empty one for null."""
    if not isinstance(value, str | None):
        raise ProtocolError(where, f"must be text, got {shown(value)}")
    # YAML can escape half of a surrogate pair, which a message cannot contain.
    if value and not value.isascii() and re.search("[\ud800-\udfff]", value):
        raise ProtocolError(where, f"{shown(value)} is not text in UTF-8")
    return value or ""


def read_int(value: object, where: str, *, bits: int = 64, signed: bool = True) -> int:
    """Parse an integer of ``bits`` bits; null is 0."""
    text = read_text(value, where) or "0"
    try:
        # Base 0, because 0x10 and 0o17 are numbers in YAML, too.
        number = int(text, 0)
    except ValueError:
        raise ProtocolError(where, f"must be an integer, got {shown(text)}") from None
    least = -(1 << bits - 1) if signed else 0
    if not least <= number < least + (1 << bits):
        raise ProtocolError(where, f"must be an integer of {bits} bits, got {shown(text)}")
    return number


def read_bool(value: object, where: str) -> bool:
    """Parse a boolean; null is false."""
    text = read_text(value, where) or "false"
    if text.lower() not in _BOOLEANS:
        raise ProtocolError(where, f"must be true or false, got {shown(text)}")
    return _BOOLEANS[text.lower()]


def read_texts(value: object, where: str) -> tuple[str, ...]:
    """Return the texts of a list; an empty tuple for null."""
    return tuple(read_text(item, f"{where}[{at}]") for at, item in enumerate(as_list(value, where)))


def _write_duration(nanoseconds: int) -> str:
    duration = Duration()
    duration.FromNanoseconds(nanoseconds)
    return format_duration(duration)


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a spec."""

    read: Callable[[Any, str], Any]
    """Function that reads a value from YAML, with its path for errors; a missing value is zero."""
    write: Callable[[Any], Any]
    """Function that writes a value to YAML."""
    keeps_empty: bool = False
    """Whether an empty list is a value, so that the parent's list is not inherited."""


def enum_field(items: Iterable[tuple[str, int]]) -> Field:
    """Return the field of an enum with these names and numbers."""
    numbers = dict(items)
    names: dict[int, str | int] = {number: name for name, number in numbers.items()}

    def read(value: object, where: str) -> int:
        text = read_text(value, where) or "0"
        if text in numbers:
            return numbers[text]
        for number in names:
            if text == str(number):
                return number
        valid = (name for name in numbers if name != "INVALID")  # It means that no value is set.
        raise ProtocolError(where, f"{shown(text)} is not one of {', '.join(valid)}")

    # A number without a name comes from a later release of Gazette, and is kept.
    return Field(read, lambda number: names.get(number, number))


TEXT = Field(read_text, str)
INT32 = Field(partial(read_int, bits=32), int)
UINT32 = Field(partial(read_int, bits=32, signed=False), int)
INT64 = Field(read_int, int)
BOOL = Field(read_bool, bool)
DURATION = Field(
    lambda value, where: parse_duration(read_text(value, where) or "0", where).ToNanoseconds(),
    _write_duration,
)
"""A duration; its value is in nanoseconds."""


@dataclass(frozen=True, slots=True)
class SpecForm:
    """The form of one kind of spec in YAML."""

    fields: Mapping[Path, Field]
    """All values of a spec except its name and its labels, in the order of writing."""
    labels_after: Path
    """The value after which labels are written."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of a spec in YAML, except its name."""
        return (*dict.fromkeys(path[0] for path in self.fields), "labels")

    def read(self, node: Mapping[str, Any], where: str) -> Values:
        """Return the values that a YAML mapping sets."""
        values: Values = {}
        for group in dict.fromkeys(path[0] for path in self.fields if len(path) > 1):
            as_mapping(
                node.get(group), f"{where}.{group}", [path[1] for path in self.fields if path[0] == group]
            )
        for path, field in self.fields.items():
            *groups, key = path
            inner = node
            for group in groups:
                inner = inner.get(group) or {}
            value = field.read(inner.get(key), ".".join((where, *path)))
            # As in gazctl, zero is the same as a missing value, so it inherits. An empty list of stores
            # differs: it means that the journal is never persisted.
            if value or (field.keeps_empty and inner.get(key) == []):
                values[path] = value
        labels, at_labels = pb.LabelSet(), f"{where}.labels"
        for at, item in enumerate(as_list(node.get("labels"), at_labels)):
            label = as_mapping(item, f"{at_labels}[{at}]", ("name", "value"))
            name, value = (read_text(label.get(key), f"{at_labels}[{at}].{key}") for key in ("name", "value"))
            labels.labels.add(name=name, value=value)
        validate_label_set(labels, at_labels)
        return values | _label_values(labels)

    def values_of(self, spec: Message) -> Values:
        """Return a spec's values, except its name."""
        values: Values = {}
        for *groups, key in self.fields:
            match getattr(_inner(spec, groups), key):
                case Duration() as duration:
                    value: Any = duration.ToNanoseconds()
                case int() | str() as value:
                    pass
                case repeated:
                    value = tuple(repeated)
            if value:
                values[*groups, key] = value
        labels: pb.LabelSet = spec.labels  # type: ignore[attr-defined]  # Specs have labels.
        return values | _label_values(labels)

    def put(self, spec: Message, values: Values) -> None:
        """Set a spec's values."""
        labels: pb.LabelSet = spec.labels  # type: ignore[attr-defined]  # Specs have labels.
        labels.SetInParent()
        for path, value in sorted(values.items()):
            *groups, key = path
            if groups == ["labels"]:
                labels.labels.extend(pb.Label(name=key, value=text) for text in value)
                continue
            message = _inner(spec, groups)
            match getattr(message, key):
                case Duration() as duration:
                    duration.FromNanoseconds(value)
                case int() | str():
                    setattr(message, key, value)
                case repeated:
                    repeated.extend(value)

    def write(self, values: Values) -> dict[str, Any]:
        """Return ``values`` as a YAML mapping, with its keys in the order of writing."""
        node: dict[str, Any] = {}
        labels = sorted(
            (path[1], label) for path, group in values.items() if path[0] == "labels" for label in group
        )
        for path, field in self.fields.items():
            if path in values:
                *groups, key = path
                inner = node
                for group in groups:
                    inner = inner.setdefault(group, {})
                inner[key] = field.write(values[path])
            if path == self.labels_after and labels:
                node["labels"] = [{"name": name, "value": value} for name, value in labels]
        return node


def shared_values(specs: Sequence[Values]) -> Values:
    """Return the values that all of one or more specs have."""
    # A value moves up only if each journal below has it. Otherwise a journal without it would inherit it.
    first, *others = specs
    return {
        path: value
        for path, value in first.items()
        if all(path in other and other[path] == value for other in others)
    }


def _inner(spec: Message, groups: Sequence[str]) -> Any:  # noqa: ANN401 - a message; its type depends on the path
    message = spec
    for group in groups:
        message = getattr(message, group)
    return message


def _label_values(labels: pb.LabelSet) -> Values:
    values: Values = {}
    for label in labels.labels:
        path = ("labels", label.name)
        values[path] = (*values.get(path, ()), label.value)
    return values
