"""Finds the session of a thread, registers data sources with a session, and changes its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from gazette_spark._delta.files import is_classic, java_class
from gazette_spark.errors import OptionError

RELEASE_TIMEOUT_S = 10
"""Maximum seconds to wait for Spark Connect to release results, as Spark itself waits."""


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


def current_catalog(spark: SparkSession) -> tuple[str, str]:
    """Return the catalog and the schema in which a session looks up names."""
    return spark.catalog.currentCatalog(), spark.catalog.currentDatabase()


def use_catalog(copy: SparkSession, catalog: str, schema: str) -> None:
    """Make a copy of a session look up names where the session does.

    Spark's copies begin in the default catalog, where the same name may be another table.
    """
    if copy.catalog.currentCatalog() != catalog:
        copy.catalog.setCurrentCatalog(catalog)
    # Spark copies only the current schema of its own catalog. If another catalog is the default one, a copy
    # begins in that catalog's default schema.
    if schema and copy.catalog.currentDatabase() != schema:
        copy.catalog.setCurrentDatabase(schema)


def use_catalog_in_batch(spark: SparkSession, catalog: str, schema: str, *, has_names: bool) -> None:
    """Make the session of a batch look up names where the session did in which its query was started.

    Args:
        spark: The session of the batch.
        catalog: Catalog of the session at the start.
        schema: Schema of the session at the start.
        has_names: Whether the batch looks up the name of a table.
    """
    # Classic Spark runs batches in a copy of the session. Spark Connect up to 4.2 runs them in the program's
    # own session, where another catalog would also be that of the program's next statement.
    if has_names or is_classic(spark):
        use_catalog(spark, catalog, schema)


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change a session's settings temporarily, and restore the earlier values, also after an error.

    Other threads that share the session also see the changed settings. Where they must not, use
    :func:`private_session`.
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
            # If another thread has ended first, this value is not that of this thread any more, and the
            # earlier one may be the other thread's.
            if spark.conf.get(key, None) != settings[key]:
                continue
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)


@contextmanager
def private_session(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield a copy of a session with other settings, which no other thread, program or query sees.

    The copy has the session's temporary views. Spark Connect 4.0 cannot copy a session, so its settings are
    changed temporarily.
    """
    if (copy := _copied(spark)) is None:
        with session_settings(spark, settings):
            yield spark
        return
    try:
        for key, value in settings.items():
            copy.conf.set(key, value)
        yield copy
    finally:
        if not is_classic(copy):
            # Results are released in the background. Once the session is closed, the server would log errors.
            wait(getattr(copy.client, "_release_futures", ()), timeout=RELEASE_TIMEOUT_S)
            copy.client.release_session()
            copy.client.close()


def _copied(spark: SparkSession) -> SparkSession | None:
    """Return a copy of a session, or None if its client or server cannot make one."""
    if is_classic(spark):
        # PySpark's constructor would make the copy the session of ``RDD.toDF`` in the whole process, and rows
        # of the program would be written under the settings of the copy.
        copy = object.__new__(type(spark))
        # Names without an underscore are properties that the session has cached, such as its catalog.
        state = {name: value for name, value in vars(spark).items() if name.startswith("_")}
        vars(copy).update(state, _jsparkSession=spark._jsparkSession.cloneSession())
    elif not hasattr(spark, "cloneSession"):
        return None
    else:
        try:
            copy = spark.cloneSession()
        except Exception as error:
            # Only gRPC, which is not imported here, knows the error's type.
            code: Any = getattr(error, "code", None)
            if code is None or code().name != "UNIMPLEMENTED":
                raise
            return None
    use_catalog(copy, *current_catalog(spark))
    return copy
