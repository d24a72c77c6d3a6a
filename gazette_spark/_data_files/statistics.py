"""Makes the statistics of a data file in Delta's form from the counts of Parquet's writer.

Readers skip files by these statistics. A bound that is too narrow silently loses rows; a missing bound costs
time. Therefore a bound is omitted wherever Parquet's order or form differs from Delta's:

======================  =====================================================================
binary, boolean         none: Delta has none
text                    cut at 32 characters; the upper bound then ends in the last code point
float with a NaN        none: Delta orders NaN above all numbers, Parquet leaves it out
float with an infinity  none: JSON has no text for it
float within a struct   none: only top-level columns are checked for NaN
array, map              neither bounds nor null counts
timestamp               rounded outwards to milliseconds: Delta's protocol has no more digits
decimal                 none beyond 15 digits, which a reader may round
date, time              none in a file with a year before 1 or after 9999
======================  =====================================================================
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

TEXT_LENGTH = 32
"""Number of characters of a text in a bound, which is the same as Delta's."""

EXACT_DIGITS = 15
"""Number of decimal digits that every JSON reader keeps, regardless of its number type."""

LAST_CODE_POINT = "\U0010ffff"

UP_TO_MILLISECOND = dt.timedelta(microseconds=999)
"""Added to an upper bound before its microseconds are dropped."""


class Leaf(NamedTuple):
    """A column of Parquet."""

    path: tuple[str, ...]
    """Names from the column to the field."""
    type: pa.DataType
    repeated: bool
    """Whether it is within an array or a map."""
    stored: str
    """Path in Parquet's schema, which has additional levels in arrays and maps."""


def leaves(schema: pa.Schema) -> list[Leaf]:
    """Return a schema's leaf columns in Parquet's order."""
    return [leaf for column in schema for leaf in _leaves((column.name,), column.type, column.name)]


def _leaves(
    path: tuple[str, ...], kind: pa.DataType, stored: str, *, repeated: bool = False
) -> Iterator[Leaf]:
    if pa.types.is_struct(kind):
        for inner in kind:
            yield from _leaves((*path, inner.name), inner.type, f"{stored}.{inner.name}", repeated=repeated)
    elif pa.types.is_map(kind):
        for name, inner in (("key", kind.key_type), ("value", kind.item_type)):
            yield from _leaves((*path, name), inner, f"{stored}.key_value.{name}", repeated=True)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves((*path, "element"), kind.value_type, f"{stored}.list.element", repeated=True)
    else:
        yield Leaf(path, kind, repeated, stored)


def file_statistics(
    file: pq.FileMetaData, schema: pa.Schema, *, indexed_leaves: int, with_nan: Collection[str] = ()
) -> str:
    """Return the statistics of a file as JSON for Delta's log.

    Args:
        file: The writer's counts.
        schema: The file's columns.
        indexed_leaves: Number of leading leaf columns that get statistics; all if negative.
        with_nan: Names of the columns that contain a NaN.
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    # Find columns by position, because Parquet's metadata is a list of leaves without a tree.
    every = leaves(schema)
    for number, leaf in enumerate(every if indexed_leaves < 0 else every[:indexed_leaves]):
        if leaf.repeated:
            continue
        groups = [file.row_group(group).column(number).statistics for group in range(file.num_row_groups)]
        # If a row group has no count, the sum is unknown. With a sum that is too small, a reader could skip
        # the file for IS NULL.
        if any(group is None or not group.has_null_count for group in groups):
            continue
        count = sum(group.null_count for group in groups)
        _put(nulls, leaf.path, count)
        bounded = [group for group in groups if group.has_min_max]
        filled = sum(group.num_values > 0 for group in groups)
        # A row group with values but without bounds may contain any value. A row group with only nulls needs
        # no bounds.
        if len(bounded) < filled or not bounded:
            continue
        if pa.types.is_floating(leaf.type):
            has_order = len(leaf.path) == 1 and leaf.path[0] not in with_nan
        else:
            has_order = not (pa.types.is_binary(leaf.type) or pa.types.is_boolean(leaf.type))
        if not has_order:
            continue
        try:
            bounds = _bounds(min(group.min for group in bounded), max(group.max for group in bounded))
        # Python has no dates before year 1 or after 9999, and no texts of bytes that are not UTF-8, which
        # Spark makes by CAST(X'FF' AS STRING).
        except (OverflowError, UnicodeDecodeError):
            continue
        if bounds is not None:
            _put(lows, leaf.path, bounds[0])
            _put(highs, leaf.path, bounds[1])
    statistics = {"numRecords": file.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return json.dumps(statistics, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _put(values: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _bounds(low: Any, high: Any) -> tuple[Any, Any] | None:  # noqa: ANN401 - of any column.
    """Return the bounds in the form of Delta's JSON, or None if Delta has no bounds for this type."""
    match low, high:
        case str(), str():
            # A shortened text is less than the text itself, so an upper bound ends in the last code point.
            is_bound = len(high) <= TEXT_LENGTH or high[TEXT_LENGTH] == LAST_CODE_POINT
            return low[:TEXT_LENGTH], high if is_bound else high[:TEXT_LENGTH] + LAST_CODE_POINT
        # This case comes before date, of which datetime is a subclass.
        case dt.datetime(), dt.datetime():
            return _instant(low), _instant(high + UP_TO_MILLISECOND)
        case dt.date(), dt.date():
            return low.isoformat(), high.isoformat()
        # JSON readers may read numbers as doubles, and a bound that is rounded the wrong way would exclude
        # rows.
        case Decimal(), Decimal():
            return (float(low), float(high)) if _is_short(low) and _is_short(high) else None
        case ((int() | float()), (int() | float())):
            return (low, high) if math.isfinite(low) and math.isfinite(high) else None
    return None


def _is_short(number: Decimal) -> bool:
    return len(number.as_tuple().digits) <= EXACT_DIGITS


def _instant(value: dt.datetime) -> str:
    # With spark.sql.legacy.timeParserPolicy=LEGACY, Spark takes all digits after the point for milliseconds.
    # It would read .123456 as two minutes, and skip files that have the requested rows.
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if value.tzinfo is None else text + "Z"
