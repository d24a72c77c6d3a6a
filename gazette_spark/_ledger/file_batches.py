"""Brings batches whose rows tasks write to files into a table, each in one commit with its ledger entry.

The decisions do not depend on the format of the table. A :class:`LedgerTable` does what does: it reads the
ledger, and commits files and an entry as a compare-and-set. Delta and Iceberg tables are such tables.

This is the story of :class:`~gazette_spark.sink.DeltaSink` for files alone: there is nothing to trim, to
count or to send to dead letters.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gazette_spark._frames import deltalake_text
from gazette_spark._ledger.decision import Allowed, Committed, Refusal, Skip, decide, verify
from gazette_spark._ledger.entry import Batch, LedgerEntry, LedgerState, pinned_journals, ranges_text
from gazette_spark._ledger.query_batches import CheckpointFiles, QueryBatches
from gazette_spark.errors import DeadLetterError, OffsetError, QueryCheckpointError, TableRefusedError
from gazette_spark.failpoints import failpoint
from gazette_spark.offsets import JournalOffsets, check_forward

log = logging.getLogger(__name__)


class LedgerTable(Protocol):
    """A table to which data files are committed together with ledger entries."""

    name: str
    """The table, as errors name it."""

    max_attempts: int
    """Attempts to commit one batch: commits of others may be faster."""

    @property
    def shape(self) -> str:
        """Identity, columns and partitions of the opened table: files fit a table of the same shape only."""
        ...

    def read_ledger(self, app_id: str) -> LedgerState:
        """Open the newest version of the table, and return the state of an app id's ledger in it.

        The next commit is made on this version: whatever is committed for the app id after it is a conflict.
        """
        ...

    def commit_files(self, files: Sequence[Any], entry: LedgerEntry) -> Exception | None:
        """Commit data files and a ledger entry on the opened version.

        Args:
            files: Rows about the files, by ``FILES_SCHEMA``.
            entry: Ledger entry of the rows in the files.

        Returns:
            The conflict, if there is one. It does not reveal whether the commit was made.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The data files of a batch."""

    files: Sequence[Any]
    """Rows about them, by ``FILES_SCHEMA``."""
    shape: str
    """Shape of the table that they were written for."""


def no_files() -> BatchFiles:
    """Return the files of a batch without rows."""
    return BatchFiles((), "")


@dataclass(frozen=True, slots=True)
class FileBatches:
    """The batches of one stream in a table."""

    table: LedgerTable
    app_id: str
    allowed: Allowed

    def commit_planned(
        self,
        checkpoint: CheckpointFiles,
        root: str,
        batch_id: int,
        query_id: str | None,
        written: BatchFiles,
    ) -> None:
        """Bring a batch that a query has planned into the table, or find it there.

        Args:
            checkpoint: Reads the files of the query checkpoint.
            root: The query checkpoint.
            batch_id: Number of the batch in it.
            query_id: The query that has run the batch's tasks, None if they do not say.
            written: The batch's files.

        Raises:
            QueryCheckpointError: the checkpoint does not have the batch, or is that of another query.
            SinkError: the batch does not continue the table; nothing was written.
        """
        failpoint("sink.entry")
        # Nothing is remembered between batches: each commit runs in a new process. So there is no entry that
        # this writer has seen last, and a second writer is noticed by its offsets only (decision 0044).
        batch = QueryBatches(self.table.name, self.app_id).read(checkpoint, root, batch_id)
        # Spark and this process may take one text for two places: where Spark's default file system is HDFS,
        # a path without a scheme is there. Offsets of another checkpoint must never go with these rows.
        if query_id not in (None, batch.query_id):
            problem = (
                f"it is of query {batch.query_id}, and Spark runs query {query_id}. Nothing was committed. "
                "Give checkpointLocation as an absolute path with its scheme, such as hdfs://namenode/checkpoint"
            )
            raise QueryCheckpointError(root, problem)
        self.commit(batch, lambda: written)
        failpoint("sink.return")

    def commit_range(
        self, begin: JournalOffsets, end: JournalOffsets, write: Callable[[], BatchFiles]
    ) -> bool:
        """Bring the rows of an offset range into the table, unless they are there.

        Journals that are new to the table are pinned by a separate commit before, without rows. A failed call
        may be repeated.

        Args:
            begin: First byte of each journal.
            end: The byte behind the last one, of the same journals.
            write: Returns the files of the range's rows; see :meth:`commit`.

        Returns:
            Whether an entry was written; if not, the table had all of the range.

        Raises:
            OffsetError: the offsets are not of the same journals, or one goes back.
            SinkError: the range does not continue the table; nothing was written.
        """
        if begin.read_through.keys() != end.read_through.keys():
            raise OffsetError("the begin and the end of the batch are not of the same journals")
        check_forward(begin, end)
        # Each call is a separate query, with an id that nobody has used: whether a repeated call has to write
        # anything, only the offsets say.
        name, app_id, query = self.table.name, self.app_id, f"batch-{uuid.uuid4().hex}"
        seen, newest = None, self.table.read_ledger(app_id).entry
        # Bytes of a journal that the ledger does not know would follow a gap. So its first byte is recorded
        # before, as by the empty batch 0 of a stream. A crash in between leaves a pinned journal, which the
        # next call continues (decision 0007).
        if first := pinned_journals(newest, begin, end, name):
            # A writer that comes between the two commits makes the second one end with FencedError.
            seen = self.commit(Batch(name, app_id, query, 0, (), (first,)), no_files)
        after = self.commit(Batch(name, app_id, query, 1, (begin,), (end,)), write, seen=seen)
        # A pin alone counts as written: the table's ledger has changed.
        return after != (newest.attempt if newest else None)

    def commit(self, batch: Batch, write: Callable[[], BatchFiles], *, seen: str | None = None) -> str | None:
        """Commit a batch's files with its ledger entry, or find the batch in the table.

        Args:
            batch: What the query asks: the rows between two positions.
            write: Returns the batch's files. It is called at most once, and not for a batch that is skipped
                or refused: it may run the batch's tasks.
            seen: Attempt of the entry on which this writer has decided before, None for its first batch.

        Returns:
            Attempt of the newest entry, which has the batch.

        Raises:
            SinkError: the batch does not continue the table; nothing was written.
        """
        table, about = self.table, f"app_id={batch.app_id} batch_id={batch.batch_id}"
        # Each turn is a whole attempt: read the ledger at a version, decide, commit on that version, look.
        # Only the files are kept from turn to turn. They hold the batch's rows whatever the table's version
        # is, and writing them is what takes the time.
        conflict: Exception | None = None
        written: BatchFiles | None = None
        for _ in range(table.max_attempts):
            # The version to commit on is opened before the ledger is read. So whatever is committed for the
            # app id after the decision is a conflict. Opened later, it would hide a commit in between.
            before = table.read_ledger(batch.app_id)
            # Each attempt has a new name, so that the history shows whose commit an entry is: the same batch
            # may be committed by two processes.
            decision = decide(before, batch, attempt=uuid.uuid4().hex, seen=seen, allowed=self.allowed)
            if isinstance(decision, Refusal):
                raise decision.error from conflict
            if isinstance(decision, Skip):
                # Files of the batch stay as they are: no version refers to them, and clean-up deletes them.
                log.info("batch_skipped %s", about)
                return before.entry.attempt if before.entry else None
            # Another writer may be between its commit of dead letters and that of the rows. DeltaSink fences
            # it off by an entry in the dead letters' table, which this loop does not write.
            if before.entry is not None and before.entry.dead_letters is not None:
                problem = (
                    f"the table was last written with dead letters for {before.entry.dead_letters}, which "
                    "this format cannot close. Before, run a batch by DeltaSink.start without dead_letters, "
                    "which closes them"
                )
                raise DeadLetterError(table.name, batch.app_id, problem)
            # A crash from here on leaves files without a commit, or a commit that nobody has heard of. In
            # both cases Spark runs the batch again, and the ledger decides.
            failpoint("sink.before_write")
            # The files are written at most once, and only for a batch that the table lacks: for ingest this
            # runs the tasks.
            written = write() if written is None else written
            # Files were written for the columns of a version that other processes have opened. Committed to a
            # table that was altered or made again since, they would be read with other columns.
            if written.files and written.shape != table.shape:
                problem = (
                    "it was created again, or its columns changed, while the batch was written. Nothing was "
                    "committed. Start the query again"
                )
                raise TableRefusedError(table.name, problem)
            conflict = table.commit_files(written.files, decision.entry)
            failpoint("sink.after_write")

            # Only the table knows what has become of the commit: a conflict does not reveal whether it
            # succeeded.
            after = table.read_ledger(batch.app_id)
            outcome = verify(before, after, decision.entry, batch, conflict=conflict is not None)
            # Another writer was faster, or a rollback came in between. Both leave the files without a commit.
            if isinstance(outcome, Refusal):
                raise outcome.error from conflict
            # If not, the commit is not there, and no other entry is: a commit of another kind was faster, or
            # the catalog did not answer. The next turn commits the same files on the newest version.
            if isinstance(outcome, Committed):
                log.info("batch_written %s", about)
                if decision.entry.gaps:
                    log.warning("bytes are left out %s %s", about, ranges_text(decision.entry.gaps))
                return decision.entry.attempt
        # On Iceberg any commit of others is a conflict, so a busy table may be faster every time. On Delta
        # mostly commits of this app id are, and changed columns.
        problem = f"batch {batch.batch_id} was turned down {table.max_attempts} times by commits of others"
        last = f"{type(conflict).__name__}: {deltalake_text(conflict)}" if conflict else "no error"
        raise TableRefusedError(table.name, f"{problem}, the last time with {last}") from conflict
