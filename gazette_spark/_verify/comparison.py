"""What Spark does for an audit: it adds up both sides by bins, and compares one bin row by row.

The sides are one DataFrame: the records that are expected, as the journals have them, the table's rows, and
dead letters, which stand in for rows. Each is read once. Rows find their bin by a broadcast join and are
added up before anything is shuffled, so only sums cross the network, whatever the table's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from secrets import token_bytes

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark._delta.batch_digest import digests, row_text
from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.sql_names import quoted
from gazette_spark._verify.data_ends import OriginColumns
from gazette_spark._verify.parts import Bins, Part, Totals, first_difference

RECORDS, ROWS, DEAD = range(3)
"""The sides, in a DataFrame's column ``side``."""

STRAY = -1
"""In place of a bin: rows of no journal and offset that a ledger's range has."""

FOREIGN = -2
"""In place of a bin: rows without a journal."""


def side(df: DataFrame, number: int, **columns: Column | str) -> DataFrame:
    """Return a side of a comparison.

    Args:
        df: Its rows.
        number: One of the sides.
        columns: The rows' ``journal``, ``offset`` and, where there are any, ``place`` (the offset of what
            committed the row), ``value`` and ``app_id``.
    """
    kinds = {"app_id": "string", "journal": "string", "offset": "bigint", "place": "bigint"}
    made = {name: F.col(text) if isinstance(text, str) else text for name, text in columns.items()}
    made["place"] = F.coalesce(made.get("place", F.lit(None)), made["offset"])
    nothing = F.lit(None)
    return df.select(
        F.lit(number).alias("side"),
        *(made.get(name, nothing).cast(kind).alias(name) for name, kind in kinds.items()),
        made.get("value", nothing).cast("binary").alias("value"),
    )


def rows_of(table: DataFrame, names: OriginColumns, *, places: bool, values: bool) -> DataFrame:
    """Return a table's rows as a side."""
    columns = {"journal": F.col(quoted(names.journal)), "offset": F.col(quoted(names.offset))}
    if places and names.place:
        columns["place"] = F.col(quoted(names.place))
    if values and names.value:
        columns["value"] = F.col(quoted(names.value))
    return side(table, ROWS, **columns)


