"""Represents a Delta table for the sink: a snapshot of its state, reasons to refuse it, and one append.

Everything goes through SQL and DataFrames, so that it also works on Spark Connect.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.types import BinaryType, StructType

from gazette_spark._delta.features import keeps_commits_elsewhere, writer_features
from gazette_spark._delta.files import JVM_ERRORS, SPARK_ERRORS, find_line, has_files, is_classic, path_exists
from gazette_spark._delta.java_errors import first_line
from gazette_spark._delta.preflight import check_delta
from gazette_spark._delta.s3_log_store import check_log_store
from gazette_spark._delta.session import session_settings
from gazette_spark._delta.sql_names import path_of, table_at
from gazette_spark._ledger.delta_reader import log_damage
from gazette_spark._ledger.entry import LedgerEntry, LedgerState, parse_entry
from gazette_spark._ledger.history import REPLACING, HistoryRow, advanced, history_row, read_state
from gazette_spark.errors import OptionError, TableRefusedError
from gazette_spark.locations import absolute, is_inside

log = logging.getLogger(__name__)

APP_ID_PREFIX = "gazette_spark/"
"""Prefix of the app id in Delta's transaction id, so that it cannot equal the id of another program."""

RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"

OCCUPIED = "the directory has files but no Delta table; use an empty one"
"""Reason why no table is created in a directory."""

DICTIONARY_KEY = "parquet.enable.dictionary#value"
"""Session setting. Delta passes only a few writer options on to Parquet, but all settings of the session."""

DESCRIBE_ERRORS: tuple[type[Exception], ...] = (AnalysisException, *JVM_ERRORS)
"""Errors of a DESCRIBE statement that may mean that the session has no Delta that works."""

COMMIT_INFO = r'^\s*\{\s*"commitInfo"'
"""Beginning of the line in a commit's file that describes the commit itself."""

FOLLOWED_COMMITS = 8
"""Maximum number of commits to read one by one. For more, asking Delta is faster."""

RESTORE_CANDIDATES = 200
"""Maximum number of versions to compare with the result of a RESTORE to a point in time."""

PLAIN_NAME = re.compile(r"\w+(?:\.\w+)*", re.ASCII)
"""Names of tables that a pattern of SHOW TABLE EXTENDED matches literally."""

TIME_TRAVEL_NAME = re.compile(r"(?>.*@)([vV]\d+|\d{17})/*", re.DOTALL)
"""Paths that Delta interprets as a version of the table whose path is before the ``@``."""

LOCATION_LINE = re.compile(r"^Location: (.+)$", re.MULTILINE)

NO_SUCH_NAME = frozenset({"TABLE_OR_VIEW_NOT_FOUND"})
NO_SUCH_PATH = frozenset(
    {"DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_ONLY_OPERATION"}
)
"""Error conditions of a missing table. A directory without a Delta log counts as missing; a name in the
catalog that is not a Delta table is an error."""

GIVEN_IDENTITY = "DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED"
"""Error condition of rows that have a column GENERATED ALWAYS AS IDENTITY."""

NO_PARTITION = "DELTA_PARTITION_COLUMN_NOT_FOUND"
"""Error condition of rows without a partition column that the table does not compute."""


