"""Read the batches of a query from the checkpoint files that Spark writes before it runs a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from gazette_spark._ledger.entry import Batch, Positions
from gazette_spark._ledger.query_checkpoint import (
    check_pinned,
    metadata_path,
    offsets_path,
    parse_offsets,
    parse_planned_ms,
    parse_query_id,
    state_path,
)
from gazette_spark.errors import QueryCheckpointError


class CheckpointFiles(Protocol):
    """Reads the files of a query checkpoint, through Spark or without it."""

    def text(self, path: str) -> str:
        """Return a small file's text.

        Raises:
            QueryCheckpointError: the file is missing or empty.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory."""
        ...


@dataclass(frozen=True, slots=True)
class _LastBatch:
    """The last batch that was read. The next one begins where it ended."""

    root: str
    batch_id: int
    query_id: str
    end: Positions
    stateful: bool
    planned_ms: int | None = None


class QueryBatches:
    """Reads the batches of a query: one file if a batch follows the last one, three otherwise."""

    def __init__(self, table: str, app_id: str) -> None:
        self._table = table
        self._app_id = app_id
        self._last: _LastBatch | None = None

    def read(self, files: CheckpointFiles, root: str, batch_id: int, query_id: str | None = None) -> Batch:
        """Return a batch of the query with the checkpoint ``root``.

        Args:
            files: Reader of the files of the checkpoint.
            root: Directory of the checkpoint.
            batch_id: Number of the batch.
            query_id: Id of the query that runs the batch; None if it is unknown.

        Raises:
            QueryCheckpointError: a file is missing, damaged or of a later release, or the checkpoint belongs
                to another query.
        """
        # The last batch is forgotten until this one is read, so that after an error all files are read again.
        last, self._last = self._last, None
        # Spark writes this file before it runs the batch. It contains where the batch ends. The batch begins
        # where the one before it ended, and Spark keeps the files of the last 100 batches.
        path = offsets_path(root, batch_id)
        text = files.text(path)
        end, planned_ms = parse_offsets(text, path), parse_planned_ms(text, path)
        # This is the first batch of a run, or a batch that runs again. In all other cases, the batch before
        # it is the one that was read last.
        if last is None or (last.root, last.batch_id + 1) != (root, batch_id):
            last = self._before(files, root, batch_id)
        # The rows of a batch must never be committed with the offsets of another query. The caller may have
        # named an earlier checkpoint, or Spark and this process may resolve the same path to two places: if
        # Spark's default file system is HDFS, Spark looks there for a path without a scheme.
        if query_id not in (None, last.query_id):
            problem = (
                f"it belongs to query {last.query_id}, but Spark runs {query_id}. Nothing was committed. "
                "Name the checkpoint of the running query, as an absolute path with its scheme, such as "
                "hdfs://namenode/checkpoint"
            )
            raise QueryCheckpointError(root, problem)
        # Spark does not record where a new query starts, so after a crash in batch 0 the query could start
        # elsewhere. Therefore the source's first batch is empty, and its end is the query's start.
        if batch_id == 0:
            check_pinned(end, path)
        self._last = replace(last, batch_id=batch_id, end=end, planned_ms=planned_ms)
        return Batch(
            self._table,
            self._app_id,
            last.query_id,
            batch_id,
            last.end,
            end,
            planned_ms=planned_ms,
            after_ms=last.planned_ms,
            stateful=last.stateful,
        )

    def _before(self, files: CheckpointFiles, root: str, batch_id: int) -> _LastBatch:
        """Return the batch before ``batch_id``, which is empty if that is the first batch."""
        end: Positions = ()
        planned_ms: int | None = None
        # Spark does not start without this file, so it is missing only if the sink got another checkpoint.
        if batch_id > 0:
            path = offsets_path(root, batch_id - 1)
            text = files.text(path)
            end, planned_ms = parse_offsets(text, path), parse_planned_ms(text, path)
        about = metadata_path(root)
        query_id = parse_query_id(files.text(about), about)
        # Spark creates the directory when it plans the first batch, before the sink gets that batch.
        stateful = files.exists(state_path(root))
        return _LastBatch(root, batch_id - 1, query_id, end, stateful, planned_ms)
