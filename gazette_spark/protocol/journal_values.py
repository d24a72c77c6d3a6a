"""The values of a journal spec in YAML: one flat table, with the reader and the writer of each value.

In a flat table a tree of journals is plain set algebra: a node inherits missing values from those above
(``above | own``), and values that all children share move up (``intersection``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from reprlib import Repr
from typing import Any

from google.protobuf.duration_pb2 import Duration

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.durations import format_duration, parse_duration
from gazette_spark.protocol.labels import validate_label_set

Path = tuple[str, ...]
"""Keys that lead to a value, such as ``("fragment", "length")``."""

Values = dict[Path, Any]
"""Given values of a spec. A label's values are a tuple at ``("labels", name)``. Zeros are left out."""

_BOOLEANS = dict.fromkeys(("true", "yes", "on", "y"), True) | dict.fromkeys(
    ("false", "no", "off", "n"), False
)
"""Booleans of YAML 1.1, in lower case."""


_shortener = Repr()
_shortener.maxlevel = 3
_shortener.maxstring = _shortener.maxother = 100


def shown(value: object) -> str:
    """Return a value for an error's text, short however large it is."""
    return _shortener.repr(value)


def as_mapping(value: object, where: str, keys: Iterable[str]) -> dict[str, Any]:
    """Return ``value`` if it is a mapping with no other keys than ``keys``, none for null."""
    if not isinstance(value, dict | None):
        raise ProtocolError(where, f"must be a mapping, got {shown(value)}")
    known = list(keys)
    for key in value or ():
        if key not in known:
            raise ProtocolError(where, f"unknown key {shown(key)}; known are {', '.join(known)}")
    return value or {}


def as_list(value: object, where: str) -> list[Any]:
    """Return ``value`` if it is a list, an empty one for null."""
    if not isinstance(value, list | None):
        raise ProtocolError(where, f"must be a list, got {shown(value)}")
    return value or []


def read_text(value: object, where: str) -> str:
    """Return ``value`` if it is text, an empty one for null."""
    if not isinstance(value, str | None):
        raise ProtocolError(where, f"must be text, got {shown(value)}")
    if value and not value.isascii() and re.search("[\ud800-\udfff]", value):
        raise ProtocolError(where, f"{shown(value)} is no text in UTF-8")
    return value or ""


def read_int(value: object, where: str, *, bits: int = 64) -> int:
    """Parse a signed integer of ``bits`` bits; null is 0."""
    text = read_text(value, where) or "0"
    try:
        number = int(text, 0)
    except ValueError:
        raise ProtocolError(where, f"must be an integer, got {shown(text)}") from None
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ProtocolError(where, f"must be an integer of {bits} bits, got {shown(text)}")
    return number


def read_bool(value: object, where: str) -> bool:
    """Parse a boolean; null is false."""
    text = read_text(value, where) or "false"
    if text.lower() not in _BOOLEANS:
        raise ProtocolError(where, f"must be true or false, got {shown(text)}")
    return _BOOLEANS[text.lower()]


def _read_texts(value: object, where: str) -> tuple[str, ...]:
    return tuple(read_text(each, f"{where}[{at}]") for at, each in enumerate(as_list(value, where)))


def _read_enum(names: Mapping[str, int], value: object, where: str) -> int:
    """Parse the name of an enum's value, or its number."""
    text = read_text(value, where) or "0"
    numbers = {str(number): number for number in names.values()}
    if text not in names and text not in numbers:
        raise ProtocolError(where, f"{shown(text)} is not one of {', '.join(names)}")
    return names[text] if text in names else numbers[text]


def _write_enum(names: Mapping[str, int], value: int) -> str | int:
    return {number: name for name, number in names.items()}.get(value, value)


def _read_duration(value: object, where: str) -> int:
    return parse_duration(read_text(value, where) or "0", where).ToNanoseconds()


def _write_duration(nanoseconds: int) -> str:
    duration = Duration()
    duration.FromNanoseconds(nanoseconds)
    return format_duration(duration)


@dataclass(frozen=True, slots=True)
class _Field:
    read: Callable[[Any, str], Any]
    """Reads a value from YAML, with its path for errors; zero for a missing value."""
    write: Callable[[Any], Any]
    """Writes a value to YAML."""


def _enum(items: Iterable[tuple[str, int]]) -> _Field:
    return _Field(partial(_read_enum, dict(items)), partial(_write_enum, dict(items)))


_TEXT = _Field(read_text, str)
_INT64 = _Field(read_int, int)
_DURATION = _Field(_read_duration, _write_duration)

