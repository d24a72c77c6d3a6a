"""Names as SQL takes them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name quoted for SQL and ``col``, with any characters."""
    return "`" + name.replace("`", "``") + "`"


def table_at(path: str) -> str:
    """Return the name of the Delta table in a directory."""
    return f"delta.{quoted(path)}"


def path_of(name: str) -> str | None:
    """Return the directory that :func:`table_at` made a name of, None if a name is of the catalog."""
    if name.startswith("delta.`") and name.endswith("`"):
        return name[len("delta.`") : -1].replace("``", "`")
    return None
