"""Play a recovery log: rebuild the files that its operations make, and take the log over.

A player reads the segments that its hints name, and then the rest of the log. It stages each file by its
fnode in the folder ``.fnodes``, and links all of them to their paths when it is done. It ends in one of two
ways:

- *At the write head*, with the files as they are then.
- *By a hand-off to an author*: from then on, recorders of other authors cannot append to the log.

:meth:`Player.play` tells the whole story.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from google.protobuf.message import DecodeError

from gazette_spark._formats.fixed import HEADER_BYTES, MAGIC
from gazette_spark.client import Client
from gazette_spark.client._read.reader import RetryReader
from gazette_spark.consumer.recoverylog.fsm import FSM, Verdict
from gazette_spark.consumer.recoverylog.operations import encode, fence_of
from gazette_spark.errors import ClosedError, OptionError, RecordError, RecoveryLogLossError
from gazette_spark.protocol import recoverylog_pb2 as pr

_LOGGER = logging.getLogger(__name__)

STAGING = ".fnodes"
"""Folder below the directory in which files are until all are complete."""

MAX_OPERATION_BYTES = 64 << 20
"""Longest operation, without the bytes of a write: a longer one is damage."""

AT_HEAD = 0
"""No author: the player ends at the write head without a hand-off."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a player, with which a recorder continues."""

    log: str
    fsm: FSM
    directory: Path
    hints: pr.FSMHints
    """Hints to recover the same again, with exact offsets."""


