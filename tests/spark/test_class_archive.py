"""The archive of classes, without which each JVM of this run starts in twice the time, was made."""

from __future__ import annotations

from tests.rig.class_archive import find_archive


def test_the_archive_is_there() -> None:
    """Making it never fails a run, so nobody would notice."""
    assert find_archive() is not None, "run `make class-archive`, and read what it prints"