def dead_letters(spark: SparkSession, tables: Mapping[str, Sequence[DeltaTable]]) -> DataFrame:
    """Return writers' dead letters, by app id, as a side."""
    letters = [
        table.rows(spark).where(F.col("app_id") == app_id)
        for app_id, of_writer in tables.items()
        for table in of_writer
    ]
    sides = [
        side(df, DEAD, app_id="app_id", journal="journal", offset="offset", value="raw") for df in letters
    ]
    return reduce(DataFrame.unionAll, sides)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares the sides of an audit."""

    spark: SparkSession
    rows: DataFrame
    """All sides, see :func:`side`."""
    values: bool
    """The records' bytes are compared, too."""
    places: bool = False
    """Some rows are committed messages, whose places are not their offsets."""
    salt: bytes = field(default_factory=lambda: token_bytes(16))
    """Makes the digests' sums unpredictable, see :mod:`gazette_spark._verify.parts`."""

    def totals(self, bins: Bins) -> list[Totals]:
        """Return the sums of each side, in one job."""
        rows = self._in_bins(self.rows, bins, "offset").withColumnRenamed("bin", "at")
        # A row of the table in no bin counts, too: the table should not have it.
        nowhere = F.when(F.col("journal").isNull(), FOREIGN).otherwise(STRAY)
        rows = rows.withColumn("at", F.coalesce("at", F.when(F.col("side") == ROWS, nowhere)))
        rows = rows.where(F.col("at").isNotNull()).select(
            "side", "app_id", "journal", "place", "at", self._digest()
        )
        if self.places:
            rows = self._in_bins(rows, bins, "place")
        else:
            rows = rows.withColumn("bin", F.when(F.col("at") >= 0, F.col("at")))
        # Of rows in no bin the number is enough; there may be so many that their sums overflow.
        words = [F.sum(F.when(F.col("at") >= 0, word)) for word in _words(F.col("digest"))]
        sums = rows.groupBy("side", "at", "bin").agg(F.count(F.lit(1)), *words).collect()
        return [
            Totals.gathered(len(bins), [row[1:] for row in sums if row[0] == number])
            for number in (RECORDS, ROWS, DEAD)
        ]

    def first_in(self, part: Part, what: str) -> tuple[int, str, int | None] | None:
        """Return the first offset of a part at which rows are not the records, or None.

        Returns:
            The offset, what is wrong, and the place of the record.
        """
        here = self._near(part).select("side", "offset", "place", self._digest())
        is_record = F.col("side") == RECORDS
        counts = here.groupBy("offset", "digest").agg(
            F.count_if(is_record).alias("records"),
            F.count_if(~is_record).alias("rows"),
            F.max(F.when(is_record, F.col("place"))).alias("place"),
        )
        first = counts.where("records <> rows").agg(F.min("offset")).collect()[0][0]
        if first is None:
            return None
        lines = counts.where(F.col("offset") == first).collect()
        difference = first_difference(
            {(first, line.digest.encode()): line.records for line in lines if line.records},
            {(first, line.digest.encode()): line.rows for line in lines if line.rows},
            what,
        )
        assert difference is not None
        return *difference, max((line.place for line in lines if line.records), default=None)

    def first_stray(self, bins: Bins) -> tuple[str, int | None]:
        """Return journal and offset of the first row that is in no bin; there is one."""
        rows = self.rows.where((F.col("side") == ROWS) & F.col("journal").isNotNull())
        outside = self._in_bins(rows, bins, "offset").where(F.col("bin").isNull())
        row = outside.orderBy("journal", "offset").first()
        assert row is not None
        return row["journal"], row["offset"]

    def digests(self, number: int, parts: Sequence[Part]) -> dict[int, str]:
        """Return the digest that an entry has of a side's rows, by the index of the part that they are of."""
        rows = self._in_bins(self.rows.where(F.col("side") == number), Bins.of(parts), "place")
        rows = rows.where(F.col("bin").isNotNull())
        digested = digests(rows.select(F.col("part_").alias("group"), "offset", "value"))
        return {row.group: row.digest for row in digested.collect()}

    def _digest(self) -> Column:
        return F.sha2(F.concat(F.lit(self.salt), row_text(values=self.values)), 256).alias("digest")

    def _near(self, part: Part) -> DataFrame:
        of_writer = F.col("app_id").isNull() | (F.col("app_id") == part.claim.app_id)
        inside = (F.col("offset") >= part.begin) & (F.col("offset") < part.end)
        return self.rows.where((F.col("journal") == part.claim.journal) & of_writer & inside)

    def _in_bins(self, df: DataFrame, bins: Bins, column: str) -> DataFrame:
        """Add the bin that holds the offset in a column, null if there is none."""
        table = self.spark.createDataFrame(bins.table())
        inside = (F.col(column) >= F.col("begin_")) & (F.col(column) < F.col("end_"))
        inside &= F.expr(f"`{column}` div {bins.width}") == F.col("slot_")
        inside &= F.col("journal") == F.col("journal_")
        inside &= F.col("app_id").isNull() | (F.col("app_id") == F.col("app_id_"))
        return df.join(F.broadcast(table), inside, "left")


def _words(digest: Column) -> Iterator[Column]:
    """Yield the words of a digest of 64 digits.

    Hashing half of the digits to 64 bits takes Spark a fraction of the time of reading them as a number, by
    ``conv``.
    """
    for half in (F.substring(digest, 1, 32), F.substring(digest, 33, 32)):
        yield F.shiftrightunsigned(F.xxhash64(half), 32)
        yield F.xxhash64(half).bitwiseAND(F.lit(0xFFFFFFFF))
