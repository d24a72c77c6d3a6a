"""Quotes names and texts for SQL."""

from __future__ import annotations

import re

UNESCAPED_LITERALS = {"spark.sql.parser.escapedStringLiterals": "false"}
"""Setting under which Spark reads the literals of :func:`text_literal`; it is the default."""


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


def text_literal(text: str) -> str:
    """Return a text as a literal of SQL, under :data:`UNESCAPED_LITERALS`."""
    # Whatever could end the literal, or begin a variable that Spark replaces (``${…}``), is written as the
    # number of its character.
    return "'" + re.sub(r"[^A-Za-z0-9_./:@ -]", lambda match: f"\\U{ord(match[0]):08X}", text) + "'"
