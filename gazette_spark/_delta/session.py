"""Finds the session of a thread, registers data sources with a session, and changes its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from gazette_spark._delta.files import is_classic, java_class
from gazette_spark.errors import OptionError


def session_or_active(spark: SparkSession | None) -> SparkSession:
    """Return a session, by default the one that is active in this thread.

    Raises:
        OptionError: no session is active.
    """
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise OptionError("spark", "none, and no session is active in this thread", "a SparkSession")
    return session


def register_sources(spark: SparkSession, *sources: type[DataSource]) -> None:
    """Register data sources with a session, even if the active session of this thread already has them."""
    if not is_classic(spark):
        for source in sources:
            spark.dataSource.register(source)
        return
    sessions = java_class(spark, "org.apache.spark.sql.classic.SparkSession")
    # Spark looks for the name in the active session, and refuses a name that only that session has.
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        for source in sources:
            spark.dataSource.register(source)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change a session's settings temporarily, and restore the earlier values, also after an error.

    The batches of a query have a separate session. Other threads that share the session also see the changed
    settings.
    """
    # Read all settings before changing the first one: if the session refuses one, the others must remain
    # unchanged.
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)
