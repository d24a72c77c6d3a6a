"""Parses in a child process, for a repeated task whose first attempt may have been killed by a record.

Most of a parser is native code: Arrow's, protobuf's, numpy's. Our readers check its input, but an unforeseen
record can still crash the process, and then no mode for malformed records helps. Spark repeats the task with
the same bytes.

So a repeated task parses in a child process, block by block; otherwise it works like the first attempt. When
the child dies, the block is halved until the record that kills it is alone. That record is *quarantined*: it
counts as a malformed record of which nothing can be read. ``PERMISSIVE`` gives it a row with its text,
``DROPMALFORMED`` none, and ``FAILFAST`` raises an error with its journal and offset.

A task is also repeated after the loss of an executor or a broker's failure. The child process is then wasted:
about 0.3 s to start Python, and copies of blocks and rows.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from gazette_spark._formats.framing import bounded
from gazette_spark.errors import RecordError

if TYPE_CHECKING:
    import pyarrow as pa

    from gazette_spark._formats.framing import Block
    from gazette_spark._formats.rows import RowParser

log = logging.getLogger(__name__)

_CHILD = "from gazette_spark._planning.quarantine import serve; serve()"
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
"""Signals of crashing native code. Another end of the child, such as SIGKILL on a machine without free
memory, proves nothing about its record, and a valid record must not become malformed."""
DEATH_S = 60
"""Seconds that a process may take to end after its last output: it may write a core dump."""


class QuarantiningParser:
    """Parses blocks of records in a child process. For one thread.

    Args:
        make: Makes the parser, here and in the child; it is pickled.
    """

    def __init__(self, make: Callable[[], RowParser]) -> None:
        self._make = make
        self._parser = make()
        self._child: subprocess.Popen[bytes] | None = None
        self.format = self._parser.format

    @property
    def malformed(self) -> int:
        """Number of malformed records so far, including quarantined ones."""
        return self._parser.malformed

    @property
    def first_problem(self) -> str:
        """Offset and problem of the first malformed record."""
        return self._parser.first_problem

    def record_batches(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each block, as the parser itself does.

        Raises:
            RecordError: a record is malformed and the mode is FAILFAST.
        """
        try:
            for block in bounded(blocks, self.format.max_rows):
                yield from self._parsed(block)
        finally:
            self._stop()

    def _parsed(self, block: Block) -> Iterator[pa.RecordBatch]:
        try:
            # The usual answer is the block's rows, or the parser's error. Anything else means that the child
            # has died.
            answer = self._ask(block)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):  # The last one: it died inside an answer.
            status = self._stop(DEATH_S)
        else:
            if isinstance(answer, Exception):
                raise answer
            batches, malformed, first_problem = answer
            self._parser.malformed += malformed
            self._parser.first_problem = self._parser.first_problem or first_problem
            yield from batches
            return
        offset = int(block.offsets[0])
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        if -status not in _CRASHES:
            problem = (
                f"the process that parsed it, or one of the {len(block) - 1} records after it, ended with "
                f"{how}. A record cannot cause that: check the memory and the log of the executor"
            )
            raise RecordError(block.journal, offset, problem)
        # Some record of the block kills the parser. Halving finds it in about 17 steps for a block of 64 Ki
        # rows, and all other records become rows.
        if len(block) > 1:
            middle = len(block) // 2
            yield from self._parsed(block.rows(0, middle))
            yield from self._parsed(block.rows(middle, len(block)))
            return
        log.error("record quarantined journal=%s offset=%d parser_ended_with=%s", block.journal, offset, how)
        rows = self._parser.unreadable(block, f"its parser ended the process with {how}")
        if rows.num_rows:
            yield rows

    def _ask(self, block: Block) -> Exception | tuple[list[pa.RecordBatch], int, str]:
        if self._child is None:
            # The child needs this process's path because Spark adds the application's files to it.
            path = os.pathsep.join(entry for entry in sys.path if entry)
            self._child = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": path},
            )
            _send(self._child.stdin, self._make)
        _send(self._child.stdin, block)
        assert self._child.stdout is not None
        return pickle.load(self._child.stdout)  # type: ignore[no-any-return]  # noqa: S301  # Our own child.

    def _stop(self, wait_s: float = 0) -> int:
        """End the child, unless it ends by itself within ``wait_s``, and return its status."""
        child, self._child = self._child, None
        if child is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            child.wait(wait_s)
        child.kill()
        with suppress(BrokenPipeError), child:  # Closing flushes unsent bytes.
            pass
        return child.returncode


def serve() -> None:
    """Parse the blocks that arrive on the standard input. Runs in the child process."""
    # The output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    parser = pickle.load(sys.stdin.buffer)()  # noqa: S301  # The task's.
    while True:
        try:
            block = pickle.load(sys.stdin.buffer)  # noqa: S301  # The task's.
        except EOFError:
            return
        # The parser counts in this process, and the task's log line needs the number in the parent process.
        before = parser.malformed
        try:
            batches = list(parser.record_batches([block]))
            answer: object = (batches, parser.malformed - before, parser.first_problem)
        except Exception as error:  # noqa: BLE001  # The task raises it.
            answer = error
        _send(answers, answer)


def _send(pipe: IO[bytes] | None, value: object) -> None:
    assert pipe is not None
    pickle.dump(value, pipe, pickle.HIGHEST_PROTOCOL)
    pipe.flush()
