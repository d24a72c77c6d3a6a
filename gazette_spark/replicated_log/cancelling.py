"""Cancel a blocked fetch by any event."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Cancellation(Protocol):
    """Interface of what cancels a fetch: a :class:`threading.Event`, or the like."""

    def is_set(self) -> bool:
        """Return whether it is time to stop."""


@runtime_checkable
class _Waitable(Protocol):
    def wait(self) -> object:
        """Return when the event has happened."""


def cancel_on(event: Cancellation | Future[Any] | _Waitable | Callable[[], object]) -> Cancellation:
    """Return a cancellation that comes with an event: the node has become primary, for instance.

    Args:
        event: a ``threading.Event`` or the like, which is returned as it is; or a future that will end; or
            what blocks until it happens: an object with ``wait()``, or a function, such as the ``get`` of a
            queue of notifications. The last two are waited for in a daemon thread.
    """
    if isinstance(event, Cancellation):
        return event
    happened = threading.Event()
    if isinstance(event, Future):
        event.add_done_callback(lambda _: happened.set())
        return happened
    wait = event.wait if isinstance(event, _Waitable) else event

    def watch() -> None:
        try:
            wait()
        finally:
            happened.set()

    threading.Thread(target=watch, name="cancel-on", daemon=True).start()
    return happened
