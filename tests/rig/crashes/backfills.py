"""A backfill of committed messages, as run by a scenario and by a child process, and its crash points."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from gazette_spark import DeltaSink, backfill, ingest_batch, register
from tests.rig.crashes.points import TABLE_LOG, Point, Rename, reachable
from tests.rig.crashing_source import crashing_gazette

STEP_BYTES = 500
"""Bytes per commit. A backfill has several commits, as a step appends about twice as many bytes."""

_DIED = re.compile(r"failpoint '[\w.]+' was reached|Python worker exited unexpectedly")


def fill(
    spark: SparkSession,
    sink: DeltaSink,
    options: Mapping[str, str],
    schema: str | None,
    crash_file: Path,
    *,
    direct: bool = False,
) -> None:
    """Fill a sink's table up to the current ends of journals.

    Args:
        spark: The session.
        sink: The sink.
        options: Options of the source.
        schema: Schema of the source.
        crash_file: Says where processes of the source die, as in :mod:`tests.rig.crashing_source`.
        direct: Whether tasks write the data files.
    """
    spark.dataSource.register(crashing_gazette(str(crash_file)))
    try:
        run = ingest_batch if direct else backfill
        run(sink, options, schema=schema, bytes_per_commit=STEP_BYTES, spark=spark)
    finally:
        register(spark)


def died(error: Exception) -> bool:
    """Return whether an error comes from a backfill, or one of its workers, that was killed on purpose."""
    return _DIED.search(str(error)) is not None


def is_of_task(point: Point) -> bool:
    """Return whether a task reaches a point, so that its worker can be killed there alone."""
    name = point.raises or ""
    return name.startswith("scan.") or name in ("source.read", "source.rows")


def points(*, by_kill: bool) -> list[Point]:
    """Return the points that a backfill reaches: it has no query, and no files of a query checkpoint."""
    found = reachable(frozenset({"committed"}), by_kill=by_kill)
    if not by_kill:
        return [each for each in found if each.raises != "source.latest_offset"]
    return [each for each in found if not isinstance(each.kills, Rename) or each.kills.path_end == TABLE_LOG]
