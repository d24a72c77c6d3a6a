"""Makes files and directories that survive a power cut.

Syncing a file keeps its bytes. Its name is kept by its directory, which has to be synced as well, and so do
all new directories above it.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Force a directory's entries to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path, *, mode: int = 0o777, fsync: bool) -> None:
    """Make a directory and its ancestors, if they do not exist."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    # Go from the top: each name is synced in its parent before the next directory is made below it.
    for directory in reversed(missing):
        directory.mkdir(mode=mode, exist_ok=True)
        if fsync:
            sync_directory(directory.parent)
