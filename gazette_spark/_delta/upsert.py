"""One row for each key: the rows of a batch that count, and the statement that merges them into a table.

A batch holds several rows of a key. The last of them counts, by :func:`order`; all others are dropped. It
then takes the place of the table's row of that key, or, if the column ``delete_when`` is true, deletes that
row. Batches come in the order of their offsets, so a later batch is right to overwrite earlier rows.

**Last means**: of one journal the row with the largest offset. Offsets of two journals cannot be compared. Of
rows of two journals in *one* batch that of the journal with the later name counts, and of two batches the
later batch. Which of these happens depends on how the source cuts its batches, so a key should come from one
journal, as it does where writers choose the journal by the key. Where it cannot, ``order_by`` names a column
that decides, in the batch and against the table: a row never replaces one that is greater there. The
``order_by`` value of a deletion is gone with the row: an older row that comes in a later batch is a new row.

**Output modes update and complete** give one row of each group, so nothing has to say which is the last. The
keys are the grouping keys then; a batch with two rows of one key is refused. A batch of the mode complete is
the whole result, so keys that it lacks are deleted from the table.

A null in a key is refused. Records that could not be parsed have nulls everywhere; to accept null as a key
would keep one of them and drop the others in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gazette_spark._delta.sql_names import quoted
from gazette_spark.errors import OptionError

Origin = tuple[str, ...]
"""Names of the columns that hold a row's journal and its offset."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Keep one row of each key in the table: the last."""

    keys: Sequence[str]
    """Columns that together name a row, of types that can be compared. No row may have a null there."""
    delete_when: str | None = None
    """Column of booleans: true takes the key's row away. Null is false. It is not stored."""
    order_by: str | None = None
    """Column whose greatest value is the last row of a key, null being less than all others. It is stored. Of
    equal ones the last by journal and offset counts, if the batch has these columns."""
    leave_out: Sequence[str] = ()
    """Columns that are not stored, such as ``_journal`` and ``_offset`` where they only give the order."""

    def __post_init__(self) -> None:
        """Check the columns' names, as far as possible without a batch.

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
        """Columns that a MERGE needs and that are not stored."""
        return self._of(self.delete_when)

    def stored(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return those of a batch's columns that the table gets."""
        left_out = {*self.leave_out, *self._of(self.delete_when)}
        return tuple(name for name in columns if name not in left_out)

    def unfit(self, types: Mapping[str, str], origin: Origin | None, *, grouped: bool = False) -> str | None:
        """Return the reason why rows cannot be merged by key and order, None if they can.

        Args:
            types: Spark's name of the type of each column.
            origin: Names of the columns of a row's origin, if there are any.
            grouped: A batch has one row of each group, so none of a key is the last.
        """
        used = (*self.keys, *self._of(self.delete_when), *self._of(self.order_by), *self.leave_out)
        if missing := [name for name in used if name not in types]:
            return f"they have no column {', '.join(missing)}; their columns are {', '.join(types)}"
        if self.delete_when is not None and (kind := types[self.delete_when]) != "boolean":
            return f"delete_when={self.delete_when!r} is of the type {kind}; it takes a boolean"
        if origin is None and self.order_by is None and not grouped:
            return (
                f"nothing says which of them is the last of its key. Their columns are {', '.join(types)}; "
                "give them the source's columns _journal and _offset (or journal, offset and value as BINARY,"
                " of the format raw; of committed messages _journal, _ack_offset and _offset), or Upsert the "
                "argument order_by"
            )
        return None

    def _of(self, column: str | None) -> tuple[str, ...]:
        return () if column is None else (column,)


def _names(name: str, columns: Sequence[str]) -> tuple[str, ...]:
    listed = isinstance(columns, list | tuple) and all(isinstance(name, str) and name for name in columns)
    if not listed or len({*columns}) < len(columns):
        raise OptionError(f"upsert.{name}", repr(columns)[:80], "different names of columns, e.g. ('id',)")
    return tuple(columns)


def order(upsert: Upsert, origin: Origin | None) -> str:
    """Return the SQL expression that sorts a key's rows, the last row first."""
    by = (*upsert._of(upsert.order_by), *(origin or ()))
    return ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in by)


def copies(upsert: Upsert) -> str:
    """Return the SQL expression that counts the rows of a row's key in a batch."""
    return f"count(*) OVER (PARTITION BY {', '.join(quoted(name) for name in upsert.keys)})"


def rank(upsert: Upsert, origin: Origin | None) -> str:
    """Return the SQL expression that is 1 for the last row of each key in a batch, and for no other."""
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
    """Return the statement that brings the last rows of a batch into a table.

    Columns that the table has and the batch has not keep their values, or are null in a new row. Keys are not
    written again: they are equal.

    Args:
        table: The table, as SQL names it.
        view: Name of the view of those rows. ``delete_when`` is never null there.
        columns: Those of the batch.
        upsert: How.
        add_columns: Add those that the table does not have, by the same commit.
        complete: The rows are the whole table: a key that they lack is deleted, and ``order_by`` does not
            protect the table's row of a key that they have.
    """
    stored = upsert.stored(columns)
    on = " AND ".join(f"old.{quoted(name)} = new.{quoted(name)}" for name in upsert.keys)
    evolving = "WITH SCHEMA EVOLUTION " if add_columns else ""
    clauses = [f"MERGE {evolving}INTO {table} AS old USING {quoted(view)} AS new ON {on}"]
    newer = stays = ""
    if upsert.order_by is not None and not complete:
        by = quoted(upsert.order_by)
        # A row replaces one of an equal value: if order_by does not distinguish two rows, the later batch
        # counts, as without order_by.
        newer = f" AND (old.{by} IS NULL OR new.{by} >= old.{by})"
    if upsert.delete_when is not None:
        deletes = quoted(upsert.delete_when)
        # To delete a key that the table does not have inserts nothing.
        stays = f" AND NOT new.{deletes}"
        clauses.append(f"WHEN MATCHED{newer} AND new.{deletes} THEN DELETE")
    # The columns are named one by one, because with UPDATE SET * Delta ignores columns that the table does
    # not have (decision 0014).
    if values := [name for name in stored if name not in upsert.keys]:
        pairs = ", ".join(f"{quoted(name)} = new.{quoted(name)}" for name in values)
        clauses.append(f"WHEN MATCHED{newer} THEN UPDATE SET {pairs}")
    names = ", ".join(quoted(name) for name in stored)
    values_of = ", ".join(f"new.{quoted(name)}" for name in stored)
    clauses.append(f"WHEN NOT MATCHED{stays} THEN INSERT ({names}) VALUES ({values_of})")  # noqa: S608 - names are quoted
    # A complete batch is the whole result. Groups that have left it would stay in the table without this.
    if complete:
        clauses.append("WHEN NOT MATCHED BY SOURCE THEN DELETE")
    return " ".join(clauses)


def free_name(name: str, columns: Iterable[str]) -> str:
    """Return a name that no column has: this one, or a longer one. To Spark, ``A`` and ``a`` are one name."""
    taken = {column.lower() for column in columns}
    while name.lower() in taken:
        name += "_"
    return name
