"""Makes ``spark.read.format("gazette")`` work with nothing registered.

PySpark imports every top-level module named ``pyspark_*`` and takes its ``DefaultSource``. It does so
in any session that uses any Python data source, so this module loads nothing until it is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_spark.source import GazetteDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - Python's own signature.
    """Load the data source when it is asked for."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gazette_spark.source import GazetteDataSource

    return GazetteDataSource
