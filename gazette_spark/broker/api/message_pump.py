"""Takes a stream's messages with a time limit, which gRPC's own iterator does not have."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

import grpc

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

LOOK_AHEAD = 8
"""Messages taken off the wire before they are asked for."""


class NoMessage(Enum):
    """Reason for a missing message."""

    END = auto()
    """The client closed its side."""
    NOT_YET = auto()
    """The time is up."""
    BROKEN = auto()
    """The call ended: cancelled, past its deadline, or the connection is gone."""


class MessageSource(Protocol[_T_co]):
    """The messages of a call, each waited for with a limit. Any thread, one at a time."""

    def take(self, timeout_s: float) -> _T_co | NoMessage:
        """Return the next message, or the reason why none came before the timeout."""

    def close(self) -> None:
        """Take no more."""


class MessagePump(Generic[_T]):
    """Moves messages from a gRPC iterator, on a thread of ``executor``, to the one thread that takes."""

    def __init__(self, messages: Iterator[_T], executor: Executor) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_T] = deque()
        self._end: NoMessage | None = None
        self._closed = False
        executor.submit(self._run, messages)

    def __repr__(self) -> str:
        return f"MessagePump(waiting={len(self._waiting)}, end={self._end})"

    def take(self, timeout_s: float) -> _T | NoMessage:
        """Return the next message, or the reason why none came before the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._end is not None, timeout_s)
            if not self._waiting:
                return self._end or NoMessage.NOT_YET
            self._changed.notify_all()
            return self._waiting.popleft()

    def close(self) -> None:
        """Take no more; the pump's thread ends with the call."""
        with self._changed:
            self._closed = True
            # A thread that waits for room gets it, and ends.
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self, messages: Iterator[_T]) -> None:
        # Unless the iterator ends by itself, which gRPC does only after a half-close, the call is broken.
        # That difference decides whether an append may commit.
        end = NoMessage.BROKEN
        try:
            with contextlib.suppress(grpc.RpcError):  # The call was cancelled.
                for message in messages:
                    if not self._put(message):
                        return
                end = NoMessage.END
        finally:
            with self._changed:
                self._end = end
                self._changed.notify_all()

    def _put(self, message: _T) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < LOOK_AHEAD)
            if self._closed:
                return False
            self._waiting.append(message)
            self._changed.notify_all()
            return True
