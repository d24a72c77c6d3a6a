"""The columns of a table that say which record of which journal a row is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

INTEGERS = frozenset({"bigint", "int", "smallint", "tinyint", "long", "integer", "short", "byte"})
"""Types of an offset, as Spark and as Delta's log name them."""

BYTES = frozenset({"binary", "string"})
"""Types of a record's bytes: a text that Spark cast them to keeps them."""


@dataclass(frozen=True, slots=True)
class OriginColumns:
    """Columns of a table with the journal and the offset of its rows."""

    journal: str
    offset: str
    value: str | None
    """The record's bytes, if the table has them unchanged."""
    place: str | None = None
    """Where the message begins that committed the row's, if the table says it."""


def origin_columns(types: Mapping[str, str]) -> OriginColumns | None:
    """Return the columns of the source's metadata, or else of raw records; None if a table has neither.

    Args:
        types: The type of each column, by name.
    """
    place = "_ack_offset" if types.get("_ack_offset") in INTEGERS else None
    if "_journal" in types and types.get("_offset") in INTEGERS:
        return OriginColumns("_journal", "_offset", None, place)
    if "journal" in types and types.get("offset") in INTEGERS and types.get("value") in BYTES:
        return OriginColumns("journal", "offset", "value", place)
    return None
