"""Makes ``df.writeStream.format("gazette_iceberg")`` work with nothing registered.

As :mod:`pyspark_gazette` does for the format ``gazette``: PySpark takes one ``DefaultSource`` of each module
named ``pyspark_*``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_spark._iceberg_format import IcebergFormat as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - Python's own signature.
    """Load the data source when it is asked for."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gazette_spark._iceberg_format import IcebergFormat

    return IcebergFormat
