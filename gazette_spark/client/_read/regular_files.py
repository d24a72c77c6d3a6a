"""Opens only regular files.

Anyone who can write to a store can put a FIFO, a device or a symbolic link in place of a fragment. Opening a
FIFO waits for its other end, and a link may leave the store.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_BUFFER_BYTES = 1 << 20


def open_regular_fd(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Return a descriptor of a regular file. Never waits, and does not follow a final link.

    Raises:
        OSError: the file cannot be opened, or is not a regular one.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for its other end.
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return handle


def open_regular_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read it.

    Raises:
        OSError: the file cannot be opened, or is not a regular one.
    """
    return os.fdopen(open_regular_fd(path), "rb", buffering=_BUFFER_BYTES)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: the file cannot be read, or is not a regular one.
    """
    with open_regular_file(path) as file:
        return file.read()
