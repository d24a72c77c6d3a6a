"""Commits a primary's entries to a log, and makes its checkpoints.

A writer is passive until its first append, which takes over the log: it sets the register ``author``, and
after that the previous writer is fenced. Entries go through an
:class:`~gazette_spark.client.AppendService`: concurrent entries share an append, and each is retried until
the broker answers. Appends that change registers are made separately by :meth:`Writer._change`: after an
attempt without an answer, it reads the registers, which show whether the attempt succeeded.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gazette_spark.client import AppendOptions, AppendResult, AppendService, AsyncAppend, Client
from gazette_spark.client._append.append import Bytes
from gazette_spark.client._append.queue import attempt_timeout_s, is_terminal
from gazette_spark.client._transport import retry
from gazette_spark.errors import (
    AppendWaitError,
    CheckpointStateError,
    ClosedError,
    GazetteError,
    LogFencedError,
    PendingEntryError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
from gazette_spark.message.uuids import OUTSIDE_TXN, Clock, build_uuid, new_producer_id
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.replicated_log import _registers as reg
from gazette_spark.replicated_log._entries import (
    NO_ENTRY,
    check_size,
    checkpoint_frame,
    entry_frame,
    take_over_frame,
)
from gazette_spark.replicated_log._journal import ensure_journal, read_records


class Gate:
    """Lets many entries pass concurrently, or one checkpoint. Thread-safe.

    A waiting checkpoint goes before all later entries, so checkpoints are made regardless of the number of
    entries. Entries are counted and not bound to a thread: an entry leaves when its broker has answered, in
    another thread. The gate is not reentrant: a thread that closed it may not enter.
    """

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._changed = threading.Condition()
        # Entries that have entered and whose broker has not answered yet. A checkpoint must not be between an
        # entry and its place in the log, because it names the entries before it.
        self._inside = 0
        # Waiting checkpoints. Each keeps later entries out. Otherwise a steady flow of entries would never
        # leave a gap.
        self._closing = 0
        self._holder: threading.Thread | None = None
        """The thread that has closed it. Its id would not do, because a later thread may reuse it."""

    def __repr__(self) -> str:
        state = "closed" if self._holder else f"inside={self._inside}, closing={self._closing}"
        return f"Gate({self._journal!r}, {state})"

    @property
    def closed(self) -> bool:
        """Whether a thread has closed it."""
        return self._holder is not None

    def enter(self, timeout_s: float | None = None) -> None:
        """Enter when no thread has closed it or waits to close it.

        Raises:
            CheckpointStateError: the thread itself has closed it.
            AppendWaitError: it did not open in time.
        """
        with self._changed:
            self._refuse_holder("an entry")
            if not self._changed.wait_for(lambda: not (self._holder or self._closing), timeout_s):
                problem = "a checkpoint is in progress; the entry was not appended"
                raise AppendWaitError(self._journal, timeout_s or 0.0, problem)
            # The gate is checked and entered under one lock, so no entry is missed by a checkpoint that
            # begins now.
            self._inside += 1

    def leave(self) -> None:
        """Leave, in any thread."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self, timeout_s: float | None = None) -> None:
        """Admit no more entries, and close the gate when all have left.

        Raises:
            CheckpointStateError: the thread itself has closed it.
            AppendWaitError: not all left in time. The gate is open again.
        """
        with self._changed:
            self._refuse_holder("another checkpoint")
            self._closing += 1
            try:
                if not self._changed.wait_for(lambda: not (self._holder or self._inside), timeout_s):
                    problem = f"{self._inside} entries are pending, or another checkpoint is in progress"
                    raise AppendWaitError(self._journal, timeout_s or 0.0, problem)
                self._holder = threading.current_thread()
            finally:
                # After a timeout, too, entries that wait for the checkpoint may enter again.
                self._closing -= 1
                self._changed.notify_all()

    def open(self) -> None:
        """Open it again, from any thread.

        Raises:
            CheckpointStateError: it is not closed.
        """
        with self._changed:
            if self._holder is None:
                raise CheckpointStateError(self._journal, "no checkpoint is prepared")
            self._holder = None
            self._changed.notify_all()

    def _refuse_holder(self, what: str) -> None:
        if self._holder is threading.current_thread():
            problem = f"a thread that has prepared a checkpoint would wait for itself with {what}"
            raise CheckpointStateError(self._journal, problem)


