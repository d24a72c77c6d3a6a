from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic


def wait_until(what: str, condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        pause.wait(0.05)


def accepts_connections(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
