"""The style of CSV records: separator, quote, the texts of null and of empty fields, formats of times.

The options and their defaults are those of Spark's CSV reader. But quotes inside quotes are doubled, as in
RFC 4180, which Spark reads with ``escape='"'``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark.framing.json_values import SPARKS, JsonDialect


@dataclass(frozen=True, slots=True)
class CsvStyle:
    """Style of CSV fields and the meaning of their texts. Can be pickled."""

    separator: str = ","
    """One ASCII character that separates fields."""
    quote: str = '"'
    """One ASCII character around fields that contain separators or newlines; empty: newlines end records."""
    null_value: str = ""
    """A field of this text is null, quoted or not; so is one that is empty and not quoted."""
    empty_value: str = ""
    """Value of an empty field in quotes."""
    times: JsonDialect = SPARKS
    """Formats of dates and timestamps: the same as in strings of JSON."""


SPARKS_STYLE = CsvStyle()
"""Style of Spark's reader without options, in a session whose zone is UTC."""
