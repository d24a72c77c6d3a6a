"""Plays a recovery log: rebuilds the files that its operations make, and takes over the log.

A player reads the segments that its hints name, and then the rest of the log. It stages each file by its
fnode in the folder ``.fnodes``, and links all files to their paths when it is done. It ends in one of two
ways:

- *At the write head*, with the files as they are at that time.
- *By a hand-off to an author*. After that, recorders of other authors cannot append to the log.

:meth:`Player.play` shows all steps in order.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from google.protobuf.message import DecodeError

from gazette_spark._formats.fixed import HEADER_BYTES, MAGIC
from gazette_spark.client import Client
from gazette_spark.client._read.reader import RetryReader
from gazette_spark.consumer.recoverylog.fsm import FSM, Verdict
from gazette_spark.consumer.recoverylog.operations import crc32c, encode, fence_of
from gazette_spark.errors import (
    ClosedError,
    OptionError,
    RecordError,
    RecoveryLogLossError,
    UnavailableError,
)
from gazette_spark.protocol import recoverylog_pb2 as pr

_LOGGER = logging.getLogger(__name__)

STAGING = ".fnodes"
"""Folder in the directory that contains the files until all are complete."""

MAX_OPERATION_BYTES = 64 << 20
"""Maximum length of an operation, without the bytes of a write. A longer one means that the log is
damaged."""

AT_HEAD = 0
"""Author 0, which means none: the player ends at the write head without a hand-off."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a player, with which a recorder continues."""

    log: str
    fsm: FSM
    directory: Path
    hints: pr.FSMHints
    """Hints with exact offsets for recovering the same files again."""


