"""The writers that a driver can have: of raw rows, of one row for each key, and with dead letters.

Records begin with a number and a blank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame

from gazette_spark.ledger.dead_letters import DeadLetters
from gazette_spark.sink import DeltaSink
from gazette_spark.table.upsert import Upsert

KEYS = 40
"""Keys of each journal, where one row of each key is kept."""

UNFIT = 7
"""Interval of records that do not fit, where those go to a separate table."""

COLUMNS = ("journal", "offset", "key", "value")
"""Columns of a table with one row of each key."""

NUMBER = "CAST(substring_index(CAST(value AS STRING), ' ', 1) AS BIGINT)"


def dead_table(table: str | Path) -> Path:
    """Return where the dead letters of a table are."""
    return Path(f"{table}-dead")


def raw(rows: DataFrame, app_id: str, table: str) -> tuple[DataFrame, DeltaSink]:
    """Return raw rows as they are."""
    return rows, DeltaSink(app_id, path=table)


def upsert(rows: DataFrame, app_id: str, table: str) -> tuple[DataFrame, DeltaSink]:
    """Return rows of which the last of each key is kept."""
    keyed = rows.selectExpr(
        "journal",
        "offset",
        f"concat(journal, ' ', {NUMBER} % {KEYS}) AS key",
        "value",
    )
    return keyed, DeltaSink(app_id, path=table, upsert=Upsert(("key",)))


def read_keyed(journal: str, offset: int, value: bytes) -> tuple[str, tuple[str, int, str, bytes]]:
    """Return key and row of a record, as :func:`upsert` makes them."""
    key = f"{journal} {int(value.split(b' ')[0]) % KEYS}"
    return key, (journal, offset, key, value)


def dead_letters(rows: DataFrame, app_id: str, table: str) -> tuple[DataFrame, DeltaSink]:
    """Return rows of which some do not parse."""
    parsed = rows.selectExpr("*", f"IF({NUMBER} % {UNFIT} = 0, 'unfit', NULL) AS _corrupt_record")
    return parsed, DeltaSink(app_id, path=table, dead_letters=DeadLetters(path=str(dead_table(table))))


def fits(value: bytes) -> bool:
    """Say whether a record fits, where :func:`dead_letters` splits them."""
    return int(value.split(b" ")[0]) % UNFIT != 0


SINKS: Mapping[str, Callable[[DataFrame, str, str], tuple[DataFrame, DeltaSink]]] = {
    "raw": raw,
    "upsert": upsert,
    "dead letters": dead_letters,
}
"""Sinks by the feature that a point needs; see :attr:`tests.rig.crashes.points.Point.feature`."""
