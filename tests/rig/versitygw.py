"""A real S3 server over a directory: versitygw, which ``tests/deployed/build.sh --soak`` builds."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.rig.brokers import free_ports
from tests.rig.gazctl import find_binary
from tests.waiting import wait_until

KEY_ID, SECRET = "test", "testsecret"


@contextmanager
def running_versitygw(directory: Path) -> Iterator[str]:
    """Run a server whose buckets are the folders of a directory; yield its endpoint.

    Raises:
        BinaryNotFoundError: it was not built.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    command = [str(find_binary("versitygw")), "--port", f"127.0.0.1:{port}", "posix", str(directory)]
    environment = os.environ | {"ROOT_ACCESS_KEY": KEY_ID, "ROOT_SECRET_KEY": SECRET}
    with (directory.parent / "versitygw.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until("the S3 server to take connections", lambda: _accepts(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _accepts(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
