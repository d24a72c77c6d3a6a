"""Columns of texts to columns of dates, timestamps, bytes and decimals.

Texts in the shapes that writers use are converted by Arrow, all at once; the others one by one. Which
shapes those are is decided here and not by what Arrow accepts: it reads ``2024-01-02T03:04Z``, or an
offset of 19 hours, which Spark does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from gazette_spark.framing.timestamps import UTC

if TYPE_CHECKING:
    import numpy.typing as npt

Mask: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True, slots=True)
class Converted:
    """A column, and the indices that are null because their text did not fit."""

    column: pa.Array
    problems: dict[int, str] = field(default_factory=dict)
    """Problems by index."""


def from_texts(
    texts: pa.StringArray, kind: pa.DataType, convert: Callable[[str], object], zone: str | None = UTC
) -> Converted:
    """Convert texts.

    Args:
        texts: Nulls stay null.
        kind: Type of the column.
        convert: Converts one text; raises ValueError.
        zone: Zone of timestamps without one; None: ``convert`` decides, not the usual formats.
    """
    usual = [] if zone is None else _usual(texts, kind, zone)
    for mask, shape in usual:
        if mask.all():
            try:
                return Converted(texts.cast(shape).cast(kind))
            except pa.ArrowInvalid:
                break
    return _mixed(texts, kind, convert, usual)


def _mixed(
    texts: pa.StringArray,
    kind: pa.DataType,
    convert: Callable[[str], object],
    usual: list[tuple[Mask, pa.DataType]],
) -> Converted:
    parts, order = [], []
    left = _valid(texts)
    for mask, shape in usual:
        try:
            mask = mask & left  # noqa: PLW2901 - nulls are of any shape.
            parts.append(texts.filter(pa.array(mask)).cast(shape).cast(kind))
        except pa.ArrowInvalid:
            continue
        order.append(np.flatnonzero(mask))
        left &= ~mask
    values: list[object] = []
    problems = {}
    for index, text in zip(np.flatnonzero(left).tolist(), texts.filter(pa.array(left)), strict=True):
        try:
            values.append(convert(text.as_py()))
        except ValueError as error:
            values.append(None)
            problems[index] = str(error)
    parts.append(pa.array(values, kind))
    order.append(np.flatnonzero(left))
    # Index of each row's value in the concatenated parts; a null has no index.
    places = np.concatenate(order)
    taken = np.zeros(len(texts), np.int64)
    taken[places] = np.arange(len(places))
    missing = np.ones(len(texts), np.bool_)
    missing[places] = False
    return Converted(pa.concat_arrays(parts).take(pa.array(taken, mask=missing)), problems)


def _valid(texts: pa.StringArray) -> Mask:
    bits = texts.buffers()[0]
    if bits is None:
        return np.ones(len(texts), np.bool_)
    # Arrow's own to_numpy() would import pandas for this.
    octets = np.frombuffer(bits, np.uint8)
    unpacked = np.unpackbits(octets, count=texts.offset + len(texts), bitorder="little")
    return unpacked[texts.offset :].astype(np.bool_)


def _usual(texts: pa.StringArray, kind: pa.DataType, zone: str) -> list[tuple[Mask, pa.DataType]]:
    """Return which texts, nulls among them, have a shape that Arrow converts, and to which type."""
    _, bounds, data = texts.buffers()
    ends = np.frombuffer(bounds, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    starts, ends = ends[:-1], ends[1:]
    sizes = ends - starts
    null = ~_valid(texts) if texts.null_count else np.zeros(len(texts), np.bool_)
    if pa.types.is_date32(kind):
        return [((sizes == len("2024-01-02")) | null, kind)]
    long = sizes >= len("2024-01-02T03:04:05")
    if not pa.types.is_timestamp(kind) or not long.any():
        return []
    octets = np.frombuffer(data, np.uint8)
    starts, ends = np.where(long, starts, 0), np.where(long, ends, 0)
    long &= octets[starts + len("2024-01-02T03:04")] == ord(":")
    # An end of 0 wraps around to the last bytes, which is as good as any: these are not long.
    signed = [_one_of(octets[ends - back], b"+-") for back in (3, 5, 6)]
    ends_in_z = octets[ends - 1] == ord("Z")
    local = long & ~ends_in_z & ~(signed[0] | signed[1] | signed[2])
    if kind.tz is None:
        return [(local | null, kind)]
    tens, ones = octets[ends - 5], octets[ends - 4]
    offset = (
        signed[2]
        & (octets[ends - 3] == ord(":"))
        & ((tens == ord("0")) | ((tens == ord("1")) & (ones < ord("8"))))
    )
    shapes = [((long & (ends_in_z | offset)) | null, kind)]
    return [*shapes, (local | null, pa.timestamp("us"))] if zone == UTC else shapes


def _one_of(octets: npt.NDArray[np.uint8], wanted: bytes) -> Mask:
    found: Mask = (octets == wanted[0]) | (octets == wanted[1])
    return found
