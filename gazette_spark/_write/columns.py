"""Finds the columns of a DataFrame that contain values and journals, by name and type alone.

The columns are those of Spark's Kafka sink, by Gazette's names. ``value`` is the record; ``journal`` (Kafka's
``topic``) or ``key`` gives the journal. Other columns are ignored. Kafka stores keys, but journals have no
place for them: a key only chooses the journal, so a key that chooses nothing is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gazette_spark._options.write import WriteOptions
from gazette_spark.errors import OptionError

TYPES = {"value": ("binary", "string"), "key": ("binary", "string"), "journal": ("string",)}
"""Types that a column may have, as Spark writes them."""


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """Indices of the columns in each row. At most one of ``journal`` and ``key`` counts."""

    value: int
    journal: int | None = None
    key: int | None = None


def write_columns(columns: Sequence[tuple[str, str]], options: WriteOptions) -> WriteColumns:
    """Find the columns of values, and of journals or keys.

    Args:
        columns: Name and Spark type of each column. Names are case-insensitive, as in Spark.
        options: Options of the write. They decide whether the column ``journal`` is used.

    Raises:
        OptionError: a column is missing, occurs twice, has an unsupported type, or contradicts the options.
    """
    positions = {name: _position(name, columns) for name in TYPES}
    value, journal, key = positions["value"], positions["journal"], positions["key"]
    if value is None:
        names = ", ".join(name for name, _ in columns) or "none"
        expected = "a column value, string or binary, such as selectExpr('to_json(struct(*)) AS value')"
        raise OptionError("schema", f"columns {names}", expected)
    target = options.target
    # Dropping a key silently would surprise a user of Kafka's sink, where the record keeps it: see decision
    # 6.
    if key is not None and not (target and target.selector):
        got = "a column key, and no selector"
        if target or journal is not None:
            got = f"a column key, and {f'option {target.option!r}' if target else 'a column journal'}"
        expected = "a key only with option 'selector', whose journals it chooses from"
        raise OptionError("schema", got, expected)
    if target is None and journal is None:
        ways = "option 'journal', option 'selector', a path in save() or start(), or a column journal"
        raise OptionError("journal", "nothing", ways)
    if options.mapping and key is None:
        raise OptionError("mapping", "no column key", "a column key, string or binary, to choose journals by")
    return WriteColumns(value, journal if target is None else None, key)


def _position(name: str, columns: Sequence[tuple[str, str]]) -> int | None:
    places = [index for index, (column, _) in enumerate(columns) if column.lower() == name]
    if len(places) > 1:
        raise OptionError("schema", f"column {name} {len(places)} times", "each column once, in any case")
    if not places:
        return None
    kind = columns[places[0]][1]
    if kind not in TYPES[name]:
        raise OptionError("schema", f"column {name} {kind}", f"{name} {' or '.join(TYPES[name])}")
    return places[0]
