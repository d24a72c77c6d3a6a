"""The batches of a query, from its checkpoint: the files that Spark writes before it runs a batch."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from gazette_spark.ledger.entry import Batch, Positions
from gazette_spark.ledger.query_checkpoint import (
    check_pinned,
    metadata_path,
    offsets_path,
    parse_offsets,
    parse_query_id,
    state_path,
)
from gazette_spark.table.files import path_exists, read_text


@dataclass(frozen=True, slots=True)
class _Known:
    """The last batch that was read: where it ended, the next one begins."""

    root: str
    batch_id: int
    query_id: str
    end: Positions


class QueryBatches:
    """Reads one file for a batch that follows the last one, three for any other."""

    def __init__(self, table: str, app_id: str) -> None:
        self._table = table
        self._app_id = app_id
        self._known: _Known | None = None

    def read(self, spark: SparkSession, root: str, batch_id: int) -> Batch:
        """Return a batch.

        Args:
            spark: The session.
            root: The query checkpoint.
            batch_id: Id of the batch that Spark runs.

        Raises:
            QueryCheckpointError: a file is missing, damaged or of a later release.
        """
        known, self._known = self._known, None
        path = offsets_path(root, batch_id)
        end = parse_offsets(read_text(spark, path), path)
        if known is None or (known.root, known.batch_id + 1) != (root, batch_id):
            known = self._before(spark, root, batch_id)
        if batch_id == 0:
            check_pinned(end, path)
        self._known = _Known(root, batch_id, known.query_id, end)
        return Batch(self._table, self._app_id, known.query_id, batch_id, known.end, end)

    def _before(self, spark: SparkSession, root: str, batch_id: int) -> _Known:
        """Read the batch before another; empty for the first batch."""
        end: Positions = ()
        if batch_id > 0:
            path = offsets_path(root, batch_id - 1)
            end = parse_offsets(read_text(spark, path), path)
        about = metadata_path(root)
        return _Known(root, batch_id - 1, parse_query_id(read_text(spark, about), about), end)


def keep_state(df: DataFrame, root: str) -> None:
    """Run a batch whose rows are not needed, if its query has state: the next batch begins with this one's.

    Without it Spark ends the query (``STATE_STORE_COMMIT_VALIDATION_FAILED``). A batch whose state is there
    already may run again, and makes the same.

    Args:
        df: The batch.
        root: The query checkpoint.
    """
    if path_exists(df.sparkSession, state_path(root)):
        df.write.format("noop").mode("overwrite").save()
