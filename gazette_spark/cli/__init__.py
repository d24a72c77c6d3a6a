"""The command ``gazette-spark``."""
