"""Records file operations to a recovery log, and waits until they are durable.

A recorder does not touch files. Its caller reports each operation, and the recorder appends the operations in
the background, in order. Recorded operations are durable when a later :meth:`Recorder.barrier` has succeeded.
The operations of one :meth:`Recorder.begin` are replayed together or not at all.

Each append checks the register ``author``: after a player has handed the log over to another author, all
appends and barriers of the recorder fail. Offsets of recorded operations are not known until the broker has
answered, so the hints of a recorder contain lower bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gazette_spark.client._append.append import AppendOptions, Bytes
from gazette_spark.client._append.futures import AsyncOperation, OpFuture
from gazette_spark.client._append.service import AsyncAppend, AsyncJournalClient
from gazette_spark.closing import Closing
from gazette_spark.consumer.recoverylog.fsm import FSM, Verdict
from gazette_spark.consumer.recoverylog.operations import encode, fence_of, recorded_path
from gazette_spark.errors import (
    ClosedError,
    OptionError,
    RecorderFencedError,
    RecoveryLogLossError,
    RegisterMismatchError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, values_of

PROPERTY_PATHS = frozenset({"/IDENTITY"})
"""Paths that Gazette treats as properties, not as files. RocksDB writes them, and they are not recorded
here."""


def check_recovery_log(spec: pb.JournalSpec) -> None:
    """Refuse a journal that is not a recovery log.

    Raises:
        OptionError: the journal has another content type.
    """
    content_types = values_of(spec.labels, CONTENT_TYPE)
    # In a journal of messages, operations would be malformed messages to all readers.
    if content_types != [CONTENT_TYPE_RECOVERY_LOG]:
        got = f"journal {spec.name!r} of content type {', '.join(content_types) or 'none'}"
        raise OptionError(
            "recovery_log_prefix", got, f"a journal with {CONTENT_TYPE}={CONTENT_TYPE_RECOVERY_LOG}"
        )


class Operations:
    """The operations of one transaction of a recorder, which are adjacent in the log. Paths are relative."""

    def __init__(self, recorder: Recorder, append: AsyncAppend) -> None:
        self._recorder = recorder
        self._append = append

    @property
    def fsm(self) -> FSM:
        """The files after the recorded operations. It must not be changed."""
        return self._recorder._fsm  # A part of the recorder.

    def create(self, path: str) -> int:
        """Record that a file was created, or an old one truncated, and return its fnode."""
        path = _file_path(path)
        # An fnode is never reused: a truncated file is a new file with the old path. This also allows hints
        # to omit the operations of the old file.
        if (fnode := self.fsm.links.get(path)) is not None:
            self._record(pr.RecordedOp(unlink=pr.RecordedOp.Link(fnode=fnode, path=path)))
        self._record(pr.RecordedOp(create=pr.RecordedOp.Create(path=path)))
        return self.fsm.links[path]

    def open(self, path: str) -> int:
        """Return the fnode of a file that exists.

        Raises:
            ValueError: there is no such file.
        """
        return self._fnode_of(_file_path(path))

    def write(self, fnode: int, offset: int, data: Bytes) -> None:
        """Record that bytes were written at an offset of a file."""
        # Count bytes, not items, because the view may have wider elements.
        length = memoryview(data).nbytes
        self._record(pr.RecordedOp(write=pr.RecordedOp.Write(fnode=fnode, offset=offset, length=length)))
        # The bytes follow the operation's frame in the same append. Appends are atomic, so no operation of
        # another recorder can come between them.
        self._append.write(data)

    def remove(self, path: str) -> None:
        """Record that a path was removed. The last path of a file also removes the file.

        Raises:
            ValueError: there is no such file.
        """
        path = _file_path(path)
        self._record(pr.RecordedOp(unlink=pr.RecordedOp.Link(fnode=self._fnode_of(path), path=path)))

    def link(self, path: str, target: str) -> None:
        """Record that a file got an additional path.

        Raises:
            ValueError: the file does not exist, or another one has the path.
        """
        fnode, target = self._fnode_of(_file_path(path)), _file_path(target)
        self._record(pr.RecordedOp(link=pr.RecordedOp.Link(fnode=fnode, path=target)))

    def rename(self, path: str, target: str) -> None:
        """Record that a file was renamed. A file that had the new path loses it.

        Raises:
            ValueError: there is no such file.
        """
        path, target = _file_path(path), _file_path(target)
        fnode = self._fnode_of(path)
        if path == target:
            return
        # Unlink, link and unlink in one append: a player that stopped after the first of them would have
        # neither file at the target path.
        if (previous := self.fsm.links.get(target)) is not None:
            self._record(pr.RecordedOp(unlink=pr.RecordedOp.Link(fnode=previous, path=target)))
        self._record(pr.RecordedOp(link=pr.RecordedOp.Link(fnode=fnode, path=target)))
        self._record(pr.RecordedOp(unlink=pr.RecordedOp.Link(fnode=fnode, path=path)))

    def _fnode_of(self, path: str) -> int:
        fnode = self.fsm.links.get(path)
        if fnode is None:
            raise ValueError(f"no file {path!r} is recorded in log {self._recorder.log!r}")
        return fnode

    def _record(self, op: pr.RecordedOp) -> None:
        self._recorder._process(op, self._append)  # A part of the recorder.


class Recorder:
    """Appends operations on the files of one directory to a recovery log; see the module. Thread-safe.

    It uses an append service but does not close it. A service whose recorder was fenced can no longer append
    to that log, so a shard that is assigned again needs a new service.
    """

    def __init__(
        self,
        log: str,
        fsm: FSM,
        author: int,
        directory: str | Path,
        service: AsyncJournalClient,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Continue after a player's recovery, and wait for the log's write head.

        Args:
            log: journal of the log to which to append.
            fsm: the player's state machine. If it is of another log, this recorder takes over ``log``.
            author: author to whom the player has handed over the log.
            directory: directory of the files.
            service: service for appends.
            timeout_s: seconds to wait for the broker; None for as long as necessary.

        Raises:
            GazetteError: an append to the log failed.
        """
        self.log = log
        # Paths in the log are relative to the directory, so the next host may use another one.
        self.directory = Path(directory)
        if not self.directory.is_absolute():
            raise OptionError("directory", repr(str(directory)), "an absolute path")
        self.author = author
        self._fsm = fsm
        self._service = service
        # At first there is no condition, because the register may not be set yet if this recorder continues a
        # log with another name.
        self._options = AppendOptions(log)
        self._recent: AsyncAppend | None = None
        # This is a lower bound of the offsets of later operations. That suffices for hints: a player skips
        # everything before the operation that they name.
        self._write_head = 0
        self._broken: BaseException | None = None
        # An append without bytes returns the write head. Otherwise the first segments would begin at offset
        # 0, and their hints would make a player read the whole log.
        with self._append() as first:
            pass
        self._ended(first).result(timeout_s)
        # The player has handed over the log that it has read, which is a different one. So this log gets its
        # first operation here, with the register that fences off other recorders.
        if fsm.last_log != log:
            # If the answer is lost, the service appends the fence again. It must not take the log back from
            # another recorder that has fenced off this one in between. A log without registers accepts any
            # check, and after the first attempt, the register has this author.
            registers = first.response.registers
            fence = AppendOptions(
                log,
                check_registers=pb.LabelSelector(include=registers if registers.labels else fence_of(author)),
                union_registers=fence_of(author),
            )
            with service.start_append(fence) as append:
                self._process(pr.RecordedOp(), append)
        # After this, every append has the condition. The broker checks it at the time of the append, so a
        # process that wakes up after an hour cannot write into its successor's history.
        self._options = AppendOptions(log, check_registers=pb.LabelSelector(include=fence_of(author)))

    def __repr__(self) -> str:
        return f"Recorder({self.log!r}, author={self.author}, directory={str(self.directory)!r})"

    @contextmanager
    def begin(self) -> Iterator[Operations]:
        """Record the operations of a with block, all or none. Other threads wait meanwhile.

        If the block raises after its first operation, the recorder can no longer be used, because files and
        log may differ.

        Raises:
            ClosedError: an earlier block has raised an error.
        """
        with self._append() as append:
            yield Operations(self, append)

    def barrier(self, wait_for: Iterable[OpFuture | AsyncAppend] = ()) -> AsyncOperation[None]:
        """Return an operation that ends when everything recorded before is durable.

        Later operations are appended only after all of ``wait_for`` have succeeded. If one of them fails,
        this operation and all later ones fail as well.

        It fails with a RecorderFencedError if another author has the log.
        """
        # An append without bytes still waits for all earlier ones, and fails if the register names another
        # author. So its success proves both durability and ownership.
        with self._append(wait_for) as append:
            pass
        return self._ended(append)

    def build_hints(self, timeout_s: float | None = None) -> pr.FSMHints:
        """Return hints with which a player reaches everything recorded, after waiting until it is durable.

        Raises:
            RecorderFencedError: another author has the log.
            TimeoutError: it was not durable in time.
        """
        hints, durable = self.begin_hints()
        durable.result(timeout_s)
        return hints

    def begin_hints(self) -> tuple[pr.FSMHints, AsyncOperation[None]]:
        """Return hints, and the operation after which they may be used."""
        with self._append() as append:
            # Build hints while no other thread can record, so that they describe one moment. They may be used
            # when the empty append is done, because then everything that they name is in the log.
            hints = self._fsm.build_hints(self.log)
        return hints, self._ended(append)

    @property
    def paths(self) -> list[str]:
        """Paths of the recorded files, relative to the directory."""
        with self._append():
            return sorted(path.removeprefix("/") for path in self._fsm.links)

    def disable_register_checks(self) -> None:
        """Stop checking the author. For tests of logs with more than one history."""
        self._options = AppendOptions(self.log)

    @contextmanager
    def _append(self, wait_for: Iterable[OpFuture | AsyncAppend] = ()) -> Iterator[AsyncAppend]:
        """Enter the journal's queue as the log's only writer."""
        # The turn in the journal's queue is the lock of the state machine: only the thread that has it
        # records, and operations get their numbers in the order in which they are appended.
        with self._service.start_append(self._options, dependencies=wait_for) as append:
            # Operations got numbers, but the log may not have them, so later operations could never be
            # played.
            if self._broken is not None:
                raise ClosedError(f"recorder of log {self.log!r}", f"it failed before: {self._broken}")
            # Learn the write head from an append that has ended: later operations are after it.
            recent = self._recent
            if recent is None:
                self._recent = append
            # With a lower bound that is a few appends old, a player reads only a few more operations, so not
            # every append is watched.
            elif recent.done():
                if recent.future.exception() is None:
                    result = recent.response
                    # If a journal ends before an acknowledged append, it has lost bytes. Continuing would
                    # overwrite offsets that hints name.
                    if result.begin < self._write_head:
                        problem = f"an append was done at {result.begin}, before this offset"
                        raise RecoveryLogLossError(self.log, self._write_head, problem)
                    self._write_head = result.end
                self._recent = append
            # A block that raises before its first operation has changed nothing and may be repeated.
            before = self._fsm.next_seq_no
            try:
                yield append
            except BaseException as error:
                if self._fsm.next_seq_no != before:
                    self._broken = error
                raise

    def _process(self, op: pr.RecordedOp, append: AsyncAppend) -> None:
        # Continue the chain: each operation has the number and the checksum that follow from all earlier
        # ones.
        op.author, op.seq_no, op.checksum = self.author, self._fsm.next_seq_no, self._fsm.next_checksum
        framed, payload = encode(op)
        # These fields are only for the state machine. They are not in the log, because a recorder gets
        # the offset only from the broker's answer.
        op.first_offset, op.log = self._write_head, self.log
        # The recorder applies its own operations, so that it immediately refuses what every player would
        # refuse later.
        verdict = self._fsm.apply(op, payload)
        if verdict is not Verdict.APPLIED:
            raise ValueError(f"log {self.log!r}: the operation cannot be recorded: {verdict.value}: {op}")
        append.write(framed)

    def _ended(self, append: AsyncAppend) -> AsyncOperation[None]:
        operation: AsyncOperation[None] = AsyncOperation()

        def end(done: AsyncAppend) -> None:
            error = done.exception()
            # The only cause is another author. Then the store's commit fails, and the shard with it, which a
            # host may start again.
            if isinstance(error, RegisterMismatchError):
                fenced = RecorderFencedError(self.log)
                fenced.__cause__ = error
                error = fenced
            operation.resolve(error)

        append.add_done_callback(end)
        return operation


