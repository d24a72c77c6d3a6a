"""Keeps one row for each key: decides which rows of a batch count, and makes the statement to merge them.

A batch may have several rows with the same key. The last one counts, by :func:`order`, and all others are
dropped. The last row replaces the table's row with that key, or deletes it if the column ``delete_when`` is
true. Batches come in the order of their offsets, so it is correct that a later batch overwrites earlier rows.

**What last means**: within one journal, the last row is the one with the largest offset. Offsets of two
journals cannot be compared. If *one* batch has rows from two journals, the journal with the later name
counts; if they are in two batches, the later batch counts. Which of these happens depends on how the source
splits its batches, so all rows of a key should come from one journal, as they do if writers choose the
journal by the key. If that is impossible, ``order_by`` names a column that decides, both within the batch and
against the table: a row never replaces a row with a greater value. A deletion also removes the row's
``order_by`` value, so an older row in a later batch counts as a new row.

**Output modes update and complete** return one row for each group, so no order is needed. The keys then are
the grouping keys, and a batch with two rows of one key is refused. A batch of the mode complete is the whole
result, so keys that it lacks are deleted from the table.

A null in a key is refused. Records that could not be parsed have nulls in all columns, and accepting null as
a key would keep one of them and silently drop the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gazette_spark._delta.sql_names import UNESCAPED_LITERALS, quoted, text_literal
from gazette_spark.errors import OptionError

Origin = tuple[str, ...]
"""Names of the columns that contain a row's journal and its offset."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Keep one row for each key in the table: the last one."""

    keys: Sequence[str]
    """Columns that together identify a row. Their types must be comparable, and their values must not be
    null."""
    delete_when: str | None = None
    """Boolean column: true deletes the key's row, and null counts as false. The column is not stored."""
    order_by: str | None = None
    """Column whose greatest value marks the last row of a key; null is less than all other values. The column
    is stored. Among equal values, the last row by journal and offset counts, if the batch has these
    columns."""
    leave_out: Sequence[str] = ()
    """Columns that are not stored, such as ``_journal`` and ``_offset`` if they only determine the order."""

    def __post_init__(self) -> None:
        """Check the names of the columns, as far as possible without a batch.

        Raises:
            OptionError: the columns are not lists of names, or one has two roles.
        """
        for name in ("keys", "leave_out"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        if not self.keys:
            raise OptionError("upsert.keys", "none", "at least one column, e.g. ('id',)")
        for name, columns in (("delete_when", self._of(self.delete_when)), ("leave_out", self.leave_out)):
            if both := {*columns} & {*self.keys, *self._of(self.order_by)}:
                expected = "columns that are neither keys nor order_by: those are stored, and compared"
                raise OptionError(f"upsert.{name}", repr(min(both)), expected)

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that a MERGE needs but that are not stored."""
        return self._of(self.delete_when)

    def stored(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return those of a batch's columns that are stored in the table."""
        left_out = {*self.leave_out, *self._of(self.delete_when)}
        return tuple(name for name in columns if name not in left_out)

    def unfit(self, types: Mapping[str, str], origin: Origin | None, *, grouped: bool = False) -> str | None:
        """Return the reason why rows cannot be merged by key and order, or None if they can.

        Args:
            types: Spark's name for the type of each column.
            origin: Names of the columns of a row's origin; None if they are missing.
            grouped: Whether a batch has one row for each group, so that no order is needed.
        """
        used = (*self.keys, *self._of(self.delete_when), *self._of(self.order_by), *self.leave_out)
        if missing := [name for name in used if name not in types]:
            return f"they have no column {', '.join(missing)}; their columns are {', '.join(types)}"
        if self.delete_when is not None and (kind := types[self.delete_when]) != "boolean":
            return f"delete_when={self.delete_when!r} has the type {kind}; expected boolean"
        if origin is None and self.order_by is None and not grouped:
            return (
                f"nothing shows which of them is the last of its key. Their columns are {', '.join(types)}; "
                "give them the source's columns _journal and _offset (or journal, offset and value as BINARY,"
                " of the format raw; of committed messages _journal, _ack_offset and _offset), or Upsert the "
                "argument order_by"
            )
        return None

    def _of(self, column: str | None) -> tuple[str, ...]:
        return () if column is None else (column,)


class RepeatableUpsert(Upsert):
    """An upsert by keys of texts, of batches that return one row for each key, and the same rows in each run.

    The rows of such a batch can be examined before they are written. A stream's batch may depend on the time
    or on chance, so its keys are known only once they are in the table.
    """

    __slots__ = ()


# Parquet nests the keys of a list, one into the other, and reads them recursively: a hundred levels are safe.
LISTED_KEYS = 1000
"""Maximum number of keys that a condition names one by one. They become part of the commit in Delta's log."""

LISTS = 10
"""Maximum number of lists for the values of a column. Delta compares the least and greatest value of a list
with those of a file, so several lists of values that are close together exclude more files than one."""

COMPARED_VALUES = 16
"""Maximum number of values without a list. Each is compared with a file, and with each row that is read."""

PRECISE = {
    # Spark passes a list of more values than this to Parquet as its least and greatest value. Then no page of
    # a file is skipped.
    "spark.sql.parquet.pushdown.inFilterThreshold": str(LISTED_KEYS // LISTS),
    **UNESCAPED_LITERALS,
}
"""Settings under which a scan with :func:`keys_condition` reads no more of a file than it has to."""


def keys_condition(columns: Sequence[str], keys: Iterable[tuple[str, ...]]) -> str:
    """Return the SQL condition that the rows with some keys fulfil, and no others; see :data:`PRECISE`.

    Args:
        columns: The columns of a key, which contain texts.
        keys: The values of at least one key.
    """
    keys = {*keys}
    # Take the column with the fewest values first, and put values with the same other columns into one term.
    # So keys of few shards become few lists.
    at = min(range(len(columns)), key=lambda column: len({key[column] for key in keys}))
    others: dict[str, set[tuple[str, ...]]] = {}
    for key in keys:
        others.setdefault(key[at], set()).add((*key[:at], *key[at + 1 :]))
    terms: dict[frozenset[tuple[str, ...]], list[str]] = {}
    for value in sorted(others):
        terms.setdefault(frozenset(others[value]), []).append(value)
    rest_columns = (*columns[:at], *columns[at + 1 :])
    conditions = []
    for rest, values in terms.items():
        # The condition that the column has one of the values, which ascend.
        name, literals = quoted(columns[at]), [text_literal(value) for value in values]
        if len(literals) <= COMPARED_VALUES:
            alternatives = [f"{name} = {literal}" for literal in literals]
        else:
            size = max(COMPARED_VALUES, -(-len(literals) // LISTS))
            lists = [literals[begin : begin + size] for begin in range(0, len(literals), size)]
            alternatives = [f"{name} IN ({', '.join(listed)})" for listed in lists]
        condition = f"({' OR '.join(alternatives)})"
        conditions.append(
            f"{condition} AND {keys_condition(rest_columns, rest)}" if rest_columns else condition
        )
    return f"({' OR '.join(conditions)})"


def _names(name: str, columns: Sequence[str]) -> tuple[str, ...]:
    listed = isinstance(columns, list | tuple) and all(isinstance(name, str) and name for name in columns)
    if not listed or len({*columns}) < len(columns):
        raise OptionError(f"upsert.{name}", repr(columns)[:80], "different names of columns, e.g. ('id',)")
    return tuple(columns)


def order(upsert: Upsert, origin: Origin | None) -> str:
    """Return the SQL expressions that sort a key's rows, the last row first."""
    by = (*upsert._of(upsert.order_by), *(origin or ()))
    return ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in by)


def copies(upsert: Upsert) -> str:
    """Return the SQL expression for the number of rows in a batch that have a row's key."""
    return f"count(*) OVER (PARTITION BY {', '.join(quoted(name) for name in upsert.keys)})"


def rank(upsert: Upsert, origin: Origin | None) -> str:
    """Return the SQL expression that is 1 only for the last row of each key in a batch."""
    keys = ", ".join(quoted(name) for name in upsert.keys)
    return f"row_number() OVER (PARTITION BY {keys} ORDER BY {order(upsert, origin)})"


def merge_statement(
    table: str,
    view: str,
    columns: Iterable[str],
    upsert: Upsert,
    *,
    add_columns: bool = False,
    complete: bool = False,
) -> str:
    """Return the statement that merges the last rows of a batch into a table.

    Columns that only the table has keep their values, or are null in a new row. Keys are not written again,
    because they are equal.

    Args:
        table: Name of the table in SQL.
        view: Name of the view of these rows, in which ``delete_when`` is never null.
        columns: Columns of the batch.
        upsert: How rows are merged.
        add_columns: Whether to add columns that the table does not have, in the same commit.
        complete: Whether the rows are the whole new content of the table. Then keys that they lack are
            deleted, and ``order_by`` does not protect the table's row of a key that they have.
    """
    stored = upsert.stored(columns)
    # The batch's columns have the names of the table, whose case may differ from that of the keys.
    names = {name.lower(): name for name in stored}
    keys = [names[key.lower()] for key in upsert.keys]
    on = " AND ".join(f"old.{quoted(name)} = new.{quoted(name)}" for name in keys)
    evolving = "WITH SCHEMA EVOLUTION " if add_columns else ""
    clauses = [f"MERGE {evolving}INTO {table} AS old USING {quoted(view)} AS new ON {on}"]
    newer = stays = ""
    if upsert.order_by is not None and not complete:
        by = quoted(names[upsert.order_by.lower()])
        # A row replaces a row with an equal value: if order_by does not distinguish two rows, the later batch
        # counts, as without order_by.
        newer = f" AND (old.{by} IS NULL OR new.{by} >= old.{by})"
    if upsert.delete_when is not None:
        deletes = quoted(upsert.delete_when)
        # Deleting a key that the table does not have inserts nothing.
        stays = f" AND NOT new.{deletes}"
        clauses.append(f"WHEN MATCHED{newer} AND new.{deletes} THEN DELETE")
    # Name the columns one by one, because with UPDATE SET * Delta ignores columns that the table does not
    # have (decision 0014).
    if values := [name for name in stored if name not in keys]:
        pairs = ", ".join(f"{quoted(name)} = new.{quoted(name)}" for name in values)
        clauses.append(f"WHEN MATCHED{newer} THEN UPDATE SET {pairs}")
    listed = ", ".join(quoted(name) for name in stored)
    values_of = ", ".join(f"new.{quoted(name)}" for name in stored)
    clauses.append(f"WHEN NOT MATCHED{stays} THEN INSERT ({listed}) VALUES ({values_of})")  # noqa: S608 - names are quoted
    # A complete batch is the whole result. Without this clause, groups that are no longer in it would stay in
    # the table.
    if complete:
        clauses.append("WHEN NOT MATCHED BY SOURCE THEN DELETE")
    return " ".join(clauses)


def free_name(name: str, columns: Iterable[str]) -> str:
    """Return a name that no column has: this one or a longer one. Case is ignored, as by Spark."""
    taken = {column.lower() for column in columns}
    while name.lower() in taken:
        name += "_"
    return name
