"""Open a table's history by name: a Delta table's location, or an Iceberg table's name in a catalog."""

from __future__ import annotations

from gazette_spark._ledger.delta_reader import DeltaLog
from gazette_spark._ledger.iceberg_reader import IcebergLog, TableName


def table_log(name: str) -> DeltaLog | IcebergLog:
    """Return a reader of a table's history, newest row first.

    Args:
        name: The directory or URL of a Delta table, in Spark's spelling, or
            "iceberg:catalog/namespace.table".

    Raises:
        InputError: the name of an Iceberg table has an invalid form.
    """
    iceberg = TableName.parse(name)
    return DeltaLog(name) if iceberg is None else IcebergLog(iceberg)
