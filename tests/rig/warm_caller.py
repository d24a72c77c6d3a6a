"""Represents, in Spark's process table, a worker that a :class:`~tests.rig.warm_python.WarmPython` forked.

Spark starts it in place of ``python -m MODULE``, so it imports little. It passes on its files and its
environment, and ends when the worker does. The worker ends when this process is killed.
"""

from __future__ import annotations

import json
import os
import socket
import sys

if __name__ == "__main__":
    path, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        order = json.dumps({"arguments": arguments, "environment": dict(os.environ)})
        socket.send_fds(server, [order.encode()], [0, 1, 2])
        for file in (0, 1, 2):
            os.close(file)
        server.recv(1)
