"""Columns of texts to columns of dates, timestamps, bytes and decimals.

Texts in the shapes that writers use are converted by Arrow, all at once; the others one by one. Which
shapes those are is decided here and not by what Arrow accepts: it reads ``2024-01-02T03:04Z``, or an
offset of 19 hours, which Spark does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from gazette_spark.errors import GazetteError
from gazette_spark.framing.base import bool_array, valid
from gazette_spark.framing.timestamps import UTC

if TYPE_CHECKING:
    import numpy.typing as npt

Mask: TypeAlias = "npt.NDArray[np.bool_]"
Places: TypeAlias = "npt.NDArray[np.int64]"
V = TypeVar("V")
R = TypeVar("R")


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
        convert: Converts one text; what it raises makes the text a problem.
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


def matching(
    texts: pa.StringArray, kind: pa.DataType, pattern: str, convert: Callable[[str], object] | None
) -> Converted:
    """Convert texts of which Arrow converts those that match a pattern, and nulls.

    Args:
        texts: Nulls stay null.
        kind: Type of the column.
        pattern: A regular expression.
        convert: Converts one of the other texts; None: none of them fits.
    """
    return _mixed(texts, kind, convert, [(_matches(texts, pattern), kind)])


def conversion(convert: Callable[[V], R], value: V) -> tuple[R | None, str | None]:
    """Return what a value of a record converts to, or None and the reason why it does not.

    Whatever a converter raises is the value's fault, so every exception is a reason. A list of classes would
    be complete until the next record: converters call time zone databases, codecs and Arrow, which raise what
    they like. Two kinds pass through: our own errors, which blame the machine or an option, and a lack of
    memory, after which another try may succeed.
    """
    try:
        return convert(value), None
    except (GazetteError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # See above.
        return None, str(error) if isinstance(error, ValueError) else f"does not fit: {type(error).__name__}"


def spread(count: int, kind: pa.DataType, parts: Sequence[tuple[Places, pa.Array]]) -> pa.Array:
    """Return a column of values at their places, null elsewhere; of several at one place the last counts."""
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return pa.nulls(count, kind)
    order = parts[0][0] if len(parts) == 1 else np.concatenate([at for at, _ in parts])
    values = parts[0][1] if len(parts) == 1 else pa.concat_arrays([column for _, column in parts])
    if len(order) == count and (order[:-1] < order[1:]).all():
        return values
    taken = np.full(count, -1, np.int64)
    taken[order] = np.arange(len(order))
    known = pa.py_buffer(np.packbits(taken >= 0, bitorder="little"))
    return values.take(pa.Array.from_buffers(pa.int64(), count, [known, pa.py_buffer(taken)]))


def places(flags: pa.BooleanArray) -> Places:
    """Return where flags are set."""
    # It takes a worker longer to load than all of this package, and few records need it.
    import pyarrow.compute as pc

    found = pc.indices_nonzero(flags)
    if not len(found):
        return np.empty(0, np.int64)
    return np.frombuffer(found.buffers()[1], np.uint64, len(found)).astype(np.int64)


def _mixed(
    texts: pa.StringArray,
    kind: pa.DataType,
    convert: Callable[[str], object] | None,
    usual: list[tuple[Mask, pa.DataType]],
) -> Converted:
    parts = []
    left = valid(texts)
    for mask, shape in usual:
        try:
            mask = mask & left  # noqa: PLW2901 - nulls are of any shape.
            found = texts if mask.all() else texts.filter(bool_array(mask))
            parts.append((np.flatnonzero(mask), found.cast(shape).cast(kind)))
        except pa.ArrowInvalid:
            continue
        left &= ~mask
    rest = np.flatnonzero(left)
    if convert is None:
        return Converted(spread(len(texts), kind, parts), dict.fromkeys(rest.tolist(), "does not fit"))
    values: list[object] = []
    problems = {}
    for index, text in zip(rest.tolist(), texts.filter(bool_array(left)).to_pylist(), strict=True):
        value, problem = conversion(convert, text)
        values.append(value)
        if problem is not None:
            problems[index] = problem
    parts.append((rest, pa.array(values, kind)))
    return Converted(spread(len(texts), kind, parts), problems)


def _matches(texts: pa.StringArray, pattern: str) -> Mask:
    import pyarrow.compute as pc

    found = np.zeros(len(texts), np.bool_)
    found[places(pc.match_substring_regex(texts, pattern))] = True
    return found


def _usual(texts: pa.StringArray, kind: pa.DataType, zone: str) -> list[tuple[Mask, pa.DataType]]:
    """Return which texts, nulls among them, have a shape that Arrow converts, and to which type."""
    _, bounds, data = texts.buffers()
    ends = np.frombuffer(bounds, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    starts, ends = ends[:-1], ends[1:]
    sizes = ends - starts
    null = ~valid(texts) if texts.null_count else np.zeros(len(texts), np.bool_)
    if pa.types.is_decimal(kind):
        # Only what has the column's own digits, and no exponent: Arrow drops bits beyond 128, and rescales by
        # a table that it leaves where an exponent is small, or a fraction long, which can kill the process.
        whole, scale = kind.precision - kind.scale, kind.scale
        digits = f"[0-9]{{1,{whole}}}" if whole > 0 else "0"
        fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale > 0 else ""
        return [(_matches(texts, f"^-?{digits}{fraction}$") | null, kind)]
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
