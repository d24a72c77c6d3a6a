"""Finds the session of a thread, and changes settings of a session for one statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

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
