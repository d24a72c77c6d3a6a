"""Play a recovery log: rebuild the files that its operations make, and take the log over.

A player reads the segments that its hints name, and then the rest of the log. Files are staged by their fnode
in the folder ``.fnodes``; when the player is done they are linked to their paths. It ends in one of two ways:

- *at the write head*, with the files as they are then;
- *by a hand-off to an author*: at the head it appends an operation without effect, under the new author, and
  sets the log's register ``author``. From then on recorders of other authors cannot append. The player reads
  through what it has appended. If the operation fits the chain, all before it is known, and the player ends.
  Otherwise another recorder was faster: its operations are read now, and the player tries again.

Before it reads, the player asks each log that the hints name for its write head by an append without bytes. A
hinted segment that begins behind the head, or ends behind it, is lost, and so is one that the log jumps over.
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
from gazette_spark.client import Chunk, Client
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


class Playback:
    """Takes a log's bytes, applies its operations, and stages their files. For one thread."""

    def __init__(self, fsm: FSM, directory: Path) -> None:
        self.fsm = fsm
        self.directory = directory
        self.log = ""
        self.offset = 0
        """Begin of the operation that is under way or comes next."""
        self.position = 0
        """Offset of the next byte to be fed."""
        self.operation = pr.RecordedOp()
        """The last whole operation."""
        self.applied = False
        """Whether it counted."""
        self._head = bytearray()
        self._left = 0
        self._file: int | None = None
        """Descriptor of the file that the write under way goes to; None: nowhere."""
        self._staging = directory / STAGING
        self._staging.mkdir(parents=True)

    @property
    def is_between(self) -> bool:
        """Whether no operation is under way."""
        return not (self._head or self._left)

    def begin(self, log: str, offset: int) -> None:
        """Continue with the operation at an offset."""
        self.log, self.offset, self.position = log, offset, offset

    def feed(self, data: memoryview) -> int:
        """Take bytes, of one operation at most; return how many."""
        if self._left:
            taken = self._write(data[: self._left])
        else:
            size = int.from_bytes(self._head[len(MAGIC) : HEADER_BYTES], "little")
            wanted = HEADER_BYTES if len(self._head) < HEADER_BYTES else HEADER_BYTES + size
            part = data[: wanted - len(self._head)]
            self._head += part
            taken = len(part)
            self._check_head(self.position + taken)
        self.position += taken
        return taken

    def link_files(self) -> None:
        """Link the staged files to their paths, and write properties: the directory is complete."""
        for fnode, node in self.fsm.nodes.items():
            for link in node.links:
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

    def _check_head(self, end: int) -> None:
        """Go on with what there is of an operation's frame."""
        head = self._head
        if (damaged := _damaged_bytes(head)) > 0:
            # What has damaged the log may have left whole operations behind.
            _LOGGER.warning("recovery_log.damaged log=%s offset=%d bytes=%d", self.log, self.offset, damaged)
            del head[:damaged]
            self.offset += damaged
        if len(head) < HEADER_BYTES:
            return
        size = int.from_bytes(head[len(MAGIC) : HEADER_BYTES], "little")
        if size > MAX_OPERATION_BYTES:
            problem = f"an operation of {size} bytes is longer than {MAX_OPERATION_BYTES}"
            raise RecordError(self.log, self.offset, problem)
        if len(head) == HEADER_BYTES + size:
            payload = bytes(head[HEADER_BYTES:])
            head.clear()
            self._apply(payload, end)

    def _apply(self, payload: bytes, end: int) -> None:
        op = self._parse(payload)
        op.first_offset, op.last_offset, op.log = self.offset, end + op.write.length, self.log
        verdict = self.fsm.apply(op, payload)
        self.operation, self.applied = op, verdict is Verdict.APPLIED
        if self.applied:
            self._reenact(op)
        elif verdict not in (Verdict.NOT_TRACKED, Verdict.WRONG_AUTHOR, Verdict.WRONG_SEQ_NO):
            _LOGGER.info(
                "recovery_log.not_applied log=%s offset=%d reason=%s", self.log, self.offset, verdict.value
            )
        self._left = op.write.length
        if not self._left:
            self._end(end)

    def _parse(self, payload: bytes) -> pr.RecordedOp:
        try:
            op = pr.RecordedOp.FromString(payload)
        except DecodeError as error:
            problem = f"it is no recoverylog.RecordedOp: {error}"
            raise RecordError(self.log, self.offset, problem) from error
        if op.write.length < 0 or op.write.offset < 0:
            raise RecordError(self.log, self.offset, "it writes at a negative offset, or a negative length")
        return op

    def _reenact(self, op: pr.RecordedOp) -> None:
        if op.HasField("create"):
            with self._staged(op.seq_no).open("xb"):
                pass
        elif op.HasField("unlink") and op.unlink.fnode not in self.fsm.nodes:
            self._staged(op.unlink.fnode).unlink()
        elif op.HasField("write"):
            self._file = os.open(self._staged(op.write.fnode), os.O_WRONLY | os.O_CLOEXEC)
            os.lseek(self._file, op.write.offset, os.SEEK_SET)

    def _write(self, part: memoryview) -> int:
        taken = os.write(self._file, part) if self._file is not None else len(part)
        self._left -= taken
        if not self._left:
            self._end(self.position + taken)
        return taken

    def _end(self, end: int) -> None:
        self.close()
        self.offset = end

    def _staged(self, fnode: int) -> Path:
        return self._staging / str(fnode)

    def _target(self, link: str) -> Path:
        """Return the place of a path in the directory, with its folders made."""
        parts = PurePosixPath(link.lstrip("/")).parts
        if not parts or ".." in parts or parts[0] == STAGING:
            problem = f"an operation names the path {link!r}, which is not below the recorded directory"
            raise RecordError(self.log, self.offset, problem)
        target = self.directory.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a player has recovered, and a recorder goes on with."""

    log: str
    fsm: FSM
    directory: Path
    hints: pr.FSMHints
    """Hints to recover the same again, with exact offsets."""


class Player:
    """Rebuilds files from a recovery log, see the module.

    :meth:`play` blocks one thread until it is told how to end, by :meth:`inject_handoff` or
    :meth:`finish_at_write_head`, from any thread, before or after it begins. Until then it follows the log.
    """

    def __init__(self, client: Client, hints: pr.FSMHints, directory: str | Path) -> None:
        """Make a player; nothing is read yet.

        Args:
            client: reads the log, and appends the hand-off.
            hints: what to read; at least the log.
            directory: gets the files. Missing, or empty; it is removed if playing fails.
        """
        self.tailing = threading.Event()
        """Set when the player has read to the head that the log had when it began."""
        self._client = client
        self._hints = hints
        self._directory = Path(directory).absolute()
        self._heads: dict[str, int] = {}
        self._lock = threading.Lock()
        self._ending: int | None = None
        self._cancelled = False
        self._reader: RetryReader | None = None
        self._follows = False
        """The reader at work has no end of its own."""

    def __repr__(self) -> str:
        return f"Player({self._hints.log!r}, {str(self._directory)!r})"

    def inject_handoff(self, author: int) -> None:
        """Have the player end by a hand-off of the log to an author: see ``operations.new_author``."""
        if not 0 < author < 1 << 32:
            raise OptionError("author", str(author), "a number from 1 to 4294967295")
        self._end_with(author)

    def finish_at_write_head(self) -> None:
        """Have the player end at the log's write head."""
        self._end_with(AT_HEAD)

    def cancel(self) -> None:
        """Have the player raise ClosedError, from any thread."""
        with self._lock:
            self._cancelled = True
            if self._reader is not None:
                self._reader.cancel()

    def play(self) -> Recovered:
        """Play the log, and return what it has made.

        Raises:
            RecoveryLogLossError: operations that are needed are not in the log.
            RecordError: the log holds something else.
            OptionError: the directory holds files.
            ClosedError: the player was cancelled.
            GazetteError: a log cannot be read.
        """
        fsm = FSM(self._hints)
        if self._directory.exists() and any(self._directory.iterdir()):
            expected = "one that is missing or empty, as recovery removes what it does not know"
            raise OptionError("directory", f"the folder {self._directory} with files", expected)
        playback = None
        try:
            playback = Playback(fsm, self._directory)
            self._play(playback)
        except BaseException:
            if playback is not None:
                playback.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        log, files, seq_no = fsm.last_log, len(fsm.nodes), fsm.next_seq_no
        _LOGGER.info("recovery_log.recovered log=%s files=%d next_seq_no=%d", log, files, seq_no)
        return Recovered(self._hints.log, fsm, self._directory, fsm.build_hints(fsm.last_log))

    def _play(self, playback: Playback) -> None:
        log = self._hints.log
        self._heads = {
            name: self._client.append(name, b"").end
            for name in {log, *(each.log for each in playback.fsm.hinted_segments)}
        }
        self._check_segments(playback.fsm)
        self._read_hinted(playback)
        self._read_through(playback, self._heads[log])
        self.tailing.set()
        author = self._follow(playback)
        self._read_through(playback, self._client.append(log, b"").end)
        while author != AT_HEAD:
            noop = pr.RecordedOp(
                seq_no=playback.fsm.next_seq_no, checksum=playback.fsm.next_checksum, author=author
            )
            end = self._client.append(log, encode(noop)[0], union_registers=fence_of(author)).end
            if self._read_through(playback, end, until=author):
                break
        playback.link_files()

    def _check_segments(self, fsm: FSM) -> None:
        for segment in fsm.hinted_segments:
            head = self._heads[segment.log]
            if segment.first_offset >= head or segment.last_offset > head:
                problem = f"the hints name a segment there, but the log ends at {head}: {segment}"
                raise RecoveryLogLossError(segment.log, segment.first_offset, problem)

    def _read_hinted(self, playback: Playback) -> None:
        """Read the segments that the hints name, and skip what is between them."""
        fsm = playback.fsm
        if not fsm.hinted_segments:
            playback.begin(self._hints.log, 0)
        while fsm.hinted_segments:
            segment = fsm.hinted_segments[0]
            if playback.log != segment.log or playback.offset < segment.first_offset:
                playback.begin(segment.log, segment.first_offset)
            head = self._heads[segment.log]
            if playback.position >= head:
                problem = f"the log ends without an operation that the hints name: {segment}"
                raise RecoveryLogLossError(segment.log, playback.offset, problem)
            self._read(playback, head, hinted=True)

    def _read_through(self, playback: Playback, end: int, *, until: int = AT_HEAD) -> bool:
        """Read to an offset; return True, early, after an operation of the author ``until`` that counts."""
        done = playback.position < end and self._read(playback, end, until=until)
        if not done and not playback.is_between:
            problem = f"the log ends at {playback.position} inside the operation"
            raise RecoveryLogLossError(playback.log, playback.offset, problem)
        return done

    def _follow(self, playback: Playback) -> int:
        """Read what is appended until the player is told how to end; return the author."""
        while (ending := self._ending) is None:
            # Being told how to end cancels the reader.
            with suppress(_Interrupted):
                self._read(playback, None)
        return ending

    def _read(
        self, playback: Playback, end: int | None, *, until: int = AT_HEAD, hinted: bool = False
    ) -> bool:
        """Read to an offset, or without end; see :meth:`_read_through`.

        With ``hinted``, return where the hints say to go on elsewhere.
        """
        reader = self._open(playback, end)
        try:
            for chunk in reader:
                self._check_jump(playback, chunk)
                rest = memoryview(chunk.content)
                while rest:
                    rest = rest[playback.feed(rest) :]
                    if not playback.is_between:
                        continue
                    if until and playback.applied and playback.operation.author == until:
                        return True
                    if hinted and _skips(playback):
                        return False
            if end is not None and playback.position < end:
                # A jump to the end of what is read brings no chunk.
                problem = f"bytes up to offset {end} are gone"
                raise RecoveryLogLossError(playback.log, playback.position, problem)
        except ClosedError:
            if self._cancelled:
                raise ClosedError(f"player of recovery log {self._hints.log!r}", "it was cancelled") from None
            if end is None and self._ending is not None:
                raise _Interrupted from None
            raise
        finally:
            with self._lock:
                self._reader = None
            reader.close()
        return False

    def _open(self, playback: Playback, end: int | None) -> RetryReader:
        reader = self._client.read(
            playback.log, offset=playback.position, end_offset=end or 0, block=end is None
        )
        with self._lock:
            self._reader, self._follows = reader, end is None
            if self._cancelled or (end is None and self._ending is not None):
                reader.cancel()
        return reader

    def _check_jump(self, playback: Playback, chunk: Chunk) -> None:
        """Refuse a hole in the log, unless it is of operations that the hints do not name."""
        if chunk.offset == playback.position:
            return
        segments = playback.fsm.hinted_segments
        end = segments[0].last_offset if segments else 1
        if not playback.is_between or not segments or 0 != end < chunk.offset:
            problem = f"bytes up to offset {chunk.offset} are gone"
            raise RecoveryLogLossError(playback.log, playback.position, problem)
        _LOGGER.warning(
            "recovery_log.jump log=%s from=%d to=%d", playback.log, playback.position, chunk.offset
        )
        playback.begin(playback.log, chunk.offset)

    def _end_with(self, ending: int) -> None:
        with self._lock:
            if self._ending is not None:
                what = f"player of recovery log {self._hints.log!r}"
                raise ClosedError(what, "it was told how to end before")
            self._ending = ending
            if self._reader is not None and self._follows:
                self._reader.cancel()


class _Interrupted(Exception):  # noqa: N818  # No error: the wait for more is over.
    """A reader without end was told to end."""


def _damaged_bytes(head: bytearray) -> int:
    """Return how many bytes come before the first that may begin an operation."""
    if head.startswith(MAGIC):
        return 0
    found = head.find(MAGIC)
    if found >= 0:
        return found
    return next(at for at in range(len(head) + 1) if MAGIC.startswith(head[at:]))


def _skips(playback: Playback) -> bool:
    """Return whether the hints are used up, or go on in another place than the next byte."""
    segments = playback.fsm.hinted_segments
    return not segments or segments[0].log != playback.log or playback.offset < segments[0].first_offset