@dataclass(frozen=True, slots=True)
class TableDetail:
    """The values that ``DESCRIBE DETAIL`` returns for a table."""

    location: str
    """Directory of the table, in Spark's spelling."""
    table_id: str
    partition_by: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    """Names of Delta's table features."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The state of a table on which a decision about a batch depends, read at one time."""

    ledger: LedgerState = field(default_factory=LedgerState)
    letters: LedgerState = field(default_factory=LedgerState)
    """The ledger of the table of dead letters, read before the table's own ledger; empty if there is no such
    table."""
    schema: StructType | None = None
    """The columns; None if there is no table, or the writer does not compare columns."""
    detail: TableDetail | None = None
    """The table's detail; None if there is no table or if the detail was not needed yet: on a large table, it
    may need a job."""

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self.ledger.table_version >= 0

    @property
    def attempt(self) -> str | None:
        """Attempt of the newest entry, None without one."""
        return self.ledger.entry.attempt if self.ledger.entry else None

    def with_columns_of(self, earlier: TableSnapshot) -> TableSnapshot:
        """Return the snapshot after this writer's commit to ``earlier``, which changed no column.

        If that commit is the only one in between, the columns are still those of the earlier snapshot. If
        another writer has committed as well, they are read again.
        """
        made = self.ledger.entry_version
        if not earlier.ledger.table_version + 1 == made == self.ledger.table_version:
            return self
        return replace(self, schema=earlier.schema, detail=earlier.detail)


def check_retention(table: str, properties: Mapping[str, str | None]) -> None:
    """Refuse a table whose properties make Delta forget transaction numbers.

    Raises:
        TableRefusedError: naming the property and the statement that removes it.
    """
    # The transaction number makes a commit a compare-and-set. Once Delta has forgotten it, a writer that was
    # overtaken long ago commits without a conflict. With a retention of 1 s, a replay wrote its rows twice.
    if (retention := properties.get(RETENTION_PROPERTY)) is not None:
        problem = (
            f"property {RETENTION_PROPERTY} is {retention!r}: Delta would forget which batches were written, "
            f"and write them twice. Run ALTER TABLE {table} UNSET TBLPROPERTIES ('{RETENTION_PROPERTY}')"
        )
        raise TableRefusedError(table, problem)


