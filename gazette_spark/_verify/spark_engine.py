"""Spark's part of an audit: sums both sides by bins, and compares one bin row by row.

The sides form one DataFrame: the expected records from the journals, the table's rows, and dead letters,
which replace rows. Each is read once. A broadcast join assigns rows to bins, and they are summed before any
shuffle, so only sums cross the network, regardless of the table's size.
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
from gazette_spark._ledger.history import HistoryRow
from gazette_spark._verify.engine import Sides
from gazette_spark._verify.journal_source import PlannedRange, read_records
from gazette_spark._verify.parts import (
    DEAD,
    FOREIGN,
    RECORDS,
    ROWS,
    STRAY,
    Bins,
    Part,
    Totals,
    first_difference,
)
from gazette_spark.errors import InputError


def side(df: DataFrame, number: int, **columns: Column | str) -> DataFrame:
    """Return a side of a comparison.

    Args:
        df: Rows of the side.
        number: Number of the side.
        columns: The rows' ``journal``, ``offset`` and, if available, ``place`` (the offset that committed the
            row), ``value`` and ``app_id``.
    """
    kinds = {"app_id": "string", "journal": "string", "offset": "bigint", "place": "bigint"}
    made = {name: F.col(text) if isinstance(text, str) else text for name, text in columns.items()}
    # A record outside of messages is committed where it begins.
    made["place"] = F.coalesce(made.get("place", F.lit(None)), made["offset"])
    nothing = F.lit(None)
    return df.select(
        F.lit(number).alias("side"),
        *(made.get(name, nothing).cast(kind).alias(name) for name, kind in kinds.items()),
        made.get("value", nothing).cast("binary").alias("value"),
    )


class SparkEngine:
    """Compares with the jobs of a session.

    Args:
        spark: The session, classic or Connect. Its workers need this package.
        table: The table.
        options: The source's options with which workers read the journals.
        locations: Locations of dead-letter tables by their names in a catalog.
    """

    def __init__(
        self, spark: SparkSession, table: DeltaTable, options: Mapping[str, str], locations: Mapping[str, str]
    ) -> None:
        self.table = table.name
        self._spark = spark
        self._delta = table
        self._options = options
        self._locations = locations

    def history(self) -> Sequence[HistoryRow]:
        """Return the table's commits, newest first."""
        return self._delta.history(self._spark, None)

    def types(self, version: int) -> Mapping[str, str]:
        """Return the type of each column at a version, by name."""
        return dict(self._delta.rows(self._spark, version).dtypes)

    def count(self, version: int) -> int:
        """Return the number of rows at a version."""
        return self._delta.rows(self._spark, version).count()

    def comparison(self, plan: Mapping[str, PlannedRange], sides: Sides) -> SparkComparison:
        """Return the sides of an audit for comparison."""
        options = {**self._options, **sides.source_options}
        records = read_records(
            self._spark, options, plan, values=sides.reads_values, places=sides.has_messages
        )
        columns: dict[str, Column | str] = {"journal": "journal", "offset": "offset"}
        columns |= {"place": "place"} if sides.has_messages else {}
        columns |= {"value": "value"} if sides.reads_values else {}
        frames = [side(records, RECORDS, **columns)]
        if names := sides.names:
            columns = {"journal": F.col(quoted(names.journal)), "offset": F.col(quoted(names.offset))}
            columns |= {"place": F.col(quoted(names.place))} if sides.has_messages and names.place else {}
            columns |= {"value": F.col(quoted(names.value))} if sides.values and names.value else {}
            rows = side(self._delta.rows(self._spark, sides.version), ROWS, **columns)
            # `isin` of a null journal is null, and `~null` would drop the row: rows without a journal must be
            # counted.
            excluded = F.coalesce(F.col("journal").isin(sorted(sides.recreated)), F.lit(False))  # noqa: FBT003 - Spark's
            frames.append(rows.where(~excluded))
        columns = {name: name for name in ("app_id", "journal", "offset")}
        for app_id, letter_names in sides.letters.items():
            # Several names may be of one table.
            tables = {}
            for name in letter_names:
                path = self._locations.get(name)
                table = DeltaTable.named(name) if path is None else DeltaTable(path=path, table=None)
                if table.path is None and not self._spark.catalog.tableExists(name):
                    problem = (
                        f"its dead letters are in table {name} of a catalog that this session does not have: "
                        f"give its location with --dead-letters {name}=URL"
                    )
                    raise InputError(problem)
                tables[table.name] = table
            for table in tables.values():
                newest = next((row.version for row in table.history(self._spark, 1)), None)
                letters = table.rows(self._spark, newest).where(F.col("app_id") == app_id)
                frames.append(side(letters, DEAD, **columns, value="raw"))
        rows = reduce(DataFrame.unionAll, frames)
        return SparkComparison(self._spark, rows, values=sides.values, places=sides.has_messages)


