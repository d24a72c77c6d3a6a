"""Names the log store with which Delta commits to tables on S3, and checks that two drivers may use it.

Delta's own log store checks whether a commit's file exists and then puts it. In between, another driver can
do the same: both believe that the version is theirs, and one commit overwrites the other. When two drivers
competed for 60 versions, both believed that they had got 20 to 36 of them. The ledger would detect later that
one of its batches is lost, but nothing could restore a lost commit of another program. Therefore the sink
refuses such a session.

The log store in ``jvm/`` puts the file on the condition that it does not exist.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from gazette_spark._delta.files import is_classic
from gazette_spark.errors import OptionError, TableRefusedError

LOG_STORE = "gazette.spark.ConditionalS3LogStore"

JAR = Path(__file__).with_name("s3-log-store.jar")
"""The compiled log store, which is missing if the package was installed from source without a JDK."""

SAFE = frozenset({LOG_STORE, "io.delta.storage.S3DynamoDBLogStore"})
"""Classes of log stores that accept a version from only one of several drivers."""

SCHEMES = frozenset({"s3", "s3a", "s3n"})
"""Schemes for which Delta uses its log store for S3 by default."""

DATABRICKS = "spark.databricks.clusterUsageTags.clusterId"
"""Setting of every Databricks cluster, where a separate service orders the commits."""


def s3_log_store() -> dict[str, str]:
    """Return settings for a Spark session with which several drivers may write Delta tables on ``s3a://``.

    Delta's own log store lets two drivers commit the same version of a table on S3. These settings name a log
    store that commits by a conditional put, and the jar that contains it. It needs Hadoop 3.4.2 or later,
    which Spark bundles since 4.1. If ``spark.jars`` already names other jars, append this one to them.

    Raises:
        OptionError: the jar is missing, because the package was built without a JDK.
    """
    if not JAR.exists():
        expected = "the wheel; or a JDK on the path when the package is installed from source"
        raise OptionError("spark.jars", f"no {JAR}", expected)
    return {"spark.jars": str(JAR), setting_of("s3a"): LOG_STORE}


def setting_of(scheme: str) -> str:
    """Return the key of the setting that names Delta's log store for locations with a scheme."""
    return f"spark.delta.logStore.{scheme}.impl"


def check_log_store(spark: SparkSession, location: str, table: str) -> None:
    """Refuse a table on S3 if two drivers could commit the same version of it.

    Raises:
        TableRefusedError: two drivers could. The error says what to do.
    """
    scheme = urlsplit(location).scheme.lower()
    if scheme not in SCHEMES or spark.conf.get(DATABRICKS, None):
        return
    # The class decides, because there is no call that shows whether a log store puts conditionally. A class
    # that is not listed may be just as good, but is refused, because a lost commit is silent (decision 0041).
    key = setting_of(scheme)
    if is_classic(spark):
        # Delta takes its log store from the settings with which the application was started. A builder that
        # finds a running session, or spark.conf.set, changes only the session's settings: they would look
        # right here, and Delta would go on with its own log store.
        log_store = spark.sparkContext.getConf().get(key)
    else:
        log_store = spark.conf.get(key, None)  # A client of Spark Connect sees no others.
    if log_store in SAFE:
        return
    problem = (
        f"two drivers could commit the same version of it: the log store for {scheme}:// is "
        f"{log_store or 'the default of Delta, which has no conditional puts'}. Start the "
        "application with the settings that gazette_spark.s3_log_store() returns, or with S3DynamoDBLogStore "
        "(in a running session they have no effect); or, if no other program ever writes the table, give the "
        "sink allow_single_driver=True"
    )
    raise TableRefusedError(table, problem)
