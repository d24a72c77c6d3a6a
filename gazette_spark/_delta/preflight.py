"""Checks before a query starts what its session lacks, and reports it in one line.

Spark would report the same problems later: a session without Delta as a syntax error in the sink's first
statement, a Delta release for another Spark in 300 lines of Java, and workers that lack the package or cannot
reach the brokers as a failed task of the first batch.

Each check is made once: one statement checks a session's Delta, and one task for each broker address checks
its workers. On Spark Connect the workers are not checked, because the client does not see the options of a
query.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark._delta.files import JVM_ERRORS, SPARK_ERRORS, is_classic, java_class
from gazette_spark._delta.java_errors import first_line
from gazette_spark._options.source import SourceOptions, parse_options
from gazette_spark._planning.access import security_for_tasks
from gazette_spark.errors import MissingModuleError, OptionError

DELTA_SESSION = (
    "one from configure_spark_with_delta_pip(SparkSession.builder) of the package delta-spark, with "
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog; for spark-submit these "
    "two as --conf, and --packages io.delta:delta-spark_4.2_2.13:4.4.0"
)
"""How to create a session with Delta."""

DELTA_CLASS = "io.delta.sql.DeltaSparkSessionExtension"

DELTA_JAR = re.compile(r"delta-spark_(?:(?P<spark>\d+\.\d+)_)?2\.\d+-(?P<delta>\d+\.\d{1,9})[^/]*\.jar$")
"""Pattern for the name of Delta's jar. Its groups are the release of Spark that the jar is for, which older
names omit, and the release of Delta."""

SPARK_OF_DELTA = {"3.0": "3.5", "3.1": "3.5", "3.2": "3.5", "3.3": "3.5", "4.0": "4.0"}
"""Release of Spark by release of Delta, for jars whose names omit it."""

NO_TABLE = "DESCRIBE DETAIL delta.`/gazette_spark/no/table`"
"""A statement of Delta that only looks for a directory."""

WITHOUT_BOTH_SETTINGS = "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG"

NO_JOURNAL = "name=gazette_spark/no/journal"
"""A selector whose listing is empty."""

_checked: set[tuple[str, str]] = set()
"""The checks that have passed, by Spark application."""


def check_delta(spark: SparkSession) -> None:
    """Check that a session has Delta for its release of Spark.

    Raises:
        OptionError: the session lacks Delta; the error names the necessary settings.
    """
    key = (_application(spark), "delta")
    if key in _checked:
        return
    # Check the jar's name first: a Delta release for another Spark loads, and then fails because of a missing
    # method, with 300 lines of Java.
    if (jar := delta_jar(spark)) and (problem := unfit_jar(jar, spark.version)):
        raise OptionError("spark", problem, DELTA_SESSION)
    try:
        spark.sql(NO_TABLE).collect()
    except AnalysisException as error:
        # Without Delta, Spark mistakes a word of the statement for a table's name, or it reports that one of
        # the two settings is missing.
        condition, parameters = error.getCondition(), error.getMessageParameters() or {}
        is_table_name = parameters.get("relationName", "").strip("`") == "DETAIL"
        if condition == WITHOUT_BOTH_SETTINGS or (condition == "TABLE_OR_VIEW_NOT_FOUND" and is_table_name):
            raise OptionError("spark", "a session without Delta Lake", DELTA_SESSION) from None
    except JVM_ERRORS as error:
        problem = f"a Delta Lake that does not work: {first_line(error)}"
        raise OptionError("spark", problem, DELTA_SESSION) from None
    # If the application has no name, the result is not remembered, because it would also count for other
    # applications.
    if key[0]:
        _checked.add(key)


def unfit_jar(location: str, spark_version: str) -> str:
    """Return why Delta's jar does not fit a release of Spark; "" if it fits or its name shows nothing.

    >>> unfit_jar("file:/jars/delta-spark_2.13-4.0.0.jar", "4.2.0")
    'delta-spark_2.13-4.0.0.jar, which is Delta Lake for Spark 4.0, in a session of Spark 4.2.0'
    >>> unfit_jar("file:/jars/delta-spark_4.2_2.13-4.4.0.jar", "4.2.1")
    ''
    """
    name = location.rpartition("/")[2]
    if not (match := DELTA_JAR.search(name)):
        return ""
    release = match["spark"] or SPARK_OF_DELTA.get(match["delta"])
    if release is None or spark_version.split(".")[:2] == release.split("."):
        return ""
    return f"{name}, which is Delta Lake for Spark {release}, in a session of Spark {spark_version}"


def check_workers(spark: SparkSession, options: SourceOptions) -> None:
    """Check that tasks have the package and that the brokers of a query answer them.

    Raises:
        MissingModuleError: the workers' Python lacks this package or one that it needs.
        OptionError: a task fails for another reason, or no broker answers it.
    """
    if not is_classic(spark):
        return
    address = "" if options.fragment_store is not None else options.broker_address
    key = (_application(spark), f"workers {address}")
    if key in _checked:
        return
    # This is not an Arrow UDF, because such a function needs pyarrow on the worker, and that may be what is
    # missing.
    look = F.udf(look_around(options if address else None), "string", useArrow=False)
    try:
        (row,) = spark.range(0, 1, 1, 1).select(look().alias("report")).collect()
    except SPARK_ERRORS as error:
        got = f"a Python in which a task fails: {first_line(error)}"
        expected = "a Python of the driver's release in which gazette-spark[spark] is installed"
        raise OptionError("PYSPARK_PYTHON", got, expected) from None
    report = json.loads(row.report)
    if "module" in report:
        raise MissingModuleError(report["module"], report["interpreter"])
    if "problem" in report:
        got = f"{address!r}, which the driver may reach, and a task on {report['host']} does not: "
        expected = "an address that each machine of the cluster can reach: open the network to it"
        raise OptionError("brokerAddress", got + report["problem"], expected)
    _checked.add(key)


def look_around(options: SourceOptions | None) -> Callable[[], str]:
    """Return a function that reports what a task lacks.

    Args:
        options: Options of the brokers to call; None for a query without brokers.
    """
    selector = NO_JOURNAL
    content = options and pickle.dumps(replace(options, security=security_for_tasks(options.security)))

    def look() -> str:
        import json
        import pickle
        import socket
        import sys

        try:
            from gazette_spark._planning.access import open_client
            from gazette_spark.errors import GazetteError

            options = content and pickle.loads(content)  # noqa: S301 - made above
        except ImportError as missing:
            module = str(getattr(missing, "module", None) or missing.name).partition(".")[0]
            return json.dumps({"module": module, "interpreter": sys.executable})
        try:
            if options:
                with open_client(options) as client:
                    client.list_journals(selector, limit=1)
        except GazetteError as error:
            problem = str(error).partition("\n")[0]
            return json.dumps({"problem": problem, "host": socket.gethostname()})
        return "{}"

    return look


def gazette_options(df: DataFrame) -> Iterator[SourceOptions]:
    """Yield the options of each Gazette stream that a query reads; nothing on Spark Connect.

    Raises:
        OptionError: one of them is invalid.
    """
    if not is_classic(df.sparkSession):
        return
    with suppress(*JVM_ERRORS):
        leaves = df._jdf.queryExecution().analyzed().collectLeaves()
        # Only the plan contains the options: a DataFrame does not show the options with which it was loaded.
        for leaf in map(leaves.apply, range(leaves.size())):
            if (options := _stream_options(leaf)) is not None:
                yield parse_options(options, "stream")


def bare_stream(df: DataFrame) -> dict[str, str] | None:
    """Return the options of a Gazette stream if the DataFrame is what ``load()`` returned.

    Returns:
        The options; None for any other query, and on Spark Connect, whose client does not see the plan.
    """
    if is_classic(df.sparkSession):
        with suppress(*JVM_ERRORS):
            return _stream_options(df._jdf.queryExecution().analyzed())
    return None


def _stream_options(node: Any) -> dict[str, str] | None:  # noqa: ANN401 - Java's
    """Return the options of a Gazette stream in a query's plan, or None for any other node."""
    if node.getClass().getSimpleName() != "StreamingRelationV2" or node.sourceName() != "gazette":
        return None
    options = node.extraOptions()
    # Not the set itself: the exception that ends a loop over it takes a tenth of a second to convert.
    return {str(name): str(options.get(name)) for name in options.keySet().toArray()}


def _application(spark: SparkSession) -> str:
    """Return the id of the Spark application, whose sessions share jars and workers."""
    if is_classic(spark):
        return str(spark.sparkContext.applicationId)
    return str(getattr(spark, "session_id", ""))


def delta_jar(spark: SparkSession) -> str:
    """Return the location of the class of Delta's extension, or "" if it is unknown."""
    if not is_classic(spark):
        return ""
    with suppress(*JVM_ERRORS):
        loader = java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader()
        found = java_class(spark, "java.lang.Class").forName(DELTA_CLASS, False, loader)  # noqa: FBT003 - Java's
        return str(found.getProtectionDomain().getCodeSource().getLocation())
    return ""
