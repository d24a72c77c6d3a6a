"""Delta tables without a JVM: opened with ``deltalake``, whose errors become this package's.

``deltalake`` is loaded when the first table is opened; it comes with ``gazette-spark[lag]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gazette_spark.errors import InputError

if TYPE_CHECKING:
    from deltalake import DeltaTable


def open_table(location: str) -> DeltaTable:
    """Open the newest version of a table.

    Args:
        location: Its directory, or a URL ``deltalake`` takes.

    Raises:
        InputError: ``deltalake`` is not installed, or there is no table it can open.
    """
    with named_errors(location):
        from deltalake import DeltaTable

        return DeltaTable(location)


@contextmanager
def named_errors(location: str) -> Iterator[None]:
    """Raise what ``deltalake`` raises as an error that names the table.

    Raises:
        InputError: in place of any error of ``deltalake``, of Arrow or of the file system.
    """
    try:
        import pyarrow as pa
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise InputError("to read a Delta table without Spark, install gazette-spark[lag]") from None
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise InputError(f"table {location} cannot be read: {error}") from error
