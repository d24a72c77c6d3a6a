"""Commits batches to a table if tasks write their rows as files: one commit for files and ledger entry.

The decisions do not depend on the table format. :class:`LedgerTable` has what depends on it: it reads the
ledger and commits files and an entry as a compare-and-set. Delta and Iceberg tables implement it.

The steps are those of :class:`~gazette_spark.sink.DeltaSink`, reduced to files: no rows are trimmed, counted
or sent to dead letters.
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
from gazette_spark.errors import DeadLetterError, OffsetError, TableRefusedError
from gazette_spark.failpoints import failpoint
from gazette_spark.offsets import JournalOffsets, check_forward

log = logging.getLogger(__name__)


class LedgerTable(Protocol):
    """A table to which data files are committed together with ledger entries."""

    name: str
    """Name of the table in errors."""

    max_attempts: int
    """Maximum number of attempts to commit one batch, because commits of others may be faster."""

    @property
    def shape(self) -> str:
        """Identity, columns, partitions and location of the opened table, which files have to fit."""
        ...

    def read_ledger(self, app_id: str) -> LedgerState:
        """Open the newest version of the table, and return the state of an app id's ledger in it.

        The next commit is made on this version, so anything committed for the app id after it is a conflict.
        """
        ...

    def commit_files(self, files: Sequence[Any], entry: LedgerEntry) -> Exception | None:
        """Commit data files and a ledger entry on the opened version.

        Args:
            files: Descriptions of the files, as rows of ``FILES_SCHEMA``.
            entry: Ledger entry of the rows in the files.

        Returns:
            The conflict, if there is one. A conflict does not reveal whether the commit succeeded.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The data files of a batch."""

    files: Sequence[Any]
    """Descriptions of the files, as rows of ``FILES_SCHEMA``."""
    shape: str
    """Shape of the table for which they were written."""


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
        """Commit a batch that a query has planned, unless the table already has it.

        Args:
            checkpoint: Reader of the files of the query checkpoint.
            root: Directory of the query checkpoint.
            batch_id: Number of the batch in that checkpoint.
            query_id: Id of the query that has run the batch's tasks; None if the tasks do not name it.
            written: The batch's files.

        Raises:
            QueryCheckpointError: the checkpoint does not contain the batch, or belongs to another query.
            SinkError: the batch does not continue the table; nothing was written.
        """
        failpoint("sink.entry")
        # Each commit runs in a new process, so nothing is remembered between batches. Therefore this writer
        # cannot compare the newest entry with the last one that it saw, and it notices a second writer only
        # by its offsets (decision 0044).
        batches = QueryBatches(self.table.name, self.app_id)
        batch = batches.read(checkpoint, root, batch_id, query_id)
        self.commit(batch, lambda: written)
        failpoint("sink.return")

    def commit_range(
        self, begin: JournalOffsets, end: JournalOffsets, write: Callable[[], BatchFiles]
    ) -> bool:
        """Commit the rows of an offset range, unless the table already has them.

        Journals that are new to the table are pinned first, by a separate commit without rows. A failed call
        may be repeated.

        Args:
            begin: First byte of each journal.
            end: The byte after the last one, for the same journals.
            write: Returns the files of the range's rows; see :meth:`commit`.

        Returns:
            Whether an entry was written. If not, the table already had the whole range.

        Raises:
            OffsetError: ``begin`` and ``end`` name different journals, or an end is before its start.
            SinkError: the range does not continue the table; nothing was written.
        """
        if begin.read_through.keys() != end.read_through.keys():
            raise OffsetError("the start and the end of the batch name different journals")
        check_forward(begin, end)
        # Each call is a separate query with a unique id, so only the offsets show whether a repeated call has
        # to write anything.
        name, app_id, query = self.table.name, self.app_id, f"batch-{uuid.uuid4().hex}"
        seen, newest = None, self.table.read_ledger(app_id).entry
        # Bytes of a journal that is not in the ledger would look like bytes after a gap. Therefore its first
        # byte is recorded first, as the empty batch 0 of a stream does it. A crash in between leaves a pinned
        # journal, which the next call continues (decision 0007).
        if first := pinned_journals(newest, begin, end, name):
            # If another writer commits between the two commits, the second one ends with FencedError.
            seen = self.commit(Batch(name, app_id, query, 0, (), (first,)), no_files)
        after = self.commit(Batch(name, app_id, query, 1, (begin,), (end,)), write, seen=seen)
        # A pin alone counts as an entry, because it has changed the table's ledger.
        return after != (newest.attempt if newest else None)

    def commit(self, batch: Batch, write: Callable[[], BatchFiles], *, seen: str | None = None) -> str | None:
        """Commit a batch's files with its ledger entry, unless the table already has the batch.

        Args:
            batch: The range of the batch, and where it comes from.
            write: Returns the batch's files, and may run the batch's tasks for that. It is called at most
                once, and not at all for a batch that is skipped or refused.
            seen: Attempt of the newest entry after this writer's last batch; None for its first batch.

        Returns:
            Attempt of the newest entry. The table now has the batch.

        Raises:
            SinkError: the batch does not continue the table; nothing was written.
        """
        table, about = self.table, f"app_id={batch.app_id} batch_id={batch.batch_id}"
        # Each iteration is a complete attempt: read the ledger at a version, decide, commit on that version,
        # and check the outcome. Only the files are kept from one iteration to the next: they contain the
        # batch's rows regardless of the table's version, and writing them takes most of the time.
        conflict: Exception | None = None
        written: BatchFiles | None = None
        # A catalog may make a commit after this process, or a proxy, has stopped waiting for its answer. Such
        # a commit is not another writer's.
        given_up: set[str] = set()
        for _ in range(table.max_attempts):
            # The version to commit on is opened before the ledger is read, so anything that is committed for
            # the app id after the decision is a conflict. A version that is opened later could hide a commit
            # in between.
            before = table.read_ledger(batch.app_id)
            if before.entry is not None and before.entry.attempt in given_up:
                seen = before.entry.attempt
            # Each attempt has a new name, so that the history shows which process committed an entry: two
            # processes may try to commit the same batch.
            decision = decide(before, batch, attempt=uuid.uuid4().hex, seen=seen, allowed=self.allowed)
            if isinstance(decision, Refusal):
                raise decision.error from conflict
            if isinstance(decision, Skip):
                # Files of the batch may exist already. No version refers to them, so clean-up deletes them.
                log.info("batch_skipped %s", about)
                return before.entry.attempt if before.entry else None
            # Another writer may be between its commit of dead letters and its commit of rows. DeltaSink
            # fences such a writer with an entry in the dead letters' table, which this loop does not write.
            if before.entry is not None and before.entry.dead_letters is not None:
                problem = (
                    f"the table was last written with dead letters for {before.entry.dead_letters}, which "
                    "this format cannot close. First run a batch by DeltaSink.start without dead_letters, "
                    "which closes them"
                )
                raise DeadLetterError(table.name, batch.app_id, problem)
            # A crash from here on leaves files without a commit, or a commit that Spark has not recorded. In
            # both cases Spark runs the batch again, and the ledger decides.
            failpoint("sink.before_write")
            # The files are written at most once, and only for a batch that the table lacks. For ingest, this
            # step runs the tasks.
            written = write() if written is None else written
            # The files were written for the columns of the version that other processes have opened. If they
            # were committed to a table that has since been altered or created again, they would be read with
            # other columns.
            if written.files and written.shape != table.shape:
                problem = (
                    "it was created again, its columns changed, or its files got a new location, while the "
                    "batch was written. Nothing was committed. Start the query again"
                )
                raise TableRefusedError(table.name, problem)
            conflict = table.commit_files(written.files, decision.entry)
            failpoint("sink.after_write")

            # Only the table shows the outcome of the commit, because a conflict does not reveal whether it
            # succeeded.
            after = table.read_ledger(batch.app_id)
            outcome = verify(before, after, decision.entry, batch, conflict=conflict is not None)
            # Another writer was faster, or the table was rolled back in between. In both cases the files have
            # no commit.
            is_own = after.entry is not None and after.entry.attempt in given_up
            if isinstance(outcome, Refusal) and not is_own:
                raise outcome.error from conflict
            given_up.add(decision.entry.attempt)
            # Otherwise neither this commit nor another entry is in the table: a commit of another kind was
            # faster, or the catalog did not answer. The next iteration commits the same files on the newest
            # version.
            if isinstance(outcome, Committed):
                log.info("batch_written %s", about)
                if decision.entry.gaps:
                    log.warning("bytes are left out %s %s", about, ranges_text(decision.entry.gaps))
                return decision.entry.attempt
        # On Iceberg, any commit of others is a conflict, so on a busy table others may be faster every time.
        # On Delta, mostly commits of the same app id and changed columns are conflicts. A catalog that cannot
        # read a commit's request may answer as if the outcome were unknown.
        problem = f"batch {batch.batch_id} was not committed in {table.max_attempts} attempts"
        last = f"{type(conflict).__name__}: {deltalake_text(conflict)}" if conflict else "no error"
        reasons = "Commits of others were faster each time, or the catalog does not accept this commit"
        raise TableRefusedError(
            table.name, f"{problem}, the last of which ended with {last}. {reasons}"
        ) from conflict
