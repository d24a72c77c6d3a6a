"""Makes ``spark.read.format("gazette")`` work without registration.

PySpark imports every top-level module named ``pyspark_*`` and uses its ``DefaultSource``. It does so in any
session that uses a Python data source, so this module imports the data source only when it is accessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_spark.source import GazetteDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - Python's signature.
    """Import the data source when it is accessed."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gazette_spark.source import GazetteDataSource

    return GazetteDataSource