@dataclass(frozen=True, slots=True)
class SparkComparison:
    """Compares the two sides of an audit."""

    spark: SparkSession
    rows: DataFrame
    """The rows of all sides, as :func:`side` returns them."""
    values: bool
    """Whether the records' bytes are compared, too."""
    places: bool = False
    """Whether rows may be committed messages, whose places differ from their offsets."""
    salt: bytes = field(default_factory=lambda: token_bytes(16))
    """Makes the digests' sums unpredictable, see :mod:`gazette_spark._verify.parts`."""

    def totals(self, bins: Bins) -> list[Totals]:
        """Return the sums of each side, in one job."""
        rows = self._in_bins(self.rows, bins, "offset").withColumnRenamed("bin", "at")
        # Rows of the table that are in no bin also count, because the table should not have them.
        nowhere = F.when(F.col("journal").isNull(), FOREIGN).otherwise(STRAY)
        rows = rows.withColumn("at", F.coalesce("at", F.when(F.col("side") == ROWS, nowhere)))
        rows = rows.where(F.col("at").isNotNull()).select(
            "side", "app_id", "journal", "place", "at", self._digest()
        )
        if self.places:
            rows = self._in_bins(rows, bins, "place")
        else:
            rows = rows.withColumn("bin", F.when(F.col("at") >= 0, F.col("at")))
        # For rows in no bin, the number is enough, and their sums might overflow.
        words = [F.sum(F.when(F.col("at") >= 0, word)) for word in _words(F.col("digest"))]
        sums = rows.groupBy("side", "at", "bin").agg(F.count(F.lit(1)), *words).collect()
        return [
            Totals.gathered(len(bins), [row[1:] for row in sums if row[0] == number])
            for number in (RECORDS, ROWS, DEAD)
        ]

    def first_in(self, part: Part, what: str) -> tuple[int, str, int | None] | None:
        """Return the first offset of a part at which rows differ from records, or None.

        Returns:
            The offset, the problem, and the place of the record.
        """
        of_writer = F.col("app_id").isNull() | (F.col("app_id") == part.claim.app_id)
        inside = (F.col("offset") >= part.begin) & (F.col("offset") < part.end)
        of_part = self.rows.where((F.col("journal") == part.claim.journal) & of_writer & inside)
        here = of_part.select("side", "offset", "place", self._digest())
        is_record = F.col("side") == RECORDS
        counts = here.groupBy("offset", "digest").agg(
            F.count_if(is_record).alias("records"),
            F.count_if(~is_record).alias("rows"),
            F.max(F.when(is_record, F.col("place"))).alias("place"),
        )
        # Run two small actions instead of a sort: find the smallest offset first, then its few lines.
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
        """Return the journal and offset of the first row that is in no bin, which must exist."""
        rows = self.rows.where((F.col("side") == ROWS) & F.col("journal").isNotNull())
        outside = self._in_bins(rows, bins, "offset").where(F.col("bin").isNull())
        row = outside.orderBy("journal", "offset").first()
        assert row is not None
        return row["journal"], row["offset"]

    def digests(self, number: int, parts: Sequence[Part]) -> dict[int, str]:
        """Return the digest of a side's rows, computed as in a ledger entry, by the index of their part."""
        rows = self._in_bins(self.rows.where(F.col("side") == number), Bins.of(parts), "place")
        rows = rows.where(F.col("bin").isNotNull())
        digested = digests(rows.select(F.col("part_").alias("group"), "offset", "value"))
        return {row.group: row.digest for row in digested.collect()}

    def _digest(self) -> Column:
        return F.sha2(F.concat(F.lit(self.salt), row_text(values=self.values)), 256).alias("digest")

    def _in_bins(self, df: DataFrame, bins: Bins, column: str) -> DataFrame:
        """Add the bin of the offset in a column, or null."""
        table = self.spark.createDataFrame(bins.table())
        inside = (F.col(column) >= F.col("begin_")) & (F.col(column) < F.col("end_"))
        # This equality makes it a hash join: see `Bins.of`.
        inside &= F.expr(f"`{column}` div {bins.width}") == F.col("slot_")
        inside &= F.col("journal") == F.col("journal_")
        inside &= F.col("app_id").isNull() | (F.col("app_id") == F.col("app_id_"))
        return df.join(F.broadcast(table), inside, "left")


def _words(digest: Column) -> Iterator[Column]:
    """Yield the words of a digest of 64 digits.

    Hashing half of the digits to 64 bits takes Spark a fraction of the time of parsing them with ``conv``.
    """
    for half in (F.substring(digest, 1, 32), F.substring(digest, 33, 32)):
        yield F.shiftrightunsigned(F.xxhash64(half), 32)
        yield F.xxhash64(half).bitwiseAND(F.lit(0xFFFFFFFF))