class Player:
    """Rebuilds files from a recovery log.

    :meth:`play` blocks one thread until the player is told how to end, by :meth:`inject_handoff` or
    :meth:`finish_at_write_head`, from any thread, before or after it begins. Until then it follows the log.
    """

    def __init__(self, client: Client, hints: pr.FSMHints, directory: str | Path) -> None:
        """Make a player; nothing is read yet.

        Args:
            client: reads the log, and appends the hand-off.
            hints: name the segments to read, and at least the log.
            directory: receives the files. It is missing or empty, and is removed if playing fails.
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
        """Whether the reader at work has no end."""

    def __repr__(self) -> str:
        return f"Player({self._hints.log!r}, {str(self._directory)!r})"

    def inject_handoff(self, author: int) -> None:
        """End the replay by handing the log over to an author: see ``operations.new_author``."""
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
                raise ClosedError(what, "it was told how to end before")
            # One ending for good: a hand-off that is under way cannot be taken back, and a second author
            # would fence off the first.
            self._ending = ending
            # Only a reader without end is interrupted. One that reads up to a head ends by itself, and the
            # ending is looked at then.
            if self._reader is not None and self._follows:
                self._reader.cancel()

    def cancel(self) -> None:
        """Make :meth:`play` raise ClosedError. Any thread may call it."""
        with self._lock:
            self._cancelled = True
            if self._reader is not None:
                self._reader.cancel()

    def play(self) -> Recovered:  # noqa: C901 - told in order
        """Play the log, and return the files and their state machine.

        Raises:
            RecoveryLogLossError: required operations are not in the log.
            RecordError: the log holds something that is not an operation.
            OptionError: the directory holds files.
            ClosedError: the player was cancelled.
            GazetteError: a log cannot be read.
        """
        log, fsm = self._hints.log, FSM(self._hints)
        # Files that were there before would mix with those of the log, and a failure would remove them.
        if self._directory.exists() and any(self._directory.iterdir()):
            expected = "one that is missing or empty, as recovery removes what it does not know"
            raise OptionError("directory", f"the folder {self._directory} with files", expected)
        playback = None
        try:
            playback = _Playback(fsm, self._directory)

            # Ask each log for its write head, by an append without bytes: it is answered only after all
            # appends that were acknowledged before, wherever the broker has moved. Hints beyond that head
            # mean that the log has lost bytes. A reader would wait for them forever, or take other ones for
            # them.
            logs = {log, *(segment.log for segment in fsm.hinted_segments)}
            heads = {name: self._client.append(name, b"").end for name in logs}
            for segment in fsm.hinted_segments:
                head = heads[segment.log]
                if segment.first_offset >= head or segment.last_offset > head:
                    problem = f"the hints name a segment there, but the log ends at {head}: {segment}"
                    raise RecoveryLogLossError(segment.log, segment.first_offset, problem)

            # Read the segments that the hints name, and nothing between them. The hints of a recorder have
            # lower bounds of offsets, so the state machine decides where a segment ends: after its last
            # sequence number. Without hints, everything from the log's beginning on counts.
            if not fsm.hinted_segments:
                # 0 is a lower bound of every log: a reader jumps over bytes that were pruned, which is an
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

            # Hints are always older than the log: their recorder went on, and others may have followed it.
            self._read_through(playback, heads[log])
            # Never cleared: from here on the player follows the log, and what it may lack when it is promoted
            # is read then.
            self.tailing.set()

            # A standby stays here, and applies what the primary records, until it is told how to end. That
            # cancels its reader, which may be inside an operation; the next reader continues there.
            while self._ending is None:
                with suppress(_Interrupted):
                    self._read(playback, None)
            author = self._ending

            # Without a hand-off, the head at this moment is the end. With one, this only shortens the race
            # that comes next.
            self._read_through(playback, self._client.append(log, b"").end)
            while author != AT_HEAD:
                # Append an operation without effect, under the new author, that continues the chain as it is
                # known here. The same append sets the register `author`, so that appends of all other
                # recorders fail from here on. Then read through it. If it fits the chain, no operation was
                # missing before it. If it does not, another recorder has appended in between: its operations
                # are applied now, and no more can come from it. Other players may race, so try until one
                # fits.
                noop = pr.RecordedOp(seq_no=fsm.next_seq_no, checksum=fsm.next_checksum, author=author)
                end = self._client.append(log, encode(noop)[0], union_registers=fence_of(author)).end
                if self._read_through(playback, end, until=author):
                    break

            # Only now do files get their paths: a directory with files is one that is complete.
            playback.link_files()
        except BaseException:
            if playback is not None:
                playback.close()
            # Half a recovery is worth nothing, and the next attempt needs an empty directory.
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        _LOGGER.info(
            "recovery_log.recovered log=%s files=%d next_seq_no=%d",
            fsm.last_log,
            len(fsm.nodes),
            fsm.next_seq_no,
        )
        return Recovered(log, fsm, self._directory, fsm.build_hints(fsm.last_log))

    def _read_through(self, playback: _Playback, end: int, *, until: int = AT_HEAD) -> bool:
        """Read to an offset; return True, early, after an operation of the author ``until`` that counts."""
        # Nothing is read if the position is at the end already. Of an empty log, the end offset would be 0,
        # which means no end for a reader.
        done = playback.position < end and self._read(playback, end, until=until)
        if not done and not playback.is_between:
            # Appends are atomic: a log cannot end inside an operation, unless it has lost bytes.
            problem = f"the log ends at {playback.position} inside the operation"
            raise RecoveryLogLossError(playback.log, playback.offset, problem)
        return done

    def _read(  # noqa: C901, PLR0912 - one loop
        self, playback: _Playback, end: int | None, *, until: int = AT_HEAD, hinted: bool = False
    ) -> bool:
        """Read to an offset, or follow the log if ``end`` is None; see :meth:`_read_through`.

        With ``hinted``, return where the hints continue elsewhere.
        """
        # The state machine's own list, which shrinks as segments are applied.
        segments = playback.fsm.hinted_segments
        reader = self._client.read(
            playback.log, offset=playback.position, end_offset=end or 0, block=end is None
        )
        with self._lock:
            # A cancellation ends the reader that it meets here. If it came before there was one, end the
            # reader now.
            self._reader, self._follows = reader, end is None
            if self._cancelled or (end is None and self._ending is not None):
                reader.cancel()
        try:
            for chunk in reader:
                if chunk.offset != playback.position:
                    # Bytes are gone. That does no harm between the operations of the next hinted segment and
                    # the player's position, because nothing there is needed.
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
                    # One operation at a time, because after each of them the hints may continue elsewhere, or
                    # the hand-off may be found.
                    rest = rest[playback.feed(rest) :]
                    if not playback.is_between:
                        continue
                    if until and playback.applied and playback.operation.author == until:
                        return True
                    if hinted and (
                        not segments
                        or segments[0].log != playback.log
                        or playback.offset < segments[0].first_offset
                    ):
                        return False
            if end is not None and playback.position < end:
                # A reader that jumps to the end of its range brings no chunk.
                problem = f"bytes up to offset {end} are gone"
                raise RecoveryLogLossError(playback.log, playback.position, problem)
        # The reader was cancelled, by cancel, by an ending, or by a client that was closed.
        except ClosedError:
            if self._cancelled:
                raise ClosedError(f"player of recovery log {self._hints.log!r}", "it was cancelled") from None
            if end is None and self._ending is not None:
                raise _Interrupted from None
            raise
        finally:
            with self._lock:
                # Under the lock: a cancellation must not reach a reader that is closed.
                self._reader = None
            reader.close()
        return False


class _Interrupted(Exception):  # noqa: N818  # No error: the wait for more is over.
    """A reader without end was told to end."""


class _Playback:
    """Takes a log's bytes, applies its operations, and stages their files. For one thread."""

    def __init__(self, fsm: FSM, directory: Path) -> None:
        self.fsm = fsm
        self.log = ""
        self.offset = 0
        """Begin of the operation that is under way or comes next."""
        self.position = 0
        """Offset of the next byte to be fed."""
        self.operation = pr.RecordedOp()
        """The last whole operation."""
        self.applied = False
        """Whether it counted."""
        self._frame = bytearray()
        """The part of the next operation's frame that has come."""
        self._content_bytes = 0
        """Bytes of a write that are still to come behind its frame."""
        self._file: int | None = None
        """Descriptor of the file that they go to; None: they are skipped."""
        self._directory = directory
        self._staging = directory / STAGING
        self._staging.mkdir(parents=True)

    @property
    def is_between(self) -> bool:
        """Whether no operation is under way."""
        return not (self._frame or self._content_bytes)

    def begin(self, log: str, offset: int) -> None:
        """Continue with the operation at an offset."""
        self.log, self.offset, self.position = log, offset, offset

    def feed(self, data: memoryview) -> int:  # noqa: C901, PLR0912, PLR0915 - told in order
        """Consume bytes of at most one operation; return their number."""
        # The bytes of a write follow its frame. They go straight to the file: they may be longer than memory,
        # and the checksum does not cover them.
        if self._content_bytes:
            part = data[: self._content_bytes]
            taken = os.write(self._file, part) if self._file is not None else len(part)
            self._content_bytes -= taken
            self.position += taken
            if not self._content_bytes:
                self.close()
                self.offset = self.position
            return taken

        frame = self._frame
        frame_bytes = HEADER_BYTES if len(frame) < HEADER_BYTES else self._frame_bytes()
        # At most the rest of this frame: bytes behind it belong to a file or to the next operation.
        part = data[: frame_bytes - len(frame)]
        frame += part
        self.position += len(part)

        # Skip to the next magic word. What has damaged the log, such as an append that a broker has cut, may
        # have left whole operations behind; if it has not, their sequence numbers do not continue the chain.
        damaged = 0
        while not MAGIC.startswith(frame[damaged : damaged + len(MAGIC)]):
            damaged += 1
        if damaged:
            _LOGGER.warning("recovery_log.damaged log=%s offset=%d bytes=%d", self.log, self.offset, damaged)
            del frame[:damaged]
            self.offset += damaged
        if len(frame) < HEADER_BYTES:
            return len(part)
        # A length that is damaged may claim 4 GiB; without a limit the player would collect the rest of the
        # log in memory.
        if (size := self._frame_bytes() - HEADER_BYTES) > MAX_OPERATION_BYTES:
            problem = f"an operation of {size} bytes is longer than {MAX_OPERATION_BYTES}"
            raise RecordError(self.log, self.offset, problem)
        if len(frame) < HEADER_BYTES + size:
            return len(part)

        payload = bytes(frame[HEADER_BYTES:])
        frame.clear()
        try:
            op = pr.RecordedOp.FromString(payload)
        except DecodeError as error:
            problem = f"it is not a recoverylog.RecordedOp: {error}"
            raise RecordError(self.log, self.offset, problem) from error
        if op.write.length < 0 or op.write.offset < 0:
            # A negative length would move the player back.
            raise RecordError(self.log, self.offset, "it writes at a negative offset, or a negative length")

        # The state machine decides whether the operation counts. Those of fenced recorders and of branches
        # that the hints do not follow are common, and skipped with the bytes that they write.
        op.first_offset, op.last_offset, op.log = self.offset, self.position + op.write.length, self.log
        verdict = self.fsm.apply(op, payload)
        self.operation, self.applied = op, verdict is Verdict.APPLIED
        if self.applied:
            if op.HasField("create"):
                # By fnode, not by path: a path may belong to several files one after the other, and links are
                # made when all is read.
                self._staged(op.seq_no).touch(exist_ok=False)
            elif op.HasField("unlink") and op.unlink.fnode not in self.fsm.nodes:
                self._staged(op.unlink.fnode).unlink()
            elif op.HasField("write"):
                self._file = os.open(self._staged(op.write.fnode), os.O_WRONLY | os.O_CLOEXEC)
                os.lseek(self._file, op.write.offset, os.SEEK_SET)
        elif verdict not in (Verdict.NOT_TRACKED, Verdict.WRONG_AUTHOR, Verdict.WRONG_SEQ_NO):
            _LOGGER.info(
                "recovery_log.not_applied log=%s offset=%d reason=%s", self.log, self.offset, verdict.value
            )
        # Also of an operation that does not count: its bytes are in the log, and have to be skipped.
        self._content_bytes = op.write.length
        if not self._content_bytes:
            self.close()
            self.offset = self.position
        return len(part)

    def link_files(self) -> None:
        """Link the staged files to their paths, and write properties: the directory is complete."""
        for fnode, node in self.fsm.nodes.items():
            for link in node.links:
                # A file may have several links, which are one file on disk as well. Then the staging name
                # goes.
                os.link(self._staged(fnode), self._target(link))
            self._staged(fnode).unlink()
        self._staging.rmdir()
        for path, content in self.fsm.properties.items():
            with self._target(path).open("x", encoding="utf-8") as file:
                file.write(content)

    def close(self) -> None:
        """Close a file that is still written."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _frame_bytes(self) -> int:
        return HEADER_BYTES + int.from_bytes(self._frame[len(MAGIC) : HEADER_BYTES], "little")

    def _staged(self, fnode: int) -> Path:
        return self._staging / str(fnode)

    def _target(self, link: str) -> Path:
        """Return the place of a path in the directory, with its folders made."""
        parts = PurePosixPath(link.lstrip("/")).parts
        # Anybody may have written the log, and it must not make a player write outside the directory.
        if not parts or ".." in parts or parts[0] == STAGING:
            problem = f"an operation names the path {link!r}, which is not below the recorded directory"
            raise RecordError(self.log, self.offset, problem)
        target = self._directory.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target
