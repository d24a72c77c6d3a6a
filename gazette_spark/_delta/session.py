"""The session of a thread, and settings of it that one statement needs, and nothing after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from gazette_spark.errors import OptionError


def session_or_active(spark: SparkSession | None) -> SparkSession:
    """Return a session, by default the one that is active in this thread.

    Raises:
        OptionError: none is.
    """
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise OptionError("spark", "none, and no session is active in this thread", "a SparkSession")
    return session


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change a session's settings for a while; afterwards the earlier values are back, also after an error.

    A query's batches have a separate session. Other threads of a shared session see the changed settings,
    too.
    """
    # All of them are read before the first is changed: one that the session refuses must leave the others as
    # they were.
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