class DeltaTable:
    """A Delta table, named by directory or by its name in the catalog. It can be pickled."""

    def __init__(self, *, path: str | None, table: str | None, allow_single_driver: bool = False) -> None:
        if path is not None and TIME_TRAVEL_NAME.fullmatch(path):
            # Reads would go to the table without this suffix, but writes to a table with the full name.
            expected = "a directory whose name does not end in @v and a number, or in @ and 17 digits: Delta "
            raise OptionError(
                "path", repr(path), expected + "interprets such a name as a version of another table"
            )
        self.path = None if path is None else absolute(path)  # Delta's statements need absolute paths.
        self.table = table
        self.allow_single_driver = allow_single_driver
        """Whether the table may be on S3 with a log store that lets two drivers commit the same version."""
        self.partition_by: tuple[str, ...] = ()
        """Columns by which the table was partitioned at the last :meth:`check`. After a rename, rows are
        only grouped into files in another way."""
        self._location: str | None = None
        """Directory of the table if all its commits are known to be files in its log; otherwise None."""

    @property
    def name(self) -> str:
        """The table as SQL and errors name it."""
        return self.table if self.table is not None else table_at(str(self.path))

    @property
    def location(self) -> str | None:
        """Directory of the table if this object knows it, or None."""
        return self._location

    @classmethod
    def named(cls, name: str) -> DeltaTable:
        """Return the table that has this :attr:`name`."""
        path = path_of(name)
        return cls(path=path, table=name if path is None else None)

    def rows(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """Return the rows of an existing table at a version.

        Without a version, these are the rows of the newest one or, if the session has cached the table, of
        the one that it cached. A commit of another application does not refresh that.
        """
        at = "" if version is None else f" VERSION AS OF {version}"
        return spark.sql(f"SELECT * FROM {self.name}{at}")  # noqa: S608 - the name is quoted.

    def history(self, spark: SparkSession, limit: int | None) -> list[HistoryRow]:
        """Return the newest commits, or all of them, newest first; none if there is no table."""
        rows = self._describe(
            spark,
            f"HISTORY {self.name}" + ("" if limit is None else f" LIMIT {limit}"),
            "version",
            "operation",
            "operationParameters",
            "userMetadata",
            # The text includes the offset from UTC, because Spark prints times in the session's time zone.
            "date_format(timestamp, 'yyyy-MM-dd HH:mm:ss.SSSXXX') AS `time`",
            "operationMetrics",
        )
        return [
            HistoryRow(version, operation or "", parameters or {}, user_metadata, time, metrics or {})
            for version, operation, parameters, user_metadata, time, metrics in rows or []
        ]

    def ledger(self, spark: SparkSession, app_id: str, since: LedgerState | None = None) -> LedgerState:
        """Return an app id's state from the history.

        Args:
            spark: The session.
            app_id: The app id.
            since: An earlier state, so that only later commits are read where possible.

        Raises:
            SinkError: an entry cannot be read, or the history does not reach back to it.
        """
        # In a running query, this reads a few files whose names are known, without a Spark job (decision
        # 0020). ``DESCRIBE HISTORY`` lists the log's directory twice and needs a job, and each commit would
        # need it twice. Where the files are not reliable, the history is searched from its newest commit.
        # Without an entry, nothing would show that the log still belongs to the same table. A name in a
        # catalog can be given to another table, so the catalog is asked each time, which takes a tenth of the
        # time.
        location = self._location
        if (
            (since is not None and since.entry is not None)
            and location is not None
            and (self.table is None or _location_now(spark, self.table) == location)
        ):
            try:
                rows = _follow(spark, f"{location}/_delta_log", since, since.entry)
            except SPARK_ERRORS as error:
                # For a table in a directory, files that cannot be read are an error. For a table in a catalog
                # they are not, because a catalog may grant access to the table but not to its files.
                if self.table is None:
                    raise
                log.info("log_not_followed table=%s problem=%s", self.table, first_line(error))
                self._location = None
                rows = None
            # advanced() returns None if a commit has undone others.
            if rows is not None and (state := advanced(since, rows, app_id)):
                return state

        def restored(restore: HistoryRow, rows: Sequence[HistoryRow]) -> int | None:
            """Return the newest version with the same rows as after a RESTORE, or None if there is none.

            Versions with the same files and number of rows differ at most by commits without rows.
            """
            # The log has the time as text without a time zone, which does not determine a version. But the
            # contents after the RESTORE can be compared: the files, and also the number of rows, because a
            # deletion vector does not change the files.
            contents = self._contents(spark, restore.version)
            if not contents:
                return None
            # A version that was itself made by a RESTORE is left out: the version that it restored has the
            # same contents.
            older = [row for row in rows if row.version < restore.version and row.operation != "RESTORE"]
            candidates = [row.version for row in older[:RESTORE_CANDIDATES]]
            return next((at for at in candidates if self._contents(spark, at) == contents), None)

        return read_state(lambda limit: self.newest(spark, limit), app_id, table=self.name, restored=restored)

    def snapshot(
        self,
        spark: SparkSession,
        app_id: str,
        since: TableSnapshot | None = None,
        *,
        columns: bool = False,
        detail: bool = False,
    ) -> TableSnapshot:
        """Read the table's state, as far as it has changed since an earlier snapshot.

        Args:
            spark: The session.
            app_id: The app id whose ledger is read.
            since: An earlier snapshot. Its columns and detail are valid as long as no writer has committed.
            columns: Also read the columns, unless the earlier snapshot has them.
            detail: Also read the detail, unless the earlier snapshot has it.

        Raises:
            SinkError: as for :meth:`ledger`.
        """
        since = since or TableSnapshot()
        # Read the ledger first. Columns that are read after it may be newer than the ledger, which does no
        # harm, because the commit will meet these columns. If they were read before it and changed in
        # between, the old columns would be kept as those of the newer version.
        ledger = self.ledger(spark, app_id, since.ledger)
        table = TableSnapshot(ledger, since.letters)
        # Each change of a column is a commit, so columns and detail are valid as long as the version is the
        # same. Each of them needs a job on a large table. A table that was created again may have the same
        # version, but not the same newest entry.
        if (ledger.table_version, table.attempt) == (since.ledger.table_version, since.attempt):
            table = replace(table, schema=since.schema, detail=since.detail)
        if table.exists and columns and table.schema is None:
            table = replace(table, schema=self.schema(spark))
        if table.exists and detail and table.detail is None:
            table = replace(table, detail=self.detail(spark))
        return table

    def newest(self, spark: SparkSession, limit: int) -> list[HistoryRow]:
        """Return the newest commits, newest first: at most ``limit``, or all commits of a short history.

        The form of their times may differ from that of :meth:`history`.
        """
        rows = self._short_history(spark)
        return self.history(spark, limit) if rows is None else rows

    def detail(self, spark: SparkSession) -> TableDetail | None:
        """Return the table's detail, None if there is no table."""
        if is_classic(spark):
            # DESCRIBE DETAIL also counts files, for which Delta runs four jobs after each commit: more than a
            # second even on a table of three rows. But only the statement is public, so it is used where
            # Delta's classes do not answer, for example about a table that does not exist.
            with suppress(*SPARK_ERRORS):
                return _loaded_detail(spark.table(self.name))
        columns = ("location", "id", "partitionColumns", "properties", "tableFeatures")
        rows = self._describe(spark, f"DETAIL {self.name}", *columns)
        if not rows:
            return None
        location, table_id, partition_by, properties, features = rows[0]
        return TableDetail(
            location, table_id, tuple(partition_by), properties or {}, frozenset(features or ())
        )

    def current_location(self, spark: SparkSession) -> str | None:
        """Return the current location of a table in the catalog, whose name may now belong to another table.

        Returns:
            The location; None if the table is named by its directory, or if the catalog does not show the
            location.
        """
        return None if self.table is None else _location_now(spark, self.table)

    def schema(self, spark: SparkSession) -> StructType:
        """Return the columns of an existing table."""
        return spark.table(self.name).schema

    def _short_history(self, spark: SparkSession) -> list[HistoryRow] | None:
        """Return all commits, newest first, if there are few and all are in the log's directory.

        Otherwise return None, and Delta has to be asked. Spark Connect always returns None, because each file
        would take a job.
        """
        location = self._location
        if location is None or not is_classic(spark):
            return None
        # Since the check, the name may have been given to another table.
        if self.table is not None and _location_now(spark, self.table) != location:
            return None
        directory = f"{location}/_delta_log"
        rows: list[HistoryRow] = []
        try:
            # A long history would take one call for each commit. Then Delta's single statement is faster.
            if path_exists(spark, _commit_file(directory, FOLLOWED_COMMITS - 1)):
                return None
            # A file of the log exists as a whole or not at all, because Delta renames it into place or puts
            # it with one request. So the first missing number is the end of the log.
            while (info := _commit_info(spark, directory, len(rows))) is not None:
                rows.append(history_row({**info, "version": len(rows)}))
            # A clean-up deletes only what a checkpoint has, so without one no commit is missing.
            is_complete = bool(rows) and not path_exists(spark, f"{directory}/_last_checkpoint")
        except SPARK_ERRORS as error:
            log.info("log_not_read table=%s problem=%s", self.name, first_line(error))
            return None
        plain = not any(row.operation == "RESTORE" or row.operation in REPLACING for row in rows)
        return rows[::-1] if is_complete and plain else None

    def check(self, spark: SparkSession, checkpoint: str | None) -> TableDetail | None:
        """Refuse a table to which a query with this checkpoint could not write exactly once.

        Returns:
            The table's detail, None if there is no table.

        Raises:
            TableRefusedError: with the reason.
        """
        location = self.path
        # This comes before anything is read: on S3, a session whose log store lets two drivers commit the
        # same version must not even create the table (decision 0041).
        self._check_log_store(spark, location)
        if detail := self.detail(spark):
            location, self.partition_by = detail.location, detail.partition_by
            # The location of a table in the catalog is known only now.
            self._check_log_store(spark, location)
            # If commits may be elsewhere, the files in the log could lack the newest commits, and with them
            # the newest entry.
            elsewhere = keeps_commits_elsewhere(detail.features)
            # A table's name may now belong to another table, so it is looked up. A path does not change.
            here = location.rstrip("/") if self.table is None else _location_now(spark, self.table)
            self._location = None if elsewhere else here
            check_retention(self.name, detail.properties)
        elif self.path is not None and has_files(spark, self.path):
            # Delta creates the log's directory first, so a table is being created here, or its creator was
            # killed.
            has_log = path_exists(spark, f"{self.path}/_delta_log")
            if not has_log:
                raise TableRefusedError(self.name, OCCUPIED)
        # VACUUM deletes files to which no version refers, and the files of a query checkpoint would be such
        # files.
        if checkpoint is not None and location is not None and is_inside(checkpoint, location):
            problem = (
                f"the query checkpoint {checkpoint} lies inside the table at {location}; put it elsewhere"
            )
            raise TableRefusedError(self.name, problem)
        return detail

    def _check_log_store(self, spark: SparkSession, location: str | None) -> None:
        if location is not None and not self.allow_single_driver:
            check_log_store(spark, location, self.name)

    def append(self, df: DataFrame, entry: LedgerEntry, *, exists: bool, add_columns: bool = False) -> None:
        """Append ``df`` together with ``entry`` in one Delta commit, which Delta may silently skip.

        Partition columns that the rows lack are null, like all other columns.

        Args:
            df: The rows.
            entry: Ledger entry of the rows.
            exists: Whether the table exists.
            add_columns: Whether to add columns of ``df`` that the table does not have, in the same commit.
        """
        options = _commit_options(entry)
        # The option is set only if the comparison has found columns to add. Otherwise mergeSchema would add
        # all columns that a batch has (decision 0015).
        if add_columns:
            options["mergeSchema"] = "true"
        if self.table is not None and not exists:
            # A table that is created with rows records neither transaction id nor metadata (Delta 4.4), so it
            # is created empty first. A crash in between leaves a table without an entry, which the first
            # batch accepts. The mode is ignore, because another process may create the table at the same
            # time.
            with self.creation():
                df.limit(0).write.format("delta").mode("ignore").saveAsTable(self.table)
        # Delta runs the rows here. Before that it looks up the transaction number, and if it has seen the
        # number, it returns without an error and without a commit. So only the history shows the outcome of
        # the append.
        with _plain_values(df):
            while True:
                try:
                    if self.table is not None:
                        df.writeTo(self.table).options(**options).append()
                    else:
                        # By path, Delta creates a missing table with the first rows, in one commit with id
                        # and entry.
                        df.write.format("delta").mode("append").options(**options).save(self.path)
                    return
                except AnalysisException as error:
                    # Delta requires each partition column that it does not compute. Only its error, which
                    # comes before the rows run, says which of them are missing.
                    if error.getCondition() != NO_PARTITION:
                        raise
                    name = (error.getMessageParameters() or {}).get("columnName")
                    columns = [c for c in self.schema(df.sparkSession).fields if c.name not in df.columns]
                    missing = [c for c in columns if name in (c.name, f"`{c.name}`")]
                    if not missing:
                        raise
                    df = df.withColumn(missing[0].name, F.lit(None).cast(missing[0].dataType))

    def append_entry(self, spark: SparkSession, entry: LedgerEntry) -> None:
        """Commit an entry without rows to an existing table, which Delta may silently skip."""
        rows = self.rows(spark).limit(0)
        while True:
            try:
                self.append(rows, entry, exists=True)
                return
            except AnalysisException as error:
                # Delta accepts no values for such a column, not even none. Only its error names the column.
                if error.getCondition() != GIVEN_IDENTITY:
                    raise
                rows = rows.drop((error.getMessageParameters() or {})["colName"])

    def replace(self, df: DataFrame, entry: LedgerEntry, location: str, condition: str) -> None:
        """Put ``df`` in place of the rows that fulfil a condition, with ``entry``, in one Delta commit.

        Delta may skip the commit without an error, as in :meth:`append`.

        Args:
            df: The rows.
            entry: Ledger entry of the rows.
            location: Directory of the table, which exists.
            condition: SQL of the columns.
        """
        options = {**_commit_options(entry), "replaceWhere": condition}
        df.write.format("delta").mode("overwrite").options(**options).save(location)

    @contextmanager
    def creation(self) -> Iterator[None]:
        """Name what to do if a statement inside finds files where the catalog has no table.

        Delta's error says that they are not a Delta table, even if they are one.
        """
        try:
            yield
        except AnalysisException as error:
            if error.getCondition() != "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION":
                raise
            location = (error.getMessageParameters() or {}).get("tableLocation", "")
            problem = (
                f"the catalog has no such table, but its location {location} has files. A catalog in memory "
                "forgets its tables when the session ends. To continue the table, run CREATE TABLE "
                f"{self.name} USING delta LOCATION '{location}' first, or name the table by path="
            )
            raise TableRefusedError(self.name, problem) from None

    def _contents(self, spark: SparkSession, version: int) -> tuple[list[str], int] | None:
        """Return the files of a version and its number of rows, or None if Delta no longer has it."""
        try:
            rows = self.rows(spark, version)
            # The count matters, because a deletion vector removes rows from a file that stays.
            return sorted(rows.inputFiles()), rows.count()
        except PySparkException as error:
            log.info("version_unreadable table=%s version=%d error=%s", self.name, version, error)
            return None

    def _describe(self, spark: SparkSession, what: str, *columns: str) -> list[Row] | None:
        """Return the rows of a DESCRIBE statement, or None if there is no table."""
        # PySpark converts most of Java's exceptions. A session without Delta, or with Delta for another
        # Spark, fails in ways that only the check below can name.
        try:
            return spark.sql(f"DESCRIBE {what}").selectExpr(*columns).collect()
        except DESCRIBE_ERRORS as error:
            check_delta(spark)
            if isinstance(error, AnalysisException) and error.getCondition() in (
                NO_SUCH_NAME if self.table else NO_SUCH_PATH
            ):
                return None
            # Delta's error is a stack trace, which seldom names the damaged file.
            if (damage := log_damage(self.path or self._location or "")) is not None:
                log.info("log_damaged table=%s", self.name, exc_info=True)
                raise TableRefusedError(self.name, f"its log cannot be read: {damage}") from None
            raise


def _commit_options(entry: LedgerEntry) -> dict[str, str]:
    """Return the options of the write that commits an entry."""
    return {
        # The transaction id makes the commit a compare-and-set, and the entry is in the same commit. Because
        # it has an id, even a write without rows is a commit, so offsets that move without rows get their
        # entry.
        "txnAppId": APP_ID_PREFIX + entry.app_id,
        "txnVersion": str(entry.txn_version),
        "userMetadata": entry.to_json(),
        "compression": "zstd",
    }


@contextmanager
def _plain_values(df: DataFrame) -> Iterator[None]:
    """Make Parquet write the binary column ``value`` without a dictionary.

    Records hardly ever repeat, and building a dictionary takes a third of the write's CPU time. A session
    that accepts only a few settings, such as serverless compute on Databricks, does not have this saving.
    """
    if not any(f.name == "value" and isinstance(f.dataType, BinaryType) for f in df.schema.fields):
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(session_settings(df.sparkSession, {DICTIONARY_KEY: "false"}))
        except PySparkException as error:
            log.info("setting_refused key=%s problem=%s", DICTIONARY_KEY, first_line(error))
        yield


def _loaded_detail(rows: DataFrame) -> TableDetail:
    """Return the detail of the table that a DataFrame of a classic session reads, as Delta has loaded it.

    Raises:
        Py4JError: the DataFrame is not a whole Delta table, or Delta's classes have no such methods.
    """
    plan: Any = rows._jdf.queryExecution().analyzed()
    while plan.getClass().getSimpleName() == "SubqueryAlias":
        plan = plan.child()
    index = plan.relation().location()
    snapshot = index.snapshotAtAnalysis()
    metadata = json.loads(snapshot.metadata().json())["metaData"]
    protocol = json.loads(snapshot.protocol().json())["protocol"]
    return TableDetail(
        str(index.deltaLog().dataPath().toString()),
        metadata["id"],
        tuple(metadata.get("partitionColumns", ())),
        metadata.get("configuration", {}),
        writer_features(protocol["minWriterVersion"], protocol.get("writerFeatures", ())),
    )


def _location_now(spark: SparkSession, table: str) -> str | None:
    """Return the current directory of a table in the catalog, or None if the catalog does not show it.

    SHOW TABLE EXTENDED asks only Spark's catalog, which took 40 ms on a table of 10,000 versions. DESCRIBE
    also updates Delta's snapshot, which took 1.3 s on the same table, twice for each commit.
    """
    if shown := _shown_location(spark, table):
        return shown
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    except AnalysisException:
        return None  # The table no longer exists. Reading its history also reports this.
    after = dropwhile(lambda row: row.col_name != "# Detailed Table Information", rows)
    return next((str(row.data_type).rstrip("/") for row in after if row.col_name == "Location"), None)


def _shown_location(spark: SparkSession, table: str) -> str | None:
    """Return the directory from SHOW TABLE EXTENDED; None if only DESCRIBE shows it."""
    if not PLAIN_NAME.fullmatch(table):
        return None
    namespace, _, name = table.rpartition(".")
    where = f"IN {namespace} " if namespace else ""
    try:
        # The argument of LIKE is a pattern, so only a PLAIN_NAME is accepted: a name with * or | could match
        # another table.
        rows = spark.sql(f"SHOW TABLE EXTENDED {where}LIKE '{name}'").collect()
    except AnalysisException:
        return None
    # A temporary view hides a table with the same name, and a comment may contain a line that looks like the
    # location.
    if len(rows) != 1 or rows[0].isTemporary:
        return None
    locations = LOCATION_LINE.findall(rows[0].information)
    return locations[0].rstrip("/") if len(locations) == 1 else None


def _follow(
    spark: SparkSession, directory: str, since: LedgerState, entry: LedgerEntry
) -> list[HistoryRow] | None:
    """Read the commits after a state, or return None if the table was created again.

    A clean-up deletes older files first. So if the commit of that state's entry still exists, a missing
    commit was never written.
    """
    info = _commit_info(spark, directory, since.entry_version) or {}
    recorded = parse_entry(info.get("userMetadata"), entry.app_id)
    # This is the log of another table with the same name. Following it from here would leave out its first
    # commits.
    if recorded is None or recorded.attempt != entry.attempt:
        return None
    rows: list[HistoryRow] = []
    while len(rows) < FOLLOWED_COMMITS:
        version = since.table_version + len(rows) + 1
        following = _commit_info(spark, directory, version)
        if following is None:
            return rows
        rows.append(history_row({**following, "version": version}))
    return None


def _commit_info(spark: SparkSession, directory: str, version: int) -> dict[str, Any] | None:
    """Return the ``commitInfo`` of a commit, or None if there is no such commit."""
    # Delta's protocol does not require this line, and other writers may leave it out. Their commits have no
    # entry.
    line = find_line(spark, _commit_file(directory, version), COMMIT_INFO)
    if line is None:
        return None
    # An empty line means that the commit exists but has no commitInfo.
    info: dict[str, Any] = json.loads(line)["commitInfo"] if line else {}
    return info


def _commit_file(directory: str, version: int) -> str:
    return f"{directory}/{version:020}.json"
