"""The dead letters of a table, read beside it: records that are in them are in no row of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gazette_spark.audit.compare_rows import Rows, joined_rows
from gazette_spark.audit.table import PlaceColumns, TableSnapshot, sql_text
from gazette_spark.errors import InputError
from gazette_spark.table.sql_names import path_of

COLUMNS = PlaceColumns("journal", "offset", "raw")


class DeadLetterRows:
    """Dead letters of one writer's journals, in several tables. For one thread."""

    def __init__(self, tables: Sequence[TableSnapshot], app_id: str, *, values: bool) -> None:
        """Take tables that exist.

        Args:
            tables: Their newest versions.
            app_id: Whose dead letters.
            values: Read the records' bytes, too.
        """
        self._tables = tables
        self._app_id = app_id
        self._columns = COLUMNS if values else PlaceColumns("journal", "offset", None)

    def rows(self, journal: str, begin: int, end: int) -> Rows:
        """Return the dead letters that begin in ``[begin, end)``, in order."""
        only = f"app_id = {sql_text(self._app_id)}"
        return joined_rows(
            [each.rows_at(self._columns, journal, begin, end, only=only) for each in self._tables],
            values=self._columns.value is not None,
        )


def location_of(name: str, given: Mapping[str, str]) -> str:
    """Return the location of the dead letters that entries call ``name``.

    Args:
        name: ``delta.`PATH```, or a name of the catalog.
        given: Locations of such names.

    Raises:
        InputError: it is a name of the catalog, which is not to be had here.
    """
    if name in given:
        return given[name]
    if (path := path_of(name)) is not None:
        return path
    problem = (
        f"its dead letters are in table {name} of a catalog: say where that is, --dead-letters {name}=URL"
    )
    raise InputError(problem)
