"""Record file operations to a recovery log, and wait until they are durable.

A recorder does not touch files. Its caller reports each operation, and it appends these in the background, in
order. What is recorded is durable when a :meth:`Recorder.barrier` made afterwards has ended well. The
operations of one :meth:`Recorder.begin` are replayed all or not at all.

Each append checks the register ``author``: once another player has handed the log over to another author, the
recorder's appends fail, and so do its barriers, for good. Offsets of recorded operations are not known until
the broker has answered, so the hints of a recorder hold lower bounds.
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
"""Paths that Gazette treats as properties, not as files; RocksDB writes them. They are not recorded here."""


def check_recovery_log(spec: pb.JournalSpec) -> None:
    """Refuse a journal that is not a recovery log.

    Raises:
        OptionError: it has another content type.
    """
    content_types = values_of(spec.labels, CONTENT_TYPE)
    # Operations in a journal of messages would be malformed messages for all of its readers.
    if content_types != [CONTENT_TYPE_RECOVERY_LOG]:
        got = f"journal {spec.name!r} of content type {', '.join(content_types) or 'none'}"
        raise OptionError(
            "recovery_log_prefix", got, f"a journal with {CONTENT_TYPE}={CONTENT_TYPE_RECOVERY_LOG}"
        )


class Operations:
    """Operations of one transaction of a recorder, without others in between. Paths are relative."""

    def __init__(self, recorder: Recorder, append: AsyncAppend) -> None:
        self._recorder = recorder
        self._append = append

    @property
    def fsm(self) -> FSM:
        """The files after the operations so far; not to be changed."""
        return self._recorder._fsm  # A part of the recorder.

    def create(self, path: str) -> int:
        """Record that a file was created, or an old one truncated; return its fnode."""
        path = _file_path(path)
        # An fnode is never used again: a file that is truncated is a new one under the old path. That is also
        # what lets hints leave the old one's operations out.
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
        # Bytes and not items: the view may be one of wider elements.
        length = memoryview(data).nbytes
        self._record(pr.RecordedOp(write=pr.RecordedOp.Write(fnode=fnode, offset=offset, length=length)))
        # The bytes follow the operation's frame, in the same append. Appends are atomic, so no other
        # recorder's operation can come between them.
        self._append.write(data)

    def remove(self, path: str) -> None:
        """Record that a path was removed; its file, with its last path.

        Raises:
            ValueError: there is no such file.
        """
        path = _file_path(path)
        self._record(pr.RecordedOp(unlink=pr.RecordedOp.Link(fnode=self._fnode_of(path), path=path)))

    def link(self, path: str, target: str) -> None:
        """Record that a file got another path.

        Raises:
            ValueError: the file does not exist, or another one has the path.
        """
        fnode, target = self._fnode_of(_file_path(path)), _file_path(target)
        self._record(pr.RecordedOp(link=pr.RecordedOp.Link(fnode=fnode, path=target)))

    def rename(self, path: str, target: str) -> None:
        """Record that a file got another path in place of one; a file that had that path lost it.

        Raises:
            ValueError: there is no such file.
        """
        path, target = _file_path(path), _file_path(target)
        fnode = self._fnode_of(path)
        if path == target:
            return
        # Unlink, link, unlink in one append: a player that stopped after the first of them would have neither
        # file under the target path.
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
    """Appends operations on the files of one directory to a recovery log, see the module. Thread-safe.

    It uses an append service, and does not close it. A service whose recorder was fenced cannot append to
    that log any more: a shard that is assigned again needs a new service.
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
        """Continue what a player has recovered, and wait for the log's write head.

        Args:
            log: the journal to append to.
            fsm: of the player. If it was of another log, this one is taken over.
            author: whom the player has handed the log over to.
            directory: where the files are.
            service: appends.
            timeout_s: seconds to wait for the broker; None: as long as it takes.

        Raises:
            GazetteError: the log cannot be appended to.
        """
        self.log = log
        # Paths in the log are relative to it, so the files may be in another place on the next host.
        self.directory = Path(directory)
        if not self.directory.is_absolute():
            raise OptionError("directory", repr(str(directory)), "an absolute path")
        self.author = author
        self._fsm = fsm
        self._service = service
        # Without a condition at first: the register may not be set yet, where this recorder follows a log of
        # another name.
        self._options = AppendOptions(log)
        self._recent: AsyncAppend | None = None
        # Lower bound of the offsets of operations from now on. Hints need no more: a player skips what comes
        # before the operation that they name.
        self._write_head = 0
        self._broken: BaseException | None = None
        # An append without bytes is answered with the write head. Without it, the first segments would begin
        # at offset 0, and hints of them would have a player read the whole log.
        self.barrier().result(timeout_s)
        # The player has handed over the log that it has read, which is not this one. So this one gets its
        # first operation here, with the register that fences other recorders off.
        if fsm.last_log != log:
            fence = AppendOptions(log, union_registers=fence_of(author))
            with service.start_append(fence) as append:
                self._process(pr.RecordedOp(), append)
        # From here on every append has the condition. The broker checks it at the moment of the append, so a
        # process that was stopped for an hour and wakes up cannot write into its successor's history.
        self._options = AppendOptions(log, check_registers=pb.LabelSelector(include=fence_of(author)))

    def __repr__(self) -> str:
        return f"Recorder({self.log!r}, author={self.author}, directory={str(self.directory)!r})"

    @contextmanager
    def begin(self) -> Iterator[Operations]:
        """Record the operations of a with block, all or none. Other threads wait meanwhile.

        Where the block raises after its first operation, the recorder cannot be used any more: files and log
        may differ.

        Raises:
            ClosedError: an earlier block has raised.
        """
        with self._append() as append:
            yield Operations(self, append)

    def barrier(self, wait_for: Iterable[OpFuture | AsyncAppend] = ()) -> AsyncOperation[None]:
        """Return an operation that ends when all recorded before is durable.

        What is recorded later is appended only after all of ``wait_for`` have ended well. If one of them
        fails, so do this operation and all later ones.

        It fails with a RecorderFencedError if another author has the log.
        """
        # An append without bytes still takes its turn behind all earlier ones, and fails if the register
        # names another author: its end proves both durability and ownership.
        with self._append(wait_for) as append:
            pass
        return self._ended(append)

    def build_hints(self, timeout_s: float | None = None) -> pr.FSMHints:
        """Return hints from which a player gets to all that is recorded; waits until that is durable.

        Raises:
            RecorderFencedError: another author has the log.
            TimeoutError: it took too long.
        """
        hints, durable = self.begin_hints()
        durable.result(timeout_s)
        return hints

    def begin_hints(self) -> tuple[pr.FSMHints, AsyncOperation[None]]:
        """Return hints, and the operation after which they may be used."""
        with self._append() as append:
            # Built while no other thread can record, so they are those of one moment. They may be used when
            # the empty append is done, as then all that they name is in the log.
            hints = self._fsm.build_hints(self.log)
        return hints, self._ended(append)

    @property
    def paths(self) -> list[str]:
        """Paths of the recorded files, relative to the directory."""
        with self._append():
            return sorted(path.removeprefix("/") for path in self._fsm.links)

    def disable_register_checks(self) -> None:
        """Do not check the author from now on. For tests of logs with more than one history."""
        self._options = AppendOptions(self.log)

    @contextmanager
    def _append(self, wait_for: Iterable[OpFuture | AsyncAppend] = ()) -> Iterator[AsyncAppend]:
        """Hold the right to append, as the log's only writer."""
        # The turn in the journal's queue is the lock of the state machine: whoever has it is the only one who
        # records, and operations get their numbers in the order in which they are appended.
        with self._service.start_append(self._options, dependencies=wait_for) as append:
            # Numbers were given to operations that the log may not have. What would be recorded next could
            # never be played.
            if self._broken is not None:
                raise ClosedError(f"recorder of log {self.log!r}", f"it failed before: {self._broken}")
            # Learn the write head from an append that has ended: operations from now on are behind it.
            recent = self._recent
            if recent is None:
                self._recent = append
            # A lower bound that is a few appends old costs a player a few operations more, so not every
            # append is watched.
            elif recent.done():
                if recent.future.exception() is None:
                    result = recent.response
                    # A broker whose journal ends before what it acknowledged has lost bytes. To go on would
                    # overwrite offsets that hints name.
                    if result.begin < self._write_head:
                        problem = f"an append was done at {result.begin}, before this offset"
                        raise RecoveryLogLossError(self.log, self._write_head, problem)
                    self._write_head = result.end
                self._recent = append
            # A block that raises before its first operation has changed nothing, and may be repeated.
            before = self._fsm.next_seq_no
            try:
                yield append
            except BaseException as error:
                if self._fsm.next_seq_no != before:
                    self._broken = error
                raise

    def _process(self, op: pr.RecordedOp, append: AsyncAppend) -> None:
        # The chain: each operation has the number and the checksum that follow from all before it.
        op.author, op.seq_no, op.checksum = self.author, self._fsm.next_seq_no, self._fsm.next_checksum
        framed, payload = encode(op)
        # Only for the state machine. These fields are not in the log, because a recorder does not know the
        # offset before the broker answers.
        op.first_offset, op.log = self._write_head, self.log
        # The recorder applies its own operations, so that it refuses at once what every player would refuse
        # later.
        verdict = self._fsm.apply(op, payload)
        if verdict is not Verdict.APPLIED:
            raise ValueError(f"log {self.log!r}: the operation cannot be recorded: {verdict.value}: {op}")
        append.write(framed)

    def _ended(self, append: AsyncAppend) -> AsyncOperation[None]:
        operation: AsyncOperation[None] = AsyncOperation()

        def end(done: AsyncAppend) -> None:
            error = done.exception()
            # The only cause is another author. The store's commit fails with it, and so does the shard, which
            # a host may start again.
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
    """A file open for writing. As a context manager it is closed at the end."""

    def __init__(self, recorder: Recorder, path: Path, fnode: int) -> None:
        self._recorder = recorder
        self._fnode = fnode
        self._file = path.open("r+b", buffering=0)

    def write(self, data: Bytes) -> int:
        """Write bytes at the file's position, which is its beginning at first; return how many."""
        offset = self._file.tell()
        view = memoryview(data).cast("B")
        done = 0
        # A raw file may write less than it was given.
        while done < len(view):
            done += self._file.write(view[done:])
        # File first, then log. A crash in between leaves a file that the log does not have; files of a
        # crashed host are thrown away and built from the log.
        with self._recorder.begin() as operations:
            operations.write(self._fnode, offset, view)
        return done

    def seek(self, offset: int) -> None:
        """Write next at an offset."""
        self._file.seek(offset)

    def sync(self, timeout_s: float | None = None) -> None:
        """Wait until all that was written is in the recovery log."""
        self._recorder.barrier().result(timeout_s)

    def close(self) -> None:
        """Close the file; may be called again."""
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
        # A file with other links is another file from now on, as in the log.
        path.unlink(missing_ok=True)
        # A state may hold what not every user of the host may read.
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
        """Rename a file, in place of another one if there is one."""
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).replace(self.path(target))
        with self.recorder.begin() as operations:
            operations.rename(name, target)

    def link(self, name: str, target: str) -> None:
        """Give a file another path."""
        self.path(target).parent.mkdir(parents=True, exist_ok=True)
        self.path(target).hardlink_to(self.path(name))
        with self.recorder.begin() as operations:
            operations.link(name, target)

    def remove(self, name: str) -> None:
        """Remove a path; its file, with its last path."""
        self.path(name).unlink()
        with self.recorder.begin() as operations:
            operations.remove(name)
