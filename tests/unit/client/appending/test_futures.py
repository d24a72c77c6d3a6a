"""Tests that an operation ends once and reports its outcome to every waiting thread."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

from gazette_spark.client._append.futures import (
    AsyncOperation,
    OpFuture,
    failure_of,
    finished_operation,
    unfinished,
)

ERROR = RuntimeError("no")


def test_an_operation_ends_when_it_is_resolved() -> None:
    operation: AsyncOperation[int] = AsyncOperation()
    assert not operation.done()
    with pytest.raises(TimeoutError):
        operation.exception(0)
    called: list[OpFuture] = []
    operation.add_done_callback(called.append)
    operation.resolve(result=7)
    assert (operation.done(), operation.exception(), operation.result(), called) == (
        True,
        None,
        7,
        [operation],
    )


def test_waiting_ends_with_the_operation() -> None:
    operation: AsyncOperation[None] = AsyncOperation()
    got: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: got.append(operation.exception(10)))
    thread.start()
    operation.resolve(ERROR)
    thread.join(10)
    assert got == [ERROR]


def test_an_operation_is_resolved_once() -> None:
    """Only the owner can end an operation, so a caller cannot cancel it."""
    operation: AsyncOperation[None] = AsyncOperation()
    assert not operation.cancel()
    operation.resolve()
    with pytest.raises(concurrent.futures.InvalidStateError):
        operation.resolve(ERROR)
    assert operation.exception() is None


@pytest.mark.parametrize("error", [None, ERROR], ids=["well", "badly"])
def test_a_finished_operation_has_ended(error: Exception | None) -> None:
    operation = finished_operation(error)
    assert operation.done()
    assert failure_of(operation) is error


def test_futures_of_the_standard_library_are_operations() -> None:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    assert unfinished([future]) == {future}
    future.cancel()
    assert isinstance(failure_of(future), concurrent.futures.CancelledError)
    assert unfinished([future]) == {future}


def test_what_has_ended_well_need_not_be_waited_for() -> None:
    well, badly = finished_operation(), finished_operation(ERROR)
    running: AsyncOperation[None] = AsyncOperation()
    assert unfinished([well, badly, running]) == {badly, running}


def test_operations_can_be_waited_for_together() -> None:
    running: AsyncOperation[None] = AsyncOperation()
    done, waiting = concurrent.futures.wait([finished_operation(), running], timeout=0)
    assert (len(done), waiting) == (1, {running})
