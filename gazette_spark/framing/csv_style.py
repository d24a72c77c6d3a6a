"""How records of CSV are written: what parts and quotes fields, what stands for null, forms of times.

The options and their defaults are those of Spark's CSV reader. But quotes inside quotes are doubled, as in
RFC 4180, which Spark reads with ``escape='"'``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark.framing.json_values import SPARKS, JsonDialect


@dataclass(frozen=True, slots=True)
class CsvStyle:
    """How fields are written and what they mean. Can be pickled."""

    separator: str = ","
    """One ASCII character that parts fields."""
    quote: str = '"'
    """One ASCII character around fields that hold separators or newlines; none: newlines end records."""
    null_value: str = ""
    """A field of this text is null, quoted or not; so is one that is empty and not quoted."""
    empty_value: str = ""
    """What an empty field in quotes stands for."""
    times: JsonDialect = SPARKS
    """What dates and timestamps look like: the same as in strings of JSON."""


SPARKS_STYLE = CsvStyle()
"""What Spark reads without options, in a session whose zone is UTC."""
