"""How records of CSV are written: what parts and quotes fields, what stands for null, forms of times.

The options and their defaults are those of Spark's CSV reader. But quotes inside quotes are doubled, as in
RFC 4180, which Spark reads with ``escape='"'``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from gazette_spark.framing.base import text_scalar


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """A pattern of dates or timestamps as a regular expression that finds its parts."""

    pattern: str
    """As the user has written it."""
    expression: str
    """One named group for each part: year, month, day, hour, minute, second, fraction, zone."""

    @classmethod
    def parse(cls, pattern: str) -> Self:
        """Read a pattern of letters, in Java's meaning, quoted texts and optional parts in brackets.

        Raises:
            ValueError: it has other letters, has a part twice, or does not say year, month and day.
        """
        expression, seen, depth = "", set[str](), 0
        for found in _TOKEN.finditer(pattern):
            letters, _, quoted, other = found.groups()
            depth += {"[": 1, "]": -1}.get(other, 0)
            if depth < 0:
                break
            if letters:
                name, digits = _part(letters)
                if name in seen or (depth and name in _DATE_PARTS):
                    raise ValueError(f"{name} is there twice, or can be left out")
                seen.add(name)
                expression += f"(?P<{name}>{digits})"
            else:
                expression += _literal(quoted, other)
        if depth:
            raise ValueError("a bracket is left open")
        if not seen >= _DATE_PARTS:
            raise ValueError("it does not say year, month and day")
        if re.search(r"\{1,[0-9]\}\)\(\?P<(?!zone)", expression):
            raise ValueError("nothing shows where one of its numbers ends")
        return cls(pattern, f"^(?s:{expression})$")

    @property
    def has_zone(self) -> bool:
        """Tell whether texts say their zone."""
        return "<zone>" in self.expression

    def canonical(self, texts: pa.StringArray) -> pa.StringArray:
        """Return texts of this format as ISO 8601 has them, null where they are not of it."""
        parts = pc.extract_regex(texts, self.expression)
        names = [part.name for part in parts.type]

        def part(name: str, before: str, width: int) -> list[pa.Array | pa.Scalar]:
            if name not in names:
                return [text_scalar(before + "0" * width)] if width else []
            found = parts.field(names.index(name))
            if width:
                found = pc.utf8_lpad(found, width, "0")
            return [text_scalar(before), found]

        pieces = [
            *part("year", "", 4),
            *part("month", "-", 2),
            *part("day", "-", 2),
            *part("hour", "T", 2),
            *part("minute", ":", 2),
            *part("second", ":", 2),
        ]
        if "fraction" in names:
            padded = pc.utf8_rpad(parts.field(names.index("fraction")), 6, "0")
            pieces += [text_scalar("."), pc.utf8_slice_codeunits(padded, 0, 6)]
        pieces += part("zone", "", 0)
        joined = pc.binary_join_element_wise(*pieces, text_scalar(""))
        return pc.if_else(parts.is_valid(), joined, pa.nulls(1, pa.string())[0])


@dataclass(frozen=True, slots=True)
class CsvStyle:
    """How fields are written and what they mean."""

    separator: str = ","
    """One ASCII character that parts fields."""
    quote: str = '"'
    """One ASCII character around fields that hold separators or newlines; none: newlines end records."""
    null_value: str = ""
    """A field of this text is null, quoted or not; so is one that is empty and not quoted."""
    empty_value: str = ""
    """What an empty field in quotes stands for."""
    date_format: TimeFormat | None = None
    """None: the forms of Spark's casts, as for the others."""
    timestamp_format: TimeFormat | None = None
    timestamp_ntz_format: TimeFormat | None = None


SPARKS_STYLE = CsvStyle()
"""What Spark reads without options."""


def _part(letters: str) -> tuple[str, str]:
    if letters not in _PARTS:
        raise ValueError(f"{letters} is none of {', '.join(_PARTS)}")
    return _PARTS[letters]


def _literal(quoted: str | None, other: str | None) -> str:
    """Return what finds a text in quotes, or any other character of a pattern."""
    if quoted is not None:
        return re.escape(quoted.replace("''", "'") or "'")
    if other == "'":
        raise ValueError("a quote is left open")
    return {"[": "(?:", "]": ")?"}.get(other or "") or re.escape(other or "")


_TOKEN = re.compile(r"((?P<letter>[A-Za-z])(?P=letter)*)|'((?:[^']|'')*)'|(.)", re.DOTALL)

_DATE_PARTS = frozenset({"year", "month", "day"})

_PARTS = {
    "yyyy": ("year", "[0-9]{4}"),
    "MM": ("month", "[0-9]{2}"),
    "M": ("month", "[0-9]{1,2}"),
    "dd": ("day", "[0-9]{2}"),
    "d": ("day", "[0-9]{1,2}"),
    "HH": ("hour", "[0-9]{2}"),
    "H": ("hour", "[0-9]{1,2}"),
    "mm": ("minute", "[0-9]{2}"),
    "m": ("minute", "[0-9]{1,2}"),
    "ss": ("second", "[0-9]{2}"),
    "s": ("second", "[0-9]{1,2}"),
    **{"S" * most: ("fraction", f"[0-9]{{1,{most}}}") for most in range(1, 10)},
    "XXX": ("zone", "Z|[+-][0-9]{2}:[0-9]{2}"),
    "XX": ("zone", "Z|[+-][0-9]{4}"),
}
"""What letters of a pattern stand for, and its digits."""