_FIELDS: dict[Path, _Field] = {
    ("replication",): _Field(partial(read_int, bits=32), int),
    ("fragment", "length"): _INT64,
    ("fragment", "compression_codec"): _enum(pb.CompressionCodec.items()),
    ("fragment", "stores"): _Field(_read_texts, list),
    ("fragment", "refresh_interval"): _DURATION,
    ("fragment", "retention"): _DURATION,
    ("fragment", "flush_interval"): _DURATION,
    ("fragment", "path_postfix_template"): _TEXT,
    ("flags",): _enum(pb.JournalSpec.Flag.items()),
    ("max_append_rate",): _INT64,
    ("suspend", "level"): _enum(pb.JournalSpec.Suspend.Level.items()),
    ("suspend", "offset"): _INT64,
}
"""Each value of a spec but its labels, in the order written. Durations are nanoseconds."""

SPEC_KEYS = (*dict.fromkeys(path[0] for path in _FIELDS), "labels")
"""Keys of a spec in a node."""


def read_values(node: Mapping[str, Any], where: str) -> Values:
    """Return the values of a spec in a tree's node."""
    values: Values = {}
    for group in dict.fromkeys(path[0] for path in _FIELDS if len(path) > 1):
        as_mapping(node.get(group), f"{where}.{group}", [path[1] for path in _FIELDS if path[0] == group])
    for path, field in _FIELDS.items():
        *groups, key = path
        inner = node
        for group in groups:
            inner = inner.get(group) or {}
        value = field.read(inner.get(key), ".".join((where, *path)))
        # A list of no stores says something: not those of the nodes above.
        if value or inner.get(key) == []:
            values[path] = value
    return values | _read_labels(node.get("labels"), f"{where}.labels")


def _read_labels(value: object, where: str) -> Values:
    labels = pb.LabelSet()
    for at, item in enumerate(as_list(value, where)):
        label = as_mapping(item, f"{where}[{at}]", ("name", "value"))
        read = {key: read_text(label.get(key), f"{where}[{at}].{key}") for key in ("name", "value")}
        labels.labels.add(name=read["name"], value=read["value"])
    validate_label_set(labels, where)
    return _label_values(labels)


def _label_values(labels: pb.LabelSet) -> Values:
    values: Values = {}
    for label in labels.labels:
        path = ("labels", label.name)
        values[path] = (*values.get(path, ()), label.value)
    return values


def values_of_spec(spec: pb.JournalSpec) -> Values:
    """Return a spec's values, without its name."""
    values: Values = {}
    for *groups, key in _FIELDS:
        message: Any = spec
        for group in groups:
            message = getattr(message, group)
        value = getattr(message, key)
        match value:
            case Duration():
                value = value.ToNanoseconds()
            case int() | str():
                pass
            case _:
                value = tuple(value)
        if value:
            values[*groups, key] = value
    return values | _label_values(spec.labels)


def spec_of_values(name: str, values: Values) -> pb.JournalSpec:
    """Return the spec that ``values`` say, with all that brokers always send present."""
    spec = pb.JournalSpec(name=name, labels=pb.LabelSet(), fragment=pb.JournalSpec.Fragment())
    for duration in (spec.fragment.refresh_interval, spec.fragment.retention, spec.fragment.flush_interval):
        duration.SetInParent()
    for path, value in sorted(values.items()):
        if path[0] == "labels":
            spec.labels.labels.extend(pb.Label(name=path[1], value=each) for each in value)
        else:
            _put(spec, path, value)
    return spec


def _put(spec: pb.JournalSpec, path: Path, value: Any) -> None:  # noqa: ANN401 - of the field's type
    *groups, key = path
    message: Any = spec
    for group in groups:
        message = getattr(message, group)
    match getattr(message, key):
        case Duration() as duration:
            duration.FromNanoseconds(value)
        case int() | str():
            setattr(message, key, value)
        case repeated:
            repeated.extend(value)


def write_values(values: Values) -> dict[str, Any]:
    """Return what ``values`` say as a node of a tree holds it, in the order in which keys are written."""
    node: dict[str, Any] = {}
    labels = sorted(
        (path[1], each) for path, group in values.items() if path[0] == "labels" for each in group
    )
    for path, field in _FIELDS.items():
        if path in values:
            *groups, key = path
            inner = node
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[key] = field.write(values[path])
        if path == ("replication",) and labels:
            node["labels"] = [{"name": name, "value": value} for name, value in labels]
    return node
