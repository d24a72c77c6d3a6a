"""Shows how the HTTP server tells that a client has left."""

from __future__ import annotations

import socket
import threading

from gazette_spark.broker.api.call_watch import CallWatch
from gazette_spark.broker.http.server import HttpPeer, is_connected

DEADLINE_S = 10.0


def test_a_client_that_closes_is_gone() -> None:
    """Both the other side's end and our own count as gone."""
    ours, theirs = socket.socketpair()
    assert is_connected(ours)
    theirs.close()
    assert not is_connected(ours)
    ours.close()
    assert not is_connected(ours)


def test_callbacks_when_a_client_leaves() -> None:
    """Waiting callbacks are woken when the client leaves, and when the request is done."""
    ours, theirs = socket.socketpair()
    watch, left = CallWatch(tick_s=0.001), threading.Event()
    peer = HttpPeer(ours, watch)
    assert peer.is_active()
    assert peer.add_callback(left.set)
    theirs.close()
    assert left.wait(DEADLINE_S)
    assert not peer.is_active()
    left.clear()
    peer.end()
    assert left.is_set()
    watch.stop()
    ours.close()
