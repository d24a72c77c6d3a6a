"""A batch into a Delta table by key: one MERGE, whose commit carries the ledger entry and the transaction id.

MERGE has no writer options. Delta takes transaction id and ``userMetadata`` from the session, so they are set
there for the statement. With a transaction id Delta commits a MERGE that changes nothing, too: offsets
that move without rows get their entry.

The failpoint ``sink.during_merge`` is reached when all is set and the statement comes next. Tests that are to
kill a running MERGE do so in its tasks (``source.read`` of the test source) or at a rename of Delta's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import and_

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark.errors import UpsertError
from gazette_spark.failpoints import failpoint
from gazette_spark.ledger.entry import LedgerEntry
from gazette_spark.table.delta_table import APP_ID_PREFIX, DeltaTable
from gazette_spark.table.maintenance import Prepared
from gazette_spark.table.session import session_settings
from gazette_spark.table.sql_names import quoted
from gazette_spark.table.trim import range_origin
from gazette_spark.table.upsert import Origin, Upsert, copies, free_name, merge_statement, rank

BAD_KEY = re.compile(r"upsert: (a key .*?) \|")
"""Spark's error text when :func:`last_rows` meets a key that is null or there twice, with a group for it."""


def last_rows(
    target: DeltaTable, df: DataFrame, entry: LedgerEntry, upsert: Upsert, mode: str = "append"
) -> DataFrame:
    """Return the last row of each key: the columns that are stored, and ``delete_when`` without nulls.

    Running it fails if a key is null, or there twice under an output ``mode`` that gives one row of a group.

    Raises:
        UpsertError: the batch's columns do not fit ``upsert``.
    """
    origin: Origin | None = range_origin(df.schema, entry.isolation)
    if origin is not None and entry.isolation == "read_committed" and "_offset" in df.columns:
        origin = (*origin, "_offset")  # Messages of a transaction have one acknowledgement.
    types = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    ordered = origin is not None or upsert.order_by is not None
    if problem := upsert.unfit(types, origin, grouped=mode != "append"):
        raise UpsertError(target.name, entry.app_id, entry.batch_id, problem)
    rows = _without_null_keys(df, upsert, origin)
    place = free_name("place_from_last", df.columns)
    rows = rows.withColumn(place, F.expr(rank(upsert, origin) if ordered else copies(upsert)))
    rows = rows.where(_column(place) == 1) if ordered else _without_copies(rows, upsert, place)
    flag = upsert.delete_when
    deleted = [] if flag is None else [F.expr(f"coalesce({quoted(flag)}, false)").alias(flag)]
    return rows.select(*map(_column, upsert.stored(df.columns)), *deleted)


def upsert_rows(
    target: DeltaTable, ready: Prepared, entry: LedgerEntry, upsert: Upsert, *, complete: bool = False
) -> None:
    """Bring rows, of which no two have one key, and ``entry`` in one Delta commit; or do nothing, in silence.

    A table that is not there is made of the rows. If they are the ``complete`` result of a query, all other
    rows of the table are deleted.

    Raises:
        UpsertError: a key is null; nothing was written.
    """
    with _named_key(target, entry):
        if ready.exists:
            merge_rows(target, ready, entry, upsert, complete=complete)
            return
        rows = ready.df if upsert.delete_when is None else ready.df.where(~_column(upsert.delete_when))
        target.append(rows.select(*map(_column, upsert.stored(rows.columns))), entry, exists=False)


def merge_rows(
    target: DeltaTable, ready: Prepared, entry: LedgerEntry, upsert: Upsert, *, complete: bool = False
) -> None:
    """Merge rows into a table that is there."""
    spark = ready.df.sparkSession
    view = f"gazette_spark_{entry.attempt}"
    ready.df.createOrReplaceTempView(view)
    merge = merge_statement(
        target.name, view, ready.df.columns, upsert, add_columns=ready.add_columns, complete=complete
    )
    try:
        with session_settings(spark, commit_settings(entry)):
            failpoint("sink.during_merge")
            spark.sql(merge).collect()
    finally:
        spark.catalog.dropTempView(view)


def check_keys_once(target: DeltaTable, spark: SparkSession, entry: LedgerEntry, upsert: Upsert) -> None:
    """Check that a table's rows were one of each key before the first batch is merged into it.

    A key that is there twice would be updated twice, by each batch. Later on, merging keeps them single.

    Raises:
        UpsertError: naming a key that is there twice.
    """
    rows = target.rows(spark)
    if not {*upsert.keys} <= {*rows.columns}:
        return  # Fitting the rows to the table names the column.
    keys = [_column(name) for name in upsert.keys]
    found = rows.groupBy(*keys).agg(F.count(F.lit(1)).alias("copies")).where("copies > 1").limit(1).collect()
    if found:
        *values, copies = found[0]
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(upsert.keys, values, strict=True))
        problem = (
            f"{copies} rows of the table have the key {shown}, and each batch would update all of them. "
            "Leave one row of each key in the table, or write to another one"
        )
        raise UpsertError(target.name, entry.app_id, entry.batch_id, problem)


def commit_settings(entry: LedgerEntry) -> dict[str, str]:
    """Return the session's settings that make the next commit carry an entry.

    Spark replaces ``${…}`` in settings; JSON has another way to write the dollar sign.
    """
    return {
        "spark.databricks.delta.write.txnAppId": APP_ID_PREFIX + entry.app_id,
        "spark.databricks.delta.write.txnVersion": str(entry.txn_version),
        "spark.databricks.delta.commitInfo.userMetadata": entry.to_json().replace("${", "\\u0024{"),
        "spark.sql.parquet.compression.codec": "zstd",
    }


def _without_null_keys(df: DataFrame, upsert: Upsert, origin: Origin | None) -> DataFrame:
    found = f"upsert: a key is null ({', '.join(upsert.keys)})"
    found += f", in the row of {', '.join(origin)} =" if origin else ""
    shown = [F.coalesce(_column(name).cast("string"), F.lit("null")) for name in origin or ()]
    problem = F.concat_ws(" ", F.lit(found), *shown, F.lit("|"))
    whole = reduce(and_, [_column(name).isNotNull() for name in upsert.keys])
    return df.where(F.when(whole, whole).otherwise(F.raise_error(problem)))


def _without_copies(rows: DataFrame, upsert: Upsert, count: str) -> DataFrame:
    keys = ", ".join(upsert.keys)
    problem = F.lit(
        f"upsert: a key ({keys}) is there twice in a batch, so the keys are not the grouping keys |"
    )
    return rows.where(F.when(_column(count) == 1, F.lit(True)).otherwise(F.raise_error(problem)))  # noqa: FBT003 - a value


def _column(name: str) -> Column:
    return F.col(quoted(name))


@contextmanager
def _named_key(target: DeltaTable, entry: LedgerEntry) -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        if found := BAD_KEY.search(str(error)):
            null = "is null" in found[1]
            way_out = "Leave such rows out of the query, or give them a key" if null else "Name all of them"
            problem = f"{found[1]}. {way_out}"
            raise UpsertError(target.name, entry.app_id, entry.batch_id, problem) from error
        raise
