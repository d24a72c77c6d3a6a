"""Defines operations that run in the background, and sets of them.

A dependency of an append need not be an append: any operation that succeeds or fails is an
:class:`OpFuture`. A ``concurrent.futures.Future`` is one, and every operation of this package has one, for
``concurrent.futures.wait`` and ``asyncio.wrap_future``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")


class OpFuture(Protocol):
    """An operation in progress. Its methods may be called from any thread."""

    def done(self) -> bool:
        """Return whether it has succeeded or failed."""

    def exception(self, timeout: float | None = ..., /) -> BaseException | None:
        """Wait until it has ended, and return why it failed, or None.

        Raises:
            TimeoutError: it has not ended within ``timeout`` seconds.
        """

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        """Call ``fn`` with the operation when it has ended: now if it has, or later in any thread."""


OpFutures: TypeAlias = frozenset[OpFuture]
"""A set of operations. ``<=`` tests for a subset."""


class AsyncOperation(Future[T]):
    """An operation that other code ends with :meth:`resolve`. Thread-safe. It cannot be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        # A running future cannot be cancelled. The bytes may be on their way already, and no caller could
        # take them back.
        self.set_running_or_notify_cancel()

    def resolve(self, error: BaseException | None = None, result: T | None = None) -> None:
        """End the operation with its error or its result.

        Raises:
            concurrent.futures.InvalidStateError: it has already ended.
        """
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)  # type: ignore[arg-type]  # Without a result, T is None.


def finished_operation(error: BaseException | None = None) -> AsyncOperation[None]:
    """Return an operation that has already ended."""
    operation: AsyncOperation[None] = AsyncOperation()
    operation.resolve(error)
    return operation


def failure_of(operation: OpFuture) -> BaseException | None:
    """Return why an ended operation failed, or None. A cancelled one counts as failed."""
    try:
        return operation.exception(0)
    except CancelledError as error:
        return error


def unfinished(operations: Iterable[OpFuture]) -> OpFutures:
    """Return the operations that have not ended or have failed: those that matter as dependencies."""
    return frozenset(
        operation for operation in operations if not operation.done() or failure_of(operation) is not None
    )
