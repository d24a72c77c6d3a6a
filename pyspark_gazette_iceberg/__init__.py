"""Makes ``df.writeStream.format("gazette_iceberg")`` work without registration.

This is a separate module from :mod:`pyspark_gazette`, because PySpark uses only one ``DefaultSource`` of each
module named ``pyspark_*``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_spark._iceberg_format import IcebergFormat as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - Python's signature.
    """Import the data source when it is accessed."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gazette_spark._iceberg_format import IcebergFormat

    return IcebergFormat
