"""Gazette journals in Spark and Delta Lake: complete, once, fast."""

from gazette_spark.version import VERSION

__all__ = ["__version__"]

__version__ = VERSION