def _file_path(path: str) -> str:
    path = recorded_path(path)
    if path in PROPERTY_PATHS:
        raise ValueError(f"Gazette does not record {path!r} as a file; choose another name")
    return path


class RecordedFile(Closing):
    """A file that is open for writing. As a context manager, it is closed at the end of the block."""

    def __init__(self, recorder: Recorder, path: Path, fnode: int) -> None:
        self._recorder = recorder
        self._fnode = fnode
        self._file = path.open("r+b", buffering=0)

    def write(self, data: Bytes) -> int:
        """Write bytes at the file's position, initially its beginning, and return their number."""
        offset = self._file.tell()
        view = memoryview(data).cast("B")
        done = 0
        # A raw file may write only a part of the bytes.
        while done < len(view):
            done += self._file.write(view[done:])
        # Write the file first, then the log. A crash in between leaves a file that the log does not have, but
        # files of a crashed host are discarded and rebuilt from the log.
        with self._recorder.begin() as operations:
            operations.write(self._fnode, offset, view)
        return done

    def seek(self, offset: int) -> None:
        """Set the offset of the next write."""
        self._file.seek(offset)

    def sync(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was written is in the recovery log."""
        self._recorder.barrier().result(timeout_s)

    def close(self) -> None:
        """Close the file. This may be called again."""
        self._file.close()


class RecordedFiles:
    """The files of a recorder's directory."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def path(self, name: str) -> Path:
        """Return a file's path on disk."""
        return self.recorder.directory / recorded_path(name).removeprefix("/")

    def create(self, name: str) -> RecordedFile:
        """Create a file, or truncate an old one."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file with other links becomes a separate file, as in the log.
        path.unlink(missing_ok=True)
        # A state may contain data that not every user of the host may read.
        path.touch(0o600)
        with self.recorder.begin() as operations:
            fnode = operations.create(name)
        return RecordedFile(self.recorder, path, fnode)

    def open(self, name: str) -> RecordedFile:
        """Open a file that exists."""
        with self.recorder.begin() as operations:
            fnode = operations.open(name)
        return RecordedFile(self.recorder, self.path(name), fnode)

    def rename(self, name: str, target: str) -> None:
        """Rename a file, replacing another one if there is one."""
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).replace(self.path(target))
        with self.recorder.begin() as operations:
            operations.rename(name, target)

    def link(self, name: str, target: str) -> None:
        """Add a path to a file."""
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        self.path(target).hardlink_to(self.path(name))
        with self.recorder.begin() as operations:
            operations.link(name, target)

    def remove(self, name: str) -> None:
        """Remove a path. The last path of a file also removes the file."""
        self.path(name).unlink()
        with self.recorder.begin() as operations:
            operations.remove(name)
