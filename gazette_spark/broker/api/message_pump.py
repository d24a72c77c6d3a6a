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
"""Number of messages to read before they are requested."""


class NoMessage(Enum):
    """Reason why there is no message."""

    END = auto()
    """The client closed its side."""
    NOT_YET = auto()
    """The time limit was reached."""
    BROKEN = auto()
    """The call ended: cancelled, past its deadline, or the connection is gone."""


class MessageSource(Protocol[_T_co]):
    """The messages of a call, each with a time limit. Any thread may call it, one at a time."""

    def take(self, timeout_s: float) -> _T_co | NoMessage:
        """Return the next message, or the reason why none arrived in time."""

    def close(self) -> None:
        """Stop reading messages."""


class MessagePump(Generic[_T]):
    """Moves messages from a gRPC iterator, on a thread of ``executor``, to the thread that takes them."""

    def __init__(self, messages: Iterator[_T], executor: Executor) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[_T] = deque()
        self._end: NoMessage | None = None
        self._closed = False
        executor.submit(self._run, messages)

    def __repr__(self) -> str:
        return f"MessagePump(waiting={len(self._waiting)}, end={self._end})"

    def take(self, timeout_s: float) -> _T | NoMessage:
        """Return the next message, or the reason why none arrived in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._end is not None, timeout_s)
            if not self._waiting:
                return self._end or NoMessage.NOT_YET
            self._changed.notify_all()
            return self._waiting.popleft()

    def close(self) -> None:
        """Stop reading messages. The pump's thread ends with the call."""
        with self._changed:
            self._closed = True
            # This makes room for a waiting thread, which then ends.
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self, messages: Iterator[_T]) -> None:
        # If the iterator does not end by itself, which happens only after a half-close, the call is broken.
        # This difference decides whether an append may commit.
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
