"""Quotes names for SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Quote a name with any characters for SQL and for ``col``."""
    return "`" + name.replace("`", "``") + "`"


def table_at(path: str) -> str:
    """Return the name of the Delta table in a directory."""
    return f"delta.{quoted(path)}"


def path_of(name: str) -> str | None:
    """Return the directory in a name from :func:`table_at`, or None for a name in the catalog."""
    if name.startswith("delta.`") and name.endswith("`"):
        return name[len("delta.`") : -1].replace("``", "`")
    return None
