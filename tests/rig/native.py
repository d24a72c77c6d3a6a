"""The native decoder in tests: whether it is available, and processes with and without it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from gazette_spark._formats import library


@cache
def cargo_runs() -> bool:
    try:
        return subprocess.run(["cargo", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def require_library() -> None:
    """Skip a test if the library was not built; on CI it must be built if Rust is installed."""
    library.library.cache_clear()
    absence = library.library().absence
    if absence and os.environ.get("CI") == "true" and cargo_runs():
        pytest.fail(f"the native decoder is not there: {absence}")
    if absence:
        pytest.skip(f"the native decoder is not there: {absence}. `make install` builds it")


@contextmanager
def without_library() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.SWITCH, "0")
        library.library.cache_clear()
        yield
    library.library.cache_clear()