class Player:
    """Rebuilds files from a recovery log.

    :meth:`play` blocks one thread until :meth:`inject_handoff` or :meth:`finish_at_write_head` sets
    the ending. Any thread may call these, before or after the player begins. Until then it follows the
    log.
    """

    def __init__(self, client: Client, hints: pr.FSMHints, directory: str | Path) -> None:
        """Make a player. Nothing is read yet.

        Args:
            client: client that reads the log and appends the hand-off.
            hints: hints that name the segments to read, or at least the log.
            directory: directory for the files. It must be missing or empty, and is removed if playing fails.
        """
        self.tailing = threading.Event()
        """Set when the player has read to the head that the log had when it began."""
        self._client = client
        self._hints = hints
        self._directory = Path(directory).absolute()
        self._lock = threading.Lock()
        self._ending: int | None = None
        self._cancelled = False
        self._reader: RetryReader | None = None
        self._follows = False
        """Whether the current reader has no end."""

    def __repr__(self) -> str:
        return f"Player({self._hints.log!r}, {str(self._directory)!r})"

    def inject_handoff(self, author: int) -> None:
        """End the replay by handing the log over to an author; see ``operations.new_author``."""
        if not 0 < author < 1 << 32:
            raise OptionError("author", str(author), "a number from 1 to 4294967295")
        self._end_with(author)

    def finish_at_write_head(self) -> None:
        """End the replay at the log's write head."""
        self._end_with(AT_HEAD)

    def _end_with(self, ending: int) -> None:
        with self._lock:
            if self._ending is not None:
                what = f"player of recovery log {self._hints.log!r}"
                raise ClosedError(what, "its ending was already set")
            # The ending cannot change: a hand-off in progress cannot be undone, and a second author would
            # fence off the first.
            self._ending = ending
            # Interrupt only a reader without end. One that reads up to a head ends by itself, and then the
            # ending is checked.
            if self._reader is not None and self._follows:
                self._reader.cancel()

    def cancel(self) -> None:
        """Make :meth:`play` raise ClosedError. Any thread may call it."""
        with self._lock:
            self._cancelled = True
            if self._reader is not None:
                self._reader.cancel()

    def play(self) -> Recovered:  # noqa: C901, PLR0912, PLR0915 - told in order
        """Play the log, and return the files and their state machine.

        Raises:
            RecoveryLogLossError: required operations are missing from the log.
            RecordError: the log contains something other than an operation.
            OptionError: the directory is not empty.
            ClosedError: the player was cancelled.
            GazetteError: a log cannot be read.
        """
        log, fsm = self._hints.log, FSM(self._hints)
        # Existing files would be mixed with those of the log, and a failure would remove them.
        if self._directory.exists() and any(self._directory.iterdir()):
            expected = "one that is missing or empty, because a failed recovery removes the directory"
            raise OptionError("directory", f"the folder {self._directory} with files", expected)
        playback = None
        try:
            playback = _Playback(fsm, self._directory)

            # Request each log's write head by an append without bytes, which is answered only after all
            # earlier acknowledged appends, even if the journal has moved to another broker. Hints beyond that
            # head mean that the log has lost bytes. A reader would wait for them forever, or mistake other
            # bytes for them.
            logs = {log, *(segment.log for segment in fsm.hinted_segments)}
            heads = {name: self._client.append(name, b"").end for name in logs}
            for segment in fsm.hinted_segments:
                head = heads[segment.log]
                if segment.first_offset >= head or segment.last_offset > head:
                    problem = f"the hints name a segment there, but the log ends at {head}: {segment}"
                    raise RecoveryLogLossError(segment.log, segment.first_offset, problem)

            # Read the segments that the hints name, and nothing between them. The hints of a recorder contain
            # only lower bounds of offsets, so the state machine decides where a segment ends: after its last
            # sequence number. Without hints, everything from the log's beginning on counts.
            if not fsm.hinted_segments:
                # 0 is a lower bound for every log. A reader jumps over bytes that were pruned, which is an
                # error below, because every operation counts here.
                playback.begin(log, 0)
            while fsm.hinted_segments:
                segment = fsm.hinted_segments[0]
                if playback.log != segment.log or playback.offset < segment.first_offset:
                    playback.begin(segment.log, segment.first_offset)
                head = heads[segment.log]
                if playback.position >= head:
                    problem = f"the log ends without an operation that the hints name: {segment}"
                    raise RecoveryLogLossError(segment.log, playback.offset, problem)
                self._read(playback, head, hinted=True)

            # Hints are always older than the log: their recorder continued, and others may have followed it.
            self._read_through(playback, heads[log])
            # This is never cleared: after this, the player follows the log, and reads the rest when it is
            # promoted.
            self.tailing.set()

            # A standby stays here and applies what the primary records, until its ending is set. That
            # cancels its reader, possibly within an operation, at which the next reader continues.
            while self._ending is None:
                try:
                    self._read(playback, None)
                except _Interrupted:
                    pass
                # The shard's status is STANDBY, so others rely on what was played, and it stays valid. The
                # next reader continues after it, and waits for the brokers as long as this one did.
                except UnavailableError as error:
                    _LOGGER.warning("recovery_log.unavailable log=%s cause=%s", log, error)
            author = self._ending

            # Without a hand-off, the current head is the end. With one, this only shortens the following
            # race.
            self._read_through(playback, self._client.append(log, b"").end)
            while author != AT_HEAD:
                # Append an operation without effect, by the new author, that continues the chain as
                # it was read here. The same append sets the register `author`, so that appends of all other
                # recorders fail after this. Then read through the operation. If the chain ends with it, no
                # operation before it was missed. Otherwise, another recorder has appended meanwhile. Its
                # operations are applied now, and no more can come from it. Other players may do the same, so
                # repeat this until the chain ends with the operation.
                #
                # A lost answer makes the client append the operation twice. Between the two, another player
                # may have taken the log over and its recorder may have appended, so the copy that fits need
                # not be the end.
                noop = pr.RecordedOp(seq_no=fsm.next_seq_no, checksum=fsm.next_checksum, author=author)
                framed, payload = encode(noop)
                handed_over = noop.seq_no + 1, crc32c(payload, noop.checksum)
                self._read_through(
                    playback, self._client.append(log, framed, union_registers=fence_of(author)).end
                )
                if (fsm.next_seq_no, fsm.next_checksum) == handed_over:
                    break

            # Link the files only now, so that a directory with files is complete.
            playback.link_files()
        except BaseException:
            if playback is not None:
                playback.close()
            # An incomplete recovery is useless, and the next attempt needs an empty directory.
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        _LOGGER.info(
            "recovery_log.recovered log=%s files=%d next_seq_no=%d",
            fsm.last_log,
            len(fsm.nodes),
            fsm.next_seq_no,
        )
        return Recovered(log, fsm, self._directory, fsm.build_hints(fsm.last_log))

    def _read_through(self, playback: _Playback, end: int) -> None:
        """Read to an offset."""
        # A standby may have read bytes that the log has lost since then. Hand-offs would take their place,
        # and the next recovery would lack their operations.
        if end < playback.position:
            problem = f"the log ends there, before what was played, up to offset {playback.position}"
            raise RecoveryLogLossError(playback.log, end, problem)
        # Read nothing if the position is already at the end. For an empty log, the end offset would be 0,
        # which means no end to a reader.
        if playback.position < end:
            self._read(playback, end)
        if not playback.is_between:
            # Appends are atomic, so a log cannot end within an operation unless it has lost bytes.
            problem = f"the log ends at {playback.position} inside the operation"
            raise RecoveryLogLossError(playback.log, playback.offset, problem)

    def _read(self, playback: _Playback, end: int | None, *, hinted: bool = False) -> None:
        """Read to an offset, or follow the log if ``end`` is None.

        With ``hinted``, also return at a point where the hints continue elsewhere.
        """
        # This is the state machine's own list, which shrinks as segments are applied.
        segments = playback.fsm.hinted_segments
        reader = self._client.read(
            playback.log, offset=playback.position, end_offset=end or 0, block=end is None
        )
        with self._lock:
            # A cancellation ends the reader that it finds. If it came before there was a reader, end the
            # reader now.
            self._reader, self._follows = reader, end is None
            if self._cancelled or (end is None and self._ending is not None):
                reader.cancel()
        try:
            for chunk in reader:
                if chunk.offset != playback.position:
                    # Bytes are missing. That does no harm between the player's position and the next hinted
                    # segment, because nothing there is needed.
                    segment_end = segments[0].last_offset if segments else 1
                    if not playback.is_between or not segments or 0 != segment_end < chunk.offset:
                        problem = f"bytes up to offset {chunk.offset} are gone"
                        raise RecoveryLogLossError(playback.log, playback.position, problem)
                    _LOGGER.warning(
                        "recovery_log.jump log=%s from=%d to=%d",
                        playback.log,
                        playback.position,
                        chunk.offset,
                    )
                    playback.begin(playback.log, chunk.offset)
                rest = memoryview(chunk.content)
                while rest:
                    # Process one operation at a time, because after each one the hints may continue
                    # elsewhere.
                    rest = rest[playback.feed(rest) :]
                    if not playback.is_between:
                        continue
                    if hinted and (
                        not segments
                        or segments[0].log != playback.log
                        or playback.offset < segments[0].first_offset
                    ):
                        return
            if end is not None and playback.position < end:
                # A reader that jumps to the end of its range returns no chunk.
                problem = f"bytes up to offset {end} are gone"
                raise RecoveryLogLossError(playback.log, playback.position, problem)
        # The reader was cancelled by cancel, by an ending, or because the client was closed.
        except ClosedError:
            if self._cancelled:
                raise ClosedError(f"player of recovery log {self._hints.log!r}", "it was cancelled") from None
            if end is None and self._ending is not None:
                raise _Interrupted from None
            raise
        finally:
            with self._lock:
                # Do this under the lock, because a cancellation must not reach a closed reader.
                self._reader = None
            reader.close()


