"""The class data archive exists; without it each JVM of the run takes twice as long to start."""

from __future__ import annotations

from tests.rig.class_archive import find_archive


def test_the_archive_is_there() -> None:
    """A failure to create the archive fails nothing else, so only this test reports it."""
    assert find_archive() is not None, "run `make class-archive`, and read what it prints"
