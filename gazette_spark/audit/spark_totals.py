"""The sums of records, rows and dead letters by bin, and the rows of one bin: what Spark does for an audit.

Each side is read once. Its rows find their bin by a broadcast join and are added up before anything is
shuffled, so what crosses the network is the bins, whatever the table's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from secrets import token_bytes
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark.audit.columns import OriginColumns, origin_columns
from gazette_spark.audit.parts import Bins, Counted, Part, Totals
from gazette_spark.table.batch_digest import digests, row_text
from gazette_spark.table.delta_table import DeltaTable
from gazette_spark.table.sql_names import quoted

STRAY = -1
"""In place of a bin: rows of no journal and offset that a ledger's range has."""

FOREIGN = -2
"""In place of a bin: rows without a journal."""

SIDES = ("records", "rows", "dead")
KEYS = {"records": ("range",), "rows": ("journal",), "dead": ("app_id", "journal")}
"""Columns by which the rows of a side find their bin, beside their column ``place``, or else ``offset``."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """One version of a table."""

    rows: DataFrame
    columns: OriginColumns | None
    """None: its rows do not say where they come from."""

    @classmethod
    def of(cls, spark: SparkSession, table: DeltaTable, version: int | None = None) -> TableRows:
        """Find the columns of a table's rows."""
        rows = table.rows(spark, version)
        return cls(rows, origin_columns(dict(rows.dtypes)))

    def origins(self, *, values: bool, places: bool = False) -> DataFrame:
        """Return where the rows come from: ``journal``, ``offset``, and maybe ``value`` and ``place``."""
        assert self.columns is not None
        names = self.columns
        columns = [_column(names.journal, "journal", "string"), _column(names.offset, "offset", "bigint")]
        columns += [_column(names.place or "", "place", "bigint")] if places else []
        return self.rows.select(
            *columns, *([_column(names.value or "", "value", "binary")] if values else [])
        )


def dead_letters(
    spark: SparkSession, tables: Mapping[str, Sequence[DeltaTable]], *, values: bool
) -> DataFrame:
    """Return writers' dead letters: ``app_id``, ``journal``, ``offset``, and maybe ``value``."""
    columns = [_column("app_id", "app_id", "string"), _column("journal", "journal", "string")]
    columns += [_column("offset", "offset", "bigint")]
    columns += [_column("raw", "value", "binary")] if values else []
    return reduce(
        DataFrame.unionAll,
        [
            table.rows(spark).where(F.col("app_id") == app_id).select(*columns)
            for app_id, some in tables.items()
            for table in some
        ],
    )


def _words(digest: Column) -> Iterator[Column]:
    """Yield the words of a digest of 64 digits.

    Hashing half of the digits to 64 bits takes Spark a fraction of the time of reading them as a number, by
    ``conv``.
    """
    for half in (F.substring(digest, 1, 32), F.substring(digest, 33, 32)):
        yield F.shiftrightunsigned(F.xxhash64(half), 32)
        yield F.xxhash64(half).bitwiseAND(F.lit(0xFFFFFFFF))


def _column(name: str, alias: str, kind: str) -> Column:
    return F.col(quoted(name)).cast(kind).alias(alias)


@dataclass(frozen=True, slots=True)
class Adder:
    """Adds up the sides of an audit."""

    spark: SparkSession
    sides: Mapping[str, DataFrame]
    values: bool
    """Both sides have the records' bytes."""
    salt: bytes = field(default_factory=lambda: token_bytes(16))
    """Makes the digests' sums unpredictable, see :mod:`gazette_spark.audit.parts`."""

    def totals(self, bins: Bins, ranges: Sequence[int | None]) -> dict[str, Totals]:
        """Return the sums of each side, in one job; ``ranges`` as for :meth:`Bins.table`."""
        text = F.concat(F.lit(self.salt), row_text(values=self.values))
        parts = [
            self._binned(df, bins, ranges, KEYS[side], keep=side == "rows").select(
                F.lit(SIDES.index(side)).alias("side"), "bin", F.sha2(text, 256).alias("digest")
            )
            for side, df in self.sides.items()
        ]
        sums = reduce(DataFrame.unionAll, parts).groupBy("side", "bin")
        # Of rows in no bin the number is enough; there may be so many that their sums overflow.
        words = [F.sum(F.when(F.col("bin") >= 0, word)) for word in _words(F.col("digest"))]
        found: dict[str, list[Any]] = {side: [] for side in SIDES}
        for side, *row in sums.agg(F.count(F.lit(1)), *words).collect():
            found[SIDES[side]].append(row)
        return {side: Totals.gathered(len(bins), each) for side, each in found.items()}

    def digests(self, side: str, parts: Sequence[Part], ranges: Sequence[int | None]) -> dict[int, str]:
        """Return the digest that an entry has of a side's rows, by the index of their part."""
        bins = Bins.of(parts)
        rows = self._binned(self.sides[side], bins, ranges, KEYS[side], keep=False)
        digested = digests(rows.select(F.col("part_").alias("group"), "offset", "value"))
        return {row.group: row.digest for row in digested.collect()}

    def counted(self, bins: Bins, ranges: Sequence[int | None]) -> dict[str, Counted]:
        """Return the rows of each side that are in bins."""
        value = (F.col("value") if self.values else F.lit(None).cast("binary")).alias("value")
        found: dict[str, Counted] = {side: {} for side in SIDES}
        for side, df in self.sides.items():
            rows = self._binned(df, bins, ranges, KEYS[side], keep=False).select("offset", value)
            counts = rows.groupBy("offset", "value").count().collect()
            found[side] = {(at, None if data is None else bytes(data)): count for at, data, count in counts}
        return found

    def stray(self, bins: Bins, ranges: Sequence[int | None]) -> tuple[str | None, int | None]:
        """Return journal and offset of the first row that is in no bin; there is one."""
        outside = self._binned(self.sides["rows"], bins, ranges, KEYS["rows"], keep=True)
        found = outside.where(F.col("bin") == STRAY).orderBy("journal", "offset").first()
        assert found is not None
        return found["journal"], found["offset"]

    def _binned(
        self, df: DataFrame, bins: Bins, ranges: Sequence[int | None], keys: Sequence[str], *, keep: bool
    ) -> DataFrame:
        """Add each row's bin; ``keep`` the rows that are in none, with a negative number."""
        table = self.spark.createDataFrame(bins.table(ranges))
        place = "place" if "place" in df.columns else "offset"
        inside = (F.col(place) >= F.col("begin_")) & (F.col(place) < F.col("end_"))
        inside &= F.expr(f"`{place}` div {bins.width}") == F.col("slot_")
        for key in keys:
            inside &= F.col(key) == F.col(f"{key}_")
        if not keep:
            return df.join(F.broadcast(table), inside, "inner")
        number = F.coalesce("bin", F.when(F.col("journal").isNull(), FOREIGN).otherwise(STRAY))
        return df.join(F.broadcast(table), inside, "left").withColumn("bin", number)