class _Interrupted(Exception):  # noqa: N818  # This is not an error: the wait for more bytes is over.
    """A reader without end was stopped."""


class _Playback:
    """Parses a log's bytes, applies its operations, and stages their files. For one thread."""

    def __init__(self, fsm: FSM, directory: Path) -> None:
        self.fsm = fsm
        self.log = ""
        self.offset = 0
        """First offset of the current operation, or of the next one."""
        self.position = 0
        """Offset of the next byte to feed."""
        self._frame = bytearray()
        """The part of the next operation's frame that has been fed."""
        self._content_bytes = 0
        """Number of bytes of a write that still follow its frame."""
        self._write_at: int | None = None
        """Offset in the file at which to write these bytes; None if they are skipped."""
        self._file: int | None = None
        """Descriptor of the file that was created or written last."""
        self._fnode = 0
        """Fnode of that file."""
        self._directory = directory
        self._staging = directory / STAGING
        self._staging.mkdir(parents=True)

    @property
    def is_between(self) -> bool:
        """Whether the position is between two operations."""
        return not (self._frame or self._content_bytes)

    def begin(self, log: str, offset: int) -> None:
        """Continue with the operation at an offset."""
        self.log, self.offset, self.position = log, offset, offset

    def feed(self, data: memoryview) -> int:  # noqa: C901, PLR0912 - told in order
        """Consume bytes of at most one operation, and return their number."""
        if self._content_bytes:
            return self._take_content(data)
        frame = self._frame
        frame_bytes = HEADER_BYTES if len(frame) < HEADER_BYTES else _frame_bytes(frame)
        if not frame and data[: len(MAGIC)] == MAGIC and len(data) >= HEADER_BYTES:
            # Nearly always, the whole frame is in this chunk, so take it at once.
            frame_bytes = _frame_bytes(data)
        # Take at most the rest of this frame: bytes after it belong to a file or to the next operation.
        part = data[: frame_bytes - len(frame)]
        frame += part
        self.position += len(part)

        # Skip to the next magic word. Damage, such as an append that a broker cut off, may be followed by
        # complete operations. If operations are missing, later sequence numbers do not continue
        # the chain.
        damaged, taken = 0, len(part)
        while not MAGIC.startswith(frame[damaged : damaged + len(MAGIC)]):
            damaged += 1
        if damaged:
            _LOGGER.warning("recovery_log.damaged log=%s offset=%d bytes=%d", self.log, self.offset, damaged)
            del frame[:damaged]
            self.offset += damaged
        if len(frame) < HEADER_BYTES:
            return taken
        # A damaged length may be up to 4 GiB. Without a limit, the player would collect the rest of the log
        # in memory.
        if (size := _frame_bytes(frame) - HEADER_BYTES) > MAX_OPERATION_BYTES:
            problem = f"an operation of {size} bytes is longer than {MAX_OPERATION_BYTES}"
            raise RecordError(self.log, self.offset, problem)
        if len(frame) < HEADER_BYTES + size:
            return taken

        payload = bytes(frame[HEADER_BYTES:])
        frame.clear()
        try:
            op = pr.RecordedOp.FromString(payload)
        except DecodeError as error:
            problem = f"it is not a recoverylog.RecordedOp: {error}"
            raise RecordError(self.log, self.offset, problem) from error
        # A negative length would move the player back. Offsets in files and journals are 64-bit numbers.
        length, offset = op.write.length, op.write.offset
        if min(length, offset) < 0 or max(self.position, offset) + length >= 1 << 63:
            raise RecordError(self.log, self.offset, f"it writes {length} bytes at offset {offset}")

        # The state machine decides whether the operation counts. Operations of fenced recorders, and of
        # branches that the hints do not follow, are common. They are skipped together with the bytes that
        # they write.
        op.first_offset, op.last_offset, op.log = self.offset, self.position + op.write.length, self.log
        verdict = self.fsm.apply(op, payload)
        if verdict is Verdict.APPLIED:
            if op.HasField("create"):
                # Stage files by fnode, not by path: a path may belong to several files one after the other,
                # and links are made after everything is read.
                self._open(op.seq_no, os.O_CREAT | os.O_EXCL)
            elif op.HasField("unlink") and op.unlink.fnode not in self.fsm.nodes:
                self._staged(op.unlink.fnode).unlink()
            elif op.HasField("write"):
                if self._file is None or self._fnode != op.write.fnode:
                    self._open(op.write.fnode)
                self._write_at = op.write.offset
        elif verdict not in (Verdict.NOT_TRACKED, Verdict.WRONG_AUTHOR, Verdict.WRONG_SEQ_NO):
            _LOGGER.info(
                "recovery_log.not_applied log=%s offset=%d reason=%s", self.log, self.offset, verdict.value
            )
        # Set this even for an operation that does not count: its bytes are in the log and have to be skipped.
        self._content_bytes = op.write.length
        return taken + self._take_content(data[taken:])

    def _take_content(self, data: memoryview) -> int:
        """Consume bytes of a write, which follow its frame, and return their number."""
        # Write them directly to the file: they may not fit into memory, and the checksum does not cover them.
        part = data[: self._content_bytes]
        taken = len(part)
        if self._write_at is not None and taken:
            assert self._file is not None
            taken = os.pwrite(self._file, part, self._write_at)
            self._write_at += taken
        self._content_bytes -= taken
        self.position += taken
        if not self._content_bytes:
            self._write_at = None
            self.offset = self.position
        return taken

    def link_files(self) -> None:
        """Link the staged files to their paths, and write properties, which completes the directory."""
        self.close()
        for fnode, node in self.fsm.nodes.items():
            for link in node.links:
                # A file may have several links, which are also one file on disk. After that, remove the
                # staging name.
                os.link(self._staged(fnode), self._target(link))
            self._staged(fnode).unlink()
        self._staging.rmdir()
        for path, content in self.fsm.properties.items():
            with self._target(path).open("x", encoding="utf-8") as file:
                file.write(content)

    def close(self) -> None:
        """Close the file that was written last, if any."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, fnode: int, flags: int = 0) -> None:
        # Most files are written right after they are created, so one descriptor serves both.
        self.close()
        self._file = os.open(self._staged(fnode), os.O_WRONLY | os.O_CLOEXEC | flags, 0o666)
        self._fnode = fnode

    def _staged(self, fnode: int) -> Path:
        return self._staging / str(fnode)

    def _target(self, link: str) -> Path:
        """Return the location of a path in the directory, after creating its folders."""
        parts = PurePosixPath(link.lstrip("/")).parts
        # The log may come from anyone, so it must not make a player write outside the directory.
        if not parts or ".." in parts or parts[0] == STAGING or "\0" in link:
            problem = f"an operation names the path {link!r}, which is not below the recorded directory"
            raise RecordError(self.log, self.offset, problem)
        target = self._directory.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


def _frame_bytes(frame: bytearray | memoryview) -> int:
    """Return the length of a frame, of which at least the header is given."""
    return HEADER_BYTES + int.from_bytes(frame[len(MAGIC) : HEADER_BYTES], "little")
