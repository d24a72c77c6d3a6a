"""One writer's part of an append that is done in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Protocol, Self

from gazette_spark.client._append.append import AppendResult, Bytes
from gazette_spark.client._append.batches import AppendBatch
from gazette_spark.client._append.futures import finished_operation
from gazette_spark.errors import ClosedError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb


class BatchWriter(Protocol):
    """Interface of the service that sends an append's batch."""

    def _write(self, batch: AppendBatch, content: memoryview, written: int) -> None:
        """Add bytes to a batch. ``written`` are those this writer has written before."""

    def _leave(self, batch: AppendBatch, begin: int, *, kept: bool) -> None:
        """End a writer's turn; unless kept, its bytes from ``begin`` on are taken back."""


class AsyncAppend:
    """One writer's part of an append that is done in the background.

    Until :meth:`release` it belongs to the thread that began it, and nobody else writes to the journal; as a
    context manager it is released at the end, or aborted by an error. Then all threads may wait for it.
    """

    __slots__ = ("_batch", "_begin", "_error", "_owner", "_size", "_writer")

    def __init__(self, writer: BatchWriter, batch: AppendBatch, begin: int, size: int, owner: int) -> None:
        self._writer = writer
        self._batch = batch
        self._begin = begin
        self._size = size
        self._owner = owner
        """Thread that writes; 0: nobody any more."""
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        state = "open" if self._owner else "done" if self.done() else "pending"
        return f"AsyncAppend({self._batch.options.journal!r}, size={self._size}, {state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._owner:
            return
        if error is None:
            self.release()
        else:
            self.abort(error)

    @property
    def request(self) -> pb.AppendRequest:
        """The first message of the request that was or will be made."""
        return self._batch.options.request()

    @property
    def future(self) -> Future[AppendResult]:
        """The whole append's future, for ``concurrent.futures.wait`` and the like."""
        if self._error is not None:
            return finished_operation(self._error)  # type: ignore[return-value]  # It never has a result.
        return self._batch.operation

    @property
    def response(self) -> AppendResult:
        """Result of the whole append; it may include bytes of other writers.

        Raises:
            ClosedError: the append is not done yet.
        """
        if not self.done():
            raise ClosedError(f"append to journal {self._batch.options.journal!r}", "it has no response yet")
        return self.result()

    @property
    def span(self) -> tuple[int, int]:
        """Range of this writer's bytes, ``[begin, end)``; to be asked for when it is done."""
        begin = self.response.begin + self._begin
        return begin, begin + self._size

    def write(self, content: Bytes) -> int:
        """Add bytes, and return how many. May wait for room.

        Raises:
            BacklogError: there was no room before the timeout.
            ClosedError: the append was released or aborted before, or the service is closed.
        """
        self._check_open()
        view = memoryview(content).cast("B")
        try:
            self._writer._write(self._batch, view, self._size)
        except BaseException as error:
            self.require(error)
            raise
        self._size += len(view)
        return len(view)

    def require(self, error: BaseException | None) -> Self:
        """Let :meth:`release` abort and raise ``error``, unless it is None or another came first."""
        self._check_open()
        self._error = self._error or error
        return self

    def release(self) -> None:
        """End writing: the bytes will be appended.

        Raises:
            Exception: a requirement is not met, or a write failed; the bytes were removed from the batch.
        """
        self._check_open()
        options = self._batch.options
        if self._error is None and self._size == 0 and options.changes_registers:
            self._error = ProtocolError("AppendRequest", "register modification requires non-empty Append")
        if self._error is None and self._size and not options.takes_content:
            asked = pb.AppendRequest.Suspend.Name(options.suspend)
            self._error = ProtocolError("AppendRequest.Suspend", f"{asked} requires an empty Append")
        self._end()
        if self._error is not None:
            raise self._error

    def abort(self, error: BaseException | None = None) -> None:
        """Take this writer's bytes back; those of others stay. Nothing happens once it was released."""
        if self._owner:
            what = f"append to journal {self._batch.options.journal!r}"
            self._error = self._error or error or ClosedError(what, "its writer aborted it")
            self._end()

    def done(self) -> bool:
        """Return whether it has been appended, has failed, or was aborted."""
        return not self._owner and (self._error is not None or self._batch.operation.done())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until it is done, and return why it failed, or None.

        Raises:
            TimeoutError: it is not done within ``timeout`` seconds.
        """
        if self._owner == threading.get_ident():
            raise ClosedError(
                f"append to journal {self._batch.options.journal!r}", "release it before waiting for it"
            )
        if self._error is None:
            error = self._batch.operation.exception(timeout)
            if self._error is None:
                journal_queue = self._batch.journal_queue
                journal_queue.reported |= error is not None and journal_queue.failure is not None
                return error
        return self._error

    err = exception

    def result(self, timeout: float | None = None) -> AppendResult:
        """Wait until the append is done, and return the result of the whole append.

        Raises:
            GazetteError: the append failed.
            TimeoutError: the append is not done within ``timeout`` seconds.
        """
        error = self.exception(timeout)
        if error is not None:
            # Many threads may raise it: the trace of one would grow into that of the next.
            raise error.with_traceback(None)
        return self._batch.operation.result()

    def add_done_callback(self, fn: Callable[[AsyncAppend], object], /) -> None:
        """Call ``fn`` with this once the whole append is done: at once if it is, else in another thread.

        That thread is one of the service's: ``fn`` must not wait for other appends.
        """
        self.future.add_done_callback(lambda _: fn(self))

    def _end(self) -> None:
        self._owner = 0
        kept = self._error is None
        self._writer._leave(self._batch, self._begin, kept=kept)

    def _check_open(self) -> None:
        if not self._owner:
            what = f"append to journal {self._batch.options.journal!r}"
            raise ClosedError(what, "it was released or aborted")
