"""The log store by which Delta commits to tables on S3, and whether two drivers may use it.

Delta's own one asks whether a commit's file exists and then puts it. In between, another driver can do the
same: both believe that the version is theirs, and the commit of one of them is overwritten. Of 60 versions
that two drivers wanted at once, both got 20 to 36. The ledger notices later that a batch of ours has gone,
but nothing brings back a commit of somebody else. So the sink refuses such a session.

The log store in ``jvm/`` puts the file on condition that it does not exist.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from gazette_spark.errors import OptionError, TableRefusedError

LOG_STORE = "gazette.spark.ConditionalS3LogStore"

JAR = Path(__file__).with_name("s3-log-store.jar")
"""The compiled log store; missing where the package was installed from source without a JDK."""

SAFE = frozenset({LOG_STORE, "io.delta.storage.S3DynamoDBLogStore"})
"""Classes of log stores that let one of several drivers through."""

SCHEMES = frozenset({"s3", "s3a", "s3n"})
"""Schemes for which Delta takes its log store for S3 by default."""

DATABRICKS = "spark.databricks.clusterUsageTags.clusterId"
"""Setting of every cluster of Databricks, where a separate service orders the commits."""


def s3_log_store() -> dict[str, str]:
    """Return the settings of a Spark session whose Delta tables on ``s3a://`` several drivers may write.

    Delta's own log store lets two drivers commit the same version of a table on S3. These settings name one
    that commits by a conditional put, and the jar that has it. It needs Hadoop 3.4.2 or later: Spark bundles
    such a release since 4.1. Where ``spark.jars`` names other jars already, append this one to them.

    Raises:
        OptionError: the jar is missing, because the package was built without a JDK.
    """
    if not JAR.exists():
        expected = "the wheel; or a JDK on the path when the package is installed from source"
        raise OptionError("spark.jars", f"no {JAR}", expected)
    return {"spark.jars": str(JAR), setting_of("s3a"): LOG_STORE}


def setting_of(scheme: str) -> str:
    """Return the setting that names Delta's log store for the locations of a scheme."""
    return f"spark.delta.logStore.{scheme}.impl"


def check_log_store(spark: SparkSession, location: str, table: str) -> None:
    """Refuse a table on S3 if two drivers could commit the same version of it.

    Args:
        spark: The session, whose settings name the log store.
        location: Directory of the table.
        table: Name of the table.

    Raises:
        TableRefusedError: naming the ways out.
    """
    scheme = urlsplit(location).scheme.lower()
    if scheme not in SCHEMES or spark.conf.get(DATABRICKS, None):
        return
    # The class decides, because no call tells whether a log store puts conditionally. One that is not listed
    # may be as good, and is refused: a lost commit is silent (decision 0041).
    log_store = spark.conf.get(setting_of(scheme), None)
    if log_store in SAFE:
        return
    problem = (
        f"two drivers could commit the same version of it: the log store for {scheme}:// is "
        f"{log_store or 'the default of Delta, which has no conditional puts'}. Start the session with the "
        "settings that gazette_spark.s3_log_store() returns, or with S3DynamoDBLogStore; or, if no other "
        "program ever writes the table, give the sink allow_single_driver=True"
    )
    raise TableRefusedError(table, problem)