Build = Callable[[uuid.UUID, int], bytes]
"""Returns a record's frame from its UUID and the write head before it."""


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """The position of a record, ``[begin, end)``."""

    begin: int
    end: int


class Writer:
    """Appends a primary's entries and checkpoints to a log. Thread-safe, but see :meth:`prepare_checkpoint`.

    It belongs to the process that made it. A fenced writer stays fenced: to take over the log again, read it
    to its end and make a new writer.
    """

    def __init__(
        self,
        client: Client,
        journal: str,
        *,
        spec: pb.JournalSpec | None = None,
        timeout_s: float | None = None,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Make a writer, and the journal if it is missing, without an append.

        Args:
            client: Makes the calls. The caller closes it.
            journal: Name of the log.
            spec: Spec of a new journal, such as stores and replication; its content type is set here.
            timeout_s: Default seconds for a call, by default the client's.
            unix_ns: Returns the time for the entries' clocks.

        Raises:
            OptionError: the journal is not a log, or is read-only.
        """
        # Do this now rather than with the first entry, when the caller has already announced itself as the
        # primary.
        ensure_journal(client, journal, spec, pb.JournalSpec.O_RDONLY)
        self.journal = journal
        self._client = client
        self._timeout_s = client.timeout_s if timeout_s is None else timeout_s
        self._unix_ns = unix_ns
        # Each writer has a new name, which is never stored: a restarted process must not be taken for its
        # predecessor, which may still run.
        self._producer = new_producer_id()
        self.author = self._producer.hex()
        """Name of this writer: the producer id in its UUIDs, and its value of the register."""
        self._clock = Clock(0)
        self._gate = Gate(journal)
        # There is no timeout: an entry is retried until the broker answers or the writer is closed. So an
        # entry that was not acknowledged is pending, and is never given up silently.
        self._service = AppendService(client)
        # Each entry checks that the register still names this writer. The check and the append are one step
        # at the broker, so no entry of a fenced writer can follow a takeover.
        self._options = AppendOptions(journal, check_registers=reg.author_check(self.author))
        # One thread takes the log over, or makes a checkpoint. Others wait for its outcome instead of
        # competing with it.
        self._claiming = threading.Lock()
        self._claimed = False
        self._fenced: LogFencedError | None = None
        # For the clock and the offsets, which threads of callers and of the service change.
        self._lock = threading.Lock()
        self._acknowledged = 0
        """Largest known end of a record: later records begin there or after it."""
        self._last: int | None = None
        """First offset of this writer's last entry."""
        self._closed = False

    def __repr__(self) -> str:
        return f"Writer({self.journal!r}, author={self.author!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(abort=error is not None)

    def close(self, *, abort: bool = False) -> None:
        """End the writer. May be called again.

        Args:
            abort: Do not wait for pending entries, which may be in the log or not.
        """
        self._closed = True
        self._service.close(abort=abort or self._fenced is not None)

    def take_over(self, *, version: int | None = None, timeout_s: float | None = None) -> int:
        """Fence the previous writer, and return the offset at which its entries end.

        A secondary that becomes primary calls this first. Then it fetches until there are no more messages:
        after that it has everything that was ever acknowledged. Without this call the first entry or
        checkpoint takes over.

        Args:
            version: The log's version, to restore it if all brokers of the journal were lost with its
                registers.
            timeout_s: Seconds that the call may take.

        Raises:
            LogFencedError: another writer has taken over the log, concurrently or later.
            InvalidVersionError: the log has another version.
        """
        deadline = self._deadline(timeout_s)
        with self._claiming:
            self._check_usable()
            span = self._claim(take_over_frame, deadline, restored=version)
        # The log is already taken over, and there is no record whose end could be returned. An append without
        # bytes is behind all answered appends.
        return span.end if span is not None else self._barrier(deadline).end

    def commit_entry(self, data: Bytes, timeout_s: float | None = None) -> int:
        """Append an entry, wait until it is durable, and return the offset at which it begins.

        Entries of different threads do not wait for each other.

        Args:
            data: Content of at most MAX_ENTRY_BYTES.
            timeout_s: Seconds to wait, by default the writer's.

        Raises:
            PendingEntryError: the broker has not answered in time. The entry may be in the log now or later:
                it is still retried, and the next checkpoint waits for it.
            AppendWaitError: a checkpoint, or another thread's takeover, took too long. Nothing was appended.
            LogFencedError: another writer has taken over the log. The entry may be in the log if an earlier
                attempt got no answer.
            OptionError: the entry is too long.
        """
        check_size(data)
        deadline = self._deadline(timeout_s)
        self._check_usable()
        # Enter the gate first: an entry inside keeps checkpoints waiting until its broker has answered.
        self._gate.enter(self._left_s(deadline))
        started: AsyncAppend | None = None
        try:
            # The first entry takes the log over, in one append with its content. So a writer that never
            # writes does not fence anybody.
            if not self._claimed:
                span = self._claim_with(data, deadline)
                if span is not None:
                    return span.begin
            with self._service.start_append(self._options) as appending:
                # A stamp that was taken before the turn could be appended after a later one. Readers would
                # drop its record as a repetition, because its clock is not above the one before it.
                appending.write(entry_frame(self._stamp(), self._acknowledged, data))
            # After this, the entry leaves the gate by its callback, when the broker has answered, even if
            # this caller stops waiting earlier.
            started = appending
        finally:
            if started is None:
                self._gate.leave()
        started.add_done_callback(self._done)
        try:
            # The service retries without a limit. Only this caller's wait has one.
            error = started.exception(self._left_s(deadline))
        except TimeoutError:
            waited_s = self._timeout_s if timeout_s is None else timeout_s
            problem = "the entry has not been acknowledged; it is pending, and may be in the log now or later"
            raise PendingEntryError(self.journal, waited_s, problem) from None
        # The broker refused the entry because the register names another author. An earlier attempt of the
        # same entry may have been accepted before the takeover.
        if isinstance(error, RegisterMismatchError):
            author = "unknown"
            # The name is only information for the error. That this writer is fenced is certain without it.
            with suppress(GazetteError):
                author = reg.LogRegisters.of(self._barrier(deadline).registers).author
            self._fenced = self._fenced or LogFencedError(self.journal, author)
            raise self._fenced from error
        if error is not None:
            raise error
        # The append was accepted, but a broker that has lost the registers, with all replicas, accepts any
        # check.
        self._check_author(started.response.registers)
        return started.span[0]

    def prepare_checkpoint(self, timeout_s: float | None = None) -> None:
        """Withhold new entries, and wait until the pending ones are acknowledged or have failed.

        Not reentrant: until :meth:`exit_checkpoint` the thread may not commit an entry.

        Raises:
            AppendWaitError: an entry is still pending after ``timeout_s``, by default the writer's. New
                entries are no longer withheld.
            CheckpointStateError: the thread has already prepared a checkpoint.
        """
        self._check_usable()
        # When this returns, all entries of this writer have their places, and no others are on their way.
        self._gate.close(self._timeout_s if timeout_s is None else timeout_s)

    def checkpoint(self, version: int, timeout_s: float | None = None) -> int:
        """Append a checkpoint, and return the offset of the next entry: the end of the checkpoint's record.

        The log's version becomes ``version + 1``; that of a new log is 0. Call this between
        :meth:`prepare_checkpoint` and :meth:`exit_checkpoint`. If it fails, entries are admitted again.

        Raises:
            InvalidVersionError: the log is not at ``version``. Nothing was appended.
            LogFencedError: another writer has taken over the log.
            PendingEntryError: the broker has not answered in time. The checkpoint may have been made.
            CheckpointStateError: no checkpoint is prepared.
        """
        if not self._gate.closed:
            raise CheckpointStateError(self.journal, "no checkpoint is prepared")

        def build(stamp: uuid.UUID, head: int) -> bytes:
            # This writer has recorded its last entry. If it has not written one, the last is another
            # writer's, or there is none.
            last = self._last if self._last is not None else self._last_in_log(head)
            return checkpoint_frame(stamp, head, last=last, version=version + 1)

        try:
            self._check_usable()
            deadline = self._deadline(timeout_s)
            with self._claiming:
                if not self._claimed:
                    # Another writer may append faster than a checkpoint is made, so first take over the log,
                    # but not at a wrong version, for which `next_step` raises.
                    current = reg.LogRegisters.of(self._barrier(deadline).registers)
                    change = reg.Change(self.author, current.author, version)
                    reg.next_step(self.journal, change, current, tried=False)
                    if current.author:
                        self._change(take_over_frame, deadline)
                span = self._change(build, deadline, expected_version=version)
            assert span is not None  # Only a takeover without an expected version may find itself done.
            # A checkpoint counts as the last entry before the next one.
            self._note(span, is_entry=True)
            return span.end
        # After a failed checkpoint, other threads' entries must not be withheld.
        except BaseException:
            self._gate.open()
            raise

    def exit_checkpoint(self) -> None:
        """Admit entries again. A pending entry stays pending.

        Raises:
            CheckpointStateError: no checkpoint is prepared, or it has failed.
        """
        self._gate.open()

    @contextmanager
    def checkpointing(self, version: int) -> Iterator[int]:
        """Prepare a checkpoint, make it, and admit entries again at the end of the block.

        It yields the offset of the next entry. Store that with a snapshot taken in the block.
        """
        self.prepare_checkpoint()
        # Outside the `try`: if this fails, the gate is open already.
        at = self.checkpoint(version)
        try:
            yield at
        finally:
            self.exit_checkpoint()

    def _last_in_log(self, head: int) -> int:
        """Return the first offset of the last entry before ``head``. Fragments begin with records."""
        # From the newest fragment back, because the last entry is near the end. A fragment has whole appends,
        # so it begins with a record and can be read by itself.
        for listed in reversed(self._client.list_fragments(self.journal)):
            last = NO_ENTRY
            for record in read_records(self._client, self.journal, listed.fragment.begin, head):
                if record.content is not None:
                    last = record.begin
            if last != NO_ENTRY:
                return last
            # Fragments may overlap, and all bytes after this one's begin have been read.
            head = min(head, listed.fragment.begin)
        return NO_ENTRY

    def _claim_with(self, data: Bytes, deadline: float) -> RecordSpan | None:
        """Take over the log with an entry; None if it is already taken over and nothing was appended."""
        if not self._claiming.acquire(timeout=self._left_s(deadline)):
            problem = "another thread's takeover has not been acknowledged; the entry was not appended"
            raise AppendWaitError(self.journal, self._timeout_s, problem)
        try:
            self._check_usable()
            span = self._claim(lambda stamp, head: entry_frame(stamp, head, data), deadline)
            if span is not None:
                self._note(span, is_entry=True)
            return span
        finally:
            self._claiming.release()

    def _claim(self, build: Build, deadline: float, *, restored: int | None = None) -> RecordSpan | None:
        # The log is already taken over. The barrier shows whether that is still true: an append without bytes
        # changes nothing, and its answer has the registers.
        if self._claimed and restored is None:
            self._check_author(self._barrier(deadline).registers)
            return None
        return self._change(build, deadline, restored=restored)

    def _done(self, started: AsyncAppend) -> None:
        if started.exception() is None:
            self._note(RecordSpan(*started.span), is_entry=True)
        # Leave last, because a checkpoint may begin after this.
        self._gate.leave()

    def _note(self, span: RecordSpan, *, is_entry: bool) -> None:
        with self._lock:
            # Answers come in any order among threads, so the largest counts. It is written into later
            # records: none of their copies begins before it.
            self._acknowledged = max(self._acknowledged, span.end)
            if is_entry:
                self._last = span.begin if self._last is None else max(self._last, span.begin)

    def _stamp(self) -> uuid.UUID:
        with self._lock:
            # The clock ticks even if the time stands still or goes back, so no two records of this writer
            # have the same clock.
            self._clock = self._clock.updated(self._unix_ns()).ticked()
            return build_uuid(self._producer, self._clock, OUTSIDE_TXN)

    def _change(
        self,
        build: Build,
        deadline: float,
        *,
        expected_version: int | None = None,
        restored: int | None = None,
    ) -> RecordSpan | None:
        """Append once a record that changes the registers; None if they already name this writer.

        An append may have succeeded although its answer is lost. Other appends are simply retried, and
        readers drop the repetition. This one changes registers, so a second attempt would fail its own check,
        which must not look like another writer's success. So each attempt first reads the registers, which
        show whether an earlier one has succeeded.
        """
        # All attempts have the same UUID, with which the record is later found in the log.
        stamp = self._stamp()
        replaces: str | None = self.author if self._claimed else None
        floor: int | None = None
        attempt = 0
        while True:
            # An append without bytes returns the write head and registers after all answered appends. The
            # record cannot be before the first head.
            before = self._barrier(deadline)
            current = reg.LogRegisters.of(before.registers)
            floor = before.end if floor is None else floor
            # The author to replace is read once, in the first round. If it changes later, another writer has
            # taken over meanwhile, and this one must not take the log from it.
            if replaces is None:
                replaces = current.author
                if replaces == self.author and expected_version is None:
                    # An earlier call got no answer, but has succeeded.
                    self._claimed = True
                    return None
            change = reg.Change(self.author, replaces, expected_version, restored)
            try:
                step = reg.next_step(self.journal, change, current, tried=attempt > 0)
            except LogFencedError as error:
                self._fenced = error
                raise
            if step is reg.Step.FIND:
                self._claimed = True
                return self._find(stamp, floor, before.end)
            # Both checks make an attempt fail if anything has changed since the read. A checkpoint also
            # requires its offset, so that it follows the last entry that it covers. A takeover does not,
            # because the writer that it fences may append faster than this one reads.
            options = AppendOptions(
                self.journal,
                offset=0 if expected_version is None else before.end,
                check_registers=reg.check_of(current),
                union_registers=reg.union_of(change),
            )
            try:
                # Make one attempt. The registers are read again before the next.
                result = self._try(options, build(stamp, before.end), deadline)
            except (RegisterMismatchError, WrongAppendOffsetError):
                # Another writer was faster, or an earlier attempt has succeeded: read again.
                self._check_time(deadline, None)
            except GazetteError as error:
                if is_terminal(error, options):
                    raise
                self._pause(attempt, deadline, error)
            else:
                self._claimed = True
                # Brokers that have lost the registers accept any check, and would let two writers append.
                self._check_author(result.registers)
                self._note(RecordSpan(result.begin, result.end), is_entry=False)
                return RecordSpan(result.begin, result.end)
            attempt += 1

    def _find(self, stamp: uuid.UUID, begin: int, end: int) -> RecordSpan:
        """Return the position of a record whose append got no answer.

        Raises:
            PendingEntryError: the record cannot be read at present.
        """
        for record in read_records(self._client, self.journal, begin, end):
            if record.stamp == stamp:
                self._note(RecordSpan(record.begin, record.end), is_entry=False)
                return RecordSpan(record.begin, record.end)
        # For example, a replica that has just joined skips bytes that it does not have. The caller must not
        # append the record again.
        problem = "the record is in the log, but it could not be read there"
        raise PendingEntryError(self.journal, self._timeout_s, problem)

    def _barrier(self, deadline: float) -> AppendResult:
        """Return the write head and registers after all answered appends."""
        options = AppendOptions(self.journal)
        attempt = 0
        while True:
            try:
                return self._try(options, b"", deadline)
            except GazetteError as error:
                if is_terminal(error, options):
                    raise
                self._pause(attempt, deadline, error)
            attempt += 1

    def _try(self, options: AppendOptions, content: bytes, deadline: float) -> AppendResult:
        left_s = self._left_s(deadline)
        # As in the service: an attempt may take half of the time, so that one on a half-open connection
        # leaves time for another.
        timeout_s = min(left_s, attempt_timeout_s(min(left_s, 2 * self._client.timeout_s), len(content)))
        return self._client.try_append(options, [content], timeout_s=max(retry.MARGIN_S, timeout_s))

    def _pause(self, attempt: int, deadline: float, cause: GazetteError) -> None:
        self._check_time(deadline, cause)
        time.sleep(min(retry.backoff_s(attempt), self._left_s(deadline)))

    def _check_time(self, deadline: float, cause: GazetteError | None) -> None:
        self._check_usable()
        # Do not make an attempt that cannot be answered before the deadline: its outcome would be unknown for
        # no benefit.
        if self._left_s(deadline) <= retry.MARGIN_S:
            problem = "the broker has not answered; the record may be in the log now or later"
            raise PendingEntryError(self.journal, self._timeout_s, problem) from cause

    def _check_author(self, registers: pb.LabelSet) -> None:
        try:
            reg.check_author(self.journal, self.author, registers)
        except LogFencedError as error:
            self._fenced = error
            raise

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError(f"writer of log {self.journal!r}", "it is closed")
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _left_s(self, deadline: float) -> float:
        return max(0.0, deadline - time.monotonic())
